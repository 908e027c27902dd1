"""What every pass is given besides the module: the machine, the options, the hooks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from smelt.core.ir.graph import Module
from smelt.core.machine import Machine


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of the user that passes may ask for.

    level: 0 (lower only) .. 3 (everything). fp16: float tensors inside may be halved.
    libraries: matrix products may become calls of a BLAS. fold_limit: bytes that folding one node may
    create. fuse_nodes, fuse_size: limits of one fused kernel, in nodes and in scalar expressions.
    fast: parts of numerics.FAST, rewrites that may change what overflows and how sums are bracketed.
    """

    level: int = 3
    fp16: bool = False
    libraries: bool = False
    fold_limit: int = 64 << 20
    fuse_nodes: int = 48
    fuse_size: int = 600
    fast: tuple[str, ...] = ()


Hook: TypeAlias = Callable[[Module, str, Module], None]
"""(module before, name of the pass, module after): called after every pass."""


@dataclass(frozen=True, slots=True)
class Context:
    """machine: whom to compile for. verify: check the module after every pass. dump: folder that gets
    NN-name.smelt after every pass. on_pass: called after every pass, in order."""

    machine: Machine
    options: Options = field(default_factory=Options)
    on_pass: tuple[Hook, ...] = ()
    verify: bool = False
    dump: Path | None = None

    def with_(self, **changes: Any) -> Context:
        """A copy with some fields replaced."""
        return replace(self, **changes)

    def from_environment(self) -> Context:
        """SMELT_DEBUG (any level) turns verification on, SMELT_DUMP names the folder for dumps."""
        folder = os.environ.get("SMELT_DUMP")
        return self.with_(
            verify=self.verify or os.environ.get("SMELT_DEBUG", "0") not in ("", "0"),
            dump=Path(folder) if folder else self.dump,
        )
