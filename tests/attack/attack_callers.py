"""Hostile calls of a model's C functions -> each is refused with a reason, or gives the right values.

A seed plays a caller: it opens sessions with odd options,
runs them with arguments of which some are wrong (counts,
NULLs, ranks, types, dims, strides, offsets, devices, memory that inputs and outputs share),
trims, asks, closes and
forks, in any order. Around each buffer lie guards that no run may touch. It works in a forked child.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import random
import shutil
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

sys.path.append(str(Path(__file__).parents[1] / "support"))
from campaign import Outcome, main
from isolated import isolated
from sequence_models import compiled, model, tensor

from smelt.capsules import DLTensor
from smelt.counters import _Memory
from smelt.session import Session

node = helper.make_node
INT64 = ctypes.c_int64
GUARD = 64
BYTE = 0xA5


@functools.cache
def shared() -> Session:
    """y = x * w and z = k + k, and the places of the positive elements of x; compiled once in a process."""
    folder = tempfile.mkdtemp(prefix="callers-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = model(
        [
            node("Mul", ["x", "w"], ["y"]), node("Add", ["k", "k"], ["z"]), node("Greater", ["x", "zero"],
            ["b"]),
            node("NonZero", ["b"], ["p"]),
        ],
        {"x": tensor("f32", ["n", 3]), "k": tensor("i64", ["m"])},
        {"y": tensor("f32", ["n", 3]), "z": tensor("i64", ["m"]), "p": tensor("i64", [2, None])},
        {"w": np.array([1, 2, 3], np.float32), "zero": np.float32(0)},
    )  # fmt: skip
    return compiled(made, folder)


def answers(x: np.ndarray, k: np.ndarray) -> list[np.ndarray]:
    return [x * np.array([1, 2, 3], np.float32), k + k, np.array(np.nonzero(x > 0), np.int64)]


class Buffer:
    """Bytes between guards. shift: how far from a multiple of 64 they begin."""

    def __init__(self, size: int, shift: int = 0) -> None:
        self.size = size
        self.memory = (ctypes.c_ubyte * (size + 4 * GUARD))()
        ctypes.memset(self.memory, BYTE, len(self.memory))
        self.start = -(-(ctypes.addressof(self.memory) + GUARD) // 64) * 64 + shift

    @property
    def whole(self) -> bool:
        """Nothing was written around it."""
        before = ctypes.string_at(ctypes.addressof(self.memory), self.start - ctypes.addressof(self.memory))
        end = self.start + self.size
        after = ctypes.string_at(end, ctypes.addressof(self.memory) + len(self.memory) - end)
        return set(before + after) <= {BYTE}

    def fill(self, a: np.ndarray) -> None:
        ctypes.memmove(self.start, a.tobytes(), a.nbytes)

    def read(self, like: np.ndarray) -> np.ndarray:
        return np.frombuffer(ctypes.string_at(self.start, like.nbytes), like.dtype).reshape(like.shape)


@dataclass
class Call:
    """Arguments of one run. bad: what is wrong with them, so that it must be refused."""

    inputs: Any
    outputs: Any
    values: tuple[np.ndarray, np.ndarray]
    fed: list[Buffer]
    given: list[Buffer | None]
    kept: list[Any] = field(default_factory=list)
    counts: tuple[int, int] = (2, 3)
    bad: list[str] = field(default_factory=list)


TYPES = ((2, 32), (0, 64), (2, 32), (0, 64), (0, 64))


def describe(
    t: DLTensor, kind: tuple[int, int], address: int | None, shape: tuple[int, ...], kept: list[Any]
) -> None:
    dims = (INT64 * max(1, len(shape)))(*shape)
    kept.append(dims)
    t.data, t.ndim, t.byte_offset = address, len(shape), 0
    t.device.device_type, t.device.device_id = 1, 0
    t.dtype.code, t.dtype.bits, t.dtype.lanes = *kind, 1
    t.shape, t.strides = dims, None


def good(rng: random.Random) -> Call:
    """Arguments without a fault; some outputs are the caller's."""
    n, m = rng.choice([0, 1, 4, 50]), rng.choice([0, 1, 5])
    x = np.array([rng.randint(-5, 5) for _ in range(3 * n)], np.float32).reshape(n, 3)
    k = np.array([rng.randint(-9, 9) for _ in range(m)], np.int64)
    want = answers(x, k)
    fed = [Buffer(a.nbytes, rng.choice([0, 0, 1, 4])) for a in (x, k)]
    given = [Buffer(a.nbytes, rng.choice([0, 0, 2, 8])) if rng.random() < 0.5 else None for a in want]
    call = Call((DLTensor * 2)(), (DLTensor * 3)(), (x, k), fed, given)
    for t, b, a, kind in zip(call.inputs, fed, (x, k), TYPES, strict=False):
        b.fill(a)
        describe(t, kind, b.start, a.shape, call.kept)
    for t, o, a, kind in zip(call.outputs, given, want, TYPES[2:], strict=True):
        if o is not None:
            describe(t, kind, o.start, a.shape, call.kept)
    return call


def spoil(call: Call, rng: random.Random) -> None:
    """One thing is made wrong, or odd but right."""
    if call.inputs is None or call.outputs is None:
        return
    which = rng.randrange(5)
    theirs = call.given[which - 2] if which >= 2 else None
    t = call.inputs[which] if which < 2 else call.outputs[which - 2]
    how = rng.choice(
        ["counts", "null", "data", "rank", "type", "lanes", "dims", "negative", "vast", "strides", "offset",
         "device", "shape", "overlap", "self", "outputs", "compact", "moved"]
    )  # fmt: skip
    if how == "counts":
        wrong = rng.choice([(1, 3), (2, 2), (0, 0), (3, 3), (2, 4), (2**63, 3), (2, 2**64 - 1)])
        call.counts = wrong
        call.bad.append(how)
    elif how == "null":
        if rng.random() < 0.5:
            call.inputs = None
        else:
            call.outputs = None
        call.bad.append(how)
    elif how in ("overlap", "outputs") and {"overlap", "outputs"} & set(call.bad):
        return  # two such changes may undo each other
    elif how == "overlap":
        b = rng.choice([b for b in call.fed if b.size] or [None])
        o = rng.choice([k for k, o in enumerate(call.given) if o and o.size] or [None])
        if b and o is not None:
            call.outputs[o].data = b.start + rng.choice([0, 0, b.size - 1, -call.given[o].size + 1])
            call.outputs[o].byte_offset = 0
            call.bad.append(how)
    elif how == "outputs":
        several = [k for k, o in enumerate(call.given) if o and o.size]
        if len(several) > 1:
            a, b = rng.sample(several, 2)
            call.outputs[a].data = call.given[b].start + rng.choice([0, call.given[b].size - 1])
            call.outputs[a].byte_offset = 0
            call.bad.append(how)
    elif not t.shape or (which >= 2 and theirs is None):
        return  # it was spoilt before; what stands beside data NULL is not read
    elif how == "data" and (which < 2 and call.fed[which].size):
        t.data = None
        call.bad.append(how)
    elif how == "rank":
        t.ndim = rng.choice([0, t.ndim - 1, t.ndim + 1, -1, 2**31 - 1, -(2**31)])
        if t.ndim != (2, 1, 2, 1, 2)[which]:
            call.bad.append(how)
    elif how == "type":
        t.dtype.code, t.dtype.bits = rng.choice(
            [(2, 64), (0, 32), (1, 32), (255, 255), (0, 0), (6, 8), (4, 16)]
        )
        call.bad.append(how)
    elif how == "lanes":
        t.dtype.lanes = rng.choice([0, 2, 4, 65535])
        call.bad.append(how)
    elif how in ("dims", "negative", "vast") and t.ndim in (1, 2):
        axis = rng.randrange(t.ndim)
        t.shape[axis] = {
            "dims": t.shape[axis] + 1 if which >= 2 or (which == 0 and axis == 1) else -7,
            "negative": rng.choice([-1, -(2**63)]), "vast": rng.choice([2**62, 2**63 - 1]),
        }[how]  # fmt: skip
        if 0 not in t.shape[: t.ndim] or how != "vast" or which >= 2 or (which == 0 and axis == 1):
            call.bad.append(how)
    elif how == "strides" and t.ndim == 2 and t.shape[0] > 1 and t.shape[1] > 1:  # along 1 any is right
        strides = (INT64 * 2)(*rng.choice([(1, t.shape[0]), (0, 1), (-3, 1), (3, 2), (2**62, 1), (3, -1)]))
        call.kept.append(strides)
        t.strides = strides
        call.bad.append(how)
    elif how == "compact" and t.ndim == 2 and "strides" not in call.bad:  # it would undo them
        strides = (INT64 * 2)(3, 1) if t.shape[1] == 3 else (INT64 * 2)(t.shape[1], 1)
        call.kept.append(strides)
        t.strides = strides
    elif how == "offset" and t.data and 0 not in t.shape[: max(0, t.ndim)]:
        t.byte_offset = rng.choice([2**64 - 1, 2**64 - 8, 2**64 - t.data])
        call.bad.append(how)
    elif how == "moved" and t.data:
        back = rng.choice([0, 1, 8, 4096])
        t.data, t.byte_offset = t.data - back, t.byte_offset + back
    elif how == "device":
        t.device.device_type = rng.choice([0, 2, 3, 4, 13, -1])
        call.bad.append(how)
    elif how == "shape":
        t.shape = None
        if t.ndim > 0:
            call.bad.append(how)


class Caller:
    """A caller with up to three sessions."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.lib, self.path = rng, shared()._lib, os.fsencode(shared().bundle.path)
        self.sessions: list[Any] = []
        self.told: list[str] = []

    def refused(self, status: int, what: str, session: Any = None) -> None:
        """A refusal has a status that there is, and a reason."""
        text = (self.lib.smelt_error(session) or b"").decode(errors="replace")
        assert 1 <= status <= 5, f"{what}: status {status}: {text}"
        assert text.strip(), f"{what}: status {status} without a reason"

    def open(self) -> None:
        struct_size, threads = self.rng.choice(
            [
                (8, 1),
                (8, 0),
                (12, 2),
                (12, 3),
                (16, 1),
                (4, 1),
                (0, 1),
                (-1, 1),
                (2**31 - 1, 1),
                (8, -1),
                (8, 2**31 - 1),
            ]
        )
        options = (ctypes.c_int32 * 4)(struct_size, threads, self.rng.choice([0, 1, -1]), 0x7FFFFFFF)
        handle = ctypes.c_void_p(7)
        path = self.rng.choice([self.path] * 4 + [b"", b"/nowhere", b"x" * 5000, b"\xff%s%n"])
        given = self.rng.choice([ctypes.byref(options), ctypes.byref(options), None])
        out = None if self.rng.random() < 0.05 else ctypes.byref(handle)
        status = self.lib.smelt_open(path, given, out)
        wrong = given is not None and (not 8 <= struct_size <= 4096 or threads < 0)
        if status:
            self.refused(status, "open")
            assert not handle.value or out is None, "open: a session besides an error"
        else:
            assert not wrong and path == self.path and handle.value, (
                f"open took {struct_size} {threads} {path!r}"
            )
            self.sessions.append(handle)

    def run(self) -> None:
        session = self.rng.choice([*self.sessions, None] if self.rng.random() < 0.1 else self.sessions)
        call = good(self.rng)
        for _ in range(self.rng.choice([0, 1, 1, 1, 2])):
            spoil(call, self.rng)
        before = [b.read(a).copy() for b, a in zip(call.fed, call.values, strict=True)]
        status = self.lib.smelt_run(session, call.inputs, call.counts[0], call.outputs, call.counts[1])
        what = f"run {call.bad}"
        if status:
            self.refused(status, what, session)
            assert call.bad or session is None, f"{what}: {self.lib.smelt_error(session)}"
        else:
            assert not call.bad, f"{what} was taken"
            self.check(call)
        for b, a in zip(call.fed, before, strict=True):
            assert b.read(a).tobytes() == a.tobytes() and b.whole, f"{what}: an input was written"
        assert all(o.whole for o in call.given if o), f"{what}: written beside an output"

    def check(self, call: Call) -> None:
        for t, o, want in zip(call.outputs, call.given, answers(*call.values), strict=True):
            assert tuple(t.shape[a] for a in range(want.ndim)) == want.shape
            at = t.data + t.byte_offset if want.nbytes else 0
            got = ctypes.string_at(at, want.nbytes) if at else b""
            assert got == want.tobytes(), f"wrong values, {'the caller' if o else 'the session'}'s"
        if self.rng.random() < 0.3:
            self.again(call)

    def again(self, call: Call) -> None:
        """What the session owns goes in again while it is written again: refused, by both names."""
        session, x = self.sessions[-1], call.values[0]
        mine = (DLTensor * 3)()
        if self.lib.smelt_run(session, call.inputs, 2, mine, 3) == 0 and x.size:
            call.inputs[0].data, call.inputs[0].byte_offset = mine[0].data, 0
            status = self.lib.smelt_run(session, call.inputs, 2, (DLTensor * 3)(), 3)
            text = self.lib.smelt_error(session).decode()
            assert status == 1 and "output 'y' and input 'x' share memory" in text, f"again: {status} {text}"

    def ask(self) -> None:
        session = self.rng.choice([*self.sessions, None])
        memory = _Memory()
        for what, status in (
            ("stats", self.lib.smelt_memory_stats(session, ctypes.byref(memory))),
            ("stats into NULL", self.lib.smelt_memory_stats(session, None)),
            ("profile", self.lib.smelt_profile(session, self.rng.choice([0, 1, -5]))),
            (
                "kernel",
                self.lib.smelt_kernel_stats(session, self.rng.choice([0, 99, 2**64 - 1]), None, None, None),
            ),
            (
                "kernel on its device",
                self.lib.smelt_kernel_device_stats(session, self.rng.choice([0, 99, 2**64 - 1]), None, None),
            ),
            (
                "kernel in forms",
                self.lib.smelt_kernel_form(session, self.rng.choice([0, 99, 2**64 - 1]), None, None),
            ),
            ("trim", self.lib.smelt_trim(session)),
        ):
            if status:
                self.refused(status, what)
            allowed = session is None or "NULL" in what or what.startswith("kernel")
            assert status == 0 or allowed, f"{what}: {status}"
        if session is not None:
            self.lib.smelt_memory_stats(session, ctypes.byref(memory))
            assert memory.arena_capacity == memory.output_capacity == 0, "trim left something"

    def close(self) -> None:
        gone = self.sessions.pop(self.rng.randrange(len(self.sessions))) if self.sessions else None
        self.lib.smelt_close(gone)

    def fork(self) -> None:
        """The child uses what it inherits, and closes it."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.run()
                while self.sessions:
                    self.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0, "a forked child failed"

    def play(self) -> str:
        steps = 0
        for _ in range(self.rng.randint(4, 12)):
            if not self.sessions or (len(self.sessions) < 3 and self.rng.random() < 0.2):
                self.open()
                continue
            step = self.rng.choices([self.run, self.ask, self.close, self.fork], [20, 3, 2, 1])[0]
            step()
            steps += 1
        while self.sessions:
            self.close()
        return f"{min(steps // 5 * 5, 10)} calls and more"


def attempt(seed: int) -> tuple[str, str]:
    """(what came of it, detail); in a child."""
    try:
        return Caller(random.Random(seed)).play(), ""
    except AssertionError as e:
        return str(e).split(":")[0][:60], str(e)
    except Exception as e:
        return f"raised {type(e).__name__}", traceback.format_exc()[-1500:]


def attack(seed: int) -> Outcome:
    """One caller."""
    shared()  # before the fork, so that each child has it
    how, result = isolated(lambda: attempt(seed))
    if how != "ok":
        return Outcome(f"{how} {result}", failed=True)
    what, detail = result
    return Outcome(what, failed=bool(detail), detail=detail)


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or ""))
