"""Requests to a runner over any channel -> RunReport; the host's side of the protocol."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smelt.core.diag import Kind, SmeltError
from smelt.core.dtype import from_numpy
from smelt.devicefarm import report as parse
from smelt.devicefarm.budget import Budget, infra
from smelt.devicefarm.channel import Channel
from smelt.devicefarm.frames import CHUNK, Decoder, Frame, FrameType, encode
from smelt.devicefarm.measure import ONCE, RunPlan
from smelt.devicefarm.report import (
    DL_CODES,
    Array,
    Crash,
    DeviceFacts,
    ModelInfo,
    RunnerError,
    RunReport,
    dtype_of_code,
)
from smelt.devicefarm.transport import Transport

SETIN_HEAD = struct.Struct("<IIBBHIQ")
OUT_HEAD = struct.Struct("<IBBHIIQ")
LOAD_HEAD = struct.Struct("<IIIIQ")
RUN_BODY = struct.Struct("<IIIIQQQQQ")
PAIR = struct.Struct("<II")
OFFSET = struct.Struct("<Q")
NS = 1_000_000_000
LOG_LIMIT = 1 << 20
OUTPUT_LIMIT = 1 << 34  # bytes of one output; a device cannot make the host allocate more

KIND_OF_STATUS: dict[str, Kind] = {
    "invalid": "invalid",
    "unsupported": "unsupported",
    "shape": "shape",
    "device": "device",
    "infra": "infra",
    "internal": "internal",
    "crash": "device",
    "timeout": "device",
    "cancelled": "infra",
    "protocol": "infra",
    "stale": "infra",
}


@dataclass(frozen=True)
class Reply:
    """Everything that came back for one request, up to its END."""

    frames: tuple[Frame, ...]
    end: Mapping[str, Any]
    log: str

    def of(self, kind: FrameType) -> tuple[bytes, ...]:
        """Payloads of the frames of one type, in order."""
        return tuple(f.payload for f in self.frames if f.type is kind)

    def stats(self, kind: str) -> Mapping[str, Any] | None:
        """The STATS record of that kind, if one came."""
        found = (parse.parse_json(p) for p in self.of(FrameType.STATS))
        return next((r for r in found if r.get("kind") == kind), None)


class RunnerClient:
    """One runner, opened once: load a model, then run it as often as wanted with changing shapes.

    Every method raises RunnerError when the device refuses or the model dies (status, crash, log in
    it), and SmeltError(kind='infra') when the link or the runner itself fails; after an infra error
    only `close` is of use.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        device: str = "device",
        emulated: bool = False,
        budget: Budget | None = None,
        fence: int = 0,
        on_log: Callable[[str], None] | None = None,
    ) -> None:
        self.device = device
        self.emulated = emulated
        self.budget = budget or Budget()
        self.fence = fence
        self._channel = channel
        self._decoder = Decoder()
        self._pending: list[Frame] = []
        self._job = 0
        self._on_log = on_log
        self._broken: SmeltError | None = None
        self._last_crash: Crash | None = None
        self.facts: DeviceFacts | None = None
        self.model: ModelInfo | None = None

    # ---- requests ----

    def hello(self) -> DeviceFacts:
        """The device's facts; also tells the runner how long it may idle."""
        limits = self.budget.limits
        body = PAIR.pack(0, int(limits.idle * 1000))
        reply = self._request(FrameType.HELLO, body, limits.connect, at_once=True)
        hello = reply.of(FrameType.HELLO)
        if not hello:
            raise self._fail(infra("the runner answered HELLO without its facts"))
        self.facts = parse.parse_facts(parse.parse_json(hello[0]))
        return self.facts

    def load(
        self, bundle_dir: str, *, threads: int = 0, memory_limit: int = 0, verify: bool = False
    ) -> ModelInfo:
        """Open the bundle in a fresh worker process.

        bundle_dir: on the device. threads: 0 is the bundle's default. memory_limit: bytes of
        address space, 0 is none. verify: check the hash of the weights on the device.
        """
        if not self.facts:
            self.hello()
        limit = self.budget.limits.load
        head = LOAD_HEAD.pack(_ms(limit), threads, int(verify), 0, memory_limit)
        self._last_crash, self.model = None, None
        reply = self._request(FrameType.LOAD, head + bundle_dir.encode(), limit)
        found = reply.stats("model")
        if found is None:
            raise self._fail(infra("the runner loaded the model but did not describe it"))
        self.model = parse.parse_model(found)
        return self.model

    def set_input(self, index: int, value: Array) -> None:
        """Send one input (any strides); it stays set for the runs that follow."""
        value = np.asarray(value)
        shape = value.shape  # ascontiguousarray makes rank 0 into rank 1
        data = np.ascontiguousarray(value)
        try:
            code, bits = DL_CODES[from_numpy(data.dtype).name]
        except KeyError:
            raise SmeltError(
                f"input {index} has NumPy type {data.dtype}, which no model takes", kind="shape"
            ) from None
        raw = memoryview(data.reshape(-1).view(np.uint8).data) if data.size else memoryview(b"")
        limit = self.budget.limits.output
        head = SETIN_HEAD.pack(
            _ms(limit + len(raw) / self.budget.limits.upload_floor),
            index, code, bits, 1, len(shape), len(raw),
        )  # fmt: skip
        dims = struct.pack(f"<{len(shape)}q", *shape)
        self._request(FrameType.SETIN, head + dims, limit, data=raw)

    def run(
        self,
        inputs: Mapping[str, Array] | Sequence[Array] | None = None,
        plan: RunPlan = ONCE,
        *,
        outputs: bool = True,
    ) -> RunReport:
        """Set the inputs (by name or in order; None keeps the last ones), run by the plan, fetch
        the outputs.
        """
        model = self._loaded()
        if inputs is not None:
            for index, value in self._ordered(model, inputs):
                self.set_input(index, value)
        limit = self.budget.limits.run
        if plan.samples:
            limit += plan.warmup_max + plan.max_time
        reply = self._request(FrameType.RUN, _run_body(plan, limit), limit)
        found = reply.stats("run")
        if found is None:
            raise self._fail(infra("the runner ran the model but did not report it"))
        fetched = {info.name: self.get_output(i) for i, info in enumerate(model.outputs) if outputs}
        return self._report(model, reply, found, fetched)

    def get_output(self, index: int) -> Array:
        """Output `index` of the last run, as a fresh array."""
        limit = self.budget.limits.output
        reply = self._request(FrameType.GETOUT, PAIR.pack(_ms(limit), index), limit)
        heads, data = reply.of(FrameType.OUT), reply.of(FrameType.DATA)
        if len(heads) != 1 or len(heads[0]) < OUT_HEAD.size:
            raise self._fail(infra("the runner sent an output without its head"))
        _, code, bits, lanes, rank, _, size = OUT_HEAD.unpack_from(heads[0])
        if len(heads[0]) != OUT_HEAD.size + 8 * rank or rank > 64 or size > OUTPUT_LIMIT:
            raise self._fail(infra("the runner sent an output whose head contradicts itself"))
        dims = struct.unpack_from(f"<{rank}q", heads[0], OUT_HEAD.size)
        raw = bytearray().join(memoryview(d)[OFFSET.size :] for d in data)
        if len(raw) != size or reply.end.get("crc32") != zlib.crc32(raw):
            raise self._fail(
                infra(f"output {index} has {len(raw)} bytes of {size}, or a wrong checksum")
            )
        dtype = dtype_of_code(code, bits, lanes)
        wanted = dtype.bytes
        for d in dims:
            wanted *= d
        if min(dims, default=0) < 0 or wanted != size:
            raise self._fail(infra(f"output {index} of dims {dims} cannot have {size} bytes"))
        return np.frombuffer(raw, dtype.numpy).reshape(dims)

    def reset(self) -> None:
        """End the worker; nothing of the model is left on the device's memory."""
        self.model = None
        self._request(FrameType.RESET, PAIR.pack(0, 0), self.budget.limits.command)

    def close(self) -> None:
        """Say goodbye if the link still works and close it; bounded and without exceptions."""
        if self._broken is None:
            try:
                limit = min(self.budget.limits.close, 2.0)
                self._request(FrameType.QUIT, PAIR.pack(0, 0), limit, at_once=True)
            except SmeltError:
                pass
        self._channel.close()
        self._broken = self._broken or infra("the runner was closed")

    # ---- inside ----

    def _loaded(self) -> ModelInfo:
        if self.model is None:
            died = f"; the worker died: {self._last_crash}" if self._last_crash else ""
            raise RunnerError(
                f"no model is loaded{died}",
                status="crash" if self._last_crash else "protocol",
                kind="device" if self._last_crash else "invalid",
                crash=self._last_crash,
            )
        return self.model

    def _ordered(
        self, model: ModelInfo, inputs: Mapping[str, Array] | Sequence[Array]
    ) -> list[tuple[int, Array]]:
        names = [t.name for t in model.inputs]
        if isinstance(inputs, Mapping):
            wrong = sorted(set(inputs) ^ set(names))
            if wrong:
                raise SmeltError(
                    f"the model's inputs are {names}, got {sorted(inputs)}", kind="shape"
                )
            return [(i, inputs[name]) for i, name in enumerate(names)]
        if len(inputs) != len(names):
            raise SmeltError(f"the model has {len(names)} inputs, got {len(inputs)}", kind="shape")
        return list(enumerate(inputs))

    def _request(
        self,
        kind: FrameType,
        body: bytes,
        limit: float,
        *,
        data: memoryview | None = None,
        at_once: bool = False,
    ) -> Reply:
        """Send a request with its data and collect the answer. at_once: the device itself has no
        deadline for it.
        """
        if self._broken is not None:
            raise infra(f"the runner cannot be used any more: {self._broken.message}")
        grace = 0.0 if at_once else self.budget.limits.grace
        size = len(data) if data is not None else 0
        deadline = self.budget.deadline(limit + grace, size)
        self._job += 1
        try:
            self._send(Frame(kind, body, self._job, self.fence), deadline)
            for at in range(0, size, CHUNK):
                assert data is not None
                piece = OFFSET.pack(at) + data[at : at + CHUNK]
                self._send(Frame(FrameType.DATA, piece, self._job, self.fence), deadline)
            return self._collect(kind, deadline)
        except RunnerError:
            raise
        except SmeltError as error:
            raise self._fail(error) from error

    def _send(self, frame: Frame, deadline: float) -> None:
        self._channel.send(encode(frame), deadline)

    def _collect(self, kind: FrameType, deadline: float) -> Reply:
        frames: list[Frame] = []
        log: list[str] = []
        crash: Crash | None = None
        while True:
            frame = self._next(deadline)
            if frame.type is FrameType.LOG:
                log.append(frame.payload.decode("utf-8", "replace"))
                if self._on_log:
                    self._on_log(log[-1])
            elif frame.type is FrameType.CRASH:
                crash = self._last_crash = parse.parse_crash(parse.parse_json(frame.payload))
            elif frame.type is FrameType.END:
                end = parse.parse_json(frame.payload)
                status = parse.text(end, "status")
                if frame.job != self._job and status != "protocol":
                    continue  # of a request that was given up before
                if crash or self._last_crash:
                    self.model = None
                if status != "ok":
                    raise self._refused(kind, status, parse.text(end, "text"), "".join(log))
                return Reply(tuple(frames), end, "".join(log)[-LOG_LIMIT:])
            elif frame.job == self._job:
                frames.append(frame)

    def _refused(self, kind: FrameType, status: str, why: str, log: str) -> SmeltError:
        crash = self._last_crash
        if crash is not None and status in ("crash", "protocol"):
            return RunnerError(
                f"the model crashed on device '{self.device}': {crash}",
                status="crash", kind="device", crash=crash, log=log,
            )  # fmt: skip
        what = f"{kind.name} failed on device '{self.device}' ({status}): {why}"
        return RunnerError(
            what,
            status=status,
            kind=KIND_OF_STATUS.get(status, "infra"),
            crash=crash,
            log=log,
        )

    def _next(self, deadline: float) -> Frame:
        while not self._pending:
            data = self._channel.receive(deadline)
            if not data:
                self._decoder.finish()
                tail = self._channel.stderr_tail().strip()
                raise infra(
                    "the runner ended without an END frame"
                    + (f"; its stderr ends with {tail[-500:]!r}" if tail else ""),
                    hint="the link was lost, or the runner was killed or cannot run on this device",
                )
            self._pending.extend(self._decoder.feed(data))
        return self._pending.pop(0)

    def _fail(self, error: SmeltError) -> SmeltError:
        """Mark the stream as out of step: nothing that comes now can be trusted."""
        self._broken = self._broken or error
        return error

    def _report(
        self, model: ModelInfo, reply: Reply, found: Mapping[str, Any], outputs: dict[str, Array]
    ) -> RunReport:
        assert self.facts is not None
        samples = _samples(reply.of(FrameType.SAMPLES))
        before = parse.parse_condition(parse.record(found, "before"))
        after = parse.parse_condition(parse.record(found, "after"))
        stable = found.get("warmup_stable") is True
        profile = reply.stats("profile")
        return RunReport(
            device=self.device,
            emulated=self.emulated,
            facts=self.facts,
            model=model,
            outputs=outputs,
            first_ns=parse.number(found, "first_ns"),
            samples_ns=samples.get(0, ()),
            warmup_ns=samples.get(1, ()),
            inner=parse.number(found, "inner"),
            memory=parse.parse_memory(parse.record(found, "memory")),
            before=before,
            after=after,
            warmup_stable=stable,
            profile=parse.parse_profile(profile) if profile else (),
            log=reply.log,
            invalid=parse.invalid_reasons(
                before, after, emulated=self.emulated, cores=self.facts.cores, stable=stable
            ),
        )


def _ms(seconds: float) -> int:
    return max(1, min(int(seconds * 1000), 0xFFFFFFFF))


def _run_body(plan: RunPlan, limit: float) -> bytes:
    return RUN_BODY.pack(
        _ms(limit), int(plan.profile), plan.warmup_runs, plan.samples,
        int(plan.warmup_min * NS), int(plan.warmup_max * NS),
        int(plan.min_time * NS), int(plan.max_time * NS), int(plan.sample_time * NS),
    )  # fmt: skip


def _samples(payloads: Sequence[bytes]) -> dict[int, tuple[float, ...]]:
    """kind -> ns per run of every sample."""
    found: dict[int, tuple[float, ...]] = {}
    for payload in payloads:
        if len(payload) < PAIR.size or len(payload) % 8:
            raise infra("the runner sent samples that are no list of numbers")
        inner, kind = PAIR.unpack_from(payload)
        values = np.frombuffer(payload, np.uint64, offset=PAIR.size)
        found[kind] = found.get(kind, ()) + tuple(int(v) / max(inner, 1) for v in values)
    return found


@contextmanager
def open_session(
    transport: Transport,
    bundle: Path,
    *,
    budget: Budget | None = None,
    threads: int = 0,
    memory_limit: int = 0,
    verify: bool = False,
    fence: int = 0,
    on_log: Callable[[str], None] | None = None,
) -> Iterator[RunnerClient]:
    """Deploy the bundle, open its runner, load the model; the client is ready for `run`, and
    closed at the end.
    """
    budget = budget or Budget()
    remote = transport.deploy(bundle, budget)
    client = RunnerClient(
        transport.open_runner(remote, budget),
        device=transport.name,
        emulated=transport.emulated,
        budget=budget,
        fence=fence,
        on_log=on_log,
    )
    try:
        client.load(remote, threads=threads, memory_limit=memory_limit, verify=verify)
        yield client
    finally:
        client.close()
