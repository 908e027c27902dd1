"""Every rewrite rule on instances and near-misses of its forms; the wrong rewrites that were found."""

from __future__ import annotations

import ast
import collections
import pkgutil
from importlib import import_module

import numpy as np
import pytest
from attack_rules import BOOK, NAMES, TAKES_ALL, attack_rule, rewritten
from rule_forms import build

import smelt.core.passes
from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.ir.text import parse_module
from smelt.core.machine import Machine
from smelt.core.passes.context import Context, Options
from smelt.core.passes.equivalence import difference, feeds_of
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.numerics import EXACT, FAST, INTEGERS, ROUNDING, SUMS, TRANSFORMS, fast_parts
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.passes.rewriting.rules import Rule, rule, run_rules

UPTO = next(i for i, p in enumerate(PIPELINE) if p.name == "layout")
MACHINE = Machine("test", 256, 16)


def program(text: str) -> Module:
    """The module of a form (tests/support/rule_forms.py)."""
    return build(ast.parse(text.replace("[]", "[()]")))


def test_the_book_has_every_rule() -> None:
    """A rule that some pass has and the book has not would be proved by nobody."""
    found = set()
    for m in pkgutil.walk_packages(smelt.core.passes.__path__, "smelt.core.passes."):
        for value in vars(import_module(m.name)).values():
            items = value if isinstance(value, list | tuple) else [value]
            found.update(r.name for r in items if isinstance(r, Rule))
    assert found <= set(NAMES) and len(found) >= 80 and len(NAMES) >= 90
    kinds = {EXACT, ROUNDING, SUMS, INTEGERS, TRANSFORMS, *FAST}
    assert all(r.forms and r.kind in kinds for r in BOOK.values())


@pytest.mark.parametrize("name", NAMES)
def test_rule_is_right_or_refuses(name: str) -> None:
    """Five mutants at least, and more until the rule fired and refused; of those it need only refuse one."""
    seen: collections.Counter[str] = collections.Counter()
    for seed in range(300):
        outcome = attack_rule(name, seed, compared=seen["fired"] < 5)
        assert not outcome.failed, outcome.detail
        seen[outcome.what] += 1
        done = seen["fired"] and (seen["refused"] or name in TAKES_ALL)
        if done and seen["fired"] + seen["refused"] >= 5:
            break
    assert seen["fired"], f"no form of {name} fits it: {dict(seen)}"
    assert seen["refused"] or name in TAKES_ALL, f"nothing is a near-miss of {name}: {dict(seen)}"


FOUND = {
    "a scale beyond f32": (
        "x: u8[N, 4]; z: u8[] = 3; s: f64[] = 3e38; "
        "quantize(dequantize(x, s, z, axis=-1), s, z, axis=-1, to=u8)", EXACT),
    "a power of integers": ("x: i32[N]; e: f32[] = 0.5; pow(x, e)", ROUNDING),
    "a root of -inf and -0": ("x: f32[N]; pow(x, 0.5)", ROUNDING),
    "factors that overflow": ("x: f32[N]; mul(mul(x, 1e20), 1e20)", EXACT),
    "a sum that rounds": ("x: f32[N]; sub(add(x, 12582912.0), 12582912.0)", EXACT),
    "halves scaled over their range": (
        "x: f16[N, 4]; w: f16[4, 3] = 60000.0; mul(matmul(x, w), 0.001)", EXACT),
    "a wide one in softplus": ("x: f32[1, 3]; log(add(exp(x), fill(1.0, 4, 1)))", EXACT),
    "a wide epsilon": (
        "x: f32[1, 8]; div(x, sqrt(add(reduce_mean(mul(x, x), axes=(1,), keepdims=True), fill(1e-5, 4, 1))))",
        ROUNDING),
    "a slope near a sixth": ("x: f32[N, 4]; mul(x, hard_sigmoid(x, alpha=0.1665, beta=0.5))", ROUNDING),
    "a pool of a negative scale": (
        "x: i8[N, 2, H]; max_pool(dequantize(x, -0.05, axis=-1), kernel=(2,))", EXACT),
    "x + 0 of -0": ("x: f32[N]; reciprocal(add(x, 0.0))", EXACT),
    "a cast through floats that stops": ("x: i16[N]; cast(cast(x, to=f32), to=i8)", EXACT),
    "a size in few bits": (
        "x: f32[N]; cast(from_dims(values=(300 * N,), shape=(1,), dtype=bf16), to=f32)", EXACT),
    "a softmax without its maximum": (
        "x: f32[N, 4]; e = exp(x); div(e, reduce_sum(e, axes=(1,), keepdims=True))", ROUNDING),
    "a sum next to 1 in few bits": (
        "x: bf16[N, 4]; d = sub(x, reduce_max(x, axes=(1,), keepdims=True)); "
        "sub(d, log(reduce_sum(exp(d), axes=(1,), keepdims=True)))", ROUNDING),
    "infinities beside a tap of 0": (
        "x: f32[N, 4, H]; w: f32[4, 3, 3] = draw; conv_transpose(x, w, strides=(2,))", SUMS),
    "a scale of 0": (
        "x: u8[N]; s: f32[] = 0.0; quantize(dequantize(x, s, axis=-1), s, axis=-1, to=u8)", EXACT),
    "a slice that ends before it starts": (
        "x: f32[N, 6]; concat(slice(x, starts=(0, 0), ends=(N, 2), steps=(1, 1)), slice(x, starts=(0, 2), "
        "ends=(N, 1), steps=(1, 1)), axis=1)", EXACT),
    "one product, which is no sum": (
        "x: f32[64, 1]; w: f32[1, 4] = 1.0; reciprocal(add(matmul(x, w), 0.0))", EXACT),
    "a power of integers through floats": ("x: i64[64]; e: f32[] = 1.0; pow(x, e)", EXACT),
    "halves whose scaled sums are in range": (
        "x: f16[N, 3, 40]; k: f16[N, 40, 5]; matmul(mul(x, 300.0), mul(k, 0.001))", EXACT),
    "a row that is masked as a whole": (
        "x: f32[N, M, H]; where(equal(reduce_max(broadcast_to(-inf, shape=(M, H)), axes=(1,), "
        "keepdims=True), -inf), 0.0, x)", EXACT),
    "the maximum of nothing": (
        "x: f32[N, M, 2]; where(equal(reduce_max(slice(broadcast_to(0.0, shape=(M, M)), starts=(0, 0), "
        "ends=(M, 0), steps=(1, 1)), axes=(1,), keepdims=True), -inf), 0.0, x)", EXACT),
    "rows of a matrix that are repeated": (
        "x: f32[N, 6, M, 5]; k: f32[N, 6, 1, 4]; matmul(x, broadcast_to(k, shape=(N, 6, 5, 4)))", SUMS),
    "a broadcast that is one for N = 1 only": (
        "x: f32[N, 1]; broadcast_to(broadcast_to(x, shape=(1, 4)), shape=(2, N, 4))", EXACT),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_right(name: str) -> None:
    """Through all passes up to layout, as a compile runs them."""
    text, kind = FOUND[name]
    before = program(text)
    after = run_pipeline(before, PIPELINE[:UPTO], Context(MACHINE))
    for seed in range(3):
        found = difference(before, after, kind, feeds_of(before, seed, kind))
        assert found is None, str(found)


def test_sums_of_70000_products_stay_floats() -> None:
    """32 bits hold 33,025 products of two bytes; of more, and of sizes that a run decides, only what fits."""
    form = "x: u8[N, {}]; w: {}; matmul(dequantize(x, 0.05, axis=-1), dequantize(w, 0.02, axis=-1))"

    def integer(k: str, w: str) -> list[str]:
        after, fired = rewritten(program(form.format(k, w)), "integer_matmul")
        return [n.op for n in after.main.walk()] if fired else []

    assert not integer("70000", "u8[70000, 1]") and not integer("70000", "i8[70000, 1] = 127")
    assert integer("70000", "i8[70000, 1] = 20") and integer("33025", "u8[33025, 1]")
    assert "if" in integer("M", "u8[M, 1]")


def test_fast_math_is_asked_for_by_name() -> None:
    text = "x: f32[N, 4]; log(add(exp(mul(mul(x, 0.3), 0.7)), 1.0))"
    ops = {
        parts: [n.op for n in run_pipeline(program(text), PIPELINE[:UPTO],
                                           Context(MACHINE, Options(fast=fast_parts(parts)))).main.nodes]
        for parts in ("", "overflow", "reassociate", "all")
    }  # fmt: skip
    assert ops[""] == ["mul", "mul", "exp", "add", "log"]
    assert ops["overflow"] == ["mul", "mul", "softplus"]
    assert ops["reassociate"] == ["mul", "exp", "add", "log"]
    assert ops["all"] == ["mul", "softplus"]
    with pytest.raises(SmeltError, match="no part 'speed'"):
        fast_parts("overflow,speed")


# ---------------------------------------------------------------- the law of Editor.replace


def test_a_rule_of_another_shape_is_an_error_with_its_name() -> None:
    @rule("relu", kind=EXACT, forms=["x: f32[N, 4]; relu(x)"])
    def _wider(g, n):  # type: ignore[no-untyped-def]
        return g.emit("add", (n.inputs[0], g.constant(np.zeros((4, 1, 1), np.float32))))

    with pytest.raises(SmeltError, match=r"rule wider: .* cannot become") as e:
        _applied(_wider, "x: f32[N, 4]; relu(x)")
    assert e.value.kind == "internal"


@pytest.mark.parametrize("emitted", ["sizes that only a run compares", "a shape that only a run tells"])
def test_a_rule_that_needs_a_check_is_refused(emitted: str) -> None:
    @rule("relu", kind=EXACT, forms=["x: f32[N, 4]; relu(x)"])
    def _other(g, n):  # type: ignore[no-untyped-def]
        return g.emit("add", (n.inputs[0], "%y")) if emitted.startswith("sizes") else "%y"

    module = program("x: f32[N, 4]; y: f32[M, 4]; add(relu(x), reduce_sum(y, axes=(0, 1), keepdims=True))")
    after = _done(_other, module)
    assert [n.op for n in after.main.nodes] == ["relu", "reduce_sum", "add"]


def _applied(r: Rule, text: str) -> Module:
    return _done(r, program(text))


def _done(r: Rule, module: Module) -> Module:
    from smelt.core.passes.rewriting.editor import edit_module

    return edit_module(module, lambda g: run_rules(g, (r,)) and None)


LOOP = """module "m" {
  sym n in 1..*
  weight @zero: f32[3] = [0.0, 0.0, 0.0]
  weight @minus: f32[3] = [-0.0, -0.0, -0.0]

  graph @main(%x: f32[n, 3] from "x") -> (%y as "y") {
    %sum = reduce_sum(%x) {axes = (0,), keepdims = false} : f32[3]
    %y = loop(_, _, START) {trips = dim n} : f32[3]
      region @body(
          %i: i64[],
          %going: bool[],
          %s: f32[3],
      ) -> (%going, %t) {
        %r = add(%s, @zero) : f32[3]
        %t = OP(%r) : f32[3]
      }
  }
}
"""


@pytest.mark.parametrize(
    ("start", "op", "dropped"),
    [("@zero", "tanh", True), ("%sum", "tanh", True), ("@minus", "tanh", False), ("@zero", "neg", False)],
)
def test_zero_is_added_in_a_loop_where_a_state_may_be_minus_zero(start: str, op: str, dropped: bool) -> None:
    before = parse_module(LOOP.replace("START", start).replace("OP", op))
    after, fired = rewritten(before, "neutral")
    assert bool(fired) is dropped
    assert difference(before, after, EXACT, feeds_of(before, 0)) is None
