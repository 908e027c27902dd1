"""The OpenCL device: kernels in, OpenCL C out, which the driver compiles when a session opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.targets.base import DeviceCode, LaunchedPart
from smelt.targets.opencl.emit import emit_program
from smelt.targets.opencl.machine import MACHINE
from smelt.targets.platform import TargetSpec


@dataclass(frozen=True, slots=True)
class OpenClDevice:
    """Whatever the machine's OpenCL driver finds."""

    name: str = "opencl"

    def machine(self, spec: TargetSpec) -> Machine:
        """The least that OpenCL devices offer: which one will run is known on the device only."""
        return MACHINE

    def emit(self, kernels: Sequence[Kernel], spec: TargetSpec) -> DeviceCode:
        """Source. Raises SmeltError naming the kernel that cannot be emitted."""
        source, parts = emit_program(kernels, MACHINE)
        rows = {
            key: LaunchedPart(p.name, p.lanes, shared_bytes=p.local_bytes, listing=partial(str, p.text))
            for key, p in parts.items()
        }
        return DeviceCode(source.encode(), rows, dumps={"model.cl": lambda: source})


TARGET = OpenClDevice()
