"""A contraction's roles in, the instruction of the machine that sums its products out."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from smelt.core.dtype import DType
from smelt.core.ir.analysis.products import factors, strip_casts
from smelt.core.ir.instructions import meaning
from smelt.core.ir.kernel import Load
from smelt.core.machine import Instruction, Machine
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.view import Roles, View

BUSY = 8
"""Sums that keep the pipes busy where no row tells: two a cycle that take four each."""


@dataclass(frozen=True)
class Fit:
    """An instruction that takes `depth` terms of the reduction's axis at a time. axis: of `extent` terms;
    outer, inner: the names of its two parts; outer is '' where the axis is one word of B as B lies."""

    row: Instruction
    axis: str
    extent: int
    depth: int
    outer: str
    inner: str


def fitting(d: Draft, v: View, r: Roles) -> Fit | None:
    """The cheapest row for the product; None where computing element by element is cheapest, or where the
    operands do not lie as a row wants them: A contiguous along an axis of constant extent, and a constant
    number of columns."""
    loads = _loads(r)
    columns = v.extent(r.column)
    if loads is None or len(v.reduces()) > 1 or not columns.is_const:
        return None
    a, b = loads
    axis = next((x for x in r.reduce.axes if _contiguous(v, a, b, x.var)), None)
    if axis is None or not axis.extent.const_or_none or b.guard or r.beside:
        return None
    n = axis.extent.const
    height = None if r.row is None else v.extent(r.row).const_or_none
    most = 1 if r.row is None else height or 2
    found = [x for x in _rows(d.machine, a.dtype, b.dtype, r.reduce.dtype) if meaning(x).rows <= most]
    best = max(found, key=lambda x: _speed(x, n), default=None)
    if best is None or meaning(best).depth == 1 or d.machine.lanes(v.bits) % meaning(best).columns:
        return None
    names = d.fresh(f"{axis.var}.o"), d.fresh(f"{axis.var}.q")
    return Fit(best, axis.var, n, meaning(best).depth, *names)


def fitting_words(d: Draft, v: View, r: Roles) -> Fit | None:
    """The cheapest row that sums the whole last axis of a reduction at once: B lies in words of so many
    bytes, of which it may be fields. None where no row does, or A does not lie in such words."""
    parts = [strip_casts(x) for x in factors(r.reduce) or ()]
    a = next((x for x in parts if isinstance(x, Load) and x in r.a), None)
    if a is None or a.guard or r.b.guard or r.b.buffer not in d.constants or not r.reduce.axes:
        return None
    var, n = r.reduce.axes[-1].var, r.reduce.axes[-1].extent.const_or_none
    if not n or v.stride(a, var) != 1 or v.stride(r.b, var) != 1:
        return None
    bare = r.b in parts
    found = [(x, meaning(x)) for x in d.machine.instructions if not meaning(x).shared]
    rows = [
        x for x, want in found
        if want.depth == n > 1 and want.rows == 1
        and (want.types[0], want.types[2]) == (a.dtype, r.reduce.dtype)
        and (want.types[1] == r.b.dtype or not bare) and d.machine.lanes(v.bits) % want.columns == 0
    ]  # fmt: skip
    best = max(rows, key=lambda x: x.macs, default=None)
    return None if best is None else Fit(best, var, n, n, "", var)


def latency(machine: Machine, r: Roles, fit: Fit | None) -> int:
    """Sums that keep the pipes busy: the instruction's latency times how many of it start in a cycle."""
    dtype = r.reduce.dtype
    rows = [x for x in _rows(machine, dtype, dtype, dtype) if meaning(x).depth == 1]
    row = fit.row if fit else rows[0] if rows else None
    if row is None:
        return BUSY
    want = meaning(row)
    return max(1, round(row.latency * row.macs / (want.rows * want.columns * want.depth)))


def _loads(r: Roles) -> tuple[Load, Load] | None:
    """The two loads of a product of bytes under casts: of A, of B."""
    parts = [strip_casts(x) for x in factors(r.reduce) or ()]
    a, b = parts if parts[-1:] == [r.b] else parts[::-1] or (None, None)
    return (a, b) if isinstance(a, Load) and isinstance(b, Load) else None


def _contiguous(v: View, a: Load, b: Load, var: str) -> bool:
    """Whether neighbours along the axis are neighbours of A, none of them guarded apart from the others, and
    the axis is one of B alone."""
    mine = [x for x in b.index if var in x.symbols]
    guarded = {n for g in a.guard for x in (g.low, g.index, g.high) for n in x.symbols}
    return v.stride(a, var) == 1 and var not in guarded and len(mine) == 1 and mine[0].symbols == {var}


def _rows(machine: Machine, a: DType, b: DType, acc: DType) -> list[Instruction]:
    """The machine's rows for a product of these types."""
    return [x for x in machine.instructions if not meaning(x).shared and meaning(x).types == (a, b, acc)]


def _speed(row: Instruction, n: int) -> float:
    """Useful multiply-adds per cycle along an axis of n terms."""
    want = meaning(row)
    return row.macs * n / (ceil(n / want.depth) * want.depth)


def power(n: int) -> int:
    """The smallest power of two >= n."""
    return 1 << max(n - 1, 0).bit_length()
