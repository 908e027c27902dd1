"""A statement -> its parallel space: directly nested nodes of one level, outermost slowest."""

from __future__ import annotations

from smelt.core.dim import Dim, ceildiv, to_dim
from smelt.core.ir.kernel import Loop, LoopNode, Stmt, Tiles


def nest(s: Stmt, level: str) -> tuple[tuple[LoopNode, ...], tuple[Stmt, ...]]:
    """The directly nested nodes of a level at a statement, and what is inside them."""
    nodes: list[LoopNode] = []
    body: tuple[Stmt, ...] = (s,)
    while len(body) == 1:
        inner = body[0]
        if not isinstance(inner, Loop | Tiles) or inner.level != level:
            break
        nodes.append(inner)
        body = inner.body
    return tuple(nodes), body


def instances(node: LoopNode) -> Dim:
    """How many instances a parallel node has."""
    return node.extent if isinstance(node, Loop) else ceildiv(node.extent, node.sizes[0])


def group_count(s: Stmt) -> Dim:
    """Groups of a top-level statement, in the kernel's dims: what a launch passes, and `hi` may reach."""
    total = to_dim(1)
    for node in nest(s, "group")[0]:
        total = total * instances(node)
    return total
