"""Bindings of ops that move elements: slices, splits, padding, gathers, scatters, depth and space."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from smelt.core.dim import ONE, ZERO, Dim, ceildiv, dmax, dmin, to_dim
from smelt.core.dtype import bool_, i64
from smelt.core.ir.graph import Attr, Ref
from smelt.core.ops.rows.movement import concat_steps
from smelt.importer.bindings.axes import axis_is_chosen, count, mask, sliced, spread
from smelt.importer.bindings.indices import inside, inside_each
from smelt.importer.call import Build, Call, OnnxOp

TO_THE_END = 10**9
"""Slice ends from here on mean 'to the end': exporters write 10**9, INT_MAX and INT64_MAX."""


def _transpose(c: Call) -> Ref:
    rank = c.type().rank
    perm = c.ints("perm", tuple(reversed(range(rank))))
    if sorted(perm) != list(range(rank)):
        raise c.fail(f"perm {list(perm)} is no permutation of {rank} axes")
    return c.builder.transpose(c.x(), perm)


def _concat(c: Call) -> Ref:
    parts = [c.x(i) for i in range(len(c.inputs))]
    if not parts:
        raise c.fail("it has no inputs")
    rank = c.type().rank
    for n in range(1, len(parts)):
        if c.type(n).rank != rank:
            raise c.fail(f"inputs 0 and {n} have ranks {rank} and {c.type(n).rank}, wanted are equal ones")
    axis = c.axis(c.integer("axis", 1), rank)
    while len(parts) > 1:  # in steps: an element asks one part after the other
        steps = concat_steps([c.builder.type_of(p).shape[axis] for p in parts])
        rows = [[parts[n] for n in step] for step in steps]
        parts = [c.builder.emit("concat", p, {"axis": axis}) if len(p) > 1 else p[0] for p in rows]
    return parts[0]


# ---------------------------------------------------------------- slice, split


def _slice1(c: Call) -> Ref:
    starts, ends = c.ints("starts"), c.ints("ends")
    axes = c.ints("axes", tuple(range(len(starts))))
    return _slices(c, [to_dim(v) for v in starts], [to_dim(v) for v in ends], axes, (1,) * len(starts))


def _slice10(c: Call) -> Ref:
    late = c.run_time(3) or c.run_time(4) or not all(d.is_const for d in c.shape(1))
    if late:
        return sliced(c, c.x(1), c.x(2), c.optional(3), c.optional(4))
    n = _length(c, 1)
    axes = c.builder.ints_of(c.x(3), "axes") if c.has(3) else tuple(range(n))
    steps = c.builder.ints_of(c.x(4), "steps") if c.has(4) else (1,) * n
    starts, ends = (_ends(c, i) for i in (1, 2))
    return _slices(c, starts, ends, axes, steps)


def _length(c: Call, i: int) -> int:
    if c.type(i).rank > 1:
        raise c.fail(f"input {i} has rank {c.type(i).rank}, wanted 1")
    (d,) = c.shape(i) or (ONE,)
    if not d.is_const:
        raise c.unsupported(f"input {i} has {d} elements, a number that is not static")
    return d.const


def _ends(c: Call, i: int) -> list[Dim | Ref]:
    """Each element as a size, or as a rank-0 tensor where it is only known at run time."""
    ref, n = c.x(i), _length(c, i)
    found = c.builder.known_of(ref)
    rows = [None] * n if found is None else list(found.reshape(-1))
    result: list[Dim | Ref] = []
    for k, e in enumerate(rows):
        if isinstance(e, Dim):
            e = c.engine.simplify(e)
            low, high = c.engine.bounds(e)
            if (low is not None and low >= 0) or (high is not None and high < 0):
                result.append(e)  # of known sign
                continue
        item = c.builder.slice_axis(ref, 0, k, k + 1) if c.type(i).rank else ref
        result.append(c.cast(c.builder.reshape(item, ()), i64))
    return result


def _slices(
    c: Call, starts: Sequence[Dim | Ref], ends: Sequence[Dim | Ref], axes: Sequence[int], steps: Sequence[int]
) -> Ref:
    shape = c.shape()
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise c.fail(
            f"starts, ends, axes, steps have {len(starts)}, {len(ends)}, {len(axes)}, {len(steps)} entries"
        )
    at: list[Dim] = [ZERO] * len(shape)
    to: list[Dim] = list(shape)
    by = [1] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        a = c.axis(axis, len(shape), "axes")
        if step == 0:
            raise c.fail("a step is 0")
        low, high = (ZERO, shape[a]) if step > 0 else (to_dim(-1), shape[a] - 1)
        at[a] = _clamped(c, start, shape[a], low, high, "slice_start")
        to[a] = _clamped(c, end, shape[a], low, high, "slice_end")
        to[a] = c.engine.simplify(dmax(to[a], at[a]) if step > 0 else dmin(to[a], at[a]))
        by[a] = step
    if at == [ZERO] * len(shape) and to == list(shape) and by == [1] * len(shape):
        return c.x()
    return c.builder.emit("slice", [c.x()], {"starts": tuple(at), "ends": tuple(to), "steps": tuple(by)})


def _clamped(c: Call, v: Dim | Ref, extent: Dim, low: Dim, high: Dim, what: str) -> Dim:
    """A start or end as a position: counted from the end when negative, then cut to low..high."""
    if isinstance(v, str):
        extent_ref = c.builder.from_dims([extent], [])
        zero = c.scalar(0, v)
        shifted = c.emit("where", c.emit("less", v, zero), c.emit("add", v, extent_ref), v)
        floor, top = (c.builder.from_dims([d], []) for d in (low, high))
        cut = c.emit("min", c.emit("max", shifted, floor), top)
        return c.builder.bind(cut, 0, what, low.const, high)
    if v.is_const and v.const >= TO_THE_END:
        return high
    if v.is_const and v.const <= -TO_THE_END:
        return low
    lowest = c.engine.bounds(v)[0]
    if lowest is None or lowest < 0:
        v = v + extent
    return c.engine.simplify(dmax(dmin(v, high), low))


def _split(c: Call) -> tuple[Ref, ...]:
    axis = c.axis(c.integer("axis", 0), c.type().rank)
    extent, n = c.shape()[axis], len(c.outputs)
    if not n:
        raise c.fail("the node has no outputs")
    sizes = _split_sizes(c, extent, n)
    if len(sizes) != n:
        raise c.fail(f"{len(sizes)} sizes for {n} outputs")
    total = c.engine.simplify(sum(sizes, ZERO))
    c.engine.same(f"the sum of the sizes along axis {axis}", total, extent)
    refs, start = [], ZERO
    for size in sizes:
        refs.append(c.builder.slice_axis(c.x(), axis, start, start + size))
        start = start + size
    return tuple(refs)


def _split_sizes(c: Call, extent: Dim, n: int) -> list[Dim]:
    if c.given("split"):
        return [to_dim(v) for v in c.ints("split")]
    if c.has(1):
        return list(c.builder.dims_of(c.sized_like(c.x(1), n), "the sizes of a Split"))
    if c.given("num_outputs") and c.integer("num_outputs") != n:
        raise c.fail(f"num_outputs is {c.integer('num_outputs')}, the node has {n} outputs")
    if not c.given("num_outputs") and n > 1:
        c.engine.divides("equal parts of a Split", to_dim(n), extent)
        return [extent // n] * n
    part = c.engine.simplify(ceildiv(extent, n))
    return [*[part] * (n - 1), c.engine.simplify(extent - part * (n - 1))]


# ---------------------------------------------------------------- pad


def _pad2(c: Call) -> Ref:
    pads = [to_dim(v) for v in c.ints("paddings" if c.given("paddings") else "pads")]
    return _padded(c, pads, tuple(range(c.type().rank)), c.scalar(c.number("value", 0.0), c.x()))


def _pad11(c: Call) -> Ref:
    rank = c.type().rank
    if c.run_time(3):
        return _pad_late(c, rank)
    axes = (
        tuple(c.axis(a, rank, "axes") for a in c.builder.ints_of(c.x(3), "axes"))
        if c.has(3)
        else tuple(range(rank))
    )
    ref = c.sized_like(c.x(1), 2 * len(axes))
    pads = list(c.builder.dims_of(ref, "the pads of a Pad", -TO_THE_END))
    return _padded(c, pads, axes, c.builder.reshape(c.x(2), ()) if c.has(2) else "")


def _pad_late(c: Call, rank: int) -> Ref:
    """Pads of axes known only at run time: zero for the others."""
    b = c.builder
    n = count(c, c.x(3))
    c.engine.same("pads", c.shape(1)[0], n * 2)
    pads = b.reshape(c.x(1), (2, n))
    hits = axis_is_chosen(c, c.x(3), rank)
    mask(c, c.x(3), rank)
    dims: list[Dim] = []
    for k in range(2):
        row = spread(c, b.reshape(b.slice_axis(pads, 0, k, k + 1), (n,)), hits, (ZERO,) * rank)
        dims += b.dims_of(row, "the pads of a Pad", -TO_THE_END)
    return _padded(c, dims, tuple(range(rank)), b.reshape(c.x(2), ()) if c.has(2) else "")


def _padded(c: Call, pads: Sequence[Dim], axes: Sequence[int], value: Ref) -> Ref:
    mode, x, rank = c.text("mode", "constant"), c.x(), c.type().rank
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise c.fail(f"mode '{mode}' is none of constant, reflect, edge, wrap")
    if len(pads) != 2 * len(axes):
        raise c.fail(f"{len(pads)} pads for {len(axes)} axes, wanted twice as many")
    before, after = [ZERO] * rank, [ZERO] * rank
    for k, a in enumerate(axes):
        before[a], after[a] = pads[k], pads[k + len(axes)]
    for a in range(rank):  # a negative pad cuts
        x, before[a] = _cut(c, x, a, before[a], at_start=True)
        x, after[a] = _cut(c, x, a, after[a], at_start=False)
    if all(d == ZERO for d in (*before, *after)):
        return x
    if mode == "reflect":
        for a, d in enumerate(c.builder.type_of(x).shape):
            if before[a] != ZERO or after[a] != ZERO:
                c.engine.at_most(
                    f"reflection needs more elements than the pads on axis {a}",
                    dmax(before[a], after[a]) + 1,
                    d,
                )
    inputs = [x, value] if value and mode == "constant" else [x]
    in_rows = mode != "constant" and (before[-1] != ZERO or after[-1] != ZERO)
    attrs: dict[str, Attr] = {"before": tuple(before), "after": tuple(after), "mode": mode}
    return c.builder.emit("extend" if in_rows else "pad", inputs, attrs)


def _cut(c: Call, x: Ref, axis: int, pad: Dim, at_start: bool) -> tuple[Ref, Dim]:
    high = c.engine.bounds(pad)[1]
    low = c.engine.bounds(pad)[0]
    extent = c.builder.type_of(x).shape[axis]
    if low is not None and low >= 0:
        return x, pad
    if high is None or high > 0:  # a run decides the sign
        cut = c.engine.simplify(dmax(-pad, 0))
        c.engine.at_most(f"cut of axis {axis}", cut, extent)
        span = (cut, extent) if at_start else (ZERO, extent - cut)
        return c.builder.slice_axis(x, axis, *span), c.engine.simplify(dmax(pad, 0))
    c.engine.at_most(f"cut of axis {axis}", -pad, extent)
    span = (-pad, extent) if at_start else (ZERO, extent + pad)
    return c.builder.slice_axis(x, axis, *span), ZERO


# ---------------------------------------------------------------- gathers and scatters


def _gather(c: Call) -> Ref:
    """A gather; as a slice for one index or consecutive ones."""
    x, shape = c.x(0), c.shape(0)
    axis = c.axis(c.integer("axis", 0), len(shape))
    if c.builder.constant_of(c.x(1)) is not None:
        inside(c, c.x(1), shape[axis], f"index of axis {axis}")
    run = _run(c, shape[axis])
    if run is None:
        inside(c, c.x(1), shape[axis], f"index of axis {axis}")
        return c.emit("gather", x, c.x(1), axis=axis)
    part = c.builder.slice_axis(x, axis, *run)
    if c.type(1).rank == 0:
        part = c.builder.reshape(part, (*shape[:axis], *shape[axis + 1 :]))
    return part


def _run(c: Call, extent: Dim) -> tuple[Dim, Dim] | None:
    """start, end when the indices are the constants start, start + 1, ... or one size that fits."""
    if c.type(1).rank > 1:
        return None
    found = c.builder.known_of(c.x(1))
    if found is None or found.size == 0 or not all(isinstance(e, Dim) for e in found.reshape(-1)):
        return None
    at = [c.engine.simplify(e) for e in found.reshape(-1)]
    if any(b - a != ONE for a, b in itertools.pairwise(at)):
        return None
    low, high = c.engine.bounds(at[0])[0], c.engine.bounds(at[-1])[1]
    if low is not None and low >= 0:
        start = at[0]
    elif high is not None and high < 0:
        start = extent + at[0]
    else:
        return None
    if not at[0].is_const and len(at) > 1:
        return None
    c.engine.at_most("index", start + len(at), extent)
    if not at[0].is_const or at[0].const < 0:
        c.engine.at_most("index", ZERO, start)
    return start, start + len(at)


def _gather_elements(c: Call) -> Ref:
    axis = c.axis(c.integer("axis", 0), c.type(0).rank)
    inside(c, c.x(1), c.shape(0)[axis], f"index of axis {axis}")
    return c.emit("gather_elements", c.x(0), c.x(1), axis=axis)


def _gather_nd(c: Call) -> Ref:
    batch, at, rank = c.integer("batch_dims", 0), c.x(1), c.declared_rank()
    if not c.type(0).rank or not c.type(1).rank:
        raise c.fail(f"found {c.type(0)} and indices {c.type(1)}, wanted rank 1 or more")
    if rank is not None:
        at = _pointing(c, at, c.type(1).rank + c.type(0).rank - 1 - batch - rank)
    _all_inside(c, at, batch)
    return c.emit("gather_nd", c.x(0), at, batch_dims=batch)


def _all_inside(c: Call, at: Ref, batch: int) -> None:
    """Each number of an index is a position on its axis; shapes that do not fit are the type rule's."""
    depth = (c.builder.type_of(at).shape or (ZERO,))[-1]
    extents = c.shape(0)[batch:]
    if depth.is_const and depth.const <= len(extents):
        inside_each(c, at, extents[: depth.const], "index of axis")


def _pointing(c: Call, at: Ref, length: int) -> Ref:
    """Indices whose last extent, where it is not static, is inferred from the ranks of input and result."""
    shape = c.builder.type_of(at).shape
    if not shape or shape[-1].is_const:
        return at
    c.engine.same("numbers per index", shape[-1], to_dim(length))
    return c.builder.reshape(at, (*shape[:-1], length))


def _scatter_elements(c: Call) -> Ref:
    axis = c.axis(c.integer("axis", 0), c.type(0).rank)
    inside(c, c.x(1), c.shape(0)[axis], f"index of axis {axis}")
    return c.emit(
        "scatter_elements", c.x(0), c.x(1), c.x(2), axis=axis, reduction=c.text("reduction", "none")
    )


def _scatter_nd(c: Call) -> Ref:
    at = _pointing(c, c.x(1), c.type(1).rank - 1 + c.type(0).rank - c.type(2).rank)
    _all_inside(c, at, 0)
    return c.emit("scatter_nd", c.x(0), at, c.x(2), reduction=c.text("reduction", "none"))


def _one_hot(c: Call) -> Ref:
    rank = c.type(0).rank
    depth = c.cast(c.builder.reshape(c.x(1), ()), i64)
    (d,) = c.builder.dims_of(depth, "depth")
    axis = c.axis(c.integer("axis", -1), rank + 1)
    c.extents(2, 1)
    return c.emit("one_hot", c.cast(c.x(0), i64), c.x(2), axis=axis, depth=d)


def _cumulated(op: str) -> Build:
    return lambda c: _cum(c, op)


def _cum(c: Call, op: str) -> Ref:
    flags = {"exclusive": c.flag("exclusive"), "reverse": c.flag("reverse")}
    x, rank = c.x(0), c.type(0).rank
    array = c.builder.constant_of(c.x(1))
    if array is not None:
        return c.emit(op, x, axis=c.axis(c.builder.int_of(c.x(1), "axis"), rank), **flags)
    # an axis that is only known at run time: every total, and the right one is picked
    axis = c.cast(c.builder.reshape(c.x(1), ()), i64)
    inside(c, axis, to_dim(rank), "the axis")
    axis = c.emit(
        "where", c.emit("less", axis, c.scalar(0, axis)), c.emit("add", axis, c.scalar(rank, axis)), axis
    )
    y = c.emit(op, x, axis=0, **flags)
    for a in range(1, rank):
        y = c.emit("where", c.emit("equal", axis, c.scalar(a, axis)), c.emit(op, x, axis=a, **flags), y)
    return y


def _trilu(c: Call) -> Ref:
    k = ZERO
    if c.has(1):
        (k,) = c.builder.dims_of(c.builder.reshape(c.x(1), ()), "k", -TO_THE_END)
    if c.type().dtype == bool_:
        inner = c.cast(c.x(), i64)
        return c.cast(c.emit("trilu", inner, upper=c.flag("upper", 1), k=k), bool_)
    return c.emit("trilu", c.x(), upper=c.flag("upper", 1), k=k)


def _reverse_sequence(c: Call) -> Ref:
    """out[t] = x[len - 1 - t] for t < len, x[t] after it, per batch entry."""
    shape = c.shape(0)
    time, batch = (
        c.axis(c.integer("time_axis", 0), len(shape)),
        c.axis(c.integer("batch_axis", 1), len(shape)),
    )
    if {time, batch} != {0, 1}:
        raise c.fail(f"time_axis {time} and batch_axis {batch} must be 0 and 1")
    inside(c, c.x(1), shape[time] + 1, "sequence length", wraps=False)
    ramp = [shape[a] if a == time else ONE for a in range(len(shape))]
    rows = [shape[a] if a == batch else ONE for a in range(len(shape))]
    t = c.builder.reshape(c.iota(shape[time]), ramp)
    lengths = c.builder.reshape(c.cast(c.x(1), i64), rows)
    back = c.emit("sub", c.emit("sub", lengths, c.scalar(1, lengths)), t)
    at = c.emit("where", c.emit("less", t, lengths), back, t)
    return c.emit("gather_elements", c.x(0), c.builder.broadcast_to(at, shape), axis=time)


# ---------------------------------------------------------------- depth and space


def _depth_to_space(c: Call) -> Ref:
    n, channels, h, w = _four(c)
    s, mode = c.integer("blocksize"), c.text("mode", "DCR")
    if mode not in ("DCR", "CRD") or s < 1:
        raise c.fail(f"mode '{mode}' with blocksize {s}; wanted DCR or CRD and at least 1")
    c.engine.divides("blocksize squared", to_dim(s * s), channels)
    depth = channels // (s * s)
    split = (n, s, s, depth, h, w) if mode == "DCR" else (n, depth, s, s, h, w)
    perm = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    y = c.builder.transpose(c.builder.reshape(c.x(), split), perm)
    return c.builder.reshape(y, (n, depth, h * s, w * s))


def _space_to_depth(c: Call) -> Ref:
    n, channels, h, w = _four(c)
    s = c.integer("blocksize")
    if s < 1:
        raise c.fail(f"blocksize is {s}, wanted at least 1")
    for d in (h, w):
        c.engine.divides("blocksize", to_dim(s), d)
    mode = c.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise c.fail(f"mode '{mode}' is neither DCR nor CRD")
    split = c.builder.reshape(c.x(), (n, channels, h // s, s, w // s, s))
    y = c.builder.transpose(split, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return c.builder.reshape(y, (n, channels * (s * s), h // s, w // s))


def _four(c: Call) -> tuple[Dim, Dim, Dim, Dim]:
    shape = c.shape()
    if len(shape) != 4:
        raise c.fail(f"input has rank {len(shape)}, wanted 4")
    return shape[0], shape[1], shape[2], shape[3]


_BUILDS: tuple[tuple[str, int, Build], ...] = (
    ("Transpose", 1, _transpose),
    ("Concat", 1, _concat),
    ("Slice", 1, _slice1),
    ("Slice", 10, _slice10),
    ("Split", 1, _split),
    ("Pad", 1, _pad2),
    ("Pad", 11, _pad11),
    ("Gather", 1, _gather),
    ("GatherElements", 11, _gather_elements),
    ("GatherND", 11, _gather_nd),
    ("Scatter", 9, _scatter_elements),
    ("ScatterElements", 11, _scatter_elements),
    ("ScatterND", 11, _scatter_nd),
    ("OneHot", 9, _one_hot),
    ("CumSum", 11, _cumulated("cumsum")),
    ("CumProd", 26, _cumulated("cumprod")),
    ("Trilu", 14, _trilu),
    ("ReverseSequence", 10, _reverse_sequence),
    ("DepthToSpace", 1, _depth_to_space),
    ("SpaceToDepth", 1, _space_to_depth),
)

ROWS: tuple[OnnxOp, ...] = tuple(OnnxOp(name, since, build) for name, since, build in _BUILDS)
