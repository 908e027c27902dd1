"""The right to use a device: a lease's fencing token, and the files that keep the newest where it counts.

A fence file holds the highest token that was seen there: u64, then the crc32 of these 8 bytes, both little
endian. The runner keeps one in the device's store (runner_fence.h), a host one for each device.
"""

from __future__ import annotations

import os
import posixpath
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from smelt.core.diag import SmeltError
from smelt.core.turns import take_turn
from smelt.devicefarm.budget import infra

RECORD = struct.Struct("<QI")
LOCK_SECONDS = 6.0


class Stale(SmeltError):
    """A newer lease has been at work here."""

    status = "stale"

    def __init__(self, where: str, fence: int, highest: int) -> None:
        self.args_of = (where, fence, highest)
        super().__init__(
            f"{where} has seen fence {highest}; this lease has the older fence {fence}", kind="infra",
            hint="another holder has the device now; take a new lease and repeat the work",
        )  # fmt: skip

    def __reduce__(self) -> tuple[object, ...]:
        return (Stale, self.args_of)


def admits(highest: int, fence: int) -> bool:
    """Whether a token is as new as the newest that is known."""
    return fence >= highest


@dataclass(frozen=True, slots=True)
class FenceFile:
    """The fence file of one device on this machine. It may not exist yet."""

    path: Path

    def highest(self) -> int:
        """The highest token that was let in; 0 where there is none, or the file is damaged."""
        try:
            return _parsed(self.path.read_bytes())
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise infra(f"the fence file '{self.path}' cannot be read: {error.strerror}") from error

    def admit(self, fence: int) -> None:
        """Let a token in, and no older one from now on. Raises Stale, and SmeltError(kind='infra') where the
        file cannot be used."""
        with self._locked() as fd:
            highest = _parsed(os.pread(fd, RECORD.size, 0))
            if not admits(highest, fence):
                raise Stale(f"this host ('{self.path}')", fence, highest)
            if fence != highest:
                raw = fence.to_bytes(8, "little")
                os.pwrite(fd, RECORD.pack(fence, zlib.crc32(raw)), 0)
                os.fsync(fd)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise infra(f"the fence file '{self.path}' cannot be opened: {error.strerror}") from error
        try:
            take_turn(fd, str(self.path), LOCK_SECONDS)
            yield fd
        except OSError as error:
            raise infra(f"the fence file '{self.path}' cannot be used: {error.strerror}") from error
        finally:
            os.close(fd)


def _parsed(raw: bytes) -> int:
    if len(raw) != RECORD.size:
        return 0
    fence, crc = RECORD.unpack(raw)
    return int(fence) if crc == zlib.crc32(raw[:8]) else 0


def _anything_goes() -> None:
    return None


@dataclass(frozen=True)
class DeviceClaim:
    """What a session on a device shows for itself.

    fence: the lease's token, 0 without a lease. check: raises when the lease is over; called before each
    request. fence_file: on the device; '' for none, which lets in everything. place: the fence file of a
    device whose bundles lie outside a store.
    """

    fence: int = 0
    check: Callable[[], None] = _anything_goes
    fence_file: str = ""
    place: str = ""

    def on(self, remote: str) -> DeviceClaim:
        """The claim with the fence file of the store in which the bundle lies at `remote`."""
        if not self.fence:
            return self
        folder, name = posixpath.split(posixpath.dirname(remote))
        return replace(self, fence_file=f"{folder}/fence" if name == "bundles" else self.place)


UNCLAIMED = DeviceClaim()
"""The claim of a session without a lease."""
