"""A row of elements -> unsigned keys, and statements that bring keys and positions into order.

Elements are ordered by one digit of their keys after the other, equal ones as they stood (Knuth, The Art of
Computer Programming 5.2.5), in a time that grows with their number only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from smelt.core.dim import ONE, ZERO, Dim, dmax, sym, to_dim
from smelt.core.dtype import DType, bool_, f32, f64, i32, i64
from smelt.core.ir.kernel import Block, Bound, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.trace import DimIndex, Trace, call, cast, const, index, select

BYTE = 256
"""Values of a byte."""
Keyed: TypeAlias = tuple[Buffer, Buffer]
"""Keys, and the positions of the elements that have them."""


@dataclass(frozen=True)
class ChosenRow:
    """One row of a choice along `axis`: how its elements, the buffers and the cells are named. best, order:
    keys and positions of those found; spare, other: where they are moved to; counts: of each byte. Cell 1
    adds up how many have a lesser byte; the others are the choice's."""

    trace: Trace
    x: Buffer
    axis: int
    largest: bool
    order: Buffer
    best: Buffer
    other: Buffer
    spare: Buffer
    counts: Buffer
    cells: Buffer
    outer: DimIndex

    @property
    def count(self) -> Dim:
        return self.x.shape[self.axis]

    @property
    def room(self) -> Dim:
        """Elements that the buffers of a row hold."""
        return self.best.shape[-1]

    def at(self, p: Dim) -> DimIndex:
        return (*self.outer[: self.axis], p, *self.outer[self.axis :])

    def element(self, p: Dim) -> Load:
        return Load(self.x.name, self.at(p), self.x.dtype)

    def load(self, b: Buffer, p: Dim | int) -> Load:
        return Load(b.name, (*self.outer, to_dim(p)), b.dtype)

    def store(self, b: Buffer, p: Dim | int, e: Expr, accumulate: str | None = None) -> Store:
        return Store(b.name, (*self.outer, to_dim(p)), e, accumulate=accumulate)

    def loop(self, count: Dim, body: Callable[[Dim], tuple[Stmt, ...]]) -> Loop:
        v = self.trace.fresh("i")
        return Loop("serial", str(v), count, body(v))

    def when(self, condition: Expr, body: tuple[Stmt, ...]) -> Block:
        """The statements where the condition holds."""
        here = self.trace.fresh("g")
        inner = Block(body, guard=(Bound(ONE, here, to_dim(2)),))
        return Block((inner,), let=((str(here), cast(condition, i64), ZERO, ONE),))

    def bound(self, value: Expr, low: Dim, high: Dim, body: Callable[[Dim], tuple[Stmt, ...]]) -> Block:
        """The statements of an integer that data decides, clamped to low .. high."""
        g = self.trace.fresh("g")
        return Block(body(g), let=((str(g), value, low, high),))

    def key(self, p: Dim) -> Expr:
        """An unsigned number for an element: the less it is, the earlier the element belongs. NaN is larger
        than everything, zeros are equal."""
        found = risen(self.element(p), self.best.dtype)
        return call("not", found) if self.largest else found


def risen(e: Expr, kind: DType) -> Expr:
    """A number of the unsigned type that grows with e."""
    top, own = const(1 << (kind.bits - 1), kind), e.dtype
    if own.is_float:
        wide = cast(e, f64 if own.bits == 64 else f32)
        zero = const(0, wide.dtype)
        bits = call("bitcast", select(call("eq", wide, zero), zero, wide), dtype=kind)
        found = select(call("ge", bits, top), call("not", bits), call("xor", bits, top))
        return select(call("isnan", e), call("not", const(0, kind)), found)
    if own.category == "int":
        return call("xor", call("bitcast", cast(e, i64 if own.bits == 64 else i32), dtype=kind), top)
    return cast(e, kind)


def in_order(r: ChosenRow, filled: Dim, found: Keyed, spare: Keyed) -> tuple[Stmt, ...]:
    """The first `filled` of `found` in the order of their keys: by one byte of the keys after the other, from
    the least significant on. Keys have an even number of bytes, so that what is moved to and fro ends where
    it was. What is in order stays as it is. O(filled)."""
    keys, last = found[0], dmax(filled - 1, ZERO)
    falls = r.trace.reduce("any", (last,), lambda p: call("gt", r.load(keys, p), r.load(keys, p + 1)), bool_)
    done: list[Stmt] = []
    source, target = found, spare
    for place in range(keys.dtype.bytes):
        shift = const(8 * place, keys.dtype)

        def digit(key: Expr, shift: Expr = shift) -> Expr:
            return call("and", call("shr", key, shift), const(BYTE - 1, keys.dtype))

        done += by_digit(r, filled, source, target, digit, r.counts)
        source, target = target, source
    return (r.when(falls, tuple(done)),)


def by_digit(
    r: ChosenRow, filled: Dim, source: Keyed, target: Keyed, digit: Callable[[Expr], Expr], counts: Buffer
) -> tuple[Stmt, ...]:
    """The first `filled` of `source`, in the order of a digit of their keys, as `target`; `digit` gives one
    of BYTE values. In `counts` stands then where those of each value end."""
    last = r.room - 1

    def digit_of(p: Dim) -> tuple[str, Expr, Dim, Dim]:
        value = cast(digit(r.load(source[0], p)), i64)
        return (str(r.trace.fresh("g")), value, ZERO, to_dim(BYTE - 1))

    def counted(p: Dim) -> tuple[Stmt, ...]:
        let = digit_of(p)
        return (Block((r.store(counts, sym(let[0]), const(1, i64), "add"),), let=(let,)),)

    def summed(v: Dim) -> tuple[Stmt, ...]:
        many = r.trace.fresh("g")
        body = (r.store(counts, v, r.load(r.cells, 1)), r.store(r.cells, 1, index(many), "add"))
        return (Block(body, let=((str(many), r.load(counts, v), ZERO, r.room),)),)

    def moved(p: Dim) -> tuple[Stmt, ...]:
        let, to = digit_of(p), r.trace.fresh("g")
        body = (
            *(r.store(b, to, r.load(a, p)) for a, b in zip(source, target, strict=True)),
            r.store(counts, sym(let[0]), const(1, i64), "add"),
        )
        place = (str(to), r.load(counts, sym(let[0])), ZERO, last)
        return (Block((Block(body, let=(place,)),), let=(let,)),)

    return (
        r.loop(to_dim(BYTE), lambda v: (r.store(counts, v, const(0, i64)),)),
        r.loop(filled, counted),
        r.store(r.cells, 1, const(0, i64)),
        r.loop(to_dim(BYTE), summed),
        r.loop(filled, moved),
    )
