"""Intrinsics of the closed set on C operands in, C expressions with exactly their NumPy meaning out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from smelt.core.dtype import DTYPES, DType, bf16, bool_, f16, f32, f64
from smelt.targets.opencl.helpers import Helpers, unsigned_type, value_type
from smelt.targets.opencl.index import long_literal


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant of the dtype, rounded to it."""
    if dtype == bool_:
        return str(int(bool(value)))
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return _float_literal(float(dtype.numpy.type(value)), dtype)
    n = int(value)
    if dtype.category == "uint":
        return f"{n}{'UL' if dtype.bits == 64 else 'U'}"
    if dtype.bits == 64:
        return long_literal(n)
    if n == -(1 << 31):
        return "(-2147483647 - 1)"
    return str(n) if n >= 0 else f"({n})"


def _float_literal(v: float, dtype: DType) -> str:
    kind = value_type(dtype)
    if math.isnan(v):
        return f"(({kind})NAN)"
    if math.isinf(v):
        return f"(({kind}){'-' if v < 0 else ''}INFINITY)"
    suffix = "" if dtype == f64 else "f"
    text = repr(v) + suffix if v == int(v) and abs(v) < 1e6 else v.hex() + suffix
    return text if math.copysign(1.0, v) > 0 else f"({text})"


Emit: TypeAlias = Callable[..., str]
"""(helpers, dtype of the operands, *operands) -> C expression, safe inside any other."""


def intrinsic(helpers: Helpers, fn: str, kind: DType, *args: str) -> str:
    """fn on operands of `kind`; neither cast nor bitcast nor select, which know more than one dtype."""
    return TABLE[fn](helpers, kind, *args)


# ---------------------------------------------------------------- conversions


def cast(helpers: Helpers, v: str, source: DType, target: DType) -> str:
    """ONNX's Cast: to bool is != 0, float to integer truncates (saturating, NaN is 0), integers wrap."""
    if source == target:
        return v
    if target == bool_:
        return f"({v} != 0)"
    if target.is_float:
        wide = v if value_type(source) == value_type(target) else f"(({value_type(target)}){v})"
        return _rounded_to(helpers, wide, target)
    if source.is_float:
        width = f64 if source == f64 else f32
        return f"{helpers.use(f'from_{width.name}', target)}({v})"
    return f"(({value_type(target)}){v})"


def _rounded_to(helpers: Helpers, v: str, target: DType) -> str:
    """A float with the precision of the target, for an explicit cast to 16 bits."""
    if target.bits != 16:
        return v
    return from_bits(helpers, to_bits(helpers, v, target), target)


def to_bits(helpers: Helpers, v: str, source: DType) -> str:
    """The 16 bits of a float that is f16 or bf16."""
    return f"{helpers.use(f'{source.name}_bits')}({v})"


def from_bits(helpers: Helpers, v: str, target: DType) -> str:
    """The float of 16 bits."""
    return f"{helpers.use(f'{target.name}_value')}({v})"


def bitcast(helpers: Helpers, v: str, source: DType, target: DType) -> str:
    """The same bits as another dtype of the same width."""
    if source == bool_ or target == bool_:
        return cast(helpers, v, source, target)
    if source in (f16, bf16):
        bits = to_bits(helpers, v, source)
        source = DTYPES["u16"]
        return bits if source == target else bitcast(helpers, bits, source, target)
    if target in (f16, bf16):
        return from_bits(helpers, f"(ushort){v}", target)
    return f"as_{value_type(target)}(({value_type(source)}){v})"


# ---------------------------------------------------------------- the table


def _wrapping(operator: str) -> Emit:
    """Float arithmetic, or integer arithmetic that wraps: in unsigned numbers at least as wide as int."""

    def emit(h: Helpers, kind: DType, a: str, b: str) -> str:
        if kind.is_float:
            return f"({a} {operator} {b})"
        wide = unsigned_type(DTYPES[f"u{max(kind.bits, 32)}"])
        return f"(({value_type(kind)})(({wide}){a} {operator} ({wide}){b}))"

    return emit


def _infix(operator: str) -> Emit:
    return lambda h, kind, a, b: f"({a} {operator} {b})"


def _bits(operator: str) -> Emit:
    return lambda h, kind, a, b: (
        f"({a} {operator} {b})" if kind == bool_ else f"(({value_type(kind)})({a} {operator} {b}))"
    )


def _builtin(name: str) -> Emit:
    return lambda h, kind, *args: f"{name}({', '.join(args)})"


def _rounding(name: str) -> Emit:
    return lambda h, kind, a: f"{name}({a})" if kind.is_float else a


def _typed(name: str, *, floats: str = "helper") -> Emit:
    """A helper per category; floats: 'helper', or the expression for floats."""

    def emit(h: Helpers, kind: DType, *args: str) -> str:
        if kind.is_float and floats != "helper":
            return floats.format(*args)
        return f"{h.use(f'{name}_{kind.category}', kind)}({', '.join(args)})"

    return emit


def _extreme(name: str, logic: str) -> Emit:
    def emit(h: Helpers, kind: DType, a: str, b: str) -> str:
        if kind == bool_:
            return f"({a} {logic} {b})"
        category = "float" if kind.is_float else "int"
        return f"{h.use(f'{name}_{category}', kind)}({a}, {b})"

    return emit


def _neg(h: Helpers, kind: DType, a: str) -> str:
    return f"(-{a})" if kind.is_float else _wrapping("-")(h, kind, "0", a)


def _abs(h: Helpers, kind: DType, a: str) -> str:
    if kind.is_float:
        return f"fabs({a})"
    return a if kind.category != "int" else f"{h.use('abs_int', kind)}({a})"


def _isinf(h: Helpers, kind: DType, a: str) -> str:
    if not kind.is_float:
        return "0"
    # values of f16 have more range than that until they are stored
    limit = ">= 65520.0f" if kind == f16 else "== INFINITY"
    return f"(fabs({a}) {limit})"


def _not(h: Helpers, kind: DType, a: str) -> str:
    return f"(!{a})" if kind == bool_ else f"(({value_type(kind)})~{a})"


def _shift(name: str) -> Emit:
    return lambda h, kind, a, b: f"{h.use(name, kind)}({a}, {b})"


_MATH = (
    "exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan",
    "asinh", "acosh", "atanh", "erf",
)  # fmt: skip


TABLE: Mapping[str, Emit] = {
    "add": _wrapping("+"),
    "sub": _wrapping("-"),
    "mul": _wrapping("*"),
    "div": _typed("div", floats="({0} / {1})"),
    "mod": _typed("mod"),
    "fmod": _typed("fmod", floats="fmod({0}, {1})"),
    "fma": lambda h, kind, a, b, c: f"fma({a}, {b}, {c})",
    "min": _extreme("min", "&"),
    "max": _extreme("max", "|"),
    "neg": _neg,
    "abs": _abs,
    "pow": _typed("pow", floats="pow({0}, {1})"),
    **{name: _builtin(name) for name in _MATH},
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "round": _rounding("rint"),
    "trunc": _rounding("trunc"),
    "sign": _typed("sign"),
    "saturate": lambda h, kind, a: f"{h.use('saturate', kind)}({a})",
    "eq": _infix("=="),
    "ne": _infix("!="),
    "lt": _infix("<"),
    "le": _infix("<="),
    "gt": _infix(">"),
    "ge": _infix(">="),
    "isnan": lambda h, kind, a: f"({a} != {a})" if kind.is_float else "0",
    "isinf": _isinf,
    "and": _bits("&"),
    "or": _bits("|"),
    "xor": _bits("^"),
    "not": _not,
    "shl": _shift("shl"),
    "shr": _shift("shr"),
}
"""One row per intrinsic; cast, bitcast and select are functions above."""
