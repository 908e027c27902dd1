"""An open file or folder that processes take turns at -> its lock, or an error that names who has it."""

from __future__ import annotations

import fcntl
import os
import re
import time
from pathlib import Path

from smelt.core.diag import SmeltError, printable

LOOK = 0.01
"""Seconds between two tries."""
# a line of /proc/locks: its number, kind, mode, process, and the file's device and inode
_HELD = re.compile(r"\d+: (?:FLOCK|POSIX) +\w+ +WRITE +(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) .*")


def take_turn(fd: int, name: str, limit: float, how: int = fcntl.LOCK_EX) -> None:
    """Lock an open file or folder, which stays so until it is closed, or its process has ended.

    name: for the message. limit: seconds to wait. how: LOCK_EX or LOCK_SH. Raises SmeltError(kind='infra')
    that names the holder when they are over, and OSError where there are no locks.
    """
    end = time.monotonic() + limit
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                what = f"'{name}' has been locked for {limit:g} s by {holder(os.fstat(fd))}"
                hint = "it hangs, or was stopped: let it go on (kill -CONT) or end it, then run again"
                raise SmeltError(what, kind="infra", hint=hint) from None
        time.sleep(LOOK)


def holder(seen: os.stat_result) -> str:
    """Who has locked a file or folder for itself, as far as this system tells."""
    own = (os.major(seen.st_dev), os.minor(seen.st_dev), seen.st_ino)
    try:
        rows = [m for line in Path("/proc/locks").read_text().splitlines() if (m := _HELD.fullmatch(line))]
    except OSError:
        rows = []
    pid = next((m[1] for m in rows if (int(m[2], 16), int(m[3], 16), int(m[4])) == own), "0")
    if pid == "0":
        return "another process"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        return f"what process {pid} has started and left behind"
    return f"process {pid} ({printable(command.decode('utf-8', 'replace'))[:80]})"
