"""A model with ops that ONNX Runtime lacks -> what its ops' own NumPy references compute.

A plug-in's ops have no other oracle: `ref` of each op, called node by node on the model as it is imported. It
shares the importer with the code that it judges, so it says nothing about bindings; the passes, the
schedules, the planner and the code are held to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from smelt.core.diag import SmeltError
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.groups import Value, groups, packed, unpacked
from smelt.importer import import_model
from smelt.plugin import named_plugins
from smelt.reference import Reference


class Oracle(Protocol):
    """What says what outputs should be. name: in messages; label: the same with its version."""

    name: str
    label: str

    def run(self, feed: Mapping[str, Value]) -> dict[str, Value]:
        """Outputs by name. Raises SmeltError(kind='shape') for inputs that are none."""
        ...


class OwnReference:
    """The references of all ops of one model. manifest: that of a bundle made of it, with `outputs` visible
    besides the model's own."""

    name = "the references of its ops"
    label = name

    def __init__(self, model: Path, manifest: Mapping[str, Any], outputs: Sequence[str] = ()) -> None:
        self._module = import_model(model, outputs=tuple(outputs))
        self._takes, self._gives = groups(manifest, "inputs"), groups(manifest, "outputs")
        self._symbols = manifest["symbols"]
        self._state = manifest["state"]

    def run(self, feed: Mapping[str, Value]) -> dict[str, Value]:
        """As Oracle's."""
        state = {row["name"]: feed[row["name"]] for row in self._state if row["shape"] is not None}
        fed = {name: value for name, value in feed.items() if name not in state}
        found = run_module(self._module, {**packed(self._takes, fed, self._symbols), **state}, OPS)
        tensors = dict(zip(self._module.main.output_names, found, strict=True))
        replaced = [row["output"] for row in self._state if row["output"] is not None]
        return {**unpacked(self._gives, tensors), **{name: tensors[name] for name in replaced}}


def oracle(model: Path, manifest: Mapping[str, Any], outputs: Sequence[str] = ()) -> Oracle:
    """ONNX Runtime; where it refuses the model and plug-ins are in use, the ops' own references.

    Raises SmeltError as Reference does."""
    try:
        return Reference(model, outputs=outputs)
    except SmeltError as e:
        if e.kind != "invalid" or not named_plugins():
            raise
        return OwnReference(model, manifest, outputs)
