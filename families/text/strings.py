"""Bindings of ops on strings: joining, splitting, letters in one case, patterns."""

from __future__ import annotations

import numpy as np

from smelt.core.dim import ONE, ZERO, Dim, dmax
from smelt.core.dtype import bool_, i64, u8
from smelt.core.ir.graph import Ref
from smelt.families.text.regex import Refused, automaton
from smelt.importer import strings as st
from smelt.importer.attributes import text, texts
from smelt.importer.call import Call, OnnxOp

MOST_DELIMITER = 256
"""Bytes: each is a comparison in the kernel."""
TWO_BYTES = 0x800
"""Code points below it are one or two bytes in UTF-8."""


def _concat(c: Call) -> Ref:
    """Each string of the first input with one of the second after it."""
    b, x, y = c.builder, st.text(c, 0), st.text(c, 1)
    return st.made(b, c.emit("text_concat", x, y, st.lengths(b, x)))


# ---------------------------------------------------------------- split


def _split(c: Call) -> tuple[Ref, Ref]:
    """The parts of each string between delimiters (or spaces), along a new axis; and how many there are."""
    b, x = c.builder, st.text(c)
    shape, flat = st.shape_of(b, x), st.rows(b, x)
    delimiter, most = text(c, "delimiter", ""), c.integer("maxsplit", -1)
    if "\0" in delimiter:
        raise c.unsupported("a delimiter with a zero byte")
    if len(delimiter.encode()) > MOST_DELIMITER:
        raise c.unsupported(f"a delimiter of more than {MOST_DELIMITER} bytes")
    count = c.emit("text_parts", flat, delimiter=delimiter, most=most)
    parts = _greatest(c, count, b.engine.simplify(st.width_of(b, x) + 1))
    found = c.emit("text_split", flat, delimiter=delimiter, most=most, parts=parts)
    y = b.reshape(found, (*shape, parts, st.width_of(b, x)))
    return st.made(b, y), b.reshape(count, shape)


def _greatest(c: Call, count: Ref, high: Dim) -> Dim:
    """The greatest of some numbers as a size; 0 when there are none."""
    top = c.emit("reduce_max", count, axes=(0,), keepdims=False)
    top = c.emit("max", top, c.scalar(0, top))
    (d,) = c.builder.dims_of(top, "parts", 0, high)
    return d


# ---------------------------------------------------------------- normalisation


def cased(c: Call, x: Ref, upper: bool) -> Ref:
    """Strings in one case: letters whose other case has as many bytes in UTF-8, of one or two (Latin, Greek,
    Cyrillic, Armenian)."""
    b = c.builder
    wide = c.cast(x, i64)
    width, rank = st.width_of(b, x), b.type_of(x).rank
    edge = (ZERO,) * (rank - 1)
    none = c.scalar(0, wide)
    padded = c.emit("pad", wide, none, before=(*edge, ONE), after=(*edge, ONE), mode="constant")
    before = b.slice_axis(padded, rank - 1, 0, width)
    behind = b.slice_axis(padded, rank - 1, 2, width + 2)

    def k(v: int) -> Ref:
        return c.scalar(v, wide)

    def between(v: Ref, low: int, high: int) -> Ref:
        return c.emit("and", c.emit("greater_equal", v, k(low)), c.emit("less_equal", v, k(high)))

    def point(first: Ref, second: Ref) -> Ref:
        lead = c.emit("mul", c.emit("sub", first, k(0xC0)), k(64))
        return c.emit("add", lead, c.emit("sub", second, k(0x80)))

    plain, leads = c.emit("less", wide, k(0x80)), between(wide, 0xC2, 0xDF)
    follows = c.emit("and", between(wide, 0x80, 0xBF), between(before, 0xC2, 0xDF))
    code = c.emit("where", leads, point(wide, behind), c.emit("where", follows, point(before, wide), k(0)))
    code = c.emit("where", plain, wide, code)
    code = c.emit("clip", code, k(0), k(TWO_BYTES - 1))
    other = c.emit("gather", b.constant(_cases(upper)), code, axis=0)
    first = c.emit("add", c.emit("div", other, k(64)), k(0xC0))
    second = c.emit("add", c.emit("mod", other, k(64)), k(0x80))
    y = c.emit("where", leads, first, c.emit("where", follows, second, wide))
    return c.cast(c.emit("where", plain, other, y), u8)


def _cases(upper: bool) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The code point of each one's other case, where both have as many bytes."""
    found = np.arange(TWO_BYTES)
    for p in range(TWO_BYTES):
        s = chr(p).upper() if upper else chr(p).lower()
        if len(s) == 1 and ord(s) < TWO_BYTES and (ord(s) < 0x80) == (p < 0x80):
            found[p] = ord(s)
    return found


def _normalizer(c: Call) -> Ref:
    """Strings without stop words, in one case; a single empty one when none is left."""
    b, x, shape = c.builder, st.text(c), st.shape_of(c.builder, st.text(c))
    if len(shape) not in (1, 2):
        raise c.fail(f"input has rank {len(shape)}, wanted 1, or 2 with one row")
    if len(shape) == 2:
        c.engine.same("rows", shape[0], ONE)
    action, stop = c.text("case_change_action", "NONE"), texts(c, "stopwords")
    if action not in ("NONE", "LOWER", "UPPER"):
        raise c.fail(f"case_change_action '{action}' is none of NONE, LOWER, UPPER")
    flat = st.rows(b, x)
    if stop:
        flat = _kept(c, flat, stop, c.flag("is_case_sensitive"))
    y = flat if action == "NONE" else cased(c, flat, action == "UPPER")
    count, width = b.type_of(y).shape
    missing = c.engine.simplify(dmax(count, 1) - count)
    if missing != ZERO:
        none = b.constant(np.array(0, np.uint8))
        y = c.emit("pad", y, none, before=(ZERO, ZERO), after=(missing, ZERO), mode="constant")
    rows = b.type_of(y).shape[0]
    return st.made(b, b.reshape(y, (1, rows, width) if len(shape) == 2 else (rows, width)))


def _kept(c: Call, flat: Ref, stop: tuple[str, ...], sensitive: bool) -> Ref:
    """The rows that are no stop word."""
    b = c.builder
    compared, words = (flat, stop) if sensitive else (cased(c, flat, False), tuple(s.lower() for s in stop))
    at = st.found(b, compared, words)
    keep = c.emit("greater_equal", at, c.scalar(len(words), at))
    total = c.emit("reduce_sum", c.cast(keep, i64), axes=(0,), keepdims=False)
    (count,) = b.dims_of(total, "strings that are no stop words", 0, b.type_of(flat).shape[0])
    which = c.emit("non_zero", keep, count=count)
    return c.emit("gather", flat, b.reshape(which, (count,)), axis=0)


# ---------------------------------------------------------------- patterns


def _full_match(c: Call) -> Ref:
    """Whether each string as a whole is of the pattern: an automaton walks it, made when compiling."""
    b, x = c.builder, st.text(c)
    pattern = text(c, "pattern", "")
    try:
        a = automaton(pattern)
    except Refused as e:
        raise c.unsupported(
            f"the pattern '{pattern}': {e}", try_="a pattern without look-around and references"
        ) from None
    tables = (b.constant(v) for v in (a.group, a.table, a.accept))
    y = c.emit("text_match", st.rows(b, x), *tables)
    assert b.type_of(y).dtype == bool_
    return b.reshape(y, st.shape_of(b, x))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("StringConcat", 20, _concat),
    OnnxOp("StringSplit", 20, _split),
    OnnxOp("StringNormalizer", 10, _normalizer),
    OnnxOp("RegexFullMatch", 20, _full_match),
)
