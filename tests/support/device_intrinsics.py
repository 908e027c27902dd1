"""A device in; every intrinsic on every dtype it takes is checked on it, at edge values, against NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from intrinsic_dtypes import ANY, BY_FN, EXACT, FLOATS, INTS

from smelt.core.dim import sym, to_dim
from smelt.core.dtype import DType, bf16, bool_, f16, f32, f64, i32, i64
from smelt.core.ir.interp_kernel import cast_array
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import Axis, Buffer, Call, Const, DimParam, Expr, Kernel, Load, Loop, Reduce, Store

Array = np.ndarray[Any, Any]
Device = Callable[[Kernel], Callable[..., list[Array]]]
# OpenCL C's own bounds (chapter 7.4) in units of the last place; sums and products are exact to one.
ULP = {
    "exp": 3, "log": 3, "log1p": 2, "sin": 4, "cos": 4, "tan": 5, "sinh": 4, "cosh": 4, "tanh": 5,
    "asin": 4, "acos": 4, "atan": 5, "asinh": 4, "acosh": 4, "atanh": 5, "erf": 16, "pow": 16, "div": 2.5,
    "sqrt": 3,
}  # fmt: skip
EPSILON = {f64: 2.0**-52, f32: 2.0**-23, f16: 2.0**-10, bf16: 2.0**-7}


def edges(dtype: DType) -> list[Any]:
    if dtype == bool_:
        return [False, True]
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        negative = {-1, -2, -7, -100} if dtype.category == "int" else set()
        return sorted({info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 5, 7, 63, 100} | negative)
    big = {64: 1e300, 32: 3e38, 16: 6e4}[dtype.bits]
    small = {64: 1e-300, 32: 1e-37, 16: 6e-5}[dtype.bits]
    return [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.3, -0.7, 3.7, 10.0, -20.0, 88.5, -100.0,
            big, -big, small, -small, np.inf, -np.inf, np.nan, 0.62, 0.99, -0.99, 1e-5, 4.2]  # fmt: skip


def operands(fn: str, dtype: DType) -> list[Array]:
    arity = INTRINSICS[fn].arity
    rows: list[tuple[Any, ...]] = list(itertools.product(edges(dtype), repeat=min(arity, 2)))
    columns = [np.array([r[k] for r in rows], dtype.numpy) for k in range(min(arity, 2))]
    if arity == 3:
        columns.append(np.ones(len(rows), dtype.numpy))
    if fn == "pow" and dtype.is_int:
        columns = [c[columns[1] >= 0] for c in columns]  # NumPy refuses negative exponents
    return columns


def pointwise(values: list[tuple[list[DType], Expr]]) -> Kernel:
    """y_k[i] = value_k, each over i in n_k on lanes; operand j of value k is x_k_j[i]."""
    body, ins, outs, dims = [], [], [], []
    for k, (types, value) in enumerate(values):
        n = sym(f"n{k}")
        store = Store(f"y{k}", (sym("i"),), value)
        body.append(Loop("lane", "i", n, (store,)))
        ins += [Buffer(f"x{k}_{j}", d, (n,)) for j, d in enumerate(types)]
        outs.append(Buffer(f"y{k}", value.dtype, (n,)))
        dims.append(DimParam(f"n{k}"))
    return Kernel("k", tuple(dims), tuple(ins), tuple(outs), (Loop("group", "g", to_dim(1), tuple(body)),))


def operand(k: int, j: int, dtype: DType) -> Load:
    return Load(f"x{k}_{j}", (sym("i"),), dtype)


def _run(on: Device, values: list[tuple[list[DType], Expr]], inputs: list[list[Array]]) -> list[Array]:
    sizes = {f"n{k}": len(columns[0]) for k, columns in enumerate(inputs)}
    return on(pointwise(values))([a for columns in inputs for a in columns], sizes)


def same(got: Array, want: Array, ulp: float, dtype: DType, what: str) -> None:
    """Equal; floats to `ulp` units of the last place of the dtype."""
    if not dtype.is_float:
        np.testing.assert_array_equal(got, want, what)
        return
    g, w = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(g), np.isnan(w), what)
    np.testing.assert_array_equal(np.isinf(g), np.isinf(w), what)
    tiny = {f64: 5e-308, f32: 1.2e-38, f16: 6.2e-5, bf16: 1.2e-38}[dtype] if ulp else 0
    ok = np.isfinite(w)
    np.testing.assert_allclose(g[ok], w[ok], rtol=ulp * EPSILON[dtype], atol=tiny, err_msg=what)


def fused(a: Array, b: Array, c: Array) -> Array:
    """a*b + c with one rounding; infinite and NaN operands as NumPy has them."""
    rows = []
    for x, y, z in zip(*(v.astype(np.float64).tolist() for v in (a, b, c)), strict=True):
        exact = math.isfinite(x) and math.isfinite(y)
        exact = exact and abs(x * y) < 1e308
        rows.append(float(Fraction(x) * Fraction(y) + Fraction(z)) if exact else x * y + z)
    return np.array(rows, np.float64)


def check_intrinsic(on: Device, fn: str, fuses: bool = True) -> None:
    row, dtypes = INTRINSICS[fn], BY_FN[fn]
    inputs = [operands(fn, d) for d in dtypes]
    values: list[tuple[list[DType], Expr]] = []
    for k, d in enumerate(dtypes):
        args = tuple(operand(k, j, d) for j in range(row.arity))
        values.append(([d] * row.arity, Call(fn, args, bool_ if row.result == "bool" else d)))
    for d, columns, got in zip(dtypes, inputs, _run(on, values, inputs), strict=True):
        with np.errstate(all="ignore"):
            narrow = d.bits == 16 and d.is_float
            wide = [a.astype(np.float32) for a in columns] if narrow else columns
            if fn == "fma" and fuses:
                want = fused(*columns)
            else:
                want = np.asarray(row.meaning(*wide))
            if row.result != "bool":
                want = want.astype(d.numpy)
        ulp = 0 if fn in EXACT else ULP.get(fn, 1)
        same(got, want, ulp, bool_ if row.result == "bool" else d, f"{fn} {d}")


def check_cast(on: Device, source: DType) -> None:
    x = np.array(edges(source), source.numpy)
    values: list[tuple[list[DType], Expr]] = [
        ([source], Call("cast", (operand(k, 0, source),), d)) for k, d in enumerate(ANY)
    ]
    for d, got in zip(ANY, _run(on, values, [[x]] * len(ANY)), strict=True):
        with np.errstate(all="ignore"):
            want = cast_array(x, d)
        # f64 to 16 bits goes through f32, and may round twice
        twice = source == f64 and d.is_float and d.bits == 16
        same(got, want, 1 if twice else 0, d, f"{source} to {d}")


def check_cast_to_half_inside_an_expression(on: Device) -> None:
    x = np.linspace(-70000, 70000, 501).astype(np.float32)
    values: list[tuple[list[DType], Expr]] = []
    for k, d in enumerate((f16, bf16)):
        values.append(([f32], Call("cast", (Call("cast", (operand(k, 0, f32),), d),), f32)))
    with np.errstate(over="ignore"):
        for d, got in zip((f16, bf16), _run(on, values, [[x], [x]]), strict=True):
            same(got, x.astype(d.numpy).astype(np.float32), 0, f32, str(d))


def check_bitcast(on: Device, width: int) -> None:
    dtypes = [d for d in (*INTS, *FLOATS) if d.bits == width]
    pairs = [(a, b) for a in dtypes for b in dtypes]
    values: list[tuple[list[DType], Expr]] = []
    inputs = []
    for k, (a, b) in enumerate(pairs):
        values.append(([a], Call("bitcast", (operand(k, 0, a),), b)))
        numbers = edges(a) if not a.is_float else [v for v in edges(a) if v == v]
        x = np.array(numbers, a.numpy)
        with np.errstate(invalid="ignore"):
            nan = np.isnan(x.view(b.numpy)) if b.is_float else np.zeros(len(x), np.bool_)
        inputs.append([x[~nan]])  # a NaN may become another one
    for (a, b), (x,), got in zip(pairs, inputs, _run(on, values, inputs), strict=True):
        np.testing.assert_array_equal(got.view(np.uint8), x.view(np.uint8), f"{a} as {b}")


def check_literals(on: Device) -> None:
    numbers = [(d, v) for d in ANY for v in edges(d)]
    outs = tuple(Buffer(f"y{k}", d, ()) for k, (d, _) in enumerate(numbers))
    body = tuple(Store(f"y{k}", (), Const(v, d)) for k, (d, v) in enumerate(numbers))
    kernel = Kernel("k", (), (), outs, (Loop("group", "g", to_dim(1), body),))
    for (d, v), got in zip(numbers, on(kernel)([]), strict=True):
        same(got, np.array(v, d.numpy), 0, d, f"{d} {v}")


def check_reduction(on: Device, kind: str) -> None:
    n, m = sym("n"), sym("m")
    rng = np.random.default_rng(3)
    cases = [(d, last) for d in (f32, f64, f16, i32, i64) for last in (False, True)]
    ins, outs, body, inputs, wants = [], [], [], [], []
    for k, (d, last) in enumerate(cases):
        result = i64 if kind.startswith("arg") else d
        load = Load(f"x{k}", (sym("i"), sym("k")), d)
        value = Reduce(kind, (Axis("k", n),), load, result, last)  # type: ignore[arg-type]
        ins.append(Buffer(f"x{k}", d, (m, n)))
        outs.append(Buffer(f"y{k}", result, (m,)))
        body.append(Store(f"y{k}", (sym("i"),), value))
        x = rng.integers(-3, 4, (9, 7)).astype(d.numpy)
        if d.is_float:
            x[3, 2] = x[3, 5] = np.nan
            x[4, :] = -np.inf if kind == "argmax" else np.inf
        inputs.append(x)
        if kind.startswith("arg"):
            fn = getattr(np, kind)
            wants.append(6 - fn(x[:, ::-1], axis=1) if last else fn(x, axis=1))
        else:
            ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
            with np.errstate(all="ignore"):
                wants.append(ufunc.reduce(x.astype(np.float32) if d == f16 else x, axis=1).astype(d.numpy))
    kernel = Kernel("k", (DimParam("m"), DimParam("n")), tuple(ins), tuple(outs),
                    (Loop("group", "i", m, tuple(body)),))  # fmt: skip
    for (d, last), got, want in zip(cases, on(kernel)(inputs, {"m": 9, "n": 7}), wants, strict=True):
        same(got, want, 1, got_dtype(kind, d), f"{kind} {d} {last}")


def got_dtype(kind: str, dtype: DType) -> DType:
    return i64 if kind.startswith("arg") else dtype


def check_empty_reductions(on: Device) -> None:
    kinds = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf, "any": False, "all": True}
    outs, body = [], []
    for k, kind in enumerate(kinds):
        d = bool_ if kind in ("any", "all") else f32
        value = Reduce(kind, (Axis("k", sym("n")),), Load(f"x{d}", (sym("k"),), d), d)  # type: ignore[arg-type]
        outs.append(Buffer(f"y{k}", d, ()))
        body.append(Store(f"y{k}", (), value))
    ins = (Buffer("xf32", f32, (sym("n"),)), Buffer("xbool", bool_, (sym("n"),)))
    kernel = Kernel("k", (DimParam("n"),), ins, tuple(outs), tuple(body))
    got = on(kernel)([np.zeros(0, np.float32), np.zeros(0, np.bool_)], {"n": 0})
    assert [g[()] for g in got] == list(kinds.values())
