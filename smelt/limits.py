"""Options, environment, the limits of the caller and the machine in; memory and time of a compile out."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from smelt.core.diag import SmeltError

MEMORY = "SMELT_COMPILE_MEMORY"
"""The variable with the gigabytes (10^9 bytes) that a compile may use where the caller names none."""

SECONDS = "SMELT_COMPILE_SECONDS"
"""The variable with the seconds of processor time that a compile may use where the caller names none."""

CONFINE = "SMELT_COMPILE_CONFINE"
"""The variable that is 0 where a compile may use all files, the network, and as much of the disk and as many
processes as its caller."""

MOST_ALLOWED = 1e9
"""The most gigabytes and seconds that a limit may be."""

TASKS = 4096
"""Processes and threads that a compile may start besides those that exist; it needs fewer than 50."""

DEFAULT_SECONDS = 3600.0
"""The slowest development model takes under two minutes; an hour is a compile that will not end."""

SHARE = 0.9
"""The share of the available memory that a compile may use by default."""

PATIENCE = 4
"""Seconds of wall time per second of processor time after which a child counts as stuck."""

MOST_THREADS = 1024
"""The most threads that a session may be asked to use."""

LEAST_MEMORY = 128 << 20
"""Bytes: Python, NumPy and LLVM alone need about 90 MB."""


@dataclass(frozen=True)
class Limits:
    """Limits of a compile. memory: bytes of data. seconds: of processor time."""

    memory: int
    seconds: float

    @property
    def wall(self) -> float:
        """Seconds of wall time after which a compile counts as stuck."""
        return PATIENCE * self.seconds + 60


def limits(memory: float | None = None, seconds: float | None = None) -> Limits:
    """The limits of a compile. memory: in gigabytes; seconds: of processor time. None takes the environment's
    value, else nine tenths of the memory that this process may use, and an hour. Seconds are no more than
    the caller's own limit leaves. Raises SmeltError for a value that is no positive number."""
    memory = _given(memory, MEMORY, "memory_limit")
    seconds = _given(seconds, SECONDS, "time_limit")
    most = int(SHARE * available())
    own = most if memory is None else max(int(memory * 1e9), LEAST_MEMORY)
    return Limits(own, min((DEFAULT_SECONDS if seconds is None else seconds, *_processor_time())))


def _processor_time() -> Iterator[float]:
    """The caller's limits. At a hard one the kernel kills without a word: a second before it is told."""
    for limit, less in zip(resource.getrlimit(resource.RLIMIT_CPU), (0, 1), strict=True):
        if limit != resource.RLIM_INFINITY:
            yield max(limit - less, 1)


def _given(value: float | None, variable: str, name: str) -> float | None:
    text = os.environ.get(variable, "")
    if value is None and not text:
        return None
    try:
        number = float(text if value is None else value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 < number <= MOST_ALLOWED or isinstance(value, bool):
        what, found = (name, value) if value is not None else (variable, text)
        raise SmeltError(f"{what} is {found!r:.80}, wanted a number above 0, at most {MOST_ALLOWED:.0e}")
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
    """Set the limits of this process and its children, keep lower ones of the caller; disable core files."""
    _lower(resource.RLIMIT_CORE, 0)
    # data, not address space: mapped weights are no memory that the system must keep
    _lower(resource.RLIMIT_DATA, own.memory)
    seconds = math.ceil(own.seconds)
    _lower(resource.RLIMIT_CPU, seconds, seconds + 5)


def apply_to_system(largest_file: int) -> None:
    """Limit the size of files (bytes), beyond which a write is an error and no signal, and the number of
    processes. The kernel counts those of the user, in all containers, of which this process may not see all;
    so all that exist on the machine count as the user's. It excepts root."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _lower(resource.RLIMIT_FSIZE, largest_file)
    with contextlib.suppress(OSError, ValueError, IndexError):  # no /proc: no limit
        tasks = int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
        _lower(resource.RLIMIT_NPROC, tasks + TASKS)


def _lower(kind: int, soft: int, hard: int | None = None) -> None:
    was_soft, was_hard = resource.getrlimit(kind)
    hard = soft if hard is None else hard
    if was_hard != resource.RLIM_INFINITY:
        hard = min(hard, was_hard)
    if was_soft != resource.RLIM_INFINITY:
        soft = min(soft, was_soft)
    resource.setrlimit(kind, (min(soft, hard), hard))


def address_space_hint() -> str | None:
    """What to do where something failed for no other reason that is known; None without such a limit."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return None
    return f"this process may have {most:,} bytes of address space; allow more ('ulimit -v')"


def used_share(pid: int) -> float:
    """How much of its limits of data and of address space a child of this process uses, the larger share; 0
    where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status") as status:
        rows = dict(line.split(":", 1) for line in status if line.startswith(("VmData:", "VmSize:")))
        kinds = {"VmData": resource.RLIMIT_DATA, "VmSize": resource.RLIMIT_AS}
        used = {kinds[name]: 1024 * int(text.split()[0]) for name, text in rows.items()}
        allowed = {kind: resource.prlimit(pid, kind)[0] for kind in used}
        return max((used[k] / n for k, n in allowed.items() if n != resource.RLIM_INFINITY), default=0.0)
    return 0.0


def out_of_memory(limits: Limits, stage: str) -> SmeltError:
    """The error of a compile that reached its limit in that stage, or the lower one of its caller, which is
    this process's too."""
    own = {"v": resource.RLIMIT_AS, "d": resource.RLIMIT_DATA}
    found = [(n, letter) for letter, kind in own.items() if (n := resource.getrlimit(kind)[0]) >= 0]
    most, letter = min([*found, (limits.memory, "")])
    hint = f"allow more with --limit-memory, memory_limit= or {MEMORY} (in GB), or fix dims with --dim"
    if most < limits.memory:
        hint = f"the caller may not have more: allow it more ('ulimit -{letter}'), or fix dims with --dim"
    what = f"the compile used more than {most / 1e9:.3g} GB of memory in stage '{stage}'"
    return SmeltError(what, kind="infra", hint=hint)
