"""Interfaces: a target takes planned Modules and gives an Artifact (object code, dumps); a device takes
kernels and gives the code that its driver runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.core.plan.link import Linked
from smelt.core.spread import SpreadOut, serially
from smelt.core.sums import NO_SUMS, Sums
from smelt.targets.platform import TargetSpec

Dumps = Mapping[str, Callable[[], str | bytes]]
"""File name -> a function that makes its text or bytes, in the order of the stages, for SMELT_DUMP."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """The output of a target. object: a relocatable object for the platform, which includes the code of the
    devices. dumps: intermediate texts."""

    object: bytes
    dumps: Dumps = field(default_factory=dict)


Key: TypeAlias = tuple[str, int]
"""A kernel's name and the index of a top-level statement."""


@dataclass(frozen=True, slots=True)
class LaunchedPart:
    """A top-level statement of a kernel, as its driver launches it. symbol: its name in the device's code.
    lanes: work-items of a group. function: its function in the host's objects, for devices that run these.
    shared_bytes: memory of a group; None: the compiler does not know. asked_bytes: of these, what the driver
    has to ask for at a launch. forms: of a part that the code has in several, what each asks of a device, the
    best first; '' is for any. listing: makes its code as text, for people; None: nothing does."""

    symbol: str
    lanes: int = 1
    function: str = ""
    shared_bytes: int | None = None
    asked_bytes: int = 0
    forms: tuple[str, ...] = ()
    listing: Callable[[], str] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ChipUsage:
    """What machine code for a chip takes. machine: the chip's. registers: of a lane. spilled: bytes of a lane
    that do not fit them. shared_bytes: of a group. None: no assembler here knows the chip."""

    machine: Machine
    registers: int | None = None
    spilled: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """The code for a device. code: what its driver builds the kernels from (source, SPIR-V, PTX). parts: by
    kernel and index of the statement. objects: to be linked with the host's code. usage: what the parts take
    on each chip, where an assembler here tells; where drivers translate the code, nobody here knows."""

    code: bytes
    parts: Mapping[Key, LaunchedPart]
    objects: tuple[bytes, ...] = ()
    dumps: Dumps = field(default_factory=dict)
    usage: Callable[[], Mapping[Key, tuple[ChipUsage, ...]]] = field(default=dict, compare=False)


class Unit(Protocol):
    """A unit that kernels run on; every target's folder has one."""

    @property
    def name(self) -> str:
        """The name of the folder."""
        ...

    def machine(self, spec: TargetSpec) -> Machine:
        """The machine that schedules are made for, as the spec names it."""
        ...


class DeviceUnit(Unit, Protocol):
    """A unit whose kernels are run by a driver in the same folder."""

    def emit(self, kernels: Sequence[Kernel], spec: TargetSpec) -> DeviceCode:
        """The code of these kernels. Raises SmeltError naming the kernel that cannot be emitted."""
        ...


class Target(Unit, Protocol):
    """The unit of the platforms' CPUs, which emits the host program too."""

    def listing(self, kernel: Kernel, spec: TargetSpec) -> str:
        """The assembly of a kernel, for people."""
        ...

    def emit(
        self,
        linked: Linked,
        spec: TargetSpec,
        *,
        name: str,
        prefix: str,
        threads: int,
        keep_subnormals: bool = False,
        weights_sha256: bytes,
        weights_sums: Sums = NO_SUMS,
        devices: Mapping[str, DeviceUnit],
        spread: SpreadOut = serially,
    ) -> Artifact:
        """The code of a linked library. name: the model's, for messages; prefix: that of its functions and
        files (naming.py). threads: the default number. keep_subnormals: of floats, in kernels. devices:
        those that linked.units names. spread: computes the code of kernels. Raises
        SmeltError(kind='unsupported') naming the kernel."""
        ...
