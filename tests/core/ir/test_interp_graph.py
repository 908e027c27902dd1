"""The graph interpreter: symbols, structural nodes, control flow, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ir_samples import dyn_ffn

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module, Node, Value
from smelt.core.ir.interp_graph import RunLimits, run_module
from smelt.core.ir.text import parse_module
from smelt.core.ops import OPS
from smelt.core.passes.equivalence import difference
from smelt.core.passes.numerics import EXACT


def run(text: str, **feeds: Any) -> tuple[np.ndarray[Any, Any], ...]:
    return run_module(parse_module(text), {k: np.asarray(v) for k, v in feeds.items()}, OPS)


def f(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


@pytest.mark.parametrize("flag", [True, False])
def test_a_module_at_three_levels(flag: bool) -> None:
    m = dyn_ffn()
    m = m.with_main(m.main.with_(nodes=m.main.nodes[:-1], outputs=("%y", "%f")))
    x = np.random.default_rng(0).integers(-2, 3, (2, 8, 384)).astype(np.float32)
    seen: dict[str, np.ndarray[Any, Any]] = {}

    def watch(node: Node, value: Value, array: np.ndarray[Any, Any]) -> None:
        seen[value.origin or value.name] = array

    y, q = run_module(m, {"x": x, "flag": np.array(flag)}, OPS, watch=watch)
    a = x @ m.weights["@w"].array() + m.weights["@b"].array()
    np.testing.assert_array_equal(seen["/dense/Add"], a)
    np.testing.assert_array_equal(y, np.maximum(a, 0) if flag else a)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(q, np.exp(y) + m.weights["@b"].array(), rtol=1e-6)


SHAPES = """
module "m" {
  sym n in 1..8 % 2 sym m in 0..*
  graph @main(%x: f32[n, 2*m + 1] from "x", %y: f32[m*n] from "y") -> (%x as "out") { }
}
"""


def test_symbols_are_solved_from_shapes() -> None:
    (out,) = run(SHAPES, x=np.zeros((4, 7), np.float32), y=np.zeros(12, np.float32))
    assert out.shape == (4, 7)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((4, 6), 12, "input 'x' axis 1: expected 2*m + 1, got 6"),
        ((10, 7), 30, "input 'x' axis 0: expected n in 1..8, a multiple of 2, got 10"),
        ((3, 7), 9, "input 'x' axis 0: expected n in 1..8, a multiple of 2, got 3"),
        ((4, 7), 13, "input 'y' axis 0: expected m*n = 12, got 13"),
        ((4, 7, 1), 12, "input 'x' has rank 3, expected 2"),
    ],
)
def test_inputs_that_do_not_fit(x: tuple[int, ...], y: int, message: str) -> None:
    with pytest.raises(SmeltError) as e:
        run(SHAPES, x=np.zeros(x, np.float32), y=np.zeros(y, np.float32))
    assert e.value.kind == "shape"
    assert message in str(e.value)


def test_missing_and_mistyped_inputs() -> None:
    with pytest.raises(SmeltError, match="input 'y' is missing"):
        run(SHAPES, x=np.zeros((4, 7), np.float32))
    with pytest.raises(SmeltError, match="input 'x' is float64, expected f32"):
        run(SHAPES, x=np.zeros((4, 7)), y=np.zeros(12, np.float32))


CHECK = """
module "m" {{
  sym n in 0..* sym k in 0..*
  graph @main(%x: f32[n]) -> (%x) {{
    check() {{left = dim {left}, relation = "{relation}", right = dim {right}, text = "input x"}}
  }}
}}
"""


@pytest.mark.parametrize(
    ("left", "relation", "right", "holds"),
    [
        ("n", "==", "4", True), ("n", "==", "5", False), ("n", "<=", "4", True), ("n", "<=", "3", False),
        ("2", "divides", "n", True), ("3", "divides", "n", False), ("0", "divides", "n", False),
    ],
)
def test_checks(left: str, relation: str, right: str, holds: bool) -> None:
    text = CHECK.format(left=left, relation=relation, right=right)
    if holds:
        run(text, x=np.zeros(4, np.float32))
        return
    with pytest.raises(SmeltError, match=r"input x: .* does not hold") as e:
        run(text, x=np.zeros(4, np.float32))
    assert e.value.kind == "shape"


BIND = """
module "m" {
  sym n in 0..* sym k in 0..9
  graph @main(%x: f32[n], %s: i64[2]) -> (%y) {
    bind(%s) {symbol = "k", index = 1, low = dim 0, high = dim n}
    %y = slice(%x) {starts = [0], ends = [k], steps = (1,)} : f32[k]
  }
}
"""


def test_binds() -> None:
    x = np.arange(5, dtype=np.float32)
    (y,) = run(BIND, x=x, s=np.array([9, 3]))
    np.testing.assert_array_equal(y, x[:3])
    with pytest.raises(SmeltError, match=r"size 'k' is 6, expected 0\.\.5"):
        run(BIND, x=x, s=np.array([0, 6]))


LOOP = """
module "m" {
  sym n in 0..* sym r in 0..* sym s in 0..* sym q in 0..*
  graph @main(%x: f32[n], %trip: i64[], %go: bool[]) -> (%y, %z) {
    %y, %z = loop(%trip, %go, %x) : f32[r], f32[s, 1]
      region @body(%i: i64[], %c: bool[], %v: f32[q]) -> (%c, %w, %u) {
        %w = concat(%v, %v) {axis = 0} : f32[2*q]
        %u = slice(%w) {starts = [0], ends = [1], steps = (1,)} : f32[1]
      }
  }
}
"""


def test_loops_carry_values_that_grow() -> None:
    y, z = run(LOOP, x=f(1, 2), trip=np.array(3), go=np.array(True))
    np.testing.assert_array_equal(y, np.tile(f(1, 2), 8))
    np.testing.assert_array_equal(z, np.ones((3, 1)))
    y, z = run(LOOP, x=f(1, 2), trip=np.array(3), go=np.array(False))
    np.testing.assert_array_equal(y, f(1, 2))
    assert z.shape == (0, 1)


def test_a_loop_without_end_ends() -> None:
    """Where a caller says after how many rounds; a pass may be validated on feeds that it never ends on."""
    module = parse_module(
        """module "m" { sym n in 0..* graph @main(%x: f32[n]) -> (%y) { %y = loop(_, _, %x) : f32[n]
        region @body(%i: i64[], %c: bool[], %v: f32[n]) -> (%c, %w) { %w = neg(%v) : f32[n] } } }"""
    )
    with pytest.raises(SmeltError, match="has run 50 rounds"):
        run_module(module, {"x": f(1)}, OPS, limits=RunLimits(50, 100))
    assert difference(module, module, EXACT, iter([{"x": f(1)}])) is None


def test_a_tensor_that_no_memory_holds() -> None:
    """A size that data decides is no reason to make it, where a caller says how large one may be."""
    module = parse_module(
        """module "m" { sym n in 0..* sym k in 0..* graph @main(%x: i64[n], %o: f32[1]) -> (%y) {
        bind(%x) {symbol = "k", index = 0, low = dim 0, high = dim 1125899906842624}
        %y = broadcast_to(%o) {shape = [k]} : f32[k] } }"""
    )
    with pytest.raises(SmeltError, match="has 1099511627776 elements, at most 100"):
        run_module(module, {"x": np.array([2**40]), "o": f(1)}, OPS, limits=RunLimits(50, 100))


def broken(nodes: str) -> Module:
    return parse_module(
        'module "m" { sym n in 0..* kernel @k(m: dim in 0..*, x: f32[m]) -> (y: f32[m]) '
        "{ serial i in m { y[i] = x[i + 1] } } graph @main(%x: f32[n]) -> (%y) { "
        + nodes + " } }"
    )


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ('%y = exp(%x) : f32[n + 1] at "e"', "node 'e': exp gives %y, axis 0: expected n + 1 = 5, got 4"),
        ("%y = slice(%x) {starts = [0], ends = [n], steps = (1,)} : f64[n]", "%y as float32, expected f64"),
        ("%y = exp(%x) : f32[n, 1]", "exp gives %y of shape [4], expected f32[n, 1]"),
        ("%y = expp(%x) : f32[n]", "op 'expp' is not in the op table"),
        ('%y = call_kernel(%x) {kernel = "k", dims = [n]} : f32[n]', "'k': x[i + 1]: index 4 of axis 0"),
    ],
)
def test_broken_results_are_found_where_they_are_made(nodes: str, message: str) -> None:
    with pytest.raises(SmeltError) as e:
        run_module(broken(nodes), {"x": f(1, 2, 3, 4)}, OPS)
    assert e.value.kind == "internal"
    assert message in str(e.value)


def test_libraries_are_given_or_refused() -> None:
    m = broken('%y = call_library(%x) {library = "twice"} : f32[n]')
    with pytest.raises(SmeltError, match="no meaning for library function 'twice'"):
        run_module(m, {"x": f(1)}, OPS)
    (y,) = run_module(m, {"x": f(1, 2)}, OPS, libraries={"twice": lambda x: (2 * x,)})
    np.testing.assert_array_equal(y, f(2, 4))
