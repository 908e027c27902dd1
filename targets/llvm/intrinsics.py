"""An intrinsic of the kernel IR and values in, the code for it out: one table over arithmetic and libm."""

from __future__ import annotations

from smelt.core.dtype import DType
from smelt.targets.llvm.builder import Value
from smelt.targets.llvm.math import TRANSCENDENTAL
from smelt.targets.llvm.powers import power
from smelt.targets.llvm.scalar import TABLE, Emit, Scalars


def _pow(s: Scalars, kind: DType, a: Value, b: Value) -> Value:
    return power(s, a, b) if kind.is_float else s.int_power(kind, a, b)


def _unary(fn: str) -> Emit:
    return lambda s, kind, a: TRANSCENDENTAL[fn](s, a)


INTRINSIC: dict[str, Emit] = {**TABLE, "pow": _pow, **{fn: _unary(fn) for fn in TRANSCENDENTAL}}
"""Every intrinsic but select, cast and bitcast, whose types are not their arguments'."""


def emit(s: Scalars, fn: str, args: tuple[Value, ...], kind: DType) -> Value:
    """Intrinsic fn on scalars or vectors of equal lanes whose (first) dtype is `kind`."""
    return INTRINSIC[fn](s, kind, *args)
