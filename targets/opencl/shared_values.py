"""Stores of one vector loop, whose equal values are one object (core/ir/alike.py), in; what of these may be
computed ahead of all of them out.

Outputs of a transformed tile are stores that use the same loads and sums, most of them behind bounds of their
own: written out for each, a tile of 4 x 4 loads each of its 36 inputs up to 16 times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from smelt.core.dim import YES, Dim, Facts
from smelt.core.ir.analysis.scope import holding
from smelt.core.ir.kernel import Call, Const, Expr, Index, Load, Store, children, walk_expr


def independent(stores: Sequence[Store]) -> bool:
    """Whether there are several, and none reads what one of them writes."""
    written = {s.buffer for s in stores}
    loaded = {e.buffer for s in stores for e in walk_expr(s.value) if isinstance(e, Load)}
    return len(stores) > 1 and not written & loaded and not any(s.accumulate for s in stores)


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
