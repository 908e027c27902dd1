"""The runner's checked JSON records (see wire) -> facts, model, crash and run records as dataclasses."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smelt.core import session_memory
from smelt.core.diag import Kind, SmeltError
from smelt.core.dlpack import DLPACK
from smelt.core.dtype import DTYPES, Array, DType
from smelt.core.lazily import Lazily
from smelt.devicefarm.budget import infra
from smelt.devicefarm.measure import Timing, summarize
from smelt.devicefarm.wire import MOST_SAMPLES, read_record

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")

DL_CODES: dict[str, tuple[int, int]] = {d.name: code for d, code in DLPACK.items()}
BY_DL_CODE: dict[tuple[int, int], DType] = {DL_CODES[d.name]: d for d in DTYPES.values()}


def dtype_of_code(code: int, bits: int, lanes: int) -> DType:
    """The element type of a DLPack code. Raises SmeltError(kind='infra') when no model has such a type."""
    found = BY_DL_CODE.get((code, bits)) if lanes == 1 else None
    if found is None:
        raise infra(
            f"the device has a tensor of DLPack type code {code}, {bits} bits, {lanes} lanes; "
            f"known are {', '.join(DTYPES)}"
        )
    return found


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of the loaded model."""

    name: str
    dtype: DType
    rank: int


@dataclass(frozen=True, slots=True)
class Condition:
    """The device's condition at one moment, as far as it affects times. None: the device does not report
    it."""

    temperature: float | None
    frequency_khz: int | None
    frequency_limit_khz: int | None
    governor: str
    load: float


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What identifies a device, and the condition that it is in."""

    arch: str
    libc: str
    kernel: str
    machine: str
    pointer_bits: int
    page_size: int
    cores: int
    memory_kb: int
    available_kb: int
    cpu: str
    board: str
    boot_id: str
    features: tuple[str, ...]
    condition: Condition
    runner: str
    pid: int


@dataclass(frozen=True, slots=True)
class RunnerMemory(session_memory.Memory):
    """The session's memory, and the peak resident set of the runner's worker in bytes."""

    resident_peak: int


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Profile of one kernel over the timed runs."""

    name: str
    ns: int
    launches: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model, or an entry of it. state: the tensors that the session keeps between runs, for all
    entries, under the names of the inputs that read them. load_ns: opening library and session."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    state: tuple[TensorInfo, ...]
    load_ns: int
    memory: RunnerMemory
    entries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Crash:
    """How the worker died. object, offset: the library and the position in it of the faulting instruction,
    where the device could determine them. frames: positions in the model's own code that lay on the stack.
    tail: what the model printed last; kernel_log: what the system said of the crash. where: the functions,
    from the innermost out, once the host has looked them up."""

    signal: int
    exit_code: int
    code: int
    address: int
    object: str
    offset: int
    stage: str
    reason: str
    tail: str
    kernel_log: str = ""
    frames: tuple[int, ...] = ()
    where: tuple[str, ...] = ()

    def __str__(self) -> str:
        how = f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"
        place = f" at {self.object}+{self.offset:#x}" if self.object else ""
        address = f", address {self.address:#x}" if self.signal in (7, 11) else ""
        stage = f" in stage '{self.stage}'" if self.stage else ""
        inside = f", in {' < '.join(self.where[:4])}" if self.where else ""
        tail = f"; last output: {self.tail.strip()[-300:]!r}" if self.tail.strip() else ""
        said = self.kernel_log.strip().splitlines()
        kernel = f"; the kernel says {said[-1][-200:]!r}" if said else ""
        return f"{self.reason or how}{place}{address}{inside}{stage}{tail}{kernel}"


class RunnerError(SmeltError):
    """A request that the device refused, or during which the worker died. status: that of the END frame.
    crash: set where the worker died."""

    def __init__(
        self, message: str, *, status: str, kind: Kind, crash: Crash | None = None, log: str = ""
    ) -> None:
        self.status = status
        self.crash = crash
        self.log = log
        super().__init__(message, kind=kind)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.message, self.status, self.kind, self.crash, self.log))


def _rebuild(message: str, status: str, kind: Kind, crash: Crash | None, log: str) -> RunnerError:
    return RunnerError(message, status=status, kind=kind, crash=crash, log=log)


@dataclass(frozen=True)
class RunReport:
    """One run on one device: outputs by name, raw times in ns per run, and facts about the device then."""

    device: str
    emulated: bool
    facts: DeviceFacts
    model: ModelInfo
    outputs: Mapping[str, Array]
    first_ns: int
    samples_ns: tuple[float, ...]
    warmup_ns: tuple[float, ...]
    inner: int
    memory: RunnerMemory
    before: Condition
    after: Condition
    warmup_stable: bool
    profile: tuple[KernelTime, ...] = ()
    log: str = ""
    invalid: tuple[str, ...] = field(default=())

    @property
    def timing(self) -> Timing | None:
        """Statistics of the samples, None for a run that was not timed."""
        return summarize(self.samples_ns, invalid=self.invalid) if self.samples_ns else None


HOT = 85.0  # degrees C; above it phones and boards throttle
BUSY_LOAD = 1.5  # runnable processes per core that are not ours


def invalid_reasons(
    before: Condition, after: Condition, *, emulated: bool, cores: int, stable: bool
) -> tuple[str, ...]:
    """The reasons why times taken between two conditions are not the device's speed; () where there is none.
    """
    found = []
    if emulated:
        found.append("emulated: these times say nothing about a real device")
    if not stable:
        found.append("the warm-up reached its limit before run times settled")
    a, b = before.frequency_limit_khz, after.frequency_limit_khz
    if a is not None and b is not None and b < a:
        found.append(f"throttled: the frequency limit fell from {a} to {b} kHz")
    if after.temperature is not None and after.temperature > HOT:
        found.append(f"too hot: {after.temperature:.0f} degrees C")
    if before.load > BUSY_LOAD * cores:
        found.append(f"busy: load {before.load} on {cores} cores before the run")
    return tuple(found)


# ---- payloads of the runner -> records; what fits no table of wire is the runner's fault: infra ----


def _condition(r: Mapping[str, Any]) -> Condition:
    """The device's condition; a number below 0 in the runner's JSON means unknown."""
    milli, frequency, limit = (
        r[k] for k in ("temperature_millidegrees", "frequency_khz", "frequency_limit_khz")
    )
    try:
        load = float(r["load"] or 0.0)
    except ValueError:
        load = 0.0
    return Condition(
        milli / 1000 if milli >= 0 else None,
        frequency if frequency >= 0 else None,
        limit if limit >= 0 else None,
        r["governor"],
        load if math.isfinite(load) else 0.0,
    )


def _memory(r: Mapping[str, Any]) -> RunnerMemory:
    """The session's memory statistics."""
    return RunnerMemory(
        **{k: n for k, n in r.items() if k != "resident_peak_kb"}, resident_peak=1024 * r["resident_peak_kb"]
    )


def parse_facts(payload: bytes) -> DeviceFacts:
    """The facts in the answer to HELLO. Raises SmeltError(kind='infra')."""
    r = read_record("facts", payload)
    return DeviceFacts(**r | {"condition": _condition(r["condition"])})


def parse_model(payload: bytes) -> ModelInfo:
    """The model's signature."""
    r = read_record("model", payload)
    inputs, outputs, state = (
        tuple(
            TensorInfo(t["name"], dtype_of_code(t["code"], t["bits"], t["lanes"]), t["rank"]) for t in r[side]
        )
        for side in ("inputs", "outputs", "state")
    )
    alone = len(r["entries"]) == 1  # of several, one may be fed what is another's state
    for tensors in (inputs, outputs, (*inputs, *state) if alone else state):
        if len({t.name for t in tensors}) != len(tensors):
            raise infra("the device's model has two tensors of one name")
    return ModelInfo(inputs, outputs, state, r["load_ns"], _memory(r["memory"]), r["entries"])


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The runner's record of one run, without its samples."""

    first_ns: int
    inner: int
    warmup_stable: bool
    memory: RunnerMemory
    before: Condition
    after: Condition


def parse_run(payload: bytes) -> RunRecord:
    """The record of a run."""
    r = read_record("run", payload)
    made = {"memory": _memory(r["memory"])} | {k: _condition(r[k]) for k in ("before", "after")}
    return RunRecord(**r | made)


def parse_crash(payload: bytes) -> Crash:
    """How the worker died."""
    return Crash(**read_record("crash", payload))


def parse_profile(payload: bytes) -> tuple[KernelTime, ...]:
    """Per-kernel times, in the model's order."""
    return tuple(KernelTime(**k) for k in read_record("profile", payload)["kernels"])


SAMPLES_HEAD = struct.Struct("<II")


def parse_samples(payloads: Sequence[bytes]) -> dict[int, tuple[float, ...]]:
    """Kind (0: timed, 1: warm-up) -> ns per run of every sample."""
    found: dict[int, tuple[float, ...]] = {}
    for payload in payloads:
        count, rest = divmod(len(payload) - SAMPLES_HEAD.size, 8)
        if rest or not 0 <= count <= MOST_SAMPLES:
            raise infra("the runner sent samples that are no list of numbers")
        inner, kind = SAMPLES_HEAD.unpack_from(payload)
        if kind not in (0, 1) or kind in found or not inner:
            raise infra("the runner sent samples of a kind that there is not, or twice, or of no run")
        values = np.frombuffer(payload, "<u8", offset=SAMPLES_HEAD.size)
        found[kind] = tuple(int(v) / inner for v in values)
    return found
