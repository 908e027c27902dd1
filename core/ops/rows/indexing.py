"""Gathers and scatters: data-dependent indices, negative ones wrapped, all clamped into their extent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt.core.dim import ZERO, Dim, to_dim
from smelt.core.dtype import Array, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.attrs import axis_of, integer
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op, wants_elements
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, index, select


def wrapped(e: Expr, extent: Dim) -> Expr:
    """A possibly negative index as a position: i + extent where i < 0."""
    wide = cast(e, i64)
    return select(call("lt", wide, const(0, i64)), call("add", wide, index(extent, i64)), wide)


def _want_int(c: Infer, a: Arg) -> None:
    if not a.dtype.is_int:
        raise c.fail(f"indices are {a.dtype}, expected an integer type")


def _inside(c: Infer, indices: Arg, x: Arg, axis: int) -> None:
    """But for its axis, indices are positions of x."""
    for a, (n, d) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if a == axis:
            wants_elements(c, f"axis {a}", indices.shape, d)
        else:
            c.at_most(f"axis {a} of the indices", n, d)


def _infer_gather(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, idx = args
    assert x and idx
    axis = axis_of(attrs)
    if not 0 <= axis < x.rank:
        raise c.fail(f"axis {axis} does not fit rank {x.rank}")
    _want_int(c, idx)
    wants_elements(c, f"axis {axis}", idx.shape, x.shape[axis])
    return (TensorType(x.dtype, (*x.shape[:axis], *idx.shape, *x.shape[axis + 1 :])),)


def _gather(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand, idx: Operand) -> Expr:
    axis = axis_of(attrs)
    before, at, after = i[:axis], i[axis : axis + idx.rank], i[axis + idx.rank :]
    n = x.shape[axis]
    return t.let(wrapped(idx[at], n), 0, n - 1, lambda g: x[(*before, g, *after)])


def _ref_gather(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, idx = arrays
    assert x is not None and idx is not None
    return (np.take(x, idx.astype(np.int64), axis=axis_of(attrs)),)


def _infer_gather_elements(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, idx = args
    assert x and idx
    _want_int(c, idx)
    if x.rank != idx.rank:
        raise c.fail(f"indices of rank {idx.rank} for data of rank {x.rank}")
    _inside(c, idx, x, axis_of(attrs))
    return (TensorType(x.dtype, idx.shape),)


def _gather_elements(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand, idx: Operand) -> Expr:
    axis = axis_of(attrs)
    n = x.shape[axis]
    return t.let(wrapped(idx[i], n), 0, n - 1, lambda g: x[(*i[:axis], g, *i[axis + 1 :])])


def _ref_gather_elements(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    x, idx = arrays
    assert x is not None and idx is not None
    axis = axis_of(attrs)
    where: list[Array] = list(np.indices(idx.shape))
    where[axis] = np.where(idx < 0, idx + x.shape[axis], idx).astype(np.int64)
    return (x[tuple(where)],)


def _infer_gather_nd(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, idx = args
    assert x and idx
    _want_int(c, idx)
    if not idx.rank:
        raise c.fail("the indices have rank 0, wanted 1 or more")
    batch, depth = integer(attrs, "batch_dims"), idx.shape[-1]
    if not depth.is_const:
        raise c.unsupported(f"the last extent of the indices is {depth}, it must be a number")
    if not 0 <= batch < idx.rank:
        raise c.fail(f"batch_dims is {batch}, wanted 0 to {idx.rank - 1} for indices of rank {idx.rank}")
    if batch + depth.const > x.rank:
        raise c.fail(f"indices of depth {depth} after {batch} batch axes do not fit rank {x.rank}")
    for a in range(batch):
        c.same(f"batch axis {a}", x.shape[a], idx.shape[a])
    for d in x.shape[batch : batch + depth.const]:
        wants_elements(c, "an axis", idx.shape, d)
    return (TensorType(x.dtype, (*idx.shape[:-1], *x.shape[batch + depth.const :])),)


def _gather_nd(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand, idx: Operand) -> Expr:
    batch, depth = integer(attrs, "batch_dims"), idx.shape[-1].const
    lead, rest = i[: idx.rank - 1], i[idx.rank - 1 :]

    def bind(d: int, found: tuple[Dim, ...]) -> Expr:
        if d == depth:
            return x[(*i[:batch], *found, *rest)]
        n = x.shape[batch + d]
        return t.let(wrapped(idx[(*lead, to_dim(d))], n), 0, n - 1, lambda g: bind(d + 1, (*found, g)))

    return bind(0, ())


def _ref_gather_nd(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    x, idx = arrays
    assert x is not None and idx is not None
    batch = integer(attrs, "batch_dims")
    shape = tuple(d.const for d in types[0].shape)
    y = np.zeros(shape, x.dtype)
    for at in np.ndindex(*idx.shape[:-1]):
        y[at] = x[(*at[:batch], *(int(v) for v in idx[at]))]
    return (y,)


# ---------------------------------------------------------------- scatters


def nest_over(
    t: Trace, shape: Sequence[Dim], body: Callable[[DimIndex], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """Serial loops over a shape around body(index) (a function of the index to statements)."""
    variables = [t.fresh("i") for _ in shape]
    inner: tuple[Stmt, ...] = body(tuple(variables))
    for v, n in zip(reversed(variables), reversed(list(shape)), strict=True):
        inner = (Loop("serial", str(v), n, inner),)
    return inner


_REDUCTIONS: dict[str, str | None] = {
    "none": None,
    "add": "add",
    "mul": "mul",
    "max": "max",
    "min": "min",
}


def _infer_scatter(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, idx, updates = args
    assert x and idx and updates
    _want_int(c, idx)
    if x.dtype != updates.dtype:
        raise c.fail(f"updates are {updates.dtype}, data is {x.dtype}")
    if attrs["reduction"] not in _REDUCTIONS:
        raise c.fail(f"reduction '{attrs['reduction']}' is none of {', '.join(_REDUCTIONS)}")
    return (x.type,)


def _infer_scatter_elements(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    result = _infer_scatter(c, args, attrs)
    x, idx, updates = args
    assert x and idx and updates
    if not x.rank == idx.rank == updates.rank:
        raise c.fail(f"data, indices and updates have ranks {x.rank}, {idx.rank} and {updates.rank}")
    for a, (n, d) in enumerate(zip(idx.shape, updates.shape, strict=True)):
        c.same(f"axis {a} of indices and updates", n, d)
    _inside(c, idx, x, axis_of(attrs))
    return result


def _copy(t: Trace, x: Buffer, y: Buffer) -> tuple[Stmt, ...]:
    return nest_over(t, y.shape, lambda i: (Store(y.name, i, Load(x.name, i, x.dtype)),))


def _scatter_elements(
    t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]
) -> Nest:
    x, idx, updates = inputs
    assert x and idx and updates
    (y,), axis = outputs, axis_of(attrs)
    n = y.shape[axis]

    def step(i: DimIndex) -> tuple[Stmt, ...]:
        g = t.fresh("g")
        at = wrapped(Load(idx.name, i, idx.dtype), n)
        store = Store(
            y.name,
            (*i[:axis], g, *i[axis + 1 :]),
            Load(updates.name, i, updates.dtype),
            accumulate=_REDUCTIONS[str(attrs["reduction"])],
        )
        return (Block((store,), let=((str(g), at, ZERO, n - 1),)),)

    return Nest((*_copy(t, x, y), *nest_over(t, idx.shape, step)))


def _ref_scatter_elements(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    x, idx, updates = (np.asarray(a) for a in arrays)
    y, axis = x.copy(), axis_of(attrs)
    for at in np.ndindex(*idx.shape):
        where = list(at)
        where[axis] = int(idx[at])
        _combine(y, tuple(where), updates[at], str(attrs["reduction"]))
    return (y,)


def _combine(y: Array, at: tuple[int, ...], value: object, reduction: str) -> None:
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "none": lambda a, b: b,
        "add": np.add,
        "mul": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
    }
    y[at] = functions[reduction](y[at], value)


def _scatter_nd(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    x, idx, updates = inputs
    assert x and idx and updates
    (y,) = outputs
    depth = idx.shape[-1].const
    lead = idx.shape[:-1]

    def step(i: DimIndex) -> tuple[Stmt, ...]:
        gs = [t.fresh("g") for _ in range(depth)]
        lets = tuple(
            (
                str(g),
                wrapped(Load(idx.name, (*i, to_dim(d)), idx.dtype), y.shape[d]),
                ZERO,
                y.shape[d] - 1,
            )
            for d, g in enumerate(gs)
        )
        rest = y.shape[depth:]
        body = nest_over(
            t,
            rest,
            lambda j: (
                Store(
                    y.name,
                    (*gs, *j),
                    Load(updates.name, (*i, *j), updates.dtype),
                    accumulate=_REDUCTIONS[str(attrs["reduction"])],
                ),
            ),
        )
        return (Block(body, let=lets),)

    return Nest((*_copy(t, x, y), *nest_over(t, lead, step)))


def _infer_scatter_nd(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    result = _infer_scatter(c, args, attrs)
    x, idx, updates = args
    assert x and idx and updates
    if not idx.rank:
        raise c.fail("the indices have rank 0, wanted 1 or more")
    depth = idx.shape[-1]
    if not depth.is_const:
        raise c.unsupported(f"the last extent of the indices is {depth}, it must be a number")
    if depth.const > x.rank:
        raise c.fail(f"indices of depth {depth} do not fit rank {x.rank}")
    for d in x.shape[: depth.const]:
        wants_elements(c, "an axis", idx.shape, d)
    want = (*idx.shape[:-1], *x.shape[depth.const :])
    if len(want) != updates.rank:
        raise c.fail(f"updates have rank {updates.rank}, expected {len(want)}")
    for a, (d, u) in enumerate(zip(want, updates.shape, strict=True)):
        c.same(f"axis {a} of the updates", d, u)
    return result


def _ref_scatter_nd(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    x, idx, updates = (np.asarray(a) for a in arrays)
    y = x.copy()
    for at in np.ndindex(*idx.shape[:-1]):
        _combine(y, tuple(int(v) for v in idx[at]), updates[at], str(attrs["reduction"]))
    return (y,)


# ---------------------------------------------------------------- one hot


def _infer_one_hot(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    idx, values = args
    assert idx and values
    axis, (depth,) = axis_of(attrs), (attrs["depth"],)
    d = depth if isinstance(depth, Dim) else to_dim(int(depth))  # type: ignore[arg-type]
    if not 0 <= axis <= idx.rank:
        raise c.fail(f"axis {axis} does not fit rank {idx.rank + 1}")
    if values.rank != 1:
        raise c.fail(f"the values have rank {values.rank}, wanted 1")
    c.same("values for off and on", values.shape[0], to_dim(2))
    return (TensorType(values.dtype, (*idx.shape[:axis], d, *idx.shape[axis:])),)


def _one_hot(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, idx: Operand, values: Operand) -> Expr:
    """values[1] where the (wrapped) index is the position along axis, else values[0]."""
    axis = axis_of(attrs)
    at = wrapped(idx[(*i[:axis], *i[axis + 1 :])], out.shape[axis])
    return select(call("eq", at, index(i[axis], i64)), values[(to_dim(1),)], values[(ZERO,)])


def _ref_one_hot(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    idx, values = (np.asarray(a) for a in arrays)
    axis, depth = axis_of(attrs), types[0].shape[axis_of(attrs)].const
    at = np.expand_dims(np.where(idx < 0, idx + depth, idx).astype(np.int64), axis)
    ks = np.arange(depth).reshape([-1 if a == axis else 1 for a in range(at.ndim)])
    return (np.where(at == ks, values[1], values[0]).astype(values.dtype),)


_IDX = np.array([[0, -1, 2], [1, 1, -3]], np.int64)
_SCATTER = np.array([[0, -1], [2, 2]], np.int64)

ROWS: tuple[Op, ...] = (
    Op(
        "gather",
        "x indices",
        _infer_gather,
        _ref_gather,
        (
            Case(("f32[N, 3, M]", _IDX), attrs={"axis": 1}),
            Case(("f32[3, N]", np.array(-1, np.int64)), attrs={"axis": 0}),
            Case(("i64[5]", "i64[0, N]"), attrs={"axis": 0}),
        ),
        compute=_gather,
    ),
    Op(
        "gather_elements",
        "x indices",
        _infer_gather_elements,
        _ref_gather_elements,
        (Case(("f32[2, 3]", _IDX), attrs={"axis": 1}),),
        compute=_gather_elements,
    ),
    Op(
        "gather_nd",
        "x indices",
        _infer_gather_nd,
        _ref_gather_nd,
        (
            Case(("f32[4, 3, N]", np.array([[0, 1], [-1, 2]], np.int64)), attrs={"batch_dims": 0}),
            Case(("f32[2, 3, N]", np.array([[0], [-1]], np.int64)), attrs={"batch_dims": 1}),
        ),
        compute=_gather_nd,
    ),
    Op(
        "scatter_elements",
        "x indices updates",
        _infer_scatter_elements,
        _ref_scatter_elements,
        tuple(
            Case(("f32[3, 4]", _SCATTER, "f32[2, 2]"), attrs={"axis": 0, "reduction": r})
            for r in ("none", "add", "max")
        ),
        nest=_scatter_elements,
    ),
    Op(
        "scatter_nd",
        "x indices updates",
        _infer_scatter_nd,
        _ref_scatter_nd,
        tuple(
            Case(
                ("f32[4, N]", np.array([[0], [-1], [0]], np.int64), "f32[3, N]"),
                attrs={"reduction": r},
            )
            for r in ("none", "add", "mul")
        ),
        nest=_scatter_nd,
    ),
    Op(
        "one_hot",
        "indices values",
        _infer_one_hot,
        _ref_one_hot,
        (Case((_IDX, np.array([0.5, 2.0], np.float32)), attrs={"axis": 1, "depth": to_dim(4)}),),
        compute=_one_hot,
    ),
)

__all__ = ["ROWS", "nest_over", "wrapped"]
