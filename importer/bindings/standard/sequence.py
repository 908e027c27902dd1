"""Bindings of ops on sequences and optionals: most emit nothing, the others move values of packed
sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, Truth, product, to_dim
from smelt.core.dtype import DType, bool_, f32, i64
from smelt.core.ir.graph import Ref, TensorType
from smelt.importer import known as kn
from smelt.importer import sequences as sq
from smelt.importer.call import Call, OnnxOp
from smelt.importer.weights import dtype_of


def sequence(c: Call, i: int = 0) -> sq.Listed | sq.Packed:
    """Input i as a sequence. Raises SmeltError when it is none."""
    found = sq.compound_of(c.builder.store, c.x(i))
    if isinstance(found, sq.Maybe):
        found = sq.compound_of(c.builder.store, sq.inside(c.builder, found))
    if not isinstance(found, sq.Listed | sq.Packed):
        raise c.fail(f"input {i} is a tensor, wanted a sequence")
    return found


def made(c: Call, value: sq.Compound) -> Ref:
    """The ref of a result."""
    return sq.register(c.builder.store, value)


def listed(c: Call, dtype: DType, items: Sequence[Ref]) -> Ref:
    """A sequence of known length as a result."""
    return made(c, sq.Listed(dtype, tuple(items)))


# ---------------------------------------------------------------- positions


def position(c: Call, i: int, length: Dim, behind: bool = False) -> Dim:
    """Input i as a position in a sequence, counted from the front, with a check that it is in range. behind:
    allow the position after the last element."""
    b, ref = c.builder, c.x(i)
    t = b.type_of(ref)
    if not t.dtype.is_int or t.rank > 1:
        raise c.fail(f"position {t} is no integer scalar")
    for d in t.shape:
        c.engine.same("elements of the position", d, ONE)
    last = length if behind else c.engine.simplify(length - 1)
    if c.engine.prove_le(ZERO, last) is Truth.NO:
        raise c.fail("an element of an empty sequence is asked for")
    ref = b.cast(b.reshape(ref, ()), i64)
    e = _known(c, ref)
    if e is None or (not e.is_const and c.engine.prove_le(ZERO, e) is not Truth.YES):
        size = b.from_dims([length], ())
        negative = c.emit("less", ref, b.scalar(0, ref))
        ref = c.emit("where", negative, c.emit("add", ref, size), ref)
        return b.bind(ref, 0, "position", 0, last)
    if e.is_const and e.const < 0:
        c.engine.at_most(f"position {e} counts from the end", -e, length)
        return c.engine.simplify(length + e)
    c.engine.at_most("position", e, last)
    return e


def _known(c: Call, ref: Ref) -> Dim | None:
    found = c.builder.known_of(ref)
    e = None if found is None else found.reshape(-1)[0]
    return c.engine.simplify(e) if isinstance(e, Dim) else None


def _rank(c: Call) -> int:
    """The rank that the file gives the only output."""
    found = c.declared_rank()
    if found is None:
        raise c.unsupported(
            "the elements of the sequence have no common rank",
            try_="declaring the elements' shape in the type of the input, or that of the output",
        )
    return found


# ---------------------------------------------------------------- sequences


def _construct(c: Call) -> Ref:
    types = [c.type(i) for i in range(len(c.inputs))]
    if not types:
        raise c.fail("no inputs, wanted at least one")
    if any(t.dtype != types[0].dtype for t in types):
        raise c.fail(f"elements of different types: {', '.join(str(t.dtype) for t in types)}")
    return listed(c, types[0].dtype, [c.x(i) for i in range(len(c.inputs))])


def _empty(c: Call) -> Ref:
    dtype = dtype_of(c.integer("dtype"), "attribute 'dtype'") if c.given("dtype") else f32
    return listed(c, dtype, ())


def _length(c: Call) -> Ref:
    return c.builder.from_dims([sq.length_of(c.builder, sequence(c))], ())


def _at(c: Call) -> Ref:
    s = sequence(c)
    k = position(c, 1, sq.length_of(c.builder, s))
    if isinstance(s, sq.Listed) and k.is_const:
        return s.items[k.const]
    return sq.element(c.builder, sq.packed(c.builder, s), k, lambda: _rank(c))


def _insert(c: Call) -> Ref:
    b, s, x = c.builder, sequence(c), c.x(1)
    t = b.type_of(x)
    if t.dtype != s.dtype:
        raise c.fail(f"a {t.dtype} tensor does not fit a sequence of {s.dtype}")
    length = sq.length_of(b, s)
    k = position(c, 2, length, behind=True) if c.has(2) else length
    if isinstance(s, sq.Listed):
        if not s.items:
            return listed(c, s.dtype, (x,))
        if k.is_const:
            return listed(c, s.dtype, (*s.items[: k.const], x, *s.items[k.const :]))
        s = sq.packed(b, s)
    width = sq.joined_width(b, s, t.rank)
    own = b.sized(kn.full((1, t.rank), list(t.shape)), TensorType(i64, (ONE, to_dim(t.rank))))
    own, shapes = sq.padded_rows(b, own, width), sq.padded_rows(b, s.shapes, width)
    at = sq.offset(b, s, k)
    flat = b.reshape(x, (product(t.shape),))
    return made(
        c,
        sq.Packed(
            s.dtype,
            _put(c, s.values, flat, at, sq.total_of(b, s)),
            _put(c, shapes, own, k, length),
            sq.agreed(c.engine, s.dims, t.shape),
        ),
    )


def _put(c: Call, x: Ref, more: Ref, at: Dim, length: Dim) -> Ref:
    """x with `more` before its row `at`."""
    if at == length:
        return joined(c, [x, more])
    return joined(c, [c.builder.slice_axis(x, 0, ZERO, at), more, c.builder.slice_axis(x, 0, at, length)])


def joined(c: Call, parts: Sequence[Ref], axis: int = 0) -> Ref:
    """The parts one after another, without those that have no elements."""
    some = [r for r in parts if c.builder.type_of(r).shape[axis] != ZERO] or list(parts[:1])
    return some[0] if len(some) == 1 else c.builder.emit("concat", some, {"axis": axis})


def _erase(c: Call) -> Ref:
    b, s = c.builder, sequence(c)
    length = sq.length_of(b, s)
    if c.has(1):
        k = position(c, 1, length)
    else:
        if c.engine.prove_le(ONE, length) is Truth.NO:
            raise c.fail("an element of an empty sequence is asked for")
        c.engine.at_most("the sequence is empty: elements to erase", ONE, length)
        k = c.engine.simplify(length - 1)
    if isinstance(s, sq.Listed):
        if k.is_const:
            return listed(c, s.dtype, (*s.items[: k.const], *s.items[k.const + 1 :]))
        s = sq.packed(b, s)
    start = sq.offset(b, s, k)
    stop = c.engine.simplify(start + sq.size_of(b, s, k, start))
    return made(
        c,
        sq.Packed(
            s.dtype,
            _without(c, s.values, start, stop, sq.total_of(b, s)),
            _without(c, s.shapes, k, k + 1, length),
            s.dims,
        ),
    )


def _without(c: Call, x: Ref, start: Dim, stop: Dim, length: Dim) -> Ref:
    b = c.builder
    return joined(c, [b.slice_axis(x, 0, ZERO, start), b.slice_axis(x, 0, stop, length)])


# ---------------------------------------------------------------- optionals


def _optional(c: Call) -> Ref:
    there = c.has(0)
    if not there and not c.given("type"):
        raise c.fail("neither an input nor the attribute 'type'")
    item = c.x() if there else ""
    return made(c, sq.Maybe(c.builder.constant(np.array(there)), item))


def _has_element(c: Call) -> Ref:
    found = sq.compound_of(c.builder.store, c.optional(0))
    if isinstance(found, sq.Maybe):
        return c.builder.cast(c.builder.reshape(found.given, ()), bool_)
    return c.builder.constant(np.array(c.has(0)))


def _get_element(c: Call) -> Ref:
    found = sq.compound_of(c.builder.store, c.x())
    return sq.inside(c.builder, found) if isinstance(found, sq.Maybe) else c.x()


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("SequenceConstruct", 11, _construct),
    OnnxOp("SequenceEmpty", 11, _empty),
    OnnxOp("SequenceLength", 11, _length),
    OnnxOp("SequenceAt", 11, _at),
    OnnxOp("SequenceInsert", 11, _insert),
    OnnxOp("SequenceErase", 11, _erase),
    OnnxOp("Optional", 15, _optional),
    OnnxOp("OptionalHasElement", 15, _has_element),
    OnnxOp("OptionalGetElement", 15, _get_element),
)
