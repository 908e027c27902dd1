"""A short campaign of faults, and a checker that must see what is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boards import need_qemu
from installed import program_path

sys.path.insert(0, str(Path(__file__).parent))
import check

HERE = Path(__file__).parent


def campaign(folder: Path, *words: str) -> tuple[int, str]:
    """Run one; its exit code and what it printed."""
    need_qemu("qemu-aarch64-static")
    if not (program_path("sshd") and program_path("dropbear")):
        pytest.skip("needs servers: apt-get install openssh-server dropbear-bin")
    argv = [sys.executable, str(HERE / "campaign.py"), "--folder", str(folder), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ})
    missing = re.search(r"Skipped: (needs .*)", done.stderr)
    if missing:
        pytest.skip(missing[1])
    return done.returncode, done.stdout + done.stderr[-2000:]


def test_a_short_campaign_ends_whole(tmp_path: Path) -> None:
    code, said = campaign(tmp_path / "out", "--seed", "5", "--faults", "20")
    assert code == 0, said


def test_without_the_comparison_of_fences_the_checker_is_red(tmp_path: Path) -> None:
    words = ("--seed", "2", "--faults", "1", "--kind", "stale holder", "--device", "bench-1", "--unfenced")
    code, said = campaign(tmp_path / "out", *words)
    assert code == 1, said
    assert "s after it had for" in said, said


def test_a_short_soak_leaves_nothing() -> None:
    need_qemu("qemu-aarch64-static")
    argv = [sys.executable, str(HERE / "soak.py"), "--jobs", "12"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    missing = re.search(r"Skipped: (needs .*)", done.stderr)
    if missing:
        pytest.skip(missing[1])
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


# ---------------------------------------------------------------- the checker

DEVICE = "d"


def good() -> dict[str, Any]:
    """The logs of two jobs, one after the other on one device, with one fault between them."""
    lease = {"device": DEVICE, "holder": "h", "user": "u", "expires": 9.0, "why": "released"}
    return {
        "faults.jsonl": [{"t": 2.0, "until": 2.0, "kind": "cut", "device": DEVICE}],
        "agent-1.jsonl": [
            {"t": 1.0, "event": "granted", "device": DEVICE, "fence": 1, "job": "a"},
            {"t": 1.4, "event": "ran", "device": DEVICE, "fence": 1, "job": "a", "began": 1.2},
            {"t": 1.5, "event": "ended", "device": DEVICE, "fence": 1, "job": "a", "verdict": "pass"},
            {"t": 3.0, "event": "granted", "device": DEVICE, "fence": 2, "job": "b"},
            {"t": 3.4, "event": "ran", "device": DEVICE, "fence": 2, "job": "b", "began": 3.2},
            {"t": 3.5, "event": "ended", "device": DEVICE, "fence": 2, "job": "b", "verdict": "link lost"},
        ],
        "coordinator.jsonl": [
            {"t": 0.1, "event": "submitted", "job": "a", "may": ["pass"]},
            {"t": 0.2, "event": "submitted", "job": "b", "may": ["pass"]},
        ],
        "database.json": {
            "job": [{"id": "a", "verdict": "pass"}, {"id": "b", "verdict": "link lost"}],
            "lease": [{**lease, "fence": 1, "since": 1.0, "ended": 1.6},
                      {**lease, "fence": 2, "since": 3.0, "ended": 3.6}],
            "attempt": [],
            "result": [{"job": "a", "attempt": 1, "device": DEVICE, "fence": 1, "verdict": "pass", "at": 1.5},
                       {"job": "b", "attempt": 1, "device": DEVICE, "fence": 2, "verdict": "link lost",
                        "at": 3.5}],
        },
        "end.json": {"faults": 1, "kinds": ["cut"], "devices": {DEVICE: "pass"}, "left": {"leases": []}},
    }  # fmt: skip


def found(folder: Path, logs: dict[str, Any]) -> list[str]:
    for name, content in logs.items():
        lines = name.endswith("l")
        text = "".join(json.dumps(x) + "\n" for x in content) if lines else json.dumps(content)
        (folder / name).write_text(text)
    return list(check.problems(folder))


def test_good_logs_are_good(tmp_path: Path) -> None:
    assert found(tmp_path, good()) == []


def _late(logs: dict[str, Any]) -> None:
    logs["agent-1.jsonl"].append(
        {"t": 3.9, "event": "ran", "device": DEVICE, "fence": 1, "job": "a", "began": 3.45}
    )


def _twice(logs: dict[str, Any]) -> None:
    logs["agent-1.jsonl"].append(dict(logs["agent-1.jsonl"][2], t=1.6))


def _lost(logs: dict[str, Any]) -> None:
    del logs["database.json"]["job"][1]


def _blamed(logs: dict[str, Any]) -> None:
    logs["database.json"]["job"][1]["verdict"] = "mismatch"


def _no_cause(logs: dict[str, Any]) -> None:
    logs["faults.jsonl"][0] |= {"t": -100.0, "until": -100.0}


def _stale_result(logs: dict[str, Any]) -> None:
    logs["database.json"]["result"][0]["at"] = 3.1


def _falling(logs: dict[str, Any]) -> None:
    logs["database.json"]["lease"][0]["fence"] = 7


def _overlap(logs: dict[str, Any]) -> None:
    logs["database.json"]["lease"][0]["ended"] = 3.2


def _counted_twice(logs: dict[str, Any]) -> None:
    logs["database.json"]["result"].append(dict(logs["database.json"]["result"][0]))


def _open(logs: dict[str, Any]) -> None:
    logs["database.json"]["job"][0]["verdict"] = None


def _broken(logs: dict[str, Any]) -> None:
    logs["end.json"]["devices"][DEVICE] = "link lost"


def _left(logs: dict[str, Any]) -> None:
    logs["end.json"]["left"]["leases"] = [DEVICE]


def _few(logs: dict[str, Any]) -> None:
    logs["end.json"]["faults"] = 2


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (_late, "ran for fence 1"),
        (_twice, "ended 2 times"),
        (_lost, "is lost"),
        (_blamed, "ended as mismatch"),
        (_no_cause, "nothing had failed"),
        (_stale_result, "which was stale"),
        (_falling, "came after"),
        (_overlap, "valid at once"),
        (_counted_twice, "has 2 results"),
        (_open, "has no verdict"),
        (_broken, "is not whole"),
        (_left, "left at the end"),
        (_few, "2 faults were asked for"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_is_wrong_is_seen(spoil: Callable[[dict[str, Any]], None], what: str, tmp_path: Path) -> None:
    logs = good()
    spoil(logs)
    assert any(what in p for p in found(tmp_path, logs)), found(tmp_path, logs)
