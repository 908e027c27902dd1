"""The inference engine: what it proves, solves, narrows, checks and refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, Truth, ceildiv, dmax, dmin, sym, to_dim
from smelt.core.dtype import DType, bf16, bool_, f32, i8, i32, u8
from smelt.core.ir.graph import Module, Symbol, TensorType
from smelt.core.ops import OPS
from smelt.core.ops.infer import Engine
from smelt.core.ops.infer_node import infer_node
from smelt.core.ops.table import Arg, Attrs, Infer

A, B, C = sym("a"), sym("b"), sym("c")


def engine(*names: str, learn: bool = True) -> Engine:
    e = Engine(learn=learn)
    for n in names:
        e.declare(Symbol(n), from_input=True)
    e.at("node1", "Op")
    return e


def span(e: Engine, name: str) -> tuple[int, int | None, int]:
    (s,) = [s for s in e.symbols() if s.name == name]
    return s.low, s.high, s.divisor


def texts(e: Engine) -> list[str]:
    return [c.text for c in e.take_checks()]


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (A, B, {"b": A}),
        (A + 1, B, {"b": A + 1}),
        (A, to_dim(4), {"a": to_dim(4)}),
        (A * 2, to_dim(8), {"a": to_dim(4)}),
        (A * 2 + B, C, {"c": A * 2 + B}),
    ],
)
def test_equalities_that_can_be_solved(a: Dim, b: Dim, wanted: dict[str, Dim]) -> None:
    e = engine("a", "b", "c")
    e.same("sizes", a, b)
    assert texts(e) == []
    for name, value in wanted.items():
        assert e.simplify(sym(name)) == value
        assert name not in {s.name for s in e.symbols()}
    assert e.prove_eq(a, b) is Truth.YES


def test_generated_names_go_first() -> None:
    e = Engine()
    e.declare(Symbol("x_0"), from_input=True, generated=True)
    e.declare(Symbol("n"), from_input=True)
    assert e.same("sizes", sym("x_0"), sym("n")) == sym("n")


def test_equalities_chain() -> None:
    e = engine("a", "b", "c")
    e.same("one", B, C)
    e.same("two", A, C)
    assert {str(e.simplify(x)) for x in (A, B, C)} == {"a"}


def test_an_equality_between_run_time_sizes_is_checked_and_then_known() -> None:
    e = engine("a")
    n = e.fresh("n")
    assert e.same("rows", n, A * 2) == A * 2
    assert texts(e) == ["node 'node1' (Op): rows: n must equal 2*a"]
    e.same("rows", n, A * 2)
    assert texts(e) == []
    assert e.settled(n) == n  # above the check it is not known


def test_unsolvable_equalities_are_checked_once() -> None:
    e = engine("a", "b")
    x, y = ceildiv(A, to_dim(2)), ceildiv(B, to_dim(3))
    e.same("sizes", x, y)
    e.same("sizes", x, y)
    assert len(e.take_checks()) == 1


def test_refuted() -> None:
    e = engine("a")
    with pytest.raises(SmeltError, match="node 'node1': Op: inner: found a and a \\+ 1") as caught:
        e.same("inner", A, A + 1)
    assert caught.value.node == "node1"
    with pytest.raises(SmeltError, match="is more than"):
        e.at_most("k", A + 1, A)
    with pytest.raises(SmeltError, match="no multiple"):
        e.divides("parts", to_dim(2), to_dim(5))


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (to_dim(3), A, (3, None, 1)),
        (A, to_dim(9), (0, 9, 1)),
        (to_dim(3), A * 2, (2, None, 1)),
        (to_dim(3), A // 4, (12, None, 1)),
        (A // 4, to_dim(2), (0, 11, 1)),
        (to_dim(2), (A + 1) // 2 - 3, (9, None, 1)),
        (to_dim(1), (A // 2 + 1) // 3, (4, None, 1)),
        (to_dim(1), ((A + 3) // 4) * (A // 3), (3, None, 1)),
        (dmax(A, 2 * A - 8), to_dim(6), (0, 6, 1)),
    ],
)
def test_orders_narrow_ranges(low: Dim, high: Dim, wanted: tuple[int, int | None, int]) -> None:
    e = engine("a")
    e.at_most("size", low, high)
    assert texts(e) == []
    assert span(e, "a") == wanted
    for n in range(40):
        holds = low.evaluate({"a": n}) <= high.evaluate({"a": n})
        assert holds is (wanted[0] <= n <= (40 if wanted[1] is None else wanted[1]))


def test_a_quotient_that_is_constant_pins_a_range() -> None:
    e = engine("a")
    e.same("height", (A + 15) // 48, to_dim(1))
    assert span(e, "a") == (33, 80, 1)
    assert e.simplify((A + 15) // 48) == to_dim(1)


def test_extremes_are_orders() -> None:
    e = engine("a")
    e.same("length", A, dmin(A, 512))
    assert span(e, "a") == (0, 512, 1)
    assert texts(e) == []


def test_divisors() -> None:
    e = engine("a")
    e.divides("groups", to_dim(8), A * 2)
    assert span(e, "a") == (0, None, 4)
    e.divides("groups", to_dim(6), A)
    assert span(e, "a") == (0, None, 12)
    n = e.fresh("n")
    e.divides("groups", to_dim(2), n)
    assert texts(e) == ["node 'node1' (Op): groups: 2 must divide n"]


def test_demands_on_a_solved_symbol_move_on() -> None:
    e = engine("a")
    e.declare(Symbol("b", 4, 20, 2), from_input=True)
    e.same("sizes", A, B)
    assert span(e, "a") == (4, 20, 2)


def test_a_region_that_may_not_run_teaches_nothing_outside() -> None:
    e = engine("a", "b")
    with e.conditional():
        e.same("inside", A, B)
        assert e.prove_eq(A, B) is Truth.YES
        e.at_most("inside", to_dim(3), A)
    assert len(e.take_checks()) == 2
    assert e.prove_eq(A, B) is Truth.UNKNOWN
    assert span(e, "a") == (0, None, 1)


def test_broadcast() -> None:
    e = engine("a", "b")
    one = to_dim(1)
    assert e.broadcast((A, one, to_dim(3)), (to_dim(4), one)) == (A, to_dim(4), to_dim(3))
    assert e.broadcast((), (A,)) == (A,)
    assert e.broadcast((to_dim(0),), (one,)) == (to_dim(0),)
    assert e.broadcast((A,), (B,)) == (A,)
    assert e.simplify(B) == A


def test_fresh_names_and_bounds() -> None:
    e = engine("n", "a")
    d = e.fresh("n", 0, A)
    assert str(d) == "n_1"
    assert e.prove_le(d, A) is Truth.YES
    assert str(e.fresh("1 odd/name")) == "n1_odd_name"


def test_passes_learn_nothing() -> None:
    e = Engine.of(Module("m", (Symbol("a", 2, 8), Symbol("b"))))
    assert e.bounds(A) == (2, 8)
    e.same("sizes", A, B)
    assert len(e.take_checks()) == 1
    assert {s.name for s in e.symbols()} == {"a", "b"}


def test_infer_node_gives_simplified_types() -> None:
    e = engine("a", "b")
    args = [Arg(TensorType(f32, (A, to_dim(4)))), Arg(TensorType(f32, (B, to_dim(2))))]
    assert infer_node(OPS["matmul"], args, {}, engine("a", "b", learn=False))[0].shape == (A, to_dim(2))
    (t,) = infer_node(OPS["matmul"], args, {}, e)
    assert t == TensorType(f32, (A, to_dim(2)))
    assert e.simplify(B) == to_dim(4)


@pytest.mark.parametrize(
    ("op", "dtype", "right"),
    [("not", f32, False), ("not", bool_, True), ("and", i32, False), ("or", bool_, True), ("xor", f32, False),
     ("bit_not", f32, False), ("bit_not", i32, True), ("bit_or", bf16, False), ("bit_and", bool_, True)],
)  # fmt: skip
def test_truth_values_are_bools_and_bits_are_integers(op: str, dtype: DType, right: bool) -> None:
    """NumPy takes floats for truth values; the formulas have no such thing."""
    args = [Arg(TensorType(dtype, (to_dim(3),)))] * len(OPS[op].inputs.split())
    if right:
        infer_node(OPS[op], args, {}, engine())
    else:
        with pytest.raises(SmeltError, match=r"wants a .*tensor"):
            infer_node(OPS[op], args, {}, engine())


@pytest.mark.parametrize("op", ["add", "sub", "mul", "max", "neg", "abs"])
def test_truth_values_are_no_numbers(op: str) -> None:
    args = [Arg(TensorType(bool_, (to_dim(3),)))] * len(OPS[op].inputs.split())
    with pytest.raises(SmeltError, match="wants a tensor of numbers, found bool"):
        infer_node(OPS[op], args, {}, engine())


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "instance_norm", "group_norm"])
def test_norms_take_parameters_of_the_inputs_type(op: str) -> None:
    x, attrs = TensorType(f32, (A, to_dim(4), to_dim(4))), {"axis": 2, "epsilon": 1e-5, "groups": 2}
    for dtype in (f32, bf16):
        args = [Arg(x)] + [Arg(TensorType(dtype, (to_dim(4),)))] * (len(OPS[op].inputs.split()) - 1)
        if dtype == f32:
            assert infer_node(OPS[op], args, attrs, engine("a")) == (x,)
        else:
            with pytest.raises(SmeltError, match="wanted the input's type f32"):
                infer_node(OPS[op], args, attrs, engine("a"))


# ---------------------------------------------------------------- equal nodes are typed once


def test_equal_nodes_are_typed_once() -> None:
    """Until something new is known: then what was found may be told in simpler terms."""
    asked: list[str] = []

    def watched(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
        asked.append(str(args))
        return OPS["relu"].infer(c, args, attrs)

    row = replace(OPS["relu"], infer=watched)
    e = engine("a", "b")
    node = [Arg(TensorType(f32, (A + B,)))]
    assert infer_node(row, node, {}, e) == infer_node(row, node, {}, e)
    assert len(asked) == 1
    e.same("sizes", B, to_dim(4))
    (t,) = infer_node(row, node, {}, e)
    assert len(asked) == 2 and t.shape == (A + 4,)


def test_what_a_node_demands_is_asked_each_time() -> None:
    """A check that was taken must be recorded again for the next node."""
    e = engine("a", "b", learn=False)
    node = [Arg(TensorType(f32, (A,))), Arg(TensorType(f32, (B,)))]
    for _ in range(2):
        with e.conditional():
            infer_node(OPS["add"], node, {}, e)
            assert len(texts(e)) == 1


def test_a_region_does_not_type_nodes_for_the_graph_around_it() -> None:
    """Inside, N is 4; outside it is anything."""
    e = engine("a")
    node = [Arg(TensorType(f32, (A,)))]
    with e.conditional():
        e.same("sizes", A, to_dim(4))
        inside = infer_node(OPS["relu"], node, {}, e)
    outside = infer_node(OPS["relu"], node, {}, e)
    assert inside[0].shape == (to_dim(4),) and outside[0].shape == (A,)


@pytest.mark.parametrize(
    ("start", "end", "step", "right"),
    [(to_dim(0), A, 1, True), (to_dim(-1), A, 1, False), (to_dim(0), A + 1, 1, False),
     (to_dim(3), to_dim(3), 1, True), (to_dim(-1), to_dim(-1), 1, True), (A - 1, to_dim(-1), -1, True),
     (A, to_dim(-1), -1, False), (A - 1, to_dim(-2), -1, False), (B, A, 1, True)],
)  # fmt: skip
def test_slices_stay_on_the_axis(start: Dim, end: Dim, step: int, right: bool) -> None:
    """What is known to leave it is a fault of whoever made it: the formula reads where it is told to."""
    attrs = {"starts": (start,), "ends": (end,), "steps": (step,)}
    args = [Arg(TensorType(f32, (A,)))]
    if right:
        infer_node(OPS["slice"], args, attrs, engine("a", "b"))
    else:
        with pytest.raises(SmeltError, match="leaves the axis of a"):
            infer_node(OPS["slice"], args, attrs, engine("a", "b"))


def test_no_size_is_negative() -> None:
    """Whatever rule gives it: an attribute of a file may be any number."""
    attrs = {"shape": (to_dim(-3), A)}
    negative = replace(OPS["relu"], infer=lambda c, args, attrs: (TensorType(f32, attrs["shape"]),))
    with pytest.raises(SmeltError, match=r"extents -3, a: one of them is negative") as caught:
        infer_node(negative, [Arg(TensorType(f32, (A,)))], attrs, engine("a"))
    assert caught.value.kind == "invalid" and caught.value.node == "node1"


@pytest.mark.parametrize("op", ["conv", "conv_transpose", "max_pool"])
@pytest.mark.parametrize("name", ["strides", "dilations"])
def test_windows_move_on(op: str, name: str) -> None:
    """IR that somebody wrote may have any number there; an importer refuses it before."""
    none, one = (to_dim(0),), (1,)
    attrs = {"strides": one, "dilations": one, "pads_begin": none, "pads_end": none, "output_padding": (0,),
             "group": 1, "channels_last": False, "kernel": (2,), "ceil_mode": False}  # fmt: skip
    shapes = ((A, to_dim(3), to_dim(8)), (to_dim(3), to_dim(3), to_dim(2)))
    args = [Arg(TensorType(f32, s)) for s in shapes[: 1 if op == "max_pool" else 2]]
    infer_node(OPS[op], args, attrs, engine("a"))
    with pytest.raises(SmeltError, match=rf"{name} are \[0\], wanted 1 and more"):
        infer_node(OPS[op], args, {**attrs, name: (0,)}, engine("a"))


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms_have_no_axes_of_their_parameters(op: str) -> None:
    x, attrs = TensorType(f32, (A, to_dim(4))), {"axis": 1, "epsilon": 1e-5}
    scale = Arg(TensorType(f32, (to_dim(1), A, to_dim(4))))
    with pytest.raises(SmeltError, match="wanted at most the 2 axes of the input"):
        infer_node(OPS[op], [Arg(x), scale], attrs, engine("a"))


@pytest.mark.parametrize(
    ("dtype", "zero", "right"),
    [(u8, 255, True), (u8, -1, False), (i8, -128, True), (i8, 128, False), (u8, 0.5, False),
     (u8, True, False), (f32, 0, True), (f32, 1, False)],
)  # fmt: skip
def test_the_zero_point_of_a_convolution(dtype: DType, zero: Any, right: bool) -> None:
    """What the padding of bytes holds is one of them."""
    none, one = (to_dim(0),), (1,)
    attrs = {"strides": one, "dilations": one, "pads_begin": none, "pads_end": none, "group": 1,
             "channels_last": False, "origin": zero}  # fmt: skip
    shapes = ((A, to_dim(3), to_dim(8)), (to_dim(3), to_dim(3), to_dim(2)))
    args = [Arg(TensorType(dtype, s)) for s in shapes]
    if right:
        infer_node(OPS["conv"], args, attrs, engine("a"))
    else:
        with pytest.raises(SmeltError, match=rf"origin is {zero}; for an input of {dtype} it is an integer"):
            infer_node(OPS["conv"], args, attrs, engine("a"))
