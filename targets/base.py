"""What a target is: a planned Module in, an Artifact (object code, dumps) out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from smelt.core.ir.graph import Module
from smelt.core.machine import Machine
from smelt.core.plan.program import HostProgram
from smelt.core.sums import NO_SUMS, Sums
from smelt.targets.platform import TargetSpec


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a target makes of a module.

    object: a relocatable object for the platform, which holds the code of its devices too. dumps: file name
    -> what makes its text or bytes, in the order of the stages, for people.
    """

    object: bytes
    dumps: Mapping[str, Callable[[], str | bytes]] = field(default_factory=dict)


class Target(Protocol):
    """One folder under targets/."""

    @property
    def name(self) -> str:
        """The key in the registry."""
        ...

    def machine(self, spec: TargetSpec) -> Machine:
        """What schedules may know about the unit that spec (a platform and a cpu) names."""
        ...

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
        """Code for a planned module. name: for people; prefix: of its functions and weights (core/naming.py).
        Raises SmeltError(kind='unsupported') naming the kernel."""
        ...
