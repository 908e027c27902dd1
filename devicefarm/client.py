"""Requests to a runner over any channel -> RunReport; the host's side of the protocol."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smelt.core.bundle import MANIFEST
from smelt.core.diag import Kind, SmeltError
from smelt.core.dtype import Array, from_numpy
from smelt.core.lazily import Lazily
from smelt.core.policies import STATIC
from smelt.devicefarm import report as parse
from smelt.devicefarm.budget import DAMAGED, KILLED, LINK_STALLED, Budget, InfraError, infra
from smelt.devicefarm.capabilities import Origin
from smelt.devicefarm.channel import Channel
from smelt.devicefarm.claim import UNCLAIMED, DeviceClaim
from smelt.devicefarm.doubts import Samples, find_doubts
from smelt.devicefarm.frames import CHUNK, Decoder, Frame, FrameType, encode
from smelt.devicefarm.heartbeat import Heartbeat
from smelt.devicefarm.measure import ONCE, Doubt, RunPlan
from smelt.devicefarm.probe import TRACE_LIMIT, LaunchTrace, ProbeWish, read_trace
from smelt.devicefarm.profiles import (
    Conditions,
    Gate,
    Profile,
    conditions,
    mask,
    wait_until_cool,
)
from smelt.devicefarm.report import (
    DL_CODES,
    Crash,
    DeviceFacts,
    ModelInfo,
    RunnerError,
    RunReport,
)
from smelt.devicefarm.requests import (
    CONTROL_HEAD,
    HELLO_BODY,
    LOAD_HEAD,
    PAIR,
    SETIN_HEAD,
    milliseconds,
    packed,
    policy_number,
    run_body,
)
from smelt.devicefarm.transport import Transport
from smelt.devicefarm.wire import ANSWERS, OFFSET, Log, Output, Pieces, read_json, read_record

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")

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
    "killed": "infra",
}

SUSPECT = frozenset(
    {"invalid", "unsupported", "shape", "device", "infra", "internal", "crash", "timeout", KILLED}
)
"""Statuses that damaged files on the device can have, too."""


@dataclass(frozen=True)
class Reply:
    """Everything that came back for one request, up to its END."""

    frames: tuple[Frame, ...]
    end: Mapping[str, Any]
    log: str

    def of(self, kind: FrameType) -> tuple[bytes, ...]:
        """Payloads of the frames of one type, in order."""
        return tuple(f.payload for f in self.frames if f.type is kind)

    def stats(self, kind: str) -> bytes | None:
        """The STATS record of that kind, if one came."""
        return next((p for p in self.of(FrameType.STATS) if read_json(p).get("kind") == kind), None)


class RunnerClient:
    """One runner, opened once: load a model, then run it as often as wanted with changing shapes.

    Every method raises RunnerError when the device refuses or the model dies (it holds status, crash and
    log), and SmeltError(kind='infra') when link or runner fail, or an answer breaks the protocol; after
    such an error only `close` may be called. The size of every answer is bounded (see wire).

    damaged: verifies the bundle's files on the device and returns the names of those that were wrong
    (Transport.damaged). It is asked before a failure is laid at the model's door. explain: adds what the host
    knows to a crash, so many seconds after its request was sent.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        device: str = "device",
        emulated: bool = False,
        budget: Budget | None = None,
        claim: DeviceClaim = UNCLAIMED,
        damaged: Callable[[], tuple[str, ...]] = tuple,
        explain: Callable[[Crash, float], Crash] = lambda crash, seconds: crash,
    ) -> None:
        self.device = device
        self._explain = explain
        self._asked = 0.0
        self._emulated = emulated
        self._origin = Origin()
        self._damaged = damaged
        self._sending = threading.Lock()
        self._heartbeat: Heartbeat | None = None
        self.budget = budget or Budget()
        self.fence = claim.fence
        self._claim = claim
        self._channel = channel
        self._decoder = Decoder()
        self._pending: deque[Frame] = deque()
        self._job = 0
        self._broken: SmeltError | None = None
        self._last_crash: Crash | None = None
        self.facts: DeviceFacts | None = None
        self.model: ModelInfo | None = None

    @property
    def emulated(self) -> bool:
        """Whether this is no real board, as the transport says or the board itself."""
        return self._emulated or bool(self.facts and self.facts.emulation)

    @property
    def origin(self) -> Origin:
        """What the results are of."""
        return replace(self._origin, device_fingerprint=self.facts.fingerprint if self.facts else "")

    def of_bundle(self, bundle: str, model: str) -> None:
        """Say which bundle and model the results are of, by their hashes."""
        self._origin = Origin("", bundle, model)

    # ---- requests ----

    def hello(self, *, units: bool = False) -> DeviceFacts:
        """Open the conversation: the device's facts. It also sends the time after which an idle runner
        ends, and the one after which a silent host is dead. units: also load the drivers of GPUs there and
        list their devices, which takes up to 8 s."""
        limits = self.budget.limits
        body = HELLO_BODY.pack(0, milliseconds(limits.idle), milliseconds(limits.silence), int(units))
        body += os.fsencode(self._claim.fence_file)
        if self._heartbeat is None:
            self._heartbeat = Heartbeat(self._beat, limits.beat)
        reply = self._request(FrameType.HELLO, body, limits.connect, at_once=True)
        with self._in_step():
            hello = reply.of(FrameType.HELLO)
            if not hello:
                raise infra("the runner answered HELLO without its facts")
            self.facts = parse.parse_facts(hello[0])
        return self.facts

    def load(
        self,
        bundle_dir: str,
        *,
        threads: int = 0,
        memory_limit: int = 0,
        verify: bool = False,
        policy: str = STATIC,
    ) -> ModelInfo:
        """Open the bundle in a fresh worker process.

        bundle_dir: on the device. threads: 0 is the bundle's default. memory_limit: bytes of
        address space, 0 is none. verify: check the hash of the weights on the device. policy: what
        binds runs to the units that the bundle has code for (docs/units.md).
        """
        if not self.facts:
            self.hello()
        limit = self.budget.limits.load
        wanted = policy_number(policy)
        head = packed(LOAD_HEAD, milliseconds(limit), threads, int(verify), wanted, memory_limit)
        self._last_crash, self.model = None, None
        reply = self._request(FrameType.LOAD, head + os.fsencode(bundle_dir), limit)
        with self._in_step():
            found = reply.stats("model")
            if found is None:
                raise infra("the runner loaded the model but did not describe it")
            self.model = parse.parse_model(found)
        if self.model.policy != policy:
            raise SmeltError(
                f"the bundle's runner binds runs by '{self.model.policy}', not by '{policy}': it was built "
                "before runners did; compile the bundle again",
                kind="unsupported",
            )
        return self.model

    def use_entry(self, name: str) -> ModelInfo:
        """Direct the following requests to this entry of the loaded model; its inputs must be set again. The
        state that runs of other entries have left is kept."""
        loaded = self._loaded()
        limit = self.budget.limits.command
        reply = self._request(FrameType.ENTRY, PAIR.pack(milliseconds(limit), 0) + name.encode(), limit)
        with self._in_step():
            found = reply.stats("model")
            if found is None:
                raise infra("the runner took the entry but did not describe it")
            self.model = replace(parse.parse_model(found), load_ns=loaded.load_ns)
        return self.model

    def control(self, profile: Profile) -> Conditions:
        """Have the runner bring the device into the profile's conditions, for models that are loaded later
        and until the runner ends; what could not be set is told."""
        limit = self.budget.limits.command
        head = packed(CONTROL_HEAD, milliseconds(limit), 0, profile.khz, mask(profile.cpus))
        body = head + profile.governor.encode()
        reply = self._request(FrameType.CONTROL, body, limit, at_once=True)
        with self._in_step():
            found = reply.stats("control")
            if found is None:
                raise infra("the runner took the conditions but did not tell what it set")
            return conditions(profile, read_record("control", found))

    def cool_down(self, gate: Gate) -> Doubt | None:
        """Wait until the device is cool; a doubt where it does not become so. Emulated devices need not
        be."""
        if self.emulated or (self.facts is not None and not self.facts.condition.zones):
            return None
        return wait_until_cool(lambda: self.hello().condition.temperature, gate)

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
        head = packed(
            SETIN_HEAD, milliseconds(limit + len(raw) / self.budget.limits.upload_floor),
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

        A single run continues from the state that the last one left. Of a timed or profiled plan each run
        begins at the start of the state, so that all do the same work.
        """
        model = self._loaded()
        if inputs is not None:
            for index, value in self._ordered(model, inputs):
                self.set_input(index, value)
        limit = self.budget.limits.run
        if plan.samples:
            limit += plan.warmup_max + plan.max_time
        reply = self._request(FrameType.RUN, run_body(plan, limit), limit)
        with self._in_step():
            found = reply.stats("run")
            if found is None:
                raise infra("the runner ran the model but did not report it")
        fetched = {info.name: self.get_output(i) for i, info in enumerate(model.outputs) if outputs}
        with self._in_step():
            return self._report(model, reply, found, fetched)

    def get_output(self, index: int) -> Array:
        """Output `index` of the last run, as a fresh array."""
        model = self._loaded()
        if not 0 <= index < len(model.outputs):
            raise SmeltError(f"the model has {len(model.outputs)} outputs, no output {index}", kind="shape")
        info, limit = model.outputs[index], self.budget.limits.output
        found = Output(index, (*DL_CODES[info.dtype.name], 1), info.rank, lambda n: n * info.dtype.bytes)
        take = {FrameType.OUT: found.head, FrameType.DATA: found.data}
        reply = self._request(FrameType.GETOUT, PAIR.pack(milliseconds(limit), index), limit, take=take)
        with self._in_step():
            raw = found.raw
            if found.dims is None:
                raise infra("the runner sent an output without its head")
            if len(raw) != found.size or reply.end["crc32"] != zlib.crc32(raw):
                raise infra(f"output {index} has {len(raw)} bytes of {found.size}, or a wrong checksum")
            try:
                return np.frombuffer(raw, info.dtype.numpy).reshape(found.dims)
            except ValueError as error:  # an empty one whose other dims NumPy cannot hold
                raise infra(f"output {index} of dims {found.dims} is no array: {error}") from error

    def trace(self, inputs: Mapping[str, Array] | None = None) -> LaunchTrace:
        """The launches of one run with the inputs (None keeps the last ones); it leaves no outputs, and the
        state as it was."""
        model = self._loaded()
        for index, value in self._ordered(model, inputs) if inputs is not None else ():
            self.set_input(index, value)
        raw, found = self._probe((), TRACE_LIMIT)
        with self._in_step():
            return read_trace(raw, found["launches"], cut=found["cut"])

    def peek(self, wishes: Sequence[ProbeWish]) -> list[bytes]:
        """What these buffers hold right after these launches of a run with the last inputs, in order of the
        launches. Raises RunnerError('internal') where the run does not take the path of the trace."""
        self._loaded()
        size = sum(w.size for w in wishes)
        raw, _ = self._probe(wishes, size)
        with self._in_step():
            if len(raw) != size:
                raise infra(f"the runner sent {len(raw)} bytes of {size} that a probe asked for")
        ends = [*accumulate(w.size for w in wishes)]
        return [raw[end - w.size : end] for w, end in zip(wishes, ends, strict=True)]

    def _probe(self, wishes: Sequence[ProbeWish], most: int) -> tuple[bytes, Mapping[str, Any]]:
        limit = self.budget.limits.run
        body = PAIR.pack(milliseconds(limit), len(wishes)) + b"".join(w.packed() for w in wishes)
        found = Pieces(most)
        reply = self._request(FrameType.PROBE, body, limit, take={FrameType.DATA: found.data})
        with self._in_step():
            stats = reply.stats("probe")
            if stats is None or reply.end["crc32"] != zlib.crc32(found.raw):
                raise infra("the runner answered a probe without its record, or with a wrong checksum")
            return bytes(found.raw), read_record("probe", stats)

    def reset_state(self) -> None:
        """Return the model's state to its start, as after loading."""
        self._loaded()
        limit = self.budget.limits.command
        self._request(FrameType.STATE, PAIR.pack(milliseconds(limit), 0), limit)

    def confirm(self) -> None:
        """Verify the bundle's files on the device before a wrong output is reported. Raises
        SmeltError(kind='infra'), status 'damaged files'."""
        names = self._damaged()
        if names:
            raise self._damage(names, "the model's outputs were wrong")

    def reset(self) -> None:
        """End the worker process, which frees all memory of the model on the device."""
        self.model = None
        self._request(FrameType.RESET, PAIR.pack(0, 0), self.budget.limits.command)

    def close(self) -> None:
        """Send QUIT where the link works, then close it, within a time limit and without exceptions."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
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
            crash = self._last_crash
            if crash is not None:
                status = KILLED if crash.killed else "crash"
                what = f"no model is loaded; the worker died: {crash}"
                raise RunnerError(what, status=status, kind=KIND_OF_STATUS[status], crash=crash)
            raise RunnerError("no model is loaded", status="protocol", kind="invalid")
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
        take: Mapping[FrameType, Callable[[bytes], None]] | None = None,
    ) -> Reply:
        """Send a request with its data and collect the answer. limit: seconds. at_once: the device has no
        deadline of its own for it. take: type -> handler of payloads, instead of keeping the frames.
        """
        if self._broken is not None:
            raise infra(f"the runner cannot be used any more: {self._broken.message}")
        self._claim.check()
        grace = 0.0 if at_once else self.budget.limits.grace
        size = len(data) if data is not None else 0
        deadline = self.budget.deadline(limit + grace, size)
        self._job += 1
        self._asked = time.monotonic()
        try:
            self._send(Frame(kind, body, self._job, self.fence), deadline)
            for at in range(0, size, CHUNK):
                assert data is not None
                piece = OFFSET.pack(at) + data[at : at + CHUNK]
                self._send(Frame(FrameType.DATA, piece, self._job, self.fence), deadline)
            return self._collect(kind, deadline, take or {})
        except RunnerError:
            raise
        except SmeltError as error:
            raise self._fail(self._explained(error)) from error

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Turn an answer that breaks the protocol into a failure of the stream. A damaged runner gives such
        answers, too."""
        try:
            yield
        except SmeltError as error:
            raise self._fail(self._explained(error)) from error

    def _send(self, frame: Frame, deadline: float) -> None:
        if not self._sending.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise infra("sending to the device took longer than its limit", status=LINK_STALLED)
        try:
            self._channel.send(encode(frame), deadline)
        finally:
            self._sending.release()

    def _beat(self) -> bool:
        """Send a sign of life, unless something is being sent, which is one; False when the link is gone."""
        if self._sending.acquire(blocking=False):
            try:
                beat = encode(Frame(FrameType.PING, b"", self._job, self.fence))
                self._channel.send(beat, time.monotonic() + self.budget.limits.silence)
            except SmeltError as error:  # a part of the frame may be sent; a request that waits says more
                self._fail(error)
            finally:
                self._sending.release()
        return self._broken is None

    def _explained(self, error: SmeltError) -> SmeltError:
        """The error, or that of damaged files or of a lost link that explains it."""
        status = getattr(error, "status", "infra")
        if status not in SUSPECT:
            return error
        try:
            names = self._damaged()
        except SmeltError as why:
            return why
        return self._damage(names, error.message) if names else error

    def _damage(self, names: tuple[str, ...], message: str) -> InfraError:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        what = f"files of the bundle are damaged on device '{self.device}': {shown}; with them, {message}"
        return infra(what, status=DAMAGED)

    def _collect(
        self, kind: FrameType, deadline: float, take: Mapping[FrameType, Callable[[bytes], None]]
    ) -> Reply:
        frames: list[Frame] = []
        crash: Crash | None = None
        log, left = Log(), dict(ANSWERS[kind])
        while True:
            frame = self._next(deadline)
            if frame.type is FrameType.PING:
                continue
            if frame.type is FrameType.LOG:
                log.add(frame.payload)
                continue
            if frame.type is FrameType.END:
                end = read_record("end", frame.payload)
                if frame.job != self._job and end["status"] != "protocol":
                    continue  # of a request that was given up before
                if crash is not None:
                    self._last_crash = self._explain(crash, time.monotonic() - self._asked)
                if self._last_crash:
                    self.model = None
                if end["status"] != "ok":
                    raise self._explained(self._refused(kind, end["status"], end["text"], log.text()))
                return Reply(tuple(frames), end, log.text())
            if frame.type is not FrameType.CRASH and frame.job != self._job:
                continue
            left[frame.type] = left.get(frame.type, 0) - 1
            if left[frame.type] < 0:
                raise infra(f"the runner answered {kind.name} with one {frame.type.name} frame too many")
            if frame.type is FrameType.CRASH:
                crash = parse.parse_crash(frame.payload)
            elif frame.type in take:
                take[frame.type](frame.payload)
            elif frame.type is not FrameType.STAGE:
                frames.append(frame)

    def _refused(self, kind: FrameType, status: str, why: str, log: str) -> SmeltError:
        crash = self._last_crash
        if crash is not None and crash.killed:
            what = f"device '{self.device}' lost the model's process: {crash}"
            return RunnerError(what, status=KILLED, kind="infra", crash=crash, log=log)
        if crash is not None and status in ("crash", "protocol"):
            what = f"the model crashed on device '{self.device}': {crash}"
            return RunnerError(what, status="crash", kind="device", crash=crash, log=log)
        what = f"{kind.name} failed on device '{self.device}' ({status}): {why}"
        return RunnerError(
            what,
            status=status,
            kind=KIND_OF_STATUS.get(status, "infra"),
            crash=crash,
            log=log,
        )

    def _next(self, deadline: float) -> Frame:
        """The next frame. A runner that is at a request sends a sign of life every few seconds, so that a
        dead device is not waited for until the deadline."""
        silence = self.budget.limits.silence
        while not self._pending:
            now = time.monotonic()
            if now >= deadline:  # signs of life alone are no answer
                raise infra("waiting for the device took longer than its limit", status=LINK_STALLED)
            limit = min(deadline, now + silence) if self.facts else deadline
            try:
                data = self._channel.receive(limit)
            except InfraError as error:
                if error.status != LINK_STALLED or limit == deadline:
                    raise
                what = f"device '{self.device}' gave no sign of life for {silence:g} s"
                raise infra(what, status=LINK_STALLED) from error
            if not data:
                raise self._ended()
            self._pending.extend(self._decoder.feed(data))
        return self._pending.popleft()

    def _ended(self) -> SmeltError:
        """Why the stream is over without an END."""
        why = self._channel.ended()
        cut = ""
        try:
            self._decoder.finish()
        except SmeltError as error:
            cut = f"; {error.message}"
        tail = self._channel.stderr_tail().strip()
        said = f"; its stderr ends with {tail[-500:]!r}" if tail else ""
        what = f"the runner on device '{self.device}' ended without an END frame: {why.message}{cut}{said}"
        return infra(what, hint=why.hint, status=why.status)

    def _fail(self, error: SmeltError) -> SmeltError:
        """Mark the stream as broken: what arrives after this error cannot be trusted."""
        self._broken = self._broken or error
        return error

    def _report(
        self, model: ModelInfo, reply: Reply, payload: bytes, outputs: dict[str, Array]
    ) -> RunReport:
        assert self.facts is not None
        found = parse.parse_run(payload)
        samples = parse.parse_samples(reply.of(FrameType.SAMPLES))
        timed = samples.get(0, Samples())
        profile = reply.stats("profile")
        return RunReport(
            device=self.device,
            emulated=self.emulated,
            facts=self.facts,
            model=model,
            outputs=outputs,
            first_ns=found.first_ns,
            samples=timed,
            warmup=samples.get(1, Samples()),
            telemetry=found.telemetry,
            memory=found.memory,
            before=found.before,
            after=found.after,
            warmup_stable=found.warmup_stable,
            profile=parse.parse_profile(profile) if profile else (),
            shares=found.shares,
            log=reply.log,
            origin=self.origin,
            doubts=find_doubts(
                timed,
                found.telemetry,
                found.before,
                found.after,
                emulated=self.emulated,
                settled=found.warmup_stable,
            ),
        )


@contextmanager
def open_session(
    transport: Transport,
    bundle: Path,
    *,
    budget: Budget | None = None,
    threads: int = 0,
    memory_limit: int = 0,
    entry: str = "",
    claim: DeviceClaim = UNCLAIMED,
    explain: Callable[[Crash], Crash] = lambda crash: crash,
) -> Iterator[RunnerClient]:
    """Deploy the bundle, start its runner, load the model; the client is ready for `run`, and is closed at
    the end of the block.

    budget: None takes the default limits. threads: 0 is the bundle's default. memory_limit: bytes of the
    worker's address space, 0 is none. entry: the one to run, '' for the first. claim: the right to it.
    explain: adds functions to a crash. Raises as RunnerClient does.
    """
    with open_runner(transport, bundle, budget=budget, claim=claim, explain=explain) as (client, remote):
        client.load(remote, threads=threads, memory_limit=memory_limit)
        if entry:
            client.use_entry(entry)
        yield client


@contextmanager
def open_runner(
    transport: Transport,
    bundle: Path,
    *,
    budget: Budget | None = None,
    claim: DeviceClaim = UNCLAIMED,
    explain: Callable[[Crash], Crash] = lambda crash: crash,
) -> Iterator[tuple[RunnerClient, str]]:
    """Deploy the bundle and start its runner, which has told its facts and has no model yet; and the bundle's
    folder on the device. Arguments and errors are those of `open_session`."""
    budget = budget or Budget()
    claim.check()
    remote = transport.deploy(bundle, budget)

    def explained(crash: Crash, seconds: float) -> Crash:
        return explain(replace(crash, device_log=transport.system_log(seconds, crash.pid)))

    client = RunnerClient(
        _opened(transport, bundle, remote, budget),
        device=transport.name,
        emulated=transport.emulated,
        budget=budget,
        claim=claim.on(remote),
        damaged=partial(transport.damaged, bundle, budget),
        explain=explained,
    )
    try:
        manifest = _manifest(bundle)
        client.of_bundle(str(manifest.get("seal", "")), str((manifest.get("model") or {}).get("sha256", "")))
        # the drivers of a bundle's devices are part of what its results hang on
        client.hello(units=bool(manifest.get("devices")))
        yield client, remote
    finally:
        client.close()


def _opened(transport: Transport, bundle: Path, remote: str, budget: Budget) -> Channel:
    """Start the runner; once more where its file was damaged after it was verified."""
    try:
        return transport.open_runner(remote, budget)
    except InfraError as error:
        if error.status not in SUSPECT or not transport.damaged(bundle, budget):
            raise
        return transport.open_runner(remote, budget)


def _manifest(bundle: Path) -> Mapping[str, Any]:
    """The manifest of a folder, unchecked; {} where there is none, which is no reason not to run it."""
    try:
        found = json.loads((bundle / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("model", {}), dict) else {}
