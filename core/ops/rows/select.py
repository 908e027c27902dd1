"""What depends on the elements' values: positions that are not zero, the largest elements.

Sizes that data decides never come from a type rule: an importer counts first, binds a symbol to the count,
and hands it to the op as an attribute.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, dmax, dmin, to_dim
from smelt.core.dtype import Array, DType, bf16, bool_, i64, u32, u64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Bound, Buffer, Expr, Load, Stmt, Store
from smelt.core.ops.attrs import axis_of, dim_of
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.rows.order import BYTE, ChosenRow, in_order
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Trace, call, cast, const, index

FEW_KEPT = 48
"""So many are found by insertion."""
STRETCH = 32
"""Elements that are compared with the worst of those kept before one of them is looked at."""


# ---------------------------------------------------------------- non-zero


def _infer_non_zero(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = args
    assert x
    return (TensorType(i64, (to_dim(x.rank), dim_of(attrs, "count"))),)


def _non_zero(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """One walk over x, O(n); a cell holds how many were found."""
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
    return (found.astype(np.int64).reshape(x.ndim, -1 if x.ndim else dim_of(attrs, "count").const),)


# ---------------------------------------------------------------- top k


def _infer_topk(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), axis, k = args, attrs["axis"], dim_of(attrs, "k")
    assert x and isinstance(axis, int)
    if not 0 <= axis < x.rank:
        raise c.fail(f"axis {axis} does not fit rank {x.rank}")
    if x.dtype == bool_:
        raise c.fail("bool elements have no order")
    c.at_most("k, which is at least 0", ZERO, k)
    c.at_most("k", k, x.shape[axis])
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return TensorType(x.dtype, shape), TensorType(i64, shape)


def _visited(
    r: ChosenRow, chosen: Expr, worst: Load, body: Callable[[Dim], tuple[Stmt, ...]]
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


def _inserted(r: ChosenRow, k: Dim) -> tuple[Stmt, ...]:
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


def _selected(r: ChosenRow, k: Dim) -> tuple[Stmt, ...]:
    """The first k through a buffer of twice as many: k in order, and those that are better than the last of
    them. Whenever it is full, it is put in order and k of it stay. So of n elements in any order about
    k log(n/k) are moved, and in the worst order all, in a time that grows with n. Cell 0 says how many
    there are, 2 whether k of them were in order."""
    found, spare = (r.best, r.order), (r.spare, r.other)

    def step(p: Dim) -> tuple[Stmt, ...]:
        enters, to, now = (r.trace.fresh("g") for _ in range(3))
        better = call("lt", r.key(p), r.load(r.best, k - 1))
        wanted = cast(call("or", call("not", chosen), better), i64)
        settle = (
            *in_order(r, 2 * k, found, spare),
            r.store(r.cells, 0, index(k)),
            r.store(r.cells, 2, const(1, i64)),
        )
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
        Block(in_order(r, filled, found, spare), let=((str(filled), r.load(r.cells, 0), ZERO, r.room),)),
    )


def _sorted(r: ChosenRow) -> tuple[Stmt, ...]:
    """All elements, as a sort wants them."""

    def taken(p: Dim) -> tuple[Stmt, ...]:
        return r.store(r.best, p, r.key(p)), r.store(r.order, p, index(p))

    return r.loop(r.count, taken), *in_order(r, r.count, (r.best, r.order), (r.spare, r.other))


def _topk(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """A few by insertion, in O(n) where elements come in any order and O(n k) where each is better than those
    before; more through a buffer, and all n of them at once, in O(n) always. Equal elements stay in order in
    each way."""
    (x,), (y, where), axis = inputs, outputs, attrs["axis"]
    assert x and isinstance(axis, int)
    n, k = x.shape[axis], dim_of(attrs, "k")
    others = (*x.shape[:axis], *x.shape[axis + 1 :])
    few, many = _known(k, n)
    room = (*others, k if few else dmin(2 * k, n))
    kind = u64 if x.dtype.bits == 64 else u32
    order, best = Buffer("order", i64, room), Buffer("best", kind, room)
    counts = Buffer("counts", i64, (*others, to_dim(BYTE)))
    beside = (Buffer("other", i64, room), Buffer("spare", kind, room), counts)
    cells = Buffer("cells", i64, (*others, to_dim(3)))

    def row(o: DimIndex) -> tuple[Stmt, ...]:
        r = ChosenRow(t, x, axis, bool(attrs["largest"]), order, best, *beside, cells, o)

        def take(p: Dim) -> tuple[Stmt, ...]:
            g = t.fresh("g")
            stores = (Store(y.name, r.at(p), r.element(g)), Store(where.name, r.at(p), index(g)))
            return (Block(stores, let=((str(g), r.load(order, p), ZERO, n - 1),)),)

        by_insertion = Block(
            _inserted(r, k if few else dmin(k, FEW_KEPT)), guard=(Bound(ONE, k, to_dim(FEW_KEPT + 1)),)
        )
        selected = _sorted(r) if k == n else _selected(r, k)
        by_keys = Block(selected, guard=(Bound(to_dim(FEW_KEPT + 1), k, n + 1),))
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
    x, axis, k = arrays[0], attrs["axis"], dim_of(attrs, "k").const
    assert x is not None and isinstance(axis, int)
    n = x.shape[axis]
    keys = x.astype(np.float32) if types[0].dtype == bf16 else x  # NumPy finds no NaN in types of others
    if attrs["largest"]:  # ascending, then read from the end: equal elements stay in order
        order = n - 1 - np.flip(np.argsort(np.flip(keys, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(keys, axis=axis, kind="stable")
    first = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, first, axis=axis), first.astype(np.int64)


_SPARSE = np.array([[0, 1.5, 0], [-2, 0, 3]], np.float32)


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
)

__all__ = ["ROWS"]
