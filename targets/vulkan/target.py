"""The Vulkan device: kernels in, SPIR-V modules out, which the driver makes pipelines of."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from smelt.core.diag import SmeltError
from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.targets import base
from smelt.targets.platform import TargetSpec
from smelt.targets.vulkan.emit import Part, emit_parts
from smelt.targets.vulkan.features import FEATURES
from smelt.targets.vulkan.machine import MACHINE
from smelt.targets.vulkan.package import module_bytes, packed


@dataclass(frozen=True, slots=True)
class VulkanDevice:
    """Whatever the machine's Vulkan loader finds."""

    name: str = "vulkan"

    def machine(self, spec: TargetSpec) -> Machine:
        """The least that Vulkan 1.1 promises: which device will run is known there only."""
        return MACHINE

    def emit(self, kernels: Sequence[Kernel], spec: TargetSpec) -> base.DeviceCode:
        """SPIR-V. Raises SmeltError naming the kernel that cannot be emitted."""
        parts = emit_parts(kernels, MACHINE)
        rows = {
            key: base.LaunchedPart(
                p.name, p.lanes, shared_bytes=p.shared_bytes, forms=_forms(p),
                listing=partial(disassembled, module_bytes(p)),
            )
            for key, p in parts.items()
        }  # fmt: skip
        return base.DeviceCode(packed(list(parts.values())), rows, dumps=_dumps(list(parts.values())))


def _forms(p: Part) -> tuple[str, ...]:
    """As the driver spells them (form_of in vulkan_features.h)."""
    named = ("+".join(name for name in FEATURES if name in form.features) for form in (*p.better, p))
    return tuple(named) if p.better else ()


def _dumps(parts: Sequence[Part]) -> base.Dumps:
    """A module each, for spirv-dis."""
    forms = [form for p in parts for form in (*p.better, p)]
    return {f"{n:04}-{p.name[:80]}.spv": partial(module_bytes, p) for n, p in enumerate(forms)}


def disassembled(code: bytes) -> str:
    """A module as spirv-dis prints it. Raises SmeltError(infra) where that is missing."""
    program = shutil.which("spirv-dis")
    if program is None:
        raise SmeltError(
            "SPIR-V is shown by spirv-dis, which is not on PATH", kind="infra", hint="install spirv-tools"
        )
    done = subprocess.run([program], input=code, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace")
        raise SmeltError(f"spirv-dis refuses a kernel's module: {said[:2000]}", kind="internal")
    return done.stdout.decode()


TARGET = VulkanDevice()
