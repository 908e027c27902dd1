"""A block of code in; its floating-point arithmetic with subnormal operands and results taken for 0.

It makes NumPy and ONNX Runtime compute as compiled models do (docs/floating-point.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import struct
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

_PLACES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"x86_64": (28, 1 << 15 | 1 << 6), "aarch64": (0, 1 << 24)}
)
"""Processor -> where the fenv_t of Linux's C libraries has the control word (MXCSR, FPCR), and its bits."""

_ROOM = 64
"""Bytes, more than any fenv_t has."""


def keeps_subnormals(options: Mapping[str, Any]) -> bool:
    """Whether a bundle computes with subnormal numbers. options: those of its manifest; where they do not say
    it, the bundle is of the time before there was a choice, and does."""
    return bool(options.get("keep_subnormals", True))


def flush_is_possible() -> bool:
    """Whether this system has the mode; where not, `flushed` changes nothing."""
    return _library() is not None


@contextlib.contextmanager
def flushed(on: bool = True) -> Iterator[None]:
    """While the block runs, the arithmetic of this thread flushes subnormal numbers to 0; with `on` False it
    stays as it is."""
    library = _library() if on else None
    if library is None:
        yield
        return
    before = ctypes.create_string_buffer(_ROOM)
    library.fegetenv(before)
    at, bits = _PLACES[platform.machine()]
    within = ctypes.create_string_buffer(before.raw, _ROOM)
    (word,) = struct.unpack_from("<I", before, at)
    struct.pack_into("<I", within, at, word | bits)
    library.fesetenv(within)
    try:
        yield
    finally:
        library.fesetenv(before)


@cache
def _library() -> ctypes.CDLL | None:
    """The library with C's <fenv.h>; None on other systems than Linux, and on other processors."""
    if sys.platform != "linux" or platform.machine() not in _PLACES:
        return None
    for name in ("libm.so.6", None):  # glibc's; musl has one library for all
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            return library if library.fegetenv and library.fesetenv else None
    return None
