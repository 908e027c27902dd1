"""Weights in, a folder out that has each content once, in a file named by its SHA-256, or one file that has
each once; and back."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias

import numpy as np

from smelt.core.bundle import open_regular
from smelt.core.diag import SmeltError
from smelt.core.dtype import Array
from smelt.core.ir.graph import EAGER, FILE_PIECE, Module, Weight
from smelt.core.ir.text_print import stands_in_text

FOLDER = "smelt-weights"
"""The store of the dumps in a folder: a folder in it."""

PACKED_ALIGNMENT = 64
"""Bytes to which weights are aligned in a file of all: a mapped one is read by vectors."""

_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class WeightStore:
    """The store of the dumps in `home`. A weight of any size passes through it some MiB at a time."""

    home: Path

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self.home / FOLDER

    def keep(self, weights: Iterable[Weight]) -> None:
        """Write every weight that a module's text names by its digest and that is not there yet. A file
        appears whole or not at all. Raises SmeltError(kind='infra') when the disk refuses."""
        for w in weights:
            if stands_in_text(w):
                continue
            place = self.folder / w.digest
            if _size(place) == w.bytes:
                continue
            if w.is_named_only:
                raise self._lacks(w)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._write(w, place)
            except OSError as e:
                raise SmeltError(f"cannot write '{place}': {e.strerror or e}", kind="infra") from None

    def _write(self, w: Weight, place: Path) -> None:
        part = self.folder / f".{w.digest[:16]}.{os.urandom(4).hex()}"
        try:
            with part.open("xb") as f:
                for piece in w.pieces():
                    f.write(np.ascontiguousarray(piece).view(np.uint8).data)
            part.replace(place)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def fill(self, module: Module) -> Module:
        """The module; weights that were only named are spans of the store's files (small ones: in memory).
        Every file is read, and held against its name once. Raises SmeltError for one that is missing or is
        not what was written."""
        seen: set[str] = set()
        filled = {ref: self._found(w, seen) for ref, w in module.weights.items()}
        return module.with_(weights=filled)

    def _found(self, w: Weight, seen: set[str]) -> Weight:
        if not w.is_named_only:
            return w
        if not _DIGEST.fullmatch(w.digest):
            raise SmeltError(f"weight '{w.name}' is named by {w.digest!r}, which is no SHA-256")
        with self._opened(w) as f:
            if os.fstat(f.fileno()).st_size != w.bytes:
                raise self._damaged(w, f"{w.bytes} bytes are wanted, it has another length")
            if w.digest not in seen and hashlib.file_digest(f, "sha256").hexdigest() != w.digest:
                raise self._damaged(w, "its content is not what its name says")
            seen.add(w.digest)
            if w.bytes > EAGER:
                return replace(w, path=self.folder / w.digest, offset=0)
            f.seek(0)
            data = np.frombuffer(f.read(FILE_PIECE), w.dtype.numpy).reshape(w.shape)
            return replace(w, data=data)

    def _opened(self, w: Weight) -> BufferedReader:
        """The file of a weight: a plain one in this folder, which is neither waited for nor followed."""
        try:
            place = self.folder / w.digest
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            raise self._lacks(w) from None
        except OSError as e:
            raise self._damaged(w, e.strerror or str(e)) from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise self._damaged(w, "it is no plain file")
        return os.fdopen(fd, "rb")

    def _lacks(self, w: Weight) -> SmeltError:
        return SmeltError(
            f"weight '{w.name}' ({w.bytes} bytes) is not in '{self.folder}', which has no file {w.digest}",
            hint=f"put the folder {FOLDER} beside the .smelt file, or write both again: 'smelt opt ... -o', "
            "or a compile with SMELT_DUMP",
        )

    def _damaged(self, w: Weight, why: str) -> SmeltError:
        return SmeltError(
            f"weight '{w.name}': the file '{self.folder / w.digest}' is damaged: {why}",
            hint="remove that file and write the dump again",
        )


PackedRows: TypeAlias = "Iterator[tuple[int, Iterator[Array]]]"
"""(offset in bytes, the pieces of a weight's elements), ascending."""


def pack_weights(modules: Iterable[Module]) -> tuple[dict[str, tuple[int, int]], int, PackedRows]:
    """Where one file has the weights that the modules' texts name, each content once: digest -> (offset,
    bytes), the bytes of all, and what is written there."""
    places: dict[str, tuple[int, int]] = {}
    found: list[tuple[int, Weight]] = []
    end = 0
    for w in (w for m in modules for w in m.weights.values()):
        if stands_in_text(w) or w.digest in places:
            continue
        at = -(-end // PACKED_ALIGNMENT) * PACKED_ALIGNMENT
        places[w.digest] = at, w.bytes
        found.append((at, w))
        end = at + w.bytes
    return places, end, ((at, w.pieces()) for at, w in found)


@dataclass(frozen=True)
class PackedWeights:
    """The weights of a package's dumps. file: None where there are none. places: digest -> (offset, bytes).
    """

    file: Path | None
    places: Mapping[str, Sequence[int]]

    def fill(self, module: Module) -> Module:
        """The module; weights that were only named are spans of the file. Each is read, and held against its
        name once. Raises SmeltError for one that is missing or is not what was written."""
        named = {ref: w for ref, w in module.weights.items() if w.is_named_only}
        if not named:
            return module
        if self.file is None or not {w.digest for w in named.values()} <= self.places.keys():
            raise self._damaged("it lacks weights that its entries name")
        seen: set[str] = set()
        with open_regular(self.file) as f:
            found = {ref: self._found(w, f, self.file, seen) for ref, w in named.items()}
        return module.with_(weights={**module.weights, **found})

    def _found(self, w: Weight, f: BufferedReader, file: Path, seen: set[str]) -> Weight:
        offset, count = self.places[w.digest]
        if count != w.bytes:
            raise self._damaged(f"weight '{w.name}' has {w.bytes} bytes, its place {count}")
        if w.digest not in seen and _hash_span(f, offset, count) != w.digest:
            raise self._damaged(f"weight '{w.name}' is not what was packed")
        seen.add(w.digest)
        if count > EAGER:
            return replace(w, path=file, offset=offset)
        f.seek(offset)
        return replace(w, data=np.frombuffer(f.read(count), w.dtype.numpy).reshape(w.shape))

    def _damaged(self, why: str) -> SmeltError:
        hint = "make the package again, or copy the whole of it again"
        return SmeltError(f"the weights of the package, '{self.file}', are damaged: {why}", hint=hint)


def _hash_span(f: BufferedReader, offset: int, count: int) -> str:
    """SHA-256 (hex) of a part of a file; of what there is, where the file ends before."""
    found = hashlib.sha256()
    f.seek(offset)
    while count and (piece := f.read(min(count, FILE_PIECE))):
        found.update(piece)
        count -= len(piece)
    return found.hexdigest()


def _size(place: Path) -> int:
    """Bytes of a plain file; -1 where there is none."""
    try:
        found = place.lstat()
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1
