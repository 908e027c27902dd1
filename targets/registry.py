"""Which target folder makes the code of a TargetSpec: one row per device, the CPU's own the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from smelt.core.diag import SmeltError
from smelt.targets.base import Target
from smelt.targets.platform import TargetSpec


def _llvm() -> Target:
    from smelt.targets.llvm.target import LlvmTarget

    return LlvmTarget()


def _opencl() -> Target:
    from smelt.targets.opencl.target import OpenClTarget

    return OpenClTarget()


TARGETS: Mapping[str, Callable[[], Target]] = MappingProxyType({"": _llvm, "opencl": _opencl})
"""By device name; '' is the platform's CPU. Loaded on use, so that one target's needs are not another's."""


def target_for(spec: TargetSpec) -> Target:
    """The target that emits the kernels of a spec. Raises SmeltError for two devices at once."""
    if len(spec.devices) > 1:
        raise SmeltError(
            f"target '{spec}' names several devices; kernels are bound to one",
            kind="unsupported",
            hint="choose one of them",
        )
    return TARGETS[spec.devices[0] if spec.devices else ""]()
