"""Each schedule primitive keeps the meaning of kernels, and refuses what it cannot prove."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_kernels import add_of_a_broadcast, check, nest, op_kernel, operand, softmax_of_a_broadcast

from smelt.core.dim import sym, to_dim
from smelt.core.dtype import f32, i8, i32, i64, u8
from smelt.core.ir.kernel import Buffer, DimParam, Kernel, Load, Loop, Reduce, Store, Tiles, walk, walk_expr
from smelt.core.ir.text import parse_kernel, print_kernel
from smelt.core.machine import Instruction
from smelt.core.ops.trace import Trace, call
from smelt.core.schedule.schedule import apply, parse
from smelt.core.schedule.tree import ScheduleError
from smelt.targets.instructions.meanings import dot

Make = Callable[[], Kernel]


def matmul() -> Kernel:
    return op_kernel("matmul", [("m", "k"), ("k", 20)], ("m", 20))


def deep() -> Kernel:
    """Products of bytes over 11 terms, no multiple of an instruction's four."""
    return op_kernel("matmul", [("m", 11), (11, 8)], ("m", 8), dtypes=[u8, i8], out_dtype=i32)


def padded(pad: float, dtype: str = "f32") -> Kernel:
    """Sums of 11 products, the left factor a value of padding before row 1."""
    acc = "i32" if dtype == "i8" else dtype
    product = "cast:i32((a[i - 1, k] if (0 <= i - 1 < m) else {})) * cast:i32(b[k])" if dtype == "i8" else (
        "(a[i - 1, k] if (0 <= i - 1 < m) else {}) * b[k]"
    )
    value = product.format(f"{pad}: {dtype}")
    return parse_kernel(
        f"kernel @padded(m: dim in 0..*, a: {dtype}[m, 11], b: {dtype}[11]) -> (y: {acc}[m + 1])\n"
        f"{{ serial i in m + 1 {{ y[i] = sum k in 11 {{ {value} }} }} }}"
    )


def held() -> Kernel:
    """Products with the first n rows of the memory of a state."""
    return parse_kernel(
        "kernel @held(m: dim in 0..*, n: dim in 0..40, a: f32[m, 3], b: f32[40, 3]) -> (y: f32[m, n])\n"
        "{ serial i in m { serial j in n { y[i, j] = sum k in 3 { a[i, k] * b[j, k] } } } }"
    )


ROWS = (Instruction("dot", dot("dot", "u8", "i8", 4, 4), 16, 4, "a test"),)


def scored() -> Kernel:
    """The weighted sum whose weights are products divided by the sum of their row."""
    product = "sum e in 3 {{ q[i, e] * x[{}, e] }}"
    return parse_kernel(
        "kernel @scored(m: dim in 0..*, n: dim in 0..*, q: f32[m, 3], x: f32[n, 3], b: f32[n, 5]) -> "
        "(y: f32[m, 5])\n{ serial i in m { serial j in 5 { y[i, j] = sum k in n { "
        f"tanh({product.format('k')}) / sum l in n {{ tanh({product.format('l')}) }} * b[k, j] }} }} }} }}"
    )


def softmax() -> Kernel:
    return op_kernel("softmax", [("m", "n")], ("m", "n"), {"axis": 1})


def layer_norm() -> Kernel:
    attrs = {"axis": 1, "epsilon": 1e-5}
    return op_kernel("layer_norm", [("m", "n"), ("n",), ("n",)], ("m", "n"), attrs)


def add() -> Kernel:
    return op_kernel("add", [("m", "n"), ("n",)], ("m", "n"))


def whole() -> Kernel:
    return op_kernel("add", [("m", "k", 6), ("m", "k", 6)], ("m", "k", 6))


def maximum() -> Kernel:
    return op_kernel("reduce_max", [("m", "k", 8)], ("m",), {"axes": (1, 2), "keepdims": False})


def short() -> Kernel:
    """Each element four times."""
    return op_kernel("broadcast_to", [(6, 1)], (6, 4), {"shape": (to_dim(6), to_dim(4))})


def blocks() -> Kernel:
    """Several short rows at a time."""
    return op_kernel("reduce_max", [("m", 3, 5, 13)], ("m", 3, 5), {"axes": (3,), "keepdims": False})


def rows() -> Kernel:
    return op_kernel("gather", [("n", 20), ("m",)], ("m", 20), {"axis": 0}, dtypes=[f32, i64])


def appended() -> Kernel:
    """Rows behind as many of a cache as a run reads: of two sources by a comparison."""
    shapes, length = [("m", 2, "n", 3), ("m", 2, "k", 3), ("m",)], sym("n") + sym("k")
    return op_kernel("append_rows", shapes, ("m", 2, "n+k", 3), {"length": length}, dtypes=[f32, f32, i64])


def weighted() -> Kernel:
    """A product of which one factor reduces along the rows that are summed over."""
    return parse_kernel(
        "kernel @weighted(m: dim in 0..*, n: dim in 0..*, a: f32[m, n], b: f32[n, 20]) -> (y: f32[m, 20])\n"
        "{ serial i in m { serial j in 20 {"
        " y[i, j] = sum k in n { exp(a[i, k] - max l in n { a[i, l] }) * b[k, j] } } } }"
    )


def picked() -> Kernel:
    """Rows by the matrix that an input picks for each, over a sum of its own row."""
    return parse_kernel(
        "kernel @picked(a: f32[9, 8], g: i64[9], b: f32[3, 8, 20]) -> (y: f32[9, 20])\n"
        "{ serial i in 9 { serial j in 20 { y[i, j] = let p = g[i] in 0 .. 2 {"
        " sum k in 8 { (a[i, k] - sum l in 8 { b[p, l, 0] }) * b[p, k, j] } } } } }"
    )


def halves() -> Kernel:
    """Products of float16 that are summed in float32, of which one factor reduces along the sum."""
    return parse_kernel(
        "kernel @halves(m: dim in 0..*, n: dim in 0..*, a: f16[m, n], b: f16[n, 20]) -> (y: f16[m, 20])\n"
        "{ serial i in m { serial j in 20 { y[i, j] = cast:f16(sum k in n {"
        " cast:f32(max l in n { a[i, l] } - a[i, k]) * cast:f32(b[k, j]) }) } } }"
    )


def scaled() -> Kernel:
    """A product of which one factor is the same for all terms."""
    return parse_kernel(
        "kernel @scaled(m: dim in 0..*, n: dim in 0..*, a: f32[m, n]) -> (y: f32[m])\n"
        "{ serial i in m { y[i] = sum k in n { a[i, k] * sum l in n { a[i, l] } } } }"
    )


# (kernel, schedule): one row per primitive and per way it can go
LEGAL: tuple[tuple[Make, str], ...] = (
    (matmul, "normalise"),
    (matmul, "split i1 5 j.o j.i no"),
    (matmul, "split i0 4 i.o i.i yes"),
    (matmul, "split i1 8 j.o j.i yes"),
    (matmul, "chunk i0 3 g"),
    (matmul, "tile i0 [4 3 2 1] balanced t r x"),
    (matmul, "tile i0 [8 2 1] greedy t r x"),
    (matmul, "tile i1 [8 4] greedy t r x"),
    (matmul, "order [i1 i0]"),
    (matmul, "peel i1 16 .t"),
    (matmul, "peel i0 {m//3} .t"),
    (matmul, "part i0 {m//3} .t"),
    (matmul, "part i0 5 .t"),
    (matmul, "part i0 {m - 9} .t; bind i0 group; bind i0.t group"),
    (appended, "normalise; bind i0 group; bind_let i1; part i2 {g1} .t"),
    (appended, "normalise; chunk i2 2 g; bind g group; bind_let g; part i2 {g1 - 2*g} .t"),
    (matmul, "bind i0 group; bind i1 vector"),
    (matmul, "bind i0 group; unroll i1"),
    (matmul, "strip i1 4 2 yes"),
    (add, "strip i1 4 2 yes"),
    (add, "strip i1 4 2 no"),
    (add, "strip i1 1 1 no"),
    (whole, "collapse i1 i2 c"),
    (whole, "collapse i1 i2 c; collapse i0 c d; strip d 4 4 no"),
    (maximum, "collapse k1 k2 c"),
    (short, "join i0 i1 c"),
    (short, "join i0 i1 c; split c 4 o p no; bind p vector"),
    (matmul, "stage_reduce i0 acc"),  # the inner loop is part of the register
    (matmul, "stage_reduce i1 acc; accumulate acc []"),
    (matmul, "tile i0 [3 2 1] balanced t r x; order [t x i1]; stage_reduce t acc; accumulate acc []"),
    (matmul, "pack b (1/8, 0, 1%8); order [i1 i0]; peel i1 16 .t; split i1.t 4 o p no; order [o i0.t p]; "
             "stage_reduce i0.t acc; widen acc p 8; accumulate acc []; bind p vector"),
    (matmul, "pack b (1/8, 0, 1%8)"),
    (matmul, "pack b (1, 0)"),
    (matmul, "pack b (1/8, 0, 1%8); ask_ahead b 4096"),
    (matmul, "ask_ahead y 1024"),
    (matmul, "stage b (1/8, 0, 1%8) panels"),
    (matmul, "stage a (0/4, 1, 0%4) panels"),
    (held, "stage b (0/8, 1, 0%8) panels; order [j i]; peel j {8*(n//8)} .t; split j 8 o p no"),
    (maximum, "stage_reduce i0 acc; accumulate acc [k2 k1]"),
    (maximum, "stage_reduce i0 acc; accumulate_blocks acc k2 3 o p"),
    (maximum, "stage_reduce i0 acc; accumulate_blocks acc k2 4 o p; accumulate p []"),
    (maximum, "stage_reduce i0 acc; accumulate_blocks acc k1 1 o p; strip_reduce p 4 1 no"),
    (maximum, "stage_reduce i0 acc; accumulate_blocks acc k1 2 o p; accumulate_blocks p k2 4 q r; "
              "accumulate r []"),
    (matmul, "tile i0 [3 2 1] balanced t r x; order [t x i1]; split i1 4 u v no; order [t u x v]; "
             "stage_reduce u acc; accumulate_blocks acc k1 2 o p; accumulate p []"),
    (maximum, "stage_reduce i0 acc; strip_reduce acc 4 2 no"),
    (blocks, "stage_reduce i0 acc; strip_together acc 4"),
    (blocks, "stage_reduce i0 acc; strip_together acc 16; unroll i1; unroll i2.p; unroll i1.p; "
             "bind i2 vector"),
    (maximum, "collapse k1 k2 c; stage_reduce i0 acc; strip_reduce acc 4 2 yes"),
    (softmax, "stage_reduce i0 acc"),
    (softmax, "stage_reduce i0 acc; hoist i0 inv"),
    (softmax, "stage_reduce i0 acc; keep acc1 y; hoist i0 inv"),
    (softmax, "stage_reduce i0 acc; keep acc1 y; strip_reduce acc 4 1 yes; strip_reduce acc1 4 2 no; "
              "strip i1 4 2 no"),
    (layer_norm, "stage_reduce i0 acc; hoist i0 inv"),
    (layer_norm, "stage_reduce i0 acc; hoist i0 inv; strip_reduce acc 4 1 no; strip_reduce acc1 4 1 yes"),
    (rows, "bind_let i0; bind i1 vector"),
    (maximum, "enclose 0 one"),
    (matmul, "enclose i1 one"),
    (weighted, "stage_factor i k p no"),
    (weighted, "bind i group; stage_factor i k p no; enclose j one"),
    (weighted, "chunk i 3 c; stage_factor c k p no"),  # one buffer for one block after the other
    (weighted, "chunk i 3 c; bind c group; stage_factor c k p yes; stage_reduce i.f acc; keep acc p; "
               "strip k.f 4 2 yes; stage_reduce i acc; accumulate acc1 []; bind j vector"),
    (scored, "stage_factor i k p no; stage_operand i k.f x1 no"),
    (scored, "chunk i 3 c; stage_factor c k p no; stage_operand c k.f x1 no"),
    (scored, "chunk i 3 c; bind c group; stage_factor c k p yes; stage_operand c k.f x1 yes; "
             "strip k.f.x 4 2 yes; stage_reduce i.f acc; strip k.f 4 2 yes"),
    (halves, "chunk i 3 c; bind c group; stage_factor c k r yes"),
    (matmul, "order [i1 i0]; bind i1 group; stage_right i1 i0 w; stage_reduce i0 acc"),
    (matmul, "split i1 10 o p no; order [o i0 p]; bind o group; stage_right o i0 w; bind p.w vector; "
             "stage_reduce i0 acc; accumulate acc []; bind p vector"),
    (add_of_a_broadcast, "unclamp [i1]"),
    (add_of_a_broadcast, "unclamp [i1]; strip i1 4 2 yes"),
    (add_of_a_broadcast, "unclamp [i1]; strip i1 4 2 no"),
    (softmax_of_a_broadcast, "unclamp [i1 k0 k1]; stage_reduce i0 acc; strip_reduce acc 4 1 yes"),
    (deep, "deepen k1 4 o q"),
    (deep, "deepen k1 4 o q; pack b (1/4, 0/4, 1%4, 0%4)"),
    (deep, "deepen k1 4 o q; pack b (1/4, 0/4, 1%4, 0%4); stage_reduce i0 acc; accumulate acc []; "
           "peel o 2 .r; bind i1 vector; replace q dot"),
    (deep, "deepen k1 2 o q; stage b (1/4, 0/2, 1%4, 0%2) panels"),
    (lambda: padded(0.0), "deepen k 4 o q"),
    (lambda: padded(3, "i8"), "deepen k 4 o q"),
    (maximum, "enclose 0 one; stage_reduce i0 acc; accumulate acc []; peel k1 0 .t"),
)  # fmt: skip


@pytest.mark.parametrize(("make", "text"), LEGAL, ids=[f"{m.__name__}: {t[:60]}" for m, t in LEGAL])
def test_meaning_is_kept(make: Make, text: str) -> None:
    naive = make()
    done = apply(naive, parse(text), ROWS)
    for env in ({"m": 1, "n": 1, "k": 1}, {"m": 5, "n": 23, "k": 3}, {"m": 8, "n": 16, "k": 2}):
        check(naive, done, _only(naive, env))
    if "max" not in naive.name and "gather" not in naive.name:
        check(naive, done, _only(naive, {"m": 2, "n": 0, "k": 0}))
    check(naive, done, _only(naive, {"m": 0, "n": 3, "k": 1}))


def test_a_factor_of_a_groups_own_is_in_the_type_of_the_product() -> None:
    done = apply(halves(), parse("chunk i 3 c; bind c group; stage_factor c k r yes"))
    assert "scratch r: f32" in print_kernel(done)


def test_of_a_states_memory_a_copy_has_what_is_read() -> None:
    (panels,) = apply(held(), parse("stage b (0/8, 1, 0%8) panels")).scratch
    assert str(panels.shape[0]) == "(n + 7)//8"


def _only(k: Kernel, env: Mapping[str, int]) -> dict[str, int]:
    return {d.name: env[d.name] for d in k.dims}


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(0, 30), n=st.integers(1, 30), factor=st.integers(1, 9), lanes=st.integers(1, 5),
    wide=st.integers(1, 3), masked=st.booleans(), height=st.integers(1, 6),
)
def test_random_sizes(
    m: int, n: int, factor: int, lanes: int, wide: int, masked: bool, height: int
) -> None:
    naive = add()
    flag = "yes" if masked else "no"
    sizes = " ".join(map(str, range(height, 0, -1)))
    text = f"chunk i0 {factor} g; tile i0 [{sizes}] balanced t r x; strip i1 {lanes} {wide} {flag}"
    check(naive, apply(naive, parse(text)), {"m": m, "n": n})


# (kernel, steps that are legal, step that must be refused, words of the reason)
ILLEGAL: tuple[tuple[Make, str, str, str], ...] = (
    (matmul, "", "split i0 4 a b no", "name"),  # a and b are buffers
    (matmul, "", "split i0 4 x z no", "not provably a multiple"),
    (matmul, "", "tile i0 [4 2] greedy t r x", "not provably cover"),
    (matmul, "", "tile i0 [4 2 1] balanced t r x", "every size"),
    (matmul, "", "tile i0 [1 2] greedy t r x", "descend"),
    (matmul, "", "order [i0 zz]", "no such loops"),
    (matmul, "", "bind zz group", "no loop 'zz'"),
    (matmul, "", "peel i0 5 .t", "not provable"),
    (matmul, "bind i0 group", "part i0 5 .t", "is bound"),
    (matmul, "", "part i0 {i1} .t", "not known around the loop"),
    (matmul, "part i0 5 .t", "part i0 3 .t", "is taken"),
    (matmul, "", "bind i0 vector", "not static"),
    (matmul, "", "strip i0 4 4 no", "innermost"),
    (matmul, "", "collapse i0 i1 c", "row-major"),
    (add, "", "collapse i0 i1 c", "row-major"),
    (add, "", "join i0 i1 c", "not adjacent loops of known lengths"),
    (short, "", "join i1 i0 c", "not adjacent loops of known lengths"),
    (short, "", "join i0 i1 i1", "is taken"),
    (matmul, "stage_reduce i1 acc; accumulate acc []", "accumulate acc []", "no register"),
    (maximum, "stage_reduce i0 acc", "accumulate_blocks acc k3 4 o p", "no terms"),
    (maximum, "stage_reduce i0 acc", "accumulate_blocks acc k2 1 o p", "no terms"),
    (maximum, "stage_reduce i0 acc", "accumulate_blocks acc k2 4 o k1", "'k1' is taken"),
    (maximum, "", "accumulate_blocks acc k2 4 o p", "no register"),
    (matmul, "", "pack y (0, 1)", "no input"),
    (matmul, "", "pack b (0, 1, 1)", "cover source axis"),
    (matmul, "pack b (1, 0)", "pack b (1, 0)", "packed already"),
    (matmul, "", "ask_ahead b 4096", "no packed input or output has that name"),
    (matmul, "pack b (1, 0)", "ask_ahead b 0", "the distance is not positive"),
    (maximum, "stage_reduce i0 acc", "strip_together acc 4", "along one axis"),
    (blocks, "stage_reduce i0 acc; unroll i1", "strip_together acc 4", "loops of such lengths"),
    (matmul, "stage_reduce i0 acc", "strip_together acc 4", "along one axis"),
    (matmul, "", "stage y (0, 1) p", "no readable"),
    (softmax, "stage_reduce i0 acc; keep acc1 y", "keep acc y", "read already"),
    (rows, "", "bind_let i1", "no data-dependent"),
    (matmul, "", "stage_right i0 i1 w", "'i0' is no group"),
    (matmul, "bind i0 group", "stage_right i0 i0 w", "does not follow 'i0'"),
    (add, "bind i0 group", "stage_right i0 i1 w", "does not follow 'i1'"),
    (weighted, "bind i group", "stage_right i j w", "has reductions"),
    (picked, "order [j i]; bind j group", "stage_right j i w", "'p' means nothing outside"),
    (picked, "", "stage_factor i k w no", "'p' means nothing outside"),
    (matmul, "", "stage_factor i0 k0 p no", "one factor with reductions"),
    (weighted, "", "stage_factor i l p no", "no product over 'l'"),
    (scaled, "", "stage_factor i k p no", "the same for all 'k'"),
    (weighted, "", "stage_factor i k a no", "name 'a' is taken"),
    (weighted, "", "stage_factor zz k p no", "no loop 'zz'"),
    (weighted, "tile i [2 1] balanced t r x", "stage_factor t k p no", "not provably at most"),
    (weighted, "tile i [2 1] balanced t r x; bind t group", "stage_factor x k p no", "no plain group"),
    (scored, "stage_factor i k p no", "stage_operand i k.f p no", "name 'p' is taken"),
    (scored, "stage_factor i k p no", "stage_operand i j x1 no", "no row along 'j'"),
    (scored, "stage_factor i k p no", "stage_operand i k.f x1 yes", "'i' is no group"),
    (scored, "", "stage_factor i k p yes", "'i' is no group"),
    (weighted, "stage_factor i k p no", "stage_operand i k.f x1 no", "no product that the row is made of"),
    (matmul, "", "enclose 3 one", "1 statements"),
    (add_of_a_broadcast, "", "unclamp [i0]", "no index is held"),
    (add, "", "unclamp [i1]", "no index is held"),
    (matmul, "split i1 10 o p no; order [o i0 p]; stage_reduce i0 acc", "widen acc p 16", "may leave"),
    (matmul, "split i1 10 o p no; order [o i0 p]; stage_reduce i0 acc", "widen acc i0 16", "no axis"),
    (matmul, "", "deepen i0 4 o q", "no reduction has an axis 'i0'"),
    (matmul, "", "deepen k0 4 a q", "name 'a' or 'q' is taken"),
    (maximum, "", "deepen k1 4 o q", "no sum whose terms may change places"),
    (deep, "deepen k1 4 o q", "deepen q 3 r s", "no product of two loads"),
    (lambda: padded(math.inf), "", "deepen k 4 o q", "is not 0 where its guard fails"),
    (deep, "stage_reduce i0 acc; accumulate acc []", "replace k1 sdot", "machine has no instruction 'sdot'"),
    (deep, "stage_reduce i0 acc; accumulate acc []", "replace k1 dot", "does not fit the row's 4"),
    (deep, "", "replace i0 dot", "does not end in 'add='"),
    (deep, "deepen k1 4 o q; pack b (1/4, 0/4, 1%4, 0%4); stage_reduce i0 acc; accumulate acc []; "
           "bind i1 vector", "replace q dot", "let through the first terms"),  # as many as o says
)


@pytest.mark.parametrize(
    ("make", "first", "text", "reason"), ILLEGAL, ids=[f"{i}: {r[2]}" for i, r in enumerate(ILLEGAL)]
)
def test_refusals(make: Make, first: str, text: str, reason: str) -> None:
    kernel = apply(make(), parse(first), ROWS)
    with pytest.raises(ScheduleError, match=reason):
        apply(kernel, parse(text), ROWS)


def running() -> Kernel:
    """A running sum: y[i + 1] = y[i] + x[i], y[0] = 0."""
    return parse_kernel(
        "kernel @scan(n: dim in 0..*, x: f32[n]) -> (y: f32[n + 1])\n"
        "{ y[0] = 0.0: f32  serial i in n { y[i + 1] = y[i] + x[i] } }"
    )


@pytest.mark.parametrize("text", ["bind i group", "bind i lane", "strip i 4 1 yes"])
def test_dependent_iterations_are_not_parallel(text: str) -> None:
    with pytest.raises(ScheduleError):
        apply(running(), parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "peel i {n//3} .t", "peel i 0 .t", "peel i {n//3} .t; peel i.t 0 .u; split i 4 o p yes",
        "part i {n - 2} .t", "part i {n - 2} .t; part i.t 1 .u",
    ],
)
def test_dependent_iterations_keep_their_order(text: str) -> None:
    """The part that is peeled off goes on from what the first one has left."""
    for n in (0, 1, 2, 3, 10):
        check(running(), apply(running(), parse(text)), {"n": n})


def test_overlapping_writes_are_not_parallel() -> None:
    """y[i + j] = ..: neither loop alone writes places of its own."""
    y = Buffer("y", f32, (to_dim(9),))
    kernel = Kernel("overlap", (), (y,), (Buffer("z", f32, (to_dim(9),)),), ())
    body = nest(Buffer("z", f32, (to_dim(4), to_dim(5))), lambda i: operand(y)[i[1]])
    bad = _shift_store(body[0])
    kernel = kernel.with_(body=(bad,))
    for v in ("i0", "i1"):
        with pytest.raises(ScheduleError):
            apply(kernel, parse(f"order [{v} i1]" if v == "i0" else f"bind {v} group; bind i0 group"))


def tiled_stores(*bodies: str) -> Kernel:
    """Stores to y within a loop i."""
    return parse_kernel(
        "kernel @tiles(n: dim in 0..*, x: f32[n]) -> (y: f32[4*n + 9])\n"
        "{ serial i in n { " + " ".join(bodies) + " } }"
    )


@pytest.mark.parametrize(
    ("bodies", "parallel"),
    [
        (("y[4*i] = x[i]", "y[4*i + 3] = x[i]"), True),
        (("y[4*i + 4] = x[i]", "y[4*i + 6] = x[i]"), True),
        (("y[4*i + 1] = y[4*i + 2]", "y[4*i + 3] = x[i]"), True),
        (("y[4*i] = x[i]", "y[4*i + 4] = x[i]"), False),  # the next iteration's first
        (("y[4*i + 3] = x[i]", "y[4*i + 5] = x[i]"), False),
        (("y[4*i] = x[i]", "y[2*i + 1] = x[i]"), False),
        (("y[4*i] = y[4*i + 4]",), False),
        (("serial j in 4 { y[4*i + j] = x[i] }", "y[4*i + 2] = x[i]"), False),  # said of constants alone
        (("y[4*i + 2] = x[i]", "serial j in 4 { y[4*i + j + 2] = x[i] }"), False),
    ],
)
def test_stores_within_one_step_are_apart(bodies: tuple[str, ...], parallel: bool) -> None:
    """4 * i + 1 and 4 * i' + 3 are never the same."""
    kernel = tiled_stores(*bodies)
    if parallel:
        check(kernel, apply(kernel, parse("bind i group")), {"n": 3})
        return
    with pytest.raises(ScheduleError):
        apply(kernel, parse("bind i group"))


def _shift_store(s: object) -> Loop:
    assert isinstance(s, Loop)
    inner = s.body[0]
    assert isinstance(inner, Loop)
    store = inner.body[0]
    assert isinstance(store, Store)
    index = (store.index[0] + store.index[1],)
    done = Store("z", index, store.value)
    return Loop("serial", s.var, s.extent, (Loop("serial", inner.var, inner.extent, (done,)),))


def test_split_simplifies_packed_indices() -> None:
    """After pack and split, the operand is read at (panel, k, lane): no division is left."""
    done = apply(
        op_kernel("matmul", [("m", "k"), ("k", 32)], ("m", 32)),
        parse("pack b (1/8, 0, 1%8); split i1 8 o p no"),
    )
    loads = [x for s in walk(done.body) if isinstance(s, Store) for x in walk_expr(s.value)]
    (b,) = [x for x in loads if isinstance(x, Load) and x.buffer == "b"]
    assert [str(d) for d in b.index] == ["o", "k1", "p"]


def test_split_drops_guards_of_whole_panels() -> None:
    """Peeling the cut panel off leaves no mask in the others."""
    done = apply(add(), parse("split i1 8 o p yes; order [o i0 p]; peel o {n//8} .t"))
    whole_part, cut = (s for s in walk(done.body) if isinstance(s, Store))
    assert whole_part.guard == ()
    assert len(cut.guard) == 1


def test_guards_that_always_hold_are_dropped() -> None:
    """A convolution whose padding is zero after all, told by bounds alone."""
    attrs = {
        "strides": (1, 1), "dilations": (1, 1), "group": 1, "channels_last": True,
        "pads_begin": (to_dim(0), sym("p") - sym("p")), "pads_end": (to_dim(0), to_dim(0)),
    }  # fmt: skip
    k = op_kernel("conv", [("n", 6, 6, 3), (3, 3, 3, 4)], ("n", 4, 4, 4), attrs)
    done = apply(k, parse("normalise"))
    assert not any(x.guard for s in walk(done.body) if isinstance(s, Store)
                   for x in walk_expr(s.value) if isinstance(x, Load))  # fmt: skip


def test_accumulate_uses_fma_and_strip_ends_across_the_vector() -> None:
    done = apply(matmul(), parse("stage_reduce i1 acc; accumulate acc []"))
    assert [s.accumulate for s in walk(done.body) if isinstance(s, Store)] == [None, "fma", None]
    done = apply(maximum(), parse("stage_reduce i0 acc; strip_reduce acc 4 2 no"))
    ends = [s.value for s in walk(done.body) if isinstance(s, Store) and isinstance(s.value, Reduce)]
    assert [(e.kind, e.axes[0].extent) for e in ends] == [("max", to_dim(8))]


def test_tiles_keep_their_sizes() -> None:
    done = apply(matmul(), parse("tile i0 [12 8 4 2 1] greedy t r x"))
    (tiles,) = [s for s in walk(done.body) if isinstance(s, Tiles)]
    assert (tiles.sizes, tiles.mode) == ((12, 8, 4, 2, 1), "greedy")


def test_pack_leaves_its_layout() -> None:
    done = apply(matmul(), parse("pack b (1/8, 0, 1%8); ask_ahead b 4096"))
    assert [str(b.layout) for b in done.inputs] == ["None", "(1/8, 0, 1%8) of [k, 20]"]
    assert tuple(map(str, done.inputs[1].shape)) == ("3", "k", "8")
    text = print_kernel(done)
    assert 'b: f32[3, k, 8] laid "(1/8, 0, 1%8)" of [k, 20] ahead 4096' in text
    assert parse_kernel(text) == done


def test_equal_reductions_share_a_register() -> None:
    """exp(x - max) / sum(exp(x - max)): the two maxima are one."""
    t = Trace()
    x = Buffer("x", f32, (sym("m"), sym("n")))
    y = Buffer("y", f32, (sym("m"), sym("n")))

    def value(i: tuple[object, ...]) -> object:
        a, b = (t.reduce("max", [sym("n")], lambda k: operand(x)[i[0], k]) for _ in range(2))  # type: ignore[index]
        return call("add", a, b)

    kernel = Kernel("twice", (DimParam("m"), DimParam("n")), (x,), (y,), nest(y, value))
    done = apply(kernel, parse("stage_reduce i0 acc"))
    assert sum(isinstance(s, Store) and isinstance(s.value, Reduce) for s in walk(done.body)) == 1


def test_a_limit_that_is_not_the_operands_own_is_read_inside_of_it() -> None:
    """Both cases of a choice are read: x may have fewer than c elements where c - 1 is never reached."""
    k = parse_kernel(
        "kernel @k(n: dim in 0..*, c: dim in 0..*, x: f32[n], z: f32[c]) -> (y: f32[n])\n"
        "{ serial i in n { y[i] = x[min(c - 1, i)] + z[min(c - 1, i)] } }"
    )
    text = print_kernel(apply(k, parse("unclamp [i]")))
    assert "x[i] if (0 <= i < c) else (x[c - 1] if (0 <= c - 1 < n))" in text
    assert "z[i] if (0 <= i < c) else z[c - 1])" in text
