"""What a module asks of its device: names of features, and what SPIR-V says of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Feature:
    """capabilities: of a module that needs it. extension: of SPIR-V 1.3, where the capability has one. modes:
    execution modes, each for floats of so many bits."""

    capabilities: tuple[int, ...]
    extension: str = ""
    modes: tuple[tuple[int, int], ...] = ()


DENORM_PRESERVE, ROUND_TO_EVEN, KEEPS_ZERO_INF_NAN = 4459, 4462, 4461

FEATURES: Mapping[str, Feature] = MappingProxyType({
    "float64": Feature((10,)),
    "storage16": Feature((4433,)),
    "storage8": Feature((4448,), "SPV_KHR_8bit_storage"),
    "int16": Feature((22,)),
    "int8": Feature((39,)),
    "halves": Feature((9, 4464, 4467), modes=(
        (DENORM_PRESERVE, 16), (ROUND_TO_EVEN, 16), (KEEPS_ZERO_INF_NAN, 16))),
    "subgroups": Feature((61, 63)),
})  # fmt: skip
"""In the order of their bits in a package. storage16, storage8: memory has numbers of 16 and 8 bits; int16,
int8: the memory of a group has. halves: the device converts f16 from and to f32 itself, exactly: to the
nearest, with subnormal numbers, infinities and NaN. subgroups: invocations that run together reduce by one
instruction."""

SMALL_FORM = frozenset(("storage16", "storage8", "int16", "int8", "halves"))
STORED_FORM = frozenset(("storage16", "storage8"))
TOGETHER = frozenset(("subgroups",))
KERNEL_FORMS = (SMALL_FORM | TOGETHER, STORED_FORM | TOGETHER, TOGETHER, SMALL_FORM, STORED_FORM)
"""What a module may use besides what it cannot do without, the best first: numbers of 8 and 16 bits as they
are, or in memory alone, with instructions of subgroups or without. The form after these uses words of 32 bits
and the memory of groups."""
