"""The CPU target: planned modules in, one relocatable object (kernels, host code, descriptor) out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TypeAlias

from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.core.plan.link import Linked
from smelt.core.plan.program import Entry
from smelt.core.spread import SpreadOut, serially
from smelt.core.sums import NO_SUMS, Sums
from smelt.targets.base import Artifact, DeviceCode, DeviceUnit
from smelt.targets.cpu_features import required
from smelt.targets.llvm.compile import assembly, compile_object
from smelt.targets.llvm.descriptor import HostOptions, KernelRow, UnitRow
from smelt.targets.llvm.emit import IrText, emit_kernel, emit_shared, function_name, merged
from smelt.targets.llvm.host import host_code
from smelt.targets.llvm.machines import Cpu, cpu_for, machine_for
from smelt.targets.llvm.sharing import share_code
from smelt.targets.platform import TargetSpec
from smelt.targets.toolchain import join_objects

BATCH = 1 << 18
"""Characters of text that LLVM compiles at a time, each of which takes some 40 bytes of memory; a kernel is
never split. A small model fits with its host program: one object, which needs no linker."""

KERNELS, BATCHES = 256, 64
"""Kernels and batches that are shared out at a time, which bounds the text that is held."""

FORK_KERNELS = 8
"""Kernels whose text takes longer than a fork does."""

LONG_HOST = 1 << 18
"""Characters of the text of runs (some 500 per launch) from which on it is not optimised: a launch then takes
0.1 ms to compile, not 0.9, and 8 ns longer (benchmarks/results/compile_time.md). What runs for new shapes is
optimised only where all is one object: the formulas of a large model took as long as a level's kernels."""

ProcessorText: TypeAlias = "tuple[str, IrText]"
"""The name of a processor, and code for it."""


def cpu_of(spec: TargetSpec) -> Cpu:
    """The processor that a target names."""
    return cpu_for(spec.platform.triple, spec.cpu, spec.features)


@dataclass(frozen=True, slots=True)
class LlvmTarget:
    """Kernels become functions of the host's own architecture."""

    name: str = "llvm"

    def machine(self, spec: TargetSpec) -> Machine:
        """Lanes and registers of the processor."""
        return machine_for(spec.platform.triple, spec.cpu, spec.features)

    def listing(self, kernel: Kernel, spec: TargetSpec) -> str:
        """The assembly of a kernel. Raises as `emit`."""
        cpu = cpu_of(spec)
        return assembly(emit_kernel(kernel, cpu).module(cpu), cpu, kernel.name)

    def emit(
        self,
        linked: Linked,
        spec: TargetSpec,
        *,
        name: str,
        prefix: str,
        threads: int,
        keep_subnormals: bool = False,
        weights_sha256: bytes,
        weights_sums: Sums = NO_SUMS,
        devices: Mapping[str, DeviceUnit],
        spread: SpreadOut = serially,
    ) -> Artifact:
        """One object for the platform. Raises SmeltError(internal) naming the kernel LLVM refuses."""
        levels = {level.processor: level for level in spec.levels()}
        cpu, cpus = cpu_of(spec), {name: cpu_of(level) for name, level in levels.items()}
        codes = [
            devices[unit].emit([linked.kernels[k] for k in _used(linked, number)], spec)
            for number, unit in enumerate(linked.units, 1)
        ]
        units = tuple(
            UnitRow(unit, code.code, linked.weights_at(number))
            for number, (unit, code) in enumerate(zip(linked.units, codes, strict=True), 1)
        )
        features = {name: required(level) for name, level in levels.items()}
        options = HostOptions(
            name, prefix, threads, keep_subnormals, weights_sha256, units, weights_sums, features
        )
        own = next(p for p, level in cpus.items() if level == cpu)
        host = _host(linked, codes, options, own)
        objects = _objects(_batches(_texts(linked, cpus, spread)), host, cpus, cpu, name, spread)
        code = join_objects([*objects, *(o for c in codes for o in c.objects)])

        def whole(processor: str) -> str:
            rest = (host.beside,) if processor == own else ()
            texts = _texts(linked, {processor: cpus[processor]}, serially)
            return merged((*(text for _, text in texts), *rest)).module(cpus[processor])

        dumps = {name: make for c in codes for name, make in c.dumps.items()}
        for processor in levels:
            dumps["model.ll" if len(levels) == 1 else f"model.{processor}.ll"] = partial(whole, processor)
        return Artifact(code, {**dumps, "model.o": lambda: code})


TARGET = LlvmTarget()


def _used(linked: Linked, unit: int) -> Iterable[str]:
    """Names of the kernels that a unit runs, in the order of their first launch."""
    return dict.fromkeys(e.kernel for e in linked.rows if e.unit == unit)


def _row(kernel: Kernel, e: Entry, codes: Sequence[DeviceCode]) -> KernelRow:
    if not e.unit:
        return KernelRow(e.name, function_name(kernel.name, e.statement))
    part = codes[e.unit - 1].parts[e.kernel, e.statement]
    return KernelRow(part.symbol, part.function, part.lanes, group_bytes=part.asked_bytes)


@dataclass(frozen=True, slots=True)
class _Host:
    """The program around the kernels. plans: run for new shapes. runs: for each run. apart: `runs` for an
    object of its own, which declares the kernels; beside: both for one that has its processor's kernels."""

    plans: IrText
    runs: IrText
    apart: IrText
    beside: IrText


def _host(linked: Linked, codes: Sequence[DeviceCode], options: HostOptions, own: str) -> _Host:
    """own: the processor it runs on."""
    rows = [_row(linked.kernels[e.kernel], e, codes) for e in linked.rows]
    host = host_code(linked, rows, options)
    plans, runs = (
        IrText((t,), declared) for t, declared in zip((host.plans, host.run), host.declared, strict=True)
    )
    near = {
        row.function: not e.unit and linked.processors[e.kernel] == own
        for e, row in zip(linked.rows, rows, strict=True) if row.function
    }  # fmt: skip
    functions = {n: f'declare void @"{n}"(ptr, i64, i64) nounwind' for n in near}
    others = {n: text for n, text in functions.items() if not near[n]}
    apart = IrText(runs.functions, {**runs.declared, **host.apart, **functions})
    beside = merged((plans, IrText(runs.functions, {**runs.declared, **others})))
    return _Host(plans, runs, apart, beside)


def _texts(linked: Linked, cpus: Mapping[str, Cpu], spread: SpreadOut) -> Iterator[ProcessorText]:
    """Code for the kernels of the CPU, of the processors that are given."""
    used = list(_used(linked, 0))
    own = [
        (p, group)
        for p in cpus
        for group in share_code(linked.kernels[k] for k in used if linked.processors[k] == p)
    ]
    for first in range(0, len(own), KERNELS):
        part = own[first : first + KERNELS]
        made = spread(lambda at: emit_shared(at[1], cpus[at[0]]), part, FORK_KERNELS)
        yield from ((p, text) for (p, _), text in zip(part, made, strict=True))


def _objects(
    batches: Iterator[ProcessorText], host: _Host, cpus: Mapping[str, Cpu], cpu: Cpu, name: str,
    spread: SpreadOut,
) -> list[bytes]:
    """Machine code: one object where all of it is small, else one for each batch, and the host's last."""
    first = list(islice(batches, 2))
    size = sum(t.size for t in (*(batch for _, batch in first), host.beside))
    if len(cpus) == 1 and len(first) < 2 and size <= BATCH and host.runs.size < LONG_HOST:
        return [_object(merged((*(batch for _, batch in first), host.beside)), cpu, name)]
    opt = 2 if host.apart.size < LONG_HOST else 0
    kernels = ((text, cpus[p], 2) for p, text in chain(first, batches))
    objects, rest = [], chain([(host.apart, cpu, opt), (host.plans, cpu, 0)], kernels)
    while part := list(islice(rest, BATCHES)):
        objects += spread(lambda item: _object(item[0], item[1], name, item[2]), part)
    return [*objects[2:], *objects[:2]]


def _object(text: IrText, cpu: Cpu, name: str, opt: int = 2) -> bytes:
    return compile_object(text.module(cpu), cpu, opt, name)


def _batches(texts: Iterable[ProcessorText]) -> Iterator[ProcessorText]:
    """Neighbours for one processor put together, up to BATCH characters."""
    for processor, own in groupby(texts, itemgetter(0)):
        batch: list[IrText] = []
        size = 0
        for _, text in own:
            if batch and size + text.size > BATCH:
                yield processor, merged(batch)
                batch, size = [], 0
            batch.append(text)
            size += text.size
        yield processor, merged(batch)
