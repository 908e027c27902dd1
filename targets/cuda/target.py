"""The CUDA device: kernels in, PTX and machine code out, which the driver loads when a session opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from smelt.core.diag import SmeltError
from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.targets.base import ChipUsage, DeviceCode, Key, LaunchedPart
from smelt.targets.cuda.emit import Part as KernelPart
from smelt.targets.cuda.emit import Program, emit_program
from smelt.targets.cuda.images import CUBIN, PTX, Image, packed
from smelt.targets.cuda.machine import MACHINE, cpu_for, machine_of, scheduled_for
from smelt.targets.cuda.ptx import ARCHITECTURES, assemble, module, ptx, resources
from smelt.targets.platform import TargetSpec

BATCH = 1 << 18
"""Characters of LLVM IR that LLVM and the device's driver translate at a time; a kernel is never split."""


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """An NVIDIA GPU. Without a named architecture, the PTX of the lowest one, which any driver translates for
    the GPU that is there; with some (`+cuda:sm_72:sm_87`), the PTX of the lowest of them, and machine code of
    each that ptxas knows, where ptxas is there."""

    name: str = "cuda"

    def machine(self, spec: TargetSpec) -> Machine:
        """What every architecture has, from the lowest one on that is named. Raises SmeltError(unsupported)
        for one that does not exist."""
        named = architectures(spec)
        return scheduled_for(named[0]) if named else MACHINE

    def emit(self, kernels: Sequence[Kernel], spec: TargetSpec) -> DeviceCode:
        """Raises SmeltError naming the kernel that cannot be emitted."""
        named = architectures(spec)
        program = emit_program(kernels, cpu_for((named or ARCHITECTURES)[0]))
        batches = list(_batches(program))
        images = packed([i for number, b in enumerate(batches) for i in self.images(b, number, named)])
        lowest = (named or ARCHITECTURES)[0]

        def listing(key: Key) -> str:
            return ptx(module(Program({key: program.parts[key]}, program.declared)), lowest)

        rows = {
            key: LaunchedPart(p.name, p.threads, shared_bytes=p.shared_bytes, asked_bytes=p.asked_bytes,
                              listing=partial(listing, key))
            for key, p in program.parts.items()
        }  # fmt: skip
        dumps = {
            "model.cuda.ll": lambda: module(program),
            "model.ptx": lambda: "\n".join(ptx(module(b), lowest) for b in batches),
        }
        usage = partial(_usage, batches, named or (lowest,))
        return DeviceCode(images, rows, dumps=dumps, usage=usage)

    def images(self, program: Program, batch: int, named: Sequence[str]) -> list[Image]:
        """What a driver may choose from, for one batch. named: architectures, lowest first; none: any."""
        text, lowest = module(program), (named or ARCHITECTURES)[0]
        found = [Image(batch, PTX, lowest, ptx(text, lowest).encode("ascii"))]
        for architecture in named:
            made = assemble(ptx(text, architecture), architecture)
            if made is not None:
                found.append(Image(batch, CUBIN, architecture, made[0]))
        return found


TARGET = CudaDevice()


def architectures(spec: TargetSpec) -> tuple[str, ...]:
    """Those that a target names, lowest first. Raises SmeltError(unsupported) for one that does not exist."""
    named = spec.chips_of(TARGET.name)
    for name in named:
        if name not in ARCHITECTURES:
            raise SmeltError(
                f"target '{spec}': there is no CUDA architecture {name!r}",
                kind="unsupported",
                hint=f"architectures: {', '.join(ARCHITECTURES)}",
            )
    return tuple(sorted(named, key=ARCHITECTURES.index))


def _usage(batches: Sequence[Program], chosen: Sequence[str]) -> dict[Key, tuple[ChipUsage, ...]]:
    """What ptxas says of each part, for each of these architectures that it knows."""
    found: dict[Key, tuple[ChipUsage, ...]] = {}
    for architecture in chosen:
        for b in batches:
            made = assemble(ptx(module(b), architecture), architecture)
            told = {} if made is None else resources(made[1])
            for key, part in b.parts.items():
                r, one = told.get(part.name), ChipUsage(machine_of(architecture))
                if r is not None:
                    shared = r.shared + part.asked_bytes
                    one = replace(one, registers=r.registers, spilled=r.spills, shared_bytes=shared)
                found[key] = (*found.get(key, ()), one)
    return found


def _batches(program: Program) -> Iterator[Program]:
    """Neighbours put together, up to BATCH characters; each with all that is declared."""
    rows: list[tuple[tuple[str, int], KernelPart]] = []
    size = 0
    for key, part in program.parts.items():
        if rows and size + len(part.text) > BATCH:
            yield Program(dict(rows), program.declared)
            rows, size = [], 0
        rows.append((key, part))
        size += len(part.text)
    yield Program(dict(rows), program.declared)
