"""Options, the environment, the caller's and the machine's limits in; what a compile may use out."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from smelt.core.diag import SmeltError

MEMORY = "SMELT_COMPILE_MEMORY"
"""Gigabytes (10^9 bytes) that a compile may use, where the caller does not say."""

SECONDS = "SMELT_COMPILE_SECONDS"
"""Seconds of processor time that a compile may use, where the caller does not say."""

DEFAULT_SECONDS = 3600.0
"""The slowest development model takes under two minutes; an hour is a compile that will not end."""

SHARE = 0.9
"""Of the memory that there is: what a compile may use where nobody says."""

PATIENCE = 4
"""Seconds of a clock per second of processor time: beyond it, a child that does nothing is stuck."""

MOST_THREADS = 1024
"""That a session may be asked to run on."""

LEAST_MEMORY = 128 << 20
"""Bytes: Python, NumPy and LLVM alone need about 90 MB."""


@dataclass(frozen=True)
class Limits:
    """memory: bytes of data that a compile may hold. seconds: of processor time."""

    memory: int
    seconds: float

    @property
    def wall(self) -> float:
        """Seconds of a clock after which a compile is taken to be stuck."""
        return PATIENCE * self.seconds + 60


def limits(memory: float | None = None, seconds: float | None = None) -> Limits:
    """memory: gigabytes; seconds: of processor time; None: what the environment says, else nine tenths of the
    memory that this process may use, and an hour. Raises SmeltError for what is no positive number."""
    memory = _given(memory, MEMORY, "memory_limit")
    seconds = _given(seconds, SECONDS, "time_limit")
    most = int(SHARE * available())
    own = most if memory is None else max(int(memory * 1e9), LEAST_MEMORY)
    return Limits(own, DEFAULT_SECONDS if seconds is None else seconds)


def _given(value: float | None, variable: str, name: str) -> float | None:
    text = os.environ.get(variable, "")
    if value is None and not text:
        return None
    try:
        number = float(text if value is None else value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number <= 1e9:
        what, found = (name, value) if value is not None else (variable, text)
        raise SmeltError(f"{what} is {found!r}, wanted a number above 0")
    return number


def available(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process may use: the machine's, or less where a control group says so."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((machine, *_groups(proc, root)))


def _groups(proc: Path, root: Path) -> Iterator[int]:
    """The limits of the control groups around this process, both versions."""
    try:
        rows = proc.read_text().splitlines()
    except OSError:
        return
    for row in rows:
        _, controllers, path = [*row.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        folder = base / path.strip("/")
        # in a container the path may be that of the host; then only the root is there
        for at in (folder, *folder.parents):
            try:
                text = (at / name).read_text().strip()
            except OSError:
                text = ""
            if text.isdigit() and int(text) > 0:
                yield int(text)
            if at == base:
                break


def apply(own: Limits) -> None:
    """Limit this process and all that it starts; a limit of the caller that is lower stays. No core files."""
    _lower(resource.RLIMIT_CORE, 0)
    # data, not address space: mapped weights are no memory that the system must keep
    _lower(resource.RLIMIT_DATA, own.memory)
    seconds = math.ceil(own.seconds)
    _lower(resource.RLIMIT_CPU, seconds, seconds + 5)


def _lower(kind: int, soft: int, hard: int | None = None) -> None:
    was_soft, was_hard = resource.getrlimit(kind)
    hard = soft if hard is None else hard
    if was_hard != resource.RLIM_INFINITY:
        hard = min(hard, was_hard)
    if was_soft != resource.RLIM_INFINITY:
        soft = min(soft, was_soft)
    resource.setrlimit(kind, (min(soft, hard), hard))


def out_of_memory(limits: Limits, stage: str) -> SmeltError:
    """The error of a compile that reached its limit in that stage."""
    return SmeltError(
        f"the compile used more than {limits.memory / 1e9:.3g} GB of memory in stage '{stage}'",
        kind="infra",
        hint=f"allow more with --limit-memory, memory_limit= or {MEMORY} (in GB), or fix dims with --dim",
    )
