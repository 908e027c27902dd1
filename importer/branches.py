"""Two branches in, each a region of its own; an `if` node and the values after it out."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smelt.core.diag import Problem
from smelt.core.dim import ONE, Dim, Truth, to_dim
from smelt.core.dtype import i64
from smelt.core.ir.graph import Graph, Ref, TensorType
from smelt.core.ops.infer import Engine
from smelt.importer import known as kn
from smelt.importer import sequences as sq
from smelt.importer.builder import GraphBuilder

SHAPE = 8
"""Elements: a longer integer vector is not treated as a shape."""


@dataclass(frozen=True)
class TranslatedBranch:
    """One branch: its region, and the refs of the values that are read after it."""

    region: GraphBuilder
    refs: list[Ref]


Problems: TypeAlias = Mapping[tuple[str | None, str], Problem]


def never_runs(
    problems: Problems, before: Problems, malformed: Container[tuple[str | None, str]] = ()
) -> bool:
    """Whether all that came to the problems of `before` is nodes that could not run with the sizes that they
    are given. malformed: keys of problems that no other sizes would end, since an operator forbids them."""
    new = [(key, p.kind) for key, p in problems.items() if key not in before]
    return bool(new) and all(kind == "invalid" and key not in malformed for key, kind in new)


def closed(b: GraphBuilder, name: str, refs: Sequence[Ref]) -> Graph:
    """A finished region."""
    outputs = tuple(b.real(r) for r in refs)
    return Graph(name, tuple(b.inputs), tuple(b.nodes), outputs)


def declared(engine: Engine) -> frozenset[str]:
    """The symbols that are declared so far."""
    return frozenset(s.name for s in engine.symbols())


def inner_symbols(b: GraphBuilder, before: frozenset[str]) -> frozenset[str]:
    """The symbols that nodes of a region bind, which are undefined outside. before: those declared before
    it."""
    outer = before.union(*(v.type.symbols for v in b.inputs))
    found = (n.settled if n.op in ("if", "loop") else n.bound for n in b.nodes)
    return frozenset().union(*found) - outer


def by_branch(
    b: GraphBuilder,
    condition: Ref,
    then: TranslatedBranch,
    other: TranslatedBranch,
    before: frozenset[str],
    shapes: bool = False,
) -> list[Ref] | None:
    """The values after an `if` of two branches; None where the branches give one of them different ranks.

    condition: a bool of rank 0. before: the symbols declared before both. shapes: return None too where a
    small integer vector has different lengths in the branches, since it may be a shape of another rank.
    """
    engine = b.engine
    own = inner_symbols(then.region, before) | inner_symbols(other.region, before)
    forms = [
        sq.joined(engine, f"output {k}", sq.form_of(then.region, r), sq.form_of(other.region, s), own)
        for k, (r, s) in enumerate(zip(then.refs, other.refs, strict=True))
    ]
    arms: list[TranslatedBranch] = []
    for arm in (then, other):
        with engine.conditional():
            whole = [sq.in_form(arm.region, r, f, own) for r, f in zip(arm.refs, forms, strict=True)]
            arms.append(
                TranslatedBranch(
                    arm.region, [x for r, f in zip(whole, forms, strict=True) for x in _leaves(arm, r, f)]
                )
            )
            if len(arms) == 2:
                _same_ranks(*arms)
    pairs = [tuple(arm.region.type_of(arm.refs[k]) for arm in arms) for k in range(len(arms[0].refs))]
    if any(x.rank != y.rank or (shapes and _other_shape(engine, x, y)) for x, y in pairs):
        return None
    graphs = tuple(closed(arm.region, name, arm.refs) for name, arm in zip(("then", "else"), arms))
    own = inner_symbols(arms[0].region, before) | inner_symbols(arms[1].region, before)
    types = [_joined(engine, k, x, y, own) for k, (x, y) in enumerate(pairs)]
    refs = list(b.append("if", (condition,), {}, types, graphs))
    for ref, x, y in zip(refs, arms[0].refs, arms[1].refs, strict=True):
        _join_known(b, ref, b.store.known.get(x), b.store.known.get(y))
    return sq.assembled(b, forms, refs)


def assume(
    b: GraphBuilder, flag: Callable[[], Ref], equal: tuple[Dim, Dim] | None, holds: bool, left: str
) -> None:
    """Check at run time that a condition has this value, so that the branch that is left is taken, which the
    text names. flag: makes the condition, a bool of rank 0. equal: the sizes whose equality it is."""
    if equal is not None and holds:
        b.engine.same(f"the {left} is taken", *equal)
        return
    taken = flag() if holds else b.emit("not", [flag()])
    b.bind(b.cast(taken, i64), 0, f"the {left}".replace(" ", "_"), 1, to_dim(1))
    if equal is not None:
        b.engine.differ(*equal)


def one_rank(x: GraphBuilder, ref: Ref, y: GraphBuilder, other: Ref) -> bool:
    """Whether the types allow these refs to be one value after both regions."""
    if ref in x.store.compounds or other in y.store.compounds:
        return ref in x.store.compounds and other in y.store.compounds
    a, b = x.store.types.get(ref), y.store.types.get(other)
    if a is None or b is None:
        return False
    return not _other_shape(x.engine, a, b) if a.rank == b.rank else _of_one(x.engine, a, b)


def _leaves(arm: TranslatedBranch, ref: Ref, form: sq.ElementForm) -> list[Ref]:
    return sq.leaves(arm.region, ref, form)


def _other_shape(engine: Engine, x: TensorType, y: TensorType) -> bool:
    """Whether both are vectors that may be shapes, with different lengths: one constant, the other another
    constant or a formula of input sizes."""
    if x.rank != 1 or not x.dtype.is_int or engine.prove_eq(x.shape[0], y.shape[0]) is Truth.YES:
        return False
    lengths = (x.shape[0], y.shape[0])
    few = any(d.is_const and 0 < d.const <= SHAPE for d in lengths)
    return few and all(engine.is_input_size(d) for d in lengths)


def _of_one(engine: Engine, *types: TensorType) -> bool:
    """Whether tensors of all these types have exactly one element."""
    return all(engine.prove_eq(d, ONE) is Truth.YES for t in types for d in t.shape)


def _same_ranks(a: TranslatedBranch, b: TranslatedBranch) -> None:
    """Where the branches give a value of one element different ranks, reshape both to the higher rank."""
    for k, (x, y) in enumerate(zip(a.refs, b.refs, strict=True)):
        tx, ty = a.region.type_of(x), b.region.type_of(y)
        if tx.rank != ty.rank and _of_one(a.region.engine, tx, ty):
            rank = max(tx.rank, ty.rank)
            a.refs[k], b.refs[k] = a.region.reshape(x, (1,) * rank), b.region.reshape(y, (1,) * rank)


def _joined(engine: Engine, k: int, a: TensorType, b: TensorType, own: frozenset[str]) -> TensorType:
    """The type of output k of an If: an extent on which the branches differ becomes a fresh symbol."""
    if a.dtype != b.dtype:
        raise engine.fail(f"output {k} is {a.dtype} in one branch and {b.dtype} in the other")
    shape: list[Dim] = []
    for d, e in zip(a.shape, b.shape, strict=True):
        same = engine.prove_eq(d, e) is Truth.YES and own.isdisjoint(d.symbols)
        shape.append(d if same else one_of(engine, "if_size", d, e))
    return TensorType(a.dtype, tuple(shape))


def one_of(engine: Engine, base: str, *sizes: Dim) -> Dim:
    """A fresh symbol for an extent that is one of these sizes in each run, within their ranges: memory for it
    is bounded where they are."""
    ranges = [engine.bounds(d) for d in sizes]
    highs = [high for _, high in ranges if high is not None]
    high = to_dim(max(highs)) if len(highs) == len(ranges) else None
    return engine.fresh(base, min(max(low or 0, 0) for low, _ in ranges), high)


def _join_known(b: GraphBuilder, ref: Ref, x: kn.Known | None, y: kn.Known | None) -> None:
    if x is not None and y is not None and x.shape == y.shape:
        both = [p if p == q else None for p, q in zip(x.reshape(-1), y.reshape(-1), strict=True)]
        if any(e is not None for e in both):
            b.store.known[ref] = kn.full(x.shape, both)
