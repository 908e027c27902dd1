"""The core op that splits strings into tokens: the longest pieces that an automaton accepts, left to
right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import ONE, TWO, ZERO, Dim, dmax, dmin, to_dim
from smelt.core.dtype import Array, bool_, i64, u8
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Bound, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.attrs import integer
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.rows.text_walk import Walk, chars, int64
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Trace, call, cast, const, index, select

NEXT, PARTS, STATE, LAST = range(4)
"""Cells: where the next token may begin, how many there are, the automaton's state, the end of the longest
piece that it has accepted."""


@dataclass(frozen=True)
class _Walk(Walk):
    """A walk by an automaton: the class of each byte, the state that follows on a class, the states that
    accept. least: characters that a token has at least."""

    group: Buffer
    table: Buffer
    accept: Buffer
    least: int

    def leads(self, k: Dim) -> Expr:
        """Whether a character begins at k."""
        return call("ne", call("and", self.byte(k), int64(0xC0)), int64(0x80))

    def longest(self, i: Dim) -> Loop:
        """Leave in LAST where the longest accepted piece from i on ends."""
        k, byte, own, state, after = self.trace.fresh("i"), *(self.trace.fresh("g") for _ in range(4))
        states, classes = self.table.shape
        to = cast(Load(self.table.name, (state, own), self.table.dtype), i64)
        good = Load(self.accept.name, (after,), bool_)
        taken = Block(
            (
                self.put(STATE, index(after)),
                self.put(LAST, select(good, index(i + k + 1), self.cell(LAST))),
            ),
            let=((str(after), to, ZERO, states - 1),),
        )
        step = Block(
            (Block((taken,), guard=(Bound(ONE, byte, to_dim(256)),)),),
            let=(
                (str(byte), self.byte(i + k), ZERO, to_dim(255)),
                (str(own), cast(Load(self.group.name, (byte,), self.group.dtype), i64), ZERO, classes - 1),
                (str(state), self.cell(STATE), ZERO, states - 1),
            ),
        )
        return Loop("serial", str(k), self.x.shape[1] - i, (step,))

    def statements(self, y: Buffer | None) -> tuple[Stmt, ...]:
        """All bytes; tokens go into the rows of y[n]."""
        i, m = self.trace.fresh("i"), self.trace.fresh("i")
        begins, last, keeps, part = (self.trace.fresh("g") for _ in range(4))
        width = self.x.shape[1]
        free = call("ge", index(i), self.cell(NEXT))
        some = call("and", call("ne", self.byte(i), int64(0)), self.leads(i))
        count = self.trace.sum((last - i,), lambda k: cast(self.leads(i + k), i64))
        good = call("and", call("lt", index(i), index(last)), call("ge", count, int64(self.least)))
        kept: tuple[Stmt, ...] = (self.put(PARTS, index(part + 1)),)
        if y is not None:
            at = (self.n, dmin(part, y.shape[1] - 1), m)
            copy = Store(y.name, at, Load(self.x.name, (self.n, dmin(i + m, width - 1)), u8))
            kept = (Loop("serial", str(m), last - i, (copy,)), *kept)
        token = Block(
            (
                self.put(NEXT, index(dmax(last, i + 1))),
                Block(kept, guard=(Bound(ONE, keeps, TWO),)),
            ),
            let=(
                (str(last), self.cell(LAST), i, width),
                (str(keeps), cast(good, i64), ZERO, ONE),
                (str(part), self.cell(PARTS), ZERO, width),
            ),
        )
        search = (self.put(STATE, int64(0)), self.put(LAST, index(i)), self.longest(i), token)
        step = Block(
            (Block(search, guard=(Bound(ONE, begins, TWO),)),),
            let=((str(begins), cast(call("and", free, some), i64), ZERO, ONE),),
        )
        return (self.put(NEXT, int64(0)), self.put(PARTS, int64(0)), Loop("serial", str(i), width, (step,)))


def _infer_count(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x
    return (TensorType(i64, (x.shape[0],)),)


def _infer_tokens(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x
    return (TensorType(u8, (x.shape[0], to_dim(attrs["parts"]), x.shape[1])),)  # type: ignore[arg-type]


def _walk(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], n: Dim) -> _Walk:
    x, group, table, accept = inputs
    assert x and group and table and accept
    cells = Buffer("cells", i64, (x.shape[0], to_dim(4)))
    return _Walk(t, x, cells, n, group, table, accept, integer(attrs, "least"))


def _count(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    (y,) = outputs

    def row(i: DimIndex) -> tuple[Stmt, ...]:
        w = _walk(t, attrs, inputs, i[0])
        return (*w.statements(None), Store(y.name, i, w.cell(PARTS)))

    return Nest(nest_over(t, y.shape, row), (_walk(t, attrs, inputs, ZERO).cells,))


def _tokens(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    (y,) = outputs

    def row(i: DimIndex) -> tuple[Stmt, ...]:
        clear = nest_over(t, y.shape[1:], lambda o: (Store(y.name, (*i, *o), const(0, u8)),))
        return (*clear, *_walk(t, attrs, inputs, i[0]).statements(y))

    return Nest(nest_over(t, y.shape[:1], row), (_walk(t, attrs, inputs, ZERO).cells,))


def _np_tokens(row: Array, arrays: Sequence[Array | None], attrs: Attrs) -> list[bytes]:
    group, table, accept = (np.asarray(a) for a in arrays[1:])
    s, found, i = row.tobytes().rstrip(b"\0"), [], 0
    while i < len(s):
        state, last = 0, i
        for k in range(i, len(s)) if s[i] & 0xC0 != 0x80 else ():
            state = int(table[state, group[s[k]]])
            last = k + 1 if accept[state] else last
        if last > i and sum(b & 0xC0 != 0x80 for b in s[i:last]) >= integer(attrs, "least"):
            found.append(s[i:last])
        i = max(last, i + 1)
    return found


def _ref_count(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x = arrays[0]
    assert x is not None
    return (np.array([len(_np_tokens(r, arrays, attrs)) for r in x], np.int64).reshape(len(x)),)


def _ref_tokens(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x = arrays[0]
    assert x is not None
    y = np.zeros([d.const for d in types[0].shape], np.uint8)
    for n, row in enumerate(x):
        for p, token in enumerate(_np_tokens(row, arrays, attrs)):
            y[n, p, : len(token)] = list(token)
    return (y,)


_WORDS = (  # one a, or letters b
    chars(["abb bab", "", "   ", "aab", "b b  b", "c\u00e9bb"], 8),
    np.array([{97: 1, 98: 2}.get(k, 0) for k in range(256)], np.uint8),
    np.array([[3, 1, 2], [3, 3, 3], [3, 3, 2], [3, 3, 3]], np.uint8),
    np.array([False, True, True, False]),
)

ROWS: tuple[Op, ...] = (
    Op(
        "token_count",
        "x group table accept",
        _infer_count,
        _ref_count,
        tuple(Case(_WORDS, attrs={"least": n}) for n in (1, 2)),
        nest=_count,
    ),
    Op(
        "tokens",
        "x group table accept",
        _infer_tokens,
        _ref_tokens,
        tuple(Case(_WORDS, attrs={"least": n, "parts": to_dim(5)}) for n in (1, 2)),
        nest=_tokens,
    ),
)

__all__ = ["ROWS"]
