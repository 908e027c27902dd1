"""Core ops on strings, as bytes padded with zeros: concatenation, splitting, matching by automata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, dmax, dmin, to_dim
from smelt.core.dtype import Array, bool_, i64, u8
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Bound, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.attrs import integer
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.rows.text_walk import SPACES, Walk, among, both, byte_at, chars, int64
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index, select

# ---------------------------------------------------------------- concat


def _infer_concat(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, y, length = args
    assert x and y and length
    shape = c.broadcast(x.shape[:-1], y.shape[:-1])
    return (TensorType(u8, (*shape, x.shape[-1] + y.shape[-1])),)


def _concat(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand, y: Operand, length: Operand
) -> Expr:
    """x[.., k], and y[.., k - length[.., 0]] from the end of x's string on."""
    *outer, k = i

    def at(a: Operand, last: Dim) -> DimIndex:
        own = outer[len(outer) - a.rank + 1 :]
        return (*(ZERO if n == 1 else d for d, n in zip(own, a.shape, strict=False)), last)

    def joined(first: Dim) -> Expr:
        other = y.guarded(at(y, k - first), (Bound(ZERO, k - first, y.shape[-1]),), const(0, u8))
        return call("or", x.guarded(at(x, k), (Bound(ZERO, k, x.shape[-1]),), const(0, u8)), other)

    return t.let(length[at(length, ZERO)], 0, x.shape[-1], joined)


def _ref_concat(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, y, length = arrays
    assert x is not None and y is not None and length is not None
    outer = np.broadcast_shapes(x.shape[:-1], y.shape[:-1])
    x, y = (np.broadcast_to(a, (*outer, a.shape[-1])) for a in (x, y))
    z = np.zeros((*outer, x.shape[-1] + y.shape[-1]), np.uint8)
    z[..., : x.shape[-1]] = x
    for at in np.ndindex(*outer):
        n = int(np.broadcast_to(length[..., 0], outer)[at])
        z[at][n : n + y.shape[-1]] = y[at]
    return (z,)


# ---------------------------------------------------------------- split


STATE, PARTS, COLUMN = range(3)
"""Cells of a walk that splits: bytes of the delimiter to skip, or whether a word is open; parts begun; the
next column of the last one."""


@dataclass(frozen=True)
class _Split(Walk):
    """A walk that splits. most: how often; below 0: wherever it can."""

    delimiter: bytes
    most: int

    def more(self, parts: Dim) -> Expr:
        """Whether a part may end where this many have begun."""
        return const(True, bool_) if self.most < 0 else call("le", index(parts), int64(self.most))

    def walk(self, write: Callable[[Dim, Dim, Expr], Stmt] | None) -> tuple[Stmt, ...]:
        """All bytes. write(part, column, byte): what to do with one that is kept."""
        g, k = [self.trace.fresh("g") for _ in range(9)], self.trace.fresh("i")
        end, byte, state, parts, column, keeps, step, part, at = g
        width, one = self.x.shape[1], to_dim(1)
        load: list[tuple[str, Expr, Dim, Dim]] = [
            (str(byte), select(call("lt", index(k), index(end)), self.byte(k), int64(0)), ZERO, to_dim(255)),
            (str(state), self.cell(STATE), ZERO, to_dim(max(len(self.delimiter), 1))),
            (str(parts), self.cell(PARTS), ZERO, width + 1),
            (str(column), self.cell(COLUMN), ZERO, width),
        ]
        if self.delimiter:  # step: whether the delimiter begins here
            first = dmax(parts, dmin(byte, 1))
            here = both(call("eq", index(state), int64(0)), call("ne", index(byte), int64(0)))
            match = both(
                here,
                self.more(first),
                *(call("eq", self.byte(k + d), int64(v)) for d, v in enumerate(self.delimiter)),
            )
            kept = both(here, call("eq", index(step), int64(0)))
            now: list[tuple[str, Expr, Dim, Dim]] = [
                (str(step), cast(match, i64), ZERO, one),
                (str(keeps), cast(kept, i64), ZERO, one),
            ]
            now += [
                (str(part), index(dmax(first - 1, 0)), ZERO, width),
                (str(at), index(column), ZERO, width),
            ]
            after = (
                step * (len(self.delimiter) - 1) + (1 - step) * dmax(state - 1, 0),
                first + step,
                (1 - step) * (column + keeps),
            )
        else:  # step: whether a word begins here
            space = among(index(byte), SPACES)
            some = call("ne", index(byte), int64(0))
            begins = both(some, call("not", space), call("eq", index(state), int64(0)))
            inner = both(call("not", self.more(parts)), call("eq", index(state), int64(1)))
            kept = both(some, call("or", call("not", space), inner))
            now = [(str(step), cast(begins, i64), ZERO, one), (str(keeps), cast(kept, i64), ZERO, one)]
            now += [
                (str(part), index(dmax(parts + step - 1, 0)), ZERO, width),
                (str(at), index((1 - step) * column), ZERO, width),
            ]
            after = (keeps, parts + step, at + keeps)
        body: tuple[Stmt, ...] = tuple(self.put(c, index(d)) for c, d in enumerate(after))
        if write is not None:
            kept_one = (Bound(ONE, keeps, to_dim(2)),)
            body = (Block((write(part, at, cast(index(byte), u8)),), guard=kept_one), *body)
        loop = Loop("serial", str(k), width, (Block(body, let=(*load, *now)),))
        clear = tuple(self.put(c, int64(0)) for c in range(3))
        return (*clear, Block((loop,), let=((str(end), self.end(), ZERO, width),)))

    def end(self) -> Expr:
        """Where spaces and zeros at the end of the row begin."""
        width, gone = self.x.shape[1], b"\0" if self.delimiter else b"\0" + SPACES

        def there(k: Dim) -> Expr:
            e = self.byte(k)
            return select(among(e, gone), int64(0), index(k + 1))

        return call("max", self.trace.reduce("max", (width,), there), int64(0))


def _infer_parts(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = args
    assert x
    return (TensorType(i64, (x.shape[0],)),)


def _infer_split(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = args
    assert x
    return (TensorType(u8, (x.shape[0], to_dim(attrs["parts"]), x.shape[1])),)  # type: ignore[arg-type]


def _parts(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    (x,), (y,) = inputs, outputs
    assert x
    cells = Buffer("cells", i64, (x.shape[0], to_dim(3)))

    def row(i: DimIndex) -> tuple[Stmt, ...]:
        s = _Split(t, x, cells, i[0], str(attrs["delimiter"]).encode(), integer(attrs, "most"))
        return (*s.walk(None), Store(y.name, i, s.cell(PARTS)))

    return Nest(nest_over(t, (x.shape[0],), row), (cells,))


def _split(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    (x,), (y,) = inputs, outputs
    assert x
    cells = Buffer("cells", i64, (x.shape[0], to_dim(3)))

    def row(i: DimIndex) -> tuple[Stmt, ...]:
        s = _Split(t, x, cells, i[0], str(attrs["delimiter"]).encode(), integer(attrs, "most"))

        def keep(part: Dim, column: Dim, byte: Expr) -> Stmt:
            last = tuple(dmin(d, n - 1) for d, n in zip((part, column), y.shape[1:], strict=True))
            return Store(y.name, (*i, *last), byte)

        clear = nest_over(t, y.shape[1:], lambda o: (Store(y.name, (*i, *o), const(0, u8)),))
        return (*clear, *s.walk(keep))

    return Nest(nest_over(t, (x.shape[0],), row), (cells,))


def _np_split(row: Array, attrs: Attrs) -> list[bytes]:
    s, most = row.tobytes().rstrip(b"\0"), integer(attrs, "most")
    if not attrs["delimiter"]:
        return s.rstrip(SPACES).split(None, most)
    return s.split(str(attrs["delimiter"]).encode(), most) if s else []


def _ref_parts(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    return (np.array([len(_np_split(row, attrs)) for row in x], np.int64),)


def _ref_split(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    y = np.zeros([d.const for d in types[0].shape], np.uint8)
    for n, row in enumerate(x):
        for p, part in enumerate(_np_split(row, attrs)):
            y[n, p, : len(part)] = list(part)
    return (y,)


# ---------------------------------------------------------------- automata


def _infer_match(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x
    return (TensorType(bool_, (x.shape[0],)),)


def _match(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """From state 0 by the class of each byte: whether the last state accepts. Zeros are no bytes."""
    (x, group, table, accept), (y,) = inputs, outputs
    assert x and group and table and accept
    cell = Buffer("state", i64, (x.shape[0], ONE))

    def row(i: DimIndex) -> tuple[Stmt, ...]:
        byte, own, state, end, k = *(t.fresh("g") for _ in range(4)), t.fresh("i")
        at = (*i, ZERO)
        states, classes = table.shape
        step = Block(
            (Block((Store(cell.name, at, cast(Load(table.name, (state, own), table.dtype), i64)),),
                   guard=(Bound(ONE, byte, to_dim(256)),)),),
            let=(
                (str(byte), cast(byte_at(x, i[0], k), i64), ZERO, to_dim(255)),
                (str(own), cast(Load(group.name, (byte,), group.dtype), i64), ZERO, classes - 1),
                (str(state), Load(cell.name, at, i64), ZERO, states - 1),
            ),
        )  # fmt: skip
        last = Block(
            (Store(y.name, i, Load(accept.name, (end,), bool_)),),
            let=((str(end), Load(cell.name, at, i64), ZERO, states - 1),),
        )
        return (Store(cell.name, at, int64(0)), Loop("serial", str(k), x.shape[1], (step,)), last)

    return Nest(nest_over(t, (x.shape[0],), row), (cell,))


def _ref_match(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, group, table, accept = (np.asarray(a) for a in arrays)
    y = np.zeros(len(x), np.bool_)
    for n, row in enumerate(x):
        state = 0
        for byte in row.tobytes().rstrip(b"\0"):
            state = int(table[state, group[byte]])
        y[n] = accept[state]
    return (y,)


_WORDS = chars(["ab", "", "xyz"], 3)
_LINES = chars(["a,b,,c", "", ",", "  a  b c  d ", "aaab", ",,aa", "  "], 14)
_SPLITS = [
    Case((_LINES,), attrs={"delimiter": d, "most": m})
    for d, m in ((",", -1), (",", 1), ("aa", -1), ("", -1), ("", 1), ("", 0), (",", 0))
]
_AUTOMATON = Case(  # an even number of a, then b
    (
        chars(["aab", "ab", "b", "", "aabb", "c"], 5),
        np.array([{97: 1, 98: 2}.get(k, 0) for k in range(256)], np.uint8),
        np.array([[3, 1, 2], [3, 0, 3], [3, 3, 3], [3, 3, 3]], np.uint8),
        np.array([False, False, True, False]),
    )
)

ROWS: tuple[Op, ...] = (
    Op(
        "text_concat",
        "x y length",
        _infer_concat,
        _ref_concat,
        (
            Case((_WORDS, chars(["1", "22", ""], 2), np.array([[2], [0], [3]]))),
            Case((_WORDS, chars(["1"], 1), np.array([[2], [0], [3]]))),
            Case((_WORDS[:1], _WORDS, np.array([[2]]))),
            Case((_WORDS[0], _WORDS, np.array([2]))),
        ),
        compute=_concat,
        broadcasts=1,
    ),
    Op("text_parts", "x", _infer_parts, _ref_parts, tuple(_SPLITS), nest=_parts),
    Op(
        "text_split",
        "x",
        _infer_split,
        _ref_split,
        tuple(Case(c.inputs, attrs={**c.attrs, "parts": to_dim(6)}) for c in _SPLITS),
        nest=_split,
    ),
    Op("text_match", "x group table accept", _infer_match, _ref_match, (_AUTOMATON,), nest=_match),
)

__all__ = ["ROWS"]
