"""How large a Dim may get: the bounds that every operation keeps, and the error of one that would not.

Sizes of real models are small: at most 7 terms and 36 nodes while a model is imported, and 6,500 nodes in
the formula of an arena (13 development models). Canonical forms multiply out, so a file of a few hundred
nodes can ask for 2^60 terms. Two bounds keep that finite:

- `large` is the soft one. A size beyond it gets a name of its own where the importer can give it one: a fresh
  symbol, which a run computes from a formula of small parts.
- TooLarge is the hard one. An operation raises it before it has spent the memory; to proofs it is "unknown".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.core.diag import SmeltError

if TYPE_CHECKING:
    from smelt.core.dim.expr import Dim

TERMS: Final = 4096
"""Of a polynomial."""

MOST_PRODUCTS: Final = 1 << 16
"""Pairs of terms that one multiplication looks at."""

NODES: Final = 100_000
"""Of an expression, written out: symbols, operators and numbers."""

DEPTH: Final = 28
"""Divisions, minima and maxima inside each other; the parser takes two brackets for one."""

DEGREE: Final = 64
"""Factors of a term; a shape has at most as many axes."""

BITS: Final = 512
"""Of a coefficient."""

SOFT_TERMS: Final = 24
SOFT_NODES: Final = 256
SOFT_DEPTH: Final = 8
SOFT_DEGREE: Final = 16


class TooLarge(SmeltError):
    """A formula of sizes grew over its budget."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"a formula of sizes has more than {found}",
            kind="unsupported",
            hint="fix or bound the model's symbolic sizes (--dim NAME=N), or compute fewer sizes from sizes",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return TooLarge, (self.message.removeprefix("a formula of sizes has more than "),)


def check(terms: int, nodes: int, depth: int) -> None:
    """Raise TooLarge for an expression beyond the hard bounds."""
    if terms > TERMS:
        raise TooLarge(f"{TERMS} terms")
    if nodes > NODES:
        raise TooLarge(f"{NODES} nodes")
    if depth > DEPTH:
        raise TooLarge(f"{DEPTH} divisions, minima or maxima inside each other")


def large(d: Dim) -> bool:
    """Whether a size is better off with a name of its own."""
    if not d._poly:
        return False
    degree = max(sum(n for _, n in mono) for mono in d._poly)
    over = len(d._poly) > SOFT_TERMS or d.nodes > SOFT_NODES
    return over or d.depth > SOFT_DEPTH or degree > SOFT_DEGREE
