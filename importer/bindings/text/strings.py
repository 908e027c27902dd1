"""Bindings of general ops for tensors of strings (families/text has the ops that are for strings alone)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

from smelt.core.ir.graph import Ref
from smelt.importer import sequences as sq
from smelt.importer import strings as st
from smelt.importer.bindings.text.string_casts import cast_like, cast_strings
from smelt.importer.call import Build, Call, OnnxOp, Results
from smelt.importer.domains import ML


def _equal(c: Call) -> Ref:
    return st.same(c.builder, st.text(c, 0), st.text(c, 1))


# ---------------------------------------------------------------- by their bytes


def _unique(c: Call, build: Build) -> Results:
    """As the rows of bytes: UTF-8 is in the order of its code points, and a string before a longer one
    with the same start."""
    b, x = c.builder, st.text(c)
    if not c.given("axis"):
        c = replace(c, attributes={**c.attributes, "axis": onnx.helper.make_attribute("axis", 0)})
        x = st.rows(b, x)
    else:
        axis = c.axis(c.integer("axis"), len(st.shape_of(b, x)))
        c = replace(c, attributes={**c.attributes, "axis": onnx.helper.make_attribute("axis", axis)})
    values, *rest = build(replace(c, inputs=(x,)))
    return [st.made(b, values), *rest]


def _non_zero(c: Call, build: Build) -> Results:
    """Where a string is not empty."""
    x = st.text(c)
    most = c.emit("reduce_max", x, axes=(c.builder.type_of(x).rank - 1,), keepdims=False)
    return build(replace(c, inputs=(c.emit("greater", most, c.scalar(0, most)),)))


def _empty(c: Call, build: Build) -> Results:
    """A sequence without strings."""
    c = replace(c, attributes={"dtype": onnx.helper.make_attribute("dtype", TensorProto.INT64)})
    (order,) = [r] if isinstance(r := build(c), str) else r
    return sq.register(c.builder.store, sq.Texts(order, c.builder.constant(np.zeros((0, 1), np.uint8))))


# ---------------------------------------------------------------- table

BESIDE: Mapping[str, Callable[[Call, Build], Results]] = {
    "Unique": _unique, "NonZero": _non_zero, "SequenceEmpty": _empty,
}  # fmt: skip
"""What ops of other tensors do with strings, by what they do with others."""
MEANINGS: Mapping[str, Build] = {"Equal": _equal, "Cast": cast_strings, "CastLike": cast_like}
"""What ops of other tensors do with strings."""
KNOWN = st.STRING_MOVES | st.SIZES | MEANINGS.keys() | BESIDE.keys()


def aware(row: OnnxOp) -> OnnxOp:
    """The row, with a binding for strings where there is one."""
    if row.domain not in ("", ML) or row.name not in KNOWN:
        return row

    def build(c: Call) -> Results:
        if not _strings(c):
            return row.build(c)
        if row.name in BESIDE:
            return BESIDE[row.name](c, row.build)
        meaning = MEANINGS.get(row.name)
        return st.moved(c, row.build) if meaning is None else meaning(c)

    return replace(row, build=build)


def _strings(c: Call) -> bool:
    """Whether an input holds strings, or the output is to."""
    for name, ops in (("to", ("Cast",)), ("dtype", ("SequenceEmpty",))):
        to = c.attributes.get(name) if c.node.op_type in ops else None
        if to is not None and to.type == AttributeProto.INT and to.i == TensorProto.STRING:
            return True
    compounds = c.builder.store.compounds
    return any(r in compounds for r in c.inputs) and any(st.is_text(c, i) for i in range(len(c.inputs)))
