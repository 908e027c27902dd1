"""A caller's policy in, checked and as smelt.h has it out; a unit's share of runs, from smelt.h's struct."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from smelt.core.diag import SmeltError
from smelt.core.policies import POLICIES

_MILLI: Final = 1000
_MOST_DEGREES: Final = 1000


@dataclass(frozen=True, slots=True)
class UnitPolicy:
    """What binds each run of a session to one of the units that its bundle was compiled for
    (docs/units.md). kind: 'static', 'load', 'thermal' or 'battery'.

    Of 'thermal': limit, the degrees C above which a unit is left (None: what each of its thermal zones
    names, else 85); cooled, by how many degrees below it the unit has to be to be taken again; zones, how
    the types of its zones begin, by unit: 'cpu', the name of a driver, or '*' for any other.
    Of 'battery': energy, how the name of the counter begins that counts the energy of the whole machine.

    Raises SmeltError(kind='invalid').
    """

    kind: str = "load"
    limit: float | None = None
    cooled: float | None = None
    zones: Mapping[str, Sequence[str]] = field(default_factory=dict)
    energy: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in POLICIES:
            told = ", ".join(POLICIES)
            raise SmeltError(f"policy: expected one of {told}, got {self.kind!r:.80}", kind="invalid")
        for name, value in (("limit", self.limit), ("cooled", self.cooled)):
            if value is not None and not (type(value) in (int, float) and 0 < value <= _MOST_DEGREES):
                what = f"expected degrees from 0 to {_MOST_DEGREES}, got {value!r:.80}"
                raise SmeltError(f"policy: {name}: {what}", kind="invalid")
        words = [*self.zones, *(p for prefixes in self.zones.values() for p in prefixes)]
        if strange := [w for w in words if not isinstance(w, str) or not w or set(w) & set(",;=\0")]:
            what = f"expected names of units and beginnings of types, got {strange[0]!r:.80}"
            raise SmeltError(f"policy: zones: {what}", kind="invalid")

    def options(self) -> PolicyOptions:
        """The struct that smelt_policy takes."""
        zones = ";".join(f"{unit}={','.join(prefixes)}" for unit, prefixes in self.zones.items())
        limit, cooled = (round((x or 0) * _MILLI) for x in (self.limit, self.cooled))
        return PolicyOptions(
            ctypes.sizeof(PolicyOptions), POLICIES.index(self.kind), limit, cooled,
            zones.encode() if zones else None, None if self.energy is None else self.energy.encode(),
        )  # fmt: skip


class PolicyOptions(ctypes.Structure):
    """smelt_policy_options of smelt.h."""

    _fields_ = [
        ("struct_size", ctypes.c_int32), ("policy", ctypes.c_int32), ("limit", ctypes.c_int32),
        ("cooled", ctypes.c_int32), ("zones", ctypes.c_char_p), ("energy", ctypes.c_char_p),
    ]  # fmt: skip


def policy_of(given: object) -> UnitPolicy:
    """A policy, or one by its kind. Raises SmeltError(kind='invalid')."""
    if isinstance(given, UnitPolicy):
        return given
    return UnitPolicy(given if isinstance(given, str) else repr(given))


@dataclass(frozen=True, slots=True)
class UnitShare:
    """One of the units that runs of a session may be bound to, and what it has done for this session.

    unit: 'cpu', or the name of its driver. processor: whose code runs there, or around it on the host. runs:
    how many it did, explorations among them, which were to find out how long it takes. expected, energy:
    seconds and joules of a run like the last one; degrees: of its thermal zone; None where nobody
    knows. bound: the last run was its. open: its driver is open. why: why it is left, or is not taken
    now; '' where nothing speaks against it.
    """

    unit: str
    processor: str
    runs: int
    explorations: int
    expected: float | None
    energy: float | None
    degrees: float | None
    bound: bool
    open: bool
    why: str


class ShareFields(ctypes.Structure):
    """smelt_unit_share of smelt.h."""

    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("unit", "processor", "why")),
        *((name, ctypes.c_uint64) for name in ("runs", "explorations", "expected_ns", "expected_uj")),
        *((name, ctypes.c_int32) for name in ("millidegrees", "bound", "open")),
    ]

    def read(self) -> UnitShare:
        """As Python has it."""
        texts = (self.unit, self.processor, self.why)
        unit, processor, why = ((t or b"").decode(errors="replace") for t in texts)
        return UnitShare(
            unit, processor, self.runs, self.explorations,
            self.expected_ns / 1e9 if self.expected_ns else None,
            self.expected_uj / 1e6 if self.expected_uj else None,
            None if self.millidegrees == -(2**31) else self.millidegrees / _MILLI,
            bool(self.bound), bool(self.open), why,
        )  # fmt: skip
