"""The artefact: a directory with manifest, library, weights and headers, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, parse_dim
from smelt.core.naming import Names, is_name

SCHEMA_VERSION = 2
MANIFEST = "manifest.json"
RUNNER = "smelt_run"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Bundle:
    """A compiled model on disk. `manifest` is the parsed manifest.json; see docs/map.md for its fields."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def target(self) -> str:
        """The full name of the target that it was compiled for."""
        return str(self.manifest["target"])

    @cached_property
    def names(self) -> Names:
        """The prefix of its C functions, and the names of its library, weights and header.

        Raises SmeltError(kind='invalid') when the manifest says none that a model can have."""
        library = self.manifest.get("library")
        prefix = library.get("prefix") if isinstance(library, Mapping) else None
        if not isinstance(prefix, str) or not is_name(prefix):
            raise SmeltError(
                f"bundle '{self.path}': its manifest has no library with the prefix of a model",
                hint="compile the model again",
            )
        return Names(prefix)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the manifest, which holds every file's hash: the bundle's identity."""
        return hashlib.sha256(manifest_bytes(self.manifest)).hexdigest()

    @cached_property
    def peak(self) -> Dim:
        """Bytes of the first arena, as a formula in the symbols."""
        return parse_dim(self.manifest["memory"]["arenas"][0], limit=None)

    def peak_bytes(self, symbols: Mapping[str, int]) -> int:
        """The formula's value. Raises KeyError when a symbol is missing."""
        return self.peak.evaluate(symbols)

    def bind(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Symbol values that input shapes give. Raises SmeltError(kind='shape') on a contradiction."""
        values: dict[str, int] = {}
        for row in self.manifest["inputs"]:
            for d, got in zip(row["shape"], shapes[row["name"]], strict=True):
                e = parse_dim(str(d))
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
        for name, formula in self.manifest.get("sizes", ()):
            e = parse_dim(formula, limit=None)
            if e.symbols <= values.keys():
                values[name] = e.evaluate(values)
        return values

    def __fspath__(self) -> str:
        return str(self.path)


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """The manifest's text: sorted keys, two spaces, a newline at the end."""
    return (json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def read_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Open a bundle directory. Raises SmeltError(kind='invalid') when it is none, or of another schema."""
    folder = Path(path)
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise SmeltError(
            f"'{folder}' is no bundle: it has no {MANIFEST}",
            hint="make one with 'smelt compile MODEL -o DIR'",
        ) from None
    except NotADirectoryError:
        raise SmeltError(f"'{folder}' is a file, expected a bundle directory") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise SmeltError(f"'{file}' is damaged: {e}", hint="compile the model again") from None
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise SmeltError(
            f"'{file}' has schema version {version}, this smelt reads {SCHEMA_VERSION}",
            hint="compile the model again",
        )
    for name in manifest["files"]:
        if not (folder / name).is_file():
            raise SmeltError(f"bundle '{folder}' lacks its file '{name}'", hint="compile the model again")
    bundle = Bundle(folder, manifest)
    if bundle.names.library not in manifest["files"]:
        raise SmeltError(f"bundle '{folder}' lacks its library", hint="compile the model again")
    return bundle


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether the path looks like a bundle directory."""
    return (Path(path) / MANIFEST).is_file()


def hash_file(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    h = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK):
            h.update(chunk)
    return h.hexdigest()


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


class Staging:
    """A directory that becomes the bundle when the `with` block ends well, and vanishes otherwise."""

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self.out = Path(out).absolute()
        self.path = self.out.with_name(f".{self.out.name}.part-{os.getpid()}")

    def __enter__(self) -> Staging:
        if self.out.exists() and not is_bundle(self.out) and any_entry(self.out):
            raise SmeltError(
                f"'{self.out}' exists and is no bundle; it will not be overwritten", hint="choose another -o"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir()
        except OSError as e:
            raise _disk(self.out, e) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            if isinstance(error, OSError):
                raise _disk(self.out, error) from error

    def commit(self, manifest: dict[str, Any]) -> Bundle:
        """Hash every file into the manifest, write it, and put the directory in its place."""
        names = sorted(p.name for p in self.path.iterdir())
        full = {
            **manifest,
            "schema_version": SCHEMA_VERSION,
            "files": {n: hash_file(self.path / n) for n in names},
        }
        (self.path / MANIFEST).write_bytes(manifest_bytes(full))
        old = self.out.with_name(f".{self.out.name}.old-{os.getpid()}")
        if self.out.exists():
            os.replace(self.out, old)
        os.replace(self.path, self.out)
        shutil.rmtree(old, ignore_errors=True)
        return Bundle(self.out, full)


def any_entry(path: Path) -> bool:
    """Whether the path is a file, or a directory that holds something."""
    return path.is_file() or any(path.iterdir())


def _disk(out: Path, e: OSError) -> SmeltError:
    return SmeltError(
        f"cannot write the bundle '{out}': {e.strerror or e}",
        kind="infra",
        hint="free some space or choose another -o",
    )
