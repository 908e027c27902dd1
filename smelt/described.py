"""Linked programs and their modules before the schedule in; what each kernel is, takes and does, out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, TooLarge, to_dim
from smelt.core.dim.expr import common_factor, divide_terms
from smelt.core.estimate import occupancy
from smelt.core.ir.analysis.work import KernelWork, work
from smelt.core.ir.barriers import lane_count
from smelt.core.ir.graph import Module, Node
from smelt.core.ir.groups import group_count
from smelt.core.ir.kernel import Kernel, Loop, Stmt, walk
from smelt.core.ir.text import print_kernel
from smelt.core.machine import CPU, Machine
from smelt.core.plan.link import Linked
from smelt.targets.base import ChipUsage, DeviceCode, Key
from smelt.targets.platform import TargetSpec
from smelt.targets.registry import cpu_target, devices

MOST_SPELLED = 3
"""How many different numbers of groups are spelled, of a kernel that is launched with many sizes."""


@dataclass
class _Launched:
    """Where a kernel is launched. sizes: its dims at each place. work: of all of these together; None: of one
    of them nobody knows."""

    sizes: list[Sequence[Dim]] = field(default_factory=list)
    work: KernelWork | None = field(default_factory=KernelWork)


def described(
    linked: Linked,
    naive: Sequence[Module | None],
    spec: TargetSpec,
    machines: Mapping[str, Machine],
    listings: Collection[str],
) -> list[dict[str, Any]]:
    """A row for each kernel of each variant, in the order of the kernel table, for `inspect --kernels`.

    naive: of each entry of each variant, its module before the schedule, by which work is counted; None where
    the compile began after that. listings: names of the kernels (with * and ?) whose code is wanted as text.
    Raises SmeltError (invalid) for a name that no kernel has; for code that cannot be shown.
    """
    launched = _launches(linked, naive)
    units = (CPU, *linked.units)
    rows = []
    made = {unit: _emitted(linked, n, unit, spec) for n, unit in enumerate(units) if n}
    usage = {unit: code.usage() for unit, code in made.items()}
    levels = {level.processor: level for level in spec.levels()}
    for name, unit in {e.kernel: units[e.unit] for e in linked.rows}.items():
        kernel = linked.kernels[name]
        wanted = any(fnmatchcase(name, pattern) for pattern in listings)
        found = launched.get(name) or _Launched(work=None)  # of a chain nobody knows which parts take part
        parts = [
            _part(s, (name, i), found, kernel, machines[unit], made.get(unit), usage.get(unit, {}), wanted)
            for i, s in enumerate(kernel.body)
        ]
        row: dict[str, Any] = {
            "name": name,
            "unit": unit,
            "machine": _machine(machines[unit]),
            "tree": print_kernel(kernel),
            "parts": parts,
            "work": None if found.work is None else _formulas(found.work),
            "listing": None,
        }
        if wanted and unit == CPU:
            row["listing"] = cpu_target().listing(kernel, levels[linked.processors[name]])
        rows.append(row)
    _check(listings, [row["name"] for row in rows])
    return rows


def _check(listings: Iterable[str], names: Sequence[str]) -> None:
    for pattern in listings:
        if not any(fnmatchcase(name, pattern) for name in names):
            known = ", ".join(names[:20]) + (", .." if len(names) > 20 else "")
            raise SmeltError(f"no kernel is called '{pattern}'", hint=f"kernels: {known}")


def _emitted(linked: Linked, number: int, unit: str, spec: TargetSpec) -> DeviceCode:
    names = dict.fromkeys(e.kernel for e in linked.rows if e.unit == number)
    return devices(spec)[unit].emit([linked.kernels[name] for name in names], spec)


def _machine(m: Machine) -> dict[str, Any]:
    """What estimates need of it."""
    return {
        "name": m.name, "lanes": m.max_lanes, "shared_bytes": m.shared_bytes,
        "vector_bits": m.vector_bits, "operations": m.operations, "bandwidth": m.bandwidth,
    }  # fmt: skip


def _formulas(w: KernelWork) -> dict[str, Any]:
    """Its fields as text, and operations a byte as a fraction in lowest terms."""
    operations, moved = w.operations, w.bytes
    number, mono = common_factor(operations, moved)
    ratio = [operations, moved]
    if number:
        ratio = [divide_terms(d, number, mono) for d in ratio]
    fields = {name: str(getattr(w, name)) for name in ("floating", "integer", "read", "written")}
    return {**fields, "intensity": [str(d) for d in ratio]}


# ---------------------------------------------------------------- launches


def _launches(linked: Linked, naive: Sequence[Module | None]) -> dict[str, _Launched]:
    """By kernel: each place where one of the programs launches it counts once, also in a loop or a branch."""
    found: dict[str, _Launched] = {}
    counted: dict[Kernel, KernelWork | None] = {}
    for e, before in zip(linked.all_entries, naive, strict=True):
        known = {} if before is None else _calls(before)
        for outputs, node in _calls(e.module).items():
            source = known.get(outputs)
            for name, sizes in _at_sizes(e.module, node):
                own = found.setdefault(name, _Launched())
                own.sizes.append(sizes)
                if before is None or source is None:
                    own.work = None
                if own.work is None or before is None or source is None:
                    continue
                kernel = before.kernels[str(source.attr("kernel"))]
                try:
                    if kernel not in counted:
                        counted[kernel] = work(kernel)
                    one = counted[kernel]
                    own.work = None if one is None else own.work + one.at(kernel, sizes)
                except TooLarge:
                    own.work = None
    return found


def _at_sizes(module: Module, node: Node) -> Iterator[tuple[str, Sequence[Dim]]]:
    """The kernels that a call may run, each with what its dims are then."""
    kernel = module.kernels[str(node.attr("kernel"))]
    sizes: Sequence[Dim] = node.attr("dims", ())
    yield kernel.name, sizes
    for case in kernel.hot:
        values = dict(case.dims)
        known = zip(kernel.dims, sizes, strict=True)
        yield case.kernel, [to_dim(values[p.name]) if p.name in values else d for p, d in known]


def _calls(module: Module) -> dict[tuple[str, ...], Node]:
    """The launches of a module, by the values that they make; a schedule changes no value's name."""
    nodes = (n for g in module.graphs.values() for n in g.walk())
    return {tuple(v.name for v in n.outputs): n for n in nodes if n.op == "call_kernel"}


# ---------------------------------------------------------------- parts


def _part(
    s: Stmt, key: Key, launched: _Launched, kernel: Kernel, machine: Machine, code: DeviceCode | None,
    usage: Mapping[Key, tuple[ChipUsage, ...]], wanted: bool,
) -> dict[str, Any]:  # fmt: skip
    """A top-level statement: what one launch of a driver runs."""
    part = None if code is None else code.parts[key]
    listing = part.listing if part is not None and wanted else None
    return {
        "symbol": "" if part is None else part.symbol,
        "groups": _groups(s, kernel, launched),
        "lanes": lane_count(s, machine.max_lanes) if part is None else part.lanes,
        "vectors": sorted(_vectors(s), reverse=True),
        "shared_bytes": 0 if part is None else part.shared_bytes,
        "forms": [] if part is None else list(part.forms),
        "usage": [_used(u, part.lanes) for u in usage.get(key, ())] if part is not None else [],
        "listing": None if listing is None else listing(),
    }


def _groups(s: Stmt, kernel: Kernel, launched: _Launched) -> list[str]:
    """How many groups the places launch, each number once; where it is launched nowhere, in its own dims."""
    groups = group_count(s)
    names = [p.name for p in kernel.dims]
    spell = partial(_spelled, groups, names)
    found = list(dict.fromkeys(map(spell, launched.sizes))) or [str(groups)]
    rest = len(found) - MOST_SPELLED
    return found if rest <= 0 else [*found[:MOST_SPELLED], f"{rest} more"]


def _spelled(groups: Dim, names: Sequence[str], sizes: Sequence[Dim]) -> str:
    try:
        return str(groups.substitute(dict(zip(names, sizes, strict=True))))
    except TooLarge:
        return str(groups)


def _vectors(s: Stmt) -> set[int]:
    """Elements of the vectors that a statement computes with."""
    loops: Iterator[Loop] = (x for x in walk((s,)) if isinstance(x, Loop) and x.level == "vector")
    return {n for loop in loops if (n := loop.extent.const_or_none) is not None and n > 1}


def _used(u: ChipUsage, lanes: int) -> dict[str, Any]:
    """What a chip's machine code takes, and how many of its groups a core of the chip holds."""
    known = u.registers is not None and u.shared_bytes is not None
    held = occupancy(u.machine, lanes, u.registers or 0, u.shared_bytes or 0) if known else None
    return {
        "machine": u.machine.name,
        "registers": u.registers,
        "spilled": u.spilled,
        "shared_bytes": u.shared_bytes,
        "occupancy": None
        if held is None
        else {"groups": held.groups, "share": held.share, "limit": held.limit},
    }
