"""Bindings of ops about shapes: Shape, Reshape, Expand, Range and the like become sizes in attributes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from smelt.core.dim import ONE, ZERO, Dim, Truth, ceildiv, dmax, product, sym, to_dim
from smelt.core.dtype import bool_, f64, i64
from smelt.core.ir.graph import Ref
from smelt.importer import strings
from smelt.importer.attributes import text, texts
from smelt.importer.bindings.axes import kept_sizes, mask, rank_with, rank_without, with_ones
from smelt.importer.bindings.indices import nonzero
from smelt.importer.call import Call, OnnxOp
from smelt.importer.known import Ratio
from smelt.importer.weights import array_of, dense, dtype_of


def _constant(c: Call) -> Ref:
    """A tensor in one of the attribute's eight forms."""
    name, a = next(iter(c.attributes.items()), ("", None))
    what = f"attribute '{name}'"
    if name == "value" and a is not None and a.t.data_type == TensorProto.STRING:
        return strings.of_tensor(c.builder, a.t, what)
    if name == "value" and a is not None:
        if a.t.data_location == TensorProto.EXTERNAL:
            large: Ref = c.translate.external(a.t, next(iter(c.outputs), ""), what)
            return large
        return c.builder.constant(array_of(a.t, what))
    if name == "sparse_value" and a is not None:
        return c.builder.constant(array_of(dense(a.sparse_tensor, what), what))
    if name in ("value_int", "value_ints"):
        return c.builder.constant(np.array(c.ints(name) if name.endswith("s") else c.integer(name), np.int64))
    if name in ("value_float", "value_floats"):
        return c.builder.constant(
            np.array(c.floats(name) if name.endswith("s") else c.number(name), np.float32)
        )
    if name in ("value_string", "value_strings"):
        many = name.endswith("s")
        own = texts(c, name) if many else (text(c, name, ""),)
        return strings.made(c.builder, strings.constant(c.builder, own, None if many else ()))
    raise c.fail("it has no value attribute")


def _shape(c: Call) -> Ref:
    shape = c.shape()
    rank = len(shape)
    start, end = c.integer("start", 0), c.integer("end", rank)
    start, end = (max(0, min(rank, v + rank if v < 0 else v)) for v in (start, end))
    dims = shape[start : max(start, end)]
    return c.builder.from_dims(dims, [len(dims)])


def _size(c: Call) -> Ref:
    return c.builder.from_dims([c.engine.simplify(product(c.shape()))], [])


def _reshape(c: Call) -> Ref:
    return reshaped(c, c.cast(c.x(1), i64))


def reshaped(c: Call, to: Ref) -> Ref:
    """Input 0 in the shape `to`: 0 copies the input's dim (unless allowzero), -1 takes what is left."""
    x, shape = c.x(0), c.shape(0)
    copies = not c.integer("allowzero", 0)
    to = c.sized_like(to, c.declared_rank())
    wanted = c.builder.dims_of(_resolved(c, to, copies), "the shape of a Reshape", special=True)
    target: list[Dim] = []
    copied: set[int] = set()
    slot = None
    for i, d in enumerate(wanted):
        if d == ZERO and copies:
            if i >= len(shape):
                raise c.fail(f"shape {_text(wanted)} copies axis {i}, the input has rank {len(shape)}")
            copied.add(i)
            target.append(shape[i])
        elif d.const_or_none == -1:
            if slot is not None:
                raise c.fail(f"shape {_text(wanted)} has two -1")
            slot = i
            target.append(ONE)
        elif d.is_const and d.const < 0:
            raise c.fail(f"shape {_text(wanted)} has the negative size {d}")
        else:
            target.append(d)
    if slot is not None:
        target[slot] = _rest(c, shape, target, copied)
    return c.builder.reshape(x, target)


def _resolved(c: Call, ref: Ref, copies: bool) -> Ref:
    """The shape input; where elements are only known at run time, 0 and -1 are replaced there."""
    shape = c.shape(0)
    found = c.builder.known_of(ref)
    if found is None or found.ndim != 1 or all(isinstance(e, Dim) for e in found):
        return ref
    n = found.size
    if copies:
        own = [*shape, *[ZERO] * n][:n]
        zero = c.emit("equal", ref, c.scalar(0, ref))
        ref = c.emit("where", zero, c.builder.from_dims(own, [n]), ref)
    open_ = c.emit("equal", ref, c.scalar(-1, ref))
    others = c.emit("reduce_prod", c.emit("where", open_, c.scalar(1, ref), ref), axes=(0,), keepdims=False)
    total = c.builder.from_dims([c.engine.simplify(product(shape))], [])
    rest = c.emit("div", total, c.emit("max", others, c.scalar(1, others)))
    return c.emit("where", open_, rest, ref)


def _rest(c: Call, shape: Sequence[Dim], target: Sequence[Dim], copied: set[int]) -> Dim:
    """What -1 stands for: the input's elements over the other sizes; copied axes cancel, 0 or not."""
    total = product(d for i, d in enumerate(shape) if i not in copied)
    others = product(d for i, d in enumerate(target) if i not in copied)
    total, others = c.engine.simplify(total), c.engine.simplify(others)
    if others == ZERO:
        return ZERO
    if total == others:
        return ONE
    if others.is_const and total.is_const and total.const % others.const:
        raise c.fail(f"{total} elements do not fit shape {_text(target)} with -1 at one place")
    total, others = _cancelled(total, others)
    if others != ONE and (total // others) * others != total:
        c.engine.divides("the sizes beside -1", others, total)
    return c.engine.simplify(total // others)


def _cancelled(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """a and b without the symbols that both are multiples of: batch*seq*h and batch*8 give seq*h and 8."""
    (_, one), *more = a.terms() or ((0, ()),)
    (_, two), *others = b.terms() or ((0, ()),)
    if more or others:
        return a, b
    powers = dict(two)
    for atom, power in one:
        name = getattr(atom, "name", None)
        if name is not None and atom in powers:
            shared = product([sym(name)] * min(power, powers[atom]))
            a, b = a // shared, b // shared
    return a, b


def _text(dims: Sequence[Dim]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _flatten(c: Call) -> Ref:
    shape = c.shape()
    axis = c.integer("axis", 1)
    axis = len(shape) if axis == len(shape) else c.axis(axis, max(len(shape), 1))
    return c.builder.reshape(c.x(), (product(shape[:axis]), product(shape[axis:])))


def _squeeze(c: Call) -> Ref:
    shape = c.shape()
    if c.run_time(1):
        rank = rank_without(c, c.x(1))
        return c.builder.reshape(c.x(), kept_sizes(c, mask(c, c.x(1), len(shape)), rank))
    wanted = c.given_axes()
    if wanted is None:
        axes = _ones(c, shape)
    else:
        axes = c.axes(wanted, len(shape))
    for a in axes:
        c.engine.same(f"squeezed axis {a}", shape[a], ONE)
    return c.builder.reshape(c.x(), [d for a, d in enumerate(c.shape()) if a not in axes])


def _ones(c: Call, shape: Sequence[Dim]) -> tuple[int, ...]:
    """The axes of extent 1. Where unknown sizes decide it, either all of them are 1 or none is, by the
    result's rank in the file."""
    ones = [a for a, d in enumerate(shape) if c.engine.prove_eq(d, ONE) is Truth.YES]
    two = to_dim(2)
    maybe = [a for a, d in enumerate(shape) if c.engine.prove_eq(d, ONE) is Truth.UNKNOWN]
    declared = c.declared_rank()
    if maybe and declared == len(shape) - len(ones):
        for a in maybe:
            c.engine.at_most(f"1 and axis {a}, which the declared rank keeps", two, shape[a])
    elif maybe and declared == len(shape) - len(ones) - len(maybe):
        ones = sorted([*ones, *maybe])
    elif maybe:
        d = shape[maybe[0]]
        raise c.undecided(
            f"without axes, whether {d} of {_text(shape)} is 1 decides the rank",
            None,
            (d, ONE),
            try_=f"naming the axes, or fixing or bounding the size (dims={{'{min(d.symbols)}': ...}})",
        )
    return tuple(ones)


def _unsqueeze(c: Call) -> Ref:
    shape = list(c.shape())
    if c.run_time(1):
        rank = rank_with(c, c.x(1))
        return c.builder.reshape(c.x(), with_ones(c, mask(c, c.x(1), rank), rank))
    wanted = c.given_axes()
    if wanted is None:
        raise c.fail("its axes are missing")
    for a in c.axes(wanted, len(shape) + len(wanted)):
        shape.insert(a, ONE)
    return c.builder.reshape(c.x(), shape)


def _expand(c: Call) -> Ref:
    """The broadcast of the input with a shape: either side may be 1 on an axis."""
    shape = list(c.shape(0))
    target = list(c.builder.dims_of(_full_rank(c), "the shape of an Expand"))
    rank = max(len(shape), len(target))
    shape = [ONE] * (rank - len(shape)) + shape
    target = [ONE] * (rank - len(target)) + target
    return c.builder.broadcast_to(
        c.x(0),
        [
            c.engine.join(f"axis {a} of the result", pair, assume=False)
            for a, pair in enumerate(zip(shape, target, strict=True))
        ],
    )


def _full_rank(c: Call) -> Ref:
    """The shape of an Expand; one of unknown length is padded with ones in front, up to the result's rank,
    which the file must then declare."""
    to = c.sized_like(c.x(1), None)
    wanted = c.builder.type_of(to).shape
    rank = c.declared_rank()
    if len(wanted) != 1 or wanted[0].is_const or rank is None:
        return to
    if rank > len(c.shape(0)):
        return c.sized_like(to, rank)
    c.engine.at_most("the rank of the shape", wanted[0], to_dim(rank))
    return c.emit("pad", to, c.scalar(1, to), before=(rank - wanted[0],), after=(ZERO,), mode="constant")


def _constant_of_shape(c: Call) -> Ref:
    value = (
        array_of(c.attributes["value"].t, "attribute 'value'")
        if c.given("value")
        else np.zeros(1, np.float32)
    )
    if value.size != 1:
        raise c.fail(f"attribute 'value' has {value.size} elements, wanted 1")
    wanted = c.sized_like(c.x(), c.declared_rank())
    dims = c.builder.dims_of(wanted, "the shape of a ConstantOfShape")
    return c.builder.broadcast_to(c.builder.constant(value.reshape(())), dims)


def _range(c: Call) -> Ref:
    """start, start + delta, ... before limit."""
    parts = [c.builder.known_of(c.x(i)) for i in range(3)]
    elements = [None if p is None or p.size != 1 else p.reshape(-1)[0] for p in parts]
    dtype = c.type(0).dtype
    fractions = [Ratio(e) if isinstance(e, Dim) else e for e in elements]
    start, limit, delta = fractions
    if isinstance(delta, Ratio) and delta.const == 0:
        raise c.fail("delta is 0")
    steps = _constant_steps(c) if dtype.is_float else None
    if steps is not None:
        n = to_dim(steps)
    elif isinstance(start, Ratio) and isinstance(limit, Ratio) and isinstance(delta, Ratio) and delta.const:
        num = (limit.num * start.den - start.num * limit.den) * delta.den
        den = limit.den * start.den * delta.num
        count = ceildiv(num, den) if delta.const > 0 else ceildiv(-num, -den)
        n = c.engine.simplify(dmax(count, 0))
        if start.den == ONE and delta.den == ONE:
            return c.emit("iota", shape=(n,), start=start.num, step=delta.num, dtype=dtype)
    else:
        n = _range_count(c)
    counted = c.emit("iota", shape=(n,), start=ZERO, step=ONE, dtype=dtype)
    first, step = (c.builder.reshape(c.x(i), ()) for i in (0, 2))
    return c.emit("add", c.emit("mul", counted, step), first)


def _constant_steps(c: Call) -> int | None:
    """The length of a Range of constant floats, computed in f64 from what they are: 0.3 is a little more than
    three tenths. None where they are not constant."""
    given = [c.builder.constant_of(c.x(i)) for i in range(3)]
    known = [float(a.reshape(-1)[0]) for a in given if a is not None and a.size == 1]
    if len(known) < 3 or known[2] == 0 or not all(map(math.isfinite, known)):
        return None
    start, limit, delta = known
    return max(math.ceil((limit - start) / delta), 0)


def _range_count(c: Call) -> Dim:
    """The length of a Range whose ends are computed at run time: max(0, ceil((limit - start) / delta))."""
    b = c.builder
    nonzero(c, b.reshape(c.x(2), ()), "delta")
    start, limit, delta = (c.cast(b.reshape(c.x(i), ()), f64) for i in range(3))
    steps = c.emit("ceil", c.emit("div", c.emit("sub", limit, start), delta))
    count = c.cast(c.emit("max", steps, c.scalar(0, steps)), i64)
    return b.bind(count, 0, "range_length")


def _eye_like(c: Call) -> Ref:
    shape = c.shape()
    if len(shape) != 2:
        raise c.fail(f"input has rank {len(shape)}, wanted 2")
    dtype = dtype_of(c.integer("dtype"), "attribute 'dtype'") if c.given("dtype") else c.type().dtype
    rows = c.iota(shape[0], to_dim(c.integer("k", 0)))
    columns = c.iota(shape[1])
    hit = c.emit("equal", c.builder.reshape(rows, (shape[0], 1)), c.builder.reshape(columns, (1, shape[1])))
    return hit if dtype == bool_ else c.cast(hit, dtype)


def _tile(c: Call) -> Ref:
    repeats = c.builder.dims_of(c.sized_like(c.x(1), c.type(0).rank), "the repeats of a Tile")
    return c.emit("tile", c.x(0), repeats=repeats)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("Constant", 1, _constant),
    OnnxOp("Shape", 1, _shape),
    OnnxOp("Size", 1, _size),
    OnnxOp("Reshape", 5, _reshape),
    OnnxOp("Flatten", 1, _flatten),
    OnnxOp("Squeeze", 1, _squeeze),
    OnnxOp("Unsqueeze", 1, _unsqueeze),
    OnnxOp("Expand", 8, _expand),
    OnnxOp("ConstantOfShape", 9, _constant_of_shape),
    OnnxOp("Range", 11, _range),
    OnnxOp("EyeLike", 9, _eye_like),
    OnnxOp("Tile", 6, _tile),
)
