"""The bindings of ONNX ops: name and opset in, the row that translates it out."""

from __future__ import annotations

from smelt.importer import families, plugins
from smelt.importer.bindings.table import BINDINGS, extend
from smelt.importer.call import OnnxOp


def find(domain: str, name: str, opset: int) -> OnnxOp | None:
    """The row in force at that opset; None when there is none. Loads the family that has the op."""
    key = (domain, name)
    if key not in BINDINGS and key in families.BY_BINDING:
        plugins.load(families.BY_BINDING[key])
    return next((r for r in BINDINGS.get(key, ()) if r.since <= opset), None)


__all__ = ["BINDINGS", "extend", "find"]
