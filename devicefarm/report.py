"""The runner's checked JSON records (see wire) -> facts, model, crash and run records as dataclasses."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from smelt.core import session_memory
from smelt.core.diag import Kind, SmeltError
from smelt.core.dlpack import DLPACK
from smelt.core.dtype import DTYPES, Array, DType
from smelt.core.lazily import Lazily
from smelt.core.policies import STATIC
from smelt.devicefarm.budget import infra
from smelt.devicefarm.capabilities import (
    NO_ORIGIN,
    Cluster,
    Origin,
    UnitFacts,
    fingerprint,
    parse_cluster,
    parse_unit,
)
from smelt.devicefarm.condition import Condition, TelemetryReading, condition, reading
from smelt.devicefarm.doubts import Samples
from smelt.devicefarm.measure import Doubt, Timing, summarize
from smelt.devicefarm.wire import MOST_SAMPLES, UINT64, read_record

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
class DeviceFacts:
    """What identifies a device, and the condition that it is in. emulation: why it is no real board, ''
    where nothing on it tells; units: None where they were not probed."""

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
    emulation: str = ""
    hypervisor: str = ""
    clusters: tuple[Cluster, ...] = ()
    units: tuple[UnitFacts, ...] | None = None

    @property
    def fingerprint(self) -> str:
        """A hash of what the board is (see `capabilities`)."""
        named = {k: getattr(self, k) for k in _STABLE} | {"memory": self.memory_kb >> 16}
        return fingerprint(named, self.clusters, self.units)


_STABLE = (
    "arch", "libc", "kernel", "machine", "pointer_bits", "page_size", "cores", "cpu", "board",
    "features", "emulation", "hypervisor",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunnerMemory(session_memory.Memory):
    """The session's memory, and the peak resident set of the runner's worker in bytes."""

    resident_peak: int


@dataclass(frozen=True, slots=True)
class UnitRuns:
    """What one of the units to which a policy may bind runs has done since the model was loaded. unit: 'cpu',
    or the name of its driver; processor: whose code runs there, or around it on the host. expected_ns: of a
    run like the last one, 0 where nobody knows; why: why it is left, or is not taken now."""

    unit: str
    processor: str
    why: str
    runs: int
    explorations: int
    expected_ns: int


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Profile of one kernel over the timed runs. device_ns: by the events of the device that it ran on, which
    told them of so many launches; 0 of these: it has none, or is the CPU. form: of a kernel whose code has
    several, what the one that runs asks of the device; lesser: what keeps it from better ones."""

    name: str
    ns: int
    launches: int
    device_ns: int = 0
    device_launches: int = 0
    form: str | None = None
    lesser: str = ""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model, or an entry of it. state: the tensors that the session keeps between runs, for all
    entries, under the names of the inputs that read them. load_ns: opening library and session. policy: what
    binds its runs to units."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    state: tuple[TensorInfo, ...]
    load_ns: int
    memory: RunnerMemory
    entries: tuple[str, ...] = ()
    policy: str = STATIC


@dataclass(frozen=True, slots=True)
class Crash:
    """How the worker died. object, offset: the library and the position in it of the faulting instruction,
    where the device could determine them. killed: by the system or somebody else, which is no crash.
    frames: positions in the model's own code that lay on the stack. tail: what the model printed last;
    kernel_log: what the system said of the crash; device_log: what its log of programs has had of the process
    since the run began (Android's logcat). pid: of the worker, 0 where it is not known. where: the functions,
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
    killed: bool = False
    kernel_log: str = ""
    frames: tuple[int, ...] = ()
    pid: int = 0
    where: tuple[str, ...] = ()
    device_log: str = ""

    def __str__(self) -> str:
        how = f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"
        place = f" at {self.object}+{self.offset:#x}" if self.object else ""
        address = f", address {self.address:#x}" if self.signal in (7, 11) else ""
        stage = f" in stage '{self.stage}'" if self.stage else ""
        inside = f", in {' < '.join(self.where[:4])}" if self.where else ""
        tail = f"; last output: {self.tail.strip()[-300:]!r}" if self.tail.strip() else ""
        logs = {"the kernel": self.kernel_log, "the device's log": self.device_log}
        last = {who: log.strip().splitlines()[-1] for who, log in logs.items() if log.strip()}
        said = [f"; {who} says {line[-200:]!r}" for who, line in last.items()]
        return f"{self.reason or how}{place}{address}{inside}{stage}{tail}{''.join(said)}"

    def lines(self) -> list[str]:
        """All that is known, for reports that have room."""
        how = f"signal {self.signal}, code {self.code}" if self.signal else f"exit code {self.exit_code}"
        place = f", at {self.object}+{self.offset:#x}" if self.object else ""
        address = f", address {self.address:#x}" if self.signal else ""
        told = [f"{how}{address}{place}", *([f"stage: {self.stage}"] if self.stage else ())]
        parts = {
            "in, from the innermost out": "\n".join(self.where), "the last output": self.tail,
            "the kernel's log": self.kernel_log, "the device's log": self.device_log,
        }  # fmt: skip
        for what, text in parts.items():
            if text.strip():
                told += [f"{what}:", *(f"  {line}" for line in text.strip().splitlines())]
        return told


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
    """One run on one device: outputs by name, raw samples, and what the device was like then."""

    device: str
    emulated: bool
    facts: DeviceFacts
    model: ModelInfo
    outputs: Mapping[str, Array]
    first_ns: int
    samples: Samples
    warmup: Samples
    telemetry: tuple[TelemetryReading, ...]
    memory: RunnerMemory
    before: Condition
    after: Condition
    warmup_stable: bool
    profile: tuple[KernelTime, ...] = ()
    log: str = ""
    doubts: tuple[Doubt, ...] = ()
    origin: Origin = NO_ORIGIN
    shares: tuple[UnitRuns, ...] = ()

    @property
    def samples_ns(self) -> tuple[float, ...]:
        """Nanoseconds of a run, of each sample of the timed part."""
        return self.samples.per_run

    @cached_property
    def timing(self) -> Timing | None:
        """Statistics of the samples, None for a run that was not timed."""
        return summarize(self.samples_ns, self.doubts) if self.samples.ns else None


# ---- payloads of the runner -> records; what fits no table of wire is the runner's fault: infra ----


def _memory(r: Mapping[str, Any]) -> RunnerMemory:
    """The session's memory statistics."""
    return RunnerMemory(
        **{k: n for k, n in r.items() if k != "resident_peak_kb"}, resident_peak=1024 * r["resident_peak_kb"]
    )


def parse_facts(payload: bytes) -> DeviceFacts:
    """The facts in the answer to HELLO. Raises SmeltError(kind='infra')."""
    r = read_record("facts", payload)
    units = tuple(parse_unit(u) for u in r["units"]) if r.pop("units_probed") else None
    clusters = tuple(parse_cluster(c) for c in r["clusters"])
    return DeviceFacts(**r | {"condition": condition(r["condition"]), "clusters": clusters, "units": units})


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
    return ModelInfo(inputs, outputs, state, r["load_ns"], _memory(r["memory"]), r["entries"], r["policy"])


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The runner's record of one run, without its samples."""

    first_ns: int
    warmup_stable: bool
    memory: RunnerMemory
    before: Condition
    after: Condition
    telemetry: tuple[TelemetryReading, ...]
    shares: tuple[UnitRuns, ...]


def parse_run(payload: bytes) -> RunRecord:
    """The record of a run."""
    r = read_record("run", payload)
    made: dict[str, Any] = {k: condition(r[k]) for k in ("before", "after")}
    made |= {"memory": _memory(r["memory"]), "telemetry": tuple(map(reading, r["telemetry"]))}
    made["shares"] = tuple(UnitRuns(**s) for s in r["shares"])
    return RunRecord(**r | made)


def parse_crash(payload: bytes) -> Crash:
    """How the worker died."""
    return Crash(**read_record("crash", payload))


def parse_profile(payload: bytes) -> tuple[KernelTime, ...]:
    """Per-kernel times, in the model's order."""
    return tuple(KernelTime(**k) for k in read_record("profile", payload)["kernels"])


SAMPLES_HEAD = struct.Struct("<II")
_SAMPLE = [("ns", "<u8"), ("cpu_ns", "<u8"), ("wait_ns", "<u8"), ("preempted", "<u4"), ("cpu", "<u4")]
SAMPLE_ROW = 32


def parse_samples(payloads: Sequence[bytes]) -> dict[int, Samples]:
    """Kind (0: timed, 1: warm-up) -> the samples."""
    found: dict[int, Samples] = {}
    for payload in payloads:
        count, rest = divmod(len(payload) - SAMPLES_HEAD.size, SAMPLE_ROW)
        if rest or not 0 <= count <= MOST_SAMPLES:
            raise infra("the runner sent samples that are no list of samples")
        inner, kind = SAMPLES_HEAD.unpack_from(payload)
        if kind not in (0, 1) or kind in found or not inner:
            raise infra("the runner sent samples of a kind that there is not, or twice, or of no run")
        rows = np.frombuffer(payload, np.dtype(_SAMPLE), offset=SAMPLES_HEAD.size)
        columns = {name: tuple(rows[name].tolist()) for name, _ in _SAMPLE}
        columns["wait_ns"] = tuple(None if w == UINT64 else w for w in columns["wait_ns"])
        found[kind] = Samples(inner, **columns)
    return found
