"""A kernel and its inputs in, its outputs out, with every buffer next to an inaccessible page."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.core.ir.kernel import Kernel
from smelt.core.ir.workspace import workspace
from smelt.targets.llvm.jit import Jitted, jit
from smelt.targets.llvm.machines import Cpu

Array = np.ndarray[Any, Any]

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """Copies of arrays whose last byte (or first, when not `at_end`) touches a page without any access."""

    def __init__(self, at_end: bool) -> None:
        self.at_end = at_end
        self.maps: list[tuple[int, int]] = []

    def __enter__(self) -> Guarded:
        return self

    def __exit__(self, *_: object) -> None:
        for at, size in self.maps:
            _LIBC.munmap(at, size)

    def copy(self, a: Array) -> tuple[int, Array]:
        """(address, array) of a copy; an empty array has an address whose every byte is forbidden."""
        room = -(-a.nbytes // PAGE) * PAGE
        size = room + 2 * PAGE
        private_anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = _LIBC.mmap(None, size, 0, private_anonymous, -1, 0)
        assert base not in (None, ctypes.c_void_p(-1).value), "no memory"
        self.maps.append((base, size))
        inside = base + PAGE
        if room:
            assert _LIBC.mprotect(inside, room, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        at = inside + room - a.nbytes if self.at_end else inside
        if not a.nbytes:
            return at, a.copy()
        memory = (ctypes.c_char * a.nbytes).from_address(at)
        view = np.frombuffer(memoryview(memory), a.dtype).reshape(a.shape)
        view[...] = a
        return at, view


class Guard:
    """Stands in for the kernel interpreter: compiles each kernel once, runs it between forbidden pages. opt:
    LLVM's level; at 0 every access of the kernel stays, and compiling takes a third of the time."""

    def __init__(self, cpu: Cpu | None = None, opt: int = 2) -> None:
        self.cpu, self.opt = cpu, opt
        self.made: dict[str, list[Jitted]] = {}

    def __call__(
        self, kernel: Kernel, dims: Sequence[int] | Mapping[str, int], inputs: Sequence[Array]
    ) -> list[Array]:
        names = [d.name for d in kernel.dims]
        env = dict(dims) if isinstance(dims, Mapping) else dict(zip(names, dims, strict=True))
        alike = self.made.setdefault(kernel.name, [])
        compiled = next((c for c in alike if c.kernel == kernel), None)
        if compiled is None:
            alike.append(compiled := jit(kernel, self.cpu, self.opt))
        at_start = self._run(compiled, env, inputs, False)
        at_end = self._run(compiled, env, inputs, True)
        for a, b in zip(at_start, at_end, strict=True):
            np.testing.assert_array_equal(a, b)
        return at_end

    def _run(
        self, compiled: Jitted, env: Mapping[str, int], inputs: Sequence[Array], at_end: bool
    ) -> list[Array]:
        kernel = compiled.kernel
        with Guarded(at_end) as guard:
            placed = [guard.copy(np.asarray(a, order="C")) for a in inputs]
            before = [v.copy() for _, v in placed]
            for b in (*kernel.outputs, *workspace(kernel)):
                shape = [d.evaluate(env) for d in b.shape]
                placed.append(guard.copy(np.full(shape, 1, b.dtype.numpy)))
            values = [at for at, _ in placed] + [env[d.name] for d in kernel.dims]
            compiled.launch((ctypes.c_int64 * max(len(values), 1))(*values), compiled.groups(env))
            for (_, now), then in zip(placed, before, strict=False):
                np.testing.assert_array_equal(now, then, err_msg="an input was written")
            first = len(inputs)
            return [v.copy() for _, v in placed[first : first + len(kernel.outputs)]]
