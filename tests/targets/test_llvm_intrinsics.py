"""Every intrinsic on every dtype it takes, scalar and vector, at edge values, against its NumPy meaning."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from native_cpus import CPUS

from smelt.core.dim import sym, to_dim
from smelt.core.dtype import DTYPES, DType, bf16, bool_, f16, f32, f64, i32, i64
from smelt.core.ir.interp_kernel import cast_array
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import (
    Axis,
    Buffer,
    Call,
    DimParam,
    Expr,
    Kernel,
    Load,
    Loop,
    Reduce,
    Store,
    Tiles,
)
from smelt.targets.llvm.jit import jit
from smelt.targets.llvm.machines import Cpu

FLOATS = (f64, f32, f16, bf16)
INTS = tuple(d for d in DTYPES.values() if d.is_int)
BITS = (*INTS, bool_)
ANY = (*FLOATS, *INTS, bool_)
TRANSCENDENTAL = (
    "exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan",
    "asinh", "acosh", "atanh", "erf",
)  # fmt: skip
BY_FN: dict[str, tuple[DType, ...]] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "mod", "fmod", "neg", "abs", "sign"), FLOATS + INTS),
    **dict.fromkeys(("min", "max", "eq", "ne", "lt", "le", "gt", "ge"), ANY),
    **dict.fromkeys(("and", "or", "xor", "not"), BITS),
    **dict.fromkeys(("shl", "shr"), tuple(d for d in INTS if d.category == "uint")),
    "fma": FLOATS,
    "pow": (f64, f32, i32, i64),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "isnan", "isinf"), FLOATS),
    **dict.fromkeys(TRANSCENDENTAL, FLOATS),
}
CASES = [(fn, d) for fn, dtypes in BY_FN.items() for d in dtypes]


def vector_kernel(inputs: list[DType], result: DType, value: Expr) -> Kernel:
    """y[i] = value over i in n: vectors with scalar tails; i is `at + lane`."""
    n, at = sym("n"), sym("at")
    index = (at + sym("lane"),)
    loop = Loop("vector", "lane", sym("rows"), (Store("y", index, value),))
    tree = Tiles("group", "at", "rows", n, (32, 8, 1), "greedy", (loop,))
    buffers = tuple(Buffer(f"x{i}", d, (n,)) for i, d in enumerate(inputs))
    return Kernel("k", (DimParam("n"),), buffers, (Buffer("y", result, (n,)),), (tree,))


def operand(i: int, dtype: DType) -> Load:
    return Load(f"x{i}", (sym("at") + sym("lane"),), dtype)


def edges(dtype: DType) -> list[Any]:
    if dtype == bool_:
        return [False, True]
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        return sorted({info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 100, 5, 63} | (
            {-1, -2, -7, -100} if dtype.category == "int" else set()
        ))
    big = {64: 1e300, 32: 3e38, 16: 6e4}[dtype.bits]
    small = {64: 1e-310, 32: 1e-40, 16: 6e-5}[dtype.bits]
    return [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.3, -0.7, 3.7, 10.0, -20.0, 88.5, -100.0,
            big, -big, small, -small, np.inf, -np.inf, np.nan, 0.62, 0.99, -0.99, 1e-5, 4.2]


def operands(arity: int, dtype: DType) -> list[np.ndarray[Any, Any]]:
    rows = list(itertools.product(edges(dtype), repeat=arity)) if arity < 3 else [
        (a, b, 1) for a, b in itertools.product(edges(dtype), repeat=2)
    ]
    return [np.array([r[k] for r in rows], dtype.numpy) for k in range(arity)]


def same(got: Any, want: Any, rtol: float, dtype: DType) -> None:
    got, want = np.asarray(got), np.asarray(want)
    if not dtype.is_float:
        np.testing.assert_array_equal(got, want)
        return
    g, w = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
    np.testing.assert_array_equal(np.isinf(g), np.isinf(w))
    tiny = {f64: 5e-324, f32: 2e-45, f16: 6e-8, bf16: 1e-40}[dtype]
    ok = np.isfinite(w)
    np.testing.assert_allclose(g[ok], w[ok], rtol=rtol, atol=tiny)


RTOL = {f64: 4e-16, f32: 5e-7, f16: 1e-3, bf16: 8e-3}


@pytest.mark.parametrize(("fn", "dtype"), CASES, ids=[f"{f}-{d}" for f, d in CASES])
def test_intrinsic(fn: str, dtype: DType) -> None:
    row = INTRINSICS[fn]
    args = operands(row.arity, dtype)
    if fn == "pow" and dtype.is_int:
        args = [a[args[1] >= 0] for a in args]  # NumPy refuses negative exponents
    result = bool_ if row.result == "bool" else dtype
    value = Call(fn, tuple(operand(i, dtype) for i in range(row.arity)), result)
    (got,) = jit(vector_kernel([dtype] * row.arity, result, value))(args, {"n": len(args[0])})
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float32) for a in args] if dtype.bits == 16 and dtype.is_float else args
        if fn == "fma":
            wide = [a.astype(np.longdouble) for a in args]  # the product is not rounded
        want = np.asarray(row.meaning(*wide))
        if result.is_float:
            want = want.astype(result.numpy)
    exact = fn in ("min", "max", "neg", "abs", "floor", "ceil", "round", "trunc", "sign")
    same(got, want, 0 if exact else RTOL.get(dtype, 0), result)


@pytest.mark.parametrize("source", ANY, ids=str)
@pytest.mark.parametrize("target", ANY, ids=str)
def test_cast(source: DType, target: DType) -> None:
    (x,) = operands(1, source)
    value = Call("cast", (operand(0, source),), target)
    (got,) = jit(vector_kernel([source], target, value))([x], {"n": len(x)})
    with np.errstate(all="ignore"):
        want = cast_array(x, target)
    # f64 -> 16 bits goes through f32, and may round twice
    same(got, want, 1e-3 if source == f64 and target.bits == 16 else 0, target)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", [f32, f64, f16, i32, i64], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_reduction(kind: str, dtype: DType, last: bool) -> None:
    result = i64 if kind.startswith("arg") else dtype
    n, m = sym("n"), sym("m")
    value = Reduce(kind, (Axis("k", n),), Load("x", (sym("i"), sym("k")), dtype), result, last)  # type: ignore[arg-type]
    tree = Loop("group", "i", m, (Store("y", (sym("i"),), value),))
    kernel = Kernel("k", (DimParam("m"), DimParam("n")), (Buffer("x", dtype, (m, n)),),
                    (Buffer("y", result, (m,)),), (tree,))  # fmt: skip
    rng = np.random.default_rng(3)
    x = rng.integers(-3, 4, (9, 7)).astype(dtype.numpy)
    if dtype.is_float:
        x[3, 2] = np.nan
        x[3, 5] = np.nan
        x[4, :] = -np.inf if kind == "argmax" else np.inf
    (got,) = jit(kernel)([x], {"m": 9, "n": 7})
    if kind.startswith("arg"):
        fn = getattr(np, kind)
        want = 6 - fn(x[:, ::-1], axis=1) if last else fn(x, axis=1)
    else:
        fn = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
        with np.errstate(all="ignore"):
            want = fn.reduce(x.astype(np.float32) if dtype == f16 else x, axis=1).astype(dtype.numpy)
    same(got, want, RTOL.get(dtype, 0), result)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "any", "all"])
def test_empty_reduction(kind: str) -> None:
    dtype = bool_ if kind in ("any", "all") else f32
    value = Reduce(kind, (Axis("k", sym("n")),), Load("x", (sym("k"),), dtype), dtype)  # type: ignore[arg-type]
    kernel = Kernel("k", (DimParam("n"),), (Buffer("x", dtype, (sym("n"),)),),
                    (Buffer("y", dtype, ()),), (Store("y", (), value),))  # fmt: skip
    (got,) = jit(kernel)([np.zeros(0, dtype.numpy)], {"n": 0})
    want = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf, "any": False, "all": True}[kind]
    assert got[()] == want


ACCURACY = {  # function -> (low, high, bound of |error| / max(|value|, floor), floor)
    "exp": (-87.0, 88.0, 1.5e-7, 0.0),
    "log": (1e-30, 1e30, 1.5e-7, 0.0),
    "tanh": (-9.0, 9.0, 3e-7, 0.0),
    "erf": (-4.0, 4.0, 3.3e-7, 0.0),
    "sin": (-1000.0, 1000.0, 1.5e-7, 1e-3),
    "cos": (-1000.0, 1000.0, 1.5e-7, 1e-3),
}


@pytest.mark.parametrize("fn", sorted(ACCURACY))
def test_accuracy(fn: str) -> None:
    low, high, bound, floor = ACCURACY[fn]
    rng = np.random.default_rng(1)
    x = rng.uniform(low, high, 40000)
    if low > 0:
        x = np.exp(rng.uniform(np.log(low), np.log(high), 40000))
    x = np.concatenate([x, rng.normal(0, 0.1, 5000) if low < 0 else rng.normal(1, 0.01, 5000)])
    x = x.astype(np.float32)
    (got,) = jit(vector_kernel([f32], f32, Call(fn, (operand(0, f32),), f32)))([x], {"n": len(x)})
    if fn == "erf":
        import math

        want = np.array([math.erf(v) for v in x.astype(np.float64)])
    else:
        want = getattr(np, fn)(x.astype(np.float64))
    error = np.abs(got - want) / np.maximum(np.abs(want), floor)
    worst = int(np.nanargmax(error))
    assert error[worst] <= bound, (x[worst], got[worst], want[worst], error[worst])


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, -1.0, 0.5, 1.7])
def test_constant_power(exponent: float) -> None:
    from smelt.core.ir.kernel import Const

    (x,) = operands(1, f32)
    value = Call("pow", (operand(0, f32), Const(exponent, f32)), f32)
    (got,) = jit(vector_kernel([f32], f32, value))([x], {"n": len(x)})
    with np.errstate(all="ignore"):
        same(got, np.power(x, np.full_like(x, exponent)), 5e-7, f32)


def test_empty_and_odd_lengths() -> None:
    kernel = jit(vector_kernel([f32], f32, Call("neg", (operand(0, f32),), f32)))
    for n in (0, 1, 7, 8, 31, 32, 33, 64, 95, 101):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(kernel([x], {"n": n})[0], -x)
    assert to_dim(0).const == 0


VECTOR_FNS = ("exp", "log", "tanh", "erf", "sin", "cos", "sqrt", "floor", "ceil", "round", "trunc")


@pytest.mark.parametrize("cpu", CPUS, ids=[c.cpu for c in CPUS])
@pytest.mark.parametrize("fn", VECTOR_FNS)
def test_vectors_on_each_level(fn: str, cpu: Cpu) -> None:
    """The same edges and a sweep through the code of every instruction set that runs here."""
    x = np.concatenate([operands(1, f32)[0], np.linspace(-9, 9, 997, dtype=np.float32)])
    (got,) = jit(vector_kernel([f32], f32, Call(fn, (operand(0, f32),), f32)), cpu)([x], {"n": len(x)})
    with np.errstate(all="ignore"):
        want = np.asarray(INTRINSICS[fn].meaning(x.astype(np.float64))).astype(np.float32)
    same(got, want, 0 if fn in ("floor", "ceil", "round", "trunc") else 5e-7, f32)
