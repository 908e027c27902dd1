"""Numbers that strings spell: the digits before and behind the point, the exponent, NaN and infinity."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import bool_, i64, u8
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Bound, Buffer, Expr, Load, Loop, Stmt, Store
from smelt.core.ops.indexing import nest_over
from smelt.core.ops.table import Arg, Array, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.text import chars
from smelt.core.ops.trace import DimIndex, Trace, call, cast, const, index, select

ZERO, ONE, TWO = to_dim(0), to_dim(1), to_dim(2)
SPACES = b" \t\n\v\f\r"
START, SIGN, WHOLE, POINT, BEHIND, MARK, MARK_SIGN, POWER, DONE = range(9)
"""Where a walk stands: in front of the number, behind its sign, among its digits, ... behind it."""
STATE, NEGATIVE, DIGITS, SCALE, EXPONENT, EXPONENT_NEGATIVE, KIND = range(7)
"""Cells. DIGITS: the first ones as an integer; SCALE: what power of ten they are to be multiplied by; KIND:
whether there is a number."""
MOST_DIGITS = (2**63 - 1) // 10
"""One more digit does not fit i64, and does not show in a double."""


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = args
    assert x
    return tuple(TensorType(i64, (x.shape[0],)) for _ in range(3))


def _k(v: int) -> Expr:
    return const(v, i64)


def _and(*terms: Expr) -> Expr:
    return functools.reduce(lambda a, b: call("and", a, b), terms)


def _or(*terms: Expr) -> Expr:
    return functools.reduce(lambda a, b: call("or", a, b), terms)


@dataclass(frozen=True)
class _Walk:
    """One walk over the bytes of row n. whole: stop at a point, as a reader of integers does."""

    trace: Trace
    x: Buffer
    cells: Buffer
    n: Dim
    whole: bool

    def cell(self, c: int) -> Expr:
        return Load(self.cells.name, (self.n, to_dim(c)), i64)

    def put(self, c: int, e: Expr) -> Store:
        return Store(self.cells.name, (self.n, to_dim(c)), e)

    def byte(self, k: Dim) -> Expr:
        bound = Bound(ZERO, k, self.x.shape[1])
        return cast(Load(self.x.name, (self.n, k), u8, (bound,), const(0, u8)), i64)

    def spells(self, k: Dim, word: bytes) -> Expr:
        """Whether the word stands at k, in any case of its letters."""
        parts = (_or(*(call("eq", self.byte(k + d), _k(v)) for v in {c, c - 32})) for d, c in enumerate(word))
        return _and(*parts)

    def step(self, k: Dim) -> tuple[Stmt, ...]:
        t, byte = self.trace, self.byte(k)
        state = t.fresh("g")
        digit = _and(call("ge", byte, _k(48)), call("le", byte, _k(57)))
        sign = _or(call("eq", byte, _k(43)), call("eq", byte, _k(45)))
        minus = call("eq", byte, _k(45))
        space = _or(*(call("eq", byte, _k(v)) for v in SPACES))
        point: Expr = call("eq", byte, _k(46))
        mark: Expr = _or(call("eq", byte, _k(101)), call("eq", byte, _k(69)))

        def at(*states: int) -> Expr:
            return _or(*(call("eq", index(state), _k(s)) for s in states))

        if self.whole:
            point, mark = const(False, bool_), const(False, bool_)
        moves = [
            (_and(at(START), space), START),
            (_and(at(START), sign), SIGN),
            (_and(at(START, SIGN, WHOLE), digit), WHOLE),
            (_and(at(START, SIGN), point), POINT),
            (_and(at(WHOLE), point), BEHIND),
            (_and(at(POINT, BEHIND), digit), BEHIND),
            (_and(at(WHOLE, BEHIND), mark), MARK),
            (_and(at(MARK), sign), MARK_SIGN),
            (_and(at(MARK, MARK_SIGN, POWER), digit), POWER),
        ]
        to: Expr = _k(DONE)
        for condition, target in moves:
            to = select(condition, _k(target), to)
        names = [t.fresh("g") for _ in range(3)]
        after, counts, in_power = names
        value = call("sub", byte, _k(48))
        room = call("le" if self.whole else "lt", self.cell(DIGITS), _k(MOST_DIGITS))
        ten = call("add", call("mul", self.cell(DIGITS), _k(10)), value)
        shift = select(
            room,
            select(call("eq", index(after), _k(BEHIND)), _k(-1), _k(0)),
            select(call("eq", index(after), _k(BEHIND)), _k(0), _k(1)),
        )
        power = call("min", call("add", call("mul", self.cell(EXPONENT), _k(10)), value), _k(100000))
        number = _or(*(call("eq", index(after), _k(s)) for s in (WHOLE, BEHIND)))
        taken = Block(
            (
                self.put(SCALE, call("add", self.cell(SCALE), shift)),
                self.put(DIGITS, select(room, ten, self.cell(DIGITS))),
                self.put(KIND, _k(1)),
            ),
            guard=(Bound(ONE, counts, TWO),),
        )
        powered = Block((self.put(EXPONENT, power),), guard=(Bound(ONE, in_power, TWO),))
        special = _and(at(START, SIGN), call("not", _or(digit, sign, space, call("eq", byte, _k(46)))))
        words = select(self.spells(k, b"nan"), _k(3), select(self.spells(k, b"inf"), _k(2), self.cell(KIND)))
        return (
            Block(
                (
                    self.put(KIND, select(special, words, self.cell(KIND))),
                    self.put(NEGATIVE, select(_and(at(START), minus), _k(1), self.cell(NEGATIVE))),
                    self.put(
                        EXPONENT_NEGATIVE, select(_and(at(MARK), minus), _k(1), self.cell(EXPONENT_NEGATIVE))
                    ),
                    taken,
                    powered,
                    self.put(STATE, index(after)),
                ),
                let=(
                    (str(state), self.cell(STATE), ZERO, to_dim(DONE)),
                    (str(after), to, ZERO, to_dim(DONE)),
                    (str(counts), cast(_and(digit, number), i64), ZERO, ONE),
                    (str(in_power), cast(call("eq", index(after), _k(POWER)), i64), ZERO, ONE),
                ),
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
        sign = call("sub", _k(1), call("mul", _k(2), w.cell(NEGATIVE)))
        power_sign = call("sub", _k(1), call("mul", _k(2), w.cell(EXPONENT_NEGATIVE)))
        digits = select(call("eq", w.cell(KIND), _k(2)), _k(1), w.cell(DIGITS))
        scale = call("add", w.cell(SCALE), call("mul", power_sign, w.cell(EXPONENT)))
        return (
            *(w.put(c, _k(0)) for c in range(KIND + 1)),
            Loop("serial", str(k), x.shape[1], w.step(k)),
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


def _parsed(s: str, whole: bool) -> tuple[int, int, int]:
    m = (_INTEGER if whole else _PATTERN).match(s)
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
        if digits < MOST_DIGITS + whole:
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
