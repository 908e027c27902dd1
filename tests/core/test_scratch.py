"""Folders for temporary files: they go with their block, and with the next one where a process was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from smelt.core.scratch import scratch_folder

HOLD = """
import sys
from pathlib import Path
from smelt.core.scratch import scratch_folder
with scratch_folder("test") as path:
    Path(path, "file").write_text("x")
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def held() -> tuple[subprocess.Popen[str], Path]:
    """A process in such a block, and its folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_it_goes_with_the_block(tmp_path: Path) -> None:
    with scratch_folder("test") as path:
        assert Path(path).stat().st_mode & 0o777 == 0o700
        (Path(path) / "a").mkdir()
    with pytest.raises(ZeroDivisionError), scratch_folder("test"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_that_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    (dead, gone), (living, kept) = held(), held()
    dead.kill()
    dead.communicate()
    (tmp_path / "smelt-test-file").write_text("no folder")
    (tmp_path / "smelt-test-link").symlink_to(kept)
    (tmp_path / "smelt-other-1").mkdir()
    assert gone.exists()
    with scratch_folder("test"):
        assert not gone.exists()
        assert (kept / "file").exists()
    living.communicate("")
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["smelt-other-1", "smelt-test-file", "smelt-test-link"]
