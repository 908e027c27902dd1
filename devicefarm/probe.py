"""The answers to PROBE -> launches of a run, with the dims of each; what a probe asks for -> bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from smelt.devicefarm.budget import infra

TRACE_LIMIT = 64 << 20
"""Most bytes of a trace; the runner stops earlier."""
_PEEK = struct.Struct("<QQII")
_LAUNCH = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch of a run. site: which of the program's it is; dims: what it was given after its buffers."""

    site: int
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaunchTrace:
    """The launches of a run, in order. cut: there were more, which the runner had no room to note."""

    launches: tuple[Launched, ...]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class ProbeWish:
    """`size` bytes at a buffer (by its place in the arguments) right after a launch (by its place in the
    trace)."""

    launch: int
    site: int
    buffer: int
    size: int

    def packed(self) -> bytes:
        """As the runner reads it."""
        return _PEEK.pack(self.launch, self.size, self.site, self.buffer)


def read_trace(raw: bytes, launches: int, *, cut: bool) -> LaunchTrace:
    """Parse the notes of a run. Raises SmeltError(kind='infra') where they break the protocol."""
    found: list[Launched] = []
    at = 0
    while at < len(raw):
        if at + _LAUNCH.size > len(raw):
            raise infra("the runner's list of launches ends within one")
        site, count = _LAUNCH.unpack_from(raw, at)
        at += _LAUNCH.size
        if at + 8 * count > len(raw):
            raise infra("the runner's list of launches ends within one")
        found.append(Launched(site, struct.unpack_from(f"<{count}q", raw, at)))
        at += 8 * count
    if len(found) + cut != launches:
        raise infra(f"the runner told {len(found)} of {launches} launches")
    return LaunchTrace(tuple(found), cut)
