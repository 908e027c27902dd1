"""Bindings of If and Loop: regions, or inlined graphs where the condition is constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, Truth
from smelt.core.dtype import bool_, i64
from smelt.core.ir.graph import Attr, Ref, TensorType
from smelt.importer import known as kn
from smelt.importer import sequences as sq
from smelt.importer.bindings.standard.append import appends, put_back, taken_out
from smelt.importer.branches import (
    TranslatedBranch,
    assume,
    by_branch,
    closed,
    declared,
    inner_symbols,
    one_of,
)
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call, OnnxOp, Undecided
from smelt.importer.load import subgraphs

SHAPE_ROUNDS = 16
"""Most attempts to find the shapes of carried values; each makes at least one more extent dynamic."""
WRITTEN_OUT, AT_MOST = 64, 512
"""Most nodes of an unrolled loop: of one with a known trip count whose carried sizes change, and of one that
has no other translation (carried ranks change)."""


def _flag(c: Call, ref: Ref) -> bool | None:
    """The value of a condition that is constant; None for another one."""
    return sq.flag_of(c.builder, ref)


def subgraph(c: Call, name: str) -> Any:
    """The GraphProto of an attribute. Raises SmeltError where it is missing."""
    if name not in c.attributes:
        raise c.fail(f"attribute '{name}' is missing")
    return c.attributes[name].g


# ---------------------------------------------------------------- if


def _if(c: Call) -> Sequence[Ref]:
    if c.type().dtype != bool_:
        raise c.fail(f"the condition is {c.type().dtype}, wanted bool")
    known = _flag(c, c.x())
    if known is not None:
        refs: list[Ref] = c.translate.inline(subgraph(c, "then_branch" if known else "else_branch"))
        return refs
    before = declared(c.engine)
    arms: list[TranslatedBranch] = []
    tried = []
    for name in ("then_branch", "else_branch"):
        with c.translate.attempt() as attempt, c.engine.conditional():
            arm = TranslatedBranch(*c.translate.region(subgraph(c, name), lambda b: []))
            if len(arm.refs) != len(c.outputs):
                raise c.fail(f"{name} has {len(arm.refs)} outputs, the node has {len(c.outputs)}")
            arms.append(arm)
        if isinstance(attempt.failed, Undecided):
            raise attempt.failed
        tried.append(attempt)
    never = [attempt.impossible for attempt in tried]
    if len(arms) == 1 and any(never):
        return _left(c, "else_branch" if never[0] else "then_branch")
    reasons = [c.translate.give_up(attempt) for attempt in tried if attempt.failed]
    if reasons:
        raise reasons[0]
    condition = c.builder.reshape(c.x(), ())
    found = by_branch(c.builder, condition, arms[0], arms[1], before, shapes=c.may_wait)
    if found is not None:
        return found
    if c.may_wait:
        raise c.undecided("the branches have outputs of different rank", c.x(), _equality(c))
    return _assumed(c)


def _left(c: Call, name: str) -> Sequence[Ref]:
    """Translate this branch alone, with a run-time check that it is taken: in the other one is a node that
    could not run with the sizes that it is given."""
    b, holds = c.builder, name == "then_branch"
    assume(b, lambda: b.reshape(c.x(), ()), _equality(c), holds, "branch in which all nodes can run")
    b.flush_checks()
    refs: list[Ref] = c.translate.inline(subgraph(c, name))
    return refs


def _equality(c: Call) -> tuple[Dim, Dim] | None:
    """The sizes whose equality the condition is."""
    found = c.builder.known_of(c.x())
    e = None if found is None or found.size != 1 else found.reshape(-1)[0]
    return (e.a, e.b) if isinstance(e, kn.Equality) else None


def _assumed(c: Call) -> Sequence[Ref]:
    """Translate an If whose branches give different ranks. Exporters write a condition `size == number` for
    squeezing an axis: it is assumed to hold, with a run-time check."""
    sizes = _equality(c)
    if sizes is None:
        raise c.unsupported(
            "the branches have outputs of different rank, and what reads them does not end that",
            try_="fixing the sizes that the condition asks for (dims=), or declaring the output's rank",
        )
    c.engine.same("the branch that is taken decides a rank, so its condition", *sizes)
    c.builder.flush_checks()
    refs: list[Ref] = c.translate.inline(subgraph(c, "then_branch"))
    return refs


# ---------------------------------------------------------------- loop


@dataclass(frozen=True)
class _Round:
    """The body of a loop, translated for states of these forms and types. outs: its results as tensors:
    condition, states, stacked values. before: the symbols declared before it."""

    region: GraphBuilder
    results: list[Ref]
    outs: list[Ref]
    before: frozenset[str]


@dataclass(frozen=True)
class _Settled:
    """A loop's body for states whose forms and types no round changes.

    refs: its results as tensors. carried: the states before the loop. inner: symbols that are undefined
    outside.
    goes_on: the condition never ends the loop. grown: sizes of states change between rounds.
    """

    region: GraphBuilder
    refs: list[Ref]
    forms: list[sq.ElementForm]
    types: list[TensorType]
    carried: list[Ref]
    inner: frozenset[str]
    goes_on: bool
    grown: bool


def _loop(c: Call) -> Sequence[Ref]:
    """carried' = body(i, condition, carried) while i < trip and condition; scan outputs are stacked."""
    b, body = c.builder, subgraph(c, "body")
    least = 1 + max(len(c.inputs) - 2, 0)
    if len(body.output) < max(least, 1 + len(c.outputs)):
        raise c.fail(
            f"the body has {len(body.output)} outputs, wanted its condition, {least - 1} that are "
            f"carried, and what is scanned of {len(c.outputs)} outputs"
        )
    trip = b.cast(b.reshape(c.x(0), ()), i64) if c.has(0) else ""
    condition = b.reshape(c.x(1), ()) if c.has(1) else ""
    limit = _known_trips(c, trip)
    if limit is not None and limit.is_const and limit.const <= 0 and len(c.outputs) == len(c.inputs) - 2:
        return [c.x(i) for i in range(2, len(c.inputs))]
    with c.translate.attempt() as attempt:
        s = _settled(c, body, [c.x(i) for i in range(2, len(c.inputs))])
    if attempt.failed or s.grown:
        most = AT_MOST if attempt.failed else WRITTEN_OUT
        found = _written_out(c, body, condition, limit, most)
        if found is None and attempt.failed:
            found = _peeled(c, body, condition, limit)
        if found is not None:
            return found
    if attempt.failed:
        raise c.translate.give_up(attempt)
    return _rounds(c, s, trip, condition, limit)


def _rounds(c: Call, s: _Settled, trip: Ref, condition: Ref, limit: Dim | None) -> list[Ref]:
    """The loop of a settled body: the states after it, and what was stacked."""
    b = c.builder
    # what rounds only append to is no state, but a stack
    tails = appends(s.region, s.forms, s.refs[1 : 1 + len(s.carried)], s.inner)
    gone = {a.place + k for a in tails for k in (0, 1)}
    refs = [r for k, r in enumerate(s.refs, -1) if k not in gone] + taken_out(s.region, tails)
    states = [r for k, r in enumerate(s.carried) if k not in gone]
    types = [t for k, t in enumerate(s.types) if k not in gone]
    count = _trips(c, limit, s.goes_on and (not condition or _flag(c, condition) is True))
    results = [_final(c, t, b.type_of(r)) for t, r in zip(types, states, strict=True)]
    results += [stacked(c, s.region.type_of(r), count, s.inner) for r in refs[1 + len(states) :]]
    attrs: dict[str, Attr] = {}
    if limit is not None:
        trip, attrs["trips"] = "", limit
    made = b.append("loop", (trip, condition, *states), attrs, results, (closed(s.region, "body", refs),))
    behind = len(made) - 2 * len(tails)
    whole = put_back(b, tails, s.carried, made[: len(states)], made[behind:])
    return [*sq.assembled(b, s.forms, whole), *made[len(states) : behind]]


def _peeled(c: Call, g: Any, condition: Ref, limit: Dim | None) -> list[Ref] | None:
    """The first round, then a loop of the others, where the types of states change only in the first round
    (sums that start from a scalar). None where they change later."""
    if limit is None or limit.is_const or (condition and _flag(c, condition) is not True):
        return None
    b, n = c.builder, len(c.inputs) - 2
    if c.engine.prove_eq(limit, ZERO) is Truth.UNKNOWN:
        if c.may_wait:
            raise c.undecided(
                "whether it has a round decides the rank of a carried value", None, (limit, ZERO)
            )
        c.engine.at_most("a round, which decides the rank of a carried value,", ONE, limit)
    mark = len(b.nodes)
    with c.translate.attempt():
        first = [b.constant(np.array(0, np.int64)), b.constant(np.array(True))]
        with b.in_round(first[0]):
            on, *refs = c.translate.body(b, g, [*first, *(c.x(i) for i in range(2, len(c.inputs)))])
        s = _settled(c, g, refs[:n], 1)
        if _flag(c, on) is True and s.goes_on:
            made = _rounds(c, s, "", "", c.engine.simplify(limit - 1))
            rows = [b.reshape(r, (1, *b.type_of(r).shape)) for r in refs[n:]]
            stacks = [b.emit("concat", pair, {"axis": 0}) for pair in zip(rows, made[n:], strict=True)]
            return [*made[:n], *stacks]
    b.forget(mark)
    return None


def _written_out(c: Call, g: Any, condition: Ref, limit: Dim | None, most: int) -> list[Ref] | None:
    """The loop unrolled, so that types may change between rounds. None where the trip count is unknown or the
    rounds have more than `most` nodes."""
    b, count = c.builder, 0 if limit is None else (limit.const_or_none or 0)
    if not 0 < count * max(_size(g), 1) <= most or (condition and _flag(c, condition) is not True):
        return None
    mark, states, rows = len(b.nodes), [c.x(i) for i in range(2, len(c.inputs))], list[list[Ref]]()
    going = b.constant(np.array(True))
    with c.translate.attempt():
        for k in range(count):
            number = b.constant(np.array(k, np.int64))
            with b.in_round(number):
                on, *refs = c.translate.body(b, g, [number, going, *states])
            if _flag(c, on) is not True:
                raise c.unsupported("a round that may be the last")
            states = refs[: len(states)]
            rows.append([b.reshape(r, (1, *b.type_of(r).shape)) for r in refs[len(states) :]])
        stacks = [b.emit("concat", s, {"axis": 0}) for s in zip(*rows, strict=True)]
        return [*states, *stacks]
    b.forget(mark)
    return None


def _size(g: Any) -> int:
    """The nodes of a graph and of those inside."""
    return sum(1 + sum(_size(inner) for inner in subgraphs(n)) for n in g.node)


def _settled(c: Call, g: Any, values: list[Ref], first: int = 0) -> _Settled:
    """Translate the body until neither the forms nor the types of its states change. values: the states
    before round `first`."""
    b = c.builder
    forms = [sq.form_of(b, r) for r in values]
    carried = [x for r in values for x in sq.leaves(b, r)]
    types = [b.type_of(r) for r in carried]
    mine: set[str] = set()  # sizes that change from round to round
    for _ in range(SHAPE_ROUNDS):
        with c.translate.attempt() as attempt, c.engine.conditional():
            found = _round(c, g, forms, types, first)
        wider = [sq.packed_form(f) for f in forms] if attempt.failed else _wider_forms(c, forms, found)
        if attempt.failed and wider == forms:
            raise c.translate.give_up(attempt)
        if wider != forms:
            forms = wider
            values = [sq.in_form(b, r, f) for r, f in zip(values, forms, strict=True)]
            carried = [x for r, f in zip(values, forms, strict=True) for x in sq.leaves(b, r, f)]
            types = [b.type_of(r) for r in carried]
            continue
        region, refs = found.region, found.outs
        with c.engine.conditional():
            stays = refs[0] == region.inputs[1].name
            flag = _flag(c, refs[0])
            _same_ones(region, refs, types)
            undefined = _undefined(region, refs, types)
            refs[0] = region.reshape(refs[0], ())
            outs = [region.type_of(r) for r in refs]
        inner = inner_symbols(region, found.before)
        if undefined:
            for k in undefined:
                types[k] = outs[1 + k]
                carried[k] = _zeros(c, types[k], inner)
            continue
        widened = [_widened(c, k, t, o, mine) for k, (t, o) in enumerate(zip(types, outs[1:], strict=False))]
        if widened == types:
            return _Settled(
                region, refs, forms, types, carried, inner | mine, flag is True or stays, bool(mine)
            )
        types = widened
    raise c.unsupported("a loop whose carried shapes never settle")


def _same_ones(region: GraphBuilder, refs: list[Ref], types: Sequence[TensorType]) -> None:
    """Reshape states of one element to the rank that they had before the body."""
    for k, t in enumerate(types, 1):
        own = region.type_of(refs[k])
        if own.rank != t.rank and all(d == ONE for d in (*own.shape, *t.shape)):
            refs[k] = region.reshape(refs[k], t.shape)


def _final(c: Call, t: TensorType, s: TensorType) -> TensorType:
    """The type of a state after the loop, which is t in the body and s before: an extent that grows inside
    has another size after it."""
    shape = (d if d == e else c.engine.fresh("loop_size") for d, e in zip(t.shape, s.shape, strict=True))
    return TensorType(t.dtype, tuple(shape))


def _round(
    c: Call, g: Any, forms: Sequence[sq.ElementForm], types: Sequence[TensorType], first: int
) -> _Round:
    """Translate the body for states like these."""
    before = declared(c.engine)
    region, results = c.translate.region(g, lambda b: _parameters(b, g, forms, types, first))
    if len(results) < 1 + len(forms):
        raise c.fail(
            f"the body has {len(results)} outputs, wanted a condition and {len(forms)} carried values"
        )
    outs = [results[0]]
    for r, f in zip(results[1:], forms, strict=False):
        if sq.joined(c.engine, "a carried value", f, sq.form_of(region, r)) == f:
            outs += sq.leaves(region, sq.in_form(region, r, f), f)
    return _Round(region, results, [*outs, *results[1 + len(forms) :]], before)


def _wider_forms(c: Call, forms: Sequence[sq.ElementForm], found: _Round) -> list[sq.ElementForm]:
    """The forms that suit a state both before and after the body."""
    own = inner_symbols(found.region, found.before)
    return [
        sq.joined(c.engine, f"carried value {k}", f, sq.form_of(found.region, r), own)
        for k, (f, r) in enumerate(zip(forms, found.results[1:], strict=False))
    ]


def _undefined(region: GraphBuilder, refs: Sequence[Ref], types: Sequence[TensorType]) -> list[int]:
    """Carried values that the body never reads and gives another type: variables first set inside the loop,
    for which exporters carry a dummy."""
    read = {
        r
        for n in region.nodes
        for r in (*n.inputs, *(i for g in n.regions for m in g.walk() for i in m.inputs))
    }
    read |= {r for n in region.nodes for g in n.regions for r in g.outputs} | set(refs)
    mine = [v.name for v in region.inputs[2:]]
    return [
        k
        for k, (name, t) in enumerate(zip(mine, types, strict=True))
        if name not in read
        and (t.dtype, t.rank) != (region.type_of(refs[1 + k]).dtype, region.type_of(refs[1 + k]).rank)
    ]


def _zeros(c: Call, t: TensorType, own: frozenset[str]) -> Ref:
    if any(not own.isdisjoint(d.symbols) for d in t.shape):
        raise c.unsupported(f"a carried value that is undefined before the loop and {t} inside")
    return c.builder.broadcast_to(c.builder.constant(np.zeros((), t.dtype.numpy)), t.shape)


def _parameters(
    b: GraphBuilder, g: Any, forms: Sequence[sq.ElementForm], types: Sequence[TensorType], first: int
) -> list[Ref]:
    """The inputs of a loop's body: round, condition and states of these forms, whose tensors have these
    types. first: the number of the first round."""
    if len(g.input) != 2 + len(forms):
        raise b.engine.fail(f"the body has {len(g.input)} inputs, wanted {2 + len(forms)}")
    head = [TensorType(i64, ()), TensorType(bool_, ())]
    names = [v.name for v, f in zip(g.input, (sq.TENSOR, sq.TENSOR, *forms)) for _ in range(sq.count(f))]
    refs = [b.add_input(b.store.new_value(), t, n) for n, t in zip(names, (*head, *types), strict=True)]
    number = b.emit("add", [refs[0], b.constant(np.array(first, np.int64))]) if first else refs[0]
    b.rounds.append(number)
    return [number, refs[1], *sq.assembled(b, forms, refs[2:])]


def _known_trips(c: Call, trip: Ref) -> Dim | None:
    """The trip count where it is a size."""
    found = c.builder.known_of(trip) if trip else None
    e = None if found is None else found.reshape(-1)[0]
    return c.engine.simplify(e) if isinstance(e, Dim) else None


def _trips(c: Call, limit: Dim | None, always: bool) -> Dim:
    """How often the body runs: the trip count where nothing else ends the loop, else a fresh symbol."""
    low = None if limit is None else c.engine.bounds(limit)[0]
    if limit is None or low is None or low < 0:
        return c.engine.fresh("trips")
    return limit if always else c.engine.fresh("trips", 0, limit)


def _widened(c: Call, k: int, t: TensorType, o: TensorType, own: set[str]) -> TensorType:
    """The type of carried value k at the start of the body: extents that a round changes are dynamic. own:
    the symbols that are dynamic in this loop; the function adds to it."""
    if t.dtype != o.dtype:
        raise c.fail(f"carried value {k} is {t.dtype} before and {o.dtype} after the body")
    if t.rank != o.rank:
        raise c.unsupported(
            f"carried value {k} has rank {t.rank} before and {o.rank} after the body",
            try_="carrying it in one rank, or a trip count and a condition that are constants",
        )
    shape = []
    for d, e in zip(t.shape, o.shape, strict=True):
        if not d.symbols & own and c.engine.prove_eq(d, e) is not Truth.YES:
            d = c.engine.fresh("loop_in")
            own.update(d.symbols)
        shape.append(d)
    return TensorType(t.dtype, tuple(shape))


def stacked(c: Call, t: TensorType, count: Dim, own: frozenset[str]) -> TensorType:
    """The type of a stack of one value per round. A size that is only known inside the loop must be the same
    in all rounds, which a run checks; without a round it is 0."""
    shape = (
        d if own.isdisjoint(d.symbols) else one_of(c.engine, "stack_size", d, ZERO) for d in t.shape
    )
    return TensorType(t.dtype, (count, *shape))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("If", 1, _if),
    OnnxOp("Loop", 1, _loop),
)
