"""Bindings of com.microsoft's ops on strings: Tokenizer."""

from __future__ import annotations

import numpy as np

from smelt.core.dim import ZERO, Dim, to_dim
from smelt.core.ir.graph import Ref
from smelt.families.text.regex import Automaton, Refused, automaton
from smelt.importer import strings as st
from smelt.importer.attributes import text, texts
from smelt.importer.call import Call, OnnxOp

BEGIN, END = "\x02", "\x03"
"""Tokens that `mark` puts around those of each string."""


def _automaton(c: Call) -> Automaton:
    """Of one token: what the expression matches, or what stands between separators."""
    expression, separators = text(c, "tokenexp", ""), texts(c, "separators")
    if bool(expression) == bool(separators):
        raise c.fail("wanted one of tokenexp and separators")
    if not expression:
        plain = all(len(s) <= 1 or (len(s) == 2 and s[0] == "\\" and not s[1].isalnum()) for s in separators)
        if not plain:
            raise c.unsupported("separators of several characters", try_="the attribute tokenexp")
        letters = "".join(f"\\x{{{ord(s[-1]):x}}}" for s in separators if s)
        expression = f"[^{letters}]+" if all(separators) else "(?s)."
    try:
        return automaton(expression, edges=False)
    except Refused as e:
        raise c.unsupported(f"the expression '{expression}': {e}") from None


def _tokenizer(c: Call) -> Ref:
    """Tokens of each string along a new axis, the longest first; pad_value where a string has fewer."""
    b, x, a = c.builder, st.text(c), _automaton(c)
    shape, flat, least = st.shape_of(b, x), st.rows(b, x), max(c.integer("mincharnum"), 1)
    tables = [b.constant(v) for v in (a.group, a.table, a.accept)]
    count = c.emit("token_count", flat, *tables, least=least)
    top = c.emit("reduce_max", count, axes=(0,), keepdims=False)
    (parts,) = b.dims_of(c.emit("max", top, c.scalar(0, top)), "tokens", 0, st.width_of(b, x))
    y = c.emit("tokens", flat, *tables, least=least, parts=parts)
    number = b.reshape(count, (b.type_of(flat).shape[0], 1, 1))
    if c.flag("mark"):
        y, number, parts = _marked(c, y, number, parts)
    pad, y = st.alike(b, [st.constant(b, [text(c, "pad_value", "")], (1, 1)), y])
    y = c.emit("where", c.emit("less", _order(c, parts), number), y, pad)
    return st.made(b, b.reshape(y, (*shape, parts, b.type_of(y).shape[2])))


def _order(c: Call, parts: Dim) -> Ref:
    """0, 1, ...: i64[1, parts, 1]."""
    order = c.iota(parts)
    return c.builder.reshape(order, (1, parts, 1))


def _marked(c: Call, y: Ref, number: Ref, parts: Dim) -> tuple[Ref, Ref, Dim]:
    """The tokens with one before the first and one after the last."""
    b, parts = c.builder, c.engine.simplify(parts + 2)
    none = b.constant(np.array(0, np.uint8))
    edge = (ZERO, to_dim(1), ZERO)
    y = c.emit("pad", y, none, before=edge, after=edge, mode="constant")
    begin, end, y = st.alike(b, [*(st.constant(b, [s], (1, 1)) for s in (BEGIN, END)), y])
    order, two = _order(c, parts), c.scalar(2, number)
    y = c.emit("where", c.emit("equal", order, c.scalar(0, order)), begin, y)
    number = c.emit("add", number, two)
    last = c.emit("equal", order, c.emit("sub", number, c.scalar(1, number)))
    return c.emit("where", last, end, y), number, parts


ROWS: tuple[OnnxOp, ...] = (OnnxOp("Tokenizer", 1, _tokenizer, "com.microsoft"),)
