"""Vectors in, their lanes combined out: of one vector to a scalar, of several to a vector with an element of
each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from smelt.core.dim import sym
from smelt.core.ir.kernel import Load, Reduce
from smelt.targets.llvm.builder import FunctionBuilder, Value
from smelt.targets.llvm.index import Env, Indexer
from smelt.targets.llvm.registers import Registers, TileRegisters

Combine = Callable[[Value, Value], Value]


def across_one(b: FunctionBuilder, v: Value, combine: Combine, mixed: bool) -> Value:
    """The lanes of a vector (a power of two) combined pairwise, halves first. mixed: the last four as two
    pairs of neighbours."""
    lanes = v.lanes
    while lanes > 1:
        half = lanes // 2
        first = range(0, 4, 2) if mixed and lanes == 4 else range(half)
        second = range(1, 4, 2) if mixed and lanes == 4 else range(half, lanes)
        v, lanes = combine(b.shuffle(v, None, first), b.shuffle(v, None, second)), half
    return b.lane(v, 0) if v.lanes else v


def across_rows(b: FunctionBuilder, rows: Sequence[Value], combine: Combine) -> Value:
    """For each row (a power of two of them, no more than a row has lanes, which are one too) what
    `across_one` gives, in the same order of operations: two vectors become one with the halves of both."""
    lanes, width, vectors = rows[0].lanes, rows[0].lanes, list(rows)
    while width > 1:
        half = width // 2
        few = len(vectors) == 1
        starts = range(0, lanes * (1 if few else 2), width)
        low, high = ([s + i for s in starts for i in range(at, at + half)] for at in (0, half))
        pairs = [(vectors[0], None)] if few else list(pairwise(vectors))[::2]
        vectors = [combine(b.shuffle(x, y, low), b.shuffle(x, y, high)) for x, y in pairs]
        lanes, width = vectors[0].lanes, half
    return vectors[0]


def whole_rows(
    e: Reduce, registers: Mapping[str, Registers], index: Indexer, env: Env, b: FunctionBuilder, lanes: int
) -> list[Value] | None:
    """The rows of a register buffer, each one vector, that the lanes of a vector loop reduce, one each; None
    where that is not what the reduction does."""
    x = e.body
    r = registers.get(x.buffer) if isinstance(x, Load) and not x.guard else None
    if not isinstance(x, Load) or r is None or isinstance(r, TileRegisters) or len(e.axes) != 1:
        return None
    *lead, last = x.index
    width = r.shape[-1]
    whole = last == sym(e.axes[0].var) and e.axes[0].extent == width and r.cuts == ((0, width),)
    places = [index.affine(d, env) for d in lead]
    bases = [base for step, base in places if step in (0, 1) and isinstance(base, int)]
    if not whole or lanes > width or len(bases) < len(places) or sum(s or 0 for s, _ in places) != 1:
        return None
    if width & (width - 1) or lanes & (lanes - 1):
        return None
    moving = [step or 0 for step, _ in places]
    return [r.read(b, [*(p + i * m for p, m in zip(bases, moving, strict=True)), 0], width)
            for i in range(lanes)]  # fmt: skip


__all__ = ["across_one", "across_rows", "whole_rows"]
