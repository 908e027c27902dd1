"""Every row of the op table in element types that its cases do not have: the formula, interpreted as a naive
kernel, gives what the reference gives, and elementwise ones do so at the edges of the types."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from campaign import Outcome, main
from op_cases import Row, arrays, concrete, evaluated, infer, naive_kernel, rows
from op_values import Array, special

from smelt.core.diag import SmeltError
from smelt.core.dtype import DType, bf16, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from smelt.core.ir.graph import TensorType
from smelt.core.ir.interp_kernel import run_kernel

OTHERS: dict[DType, tuple[DType, ...]] = {
    f32: (f32, f64, f16, bf16), i32: (i32, i64, i16, i8, u8, u16, u32, u64), i64: (i64, i32, i16, u64),
}  # fmt: skip
RTOL = {f64: 1e-9, f32: 1e-4, f16: 4e-3, bf16: 3e-2}
SLICES = 3


def turned(row: Row, to: Mapping[DType, DType]) -> Row:
    """The row with all its operands in other types; arrays that matter among them too."""
    types = tuple(t and TensorType(to.get(t.dtype, t.dtype), t.shape) for t in row.types)
    given = tuple(
        g if g is None or t is None else g.astype(t.dtype.numpy)
        for g, t in zip(row.given, types, strict=True)
    )
    return replace(row, types=types, given=given)


def compared(row: Row, rng: np.random.Generator) -> str:
    """What is wrong with a row at some sizes; '' when nothing is, or when it has no such form."""
    env = {s: int(n) for s, n in zip(row.symbols, rng.integers(1, 6, len(row.symbols)), strict=True)}
    try:
        types = concrete(infer(row), env)
    except SmeltError:
        return ""
    kernel = naive_kernel(row)
    given = arrays(row, env)
    if kernel is None:
        return ""
    at_edges = row.op.broadcasts == 0 and row.op.name not in ("gather", "where")
    if at_edges and rng.random() < 0.7:
        given = [a if a is None or g is not None else special(rng, a.dtype, a.shape)
                 for a, g in zip(given, row.given, strict=True)]  # fmt: skip
    with np.errstate(all="ignore"):
        wanted = row.op.ref(given, evaluated(row.case.attrs, env), types)
        found = run_kernel(kernel, [env[s] for s in row.symbols], [a for a in given if a is not None])
    for t, y, want in zip(types, found, wanted, strict=True):
        if want.dtype != t.dtype.numpy:
            return f"{row.name} of {row.types}: the reference gives {want.dtype}, the type rule {t.dtype}"
        want = np.asarray(want).reshape(y.shape)
        coarse = max(RTOL.get(x.dtype, 0) for x in (*row.types, t) if x is not None) * row.op.tolerance
        wrong = ~_same(y, want, t.dtype, coarse)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            operands = [str(v and v.dtype) for v in row.types]
            return (
                f"{row.name} of {operands} at {env} {at}: formula {y[at]!r}, reference {want[at]!r}, {given}"
            )
    return ""


def _same(y: Array, want: Array, dtype: DType, rtol: float) -> Any:
    if not dtype.is_float:
        return y == want
    info: Any = ml_dtypes.finfo(dtype.numpy)
    a, b = y.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.abs(b[np.isfinite(b)])
        near = np.abs(a - b) <= rtol * np.maximum(np.abs(b), min(finite.max(initial=0), 1.0))
        edge = np.minimum(np.abs(a), np.abs(b)) >= float(info.max) * (1 - rtol)
    return (a == b) | near | (np.isnan(a) & np.isnan(b)) | (edge & (np.signbit(a) == np.signbit(b)))


def forms(rng: np.random.Generator, turn: int) -> Iterator[Row]:
    """The rows of a turn, each in some types; integers that are indices or codes stay as they are."""
    for row in rows()[turn % SLICES :: SLICES]:
        to = {k: v[int(rng.integers(len(v)))] for k, v in OTHERS.items()}
        yield turned(row, to if row.op.broadcasts == 0 else {f32: to[f32]})


def attack(seed: int) -> Outcome:
    """Compare a share of the table's rows."""
    rng = np.random.default_rng(seed)
    found: list[str] = []
    for row in forms(rng, seed):
        try:
            text = compared(row, rng)
        except Exception as e:  # a formula or a reference that does not know the type
            text = f"{row.name} of {[str(t and t.dtype) for t in row.types]}: {type(e).__name__}: {e}"
        found += [text[:700]] if text else []
    return Outcome("formula and reference differ", True, "\n".join(found)) if found else Outcome("agrees")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 200))
