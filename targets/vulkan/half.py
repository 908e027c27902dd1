"""Floats in, the 16 bits of f16 and bf16 out, and back, in integer arithmetic, which is exact everywhere.

GLSL.std.450 leaves the rounding of packed halves to the device, and may make subnormal ones 0.
"""

from __future__ import annotations

from smelt.core.dtype import DType, f16
from smelt.targets.vulkan.code import V
from smelt.targets.vulkan.wide import carry


def _f16_bits(x: V) -> V:
    c, raw = x.code, x.bits()
    sign, size = (raw >> 16) & 0x8000, raw & 0x7FFFFFFF
    normal = (size - 0x38000000 + 0xFFF + ((size >> 13) & 1)) >> 13
    # below 2^-14 the mantissa moves right, by 14 to 24 places
    places = 126 - (size >> 23)
    places = c.select(places > 25, 25, places)
    places = c.select(places < 1, 1, places)  # where it is not used
    mantissa = (size & 0x7FFFFF) | 0x800000
    short, rest = mantissa >> places, mantissa & ((c.u(1) << places) - 1)
    half = c.u(1) << (places - 1)
    up = (rest > half) | (rest.equals(half) & (short & 1).differs(0))
    value = c.select(size < 0x38800000, short + carry(up), normal)
    value = c.select(size >= 0x477FF000, 0x7C00, value)
    value = c.select(size > 0x7F800000, 0x7E00, value)
    return sign | value


def _f16_value(h: V) -> V:
    c = h.code
    size, sign = h & 0x7FFF, (h & 0x8000) << 16
    moved = (size << 13) + 0x38000000
    value = c.select(size >= 0x7C00, moved + 0x38000000, moved)
    small = (c.pure("ConvertUToF", "f", size) * 2.0**-24).bits()
    return (c.select(size < 0x400, small, value) | sign).as_float()


def _bf16_bits(x: V) -> V:
    raw = x.bits()
    nan = (raw & 0x7FFFFFFF) > 0x7F800000
    rounded = raw + 0x7FFF + ((raw >> 16) & 1)
    return x.code.select(nan, raw | 0x400000, rounded) >> 16


def to_bits(x: V, dtype: DType) -> V:
    """The 16 bits of a float, rounded to the nearest (ties to even)."""
    if dtype == f16:
        return x.code.call("f16_bits", "u", _f16_bits, x)
    return x.code.call("bf16_bits", "u", _bf16_bits, x)


def from_bits(h: V, dtype: DType) -> V:
    """The float of 16 bits; those above are 0."""
    if dtype == f16:
        return h.code.call("f16_value", "f", _f16_value, h)
    return (h << 16).as_float()
