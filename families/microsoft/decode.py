"""Bindings of com.microsoft ops on decoded tokens: speculative decoding, alignment by dynamic time
warping."""

from __future__ import annotations

import math

import numpy as np

from smelt.core.dim import ONE, Dim
from smelt.core.dtype import i32, i64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.standard.scan import counted
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import MS

LONGEST = 256
"""The longest n-gram that is searched for: a table [source tokens, this] is made."""


def _bifurcation(c: Call) -> tuple[Ref, Ref]:
    """(the tokens followed by the correctly predicted ones and one more, the source position that continues
    them).

    src_tokens [N], cur_tokens [M], prev_suffix_match_idx of one element, pred_tokens [N + 1 - it] or absent.
    """
    for i, what in ((0, "src_tokens"), (1, "cur_tokens")):
        if c.type(i).rank != 1:
            raise c.fail(f"{what} has rank {c.type(i).rank}, wanted 1")
    c.engine.same("elements of prev_suffix_match_idx and 1", _elements(c, 2), ONE)
    tokens = c.emit("concat", c.x(1), _predicted(c), axis=0) if c.has(3) else c.x(1)
    return tokens, c.builder.reshape(_suffix_end(c, tokens), c.shape(2))


def _elements(c: Call, i: int) -> Dim:
    count = ONE
    for d in c.shape(i):
        count = count * d
    return c.engine.simplify(count)


def _predicted(c: Call) -> Ref:
    """pred_tokens up to and including the first one that differs from the source at its place."""
    b, (length,) = c.builder, c.shape(0)
    if c.type(3).rank != 1:
        raise c.fail(f"pred_tokens has rank {c.type(3).rank}, wanted 1")
    (start,) = b.dims_of(b.reshape(c.x(2), ()), "prev_suffix_match_idx", 0, length)
    rest = c.engine.simplify(length - start)
    c.engine.same("pred_tokens and the source after the match, and 1", c.shape(3)[0], rest + 1)
    guess, own = b.slice_axis(c.x(3), 0, 0, rest), b.slice_axis(c.x(0), 0, start, length)
    end = b.from_dims([rest], (1,))
    wrong = c.emit("where", c.emit("not_equal", guess, own), c.iota(rest), end)
    first = c.emit("reduce_min", c.emit("concat", wrong, end, axis=0), axes=(0,), keepdims=False)
    (right,) = b.dims_of(first, "right_tokens", 0, rest)
    return b.slice_axis(c.x(3), 0, 0, right + 1)


def _suffix_end(c: Call, tokens: Ref) -> Ref:
    """i64 []: the position after the only occurrence in the source of the tokens' suffix; -1 for none or
    several.

    The shortest n-gram is searched for first, a longer one where that occurs several times. A place where the
    last n tokens occur is one where fewer of them occur, so the number of places falls as n grows, and a
    single place is the same for every n that has one.
    """
    b, least, most = c.builder, c.integer("min_ngram_size", 1), c.integer("max_ngram_size", 3)
    if not 1 <= least <= most:
        raise c.fail(f"n-grams of {least} to {most} tokens, wanted at least 1 and no fewer at the end")
    if most > LONGEST:
        raise c.unsupported(f"n-grams of {most} tokens", try_=f"max_ngram_size of {LONGEST} or less")
    (length,), (count,) = c.shape(0), b.type_of(tokens).shape
    front = b.broadcast_to(c.scalar(0, tokens), (most,))
    back = c.iota(most)
    # rows: places of the source, the first after its first token; columns: how far before the place
    behind = c.emit("sub", b.reshape(c.iota(length), (length, 1)), b.reshape(back, (1, most)))
    padded = c.emit("concat", front, c.x(0), axis=0)
    seen = c.emit("gather", padded, c.emit("add", behind, c.scalar(most, behind)), axis=0)
    last = c.emit("concat", front, tokens, axis=0)
    last = b.slice_axis(last, 0, count, count + most)
    last = c.emit("gather", last, c.emit("sub", c.scalar(most - 1, back), back), axis=0)
    same = c.emit("equal", seen, b.reshape(last, (1, most)))
    there = c.emit("greater_equal", behind, c.scalar(0, behind))
    held = b.reshape(c.emit("less", back, b.from_dims([count], (1,))), (1, most))
    same = c.cast(c.emit("and", c.emit("and", same, there), held), i64)
    run = c.emit("cumprod", same, axis=1, exclusive=False, reverse=False)  # [p, k]: k + 1 tokens agree
    run = b.slice_axis(run, 1, least - 1, most)
    places = c.emit("reduce_sum", run, axes=(0,), keepdims=False)
    ends = c.emit("mul", run, b.reshape(c.iota(length, 1), (length, 1)))
    end = c.emit("reduce_sum", ends, axes=(0,), keepdims=False)
    none = c.scalar(-1, end)
    end = c.emit("where", c.emit("equal", places, c.scalar(1, places)), end, none)
    return c.emit("reduce_max", end, axes=(0,), keepdims=False)


# ---------------------------------------------------------------- time warping


def _time_warping(c: Call) -> Ref:
    """i32 [2, n]: rows and columns of the cheapest path from the first to the last corner of costs [M, N] or
    [1, M, N] (dynamic time warping)."""
    b, shape = c.builder, c.shape(0)
    if len(shape) == 3:
        c.engine.same("the first axis and 1", shape[0], ONE)
        shape = shape[1:]
    if len(shape) != 2:
        raise c.fail(f"input has rank {c.type(0).rank}, wanted 2, or 3 with one entry")
    rows, columns = shape
    for d, what in ((rows, "rows"), (columns, "columns")):
        c.engine.at_most(f"1 and the {what}", ONE, d)
    diagonals = c.engine.simplify(rows + columns - 1)
    moves = _moves(c, b.reshape(c.x(0), (rows * columns,)), rows, columns, diagonals)
    width, none = b.from_dims([rows], ()), b.constant(np.array(0, np.int64))

    def back(g: GraphBuilder, k: Dim, states: list[Ref]) -> tuple[list[Ref], list[Ref]]:
        row, column, going = states
        place = g.emit("add", [g.emit("mul", [g.emit("add", [row, column]), width]), row])
        move = g.emit("gather", [moves, place], {"axis": 0})
        top, left = g.emit("equal", [row, none]), g.emit("equal", [column, none])
        up = g.emit("and", [g.emit("not", [top]), g.emit("or", [left, g.emit("less", [move, left_move(g)])])])
        aside = g.emit(
            "and", [g.emit("not", [left]), g.emit("or", [top, g.emit("not_equal", [move, up_move(g)])])]
        )
        after = [g.emit("sub", [v, g.cast(m, i64)]) for v, m in ((row, up), (column, aside))]
        more = g.emit("and", [going, g.emit("or", [up, aside])])
        return [*after, more], [g.reshape(row, (1,)), g.reshape(column, (1,)), g.cast(going, i64)]

    last = [b.from_dims([c.engine.simplify(d - 1)], ()) for d in (rows, columns)]
    _, (at_row, at_column, there) = counted(c, diagonals, [*last, b.constant(np.array(True))], back)
    length = c.emit("reduce_sum", there, axes=(0,), keepdims=False)
    (count,) = b.dims_of(length, "steps", 1, diagonals)
    way = c.cast(c.emit("concat", at_row, at_column, axis=1), i32)
    way = b.slice_axis(way, 0, count - 1, -1, -1)
    return b.transpose(way, (1, 0))


def left_move(g: GraphBuilder) -> Ref:
    """The move along a row."""
    return g.constant(np.array(2, np.int64))


def up_move(g: GraphBuilder) -> Ref:
    """The move along a column; 0 is both."""
    return g.constant(np.array(1, np.int64))


def _moves(c: Call, costs: Ref, rows: Dim, columns: Dim, diagonals: Dim) -> Ref:
    """i64 [diagonals * rows]: the last move of the cheapest path to each cell, by diagonals row + column.

    The move is diagonal where that is cheaper than both others, along the column where that is cheaper than
    both others, else along the row: the operator resolves ties so.
    """
    b = c.builder
    far = b.broadcast_to(c.scalar(math.inf, costs), (rows,))
    row, wide = c.iota(rows), b.from_dims([columns], ())
    start = c.emit("equal", row, c.scalar(0, row))
    base = c.emit("mul", row, wide)

    def shifted(g: GraphBuilder, x: Ref) -> Ref:
        first = g.broadcast_to(g.scalar(math.inf, x), (1,))
        return g.slice_axis(g.emit("concat", [first, x], {"axis": 0}), 0, 0, rows)

    def step(g: GraphBuilder, d: Dim, states: list[Ref]) -> tuple[list[Ref], list[Ref]]:
        before, earlier = states
        at = g.from_dims([d], ())
        column = g.emit("sub", [at, row])
        zero = g.scalar(0, column)
        inside = g.emit("and", [g.emit("greater_equal", [column, zero]), g.emit("less", [column, wide])])
        place = g.emit("add", [base, g.emit("where", [inside, column, zero])])
        cost = g.emit("gather", [costs, place], {"axis": 0})
        both, up, left = shifted(g, earlier), shifted(g, before), before
        first = g.emit("and", [g.emit("less", [both, up]), g.emit("less", [both, left])])
        second = g.emit("and", [g.emit("less", [up, both]), g.emit("less", [up, left])])
        best = g.emit("where", [first, both, g.emit("where", [second, up, left])])
        corner = g.emit("and", [start, g.emit("equal", [column, zero])])
        best = g.emit("where", [corner, g.scalar(0, best), best])
        total = g.emit("where", [inside, g.emit("add", [cost, best]), far])
        move = g.emit("where", [first, zero, g.emit("where", [second, up_move(g), left_move(g)])])
        return [total, before], [move]

    _, (moves,) = counted(c, diagonals, [far, far], step)
    return b.reshape(moves, (diagonals * rows,))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("BifurcationDetector", 1, _bifurcation, MS),
    OnnxOp("DynamicTimeWarping", 1, _time_warping, MS),
)
