"""Which target folder makes the code of a TargetSpec: that of its device, or of the platform's CPU."""

from __future__ import annotations

from importlib import import_module

from smelt.core.diag import SmeltError
from smelt.targets.base import Target
from smelt.targets.platform import TargetSpec

CPU = "llvm"
"""The folder of every platform's CPU."""


def target_for(spec: TargetSpec) -> Target:
    """The target that emits the kernels of a spec: TARGET of its folder's target.py, imported on use, so that
    one target's needs are not another's. Raises SmeltError for two devices at once."""
    if len(spec.devices) > 1:
        raise SmeltError(
            f"target '{spec}' names several devices; kernels are bound to one",
            kind="unsupported",
            hint="choose one of them",
        )
    (folder,) = spec.devices or (CPU,)
    found: Target = import_module(f"smelt.targets.{folder}.target").TARGET
    return found
