"""What every pass is given besides the module: the machine, the options, the hooks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from smelt.core.ir.graph import Module
from smelt.core.ir.instructions import depths, matrix_types, words_pay
from smelt.core.machine import Machine


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of the user that passes may ask for.

    level: 0 (lower only) .. 3 (everything). fp16: float tensors inside may be halved.
    libraries: matrix products may become calls of a BLAS. fold_limit: bytes that folding one node may
    create. fuse_nodes, fuse_size: limits of one fused kernel, in nodes and in scalar expressions.
    fast: parts of numerics.FAST, rewrites that may change what overflows and how sums are bracketed.
    place: (pattern of names or op types, unit): where kernels run, the first that fits. op_types: op type of
    the model -> the origins of its nodes. states: (name of an input, of the output that replaces it), None
    where the model has no such part: they stay where they are. flush: subnormal numbers are 0 to the
    arithmetic of kernels, and to what is folded.
    """

    level: int = 3
    fp16: bool = False
    libraries: bool = False
    fold_limit: int = 64 << 20
    fuse_nodes: int = 48
    fuse_size: int = 600
    fast: tuple[str, ...] = ()
    place: tuple[tuple[str, str], ...] = ()
    op_types: Mapping[str, Collection[str]] = field(default_factory=lambda: MappingProxyType({}))
    states: tuple[tuple[str | None, str | None], ...] = ()
    flush: bool = False


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


# ---------------------------------------------------------------- what passes learn of it

Asks: TypeAlias = Callable[[Context], Hashable]
"""All that a pass may learn of a context, but for the options that every variant of a bundle shares: contexts
for which it is equal get equal modules of the pass."""


def nothing(ctx: Context) -> Hashable:
    """Of a pass that does the same for every machine."""
    return ()


def vectors(ctx: Context) -> Hashable:
    """Whether there are vectors, the lanes of a group, and what transformed tiles cost."""
    return ctx.machine.vector_bits > 0, ctx.machine.max_lanes, ctx.machine.transforms


def tiles(ctx: Context) -> Hashable:
    """What `vectors` says, and whether integers of 16 bits are multiplied faster than bytes."""
    return vectors(ctx), words_pay(ctx.machine)


def byte_products(ctx: Context) -> Hashable:
    """Which bytes instructions multiply, and how many products they sum."""
    return frozenset(depths(ctx.machine).items())


def costs(ctx: Context) -> Hashable:
    """What scalar functions take, what is near, how many work at once, and which matrices instructions
    multiply."""
    m = ctx.machine
    return m.max_lanes, m.in_step, matrix_types(m), m.cores, m.cache_bytes, frozenset(m.costs.items())


def places(ctx: Context) -> Hashable:
    """The units and what they are taken for, and the rules of the user."""
    units = tuple((name, m.figures, m.lacks) for name, m in ctx.units.items())
    return ctx.unit, units, ctx.options.place
