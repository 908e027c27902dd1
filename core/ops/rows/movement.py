"""Ops that only move elements: views, transposes, broadcasts, concatenation, slices, padding, tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, dmax, dmin, product, to_dim
from smelt.core.dtype import Array
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Bound, Expr
from smelt.core.ops.attrs import axis_of, dims, ints
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, const, guard_expr, in_bounds, select


def evaluated(attrs: Attrs, name: str) -> tuple[int, ...]:
    """A tuple-of-Dim attribute whose Dims are all constants (references run with values filled in)."""
    return tuple(d.const for d in dims(attrs, name))


# ---------------------------------------------------------------- reshape


def _infer_reshape(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x is not None
    shape = dims(attrs, "shape")
    c.same("number of elements", product(x.shape), product(shape))
    return (TensorType(x.dtype, shape),)


AxisGroup = tuple[tuple[int, ...], tuple[int, ...]]


def reshape_groups(source: tuple[Dim, ...], target: tuple[Dim, ...]) -> tuple[AxisGroup, ...]:
    """The finest pairing of source axes with target axes of equal product, in order.

    Axes of extent 1 stand in no group. [b, s, 12, 32] and [b, s, 384] pair as b-b, s-s, (12, 32)-384."""
    a_left = [a for a, d in enumerate(source) if d.const_or_none != 1]
    b_left = [b for b, d in enumerate(target) if d.const_or_none != 1]
    if any(d.const_or_none == 0 for d in (*source, *target)):
        return ((tuple(a_left), tuple(b_left)),)  # equal products of nothing pair no axes
    prefix_a = [product(source[a] for a in a_left[:n]) for n in range(len(a_left) + 1)]
    prefix_b = {product(target[b] for b in b_left[:n]): n for n in range(len(b_left), -1, -1)}
    groups: list[AxisGroup] = []
    done_a = done_b = 0
    for n in range(1, len(a_left) + 1):
        m = prefix_b.get(prefix_a[n])
        if m is None or (m <= done_b and n < len(a_left)):
            continue
        groups.append((tuple(a_left[done_a:n]), tuple(b_left[done_b:m])))
        done_a, done_b = n, m
    if done_a < len(a_left) or done_b < len(b_left):
        # no common prefix beyond here: the rest is one group
        groups.append((tuple(a_left[done_a:]), tuple(b_left[done_b:])))
    return tuple(groups)


def reshape_index(source: tuple[Dim, ...], target: tuple[Dim, ...], i: DimIndex) -> DimIndex:
    """The source index of target index i: flattened and unflattened within each group only."""
    at: list[Dim] = [ZERO] * len(source)
    if any(d.const_or_none == 0 for d in (*source, *target)):
        return tuple(at)  # no element: the division by inner extents would be by zero
    for axes, from_ in reshape_groups(source, target):
        flat = ZERO
        for b in from_:
            flat = flat * target[b] + i[b]
        for n, a in enumerate(axes):
            inner = product(source[k] for k in axes[n + 1 :])
            whole = flat if inner.const_or_none == 1 else flat // inner
            at[a] = whole if n == 0 else whole % source[a]
    return tuple(at)


def _reshape(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    return x[reshape_index(x.shape, out.shape, i)]


# ---------------------------------------------------------------- transpose, broadcast


def _infer_transpose(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x is not None
    perm = ints(attrs, "perm")
    if sorted(perm) != list(range(x.rank)):
        raise c.fail(f"perm {perm} is no permutation of {x.rank} axes")
    return (TensorType(x.dtype, tuple(x.shape[p] for p in perm)),)


def _ref_transpose(
    arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
) -> Sequence[Array]:
    x = arrays[0]
    assert x is not None
    return (np.transpose(x, ints(attrs, "perm")).copy(order="C"),)


def _transpose(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    at: list[Dim] = [ZERO] * x.rank
    for o, p in enumerate(ints(attrs, "perm")):
        at[p] = i[o]
    return x[tuple(at)]


def _infer_broadcast_to(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x is not None
    shape = dims(attrs, "shape")
    if len(shape) < x.rank:
        raise c.fail(f"cannot broadcast {x.type} to the lower rank {len(shape)}")
    for s, d in zip(x.shape, shape[len(shape) - x.rank :], strict=True):
        if s.is_const and d.is_const and s.const not in (1, d.const):
            raise c.fail(f"extent {s} of {x.type} does not broadcast to {d}")
    return (TensorType(x.dtype, shape),)


def _broadcast_to(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """An extent that is 1 is read at 0; one that may be 1 at run time is clamped."""
    skip = len(i) - x.rank
    at = []
    for s, d, k in zip(x.shape, out.shape[skip:], i[skip:], strict=True):
        if s.const_or_none == 1:
            at.append(ZERO)
        else:
            at.append(k if s == d else dmin(k, s - 1))
    return x[tuple(at)]


MOST_CONCAT_PARTS = 64
"""Parts of one concatenation that come of themselves; more are joined in steps."""
MOST_CONCAT_SIZES = 12
"""Unrelated sizes among them: where a part starts is a sum of all before it, in each of its bounds."""

# ---------------------------------------------------------------- concat, slice, pad, tile


def concat_steps(extents: Sequence[Dim]) -> list[range]:
    """The parts of a concatenation in runs that one kernel each joins: one run where that is enough."""
    runs, start = [], 0
    sizes: set[Dim] = set()
    for n, d in enumerate(extents):
        sizes |= set() if d.is_const else {d}
        if n - start == MOST_CONCAT_PARTS or len(sizes) > MOST_CONCAT_SIZES:
            runs.append(range(start, n))
            start, sizes = n, set() if d.is_const else {d}
    return [*runs, range(start, len(extents))]


def _infer_concat(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    found = [a for a in args if a is not None]
    first, axis = found[0], axis_of(attrs)
    if not 0 <= axis < first.rank:
        raise c.fail(f"axis {axis} does not fit rank {first.rank}")
    shape, total = list(first.shape), first.shape[axis]
    for a in found[1:]:
        if a.dtype != first.dtype or a.rank != first.rank:
            raise c.fail(f"parts differ in type: {first.type} and {a.type}")
        for d in range(first.rank):
            if d != axis:
                shape[d] = c.same(f"axis {d} of the parts", shape[d], a.shape[d])
        total = total + a.shape[axis]
    shape[axis] = c.simplify(total)
    return (TensorType(first.dtype, tuple(shape)),)


def _concat(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, *parts: Operand) -> Expr:
    """Part p where its span of the axis holds i; later parts are the `otherwise` of earlier ones."""
    axis = axis_of(attrs)
    spans, start = [], ZERO
    for p in parts:
        spans.append((start, p.shape[axis], p))
        start = start + p.shape[axis]
    y: Expr | None = None
    for start, extent, p in reversed(spans):
        at = i[axis] - start
        e = p[(*i[:axis], at, *i[axis + 1 :])]
        y = e if len(parts) == 1 else guard_expr(e, (Bound(ZERO, at, extent),), y or const(0, p.dtype))
    assert y is not None
    return y


def _ref_concat(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    return (np.concatenate([a for a in arrays if a is not None], axis=axis_of(attrs)),)


def _infer_slice(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """Extent ceil((end - start) / step) per axis, at least 0."""
    x = args[0]
    assert x is not None
    shape = []
    for start, end, step in zip(
        dims(attrs, "starts"), dims(attrs, "ends"), ints(attrs, "steps"), strict=True
    ):
        if step == 0:
            raise c.fail("step 0 in a slice")
        span = (end - start) if step > 0 else (start - end)
        shape.append(c.simplify(dmax((span + abs(step) - 1) // abs(step), 0)))
        if shape[-1].const_or_none != 0:
            extent = x.shape[len(shape) - 1]
            low, high = (start, end - extent) if step > 0 else (end + 1, start - extent + 1)
            if (low.is_const and low.const < 0) or (high.is_const and high.const > 0):
                raise c.fail(f"a slice from {start} to {end} by {step} leaves the axis of {extent}")
    return (TensorType(x.dtype, tuple(shape)),)


def _slice(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    starts, steps = dims(attrs, "starts"), ints(attrs, "steps")
    return x[tuple(k * step + start for k, start, step in zip(i, starts, steps, strict=True))]


def _ref_slice(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x = arrays[0]
    assert x is not None
    spans = []
    for start, end, step in zip(
        evaluated(attrs, "starts"), evaluated(attrs, "ends"), ints(attrs, "steps"), strict=True
    ):
        spans.append(slice(start, None if step < 0 and end < 0 else end, step))
    return (np.array(x[tuple(spans)], order="C"),)


def infer_pad(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """x with borders of `before` and `after` elements, which are negative where x is cut; of some modes it
    must have an element where it gets any."""
    x = args[0]
    assert x is not None
    shape = [
        c.simplify(d + b + a)
        for d, b, a in zip(x.shape, dims(attrs, "before"), dims(attrs, "after"), strict=True)
    ]
    if any(d.is_const and d.const < 0 for d in shape):
        raise c.fail("the padding takes away more than there is")
    if attrs["mode"] in ("edge", "wrap"):
        for axis, (n, m) in enumerate(zip(x.shape, shape, strict=True)):
            if n != m and not (n.is_const and n.const > 0):
                c.at_most(f"axis {axis} has no elements to pad with", dmin(m, 1), n)
    return (TensorType(x.dtype, tuple(shape)),)


def _reflect(j: Dim, n: Dim) -> Dim:
    # positions repeat with period 2(n - 1); |p - (n - 1)| mirrors them
    period = dmax((n - 1) * 2, 1)
    p = j % period - (n - 1)
    return (n - 1) - dmax(p, -p)


PAD_INDEX: Mapping[str, Callable[[Dim, Dim], Dim]] = MappingProxyType({
    "reflect": _reflect,
    "edge": lambda j, n: dmax(dmin(j, n - 1), 0),
    "wrap": lambda j, n: j % dmax(n, 1),
})  # fmt: skip
"""Mode -> where an element of a border comes from: (its place before x starts, x's extent) -> its place."""


def _pad(
    t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand, value: Operand | None = None
) -> Expr:
    at = tuple(k - b for k, b in zip(i, dims(attrs, "before"), strict=True))
    mode = attrs["mode"]
    if mode != "constant":
        move = PAD_INDEX[str(mode)]
        padded = [
            b.const_or_none != 0 or a.const_or_none != 0
            for b, a in zip(dims(attrs, "before"), dims(attrs, "after"), strict=True)
        ]
        return x[tuple(move(j, n) if p else j for j, n, p in zip(at, x.shape, padded, strict=True))]
    fill = const(0, x.dtype) if value is None else value[()] if value.rank == 0 else value[(ZERO,)]
    bounds = tuple(
        Bound(ZERO, j, n)
        for j, n, b, a in zip(at, x.shape, dims(attrs, "before"), dims(attrs, "after"), strict=True)
        if b.const_or_none != 0 or a.const_or_none != 0
    )
    return x.guarded(at, bounds, fill)


def ref_pad(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    """x, cut where a pad is negative, with NumPy's borders of that mode."""
    x, value = (*arrays, None)[:2]
    assert x is not None
    pads = list(zip(evaluated(attrs, "before"), evaluated(attrs, "after"), strict=True))
    keep = tuple(slice(max(-b, 0), n + min(a, 0)) for (b, a), n in zip(pads, x.shape, strict=True))
    grow = [(max(b, 0), max(a, 0)) for b, a in pads]
    x = x[keep]
    if attrs["mode"] == "constant":
        fill = 0 if value is None else value.reshape(-1)[0]
        return (np.pad(x, grow, constant_values=fill),)
    return (np.pad(x, grow, mode=str(attrs["mode"])),)  # type: ignore[call-overload]


def _infer_tile(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x is not None
    repeats = dims(attrs, "repeats")
    if len(repeats) != x.rank:
        raise c.fail(f"{len(repeats)} repeats for rank {x.rank}")
    return (TensorType(x.dtype, tuple(c.simplify(d * r) for d, r in zip(x.shape, repeats, strict=True))),)


def _tile(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    repeats = dims(attrs, "repeats")
    return x[
        tuple(
            k if r.const_or_none == 1 else ZERO if n.const_or_none in (0, 1) else k % n
            for k, n, r in zip(i, x.shape, repeats, strict=True)
        )
    ]


# ---------------------------------------------------------------- trilu


def _infer_first(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x is not None
    if x.rank < 2:
        raise c.fail(f"wants a matrix, found {x.type}")
    return (x.type,)


def _trilu(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """x where column - row >= k (upper) or <= k (lower), else 0."""
    (k,) = dims({"k": (attrs["k"],)}, "k")
    away = i[-1] - i[-2] - k
    far = x.shape[-1] + x.shape[-2] + dmax(k, -k) + 1
    bound = Bound(ZERO, away, far) if attrs["upper"] else Bound(-far, away, ONE)
    return select(in_bounds((bound,)), x[i], const(0, x.dtype))


def _ref_trilu(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, (k,) = arrays[0], evaluated({"k": (attrs["k"],)}, "k")
    assert x is not None
    return (np.triu(x, k) if attrs["upper"] else np.tril(x, k),)


_N = to_dim(3)
ROWS: tuple[Op, ...] = (
    Op(
        "reshape",
        "x",
        _infer_reshape,
        lambda arrays, attrs, types: (np.reshape(arrays[0], [d.const for d in types[0].shape]),),  # type: ignore[arg-type]
        (
            Case(("f32[2, 12, 5]",), attrs={"shape": (to_dim(24), to_dim(5))}),
            Case(("f32[6, 4]",), attrs={"shape": (to_dim(2), to_dim(3), to_dim(4))}),
            Case(("f32[6, 4]",), attrs={"shape": (to_dim(8), to_dim(3))}),
        ),
        compute=_reshape,
        view=True,
    ),
    Op(
        "transpose",
        "x",
        _infer_transpose,
        _ref_transpose,
        (
            Case(("f32[N, 3, M, 2]",), attrs={"perm": (0, 2, 3, 1)}),
            Case(("f32[N, M]",), attrs={"perm": (1, 0)}),
            Case(("i64[N, 1, M, 2, 3]",), attrs={"perm": (4, 2, 0, 1, 3)}),
            Case(("f32[]",), attrs={"perm": ()}),
        ),
        compute=_transpose,
    ),
    Op(
        "broadcast_to",
        "x",
        _infer_broadcast_to,
        lambda arrays, attrs, types: (np.array(np.broadcast_to(arrays[0], evaluated(attrs, "shape"))),),  # type: ignore[arg-type]
        (
            Case(("f32[1, 3, 1]",), attrs={"shape": (to_dim(2), to_dim(4), to_dim(3), to_dim(5))}),
            Case(("f32[]",), attrs={"shape": (to_dim(7),)}),
        ),
        compute=_broadcast_to,
    ),
    Op(
        "concat",
        "*parts",
        _infer_concat,
        _ref_concat,
        (
            Case(("f32[N, 3, M]", "f32[N, 2, M]", "f32[N, 0, M]"), attrs={"axis": 1}),
            Case(("i64[N]", "i64[3]"), attrs={"axis": 0}),
            Case(("f32[2, N]", "f32[2, M]", "f32[2, 8]"), attrs={"axis": 1}),
        ),
        compute=_concat,
    ),
    Op(
        "slice",
        "x",
        _infer_slice,
        _ref_slice,
        (
            Case(
                ("f32[7, 9]",),
                attrs={
                    "starts": (to_dim(1), to_dim(8)),
                    "ends": (to_dim(6), to_dim(-1)),
                    "steps": (2, -3),
                },
            ),
            Case(
                ("f32[4, 5]",),
                attrs={
                    "starts": (to_dim(2), ZERO),
                    "ends": (to_dim(2), to_dim(5)),
                    "steps": (1, 1),
                },
            ),
        ),
        compute=_slice,
    ),
    Op(
        "pad",
        "x value?",
        infer_pad,
        ref_pad,
        (
            Case(
                ("f32[N, 4]", np.array(1.5, np.float32)),
                attrs={"before": (ONE, to_dim(2)), "after": (ZERO, to_dim(3)), "mode": "constant"},
            ),
            Case(
                ("f32[4, 5]", "-"),
                attrs={"before": (to_dim(-1), ONE), "after": (ONE, to_dim(-2)), "mode": "constant"},
            ),
            *(
                Case(
                    ("f32[4, 5]",),
                    attrs={"before": (ONE, to_dim(2)), "after": (to_dim(3), ZERO), "mode": mode},
                )
                for mode in ("reflect", "edge", "wrap")
            ),
        ),
        compute=_pad,
    ),
    Op(
        "tile",
        "x",
        _infer_tile,
        lambda arrays, attrs, types: (np.tile(arrays[0], evaluated(attrs, "repeats")),),  # type: ignore[arg-type]
        (
            Case(("f32[N, 3, M]",), attrs={"repeats": (to_dim(2), ONE, _N)}),
            Case(("f32[1, N]",), attrs={"repeats": (to_dim(4), to_dim(0))}),
        ),
        compute=_tile,
    ),
    Op(
        "trilu",
        "x",
        _infer_first,
        _ref_trilu,
        (
            Case(("f32[N, 4, 5]",), attrs={"upper": True, "k": ONE}),
            Case(("i64[4, N]",), attrs={"upper": False, "k": to_dim(-1)}),
        ),
        compute=_trilu,
    ),
)
