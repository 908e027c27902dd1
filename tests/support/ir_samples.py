"""Hand-written IR that several tests share, as text."""

from __future__ import annotations

import numpy as np

from smelt.core.dim import Dim, DimLike, ceildiv, sym, to_dim
from smelt.core.dtype import DType, f32
from smelt.core.ir.graph import Module, Symbol, Weight
from smelt.core.ir.kernel import (
    Axis,
    Bound,
    Buffer,
    Call,
    Const,
    DimParam,
    Expr,
    Kernel,
    Level,
    Load,
    Loop,
    Reduce,
    Space,
    Stmt,
    Store,
    Tiles,
)
from smelt.core.ir.text import parse_module

m, n, k = sym("m"), sym("n"), sym("k")
ZERO = Const(0.0, f32)


def buffer(name: str, *shape: DimLike, dtype: DType = f32, space: Space = "global") -> Buffer:
    return Buffer(name, dtype, tuple(map(to_dim, shape)), space)


def load(name: str, *index: DimLike, dtype: DType = f32) -> Load:
    return Load(name, tuple(map(to_dim, index)), dtype)


def store(name: str, *index: DimLike, value: Expr, accumulate: str | None = None) -> Store:
    return Store(name, tuple(map(to_dim, index)), value, accumulate)


def loop(level: Level, var: str, extent: DimLike, *body: Stmt, buffers: tuple[Buffer, ...] = ()) -> Loop:
    return Loop(level, var, to_dim(extent), body, buffers)


def mul(a: Expr, b: Expr) -> Call:
    return Call("mul", (a, b), f32)


def add(a: Expr, b: Expr) -> Call:
    return Call("add", (a, b), f32)


def matmul() -> Kernel:
    """y = x @ w + b, as traced."""
    i, j, q = sym("i"), sym("j"), sym("q")
    total = Reduce("sum", (Axis("q", k),), mul(load("x", i, q), load("w", q, j)), f32)
    body = loop("serial", "i", m, loop("serial", "j", n, store("y", i, j, value=add(total, load("b", j)))))
    return Kernel(
        "matmul", (DimParam("m"), DimParam("n", 1), DimParam("k", 0, 512)),
        (buffer("x", m, k), buffer("w", k, n), buffer("b", n)), (buffer("y", m, n),), (body,),
    )


def gemm(depth: int = 12, panels: int = 3) -> Kernel:
    """The same scheduled for a CPU: register tiles, packed panels of 32 columns, tails by smaller tiles."""
    io, ii, jo, jj, q = map(sym, ("io", "ii", "jo", "jj", "q"))
    rows = sym("rows")

    def tile(inner: Stmt) -> Loop:
        return loop("unroll", "ii", rows, loop("vector", "jj", 32, inner))

    clear = tile(store("acc", ii, jj, value=ZERO))
    product = mul(load("x", io + ii, q), load("w", jo, q, jj))
    step = loop("serial", "q", depth, tile(store("acc", ii, jj, value=product, accumulate="fma")))
    total = add(load("acc", ii, jj), load("b", 32 * jo + jj))
    write = tile(store("y", io + ii, 32 * jo + jj, value=Call("max", (total, ZERO), f32)))
    tiles = Tiles(
        "group", "io", "rows", m, tuple(range(12, 0, -1)), "balanced", (clear, step, write),
        (buffer("acc", rows, 32, space="register"),),
    )
    return Kernel(
        "gemm", (DimParam("m", 0, None, 1),),
        (buffer("x", m, depth), buffer("w", panels, depth, 32), buffer("b", panels * 32)),
        (buffer("y", m, panels * 32),), (loop("group", "jo", panels, tiles),),
        schedule="split j 32 -> jo jj; tile i by [12..1] balanced -> io ii", origin="/dense/MatMul",
    )


def gpu_gemm(depth: int = 32, columns: int = 8) -> Kernel:
    """x @ w for work-groups: shared tiles filled by lanes, per-lane accumulators, guards at the edge."""
    go, ko, p, ty, tx, ki = map(sym, ("go", "ko", "p", "ty", "tx", "ki"))
    rows, depth_tile = 4, 8
    row: Dim = go * rows + p // depth_tile
    inside = (Bound(to_dim(0), row, m),)
    xs = Load("x", (row, ko * depth_tile + p % depth_tile), f32, inside)
    fill = loop(
        "lane", "p", rows * depth_tile,
        Store("xs", (p // depth_tile, p % depth_tile), xs),
    )
    step = loop(
        "lane", "ty", rows,
        loop("lane", "tx", columns, loop("serial", "ki", depth_tile, store(
            "acc", ty, tx, accumulate="fma",
            value=mul(load("xs", ty, ki), load("w", ko * depth_tile + ki, tx)),
        ))),
    )
    clear = loop("lane", "ty", rows, loop("lane", "tx", columns, store("acc", ty, tx, value=ZERO)))
    out = Store("y", (go * rows + ty, tx), load("acc", ty, tx), None, (Bound(to_dim(0), go * rows + ty, m),))
    write = loop("lane", "ty", rows, loop("lane", "tx", columns, out))
    body = loop(
        "group", "go", ceildiv(m, rows), clear,
        loop("serial", "ko", depth // depth_tile, fill, step), write,
        buffers=(
            buffer("xs", rows, depth_tile, space="shared"),
            buffer("acc", rows, columns, space="register"),
        ),
    )
    return Kernel(
        "gpu_gemm", (DimParam("m"),), (buffer("x", m, depth), buffer("w", depth, columns)),
        (buffer("y", m, columns),), (body,),
    )


FFN = """
module "ffn" {
  sym batch in 1..* from "input x axis 0"
  sym seq in 1..512 % 8
  weight @w: f32[384, 2] = sha256 "00"
  weight @b: f32[2] = [0.5, -inf] from "dense.bias"
  library "cblas_sgemm" adapter "gemm" files "libblas.so.3" "libopenblas.so";

  kernel @bias(m: dim in 0..*, x: f32[m, 2], b: f32[2]) -> (y: f32[m, 2]) origin "add" {
    serial i in m { serial j in 2 { y[i, j] = x[i, j] + b[j] } }
  }

  graph @main(%x: f32[batch, seq, 384] from "x", %flag: bool[] from "flag") -> (%y as "y", %q as "q") {
    check() {left = dim batch*seq, relation = "<=", right = dim 4096, text = "input x is too large"}
    %h = matmul(%x, @w) : f32[batch, seq, 2] from "/dense/MatMul_output_0" at "/dense/MatMul"
    %a = call_kernel(%h, @b) {dims = [batch*seq], kernel = "bias"} : f32[batch, seq, 2] from "/dense/Add"
    %y = if(%flag) : f32[batch, seq, 2]
      region @then() -> (%t) { %t = relu(%a) : f32[batch, seq, 2] }
      region @else() -> (%a) { }
    %f = fused(%y) : f32[batch, seq, 2]
      region @fused(%fx: f32[batch, seq, 2]) -> (%f2) {
        %f1 = exp(%fx) : f32[batch, seq, 2]
        %f2 = add(%f1, @b) : f32[batch, seq, 2]
      }
    %q = clip(%f, _, @b) {approximate = none, to = :f32, axes = (0, 1), alpha = 0.1} : f32[batch, seq, 2]
  }
}
"""


def dyn_ffn() -> Module:
    """A module with something of everything; its weight is random."""
    rng = np.random.default_rng(0)
    w = Weight("@w", f32, (384, 2), rng.integers(-3, 4, (384, 2)).astype(np.float32))
    found = parse_module(FFN.replace('sha256 "00"', f'sha256 "{w.digest}"'), {"@w": w})
    assert Symbol("seq", 1, 512, 8) in found.symbols
    return found
