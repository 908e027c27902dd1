"""Graph -> Graph: one spelling for what can be spelt many ways; identities vanish, constants go right."""

from __future__ import annotations

import numpy as np

from smelt.core.dim import ONE, YES, ZERO, Dim, to_dim
from smelt.core.dtype import DType, i64
from smelt.core.ir.graph import Node, Ref
from smelt.core.ops.rows.movement import concat_steps
from smelt.core.passes.cleanup.arithmetic import ARITHMETIC_RULES
from smelt.core.passes.numerics import EXACT
from smelt.core.passes.rewriting.constants import dims_of, ints_of, is_one, splat, whole
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rule, rule_pass

# ---------------------------------------------------------------- views and transposes


@rule("reshape", kind=EXACT, forms=["x: f32[N, 4, 6]; reshape(reshape(x, shape=(N, 24)), shape=(2 * N, 12))"])
def _reshape_reshape(g: Editor, n: Node) -> Ref | None:
    # reshape(reshape(x))  -->  reshape(x)
    inner = g.made_by(n.inputs[0], "reshape")
    return None if inner is None else g.emit("reshape", inner.inputs, n.attrs)


@rule("reshape", kind=EXACT, forms=["x: f32[N, 4]; reshape(x, shape=(N, 4))"])
def _reshape_same(g: Editor, n: Node) -> Ref | None:
    # reshape(x) to x's own shape  -->  x
    return n.inputs[0] if whole(g, n.inputs[0], n) else None


@rule("transpose", kind=EXACT, forms=[
    "x: f32[N, 3, 4]; transpose(transpose(x, perm=(2, 0, 1)), perm=(1, 0, 2))",
])
def _transpose_transpose(g: Editor, n: Node) -> Ref | None:
    # transpose(transpose(x, p), q)  -->  transpose(x, p then q)
    inner = g.made_by(n.inputs[0], "transpose")
    if inner is None:
        return None
    p, q = ints_of(inner.attrs["perm"]), ints_of(n.attrs["perm"])
    return g.emit("transpose", inner.inputs, {"perm": tuple(p[a] for a in q)})


@rule("transpose", kind=EXACT, forms=["x: f32[N, 1, 4]; transpose(x, perm=(1, 0, 2))"])
def _transpose_view(g: Editor, n: Node) -> Ref | None:
    # transpose(x) that keeps the order of the axes longer than 1  -->  reshape(x), or x
    perm, shape = ints_of(n.attrs["perm"]), g.shape(n.inputs[0])
    long = [a for a in perm if not is_one(shape[a])]
    if long != sorted(long):
        return None
    if list(perm) == sorted(perm):
        return n.inputs[0]
    return g.emit("reshape", n.inputs, {"shape": n.output.type.shape})


@rule("transpose", kind=EXACT, forms=[
    "x: f32[N, 3, 4]; transpose(reshape(transpose(x, perm=(0, 2, 1)), shape=(N, 4, 1, 3)), perm=(0, "
    "3, 2, 1))",
])
def _transpose_of_unit_reshape(g: Editor, n: Node) -> Ref | None:
    # transpose(reshape(transpose(x))), reshape only adds or drops axes of 1  -->  reshape(transpose(x))
    view = g.made_by(n.inputs[0], "reshape")
    if view is None:
        return None
    inner = g.made_by(view.inputs[0], "transpose")
    if inner is None:
        return None
    a, b = g.shape(view.inputs[0]), g.shape(n.inputs[0])
    long_a = [x for x, d in enumerate(a) if not is_one(d)]
    long_b = [x for x, d in enumerate(b) if not is_one(d)]
    if [a[x] for x in long_a] != [b[x] for x in long_b]:
        return None
    back = dict(zip(long_b, long_a, strict=True))
    moved = [back[x] for x in ints_of(n.attrs["perm"]) if x in back]
    rest = [x for x in range(len(a)) if x not in moved]
    first = ints_of(inner.attrs["perm"])
    perm = tuple(first[x] for x in (*rest, *moved))
    y = g.emit("transpose", inner.inputs, {"perm": perm})
    return g.emit("reshape", (y,), {"shape": n.output.type.shape})


@rule("broadcast_to", kind=EXACT, forms=[
    "x: f32[N, 1]; broadcast_to(broadcast_to(x, shape=(N, 4)), shape=(2, N, 4))",
])
def _broadcast_same(g: Editor, n: Node) -> Ref | None:
    # broadcast_to(x, x's shape)  -->  x;  broadcast_to(broadcast_to(x))  -->  broadcast_to(x)
    if whole(g, n.inputs[0], n):
        return n.inputs[0]
    inner = g.made_by(n.inputs[0], "broadcast_to")
    return None if inner is None else g.emit("broadcast_to", inner.inputs, n.attrs)


@rule("broadcast_to", kind=EXACT, forms=["x: f32[N, 4]; broadcast_to(x, shape=(1, N, 4))"])
def _broadcast_ones(g: Editor, n: Node) -> Ref | None:
    # broadcast_to(x) that only puts axes of 1 in front  -->  reshape(x)
    shape, target = g.shape(n.inputs[0]), n.output.type.shape
    extra = len(target) - len(shape)
    if target[extra:] == shape and all(is_one(d) for d in target[:extra]):
        return g.emit("reshape", n.inputs, {"shape": target})
    return None


# ---------------------------------------------------------------- data movement that moves nothing


@rule("concat", kind=EXACT, forms=["x: f32[N, 4]; y: f32[N, 0]; concat(x, y, x, axis=1)"])
def _concat_simple(g: Editor, n: Node) -> Ref | None:
    # concat(x)  -->  x;  concat(a, empty, b)  -->  concat(a, b)
    axis = int(n.attr("axis"))
    if len(n.inputs) == 1:
        return n.inputs[0]
    kept = tuple(r for r in n.inputs if g.shape(r)[axis].const_or_none != 0)
    if len(kept) == len(n.inputs) or not kept:
        return None
    return g.emit("concat", kept, n.attrs) if len(kept) > 1 else kept[0]


@rule("concat", kind=EXACT, forms=["x: f32[N, 4]; y: f32[N, 2]; concat(concat(x, y, axis=1), x, axis=1)"])
def _concat_concat(g: Editor, n: Node) -> Ref | None:
    # concat(concat(a, b), c) on one axis, the inner one used once  -->  concat(a, b, c)
    def parts(r: Ref) -> tuple[Ref, ...]:
        m = g.made_by(r, "concat")
        once = g.uses(r) == 1 and n.inputs.count(r) == 1
        return m.inputs if m is not None and once and m.attrs["axis"] == n.attrs["axis"] else (r,)

    flat = tuple(s for r in n.inputs for s in parts(r))
    if flat == n.inputs or len(concat_steps([g.shape(r)[int(n.attr("axis"))] for r in flat])) > 1:
        return None
    return g.emit("concat", flat, n.attrs)


@rule("concat", kind=EXACT, forms=[
    "x: f32[N, 6]; concat(slice(x, starts=(0, 0), ends=(N, 2), steps=(1, 1)), slice(x, starts=(0, "
    "2), ends=(N, 5), steps=(1, 1)), axis=1)",
])
def _concat_slices(g: Editor, n: Node) -> Ref | None:
    # concat(slice(x, a..b), slice(x, b..c), y)  -->  concat(slice(x, a..c), y)
    axis = int(n.attr("axis"))
    for k, (a, b) in enumerate(zip(n.inputs, n.inputs[1:], strict=False)):
        first, second = g.made_by(a, "slice"), g.made_by(b, "slice")
        if first is None or second is None or first.inputs != second.inputs:
            continue
        mine = [dims_of(first.attrs[name]) for name in ("starts", "ends")]
        theirs = [dims_of(second.attrs[name]) for name in ("starts", "ends")]
        if first.attrs["steps"] != second.attrs["steps"] or ints_of(first.attrs["steps"])[axis] != 1:
            continue
        same = all(
            x[d] == y[d] for x, y in zip(mine, theirs, strict=True) for d in range(len(x)) if d != axis
        )
        if not same or mine[1][axis] != theirs[0][axis]:
            continue
        parts = ((a, mine), (b, theirs))  # x[2:1] is empty, not a step back: both must run forwards
        if any(g.shape(r)[axis] != ends[axis] - starts[axis] for r, (starts, ends) in parts):
            continue
        joined_ends = tuple(theirs[1][d] if d == axis else e for d, e in enumerate(mine[1]))
        joined = g.emit("slice", first.inputs, {**first.attrs, "ends": joined_ends})
        rest = (*n.inputs[:k], joined, *n.inputs[k + 2 :])
        return g.emit("concat", rest, n.attrs) if len(rest) > 1 else joined
    return None


@rule("slice", kind=EXACT, forms=["x: f32[N, 4]; slice(x, starts=(0, 0), ends=(N, 4), steps=(1, 1))"])
def _slice_whole(g: Editor, n: Node) -> Ref | None:
    # slice(x) of everything  -->  x
    forward = all(s == 1 for s in ints_of(n.attrs["steps"]))
    from_start = all(d == ZERO for d in dims_of(n.attrs["starts"]))
    return n.inputs[0] if forward and from_start and whole(g, n.inputs[0], n) else None


@rule("slice", kind=EXACT, forms=[
    "x: f32[N, 8]; slice(slice(x, starts=(0, 1), ends=(N, 7), steps=(1, 1)), starts=(0, 2), ends=(N, "
    "5), steps=(1, 1))",
])
def _slice_slice(g: Editor, n: Node) -> Ref | None:
    # slice(slice(x, a), b), steps 1  -->  slice(x, a + b)
    inner = g.made_by(n.inputs[0], "slice")
    if inner is None or any(s != 1 for m in (n, inner) for s in ints_of(m.attrs["steps"])):
        return None
    base = dims_of(inner.attrs["starts"])
    starts = tuple(a + b for a, b in zip(base, dims_of(n.attrs["starts"]), strict=True))
    ends = tuple(a + b for a, b in zip(base, dims_of(n.attrs["ends"]), strict=True))
    return g.emit("slice", inner.inputs, {**n.attrs, "starts": starts, "ends": ends})


@rule("slice", kind=EXACT, forms=[
    "x: f32[N, 4]; y: f32[N, 3]; slice(concat(x, y, axis=1), starts=(0, 5), ends=(N, 7), steps=(1, "
    "1))",
])
def _slice_concat(g: Editor, n: Node) -> Ref | None:
    # slice(concat(a, b, c)) inside b  -->  slice(b), or b
    joined = g.made_by(n.inputs[0], "concat")
    if joined is None or any(s != 1 for s in ints_of(n.attrs["steps"])):
        return None
    axis, shape = int(joined.attr("axis")), g.shape(n.inputs[0])
    starts, ends = dims_of(n.attrs["starts"]), dims_of(n.attrs["ends"])
    others = [a for a in range(len(shape)) if a != axis]
    if any(starts[a] != ZERO or ends[a] != shape[a] for a in others):
        return None
    at, facts = ZERO, g.engine.facts
    for part in joined.inputs:
        first, last, extent = starts[axis] - at, ends[axis] - at, g.shape(part)[axis]
        if first == ZERO and last == extent and whole(g, part, n):
            return part
        if facts.prove_le(0, first) is YES and facts.prove_le(last, extent) is YES:
            return _take(g, n, part, axis, first, last)
        at = at + extent
    return None


@rule("pad", kind=EXACT, forms=['x: f32[N, 4]; pad(x, before=(0, 0), after=(0, 0), mode="constant")'])
def _pad_nothing(g: Editor, n: Node) -> Ref | None:
    # pad(x) by 0 everywhere  -->  x
    pads = (*dims_of(n.attrs["before"]), *dims_of(n.attrs["after"]))
    return n.inputs[0] if all(d == ZERO for d in pads) else None


@rule("tile", kind=EXACT, forms=["x: f32[N, 4]; tile(x, repeats=(1, 1))"])
def _tile_once(g: Editor, n: Node) -> Ref | None:
    # tile(x) once along every axis  -->  x
    once = all(d == ONE for d in dims_of(n.attrs["repeats"]))
    return n.inputs[0] if once and whole(g, n.inputs[0], n) else None


@rule("tile", kind=EXACT, forms=["x: f32[N, 1, 4]; tile(x, repeats=(1, 3, 1))"])
def _tile_units(g: Editor, n: Node) -> Ref | None:
    # tile(x) along axes of 1 alone  -->  broadcast_to(x)
    repeats, shape = dims_of(n.attrs["repeats"]), g.shape(n.inputs[0])
    if any(r != ONE and not is_one(d) for r, d in zip(repeats, shape, strict=True)):
        return None
    return g.emit("broadcast_to", n.inputs, {"shape": n.output.type.shape})


@rule("tile", kind=EXACT, forms=["x: f32[N, M]; tile(x, repeats=(2, 3))"])
def _tile_rows(g: Editor, n: Node) -> Ref | None:
    # tile(x) along its last axis, among others  -->  reshape(broadcast_to(reshape(x))), whose rows are copied
    #   from neighbours, where a remainder would be taken for each element
    repeats, shape = dims_of(n.attrs["repeats"]), g.shape(n.inputs[0])
    if not repeats or repeats[-1] == ONE:
        return None
    rows = g.emit("reshape", n.inputs, {"shape": tuple(d for size in shape for d in (ONE, size))})
    wide = tuple(d for pair in zip(repeats, shape, strict=True) for d in pair)
    copies = g.emit("broadcast_to", (rows,), {"shape": wide})
    return g.emit("reshape", (copies,), {"shape": n.output.type.shape})


@rule("concat", kind=EXACT, forms=["x: f32[N, 1, 4]; concat(x, x, x, axis=1)"])
def _concat_same(g: Editor, n: Node) -> Ref | None:
    # concat(x, x, x) along an axis of 1  -->  broadcast_to(x)
    (x, *others), axis = n.inputs, int(n.attr("axis"))
    if not others or any(r != x for r in others) or not is_one(g.shape(x)[axis]):
        return None
    return g.emit("broadcast_to", (x,), {"shape": n.output.type.shape})


@rule("gather", kind=EXACT, forms=[
    "x: f32[N, 6]; i: i64[3] = [1, 2, 3]; gather(x, i, axis=1)",
    "x: f32[N, 6]; i: i64[] = 2; gather(x, i, axis=1)",
])
def _gather_constant(g: Editor, n: Node) -> Ref | None:
    # gather(x, constant i)  -->  reshape(slice(x, i));  gather(x, [i, i+1, ..])  -->  slice(x)
    index = g.array(n.inputs[1])
    if index is None or index.ndim > 1 or index.size == 0 or index.size > 4096:
        return None
    x, axis = n.inputs[0], int(n.attr("axis"))
    extent, flat = g.shape(x)[axis], index.reshape(-1).astype(np.int64)
    first = int(flat[0])
    if (flat != first + np.arange(flat.size)).any() or (first < 0 <= int(flat[-1])):
        return None
    start = extent + first if first < 0 else to_dim(first)
    known = extent.is_const and start.const >= 0 and start.const + flat.size <= extent.const
    if not known and g.engine.facts.prove_le(start + flat.size, extent) is not YES:
        return None
    if not known and g.engine.facts.prove_le(0, start) is not YES:
        return None
    return _take(g, n, x, axis, start, start + flat.size)


def _take(g: Editor, n: Node, x: Ref, axis: int, start: Dim, end: Dim) -> Ref:
    shape = g.shape(x)
    starts = tuple(start if a == axis else ZERO for a in range(len(shape)))
    ends = tuple(end if a == axis else d for a, d in enumerate(shape))
    part = g.emit("slice", (x,), {"starts": starts, "ends": ends, "steps": (1,) * len(shape)})
    if g.shape(part) == n.output.type.shape:
        return part
    return g.emit("reshape", (part,), {"shape": n.output.type.shape})


# ---------------------------------------------------------------- casts

# types whose every value the other type can hold
_EXACT: dict[str, frozenset[str]] = {
    "bool": frozenset(["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"]),
    "u8": frozenset(["u16", "u32", "u64", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"]),
    "i8": frozenset(["i16", "i32", "i64", "f16", "bf16", "f32", "f64"]),
    "u16": frozenset(["u32", "u64", "i32", "i64", "f32", "f64"]),
    "i16": frozenset(["i32", "i64", "f32", "f64"]),
    "u32": frozenset(["u64", "i64", "f64"]),
    "i32": frozenset(["i64", "f64"]),
    "f16": frozenset(["f32", "f64"]),
    "bf16": frozenset(["f32", "f64"]),
    "f32": frozenset(["f64"]),
}


@rule("cast", kind=EXACT, forms=["x: f32[N]; cast(x, to=f32)"])
def _cast_same(g: Editor, n: Node) -> Ref | None:
    # cast(x) to x's own type  -->  x
    return n.inputs[0] if g.type_of(n.inputs[0]).dtype == n.attrs["to"] else None


@rule("cast", kind=EXACT, forms=[
    "x: u8[N]; cast(cast(x, to=f32), to=i32)",
    "x: f16[N]; cast(cast(x, to=f32), to=i8)",
    "x: i16[N]; cast(cast(x, to=i64), to=u8)",
])
def _cast_cast(g: Editor, n: Node) -> Ref | None:
    # cast(cast(x, wider), t)  -->  cast(x, t)
    inner = g.made_by(n.inputs[0], "cast")
    if inner is None:
        return None
    first, middle, last = g.type_of(inner.inputs[0]).dtype, inner.attrs["to"], n.attrs["to"]
    assert isinstance(middle, DType) and isinstance(last, DType)
    if middle.name not in _EXACT.get(first.name, ()):
        return None
    if middle.is_float and last.is_int and not first.is_float and last.name not in _EXACT.get(first.name, ()):
        return None  # from floats to integers values stop at the ends, from integers they wrap
    return g.emit("cast", inner.inputs, n.attrs)


@rule("cast", kind=EXACT, forms=[
    "x: f32[N]; cast(from_dims(values=(70000 * N, N), shape=(2,), dtype=i64), to=f32)",
])
def _cast_from_dims(g: Editor, n: Node) -> Ref | None:
    # cast(from_dims in 64 bits, which hold every size)  -->  from_dims of the other type
    made = g.made_by(n.inputs[0], "from_dims")
    to = n.attrs["to"]
    if made is None or made.attrs["dtype"] != i64:
        return None
    if not isinstance(to, DType) or not (to.is_int or to.is_float):
        return None
    return g.emit("from_dims", (), {**made.attrs, "dtype": to})


# ---------------------------------------------------------------- views and what is computed on them

# operands of elementwise ops that NumPy broadcasting would broadcast anyway
_BROADCASTING = (
    "add", "sub", "mul", "div", "min", "max", "equal", "less", "less_equal", "greater",
    "greater_equal", "and", "or", "where",
)


@rule(*_BROADCASTING, kind=EXACT, forms=["x: f32[N, 1]; y: f32[N, 4]; add(broadcast_to(x, shape=(N, 4)), y)"])
def _implicit_broadcast(g: Editor, n: Node) -> Ref | None:
    # add(broadcast_to(x), y)  -->  add(x, y)  where y has the full shape already
    for k, r in enumerate(n.inputs):
        wide = g.made_by(r, "broadcast_to")
        if wide is None:
            continue
        x = wide.inputs[0]
        shape, target = g.shape(x), g.shape(r)
        tail = target[len(target) - len(shape) :]
        plain = all(is_one(a) or a == b for a, b in zip(shape, tail, strict=True))
        if plain and any(j != k and g.shape(s) == n.output.type.shape for j, s in enumerate(n.inputs)):
            inputs = tuple(x if j == k else s for j, s in enumerate(n.inputs))
            return g.emit(n.op, inputs, n.attrs)
    return None


# whole shapes broadcast, so no attribute speaks of axes. The trait of one node alone does not tell: a slice
# of all of an axis of 1 reads at the output's own index too
@rule(kind=EXACT, where=lambda op: op.broadcasts == 0, forms=[
    "x: f32[N, 4]; add(reshape(x, shape=(2 * N, 2)), 0.5)",
    "x: f32[N, 4]; c: f32[1] = 0.5; max(transpose(x, perm=(1, 0)), c)",
    "x: f32[N, 1]; exp(broadcast_to(x, shape=(N, 4)))",
])
def _views_last(g: Editor, n: Node) -> Ref | None:
    # f(view(x), scalars)  -->  view(f(x, scalars)), view a reshape, transpose or broadcast used once
    moved = [r for r in n.inputs if r and not _scalar_constant(g, r)]
    if len(set(moved)) != 1 or len(n.outputs) != 1:
        return None
    view = g.made_by(moved[0], "reshape", "transpose", "broadcast_to")
    if view is None or g.uses(moved[0]) != 1 or g.shape(moved[0]) != n.output.type.shape:
        return None
    inputs = tuple(view.inputs[0] if r == moved[0] else r for r in n.inputs)
    if any(len(g.shape(r)) > len(g.shape(view.inputs[0])) for r in inputs if r):
        return None
    if not g.trait(n).elementwise:
        return None
    y = g.emit(n.op, inputs, n.attrs)
    return g.emit(view.op, (y,), view.attrs)


def _scalar_constant(g: Editor, ref: Ref) -> bool:
    return g.is_weight(ref) and all(is_one(d) for d in g.shape(ref))


# ---------------------------------------------------------------- reductions over nothing

_IDENTITY_REDUCE = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod")


@rule(*_IDENTITY_REDUCE, kind=EXACT, forms=[
    "x: f32[N, 1, 4]; reduce_mean(x, axes=(1,), keepdims=False)",
    "x: i32[N, 1]; reduce_max(x, axes=(1,), keepdims=True)",
])
def _reduce_units(g: Editor, n: Node) -> Ref | None:
    # reduce(x) over axes of extent 1  -->  reshape(x)
    shape = g.shape(n.inputs[0])
    if not all(is_one(shape[a]) for a in ints_of(n.attrs["axes"])):
        return None
    if whole(g, n.inputs[0], n):
        return n.inputs[0]
    return g.emit("reshape", n.inputs, {"shape": n.output.type.shape})


@rule("conv", "average_pool", kind=EXACT, forms=[
    "x: f32[N, 2, H]; w: f32[3, 2, 3] = draw; conv(pad(x, before=(0, 0, 1), after=(0, 0, 2), "
    'mode="constant"), w)',
    'x: f32[N, 2, H]; average_pool(pad(x, before=(0, 0, 1), after=(0, 0, 1), mode="constant"), '
    "kernel=(2,), count_include_pad=True)",
])
def _pad_into_window(g: Editor, n: Node) -> Ref | None:
    # conv(pad(x, 0))  -->  conv(x) with larger pads
    pad = g.made_by(n.inputs[0], "pad")
    if pad is None or pad.attrs["mode"] != "constant" or int(n.attr("origin", 0)) != 0:
        return None
    if n.op == "average_pool" and not n.attrs.get("count_include_pad", False):
        return None
    if n.op == "average_pool" and n.attrs.get("ceil_mode", False):
        return None
    if len(pad.inputs) > 1 and pad.inputs[1] and splat(g, pad.inputs[1]) != 0:
        return None
    before, after = dims_of(pad.attrs["before"]), dims_of(pad.attrs["after"])
    fixed = (0, len(before) - 1) if n.attrs.get("channels_last", False) else (0, 1)
    if any(before[a] != ZERO or after[a] != ZERO for a in fixed):
        return None
    spatial = [a for a in range(len(before)) if a not in fixed]
    if any(g.engine.facts.prove_le(0, d) is not YES for a in spatial for d in (before[a], after[a])):
        return None
    begin = tuple(d + before[a] for d, a in zip(dims_of(n.attrs["pads_begin"]), spatial, strict=True))
    end = tuple(d + after[a] for d, a in zip(dims_of(n.attrs["pads_end"]), spatial, strict=True))
    attrs = {**n.attrs, "pads_begin": begin, "pads_end": end}
    if g.infer(n.op, (pad.inputs[0], *n.inputs[1:]), attrs) != (n.output.type,):
        return None
    return g.emit(n.op, (pad.inputs[0], *n.inputs[1:]), attrs)


RULES: tuple[Rule, ...] = (
    _reshape_reshape, _reshape_same, _transpose_transpose, _transpose_view, _transpose_of_unit_reshape,
    _broadcast_same, _broadcast_ones, _concat_simple, _concat_concat, _concat_slices, _slice_whole,
    _slice_slice, _slice_concat, _pad_nothing, _tile_once, _tile_units, _tile_rows,
    _concat_same, _gather_constant, _cast_same, _cast_cast,
    _cast_from_dims,
    *ARITHMETIC_RULES, _implicit_broadcast,
    _views_last, _reduce_units, _pad_into_window,
)

canonical = rule_pass(RULES)
