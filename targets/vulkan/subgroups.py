"""A value of each invocation in; its reduction over those of a subgroup out, by one instruction."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.core.dtype import DType, f64, i64, u64
from smelt.targets.vulkan.code import Code, V
from smelt.targets.vulkan.math import is_nan
from smelt.targets.vulkan.scalars import wrapped

SUBGROUP_SCOPE, REDUCE = 3, 0

OPERATIONS: Mapping[str, Mapping[str, str]] = MappingProxyType({
    "float": {"sum": "FAdd", "prod": "FMul", "max": "SMax", "min": "SMin"},
    "int": {"sum": "IAdd", "prod": "IMul", "max": "SMax", "min": "SMin"},
    "uint": {"sum": "IAdd", "prod": "IMul", "max": "UMax", "min": "UMin"},
    "bool": {"max": "LogicalOr", "min": "LogicalAnd"},
})  # fmt: skip
"""A dtype's category and the kind of a reduction -> the instruction. Extremes of floats are those of numbers
in the same order, since devices are free in what their own do with NaN."""

LEFT_OUT = frozenset(((i64, ""), (u64, ""), (f64, "max"), (f64, "min")))
"""(dtype, kind), '' for all kinds: halves of 64 bits have no instruction that every such device has."""

NAN_KEYS: Mapping[str, int] = MappingProxyType({"max": 0x7FC00000, "min": 0x803FFFFF})
"""Above the key of infinity, and below that of minus infinity: NaN is what a reduction with NaN gives."""


def reduces(kind: str, dtype: DType) -> bool:
    """Whether subgroups have an instruction for a reduction."""
    missing = (dtype, "") in LEFT_OUT or (dtype, kind) in LEFT_OUT
    return not missing and kind in OPERATIONS.get(dtype.category, {})


def over_subgroup(kind: str, dtype: DType, v: V) -> V:
    """The reduction of v over the invocations of the subgroup that come here."""
    keyed = v.kind == "f" and kind in NAN_KEYS
    operand = _key(v, NAN_KEYS[kind]) if keyed else v
    c = v.code
    scope = c.u(SUBGROUP_SCOPE).id
    name = f"GroupNonUniform{OPERATIONS[dtype.category][kind]}"
    found = c.impure(name, operand.kind, scope, REDUCE, operand.id)
    return _turned(found).as_float() if keyed else wrapped(found, dtype)


def elected(c: Code) -> V:
    """Whether this is the one invocation of its subgroup that is to speak for all."""
    return c.impure("GroupNonUniformElect", "b", c.u(SUBGROUP_SCOPE).id)


def _turned(raw: V) -> V:
    """The bits of a float as a number with sign in the order of floats, and back."""
    sign = raw.code.pure("ShiftRightArithmetic", "u", raw, raw.code.u(31))
    return raw ^ (sign & 0x7FFFFFFF)


def _key(v: V, of_nan: int) -> V:
    return v.code.select(is_nan(v), v.code.u(of_nan), _turned(v.bits()))
