"""Op name, attributes and shapes -> naive kernel, by the op table's compute rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from smelt.core.dim import Dim, DimLike, Facts, dmin, parse_dim, sym, to_dim
from smelt.core.dtype import DType, f32
from smelt.core.ir.graph import TensorType
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Buffer, DimParam, Expr, Kernel, Load, Loop, Stmt, Store
from smelt.core.ir.layout import apply_numpy
from smelt.core.ops import OPS
from smelt.core.ops.trace import Operand, Trace
from smelt.core.schedule.tree import map_accesses

Shape = Sequence[DimLike | str]
Array = np.ndarray[Any, Any]


def shape_of(shape: Shape) -> tuple[Dim, ...]:
    return tuple(parse_dim(n) if isinstance(n, str) else to_dim(n) for n in shape)


def operand(b: Buffer) -> Operand:
    return Operand(b.dtype, b.shape, lambda i: Load(b.name, i, b.dtype))


def nest(out: Buffer, value: Any, prefix: str = "i") -> tuple[Stmt, ...]:
    """Serial loops over the output index around one store of value(index)."""
    names = [f"{prefix}{a}" for a in range(len(out.shape))]
    index = tuple(sym(v) for v in names)
    body: tuple[Stmt, ...] = (Store(out.name, index, value(index)),)
    for v, n in zip(reversed(names), reversed(out.shape), strict=True):
        body = (Loop("serial", v, n, body),)
    return body


def op_kernel(
    op: str,
    shapes: Sequence[Shape],
    out_shape: Shape,
    attrs: Mapping[str, Any] | None = None,
    *,
    dtypes: Sequence[DType] = (),
    out_dtype: DType | None = None,
    epilogue: Any = None,
    extra: Sequence[Shape] = (),
) -> Kernel:
    """A kernel of one op. epilogue(trace, value, index, *extra operands) wraps the result."""
    all_shapes = [*shapes, *extra]
    types = [*dtypes, *[f32] * (len(all_shapes) - len(dtypes))]
    inputs = tuple(
        Buffer("abcdefg"[n], t, shape_of(s)) for n, (s, t) in enumerate(zip(all_shapes, types, strict=True))
    )
    out = Buffer("y", out_dtype or types[0], shape_of(out_shape))
    trace = Trace()
    rule = OPS[op].compute
    assert rule is not None and not isinstance(rule, tuple)
    mine = [operand(b) for b in inputs[: len(shapes)]]
    rest = [operand(b) for b in inputs[len(shapes) :]]

    def value(i: tuple[Dim, ...]) -> Expr:
        assert callable(rule)
        e = rule(trace, i, attrs or {}, TensorType(out.dtype, out.shape), *mine)
        return epilogue(trace, e, i, *rest) if epilogue else e

    names = sorted({s for b in (*inputs, out) for d in b.shape for s in d.symbols})
    return Kernel(op, tuple(DimParam(n) for n in names), inputs, (out,), nest(out, value))


def random_inputs(kernel: Kernel, env: Mapping[str, int], seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    found = []
    for b in kernel.inputs:
        shape = tuple(d.evaluate(env) for d in b.shape)
        if b.dtype.is_float:
            found.append(rng.uniform(-2, 2, shape).astype(b.dtype.numpy))
        elif b.dtype.category == "bool":
            found.append(rng.integers(0, 2, shape).astype(np.bool_))
        else:
            found.append(rng.integers(0, 5, shape).astype(b.dtype.numpy))
    return found


def check(
    naive: Kernel, scheduled: Kernel, env: Mapping[str, int], seed: int = 0, rtol: float = 2e-5
) -> None:
    """Both give the same outputs for these sizes; packed operands are packed first."""
    inputs, wanted = _computed(naive, tuple(env.items()), seed)
    given = []
    for x, b in zip(inputs, scheduled.inputs, strict=True):
        x = x if b.layout is None else apply_numpy(b.layout.spec, x)
        given.append(x.reshape(tuple(d.evaluate(env) for d in b.shape)))
    found = run_kernel(scheduled, env, given)
    for w, f in zip(wanted, found, strict=True):
        if w.dtype.kind == "f":
            np.testing.assert_allclose(f.reshape(w.shape), w, rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(f.reshape(w.shape), w)


@lru_cache(maxsize=16)
def _computed(naive: Kernel, env: tuple[tuple[str, int], ...], seed: int) -> tuple[list[Array], list[Array]]:
    """Random inputs and what the kernel makes of them: the same for each machine it is scheduled for."""
    inputs = random_inputs(naive, dict(env), seed)
    return inputs, list(run_kernel(naive, dict(env), inputs))


def softmax_of_a_broadcast() -> Kernel:
    """Rows whose elements are one and the same when k is 1, and the n there are when k is n."""
    return _of_a_broadcast(op_kernel("softmax", [("m", "n")], ("m", "n"), {"axis": 1}))


def add_of_a_broadcast() -> Kernel:
    """The first operand has k columns: 1 or n."""
    return _of_a_broadcast(op_kernel("add", [("m", "n"), ("m", "n")], ("m", "n")))


def _of_a_broadcast(plain: Kernel) -> Kernel:
    x = replace(plain.inputs[0], shape=shape_of(("m", "k")))

    def load(e: Load, facts: Facts) -> Expr:
        return replace(e, index=(e.index[0], dmin(sym("k") - 1, e.index[1]))) if e.buffer == x.name else e

    body = map_accesses(plain.body, Facts(), load, lambda store, facts: store)
    inputs = (x, *plain.inputs[1:])
    return plain.with_(dims=tuple(DimParam(n) for n in "mnk"), inputs=inputs, body=body)
