"""Bindings of ops on strings, and the meaning for strings of ops that other tensors know as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnx import AttributeProto, TensorProto

from smelt.core.ir.graph import Ref
from smelt.importer import strings as st
from smelt.importer.call import Build, Call, OnnxOp, Results


def _equal(c: Call) -> Ref:
    return st.same(c.builder, st.text(c, 0), st.text(c, 1))


def _concat(c: Call) -> Ref:
    """Each string of the first input with one of the second behind it."""
    b, x, y = c.builder, st.text(c, 0), st.text(c, 1)
    return st.made(b, c.emit("text_concat", x, y, st.lengths(b, x)))


MEANINGS: Mapping[str, Build] = {"Equal": _equal}
"""What ops of other tensors do with strings."""


def aware(row: OnnxOp) -> OnnxOp:
    """The row, with a meaning for strings where there is one."""
    if row.domain not in ("", "ai.onnx.ml") or row.name not in st.MOVES | st.SIZES | MEANINGS.keys():
        return row

    def build(c: Call) -> Results:
        if not _strings(c):
            return row.build(c)
        meaning = MEANINGS.get(row.name)
        return st.moved(c, row.build) if meaning is None else meaning(c)

    return replace(row, build=build)


def _strings(c: Call) -> bool:
    """Whether an input holds strings, or the output shall."""
    to = c.attributes.get("to")
    if to is not None and to.type == AttributeProto.INT and to.i == TensorProto.STRING:
        return True
    compounds = c.builder.store.compounds
    return any(r in compounds for r in c.inputs) and any(st.is_text(c, i) for i in range(len(c.inputs)))


ROWS: tuple[OnnxOp, ...] = (OnnxOp("StringConcat", 20, _concat),)
