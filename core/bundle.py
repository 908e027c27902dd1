"""The artefact, a directory with manifest, library, weights and headers: reading it, checking what it holds.

The manifest is sealed: it holds the SHA-256 of its own text and of every other file, so what a bundle says is
what a compile wrote. core.staging writes bundles.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, named_dims, parse_dim, to_dim
from smelt.core.lazily import Lazily
from smelt.core.manifest_schema import check_manifest, entry_views
from smelt.core.naming import Names

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")

SCHEMA_VERSION = 4
MANIFEST = "manifest.json"
RUNNER = "smelt_run"
MAIN = "main"
"""What the entry of a model is called that was compiled alone."""
_CHUNK = 1 << 20
_LINE: Final = 100
"""Characters of JSON up to which nothing is broken into lines."""
_SEAL: Final = re.compile(rb'^  "seal": "([0-9a-f]{64})"', re.MULTILINE)
_NO_SEAL: Final = "0" * 64
_MOST_MANIFEST: Final = 1 << 28
"""Bytes; that of the development model with the most kernels has 1.5 MB."""
_AGAIN: Final = "compile the model again, or copy the whole bundle again"


@dataclass(frozen=True)
class Bundle:
    """A compiled model on disk. `manifest` is the parsed manifest.json; see docs/map.md for its fields.

    whole: of one of several entries, the bundle that it is of; chosen: the entry's name, else ''."""

    path: Path
    manifest: Mapping[str, Any]
    whole: Bundle | None = None
    chosen: str = ""

    @property
    def target(self) -> str:
        """The full name of the target that it was compiled for."""
        return str(self.manifest["target"])

    @cached_property
    def names(self) -> Names:
        """The prefix of its C functions, and the names of its library, weights and header."""
        return Names(self.manifest["library"]["prefix"])

    @cached_property
    def entries(self) -> tuple[str, ...]:
        """The names of its entries, in order; of a model that was compiled alone, 'main'."""
        if self.chosen:
            return (self.chosen,)
        return tuple(row["name"] for row in self.manifest.get("entries", ({"name": MAIN},)))

    def entry(self, name: str | None = None) -> Bundle:
        """This bundle as it would be if it had but one entry (None: the first). Raises SmeltError."""
        if name is None or name in self.entries:
            at = 0 if name is None else self.entries.index(name)
            if len(self.entries) == 1:
                return self
            return Bundle(self.path, entry_views(self.manifest)[at], self, self.entries[at])
        known = ", ".join(self.entries)
        raise SmeltError(f"'{self.manifest['model']['name']}' has no entry {name!r:.80}; there are: {known}")

    @property
    def states(self) -> list[Mapping[str, Any]]:
        """The rows of 'state' in the order of the code's numbers, each from an entry that reads it."""
        views = entry_views(self.manifest)
        rows = {r["name"]: r for m in reversed(views) for r in m["state"] if r["start"] is not None}
        return [rows[name] for name in self.manifest.get("states", rows)]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the manifest, which holds every file's hash: the bundle's identity."""
        return hashlib.sha256(manifest_bytes((self.whole or self).manifest)).hexdigest()

    @property
    def arenas(self) -> tuple[Dim, ...]:
        """Bytes of each arena, as formulas; those of late ones are in symbols that a run decides."""
        return tuple(spelled_dim(d, self.manifest) for d in self.manifest["memory"]["arenas"])

    @property
    def state_bytes(self) -> Dim:
        """Bytes of what one run leaves for the next and of what replaces it."""
        return sum((spelled_dim(row["bytes"], self.manifest) for row in self.manifest["state"]), to_dim(0))

    def peak_bytes(self, symbols: Mapping[str, int]) -> int:
        """Bytes of the arenas whose sizes these symbols give; late ones are not among them."""
        return sum(d.evaluate(symbols) for d in self.arenas if d.symbols <= symbols.keys())

    def bind(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Symbol values that input shapes give. Raises SmeltError(kind='shape') on a contradiction."""
        values: dict[str, int] = {}
        for row in self.manifest["inputs"]:
            for d, got in zip(row["shape"], shapes[row["name"]], strict=True):
                e = spelled_dim(d, self.manifest)
                if len(e.symbols) == 1:
                    (name,) = e.symbols
                    parts = e.linear(name)
                    if name not in values and parts and parts[0].is_const and parts[1].is_const:
                        values[name] = (got - parts[1].const) // parts[0].const
                if e.symbols <= values.keys() and e.evaluate(values) != got:
                    raise SmeltError(
                        f"input '{row['name']}': expected an extent of {e.evaluate(values)} ({e}), got {got}",
                        kind="shape",
                    )
        for name, text in self.manifest.get("sizes", ()):
            e = spelled_dim(text, self.manifest)
            if e.symbols <= values.keys():
                values[name] = e.evaluate(values)
        return values

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Compare files (None: all of them) with the hashes that the manifest holds.

        Raises SmeltError(kind='invalid') naming the first that differs or is missing; reads all of each.
        """
        for name in self.manifest["files"] if names is None else names:
            with open_regular(self.path / name) as f:
                if hashlib.file_digest(f, "sha256").hexdigest() != self.manifest["files"][name]:
                    raise damaged(self.path, f"its file '{name}' is not what was compiled")

    def __fspath__(self) -> str:
        return str(self.path)


def spelled_dim(extent: int | str, manifest: Mapping[str, Any]) -> Dim:
    """The Dim of a number or a formula of the manifest, with the manifest's parts put in. Raises
    SmeltError(kind='invalid') when it spells none."""
    try:
        parts = _named(tuple((name, text) for name, text in manifest.get("parts", ())))
        return parse_dim(str(extent), names=parts)
    except (ValueError, RecursionError, OverflowError) as e:
        raise SmeltError(f"the bundle's manifest is damaged: {e}", hint=_AGAIN) from None


@lru_cache(maxsize=16)
def _named(rows: tuple[tuple[str, str], ...]) -> Mapping[str, Dim]:
    """Kept from formula to formula: a manifest has thousands."""
    return named_dims(rows)


def damaged(folder: Path, why: str) -> SmeltError:
    """What to raise where a bundle is not what was compiled."""
    return SmeltError(f"bundle '{folder}' is damaged: {why}", hint=_AGAIN)


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """The manifest's text: sorted keys, a line for each field and for each row of it, a newline at the
    end."""
    rows = (f"  {json.dumps(k)}: {_text_of(v, '    ', 2)}" for k, v in sorted(manifest.items()))
    return ("{\n" + ",\n".join(rows) + "\n}\n").encode()


def _text_of(value: object, indent: str, depth: int) -> str:
    """JSON. depth: of how many levels each item has a line, if they are long."""
    whole = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if depth == 0 or not isinstance(value, Mapping | list | tuple) or len(whole) <= _LINE:
        return whole
    items = [("", v) for v in value]
    if isinstance(value, Mapping):
        items = [(json.dumps(k, ensure_ascii=False) + ": ", v) for k, v in sorted(value.items())]
    rows = [indent + key + _text_of(v, indent + "  ", depth - 1) for key, v in items]
    first, last = "{}" if isinstance(value, Mapping) else "[]"
    return f"{first}\n" + ",\n".join(rows) + f"\n{indent[2:]}{last}"


def sealed(manifest: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The manifest with its seal, the SHA-256 of its text in which the seal is all zeros; and that text."""
    raw = manifest_bytes({**manifest, "seal": _NO_SEAL})
    seal = hashlib.sha256(raw).hexdigest()
    found = _SEAL.search(raw)
    assert found is not None  # manifest_bytes writes fields of the first level so
    return {**manifest, "seal": seal}, raw[: found.start(1)] + seal.encode() + raw[found.end(1) :]


def parse_manifest(raw: bytes) -> dict[str, Any]:
    """The manifest that a text spells. Raises ValueError saying what is wrong with it."""
    try:
        manifest = json.loads(raw.decode("utf-8"), parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if not isinstance(manifest, dict):
        raise ValueError("it is no table of fields")
    if manifest.get("schema_version") != SCHEMA_VERSION:
        _refuse_version(manifest.get("schema_version"), manifest.get("smelt"))
    seal_of(raw)
    check_manifest(manifest)
    return manifest


class OtherVersion(ValueError):
    """A manifest that another version of smelt has written."""


def _refuse_version(found: object, made_by: object) -> NoReturn:
    why = f"it has schema version {repr(found)[:40]}, this smelt reads {SCHEMA_VERSION}"
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError(why)
    raise OtherVersion(f"{why}; smelt {made_by[:40]} made it" if isinstance(made_by, str) else why)


def refused_manifest(path: Path, e: ValueError, again: str = _AGAIN) -> SmeltError:
    """What to raise where `parse_manifest` has refused the text of a file."""
    if isinstance(e, OtherVersion):
        hint = "compile the model again with this smelt, or use the smelt that made it"
        return SmeltError(f"'{path}' is for another version of smelt: {e}", hint=hint)
    return SmeltError(f"'{path}' is damaged: {e}", hint=again)


def seal_of(raw: bytes) -> str:
    """The seal of a manifest's text. Raises ValueError when it does not fit."""
    seals = _SEAL.findall(raw)
    zeros = _SEAL.sub(b'  "seal": "' + _NO_SEAL.encode() + b'"', raw)
    if len(seals) != 1 or hashlib.sha256(zeros).hexdigest().encode() != seals[0]:
        raise ValueError("its text is not what was written: the seal does not fit")
    return str(seals[0].decode())


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is no number that a manifest has")


def open_regular(path: Path | str, folder: int | None = None) -> BufferedReader:
    """A file for reading, from a folder's descriptor if one is given; pipes and devices are not waited for.

    Raises SmeltError: 'invalid' when it is missing or no plain file, 'infra' when it cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        raise SmeltError(f"the bundle lacks its file '{path}'", hint=_AGAIN) from None
    except OSError as e:
        raise SmeltError(f"cannot read '{path}': {e.strerror}", kind="infra") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SmeltError(f"'{path}' is no plain file", hint=_AGAIN)
    return os.fdopen(fd, "rb")


def read_manifest(f: BufferedReader) -> bytes:
    """The text of a manifest that is open. Raises ValueError when it is too long to be one."""
    size = os.fstat(f.fileno()).st_size
    if size > _MOST_MANIFEST:
        raise ValueError(f"it has more than {_MOST_MANIFEST} bytes")
    return f.read(size)


def read_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Open a bundle directory. Raises SmeltError(kind='invalid'): it is none, of another schema or bad."""
    try:
        folder = Path(path)
    except TypeError:
        raise SmeltError(f"expected the path of a bundle, got {type(path).__name__}") from None
    for last in (False, False, False, True):
        fd = _opened(folder)
        try:
            return _read(folder, fd)
        except SmeltError:
            # a compile that replaces the folder removes the files of the one that is looked at
            if last or (os.path.isdir(folder) and os.path.samestat(os.stat(folder), os.fstat(fd))):
                raise
        finally:
            os.close(fd)
    raise AssertionError("the last look returns or raises")


def _opened(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError:
        raise SmeltError(f"'{folder}' is a file, expected a bundle directory") from None
    except FileNotFoundError:
        raise _no_bundle(folder) from None
    except (OSError, ValueError) as e:
        raise SmeltError(f"cannot open the bundle '{folder}': {e}", kind="infra") from None


def _no_bundle(folder: Path) -> SmeltError:
    return SmeltError(
        f"'{folder}' is no bundle: it has no {MANIFEST}", hint="make one with 'smelt compile MODEL -o DIR'"
    )


def _is_file(name: str, fd: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=fd).st_mode)
    except OSError:
        return False


def _read(folder: Path, fd: int) -> Bundle:
    """The bundle in the folder that is open as fd."""
    if MANIFEST not in os.listdir(fd):
        raise _no_bundle(folder)
    with open_regular(MANIFEST, fd) as f:
        try:
            manifest = parse_manifest(read_manifest(f))
        except ValueError as e:
            raise refused_manifest(folder / MANIFEST, e) from None
    if "kind" in manifest:
        raise SmeltError(
            f"'{folder}' is a portable package, not a bundle",
            hint=f"make a bundle of it: smelt finalise {folder} -o DIR",
        )
    for name in manifest["files"]:
        if not _is_file(name, fd):
            raise SmeltError(f"bundle '{folder}' lacks its file '{name}'", hint=_AGAIN)
    bundle = Bundle(folder, manifest)
    for name in (bundle.names.library, *([bundle.names.weights] if manifest["weights"]["bytes"] else [])):
        if name not in manifest["files"]:
            raise SmeltError(f"bundle '{folder}' lacks its file '{name}'", hint=_AGAIN)
    return bundle


def replace_file(place: Path, data: bytes) -> None:
    """Write a file whole or not at all: what was there stays until all is written. Raises OSError."""
    start = os.fsdecode(os.fsencode(place.name)[:200])  # a name has 255 bytes at most
    part = place.with_name(f".{start}.{os.urandom(4).hex()}")
    with part.open("xb") as f:
        try:
            f.write(data)
            if os.path.exists(place):
                part.chmod(stat.S_IMODE(place.stat().st_mode))
            f.flush()
            part.replace(place)
        except BaseException:
            part.unlink()
            raise


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether the path looks like a bundle directory."""
    return os.path.isfile(os.path.join(path, MANIFEST))  # which no path is too long for


def hash_file(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def write_weights(path: Path, rows: Iterable[tuple[int, Iterable[np.ndarray[Any, Any]]]], total: int) -> str:
    """Write tensors, each as its arrays one after the other, at their byte offsets (ascending) into `total`
    bytes, gaps zero, and then the SHA-256 of these as 32 bytes, by which a model knows its own weights.
    Weights larger than memory pass through. Returns the SHA-256 (hex)."""
    h, at = hashlib.sha256(), 0
    with path.open("wb") as f:

        def put(data: Any) -> None:
            f.write(data)
            h.update(data)

        for offset, arrays in rows:
            put(bytes(offset - at))
            at = offset
            for array in arrays:
                raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                for start in range(0, raw.size, _CHUNK):
                    put(raw[start : start + _CHUNK].data)
                at += raw.size
        assert at <= total, (at, total)
        put(bytes(total - at))
        f.write(h.digest())
    return h.hexdigest()
