"""A bundle for this machine -> a session that runs it in this process, called as onnxruntime's is."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from smelt import counters
from smelt.c_functions import check_ports, entry_names, typed_functions
from smelt.capsules import DLDevice, DLTensor, is_elsewhere
from smelt.core.bundle import Bundle, damaged, read_bundle, spelled_dim
from smelt.core.diag import Kind, SmeltError, reading
from smelt.core.dtype import INT64
from smelt.core.session_memory import Memory
from smelt.counters import KernelForm, TimesByKernel
from smelt.groups import Group, groups, packed, unpacked
from smelt.library import Held, Moved
from smelt.limits import MOST_THREADS
from smelt.output_memory import OutputMemory
from smelt.policy import UnitPolicy, UnitShare, policy_of
from smelt.ports import BoundPort, UnitTensor, address, copied, lent, new_array

Counted = TypeVar("Counted")
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


class _Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_int32), ("threads", ctypes.c_int32)]


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: name, shape (ints and dim strings), type ('tensor(float)'), as onnxruntime's."""

    name: str
    shape: list[int | str]
    type: str


_TRIES = 4


def load(
    bundle: Bundle | str | os.PathLike[str], threads: int | None = None, *, verify: bool | None = None,
    policy: UnitPolicy | str = "static",
) -> Session:  # fmt: skip
    """A session on this machine. bundle: a Bundle or its folder. threads: None or 0 takes the bundle's
    default, 1 runs on the caller's thread alone. verify: True compares all weights with their hash, False
    compares cheaper checksums only, None compares the hash of a large file when it is first loaded on this
    machine (docs/safety.md). policy: which of the units that a bundle has code for a run is bound to
    ('load', 'thermal', 'battery', docs/units.md); 'static': the first that works.

    A bundle that stands for one of its entries (Bundle.entry) gives that entry of a session of its own.
    Raises SmeltError: 'invalid' (no bundle, a damaged one, an impossible number of threads), 'device'
    (compiled for another machine), 'infra' (files that cannot be read).
    """
    if isinstance(bundle, Bundle) and bundle.whole is not None:
        return Session(bundle.whole, threads, verify=verify, policy=policy).entry(bundle.chosen)
    for _ in range(_TRIES if not isinstance(bundle, Bundle) else 0):
        try:
            return Session(read_bundle(bundle), threads, verify=verify, policy=policy)
        except Moved:
            continue  # replaced between two looks: the next one sees the new bundle
    found = bundle if isinstance(bundle, Bundle) else read_bundle(bundle)
    return Session(found, threads, verify=verify, policy=policy)


class _Gate:
    """The lock that all entries of a session share. busy: the thread that holds it is in a call; a second
    call there comes from an object of the first one's feed, a finaliser or a signal handler. torn: this
    process was forked in the middle of another thread's call, whose effects on the session are unknown."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.busy = False
        self.torn = False
        self.entries: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Inside the block, one call of the session. Raises SmeltError inside another one of this thread."""
        with self.lock:
            if self.busy:
                raise _inside()
            self.busy = True
            try:
                yield
            finally:
                self.busy = False


class Session:
    """One loaded model with memory of its own. Runs of one session wait for each other; for concurrent runs,
    each thread opens a session.

    Of a model with several entries it is the first one; `session["decode"]` is another one of the same
    session, with inputs and outputs of its own, and the same weights, memory and state.
    """

    def __init__(
        self, bundle: Bundle, threads: int | None = None, *, verify: bool | None = None,
        policy: UnitPolicy | str = "static",
    ) -> None:  # fmt: skip
        bound = policy_of(policy)
        if threads is not None and not (_whole(threads) and 0 <= threads <= MOST_THREADS):
            most, got = MOST_THREADS, f"{threads!r:.80}"
            raise SmeltError(f"threads: expected a whole number from 0 to {most}, got {got}")
        handle = ctypes.c_void_p()
        options = _Options(ctypes.sizeof(_Options), int(threads or 0))
        with Held(bundle) as held:
            self._lib = typed_functions(held)
            held.verify(verify)
            status = self._lib.smelt_open(os.fsencode(held.path), ctypes.byref(options), ctypes.byref(handle))
            if status:
                e = self._error(status, None)
                raise SmeltError(held.with_folder_name(e.message), kind=e.kind)
        self._own(bundle, handle, bundle.entries[0], _Gate(), None)
        if bound.kind != "static":
            self.set_policy(bound)

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
        if whole is None and entry_names(self._lib, handle) != bundle.entries:
            raise damaged(bundle.path, "its manifest and its code have other entries")
        manifest = self._manifest = bundle.entry(name).manifest
        self._takes, self._gives = groups(manifest, "inputs"), groups(manifest, "outputs")
        self._plain = all(g.plain for g in (*self._takes, *self._gives))
        self._inputs = [BoundPort(row) for row in manifest["inputs"]]
        self._outputs = [BoundPort(row) for row in manifest["outputs"]]
        self._state = [BoundPort(row) for row in bundle.states]
        self._rooms = {row["name"]: row["room"] for row in bundle.states if row.get("room")}
        numbers = {p.name: n for n, p in enumerate(self._state)}
        written = [row for row in manifest["state"] if row["output"] is not None]
        self._replaced_by = {row["output"]: numbers[row["name"]] for row in written}
        for side, ports in (("input", self._inputs), ("output", self._outputs), ("state", self._state)):
            check_ports(self._lib, handle, side, ports, bundle)
        if any(row["shape"] is not None for row in manifest["state"]):
            # what runs leave may size outputs, too, unless their dims are those of fed inputs
            fed = {d for p in self._inputs for d in p.dims}
            for p in self._outputs:
                p.late |= not {s for d in p.dims for s in spelled_dim(d, manifest).symbols} <= fed
        self._in = (DLTensor * max(1, len(self._inputs)))()
        self._out = (DLTensor * max(1, len(self._outputs)))()
        # each access to an element of a ctypes array makes a new object for it, so those are made once
        self._taken = tuple(zip(self._in, self._inputs, strict=False))
        self._given = tuple(zip(self._out, self._outputs, strict=False))
        self._names = {p.name for p in self._inputs}
        for t, p in (*self._taken, *self._given):
            t.device, t.ndim, t.dtype = DLDevice(1, 0), p.rank, p.dlpack
            t.shape = p.shape
        self._ours = True
        self._away = False
        self._memory = OutputMemory(self._inputs, self._outputs, manifest)
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
        with self._gate.alone():
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

    @property
    def name(self) -> str:
        """What the model is called; of one with several entries, this entry's name."""
        return self._name if len(self.entries) > 1 else self.bundle.names.prefix

    def shares(self, other: Session) -> bool:
        """Whether this and the other are entries of one session, whose runs wait for each other."""
        return self._gate is other._gate

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
            feed = packed(self._takes, feed, self._manifest)
        kept: dict[int, Any] = {}
        gate = self._gate
        with gate.lock:  # as gate.alone(), which would take as long as half of a small model's run
            if gate.busy:
                raise _inside()
            gate.busy = True
            try:
                results: list[Any] = self._run(feed)
                if wanted is not None:
                    replaced, own = [*self._replaced_by.values()], len(self._gives)
                    kept = {i: self._state_value(replaced[i - own]) for i in wanted if i >= own}
            finally:
                gate.busy = False
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

    def _as_dict(
        self, given: object, what: str = "inputs", names: Iterable[str] | None = None
    ) -> dict[str, Any]:
        """The argument as a dict. what, names: of its keys, those of the feed by default. Raises
        SmeltError(kind='shape') where it is no mapping."""
        if not isinstance(given, Mapping):
            known = ", ".join((g.name for g in self._takes) if names is None else names) or "none"
            kind = type(given).__name__
            raise SmeltError(f"expected a dict of the {what} by name ({known}), got {kind}", kind="shape")
        with reading(f"the dict of {what}"):
            return dict(given)

    # ------------------------------------------------------------ what onnxruntime has not

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Input name -> a copy of the state that the last run left there; states at their start are left out.
        `set_state` restores it."""
        with self._gate.alone():
            self._usable()
            found = {p.name: self._state_value(n) for n, p in enumerate(self._state)}
        return {name: a for name, a in found.items() if a is not None}

    def set_state(self, values: Mapping[str, Any]) -> None:
        """Set the state (input name -> array) that the next run reads; states that are not named return to
        their start. The next run checks the extents.

        Raises SmeltError(kind='shape') for an unknown name, dtype or rank, or rows that the
        state has no room for; then the state is unchanged.
        """
        known = {p.name: p for p in self._state}
        given = self._as_dict(values, "states", known)
        if strange := [n for n in given if n not in known]:
            told = ", ".join(known) or "none"
            raise SmeltError(f"no state is called {strange[0]!r:.80}; there are: {told}", kind="shape")
        arrays = {n: known[n].array(x, "state") for n, x in given.items()}
        for name, (axis, room) in self._rooms.items():
            if name in arrays and (got := arrays[name].shape[axis]) > room:
                raise SmeltError(
                    f"state '{name}' axis {axis}: expected at most {room}, got {got}",
                    kind="shape",
                    hint="compile with another --dim range to allow it",
                )
        with self._gate.alone():
            self._usable()
            for n, p in enumerate(self._state):
                self._set_state(n, p, arrays.get(p.name))

    def tensor(self, name: str, value: Any) -> UnitTensor:
        """Memory of this session at the unit where the model has the input or output of that name, of its
        element type. value: an array, which is copied there, or a shape; or an object with DLPack that lies
        on a device, which is used where it is and kept as long (docs/units.md). Runs take it in their feed,
        and `run_into` for outputs. Raises SmeltError."""
        ports = (*self._inputs, *self._outputs)
        p = next((p for p in ports if p.name == name), None)
        if p is None:
            told = ", ".join(p.name for p in ports)
            raise SmeltError(f"no tensor is named {name!r:.80}; there are: {told}", kind="shape")
        if is_elsewhere(value):
            return lent(self, p, value)
        plain = isinstance(value, tuple | list) and all(map(_whole, value))
        array = None if plain else p.array(value, "tensor")
        shape = tuple(map(int, value)) if array is None else array.shape
        size = math.prod(shape) * p.numpy.itemsize
        if len(shape) != p.rank or not all(0 <= d <= INT64 for d in (*shape, size)):
            what = f"expected a possible shape of rank {p.rank} {p.dims}, got {shape}"
            raise SmeltError(f"tensor '{name}': {what}", kind="shape")
        extents = (ctypes.c_int64 * max(1, p.rank))(*shape)
        t = DLTensor(None, DLDevice(1, 0), p.rank, p.dlpack, extents)
        self.tensor_call("", self.unit_of(p), size, ctypes.byref(t))
        made = UnitTensor(self, p, shape, t)
        if array is not None:
            made.write(array)
        return made

    def unit_of(self, p: BoundPort) -> int:
        """The unit where the model has an input or output."""
        side, row = ("input", self._inputs) if p in self._inputs else ("output", self._outputs)
        with self._gate.alone():
            self._usable()
            return int(getattr(self._lib, f"smelt_{side}_unit")(self._handle, row.index(p)))

    def tensor_call(self, name: str, *arguments: Any) -> None:
        """One of smelt.h's functions about tensors. Raises SmeltError."""
        with self._gate.alone():
            self._usable()
            self._asked(getattr(self._lib, f"smelt_tensor{name}")(self._handle, *arguments))

    def run_into(self, outputs: Mapping[str, UnitTensor], feed: Mapping[str, Any]) -> list[Any]:
        """Run once; values of the named outputs are written to these tensors, which must have the right
        shapes and be no input of this run. Returns all outputs: these tensors, arrays for the others."""
        known = [p.name for p in self._outputs]
        given = self._as_dict(outputs, "outputs", known)
        if not self._plain or any(n not in known for n in given):
            told = ", ".join(known) if self._plain else "sequences, strings or maps, which have none"
            raise SmeltError(f"outputs {list(given)} are not among those of the model: {told}", kind="shape")
        if wrong := [n for n, t in given.items() if type(t) is not UnitTensor]:
            kind = type(given[wrong[0]]).__name__
            hint = f"session.tensor('{wrong[0]}', shape) makes one"
            what = f"output '{wrong[0]}': expected a UnitTensor, got {kind}"
            raise SmeltError(what, kind="shape", hint=hint)
        with self._gate.alone():
            self._usable()
            _held = self._bind(self._as_dict(feed))  # compact copies among them, which nobody else holds
            self._ours, self._away = False, True
            for t, p in self._given:
                t.data, t.shape = None, p.shape
                if p.name in given:
                    p.place(t, given[p.name], self)
            status = self._lib.smelt_run(
                self._handle, self._in, len(self._inputs), self._out, len(self._outputs)
            )
            if status:
                raise self._error(status, self._handle)
            return [given[p.name] if p.name in given else copied(t, p) for t, p in self._given]

    def same_session(self, other: Session) -> bool:
        """Whether both are entries of one session."""
        return self._gate is other._gate

    def copy_tensor(
        self, port: BoundPort, t: Any, value: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        """Between a UnitTensor's bytes and the host: of `value`, or to a new array."""
        shape = tuple(t.shape[k] for k in range(port.rank))
        array = new_array(port, shape) if value is None else port.array(value, "tensor")
        if array.shape != shape:
            raise SmeltError(
                f"tensor '{port.name}': expected shape {list(shape)}, got {list(array.shape)}", kind="shape"
            )
        data = address(array) if array.size else None
        here = DLTensor(data, DLDevice(1, 0), port.rank, port.dlpack, t.shape)
        pair = (here, t) if value is None else (t, here)
        self.tensor_call("_copy", *map(ctypes.byref, pair))
        return array

    def free_tensor(self, t: Any, wait: bool) -> None:
        """Give a UnitTensor's memory back, now or, where a call is under way, with the session."""
        if t.data and self._handle and self._gate.lock.acquire(blocking=wait):
            try:
                if not self._gate.busy:
                    self._lib.smelt_tensor_free(self._handle, ctypes.byref(t))
            finally:
                self._gate.lock.release()
        t.data = None

    def reset(self) -> None:
        """Return every state to its start, as before the first run."""
        with self._gate.alone():
            self._usable()
            self._asked(self._lib.smelt_reset(self._handle))

    def fork(self) -> Session:
        """Another session with a copy of this one's state, memory of its own and the same weights."""
        handle = ctypes.c_void_p()
        with self._gate.alone():
            self._usable()
            self._asked(self._lib.smelt_fork(self._handle, ctypes.byref(handle)))
        made = object.__new__(type(self))
        made._lib, first = self._lib, self.bundle.entries[0]
        whole = ctypes.c_void_p(self._lib.smelt_entry(handle, first.encode()))
        made._own(self.bundle, whole, first, _Gate(), None)
        return made.entry(self._name)

    def memory(self) -> Memory:
        """Bytes of arena, outputs and weights, and how many allocations there were so far."""
        return self._counted(counters.memory_of, self._asked)

    def set_policy(self, policy: UnitPolicy | str) -> None:
        """Bind the runs from now on by this policy. Raises SmeltError."""
        options = policy_of(policy).options()
        with self._gate.alone():
            self._usable()
            self._asked(self._lib.smelt_policy(self._handle, ctypes.byref(options)))

    def units(self) -> tuple[UnitShare, ...]:
        """The units that runs may be bound to, in the order in which a session takes them, with the share of
        the runs that each had."""
        return self._counted(counters.shares_of, self._asked)

    @property
    def policy_note(self) -> str | None:
        """What keeps the policy from its work, or what it goes by; None: nothing."""
        with self._gate.alone():
            self._usable()
            note = self._lib.smelt_policy_note(self._handle)
        return None if note is None else str(note.decode(errors="replace"))

    @property
    def fallback(self) -> str | None:
        """Why the session runs on the CPU although the bundle is for a device as well: the device's error.
        None: it does not."""
        with self._gate.lock:
            self._usable()
            why = self._lib.smelt_fallback(self._handle)
        return None if why is None else str(why.decode(errors="replace"))

    @property
    def variant(self) -> str:
        """The processor whose code the session runs: the last of those that the target named which this one
        can stand for."""
        with self._gate.lock:
            self._usable()
            return str(self._lib.smelt_variant(self._handle).decode(errors="replace"))

    def trim(self) -> None:
        """Return working memory and the session's own outputs to the system; arrays that runs returned stay
        valid."""
        with self._gate.alone():
            self._usable()
            self._memory.forget()
            self._asked(self._lib.smelt_trim(self._handle))

    def profile(self, enable: bool = True) -> None:
        """Start (from zero) or stop per-kernel timing."""
        with self._gate.alone():
            self._usable()
            self._asked(self._lib.smelt_profile(self._handle, int(enable)))

    def _counted(self, ask: Callable[..., Counted], *more: Any) -> Counted:
        """What a session counts, while nothing else goes on in it."""
        with self._gate.alone():
            self._usable()
            return ask(self._lib, self._handle, *more)

    def kernel_times(self) -> TimesByKernel:
        """Kernel name -> (total nanoseconds, launches) since `profile()`, by the host's clock: on a device
        with launching and waiting."""
        return self._counted(counters.kernel_times_of)

    def device_times(self) -> TimesByKernel:
        """Kernel name -> (total nanoseconds, launches) since `profile()`, by the events of the device that
        ran them; without kernels that ran on the CPU or on a device that has no events."""
        return self._counted(counters.device_times_of)

    def kernel_forms(self) -> dict[str, KernelForm]:
        """Kernel name -> the form that it has got, where its unit's code has several (docs/units.md)."""
        return self._counted(counters.kernel_forms_of)

    def close(self) -> None:
        """Wait for a run in another thread, then free the session's memory. Its entries cannot be used
        after."""
        with self._gate.alone():
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
            results = [copied(t, p) for t, p in self._given]
            self._memory.learn(shapes, results)
        return results

    def _bind(self, feed: Mapping[str, Any]) -> list[np.ndarray[Any, Any] | UnitTensor]:
        if feed.keys() != self._names:
            _same_names([p.name for p in self._inputs], list(feed))
        if self._away:
            for t, _ in (*self._taken, *self._given):
                t.device = DLDevice(1, 0)
            self._away = False
        arrays: list[np.ndarray[Any, Any] | UnitTensor] = []
        for t, p in self._taken:
            x = feed[p.name]
            if type(x) is UnitTensor:
                arrays.append(p.place(t, x, self))
                self._away = True
                continue
            a = p.array(x)
            arrays.append(a)
            t.data = address(a) if a.size else None
            p.set_shape(a.shape)
        return arrays

    def _targets(self, shapes: tuple[tuple[int, ...], ...]) -> list[np.ndarray[Any, Any]] | None:
        """New arrays for the outputs when their shapes are known, else None: the session's memory."""
        results = self._memory.arrays(shapes)
        if results is None:
            for t, _ in self._given:
                t.data = None
            self._ours = False
            return None
        if not self._ours:
            # the model pointed the shapes at its own memory
            for t, p in self._given:
                t.shape = p.shape
            self._ours = True
        for (t, p), a in zip(self._given, results, strict=True):
            p.set_shape(a.shape)
            # an empty array has an address too: data None would mean the session's memory
            t.data = address(a)
        return results

    def _state_value(self, n: int) -> np.ndarray[Any, Any] | None:
        """A copy of state n; None at its start."""
        t = DLTensor()
        self._asked(self._lib.smelt_state_get(self._handle, n, ctypes.byref(t)))
        return copied(t, self._state[n]) if t.data else None

    def _set_state(self, n: int, p: BoundPort, value: np.ndarray[Any, Any] | None) -> None:
        if value is None:
            self._asked(self._lib.smelt_state_set(self._handle, n, None))
            return
        p.set_shape(value.shape)
        t = DLTensor(address(value), DLDevice(1, 0), p.rank, p.dlpack, p.shape)
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
        if gate.lock.acquire(blocking=False):  # free, or held by this thread, which goes on
            gate.lock.release()
        else:
            gate.lock, gate.busy, gate.torn = threading.RLock(), False, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _inside() -> SmeltError:
    """The refusal of a call that would wait for the one around it."""
    return SmeltError(
        "the session is used from inside one of its own calls",
        hint="an object of the feed, a finaliser or a signal handler calls it; give that its own session",
    )


def _whole(n: object) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool)


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
