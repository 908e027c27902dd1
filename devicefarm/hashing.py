"""Files on a device and what they should hold -> which do not, by a program there that computes sha256.

The first of PROGRAMS that the device has is used; then the runner itself, once its own file was read back and
found to be right; a device that can start neither has its files read back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from smelt.core.bundle import RUNNER
from smelt.devicefarm.budget import Budget
from smelt.devicefarm.store import Content
from smelt.devicefarm.transport import Completed

PROGRAMS = (("sha256sum",), ("toybox", "sha256sum"), ("busybox", "sha256sum"))
MOST_FILES = 64
"""Files that one command is given: a command line has a limit."""
_LINE = re.compile(r"\\?([0-9a-f]{64}) [ *](/.*)")
_NO_PROGRAM = (126, 127)


class DeviceHashes:
    """Asks one device. execute: runs a command there; read_back: the sha256 of a file that should have so
    many bytes, computed here; of a longer one that of some more, which is another."""

    def __init__(
        self,
        execute: Callable[[list[str], Budget], Completed],
        read_back: Callable[[str, int, Budget], str | None],
    ) -> None:
        self._execute = execute
        self._read_back = read_back
        self._programs = list(PROGRAMS)

    def differing(self, expected: Mapping[str, Content], budget: Budget) -> frozenset[str]:
        """The files (full paths) that hold something else than expected, or are not there. Raises
        SmeltError(kind='infra')."""
        paths = list(expected)
        found: dict[str, str] = {}
        for at in range(0, len(paths), MOST_FILES):
            some = {p: expected[p] for p in paths[at : at + MOST_FILES]}
            found |= self._by_program(some, budget)
        return frozenset(p for p in paths if found.get(p) != expected[p].sha256)

    def _by_program(self, some: Mapping[str, Content], budget: Budget) -> dict[str, str]:
        while self._programs:
            printed = self._run(self._programs[0], some, budget)
            if printed is not None:
                return printed
            self._programs.pop(0)
        back = {}
        for path in sorted(some, key=lambda p: not p.endswith(f"/{RUNNER}")):
            if path not in back:
                got = self._read_back(path, some[path].size, budget)
                back[path] = got or ""
                if path.endswith(f"/{RUNNER}") and got == some[path].sha256:
                    back |= self._run((path, "--hash"), some, budget) or {}
        return back

    def _run(
        self, program: tuple[str, ...], some: Mapping[str, Content], budget: Budget
    ) -> dict[str, str] | None:
        """path -> sha256 of those that the program could read; None where the device has no such program."""
        size = sum(c.size for c in some.values())
        limit = budget.limits.command + size / budget.limits.hash_floor
        patient = replace(budget, limits=replace(budget.limits, command=limit))
        done = self._execute([*program, *some], patient)
        lines = {m[2]: m[1] for line in done.out.splitlines() if (m := _LINE.fullmatch(line))}
        if not lines and (done.code in _NO_PROGRAM or not _complains_of(some, done.err)):
            return None
        return lines


def _complains_of(some: Mapping[str, Content], text: str) -> bool:
    """Whether the program ran, and said of a file that it cannot be read."""
    return any(path in text for path in some)
