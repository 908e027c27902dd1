"""A bundle for this machine -> a session that runs it in this process, called as onnxruntime's is."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smelt.core.bundle import LIBRARY, Bundle, read_bundle
from smelt.core.diag import Kind, SmeltError
from smelt.core.dtype import ALL, DType
from smelt.groups import Group, groups, packed, unpacked

_KINDS: dict[int, Kind] = {
    1: "invalid", 2: "unsupported", 3: "shape", 4: "device", 5: "infra", 6: "internal",
}  # fmt: skip
_ORT_NAMES = {
    "f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16", "bool": "bool",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f8e4m3fn": "float8e4m3fn", "f8e4m3fnuz": "float8e4m3fnuz", "f8e5m2": "float8e5m2",
    "f8e5m2fnuz": "float8e5m2fnuz", "f8e8m0": "float8e8m0", "f4e2m1": "float4e2m1",
    "i4": "int4", "u4": "uint4", "i2": "int2", "u2": "uint2",
}  # fmt: skip


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_int32), ("threads", ctypes.c_int32)]


_MEMORY_FIELDS = (
    "arena_bytes", "arena_capacity", "output_capacity", "weights_bytes", "allocations", "runs",
)  # fmt: skip


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _MEMORY_FIELDS]


MOST_SHAPES = 4096
"""Combinations of input shapes whose output shapes a session remembers."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: name, shape (ints and dim strings), type ('tensor(float)'), as onnxruntime's."""

    name: str
    shape: list[int | str]
    type: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: what the current shapes need, the high-water marks, and how often memory was asked for."""

    arena_bytes: int
    arena_capacity: int
    output_capacity: int
    weights_bytes: int
    allocations: int
    runs: int


def load(bundle: Bundle | str | os.PathLike[str], threads: int | None = None) -> Session:
    """A session on this machine. threads: None takes the bundle's default, 1 the caller only.

    Raises SmeltError: 'invalid' (no bundle), 'device' (compiled for another machine), 'infra' (files).
    """
    return Session(bundle if isinstance(bundle, Bundle) else read_bundle(bundle), threads)


class Session:
    """One loaded model with memory of its own. Runs of one session wait for each other; threads that want
    to run at once open a session each."""

    def __init__(self, bundle: Bundle, threads: int | None = None) -> None:
        self.bundle = bundle
        self._lock = threading.Lock()
        self._lib = _library(bundle)
        self._handle = ctypes.c_void_p()
        options = _Options(ctypes.sizeof(_Options), threads or 0)
        status = self._lib.smelt_open(
            os.fsencode(bundle.path), ctypes.byref(options), ctypes.byref(self._handle)
        )
        if status:
            raise self._error(status, None)
        self._takes, self._gives = groups(bundle.manifest, "inputs"), groups(bundle.manifest, "outputs")
        self._plain = "groups" not in bundle.manifest
        self._inputs = [_Port(row) for row in bundle.manifest["inputs"]]
        self._outputs = [_Port(row) for row in bundle.manifest["outputs"]]
        self._in = (_Tensor * max(1, len(self._inputs)))()
        self._out = (_Tensor * max(1, len(self._outputs)))()
        for tensors, ports in ((self._in, self._inputs), (self._out, self._outputs)):
            for t, p in zip(tensors, ports, strict=False):
                t.device, t.ndim, t.dtype = _Device(1, 0), p.rank, p.dlpack
                t.shape = p.shape
        self._ours = True
        self._known: dict[tuple[tuple[int, ...], ...], list[tuple[int, ...]]] = {}

    # ------------------------------------------------------------ as onnxruntime

    def get_inputs(self) -> list[NodeArg]:
        """Names, shapes and types of the inputs."""
        return _arguments(self._takes)

    def get_outputs(self) -> list[NodeArg]:
        """Names, shapes and types of the outputs."""
        return _arguments(self._gives)

    def run(
        self, output_names: Sequence[str] | None, feed: Mapping[str, Any], run_options: object = None
    ) -> list[Any]:
        """The outputs named (all when None), for NumPy arrays or anything with DLPack by input name; lists of
        them are sequences, None is an empty optional.

        Raises SmeltError(kind='shape') naming input, axis, expected and got.
        """
        if not self._plain:
            _same_names([g.name for g in self._takes], list(feed))
            feed = packed(self._takes, feed, self.bundle.manifest["symbols"])
        with self._lock:
            results: list[Any] = self._run(feed)
        if not self._plain:
            tensors = {p.name: r for p, r in zip(self._outputs, results, strict=True)}
            results = list(unpacked(self._gives, tensors).values())
        if output_names is None:
            return results
        by_name = {g.name: r for g, r in zip(self._gives, results, strict=True)}
        for name in output_names:
            if name not in by_name:
                known = ", ".join(by_name)
                raise SmeltError(f"no output is named '{name}'; there are: {known}", kind="shape")
        return [by_name[name] for name in output_names]

    # ------------------------------------------------------------ what onnxruntime has not

    def memory(self) -> Memory:
        """Arena, outputs and weights in bytes, and allocations so far."""
        m = _Memory()
        status = self._lib.smelt_memory_stats(self._handle, ctypes.byref(m))
        if status:
            raise self._error(status, self._handle)
        return Memory(*(getattr(m, name) for name in _MEMORY_FIELDS))

    def trim(self) -> None:
        """Give unused arena memory back to the system."""
        self._lib.smelt_trim(self._handle)

    def profile(self, enable: bool = True) -> None:
        """Start (from zero) or stop per-kernel timing."""
        self._lib.smelt_profile(self._handle, int(enable))

    def kernel_times(self) -> dict[str, tuple[int, int]]:
        """Per kernel: total nanoseconds and launches since `profile()`."""
        found = {}
        name, ns, launches = ctypes.c_char_p(), ctypes.c_uint64(), ctypes.c_uint64()
        for i in range(self._lib.smelt_kernel_count(self._handle)):
            self._lib.smelt_kernel_stats(
                self._handle, i, ctypes.byref(name), ctypes.byref(ns), ctypes.byref(launches)
            )
            found[(name.value or b"").decode()] = (ns.value, launches.value)
        return found

    def close(self) -> None:
        """Free the session's memory, after a run that another thread is in; it cannot be used after."""
        with self._lock:
            if self._handle:
                self._lib.smelt_close(self._handle)
                self._handle = ctypes.c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    # ------------------------------------------------------------ inside

    def _run(self, feed: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        """All outputs; the tensors in C's hands are the session's own, so one caller at a time."""
        arrays = self._bind(feed)
        shapes = tuple(a.shape for a in arrays)
        results = self._targets(shapes)
        status = self._lib.smelt_run(self._handle, self._in, len(self._inputs), self._out, len(self._outputs))
        if status:
            raise self._error(status, self._handle)
        if results is None:
            results = [_copied(t, p) for t, p in zip(self._out, self._outputs, strict=False)]
            if not any(p.late for p in self._outputs):
                # outputs sized by input shapes alone: from now on the model writes into our arrays
                if len(self._known) == MOST_SHAPES:
                    self._known.clear()
                self._known[shapes] = [r.shape for r in results]
        return results

    def _bind(self, feed: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        if not self._handle:
            raise SmeltError("the session is closed", kind="invalid")
        if len(feed) != len(self._inputs) or any(p.name not in feed for p in self._inputs):
            _same_names([p.name for p in self._inputs], list(feed))
        arrays = []
        for t, p in zip(self._in, self._inputs, strict=False):
            a = p.array(feed[p.name])
            arrays.append(a)
            t.data = _address(a) if a.size else None
            p.set_shape(a.shape)
        return arrays

    def _targets(self, shapes: tuple[tuple[int, ...], ...]) -> list[np.ndarray[Any, Any]] | None:
        """New arrays for the outputs when their shapes are known, else None: the session's memory."""
        known = self._known.get(shapes)
        if known is None:
            for t in self._out:
                t.data = None
            self._ours = False
            return None
        if not self._ours:
            # the model pointed the shapes at its own memory
            for t, p in zip(self._out, self._outputs, strict=False):
                t.shape = p.shape
            self._ours = True
        results = []
        for t, p, shape in zip(self._out, self._outputs, known, strict=False):
            r = np.empty(shape, p.dtype.numpy)
            p.set_shape(shape)
            # an empty array has an address too: data None would mean the session's memory
            t.data = _address(r)
            results.append(r)
        return results

    def _error(self, status: int, handle: ctypes.c_void_p | None) -> SmeltError:
        text = self._lib.smelt_error(handle)
        return SmeltError(
            (text or b"no reason given").decode(errors="replace"), kind=_KINDS.get(status, "internal")
        )


_DATA_AT = object.__basicsize__
"""Where a PyArrayObject keeps its data pointer: right after the object's head, in NumPy's C ABI."""


def _address(a: np.ndarray[Any, Any]) -> int:
    """Of the first element. Read from the object itself: a.__array_interface__ builds a dictionary, which
    takes as long as a small model's run (0.9 us)."""
    return ctypes.c_void_p.from_address(id(a) + _DATA_AT).value or 0


class _Port:
    """An input or output of the manifest, ready for calls."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.name: str = row["name"]
        self.dtype: DType = ALL[row["dtype"]]
        self.dims: list[int | str] = list(row["shape"])
        self.rank = len(self.dims)
        self.late = bool(row.get("late", False))
        self.shape = (ctypes.c_int64 * max(1, self.rank))()
        self.written: tuple[int, ...] | None = None
        code = {"int": 0, "uint": 1, "float": 2, "bool": 6}[self.dtype.category]
        self.dlpack = _DataType(4 if self.dtype.name == "bf16" else code, self.dtype.bits, 1)

    def set_shape(self, shape: tuple[int, ...]) -> None:
        """Write the extents where the model reads them, when they are not those of the last call."""
        if shape != self.written:
            self.shape[: self.rank] = shape  # type: ignore[call-overload]  # a tuple serves as well
            self.written = shape

    def array(self, x: Any) -> np.ndarray[Any, Any]:
        """x as a compact array; refuses a wrong dtype or rank. Extents are the model's own to check."""
        if not isinstance(x, np.ndarray):
            x = np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)
        if x.dtype != self.dtype.numpy:
            raise SmeltError(
                f"input '{self.name}': expected {self.dtype.numpy} elements, got {x.dtype}", kind="shape"
            )
        if x.ndim != self.rank:
            raise SmeltError(
                f"input '{self.name}': expected rank {self.rank} {self.dims}, got rank {x.ndim} "
                f"{list(x.shape)}",
                kind="shape",
            )
        return x if x.flags.c_contiguous else np.ascontiguousarray(x)


def _copied(t: _Tensor, p: _Port) -> np.ndarray[Any, Any]:
    """The session's output memory as an array of its own."""
    shape = tuple(t.shape[a] for a in range(p.rank))
    result: np.ndarray[Any, Any] = np.empty(shape, p.dtype.numpy)
    if result.nbytes:
        ctypes.memmove(_address(result), t.data, result.nbytes)
    return result


def _arguments(found: Sequence[Group]) -> list[NodeArg]:
    """As onnxruntime describes them."""
    return [NodeArg(g.name, g.extents, g.type.format(_ORT_NAMES[g.element.name])) for g in found]


def _same_names(expected: list[str], got: list[str]) -> None:
    """Raises SmeltError when a feed has not exactly the model's inputs."""
    missing = [n for n in expected if n not in got]
    extra = [n for n in got if n not in expected]
    if not missing and not extra:
        return
    parts = []
    if missing:
        parts.append("missing input " + ", ".join(f"'{n}'" for n in missing))
    if extra:
        parts.append("unknown input " + ", ".join(f"'{n}'" for n in extra))
    raise SmeltError(f"{'; '.join(parts)}; the model has: {', '.join(expected)}", kind="shape")


def _library(bundle: Bundle) -> Any:
    """The bundle's shared library with its functions typed."""
    path = Path(bundle.path) / LIBRARY
    try:
        lib = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as e:
        raise SmeltError(
            f"cannot load '{path}', compiled for {bundle.target}: {e}",
            kind="device",
            hint="run it on its device with 'smelt run --device', or compile with --target host",
        ) from None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    signatures: dict[str, tuple[list[Any], Any]] = {
        "smelt_open": ([ctypes.c_char_p, pointer, pointer], ctypes.c_int),
        "smelt_run": ([pointer, pointer, size, pointer, size], ctypes.c_int),
        "smelt_close": ([pointer], None),
        "smelt_error": ([pointer], ctypes.c_char_p),
        "smelt_memory_stats": ([pointer, pointer], ctypes.c_int),
        "smelt_trim": ([pointer], ctypes.c_int),
        "smelt_profile": ([pointer, ctypes.c_int32], ctypes.c_int),
        "smelt_kernel_count": ([pointer], size),
        "smelt_kernel_stats": ([pointer, size, pointer, pointer, pointer], ctypes.c_int),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, result
    return lib
