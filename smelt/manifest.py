"""A planned module -> the manifest's fields: what users, `inspect` and the farm read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from smelt.core.diag import shortened
from smelt.core.dim import Dim
from smelt.core.ir.graph import Module
from smelt.core.plan.arena import ALIGNMENT
from smelt.core.plan.program import HostProgram, Launch, Tensor, walk_steps

LONGEST = 4096
"""Characters of what names the nodes of a kernel, for people."""


def build_manifest(
    module: Module, program: HostProgram, *, model: Mapping[str, Any], compiler: Mapping[str, Any]
) -> dict[str, Any]:
    """model: name and sha256 of the source. compiler: smelt's version, target, machine, options."""
    late = program.late()
    return {
        **compiler,
        "model": dict(model),
        "inputs": [_tensor(t, late) for t in program.inputs],
        "outputs": [_tensor(t, late) for t in program.outputs],
        "symbols": [
            {"name": s.name, "low": s.low, "high": s.high, "divisor": s.divisor, "origin": s.origin}
            for s in module.symbols
        ],
        "sizes": [[name, str(d)] for name, d in program.names()],
        "checks": [{"text": c.text, "kind": c.kind} for c in program.checks],
        "kernels": _kernels(module, program),
        "variants": [],
        "memory": {"alignment": ALIGNMENT, "arenas": [str(d) for d in program.peak]},
        "weights": {
            "bytes": program.weights_bytes,
            "tensors": [
                {
                    "name": module.weights[w.ref].origin or w.ref[1:],
                    "dtype": module.weights[w.ref].dtype.name,
                    "shape": list(module.weights[w.ref].shape),
                    "offset": w.offset,
                    "bytes": w.bytes,
                }
                for w in program.weights
            ],
        },
        "values": _values(module, program),
    }


class _Group(Protocol):
    """An input or output that several tensors stand for."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def parts(self) -> tuple[str, ...]: ...

    @property
    def keys(self) -> tuple[int | str, ...]: ...

    def dims(self) -> list[int | str] | None: ...


def group_rows(inputs: Sequence[_Group], outputs: Sequence[_Group]) -> dict[str, Any]:
    """The field 'groups': which tensors of 'inputs' and 'outputs' are one value of another kind.
    shape: what the file declares of the tensors inside; null: not even their rank."""
    return {
        side: [
            {"name": g.name, "kind": g.kind, "parts": list(g.parts), "shape": g.dims()}
            | ({"keys": list(g.keys)} if g.keys else {})
            for g in found
        ]
        for side, found in (("inputs", inputs), ("outputs", outputs))
    }


def _tensor(t: Tensor, late: frozenset[str]) -> dict[str, Any]:
    shape = [_extent(d) for d in t.shape]
    symbols = {s for d in t.shape for s in d.symbols}
    return {"name": t.name, "dtype": t.dtype.name, "shape": shape, "late": bool(symbols & late)}


def _extent(d: Dim) -> int | str:
    """Numbers as numbers, everything else as text that parses back."""
    return d.const if d.is_const else str(d)


def _kernels(module: Module, program: HostProgram) -> list[dict[str, Any]]:
    """Each kernel once, in the order of first launch, with at how many places the host launches it."""
    launches: dict[str, int] = {}
    for s in walk_steps(program.run):
        if isinstance(s, Launch):
            e = program.entries[s.entry]
            launches[e.kernel] = launches.get(e.kernel, 0) + (e.statement == 0)
    return [
        {
            "name": name,
            "origin": shortened(module.kernels[name].origin, LONGEST),
            "schedule": module.kernels[name].schedule,
            "launches": count,
            "statements": len(module.kernels[name].body),
        }
        for name, count in launches.items()
    ]


def _values(module: Module, program: HostProgram) -> list[dict[str, Any]]:
    """Where each stored value lives, under its ONNX name."""
    values = {v.name: v for node in module.main.walk() for v in node.outputs}
    return [
        {
            "name": (values[p.value].origin if p.value in values else "") or p.value,
            "arena": p.arena,
            "offset": str(p.offset),
            "bytes": str(p.bytes),
            "live": [p.first, p.last],
        }
        for p in program.placements
    ]
