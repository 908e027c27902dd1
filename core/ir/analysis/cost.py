"""Kernels and a Machine in, formulas of what they cost out: its multiply-adds, and bytes of traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smelt.core.dim import Dim, product, to_dim, value_at
from smelt.core.ir.analysis.scope import accesses
from smelt.core.ir.kernel import Block, Call, Expr, Kernel, Reduce, Stmt, Store, Tiles, children, walk_expr
from smelt.core.ir.rewrite import Body
from smelt.core.machine import Machine


@dataclass(frozen=True, slots=True)
class Cost:
    """flops: arithmetic of one run in multiply-adds of the machine. bytes: least traffic, every global buffer
    touched once. Their quotient is the arithmetic intensity."""

    flops: Dim
    bytes: Dim

    def intensity(self, env: Mapping[str, int]) -> float:
        """flops per byte at given dims."""
        return value_at(self.flops, env) / max(1, value_at(self.bytes, env))


def expr_flops(e: Expr, machine: Machine) -> Dim:
    """What it takes to evaluate e once."""
    if isinstance(e, Reduce):
        return product(a.extent for a in e.axes) * (expr_flops(e.body, machine) + 1)
    own = machine.cost({e.fn: 1}) if isinstance(e, Call) else 0
    return sum((expr_flops(c, machine) for c in children(e)), start=to_dim(own))


def heavy(e: Expr, machine: Machine) -> bool:
    """Whether some function in e is dear on the machine."""
    return any(isinstance(x, Call) and machine.heavy(x.fn) for x in walk_expr(e))


def stmt_flops(body: Body | Stmt, machine: Machine) -> Dim:
    """What one execution takes; loop variables in extents count at their upper end."""
    if isinstance(body, tuple):
        return sum((stmt_flops(s, machine) for s in body), start=to_dim(0))
    if isinstance(body, Store):
        extra = 0 if body.accumulate is None else 2 if body.accumulate == "fma" else 1
        saved = 1 if body.accumulate == "fma" else 0  # the product is part of the fma
        return expr_flops(body.value, machine) + extra - saved
    if isinstance(body, Tiles):
        # Every row is covered once: what one row costs, times rows.
        inner = stmt_flops(body.body, machine)
        per = inner.linear(body.rows)
        if per is not None and per[1].const_or_none == 0:
            return _without(per[0], body.start, body.extent) * body.extent
        return _without(inner.substitute({body.rows: 1}), body.start, body.extent) * body.extent
    inner = stmt_flops(body.body, machine)
    if isinstance(body, Block):
        return inner + sum((expr_flops(v, machine) for _, v, *_ in body.let), start=to_dim(0))
    return _without(inner, body.var, body.extent) * body.extent


def _without(d: Dim, var: str, extent: Dim) -> Dim:
    return d.substitute({var: extent - 1}) if var in d.symbols else d


def kernel_cost(k: Kernel, machine: Machine) -> Cost:
    """Arithmetic and least traffic of a kernel, as formulas in its dims."""
    touched = {a.buffer for a in accesses(k.body)}
    buffers = [*k.inputs, *k.outputs]
    size = sum(
        (product(b.shape) * b.dtype.bytes for b in buffers if b.name in touched), start=to_dim(0)
    )
    return Cost(stmt_flops(k.body, machine), size)
