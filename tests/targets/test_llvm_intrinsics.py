"""Every intrinsic on every dtype it takes, scalar and vector, at edge values, against its NumPy meaning."""

from __future__ import annotations

import numpy as np
import pytest
from intrinsic_dtypes import ANY, EXACT
from intrinsic_kernels import (
    CASES,
    RTOL,
    applied,
    meaning,
    operand,
    operands,
    same,
    vector_kernel,
)
from native_cpus import CPUS

from smelt.core.dim import sym
from smelt.core.dtype import DType, bool_, f16, f32, f64, i32, i64
from smelt.core.ir.interp_kernel import cast_array
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import (
    Axis,
    Buffer,
    Call,
    Const,
    DimParam,
    Kernel,
    Load,
    Loop,
    Reduce,
    Store,
)
from smelt.targets.llvm.jit import jit
from smelt.targets.llvm.machines import Cpu


@pytest.mark.parametrize(("fn", "dtype"), CASES, ids=[f"{f}-{d}" for f, d in CASES])
def test_intrinsic(fn: str, dtype: DType) -> None:
    row = INTRINSICS[fn]
    args = operands(row.arity, dtype)
    if fn == "pow" and dtype.is_int:
        args = [a[args[1] >= 0] for a in args]  # NumPy refuses negative exponents
    output = applied(fn, dtype)
    result = output[1]
    (got,) = jit(vector_kernel([dtype] * row.arity, [output]))(args, {"n": len(args[0])})
    want = meaning(fn, dtype, args)
    same(got, want, 0 if fn in EXACT else RTOL.get(dtype, 0), result)


@pytest.mark.table(3)  # test_llvm_cross has all pairs, on three processors
@pytest.mark.parametrize("source", ANY, ids=str)
@pytest.mark.parametrize("target", ANY, ids=str)
def test_cast(source: DType, target: DType) -> None:
    (x,) = operands(1, source)
    value = Call("cast", (operand(0, source),), target)
    (got,) = jit(vector_kernel([source], [("y", target, value)]))([x], {"n": len(x)})
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
    "erf": (-4.0, 4.0, 3.6e-7, 0.0),
    "sin": (-1000.0, 1000.0, 1.5e-7, 1e-3),
    "cos": (-1000.0, 1000.0, 1.5e-7, 1e-3),
    "atan": (-30.0, 30.0, 1.8e-7, 0.0),
    "asin": (-1.0, 1.0, 1.8e-7, 0.0),
    "acos": (-1.0, 1.0, 1.8e-7, 1e-3),
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
    (got,) = jit(vector_kernel([f32], [applied(fn, f32)]))([x], {"n": len(x)})
    if fn == "erf":
        import math

        want = np.array([math.erf(v) for v in x.astype(np.float64)])
    else:
        want = np.asarray(INTRINSICS[fn].meaning(x.astype(np.float64)))
    error = np.abs(got - want) / np.maximum(np.abs(want), floor)
    worst = int(np.nanargmax(error))
    assert error[worst] <= bound, (x[worst], got[worst], want[worst], error[worst])


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, -1.0, 0.5, 1.7])
def test_constant_power(exponent: float) -> None:
    (x,) = operands(1, f32)
    value = Call("pow", (operand(0, f32), Const(exponent, f32)), f32)
    (got,) = jit(vector_kernel([f32], [("y", f32, value)]))([x], {"n": len(x)})
    with np.errstate(all="ignore"):
        same(got, np.power(x, np.full_like(x, exponent)), 5e-7, f32)


def test_empty_and_odd_lengths() -> None:
    kernel = jit(vector_kernel([f32], [applied("neg", f32)]))
    for n in (0, 1, 7, 8, 31, 32, 33, 64, 95, 101):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(kernel([x], {"n": n})[0], -x)


VECTOR_FNS = (
    "exp", "log", "tanh", "erf", "sin", "cos", "asin", "acos", "atan", "sqrt", "floor", "ceil", "round",
    "trunc",
)  # fmt: skip


@pytest.mark.parametrize("cpu", CPUS, ids=[c.cpu for c in CPUS])
def test_powers_on_each_level(cpu: Cpu) -> None:
    """Powers to the last bit but one: all over what floats hold, near 1 to large exponents, of negative bases
    to whole ones, and where vectors hold squares alone; and all pairs of edges."""
    rng = np.random.default_rng(2)
    far = np.exp(rng.uniform(-80, 80, 20000)), rng.uniform(-1, 1, 20000)
    near = 1 + rng.normal(0, 1e-3, 10000), rng.uniform(-3e4, 3e4, 10000)
    whole = rng.uniform(-30, 30, 10000), rng.integers(-20, 20, 10000)
    squares = rng.uniform(-30, 30, 320), np.full(320, 2.0)
    edges = operands(2, f32)
    a, b = (
        np.concatenate([far[k], near[k], whole[k], squares[k], edges[k]]).astype(np.float32) for k in (0, 1)
    )
    (got,) = jit(vector_kernel([f32, f32], [applied("pow", f32)]), cpu)([a, b], {"n": len(a)})
    with np.errstate(all="ignore"):
        want = np.power(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    same(got, want, 1.2e-7, f32)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


@pytest.mark.table(2)
@pytest.mark.parametrize("cpu", CPUS, ids=[c.cpu for c in CPUS])
@pytest.mark.parametrize("fn", VECTOR_FNS)
def test_vectors_on_each_level(fn: str, cpu: Cpu) -> None:
    """The same edges and a sweep through the code of every instruction set that runs here."""
    x = np.concatenate([operands(1, f32)[0], np.linspace(-9, 9, 997, dtype=np.float32)])
    (got,) = jit(vector_kernel([f32], [applied(fn, f32)]), cpu)([x], {"n": len(x)})
    with np.errstate(all="ignore"):
        want = np.asarray(INTRINSICS[fn].meaning(x.astype(np.float64))).astype(np.float32)
    same(got, want, 0 if fn in ("floor", "ceil", "round", "trunc") else 5e-7, f32)
