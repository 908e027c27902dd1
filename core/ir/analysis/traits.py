"""Element expressions in, what they are out: how each operand is read, what is computed, what is summed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from smelt.core.dim import YES, Dim, Facts, SymbolAtom, sym, to_dim
from smelt.core.dtype import DType
from smelt.core.ir.analysis.products import factors, split_factors, strip_casts
from smelt.core.ir.analysis.row_operand import row_operand, with_row_operand
from smelt.core.ir.analysis.running import softmax_row
from smelt.core.ir.analysis.scope import Access, accesses, expr_accesses
from smelt.core.ir.kernel import Axis, Block, Call, Expr, Index, Let, Load, Reduce, Stmt, children, walk_expr
from smelt.core.machine import FREE, Machine


@dataclass(frozen=True, slots=True)
class Read:
    """How one operand is read, over all its loads.

    loads: how many loads the expression has. bijective: each element is read at one place, at an index
    that is a permutation of the output's (axes of extent 1 apart). ordered: and the axes keep their
    order. last: and the last axis stays the last. once: no element is read by two output elements.
    linear: every index is a sum of variables times constants. shifted: each variable, those of reductions
    too, is one index, plus what is the same for all elements; the output's are in their order, and no read is
    guarded (a slice). guarded: reads are guarded. depends: an index depends on data. reduced: some load is
    inside a reduction. missing: some output axis takes no part (a broadcast). rows: every index is one
    variable, or 0 where the extent is 1. window: an index mixes variables.
    scattered: the place along the last axis depends on data, so neighbours are not read together.
    """

    loads: int
    bijective: bool = False
    ordered: bool = False
    last: bool = False
    once: bool = False
    linear: bool = False
    shifted: bool = False
    guarded: bool = False
    depends: bool = False
    reduced: bool = False
    missing: bool = False
    rows: bool = False
    window: bool = False
    scattered: bool = False


@dataclass(frozen=True, slots=True)
class RowFactor:
    """A product of which one factor reduces along the rows that the product sums over (softmax(x) * v).

    rows: the output variables that this factor follows alone; groups: those that both follow. axis: the one
    that is summed. bytes: what is kept of an element of a row: of the factor, and of its row operand, where
    it has one. softmax: the element type of the other factor, where this one is a softmax of each row."""

    groups: tuple[str, ...]
    rows: tuple[str, ...]
    axis: Axis
    bytes: int
    softmax: DType | None = None


@dataclass(frozen=True, slots=True)
class Trait:
    """What an element of a tensor is made of.

    reads: one per operand (None: not read). work: how often each intrinsic is called, reductions counted
    once. size: scalar expressions. heavy: it has a reduction. contraction: it sums products. known: False
    where there is no expression to look at. placed: the element's position is part of its value (trilu,
    eye_like). moved: the operand of which each element is one, as it is; other operands only say which one.
    rows: over how many of the outer axes all of its reductions run, where they share them (see `row_space`).
    factor: of the product that all its reductions are part of (see `row_factor`). exact: it asks which
    elements equal a reduction of them, so they must be the same each time that they are read.
    """

    reads: tuple[Read | None, ...]
    work: Mapping[str, int]
    size: int
    heavy: bool
    contraction: bool
    known: bool = True
    placed: bool = False
    moved: int | None = None
    rows: int | None = None
    factor: RowFactor | None = None
    exact: bool = False

    @property
    def plain(self) -> bool:
        """It computes nothing, it casts or moves."""
        return self.known and not self.heavy and not self.work

    @property
    def elementwise(self) -> bool:
        """Every operand is read at the output's own index, or broadcast along whole axes, and nothing else
        tells one position from another."""
        return self.known and not self.heavy and not self.placed and all(
            r is None or r.ordered or (r.missing and r.linear and not r.depends and not r.guarded)
            for r in self.reads
        )


_ROW = "$row"
"""Stands for the row operand where it has been made."""

OPAQUE = Trait((), {}, 0, False, False, known=False)


def expr_trait(
    e: Expr, operands: Sequence[str], variables: Mapping[str, Dim], shapes: Mapping[str, Sequence[Dim]],
    facts: Facts,
) -> Trait:
    """The trait of the element at an index of `variables` (name -> extent, outermost axis first).

    operands: the buffers that `reads` is about, in order. shapes: of all buffers that e loads from.
    """
    reads = expr_reads(e, variables, shapes, facts)
    reduces = tuple(x for x in walk_expr(e) if isinstance(x, Reduce))
    return Trait(
        tuple(map(reads.get, operands)), expr_work(e), expr_size(e), bool(reduces),
        any(factors(r) is not None for r in reduces), placed=_tells_positions(e, variables),
        moved=_moved(e, operands), rows=row_space(e, variables, shapes) if reduces else None,
        factor=row_factor(e, variables, shapes), exact=any(map(_equals_reduction, walk_expr(e))),
    )


def _equals_reduction(e: Expr) -> bool:
    inside = (x for a in e.args for x in walk_expr(a)) if isinstance(e, Call) and e.fn == "eq" else ()
    return any(isinstance(x, Reduce) for x in inside)


def row_space(e: Expr, variables: Mapping[str, Dim], shapes: Mapping[str, Sequence[Dim]]) -> int | None:
    """How many of the output's axes, outermost first, say which row it is, where every reduction runs along
    one: each follows these variables and no other, neither another's axes, and steps through neighbours. The
    rest of the axes lie within the row, one after the other or as one. None where any of that is not so."""
    long = [v for v, n in variables.items() if n.const_or_none != 1]
    reduces = {x for x in walk_expr(e) if isinstance(x, Reduce)}
    bound = {a.var for r in reduces for a in r.axes}
    spaces = set()
    for r in reduces:
        used = _variables_of(r)
        inner = {a.var for x in walk_expr(r) if isinstance(x, Reduce) for a in x.axes}
        if (used & bound) - inner or not _steps(r, shapes) or any(isinstance(x, Let) for x in walk_expr(r)):
            return None
        spaces.add(frozenset(used & set(long)))
    count = len(next(iter(spaces), ()))
    if len(spaces) != 1 or spaces != {frozenset(long[:count])} or not count:
        return None
    within = long[count:]
    if len(within) > 1 and not all(_as_one(x, within) for x in _outside(e) if isinstance(x, Load)):
        return None
    return list(variables).index(long[count - 1]) + 1


def row_factor(
    e: Expr, variables: Mapping[str, Dim], shapes: Mapping[str, Sequence[Dim]]
) -> RowFactor | None:
    """The factor whose rows a block of which one kernel can make ahead of the product, where all reductions
    are part of that one product: they and the factor step through neighbours along equal axes, neighbours of
    the output are columns, where there are any, and no index depends on data. What is a product itself in the
    factor is made for the block first, as its row operand."""
    outer = [x for x in _outside(e) if isinstance(x, Reduce)]
    parts = split_factors(outer[0]) if outer and all(x == outer[0] for x in outer) else None
    if parts is None or len(outer[0].axes) != 1 or any(isinstance(x, Let) for x in walk_expr(e)):
        return None
    (left, right), (axis,) = parts, outer[0].axes
    size, row, shapes = left.dtype.bytes, left, dict(shapes)
    operand = row_operand(left, axis)
    if operand is not None:
        made = Load(_ROW, (sym(axis.var),), operand.dtype)
        row, size = with_row_operand(left, axis, operand, made), size + operand.dtype.bytes
        shapes[_ROW] = (axis.extent,)
    inner = {x for x in walk_expr(row) if isinstance(x, Reduce)}
    along = all([a.extent for a in r.axes] == [axis.extent] for r in inner)
    apart = all(axis.var not in _variables_of(r) for r in inner)
    if not (along and apart) or not all(_steps(r, shapes) for r in (*inner, replace(outer[0], body=row))):
        return None
    mine, others = _variables_of(left), _variables_of(right)
    long = [v for v, n in variables.items() if n.const_or_none != 1]
    if long and long[-1] in mine and not mine.issuperset(long):
        return None
    both = tuple(v for v in variables if v in mine & others)
    alone = tuple(v for v in variables if v in mine - others)
    softmax = None if softmax_row(left, axis) is None else strip_casts(right).dtype
    return RowFactor(both, alone, axis, size, softmax)


def _variables_of(e: Expr) -> set[str]:
    """Every symbol in the indices, guards and values of an expression."""
    found: set[str] = set()
    for a in expr_accesses(e):
        guards = (d for b in a.guard for d in (b.low, b.index, b.high))
        found.update(*(d.symbols for d in (*a.index, *guards)))
    return found.union(*(x.dim.symbols for x in walk_expr(e) if isinstance(x, Index)))


def _steps(r: Reduce, shapes: Mapping[str, Sequence[Dim]]) -> bool:
    """Whether some load of a reduction steps by one element along the last axis that it reduces."""
    if not r.axes:
        return False
    last = r.axes[-1].var
    for x in walk_expr(r.body):
        if isinstance(x, Load) and x.index:
            at = max((n for n, d in enumerate(shapes[x.buffer]) if d.const_or_none != 1), default=-1)
            step = x.index[at].linear(last)
            others = any(last in d.symbols for n, d in enumerate(x.index) if n != at)
            if step is not None and step[0] == to_dim(1) and not others:
                return True
    return False


def _outside(e: Expr) -> Iterator[Load | Reduce]:
    """The loads that no reduction holds, and the reductions that no other holds."""
    stack = [e]
    while stack:
        x = stack.pop()
        if isinstance(x, Load | Reduce):
            yield x
        if not isinstance(x, Reduce):
            stack.extend(children(x))


def _as_one(x: Load, within: Sequence[str]) -> bool:
    """Whether a load has these variables as its last indices, in order, or none of them."""
    used = {s for d in x.index for s in d.symbols} & set(within)
    last = x.index[len(x.index) - len(within) :]
    return not used or last == tuple(map(sym, within))


def expr_work(e: Expr) -> Counter[str]:
    """How often each intrinsic is called for an element, with reductions counted once; casts are free."""
    found: Counter[str] = Counter()
    stack = [e]
    while stack:
        x = stack.pop()
        if isinstance(x, Call) and x.fn not in FREE:
            found[x.fn] += 1
        stack.extend(children(x))
    return found


def expr_size(e: Expr) -> int:
    """How many scalar expressions it has, repeated ones counted as often as they stand there."""
    return 1 + sum(expr_size(c) for c in children(e))


def _moved(e: Expr, operands: Sequence[str]) -> int | None:
    while isinstance(e, Let):
        e = e.body
    return operands.index(e.buffer) if isinstance(e, Load) and not e.guard else None


def _tells_positions(e: Expr, variables: Mapping[str, Dim]) -> bool:
    """Whether a variable is a value, not only an index."""
    parts = tuple(walk_expr(e))
    own = set(variables) | {a.var for x in parts if isinstance(x, Reduce) for a in x.axes}
    own |= {x.var for x in parts if isinstance(x, Let)}
    return any(x.dim.symbols & own for x in parts if isinstance(x, Index))


# ---------------------------------------------------------------- reads


def expr_reads(
    e: Expr, variables: Mapping[str, Dim], shapes: Mapping[str, Sequence[Dim]], facts: Facts
) -> dict[str, Read]:
    """How each buffer is read by the element at an index of `variables` (name -> extent, outermost first)."""
    found: dict[str, list[Access]] = {}
    for a in expr_accesses(e):
        found.setdefault(a.buffer, []).append(a)
    long = {v: n for v, n in variables.items() if n.const_or_none != 1}
    return {name: _read(shapes[name], loads, long, facts) for name, loads in found.items()}


def _read(shape: Sequence[Dim], loads: list[Access], variables: Mapping[str, Dim], facts: Facts) -> Read:
    single = len({(a.index, _axes(a)) for a in loads}) == 1
    # a chain of sums reads one place again and again
    distinct = {(a.index, _axes(a), _lets(a), bool(a.guard)): a for a in loads}
    per_load = [_place(shape, a, variables, facts) for a in distinct.values()]

    def every(name: str) -> bool:
        return all(getattr(p, name) for p in per_load)

    def any_of(name: str) -> bool:
        return any(getattr(p, name) for p in per_load)

    return Read(
        len(loads),
        bijective=single and every("bijective"), ordered=single and every("ordered"),
        last=single and every("last"), once=single and every("once"), linear=every("linear"),
        shifted=single and every("shifted"), guarded=any_of("guarded"), depends=any_of("depends"),
        reduced=any_of("reduced"), missing=any_of("missing"), rows=every("rows"),
        window=any_of("window"), scattered=any_of("scattered"),
    )


def _axes(a: Access) -> tuple[Axis, ...]:
    """What is reduced around it."""
    return tuple(x for b in a.binders if isinstance(b, tuple) for x in b)


def _lets(a: Access) -> frozenset[str]:
    """The variables around it whose values are data."""
    return frozenset(b.var for b in a.binders if isinstance(b, Let))


def picks(body: tuple[Stmt, ...], buffer: str) -> bool:
    """Whether data decide which elements of a buffer are read, at each of its loads."""
    loads = [x for x in accesses(body) if x.buffer == buffer and not x.is_store]
    return bool(loads) and all(any(not d.symbols.isdisjoint(_learned(x)) for d in x.index) for x in loads)


def _learned(a: Access) -> frozenset[str]:
    """The variables around it whose values are data, of blocks, too."""
    return _lets(a).union(v for b in a.binders if isinstance(b, Block) for v, *_ in b.let)


def _place(shape: Sequence[Dim], load: Access, variables: Mapping[str, Dim], facts: Facts) -> Read:
    """The reading of one load."""
    axes, lets = _axes(load), _lets(load)
    scope = {**variables, **{a.var: a.extent for a in axes}}
    used = {s for d in load.index for s in d.symbols}
    depends, guarded = bool(used & lets), bool(load.guard)
    reduced = bool(axes)
    linear = not depends and all(_linear(d, scope) for d in load.index)
    own = [_variable(d, scope) for d in load.index]
    names = [v for v, _ in own if v is not None]
    distinct = len(set(names)) == len(names)
    rest_zero = all(v is not None or off == to_dim(0) for v, off in own)
    shifts = all(
        v is not None or not (d.symbols & scope.keys()) for (v, _), d in zip(own, load.index, strict=True)
    )
    missing = bool(variables.keys() - used)
    injective = shifts and distinct and not depends and not (scope.keys() - set(names))
    exact = all(
        v is None or (off == to_dim(0) and equal(facts, scope[v], shape[a]))
        for a, (v, off) in enumerate(own)
    )
    units = all(v is not None or shape[a].const_or_none == 1 for a, (v, _) in enumerate(own))
    bijective = injective and rest_zero and exact and units and not guarded and not axes
    at = {v: n for n, v in enumerate(variables)}
    order = [at[v] for v in names if v in at]
    long = [a for a, d in enumerate(shape) if d.const_or_none != 1]
    last = bijective and (not long or own[long[-1]][0] == list(variables)[-1])
    return Read(
        1, bijective=bijective, ordered=bijective and order == sorted(order), last=last,
        once=injective, linear=linear, shifted=injective and not guarded and order == sorted(order),
        guarded=guarded, depends=depends, reduced=reduced, missing=missing,
        rows=rest_zero and exact and units and not guarded,
        window=any(len(d.symbols & scope.keys()) > 1 for d in load.index),
        scattered=bool(long and load.index[long[-1]].symbols & lets),
    )


def equal(facts: Facts, a: Dim, b: Dim) -> bool:
    """Whether two sizes are known to be equal."""
    return a == b or (not (a.is_const and b.is_const) and facts.prove_eq(a, b) is YES)


def _variable(d: Dim, scope: dict[str, Dim]) -> tuple[str | None, Dim]:
    """(v, c) where d is the variable v plus c, and c has no variable; (None, d) otherwise."""
    mine = [s for s in d.symbols if s in scope]
    if len(mine) != 1:
        return None, d
    parts = d.linear(mine[0])
    if parts is None or parts[0] != to_dim(1) or (parts[1].symbols & scope.keys()):
        return None, d
    return mine[0], parts[1]


def _linear(d: Dim, scope: dict[str, Dim]) -> bool:
    """Whether every variable occurs as a sum of coefficients times plain variables."""
    for _, atoms in d.terms():
        mine = [(atom, power) for atom, power in atoms if _names(atom) & scope.keys()]
        if len(mine) > 1 or any(power != 1 or not isinstance(atom, SymbolAtom) for atom, power in mine):
            return False
    return True


def _names(atom: object) -> frozenset[str]:
    if isinstance(atom, SymbolAtom):
        return frozenset({atom.name})
    found: frozenset[str] = frozenset()
    for part in (getattr(atom, "a", None), getattr(atom, "b", None), *getattr(atom, "args", ())):
        if isinstance(part, Dim):
            found |= part.symbols
    return found


def heavy(e: Expr, machine: Machine) -> bool:
    """Whether e applies a function that is expensive on the machine."""
    return any(isinstance(x, Call) and machine.heavy(x.fn) for x in walk_expr(e))
