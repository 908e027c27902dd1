"""A kernel in, a callable on NumPy arrays out, on the first OpenCL device; for tests."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

from smelt.core.dim import to_dim
from smelt.core.ir.kernel import Kernel
from smelt.targets.opencl.emit import emit_program
from smelt.targets.opencl.lanes import instances, nest

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
    """A built kernel."""

    def __init__(self, kernel: Kernel) -> None:
        import pyopencl as cl

        self.kernel = kernel
        self.text, parts = emit_program([kernel])
        self.parts = [parts[kernel.name, i] for i in range(len(kernel.body))]
        ctx, self.queue = context()
        self.program = cl.Program(ctx, self.text).build(["-cl-std=CL1.2"])
        self.entries = [cl.Kernel(self.program, p.name) for p in self.parts]

    def __call__(self, inputs: Sequence[Array], dims: Mapping[str, int] | None = None) -> list[Array]:
        """Outputs for these inputs. Every buffer lies at an offset, and nothing beside it may change."""
        import pyopencl as cl

        dims, k = dims or {}, self.kernel
        ctx, queue = context()
        arrays = []
        for a, b in zip(inputs, k.inputs, strict=True):
            assert a.size == prod(d.evaluate(dims) for d in b.shape) and a.dtype == b.dtype.numpy, b.name
            arrays.append(np.asarray(a, order="C"))  # schedules drop axes of one: same memory, other shape
        for b in (*k.outputs, *k.scratch):
            shape = [d.evaluate(dims) for d in b.shape]
            arrays.append(np.full(shape, 0 if b.dtype.name == "bool" else 77, b.dtype.numpy))
        margin = 64
        packed = [np.frombuffer(b"\x5a" * margin + a.tobytes() + b"\x5a" * margin, np.uint8) for a in arrays]
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        memory = [cl.Buffer(ctx, flags, hostbuf=p) for p in packed]
        args: list[Any] = [x for m in memory for x in (m, np.uint64(margin))]
        args += [np.int64(dims[d.name]) for d in k.dims]
        for s, part, entry in zip(k.body, self.parts, self.entries, strict=True):
            total = to_dim(1)
            for node in nest(s, "group")[0]:
                total = total * instances(node)
            groups = total.evaluate(dims)
            if groups:
                size = (groups * part.lanes,), (part.lanes,)
                entry(queue, *size, *args, np.int64(groups))
        found = []
        for i, (m, p, a) in enumerate(zip(memory, packed, arrays, strict=True)):
            back = np.empty_like(p)
            cl.enqueue_copy(queue, back, m)
            beside = np.concatenate([back[:margin], back[-margin:]])
            assert (beside == 0x5A).all(), f"wrote beside buffer {i}"
            found.append(back[margin : margin + a.nbytes].view(a.dtype).reshape(a.shape))
        first = len(k.inputs)
        return found[first : first + len(k.outputs)]
