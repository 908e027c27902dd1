"""A graph in; nothing, or the first value that a node cannot read where it lies (M8 of verify.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NoReturn

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Graph, Node, Ref, Value

CALLS = frozenset({"call_kernel", "call_library"})
"""Ops of a lowered graph that a unit runs."""
HOST_CALLS = frozenset({"call_library"})
"""Those that the host alone runs."""
HELD = "holds"
"""The attribute of a call that says which nodes it does the work of, until it has a unit."""
HOST_READS: Mapping[str, int] = MappingProxyType({"bind": 1, "if": 1, "loop": 2})
"""Ops of a lowered graph that the host decides by -> how many of their first inputs it reads, if given."""
VIEWS = frozenset({"reshape", "room", "held"})
"""Ops of a lowered graph whose result is their input's bytes."""


def verify_units(graph: Graph) -> None:
    """Raises SmeltError(kind='internal')."""
    values = {v.name: v for v in _values(graph)}
    if not any(v.unit for v in values.values()):
        return
    views = {n.output.name for n in graph.walk() if n.op in VIEWS}

    def unit(ref: Ref) -> str:
        return values[ref].unit if ref in values else ""

    def fail(message: str, node: Node | None = None) -> NoReturn:
        where = f"graph '{graph.name}'" + (f", op {node.op}" if node else "")
        origin = node.origin if node else ""
        raise SmeltError(f"{where} breaks M8 (units): {message}", kind="internal", node=origin or None)

    for v in values.values():
        if not v.unit and v.name not in views:
            fail(f"{v.name} lies nowhere, other values at units")
    for n in graph.walk():
        for ref, wanted in _together(n):
            # a weight is at every unit, and so is a view of one
            if (n.op in VIEWS or unit(ref)) and unit(ref) != wanted:
                fail(f"{ref} lies at '{unit(ref)}', wanted at '{wanted}'", n)
        if n.op == "transfer" and unit(n.inputs[0]) in ("", n.unit):
            fail(f"{n.inputs[0]} goes from '{unit(n.inputs[0])}' to '{n.unit}'", n)


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    for n in graph.walk():
        yield from n.outputs
        yield from (v for r in n.regions for v in r.inputs)


def _together(n: Node) -> Iterator[tuple[Ref, str]]:
    """Which refs the node wants at which unit."""
    units = [v.unit for v in n.outputs]
    if n.op in CALLS:
        yield from ((r, n.unit) for r in (*n.inputs, *(v.name for v in n.outputs)))
    elif n.op in VIEWS:
        yield n.inputs[0], n.unit
    elif n.op == "if":
        yield from (pair for r in n.regions for pair in zip(r.outputs, units, strict=True))
    elif n.op == "loop":
        (body,) = n.regions
        carried = [v.name for v in body.inputs[2:]]
        yield from zip((*n.inputs[2:], *carried), (*units[: len(carried)], *units), strict=False)
        yield from zip(body.outputs[1:], units, strict=True)
