"""An ONNX file and a feed -> the values inside its branches and loops, by the references of its ops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smelt.core.diag import SmeltError
from smelt.core.dtype import Array
from smelt.core.ir.graph import Node, Value
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.core.subnormals import flushed, keeps_subnormals
from smelt.groups import GroupValue, groups, packed
from smelt.importer import import_model

MOST_KEPT = 1 << 29
"""Bytes of values that are kept; later rounds are then unknown."""


@dataclass
class InnerValues:
    """Values by name, in the order in which they are made. known: what a run has made."""

    known: dict[str, list[Array]] = field(default_factory=dict)

    def has(self, names: Sequence[Mapping[str, Any]]) -> bool:
        """Whether one of the names is known."""
        return any(row["name"] in self.known for row in names)

    def value(self, name: str, turn: int) -> Array | None:
        """What a name stood for when it was made for the turn-th time, from 0."""
        found = self.known.get(name, ())
        return found[turn] if turn < len(found) else None


def inner_values(
    model: Path, manifest: Mapping[str, Any], feed: Mapping[str, GroupValue], names: Collection[str]
) -> InnerValues:
    """Run the imported model node by node, and keep the values of these names; nothing where it cannot.

    The oracle shares the importer with the code that it tests, as smelt/own_reference.py does.
    """
    kept = InnerValues()
    size = 0

    def watch(node: Node, value: Value, array: Array) -> None:
        nonlocal size
        if value.origin in names and size + array.nbytes <= MOST_KEPT:
            size += array.nbytes
            kept.known.setdefault(value.origin, []).append(array.copy())

    state = {row["name"]: feed[row["name"]] for row in manifest["state"] if row["shape"] is not None}
    given = {name: value for name, value in feed.items() if name not in state}
    try:
        tensors = {**packed(groups(manifest, "inputs"), given, manifest), **state}
        with flushed(not keeps_subnormals(manifest["options"])):
            run_module(import_model(model), tensors, OPS, watch=watch)
    except SmeltError:
        return InnerValues()
    return kept
