"""A planned module -> the manifest's field 'probes': which launch completes which values, and their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from smelt.core.dim import Dim
from smelt.core.dtype import f32
from smelt.core.ir.graph import Graph, Module, Node, Ref, Value
from smelt.core.ir.kernel import Kernel
from smelt.core.plan.program import CallLibrary, HostProgram, Launch, walk_steps

_LIBRARY_CALLEES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "sgemm": {
            "dims": ["m", "n", "k"],
            "results": [{"buffer": 2, "dtype": f32.name, "shape": ["m", "n"]}],
        }
    }
)
"""What a library function gets and makes, by its adapter: see targets/runtime/smelt_abi.h."""


def probes(module: Module, program: HostProgram) -> dict[str, Any]:
    """The field. callees: of each kernel or library function the names of its dims, which follow the buffers
    in a launch's arguments, and what it makes: the buffer, dtype and shape in these dims. sites: the launches
    in the order of the program, each with the names of the values that are complete after it, one list per
    result; none where the kernel has further statements to launch.

    A name may have 'axes' (the ONNX value is the stored one transposed by them) and 'last' (the value is what
    the last round of a loop leaves). A name that the model does not have is smelt's own.
    """
    names = _names(module.main)
    callees: dict[str, Any] = {}
    sites: list[dict[str, Any]] = []
    for step in walk_steps(program.run):
        if isinstance(step, Launch):
            callee = program.entries[step.entry].kernel
            callees.setdefault(callee, _callee(module.kernels[callee]))
        elif isinstance(step, CallLibrary):
            callee = program.libraries[step.library]
            callees.setdefault(callee, _LIBRARY_CALLEES[module.libraries[callee].adapter])
        else:
            continue
        made = {"made": [names.get(ref, []) for _, ref in step.made]} if step.made else {}
        assert step.site == len(sites), "launches are numbered in the order of the program"
        sites.append({"callee": callee, **made})
    return {"callees": callees, "sites": sites}


def _callee(k: Kernel) -> dict[str, Any]:
    return {
        "dims": [d.name for d in k.dims],
        "results": [
            {"buffer": n, "dtype": b.dtype.name, "shape": [_extent(d) for d in b.shape]}
            for n, b in enumerate(k.outputs, len(k.inputs))
        ],
    }


def _extent(d: Dim) -> int | str:
    return d.const if d.is_const else str(d)


def _names(graph: Graph) -> dict[Ref, list[dict[str, Any]]]:
    """Value -> the ONNX names of its bytes: its own, those of its reshapes, and of what a branch or a loop
    returns it as."""
    found: dict[Ref, list[dict[str, Any]]] = {}
    below: dict[Ref, Ref] = {}  # a reshape -> what it is a view of

    def add(ref: Ref, v: Value, **more: bool) -> None:
        name = _name(v) | more
        rows = found.setdefault(ref, [])
        if v.origin and name not in rows:
            rows.append(name)

    def returned(results: Sequence[Ref], outputs: Sequence[Value], **more: bool) -> None:
        for ref, v in zip(results, outputs, strict=True):
            add(below.get(ref, ref), v, **more)

    for node in graph.walk():
        for v in node.outputs:
            if node.op == "reshape":
                below[v.name] = below.get(node.inputs[0], node.inputs[0])
            add(below.get(v.name, v.name), v)
    for node in graph.walk():
        for region in node.regions:
            if node.op == "if":
                returned(region.outputs, node.outputs)
            elif node.op == "loop":
                count = _carried(node)
                returned(region.outputs[1 : 1 + count], node.outputs[:count], last=True)
    return found


def _carried(node: Node) -> int:
    return len(node.inputs) - 2


def _name(v: Value) -> dict[str, Any]:
    return {"name": v.origin, **({"axes": list(v.axes)} if v.axes else {})}
