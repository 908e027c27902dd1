"""The parts of a runner's facts in; what the board is made of, and a fingerprint of it, out.

Equal fingerprints mean that times may be compared: the same board with the same kernel, libc and, where they
were asked for, drivers. What changes by itself (load, heat, clocks, free memory, boots) is no part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

FINGERPRINT_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of a processor. kb: its size; line: bytes; shared: the processors that share it ('0-3')."""

    level: int
    type: str
    kb: int
    line: int
    shared: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal processors with consecutive numbers.

    siblings: those of the package or cluster; midr: Arm's id of the design, '' elsewhere; capacity: the
    kernel's 1 to 1024; most_khz: the highest clock. None: not told.
    """

    first: int
    count: int
    siblings: str
    midr: str
    capacity: int | None
    most_khz: int | None
    caches: tuple[Cache, ...]

    def __str__(self) -> str:
        clock = f" up to {self.most_khz / 1e6:.2f} GHz" if self.most_khz else ""
        caches = ", ".join(f"L{c.level} {c.type.lower()} {c.kb} KiB" for c in self.caches)
        design = f" of design {self.midr}" if self.midr else ""
        return f"{self.count}{design}{clock}" + (f" ({caches})" if caches else "")


@dataclass(frozen=True, slots=True)
class UnitFacts:
    """A device of a GPU API, or why the API has none. api: opencl, vulkan or cuda; driver: its version."""

    api: str
    device: str
    version: str
    driver: str
    extensions: tuple[str, ...]
    error: str

    def __str__(self) -> str:
        return f"{self.device}: {self.version}, driver {self.driver}, {len(self.extensions)} extensions"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a result is of: the device's fingerprint, the seal of the bundle's manifest, which stands for all
    of its files, and the sha256 of the model; '' where one is not known."""

    device_fingerprint: str = ""
    bundle_sha256: str = ""
    model_sha256: str = ""


NO_ORIGIN = Origin()


def told(number: int) -> int | None:
    """A number of the runner, None for one below 0."""
    return number if number >= 0 else None


def parse_cluster(r: Mapping[str, Any]) -> Cluster:
    """A checked row of the runner's clusters."""
    numbers = {k: told(r[k]) for k in ("capacity", "most_khz")}
    return Cluster(**{**r, **numbers, "caches": tuple(Cache(**c) for c in r["caches"])})


def parse_unit(r: Mapping[str, Any]) -> UnitFacts:
    """A checked row of the runner's units."""
    return UnitFacts(**{**r, "extensions": tuple(sorted(r["extensions"].split()))})


def fingerprint(
    board: Mapping[str, Any], clusters: tuple[Cluster, ...], units: tuple[UnitFacts, ...] | None
) -> str:
    """16 hexadecimal digits for the board and, where its units were probed, '+' and 16 for these. board: what
    else is stable, by name."""
    parts = [{**board, "clusters": [asdict(c) for c in clusters]}]
    if units is not None:
        parts.append({"units": [asdict(u) for u in units]})
    return "+".join(
        hashlib.sha256(json.dumps(p, sort_keys=True).encode()).hexdigest()[:FINGERPRINT_DIGITS] for p in parts
    )
