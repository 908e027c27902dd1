"""Both ends of the runner's protocol under attack: fixed seeds of the campaigns,
and the cases that they have found."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import attack_protocol_device as device
import pytest
from attack_protocol_device import HANG
from attack_protocol_host import recorded
from campaign import apart, campaign
from frames_raw import Raw
from installed import program_path

from smelt.core.diag import SmeltError
from smelt.devicefarm.frames import FrameType
from smelt.devicefarm.report import parse_facts, parse_samples
from smelt.devicefarm.requests import LOAD_HEAD, PAIR, RUN_BODY, SETIN_HEAD
from smelt.devicefarm.wire import (
    JSON_LIMIT,
    LOG_KEPT,
    LOG_LIMIT,
    Log,
    Output,
    one_line,
    read_json,
    read_record,
)

needs_gcc = pytest.mark.skipif(program_path("gcc") is None, reason="no gcc: apt install gcc libc6-dev")


# ---------------------------------------------------------------- the host's end


def test_fixed_seeds_of_the_host() -> None:
    tally = apart("attack_protocol_host", 90)
    assert not tally.failures, tally.report()
    assert tally.counts["answered"] > 10
    assert sum(n for what, n in tally.counts.items() if what.startswith("infra at")) > 50


def facts(**changes: object) -> bytes:
    first = next(f for f in recorded() if f.type == FrameType.HELLO)
    return json.dumps(json.loads(first.payload) | changes).encode()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cores": 2**64}, "a whole number from 1 to 1048576 as 'facts.cores', got a longer one"),
        ({"cores": 10**4000}, "as 'facts.cores', got a longer one"),
        ({"cores": True}, "as 'facts.cores', got True"),
        ({"cores": 1.0}, "as 'facts.cores', got 1.0"),
        ({"cpu": None}, "a text as 'facts.cpu', got nothing"),
        ({"features": ["a"] * 1025}, "a list of up to 1024 as 'facts.features', got a list of 1025"),
        ({"features": [1]}, "a text as 'facts.features[0]'"),
        ({"condition": []}, "an object as 'facts.condition'"),
    ],
)
def test_fields_are_what_the_tables_say(changes: dict[str, object], said: str) -> None:
    with pytest.raises(SmeltError) as caught:
        parse_facts(facts(**changes))
    assert caught.value.kind == "infra" and said in caught.value.message


@pytest.mark.parametrize(
    "payload",
    [b"[" * 10**6, b'{"a":' * 10**6, b'{"a":' + b"9" * 5000 + b"}", b'{"a":NaN}', b'{"a":-Infinity}',
    b"[]", b"", b"\xff\xfe",
     b" " * (JSON_LIMIT + 1)],
    ids=["lists", "objects", "digits", "nan", "infinity", "list", "empty", "bytes", "long"],
)  # fmt: skip
def test_json_that_python_would_choke_on(payload: bytes) -> None:
    with pytest.raises(SmeltError) as caught:
        read_json(payload)
    assert caught.value.kind == "infra"


def test_words_of_a_device_move_no_cursor_and_can_be_written() -> None:
    found = parse_facts(facts(cpu="\x1b[2J\u202eARM\r\n", board="\ud800", machine="m" * 9999))
    assert found.cpu == "\\x1b[2J\\u202eARM\\r\\n"
    assert found.board.encode() and len(found.machine) < 5000
    assert one_line("né 机") == "né 机"
    end = read_record("end", json.dumps({"status": "ok", "text": "\x07", "crc32": 0}).encode())
    assert end["text"] == "\\x07"


@pytest.mark.parametrize("payload", [b"", b"1234567", struct.pack("<IIQ", 1, 0, 5),
                                     struct.pack("<II4Q", 1, 2, 5, 5, 5, 5),
                                     struct.pack("<II4Q", 0, 0, 5, 5, 5, 5),
                                     struct.pack("<II", 1, 0) + bytes(32 << 18) + bytes(32)])  # fmt: skip
def test_samples_out_of_range(payload: bytes) -> None:
    with pytest.raises(SmeltError, match="the runner sent samples"):
        parse_samples([payload])


def test_a_log_is_bounded() -> None:
    log = Log()
    for _ in range(3):
        log.add(b"x" * (1 << 20))
    assert len(log.text()) == LOG_KEPT
    with pytest.raises(SmeltError, match="more than"):
        for _ in range(LOG_LIMIT):
            log.add(b"")


def test_an_output_comes_in_order_and_whole() -> None:
    def head(rank: int, size: int, *dims: int, code: int = 2) -> bytes:
        return struct.pack(f"<IBBHIIQ{len(dims)}q", 0, code, 32, 1, rank, 0, size, *dims)

    def taking() -> Output:
        return Output(0, (2, 32, 1), 2, lambda n: 4 * n)

    for wrong in (b"", head(2, 8, 1), head(1, 8, 2), head(10**6, 8, 1, 2), head(2, 8, 1, 2, code=0),
    head(2, 9, 1, 2),
                  head(2, 8, -1, -2), head(2, 2**63, 2**31, 2**30), head(2, 0, 2**62, 4)):  # fmt: skip
        with pytest.raises(SmeltError) as caught:
            taking().head(wrong)
        assert caught.value.kind == "infra"
    found = taking()
    with pytest.raises(SmeltError, match="not the next"):
        found.data(bytes(16))
    found.head(head(2, 16, 2, 2))
    found.data(struct.pack("<Q", 0) + bytes(8))
    for wrong in (
        struct.pack("<Q", 0) + bytes(8),
        struct.pack("<Q", 8) + bytes(9),
        struct.pack("<Q", 8),
        b"",
    ):
        with pytest.raises(SmeltError, match="not the next"):
            found.data(wrong)


# ---------------------------------------------------------------- the device's end


@needs_gcc
def test_fixed_seeds_of_the_device() -> None:
    tally = campaign(device.attack, range(60))
    assert not tally.failures, tally.report()
    assert min(tally.counts["left"], tally.counts["told a broken stream"]) > 10


UNCHECKED = (
    ("supervisor", "if (len < sizeof r) return answer", "if (0) return answer"),
    ("worker", "|| w->payload.len != sizeof head + 8 * (size_t)head.rank)", ")"),
)
"""Checks that are taken out of a copy of the runner: file, check, what comes in its place."""


@pytest.fixture(scope="module")
def unchecked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of that copy."""
    copy = tmp_path_factory.mktemp("unchecked") / "runtime"
    shutil.copytree(device.rig.RUNTIME, copy)
    for name, check, instead in UNCHECKED:
        source = copy / f"runner_{name}.c"
        text = source.read_text()
        assert text.count(check) == 1
        source.write_text(text.replace(check, instead))
    return device.program(device.built(copy))


@needs_gcc
@pytest.mark.parametrize("where", ["sanitizer", "sanitizer in the worker"])
def test_the_attack_sees_a_read_beyond_a_frame(where: str, unchecked: list[str]) -> None:
    """Although it lies in memory that the runner maps by itself."""
    path = os.fsencode(device.runner())
    dims = SETIN_HEAD.pack(900, 0, 2, 32, 1, 60, 24) + struct.pack("<2q", 2, 3)
    frames = [Raw(FrameType.LOAD, LOAD_HEAD.pack(5000, 1, 0, 0, 0) + path, 1), Raw(FrameType.SETIN, dims, 2)]
    if where == "sanitizer":
        frames = [Raw(FrameType.CONTROL, bytes(4), 1)]
    pieces = [f.encode() for f in frames]
    assert device.judge(device.converse(unchecked, pieces, "waits", HANG), "").what == where
    assert not device.judge(device.converse(device.program(), pieces, "waits"), "").failed


def heard(*frames: Raw, by: str) -> device.Heard:
    return device.converse(
        device.program(), [b"".join(f.encode() for f in frames)], by
    )


@needs_gcc
def test_a_host_that_only_asks_does_not_fill_the_memory() -> None:
    """A fifth of a million questions, some 250 MB of answers, and nobody reads."""
    found = heard(*[Raw(FrameType.HELLO, PAIR.pack(0, 1000), 1)] * 200_000, by="is deaf")
    assert found.code in (0, 3) and not found.stderr
    assert 0 < found.memory < 100 << 20


@needs_gcc
def test_a_model_that_writes_into_the_pipe_of_crash_records() -> None:
    """Its words had no end: they were read on into the stack of the supervisor."""
    scribble = 12
    path = os.fsencode(device.runner())
    frames = [
        Raw(FrameType.LOAD, LOAD_HEAD.pack(5000, 1, 0, 0, 0) + path, 1),
        Raw(FrameType.SETIN, SETIN_HEAD.pack(900, 0, 2, 32, 1, 2, 24) + struct.pack("<2q", 2, 3), 2),
        Raw(FrameType.DATA, bytes(32), 2),
        Raw(FrameType.SETIN, SETIN_HEAD.pack(900, 1, 0, 32, 1, 0, 4), 3),
        Raw(FrameType.DATA, struct.pack("<qi", 0, scribble), 3),
        Raw(FrameType.RUN, RUN_BODY.pack(900, 0, 1, 50, 0, 10**8, 0, 10**8, 10**5), 4),
    ]
    program = device.program()
    for _ in range(100):  # until it has written a whole record before it is killed: later on a busy machine
        found = device.converse(program, [f.encode() for f in frames], "waits")
        assert found.code in (0, 3) and not found.stderr
        assert b'"signal":' in found.stdout
        if b"arbage" in found.stdout:
            return
    pytest.fail("no record of its words came back")


@needs_gcc
@pytest.mark.parametrize("limit", [5, 8, 10, 12])
def test_a_runner_without_descriptors_says_so(limit: int, tmp_path: Path) -> None:
    """Pipes of a worker that could not be started are given back: each LOAD is refused like the first."""
    script = f'ulimit -n {limit}; exec "$0" --serve'
    load = Raw(FrameType.LOAD, LOAD_HEAD.pack(1000, 1, 0, 0, 0) + os.fsencode(tmp_path), 1)
    found = device.converse(
        ["/bin/sh", "-c", script, str(device.runner() / "smelt_run")], [load.encode()] * 10, "waits"
    )
    assert found.code in (0, 3), found
    assert found.stdout.count(b'"status"') == 10
    assert b"Sanitizer" not in found.stderr
