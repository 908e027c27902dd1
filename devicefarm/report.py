"""What a device said: facts, model, crash and run records, parsed from the runner's JSON;
unknown keys are kept out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smelt.core.diag import Kind, SmeltError
from smelt.core.dtype import ALL, DTYPES, DType
from smelt.devicefarm.budget import infra
from smelt.devicefarm.measure import Timing, summarize

Array = np.ndarray[Any, np.dtype[Any]]

# DLPack's type codes by our categories; bf16 is the one float with a code of its own
_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}
DL_CODES: dict[str, tuple[int, int]] = {
    d.name: (4 if d.name == "bf16" else _CODES[d.category], d.bits) for d in ALL.values()
}
BY_DL_CODE: dict[tuple[int, int], DType] = {DL_CODES[d.name]: d for d in DTYPES.values()}


def dtype_of_code(code: int, bits: int, lanes: int) -> DType:
    """The element type of a DLPack code; SmeltError(kind='unsupported') when NumPy has none."""
    found = BY_DL_CODE.get((code, bits)) if lanes == 1 else None
    if found is None:
        raise SmeltError(
            f"the device has a tensor of DLPack type code {code}, {bits} bits, {lanes} lanes; "
            f"known are {', '.join(DTYPES)}",
            kind="unsupported",
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
    """What may make times wrong, at one moment. None: the device does not say."""

    temperature: float | None
    frequency_khz: int | None
    frequency_limit_khz: int | None
    governor: str
    load: float


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Who the device is: enough to tell two apart and to see that one has changed."""

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

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """What must be equal for two results to share a baseline."""
        return (self.arch, self.libc, self.kernel, self.cores, self.cpu, self.board, self.features)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory figures of the session, in bytes."""

    arena_bytes: int
    arena_capacity: int
    output_capacity: int
    weights_bytes: int
    allocations: int
    runs: int
    resident_peak: int


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Profile of one kernel over the timed runs."""

    name: str
    ns: int
    launches: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model. load_ns covers opening the library and the session."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    load_ns: int
    memory: Memory


@dataclass(frozen=True, slots=True)
class Crash:
    """How the worker died. object+offset: the library and place of the instruction, when the
    device could tell.
    """

    signal: int
    exit_code: int
    code: int
    address: int
    object: str
    offset: int
    stage: str
    reason: str
    tail: str

    def __str__(self) -> str:
        how = f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"
        place = f" at {self.object}+{self.offset:#x}" if self.object else ""
        address = f", address {self.address:#x}" if self.signal in (7, 11) else ""
        stage = f" in stage '{self.stage}'" if self.stage else ""
        tail = f"; last output: {self.tail.strip()[-300:]!r}" if self.tail.strip() else ""
        return f"{self.reason or how}{place}{address}{stage}{tail}"


class RunnerError(SmeltError):
    """A request that the device refused or did not survive. status: the END frame's; crash: when
    the worker died.
    """

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
    """One run on one device: outputs by name, raw times in ns per run, and the facts to judge them by."""

    device: str
    emulated: bool
    facts: DeviceFacts
    model: ModelInfo
    outputs: Mapping[str, Array]
    first_ns: int
    samples_ns: tuple[float, ...]
    warmup_ns: tuple[float, ...]
    inner: int
    memory: Memory
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
    """Why times taken between two conditions are not the device's speed; () when nothing speaks
    against them.
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


# ---- JSON of the runner -> records; a missing key or a wrong type is the runner's fault: infra ----


def parse_json(payload: bytes) -> Mapping[str, Any]:
    """The object in a payload; SmeltError(kind='infra') when it is none. The model's own bytes
    may not be UTF-8.
    """
    try:
        value = json.loads(payload.decode("utf-8", "replace"))
    except ValueError as error:
        raise infra(f"the runner sent JSON that cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise infra("the runner sent JSON that is not an object")
    return value


def number(record: Mapping[str, Any], key: str) -> int:
    """An integer field; SmeltError(kind='infra') when it is missing."""
    value = record.get(key)
    if not isinstance(value, int):
        raise infra(f"the runner's record has no number '{key}'")
    return value


def text(record: Mapping[str, Any], key: str) -> str:
    """A text field; SmeltError(kind='infra') when it is missing."""
    value = record.get(key)
    if not isinstance(value, str):
        raise infra(f"the runner's record has no text '{key}'")
    return value


def record(outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A nested object; SmeltError(kind='infra') when it is missing."""
    value = outer.get(key)
    if not isinstance(value, dict):
        raise infra(f"the runner's record has no object '{key}'")
    return value


def records(outer: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    """A list of objects; SmeltError(kind='infra') when it is missing."""
    value = outer.get(key)
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        raise infra(f"the runner's record has no list '{key}'")
    return tuple(value)


def parse_condition(r: Mapping[str, Any]) -> Condition:
    """The device's condition; -1 in the runner's JSON is 'not known'."""
    milli = number(r, "temperature_millidegrees")
    frequency, limit = number(r, "frequency_khz"), number(r, "frequency_limit_khz")
    try:
        load = float(text(r, "load") or 0.0)
    except ValueError:
        load = 0.0
    return Condition(
        milli / 1000 if milli >= 0 else None,
        frequency if frequency >= 0 else None,
        limit if limit >= 0 else None,
        text(r, "governor"),
        load,
    )


def parse_facts(r: Mapping[str, Any]) -> DeviceFacts:
    """The facts of HELLO."""
    features = r.get("features")
    if not isinstance(features, list):
        raise infra("the runner's record has no list 'features'")
    words = {
        k: text(r, k) for k in ("arch", "libc", "kernel", "machine", "cpu", "board", "boot_id")
    }
    sizes = {
        k: number(r, k)
        for k in ("pointer_bits", "page_size", "cores", "memory_kb", "available_kb", "pid")
    }
    return DeviceFacts(
        **words,  # type: ignore[arg-type]  # one table of texts, one of numbers
        **sizes,  # type: ignore[arg-type]
        features=tuple(str(f) for f in features),
        condition=parse_condition(record(r, "condition")),
        runner=text(r, "runner"),
    )


def parse_memory(r: Mapping[str, Any]) -> Memory:
    """The session's memory statistics."""
    keys = (
        "arena_bytes", "arena_capacity", "output_capacity", "weights_bytes", "allocations", "runs",
    )  # fmt: skip
    return Memory(
        **{k: number(r, k) for k in keys}, resident_peak=1024 * number(r, "resident_peak_kb")
    )


def parse_model(r: Mapping[str, Any]) -> ModelInfo:
    """The model's signature."""

    def tensors(key: str) -> tuple[TensorInfo, ...]:
        return tuple(
            TensorInfo(
                text(t, "name"),
                dtype_of_code(number(t, "code"), number(t, "bits"), number(t, "lanes")),
                number(t, "rank"),
            )
            for t in records(r, key)
        )

    return ModelInfo(
        tensors("inputs"),
        tensors("outputs"),
        number(r, "load_ns"),
        parse_memory(record(r, "memory")),
    )


def parse_crash(r: Mapping[str, Any]) -> Crash:
    """How the worker died."""
    numbers = {k: number(r, k) for k in ("signal", "exit_code", "code", "address", "offset")}
    words = {k: text(r, k) for k in ("object", "stage", "reason", "tail")}
    return Crash(**numbers, **words)  # type: ignore[arg-type]  # two homogeneous tables


def parse_profile(r: Mapping[str, Any]) -> tuple[KernelTime, ...]:
    """Per-kernel times, in the model's order."""
    return tuple(
        KernelTime(text(k, "name"), number(k, "ns"), number(k, "launches"))
        for k in records(r, "kernels")
    )
