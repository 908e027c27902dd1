"""Functions of libm for CUDA, run on this machine, against 40 digits: within 2 ulp, ends as C has them."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import mpmath
import numpy as np
import pytest

from smelt.targets.cuda.libm import LIBM, definition
from smelt.targets.llvm.compile import parse, target_machine
from smelt.targets.llvm.machines import host

MOST_ULP = 2.0
REFERENCE: dict[str, Callable[..., Any]] = {
    "exp": mpmath.exp, "expm1": mpmath.expm1, "log": mpmath.log, "log1p": mpmath.log1p, "pow": mpmath.power,
    "sinh": mpmath.sinh, "cosh": mpmath.cosh, "tanh": mpmath.tanh, "asinh": mpmath.asinh,
    "acosh": mpmath.acosh,
    "atanh": mpmath.atanh, "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "asin": mpmath.asin,
    "acos": mpmath.acos, "atan": mpmath.atan, "erf": mpmath.erf,
}  # fmt: skip
RANGES = {"exp": 745.0, "expm1": 700.0, "sinh": 710.0, "cosh": 710.0, "tanh": 30.0, "asin": 1.0, "acos": 1.0,
          "atanh": 1.0, "erf": 7.0}  # fmt: skip


@functools.cache
def engine() -> Any:
    """All functions, compiled for this machine."""
    declared: dict[str, str] = {}
    for name in LIBM:
        declared[f"smelt.{name}"] = ""
        declared[f"smelt.{name}"] = definition(name, declared)
    text = "\n".join(declared.values()).replace("define internal", "define")
    text = f'target triple = "{llvm.get_process_triple()}"\n' + text
    made = llvm.create_mcjit_compiler(parse(text), target_machine(host(), within=True))
    made.finalize_object()
    return made


def function(name: str) -> Callable[..., float]:
    kind = ctypes.c_float if name.endswith("f") and name != "erf" else ctypes.c_double
    arguments = LIBM[name][1]
    return ctypes.CFUNCTYPE(kind, *[kind] * arguments)(engine().get_function_address(f"smelt.{name}"))


def points(name: str) -> list[float]:
    """Values of all sizes, around 0 and 1, and where a function changes its formula."""
    rng = np.random.default_rng(len(name))
    many = np.concatenate([
        rng.uniform(-1, 1, 150) * RANGES.get(name, 20.0),
        rng.uniform(-1, 1, 60), rng.uniform(-1, 1, 40) * 1e-5,
        2.0 ** rng.uniform(-1070, 1023, 80) * rng.choice([-1, 1], 80),
        np.ldexp(1.0, [-1074, -1022, -54, -27, 27, 28, 53, 500, 1023]),
        math.pi / 4 * np.arange(-40, 40), 1 + rng.uniform(-1, 1, 40) * 1e-3,
        [0.5, 1.0, -1.0, 6381956970095103 * 2.0**797, math.sqrt(0.5), math.log(2) / 2, 2.0**19],
    ])  # fmt: skip
    return [float(x) for x in many]


def defined(name: str, x: float) -> bool:
    if name in ("asin", "acos", "atanh"):
        return abs(x) < 1 or (abs(x) == 1 and name != "atanh")
    return x > {"log": 0, "acosh": 1, "log1p": -1}.get(name, -math.inf)


def ulps(got: float, want: Any) -> float:
    """The distance in units of the last place of what is right, as a double."""
    rounded = float(want)
    if math.isinf(rounded) or math.isinf(got):
        return 0.0 if rounded == got else math.inf
    return float(abs(mpmath.mpf(got) - want) / mpmath.mpf(math.ulp(rounded)))


@pytest.mark.parametrize("name", sorted(set(REFERENCE) - {"pow"}))
def test_within_two_ulp(name: str) -> None:
    ours = function(name)
    with mpmath.workprec(1400):
        rows = [(ulps(ours(x), REFERENCE[name](mpmath.mpf(x))), x)
                for x in points(name) if defined(name, x)]  # fmt: skip
    assert len(rows) > 100 and max(rows)[0] <= MOST_ULP, max(rows)


def test_powers_within_two_ulp() -> None:
    ours, rng = function("pow"), np.random.default_rng(0)
    pairs = [(float(a), float(b)) for a, b in zip(10 ** rng.uniform(-5, 5, 300), rng.uniform(-60, 60, 300))]
    near_one, large = rng.uniform(-1, 1, 100) * 1e-6, rng.uniform(-1, 1, 100) * 1e8
    pairs += [(1 + float(e), float(n)) for e, n in zip(near_one, large)]
    pairs += [(float(a), float(b)) for a, b in zip(-rng.uniform(0, 9, 99), rng.integers(-9, 9, 99))]
    pairs += [(2.0, float(n)) for n in (-1074, -1022, -1, 3, 1023)] + [(5e-324, 0.5), (1.7e308, 0.99)]
    with mpmath.workprec(200):
        rows = [(ulps(ours(a, b), mpmath.power(a, b)), a, b) for a, b in pairs]
    assert max(rows)[0] <= MOST_ULP, max(rows)


def same(got: float, want: float) -> bool:
    if math.isnan(want):
        return math.isnan(got)
    return (got, math.copysign(1, got)) == (want, math.copysign(1, want))


NAN, INF = math.nan, math.inf
ENDS = {
    "exp": {INF: INF, -INF: 0.0, 0.0: 1.0, 1000.0: INF, -1000.0: 0.0},
    "expm1": {INF: INF, -INF: -1.0, -0.0: -0.0},
    "log": {0.0: -INF, INF: INF, -1.0: NAN, 1.0: 0.0, -INF: NAN},
    "log1p": {-1.0: -INF, INF: INF, -2.0: NAN, -0.0: -0.0},
    "sinh": {INF: INF, -INF: -INF, -0.0: -0.0},
    "cosh": {INF: INF, -INF: INF, 0.0: 1.0},
    "tanh": {INF: 1.0, -INF: -1.0, -0.0: -0.0},
    "asinh": {INF: INF, -INF: -INF, -0.0: -0.0},
    "acosh": {INF: INF, 1.0: 0.0, 0.5: NAN, -INF: NAN},
    "atanh": {1.0: INF, -1.0: -INF, 2.0: NAN, -0.0: -0.0},
    "sin": {INF: NAN, -0.0: -0.0}, "cos": {INF: NAN, 0.0: 1.0}, "tan": {-INF: NAN, -0.0: -0.0},
    "asin": {2.0: NAN, -0.0: -0.0}, "acos": {2.0: NAN, 1.0: 0.0, -1.0: math.pi},
    "atan": {INF: math.pi / 2, -INF: -math.pi / 2, -0.0: -0.0},
    "erf": {INF: 1.0, -INF: -1.0, -0.0: -0.0},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ENDS))
def test_ends(name: str) -> None:
    for suffix in ("", "f"):
        ours = function(name + suffix)
        assert math.isnan(ours(NAN))
        for x, want in ENDS[name].items():
            got = ours(x)
            assert same(got, float(np.float32(want)) if suffix else want), (x, got, want)


def test_ends_of_powers_are_libms() -> None:
    ours, libm = function("pow"), ctypes.CDLL("libm.so.6")
    libm.pow.restype, libm.pow.argtypes = ctypes.c_double, [ctypes.c_double] * 2
    some = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, INF, -INF, NAN, 1e300, -1e300, 2e16)
    for x in some:
        for y in some:
            got, want = ours(x, y), libm.pow(x, y)
            close = math.isfinite(want) and want and abs(got - want) <= math.ulp(want)
            assert close or same(got, want), (x, y, got, want)


def test_remainders_are_exact() -> None:
    ours, rng = function("fmod"), np.random.default_rng(1)
    some = [float(x) for x in 2.0 ** rng.uniform(-1074, 1023, 60) * rng.choice([-1, 1], 60)]
    some += [0.0, -0.0, 1.0, -3.5, 5e-324, INF, -INF, NAN, 1.7e308, 2.5]
    for x in some:
        for y in some:
            with np.errstate(all="ignore"):
                want = float(np.fmod(np.float64(x), np.float64(y)))
            assert same(ours(x, y), want), (x, y, ours(x, y), want)


@pytest.mark.parametrize("name", sorted({*REFERENCE, "fmod"}))
def test_floats_are_rounded_once(name: str) -> None:
    """NAMEf is NAME of the same numbers as doubles, rounded."""
    ours, wide = function(name + "f"), function(name)
    with np.errstate(over="ignore"):
        values = np.array(points(name)[:300], np.float32)
    pairs = [(float(v), float(w)) for v, w in zip(values, values[::-1])]
    for pair in pairs:
        given = pair[: LIBM[name][1]]
        with np.errstate(all="ignore"):
            want = float(np.float32(wide(*given)))
        assert same(ours(*given), want), given
