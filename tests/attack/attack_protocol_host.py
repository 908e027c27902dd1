"""Hostile bytes from a device -> the host's client ends each request, if not well, with a SmeltError of the
right kind, in bounded time and memory.

A session of the client with a real runner is recorded once. A seed mutates what the runner said (fields of
its JSON, heads of tensors, lengths, counts, order, checksums, raw bytes, endless repetition) and plays it
through a pipe to a client that makes every kind of request, in a forked child under a limit of memory.
"""

from __future__ import annotations

import functools
import json
import pickle
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

sys.path.append(str(Path(__file__).parents[1] / "support"))
from campaign import Outcome, main
from frames_raw import Raw
from isolated import isolated
from onnx_models import model

from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.channel import PipeChannel
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.frames import Decoder, FrameType
from smelt.devicefarm.measure import RunPlan
from smelt.devicefarm.report import RunnerError
from smelt.devicefarm.verdict import verdict_of_error, verdict_of_timing
from smelt.driver import Request

LIMIT = 0.25
"""Seconds that the client waits for an answer; a request with data has a little more."""
LIMITS = StepLimits(
    connect=LIMIT, load=LIMIT, run=LIMIT, output=LIMIT, command=LIMIT, close=LIMIT, grace=0.0, total=20.0
)
PLAN = RunPlan(
    warmup_runs=1, warmup_min=0, warmup_max=0.01, samples=5, min_time=0, max_time=0.05, profile=True
)
MEMORY = 1 << 30
"""Bytes of address space that the client may take beyond what it has: a frame of 16 MB, a record of 4 MB as
Python's objects, a log, one output."""
HANG = 40.0
X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Recording(PipeChannel):
    """A channel that remembers what came."""

    def __init__(self, argv: list[str]) -> None:
        super().__init__(argv)
        self.heard = bytearray()

    def receive(self, deadline: float) -> bytes:
        data = super().receive(deadline)
        self.heard += data
        return data


def requests(client: RunnerClient) -> list[tuple[str, Callable[[], Any]]]:
    """Every kind of request, in the order of a session."""

    def run() -> Any:
        report = client.run([X], PLAN)
        text = f"{report.timing} {report.facts} {report.memory}"
        return report, text, report.timing and verdict_of_timing(report.timing)

    return [
        ("hello", client.hello), ("load", lambda: client.load("bundle")), ("run", run),
        ("input", lambda: client.set_input(0, X)), ("output", lambda: client.get_output(0)),
        ("reset", client.reset),
    ]  # fmt: skip


@functools.cache
def recorded() -> tuple[Raw, ...]:
    """What a real runner says in that session."""
    with tempfile.TemporaryDirectory() as folder:
        m = model([helper.make_node("Add", ["x", "x"], ["y"])], {"x": ("f32", ["n", 3])}, {"y": "f32"})
        (Path(folder) / "m.onnx").write_bytes(m.SerializeToString())
        bundle = compile_here(Request(f"{folder}/m.onnx", output=f"{folder}/out"))
        channel = Recording([str(Path(bundle.path) / "smelt_run"), "--serve"])
        client = RunnerClient(channel)
        client.hello()
        client.load(str(bundle.path))
        for name, request in requests(client)[2:]:
            request()
            assert name
        client.close()
    frames = tuple(Decoder().feed(bytes(channel.heard)))
    assert {f.type for f in frames} >= {FrameType.HELLO, FrameType.STATS, FrameType.SAMPLES, FrameType.OUT}
    return tuple(Raw(f.type, f.payload, f.job) for f in frames)


# ---------------------------------------------------------------- what is said instead

ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 7, 64, 65, 255, 256, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64,
    -(2**63), 0.5, 1e300,
    "", "x", "nan", "-inf", "1e999", "ok", "crash", "timeout", "no device", "\x1b[2J\x07\r", "\u202e",
    "\ud800", "\0", "é" * 3000,
    [], {}, [[]], [None], {"kind": "run"}, ["x"] * 5000, [{}] * 5000, "a" * 100_000,
)  # fmt: skip
LITERALS = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "-" + "9" * 4000, "1" + "0" * 400,
    "[" * 100_000,
    '{"a":' * 100_000, "[" * 5000 + "]" * 5000, '"\\ud800\\udc00"', '"\\uZZZZ"', "tru", "", "0x10", "01",
    "1.", "'x'",
    "[" + "[]," * 500_000 + "[]]",
)  # fmt: skip
MARK = '"@@@"'


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of everything in a document."""
    found = [path] if path else []
    if isinstance(value, dict | list):
        for k, v in value.items() if isinstance(value, dict) else enumerate(value):
            found += leaves(v, (*path, k))
    return found


def changed_json(payload: bytes, rng: random.Random) -> bytes:
    """One field of a record becomes another thing, or goes, or comes twice."""
    try:
        document = json.loads(payload)
        path = rng.choice(leaves(document))
    except (ValueError, RecursionError, IndexError):  # it was changed before
        return changed_bytes(payload, rng)
    holder = document
    for step in path[:-1]:
        holder = holder[step]
    how = rng.choice(["odd"] * 6 + ["literal"] * 3 + ["gone", "copies", "more", "twice", "other", "nest"])
    if how in ("odd", "literal"):
        holder[path[-1]] = "@@@" if how == "literal" else rng.choice(ODD)
    elif how == "gone":
        del holder[path[-1]]
    elif how == "copies" and isinstance(holder, list):
        holder[:] = holder * rng.choice([2, 5000])
    elif how == "more":
        holder = document
        holder.update({f"key {i}": i for i in range(rng.choice([1, 50_000]))})
    elif how == "nest":
        document = [document]
    text = json.dumps(document).replace(MARK, rng.choice(LITERALS))
    if how == "twice":
        text = text[:-1] + "," + text[1:]
    if how == "other":
        text = rng.choice(["", "[]", "null", "3", '"x"', "{", "{}", "\xff", "\0" * 99, text * 2, text[:-1]])
    return (
        text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.9
        else text.encode("utf-16", "surrogatepass")
    )


def changed_bytes(payload: bytes, rng: random.Random) -> bytes:
    """One number of a binary payload, or its length."""
    wide = (0, 1, 3, 63, 64, 65, 2**16, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
    if rng.random() < 0.3 or len(payload) < 8:
        return rng.choice(
            [payload[: rng.randrange(len(payload) + 1)], payload + rng.randbytes(rng.choice([1, 8, 999]))]
        )
    width = rng.choice("BHIQ")
    size = struct.calcsize(width)
    at = rng.randrange(0, len(payload) - size + 1, size)
    return (
        payload[:at]
        + struct.pack("<" + width, rng.choice(wide) & (2 ** (8 * size) - 1))
        + payload[at + size :]
    )


HOWS = (
    *["json"] * 4, *["bytes"] * 2, "out", "copy", "drop", "swap", "job", "alien", "type", "header", "crc",
    "many",
    "big",
)  # fmt: skip


def mutate(frames: list[Raw], rng: random.Random) -> None:
    """One change, in place."""
    at = rng.randrange(len(frames))
    how = rng.choice(HOWS)
    texts = [f for f in frames if f.payload.startswith(b"{")]
    f = frames[at]
    if how == "json" and texts:
        f = rng.choice(texts)
        f.payload = changed_json(f.payload, rng)
    elif how == "bytes":
        f.payload = changed_bytes(f.payload, rng)
    elif how == "out":
        wanted = [f for f in frames if f.type in (FrameType.OUT, FrameType.SAMPLES, FrameType.DATA)]
        if wanted:
            f = rng.choice(wanted)
            f.payload = changed_bytes(f.payload, rng)
    elif how == "copy":
        frames.insert(rng.randrange(len(frames) + 1), Raw(**vars(f)))
    elif how == "many":
        frames[at:at] = [f] * rng.choice([20, 3000])
    elif how == "drop":
        frames[at:] = frames[at + 1 :] or [f]
    elif how == "swap":
        other = rng.randrange(len(frames))
        frames[at], frames[other] = frames[other], frames[at]
    elif how == "job":
        f.job = rng.choice([0, f.job + 1, 2**64 - 1])
    elif how == "alien":
        payload = rng.choice([b"", b"{}", rng.randbytes(50), rng.choice(frames).payload])
        frames.insert(at, Raw(rng.randrange(1, 17), payload, f.job))
    elif how == "type":
        f.type = rng.choice([0, *range(1, 18), 255])
    elif how == "header":
        field = rng.choice(["magic", "version", "length", "flags"])
        most = {"version": 255, "flags": 65535}.get(field, 2**32 - 1)
        setattr(f, field, rng.choice([0, 2, most, most // 2, (16 << 20) + 1]) & most)
    elif how == "crc":
        setattr(f, rng.choice(["head_crc", "crc"]), rng.randrange(2**32))
    elif how == "big":
        frames.insert(at, Raw(f.type, f.payload + bytes(16 << 20)[len(f.payload) :], f.job))


@dataclass(frozen=True)
class Device:
    """What is said first, what after a moment, and what without an end."""

    first: bytes
    then: bytes = b""
    endless: bytes = b""


def draw(seed: int) -> Device:
    """What the device says."""
    rng = random.Random(seed)
    frames = [Raw(**vars(f)) for f in recorded()]
    for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 3])):
        mutate(frames, rng)
    data = b"".join(f.encode() for f in frames)
    if rng.random() < 0.1:
        raw = bytearray(data)
        for _ in range(rng.choice([1, 1, 20])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        data = bytes(raw)
    if rng.random() < 0.05:
        data = rng.choice([b"Welcome to board 7\r\n", b"\0" * 4096, b"SMLT", rng.randbytes(300)]) + data
    cut = rng.randrange(len(data) + 1)
    if rng.random() < 0.12:
        job = rng.choice([1, 2, 3, 4, 5, 2**63])
        payload = rng.choice(
            [b"", b"x" * 5000, b'{"status":"ok","request":1,"text":"","crc32":0}', bytes(1 << 20)]
        )
        kind = rng.choice([*range(1, 17), FrameType.LOG, FrameType.STAGE, FrameType.END, FrameType.DATA])
        whole = b"".join(f.encode() for f in frames[: rng.randrange(len(frames))])
        return Device(whole, endless=Raw(kind, payload, job).encode())
    if rng.random() < 0.1:
        return Device(data[:cut], data[cut:])
    return Device(data[:cut] if rng.random() < 0.08 else data)


SPEAK = """cat "$0"
if [ -s "$1" ]; then sleep 0.1; cat "$1"; fi
while [ -s "$2" ]; do cat "$2" || exit; done
exec cat >/dev/null"""


def plain_text(error: SmeltError) -> bool:
    """The message can be printed and moves no cursor."""
    return str(error).replace("\n", " ").isprintable() and len(str(error)) < 20_000


def attempt(device: Device, folder: Path) -> tuple[str, str]:
    """(what came of the session, detail); in a child."""
    paths = []
    for name, data in (("first", device.first), ("then", device.then), ("endless", device.endless)):
        (folder / name).write_bytes(
            data if name != "endless" else data * max(1, (1 << 16) // (len(data) or 1))
        )
        paths.append(str(folder / name))
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (pages + MEMORY, pages + MEMORY))
    channel = PipeChannel(["/bin/sh", "-c", SPEAK, *paths], close_limit=0.05)
    client = RunnerClient(channel, budget=Budget(LIMITS))
    said = "answered"
    try:
        for name, request in requests(client):
            start = time.monotonic()
            try:
                request()
            except SmeltError as e:
                said = f"{e.kind} at {name}" if said == "answered" else said
                if not isinstance(e, RunnerError) and e.kind != "infra":
                    return f"kind {e.kind}", f"{name}: {e!r:.500}"
                if not plain_text(e):
                    return "a message that is no plain text", f"{name}: {e!r:.500}"
                verdict_of_error(e)
                pickle.loads(pickle.dumps(e))
            if time.monotonic() - start > 20:
                return "took too long", name
    except BaseException as e:
        return f"raised {type(e).__name__}", f"{name}: {e!r:.500}"
    finally:
        client.close()
    return said, ""


def attack(seed: int) -> Outcome:
    """One session."""
    device = draw(seed)
    with tempfile.TemporaryDirectory(prefix="attack-host-") as folder:
        how, result = isolated(lambda: attempt(device, Path(folder)), HANG)
    if how != "ok":
        return Outcome(f"{how} {result}", failed=True, detail=f"{len(device.first)} bytes")
    what, detail = result
    return Outcome(what, failed=bool(detail), detail=detail)


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", count=10**6))
