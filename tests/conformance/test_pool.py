"""Children that start late, hang or die: what each costs its case."""

from __future__ import annotations

import os
import pickle
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from smelt.conformance import cases, pool
from smelt.conformance.judge import JudgedCase

KEYS = ["static:test_abs", "static:test_add", "static:test_and2d"]


def _slow_to_start(pipe: Connection, target: str) -> None:
    """Start later than a case may take; hang in the second case, die in the third."""
    time.sleep(1.5)
    while True:
        key = pipe.recv()
        pipe.send("reading the case")
        if key == KEYS[1]:
            time.sleep(60)
        if key == KEYS[2]:
            os.kill(os.getpid(), signal.SIGKILL)
        pipe.send(JudgedCase(key, "pass"))


def test_only_a_case_counts_against_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_serve", _slow_to_start)
    good, late, dead = pool.run(KEYS, jobs=1, limit=1.0)
    assert good.outcome == "pass"
    assert late.outcome == "hang" and "more than 1 s while reading the case" in str(late.reason)
    assert dead.outcome == "crash" and "SIGKILL" in str(dead.reason)


def test_a_child_that_never_starts_costs_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_serve", lambda pipe, target: time.sleep(60))
    monkeypatch.setattr(pool, "START_LIMIT", 1.0)
    (found,) = pool.run(KEYS[:1], jobs=1)
    assert found.outcome == "hang" and "while starting" in str(found.reason)


def test_cases_are_computed_once_and_again_after_damage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where the folder takes no file, and by a program that makes other cases."""
    made: list[int] = []

    def computed() -> tuple[cases.Shipped, ...]:
        made.append(0)
        return held[: len(made)]

    held = cases.shipped()[:9]
    again = cases.shipped.__wrapped__
    monkeypatch.setattr(cases, "_computed", computed)
    monkeypatch.setenv("SMELT_CACHE", str(tmp_path))
    assert [len(again()), len(again()), again()[0].name] == [1, 1, held[0].name]
    (file,) = (tmp_path / "conformance").iterdir()
    assert file.name == cases._kept_at().name
    flipped = bytearray(file.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    for damaged in (b"", file.read_bytes()[:-9], flipped):
        file.write_bytes(damaged)
        assert len(again()) == len(made) == len(again())
    assert len(pickle.loads(file.read_bytes()[cases.DIGEST :])) == 4
    monkeypatch.setattr(cases.onnx, "__version__", "another")
    assert len(again()) == 5
    monkeypatch.setenv("SMELT_CACHE", "/dev/null/none")
    assert [len(again()), len(again())] == [6, 7]
