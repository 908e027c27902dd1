"""What depends on the elements' values: positions that are not zero, the largest elements, boxes that stay.

Sizes that data decides never come from a type rule: an importer counts first, binds a symbol to the count,
and hands it to the op as an attribute.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, dmax, dmin, sym, to_dim
from smelt.core.dtype import Array, DType, bf16, bool_, f32, f64, i32, i64, u32, u64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Bound, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.attrs import axis_of
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Trace, call, cast, const, index, select

BYTE = 256
"""Values of a byte."""
FEW_KEPT = 48
"""So many are found by insertion."""
STRETCH = 32
"""Elements that are compared with the worst of those kept before one of them is looked at."""


def _dim(attrs: Attrs, name: str) -> Dim:
    return to_dim(attrs[name])  # type: ignore[arg-type]


# ---------------------------------------------------------------- non-zero


def _infer_non_zero(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = args
    assert x
    return (TensorType(i64, (to_dim(x.rank), _dim(attrs, "count"))),)


def _non_zero(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """One walk over x; a cell holds how many were found."""
    (x,), (y,) = inputs, outputs
    assert x
    cell = Buffer("found", i64, (ONE,))
    last = y.shape[1] - 1

    def visit(i: DimIndex) -> tuple[Stmt, ...]:
        here, at = t.fresh("g"), t.fresh("g")
        hit = cast(_non_zero_value(Load(x.name, i, x.dtype), x.dtype), i64)
        stores = (
            *(Store(y.name, (to_dim(a), at), index(d)) for a, d in enumerate(i)),
            Store(cell.name, (ZERO,), const(1, i64), accumulate="add"),
        )
        found = Load(cell.name, (ZERO,), i64)
        inner = Block(stores, let=((str(at), found, ZERO, last),), guard=(Bound(ONE, here, to_dim(2)),))
        return (Block((inner,), let=((str(here), hit, ZERO, ONE),)),)

    return Nest((Block((Store(cell.name, (ZERO,), const(0, i64)), *nest_over(t, x.shape, visit))),), (cell,))


def _non_zero_value(e: Expr, dtype: DType) -> Expr:
    return e if dtype == bool_ else call("ne", e, const(0, dtype))


def _ref_non_zero(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    found = np.stack(np.nonzero(x)) if x.ndim else np.zeros((0, int(x != 0)), np.int64)
    return (found.astype(np.int64).reshape(x.ndim, -1 if x.ndim else _dim(attrs, "count").const),)


# ---------------------------------------------------------------- top k


def _infer_topk(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), axis, k = args, attrs["axis"], _dim(attrs, "k")
    assert x and isinstance(axis, int)
    if not 0 <= axis < x.rank:
        raise c.fail(f"axis {axis} does not fit rank {x.rank}")
    if x.dtype == bool_:
        raise c.fail("bool elements have no order")
    c.at_most("k, which is at least 0", ZERO, k)
    c.at_most("k", k, x.shape[axis])
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorType(x.dtype, shape), TensorType(i64, shape)


@dataclass(frozen=True)
class _Rows:
    """One row of a choice along `axis`: how its elements, the buffers and the cells are named. order, best:
    positions and keys of those found; other, spare: where they are moved to; counts: of each byte."""

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

    def key(self, p: Dim) -> Expr:
        """An unsigned number for an element: the less it is, the earlier the element belongs. NaN is larger
        than everything, zeros are equal."""
        found = _risen(self.element(p), self.best.dtype)
        return call("not", found) if self.largest else found


def _risen(e: Expr, kind: DType) -> Expr:
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


def _visited(
    r: _Rows, chosen: Expr, worst: Load, body: Callable[[Dim], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """`body` for the elements of all stretches in which one is better than the worst of those kept, or for
    all while too few are kept (`chosen` is false)."""
    n, t = r.count, r.trace
    whole = n // STRETCH

    def stretch(s: Dim) -> tuple[Stmt, ...]:
        start, size, enters = STRETCH * s, to_dim(STRETCH), t.fresh("g")
        hit = t.reduce("any", (size,), lambda j: call("lt", r.key(start + j), worst), bool_)
        wanted = cast(call("or", call("not", chosen), hit), i64)
        inner = Block((r.loop(size, lambda j: body(start + j)),), guard=(Bound(ONE, enters, to_dim(2)),))
        return (Block((inner,), let=((str(enters), wanted, ZERO, ONE),)),)

    rest = r.loop(n - STRETCH * whole, lambda j: body(STRETCH * whole + j))
    return (r.loop(whole, stretch), rest)


def _inserted(r: _Rows, k: Dim) -> tuple[Stmt, ...]:
    """The first k by insertion: `best` and `order` hold those found so far, in order, cell 0 how many."""

    def step(p: Dim) -> tuple[Stmt, ...]:
        found, enters, to = (r.trace.fresh("g") for _ in range(3))
        full = call("ge", r.load(r.cells, 0), index(k))
        better = call("lt", r.key(p), r.load(r.best, k - 1))
        stay = r.trace.sum((found,), lambda m: cast(call("le", r.load(r.best, m), r.key(p)), i64))

        def shift(m: Dim) -> tuple[Stmt, ...]:
            to = k - 1 - m
            return (
                r.store(r.best, to, r.load(r.best, to - 1)),
                r.store(r.order, to, r.load(r.order, to - 1)),
            )

        insert = Block(
            (
                r.loop(k - 1 - to, shift),
                r.store(r.best, to, r.key(p)),
                r.store(r.order, to, index(p)),
                r.store(r.cells, 0, index(dmin(found + 1, k))),
            ),
            let=((str(found), r.load(r.cells, 0), ZERO, k), (str(to), stay, ZERO, k - 1)),
        )
        wanted = cast(call("or", call("not", full), better), i64)
        return (
            Block(
                (Block((insert,), guard=(Bound(ONE, enters, to_dim(2)),)),),
                let=((str(enters), wanted, ZERO, ONE),),
            ),
        )

    full = call("ge", r.load(r.cells, 0), index(k))
    return (r.store(r.cells, 0, const(0, i64)), *_visited(r, full, r.load(r.best, k - 1), step))


def _in_order(r: _Rows, filled: Dim) -> tuple[Stmt, ...]:
    """The first `filled` of the buffer in the order of their keys, equal ones as they stood: by one byte of
    the keys after the other, from the least significant on (Knuth, The Art of Computer Programming 5.2.5).
    Keys have an even number of bytes, so that what is moved to and fro ends where it was. Cell 1 adds up how
    many have a lesser byte."""
    done: list[Stmt] = []
    source, target = (r.best, r.order), (r.spare, r.other)
    for place in range(r.best.dtype.bytes):
        done += _by_byte(r, filled, source, target, 8 * place)
        source, target = target, source
    return tuple(done)


def _by_byte(
    r: _Rows, filled: Dim, source: tuple[Buffer, Buffer], target: tuple[Buffer, Buffer], shift: int
) -> tuple[Stmt, ...]:
    kind, last = r.best.dtype, r.room - 1

    def byte(p: Dim) -> tuple[str, Expr, Dim, Dim]:
        moved = call("shr", r.load(source[0], p), const(shift, kind)) if shift else r.load(source[0], p)
        value = cast(call("and", moved, const(BYTE - 1, kind)), i64)
        return (str(r.trace.fresh("g")), value, ZERO, to_dim(BYTE - 1))

    def counted(p: Dim) -> tuple[Stmt, ...]:
        let = byte(p)
        return (Block((r.store(r.counts, sym(let[0]), const(1, i64), "add"),), let=(let,)),)

    def summed(v: Dim) -> tuple[Stmt, ...]:
        many = r.trace.fresh("g")
        body = (r.store(r.counts, v, r.load(r.cells, 1)), r.store(r.cells, 1, index(many), "add"))
        return (Block(body, let=((str(many), r.load(r.counts, v), ZERO, r.room),)),)

    def moved(p: Dim) -> tuple[Stmt, ...]:
        let, to = byte(p), r.trace.fresh("g")
        body = (
            *(r.store(b, to, r.load(a, p)) for a, b in zip(source, target, strict=True)),
            r.store(r.counts, sym(let[0]), const(1, i64), "add"),
        )
        place = (str(to), r.load(r.counts, sym(let[0])), ZERO, last)
        return (Block((Block(body, let=(place,)),), let=(let,)),)

    return (
        r.loop(to_dim(BYTE), lambda v: (r.store(r.counts, v, const(0, i64)),)),
        r.loop(filled, counted),
        r.store(r.cells, 1, const(0, i64)),
        r.loop(to_dim(BYTE), summed),
        r.loop(filled, moved),
    )


def _selected(r: _Rows, k: Dim) -> tuple[Stmt, ...]:
    """The first k through a buffer of twice as many: k in order, and those that are better than the last of
    them. Whenever it is full, it is put in order and k of it stay. So of n elements in any order about
    k log(n/k) are moved, and in the worst order all, in a time that grows with n. Cell 0 says how many
    there are, 2 whether k of them were in order."""

    def step(p: Dim) -> tuple[Stmt, ...]:
        enters, to, now = (r.trace.fresh("g") for _ in range(3))
        better = call("lt", r.key(p), r.load(r.best, k - 1))
        wanted = cast(call("or", call("not", chosen), better), i64)
        settle = (*_in_order(r, 2 * k), r.store(r.cells, 0, index(k)), r.store(r.cells, 2, const(1, i64)))
        full = Block(settle, guard=(Bound(2 * k, now, 2 * k + 1),))
        enter = Block(
            (
                r.store(r.best, to, r.key(p)),
                r.store(r.order, to, index(p)),
                r.store(r.cells, 0, index(to + 1)),
                Block((full,), let=((str(now), r.load(r.cells, 0), ZERO, r.room),)),
            ),
            let=((str(to), r.load(r.cells, 0), ZERO, r.room - 1),),
        )
        return (
            Block(
                (Block((enter,), guard=(Bound(ONE, enters, to_dim(2)),)),),
                let=((str(enters), wanted, ZERO, ONE),),
            ),
        )

    filled, chosen = r.trace.fresh("g"), call("gt", r.load(r.cells, 2), const(0, i64))
    return (
        r.store(r.cells, 0, const(0, i64)),
        r.store(r.cells, 2, const(0, i64)),
        *_visited(r, chosen, r.load(r.best, k - 1), step),
        Block(_in_order(r, filled), let=((str(filled), r.load(r.cells, 0), ZERO, r.room),)),
    )


def _topk(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """A few by insertion, more through a buffer; equal elements stay in order either way."""
    (x,), (y, where), axis = inputs, outputs, attrs["axis"]
    assert x and isinstance(axis, int)
    n, k = x.shape[axis], _dim(attrs, "k")
    others = (*x.shape[:axis], *x.shape[axis + 1 :])
    few, many = _known(k, n)
    room = (*others, k if few else dmin(2 * k, n))
    kind = u64 if x.dtype.bits == 64 else u32
    order, best = Buffer("order", i64, room), Buffer("best", kind, room)
    counts = Buffer("counts", i64, (*others, to_dim(BYTE)))
    beside = (Buffer("other", i64, room), Buffer("spare", kind, room), counts)
    cells = Buffer("cells", i64, (*others, to_dim(3)))

    def row(o: DimIndex) -> tuple[Stmt, ...]:
        r = _Rows(t, x, axis, bool(attrs["largest"]), order, best, *beside, cells, o)

        def take(p: Dim) -> tuple[Stmt, ...]:
            g = t.fresh("g")
            stores = (Store(y.name, r.at(p), r.element(g)), Store(where.name, r.at(p), index(g)))
            return (Block(stores, let=((str(g), r.load(order, p), ZERO, n - 1),)),)

        by_insertion = Block(
            _inserted(r, k if few else dmin(k, FEW_KEPT)), guard=(Bound(ONE, k, to_dim(FEW_KEPT + 1)),)
        )
        by_keys = Block(_selected(r, k), guard=(Bound(to_dim(FEW_KEPT + 1), k, n + 1),))
        found = (by_insertion,) if few else (by_keys,) if many else (by_insertion, by_keys)
        return (*found, r.loop(k, take))

    body = nest_over(t, others, row)
    return Nest(body if others else (Block(body),), (order, best, *(() if few else beside), cells))


def _known(k: Dim, n: Dim) -> tuple[bool, bool]:
    """Whether k is known to be few, or to be many."""
    least, most = k.const_or_none, n.const_or_none
    few = any(d is not None and d <= FEW_KEPT for d in (least, most))
    return few, least is not None and least > FEW_KEPT


def _ref_topk(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, axis, k = arrays[0], attrs["axis"], _dim(attrs, "k").const
    assert x is not None and isinstance(axis, int)
    n = x.shape[axis]
    keys = x.astype(np.float32) if types[0].dtype == bf16 else x  # NumPy finds no NaN in types of others
    if attrs["largest"]:  # ascending, then read from the end: equal elements stay in order
        order = n - 1 - np.flip(np.argsort(np.flip(keys, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(keys, axis=axis, kind="stable")
    first = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, first, axis=axis), first.astype(np.int64)


# ---------------------------------------------------------------- boxes


def _infer_keep(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    boxes, scores, order = args[:3]
    assert boxes and scores and order
    if (boxes.rank, scores.rank, order.rank) != (3, 3, 3):
        raise c.fail("boxes, scores and their order have rank 3")
    if (boxes.dtype, scores.dtype, order.dtype) != (f32, f32, i64):
        raise c.fail(f"boxes are {boxes.dtype}, scores {scores.dtype}, their order {order.dtype}")
    c.same("coordinates of a box", boxes.shape[2], to_dim(4))
    c.same("batch", boxes.shape[0], scores.shape[0])
    c.same("number of boxes", boxes.shape[1], scores.shape[2])
    return (TensorType(bool_, scores.shape),)


def _overlap(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
    """Intersection over union of boxes given by two corners, low ones first; 0 where they do not meet."""

    def area(box: Sequence[Expr]) -> Expr:
        return call("mul", call("sub", box[2], box[0]), call("sub", box[3], box[1]))

    zero = const(0, f32)
    sides = [
        call("max", call("sub", call("min", a[d + 2], b[d + 2]), call("max", a[d], b[d])), zero)
        for d in (0, 1)
    ]
    both = call("mul", sides[0], sides[1])
    union = call("sub", call("add", area(a), area(b)), both)
    return select(call("gt", both, zero), call("div", both, union), zero)


def _keep(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """Best first: a box stays when its score is high enough, it overlaps none that stays too much, and
    there is room."""
    boxes, scores, order, most, overlap, least = inputs
    assert boxes and scores and order and most and overlap and least
    (y,) = outputs
    n = scores.shape[2]
    kept, count = Buffer("kept", i64, scores.shape), Buffer("count", i64, (*scores.shape[:2], ONE))

    def row(o: DimIndex) -> tuple[Stmt, ...]:
        batch, _ = o
        cell = Load(count.name, (*o, ZERO), i64)

        def corners(g: Dim) -> list[Expr]:
            return [Load(boxes.name, (batch, g, to_dim(d)), f32) for d in range(4)]

        def box(p: Dim) -> tuple[Stmt, ...]:
            g, so_far, worth, stays = (t.fresh("g") for _ in range(4))

            def too_close(m: Dim) -> Expr:
                other = Load(kept.name, (*o, m), i64)
                limit = Load(overlap.name, (), f32)
                return t.let(other, 0, n - 1, lambda q: call("gt", _overlap(corners(q), corners(g)), limit))

            clear = call("not", t.reduce("any", (so_far,), too_close, bool_))
            high = call("gt", Load(scores.name, (*o, p), f32), Load(least.name, (), f32))
            room = call("lt", cell, Load(most.name, (), i64))
            keep = (
                Store(y.name, (*o, p), const(True, bool_)),
                Store(kept.name, (*o, so_far), index(g)),
                Store(count.name, (*o, ZERO), const(1, i64), accumulate="add"),
            )
            two = to_dim(2)
            judged = Block(
                (Block(keep, guard=(Bound(ONE, stays, two),)),),
                let=((str(stays), cast(clear, i64), ZERO, ONE),),
            )
            return (
                Store(y.name, (*o, p), const(False, bool_)),
                Block(
                    (Block((judged,), guard=(Bound(ONE, worth, two),)),),
                    let=(
                        (str(g), Load(order.name, (*o, p), i64), ZERO, n - 1),
                        (str(so_far), cell, ZERO, n - 1),
                        (str(worth), cast(call("and", high, room), i64), ZERO, ONE),
                    ),
                ),
            )

        v = t.fresh("i")
        return (Store(count.name, (*o, ZERO), const(0, i64)), Loop("serial", str(v), n, box(v)))

    return Nest(nest_over(t, scores.shape[:2], row), (kept, count))


def _ref_keep(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    boxes, scores, order, most, overlap, least = (np.asarray(a) for a in arrays)
    y = np.zeros(scores.shape, np.bool_)
    for batch, c in np.ndindex(*scores.shape[:2]):
        kept: list[Array] = []
        for p, g in enumerate(order[batch, c]):
            box = boxes[batch, g]
            if scores[batch, c, p] <= least or len(kept) >= most:
                continue
            if not any(_ref_overlap(q, box) > overlap for q in kept):
                kept.append(box)
                y[batch, c, p] = True
    return (y,)


def _ref_overlap(a: Array, b: Array) -> np.float32:
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), np.float32(0))
    both = sides[0] * sides[1]
    union = np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both
    return np.float32(both / union if both > 0 else 0)


_SPARSE = np.array([[0, 1.5, 0], [-2, 0, 3]], np.float32)
_BOXES = np.array(
    [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [2, 2, 3, 3]]], np.float32
)
_SCORES = np.array([[[0.9, 0.75, 0.6, 0.5, 0.1]]], np.float32)
_ORDER = np.array([[[3, 0, 1, 2, 4]]], np.int64)


def _keep_case(most: int, overlap: float, least: float) -> Case:
    limits = (np.array(most, np.int64), np.array(overlap, np.float32), np.array(least, np.float32))
    return Case((_BOXES, _SCORES, _ORDER, *limits))


def _positions(inputs: Sequence[TensorType | None], attrs: Attrs, place: int, i: DimIndex) -> tuple[Dim, Dim]:
    """Row a has positions on axis a."""
    (x,) = inputs
    assert x is not None
    row = i[0].const_or_none
    most = functools.reduce(dmax, x.shape, ONE) if row is None else x.shape[row]
    return ZERO, most - 1


def _first(
    inputs: Sequence[TensorType | None], attrs: Attrs, place: int, i: DimIndex
) -> tuple[Dim, Dim] | int:
    """Elements, and where on their axis they stood."""
    x = inputs[0]
    assert x is not None
    return (ZERO, x.shape[axis_of(attrs)] - 1) if place else 0


_TIES = np.where(np.arange(230) % 17 == 3, np.nan, np.arange(230) * 37 % 11).astype(np.float32)
"""Few values, each often, and NaN."""

ROWS: tuple[Op, ...] = (
    Op(
        "non_zero",
        "x",
        _infer_non_zero,
        _ref_non_zero,
        (
            Case((_SPARSE,), attrs={"count": to_dim(3)}),
            Case((np.array([False, True, True]),), attrs={"count": to_dim(2)}),
            Case((np.zeros((2, 0, 3), np.int64),), attrs={"count": to_dim(0)}),
            Case((np.array(7, np.int32),), attrs={"count": to_dim(1)}),
        ),
        nest=_non_zero,
        span=_positions,
    ),
    Op(
        "topk",
        "x",
        _infer_topk,
        _ref_topk,
        (
            Case(("f32[N, 6]",), attrs={"axis": 1, "k": to_dim(3), "largest": True, "sorted": True}),
            Case(("i32[5, N, 2]",), attrs={"axis": 0, "k": to_dim(5), "largest": False, "sorted": True}),
            Case(("i64[9]",), attrs={"axis": 0, "k": to_dim(4), "largest": True, "sorted": True}),
            Case(("f32[2, 70]",), attrs={"axis": 1, "k": to_dim(60), "largest": True, "sorted": True}),
            Case(("i32[100, 2]",), attrs={"axis": 0, "k": to_dim(100), "largest": False, "sorted": True}),
            Case(("f32[2, 190]",), attrs={"axis": 1, "k": to_dim(50), "largest": True, "sorted": True}),
            Case((_TIES,), attrs={"axis": 0, "k": to_dim(60), "largest": True, "sorted": True}),
            Case((_TIES,), attrs={"axis": 0, "k": to_dim(100), "largest": False, "sorted": True}),
            Case(
                (np.array([[1, np.nan, 3, 3, -np.inf]], np.float32),),
                attrs={"axis": 1, "k": to_dim(5), "largest": True, "sorted": False},
            ),
        ),
        nest=_topk,
        span=_first,
    ),
    Op(
        "nms_keep",
        "boxes scores order most overlap least",
        _infer_keep,
        _ref_keep,
        (_keep_case(3, 0.5, 0.0), _keep_case(9, 0.95, 0.55), _keep_case(0, 0.5, 0.0)),
        nest=_keep,
    ),
)

__all__ = ["ROWS"]
