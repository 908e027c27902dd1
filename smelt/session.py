"""A bundle for this machine -> a session that runs it in this process, called as onnxruntime's is."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from smelt.core.bundle import Bundle, damaged, formula, read_bundle
from smelt.core.diag import Kind, SmeltError
from smelt.core.dtype import ALL, DType
from smelt.core.session_memory import MEMORY_FIELDS, Memory
from smelt.groups import Group, as_array, groups, packed, reading, unpacked
from smelt.library import Held, Moved
from smelt.limits import MOST_THREADS

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


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in MEMORY_FIELDS]


MOST_SHAPES = 4096
"""How many combinations of input shapes a session remembers the output shapes of."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: name, shape (ints and dim strings), type ('tensor(float)'), as onnxruntime's."""

    name: str
    shape: list[int | str]
    type: str


_TRIES = 4


def load(
    bundle: Bundle | str | os.PathLike[str], threads: int | None = None, *, verify: bool | None = None
) -> Session:
    """A session on this machine. bundle: a Bundle or its folder. threads: None or 0 takes the bundle's
    default, 1 runs on the caller's thread alone. verify: True compares all weights with their hash, False
    compares cheaper checksums only, None compares the hash of a large file when it is first loaded on this
    machine (docs/safety.md).

    A bundle that stands for one of its entries (Bundle.entry) gives that entry of a session of its own.
    Raises SmeltError: 'invalid' (no bundle, a damaged one, an impossible number of threads), 'device'
    (compiled for another machine), 'infra' (files that cannot be read).
    """
    if isinstance(bundle, Bundle) and bundle.whole is not None:
        return Session(bundle.whole, threads, verify=verify).entry(bundle.chosen)
    for _ in range(_TRIES if not isinstance(bundle, Bundle) else 0):
        try:
            return Session(read_bundle(bundle), threads, verify=verify)
        except Moved:
            continue  # replaced between two looks: the next one sees the new bundle
    return Session(bundle if isinstance(bundle, Bundle) else read_bundle(bundle), threads, verify=verify)


class _Gate:
    """The lock that all entries of a session share. torn: this process was forked in the middle of a call,
    whose effects on the session are unknown."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.torn = False
        self.entries: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()


class Session:
    """One loaded model with memory of its own. Runs of one session wait for each other; for concurrent runs,
    each thread opens a session.

    Of a model with several entries it is the first one; `session["decode"]` is another one of the same
    session, with inputs and outputs of its own, and the same weights, memory and state.
    """

    def __init__(self, bundle: Bundle, threads: int | None = None, *, verify: bool | None = None) -> None:
        if threads is not None and not (_whole(threads) and 0 <= threads <= MOST_THREADS):
            most, got = MOST_THREADS, f"{threads!r:.80}"
            raise SmeltError(f"threads: expected a whole number from 0 to {most}, got {got}")
        handle = ctypes.c_void_p()
        options = _Options(ctypes.sizeof(_Options), int(threads or 0))
        with Held(bundle) as held:
            self._lib = _library(held)
            held.verify(verify)
            status = self._lib.smelt_open(os.fsencode(held.path), ctypes.byref(options), ctypes.byref(handle))
            if status:
                e = self._error(status, None)
                raise SmeltError(held.with_folder_name(e.message), kind=e.kind)
        self._own(bundle, handle, bundle.entries[0], _Gate(), None)

    def _own(
        self, bundle: Bundle, handle: ctypes.c_void_p, name: str, gate: _Gate, whole: Session | None
    ) -> None:
        """Prepare calls of the entry of this handle. whole: the session's first entry, which owns and closes
        the session; None where this is the first."""
        self.bundle = bundle
        self._handle = handle
        self._gate = gate
        self._whole = whole
        self._name = name
        if whole is None and _entries(self._lib, handle) != bundle.entries:
            raise damaged(bundle.path, "its manifest and its code have other entries")
        manifest = self._manifest = bundle.entry(name).manifest
        self._takes, self._gives = groups(manifest, "inputs"), groups(manifest, "outputs")
        self._plain = "groups" not in manifest
        self._inputs = [_Port(row) for row in manifest["inputs"]]
        self._outputs = [_Port(row) for row in manifest["outputs"]]
        self._state = [_Port(row) for row in bundle.states]
        numbers = {p.name: n for n, p in enumerate(self._state)}
        written = [row for row in manifest["state"] if row["output"] is not None]
        self._replaced_by = {row["output"]: numbers[row["name"]] for row in written}
        for side, ports in (("input", self._inputs), ("output", self._outputs), ("state", self._state)):
            _agree(self._lib, handle, side, ports, bundle)
        if any(row["shape"] is not None for row in manifest["state"]):
            # what runs leave may size outputs, too, unless their dims are those of fed inputs
            fed = {d for p in self._inputs for d in p.dims}
            for p in self._outputs:
                p.late |= not {s for d in p.dims for s in formula(str(d)).symbols} <= fed
        self._in = (_Tensor * max(1, len(self._inputs)))()
        self._out = (_Tensor * max(1, len(self._outputs)))()
        for tensors, ports in ((self._in, self._inputs), (self._out, self._outputs)):
            for t, p in zip(tensors, ports, strict=False):
                t.device, t.ndim, t.dtype = _Device(1, 0), p.rank, p.dlpack
                t.shape = p.shape
        self._ours = True
        self._known: dict[tuple[tuple[int, ...], ...], list[tuple[int, ...]]] = {}
        gate.entries[name] = self
        _LIVE.add(gate)

    # ------------------------------------------------------------ entries

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the model's entries; of a model that was compiled alone, 'main'."""
        return self.bundle.entries

    def entry(self, name: str) -> Session:
        """An entry of this session, by name: it shares weights, memory and state with the others, and runs
        of all of them wait for each other. Raises SmeltError(kind='invalid')."""
        self.bundle.entry(name)  # an error that names those that there are
        with self._gate.lock:
            self._usable()
            found = self._gate.entries.get(name)
            if found is None:
                handle = self._lib.smelt_entry(self._handle, name.encode())
                found = object.__new__(type(self))
                found._lib = self._lib
                found._own(self.bundle, ctypes.c_void_p(handle), name, self._gate, self._whole or self)
        return found

    def __getitem__(self, name: str) -> Session:
        return self.entry(name)

    # ------------------------------------------------------------ as onnxruntime

    def get_inputs(self) -> list[NodeArg]:
        """Names, shapes and types of the inputs."""
        return _arguments(self._takes)

    def get_outputs(self) -> list[NodeArg]:
        """Names, shapes and types of the outputs."""
        return _arguments(self._gives)

    def run(
        self,
        output_names: Iterable[str] | None,
        feed: Mapping[str, Any] | None = None,
        run_options: object = None,
    ) -> list[Any]:
        """Run once; the values of the named outputs, in that order. None and an empty list stand for all
        outputs but those that replace a state, which are returned where they are named.

        feed: input name -> NumPy array, or any object with DLPack; a list of these is a sequence, None an
        empty optional. Dtype, rank and extents must be those of the input; nothing is converted.

        Raises SmeltError: 'shape' naming input, axis, expected and got; 'device' (no memory); the kind of
        the model's own run-time checks.
        """
        wanted = None if output_names is None else self._wanted(output_names)
        if type(feed) is not dict:
            feed = self._as_dict(feed)
        if not self._plain:
            _same_names([g.name for g in self._takes], list(feed))
            feed = packed(self._takes, feed, self._manifest["symbols"])
        kept: dict[int, Any] = {}
        with self._gate.lock:
            results: list[Any] = self._run(feed)
            if wanted is not None:
                replaced, own = [*self._replaced_by.values()], len(self._gives)
                kept = {i: self._state_value(replaced[i - own]) for i in wanted if i >= own}
        if not self._plain:
            tensors = {p.name: r for p, r in zip(self._outputs, results, strict=True)}
            results = list(unpacked(self._gives, tensors).values())
        return results if wanted is None else [kept[i] if i in kept else results[i] for i in wanted]

    def _wanted(self, output_names: Iterable[str]) -> list[int] | None:
        """Indices of the named outputs, where those that replace a state count after all others; None: all
        others. Raises SmeltError(kind='shape')."""
        if isinstance(output_names, str | bytes) or not isinstance(output_names, Iterable):
            kind = type(output_names).__name__
            raise SmeltError(f"expected a list of names of outputs, or None, got {kind}", kind="shape")
        known, found = [*(g.name for g in self._gives), *self._replaced_by], []
        with reading("the names of outputs"):
            for name in output_names:
                if name not in known:
                    told = ", ".join(known)
                    raise SmeltError(f"no output is named {name!r:.80}; there are: {told}", kind="shape")
                found.append(known.index(name))
        return found or None

    def _as_dict(self, feed: object) -> dict[str, Any]:
        """The feed as a dict. Raises SmeltError(kind='shape') where it is no mapping."""
        if not isinstance(feed, Mapping):
            known = ", ".join(g.name for g in self._takes)
            kind = type(feed).__name__
            raise SmeltError(f"expected a dict of the inputs by name ({known}), got {kind}", kind="shape")
        with reading("the dict of inputs"):
            return dict(feed)

    # ------------------------------------------------------------ what onnxruntime has not

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Input name -> a copy of the state that the last run left there; states at their start are left out.
        `set_state` restores it."""
        with self._gate.lock:
            self._usable()
            found = {p.name: self._state_value(n) for n, p in enumerate(self._state)}
        return {name: a for name, a in found.items() if a is not None}

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Set the state (input name -> array) that the next run reads; states that are not named return to
        their start. The next run checks the extents.

        Raises SmeltError(kind='shape') for an unknown name, dtype or rank; then the state is unchanged.
        """
        given, known = self._as_dict(values), {p.name: p for p in self._state}
        if strange := [n for n in given if n not in known]:
            told = ", ".join(known) or "none"
            raise SmeltError(f"no state is called {strange[0]!r:.80}; there are: {told}", kind="shape")
        arrays = {n: known[n].array(x, "state") for n, x in given.items()}
        with self._gate.lock:
            self._usable()
            for n, p in enumerate(self._state):
                self._set_state(n, p, arrays.get(p.name))

    def reset(self) -> None:
        """Return every state to its start, as before the first run."""
        with self._gate.lock:
            self._usable()
            self._asked(self._lib.smelt_reset(self._handle))

    def fork(self) -> Session:
        """Another session with a copy of this one's state, memory of its own and the same weights."""
        handle = ctypes.c_void_p()
        with self._gate.lock:
            self._usable()
            self._asked(self._lib.smelt_fork(self._handle, ctypes.byref(handle)))
        made = object.__new__(type(self))
        made._lib, first = self._lib, self.bundle.entries[0]
        whole = ctypes.c_void_p(self._lib.smelt_entry(handle, first.encode()))
        made._own(self.bundle, whole, first, _Gate(), None)
        return made.entry(self._name)

    def memory(self) -> Memory:
        """Bytes of arena, outputs and weights, and how many allocations there were so far."""
        m = _Memory()
        with self._gate.lock:
            self._usable()
            self._asked(self._lib.smelt_memory_stats(self._handle, ctypes.byref(m)))
        return Memory(*(getattr(m, name) for name in MEMORY_FIELDS))

    def trim(self) -> None:
        """Return working memory and the session's own outputs to the system; arrays that runs returned stay
        valid."""
        with self._gate.lock:
            self._usable()
            self._asked(self._lib.smelt_trim(self._handle))

    def profile(self, enable: bool = True) -> None:
        """Start (from zero) or stop per-kernel timing."""
        with self._gate.lock:
            self._usable()
            self._asked(self._lib.smelt_profile(self._handle, int(enable)))

    def kernel_times(self) -> dict[str, tuple[int, int]]:
        """Kernel name -> (total nanoseconds, launches) since `profile()`."""
        found = {}
        name, ns, launches = ctypes.c_char_p(), ctypes.c_uint64(), ctypes.c_uint64()
        with self._gate.lock:
            self._usable()
            for i in range(self._lib.smelt_kernel_count(self._handle)):
                self._lib.smelt_kernel_stats(
                    self._handle, i, ctypes.byref(name), ctypes.byref(ns), ctypes.byref(launches)
                )
                found[(name.value or b"").decode()] = (ns.value, launches.value)
        return found

    def close(self) -> None:
        """Wait for a run in another thread, then free the session's memory. Its entries cannot be used
        after."""
        with self._gate.lock:
            if self._handle:
                self._lib.smelt_close(self._handle)
                for entry in [self, *self._gate.entries.values()]:
                    entry._handle = ctypes.c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and self._whole is None:
            self.close()

    # ------------------------------------------------------------ inside

    def _run(self, feed: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        """Run once under the session's lock; all outputs. The C tensors belong to the session, so one caller
        at a time may use them."""
        if self._gate.torn or not self._handle:  # a call less: each takes a share of a small model's run
            self._usable()
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
            r = _new(p, shape)
            p.set_shape(shape)
            # an empty array has an address too: data None would mean the session's memory
            t.data = _address(r)
            results.append(r)
        return results

    def _state_value(self, n: int) -> np.ndarray[Any, Any] | None:
        """A copy of state n; None at its start."""
        t = _Tensor()
        self._asked(self._lib.smelt_state_get(self._handle, n, ctypes.byref(t)))
        return _copied(t, self._state[n]) if t.data else None

    def _set_state(self, n: int, p: _Port, value: np.ndarray[Any, Any] | None) -> None:
        if value is None:
            self._asked(self._lib.smelt_state_set(self._handle, n, None))
            return
        p.set_shape(value.shape)
        t = _Tensor(_address(value), _Device(1, 0), p.rank, p.dlpack, p.shape)
        self._asked(self._lib.smelt_state_set(self._handle, n, ctypes.byref(t)))

    def _usable(self) -> None:
        """Raises SmeltError when the session is closed, or was being called while this process was forked."""
        if not self._handle:
            raise SmeltError("the session is closed", kind="invalid", hint="load the bundle again")
        if self._gate.torn:
            raise SmeltError(
                "the session was in the middle of a run when this process was forked",
                kind="invalid",
                hint="load the bundle again in the child, or fork while no run is under way",
            )

    def _asked(self, status: int) -> None:
        """Raise the C code's error as a SmeltError where a call's status is no success."""
        if status:
            raise self._error(status, None)

    def _error(self, status: int, handle: ctypes.c_void_p | None) -> SmeltError:
        text = self._lib.smelt_error(handle)
        return SmeltError(
            (text or b"no reason given").decode(errors="replace"), kind=_KINDS.get(status, "internal")
        )


_LIVE: weakref.WeakSet[_Gate] = weakref.WeakSet()
"""The gates of this process. After a fork the child has no thread that could release a lock that was held."""


def _after_fork() -> None:
    for gate in _LIVE:
        if gate.lock.locked():
            gate.lock, gate.torn = threading.Lock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_DATA_AT = object.__basicsize__
"""Offset in bytes of a PyArrayObject's data pointer: right after the object's header, by NumPy's C ABI."""


def _read_address(a: np.ndarray[Any, Any]) -> int:
    """The address of the first element, read from the object itself: a.__array_interface__ builds a
    dictionary, which takes as long as a small model's run (0.9 us)."""
    return ctypes.c_void_p.from_address(id(a) + _DATA_AT).value or 0


def _asked_address(a: np.ndarray[Any, Any]) -> int:
    """The address of the first element, through NumPy's interface."""
    return int(a.__array_interface__["data"][0])


def _layout_holds() -> bool:
    """Whether this interpreter and this NumPy keep the pointer at _DATA_AT, by three arrays as a test. The
    smallest array object is larger than what is read."""
    probes = np.zeros(3), np.zeros((2, 3))[1:], np.frombuffer(b"12345678")
    size = np.ndarray.__basicsize__
    return size >= _DATA_AT + ctypes.sizeof(ctypes.c_void_p) and all(
        _read_address(a) == _asked_address(a) for a in probes
    )


# arrays are of the exact type when they come here (see _Port.array): a subclass may not be laid out so
_address = _read_address if _layout_holds() else _asked_address


def _whole(n: object) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool)


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

    def array(self, x: Any, role: str = "input") -> np.ndarray[Any, Any]:
        """x as a contiguous numpy.ndarray (no subclass). Raises SmeltError(kind='shape') for a wrong dtype or
        rank; extents are checked by the model's code."""
        if type(x) is not np.ndarray:
            x = as_array(x, f"{role} '{self.name}'")
        if x.dtype != self.dtype.numpy:
            raise SmeltError(
                f"{role} '{self.name}': expected {self.dtype.numpy} elements, got {x.dtype}", kind="shape"
            )
        if x.ndim != self.rank:
            raise SmeltError(
                f"{role} '{self.name}': expected rank {self.rank} {self.dims}, got rank {x.ndim} "
                f"{list(x.shape)}",
                kind="shape",
            )
        if x.flags.c_contiguous:
            return x  # type: ignore[no-any-return]  # its type was asked above
        with reading(f"{role} '{self.name}', made compact"):
            compact: np.ndarray[Any, Any] = np.ascontiguousarray(x)
        return compact


def _new(p: _Port, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """A new array for an output. Raises SmeltError(kind='device') when there is no memory."""
    try:
        return np.empty(shape, p.dtype.numpy)
    except (MemoryError, ValueError) as e:
        raise SmeltError(f"output '{p.name}' of shape {list(shape)}: {e}", kind="device") from None


def _copied(t: _Tensor, p: _Port) -> np.ndarray[Any, Any]:
    """A copy of an output in the session's memory."""
    shape = tuple(t.shape[a] for a in range(p.rank))
    result = _new(p, shape)
    if result.nbytes:
        ctypes.memmove(_address(result), t.data, result.nbytes)
    return result


def _arguments(found: Sequence[Group]) -> list[NodeArg]:
    """The inputs or outputs as onnxruntime describes them."""
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


def _entries(lib: Any, handle: ctypes.c_void_p) -> tuple[str, ...]:
    """The names of the library's entries."""
    count = lib.smelt_entry_count(handle)
    return tuple((lib.smelt_entry_name(handle, i) or b"").decode(errors="replace") for i in range(count))


def _agree(lib: Any, handle: ctypes.c_void_p, side: str, ports: list[_Port], bundle: Bundle) -> None:
    """Raise SmeltError where the library's tensors are not those of the manifest, from which arrays are
    made."""
    count, rank, kind = (getattr(lib, f"smelt_{side}_{what}") for what in ("count", "rank", "type"))
    said = [(p.rank, p.dlpack.code, p.dlpack.bits) for p in ports]
    found = [(rank(handle, i), (t := kind(handle, i)).code, t.bits) for i in range(count(handle))]
    if said != found:
        raise damaged(bundle.path, f"its manifest and its code have other {side}s")


def _library(held: Held) -> Any:
    """The functions of the bundle's shared library, typed, under the names that smelt.h has for them."""
    lib = held.library()
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    signatures: dict[str, tuple[list[Any], Any]] = {
        "smelt_open": ([ctypes.c_char_p, pointer, pointer], ctypes.c_int),
        "smelt_run": ([pointer, pointer, size, pointer, size], ctypes.c_int),
        "smelt_close": ([pointer], None),
        "smelt_cancel": ([pointer], None),
        "smelt_error": ([pointer], ctypes.c_char_p),
        "smelt_entry": ([pointer, ctypes.c_char_p], pointer),
        "smelt_entry_count": ([pointer], size),
        "smelt_entry_name": ([pointer, size], ctypes.c_char_p),
        "smelt_memory_stats": ([pointer, pointer], ctypes.c_int),
        "smelt_trim": ([pointer], ctypes.c_int),
        "smelt_profile": ([pointer, ctypes.c_int32], ctypes.c_int),
        "smelt_kernel_count": ([pointer], size),
        "smelt_input_count": ([pointer], size),
        "smelt_input_rank": ([pointer, size], ctypes.c_int32),
        "smelt_input_type": ([pointer, size], _DataType),
        "smelt_output_count": ([pointer], size),
        "smelt_output_rank": ([pointer, size], ctypes.c_int32),
        "smelt_output_type": ([pointer, size], _DataType),
        "smelt_state_count": ([pointer], size),
        "smelt_state_rank": ([pointer, size], ctypes.c_int32),
        "smelt_state_type": ([pointer, size], _DataType),
        "smelt_state_get": ([pointer, size, pointer], ctypes.c_int),
        "smelt_state_set": ([pointer, size, pointer], ctypes.c_int),
        "smelt_reset": ([pointer], ctypes.c_int),
        "smelt_fork": ([pointer, pointer], ctypes.c_int),
        "smelt_kernel_stats": ([pointer, size, pointer, pointer, pointer], ctypes.c_int),
    }
    functions = SimpleNamespace()
    for name, (arguments, result) in signatures.items():
        symbol = name.replace("smelt", held.bundle.names.prefix, 1)
        if not hasattr(lib, symbol):
            raise damaged(held.bundle.path, f"its code has no function '{symbol}'")
        function = lib[symbol]
        function.argtypes, function.restype = arguments, result
        setattr(functions, name, function)
    return functions
