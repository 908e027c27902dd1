"""Where `-o` may write: only into unmodified bundles and empty folders; every other file survives."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attack_bundles import bundles
from attack_folders import put

from smelt.cli.common import write_result
from smelt.core.bundle import MANIFEST, manifest_bytes, read_bundle, sealed
from smelt.core.diag import SmeltError
from smelt.core.staging import Staging, check_output, sweep


def contents(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder: bytes of files, what links point to, '/' for folders."""
    return {
        str(p.relative_to(folder)): os.readlink(p)
        if p.is_symlink()
        else "/"
        if p.is_dir()
        else p.read_bytes()
        for p in folder.rglob("*")
        if not p.is_fifo()
    }


def refused(out: Path | str, word: str = "") -> SmeltError:
    """A compile into `out` is refused, before the work as well, and nothing around it changes."""
    place = Path(os.path.abspath(out))
    before = contents(place.parent)
    with pytest.raises(SmeltError) as caught:
        put(out, "0")
    assert contents(place.parent) == before
    assert word in str(caught.value) and caught.value.hint
    return caught.value


def test_a_thesis_beside_any_manifest_survives(tmp_path: Path) -> None:
    out = tmp_path / "home"
    (out / "photos").mkdir(parents=True)
    (out / "thesis.tex").write_text("years")
    (out / "photos" / "1.jpg").write_bytes(b"\xff\xd8")
    for text in ("{}", '{"name": "web extension"}', "", (bundles()[0] / MANIFEST).read_text()):
        (out / MANIFEST).write_text(text)
        assert refused(out).kind == "invalid"


def test_a_manifest_made_by_hand_makes_no_file_smelts(tmp_path: Path) -> None:
    """One that names the thesis with its right hash, and is sealed."""
    put(tmp_path / "out")
    thesis = tmp_path / "out" / "thesis.docx"
    thesis.write_bytes(b"years")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    manifest["files"]["thesis.docx"] = hashlib.sha256(b"years").hexdigest()
    (tmp_path / "out" / MANIFEST).write_bytes(sealed(manifest)[1])
    refused(tmp_path / "out")
    (tmp_path / "out" / MANIFEST).write_bytes(manifest_bytes(manifest))
    refused(tmp_path / "out", MANIFEST)


FOREIGN: tuple[Callable[[Path], object], ...] = (
    lambda f: (f / "notes.txt").write_text("mine"),
    lambda f: (f / "probe.weights.bak").write_text("mine"),
    lambda f: (f / ".hidden").touch(),
    lambda f: (f / "sub").mkdir(),
    lambda f: (f / "link").symlink_to("/etc/passwd"),
    lambda f: os.mkfifo(f / "pipe"),
    lambda f: (f / "probe.h").write_text("// my notes\n"),
    lambda f: (f / "probe.weights").write_bytes(b"my fine-tuned weights"),
    lambda f: (f / "probe.weights").open("ab").write(b"!"),
    lambda f: ((f / "probe.h").unlink(), (f / "probe.h").symlink_to("/etc/passwd")),
    lambda f: ((f / "smelt.h").unlink(), (f / "smelt.h").mkdir(), (f / "smelt.h" / "a").touch()),
    lambda f: ((f / MANIFEST).unlink(), (f / MANIFEST).symlink_to(bundles()[0] / MANIFEST)),
    lambda f: (f / MANIFEST).unlink(),
)  # fmt: skip


@pytest.mark.parametrize("k", range(len(FOREIGN)))
def test_what_is_not_smelts_is_named_and_stays(tmp_path: Path, k: int) -> None:
    put(tmp_path / "out")
    FOREIGN[k](tmp_path / "out")
    refused(tmp_path / "out", "will not be overwritten")


def test_no_foreign_file_is_ever_lost(tmp_path: Path) -> None:
    """Folders drawn by seed, of bundles, parts of bundles and files of others: what is there before and is
    no file that smelt wrote is there after, whether the compile was refused or not."""
    put(tmp_path / "old")
    whole = contents(tmp_path / "old")
    tried = {True: 0, False: 0}
    for seed in range(120):
        r = random.Random(seed)
        place = tmp_path / f"{seed}"
        out = place / r.choice(["out", "a b", "*", "-o", ".x"])
        out.mkdir(parents=True)
        for name, data in whole.items():
            if r.random() < 0.9:
                (out / name).write_bytes(data if r.random() < 0.9 else data[: r.randrange(len(data))])  # type: ignore
        for name in r.sample(
            ["thesis.tex", "manifest.json", "weights.bin", "libprobe.so", "a/b", "smelt.h~"],
            r.choice([0, 0, 1, 2]),
        ):
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_text("mine")
        (place / f".{out.name}.part-1").mkdir()
        (place / f".{out.name}.part-1" / "thesis.tex").write_text("mine")
        before = {(n, d) for n, d in contents(place).items()}
        done = True
        with contextlib.suppress(SmeltError):
            done = False
            put(out, "0")
            done = True
        lost = before - {(n, d) for n, d in contents(place).items()}
        assert all(done and whole[Path(n).name].startswith(d) for n, d in lost), lost  # type: ignore[arg-type]
        tried[done] += 1
    assert min(tried.values()) > 20  # both ways were gone


def test_a_truncated_bundle_is_made_again(tmp_path: Path) -> None:
    put(tmp_path / "out")
    for file in (tmp_path / "out").iterdir():
        if file.name != MANIFEST:
            os.truncate(file, file.stat().st_size // 2)
    (tmp_path / "out" / "libprobe.so").unlink()
    put(tmp_path / "out")
    read_bundle(tmp_path / "out").verify()


# ---------------------------------------------------------------- places


def test_places_that_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in" / "deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "in" / "deeper")
    for out in (".", "..", "./", str(tmp_path / "in"), "../deeper", "/"):
        with pytest.raises(SmeltError, match="holds the current folder"):
            check_output(out)
    with pytest.raises(SmeltError, match="mounted"):
        check_output("/proc")
    with pytest.raises(SmeltError):
        check_output("a\0b")
    (tmp_path / "file").write_text("mine")
    refused(tmp_path / "file", "no folder")
    with pytest.raises(SmeltError):
        put(tmp_path / "file" / "under")
    assert (tmp_path / "file").read_text() == "mine"


def test_links_relative_places_and_slashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk/out")
    for n in ("0", "1", "0"):
        for out in ("out", "out/", "./disk/../out", str(tmp_path / "disk" / "out")):
            put(out, n)
            assert (tmp_path / "out").is_symlink() and read_bundle("out").manifest == read_bundle(
                "disk/out"
            ).manifest
    assert sorted(os.listdir(tmp_path / "disk")) == ["out"]
    put("x" * 255)
    with pytest.raises(SmeltError, match="cannot write"):
        put("y" * 256)


# ---------------------------------------------------------------- two at once, and those that die


def test_a_file_that_comes_between_look_and_exchange_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from smelt.core import staging

    put(tmp_path / "out")
    real = staging._exchange

    came: list[Path] = []

    def late(a: Path, b: Path) -> bool:
        if not came:
            (b / "thesis.tex").write_text("years")
            came.append(b)
        return real(a, b)

    monkeypatch.setattr(staging, "_exchange", late)
    with pytest.raises(SmeltError, match=r"thesis\.tex"):
        put(tmp_path / "out", "0")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years"
    assert os.listdir(tmp_path) == ["out"]


def test_without_the_systems_exchange_two_renames_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt.core import staging

    monkeypatch.setattr(staging.ctypes, "CDLL", lambda *a, **k: object())
    for n in ("0", "1", "0"):
        put(tmp_path / "out", n)
        read_bundle(tmp_path / "out").verify()
    assert os.listdir(tmp_path) == ["out"]


LOOP = """
import sys
sys.path[:0] = {paths!r}
import attack_bundles
from pathlib import Path
attack_bundles.bundles = lambda: {bundles!r}
from test_output_folder import put
print("ready", flush=True)
for n in range({times}):
    put({out!r}, str(n))
"""


def _compiles(out: Path, times: int) -> subprocess.Popen[bytes]:
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "support")]
    program = LOOP.format(paths=paths, bundles=bundles(), out=str(out), times=times).replace(
        "PosixPath", "Path"
    )
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)


def test_compiles_into_one_folder_at_once_leave_one_whole_bundle(tmp_path: Path) -> None:
    both = [_compiles(tmp_path / "out", 25) for _ in range(2)]
    assert [p.wait(120) for p in both] == [0, 0]
    read_bundle(tmp_path / "out").verify()
    assert os.listdir(tmp_path) == ["out"]


def test_a_killed_compile_leaves_the_old_bundle_and_the_next_sweeps(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put(out)
    for _ in range(3):
        child = _compiles(out, 100_000)
        assert child.stdout is not None
        child.stdout.readline()
        for _ in range(20):
            read_bundle(out)  # at every moment there is a whole one
        child.kill()
        child.wait()
    living = Staging(out)
    with living as stage:
        (stage.path / "libprobe.so").write_bytes(b"half")
        put(out)
        assert stage.path.is_dir() and (stage.path / "libprobe.so").exists()
    shutil.rmtree(living.path)  # neither committed nor failed: this test's own
    for step in ("first", "last"):  # a compile that was killed there leaves an empty folder
        (tmp_path / f".out.part-7-{step.encode().hex()[:8]}").mkdir()
    empty = tmp_path / ".out.part-7-empty"
    empty.mkdir()
    sweep(out)
    assert [p.name for p in tmp_path.glob(".out.part-7-*")] == [empty.name], "nobody's compile is called so"
    empty.rmdir()
    foreign = tmp_path / ".out.part-7-thesis"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years")
    sweep(out)
    assert os.listdir(foreign) == ["thesis.tex"]
    for left in set(os.listdir(tmp_path)) - {foreign.name}:
        read_bundle(tmp_path / left).verify()  # an old one stays, killed right after the exchange
    read_bundle(out).verify()


# ---------------------------------------------------------------- other files that users name


def test_results_overwrite_results_only(tmp_path: Path) -> None:
    model, result = tmp_path / "model.onnx", tmp_path / "result.npz"
    model.write_bytes(b"onnx")
    with pytest.raises(SmeltError, match="will not be overwritten"):
        write_result(str(model), b"module", ".smelt")
    assert model.read_bytes() == b"onnx"
    (tmp_path / "link.npz").symlink_to(result)
    for data in (b"1", b"22"):
        write_result(str(tmp_path / "link.npz"), data, ".npz")
        assert result.read_bytes() == data and (tmp_path / "link.npz").is_symlink()
    with pytest.raises(SmeltError, match="cannot write"):
        write_result(str(tmp_path), b"", ".npz")
    with pytest.raises(SmeltError, match="cannot write"):
        write_result(str(tmp_path / "no" / "x.npz"), b"", ".npz")
    write_result("/dev/null", b"1", ".npz")
    assert sorted(os.listdir(tmp_path)) == ["link.npz", "model.onnx", "result.npz"]


def test_a_result_whose_weights_find_no_room_leaves_the_older_one(tmp_path: Path) -> None:
    """What a file refers to is written first, and only where the file may be written."""

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    def weights(folder: Path) -> None:
        (folder / "weights").mkdir(parents=True)

    old, model = tmp_path / "old.smelt", tmp_path / "model.onnx"
    old.write_bytes(b"older")
    model.write_bytes(b"onnx")
    with pytest.raises(SmeltError, match=r"cannot write '.*old\.smelt': No space left"):
        write_result(str(old), b"newer", ".smelt", full)
    for place, said in ((model, "will not be overwritten"), (tmp_path / "no" / "x.smelt", "cannot write")):
        with pytest.raises(SmeltError, match=said):
            write_result(str(place), b"newer", ".smelt", weights)
    assert old.read_bytes() == b"older" and sorted(os.listdir(tmp_path)) == ["model.onnx", "old.smelt"]


def test_a_hint_is_about_what_is_wrong(tmp_path: Path) -> None:
    """More space does not help a name that is too long."""
    with pytest.raises(SmeltError, match="File name too long") as caught:
        put(tmp_path / ("x" * 300), "0")
    assert "space" not in str(caught.value.hint)
    with pytest.raises(SmeltError, match="cannot write the bundle '/proc/out': No such file"):
        put("/proc/out", "0")
    with pytest.raises(SmeltError, match="No space left") as caught, Staging(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert "free some space" in str(caught.value.hint) and not os.listdir(tmp_path)
