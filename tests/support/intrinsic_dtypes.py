"""The dtypes that each intrinsic is tested on, and those whose results are exact."""

from __future__ import annotations

from smelt.core.dtype import DTYPES, DType, bf16, bool_, f16, f32, f64, i32, i64

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
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "isnan", "isinf", "saturate"), FLOATS),
    **dict.fromkeys(TRANSCENDENTAL, FLOATS),
}
EXACT = ("min", "max", "neg", "abs", "floor", "ceil", "round", "trunc", "sign", "saturate")
