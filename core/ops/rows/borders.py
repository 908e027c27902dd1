"""A tensor and widths of borders -> the tensor with borders of its own elements around it, row by row."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.core.dim import ONE, ZERO, Dim, to_dim
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Buffer, Load, Loop, Stmt, Store
from smelt.core.ops.attrs import dims
from smelt.core.ops.rows.indexing import nest_over
from smelt.core.ops.rows.movement import PAD_INDEX, infer_pad, ref_pad
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Nest, Op
from smelt.core.ops.trace import DimIndex, Trace


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    for d in (dims(attrs, "before")[-1], dims(attrs, "after")[-1]):
        c.at_most("the width of a border, which is at least 0", ZERO, d)
    return infer_pad(c, args, attrs)


def _nest(t: Trace, attrs: Attrs, inputs: Sequence[Buffer | None], outputs: Sequence[Buffer]) -> Nest:
    """Of each row the border before, the elements themselves, which are neighbours, and the border after. For
    each element of a row as a whole it would have to be found out where it comes from."""
    (x,), (y,), move = inputs, outputs, PAD_INDEX[str(attrs["mode"])]
    assert x
    before, after, n = dims(attrs, "before"), dims(attrs, "after"), x.shape[-1]

    def row(o: DimIndex) -> tuple[Stmt, ...]:
        where = tuple(
            i if b.const_or_none == 0 and a.const_or_none == 0 else move(i - b, size)
            for i, b, a, size in zip(o, before, after, x.shape, strict=False)
        )

        def part(start: Dim, count: Dim, source: Dim | None) -> Stmt:
            """`count` elements of the row from `start` on: what lies at `source`, or in the border."""
            p = t.fresh("i")
            at = move(source + p, n) if source is not None else p
            value = Load(x.name, (*where, at), x.dtype)
            return Loop("serial", str(p), count, (Store(y.name, (*o, start + p), value),))

        return (
            part(ZERO, before[-1], -before[-1]),
            part(before[-1], n, None),
            part(before[-1] + n, after[-1], n),
        )

    return Nest(nest_over(t, y.shape[:-1], row))


_MODES = ("reflect", "edge", "wrap")

ROWS: tuple[Op, ...] = (
    Op(
        "extend",
        "x",
        _infer,
        ref_pad,
        (
            *(
                Case(
                    ("f32[4, 5]",),
                    attrs={"before": (ONE, to_dim(2)), "after": (to_dim(3), ZERO), "mode": mode},
                )
                for mode in _MODES
            ),
            *(
                Case(
                    ("i32[N, 4, 3]",),
                    attrs={
                        "before": (ZERO, ONE, ONE),
                        "after": (ZERO, to_dim(2), to_dim(2)),
                        "mode": mode,
                    },
                )
                for mode in _MODES
            ),
        ),
        nest=_nest,
    ),
)

__all__ = ["ROWS"]
