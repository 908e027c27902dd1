"""The CPU target: a planned module in, one relocatable object (kernels, host code, descriptor) out."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.core.ir.graph import Module
from smelt.core.machine import Machine
from smelt.core.plan.program import HostProgram
from smelt.targets.base import Artifact
from smelt.targets.llvm.compile import compile_object
from smelt.targets.llvm.emit import emit_kernel, module_text
from smelt.targets.llvm.host import HostOptions, KernelRow, host_text
from smelt.targets.llvm.machines import Cpu, cpu_for, machine_for
from smelt.targets.platform import TargetSpec


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

    def emit(
        self,
        module: Module,
        program: HostProgram,
        spec: TargetSpec,
        *,
        name: str,
        threads: int,
        weights_sha256: bytes,
    ) -> Artifact:
        """One object for the platform. Raises SmeltError(internal) naming the kernel LLVM refuses."""
        cpu = cpu_of(spec)
        used = dict.fromkeys(e.kernel for e in program.entries)
        functions: list[str] = []
        declared: dict[str, str] = {}
        for kernel in used:
            text = emit_kernel(module.kernels[kernel], cpu)
            functions.extend(text.functions)
            declared.update(text.declared)
        rows = {e.name: KernelRow() for e in program.entries}
        options = HostOptions(name, threads, weights_sha256)
        functions.append(host_text(program, module, rows, options, declared))
        text_all = module_text(functions, declared, cpu)
        code = compile_object(text_all, cpu, name=name)
        return Artifact(code, None, (("model.ll", text_all), ("model.o", code)))
