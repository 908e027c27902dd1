"""A device's condition in the runner's records -> heat, frequencies, cooling and load as dataclasses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HOT = 85.0  # degrees C; above it phones and boards throttle
ABSURD = 150.0  # degrees C; what a sensor says that is absent or broken
NO_FIGURE = -(2**63)
"""What the runner says where the device says nothing."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A thermal zone. degrees: Celsius; None where it cannot be read."""

    zone: int
    type: str
    degrees: float | None


@dataclass(frozen=True, slots=True)
class Policy:
    """Processors that share a frequency. limit_khz: what they may reach now; most_khz: what they are made
    for."""

    policy: int
    cpus: str
    governor: str
    khz: int | None
    limit_khz: int | None
    most_khz: int | None


@dataclass(frozen=True, slots=True)
class Cooling:
    """A way of cooling that slows processors down; level 0: it does not do so now."""

    type: str
    level: int | None


@dataclass(frozen=True, slots=True)
class Condition:
    """What affects times on a device, at one moment. Empty or None: the device does not say.

    firmware: the bits of a Raspberry Pi's get_throttled. load: runnable processes, the mean of a minute.
    """

    zones: tuple[Zone, ...] = ()
    policies: tuple[Policy, ...] = ()
    cooling: tuple[Cooling, ...] = ()
    firmware: int | None = None
    load: float = 0.0

    @property
    def temperature(self) -> float | None:
        """That of the hottest zone, in degrees C."""
        return max((z.degrees for z in self.zones if z.degrees is not None), default=None)

    @property
    def governors(self) -> tuple[str, ...]:
        """The governors in use, each once."""
        return tuple(dict.fromkeys(p.governor for p in self.policies if p.governor))


@dataclass(frozen=True, slots=True)
class TelemetryReading:
    """Telemetry, taken between two samples. at_ns: since the start of the timed part; sample: how many
    there were.

    khz: of the processor that ran the model. limits_khz: the sum of all policies' limits. cooling: the sum
    of levels. busy, stolen: per processor, ticks of 10 ms since the first reading in which it worked, for
    whichever program, or was wanted but taken by a hypervisor.
    """

    at_ns: int
    sample: int
    degrees: float | None
    khz: int | None
    limits_khz: int | None
    cooling: int | None
    busy: tuple[int, ...]
    stolen: tuple[int, ...]


TICK_NS = 10_000_000


def _figure(value: int) -> int | None:
    """A count or frequency; below 0 there is none."""
    return value if value >= 0 else None


def _degrees(milli: int) -> float | None:
    return milli / 1000 if NO_FIGURE < milli < ABSURD * 1000 else None


def condition(r: Mapping[str, Any]) -> Condition:
    """The condition in a checked record."""
    try:
        load = float(r["load"] or 0.0)
    except ValueError:
        load = 0.0
    try:
        firmware = int(r["firmware"][:16].removeprefix("0x"), 16) if r["firmware"] else None
    except ValueError:
        firmware = None
    policies = (
        Policy(
            p["policy"], p["cpus"], p["governor"], *(_figure(p[k]) for k in ("khz", "limit_khz", "most_khz"))
        )
        for p in r["policies"]
    )
    return Condition(
        tuple(Zone(z["zone"], z["type"], _degrees(z["millidegrees"])) for z in r["zones"]),
        tuple(policies),
        tuple(Cooling(c["type"], _figure(c["level"])) for c in r["cooling"]),
        firmware,
        load if math.isfinite(load) else 0.0,
    )


def reading(r: Mapping[str, Any]) -> TelemetryReading:
    """A reading of the telemetry in a checked record."""
    khz, limits, cooling = (_figure(r[k]) for k in ("khz", "limits_khz", "cooling"))
    return TelemetryReading(
        r["at_ns"], r["sample"], _degrees(r["millidegrees"]), khz, limits, cooling, r["busy"], r["stolen"]
    )
