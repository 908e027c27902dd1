"""A runner's records and answers in; the same, checked against tables, out; else SmeltError('infra').

A device is not trusted: its runner may be broken, its link may be an attacker's. RECORDS has every record's
fields with type and range; ANSWERS has the frames that answer a request and how many of each. What is in no
table is dropped or refused, so that all values that leave this file are bounded and of the right types.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

from smelt.core.diag import printable
from smelt.core.dtype import INT64
from smelt.core.policies import STATIC
from smelt.core.session_memory import MEMORY_FIELDS
from smelt.devicefarm.budget import infra
from smelt.devicefarm.frames import FrameType

JSON_LIMIT = 4 << 20
"""Most bytes of one record, which takes up to twenty times as much when parsed. A real one has some 10 kB."""
MOST_TENSORS = 4096
"""Most inputs, and most outputs, of a model; the runner has the same limit."""
MOST_KERNELS = 1 << 16
MOST_ENTRIES = 4096
MOST_SHARES = 256
MOST_WIRE_RANK = 64
MOST_SAMPLES = 1 << 18
"""Most samples of one kind in a run; the runner has the same limit."""
MOST_SENSORS, MOST_CPUS, MOST_READINGS = 256, 256, 256
"""Most thermal zones (policies, cooling devices), processors, and readings of a run; the runner has the
same limits."""
MOST_CLUSTERS = 4096
LOG_KEPT = 1 << 20
LOG_LIMIT = 4 << 20
"""Most bytes that a model may print during a request; the runner passes on a quarter of them."""
OUTPUT_LIMIT = 1 << 34
"""Most bytes of one output; a device cannot make the host allocate more."""
UINT64 = 2**64 - 1


def one_line(text: str, limit: int = 4000) -> str:
    """The first `limit` characters of a text on one line, without control characters."""
    return printable(text if len(text) <= limit else text[:limit] + "...")


# ---------------------------------------------------------------- what a field may be


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer within these bounds; true and false are not integers."""

    low: int = 0
    high: int = INT64

    def check(self, value: Any, where: str) -> int:
        """The number. Raises SmeltError(kind='infra')."""
        if type(value) is not int or not self.low <= value <= self.high:
            _refuse(where, f"a whole number from {self.low} to {self.high}", value)
        return value


@dataclass(frozen=True, slots=True)
class TextRule:
    """A text. exact: unchanged, for names that are compared; else without control characters."""

    exact: bool = False

    def check(self, value: Any, where: str) -> str:
        """The text. Raises SmeltError(kind='infra')."""
        if not isinstance(value, str):
            _refuse(where, "a text", value)
        # half of a surrogate pair is no character: it could be neither printed nor written
        return value.encode("utf-8", "replace").decode() if self.exact else one_line(value)


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""

    def check(self, value: Any, where: str) -> bool:
        """The flag. Raises SmeltError(kind='infra')."""
        if not isinstance(value, bool):
            _refuse(where, "true or false", value)
        return value


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these texts or numbers."""

    values: tuple[Any, ...]

    def check(self, value: Any, where: str) -> Any:
        """The value. Raises SmeltError(kind='infra')."""
        if not isinstance(value, str | int) or value not in self.values:
            _refuse(where, f"one of {', '.join(map(str, self.values))}", value)
        return value


@dataclass(frozen=True, slots=True)
class Many:
    """A list of up to `most` of a kind."""

    of: FieldRule
    most: int

    def check(self, value: Any, where: str) -> tuple[Any, ...]:
        """The items. Raises SmeltError(kind='infra')."""
        if not isinstance(value, list) or len(value) > self.most:
            _refuse(where, f"a list of up to {self.most}", value)
        return tuple(self.of.check(v, f"{where}[{i}]") for i, v in enumerate(value))


@dataclass(frozen=True, slots=True)
class Record:
    """An object with these fields; other fields are dropped."""

    fields: Mapping[str, FieldRule]

    def check(self, value: Any, where: str) -> dict[str, Any]:
        """The fields. Raises SmeltError(kind='infra')."""
        if not isinstance(value, dict):
            _refuse(where, "an object", value)
        return {k: rule.check(value.get(k), f"{where}.{k}") for k, rule in self.fields.items()}


@dataclass(frozen=True, slots=True)
class May:
    """A field that an older runner does not send."""

    of: FieldRule
    default: Any

    def check(self, value: Any, where: str) -> Any:
        """The value, or the default. Raises SmeltError(kind='infra')."""
        return self.default if value is None else self.of.check(value, where)


FieldRule: TypeAlias = "Whole | TextRule | Flag | OneOf | Many | Record | May"


def _refuse(where: str, wanted: str, value: Any) -> NoReturn:
    if value is None:
        found = "nothing"
    elif isinstance(value, list):
        found = f"a list of {len(value)}"
    elif isinstance(value, int):
        # a long number takes quadratic time to be spelt, or is refused
        found = str(value) if abs(value) <= UINT64 else "a longer one"
    else:
        found = repr(value)[:80] if isinstance(value, str | float) else type(value).__name__
    raise infra(f"the runner's record is wrong: expected {wanted} as '{where}', got {found}")


# ---------------------------------------------------------------- the tables

STATUSES = (
    "ok", "invalid", "unsupported", "shape", "device", "infra", "internal", "crash", "timeout", "cancelled",
    "protocol", "stale", "killed",
)  # fmt: skip

_ANY = Whole(-INT64 - 1, INT64)  # a device that has no such figure says -1; some say other things below 0
_COUNT = Whole(0, UINT64)
_POLICY: dict[str, FieldRule] = {"policy": _COUNT, "cpus": TextRule(), "governor": TextRule()}
_POLICY |= dict.fromkeys(("khz", "limit_khz", "most_khz"), _ANY)
_CONDITION = Record(
    {
        "zones": Many(Record({"zone": _COUNT, "type": TextRule(), "millidegrees": _ANY}), MOST_SENSORS),
        "policies": Many(Record(_POLICY), MOST_SENSORS),
        "cooling": Many(Record({"type": TextRule(), "level": _ANY}), MOST_SENSORS),
        "firmware": TextRule(), "load": TextRule(),
    }
)  # fmt: skip
_NUMBERS: dict[str, FieldRule] = dict.fromkeys(("millidegrees", "khz", "limits_khz", "cooling"), _ANY)
_TICKS = Many(Whole(0, 2**32 - 1), MOST_CPUS)
_READING = Record(
    {**_NUMBERS, "at_ns": _COUNT, "sample": Whole(0, MOST_SAMPLES), "busy": _TICKS, "stolen": _TICKS}
)
_CACHE = Record({"level": _COUNT, "line": _COUNT, "kb": _COUNT, "type": TextRule(), "shared": TextRule()})
_CLUSTER = Record(
    {
        "first": _COUNT, "count": _COUNT, "siblings": TextRule(), "midr": TextRule(), "capacity": _ANY,
        "most_khz": _ANY, "caches": Many(_CACHE, 16),
    }
)  # fmt: skip
_UNIT = Record(
    dict.fromkeys(("api", "device", "version", "driver", "error"), TextRule())
    | {"extensions": TextRule(exact=True)}
)
_MEMORY = Record(dict.fromkeys((*MEMORY_FIELDS, "resident_peak_kb"), _COUNT))
_TENSOR = Record(
    {
        "name": TextRule(exact=True), "code": Whole(0, 255), "bits": Whole(0, 255), "lanes": Whole(0, 65535),
        "rank": Whole(0, MOST_WIRE_RANK),
    }
)  # fmt: skip
_SHARE = Record(
    dict.fromkeys(("unit", "processor", "why"), TextRule())
    | dict.fromkeys(("runs", "explorations", "expected_ns"), _COUNT)
)
_KERNEL = Record(
    {
        "name": TextRule(exact=True), "ns": _COUNT, "launches": _COUNT,
        "device_ns": May(_COUNT, 0), "device_launches": May(_COUNT, 0),
        "form": May(TextRule(), None), "lesser": May(TextRule(), ""),
    }
)  # fmt: skip

RECORDS: Mapping[str, Record] = {
    "facts": Record(
        dict.fromkeys(
            (
                "arch", "libc", "kernel", "machine", "cpu", "board", "boot_id", "runner", "emulation",
                "hypervisor",
            ),
            TextRule(),
        )
        | {
            "pointer_bits": OneOf((32, 64)), "page_size": Whole(0, 1 << 40), "cores": Whole(1, 1 << 20),
            "memory_kb": _COUNT, "available_kb": _COUNT, "pid": Whole(0, 1 << 32),
            "features": Many(TextRule(), 1024), "condition": _CONDITION,
            "clusters": Many(_CLUSTER, MOST_CLUSTERS), "units": Many(_UNIT, 64), "units_probed": Flag(),
        }
    ),
    "model": Record(
        {
            "inputs": Many(_TENSOR, MOST_TENSORS), "outputs": Many(_TENSOR, MOST_TENSORS),
            "state": Many(_TENSOR, MOST_TENSORS), "load_ns": _COUNT, "memory": _MEMORY,
            "entries": Many(TextRule(exact=True), MOST_ENTRIES), "policy": May(TextRule(), STATIC),
        }
    ),
    "run": Record(
        {
            "first_ns": _COUNT, "warmup_stable": Flag(), "memory": _MEMORY,
            "before": _CONDITION, "after": _CONDITION, "telemetry": Many(_READING, MOST_READINGS),
            "shares": May(Many(_SHARE, MOST_SHARES), ()),
        }
    ),
    "control": Record(
        {
            "set": Many(Record(dict.fromkeys(("file", "old", "new"), TextRule())), 3 * MOST_SENSORS),
            "refused": Many(
                Record(dict.fromkeys(("file", "wanted", "found"), TextRule())), 3 * MOST_SENSORS + 1
            ),
        }
    ),
    "profile": Record({"kernels": Many(_KERNEL, MOST_KERNELS)}),
    "probe": Record({"launches": _COUNT, "bytes": Whole(0, OUTPUT_LIMIT), "cut": Flag()}),
    "crash": Record(
        {
            "signal": Whole(0, 255), "exit_code": Whole(0, 255), "code": Whole(-(2**31), 2**31 - 1),
            "address": _COUNT, "offset": _COUNT, "frames": May(Many(_COUNT, 64), ()),
            "object": TextRule(), "stage": TextRule(), "reason": TextRule(), "tail": TextRule(exact=True),
            "killed": Flag(), "kernel_log": May(TextRule(exact=True), ""), "pid": May(Whole(0, 2**31 - 1), 0),
        }
    ),
    "end": Record({"status": OneOf(STATUSES), "text": TextRule(), "crc32": Whole(0, 2**32 - 1)}),
}  # fmt: skip
"""Name of a record in the runner's JSON -> its fields."""

_RUN_FRAMES = {FrameType.STAGE: 16, FrameType.CRASH: 1}
ANSWERS: Mapping[FrameType, Mapping[FrameType, int]] = {
    FrameType.HELLO: {FrameType.HELLO: 1, FrameType.CRASH: 1},
    FrameType.LOAD: {**_RUN_FRAMES, FrameType.STATS: 1},
    FrameType.ENTRY: {**_RUN_FRAMES, FrameType.STATS: 1},
    FrameType.SETIN: _RUN_FRAMES,
    FrameType.RUN: {**_RUN_FRAMES, FrameType.STATS: 2, FrameType.SAMPLES: 2},
    FrameType.GETOUT: {**_RUN_FRAMES, FrameType.OUT: 1, FrameType.DATA: OUTPUT_LIMIT},
    FrameType.STATE: _RUN_FRAMES,
    FrameType.CONTROL: {FrameType.STATS: 1, FrameType.CRASH: 1},
    FrameType.PROBE: {**_RUN_FRAMES, FrameType.STATS: 1, FrameType.DATA: OUTPUT_LIMIT},
    FrameType.RESET: {FrameType.CRASH: 1},
    FrameType.QUIT: {FrameType.CRASH: 1},
}
"""Request -> (type of frame -> how many may answer it before END); LOG has a limit in bytes instead."""


def read_json(payload: bytes) -> Mapping[str, Any]:
    """The JSON object in a payload, with unchecked fields; bytes that come from the model may be invalid
    UTF-8. Raises SmeltError(kind='infra')."""
    if len(payload) > JSON_LIMIT:
        raise infra(f"the runner sent a record of {len(payload)} bytes, the limit is {JSON_LIMIT}")
    try:
        value = json.loads(payload.decode("utf-8", "replace"), parse_constant=_no_number)
    except RecursionError:
        raise infra("the runner sent JSON that is nested too deeply") from None
    except ValueError as error:  # no JSON, or a number of more digits than Python reads
        raise infra(f"the runner sent JSON that cannot be read: {one_line(str(error), 200)}") from error
    if not isinstance(value, dict):
        raise infra("the runner sent JSON that is not an object")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def read_record(what: str, payload: bytes) -> dict[str, Any]:
    """Parse and check a record of RECORDS. Raises SmeltError(kind='infra')."""
    return RECORDS[what].check(read_json(payload), what)


# ---------------------------------------------------------------- what a request brings


class Log:
    """The end of what a model prints during a request. Raises SmeltError(kind='infra') when that is more than
    a runner may pass on."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._seen = 0

    def add(self, data: bytes) -> None:
        """Append a piece."""
        self._seen += len(data) + 1  # an empty one counts, too
        if self._seen > LOG_LIMIT:
            raise infra(f"the runner passed on more than {LOG_LIMIT} bytes that the model printed")
        self._kept += data
        del self._kept[: max(0, len(self._kept) - LOG_KEPT)]

    def text(self) -> str:
        """What is kept."""
        return self._kept.decode("utf-8", "replace")


OUT_HEAD = struct.Struct("<IBBHIIQ")
OFFSET = struct.Struct("<Q")


@dataclass
class Pieces:
    """Assembles bytes that come in DATA frames alone, without a gap, up to `most`. Raises
    SmeltError(kind='infra')."""

    most: int
    raw: bytearray = field(default_factory=bytearray)

    def data(self, payload: bytes) -> None:
        """A DATA frame."""
        at, piece = len(self.raw), len(payload) - OFFSET.size
        if piece <= 0 or OFFSET.unpack_from(payload)[0] != at or at + piece > self.most:
            raise infra(f"the runner sent data that is not the next of {self.most} bytes at most")
        self.raw += memoryview(payload)[OFFSET.size :]


@dataclass
class Output:
    """Assembles one output: an OUT frame, then DATA frames without a gap. Raises SmeltError(kind='infra').

    index: that of the requested output. dtype (code, bits, lanes), rank: as the model declares them; element:
    bytes of one element.
    """

    index: int
    dtype: tuple[int, int, int]
    rank: int
    element: Callable[[int], int]
    dims: tuple[int, ...] | None = None
    size: int = 0
    raw: bytearray = field(default_factory=bytearray)

    def head(self, payload: bytes) -> None:
        """The OUT frame."""
        if len(payload) < OUT_HEAD.size:
            raise infra("the runner sent an output without its head")
        index, code, bits, lanes, rank, _, size = OUT_HEAD.unpack_from(payload)
        if (
            (index, (code, bits, lanes), rank) != (self.index, self.dtype, self.rank)
            or len(payload) != OUT_HEAD.size + 8 * rank
            or size > OUTPUT_LIMIT
        ):
            raise infra(f"the runner sent an output whose head is not that of output {self.index}")
        dims = struct.unpack_from(f"<{rank}q", payload, OUT_HEAD.size)
        count = 1
        for d in dims:
            count *= d
        if min(dims, default=0) < 0 or self.element(count) != size:
            raise infra(f"output {self.index} of dims {dims} cannot have {size} bytes")
        self.dims, self.size = dims, size

    def data(self, payload: bytes) -> None:
        """A DATA frame."""
        at, piece = len(self.raw), len(payload) - OFFSET.size
        if self.dims is None or piece <= 0 or OFFSET.unpack_from(payload)[0] != at or at + piece > self.size:
            raise infra(f"the runner sent data that is not the next of output {self.index}")
        self.raw += memoryview(payload)[OFFSET.size :]
