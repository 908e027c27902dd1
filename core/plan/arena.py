"""Storages with lifetimes -> offsets in one arena, as Dims, valid for every value of the symbols in range.

Greedy by size at sample points (Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020, strategy "greedy by size"), but a gap counts only when it is *proved* wide enough:
numbers choose, `Facts` decide. What cannot be proved lies above everything it might meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smelt.core.dim import YES, Dim, Facts, align_up, dmax, to_dim
from smelt.core.ir.graph import Symbol
from smelt.core.plan.lifetime import Storage

ALIGNMENT = 64
"""Bytes: a cache line and the widest vector."""

_SAMPLES = (1, 5, 37, 224)


@dataclass(frozen=True, slots=True)
class Arena:
    """offsets: of each storage's root. bytes: the peak as a formula."""

    offsets: Mapping[str, Dim]
    bytes: Dim


@dataclass(frozen=True, slots=True)
class _Placed:
    storage: Storage
    offset: Dim
    end: Dim
    at: tuple[int, ...]
    """offset at each sample"""
    to: tuple[int, ...]
    """end at each sample"""


def sample_points(symbols: Sequence[Symbol]) -> tuple[Mapping[str, int], ...]:
    """A few assignments inside the symbols' ranges: small, odd, usual and large sizes."""
    points = []
    for base in _SAMPLES:
        point = {}
        for n, s in enumerate(symbols):
            value = (base + n) * s.divisor
            high = s.high if s.high is not None else value
            point[s.name] = max(s.low, min(value, high // s.divisor * s.divisor))
        points.append(point)
    return tuple(points)


def place(storages: Sequence[Storage], facts: Facts, samples: Sequence[Mapping[str, int]]) -> Arena:
    """Offsets for all storages; two that live at the same time never overlap.

    Raises KeyError when a size has a symbol that no sample assigns.
    """
    sized = [(s, facts.simplify(align_up(s.bytes, ALIGNMENT))) for s in storages]
    values = {s.root: tuple(size.evaluate(p) for p in samples) for s, size in sized}
    order = sorted(sized, key=lambda row: (-max(values[row[0].root], default=0), row[0].first, row[0].root))
    placed: list[_Placed] = []
    for s, size in order:
        if size.const_or_none == 0:
            placed.append(_row(s, to_dim(0), size, samples))
            continue
        rivals = [p for p in placed if p.storage.first <= s.last and s.first <= p.storage.last]
        rivals = [
            p for p in rivals if any(b > a for a, b in zip(p.at, p.to, strict=True)) or not p.end.is_const
        ]
        placed.append(_row(s, _offset(size, values[s.root], rivals, facts), size, samples))
    return Arena({p.storage.root: p.offset for p in placed}, _peak([p.end for p in placed], facts, samples))


def _row(s: Storage, offset: Dim, size: Dim, samples: Sequence[Mapping[str, int]]) -> _Placed:
    end = offset + size
    return _Placed(
        s, offset, end, tuple(offset.evaluate(p) for p in samples), tuple(end.evaluate(p) for p in samples)
    )


def _offset(size: Dim, value: tuple[int, ...], rivals: Sequence[_Placed], facts: Facts) -> Dim:
    """The lowest start (0 or the end of a rival) where the storage provably misses every rival."""
    zero = tuple(0 for _ in value)
    starts: list[tuple[tuple[int, ...], Dim]] = [(zero, to_dim(0)), *((p.to, p.end) for p in rivals)]
    for at, start in sorted(starts, key=lambda row: (row[0][::-1], str(row[1]))):
        to = tuple(a + v for a, v in zip(at, value, strict=True))
        end = start + size
        if all(_apart(at, to, start, end, p, facts) for p in rivals):
            return start
    return facts.simplify(dmax(*(p.end for p in rivals)))


def _apart(at: tuple[int, ...], to: tuple[int, ...], start: Dim, end: Dim, p: _Placed, facts: Facts) -> bool:
    """Proved: below the rival or above it. The samples rule out hopeless proofs."""
    if all(a >= b for a, b in zip(at, p.to, strict=True)) and _le(p.end, start, facts):
        return True
    return all(a <= b for a, b in zip(to, p.at, strict=True)) and _le(end, p.offset, facts)


def _le(a: Dim, b: Dim, facts: Facts) -> bool:
    return a == b or facts.prove_le(a, b) is YES


def _peak(ends: Sequence[Dim], facts: Facts, samples: Sequence[Mapping[str, int]]) -> Dim:
    """The greatest end; ends that another one dominates are left out of the formula."""
    rows = {e: tuple(e.evaluate(p) for p in samples) for e in dict.fromkeys(ends)}
    kept: list[Dim] = []
    for e in sorted(rows, key=lambda d: (rows[d][::-1], str(d)), reverse=True):
        below = any(
            all(a <= b for a, b in zip(rows[e], rows[k], strict=True)) and _le(e, k, facts) for k in kept
        )
        if not below:
            kept.append(e)
    return dmax(*kept) if kept else to_dim(0)
