"""Strings among others: which of some keys, in their order, each is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ZERO, Dim, dmax, dmin, to_dim
from smelt.core.dtype import Array, bool_, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Block, Buffer, Expr, Stmt, Store
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.rows.text_walk import byte_at, chars
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Trace, call, cast, const, index, select


def _infer_find(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x, keys = args
    assert x and keys
    return (TensorType(i64, (x.shape[0],)),)


def _find(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """Binary search: the last key that is not after x, in as many steps as the number of keys has bits."""
    (x, keys), (y,) = inputs, outputs
    assert x and keys
    count, width = keys.shape[0].const, dmax(x.shape[1], keys.shape[1])

    def row(i: DimIndex) -> tuple[Stmt, ...]:
        (n,) = i
        let: list[tuple[str, Expr, Dim, Dim]] = []
        found: Dim = ZERO
        for bit in reversed(range(count.bit_length())):
            at = dmin(found + (1 << bit) - 1, count - 1)
            place, after = t.fresh("g"), t.fresh("g")
            other = t.reduce(
                "argmax",
                (width,),
                lambda k, at=at: call("ne", byte_at(x, n, k), byte_at(keys, at, k)),
                dtype=i64,
            )
            behind = call("ge", byte_at(x, n, place), byte_at(keys, at, place))
            there = call("le", index(found + (1 << bit)), const(count, i64))
            step = call("mul", cast(call("and", behind, there), i64), const(1 << bit, i64))
            let += [
                (str(place), other, ZERO, width - 1),
                (str(after), call("add", index(found), step), ZERO, to_dim(count)),
            ]
            found = after
        last = dmax(found - 1, 0)
        same = t.reduce(
            "all", (width,), lambda k: call("eq", byte_at(x, n, k), byte_at(keys, last, k)), bool_
        )
        hit = call("and", same, call("lt", const(0, i64), index(found)))
        return (Block((Store(y.name, (n,), select(hit, index(last), const(count, i64))),), let=tuple(let)),)

    return Nest(nest_over(t, (x.shape[0],), row))


def _ref_find(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x, keys = arrays
    assert x is not None and keys is not None
    known = {row.tobytes().rstrip(b"\0"): k for k, row in enumerate(keys)}
    found = [known.get(row.tobytes().rstrip(b"\0"), len(keys)) for row in x]
    return (np.array(found, np.int64).reshape(len(x)),)


_SOUGHT = chars(["ab", "", "xyz", "xy", "x", "zz", "é", "abc"], 4)

ROWS: tuple[Op, ...] = (
    Op(
        "text_find",
        "x keys",
        _infer_find,
        _ref_find,
        tuple(
            Case((_SOUGHT, chars(sorted(["ab", "", "xyz", "xy", "longer", "é"][:n]), 7)))
            for n in (1, 2, 3, 6)
        ),
        nest=_find,
    ),
)
