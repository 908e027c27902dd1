"""Copies the sources, so that a test can add a folder to targets/ and run commands with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


def checkout(folder: Path) -> Checkout:
    """The sources of smelt in a new folder."""
    folder.mkdir()
    for floor in FLOORS:
        # with the bytecode, which is as old as the sources: each process would compile them anew
        shutil.copytree(ROOT / floor, folder / floor, symlinks=True)
    return Checkout(folder)
