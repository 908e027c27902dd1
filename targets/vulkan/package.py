"""Parts in, the bytes that vulkan_driver.c builds pipelines from out: a table of parts, then their modules.

All numbers are words of 32 bits, little-endian. The head: a magic number, parts. Each part's row of 8: name
(in bytes from the start), code (in words from the start), words of it, lanes, flags, bindings, parameters,
details (in words). Rows of one name are forms of a kernel: the first is taken whose flags' features (bits in
the order of FEATURES) the device has. The details: each binding's buffer (WRITTEN when it is), each parameter
(kind << 24 | index), then the polynomials of reach, of rounds and of each binding's bytes: terms, and for
each the coefficient (low, high), the factors and their dims.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from smelt.core.dim import Dim
from smelt.targets.vulkan.emit import Part
from smelt.targets.vulkan.features import FEATURES
from smelt.targets.vulkan.index import monomials
from smelt.targets.vulkan.spirv import text_words

PACKAGE_MAGIC, ROW = 0x4B564D53, 8
ELASTIC = WRITTEN = 1 << 31
KINDS = {"buffer": 0, "dim": 1, "groups": 2, "low": 3, "high": 4}
_MOST = (1 << 62) - 1


def module_bytes(p: Part) -> bytes:
    """The module of a part, as a file."""
    return struct.pack(f"<{len(p.words)}I", *p.words)


def packed(parts: Sequence[Part]) -> bytes:
    """The code of a unit."""
    parts = [form for p in parts for form in (*p.better, p)]
    rows: list[int] = []
    tail: list[int] = []
    start = 2 + ROW * len(parts)
    for p in parts:
        name = (start + len(tail)) * 4
        tail += text_words(p.name)
        details = start + len(tail)
        tail += _details(p)
        code = start + len(tail)
        tail += p.words
        flags = sum(1 << n for n, name in enumerate(FEATURES) if name in p.features)
        flags |= ELASTIC if p.elastic else 0
        rows += [name, code, len(p.words), p.lanes, flags, len(p.bindings), len(p.parameters), details]
    words = [PACKAGE_MAGIC, len(parts), *rows, *tail]
    return struct.pack(f"<{len(words)}I", *words)


def _details(p: Part) -> list[int]:
    words = [buffer | (WRITTEN if written else 0) for buffer, written in p.bindings]
    words += [KINDS[x.kind] << 24 | x.index for x in p.parameters]
    for d in (p.reach, p.rounds, *p.sizes):
        words += _polynomial(d, p.dims)
    return words


def _polynomial(d: Dim, dims: Sequence[str]) -> list[int]:
    terms = [] if d.const_or_none == 0 else list(monomials(d))
    words = [len(terms)]
    for coefficient, names in terms:
        least = min(coefficient, _MOST)
        words += [least & 0xFFFFFFFF, least >> 32, len(names), *(dims.index(n) for n in names)]
    return words
