"""Numbers that strings spell: the digits before and after the point, the exponent, NaN and infinity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import ONE, TWO, ZERO, Dim, to_dim
from smelt.core.dtype import Array, bool_, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Bound, Buffer, Expr, Loop, Stmt, Store
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.rows.text_walk import SPACES, Walk, among, both, chars, either, int64
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Trace, call, cast, const, index, select

START, SIGN, INTEGER, POINT, FRACTION, EXPONENT_MARK, EXPONENT_SIGN, POWER, DONE = range(9)
"""Where a walk stands: before the number, after its sign, among its digits, ... after it."""
STATE, NEGATIVE, DIGITS, SCALE, EXPONENT, EXPONENT_NEGATIVE, KIND = range(7)
"""Cells. DIGITS: the first ones as an integer; SCALE: what power of ten they are to be multiplied by; KIND:
whether there is a number."""
MOST_DIGITS = (2**63 - 1) // 10
"""One more digit does not fit i64, and does not show in a double."""


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = args
    assert x
    return tuple(TensorType(i64, (x.shape[0],)) for _ in range(3))


def _digit(byte: Expr) -> Expr:
    return both(call("ge", byte, int64(ord("0"))), call("le", byte, int64(ord("9"))))


@dataclass(frozen=True)
class _Walk(Walk):
    """One walk over a row. integer: stop at a point, as a reader of integers does."""

    integer: bool

    def spells(self, k: Dim, word: bytes) -> Expr:
        """Whether the word stands at k, in any case of its letters."""
        return both(*(among(self.byte(k + d), {c, c - 32}) for d, c in enumerate(word)))

    def after(self, state: Dim, byte: Expr) -> Expr:
        """Where the walk stands after the byte."""

        def at(*states: int) -> Expr:
            return among(index(state), states)

        digit, sign = _digit(byte), among(byte, b"+-")
        point: Expr = const(False, bool_) if self.integer else among(byte, b".")
        mark: Expr = const(False, bool_) if self.integer else among(byte, b"eE")
        moves = (
            (both(at(START), among(byte, SPACES)), START),
            (both(at(START), sign), SIGN),
            (both(at(START, SIGN, INTEGER), digit), INTEGER),
            (both(at(START, SIGN), point), POINT),
            (both(at(INTEGER), point), FRACTION),
            (both(at(POINT, FRACTION), digit), FRACTION),
            (both(at(INTEGER, FRACTION), mark), EXPONENT_MARK),
            (both(at(EXPONENT_MARK), sign), EXPONENT_SIGN),
            (both(at(EXPONENT_MARK, EXPONENT_SIGN, POWER), digit), POWER),
        )
        to: Expr = int64(DONE)
        for condition, target in moves:
            to = select(condition, int64(target), to)
        return to

    def digit(self, after: Dim, value: Expr) -> tuple[Stmt, ...]:
        """Take one in: as long as there is room in DIGITS, then as a zero."""
        behind = call("eq", index(after), int64(FRACTION))
        room = call("le" if self.integer else "lt", self.cell(DIGITS), int64(MOST_DIGITS))
        more = call("add", call("mul", self.cell(DIGITS), int64(10)), value)
        shift = select(room, select(behind, int64(-1), int64(0)), select(behind, int64(0), int64(1)))
        return (
            self.put(SCALE, call("add", self.cell(SCALE), shift)),
            self.put(DIGITS, select(room, more, self.cell(DIGITS))),
            self.put(KIND, int64(1)),
        )

    def kind(self, k: Dim, state: Dim) -> Expr:
        """KIND after byte k: a word may stand where a number may begin."""
        byte = self.byte(k)
        other = call("not", either(_digit(byte), among(byte, b"+-." + SPACES)))
        words = select(
            self.spells(k, b"nan"), int64(3), select(self.spells(k, b"inf"), int64(2), self.cell(KIND))
        )
        return select(both(among(index(state), (START, SIGN)), other), words, self.cell(KIND))

    def step(self, k: Dim) -> Stmt:
        """Byte k."""
        state, after, counts, in_power = (self.trace.fresh("g") for _ in range(4))
        byte = self.byte(k)
        value, minus = call("sub", byte, int64(ord("0"))), among(byte, b"-")

        def negative(c: int, state_before: int) -> Store:
            here = both(among(index(state), (state_before,)), minus)
            return self.put(c, select(here, int64(1), self.cell(c)))

        power = call("min", call("add", call("mul", self.cell(EXPONENT), int64(10)), value), int64(100000))
        number = both(_digit(byte), among(index(after), (INTEGER, FRACTION)))
        return Block(
            (
                self.put(KIND, self.kind(k, state)),
                negative(NEGATIVE, START),
                negative(EXPONENT_NEGATIVE, EXPONENT_MARK),
                Block(self.digit(after, value), guard=(Bound(ONE, counts, TWO),)),
                Block((self.put(EXPONENT, power),), guard=(Bound(ONE, in_power, TWO),)),
                self.put(STATE, index(after)),
            ),
            let=(
                (str(state), self.cell(STATE), ZERO, to_dim(DONE)),
                (str(after), self.after(state, byte), ZERO, to_dim(DONE)),
                (str(counts), cast(number, i64), ZERO, ONE),
                (str(in_power), cast(call("eq", index(after), int64(POWER)), i64), ZERO, ONE),
            ),
        )


def _number(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """digits (with the sign), the power of ten that they are multiplied by, and the kind: 0 no number, 1 a
    number, 2 infinity (digits: its sign), 3 NaN."""
    (x,) = inputs
    assert x
    cells = Buffer("cells", i64, (x.shape[0], to_dim(KIND + 1)))

    def row(i: DimIndex) -> tuple[Stmt, ...]:
        w = _Walk(t, x, cells, i[0], bool(attrs["whole"]))
        k = t.fresh("i")
        sign = call("sub", int64(1), call("mul", int64(2), w.cell(NEGATIVE)))
        power_sign = call("sub", int64(1), call("mul", int64(2), w.cell(EXPONENT_NEGATIVE)))
        digits = select(call("eq", w.cell(KIND), int64(2)), int64(1), w.cell(DIGITS))
        scale = call("add", w.cell(SCALE), call("mul", power_sign, w.cell(EXPONENT)))
        return (
            *(w.put(c, int64(0)) for c in range(KIND + 1)),
            Loop("serial", str(k), x.shape[1], (w.step(k),)),
            Store(outputs[0].name, i, call("mul", sign, digits)),
            Store(outputs[1].name, i, scale),
            Store(outputs[2].name, i, w.cell(KIND)),
        )

    return Nest(nest_over(t, (x.shape[0],), row), (cells,))


_PATTERN = re.compile(
    r"[ \t\n\v\f\r]*(?P<sign>[+-]?)(?:(?P<nan>nan)|(?P<inf>inf)|(?P<whole>\d*)(?:\.(?P<part>\d*))?"
    r"(?:e(?P<power>[+-]?\d+))?)",
    re.IGNORECASE | re.ASCII,
)
_INTEGER = re.compile(
    r"[ \t\n\v\f\r]*(?P<sign>[+-]?)(?:(?P<nan>nan)|(?P<inf>inf)|(?P<whole>\d*))", re.I | re.ASCII
)


def _parsed(s: str, int64: bool) -> tuple[int, int, int]:
    m = (_INTEGER if int64 else _PATTERN).match(s)
    assert m
    found = m.groupdict()
    sign = -1 if found["sign"] == "-" else 1
    if found["nan"] or found["inf"]:
        return (0, 0, 3) if found["nan"] else (sign, 0, 2)
    part = found.get("part") or ""
    text = f"{found['whole'] or ''}{part}"
    if not text:
        return 0, 0, 0
    digits, scale = 0, int(found.get("power") or 0)
    for k, d in enumerate(text):
        behind = k >= len(found["whole"] or "")
        if digits < MOST_DIGITS + int64:
            digits, scale = digits * 10 + int(d), scale - behind
        else:
            scale += not behind
    return sign * digits, scale, 1


def _ref(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    (x,) = arrays
    assert x is not None
    rows = [_parsed(r.tobytes().rstrip(b"\0").decode(), bool(attrs["whole"])) for r in x]
    return tuple(np.array([r[k] for r in rows], np.int64).reshape(len(rows)) for k in range(3))


_SPELLED = chars(
    ["12", "-7", " +5x", "1.5", "-.25e2", "3e-4", "1e", "", "x", ".", "inf", "-INF", "NaN", "00012", "1e+5",
     "12345678901234567890123", "0.00000000000000000001234", "- 3", "9223372036854775807"], 25,
)  # fmt: skip

ROWS: tuple[Op, ...] = (
    Op(
        "text_number",
        "x",
        _infer,
        _ref,
        (Case((_SPELLED,), attrs={"whole": False}), Case((_SPELLED,), attrs={"whole": True})),
        nest=_number,
    ),
)

__all__ = ["ROWS"]
