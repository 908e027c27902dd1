"""Linked programs -> the manifest's fields: what users, `inspect` and the farm read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from smelt.core.diag import shortened
from smelt.core.dim import Dim, Parts
from smelt.core.ir.graph import Graph, Module, Weight
from smelt.core.machine import CPU
from smelt.core.plan.lifetime import ALIGNMENT, bytes_of
from smelt.core.plan.link import EntryPoint, Linked
from smelt.core.plan.program import HostProgram, Launch, StartAxis, Tensor, WeightPlace, walk_steps
from smelt.probe_points import probes

LONGEST_ORIGIN = 4096
"""How many characters the names of a kernel's nodes may take."""


def build_manifest(
    linked: Linked,
    found: Sequence[Mapping[str, Any]],
    compiler: Mapping[str, Any],
    work: Sequence[Mapping[str, Mapping[str, str]]] = (),
) -> dict[str, Any]:
    """The manifest. compiler: smelt's version, target, machine, options. found: further fields of each entry,
    such as its model's name and SHA-256. work: of each entry's kernels, by name (smelt/work.py).

    The fields of an entry stand at the top level where there is one. Of several, those of the first do, and
    'entries' has a row for each in order: the first with its name, the others with all such fields.
    """
    taken = {s.name for e in linked.entries for s in e.module.symbols}
    parts = Parts((d for e in linked.entries for d in _formulas(e)), taken)
    rows = [{**_entry_fields(e, parts), **own} for e, own in zip(linked.entries, found, strict=True)]
    for row, known in zip(rows, work, strict=False):
        row["kernels"] = [k | {"work": known[k["name"]]} if k["name"] in known else k for k in row["kernels"]]
    manifest = {**compiler, **rows[0], "variants": _variants(linked), "weights": _weights(linked)}
    manifest["parts"] = [list(row) for row in parts.rows]
    if len(rows) > 1:
        others = [{"name": e.name, **row} for e, row in zip(linked.entries[1:], rows[1:], strict=True)]
        manifest["entries"] = [{"name": linked.entries[0].name}, *others]
        manifest["states"] = [s.name for s in linked.states]
    return manifest


def _variants(linked: Linked) -> list[dict[str, Any]]:
    """The field 'variants', of which a session takes the first that fits; [] where there is but one."""
    names = (CPU, *linked.units)
    rows = [
        {
            "processor": v.processor,
            "units": [names[n] for n in v.units],
            "kernels": len({k for e in v.entries for k in e.kernels}),
        }
        for v in linked.variants
    ]
    return rows if len(rows) > 1 else []


def _formulas(entry: EntryPoint) -> Iterator[Dim]:
    """Those that the fields of an entry spell."""
    program = entry.program
    for t in (*program.inputs, *program.outputs):
        yield from t.shape
    yield from (s.extent for s in program.plan if isinstance(s, StartAxis))
    yield from (d for _, d in program.names())
    yield from program.peak
    yield from (s.bytes for s in program.states)
    for p in program.placements:
        yield from (p.offset, p.bytes)
    for n in entry.module.main.walk():
        if n.op == "transfer":
            yield bytes_of(n.output.type.dtype, n.output.type.shape)


def _entry_fields(entry: EntryPoint, parts: Parts) -> dict[str, Any]:
    """The fields of one entry, as opposed to those of the whole bundle."""
    module, program = entry.module, entry.program
    late, units = program.late(), (CPU, *program.units)
    homes, count = [units[n] for n in program.homes], len(program.peak)
    twice = [n for n in range(count) if program.seen[n]]  # the host has as much beside a unit's own memory
    inputs, outputs = homes[len(program.peak) :], homes[len(program.peak) + len(program.inputs) :]
    return {
        "inputs": [_tensor(t, late, u, parts) for t, u in zip(program.fed, inputs, strict=False)],
        "outputs": [_tensor(t, late, u, parts) for t, u in zip(program.given, outputs, strict=False)],
        "state": _state(program, parts),
        "symbols": [
            {
                "name": s.name, "low": s.low, "high": s.high, "divisor": s.divisor, "origin": s.origin,
                **({"hot": list(s.hot)} if s.hot else {}),
            }
            for s in module.symbols
        ],
        "sizes": [[name, parts.text(d)] for name, d in program.names()],
        "checks": [{"text": c.text, "kind": c.kind} for c in program.checks],
        "kernels": _kernels(module, program),
        "transfers": _transfers(module.main, parts),
        "memory": {
            "alignment": ALIGNMENT,
            "arenas": [parts.text(program.peak[n]) for n in (*range(count), *twice)],
            "units": [*homes[:count], *(CPU for _ in twice)],
            "most": [program.most[n] for n in (*range(count), *twice)],
            "outputs": list(program.most[len(program.peak) + len(program.inputs) :]),
        },
        "values": _values(module, program, parts),
        "probes": probes(module, program),
    }


def _weights(linked: Linked) -> dict[str, Any]:
    """The field 'weights': where each tensor lies in the file, under one of its names."""
    rows = [_stored(e.module.weights[w.ref], w) for e in linked.all_entries for w in e.program.weights]
    several = len(linked.all_entries) > 1
    tensors = list({(r["name"], r["layout"], r["offset"]): r for r in rows}.values()) if several else rows
    return {"bytes": linked.weights_bytes, "tensors": tensors}


def _stored(w: Weight, place: WeightPlace) -> dict[str, Any]:
    """The row of a weight in one of its layouts; layouts of equal bytes share an offset."""
    shape = list(w.shape) if place.layout is None else [d.const for d in place.layout.shape]
    return {
        "name": w.origin or w.name[1:],
        "dtype": w.dtype.name,
        "shape": shape,
        "layout": None if place.layout is None else str(place.layout),
        "offset": place.offset,
        "bytes": place.bytes,
    }


class _Group(Protocol):
    """An input or output that several tensors represent."""

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
    """The field 'groups': which tensors of 'inputs' and 'outputs' together represent one value. shape: the
    declared shape of the tensors inside; null where not even their rank is declared."""
    return {
        side: [
            {"name": g.name, "kind": g.kind, "parts": list(g.parts), "shape": g.dims()}
            | ({"keys": list(g.keys)} if g.keys else {})
            for g in found
        ]
        for side, found in (("inputs", inputs), ("outputs", outputs))
    }


def _tensor(t: Tensor, late: frozenset[str], unit: str, parts: Parts) -> dict[str, Any]:
    shape = [_extent(d, parts) for d in t.shape]
    symbols = {s for d in t.shape for s in d.symbols}
    return {"name": t.name, "dtype": t.dtype.name, "shape": shape, "late": bool(symbols & late), "unit": unit}


def _transfers(graph: Graph, parts: Parts) -> list[dict[str, Any]]:
    """The field 'transfers': copies between units, made in each run, or in each iteration of the loop around
    them."""
    values = {v.name: v for v in graph.inputs}
    for n in graph.walk():
        values.update((v.name, v) for v in (*n.outputs, *(x for r in n.regions for x in r.inputs)))
    rows = []
    for n in (n for n in graph.walk() if n.op == "transfer"):
        v, size = values[n.inputs[0]], bytes_of(n.output.type.dtype, n.output.type.shape)
        rows.append({"name": v.origin or v.name, "from": v.unit, "to": n.unit, "bytes": parts.text(size)})
    return rows


def _state(program: HostProgram, parts: Parts) -> list[dict[str, Any]]:
    """The field 'state'. start: the extents before the first run, as numbers and symbols of the inputs;
    bytes: of the input plus the output that replaces it; most: what either of them can take, in bytes;
    room: an axis and its extent in memory; in_place: the output is written where the input lies."""
    starts: dict[int, list[int | str]] = {}
    for s in program.plan:
        if isinstance(s, StartAxis):
            starts.setdefault(s.input, []).append(_extent(s.extent, parts))
    return [
        {
            "name": s.name,
            "output": None if s.output is None else s.output.name,
            "dtype": next(t for t in (s.input, s.output) if t is not None).dtype.name,
            "shape": None if s.input is None else [_extent(d, parts) for d in s.input.shape],
            "next": None if s.output is None else [_extent(d, parts) for d in s.output.shape],
            "start": None if s.input is None else starts.get(program.inputs.index(s.input), []),
            "bytes": parts.text(s.bytes),
            "most": s.most,
            "room": None if s.room is None else list(s.room),
            "in_place": s.in_place,
        }
        for s in program.states
    ]


def _extent(d: Dim, parts: Parts) -> int | str:
    """An extent for JSON: a number, or the text of a formula."""
    return d.const if d.is_const else parts.text(d)


def _kernels(module: Module, program: HostProgram) -> list[dict[str, Any]]:
    """Each kernel once, in the order of first launch, with at how many places the host launches it."""
    launches: dict[str, int] = {}
    units = {e.kernel: (CPU, *program.units)[e.unit] for e in program.entries}
    first: dict[str, int] = {}
    for e in program.entries:
        first[e.kernel] = min(e.statement, first.get(e.kernel, e.statement))
    for s in walk_steps(program.run):
        if isinstance(s, Launch):
            e = program.entries[s.entry]
            launches[e.kernel] = launches.get(e.kernel, 0) + (e.statement == first[e.kernel])
    cases = {c.kernel: {"of": k.name, "dims": dict(c.dims)} for k in module.kernels.values() for c in k.hot}
    return [
        {
            "name": name,
            "unit": units[name],
            "origin": shortened(module.kernels[name].origin, LONGEST_ORIGIN),
            "schedule": module.kernels[name].schedule,
            "launches": count,
            "statements": len(module.kernels[name].body),
            **({"hot": cases[name]} if name in cases else {}),
        }
        for name, count in launches.items()
    ]


def _values(module: Module, program: HostProgram, parts: Parts) -> list[dict[str, Any]]:
    """Where each stored value lives, under its ONNX name."""
    values = {v.name: v for node in module.main.walk() for v in node.outputs}
    return [
        {
            "name": (values[p.value].origin if p.value in values else "") or p.value,
            "arena": p.arena,
            "offset": parts.text(p.offset),
            "bytes": parts.text(p.bytes),
            "live": [p.first, p.last],
        }
        for p in program.placements
    ]
