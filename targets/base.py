"""What a target is: planned Modules in, an Artifact (object code, dumps) out. What a device is: kernels in,
what its driver runs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.core.plan.link import Linked
from smelt.core.sums import NO_SUMS, Sums
from smelt.targets.platform import TargetSpec

Dumps = Mapping[str, Callable[[], str | bytes]]
"""File name -> what makes its text or bytes, in the order of the stages, for people."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a target makes of a module. object: a relocatable object for the platform, which holds the code of
    its devices too."""

    object: bytes
    dumps: Dumps = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """A top-level statement of a kernel as its driver gets it. symbol: what it is called there. lanes:
    work-items of a group. function: of the host's objects, for a device that runs some."""

    symbol: str
    lanes: int = 1
    function: str = ""


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What a device runs. code: what its driver makes the kernels of (source, SPIR-V, PTX). parts: by kernel
    and number of the statement. objects: for the platform, to be linked with the host's code."""

    code: bytes
    parts: Mapping[tuple[str, int], Part]
    objects: tuple[bytes, ...] = ()
    dumps: Dumps = field(default_factory=dict)


class Unit(Protocol):
    """What every folder under targets/ has: something that kernels run on."""

    @property
    def name(self) -> str:
        """The folder's."""
        ...

    def machine(self, spec: TargetSpec) -> Machine:
        """What schedules may know about the unit that spec names."""
        ...


class Device(Unit, Protocol):
    """A folder whose kernels a driver runs, which lies beside it."""

    def emit(self, kernels: Sequence[Kernel], spec: TargetSpec) -> DeviceCode:
        """The code of these kernels. Raises SmeltError naming the kernel that cannot be emitted."""
        ...


class Target(Unit, Protocol):
    """The folder of the platforms' CPUs, whose object holds the host program too."""

    def emit(
        self,
        linked: Linked,
        spec: TargetSpec,
        *,
        name: str,
        prefix: str,
        threads: int,
        weights_sha256: bytes,
        weights_sums: Sums = NO_SUMS,
        devices: Mapping[str, Device],
    ) -> Artifact:
        """Code for a linked library. name: for people; prefix: of its functions and weights (naming.py).
        devices: those that linked.units names. Raises SmeltError(kind='unsupported') naming the kernel."""
        ...
