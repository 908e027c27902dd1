"""Node -> Trait: how it reads each operand and what an element takes, from its traced index expressions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from smelt.core.dim import Dim, Facts, product, sym, to_dim, value_at
from smelt.core.ir.analysis.traits import OPAQUE, Trait, expr_trait
from smelt.core.ir.graph import Node, TensorType, attrs_key
from smelt.core.ir.kernel import Expr
from smelt.core.ops import OPS
from smelt.core.ops.trace import MARK, element


def out_index(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The output variables, one per axis, and 0 for axes of extent 1."""
    return tuple(to_dim(0) if d.const_or_none == 1 else sym(variable(a)) for a, d in enumerate(shape))


def out_variables(shape: Sequence[Dim]) -> dict[str, Dim]:
    """The same variables with their extents, outermost first."""
    return {variable(a): n for a, n in enumerate(shape)}


def variable(axis: int) -> str:
    """The name of the output variable of an axis while nodes are composed. No dim of a model starts with
    the mark, so nothing is captured."""
    return f"{MARK}i{axis}"


class Tracer:
    """Traits of nodes, computed once for each (op, attributes, types)."""

    def __init__(self, facts: Facts) -> None:
        self._found: dict[Hashable, Trait] = {}
        self._facts = facts

    def trait(self, node: Node, inputs: Sequence[TensorType | None]) -> Trait:
        """The trait of a node with inputs of these types."""
        row = OPS.get(node.op)
        if row is None or row.compute is None or len(node.outputs) != 1 or isinstance(row.compute, tuple):
            return OPAQUE
        key = (node.op, attrs_key(node.attrs), tuple(inputs), node.output.type)
        if key not in self._found:
            self._found[key] = _trait(node, inputs, self._facts)
        return self._found[key]


def trace_node(node: Node, inputs: Sequence[TensorType | None], index: tuple[Dim, ...]) -> Expr:
    """The element of the node's output at `index`, its operands as loads of buffers x0, x1, ..."""
    rule = OPS[node.op].compute
    assert callable(rule)
    return element(rule, inputs, index, node.attrs, node.output.type)


def _trait(node: Node, inputs: Sequence[TensorType | None], facts: Facts) -> Trait:
    shape = node.output.type.shape
    shapes = {f"x{k}": t.shape for k, t in enumerate(inputs) if t is not None}
    operands = [f"x{k}" for k in range(len(inputs))]
    e = trace_node(node, inputs, out_index(shape))
    return expr_trait(e, operands, out_variables(shape), shapes, facts)


def nominal(facts: Facts, d: Dim) -> int:
    """The Dim with every symbol at a middling size that its range allows: for comparing costs."""
    env: dict[str, int] = {}
    for s in d.symbols:
        low, high = facts.bounds(sym(s))
        value = max(32, low or 0)
        env[s] = value if high is None else min(value, high)
    return value_at(d, env)


def least(facts: Facts, d: Dim) -> int:
    """The Dim with every symbol at its least size, 1 where that is 0."""
    return value_at(d, {s: max(1, facts.bounds(sym(s))[0] or 1) for s in d.symbols})


def nominal_bytes(facts: Facts, t: TensorType) -> int:
    """What a tensor takes at such sizes."""
    return nominal(facts, product(t.shape)) * t.dtype.bytes
