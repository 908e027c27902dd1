"""Nodes -> a key that is equal for groups that differ in names only: what is found of one holds for all.

Networks repeat their layers; what a pass works out for a group of nodes from their ops, attributes, types and
wiring need not be worked out again for the same group elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from smelt.core.ir.graph import Node, Ref, TensorType, attrs_key
from smelt.core.ir.kernel import Const


@dataclass
class Alike:
    """Makes keys for the nodes of one graph. scalar: the literal that a ref stands for, or None. values:
    whether float literals of other values are others; no formula asks for one, so what an element costs
    and reads is the same."""

    scalar: Callable[[Ref], Const | None]
    values: bool = True
    _attrs: dict[int, tuple[Node, Hashable]] = field(default_factory=dict)

    def key(
        self, nodes: Sequence[Node], type_of: Callable[[Ref], TensorType]
    ) -> tuple[Hashable, tuple[Ref, ...]]:
        """The key of these nodes, and the refs that they read from outside, numbered in the key from the
        first."""
        codes: dict[Ref, Hashable] = {"": None}
        refs: list[Ref] = []
        rows: list[Hashable] = []

        def code(r: Ref) -> Hashable:
            if r not in codes:
                literal = self.scalar(r)
                if literal is None:
                    codes[r] = len(refs)
                    refs.append(r)
                else:
                    plain = literal.dtype.is_float and not self.values
                    codes[r] = str(literal.dtype) if plain else repr(literal)  # not itself: 0.0 == -0.0
            return codes[r]

        for at, n in enumerate(nodes):
            reads = tuple(map(code, n.inputs))
            rows.append((n.op, self._attrs_of(n), reads, tuple(v.type for v in n.outputs)))
            for k, v in enumerate(n.outputs):
                codes[v.name] = (at, k)
        return (tuple(rows), tuple(map(type_of, refs))), tuple(refs)

    def _attrs_of(self, n: Node) -> Hashable:
        found = self._attrs.get(id(n))
        if found is None:
            found = self._attrs[id(n)] = n, attrs_key(n.attrs)  # with the node: its id stays its own
        return found[1]
