"""A top-level statement -> its parallel space: directly nested group nodes, flattened, outermost slowest."""

from __future__ import annotations

from typing import TypeAlias

from smelt.core.dim import Dim, ceildiv, to_dim
from smelt.core.ir.kernel import Loop, Stmt, Tiles

GroupNode: TypeAlias = Loop | Tiles


def group_nest(s: Stmt) -> tuple[tuple[GroupNode, ...], tuple[Stmt, ...]]:
    """The directly nested group nodes at a statement, and what is inside them."""
    nodes: list[GroupNode] = []
    body: tuple[Stmt, ...] = (s,)
    while len(body) == 1:
        inner = body[0]
        if not isinstance(inner, Loop | Tiles) or inner.level != "group":
            break
        nodes.append(inner)
        body = inner.body
    return tuple(nodes), body


def group_extent(node: GroupNode) -> Dim:
    """How many groups a node contributes."""
    return node.extent if isinstance(node, Loop) else ceildiv(node.extent, node.sizes[0])


def group_count(s: Stmt) -> Dim:
    """Groups of a top-level statement, in the kernel's dims: what a launch passes, and `hi` may reach."""
    total = to_dim(1)
    for node in group_nest(s)[0]:
        total = total * group_extent(node)
    return total
