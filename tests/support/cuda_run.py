"""A kernel for CUDA in, a callable on NumPy arrays out, which runs its threads on this machine; for tests."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from cuda_host import STATE, host_text
from kernel_data import bordered, memories, outputs

from smelt.core.ir.groups import group_count
from smelt.core.ir.kernel import Kernel
from smelt.targets.cuda.emit import Part, emit_program
from smelt.targets.cuda.machine import cpu_for
from smelt.targets.llvm.compile import parse, target_machine
from smelt.targets.llvm.machines import host

RUNTIME_C = Path(__file__).parents[1] / "targets" / "runtime_c"
Array = np.ndarray[Any, Any]


@functools.cache
def threads_library() -> Any:
    """fake_threads.c, loaded."""
    folder = Path(tempfile.mkdtemp(prefix="smelt-fake-threads-"))
    out = folder / "threads.so"
    source = RUNTIME_C / "fake_threads.c"
    subprocess.run(["gcc", "-O1", "-g", "-shared", "-fPIC", str(source), "-o", str(out)], check=True)
    loaded = ctypes.CDLL(str(out))
    loaded.fake_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32,
                                ctypes.c_uint32, ctypes.c_int]  # fmt: skip
    return loaded


class OnHost:
    """A kernel for CUDA, lowered for the host. architecture: whose instructions it may use."""

    def __init__(self, kernel: Kernel, architecture: str = "sm_53") -> None:
        self.kernel = kernel
        self.program = emit_program([kernel], cpu_for(architecture))
        self.parts = [self.program.parts[kernel.name, i] for i in range(len(kernel.body))]
        self.engine = llvm.create_mcjit_compiler(
            parse(host_text(self.program), kernel.name), target_machine(host(), 0, within=True)
        )
        self.engine.finalize_object()

    def __call__(self, inputs: Sequence[Array], dims: Mapping[str, int] | None = None) -> list[Array]:
        """Outputs for these inputs: the same ones whether threads take turns first to last or last to first.
        Every buffer lies at an offset, and nothing beside it may change."""
        forth, back = (self._run(inputs, dims or {}, order) for order in (0, 1))
        for a, b in zip(forth, back, strict=True):
            assert a.tobytes() == b.tobytes(), "the result depends on the order of threads: a race"
        return forth

    def _run(self, inputs: Sequence[Array], dims: Mapping[str, int], order: int) -> list[Array]:
        k, margin = self.kernel, 64
        arrays = memories(k, inputs, dims)
        packed = [np.frombuffer(bordered(a, margin), np.uint8) for a in arrays]
        words = [p.ctypes.data + margin for p in packed] + [dims[d.name] for d in k.dims]
        for s, part in zip(k.body, self.parts, strict=True):
            self._launch(part, words, group_count(s).evaluate(dims), order)
        return outputs(k, packed, arrays, [margin] * len(arrays))

    def _launch(self, part: Part, words: Sequence[int], groups: int, order: int) -> None:
        block = (ctypes.c_int64 * len(words))(*words)
        given = [*words, 0] if part.parameters == len(words) + 1 else [ctypes.addressof(block), 0]
        args = (ctypes.c_int64 * len(given))(*given)
        status = threads_library().fake_run(
            self.engine.get_function_address(f"{part.name}.host"),
            self.engine.get_global_value_address(STATE),
            ctypes.addressof(args), groups, part.threads, order,
        )  # fmt: skip
        assert status == 0, "threads end while others wait at a barrier"
