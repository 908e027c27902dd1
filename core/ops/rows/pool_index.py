"""The positions that max pooling picks: flat indices into the whole input."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from smelt.core.dim import Dim, product, to_dim
from smelt.core.dtype import Array, i64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Expr
from smelt.core.ops.attrs import dims, ints
from smelt.core.ops.rows.window import infer_pool, lowest, pool_taps
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, index


def _infer(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (t,) = infer_pool(c, args, attrs)
    return (TensorType(i64, t.shape),)


def _indices(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, x: Operand) -> Expr:
    """The first greatest element of the window, as its place in x; column_major counts the last two spatial
    axes the other way round."""
    kernel = ints(attrs, "kernel")
    taps = pool_taps(i, attrs, x)

    def spread(k: Dim) -> list[Dim]:
        return [(k // prod(kernel[a + 1 :])) % n for a, n in enumerate(kernel)]

    best = t.reduce(
        "argmax", [prod(kernel)], lambda k: x.guarded(*taps(*spread(k)), lowest(x)), dtype=i64
    )
    spatial, order = x.shape[2:], list(range(len(kernel)))
    if attrs["column_major"]:
        order.reverse()

    def place(k: Dim) -> Expr:
        flat = i[0] * x.shape[1] + i[1]
        for n in spatial:
            flat = flat * n
        for rank, a in enumerate(order):
            start = i[2 + a] * ints(attrs, "strides")[a] - dims(attrs, "pads_begin")[a]
            pace = product(spatial[b] for b in order[rank + 1 :])
            flat = flat + (start + spread(k)[a] * ints(attrs, "dilations")[a]) * pace
        return index(flat)

    return t.let(best, 0, prod(kernel) - 1, place)


def _ref(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    x = arrays[0]
    assert x is not None
    y = np.zeros([d.const for d in types[0].shape], np.int64)
    order = "F" if attrs["column_major"] else "C"
    for at in np.ndindex(*y.shape):
        best: tuple[float, int] | None = None
        for k in np.ndindex(*ints(attrs, "kernel")):
            p = [
                o * ints(attrs, "strides")[a] - dims(attrs, "pads_begin")[a].const + k[a] * d
                for a, (o, d) in enumerate(zip(at[2:], ints(attrs, "dilations"), strict=True))
            ]
            if all(0 <= q < n for q, n in zip(p, x.shape[2:], strict=True)):
                value = float(x[(*at[:2], *p)])
                inner = int(np.ravel_multi_index(p, x.shape[2:], order=order))  # type: ignore[call-overload]
                if best is None or value > best[0]:
                    best = (value, inner)
        y[at] = (at[0] * x.shape[1] + at[1]) * prod(x.shape[2:]) + (best[1] if best else 0)
    return (y,)


def _attrs(kernel: tuple[int, ...], pad: int, stride: int, column_major: bool) -> Attrs:
    n = len(kernel)
    return {
        "kernel": kernel,
        "strides": (stride,) * n,
        "dilations": (1,) * n,
        "pads_begin": (to_dim(pad),) * n,
        "pads_end": (to_dim(pad),) * n,
        "ceil_mode": False,
        "channels_last": False,
        "column_major": column_major,
    }


ROWS: tuple[Op, ...] = (
    Op(
        "max_pool_indices",
        "x",
        _infer,
        _ref,
        (
            Case(("f32[N, 2, 5, 6]",), attrs=_attrs((3, 2), 1, 1, False)),
            Case(("f32[1, 2, 5, 4]",), attrs=_attrs((2, 2), 0, 2, True)),
            Case(("f32[1, N, 7]",), attrs=_attrs((3,), 0, 2, False), zero=False),
        ),
        compute=_indices,
    ),
)
