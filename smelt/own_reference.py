"""A model with ops that ONNX Runtime lacks -> the results of its ops' own NumPy references.

A plug-in's ops have no other oracle: `ref` of each op is called node by node on the imported module. The
oracle shares the importer with the code that it tests, so it cannot find faults of bindings; it finds those
of passes, schedules, the planner and code generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from smelt.core.diag import SmeltError
from smelt.core.lazily import Lazily
from smelt.core.subnormals import flushed, keeps_subnormals
from smelt.groups import GroupValue, groups, packed, unpacked
from smelt.reference import Reference

if TYPE_CHECKING:
    from smelt import importer, plugin
    from smelt.core import ops
    from smelt.core.ir import interp_graph
else:  # most models are compared with ONNX Runtime and need none of the compiler
    importer, plugin = Lazily("smelt.importer"), Lazily("smelt.plugin")
    ops = Lazily("smelt.core.ops")
    interp_graph = Lazily("smelt.core.ir.interp_graph")


class Evaluator(Protocol):
    """The interface of a reference implementation. name: for messages; label: name and version."""

    name: str
    label: str

    def run(self, feed: Mapping[str, GroupValue]) -> dict[str, GroupValue]:
        """Output name -> value. Raises SmeltError(kind='shape') for illegal inputs."""
        ...


class OwnReference:
    """The NumPy references of all ops of one model. manifest: that of a bundle of the model. outputs: values
    to return besides the model's own."""

    name = "the references of its ops"
    label = name

    def __init__(self, model: Path, manifest: Mapping[str, Any], outputs: Sequence[str] = ()) -> None:
        self._module = importer.import_model(model, outputs=tuple(outputs))
        self._takes, self._gives = groups(manifest, "inputs"), groups(manifest, "outputs")
        self._manifest = manifest
        self._more = [n for n in outputs if n in self._module.main.output_names]
        self._state = manifest["state"]
        self._flush = not keeps_subnormals(manifest["options"])

    def run(self, feed: Mapping[str, GroupValue]) -> dict[str, GroupValue]:
        """As Oracle.run."""
        state = {row["name"]: feed[row["name"]] for row in self._state if row["shape"] is not None}
        fed = {name: value for name, value in feed.items() if name not in state}
        given = {**packed(self._takes, fed, self._manifest), **state}
        with flushed(self._flush):
            found = interp_graph.run_module(self._module, given, ops.OPS)
        tensors = dict(zip(self._module.main.output_names, found, strict=True))
        replaced = [row["output"] for row in self._state if row["output"] is not None]
        more = {name: tensors[name] for name in (*replaced, *self._more)}
        return {**unpacked(self._gives, tensors), **more}


def oracle(model: Path, manifest: Mapping[str, Any], outputs: Sequence[str] = ()) -> Evaluator:
    """The oracle of a model: ONNX Runtime, or the ops' own references where it refuses the model and plug-ins
    are loaded.

    Raises SmeltError as Reference does.
    """
    try:
        return Reference(model, outputs=outputs, flush=not keeps_subnormals(manifest["options"]))
    except SmeltError as e:
        if e.kind != "invalid" or not plugin.named_plugins():
            raise
        return OwnReference(model, manifest, outputs)
