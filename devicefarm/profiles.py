"""The conditions under which times are taken: as the device is shipped, or controlled; and a wait until it
is cool.

Times of two profiles are never compared. The runner sets back what it has changed when it ends, or the next
one does where it was killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smelt.core.diag import SmeltError
from smelt.devicefarm.condition import Condition
from smelt.devicefarm.measure import Doubt, TimingVerdict

MOST_PROCESSORS = 1024
"""The runner's limit."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What to ask a device for. governor: '' leaves it; khz: 0 leaves frequencies to the governor; cpus: the
    processors that may run the model, () for all."""

    name: str
    governor: str = ""
    khz: int = 0
    cpus: tuple[int, ...] = ()


AS_SHIPPED = Profile("as_shipped")
PROFILES = (AS_SHIPPED.name, "controlled")


def controlled(now: Condition, *, khz: int = 0, cpus: tuple[int, ...] = ()) -> Profile:
    """The profile for a device in that condition: the governor that keeps frequencies highest, and, of
    processors of several kinds, the fastest, so that no run moves between kinds. khz, cpus: the caller's
    choice instead."""
    speeds = {p.most_khz for p in now.policies if p.most_khz is not None}
    if not cpus and len(speeds) > 1:
        fastest = (p.cpus for p in now.policies if p.most_khz == max(speeds))
        cpus = tuple(sorted({cpu for text in fastest for cpu in processors(text)}))
    return Profile("controlled", "performance", khz, cpus)


def processors(text: str) -> tuple[int, ...]:
    """'0-3,6' or '0 1 2' as numbers. Raises SmeltError(kind='invalid')."""
    found: set[int] = set()
    for part in text.replace(",", " ").split():
        low, dash, high = part.partition("-")
        if not (part.isascii() and low.isdigit() and len(part) < 10 and (not dash or high.isdigit())):
            raise SmeltError(f"'{text:.80}' is no list of processors such as 0-3,6", kind="invalid")
        last = int(high or low)
        if last >= MOST_PROCESSORS:  # before a set of so many is made
            what = f"processor {last} is beyond the runner's limit of {MOST_PROCESSORS}"
            raise SmeltError(what, kind="invalid")
        found.update(range(int(low), last + 1))
    return tuple(sorted(found))


def mask(cpus: tuple[int, ...]) -> bytes:
    """Processors as the bits of CONTROL."""
    return sum(1 << cpu for cpu in cpus).to_bytes(MOST_PROCESSORS // 8, "little")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The profile that was asked for, and what came of it. changed: file -> its value before and now.
    refused: file -> what was wanted, and what it is."""

    profile: Profile = AS_SHIPPED
    changed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For people."""
        cpus = f", on processors {', '.join(map(str, self.profile.cpus))}" if self.profile.cpus else ""
        return [
            f"conditions: {self.profile.name}{cpus}",
            *(f"  set: {file}: {new} (was {old})" for file, (old, new) in self.changed.items()),
            *(
                f"  not set: {file}: wanted {wanted}, found {found or 'nothing'}"
                for file, (wanted, found) in self.refused.items()
            ),
        ]


UNCHANGED = Conditions()


def conditions(profile: Profile, r: Mapping[str, Any]) -> Conditions:
    """What a checked record of the runner says."""
    return Conditions(
        profile,
        {row["file"]: (row["old"], row["new"]) for row in r["set"]},
        {row["file"]: (row["wanted"], row["found"]) for row in r["refused"]},
    )


# ---------------------------------------------------------------- heat


@dataclass(frozen=True, slots=True)
class Gate:
    """When a device is cool enough: its hottest zone has `degrees` or less and gets warmer by less than
    `slope` degrees a minute, seen over `window` s; or it is `margin` below that, where no slope matters.
    After `most_wait` s times are taken all the same, and called too hot."""

    degrees: float = 65.0
    slope: float = 0.5
    window: float = 20.0
    margin: float = 15.0
    most_wait: float = 300.0
    every: float = 1.0


GATE = Gate()


def wait_until_cool(
    read: Callable[[], float | None],
    gate: Gate,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Doubt | None:
    """Wait at the gate; a doubt when the device did not get cool in time. read: the temperature now in
    degrees C, None on a device that has no sensor, which cannot be waited for."""
    start = clock()
    seen: list[tuple[float, float]] = []
    while (now := read()) is not None:
        at = clock()
        seen = [s for s in seen if at - s[0] <= gate.window] + [(at, now)]
        rises = _slope(seen)
        whole = at - seen[0][0] >= gate.window - 2 * gate.every
        if now <= gate.degrees - gate.margin or (now <= gate.degrees and whole and rises < gate.slope):
            return None
        if at - start >= gate.most_wait:
            return Doubt(
                TimingVerdict.TOO_HOT,
                f"{now:.0f} degrees C, {rises:+.1f} a minute, after {at - start:.0f} s of waiting; "
                f"wanted {gate.degrees:.0f} and below {gate.slope:+.1f}",
            )
        sleep(gate.every)
    return None


def _slope(seen: list[tuple[float, float]]) -> float:
    """Degrees a minute, by least squares."""
    t = sum(s[0] for s in seen) / len(seen)
    d = sum(s[1] for s in seen) / len(seen)
    spread = sum((s[0] - t) ** 2 for s in seen)
    return 60 * sum((s[0] - t) * (s[1] - d) for s in seen) / spread if spread else 0.0
