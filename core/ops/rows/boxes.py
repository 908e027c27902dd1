"""Boxes and their scores -> the boxes that stay when those that overlap a better one are suppressed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, dmax, to_dim
from smelt.core.dtype import Array, DType, bool_, f32, i64, u32
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Bound, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.attrs import dim_of
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.rows.order import BYTE, ChosenRow, by_digit, in_order
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Trace, call, cast, const, index, select

CANDIDATES = 32
"""Scores that are compared with the least one before one of them is looked at (benchmarks/results/ops.md)."""
SIDE_BY_SIDE = 16
"""Boxes that stay are compared with another one so many at a time: a vector of AVX-512."""
FEW_IN_PART = 64
"""Fewer candidates of a part are put in order by insertion (benchmarks/results/ops.md)."""

# ---------------------------------------------------------------- which boxes stay


def _infer_keep(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    boxes, scores = args[:2]
    assert boxes and scores
    if (boxes.rank, scores.rank) != (3, 3):
        raise c.fail("boxes and scores have rank 3")
    if (boxes.dtype, scores.dtype) != (f32, f32):
        raise c.fail(f"boxes are {boxes.dtype}, scores {scores.dtype}")
    c.same("coordinates of a box", boxes.shape[2], to_dim(4))
    c.same("batch", boxes.shape[0], scores.shape[0])
    c.same("number of boxes", boxes.shape[1], scores.shape[2])
    room = dim_of(attrs, "room")
    c.at_most("room for boxes", ZERO, room)
    c.at_most("room for boxes", room, scores.shape[2])
    return TensorType(i64, (*scores.shape[:2], room)), TensorType(i64, scores.shape[:2])


@dataclass(frozen=True)
class _Row:
    """What is read and made for the boxes of a class. pairs: keys and positions of candidates: in order, in
    parts, and on their way; ends: of the parts. own: the corners of the box in question; corners, area: those
    of the boxes that stay, coordinate by coordinate, so that a box is compared with neighbours in memory."""

    boxes: Buffer
    centred: bool
    overlap: Buffer
    places: Buffer
    kept: Buffer
    pairs: tuple[tuple[Buffer, Buffer], ...]
    ends: Buffer
    own: Buffer
    corners: tuple[Buffer, ...]
    area: Buffer

    @property
    def room(self) -> Dim:
        return self.places.shape[-1]

    def cell(self, o: DimIndex) -> Load:
        return Load(self.kept.name, o, i64)


def _area(box: Sequence[Expr]) -> Expr:
    return call("mul", call("sub", box[2], box[0]), call("sub", box[3], box[1]))


def _overlap(a: Sequence[Expr], area: Expr, b: Sequence[Expr]) -> Expr:
    """Intersection over union of boxes given by two corners, low ones first; 0 where they do not meet."""
    zero = const(0, f32)
    sides = [
        call("max", call("sub", call("min", a[d + 2], b[d + 2]), call("max", a[d], b[d])), zero)
        for d in (0, 1)
    ]
    both = call("mul", sides[0], sides[1])
    union = call("sub", call("add", area, _area(b)), both)
    return select(call("gt", both, zero), call("div", both, union), zero)


def _keep(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """Best first: a box stays when its score is above the least one (a number, where none is given), it
    overlaps none that stays too much, and there is room. Scores are put in order as far as they are asked
    for: into BYTE parts by their keys, and within a part when its turn comes. O(n) for n boxes, and O(n) for
    each box that stays."""
    boxes, scores, overlap, least = (*inputs, None)[:4]
    assert boxes and scores and overlap
    places, count = outputs
    rows, n, room = scores.shape[:2], scores.shape[2], places.shape[-1]

    def made(name: str, kind: DType, extent: Dim | int) -> Buffer:
        return Buffer(name, kind, (*rows, to_dim(extent)))

    pairs = tuple((made(f"keys{k}", u32, n), made(f"order{k}", i64, n)) for k in range(3))
    counts, ends = made("counts", i64, BYTE), made("ends", i64, BYTE)
    cells, frame, own = made("cells", i64, 2), made("frame", u32, 2), made("own", f32, 4)
    wide = (room + SIDE_BY_SIDE - 1) // SIDE_BY_SIDE * SIDE_BY_SIDE
    corners, area = tuple(made(f"corner{k}", f32, wide) for k in range(4)), made("area", f32, wide)
    of = _Row(boxes, bool(attrs["centred"]), overlap, places, count, pairs, ends, own, corners, area)

    def row(o: DimIndex) -> tuple[Stmt, ...]:
        (best, order), (spare, other), _ = pairs
        r = ChosenRow(t, scores, 2, True, order, best, other, spare, counts, cells, o)

        def part(v: Dim) -> tuple[Stmt, ...]:
            before = Load(ends.name, (*o, v - 1), i64, (Bound(ONE, v, to_dim(BYTE)),), const(0, i64))
            inner = r.bound(before, ZERO, n, lambda start: _part(r, start, v, of))
            return (r.when(call("lt", of.cell(o), index(room)), (inner,)),)

        def zeros(so_far: Dim) -> tuple[Stmt, ...]:
            return (r.loop(room - so_far, lambda p: (r.store(places, room - 1 - p, const(0, i64)),)),)

        def judged(filled: Dim) -> tuple[Stmt, ...]:
            body = (*_parts(r, filled, frame, ends), r.loop(to_dim(BYTE), part))
            return (Block(body, guard=(Bound(ONE, filled, n + 1),)),)

        return (
            Store(count.name, o, const(0, i64)),
            *_candidates(r, least),
            r.bound(r.load(cells, 0), ZERO, n, judged),
            r.bound(of.cell(o), ZERO, room, zeros),
        )

    used = (*(b for pair in pairs for b in pair), counts, ends, cells, frame, own, *corners, area)
    return Nest(nest_over(t, rows, row), used)


def _candidates(r: ChosenRow, least: Buffer | None) -> tuple[Stmt, ...]:
    """The keys and positions of all scores above the least (of all that are numbers, where there is none),
    and how many there are in cell 0."""
    whole = r.count // CANDIDATES

    def high(p: Dim) -> Expr:
        if least is None:
            return call("eq", r.element(p), r.element(p))
        return call("gt", r.element(p), Load(least.name, (), f32))

    def enter(p: Dim) -> tuple[Stmt, ...]:
        def put(to: Dim) -> tuple[Stmt, ...]:
            stores = (r.store(r.best, to, r.key(p)), r.store(r.order, to, index(p)))
            return (*stores, r.store(r.cells, 0, index(to + 1)))

        return (r.when(high(p), (r.bound(r.load(r.cells, 0), ZERO, r.room - 1, put),)),)

    def stretch(s: Dim) -> tuple[Stmt, ...]:
        start, size = CANDIDATES * s, to_dim(CANDIDATES)
        some = r.trace.reduce("any", (size,), lambda j: high(start + j), bool_)
        return (r.when(some, (r.loop(size, lambda j: enter(start + j)),)),)

    rest = r.loop(r.count - CANDIDATES * whole, lambda j: enter(CANDIDATES * whole + j))
    return (r.store(r.cells, 0, const(0, i64)), r.loop(whole, stretch), rest)


def _parts(r: ChosenRow, filled: Dim, frame: Buffer, ends: Buffer) -> tuple[Stmt, ...]:
    """Keys from the least to the greatest in BYTE parts of equal spans, in order: by the highest bits of what
    they are above the least."""

    def extreme(kind: str) -> Expr:
        return r.trace.reduce("min" if kind == "min" else "max", (filled,), lambda p: r.load(r.best, p), u32)

    low, shift = r.load(frame, 0), r.load(frame, 1)
    span = call("sub", extreme("max"), low)

    def too_wide(s: Dim) -> Expr:
        return cast(call("gt", call("shr", r.load(frame, 1), index(s, u32)), const(BYTE - 1, u32)), u32)

    def digit(key: Expr) -> Expr:
        return call("shr", call("sub", key, low), shift)

    return (
        r.store(frame, 0, extreme("min")),
        r.store(frame, 1, span),
        r.store(frame, 1, r.trace.sum((24,), too_wide, u32)),
        *by_digit(r, filled, (r.best, r.order), (r.spare, r.other), digit, ends),
    )


def _part(r: ChosenRow, start: Dim, v: Dim, row: _Row) -> tuple[Stmt, ...]:
    """Those of a part in order, one after the other."""
    front, _, beside = row.pairs
    last = dmax(r.count - 1, ZERO)

    def judged(p: Dim) -> tuple[Stmt, ...]:
        inner = r.bound(r.load(front[1], p), ZERO, last, lambda g: _judged(r, g, row))
        return (r.when(call("lt", row.cell(r.outer), index(row.room)), (inner,)),)

    def ordered(filled: Dim) -> tuple[Stmt, ...]:
        few = Block(_inserted(r, start, filled, row), guard=(Bound(ZERO, filled, to_dim(FEW_IN_PART)),))
        many = Block(
            (_copied(r, start, filled, row), *in_order(r, filled, front, beside)),
            guard=(Bound(to_dim(FEW_IN_PART), filled, r.count + 1),),
        )
        return (few, many, r.loop(filled, judged))

    return (r.bound(call("sub", r.load(row.ends, v), index(start)), ZERO, r.count, ordered),)


def _copied(r: ChosenRow, start: Dim, filled: Dim, row: _Row) -> Stmt:
    front, parted, _ = row.pairs

    def copied(at: Dim, p: Dim) -> tuple[Stmt, ...]:
        return tuple(r.store(a, p, r.load(b, at)) for a, b in zip(front, parted, strict=True))

    last = dmax(r.count - 1, ZERO)
    return r.loop(filled, lambda p: (r.bound(index(start + p), ZERO, last, lambda at: copied(at, p)),))


def _inserted(r: ChosenRow, start: Dim, filled: Dim, row: _Row) -> tuple[Stmt, ...]:
    """The few of a part, each where it belongs among those before it."""
    front, parted, _ = row.pairs

    def insert(at: Dim, p: Dim) -> tuple[Stmt, ...]:
        key = r.load(parted[0], at)
        stay = r.trace.sum((p,), lambda m: cast(call("le", r.load(front[0], m), key), i64))

        def put(to: Dim) -> tuple[Stmt, ...]:
            shift = r.loop(p - to, lambda j: tuple(r.store(b, p - j, r.load(b, p - j - 1)) for b in front))
            return (shift, *(r.store(a, to, r.load(b, at)) for a, b in zip(front, parted, strict=True)))

        return (r.bound(stay, ZERO, p, put),)

    last = dmax(r.count - 1, ZERO)
    return (r.loop(filled, lambda p: (r.bound(index(start + p), ZERO, last, lambda at: insert(at, p)),)),)


def _corners(boxes: Buffer, batch: Dim, g: Dim, centred: bool) -> list[Expr]:
    """Of box g the low corner, then the high one: from any two opposite ones, or from centre and extent."""
    a = [Load(boxes.name, (batch, g, to_dim(d)), f32) for d in range(4)]
    if centred:
        half = [call("mul", e, const(0.5, f32)) for e in a[2:]]
        return [call(fn, c, h) for fn in ("sub", "add") for c, h in zip(a[:2], half, strict=True)]
    return [call(fn, *pair) for fn in ("min", "max") for pair in zip(a[:2], a[2:], strict=True)]


def _judged(r: ChosenRow, g: Dim, row: _Row) -> tuple[Stmt, ...]:
    """Box g stays where it overlaps none of those that stay too much; cell 1 says whether one has been found,
    and those that stay are compared SIDE_BY_SIDE at a time until then."""
    o = r.outer
    limit = Load(row.overlap.name, (), f32)

    def test(so_far: Dim) -> tuple[Stmt, ...]:
        mine = [r.load(row.own, d) for d in range(4)]

        def some(q: Dim) -> tuple[Stmt, ...]:
            def too_close(j: Dim) -> Expr:
                m = SIDE_BY_SIDE * q + j
                other = [r.load(c, m) for c in row.corners]
                close = call("gt", _overlap(other, r.load(row.area, m), mine), limit)
                return call("and", call("lt", index(m), index(so_far)), close)

            hit = r.trace.reduce("any", (SIDE_BY_SIDE,), too_close, bool_)
            none = call("eq", r.load(r.cells, 1), const(0, i64))
            return (r.when(none, (r.store(r.cells, 1, cast(hit, i64)),)),)

        most = row.area.shape[-1] // SIDE_BY_SIDE
        full = index((so_far + SIDE_BY_SIDE - 1) // SIDE_BY_SIDE)
        return (r.bound(full, ZERO, most, lambda count: (r.loop(count, some),)),)

    def stays(so_far: Dim) -> tuple[Stmt, ...]:
        own = _corners(row.boxes, o[0], g, row.centred)
        body = (
            Store(row.places.name, (*o, so_far), index(g)),
            *(r.store(c, so_far, r.load(row.own, d)) for d, c in enumerate(row.corners)),
            r.store(row.area, so_far, _area([r.load(row.own, d) for d in range(4)])),
            Store(row.kept.name, o, const(1, i64), accumulate="add"),
        )
        return (
            *(r.store(row.own, d, e) for d, e in enumerate(own)),
            r.store(r.cells, 1, const(0, i64)),
            *test(so_far),
            r.when(call("eq", r.load(r.cells, 1), const(0, i64)), body),
        )

    def inside(so_far: Dim) -> tuple[Stmt, ...]:
        return (Block(stays(so_far), guard=(Bound(ZERO, so_far, row.room),)),)

    return (r.bound(row.cell(o), ZERO, dmax(row.room - 1, ZERO), inside),)


def _ref_keep(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    boxes, scores, overlap = (np.asarray(a) for a in arrays[:3])
    least = arrays[3] if len(arrays) > 3 else None
    good = ~np.isnan(scores) if least is None else scores > least
    low, high = boxes[..., :2], boxes[..., 2:]
    half = high * np.float32(0.5)
    ends = (low - half, low + half) if attrs["centred"] else (np.minimum(low, high), np.maximum(low, high))
    boxes = np.concatenate(ends, -1)
    room = dim_of(attrs, "room").const
    places = np.zeros((*scores.shape[:2], room), np.int64)
    count = np.zeros(scores.shape[:2], np.int64)
    for batch, c in np.ndindex(*scores.shape[:2]):
        kept: list[Array] = []
        for g in np.argsort(-scores[batch, c], kind="stable"):
            box = boxes[batch, g]
            if not good[batch, c, g] or len(kept) >= room:
                continue
            if not any(_ref_overlap(q, box) > overlap for q in kept):
                places[batch, c, len(kept)] = g
                kept.append(box)
        count[batch, c] = len(kept)
    return places, count


def _ref_overlap(a: Array, b: Array) -> np.float32:
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), np.float32(0))
    both = sides[0] * sides[1]
    union = np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both
    return np.float32(both / union if both > 0 else 0)


# ---------------------------------------------------------------- a list of them


def _infer_listed(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    places, count = args
    assert places and count
    if (places.rank, count.rank, places.dtype, count.dtype) != (3, 2, i64, i64):
        raise c.fail(f"places are {places.type}, their counts {count.type}")
    c.same("batch", places.shape[0], count.shape[0])
    c.same("classes", places.shape[1], count.shape[1])
    return (TensorType(i64, (dim_of(attrs, "count"), to_dim(3))),)


def _listed(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """O(rows and boxes that stay)."""
    places, count = inputs
    (y,) = outputs
    assert places and count
    cell = Buffer("found", i64, (ONE,))
    last = dmax(y.shape[0] - 1, ZERO)

    def row(o: DimIndex) -> tuple[Stmt, ...]:
        many, first, j, at = (t.fresh("g") for _ in range(4))
        own: tuple[Expr, ...] = (*(index(d) for d in o), Load(places.name, (*o, j), i64))
        stores = tuple(Store(y.name, (at, to_dim(k)), e) for k, e in enumerate(own))
        inside = Block(stores, guard=(Bound(ZERO, at, y.shape[0]),))
        let = ((str(at), index(first + j), ZERO, last),)
        listed = Loop("serial", str(j), many, (Block((inside,), let=let),))
        body = Block(
            (listed, Store(cell.name, (ZERO,), index(many), accumulate="add")),
            let=((str(first), Load(cell.name, (ZERO,), i64), ZERO, y.shape[0]),),
        )
        return (Block((body,), let=((str(many), Load(count.name, o, i64), ZERO, places.shape[2]),)),)

    start = Store(cell.name, (ZERO,), const(0, i64))
    return Nest((Block((start, *nest_over(t, count.shape, row))),), (cell,))


def _ref_listed(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    places, count = arrays
    assert places is not None and count is not None
    found = [(*o, places[o][j]) for o in np.ndindex(*count.shape) for j in range(count[o])]
    return (np.array(found, np.int64).reshape(-1, 3),)


def _span_kept(
    inputs: Sequence[TensorType | None], attrs: Attrs, place: int, i: DimIndex
) -> tuple[Dim, Dim] | int:
    scores = inputs[1]
    assert scores is not None
    return (ZERO, dim_of(attrs, "room") if place else dmax(scores.shape[2] - 1, ZERO))


def _span_listed(
    inputs: Sequence[TensorType | None], attrs: Attrs, place: int, i: DimIndex
) -> tuple[Dim, Dim] | int:
    """Batch and class, and an element of the places; of an unknown column nothing less than all of these."""
    places, column = inputs[0], i[1].const_or_none
    assert places is not None
    return (ZERO, places.shape[column] - 1) if column in (0, 1) else 0


_BOXES = np.array(
    [[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [2, 2, 3, 3]]], np.float32
)
_SCORES = np.array([[[0.75, 0.6, 0.5, 0.9, 0.1]]], np.float32)
_MASKED = np.array([[[0.75, -np.inf, np.nan, 0.9, -np.inf]]], np.float32)
_TIED = (
    np.where(np.arange(90) % 7 == 3, np.nan, np.arange(90) * 37 % 11 - 5).astype(np.float32).reshape(1, 2, 45)
)
"""Few scores, each often, and NaN."""
_SPREAD = np.stack(
    [np.arange(45) % 9, np.arange(45) // 9, np.arange(45) % 9 + 1.5, np.arange(45) // 9 + 1.5], -1
)


def _keep_case(room: int, overlap: float, least: float, centred: bool = False) -> Case:
    limits = (np.array(overlap, np.float32), np.array(least, np.float32))
    return Case((_BOXES, _SCORES, *limits), attrs={"room": to_dim(room), "centred": centred})


def _tied_case(room: int, overlap: float, least: float, centred: bool = False) -> Case:
    limits = (np.array(overlap, np.float32), np.array(least, np.float32))
    return Case(
        (_SPREAD[None].astype(np.float32), _TIED, *limits), attrs={"room": to_dim(room), "centred": centred}
    )


ROWS: tuple[Op, ...] = (
    Op(
        "nms_keep",
        "boxes scores overlap least?",
        _infer_keep,
        _ref_keep,
        (
            _keep_case(3, 0.5, 0.0),
            _keep_case(5, 0.95, 0.55),
            _keep_case(0, 0.5, 0.0),
            _keep_case(5, 0.5, 2.0),
            _tied_case(45, 0.2, -np.inf),
            _tied_case(7, 0.9, 0.5),
            _tied_case(40, 0.2, -3.0, True),
            Case((_BOXES, _MASKED, np.array(0.95, np.float32)), attrs={"room": to_dim(5), "centred": False}),
        ),
        nest=_keep,
        span=_span_kept,
    ),
    Op(
        "nms_listed",
        "places count",
        _infer_listed,
        _ref_listed,
        (
            Case(
                (np.arange(24).reshape(2, 3, 4), np.array([[4, 0, 1], [2, 3, 0]])),
                attrs={"count": to_dim(10)},
            ),
            Case((np.arange(24).reshape(2, 3, 4), np.zeros((2, 3), np.int64)), attrs={"count": to_dim(0)}),
        ),
        nest=_listed,
        span=_span_listed,
    ),
)

__all__ = ["ROWS"]
