"""Trees for groups and lanes; on a device they give what the interpreter says."""

# ruff: noqa: E501  (a table)

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from kernel_data import compare, inputs
from naive_kernels import Shape, op_kernel

from smelt.core.dim import Dim, Facts, parse_dim, to_dim
from smelt.core.dtype import f16, f32, u8
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Expr, Kernel, Load
from smelt.core.ir.text import parse_kernel
from smelt.core.machine import Machine
from smelt.core.ops.trace import call
from smelt.core.schedule.strategies import draft
from smelt.core.schedule.tree import map_accesses

Array = np.ndarray[Any, Any]
Built = TypeVar("Built", bound=Callable[..., list[Array]])

LANES = {
    # what lies in memory goes from one ordered block to the next; the last one takes part where it is told to
    "ordered": ("""
kernel @ordered(on: dim in 0..1, n: dim in 0..*, x: f32[n, 48]) -> (a: f32[n, 48], y: f32[n, 48]) {
  group whole in 1 {
    block ordered { serial i in n { lane j in 48 { a[i, j] = x[i, j] * 2.0: f32 } } }
    block ordered { serial i in n { lane j in 48 { y[i, j] = a[n - 1 - i, 47 - j] } } }
    block ordered if (1 <= on < 2) { serial i in n { lane j in 24 { y[i, j] = a[i, 47 - j] } } }
  }
}""", ({"on": 1, "n": 0}, {"on": 1, "n": 1}, {"on": 0, "n": 3}, {"on": 1, "n": 3}), 48),
    # the second nest reads what other work-items wrote; the loop's passes overlap without barriers
    "exchange": ("""
kernel @exchange(n: dim in 0..*, x: f32[n, 48]) -> (y: f32[n, 48]) {
  group i in n {
    shared a: f32[48]
    lane j in 48 { a[j] = x[i, j] }
    serial k in 5 {
      shared b: f32[48]
      lane j in 48 { b[j] = a[47 - j] + 1.0: f32 }
      lane j in 48 { a[j] = b[(j + 7) % 48] * 0.5: f32 }
    }
    lane j in 48 { y[i, j] = a[j] }
  }
}""", ({"n": 0}, {"n": 1}, {"n": 5}), 48),
    # more instances than work-items; a single statement between two nests is one work-item's
    "turns": ("""
kernel @turns(n: dim in 0..*, m: dim in 1..*, x: f32[n, m]) -> (y: f32[n, m]) {
  group i in n {
    shared total: f32[1]
    lane j in m { y[i, j] = x[i, j] * 2.0: f32 }
    total[0] = 0.0: f32
    serial j in m { total[0] add= y[i, m - 1 - j] }
    lane j in m { y[i, j] = x[i, j] - total[0] }
  }
}""", ({"n": 3, "m": 1}, {"n": 2, "m": 64}, {"n": 2, "m": 150}), 64),
    # registers that live across nests: each work-item's own
    "own": ("""
kernel @own(n: dim in 0..*, x: f32[n, 8, 3]) -> (y: f32[n, 8]) {
  group i in n {
    register acc: f32[2, 4, 3]
    lane a in 2 { lane b in 4 { unroll c in 3 { acc[a, b, c] = x[i, 4*a + b, c] } } }
    serial k in 3 { lane a in 2 { lane b in 4 { acc[a, b, 0] add= acc[a, b, 2 - k] } } }
    lane a in 2 { lane b in 4 { y[i, 4*a + b] = acc[a, b, 0] } }
  }
}""", ({"n": 0}, {"n": 7}), 8),
    # the same, but another work-item reads them
    "exchanged-registers": ("""
kernel @swapped(n: dim in 0..*, x: f32[n, 8]) -> (y: f32[n, 8]) {
  group i in n {
    register acc: f32[8]
    lane a in 8 { acc[a] = x[i, a] }
    lane a in 8 { y[i, a] = acc[7 - a] }
  }
}""", ({"n": 3},), 8),
    "lane-tiles": ("""
kernel @tiled(n: dim in 0..*, x: f32[n]) -> (y: f32[n]) {
  tiles lane (at, rows) in n: balanced(4 .. 1) { unroll i in rows { y[at + i] = x[at + i] + 1.0: f32 } }
}""", ({"n": 0}, {"n": 3}, {"n": 41}, {"n": 300}), 64),
    "uniform-block": ("""
kernel @picked(n: dim in 1..*, x: f32[n, 16], ids: i32[n]) -> (y: f32[n, 16]) {
  group i in n {
    block let (g = ids[i] in 0 .. n - 1) if (0 <= i < n) {
      lane j in 16 { y[i, j] = x[g, j] }
    }
  }
}""", ({"n": 1}, {"n": 6}), 16),
}  # fmt: skip
"""Name -> text, sizes, lanes of a group on a machine with 64."""



def _conv(c: int, m: int) -> Kernel:
    attrs = {"strides": (2, 1), "dilations": (1, 1), "group": 1, "channels_last": True,
             "pads_begin": (to_dim(1),) * 2, "pads_end": (to_dim(1),) * 2}  # fmt: skip
    return op_kernel("conv", [(1, "h", "w", c), (3, 3, c, m)], (1, parse_dim("(h - 1)//2 + 1"), "w", m), attrs)


def _turned(kernel: Kernel, name: str) -> Kernel:
    """The kernel with a matrix of its inputs, or matrices, read along their other axis."""

    def turned(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return (*shape[:-2], shape[-1], shape[-2])

    inputs = tuple(replace(b, shape=turned(b.shape)) if b.name == name else b for b in kernel.inputs)

    def load(e: Load, facts: Facts) -> Expr:
        return replace(e, index=turned(e.index)) if e.buffer == name else e

    return kernel.with_(inputs=inputs, body=map_accesses(kernel.body, Facts(), load, lambda s, _: s))


def _masked(shapes: list[Shape], out: Shape) -> Kernel:
    """A product to which a matrix is added for all of them."""
    return op_kernel("matmul", shapes, out, extra=[out[-2:]],
                     epilogue=lambda t, value, i, mask: call("add", value, mask[i[-2:]]))  # fmt: skip


_ATTENTION_UNLESS = parse_kernel("""
kernel @attention(n: dim in 0..400, m: dim in 0..*, q: f32[2, m, 8], k: f32[2, n, 8], b: f32[m, n], v: f32[2, n, 24])
    -> (y: f32[m, 2, 24]) {
  serial i in m { serial h in 2 { serial j in 24 {
    y[i, h, j] = sum k0 in n { select(le(max k5 in n { b[i, k5] }, -0.5:f32), 0.0:f32,
      exp((sum d0 in 8 { q[h, i, d0] * k[h, k0, d0] }) * 0.25:f32 + b[i, k0]
          - max k1 in n { (sum d1 in 8 { q[h, i, d1] * k[h, k1, d1] }) * 0.25:f32 + b[i, k1] })
      / sum k2 in n { exp((sum d2 in 8 { q[h, i, d2] * k[h, k2, d2] }) * 0.25:f32 + b[i, k2]
          - max k1 in n { (sum d1 in 8 { q[h, i, d1] * k[h, k1, d1] }) * 0.25:f32 + b[i, k1] }) }) * v[h, k0, j] }
  } } }
}""")
"""Heads beside each other in the output; rows of a mask that is low everywhere are 0."""

IN_STEP: dict[str, tuple[Kernel, str, str, tuple[dict[str, int], ...]]] = {
    "matmul": (op_kernel("matmul", [("m", 40), (40, 70)], ("m", 70)), "b", "lane_split", ({"m": 1}, {"m": 3}, {"m": 37}, {"m": 0})),
    "matmul-in-place": (op_kernel("matmul", [("m", "k"), ("k", "n")], ("m", "n")), "", "lane_split", ({"m": 2, "k": 9, "n": 33}, {"m": 5, "k": 0, "n": 7}, {"m": 9, "k": 3, "n": 64})),
    "vector": (op_kernel("matmul", [(1, 70), (70, 50)], (1, 50)), "b", "lane_split", ({},)),
    "decoded": (op_kernel("matmul_nbits", [("m", 128), (40, 4, 16), (40, 4)], ("m", 40), {"bits": 4, "block": 32}, dtypes=[f32, u8, f32]), "bc", "lane_split", ({"m": 1}, {"m": 6})),
    "keys": (_turned(op_kernel("matmul", [("h", "m", 32), ("h", 32, "n")], ("h", "m", "n")), "b"), "", "accumulate acc []; unroll acc.t", ({"h": 2, "m": 1, "n": 70}, {"h": 1, "m": 4, "n": 3}, {"h": 1, "m": 5, "n": 9}, {"h": 2, "m": 2, "n": 0})),
    "halves-of-keys": (_turned(op_kernel("matmul", [("h", 4, 32), ("h", 32, "n")], ("h", 4, "n"), dtypes=[f16, f16]), "b"), "", "accumulate acc []; unroll acc.t", ({"h": 2, "n": 37},)),
    "keys-of-heads": (_turned(_masked([(2, 3, "m", 32), (2, 1, 32, "n")], (2, 3, "m", "n")), "b"), "", "divide i2 1 .m", ({"m": 1, "n": 37}, {"m": 9, "n": 5}, {"m": 0, "n": 2})),
    "values-of-heads": (_masked([(2, 4, "m", "k"), (2, 1, "k", 32)], (2, 4, "m", 32)), "", "split_reduce", ({"m": 1, "k": 300}, {"m": 9, "k": 5})),
    "values": (op_kernel("matmul", [("h", "m", "k"), ("h", "k", 32)], ("h", "m", 32)), "", "split_reduce", ({"h": 2, "m": 1, "k": 300}, {"h": 1, "m": 3, "k": 5}, {"h": 1, "m": 6, "k": 9}, {"h": 2, "m": 4, "k": 0}, {"h": 1, "m": 2, "k": 1025})),
    "halves-of-values": (op_kernel("matmul", [(2, 1, "k"), (2, "k", 64)], (2, 1, 64), dtypes=[f16, f16]), "", "split_reduce", ({"k": 259},)),
    "values-of-many-heads": (op_kernel("matmul", [(36, 1, 130), (36, 130, 32)], (36, 1, 32)), "", "accumulate acc []; unroll acc.t", ({},)),
    "few-columns": (op_kernel("matmul", [("m", 1024), (1024, 20)], ("m", 20)), "b", "split_reduce", ({"m": 1}, {"m": 4})),
    "decoded-blocks": (op_kernel("matmul_nbits", [(1, 512), (9, 16, 16), (9, 16)], (1, 9), {"bits": 4, "block": 32}, dtypes=[f32, u8, f32]), "bc", "lane_split", ({},)),
    "neighbours-in-place": (op_kernel("matmul", [("m", "k"), ("k", 48)], ("m", 48)), "", "lane_split", ({"m": 1, "k": 300}, {"m": 3, "k": 37}, {"m": 2, "k": 0}, {"m": 5, "k": 3})),
    "runs": (op_kernel("matmul", [("m", 96), (96, 70)], ("m", 70)), "b", "lane_split", ({"m": 1}, {"m": 3}, {"m": 7}, {"m": 0})),
    "runs-of-few-columns": (op_kernel("matmul_nbits", [("m", 128), (8, 4, 16), (8, 4)], ("m", 8), {"bits": 4, "block": 32}, dtypes=[f32, u8, f32]), "bc", "lane_split", ({"m": 2},)),
    "runs-of-halves": (op_kernel("matmul", [("m", 352), (352, 40)], ("m", 40), dtypes=[f16, f16]), "b", "lane_split", ({"m": 2}, {"m": 5})),
    "runs-of-bytes": (op_kernel("matmul_nbits", [("m", 320), (48, 5, 64), (48, 5), (48, 5)], ("m", 48), {"bits": 8, "block": 64}, dtypes=[f16, u8, f16, u8]), "bcd", "once", ({"m": 3}, {"m": 5})),
    "runs-of-nibbles": (op_kernel("matmul_nbits", [("m", 544), (48, 17, 16), (48, 17), (48, 17)], ("m", 48), {"bits": 4, "block": 32}, dtypes=[f32, u8, f32, u8]), "bcd", "lane_split", ({"m": 1}, {"m": 3}, {"m": 5})),
    "tiles": (op_kernel("matmul", [("m", 40), (40, 70)], ("m", 70)), "b", "fetch", ({"m": 37}, {"m": 5})),
    "tiles-in-place": (op_kernel("matmul", [("m", "k"), ("k", "n")], ("m", "n")), "", "fetch", ({"m": 17, "k": 37, "n": 35}, {"m": 8, "k": 16, "n": 129}, {"m": 6, "k": 0, "n": 3})),
    "tiles-of-a-transpose": (_turned(op_kernel("matmul", [(20, 32), (32, "n")], (20, "n")), "b"), "", "fetch", ({"n": 35},)),
    "tiles-decoded": (op_kernel("matmul_nbits", [("m", 128), (40, 4, 16), (40, 4)], ("m", 40), {"bits": 4, "block": 32}, dtypes=[f32, u8, f32]), "bc", "fetch", ({"m": 9},)),
    "convolution": (_conv(24, 40), "b", "fetch", ({"h": 5, "w": 11}, {"h": 1, "w": 1})),
    "attention-unless": (_ATTENTION_UNLESS, "", "running", ({"m": 9, "n": 21}, {"m": 2, "n": 5}, {"m": 6, "n": 0})),
    "transpose": (op_kernel("transpose", [("m", "n")], ("n", "m"), {"perm": (1, 0)}), "", "fetch", ({"m": 45, "n": 33}, {"m": 3, "n": 70}, {"m": 0, "n": 2})),
    "transpose-of-heads": (op_kernel("transpose", [("b", "s", 3, 40)], ("b", 3, 40, "s"), {"perm": (0, 2, 3, 1)}), "", "fetch", ({"b": 2, "s": 37},)),
    "wide": (op_kernel("tanh", [("n",)], ("n",)), "", "unroll", ({"n": 1300}, {"n": 5}, {"n": 0})),
    "sum-of-all": (op_kernel("reduce_sum", [("n",)], (), {"axes": (0,), "keepdims": False}), "", "split_reduce", ({"n": 9001}, {"n": 64}, {"n": 0})),
    "max-of-all": (op_kernel("reduce_max", [(60, 60)], (), {"axes": (0, 1), "keepdims": False}), "", "lane_reduce", ({},)),
    "softmax": (op_kernel("softmax", [("m", "n")], ("m", "n"), {"axis": 1}), "", "lane_reduce", ({"m": 3, "n": 600}, {"m": 1, "n": 513}, {"m": 1, "n": 0})),
    "softmax-of-few-long-rows": (op_kernel("softmax", [("m", 16500)], ("m", 16500), {"axis": 1}), "", "split_reduce", ({"m": 2},)),
    "softmax-of-short-rows": (op_kernel("softmax", [("m", "n")], ("m", "n"), {"axis": 1}), "", "lane_share", ({"m": 3, "n": 300}, {"m": 19, "n": 5}, {"m": 1, "n": 64}, {"m": 4, "n": 0}, {"m": 0, "n": 4})),
    "sums-of-short-rows": (op_kernel("reduce_sum", [("m", 3, 100)], ("m", 3), {"axes": (2,), "keepdims": False}), "", "lane_share", ({"m": 7}, {"m": 0})),
    "softmax-of-one": (op_kernel("softmax", [(1, "n")], (1, "n"), {"axis": 1}), "", "lift", ({"n": 5000}, {"n": 7})),
    "sum-of-columns": (op_kernel("reduce_sum", [("p", "q")], ("q",), {"axes": (0,), "keepdims": False}), "", "lane_split", ({"p": 300, "q": 40}, {"p": 1, "q": 3}, {"p": 0, "q": 2})),
    "sum-of-few-columns": (op_kernel("reduce_sum", [("p", 3)], (3,), {"axes": (0,), "keepdims": False}), "", "split_reduce", ({"p": 9000}, {"p": 5})),
    "softmax-of-columns": (op_kernel("softmax", [(3, "p", "q")], (3, "p", "q"), {"axis": 1}), "", "bind i2 group", ({"p": 5, "q": 70}, {"p": 0, "q": 3})),
}  # fmt: skip
"""Name -> naive kernel, constant inputs, a step that only machines whose lanes run in step take, sizes."""


def in_step(name: str, machine: Machine) -> tuple[Kernel, tuple[dict[str, int], ...]]:
    """A kernel of IN_STEP, scheduled for a machine, and its sizes."""
    kernel, constants, step, sizes = IN_STEP[name]
    done = draft(kernel, machine, frozenset(constants)).kernel
    assert step in done.schedule, done.schedule
    return done, sizes


def check_tree(build: Callable[[Kernel], Built], kernel: Kernel, sizes: Sequence[dict[str, int]]) -> Built:
    """What was built of the kernel."""
    built = build(kernel)
    for env in sizes:
        arrays = inputs(kernel, env)
        compare(built(arrays, env), run_kernel(kernel, env, arrays))
    return built
