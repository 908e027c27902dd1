"""What ops on strings share: the state of a walk over a row's bytes, conditions, strings for cases."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.core.dim import ZERO, Dim, to_dim
from smelt.core.dtype import Array, i64, u8
from smelt.core.ir.kernel import Bound, Buffer, Expr, Load, Store
from smelt.core.ops.trace import Trace, call, cast, const

SPACES = b" \t\n\v\f\r"


def int64(v: int) -> Expr:
    """A literal of type i64."""
    return const(v, i64)


def both(*terms: Expr) -> Expr:
    """Whether all of the conditions hold."""
    return functools.reduce(lambda a, b: call("and", a, b), terms)


def either(*terms: Expr) -> Expr:
    """Whether any of the conditions holds."""
    return functools.reduce(lambda a, b: call("or", a, b), terms)


def among(e: Expr, values: Iterable[int]) -> Expr:
    """Whether the i64 is one of these."""
    return either(*(call("eq", e, int64(v)) for v in values))


def byte_at(b: Buffer, row: Dim, k: Dim) -> Load:
    """u8: byte k of a row; zero after the row's end."""
    return Load(b.name, (row, k), u8, (Bound(ZERO, k, b.shape[1]),), const(0, u8))


@dataclass(frozen=True)
class Walk:
    """A walk over the bytes of row n of x: u8[rows, width]. Its state is a row of cells: i64[rows, size]."""

    trace: Trace
    x: Buffer
    cells: Buffer
    n: Dim

    def cell(self, c: int) -> Load:
        """Entry c of the state."""
        return Load(self.cells.name, (self.n, to_dim(c)), i64)

    def put(self, c: int, e: Expr) -> Store:
        """Set entry c of the state."""
        return Store(self.cells.name, (self.n, to_dim(c)), e)

    def byte(self, k: Dim) -> Expr:
        """Byte k as an i64; zero after the end."""
        return cast(byte_at(self.x, self.n, k), i64)


def chars(rows: Sequence[str], width: int) -> Array:
    """Strings as u8[rows, width], for cases."""
    return np.array([list(r.encode().ljust(width, b"\0")) for r in rows], np.uint8).reshape(-1, width)
