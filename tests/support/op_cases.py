"""Rows of the op table -> concrete inputs, types and naive kernels, for the tests of every target."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from smelt.core.dim import Dim, parse_dim, to_dim
from smelt.core.dtype import DTYPES, Array, DType, from_numpy
from smelt.core.ir.graph import Attr, Symbol, TensorType, attr_dims
from smelt.core.ir.kernel import Buffer, DimParam, Kernel, Load, Loop, Stmt, Store
from smelt.core.ops import OPS
from smelt.core.ops.infer import Engine
from smelt.core.ops.infer_node import infer_node
from smelt.core.ops.table import Arg, Case, Op
from smelt.core.ops.trace import Operand, Trace
from smelt.importer.plugins import load_all

SIZES = (1, 2, 5, 7)


@dataclass(frozen=True)
class Row:
    """One case of one op: symbolic input types, attributes, and the arrays that are given."""

    op: Op
    case: Case
    name: str
    types: tuple[TensorType | None, ...]
    given: tuple[Array | None, ...]

    @property
    def symbols(self) -> tuple[str, ...]:
        found = {s for t in self.types if t for d in t.shape for s in d.symbols}
        for v in self.case.attrs.values():
            found |= {s for d in attr_dims(v) for s in d.symbols}
        return tuple(sorted(found))


def rows() -> list[Row]:
    """Every case of every op, those of the families included."""
    load_all()
    return [_row(op, n, case) for op in OPS.values() for n, case in enumerate(op.cases)]


def _row(op: Op, n: int, case: Case) -> Row:
    types: list[TensorType | None] = []
    given: list[Array | None] = []
    for x in case.inputs:
        if isinstance(x, str):
            types.append(None if x == "-" else parse_type(x))
            given.append(None)
        else:
            array = np.asarray(x)
            types.append(TensorType(from_numpy(array.dtype), tuple(to_dim(d) for d in array.shape)))
            given.append(array)
    return Row(op, case, f"{op.name}-{n}", tuple(types), tuple(given))


def parse_type(text: str) -> TensorType:
    """'f32[N, 3]' as a type."""
    dtype, _, rest = text.partition("[")
    dims = [d.strip() for d in rest.rstrip("]").split(",") if d.strip()]
    return TensorType(DTYPES[dtype], tuple(parse_dim(d) for d in dims))


def infer(row: Row) -> tuple[TensorType, ...]:
    """Output types with the symbols still in them."""
    engine = Engine([Symbol(s) for s in row.symbols])
    args = [None if t is None else Arg(t) for t in row.types]
    return infer_node(row.op, args, row.case.attrs, engine)


def environments(row: Row) -> Iterator[Mapping[str, int]]:
    """Values for the symbols: each size for all, mixed sizes, and zero where the case allows it."""
    if not row.symbols:
        yield {}
        return
    sizes = SIZES + ((0,) if row.case.zero else ())
    for n in sizes:
        yield dict.fromkeys(row.symbols, n)
    if len(row.symbols) > 1:
        yield {s: 3 + 4 * n for n, s in enumerate(row.symbols)}


def arrays(row: Row, env: Mapping[str, int]) -> list[Array | None]:
    """Inputs of those sizes: the given ones, else seeded random values in the case's range."""
    rng = np.random.default_rng(zlib.crc32(f"{row.name}{sorted(env.items())}".encode()))
    made: list[Array | None] = []
    for t, g in zip(row.types, row.given, strict=True):
        if t is None or g is not None:
            made.append(g)
            continue
        shape = tuple(d.evaluate(env) for d in t.shape)
        made.append(_random(rng, t.dtype, shape, row.case))
    return made


def _random(rng: Any, dtype: DType, shape: tuple[int, ...], case: Case) -> Array:
    if dtype.category == "bool":
        return rng.random(shape) < 0.5
    if dtype.is_int:
        low = 0 if dtype.category == "uint" else int(case.low)
        return rng.integers(low, int(case.high) + 1, shape).astype(dtype.numpy)
    return (case.low + (case.high - case.low) * rng.random(shape)).astype(dtype.numpy)


def evaluated(attrs: Mapping[str, Attr], env: Mapping[str, int]) -> dict[str, Attr]:
    """Attributes with every Dim a number."""
    return {k: _evaluated(v, env) for k, v in attrs.items()}


def _evaluated(v: Attr, env: Mapping[str, int]) -> Attr:
    if isinstance(v, Dim):
        return to_dim(v.evaluate(env))
    return tuple(_evaluated(e, env) for e in v) if isinstance(v, tuple) else v


def concrete(types: tuple[TensorType, ...], env: Mapping[str, int]) -> list[TensorType]:
    """The types with their symbols replaced."""
    return [TensorType(t.dtype, tuple(to_dim(d.evaluate(env)) for d in t.shape)) for t in types]


def reference(row: Row, env: Mapping[str, int], inputs: list[Array | None]) -> list[Array]:
    """What the row's NumPy reference says."""
    types = concrete(infer(row), env)
    return list(row.op.ref(inputs, evaluated(row.case.attrs, env), types))


def naive_kernel(row: Row) -> Kernel | None:
    """The op traced into its naive kernel; None when it is an expansion into other ops."""
    op, outs = row.op, infer(row)
    inputs = tuple(Buffer(f"x{n}", t.dtype, t.shape) for n, t in enumerate(row.types) if t is not None)
    outputs = tuple(Buffer(f"y{n}", t.dtype, t.shape) for n, t in enumerate(outs))
    dims = tuple(DimParam(s) for s in row.symbols)
    names = iter(inputs)
    slots = [None if t is None else next(names) for t in row.types]
    trace = Trace()
    if op.nest is not None:
        nest = op.nest(trace, row.case.attrs, slots, outputs)
        return Kernel(op.name, dims, inputs, outputs, nest.body, nest.scratch)
    if op.compute is None:
        return None
    rules = op.compute if isinstance(op.compute, tuple) else (op.compute,)
    body: list[Stmt] = []
    for rule, out, t in zip(rules, outputs, outs, strict=True):
        index = tuple(trace.fresh("o") for _ in out.shape)
        value = rule(trace, index, row.case.attrs, t, *(None if b is None else _operand(b) for b in slots))
        s: Stmt = Store(out.name, index, value)
        for v, n in zip(reversed(index), reversed(out.shape), strict=True):
            s = Loop("serial", str(v), n, (s,))
        body.append(s)
    return Kernel(op.name, dims, inputs, outputs, tuple(body))


def _operand(b: Buffer) -> Operand:
    return Operand(b.dtype, b.shape, lambda i: Load(b.name, i, b.dtype))


def close(got: Array, want: Array, factor: float = 1.0) -> None:
    """Bit-exact for integers; rtol 1e-3 and atol 1e-5 scaled by the magnitude for floats."""
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, want.shape, got.dtype, want.dtype)
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    finite = np.abs(want[np.isfinite(want)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    np.testing.assert_allclose(got, want, rtol=1e-3 * factor, atol=1e-5 * scale * factor)


__all__ = [
    "Row", "arrays", "close", "concrete", "environments", "infer", "naive_kernel", "reference", "rows",
]  # fmt: skip
