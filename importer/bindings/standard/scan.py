"""Bindings of Scan; counted loops, for the bindings of recurrent ops and eliminations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import bool_, i64
from smelt.core.ir.graph import Ref, TensorType
from smelt.importer.bindings.standard.control import stacked, subgraph
from smelt.importer.branches import closed, declared, inner_symbols
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call, OnnxOp

ScanStep: TypeAlias = "Callable[[GraphBuilder, Dim, list[Ref]], tuple[list[Ref], list[Ref]]]"
"""(builder, round, states) -> (new states of the same types, what the round adds to the stacks)."""

UNROLLED = 4
"""Most rounds of a loop that is unrolled."""


def counted(c: Call, count: Dim, states: Sequence[Ref], step: ScanStep) -> tuple[list[Ref], list[Ref]]:
    """Run `step` `count` times; the last states and the stacks, each with the rounds as a new first axis."""
    b, now = c.builder, list(states)
    if count.is_const and 1 <= count.const <= UNROLLED:
        rows: list[list[Ref]] = []
        for i in range(count.const):
            now, added = step(b, to_dim(i), now)
            rows.append([b.reshape(r, (1, *b.type_of(r).shape)) for r in added])
        stacks = [list(s) for s in zip(*rows, strict=True)]
        return now, [s[0] if len(s) == 1 else b.emit("concat", s, {"axis": 0}) for s in stacks]
    before = declared(c.engine)
    with c.engine.conditional():
        region = GraphBuilder(b.store, b)
        k = region.add_input(b.store.new_value(), TensorType(i64, ()), "")
        going = region.add_input(b.store.new_value(), TensorType(bool_, ()), "")
        inner = [region.add_input(b.store.new_value(), b.type_of(s), "") for s in states]
        # a size, not an operand: a device's launches get it as a parameter, and nothing goes up in a round
        last = to_dim(0) if count == 0 else count - 1
        after, added = step(region, region.bind(k, 0, "round", 0, last), inner)
        after = [
            _held(c, region, i, b.type_of(s), t) for i, (s, t) in enumerate(zip(states, after, strict=True))
        ]
        own = inner_symbols(region, before)
        types = [stacked(c, region.type_of(r), count, own) for r in added]
        graph = closed(region, "body", [going, *after, *added])
    found = b.append(
        "loop",
        ("", "", *states),
        {"carried": len(states), "trips": count},
        [*(b.type_of(s) for s in states), *types],
        (graph,),
    )
    return list(found[: len(states)]), list(found[len(states) :])


def _held(c: Call, region: GraphBuilder, i: int, t: TensorType, ref: Ref) -> Ref:
    """State i after the body, whose type must be what it is before."""
    own = region.type_of(ref)
    if (own.dtype, own.rank) != (t.dtype, t.rank):
        raise c.unsupported(f"state {i} is {t} before and {own} after the body")
    for axis, (d, e) in enumerate(zip(t.shape, own.shape, strict=True)):
        c.engine.same(f"axis {axis} of state {i} before and after the body", d, e)
    region.flush_checks()
    return region.reshape(ref, t.shape)


def at(b: GraphBuilder, x: Ref, k: Dim, axis: int = 0) -> Ref:
    """x[k] along an axis that goes."""
    t = b.type_of(x)
    rest = (*t.shape[:axis], *t.shape[axis + 1 :])
    if t.shape[axis] == 0:  # in the body of a loop of no rounds: only the type counts
        return b.emit("broadcast_to", [b.constant(np.zeros((), t.dtype.numpy))], {"shape": rest})
    return b.reshape(b.slice_axis(x, axis, k, k + 1), rest)


# ---------------------------------------------------------------- scan


def _scan(c: Call) -> Sequence[Ref]:
    """Loop over an axis of some inputs: (states, slices) -> (states, what is stacked)."""
    g, m = subgraph(c, "body"), c.integer("num_scan_inputs")
    n = len(c.inputs) - m
    outs = len(c.outputs) - n
    if m < 1 or n < 0 or len(g.input) != n + m or len(g.output) != len(c.outputs):
        raise c.fail(f"num_scan_inputs {m} does not fit {len(c.inputs)} inputs and the body")
    scans = [c.x(n + i) for i in range(m)]
    axes = [c.axis(a, c.type(n + i).rank) for i, a in enumerate(_each(c, "scan_input_axes", m))]
    count = c.shape(n)[axes[0]]
    for i in range(1, m):
        count = c.engine.same(f"length of scan input {i}", count, c.shape(n + i)[axes[i]])
    flip = _each(c, "scan_input_directions", m)

    def step(b: GraphBuilder, k: Dim, states: list[Ref]) -> tuple[list[Ref], list[Ref]]:
        slices = [at(b, x, count - 1 - k if flip[i] else k, axes[i]) for i, x in enumerate(scans)]
        with b.in_round(b.from_dims([k], [])):
            refs = c.translate.body(b, g, [*states, *slices])
        return refs[:n], refs[n:]

    states, stacks = counted(c, count, [c.x(i) for i in range(n)], step)
    out_axes, out_flip = _each(c, "scan_output_axes", outs), _each(c, "scan_output_directions", outs)
    for i, ref in enumerate(stacks):
        if out_flip[i]:
            ref = c.builder.slice_axis(ref, 0, count - 1, -1, -1)
        rank = c.builder.type_of(ref).rank
        to = c.axis(out_axes[i], rank)
        stacks[i] = c.builder.transpose(ref, [*range(1, to + 1), 0, *range(to + 1, rank)])
    return [*states, *stacks]


def _each(c: Call, name: str, n: int) -> tuple[int, ...]:
    """A list attribute with an entry for each of n, all 0 by default."""
    found = c.ints(name, (0,) * n)
    if len(found) != n:
        raise c.fail(f"{name} has {len(found)} entries, wanted {n}")
    return found


def _scan8(c: Call) -> Sequence[Ref]:
    """As _scan, once for each entry of a batch: (lengths?, states [B, ...], inputs [B, T, ...])."""
    if c.has(0):
        raise c.unsupported("a scan over sequences of different lengths", try_="a newer opset")
    g, m = subgraph(c, "body"), c.integer("num_scan_inputs")
    n = len(c.inputs) - 1 - m
    if m < 1 or n < 0 or len(g.input) != n + m or len(g.output) != len(c.outputs):
        raise c.fail(f"num_scan_inputs {m} does not fit {len(c.inputs) - 1} inputs and the body")
    given = [c.x(1 + i) for i in range(n + m)]
    batch, count = c.shape(1)[0], c.shape(1 + n)[1]
    for i in range(n + m):
        batch = c.engine.same(f"batch of input {1 + i}", batch, c.shape(1 + i)[0])
    flip = _each(c, "directions", m)

    def entry(b: GraphBuilder, k: Dim, _: list[Ref]) -> tuple[list[Ref], list[Ref]]:
        own = [at(b, x, k) for x in given]

        def step(b: GraphBuilder, t: Dim, states: list[Ref]) -> tuple[list[Ref], list[Ref]]:
            places = [count - 1 - t if f else t for f in flip]
            slices = [at(b, x, p) for x, p in zip(own[n:], places, strict=True)]
            with b.in_round(b.from_dims([k], [])), b.in_round(b.from_dims([t], [])):
                refs = c.translate.body(b, g, [*states, *slices])
            return refs[:n], refs[n:]

        states, stacks = counted(replace(c, builder=b), count, own[:n], step)
        return [], [*states, *stacks]

    return counted(c, batch, [], entry)[1]


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("Scan", 8, _scan8),
    OnnxOp("Scan", 9, _scan),
)
