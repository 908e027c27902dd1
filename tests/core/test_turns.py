"""Processes that take turns at a folder: one that was stopped is named, one that has died is no matter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smelt.core.diag import SmeltError
from smelt.core.turns import take_turn

HOLD = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
{then}
print("held", os.getpid(), flush=True)
time.sleep(600)
"""
PATIENT = 60.0


def held(folder: Path, then: str = "") -> tuple[subprocess.Popen[str], int]:
    """A process that has locked the folder, and the process that has the lock now."""
    argv = [sys.executable, "-c", HOLD.format(then=then), str(folder)]
    made = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    word, pid = made.stdout.readline().split()
    assert word == "held"
    return made, int(pid)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    made = os.open(tmp_path, os.O_RDONLY)
    yield made
    os.close(made)


def test_a_holder_that_was_stopped_is_named_and_not_waited_for_for_ever(tmp_path: Path, fd: int) -> None:
    other, _ = held(tmp_path)
    other.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(SmeltError) as caught:
        take_turn(fd, "the folder", 0.3)
    assert 0.3 <= time.monotonic() - start < PATIENT
    what = f"'the folder' has been locked for 0.3 s by process {other.pid} ({sys.executable}"
    assert what in str(caught.value)
    assert caught.value.kind == "infra" and "kill -CONT" in str(caught.value.hint)
    other.kill()
    other.wait()
    take_turn(fd, "the folder", PATIENT)


def test_a_lock_of_one_that_has_died_is_taken(tmp_path: Path, fd: int) -> None:
    other, _ = held(tmp_path)
    other.kill()
    other.wait()
    take_turn(fd, "the folder", 0.0)


def test_a_child_that_has_inherited_the_lock_is_told_from_its_parent(tmp_path: Path, fd: int) -> None:
    other, child = held(tmp_path, "if os.fork(): os._exit(0)")
    other.wait()
    with pytest.raises(SmeltError, match=f"by what process {other.pid} has started and left behind"):
        take_turn(fd, "the folder", 0.1)
    os.kill(child, signal.SIGKILL)
    take_turn(fd, "the folder", PATIENT)


def test_one_waits_for_its_turn(tmp_path: Path, fd: int) -> None:
    other, _ = held(tmp_path)
    threading.Timer(0.3, other.kill).start()
    take_turn(fd, "the folder", PATIENT)
    assert other.wait() == -signal.SIGKILL
