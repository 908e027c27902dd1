"""What every pass is given besides the module: the machine, the options, the hooks."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from smelt.core.ir.graph import Module
from smelt.core.ir.instructions import depths
from smelt.core.machine import Machine


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of the user that passes may ask for.

    level: 0 (lower only) .. 3 (everything). fp16: float tensors inside may be halved.
    libraries: matrix products may become calls of a BLAS. fold_limit: bytes that folding one node may
    create. fuse_nodes, fuse_size: limits of one fused kernel, in nodes and in scalar expressions.
    fast: parts of numerics.FAST, rewrites that may change what overflows and how sums are bracketed.
    place: (pattern of names, unit): where kernels run, the first that fits. states: (name of an input, of the
    output that replaces it), None where the model has no such part: they stay where they are. flush:
    subnormal numbers are 0 to the arithmetic of kernels, and to what is folded.
    """

    level: int = 3
    fp16: bool = False
    libraries: bool = False
    fold_limit: int = 64 << 20
    fuse_nodes: int = 48
    fuse_size: int = 600
    fast: tuple[str, ...] = ()
    place: tuple[tuple[str, str], ...] = ()
    states: tuple[tuple[str | None, str | None], ...] = ()
    flush: bool = False


def asked(machine: Machine) -> Hashable:
    """All that passes before the schedule may learn of a machine: what is equal for two, gets one module."""
    vectors, costs = machine.vector_bits > 0, frozenset(machine.costs.items())
    return (
        vectors, machine.max_lanes, machine.cores, machine.cache_bytes, costs,
        frozenset(depths(machine).items()),
    )  # fmt: skip


Hook: TypeAlias = Callable[[Module, str, Module], None]
"""(module before, name of the pass, module after): called after every pass."""

DumpHook: TypeAlias = Callable[[Module, str], None]
"""(module after, name of the pass)"""


@dataclass(frozen=True, slots=True)
class Context:
    """machine: whom to compile for. verify: check the module after every pass. on_pass: called after every
    pass, in order. dump: called last, also with a module that breaks a rule. units: what kernels may run
    on, by name, and unit: the one that machine is of; none: kernels are not placed."""

    machine: Machine
    options: Options = field(default_factory=Options)
    on_pass: tuple[Hook, ...] = ()
    verify: bool = False
    dump: DumpHook | None = None
    units: Mapping[str, Machine] = field(default_factory=lambda: MappingProxyType({}))
    unit: str = ""

    def with_(self, **changes: Any) -> Context:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def from_environment(self) -> Context:
        """SMELT_DEBUG (any level) turns verification on."""
        return self.with_(verify=self.verify or os.environ.get("SMELT_DEBUG", "0") not in ("", "0"))
