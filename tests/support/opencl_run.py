"""A kernel in, a callable on NumPy arrays out, on the first OpenCL device; for tests."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from kernel_data import bordered, memories, outputs

from smelt.core.ir.groups import group_count
from smelt.core.ir.kernel import Kernel
from smelt.targets.opencl.emit import emit_program

MISSING = "no OpenCL platform: apt install pocl-opencl-icd ocl-icd-libopencl1, pip install pyopencl"
Array = np.ndarray[Any, Any]


@functools.cache
def context() -> Any:
    """(context, queue) on the first device; skips the test where there is none."""
    try:
        import pyopencl as cl

        device = cl.get_platforms()[0].get_devices()[0]
    except Exception:
        pytest.skip(MISSING)
    made = cl.Context([device])
    return made, cl.CommandQueue(made)


class OnDevice:
    """A built kernel. tile_parts: in how many parts tiles of sums are made. small: groups are small."""

    def __init__(self, kernel: Kernel, tile_parts: int = 1, small: bool = False) -> None:
        import pyopencl as cl

        self.kernel = kernel
        self.text, parts = emit_program([kernel])
        self.parts = [parts[kernel.name, i] for i in range(len(kernel.body))]
        ctx, self.queue = context()
        options = ["-cl-std=CL1.2", f"-DTILE_PARTS={tile_parts}", *["-DSMALL_GROUPS"] * small]
        self.program = cl.Program(ctx, self.text).build(options)
        self.entries = [cl.Kernel(self.program, p.name) for p in self.parts]
        said, device = cl.kernel_work_group_info.COMPILE_WORK_GROUP_SIZE, ctx.devices[0]
        self.lanes = [e.get_work_group_info(said, device)[0] for e in self.entries]

    def __call__(self, inputs: Sequence[Array], dims: Mapping[str, int] | None = None) -> list[Array]:
        """Outputs for these inputs. Every buffer lies at an offset, and nothing beside it may change."""
        import pyopencl as cl

        dims, k = dims or {}, self.kernel
        ctx, queue = context()
        arrays = memories(k, inputs, dims)
        margin = 64
        packed = [np.frombuffer(bordered(a, margin), np.uint8) for a in arrays]
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        memory = [cl.Buffer(ctx, flags, hostbuf=p) for p in packed]
        words = np.array([margin] * len(memory) + [dims[d.name] for d in k.dims], np.int64)
        args = [*memory, np.void(words.tobytes())]
        for s, part, entry, lanes in zip(k.body, self.parts, self.entries, self.lanes, strict=True):
            if groups := group_count(s).evaluate(dims):
                entry(queue, (groups * (lanes if part.chain else part.lanes),), (lanes,), *args)
        after = [np.empty_like(p) for p in packed]
        for back, m in zip(after, memory, strict=True):
            cl.enqueue_copy(queue, back, m)
        return outputs(k, after, arrays, [margin] * len(arrays))
