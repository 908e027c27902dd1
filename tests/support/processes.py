"""A process id -> the processes that it has started, read from /proc; a command -> what it says and takes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# A process starts with the peak of the one it was forked from (Linux keeps it through exec), so a small one
# stands between the tests and what is measured.
_MEASURE = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(process.pid, 0)
took = usage.ru_utime + usage.ru_stime
print("\\n" + json.dumps([os.waitstatus_to_exitcode(status), took, usage.ru_maxrss << 10]))
"""


class Measured(NamedTuple):
    """What a command wrote to stdout and stderr, its exit code, and what it and its children took: seconds of
    processor time, bytes of the largest of them."""

    said: str
    complained: str
    code: int
    seconds: float
    peak: int


def measured(*words: str) -> Measured:
    """Run a command to its end."""
    small = [sys.executable, "-I", "-S", "-c", _MEASURE, *words]
    done = subprocess.run(small, capture_output=True, text=True, check=True)
    said, _, numbers = done.stdout.rstrip("\n").rpartition("\n")
    return Measured(said, done.stderr, *json.loads(numbers))


def children(pid: int) -> list[int]:
    """The processes that a process has started and that have not ended."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            found += map(int, path.read_text().split())
    return [p for p in found if lives(p)]


def started(pid: int) -> list[int]:
    """Those, and what they have started; outermost first."""
    found = children(pid)
    return found + [q for p in found for q in started(p)]


def lives(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
