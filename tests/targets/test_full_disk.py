"""What a link writes where there is no room, a name is of the longest kind, a umask hides files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from smelt import compiler
from smelt.core.bundle import replace_file
from smelt.core.diag import SmeltError
from smelt.targets import toolchain
from smelt.targets.toolchain import join_objects

NO_SPACE = "error: NoSpaceLeft"


def _stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """A program in the place of zig that ends as the script does."""
    program = folder / "zig"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(toolchain, "zig_directory", lambda: folder)


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        ("kill -BUS $$", "infra", "zig ld.lld found no space left in '"),  # as the linker does
        (f"echo '{NO_SPACE}' >&2; exit 1", "infra", NO_SPACE),
        ("kill -KILL $$", "infra", "zig ld.lld was killed from outside"),
        ("kill -SEGV $$", "internal", "zig ld.lld failed (-11)"),
        ("echo 'another error' >&2; exit 1", "internal", "zig ld.lld failed (1): another error"),
    ],
)
def test_a_linker_that_fails(
    script: str, kind: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _stand_in(monkeypatch, tmp_path, script)
    with pytest.raises(SmeltError) as caught:
        join_objects([b"one", b"two"])
    assert caught.value.kind == kind and said in str(caught.value)


def test_temporary_files_without_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A failed write has no file's name: the folder for temporary files is named, not the bundle's."""
    (tmp_path / "own.a").symlink_to("/dev/full")

    class Full:
        def __init__(self, prefix: str) -> None:
            self.name = str(tmp_path)

        def __enter__(self) -> str:
            return self.name

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(toolchain.tempfile, "TemporaryDirectory", Full)
    with pytest.raises(SmeltError, match=f"temporary folder '{tmp_path}': No space left") as caught:
        join_objects([b"one", b"two"])
    assert caught.value.kind == "infra" and "TMPDIR" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["x" * 255, "漢" * 85, "🙂" * 63, os.fsdecode(b"\xff" * 255)])
def test_a_file_of_the_longest_name_is_replaced(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    for data in (b"old", b"new"):
        replace_file(place, data)
        assert place.read_bytes() == data and len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o755), (0o077, 0o700), (0o027, 0o750)])
def test_programs_are_for_whom_the_callers_umask_lets(mask: int, mode: int, tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(b"code")
    before = os.umask(mask)
    try:
        toolchain._deliver(tmp_path / "made", tmp_path / "runs")
        toolchain._deliver(tmp_path / "made", tmp_path / "archive", runs=False)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("runs", "archive")]
    assert modes == [mode, mode & 0o666]


def test_a_limit_is_still_told_as_a_limit(tmp_path: Path) -> None:
    """The reason of a failed write stays with the error, by which a confined compile knows a refusal."""
    with pytest.raises(SmeltError) as caught:
        toolchain._put_temporary(tmp_path / "none" / "0.o", b"code")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_code_that_finds_no_room_among_dumps_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_DUMP", "/dev/null")
    with pytest.raises(SmeltError, match=r"cannot write '/dev/null/model\.ll'") as caught:
        compiler._dump({"model.ll": lambda: "code"})
    assert caught.value.kind == "infra" and "SMELT_DUMP" in str(caught.value.hint)
