"""Stores of one vector loop in; the same stores with equal values as one object, and what of these may be
computed ahead of all of them, out.

Outputs of a transformed tile are stores that use the same loads and sums, most of them behind bounds of their
own: written out for each, a tile of 4 x 4 loads each of its 36 inputs up to 16 times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from smelt.core.dim import YES, Dim, Facts
from smelt.core.ir.analysis.scope import holding
from smelt.core.ir.kernel import Call, Const, Expr, Index, Load, Store, children, walk_expr


def independent(stores: Sequence[Store]) -> bool:
    """Whether there are several, and none reads what one of them writes."""
    written = {s.buffer for s in stores}
    loaded = {e.buffer for s in stores for e in walk_expr(s.value) if isinstance(e, Load)}
    return len(stores) > 1 and not written & loaded and not any(s.accumulate for s in stores)


def alike(stores: Iterable[Store]) -> list[Store]:
    """The stores, in which equal loads, calls and constants are the same object."""
    seen: dict[int, tuple[Expr, Expr]] = {}
    table: dict[Hashable, Expr] = {}

    def one(e: Expr) -> Expr:
        if id(e) not in seen:
            made = e
            if isinstance(e, Call):
                made = replace(e, args=tuple(one(c) for c in e.args))
            elif isinstance(e, Load) and e.otherwise is not None:
                made = replace(e, otherwise=one(e.otherwise))
            seen[id(e)] = e, table.setdefault(_key(made), made)
        return seen[id(e)][1]

    return [replace(s, value=one(s.value)) for s in stores]


def _key(e: Expr) -> Hashable:
    """The same for equal values whose parts are the same objects."""
    match e:
        case Call():
            return e.fn, e.dtype, tuple(map(id, e.args))
        case Load():
            return e.buffer, e.index, e.guard, id(e.otherwise)
        case Const():
            return repr(e.value), e.dtype  # -0.0 equals 0.0, and NaN nothing
        case Index():
            return e
    return id(e)


def ahead(
    stores: Sequence[Store], always: Collection[Store], facts: Facts, shapes: Mapping[str, tuple[Dim, ...]]
) -> Iterator[Expr]:
    """The largest values of several of these stores that may be computed whatever their bounds say: those of
    stores that are `always` made, and those whose loads are proved to lie in their buffers."""
    uses = Counter(x for s in stores for x in {id(e) for e in walk_expr(s.value)})
    sure = {id(e): True for s in always for e in walk_expr(s.value)}

    def safe(e: Expr) -> bool:
        if id(e) not in sure:
            here = isinstance(e, Call | Const | Index) or (isinstance(e, Load) and _inside(e, facts, shapes))
            sure[id(e)] = here and all(safe(c) for c in children(e))
        return sure[id(e)]

    done: set[int] = set()
    for s in stores:
        left: list[Expr] = [s.value]
        while left:
            e = left.pop()
            if id(e) in done or isinstance(e, Const | Index):
                continue
            if uses[id(e)] > 1 and safe(e):
                done.add(id(e))
                yield e
            else:
                left += children(e)[::-1]


def _inside(e: Load, facts: Facts, shapes: Mapping[str, tuple[Dim, ...]]) -> bool:
    """Whether the load reads an element that is there wherever its own bounds hold."""
    facts = holding(facts, e.guard)
    return all(
        facts.prove_le(0, i) is YES and facts.prove_lt(i, n) is YES
        for i, n in zip(e.index, shapes[e.buffer], strict=True)
    )
