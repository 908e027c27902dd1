"""A device that runs on the CPU, with memory of its own and vectors of 128 bits: a folder for targets/.

Its driver (tests/targets/runtime_c/fake_driver.c) calls the functions of the kernels, which are the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.targets.base import DeviceCode, LaunchedPart
from smelt.targets.llvm.compile import compile_object
from smelt.targets.llvm.emit import emit_kernel, function_name, merged
from smelt.targets.llvm.target import cpu_of
from smelt.targets.platform import TargetSpec


@dataclass(frozen=True, slots=True)
class FakeDevice:
    """Needs no hardware."""

    name: str = "fake"

    def machine(self, spec: TargetSpec) -> Machine:
        return Machine("fake", vector_bits=128, vector_registers=16)

    def emit(self, kernels: Sequence[Kernel], spec: TargetSpec) -> DeviceCode:
        cpu = cpu_of(spec)
        text = merged(emit_kernel(k, cpu) for k in kernels).module(cpu)
        keys = [(k, i) for k in kernels for i in range(len(k.body))]
        parts = {(k.name, i): LaunchedPart(k.name, function=function_name(k.name, i)) for k, i in keys}
        return DeviceCode(b"", parts, (compile_object(text, cpu, 2, self.name),))


TARGET = FakeDevice()
