"""Android's log on a device -> the lines about a model's process, since its run began.

logd keeps what all programs write, so the text is cut to its end on the device, and here to the lines of that
process, those that name it (the crash dumper, the low-memory killer), and the errors of others, such as a
GPU's driver or SELinux.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from smelt.core.bundle import RUNNER
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, StepLimits

LOGCAT_WAIT = 5.0
"""Seconds that all commands together may take."""
LOGCAT_READ, LOGCAT_KEPT = 256 << 10, 8 << 10
"""Bytes of the log's end that the device sends, and of lines that are kept."""
_NOW = re.compile(r"(\d{1,12})(?:\.(?:(\d{3})\d*|%?N))?\s*")  # some know no fractions
_LINE = re.compile(r"(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d\.\d+ +(\d+) +\d+ ([VDIWEF]) (.*)")


def read_log(shell: Callable[[str, Budget], str], seconds: float, pid: int) -> str:
    """The lines since a run began; '' where the device has no logcat, or does not answer in time.

    shell: runs a text on the device and returns its output, whatever its exit code. seconds: for how long the
    run had gone on when this was called. pid: of the model's process, 0 where it is not known. The start is
    taken on the device's own clock, at most the time of a command too early.
    """
    budget = Budget(StepLimits(connect=LOGCAT_WAIT, command=LOGCAT_WAIT, total=LOGCAT_WAIT))
    called = time.monotonic()
    try:
        now = _NOW.fullmatch(shell("date +%s.%N", budget))
        if now is None:
            return ""
        start = int(now[1]) * 1000 + int(now[2] or 0) - round((seconds + time.monotonic() - called) * 1000)
        since = f"{max(start, 0) // 1000}.{max(start, 0) % 1000:03}"
        text = shell(f"logcat -d -v threadtime -T {since} 2>/dev/null | tail -c {LOGCAT_READ}", budget)
    except SmeltError:
        return ""
    return about(text, pid)


def about(text: str, pid: int) -> str:
    """Those lines of a log that have to do with the process, the last LOGCAT_KEPT bytes of them."""
    names = re.compile(rf"\b(?:{pid}|{re.escape(RUNNER)})\b" if pid else re.escape(RUNNER))
    kept: list[str] = []
    for line in text.splitlines():
        found = _LINE.fullmatch(line.strip())
        if found is not None and (int(found[1]) == pid or found[2] in "EF" or names.search(found[3])):
            kept.append(line.strip())
    size, first = 0, len(kept)
    while first and (size := size + len(kept[first - 1].encode()) + 1) <= LOGCAT_KEPT:
        first -= 1
    return "\n".join(kept[first:])
