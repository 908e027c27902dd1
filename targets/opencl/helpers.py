"""Names of small OpenCL C functions in, their definitions out: only those that a program uses, each once."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.core.dtype import DTYPES, DType

_C_TYPES = {
    "f64": "double", "f32": "float", "f16": "float", "bf16": "float", "bool": "bool",
    "i64": "long", "i32": "int", "i16": "short", "i8": "char",
    "u64": "ulong", "u32": "uint", "u16": "ushort", "u8": "uchar",
}  # fmt: skip
_STORAGE = {"f16": "half", "bf16": "ushort", "bool": "uchar"}


def value_type(d: DType) -> str:
    """The C type that values of d are computed in; floats of 16 bits in float."""
    return "uchar" if d.coded else _C_TYPES[d.name]


def storage_type(d: DType) -> str:
    """The C type of an element in global memory."""
    return _STORAGE.get(d.name, value_type(d))


def unsigned_type(d: DType) -> str:
    """The unsigned C type of an integer's width."""
    return _C_TYPES[f"u{d.bits}"]


# Texts per dtype. {T} value type, {U} unsigned type of the width, {n} the function's name, {bits} width.
_TYPED: Mapping[str, str] = {
    # NaN in, NaN out: a < b is false where b is NaN
    "min_float": "{T} {n}({T} a, {T} b) {{ return a < b || a != a ? a : b; }}",
    "max_float": "{T} {n}({T} a, {T} b) {{ return a > b || a != a ? a : b; }}",
    "min_int": "{T} {n}({T} a, {T} b) {{ return a < b ? a : b; }}",
    "max_int": "{T} {n}({T} a, {T} b) {{ return a > b ? a : b; }}",
    "sign_float": "{T} {n}({T} a) {{ return a > 0 ? ({T})1 : a < 0 ? ({T})-1 : a != a ? a : ({T})0; }}",
    "sign_int": "{T} {n}({T} a) {{ return ({T})((a > 0) - (a < 0)); }}",
    "sign_uint": "{T} {n}({T} a) {{ return ({T})(a > 0); }}",
    "abs_int": "{T} {n}({T} a) {{ return a < 0 ? ({T})(({U})0 - ({U})a) : a; }}",
    # x / 0 is 0; the lowest value by -1 wraps instead of trapping
    "div_int": "{T} {n}({T} a, {T} b) {{\n"
    "  return b == 0 ? ({T})0 : b == -1 ? ({T})(({U})0 - ({U})a) : ({T})(a / b);\n}}",
    "div_uint": "{T} {n}({T} a, {T} b) {{ return b == 0 ? ({T})0 : ({T})(a / b); }}",
    "fmod_int": "{T} {n}({T} a, {T} b) {{ return b == 0 || b == -1 ? ({T})0 : ({T})(a % b); }}",
    "fmod_uint": "{T} {n}({T} a, {T} b) {{ return b == 0 ? ({T})0 : ({T})(a % b); }}",
    # the sign of the divisor
    "mod_int": "{T} {n}({T} a, {T} b) {{\n"
    "  const {T} r = b == 0 || b == -1 ? ({T})0 : ({T})(a % b);\n"
    "  return r != 0 && (r ^ b) < 0 ? ({T})(r + b) : r;\n}}",
    "mod_uint": "{T} {n}({T} a, {T} b) {{ return b == 0 ? ({T})0 : ({T})(a % b); }}",
    "mod_float": "{T} {n}({T} a, {T} b) {{\n"
    "  const {T} r = fmod(a, b);\n"
    "  return r == 0 ? copysign(({T})0, b) : (r < 0) != (b < 0) ? r + b : r;\n}}",
    "shl": "{T} {n}({T} a, {T} b) {{ return ({U})b >= {bits} ? ({T})0 : ({T})(({U})a << ({U})b); }}",
    "shr": "{T} {n}({T} a, {T} b) {{ return ({U})b >= {bits} ? ({T})0 : ({T})(a >> ({U})b); }}",
    # by squaring; a negative exponent leaves only the powers of 1 and -1
    "pow_uint": "{T} {n}({T} a, {T} b) {{\n"
    "  {W} r = 1, x = a;\n  for (; b; b >>= 1, x *= x) if (b & 1) r *= x;\n  return ({T})r;\n}}",
    "pow_int": "{T} {n}({T} a, {T} b) {{\n"
    "  if (b < 0) return a == 1 ? ({T})1 : a == -1 ? (b & 1 ? ({T})-1 : ({T})1) : ({T})0;\n"
    "  {W} r = 1, x = ({W})a;\n  for (; b; b >>= 1, x *= x) if (b & 1) r *= x;\n  return ({T})r;\n}}",
    # one instruction where there is one; fma() may be a library call
    "muladd": "{T} {n}({T} a, {T} b, {T} c) {{\n"
    "  #pragma OPENCL FP_CONTRACT ON\n  return a * b + c;\n}}",
    # finite numbers beyond the largest half become it
    "saturate": "{T} {n}({T} a) {{\n"
    "  return fabs(a) < ({T})INFINITY ? clamp(a, ({T})-65504, ({T})65504) : a;\n}}",
    # a float as an integer: towards 0, saturating, NaN is 0
    "from_f32": "{T} {n}(float a) {{ return a != a ? ({T})0 : convert_{T}_sat_rtz(a); }}",
    "from_f64": "{T} {n}(double a) {{ return a != a ? ({T})0 : convert_{T}_sat_rtz(a); }}",
}

_PLAIN: Mapping[str, str] = {
    "index_min": "long {n}(long a, long b) {{ return a < b ? a : b; }}",
    "index_max": "long {n}(long a, long b) {{ return a > b ? a : b; }}",
    # towards minus infinity; a divisor of 0 occurs only where the result is not used
    "floordiv": "long {n}(long a, long b) {{\n"
    "  const long c = b == 0 ? 1 : b, q = a / c;\n  return q * c != a && (a ^ c) < 0 ? q - 1 : q;\n}}",
    "floormod": "long {n}(long a, long b) {{\n"
    "  const long c = b == 0 ? 1 : b, r = a % c;\n  return r != 0 && (r ^ c) < 0 ? r + c : r;\n}}",
    "f16_bits": "ushort {n}(float a) {{\n  ushort r;\n"
    "  vstore_half_rte(a, 0, (__private half *)&r);\n  return r;\n}}",
    "f16_value": "float {n}(ushort a) {{ return vload_half(0, (const __private half *)&a); }}",
    "bf16_value": "float {n}(ushort a) {{ return as_float((uint)a << 16); }}",
    "bf16_bits": "ushort {n}(float a) {{\n"
    "  const uint x = as_uint(a);\n"
    "  return (ushort)((a != a ? x | 0x400000u : x + 0x7FFFu + ((x >> 16) & 1u)) >> 16);\n}}",
}


class Helpers:
    """The functions that a program needs."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._types: dict[str, str] = {}

    def use(self, name: str, dtype: DType | None = None, width: int = 1) -> str:
        """The name to call a helper by; its definition will be in `text`. dtype: for those of _TYPED. width:
        of vectors, for those that are written for them as for one value."""
        called = f"smelt_{name}" if dtype is None else f"smelt_{name}_{dtype.name}"
        called += f"x{width}" if width > 1 else ""
        if called not in self._texts:
            self._texts[called] = _definition(name, called, dtype, width)
        return called

    def packed(self, dtype: DType, width: int) -> str:
        """The name of a type of so many elements of memory, as a vector `v` that may begin at any of them."""
        kind = f"{storage_type(dtype)}{width}"
        called = f"smelt_{kind}_packed"
        attributes = f"__attribute__((packed, aligned({dtype.bytes})))"
        self._types[called] = f"typedef struct {attributes} {{ {kind} v; }} {called};"
        return called

    def aliased(self, dtype: DType) -> str:
        """The name of a type of elements of memory, which compilers do not take to be apart from others."""
        kind = storage_type(dtype)
        called = f"smelt_{kind}_aliased"
        self._types[called] = f"typedef {kind} __attribute__((may_alias)) {called};"
        return called

    def text(self) -> str:
        """Definitions, in an order that depends only on which there are."""
        types = "".join(f"{self._types[n]}\n" for n in sorted(self._types))
        return types + "".join(f"static inline {self._texts[n]}\n" for n in sorted(self._texts))


def _definition(name: str, called: str, dtype: DType | None, width: int) -> str:
    if dtype is None:
        return _PLAIN[name].format(n=called)
    many = str(width) if width > 1 else ""
    kind = {"n": called, "T": f"{value_type(dtype)}{many}", "bits": dtype.bits}
    if dtype.is_int:
        # W: as wide as C computes in, so that neither promotion nor overflow is a question
        kind |= {"U": unsigned_type(dtype), "W": unsigned_type(DTYPES[f"u{max(dtype.bits, 32)}"])}
    return _TYPED[name].format(**kind)


__all__ = ["Helpers", "storage_type", "unsigned_type", "value_type"]
