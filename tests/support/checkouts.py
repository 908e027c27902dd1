"""Copies the sources, so that a test can add a folder to targets/ and run commands with it."""

from __future__ import annotations

import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WARM = Path(__file__).with_name("warm.py")
FLOORS = ("core", "importer", "families", "targets", "devicefarm", "smelt")
FAKE = (ROOT / "tests/support/fake_device/target.py", ROOT / "tests/targets/runtime_c/fake_driver.c")
"""A device that needs no hardware, as a folder of targets/."""


@dataclass(frozen=True)
class Checkout:
    """A copy of the sources."""

    path: Path

    def add(self, name: str, *files: Path) -> None:
        """A folder of targets/ with copies of these files."""
        folder = self.path / "targets" / name
        folder.mkdir()
        for file in files:
            shutil.copy(file, folder)

    def python(self, *words: str, timeout: float = 300, **more: str) -> subprocess.CompletedProcess[str]:
        """Python in the copy, which it imports. more: of the environment."""
        env = {**os.environ, "PYTHONPATH": str(self.path), **more}
        return subprocess.run(
            [sys.executable, *words], cwd=self.path, env=env, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip

    def script(
        self, code: str, *words: str, timeout: float = 900, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Like `python -c`, in a fork of a process that has imported the copy once for all scripts, and has
        a `compiled` for scripts (warm.py). more: of the environment, none of it for the dynamic linker. What
        a script prints stands with its errors."""
        warm, log = _warm(self.path), self.path / "script.log"
        log.write_bytes(b"")
        work = {"code": code, "arguments": words, "environment": {**os.environ, **more}, "output": str(log)}
        assert warm.stdin is not None and warm.stdout is not None
        warm.stdin.write(f"{json.dumps(work)}\n".encode())
        warm.stdin.flush()
        if not select.select([warm.stdout], [], [], timeout)[0]:
            os.killpg(warm.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(words, timeout, stderr=log.read_text("utf-8", "replace"))
        status = int(warm.stdout.readline())
        return subprocess.CompletedProcess(words, status, "", log.read_text("utf-8", "replace"))


@functools.cache
def _warm(copy: Path) -> subprocess.Popen[bytes]:
    """The process that forks scripts; it ends with this one."""
    env = {**os.environ, "PYTHONPATH": str(copy)}
    return subprocess.Popen(
        [sys.executable, "-P", str(WARM)], cwd=copy, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def checkout(folder: Path) -> Checkout:
    """The sources of smelt in a new folder."""
    folder.mkdir()
    for floor in FLOORS:
        # with the bytecode, which is as old as the sources: each process would compile them anew
        shutil.copytree(ROOT / floor, folder / floor, symlinks=True)
    return Checkout(folder)
