"""Matrix products: type rule by NumPy's matmul semantics, formula, reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.core.dim import ZERO, Dim
from smelt.core.dtype import BYTES, Array, DType, bf16, f16, f32, i8, i16, i32, u8
from smelt.core.ir.graph import TensorType
from smelt.core.ir.kernel import Expr
from smelt.core.ops.table import Arg, Attrs, Case, Infer, Op
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast

ACCUMULATOR: dict[DType, DType] = {f16: f32, bf16: f32, i8: i32, u8: i32, i16: i32}


def accumulator(dtype: DType) -> DType:
    """The type in which products of this type are summed."""
    return ACCUMULATOR.get(dtype, dtype)


def product_of(a: Expr, b: Expr) -> Expr:
    """a * b in the accumulator's type."""
    acc = accumulator(a.dtype)
    return call("mul", cast(a, acc), cast(b, acc))


def infer_matmul(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """[.., m, k] x [.., k, n] -> [.., m, n]; rank 1 is a row on the left, a column on the right. Products of
    bytes, signed or not, and of i16 are summed in i32, modulo 2^32."""
    a, b = args
    assert a and b
    if a.rank == 0 or b.rank == 0:
        raise c.fail("matmul wants operands of rank 1 or more, found a scalar")
    bytes_ = a.dtype in BYTES and b.dtype in BYTES
    if a.dtype != b.dtype and not bytes_:
        raise c.fail(f"operands have different types {a.dtype} and {b.dtype}")
    c.same("inner dimensions", a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0])
    batch = c.broadcast(a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1] if a.rank > 1 else ()
    columns = b.shape[-1:] if b.rank > 1 else ()
    made = i32 if bytes_ or a.dtype == i16 else a.dtype
    return (TensorType(made, (*batch, *rows, *columns)),)


def matmul(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, a: Operand, b: Operand) -> Expr:
    """out[.., m, n] = sum over k of a[.., m, k] * b[.., k, n]"""
    rest = list(i)
    n = [rest.pop()] if b.rank > 1 else []
    m = [rest.pop()] if a.rank > 1 else []

    def operand(x: Operand, own: list[Dim], row_first: bool, k: Dim) -> Expr:
        batch = rest[len(rest) - max(x.rank - 2, 0) :]
        fixed: list[Dim] = [ZERO if s.const_or_none == 1 else d for s, d in zip(x.shape, batch, strict=False)]
        tail = [*own, k] if row_first else [k, *own]
        return x[(*fixed, *tail)]

    total = t.sum(
        [a.shape[-1]],
        lambda k: product_of(operand(a, m, True, k), operand(b, n, False, k)),
    )
    return cast(total, out.dtype)


def _ref(arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]) -> Sequence[Array]:
    a, b = arrays
    assert a is not None and b is not None
    wide = np.float64 if a.dtype.kind not in "iu" else types[0].dtype.numpy
    return (np.asarray(np.matmul(a.astype(wide), b.astype(wide))).astype(types[0].dtype.numpy),)


ROWS: tuple[Op, ...] = (
    Op(
        "matmul",
        "a b",
        infer_matmul,
        _ref,
        (
            Case(("f32[N, 3, 8]", "f32[8, M]")),
            Case(("f32[M, N]", "f32[N, 40]")),
            Case(("f32[2, 1, M, N]", "f32[3, N, 5]")),
            Case(("f32[N]", "f32[N, 4]")),
            Case(("f32[3, N]", "f32[N]")),
            Case(("f32[N]", "f32[N]")),
            Case(("f32[N, 0]", "f32[0, 2]")),
            Case(("i32[N, 3]", "i32[3, M]"), low=-9, high=9),
            Case(("u8[N, 30]", "i8[30, M]"), low=-100, high=100),
            Case(("i16[N, 5]", "i16[5, M]"), low=-30000, high=30000),
        ),
        compute=matmul,
        broadcasts=2,
    ),
)
