"""A kernel in, a callable on NumPy arrays in this process out; for tests and measurements."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from smelt.core.ir.groups import group_count
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.workspace import workspace
from smelt.targets.llvm.compile import parse, target_machine
from smelt.targets.llvm.emit import emit_module, function_name
from smelt.targets.llvm.machines import Cpu, host

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@dataclass
class Jitted:
    """A compiled kernel. Keeps the engine alive."""

    kernel: Kernel
    text: str
    engine: Any
    entries: tuple[Callable[[int, int, int, int], None], ...]

    def pack(self, arrays: Sequence[np.ndarray[Any, Any]], dims: Mapping[str, int]) -> Any:
        """The args block: addresses of inputs, outputs and workspace, then the dims."""
        values = [a.ctypes.data for a in arrays] + [dims[d.name] for d in self.kernel.dims]
        return (ctypes.c_int64 * max(len(values), 1))(*values)

    def groups(self, dims: Mapping[str, int]) -> list[int]:
        """How many groups each entry has."""
        return [group_count(s).evaluate(dims) for s in self.kernel.body]

    def launch(self, args: Any, groups: Sequence[int]) -> None:
        """Run every entry over all its groups, on this thread."""
        for entry, n in zip(self.entries, groups, strict=True):
            if n:
                entry(ctypes.addressof(args), 0, n, 0)

    def __call__(
        self, inputs: Sequence[np.ndarray[Any, Any]], dims: Mapping[str, int] | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """Outputs for these inputs, which must have the kernel's dtypes and shapes."""
        dims = dims or {}
        inputs = [np.asarray(a, order="C") for a in inputs]
        for a, b in zip(inputs, self.kernel.inputs, strict=True):
            shape = tuple(d.evaluate(dims) for d in b.shape)
            assert a.shape == shape and a.dtype == b.dtype.numpy, (b.name, a.shape, a.dtype, shape)
        made = [
            np.zeros([d.evaluate(dims) for d in b.shape], b.dtype.numpy)
            for b in (*self.kernel.outputs, *workspace(self.kernel))
        ]
        self.launch(self.pack([*inputs, *made], dims), self.groups(dims))
        return made[: len(self.kernel.outputs)]


def jit(kernel: Kernel, cpu: Cpu | None = None, opt: int = 2) -> Jitted:
    """Compile for this process. cpu: a row that this machine can run; by default the machine's own."""
    cpu = cpu or host()
    return jit_text(kernel, emit_module([kernel], cpu), cpu, opt)


def jit_text(kernel: Kernel, text: str, cpu: Cpu, opt: int = 2) -> Jitted:
    """The kernel out of the text of a module that has it."""
    module = parse(text, kernel.name)
    engine = llvm.create_mcjit_compiler(module, target_machine(cpu, opt, within=True))
    engine.finalize_object()
    entries = tuple(
        _ENTRY(engine.get_function_address(function_name(kernel.name, i))) for i in range(len(kernel.body))
    )
    return Jitted(kernel, text, engine, entries)
