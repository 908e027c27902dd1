"""A bundle in; its open folder and its loaded library out, identified by content, never by path or search.

The dynamic linker returns what it has mapped under a path before, even where the file has been replaced. So
the bytes of the library are read, compared with the manifest's hash and written to an unnamed file, which is
loaded; sessions of the same bytes share it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from smelt.core.bundle import (
    MANIFEST,
    Bundle,
    damaged,
    open_regular,
    read_manifest,
    replace_file,
    seal_of,
)
from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError
from smelt.core.forksafe import ForkSafe
from smelt.core.scratch import private_folder

COPIED = 32 << 20
"""Bytes of weights up to which smelt_open verifies all of them (runtime/weights.c); larger files are verified
here."""
_EXECUTABLE = 0x10
"""MFD_EXEC, which Linux 6.3 wants to be told and older ones refuse."""


class Moved(SmeltError):
    """The folder holds another bundle than the one whose manifest was read."""


class Held:
    """A bundle's open folder: all that is read through it belongs to one bundle, even where another folder
    takes its path."""

    def __init__(self, bundle: Bundle) -> None:
        """Raises Moved, or SmeltError as `open_regular` does."""
        self.bundle = bundle
        try:
            self._folder = os.open(bundle.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as e:
            raise Moved(f"cannot open the bundle '{bundle.path}': {e.strerror}", kind="infra") from None
        try:
            self._same()
        except BaseException:
            self.close()
            raise

    def _same(self) -> None:
        path = self.bundle.path
        try:
            with open_regular(MANIFEST, self._folder) as f:
                seal = seal_of(read_manifest(f))
        except (SmeltError, ValueError):
            seal = ""
        if seal != self.bundle.manifest.get("seal"):
            raise Moved(
                f"'{path}' does not hold the bundle any more that was read from it",
                hint="read it again: smelt.load of the path, or of what the last compile returned",
            )

    def close(self) -> None:
        """Let the folder go."""
        os.close(self._folder)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """A path through /proc by which C code of this process opens this very folder."""
        held = f"/proc/self/fd/{self._folder}"
        return held if os.path.isdir(held) else str(self.bundle.path)

    def with_folder_name(self, text: str) -> str:
        """The C code's error message with the folder's name in place of `path`."""
        return text.replace(f"/proc/self/fd/{self._folder}", str(self.bundle.path))

    def library(self) -> ctypes.CDLL:
        """Load the bundle's library. Raises SmeltError: 'invalid' (damaged), 'device' (for another
        platform)."""
        file = self.bundle.names.library
        with self._open(file) as f:
            data = f.read()
        digest = hashlib.sha256(data).hexdigest()
        if digest != self.bundle.manifest["files"][file]:
            raise damaged(self.bundle.path, f"its file '{file}' is not what was compiled")
        try:
            return _loaded(digest, data, self.bundle.names.prefix)
        except OSError as e:
            raise SmeltError(
                f"cannot load '{self.bundle.path}', compiled for {self.bundle.target}: {e}",
                kind="device",
                hint="run it on its device with 'smelt run --device', or compile with --target host",
            ) from None

    def verify(self, wanted: bool | None) -> None:
        """Compare the weights with their hash. wanted: True always, False never; None: where they are too
        large for smelt_open to verify, once per file on this machine. Raises SmeltError(kind='invalid')."""
        file, total = self.bundle.names.weights, self.bundle.manifest["weights"]["bytes"]
        if not total or wanted is False or (wanted is None and total <= COPIED):
            return
        digest = self.bundle.manifest["files"][file]
        with self._open(file) as f:
            stamp = _stamp(os.fstat(f.fileno()), digest)
            if wanted is None and stamp is not None and os.path.exists(stamp):
                return
            if hashlib.file_digest(f, "sha256").hexdigest() != digest:
                raise damaged(self.bundle.path, f"its file '{file}' is not what was compiled")
        if stamp is not None:
            with contextlib.suppress(OSError):  # the next load verifies again
                stamp.parent.mkdir(parents=True, exist_ok=True)
                stamp.touch()

    def check(self, verify: bool | None = None) -> None:
        """Compare every file with its hash, the weights as `verify` does. Raises SmeltError('invalid')."""
        self.bundle.verify(n for n in self.bundle.manifest["files"] if n != self.bundle.names.weights)
        self.verify(verify)

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[BufferedReader]:
        try:
            f = open_regular(name, self._folder)
        except SmeltError as e:
            raise Moved(f"bundle '{self.bundle.path}': {e.message}", kind=e.kind, hint=e.hint) from None
        with f:
            yield f


def _stamp(s: os.stat_result, digest: str) -> Path | None:
    """The path of the marker that a file of this identity (device, inode, size, times) was found to have the
    digest; None where there is no folder for markers. A copied, downloaded or changed file has another
    identity."""
    facts = f"{s.st_dev} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {digest}"
    with contextlib.suppress(SmeltError):
        return cache_dir() / "verified" / hashlib.sha256(facts.encode()).hexdigest()
    return None


# ---------------------------------------------------------------- code by content

_LOCK = ForkSafe()
_CODE: dict[str, ctypes.CDLL] = {}
"""SHA-256 of a library -> the loaded library. The linker's own table is keyed by path, which may be stale. A
library stays loaded until the process ends, as any extension module does."""


def _loaded(digest: str, data: bytes, prefix: str) -> ctypes.CDLL:
    """Load a library from its bytes. prefix: of its C functions, which is a safe name for a file too. Raises
    OSError with the linker's message."""
    with _LOCK:
        if digest not in _CODE:
            with _private(data, f"smelt-{prefix}-{digest[:8]}", len(_CODE)) as path:
                _CODE[digest] = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        return _CODE[digest]


@contextlib.contextmanager
def _private(data: bytes, name: str, serial: int) -> Iterator[str]:
    """A path, never the same twice, under which the linker finds these bytes inside the block."""
    if folder := os.environ.get("SMELT_KEEP_CODE"):  # debuggers and sanitizers read symbols from a file
        kept = Path(folder).absolute() / f"{name}-{hashlib.sha256(data).hexdigest()}.so"
        replace_file(kept, data)
        yield str(kept)
        return
    fd = _memory_file(name)
    if fd is None:
        folder = private_folder("smelt-load-")
        try:
            path = Path(folder) / f"lib{serial}.so"
            path.write_bytes(data)
            path.chmod(0o500)
            yield str(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # our own, made above; the code stays mapped
        return
    try:
        with os.fdopen(os.dup(fd), "wb") as f:
            f.write(data)
        # the linker keeps paths, and the number of a closed file comes again: spell each load in its own way
        spelling = "".join("/." if bit == "1" else "/" for bit in f"{serial:b}")
        yield f"/proc/self/fd{spelling}/{fd}"
    finally:
        os.close(fd)


def _memory_file(name: str) -> int | None:
    """The descriptor of a file in memory, named for debuggers and profilers; None where the system has
    none."""
    if not hasattr(os, "memfd_create") or not os.path.isdir("/proc/self/fd"):
        return None
    for flags in (os.MFD_CLOEXEC | _EXECUTABLE, os.MFD_CLOEXEC):
        with contextlib.suppress(OSError):
            return os.memfd_create(name, flags)
    return None
