"""Bundles with code for the CPU as well: where the device is missing, or fails in a run, the CPU runs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import decoder_models as decoders
import numpy as np
import onnx
import pytest
from checkouts import FAKE, Checkout, checkout
from oracle import runtime_session

import smelt
from smelt.core.diag import SmeltError

LAYERS = 1
STEPS = (3, 1, 1, 1)
FORM = "grouped"

SCRIPT = """
import os, pickle, sys, smelt
folder, state = sys.argv[1:]
if not os.path.exists(folder + "/bundle"):
    compiled(folder + "/model.onnx", "x86+fake", output=folder + "/bundle", fallback=True,
             state={"past_*": "present_*"} if state == "state" else {})
session, rows = smelt.load(folder + "/bundle"), []
for feed in pickle.load(open(folder + "/feeds", "rb")):
    try:
        found = session.run(None, feed)
    except smelt.SmeltError as e:
        found = str(e)
    rows.append((found, session.fallback, session.memory().launches, session.entries))
session.reset()
try:
    session.run(None, pickle.load(open(folder + "/feeds", "rb"))[0])
except smelt.SmeltError as e:
    pass
rows.append((None, session.fallback, 0, ()))
pickle.dump(rows, open(folder + "/rows", "wb"))
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """smelt with one device more."""
    copy = checkout(tmp_path_factory.mktemp("fallback") / "copy")
    copy.add("fake", *FAKE)
    return copy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the model, and what its steps are fed."""
    made = tmp_path_factory.mktemp("model")
    onnx.save(decoders.decoder(FORM, LAYERS), made / "model.onnx")
    past, feeds = 0, []
    for new in STEPS:
        feeds.append(decoders.step(FORM, 1, past, new))
        past += new
    (made / "feeds").write_bytes(pickle.dumps(feeds))
    return made


def logits() -> list[Any]:
    """Of each step, by ONNX Runtime."""
    oracle = runtime_session(decoders.decoder(FORM, LAYERS))
    names = [o.name for o in oracle.get_outputs()]
    cache, past, rows = dict(decoders.empty(LAYERS, 1)), 0, []
    for new in STEPS:
        fed = {**decoders.step(FORM, 1, past, new), **cache}
        found = dict(zip(names, oracle.run(None, fed), strict=True))
        rows.append(found["logits"])
        cache = {n.replace("present", "past"): a for n, a in found.items() if n.startswith("present")}
        past += new
    return rows


def steps(sources: Checkout, folder: Path, monkeypatch: pytest.MonkeyPatch, **env: str) -> list[Any]:
    """(outputs or error, why it fell back, launches on the device so far, entries) of each step; the last row
    is of a first step after a reset."""
    for name in ("FAKE_REFUSES", "FAKE_BREAKS", "FAKE_LOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    done = sources.script(SCRIPT, str(folder), "state")
    assert done.returncode == 0, done.stderr
    return pickle.loads((folder / "rows").read_bytes())  # type: ignore[no-any-return]


def test_the_cpu_runs_where_the_device_does_not(
    sources: Checkout, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = logits()

    def agree(rows: list[Any], count: int) -> None:
        for (found, _, _, entries), want in zip(rows[:count], wanted, strict=False):
            assert not isinstance(found, str), found
            np.testing.assert_allclose(found[0], want, rtol=2e-3, atol=1e-4)
            assert entries == ("main",)

    there = steps(sources, folder, monkeypatch)
    agree(there, len(STEPS))
    assert [why for _, why, _, _ in there] == [None] * 5 and there[0][2] > 10

    missing = steps(sources, folder, monkeypatch, FAKE_REFUSES="1")
    agree(missing, len(STEPS))
    assert {(why, launches) for _, why, launches, _ in missing} == {("fake: told to refuse", 0)}

    # a call fails in the second step: the cache is read back, and the CPU does that step and those after it
    first = steps(sources, folder, monkeypatch, FAKE_BREAKS="2")
    agree(first, len(STEPS))
    assert "fake device 'fake': " in first[0][1] and "failed with code -9" in first[0][1]
    later = steps(sources, folder, monkeypatch, FAKE_BREAKS="60")
    agree(later, len(STEPS))
    assert later[0][1] is None and "failed with code -9" in later[3][1] and later[3][2] > 10

    # a device that is lost takes the cache with it: that is told, until a reset
    lost = steps(sources, folder, monkeypatch, FAKE_BREAKS="60", FAKE_LOST="1")
    agree(lost, 1)
    assert all("failed with code -9" in row[0] and row[1] is None for row in lost[2:4])
    assert "failed with code -9" in lost[4][1]


def test_a_fallback_wants_a_device(tmp_path: Path) -> None:
    onnx.save(decoders.decoder("parts", 1), tmp_path / "m.onnx")
    with pytest.raises(SmeltError, match="fallback: the target has no unit besides the CPU"):
        smelt.compile(tmp_path / "m.onnx", "host", output=tmp_path / "out", fallback=True)
