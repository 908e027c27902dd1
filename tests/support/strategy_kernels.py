"""Naive kernels of every kind, by name, and different machines, for the tests of strategies."""

# ruff: noqa: E501  (tables)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from naive_kernels import (
    Shape,
    add_of_a_broadcast,
    nest,
    op_kernel,
    operand,
    shape_of,
    softmax_of_a_broadcast,
)

from smelt.core.dim import Dim, Facts, parse_dim, sym, to_dim
from smelt.core.dtype import DType, f16, f32, f64, i8, i32, i64, u8
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Buffer, Const, DimParam, Expr, Kernel, Load, Loop, Store
from smelt.core.ir.text import parse_kernel
from smelt.core.machine import Machine
from smelt.core.ops import OPS
from smelt.core.ops.trace import Operand, Trace, call
from smelt.core.schedule.tree import map_accesses

# Two lanes reach every tail at small sizes; the others are real shapes of register files.
MACHINES = (
    Machine("wide", 512, 32, masked=True, cache_bytes=(48 << 10, 1 << 20)),
    Machine("two", 64, 16, masked=True),
    Machine("unmasked", 64, 16),
    Machine("scalar", 0, 0),
    Machine("gpu", 128, 64, levels=("group", "lane", "vector"), max_lanes=8, shared_bytes=32 << 10),
    Machine("step", 0, 64, levels=("group", "lane", "vector"), max_lanes=16, shared_bytes=32 << 10, subgroup=4),
)
Envs = Sequence[dict[str, int]]
PAIR = {"strides": (1, 1), "dilations": (1, 1), "group": 1, "channels_last": True}


def _bias(t: Trace, e: Expr, i: tuple[Dim, ...], b: Any) -> Expr:
    return call("tanh", call("add", e, b[(i[-1],)]))


def _dots_that_share() -> Kernel:
    """Rows of a few heads, each times all keys, which lie along their rows."""
    return parse_kernel(
        "kernel @dots(b: dim in 0..*, n: dim in 0..*, q: f32[b, 3, 37], k: f32[b, n, 37]) -> (y: f32[b, 3, n])\n"
        "{ serial i in b { serial h in 3 { serial j in n {"
        " y[i, h, j] = sum l in 37 { q[i, h, l] * k[i, j, l] } * 0.5:f32 } } } }"
    )


def _experts() -> Kernel:
    """Each row by the weights, in blocks of bytes, that an input picks for it."""
    return parse_kernel(
        "kernel @experts(a: f32[18, 32], b: i64[18], c: u8[4, 20, 32], d: f32[4, 20, 2]) "
        "-> (y: f32[18, 20]) { serial i in 18 { serial j in 20 { y[i, j] = let g = b[i] in 0 .. 3 {"
        " sum k in 2, l in 16 { a[i, 16*k + l]"
        " * ((cast:f32(c[g, j, 16*k + l]) - 128.0:f32) * d[g, j, k]) } } } } }"
    )


def _conv(c: int, m: int, k: int, s: int = 1, p: int = 0, group: int = 1, last: bool = True) -> Kernel:
    oh, ow = (parse_dim(f"({n} + {2 * p - k})//{s} + 1") for n in "hw")
    attrs = {
        **PAIR, "strides": (s, s), "group": group, "channels_last": last,
        "pads_begin": (to_dim(p),) * 2, "pads_end": (to_dim(p),) * 2,
    }  # fmt: skip
    x: tuple[Any, ...] = ("n", "h", "w", c) if last else ("n", c, "h", "w")
    w = (k, k, c // group, m) if last else (m, c // group, k, k)
    out = ("n", oh, ow, m) if last else ("n", m, oh, ow)
    return op_kernel("conv", [x, w, (m,)], out, attrs)


def _conv_n(rank: int) -> Kernel:
    """1-d and 3-d, with padding, channels last."""
    names = "dhw"[3 - rank :]
    attrs = {
        "strides": (1,) * rank, "dilations": (1,) * rank, "group": 1, "channels_last": True,
        "pads_begin": (to_dim(1),) * rank, "pads_end": (to_dim(1),) * rank,
    }  # fmt: skip
    return op_kernel("conv", [("n", *names, 3), (*(3,) * rank, 3, 5), (5,)], ("n", *names, 5), attrs)


def _conv_transpose(k: int, s: int, p: int) -> Kernel:
    oh, ow = (parse_dim(f"({n} - 1)*{s} + {k - 2 * p}") for n in "hw")
    attrs = {
        **PAIR, "strides": (s, s), "pads_begin": (to_dim(p),) * 2, "pads_end": (to_dim(p),) * 2,
        "output_padding": (to_dim(0),) * 2,
    }  # fmt: skip
    return op_kernel("conv_transpose", [("n", "h", "w", 3), (k, k, 3, 5), (5,)], ("n", oh, ow, 5), attrs)


def _pool(op: str, c: int | str, k: int, s: int, p: int) -> Kernel:
    oh, ow = (parse_dim(f"({n} + {2 * p - k})//{s} + 1") for n in "hw")
    attrs = {
        "kernel": (k, k), "strides": (s, s), "dilations": (1, 1), "ceil_mode": False, "channels_last": True,
        "count_include_pad": False, "pads_begin": (to_dim(p),) * 2, "pads_end": (to_dim(p),) * 2,
    }  # fmt: skip
    return op_kernel(op, [("n", "h", "w", c)], ("n", oh, ow, c), attrs)


def _frames() -> Kernel:
    """A convolution over frames whose number is a size of its own: nothing says that they stay inside a."""
    t = Trace()
    a, b = Buffer("a", f32, shape_of(("n", "w"))), Buffer("b", f32, shape_of((5, 20)))
    y = Buffer("y", f32, shape_of(("n", "f", 20)))

    def value(i: tuple[Dim, ...]) -> Expr:
        return t.sum([5], lambda k: call("mul", operand(a)[i[0], 3 * i[1] + k], operand(b)[k, i[2]]))

    return Kernel("frames", tuple(DimParam(n) for n in "nwf"), (a, b), (y,), nest(y, value))


def _scores() -> Kernel:
    """Attention scores with both operands as [b, s, h, d]: the right one is read along its rows."""
    t = Trace()
    a, b = (Buffer(n, f32, shape_of(("b", length, 2, 4))) for n, length in (("a", "s"), ("b", "t")))
    y = Buffer("y", f32, shape_of(("b", 2, "s", "t")))

    def value(i: tuple[Dim, ...]) -> Expr:
        return t.sum([4], lambda d: call(
            "mul", operand(a)[i[0], i[2], i[1], d], operand(b)[i[0], i[3], i[1], d]))  # fmt: skip

    return Kernel("scores", tuple(DimParam(n) for n in "bst"), (a, b), (y,), nest(y, value))


def _softmax_of_a_transpose() -> Kernel:
    """Rows whose elements lie a row of x apart."""
    plain = op_kernel("softmax", [("m", "n")], ("m", "n"), {"axis": 1})
    x = replace(plain.inputs[0], shape=plain.inputs[0].shape[::-1])

    def load(e: Load, facts: Facts) -> Expr:
        return replace(e, index=e.index[::-1]) if e.buffer == x.name else e

    body = map_accesses(plain.body, Facts(), load, lambda store, facts: store)
    return plain.with_(inputs=(x,), body=body)


def _repeat(dtype: str, times: int) -> Kernel:
    """Each element so many times in a row, as a resize to a multiple of the size has them."""
    return parse_kernel(f"""
kernel @repeat(n: dim in 0..*, w: dim in 0..*, x: {dtype}[n, w]) -> (y: {dtype}[n, {times}*w]) {{
  serial i in n {{ serial j in w {{ serial k in {times} {{ y[i, {times}*j + k] = x[i, j] }} }} }}
}}""")


def _concat_turned() -> Kernel:
    """Channels of three tensors after each other, of which two have theirs ahead of the positions."""
    return parse_kernel("""
kernel @turned(n: dim in 0..*, w: dim in 0..*, a: f32[n, 32, w], b: f32[n, w, 32], c: f32[n, 32, w]) -> (y: f32[n, w, 96]) {
  serial i in n { serial j in w { serial k in 96 {
    y[i, j, k] = (a[i, k, j] if (0 <= k < 32) else (b[i, j, k - 32] if (0 <= k - 32 < 32) else (c[i, k - 64, j] if (0 <= k - 64 < 32) else 0.0:f32)))
  } } }
}""")


def _two_outputs() -> Kernel:
    """A value stored twice, once through exp, in one nest."""
    x, y, z = (Buffer(n, f32, shape_of(("m", "n"))) for n in "xyz")
    i = (sym("i"), sym("j"))
    e = operand(x)[i]
    stores = (Store("y", i, e), Store("z", i, call("exp", e)))
    body = (Loop("serial", "i", sym("m"), (Loop("serial", "j", sym("n"), stores),)),)
    return Kernel("two", (DimParam("m"), DimParam("n")), (x,), (y, z), body)


def _two_nests() -> Kernel:
    """Siblings: the sum of each row, then x minus it; the variables have the same names."""
    x, y = (Buffer(n, f32, shape_of(("m", "n"))) for n in "xy")
    s = Buffer("s", f32, shape_of(("m",)))
    t = Trace()
    first = nest(s, lambda i: t.sum([sym("n")], lambda k: operand(x)[i[0], k]))
    second = nest(y, lambda i: call("sub", operand(x)[i], operand(s)[i[0]]))
    return Kernel("centre", (DimParam("m"), DimParam("n")), (x,), (s, y), (*first, *second))


def _scaled_by_a_sum() -> Kernel:
    """A product of which one factor is the same for all terms, and stands outside the sum as well."""
    return parse_kernel(
        "kernel @scaled(m: dim in 0..*, n: dim in 0..*, a: f32[m, n]) -> (y: f32[m, n])\n"
        "{ serial i in m { serial j in n {"
        " y[i, j] = a[i, j] * sum l in n { a[i, l] } * sum k in n { a[i, k] * sum l in n { a[i, l] } } } } }"
    )


def _scan() -> Kernel:
    """Running sums along the second axis: rows are independent, columns are not."""
    x, y = (Buffer(n, f32, shape_of(("m", "n"))) for n in "xy")
    i, j = sym("i"), sym("j")
    start = Store("y", (i, to_dim(0)), Load("x", (i, to_dim(0)), f32))
    value = call("add", Load("y", (i, j), f32), Load("x", (i, j + 1), f32))
    step = Loop("serial", "j", sym("n") - 1, (Store("y", (i, j + 1), value),))
    body = (Loop("serial", "i", sym("m"), (start, step)),)
    return Kernel("scan", (DimParam("m"), DimParam("n", 1)), (x,), (y,), body)


def _running(axis: int, shape: Shape) -> Kernel:
    """Running sums along an axis, as the op's own nest has them."""
    x, y = (Buffer(n, f32, shape_of(shape)) for n in "xy")
    rule = OPS["cumsum"].nest
    assert rule is not None
    nest = rule(Trace(), {"axis": axis, "exclusive": False, "reverse": False}, (x,), (y,))
    return Kernel("running", tuple(DimParam(d) for d in shape if isinstance(d, str)), (x,), (y,), nest.body)


def _row_product(op: str, shapes: Sequence[Shape], right: Shape, out: Shape, dtype: DType = f32, turned: bool = False) -> Kernel:
    """tanh(op(a, ..) * the last input), op along the last axis. turned: the right one is read along its rows."""
    buffers = [Buffer("abcd"[n], dtype, shape_of(s)) for n, s in enumerate((*shapes, right))]
    t, y = Trace(), Buffer("y", dtype, shape_of(out))
    *mine, last = map(operand, buffers)
    attrs = {"axis": len(shapes[0]) - 1, "epsilon": 1e-5}

    def row(i: tuple[Dim, ...]) -> Expr:
        rule = OPS[op].compute
        assert callable(rule)
        return rule(t, i, attrs, TensorType(dtype, mine[0].shape), *mine)

    swapped = Operand(dtype, (*last.shape[:-2], *last.shape[:-3:-1]), lambda i: last[(*i[:-2], i[-1], i[-2])])

    def value(i: tuple[Dim, ...]) -> Expr:
        rule = OPS["matmul"].compute
        assert callable(rule)
        factors = Operand(dtype, mine[0].shape, row), swapped if turned else last
        return call("tanh", rule(t, i, {}, TensorType(dtype, y.shape), *factors))

    names = sorted({s for b in (*buffers, y) for d in b.shape for s in d.symbols})
    return Kernel("row_product", tuple(DimParam(n) for n in names), tuple(buffers), (y,), nest(y, value))


def _attention(q: Shape, k: Shape, v: Shape, out: Shape, masked: bool = False, op: str = "softmax", dtype: DType = f32) -> Kernel:
    """op(8*tanh(q * transpose(k) / 8) + mask) * v, op along rows of scores; without a mask op(q * transpose(k)) * v."""
    scores = (*out[:-1], k[-2])
    shapes = (q, k, v, scores) if masked else (q, k, v)
    buffers = [Buffer("qkvm"[n], dtype, shape_of(s)) for n, s in enumerate(shapes)]
    t, y = Trace(), Buffer("y", dtype, shape_of(out))
    left, right, values, *mask = map(operand, buffers)
    turned = Operand(dtype, (*right.shape[:-2], *right.shape[:-3:-1]), lambda i: right[(*i[:-2], i[-1], i[-2])])
    made = TensorType(dtype, shape_of(scores))

    def compute(name: str, i: tuple[Dim, ...], t_out: TensorType, *operands: Operand) -> Expr:
        rule = OPS[name].compute
        assert callable(rule)
        return rule(t, i, {"axis": len(scores) - 1, "epsilon": 1e-5}, t_out, *operands)

    def score(i: tuple[Dim, ...]) -> Expr:
        e = compute("matmul", i, made, left, turned)
        eight = Const(8.0, dtype)
        return call("add", call("mul", call("tanh", call("div", e, eight)), eight), mask[0][i]) if masked else e

    def row(i: tuple[Dim, ...]) -> Expr:
        return compute(op, i, made, Operand(dtype, made.shape, score))

    body = nest(y, lambda i: compute("matmul", i, TensorType(dtype, y.shape), Operand(dtype, made.shape, row), values))
    names = sorted({s for b in (*buffers, y) for d in b.shape for s in d.symbols})
    return Kernel("row_product", tuple(DimParam(n) for n in names), tuple(buffers), (y,), body)


_MAT = op_kernel("matmul", [("m", 5), (5, 20)], ("m", 20), epilogue=_bias, extra=[(20,)])
_FREE = op_kernel("matmul", [("m", "k"), ("k", "n")], ("m", "n"), epilogue=_bias, extra=[("n",)])
_NBITS_WIDE = op_kernel("matmul_nbits", [("m", 32), (20, 2, 8), (20, 2)], ("m", 20), {"bits": 4, "block": 16}, dtypes=[f32, u8, f32])
_NBITS = op_kernel("matmul_nbits", [("m", 32), (6, 2, 8), (6, 2)], ("m", 6), {"bits": 4, "block": 16}, dtypes=[f32, u8, f32])
_STEPS = op_kernel("matmul_steps", [("m", 32), ("m", 2), ("m", 2), (6, 2, 8), (6, 2)], ("m", 6), {"bits": 4, "block": 16, "word": 4}, dtypes=[i8, f32, i32, u8, f32], out_dtype=f32)
_SUM = {"keepdims": False}
_IMAGE: Envs = ({"n": 1, "h": 5, "w": 7}, {"n": 2, "h": 3, "w": 4})
_MN: Envs = ({"m": 3, "n": 5}, {"m": 2, "n": 37}, {"m": 1, "n": 0}, {"m": 0, "n": 4})
_PQR: Envs = ({"p": 3, "q": 5, "r": 37}, {"p": 2, "q": 1, "r": 3}, {"p": 1, "q": 0, "r": 2})

# name -> (kernel, constant inputs, sizes)
KERNELS: dict[str, tuple[Kernel, str, Envs]] = {
    "matmul-packed": (_MAT, "bc", ({"m": 1}, {"m": 13}, {"m": 0})),
    "matmul-in-place": (_MAT, "", ({"m": 1}, {"m": 14})),
    "matmul-dynamic": (_FREE, "", ({"m": 5, "k": 3, "n": 40}, {"m": 1, "k": 0, "n": 7}, {"m": 4, "k": 2, "n": 32})),
    "vector-matrix": (op_kernel("matmul", [(1, "k"), ("k", "n")], (1, "n")), "b", ({"k": 3, "n": 40}, {"k": 0, "n": 2})),
    "matrix-vector": (op_kernel("matmul", [("m", "k"), ("k",)], ("m",)), "", ({"m": 3, "k": 40}, {"m": 1, "k": 0})),
    "dot": (op_kernel("matmul", [("k",), ("k",)], ()), "", ({"k": 35}, {"k": 0})),
    "dots-that-share": (_dots_that_share(), "", ({"b": 2, "n": 21}, {"b": 1, "n": 5}, {"b": 3, "n": 0}, {"b": 0, "n": 9})),
    "max-of-blocks": (op_kernel("reduce_max", [("m", 40)], ("m",), {"axes": (1,), "keepdims": False}), "", ({"m": 70}, {"m": 3}, {"m": 0})),
    "three-rows": (op_kernel("matmul", [(3, "k"), ("k", 50)], (3, 50)), "b", ({"k": 2},)),
    "batched": (op_kernel("matmul", [("b", 2, "s", "t"), ("b", 2, "t", 8)], ("b", 2, "s", 8)), "", ({"b": 2, "s": 13, "t": 3},)),
    "scores": (_scores(), "", ({"b": 1, "s": 5, "t": 37}, {"b": 2, "s": 1, "t": 4})),
    "matmul-f16": (op_kernel("matmul", [("m", 4), (4, 20)], ("m", 20), dtypes=[f16, f16]), "b", ({"m": 3},)),
    "matmul-f64": (op_kernel("matmul", [("m", 4), (4, 20)], ("m", 20), dtypes=[f64, f64]), "b", ({"m": 3},)),
    "matmul-i32": (op_kernel("matmul", [("m", 4), (4, 20)], ("m", 20), dtypes=[i32, i32]), "b", ({"m": 3},)),
    "matmul-empty": (op_kernel("matmul", [("m", 5), (5, 0)], ("m", 0)), "b", ({"m": 3},)),
    "matmul-decoded": (_NBITS, "bc", ({"m": 3}, {"m": 1})),
    "matmul-decoded-panels": (_NBITS_WIDE, "bc", ({"m": 3}, {"m": 12}, {"m": 13})),
    "matmul-steps": (_STEPS, "de", ({"m": 3}, {"m": 1}, {"m": 0})),
    "matmul-decoded-values": (_NBITS, "", ({"m": 3},)),
    "matmul-experts": (_experts(), "cd", ({},)),
    "conv-3x3": (_conv(3, 20, 3, 1, 1), "bc", _IMAGE),
    "conv-3x3-s2": (_conv(5, 4, 3, 2, 1), "bc", _IMAGE),
    "conv-1x1": (_conv(4, 20, 1), "bc", _IMAGE),
    "conv-1x1-s2": (_conv(4, 20, 1, 2), "bc", _IMAGE),
    "conv-dynamic-weights": (_conv(3, 20, 3, 1, 1), "", _IMAGE),
    "conv-nchw": (_conv(3, 5, 3, 1, 1, last=False), "bc", _IMAGE),
    "conv-depthwise": (_conv(20, 20, 3, 1, 1, 20), "bc", _IMAGE),
    "conv-grouped": (_conv(4, 40, 3, 1, 1, 2), "bc", _IMAGE),
    "conv-grouped-nchw": (_conv(4, 8, 3, 1, 1, 4, last=False), "bc", _IMAGE),
    "conv-1d": (_conv_n(1), "bc", ({"n": 2, "w": 9},)),
    "conv-3d": (_conv_n(3), "bc", ({"n": 1, "d": 2, "h": 3, "w": 5},)),
    "frames": (_frames(), "b", ({"n": 2, "w": 44, "f": 14}, {"n": 1, "w": 5, "f": 1}, {"n": 3, "w": 0, "f": 0})),
    "conv-transpose-2x2": (_conv_transpose(2, 2, 0), "bc", _IMAGE),
    "conv-transpose-3x3": (_conv_transpose(3, 2, 1), "bc", _IMAGE),
    "max-pool": (_pool("max_pool", 20, 3, 2, 1), "", _IMAGE),
    "average-pool": (_pool("average_pool", 8, 2, 2, 0), "", _IMAGE),
    "average-pool-dynamic": (_pool("average_pool", "c", 3, 1, 1), "", ({"n": 1, "h": 3, "w": 4, "c": 19},)),
    "softmax": (op_kernel("softmax", [("m", "n")], ("m", "n"), {"axis": 1}), "", _MN),
    "softmax-static": (op_kernel("softmax", [("m", 50)], ("m", 50), {"axis": 1}), "", ({"m": 3},)),
    "softmax-single": (op_kernel("softmax", [("n",)], ("n",), {"axis": 0}), "", ({"n": 37}, {"n": 0})),
    "softmax-middle": (op_kernel("softmax", [("p", "q", "r")], ("p", "q", "r"), {"axis": 1}), "", _PQR),
    "softmax-of-a-broadcast": (softmax_of_a_broadcast(), "", ({"m": 3, "n": 37, "k": 1}, {"m": 2, "n": 5, "k": 5}, {"m": 1, "n": 0, "k": 1})),
    "softmax-of-a-transpose": (_softmax_of_a_transpose(), "", _MN),
    "add-broadcast": (add_of_a_broadcast(), "", ({"m": 3, "n": 37, "k": 1}, {"m": 2, "n": 5, "k": 5}, {"m": 0, "n": 3, "k": 1})),
    "log-softmax": (op_kernel("log_softmax", [("m", "n")], ("m", "n"), {"axis": 1}), "", _MN),
    "hardmax": (op_kernel("hardmax", [("m", 9)], ("m", 9), {"axis": 1}), "", ({"m": 4},)),
    "layer-norm": (op_kernel("layer_norm", [("m", "n"), ("n",), ("n",)], ("m", "n"), {"axis": 1, "epsilon": 1e-5}), "", _MN),
    "layer-norm-2": (op_kernel("layer_norm", [("m", 3, 7), (3, 7), (3, 7)], ("m", 3, 7), {"axis": 1, "epsilon": 1e-5}), "", ({"m": 3},)),
    "layer-norm-and-a-row": (op_kernel("layer_norm", [("m", 3, 7)], ("m", 3, 7), {"axis": 1, "epsilon": 1e-5}, epilogue=_bias, extra=[(7,)]), "", ({"m": 2},)),
    "argmax": (op_kernel("argmax", [("p", "q")], ("p",), {"axis": 1, **_SUM}, out_dtype=i64), "", ({"p": 3, "q": 5},)),
    "argmax-of-4": (op_kernel("argmax", [("p", 4)], ("p",), {"axis": 1, **_SUM}, out_dtype=i64), "", ({"p": 37}, {"p": 1}, {"p": 0})),
    "sum-of-2x3": (op_kernel("reduce_sum", [("p", 5, 2, 3)], ("p", 5), {"axes": (2, 3), **_SUM}), "", ({"p": 9}, {"p": 0})),
    "max-of-3-bytes": (op_kernel("reduce_max", [(140, 3)], (140,), {"axes": (1,), **_SUM}, dtypes=[u8]), "", ({},)),
    **{
        f"sum-{''.join(map(str, axes))}": (
            op_kernel(
                "reduce_sum", [("p", "q", "r")],
                tuple(n for a, n in enumerate("pqr") if a not in axes), {"axes": axes, **_SUM},
            ), "", _PQR)
        for axes in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2))
    },
    "max-static": (op_kernel("reduce_max", [("p", 3, 20)], ("p", 20), {"axes": (1,), **_SUM}), "", ({"p": 2},)),
    "add": (op_kernel("add", [("n", 3, "w"), ("n", 3, "w")], ("n", 3, "w")), "", ({"n": 2, "w": 50}, {"n": 0, "w": 3})),
    "add-row": (op_kernel("add", [("m", "n"), ("n",)], ("m", "n")), "", _MN),
    "add-column": (op_kernel("add", [("m", 1), ("n",)], ("m", "n")), "", _MN),
    "add-scalar": (op_kernel("add", [(), ()], ()), "", ({},)),
    "tanh": (op_kernel("tanh", [(5, 100)], (5, 100)), "", ({},)),
    "large": (op_kernel("tanh", [("n",)], ("n",)), "", ({"n": 1500},)),
    "transpose": (op_kernel("transpose", [("n", "h", "w", 3)], ("n", 3, "h", "w"), {"perm": (0, 3, 1, 2)}), "", _IMAGE),
    "transpose-3-bytes": (op_kernel("transpose", [("n", 50, 3)], ("n", 3, 50), {"perm": (0, 2, 1)}, dtypes=[u8]), "", ({"n": 2}, {"n": 0})),
    "transpose-one-group": (op_kernel("transpose", [(70, 4)], (4, 70), {"perm": (1, 0)}), "", ({},)),
    "transpose-2d": (op_kernel("transpose", [("m", "n")], ("n", "m"), {"perm": (1, 0)}), "", ({"m": 21, "n": 19}, {"m": 3, "n": 40}, {"m": 0, "n": 2})),
    "known-multiple": (op_kernel("tanh", [("n",)], ("n",)).with_(dims=(DimParam("n", 0, None, 64),)), "", ({"n": 128}, {"n": 0})),
    "known-multiple-of-2": (op_kernel("sqrt", [("n",)], ("n",)).with_(dims=(DimParam("n", 0, None, 2),)), "", ({"n": 4102}, {"n": 14})),
    "known-multiple-of-16": (op_kernel("sqrt", [("n",)], ("n",)).with_(dims=(DimParam("n", 0, None, 16),)), "", ({"n": 4144}, {"n": 16})),
    "concat-middle": (op_kernel("concat", [("n", "a", 8), ("n", "b", 8)], ("n", "a+b", 8), {"axis": 1}), "", ({"n": 2, "a": 3, "b": 4}, {"n": 2, "a": 0, "b": 1})),
    "concat-last": (op_kernel("concat", [("n", "a", 8), ("n", "a", 5)], ("n", "a", 13), {"axis": 2}), "", ({"n": 2, "a": 3},)),
    "concat-turned": (_concat_turned(), "", ({"n": 2, "w": 21}, {"n": 1, "w": 3}, {"n": 0, "w": 8})),
    "append": (op_kernel("append_rows", [("b", 2, "p", 40), ("b", 2, "s", 40), ("b",)], ("b", 2, "t", 40), {"length": sym("t")}, dtypes=[f32, f32, i64]), "", ({"b": 2, "p": 5, "s": 2, "t": 9}, {"b": 1, "p": 0, "s": 1, "t": 0}, {"b": 2, "p": 3, "s": 0, "t": 2})),
    "pad": (op_kernel("pad", [("n", "w")], ("n", "w+3"), {"before": (to_dim(0), to_dim(1)), "after": (to_dim(0), to_dim(2)), "mode": "constant"}), "", ({"n": 2, "w": 30},)),
    "slice": (op_kernel("slice", [("n", "w")], ("n", "w-3"), {"starts": (to_dim(0), to_dim(1)), "ends": (sym("n"), sym("w") - 2), "steps": (1, 1)}), "", ({"n": 2, "w": 30},)),
    "gather": (op_kernel("gather", [(6, 40), ("b", "s")], ("b", "s", 40), {"axis": 0}, dtypes=[f32, i64]), "", ({"b": 2, "s": 3},)),
    "reshape": (op_kernel("reshape", [("n", 4, 6)], ("n", 24), {"shape": (sym("n"), to_dim(24))}), "", ({"n": 3},)),
    "repeat": (_repeat("f32", 2), "", ({"n": 2, "w": 43}, {"n": 2, "w": 1}, {"n": 3, "w": 0})),
    "repeat-bytes": (_repeat("u8", 3), "", ({"n": 1, "w": 85}, {"n": 0, "w": 5})),
    "two-outputs": (_two_outputs(), "", _MN),
    "two-nests": (_two_nests(), "", ({"m": 3, "n": 37}, {"m": 1, "n": 0})),
    "softmax-matmul": (_row_product("softmax", [("b", 2, "s", "t")], ("b", 2, "t", 20), ("b", 2, "s", 20)), "", ({"b": 2, "s": 53, "t": 5}, {"b": 1, "s": 3, "t": 37}, {"b": 1, "s": 2, "t": 0}, {"b": 0, "s": 4, "t": 4}, {"b": 2, "s": 0, "t": 3})),
    "matmul-f16-panels": (op_kernel("matmul", [("m", 20), (20, 40)], ("m", 40), dtypes=[f16, f16]), "b", ({"m": 7},)),
    "softmax-matmul-f16": (_row_product("softmax", [("m", 9)], (9, 20), ("m", 20), f16), "b", ({"m": 50},)),
    "softmax-matmul-turned": (_row_product("softmax", [("m", "n")], (20, "n"), ("m", 20), turned=True), "", ({"m": 50, "n": 5}, {"m": 1, "n": 37})),
    "softmax-vector": (_row_product("softmax", [("m", "n")], ("n",), ("m",)), "", ({"m": 50, "n": 5}, {"m": 1, "n": 0})),
    "softmax-of-one-row": (_row_product("softmax", [(1, "n")], ("n", 20), (1, 20)), "", ({"n": 37}, {"n": 0})),
    "softmax-of-one-row-each": (_row_product("softmax", [("b", 1, "n")], ("b", "n", 20), ("b", 1, 20)), "", ({"b": 3, "n": 5}, {"b": 0, "n": 5})),
    "softmax-of-one-row-and-column": (_row_product("softmax", [("b", 1, "n")], ("b", "n", 1), ("b", 1, 1)), "", ({"b": 3, "n": 5}, {"b": 2, "n": 0}, {"b": 0, "n": 5})),
    "softmax-of-few-rows": (_row_product("softmax", [(3, "n")], ("n", 8), (3, 8)), "", ({"n": 37}, {"n": 0})),
    "softmax-of-long-rows": (_row_product("softmax", [("m", 30000)], (30000, 4), ("m", 4)), "", ({"m": 3},)),
    "norm-matmul": (_row_product("layer_norm", [("m", 7), (7,), (7,)], (7, 50), ("m", 50)), "d", ({"m": 53}, {"m": 1}, {"m": 0})),
    "attention": (_attention(("b", 2, "s", 4), ("b", 2, "t", 4), ("b", 2, "t", 20), ("b", 2, "s", 20)), "", ({"b": 2, "s": 53, "t": 5}, {"b": 1, "s": 3, "t": 37}, {"b": 1, "s": 1, "t": 19}, {"b": 1, "s": 2, "t": 0}, {"b": 0, "s": 4, "t": 4}, {"b": 2, "s": 0, "t": 3})),
    "attention-masked": (_attention(("s", 4), ("t", 4), ("t", 8), ("s", 8), masked=True), "", ({"s": 50, "t": 21}, {"s": 1, "t": 3}, {"s": 2, "t": 0})),
    "attention-of-few-heads": (_attention(("b", 2, 3, "s", 4), ("b", 2, 1, "t", 4), ("b", 2, 1, "t", 8), ("b", 2, 3, "s", 8)), "", ({"b": 1, "s": 50, "t": 7}, {"b": 2, "s": 1, "t": 18}, {"b": 0, "s": 3, "t": 2})),
    "attention-of-one-row": (_attention((2, 1, 4), (2, "t", 4), (2, "t", 8), (2, 1, 8)), "", ({"t": 37}, {"t": 0})),
    "attention-of-one-row-and-column": (_attention((2, 1, 4), (2, "t", 4), (2, "t", 1), (2, 1, 1)), "", ({"t": 37}, {"t": 1}, {"t": 0})),
    "attention-of-one-number": (_attention((1, 1), ("t", 1), ("t", 1), (1, 1)), "", ({"t": 37}, {"t": 0})),
    "attention-f16": (_attention(("s", 4), ("t", 4), ("t", 8), ("s", 8), masked=True, dtype=f16), "", ({"s": 50, "t": 21}, {"s": 3, "t": 0})),
    "attention-of-norms": (_attention(("s", 4), (9, 4), (9, 8), ("s", 8), op="log_softmax"), "", ({"s": 50}, {"s": 0})),
    "attention-of-long-rows": (_attention(("s", 2), (20000, 2), (20000, 2), ("s", 2)), "", ({"s": 1},)),
    "scaled-by-a-sum": (_scaled_by_a_sum(), "", _MN),
    "scan": (_scan(), "", ({"m": 3, "n": 7}, {"m": 1, "n": 1})),
    "running-rows": (_running(0, ("m", "n")), "", ({"m": 5, "n": 300}, {"m": 1, "n": 3}, {"m": 0, "n": 9})),
    "running-middle": (_running(1, ("m", 7, 3, "n")), "", ({"m": 2, "n": 90}, {"m": 1, "n": 0})),
    "running-last": (_running(1, ("m", "n")), "", _MN),
}  # fmt: skip

# Rows that are long for a machine are so, at a hundredth of their length, for one with a hundredth of its
# caches, and interpreters take a hundredth of the time.
HUNDREDTHS: Mapping[str, Kernel] = {
    "attention-of-long-rows": _attention(("s", 2), (192, 2), (192, 2), ("s", 2)),
}


def scaled(name: str, machine: Machine) -> tuple[Kernel, Machine]:
    """A kernel of the table and the machine, or both with lengths and caches a hundredth as large."""
    if name not in HUNDREDTHS:
        return KERNELS[name][0], machine
    first, second = machine.cache_bytes
    return HUNDREDTHS[name], replace(machine, cache_bytes=(first // 100, second // 100))
