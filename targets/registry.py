"""A TargetSpec in; the target of its platform's CPU, and its devices, out."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from smelt.core.machine import CPU, Machine
from smelt.targets.base import DeviceUnit, Target
from smelt.targets.platform import TargetSpec

_FOLDER = "llvm"
"""The folder of every platform's CPU."""


def cpu_target() -> Target:
    """The target that emits the host's code and the CPU's kernels."""
    found: Target = _import(_FOLDER)
    return found


def devices(spec: TargetSpec) -> Mapping[str, DeviceUnit]:
    """The devices that a spec names, in its order: TARGET of each folder's target.py, imported on use, so
    that one device's needs are not another's."""
    return {name: _import(name) for name in spec.devices}


def machines(spec: TargetSpec) -> Mapping[str, Machine]:
    """Name of a unit -> the machine that schedules are made for."""
    return {CPU: cpu_target().machine(spec), **{name: d.machine(spec) for name, d in devices(spec).items()}}


def default_unit(spec: TargetSpec) -> str:
    """The unit that kernels run on unless they are placed elsewhere: the first device, if there is one."""
    return next(iter(spec.devices), CPU)


def _import(folder: str) -> Any:
    return import_module(f"smelt.targets.{folder}.target").TARGET
