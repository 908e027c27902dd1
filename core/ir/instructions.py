"""A row of an instruction set and loops in; what the instruction takes there out, or why it does not fit.

The meaning of a row is a kernel: its last statement is a nest around one store that accumulates, its inputs
and its output are the instruction's registers, elements in row-major order. Loops fit the row when they are
that nest but for names, for where their operands lie, and for repetition: loops of their own around the row's
loops, more columns, and any number of rows. An operand may have a guard that lets through the first of the
terms that are summed, as many in every run. It may be a field of each byte that is read (few bits of it).

Of an instruction that lanes compute together, the row and the loops are those of one lane; which rows and
columns it has must follow from its number as the row says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from smelt.core.dim import Dim, DimLike, Facts, sym
from smelt.core.dtype import BYTES, DType, i32, u8
from smelt.core.ir.kernel import Bound, Call, Const, Expr, Index, Kernel, Load, Loop, LoopNode, Stmt, Store
from smelt.core.ir.text_parse import parse_kernel
from smelt.core.machine import Instruction, Machine

COMMUTES = ("add", "mul")


@dataclass(frozen=True, slots=True)
class RowMeaning:
    """What a row says. loops, store: its nest. left, right: the factors of the product that it sums.
    depth: terms that are summed into an element. rows, columns: extents of the results' last two axes
    (rows: 1 where there is one axis). shared: lanes compute it together."""

    kernel: Kernel
    loops: tuple[Loop, ...]
    store: Store
    left: Load
    right: Load
    depth: int
    rows: int
    columns: int
    shared: bool

    @property
    def types(self) -> tuple[DType, DType, DType]:
        """(left factor, right factor, sum)"""
        return self.left.dtype, self.right.dtype, self.store.value.dtype


@lru_cache(maxsize=256)
def meaning(row: Instruction) -> RowMeaning:
    """The parsed meaning of a row. Raises SmeltError(invalid) where the text is no kernel."""
    kernel = parse_kernel(row.meaning)
    loops, store = _nest(kernel.body[-1:])
    assert store is not None and store.accumulate is not None, f"{row.name} accumulates nothing"
    left, right = _loads(store.value)
    summed = [x for x in loops if not _uses(store.index, (x.var,))]
    extents = [n.const for n in kernel.outputs[0].shape]
    rows = 1 if len(extents) < 2 else extents[-2]
    depth = 1
    for x in summed:
        depth *= x.extent.const
    return RowMeaning(kernel, loops, store, left, right, depth, rows, extents[-1], row.lanes is not None)


def depths(machine: Machine) -> Mapping[tuple[DType, DType], int]:
    """The types of two factors of bytes -> how many of their products an instruction sums, of those that sum
    several at once: the fastest one for the fewest rows."""
    found: dict[tuple[DType, DType], int] = {}
    for row in sorted(machine.instructions, key=lambda x: (-meaning(x).rows, x.macs)):
        want = meaning(row)
        if want.depth > 1 and want.types[2] == i32:
            found[want.types[:2]] = want.depth
    return found


def words_pay(machine: Machine) -> bool:
    """Whether instructions multiply integers of 16 bits faster than bytes, which they widen on the way."""
    rates: dict[int, float] = {}
    for row in machine.instructions:
        left, right, made = meaning(row).types
        if made == i32 and left.bits == right.bits and meaning(row).depth > 1:
            rates[left.bits] = max(row.macs, rates.get(left.bits, 0))
    return rates.get(16, 0) > rates.get(8, 0)


@dataclass(frozen=True, slots=True)
class ByteField:
    """(byte >> shift) & mask, a number of a byte's lowest bits, of each byte that an operand reads."""

    shift: Dim
    mask: int


@dataclass(frozen=True, slots=True)
class RowOperand:
    """What is read, and the field of it that is meant; None: all."""

    load: Load
    field: ByteField | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """Where an instruction stands in a nest. around: loops that repeat it. loops: the row's variables -> the
    loops of the nest. left, right: what its operands read; fields: what is meant of each. store: what it
    accumulates into."""

    row: Instruction
    around: tuple[Loop, ...]
    loops: Mapping[str, Loop]
    left: Load
    right: Load
    store: Store
    fields: tuple[ByteField | None, ByteField | None] = (None, None)


def matrix_types(machine: Machine) -> frozenset[DType]:
    """The types of factors that lanes multiply together, matrices at a time."""
    known = (meaning(x) for x in machine.instructions)
    return frozenset(m.right.dtype for m in known if m.shared)


def match(body: Sequence[Stmt], row: Instruction, facts: Facts) -> Match | str:
    """How the statements are the row's loops, or in what they differ. facts: what holds outside of them."""
    want = meaning(row)
    loops, store = _nest(body)
    if store is None:
        return "it is no perfect nest of loops around one store"
    if store.accumulate != want.store.accumulate or store.guard:
        return f"it does not end in '{want.store.accumulate}=' without a guard"
    whys = [f"it is not {want.kernel.name}'s product of {want.left.dtype} and {want.right.dtype}"]
    for order, pair in enumerate(_factors(store.value, want.store.value)):
        for picked in combinations(loops, len(want.loops)):
            names = {w.var: x.var for w, x in zip(want.loops, picked, strict=True)}
            why = _differs(want, loops, picked, store, pair, names, facts)
            if not why:
                by_name = {w.var: x for w, x in zip(want.loops, picked, strict=True)}
                around = tuple(x for x in loops if x not in picked)
                left, right = pair
                return Match(row, around, by_name, left.load, right.load, store, (left.field, right.field))
            if order == 0:
                whys.append(why)
    return whys[-1]


def lanes_differ(found: Match, lanes: Sequence[LoopNode]) -> str:
    """In what the lanes around a match are not those of its row; '' when in nothing. lanes: the loops over
    lanes around it, outermost first. What a lane multiplies must follow its number, and nothing else of it:
    `x` picks columns, `y` rows."""
    want, shape = meaning(found.row), found.row.lanes
    if shape is None:
        return ""
    if [n.extent.const_or_none for n in lanes[-2:]] != [*shape]:
        return f"the innermost loops over lanes are not of {shape[0]} and {shape[1]}"
    y, x = (n.var if isinstance(n, Loop) else n.start for n in lanes[-2:])
    row, column = (next(iter(d.symbols)) for d in want.store.index[-2:])
    row, column = found.loops[row].var, found.loops[column].var
    sides = ((found.left, y, row, x, shape[0]), (found.right, column, x, y, want.columns))
    for load, fine, coarse, other, factor in sides:
        for d in load.index:
            near, far = d.linear(fine), d.linear(coarse)
            if other in d.symbols or near is None or far is None or near[0] * factor != far[0]:
                at = ", ".join(map(str, load.index))
                return f"{load.buffer}[{at}] does not follow the lane as the row says"
    return ""


def row_of(machine: Machine | None, name: str) -> Instruction | None:
    """The machine's row of that name."""
    rows = () if machine is None else machine.instructions
    return next((r for r in rows if r.name == name), None)


def _nest(body: Sequence[Stmt]) -> tuple[tuple[Loop, ...], Store | None]:
    loops: list[Loop] = []
    while len(body) == 1 and isinstance(body[0], Loop) and not body[0].buffers:
        loops.append(body[0])
        body = body[0].body
    leaf = body[0] if len(body) == 1 else None
    return tuple(loops), leaf if isinstance(leaf, Store) else None


def _loads(e: Expr) -> tuple[Load, Load]:
    """The two loads of a product of (widened) loads."""
    found: list[Load] = []

    def visit(x: Expr) -> None:
        if isinstance(x, Load):
            found.append(x)
        elif isinstance(x, Call):
            for a in x.args:
                visit(a)

    visit(e)
    left, right = found
    return left, right


def _factors(e: Expr, want: Expr) -> Iterator[tuple[RowOperand, RowOperand]]:
    """The operands of e that stand where the row's loads do, in their order; more where factors commute."""
    for found in _unified(e, want):
        if len(found) == 2:
            yield found[0], found[1]


def _unified(e: Expr, want: Expr) -> Iterator[tuple[RowOperand, ...]]:
    if isinstance(want, Load):
        if isinstance(e, Load) and e.dtype == want.dtype:
            yield (RowOperand(e),)
    elif isinstance(want, Const):
        if e == want:
            yield ()
    elif isinstance(want, Call) and isinstance(e, Call) and e.dtype == want.dtype:
        field = _byte_field(e, want)
        if field is not None:
            yield (field,)
        if e.fn != want.fn:
            return
        orders = [e.args] if want.fn not in COMMUTES else [e.args, e.args[::-1]]
        for args in orders:
            yield from _all(args, want.args)


def _byte_field(e: Call, want: Call) -> RowOperand | None:
    """cast:i32(byte) >> shift & mask where the row widens a byte: its type holds all that the mask lets
    through, with a sign as without."""
    like = want.args[0] if want.fn == "cast" else None
    if e.fn != "and" or not isinstance(like, Load) or like.dtype not in BYTES:
        return None
    moved, mask = e.args
    if not (isinstance(moved, Call) and moved.fn == "shr" and isinstance(mask, Const)):
        return None
    wide, by = moved.args
    byte = wide.args[0] if isinstance(wide, Call) and wide.fn == "cast" else None
    limit = int(mask.value)
    if not isinstance(byte, Load) or byte.dtype != u8 or not isinstance(by, Index):
        return None
    fits = 0 < limit <= like.dtype.limits[1] and not limit & limit + 1
    return RowOperand(byte, ByteField(by.dim, limit)) if fits else None


def _all(parts: Sequence[Expr], want: Sequence[Expr]) -> Iterator[tuple[RowOperand, ...]]:
    if len(parts) != len(want):
        return
    if not parts:
        yield ()
        return
    for first in _unified(parts[0], want[0]):
        for rest in _all(parts[1:], want[1:]):
            yield (*first, *rest)


def _differs(
    want: RowMeaning, loops: Sequence[Loop], picked: Sequence[Loop], store: Store,
    pair: tuple[RowOperand, RowOperand], names: Mapping[str, str], facts: Facts,
) -> str:
    """In what a nest whose loops stand for the row's differs from it; '' when in nothing."""
    mine = tuple(x.var for x in picked)
    for w, x in zip(want.loops, picked, strict=True):
        if not _extent_fits(want, w, x):
            return f"loop '{x.var}' of {x.extent} does not fit the row's {w.extent}"
    if not _result_fits(want, loops, mine, store, names):
        return f"{store.buffer}[{', '.join(map(str, store.index))}] is not laid out as the row's result"
    for operand, like in zip(pair, (want.left, want.right), strict=True):
        load = operand.load
        if operand.field is not None and not _field_fits(want, operand.field, mine, facts):
            return f"a field of '{load.buffer}' is not one of each byte alike"
        if not _operand_fits(want, load, like, mine, names):
            return f"{load.buffer}[{', '.join(map(str, load.index))}] is not laid out as '{like.buffer}'"
        if not _begins(want, load, like, names, facts):
            return f"the guard of '{load.buffer}' does not let through the first terms, as many in every run"
    return ""


def _extent_fits(want: RowMeaning, w: Loop, x: Loop) -> bool:
    """Terms must be as many as the row's; columns whole instructions; rows any number."""
    if not _uses(want.store.index, (w.var,)) or want.shared:
        return x.extent == w.extent
    if _uses(want.store.index[-1:], (w.var,)):
        return x.extent.is_const and x.extent.const % w.extent.const == 0 and x.extent.const > 0
    return True


def _result_fits(
    want: RowMeaning, loops: Sequence[Loop], mine: Sequence[str], store: Store, names: Mapping[str, str]
) -> bool:
    """The last axes are the row's up to a base, and the loops around pick elements of their own."""
    rank = len(want.store.index)
    if len(store.index) < rank or not _same_axes(store.index, want.store.index, mine, names):
        return False
    every = frozenset(x.var for x in loops)
    for x in loops:
        if x.var in mine:
            continue
        axes = [d for d in store.index if x.var in d.symbols]
        part = axes[0].linear(x.var) if len(axes) == 1 else None
        if part is None or part[0] != 1 or part[1].symbols & every:
            return False
    return True


def _operand_fits(
    want: RowMeaning, load: Load, like: Load, mine: Sequence[str], names: Mapping[str, str]
) -> bool:
    """The operand depends on the row's loops as the row's operand does, and its last axis is the row's."""
    allowed = {names[v] for d in like.index for v in d.symbols}
    used = {v for d in load.index for v in d.symbols}
    used |= {v for b in load.guard for d in (b.low, b.index, b.high) for v in d.symbols}
    if used & set(mine) - allowed or not isinstance(load.otherwise, Const | None):
        return False
    if want.shared:
        return not load.guard
    return not like.index or _same_axes(load.index[-1:], like.index[-1:], mine, names)


def _field_fits(want: RowMeaning, field: ByteField, mine: Sequence[str], facts: Facts) -> bool:
    """Whether a field lies within its byte, at the same bits of all bytes that the instruction reads."""
    low, high = facts.bounds(field.shift)
    inside = low is not None and high is not None and low >= 0 and high + field.mask.bit_length() <= 8
    return inside and not want.shared and not field.shift.symbols & set(mine)


def _begins(want: RowMeaning, load: Load, like: Load, names: Mapping[str, str], facts: Facts) -> bool:
    """Whether what a guard lets through of the operand's last axis, where that is summed, are its first
    elements, as many in every run: they are read as one word, with zeros or `otherwise` above them."""
    terms = [v for d in like.index[-1:] for v in d.symbols if not _uses(want.store.index, (v,))]
    for v in terms:
        guard = [b for b in load.guard if _uses((b.low, b.index, b.high), (names[v],))]
        inside = [[_holds(b, names[v], i, facts) for b in guard] for i in range(want.depth)]
        if any(None in x for x in inside):
            return False
        if sorted(map(all, inside), reverse=True) != [*map(all, inside)]:
            return False
    return True


def _holds(b: Bound, var: str, at: int, facts: Facts) -> bool | None:
    """Whether a bound holds where var is `at`; None where that depends on more, be it proved of all values:
    code of a word knows only what is one number (the variable of a loop of one round, too)."""
    ranges = {v: facts.bounds(sym(v)) for d in (b.low, b.index, b.high) for v in d.symbols}
    known = {v: low for v, (low, high) in ranges.items() if low is not None and low == high}
    low, index, high = (d.substitute({**known, var: at}) for d in (b.low, b.index, b.high))
    below, above = (index - low).const_or_none, (high - index).const_or_none
    return None if below is None or above is None else below >= 0 and above > 0


def _same_axes(
    index: Sequence[Dim], want: Sequence[Dim], mine: Sequence[str], names: Mapping[str, str]
) -> bool:
    """Whether the last axes differ from the wanted ones by a base, and the others do not move."""
    if len(index) < len(want):
        return False
    renamed: Mapping[str, DimLike] = {a: sym(b) for a, b in names.items()}
    moving = frozenset(mine)
    cut = len(index) - len(want)
    apart = [*index[:cut], *(a - b.substitute(renamed) for a, b in zip(index[cut:], want, strict=True))]
    return not any(d.symbols & moving for d in apart)


def _uses(index: Sequence[Dim], names: Sequence[str]) -> bool:
    return any(d.symbols & set(names) for d in index)

