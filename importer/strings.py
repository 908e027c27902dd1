"""Tensors of strings as tensors of bytes: constants, widths, comparison, and ops that move elements.

A string tensor of shape [*S] is u8[*S, width]: UTF-8 padded with zeros up to a width that is a size like any
other. An op that moves elements is applied to a tensor of the elements' indices, by its own binding; then the
rows with these indices are gathered. So every op that moves tensors' elements moves strings too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx

from smelt.core.diag import SmeltError
from smelt.core.dim import ZERO, Dim, dmax, product, to_dim
from smelt.core.dtype import Array, i64, u8
from smelt.core.ir.graph import Attr, Ref
from smelt.importer import sequences as sq
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Build, Call, Results

STRING_MOVES = frozenset({
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Concat", "Gather", "GatherElements", "GatherND",
    "Slice", "Split", "Transpose", "Tile", "Where", "Compress", "Scatter", "ScatterElements", "ScatterND",
    "ReverseSequence", "ArrayFeatureExtractor", "DepthToSpace", "SpaceToDepth", "Pad", "CenterCropPad",
    "Trilu", "TensorScatter", "SplitToSequence", "ConcatFromSequence", "SequenceConstruct", "SequenceAt",
    "SequenceInsert", "SequenceErase",
})  # fmt: skip
"""Ops whose outputs are elements of their inputs."""
FILLS = frozenset({"Pad", "CenterCropPad", "Trilu"})
"""Moves that pad with zeros, here with empty strings."""
SIZES = frozenset({"Shape", "Size", "SequenceLength", "RandomNormalLike", "RandomUniformLike"})
"""Ops that read nothing but shapes."""
ORDER_KEEPING = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Moves that keep the order of the elements."""


# ---------------------------------------------------------------- values


def chars_of(b: GraphBuilder, ref: Ref) -> Ref | None:
    """The bytes of a string tensor; None for anything else."""
    found = _source(b, ref)
    return found.chars if isinstance(found, sq.Text) else None


def text(c: Call, i: int = 0) -> Ref:
    """The bytes of input i: u8[*shape, width]. An error when it holds no strings."""
    found = chars_of(c.builder, c.x(i))
    if found is None:
        raise c.fail(f"input {i} is {c.type(i).dtype}, wanted strings")
    return found


def is_text(c: Call, i: int) -> bool:
    """Whether input i is present and holds strings, or a sequence of strings."""
    return c.has(i) and _source(c.builder, c.x(i)) is not None


def made(b: GraphBuilder, chars: Ref) -> Ref:
    """The string tensor of these bytes."""
    t = b.type_of(chars)
    assert t.dtype == u8 and t.rank, t
    return sq.register(b.store, sq.Text(chars))


def shape_of(b: GraphBuilder, chars: Ref) -> tuple[Dim, ...]:
    """The shape of the string tensor."""
    return b.type_of(chars).shape[:-1]


def width_of(b: GraphBuilder, chars: Ref) -> Dim:
    """Bytes per string."""
    return b.type_of(chars).shape[-1]


def encoded(strings: Sequence[bytes], shape: Sequence[int], what: str) -> Array:
    """Strings as u8[*shape, width]. Raises SmeltError for one that holds a zero, or that is not UTF-8."""
    for s in strings:
        if b"\0" in s:
            raise SmeltError(f"{what} holds a string with a zero byte", kind="unsupported")
        try:
            s.decode()
        except UnicodeDecodeError:
            raise SmeltError(f"{what} holds a string that is not UTF-8", kind="unsupported") from None
    width = max((len(s) for s in strings), default=1) or 1
    flat = np.frombuffer(b"".join(s.ljust(width, b"\0") for s in strings), np.uint8)
    return flat.reshape(*shape, width)


def constant(b: GraphBuilder, strings: Sequence[str], shape: Sequence[int] | None = None) -> Ref:
    """The bytes of a constant; rank 1 unless a shape is given."""
    raw = [s.encode() for s in strings]
    return b.constant(encoded(raw, (len(raw),) if shape is None else shape, f"node '{b.engine.node}'"))


def of_tensor(b: GraphBuilder, t: onnx.TensorProto, what: str) -> Ref:
    """A string tensor of the file."""
    count, shape = len(t.string_data), list(t.dims)
    if any(d < 0 for d in shape) or count != int(np.prod(shape, dtype=np.int64)):
        raise SmeltError(f"{what} holds {count} strings, its shape is {shape}", kind="invalid")
    return made(b, b.constant(encoded(list(t.string_data), shape, what)))


# ---------------------------------------------------------------- widths and comparison


def fitted(b: GraphBuilder, chars: Ref, width: Dim) -> Ref:
    """The same strings padded to a width that is at least their own."""
    t, width = b.type_of(chars), b.engine.simplify(width)
    if t.shape[-1] == width:
        return chars
    before, after = (ZERO,) * t.rank, (*(ZERO,) * (t.rank - 1), width - t.shape[-1])
    attrs: dict[str, Attr] = {"before": before, "after": after, "mode": "constant"}
    return b.emit("pad", [chars, b.constant(np.array(0, np.uint8))], attrs)


def alike(b: GraphBuilder, parts: Sequence[Ref]) -> list[Ref]:
    """The same strings, all padded to one width."""
    width = width_of(b, parts[0])
    for p in parts[1:]:
        own = width_of(b, p)
        width = width if own == width else dmax(width, own)
    return [fitted(b, p, width) for p in parts]


def same(b: GraphBuilder, x: Ref, y: Ref) -> Ref:
    """bool[*shape]: where the strings are equal; shapes are broadcast."""
    x, y = alike(b, [x, y])
    other = b.cast(b.emit("not_equal", [x, y]), u8)
    axis = b.type_of(other).rank - 1
    worst = b.emit("reduce_max", [other], {"axes": (axis,), "keepdims": False})
    return b.emit("equal", [worst, b.scalar(0, worst)])


def lengths(b: GraphBuilder, chars: Ref) -> Ref:
    """i64[*shape, 1]: bytes of each string."""
    there = b.cast(b.emit("not_equal", [chars, b.scalar(0, chars)]), i64)
    return b.emit("reduce_sum", [there], {"axes": (b.type_of(there).rank - 1,), "keepdims": True})


def rows(b: GraphBuilder, chars: Ref) -> Ref:
    """[elements, width]."""
    shape = b.type_of(chars).shape
    return b.reshape(chars, (product(shape[:-1]), shape[-1]))


def picked(b: GraphBuilder, table: Ref, at: Ref) -> Ref:
    """The rows of [n, width] with these numbers: the string tensor of the numbers' shape."""
    return made(b, b.emit("gather", [table, at], {"axis": 0}))


# ---------------------------------------------------------------- tables


def found(b: GraphBuilder, chars: Ref, keys: Sequence[str]) -> Ref:
    """i64[*shape]: which of the keys each string is, the first of equal ones; len(keys) for none."""
    shape, first = shape_of(b, chars), {k: n for n, k in reversed(list(enumerate(keys)))}
    if not keys:
        return b.broadcast_to(b.constant(np.array(0, np.int64)), shape)
    order = sorted(first, key=str.encode)
    at = b.emit("text_find", [rows(b, chars), constant(b, order)])
    places = np.array([*(first[k] for k in order), len(keys)], np.int64)
    if not np.array_equal(places, np.arange(len(places))):
        at = b.emit("gather", [b.constant(places), at], {"axis": 0})
    return b.reshape(at, shape)


def chosen(b: GraphBuilder, strings: Sequence[str], at: Ref) -> Ref:
    """The string tensor of the strings with these numbers."""
    return picked(b, constant(b, strings), at)


# ---------------------------------------------------------------- moves


def moved(c: Call, build: Build) -> Results:
    """The results of an op that moves elements, applied to strings by way of their indices."""
    b = c.builder
    found = {i: s for i, ref in enumerate(c.inputs) if ref and (s := _source(b, ref)) is not None}
    parts = alike(b, [s.table if isinstance(s, sq.Texts) else s.chars for s in found.values()])
    flat = [rows(b, p) for p in parts]
    fills = c.node.op_type in FILLS  # the empty string is number 0 then
    inputs, first = list(c.inputs), to_dim(int(fills))
    for (i, s), chars, table in zip(found.items(), parts, flat, strict=True):
        inputs[i] = (
            _shifted(b, s.order, first) if isinstance(s, sq.Texts) else numbers(b, shape_of(b, chars), first)
        )
        first = b.engine.simplify(first + b.type_of(table).shape[0])
    results = build(replace(c, inputs=tuple(inputs)))
    if c.node.op_type in SIZES:
        return results
    if fills:
        flat.insert(0, b.broadcast_to(b.constant(np.array(0, np.uint8)), (1, width_of(b, parts[0]))))
    table = flat[0] if len(flat) == 1 else b.emit("concat", flat, {"axis": 0})
    refs = [results] if isinstance(results, str) else list(results)
    if c.node.op_type in ORDER_KEEPING:
        return [made(b, b.reshape(parts[0], (*b.type_of(r).shape, width_of(b, parts[0])))) for r in refs]
    return [_strings_of(b, table, r) if r else "" for r in refs]


def _source(b: GraphBuilder, ref: Ref) -> sq.Text | sq.Texts | None:
    """The strings of a value, or of the optional that holds them; None for others."""
    found = sq.compound_of(b.store, ref)
    if isinstance(found, sq.Maybe) and isinstance(sq.compound_of(b.store, found.item), sq.Text | sq.Texts):
        found = sq.compound_of(b.store, sq.inside(b, found))
    return found if isinstance(found, sq.Text | sq.Texts) else None


def _strings_of(b: GraphBuilder, table: Ref, ref: Ref) -> Ref:
    """The strings of a table whose indices a tensor, or a sequence, holds."""
    if sq.compound_of(b.store, ref) is not None:
        return sq.register(b.store, sq.Texts(ref, table))
    return picked(b, table, ref)


def _shifted(b: GraphBuilder, order: Ref, by: Dim) -> Ref:
    """A sequence of integers, all of them increased by `by`."""
    if by == ZERO:
        return order
    more = b.from_dims([by], ())
    found = sq.compound_of(b.store, order)
    assert isinstance(found, sq.Listed | sq.Packed), found
    if isinstance(found, sq.Packed):
        return sq.register(b.store, replace(found, values=b.emit("add", [found.values, more])))
    return sq.register(b.store, sq.Listed(i64, tuple(b.emit("add", [r, more]) for r in found.items)))


def numbers(b: GraphBuilder, shape: Sequence[Dim], first: Dim = ZERO) -> Ref:
    """first, first + 1, ... in that shape."""
    count = b.engine.simplify(product(tuple(shape)))
    attrs: dict[str, Attr] = {"shape": (count,), "start": first, "step": to_dim(1), "dtype": i64}
    return b.reshape(b.emit("iota", [], attrs), shape)
