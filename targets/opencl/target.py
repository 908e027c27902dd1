"""The OpenCL target: a planned module in, OpenCL C for the device and a host object for the platform out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smelt.core.ir.graph import Module
from smelt.core.machine import Machine
from smelt.core.plan.program import HostProgram
from smelt.core.sums import NO_SUMS, Sums
from smelt.targets.base import Artifact
from smelt.targets.cpu_features import required
from smelt.targets.llvm.compile import compile_object
from smelt.targets.llvm.descriptor import HostOptions, KernelRow, UnitRow
from smelt.targets.llvm.emit import module_text
from smelt.targets.llvm.host import host_text
from smelt.targets.llvm.target import cpu_of
from smelt.targets.opencl.emit import emit_program
from smelt.targets.opencl.machine import MACHINE
from smelt.targets.platform import TargetSpec


@dataclass(frozen=True, slots=True)
class OpenClTarget:
    """Every kernel runs on the device; its driver compiles them when a session opens."""

    name: str = "opencl"

    def machine(self, spec: TargetSpec) -> Machine:
        """The least that OpenCL devices offer: which one will run is known on the device only."""
        return MACHINE

    def emit(
        self,
        module: Module,
        program: HostProgram,
        spec: TargetSpec,
        *,
        name: str,
        prefix: str,
        threads: int,
        weights_sha256: bytes,
        weights_sums: Sums = NO_SUMS,
    ) -> Artifact:
        """Device source and host object. Raises SmeltError naming the kernel that cannot be emitted."""
        used = dict.fromkeys(e.kernel for e in program.entries)
        source, parts = emit_program([module.kernels[k] for k in used], MACHINE)
        rows = {}
        for e in program.entries:
            part = parts[e.kernel, e.statement]
            rows[e.name] = KernelRow(unit=1, lanes=part.lanes, symbol=part.name)
        cpu = cpu_of(spec)
        declared: dict[str, str] = {}
        unit = UnitRow(self.name, source.encode())
        options = HostOptions(name, prefix, threads, weights_sha256, (unit,), weights_sums, required(spec))
        host = module_text([host_text(program, module, rows, options, declared)], declared, cpu)
        code = compile_object(host, cpu, name=name)
        dumps: dict[str, Callable[[], str | bytes]]
        dumps = {"model.cl": lambda: source, "model.ll": lambda: host, "model.o": lambda: code}
        return Artifact(code, dumps)


TARGET = OpenClTarget()
