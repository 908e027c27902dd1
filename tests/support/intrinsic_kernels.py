"""Every intrinsic and cast as a few wide kernels (one output each), with edge values to run them at."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from intrinsic_dtypes import BY_FN, TRANSCENDENTAL

from smelt.core.dim import sym
from smelt.core.dtype import DType, bf16, bool_, f16, f32, f64
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import Buffer, Call, DimParam, Expr, Kernel, Load, Loop, Store, Tiles

Array = np.ndarray[Any, Any]
CASES = [(fn, d) for fn, dtypes in BY_FN.items() for d in dtypes]
RTOL = {f64: 4e-16, f32: 5e-7, f16: 1e-3, bf16: 8e-3}


def vector_kernel(
    inputs: Sequence[DType],
    results: Sequence[tuple[str, DType, Expr]],
    name: str = "k",
    sizes: tuple[int, ...] = (32, 8, 1),
) -> Kernel:
    """Outputs over i in n: vectors of these sizes with scalar tails; i is `at + lane`."""
    n = sym("n")
    index = (sym("at") + sym("lane"),)
    stores = tuple(Store(out, index, value) for out, _, value in results)
    loop = Loop("vector", "lane", sym("rows"), stores)
    tree = Tiles("group", "at", "rows", n, sizes, "greedy", (loop,))
    buffers = tuple(Buffer(f"x{i}", d, (n,)) for i, d in enumerate(inputs))
    outputs = tuple(Buffer(out, d, (n,)) for out, d, _ in results)
    return Kernel(name, (DimParam("n"),), buffers, outputs, (tree,))


def operand(i: int, dtype: DType) -> Load:
    return Load(f"x{i}", (sym("at") + sym("lane"),), dtype)


def applied(fn: str, dtype: DType) -> tuple[str, DType, Call]:
    """An output that is fn of the operands."""
    row = INTRINSICS[fn]
    result = bool_ if row.result == "bool" else dtype
    return f"y_{fn}", result, Call(fn, tuple(operand(i, dtype) for i in range(row.arity)), result)


def edges(dtype: DType, subnormals: bool = True) -> list[Any]:
    """Values where functions go wrong."""
    if dtype == bool_:
        return [False, True]
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        some = {info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 100, 5, 63}
        return sorted(some | ({-1, -2, -7, -100} if dtype.category == "int" else set()))
    big = {64: 1e300, 32: 3e38, 16: 6e4}[dtype.bits]
    small = {64: 1e-310, 32: 1e-40, 16: 6e-5}[dtype.bits]
    if not subnormals:
        small = 1e-3
    return [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.3, -0.7, 3.7, 10.0, -20.0, 88.5, -100.0,
            big, -big, small, -small, np.inf, -np.inf, np.nan, 0.62, 0.99, -0.99, 1e-5, 4.2]  # fmt: skip


def operands(arity: int, dtype: DType, subnormals: bool = True) -> list[Array]:
    """All pairs of edge values (a third operand is 1)."""
    values = edges(dtype, subnormals)
    rows: Iterable[tuple[Any, ...]] = itertools.product(values, repeat=min(arity, 2))
    rows = [(*r, 1) if arity == 3 else r for r in rows]
    return [np.array([r[k] for r in rows], dtype.numpy) for k in range(arity)]


def meaning(fn: str, dtype: DType, args: Sequence[Array]) -> Array:
    """What fn should give: halves are computed as floats, and fma does not round its product."""
    wide = [a.astype(np.float32) for a in args] if dtype.bits == 16 and dtype.is_float else list(args)
    if fn == "fma":
        wide = [a.astype(np.longdouble) for a in args]
    result = applied(fn, dtype)[1]
    with np.errstate(all="ignore"):
        want = np.asarray(INTRINSICS[fn].meaning(*wide))
        return want.astype(result.numpy) if result.is_float else want


def without_libm(dtype: DType) -> list[str]:
    """Intrinsics on that dtype that are code of our own on every processor."""
    own = {"exp", "log", "tanh", "erf", "sqrt"} if dtype.is_float and dtype != f64 else {"sqrt"}
    calls = {"fmod", "mod", *TRANSCENDENTAL} - own if dtype.is_float else set()
    calls.add("pow")  # and long code for integers
    return [fn for fn, dtypes in BY_FN.items() if dtype in dtypes and fn not in calls]


def same(got: Any, want: Any, rtol: float, dtype: DType, subnormals: bool = True) -> None:
    """Equal integers, or floats equal up to rtol (or the least subnormal; or, where those are zeros, the
    least normal number), NaN and infinities alike."""
    got, want = np.asarray(got), np.asarray(want)
    if not dtype.is_float:
        np.testing.assert_array_equal(got, want)
        return
    g, w = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
    np.testing.assert_array_equal(np.isinf(g), np.isinf(w))
    tiny = {f64: 5e-324, f32: 2e-45, f16: 6e-8, bf16: 1e-40}[dtype]
    if not subnormals and dtype == f32:
        tiny = float(np.finfo(np.float32).tiny)
    ok = np.isfinite(w)
    np.testing.assert_allclose(g[ok], w[ok], rtol=rtol, atol=tiny)
