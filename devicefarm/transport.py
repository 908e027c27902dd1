"""The interface of all transports: a way to a device that takes bundles and starts their runners there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from smelt.devicefarm.budget import Budget
from smelt.devicefarm.channel import Channel


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished command on the device. code: its exit code, None where the transport does not know it."""

    code: int | None
    out: str
    err: str


class Transport(Protocol):
    """A way to a device. Only the runner's END frame tells about a model; exit codes of
    transports are never trusted.
    """

    @property
    def name(self) -> str: ...
    @property
    def emulated(self) -> bool: ...

    def deploy(self, bundle: Path, budget: Budget) -> str:
        """Make the bundle's files available and verify them; their folder on the device. Raises
        SmeltError(kind='infra')."""

    def damaged(self, bundle: Path, budget: Budget) -> tuple[str, ...]:
        """Verify a deployed bundle's files again; the names of those that are not what was sent. They are
        mended where this machine has them. Raises SmeltError(kind='infra')."""

    def open_runner(self, remote: str, budget: Budget) -> Channel:
        """Start `<remote>/smelt_run --serve`."""

    def execute(self, argv: list[str], budget: Budget) -> Completed:
        """Run a small command (health checks); its output is cut at 64 KiB."""

    def free_bytes(self, budget: Budget) -> int | None:
        """Free bytes where bundles are stored, None where the device does not report them."""

    def system_log(self, seconds: float, pid: int) -> str:
        """What the device's own log has had of a process within the last so many seconds, '' where it keeps
        none. It takes a few seconds at most, and raises nothing. The kernel's log comes from the runner."""

    def close(self) -> None:
        """Close the connection, within a time limit and without exceptions."""
