"""A seed -> a place with files of others, and compiles into it while things change there: nothing is lost.

The place has bundles, parts of bundles, foreign files and folders, links, manifests of other tools, under
names of any bytes; somebody else may replace the folder in the middle of a compile, or compile and load at
once. The outcome is a whole bundle or a refusal that says what to do, and every file that smelt has not
written is what and where it was.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from attack_bundles import bundles
from campaign import Outcome, main

from smelt.core.bundle import MANIFEST, read_bundle
from smelt.core.diag import SmeltError
from smelt.core.staging import Staging
from smelt.session import load

NAMES = (
    "out", "a b", "*", "-o", ".x", "line\nbreak", "x" * 240, "\u00fc\u4e2d\U0001f600", "'\"", "$HOME",
    os.fsdecode(b"odd\xff\xfe\x80"), "out.", "~", "%s", "con", "a\\b",
)  # fmt: skip
FOREIGN = (
    "thesis.tex", "weights.bin", "libprobe.so", "probe.h~", ".git", "probe.weights.bak", "smelt.h",
    os.fsdecode(b"\xe4bc"), "manifest.json", "smelt_run",
)  # fmt: skip
MANIFESTS = ("{}", '{"name": "web extension", "files": {}}', "", "[" * 3000, '{"seal": "%s"}' % ("0" * 64))


def put(out: Path | str, what: int | str = 1, meanwhile: Callable[[], object] = lambda: None) -> None:
    """What a compile does with a folder: the files of a bundle through a staging folder, in no time."""
    whole = bundles()[int(what) % 2]
    manifest = {k: v for k, v in read_bundle(whole).manifest.items() if k not in ("files", "seal")}
    with Staging(out) as stage:
        for name in read_bundle(whole).manifest["files"]:
            shutil.copy(whole / name, stage.path / name)
        meanwhile()
        stage.commit(manifest)


@dataclass
class Place:
    """A folder that an attack has for itself. out: what is compiled into. kept: what has to be there at the
    end: the bytes of a file, the text of a link, None for a folder."""

    root: Path
    out: Path
    r: random.Random
    kept: dict[Path, bytes | str | None] = field(default_factory=dict)

    def mine(self, path: Path, text: str = "") -> None:
        """A file that is not smelt's, in folders that are not smelt's either."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text or f"mine {len(self.kept)}")
        if self.r.random() < 0.2:
            path.chmod(0o400)
        self.kept[path] = path.read_bytes()

    def link(self, path: Path, to: str | Path) -> None:
        """A link that is not smelt's."""
        path.symlink_to(to)
        self.kept[path] = os.readlink(path)

    def moved(self, old: Path, new: Path) -> None:
        """Rename, with all that lies under it."""
        old.rename(new)
        for p in [p for p in self.kept if p == old or old in p.parents]:
            self.kept[new / p.relative_to(old)] = self.kept.pop(p)

    def lost(self) -> list[str]:
        """What is not as it was."""
        return [f"{p!r}: {found!r}" for p, want in self.kept.items() if (found := _found(p)) != want]


def _found(p: Path) -> bytes | str | None:
    if p.is_symlink():
        return os.readlink(p)
    if p.is_dir():
        return None
    return p.read_bytes() if p.exists() else "nothing is there"


# ---------------------------------------------------------------- what is there, and what comes between


def _bundle(p: Place) -> None:
    shutil.copytree(bundles()[0], p.out)


def _part(p: Place) -> None:
    """A bundle that was not copied to its end; its files are smelt's as far as they go."""
    _bundle(p)
    for file in sorted(p.out.iterdir()):
        chance = p.r.random()
        if chance < 0.2 and file.name != MANIFEST:
            os.truncate(file, p.r.randrange(file.stat().st_size))
        elif chance < 0.3:
            file.unlink()


def _foreign(p: Place) -> None:
    for name in p.r.sample(FOREIGN, p.r.randint(1, 3)):
        if (p.out / name).exists():
            (p.out / name).unlink()
        manifest = (bundles()[0] / MANIFEST).read_text()  # under its own name it would be smelt's
        p.mine(p.out / name, p.r.choice(["", "", "" if name == MANIFEST else manifest]))


def _bundle_and_foreign(p: Place) -> None:
    _bundle(p)
    _foreign(p)


def _nested(p: Place) -> None:
    p.r.choice([_bundle, lambda p: p.out.mkdir()])(p)
    p.mine(p.out / "a" / "b" / "thesis.tex")
    shutil.copytree(bundles()[1], p.out / "inner")
    p.kept |= {f: f.read_bytes() for f in (p.out / "inner").iterdir()}


def _links_inside(p: Place) -> None:
    _bundle(p)
    p.mine(p.root / "elsewhere" / "thesis.tex")
    name = p.r.choice(["link", "probe.h", MANIFEST, "smelt_run"])
    (p.out / name).unlink(missing_ok=True)
    p.link(p.out / name, p.r.choice([p.root / "elsewhere" / "thesis.tex", p.root / "elsewhere", "nowhere"]))


def _other_tools(p: Place) -> None:
    p.mine(p.out / MANIFEST, p.r.choice([m for m in MANIFESTS if m]))


def _a_file(p: Place) -> None:
    p.mine(p.out)


def _a_link(p: Place) -> None:
    """To a file, to nothing, to itself, to a foreign folder."""
    p.mine(p.root / "target" / "thesis.tex")
    p.link(p.out, p.r.choice(["target/thesis.tex", "target/thesis.tex/under", p.out.name, "target"]))


def _a_link_to_a_bundle(p: Place) -> None:
    shutil.copytree(bundles()[0], p.root / "disk")
    p.link(p.out, "disk")


BEFORE: tuple[Callable[[Place], object], ...] = (
    lambda p: None, lambda p: p.out.mkdir(), _bundle, _bundle, _part, _foreign, _bundle_and_foreign, _nested,
    _links_inside, _other_tools, _a_file, _a_link, _a_link_to_a_bundle,
)  # fmt: skip


def _aside(p: Place) -> None:
    if os.path.lexists(p.out):
        p.moved(p.out, p.root / "aside")


def _swap(p: Place) -> None:
    _aside(p)
    _foreign(p)


def _turn_into_a_file(p: Place) -> None:
    _aside(p)
    p.mine(p.out)


def _turn_into_a_link(p: Place) -> None:
    _aside(p)
    p.mine(p.root / "there" / "thesis.tex")
    p.link(p.out, p.r.choice(["there", "there/thesis.tex", "nowhere"]))


def _add(p: Place) -> None:
    if p.out.is_dir():
        p.mine(p.out / "late.tex")


def _beside(p: Place) -> None:
    """A folder that is called as those of compiles, and is not one."""
    p.mine(p.root / f".{p.out.name[:200]}.part-{p.r.randrange(99)}-thesis" / "thesis.tex")


MEANWHILE: tuple[Callable[[Place], object], ...] = (
    lambda p: None, lambda p: None, lambda p: None, _aside, _swap, _turn_into_a_file, _turn_into_a_link, _add,
    _beside, lambda p: put(p.out, 1),
)  # fmt: skip


# ---------------------------------------------------------------- the attack


def attack(seed: int) -> Outcome:
    """One place, and one compile into it or several at once."""
    r = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="smelt-folders-") as name:
        root = Path(name) / "place"
        p = Place(root, root / r.choice(NAMES), r)
        p.mine(root / "beside.tex")
        before, between = r.choice(BEFORE), r.choice(MEANWHILE)
        before(p)
        if r.random() < 0.2:
            _beside(p)
        place = Path(os.path.realpath(p.out))  # a link is followed when the compile begins
        what = f"{before.__name__}, {between.__name__}, {p.out.name[:20]!r}"
        try:
            done = _at_once(p) if r.random() < 0.15 else _alone(p, between)
        except Exception as e:
            return Outcome(f"raises {type(e).__name__}", True, f"{what}: {e}")
        return _judged(p, place, done, what)


def _alone(p: Place, between: Callable[[Place], object]) -> str:
    """'' when it is compiled, or the refusal."""
    came: list[bool] = []

    def once() -> None:
        if not came:
            came.append(True)
            between(p)

    return _refusal(lambda: put(p.out, 0, once))


def _refusal(do: Callable[[], object]) -> str:
    try:
        do()
    except SmeltError as e:
        if e.kind not in ("invalid", "infra") or not e.hint:
            raise AssertionError(f"a refusal without a hint, of kind {e.kind}: {e}") from e
        return str(e)
    return ""


def _at_once(p: Place) -> str:
    """Three compiles and a reader in threads. '' when all were done, or a refusal."""
    told: list[str] = []
    broken: list[BaseException] = []
    over = threading.Event()

    def compiles(n: int) -> None:
        try:
            told.extend(_refusal(partial(put, p.out, n + k)) for k in range(4))
        except BaseException as e:
            broken.append(e)

    def loads() -> None:
        while not over.is_set():
            try:
                load(p.out, threads=1).close()
            except SmeltError:  # there is none yet, or it is being replaced
                pass
            except BaseException as e:
                broken.append(e)
                return

    reader = threading.Thread(target=loads)
    writers = [threading.Thread(target=compiles, args=(n,)) for n in range(3)]
    for t in (reader, *writers):
        t.start()
    for t in writers:
        t.join()
    over.set()
    reader.join()
    if broken:
        raise broken[0]
    return next(filter(None, told), "") if all(told) else ""


def _judged(p: Place, place: Path, refused: str, what: str) -> Outcome:
    lost = p.lost()
    if lost:
        return Outcome("loses files of others", True, f"{what} ({refused}): {lost}")
    left = [n for n in os.listdir(p.root) if ".part-" in n and "thesis" not in n]
    if left:
        return Outcome("leaves its folder", True, f"{what} ({refused}): {left}")
    if not refused:
        try:
            read_bundle(place).verify()
        except SmeltError as e:
            return Outcome("says it is compiled, and is not", True, f"{what}: {e}")
    return Outcome("refused" if refused else "compiled")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 2000))
