"""A kernel in, a callable on NumPy arrays out, through the driver on the Vulkan device; for tests."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import HAS_VULKAN, NO_VULKAN
from installed import program_path
from kernel_data import bordered, memories, outputs
from made_once import made_once, program_and_age

from smelt.core.ir.groups import group_count
from smelt.core.ir.kernel import Kernel
from smelt.targets.platform import DRIVERS
from smelt.targets.toolchain import runtime_dir
from smelt.targets.vulkan.emit import Part, emit_parts
from smelt.targets.vulkan.package import packed

HARNESS = Path(__file__).resolve().parent.parent / "targets" / "vulkan_c" / "harness.c"
Array = np.ndarray[Any, Any]
_POINTERS = ("h_open", "h_allocate", "h_map", "h_record")


@functools.cache
def library() -> ctypes.CDLL:
    """The driver with its harness; skips the test where there is no device or no compiler."""
    gcc = program_path("gcc")
    if not HAS_VULKAN:
        pytest.skip(NO_VULKAN)
    if gcc is None:
        pytest.skip("no gcc to build the driver alone: apt install gcc libc6-dev")
    sources = [HARNESS, DRIVERS["vulkan"], *(runtime_dir() / f"{n}.c" for n in ("cache", "faults"))]
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fPIC", "-shared"]
    flags += ["-DSMELT_STATIC", f"-I{runtime_dir()}"]
    command = [gcc, *flags, *map(str, sources), "-o", "driver.so", "-ldl"]
    made = made_once(
        lambda folder: subprocess.run(command, check=True, cwd=folder),
        *command, program_and_age(gcc), HARNESS.parent, DRIVERS["vulkan"].parent, runtime_dir(),
    )  # fmt: skip
    lib = ctypes.CDLL(str(made / "driver.so"))
    for name in _POINTERS:
        getattr(lib, name).restype = ctypes.c_void_p
    lib.h_cache_hits.restype = ctypes.c_uint64
    for name in ("h_error", "h_device", "h_form"):
        getattr(lib, name).restype = ctypes.c_char_p
    return lib


class Failed(Exception):
    """A call of the driver failed; its code, or the text of opening."""


class Session:
    """An open unit with kernels of these parts, numbered in their order."""

    def __init__(self, parts: Sequence[Part], buffers: Sequence[int]) -> None:
        self.lib, self.parts = library(), list(parts)
        self.code = packed(self.parts)
        names = (ctypes.c_char_p * len(parts))(*(p.name.encode() for p in parts))
        counts = (ctypes.c_int32 * len(parts))(*buffers)
        self._kept = names
        status = ctypes.c_int32()
        opened = self.lib.h_open(
            self.code, ctypes.c_uint64(len(self.code)), names, counts, len(parts), ctypes.byref(status)
        )
        self.handle = ctypes.c_void_p(opened)
        if status.value:
            text = self.lib.h_error(self.handle).decode()
            self.close()
            raise Failed(text)

    @property
    def device(self) -> str:
        name: bytes = self.lib.h_device(self.handle)
        return name.decode()

    @property
    def cache_hits(self) -> int:
        found: int = self.lib.h_cache_hits(self.handle)
        return found

    def form(self, kernel: int) -> tuple[str, str] | None:
        """What the form of a kernel asks of the device, and what keeps it from better ones."""
        why = ctypes.c_char_p()
        found = self.lib.h_form(self.handle, kernel, ctypes.byref(why))
        return None if found is None else (found.decode(), (why.value or b"").decode())

    def close(self) -> None:
        self.lib.h_close(self.handle)

    def check(self, code: int) -> None:
        if code:
            raise Failed(code)

    def allocate(self, size: int, contents: bytes | None = None) -> ctypes.c_void_p:
        code = ctypes.c_int32()
        found = self.lib.h_allocate(self.handle, ctypes.c_uint64(size), contents, ctypes.byref(code))
        if not found:
            raise Failed(code.value)
        return ctypes.c_void_p(found)

    def release(self, memory: ctypes.c_void_p) -> None:
        self.lib.h_release(self.handle, memory)

    def upload(self, memory: ctypes.c_void_p, data: bytes, at: int = 0) -> None:
        sizes = ctypes.c_uint64(at), data, ctypes.c_uint64(len(data))
        self.check(self.lib.h_upload(self.handle, memory, *sizes, 0))

    def download(self, memory: ctypes.c_void_p, out: Array, at: int = 0, wait: int = True) -> None:
        """wait: SMELT_LAST, SMELT_NOW or SMELT_SOON."""
        sizes = ctypes.c_uint64(at), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(out.nbytes)
        self.check(self.lib.h_download(self.handle, memory, *sizes, int(wait)))

    def copy(self, to: ctypes.c_void_p, at: int, source: ctypes.c_void_p, of: int, size: int) -> None:
        u64 = ctypes.c_uint64
        self.check(self.lib.h_copy(self.handle, to, u64(at), source, u64(of), u64(size)))

    def mapped(self, memory: ctypes.c_void_p, size: int, writes: bool) -> int:
        code = ctypes.c_int32()
        at = self.lib.h_map(self.handle, memory, ctypes.c_uint64(size), int(writes), ctypes.byref(code))
        self.check(code.value)
        assert isinstance(at, int)
        return at

    def unmap(self, memory: ctypes.c_void_p, at: int) -> None:
        self.check(self.lib.h_unmap(self.handle, memory, ctypes.c_void_p(at)))

    def mark(self, number: int) -> None:
        self.check(self.lib.h_mark(self.handle, ctypes.c_uint64(number)))

    def reach(self, number: int) -> None:
        self.check(self.lib.h_reach(self.handle, ctypes.c_uint64(number)))

    def record(
        self, part: int, memories: Sequence[Sequence[ctypes.c_void_p]], dims: Sequence[int], groups: int
    ) -> ctypes.c_void_p:
        """Launches with these memories each, or (part -1) copies of `groups` bytes."""
        each = [m.value for launch in memories for m in launch]
        pointers = (ctypes.c_void_p * len(each))(*each)
        numbers = (ctypes.c_int64 * max(len(dims), 1))(*dims)
        found = self.lib.h_record(self.handle, part, len(memories), pointers, numbers, ctypes.c_int64(groups))
        if not found:
            raise Failed("no list")
        return ctypes.c_void_p(found)

    def submit(self, made: ctypes.c_void_p) -> None:
        self.check(self.lib.h_submit(self.handle, made))

    def forget(self, made: ctypes.c_void_p) -> None:
        self.lib.h_forget(self.handle, made)

    def launch(
        self,
        part: int,
        memories: Sequence[ctypes.c_void_p],
        offsets: Sequence[int],
        dims: Sequence[int],
        groups: int,
    ) -> None:
        pointers = (ctypes.c_void_p * len(memories))(*(m.value for m in memories))
        at = (ctypes.c_uint64 * len(offsets))(*offsets)
        numbers = (ctypes.c_int64 * max(len(dims), 1))(*dims)
        self.check(self.lib.h_launch(self.handle, part, pointers, at, numbers, ctypes.c_int64(groups)))

    def flush(self) -> None:
        self.check(self.lib.h_flush(self.handle))

    def finish(self) -> None:
        self.check(self.lib.h_finish(self.handle))


class OnVulkan:
    """A built kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        parts = emit_parts([kernel])
        self.parts = [parts[kernel.name, i] for i in range(len(kernel.body))]
        try:
            self.session = Session(self.parts, [len(kernel.buffers())] * len(self.parts))
        except Failed as e:
            if "lacks the feature" not in str(e) or os.environ.get("SMELT_VULKAN_WEAK"):
                raise
            pytest.skip(str(e))

    def __call__(self, inputs: Sequence[Array], dims: Mapping[str, int] | None = None) -> list[Array]:
        """Outputs for these inputs. Every buffer lies at an offset, and nothing beside it may change."""
        dims, k, session = dims or {}, self.kernel, self.session
        arrays = memories(k, inputs, dims)
        margins = [64 + 2 * a.itemsize if a.itemsize < 4 else 64 + a.itemsize for a in arrays]
        data = [bytes(bordered(a, m)) for a, m in zip(arrays, margins, strict=True)]
        held = [session.allocate(len(d), d) for d in data]
        for i, s in enumerate(k.body):
            if groups := group_count(s).evaluate(dims):
                session.launch(i, held, margins, [dims[d.name] for d in k.dims], groups)
        back = [np.zeros(len(d), np.uint8) for d in data]
        for m, b in zip(held, back, strict=True):
            session.download(m, b, wait=False)
        session.finish()
        for m in held:
            session.release(m)
        return outputs(k, back, arrays, margins)
