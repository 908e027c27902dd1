"""State in a session: 20 steps against ONNX Runtime fed by hand, reset, fork, failures, bounds, refusals."""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import decoder_models
import numpy as np
import onnx
import pytest
from boards import needs_opencl, needs_vulkan
from forked import forked_smelt
from onnx import parser
from state_models import (
    DECODER_STATE,
    LSTM_STATE,
    ByHand,
    decoder,
    decoder_by_hand,
    lstm,
    lstm_by_hand,
    tokens,
)

import smelt
from smelt.compare import validate
from smelt.core.bundle import Bundle, read_bundle
from smelt.core.diag import SmeltError
from smelt.core.manifest_schema import check_manifest
from smelt.devicefarm.measure import QUICK
from smelt.running import running
from smelt.session import Session, load
from smelt.shapes import cases

BOUND = 24


@pytest.fixture(scope="module")
def lstm_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return smelt.compile(lstm(), state=LSTM_STATE, output=tmp_path_factory.mktemp("state") / "lstm")


@pytest.fixture(scope="module")
def decoder_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    dims = {"past": (0, BOUND), "seq": (1, 8), "batch": (1, 4)}
    out = tmp_path_factory.mktemp("state") / "decoder"
    return smelt.compile(decoder(), dims=dims, state=DECODER_STATE, output=out)


def step(session: Session, hand: ByHand, feed: dict[str, Any]) -> None:
    """One run of both: outputs and state agree."""
    want = hand.run(feed)
    (got,) = session.run(None, feed)
    first = next(iter(want))
    np.testing.assert_allclose(got, want[first], rtol=1e-3, atol=1e-5)
    state = session.state()
    assert list(state) == list(hand.state)
    for name, values in hand.state.items():
        np.testing.assert_allclose(state[name], values, rtol=1e-3, atol=1e-5)


def steps(session: Session, hand: ByHand, rng: np.random.Generator, batch: int, runs: int) -> None:
    """Steps of the decoder, a few tokens first and then one by one."""
    for i in range(runs):
        past = hand.state["past_key"].shape[2]
        step(session, hand, tokens(rng, batch, past, 1 if past or i else 5))


# ---------------------------------------------------------------- runs


def test_recurrent_state(lstm_bundle: Bundle, rng: np.random.Generator) -> None:
    session, hand = load(lstm_bundle), lstm_by_hand(3)
    assert [a.name for a in session.get_inputs()] == ["x"]
    assert [a.name for a in session.get_outputs()] == ["y"]
    assert session.state() == {}
    for _ in range(20):
        step(session, hand, {"x": rng.standard_normal((1, 3, 4)).astype(np.float32)})
    before = session.memory()
    session.run(None, {"x": np.zeros((1, 3, 4), np.float32)})
    assert session.memory().allocations == before.allocations and before.state_capacity > 0


def test_growing_cache(decoder_bundle: Bundle, rng: np.random.Generator) -> None:
    session, hand = load(decoder_bundle), decoder_by_hand(2)
    opened = session.memory()
    steps(session, hand, rng, 2, 20)
    assert session.state()["past_key"].shape == (2, 2, 24, 4)
    assert session.memory().allocations == opened.allocations, "its dims are bounded: open has reserved all"
    assert session.memory().state_capacity == opened.state_capacity


@pytest.mark.parametrize(
    ("dims", "fp16", "in_place"),
    [
        ({"past": (0, BOUND), "seq": (1, 8)}, False, True),
        ({"past": (0, BOUND), "seq": (1, 8)}, True, True),
        ({}, False, False),
    ],
    ids=["any batch", "fp16", "no bound"],
)
def test_a_cache_grows_where_it_lies(
    dims: dict[str, Any], fp16: bool, in_place: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    bundle = smelt.compile(decoder(), dims=dims, fp16=fp16, state=DECODER_STATE, output=tmp_path / "out")
    assert [row["in_place"] for row in bundle.manifest["state"]] == [in_place] * 2
    session, far = load(bundle), 0.0
    for batch in (2, 3):
        hand = decoder_by_hand(batch)
        for i in range(4):
            feed = tokens(rng, batch, hand.state["past_key"].shape[2], 1 if i else 5)
            (got,), want = session.run(None, feed), hand.run(feed)
            far = max(far, float(np.abs(got - want["logits"]).max()))
            for name, values in hand.state.items():
                near = 1e-2 if fp16 else 1e-5  # what one kernel leaves for the next is stored in 16 bits
                np.testing.assert_allclose(session.state()[name], values, rtol=1e-3, atol=near)
        session.trim()
        session.reset()
    assert far < (5e-2 if fp16 else 1e-4)


GROUPED = {"past": (0, 56), "seq": (1, 8), "total": (1, 64)}


def grouped_by_hand(model: onnx.ModelProto, batch: int) -> ByHand:
    return ByHand(model, {
        n: (n.replace("past", "present"), x.shape) for n, x in decoder_models.empty(2, batch).items()
    })  # fmt: skip


@pytest.mark.parametrize("fp16", [False, True], ids=["f32", "fp16"])
def test_a_cache_of_grouped_attention_grows_where_it_lies(fp16: bool, tmp_path: Path) -> None:
    """Of rows that each batch has: those after them are padding, which a step writes over."""
    model = decoder_models.decoder("grouped", 2)
    bundle = smelt.compile(model, dims=GROUPED, state=decoder_models.STATE, fp16=fp16, output=tmp_path / "in")
    assert [(row["in_place"], row["room"]) for row in bundle.manifest["state"]] == [(True, [2, 64])] * 4
    assert {row["bytes"] for row in bundle.manifest["state"]} == {f"{64 * 2 * 16 * 4}*batch"}, "of one buffer"
    free = {"past": (0, None), "total": (1, None)}
    other = smelt.compile(model, dims=free, state=decoder_models.STATE, fp16=fp16, output=tmp_path / "two")
    assert not any(row["in_place"] or row["room"] for row in other.manifest["state"])
    session, plain, near = load(bundle), load(other), 2e-2 if fp16 else 1e-4
    for lengths in ((5,), (5, 3), (2, 4, 1)):
        hand, past, held = grouped_by_hand(model, len(lengths)), 0, np.zeros(len(lengths), np.int64)
        for i in range(5):
            # several tokens for a cache that has some: of one batch alone, says ONNX Runtime
            several = 3 if i == 3 and len(lengths) == 1 else 1
            added = np.full(len(lengths), several) if i else np.array(lengths)
            new = int(added.max())
            held = held + added
            feed = decoder_models.step("grouped", len(lengths), past, new)
            feed["attention_mask"] = (np.arange(past + new) < held[:, None]).astype(np.int64)
            (got,), (twice,), want = session.run(None, feed), plain.run(None, feed), hand.run(feed)
            for b, n in enumerate(added):
                np.testing.assert_allclose(got[b, :n], want["logits"][b, :n], atol=near, rtol=near)
            np.testing.assert_allclose(got, twice, atol=near, rtol=near)
            mine, theirs = session.state(), plain.state()
            for name, values in hand.state.items():
                assert mine[name].shape == theirs[name].shape == values.shape
                np.testing.assert_allclose(mine[name], theirs[name], atol=near, rtol=near)
                for b, n in enumerate(held):
                    np.testing.assert_allclose(mine[name][b, :, :n], values[b, :, :n], atol=near, rtol=near)
            past += new
        session.reset()
        plain.reset()


def test_outputs_that_state_sizes(tmp_path: Path) -> None:
    """The shape of an output is not that of the last run with inputs of this shape."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, float[k] all)'
        " => (float[m] y, float[m] more) {"
        "more = Concat <axis = 0> (all, x)  y = Neg (more) }"
    )
    session = load(smelt.compile(model, state={"all": "more"}, output=tmp_path / "out"))
    for i in range(1, 5):
        (y,) = session.run(None, {"x": np.full(2, i, np.float32)})
        np.testing.assert_array_equal(y, -np.repeat(np.arange(1, i + 1), 2).astype(np.float32))


def test_state_that_is_an_input_or_a_constant(tmp_path: Path) -> None:
    """Outputs that no kernel writes."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, float[2] a, float[2] b)'
        " => (float[2] y, float[2] a2, float[2] b2) { y = Add (a, b)  a2 = Identity (x)"
        " b2 = Constant <value = float[2] {5, 6}> () }"
    )
    session = load(smelt.compile(model, state={"a": "a2", "b": "b2"}, output=tmp_path / "out"))
    got = [session.run(None, {"x": np.array([i, 10 * i], np.float32)})[0].tolist() for i in (1, 2, 3)]
    assert got == [[0, 0], [6, 16], [7, 26]]


def test_an_output_that_replaces_an_input_is_returned_by_name(
    lstm_bundle: Bundle, rng: np.random.Generator
) -> None:
    session, hand = load(lstm_bundle), lstm_by_hand(2)
    feed = {"x": rng.standard_normal((1, 2, 4)).astype(np.float32)}
    want = hand.run(feed)
    got = session.run(["next_c", "y"], feed)
    np.testing.assert_allclose(got[0], want["next_c"], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(got[1], want["y"], rtol=1e-3, atol=1e-5)
    with pytest.raises(SmeltError, match="unknown input 'h'"):
        session.run(None, {**feed, "h": np.zeros((1, 2, 8), np.float32)})


# ---------------------------------------------------------------- reset, fork, set


def test_reset(lstm_bundle: Bundle, rng: np.random.Generator) -> None:
    """Another batch, too: the first run decides it."""
    session = load(lstm_bundle)
    for batch in (2, 5):
        hand = lstm_by_hand(batch)
        for _ in range(3):
            step(session, hand, {"x": rng.standard_normal((1, batch, 4)).astype(np.float32)})
        with pytest.raises(SmeltError, match=rf"state 'h' axis 1: expected 7 .batch., got {batch}"):
            session.run(None, {"x": np.zeros((1, 7, 4), np.float32)})
        session.reset()
        assert session.state() == {}


def test_fork(decoder_bundle: Bundle, rng: np.random.Generator) -> None:
    session, hand = load(decoder_bundle), decoder_by_hand(1)
    steps(session, hand, rng, 1, 4)
    other, by_hand = session.fork(), decoder_by_hand(1)
    by_hand.state = dict(hand.state)
    for _ in range(4):
        steps(session, hand, rng, 1, 1)
        steps(other, by_hand, rng, 1, 2)
    session.close()
    steps(other, by_hand, rng, 1, 1)
    assert other.state()["past_key"].shape[2] == 8 + 9


def test_state_is_saved_and_restored(decoder_bundle: Bundle, rng: np.random.Generator) -> None:
    session, hand = load(decoder_bundle), decoder_by_hand(2)
    steps(session, hand, rng, 2, 3)
    saved, by_hand = session.state(), copy.copy(hand)
    steps(session, hand, rng, 2, 3)
    other = load(decoder_bundle)
    other.set_state(saved)
    steps(other, by_hand, rng, 2, 5)
    other.set_state({})  # what is not named is at its start
    steps(other, decoder_by_hand(1), rng, 1, 2)


def test_set_state_refuses(decoder_bundle: Bundle, rng: np.random.Generator) -> None:
    session, hand = load(decoder_bundle), decoder_by_hand(1)
    steps(session, hand, rng, 1, 2)
    key = np.zeros((1, 2, 3, 4), np.float32)
    with pytest.raises(SmeltError, match="no state is called 'past'"):
        session.set_state({"past": key})
    with pytest.raises(SmeltError, match="state 'past_key': expected float32 elements, got float64"):
        session.set_state({"past_key": key.astype(np.float64)})
    with pytest.raises(SmeltError, match="state 'past_key': expected rank 4"):
        session.set_state({"past_key": key[0]})
    with pytest.raises(SmeltError, match="state 'past_value' axis 2: expected at most 32, got 33"):
        session.set_state({"past_key": key, "past_value": np.zeros((1, 2, 33, 4), np.float32)})
    steps(session, hand, rng, 1, 2)  # nothing has changed
    session.set_state({"past_key": key, "past_value": key[:, :, :2]})
    with pytest.raises(SmeltError, match=r"state 'past_value' axis 2: expected 3 .past., got 2"):
        session.run(None, tokens(rng, 1, 3, 1))


# ---------------------------------------------------------------- failures


def test_a_failed_run_leaves_the_state(decoder_bundle: Bundle, rng: np.random.Generator) -> None:
    session, hand = load(decoder_bundle), decoder_by_hand(2)
    for _ in range(3):
        steps(session, hand, rng, 2, 2)
        past = hand.state["past_key"].shape[2]
        bad = tokens(rng, 2, past, 1)
        for feed in (
            {**bad, "ids": bad["ids"] + 100},  # found while it runs
            {**bad, "mask": np.zeros((2, past + 3), np.float32)},
            {**bad, "ids": bad["ids"].astype(np.float32)},
        ):
            with pytest.raises(SmeltError):
                session.run(None, feed)
    steps(session, hand, rng, 2, 1)


def test_growth_beyond_the_bound_is_refused(decoder_bundle: Bundle, rng: np.random.Generator) -> None:
    session, hand = load(decoder_bundle), decoder_by_hand(1)
    steps(session, hand, rng, 1, BOUND + 1 - 5 + 1)
    kept = session.state()
    said = f"state 'past_key' axis 2: past is {BOUND + 1}, above .* reset the state"
    with pytest.raises(SmeltError, match=said):
        session.run(None, tokens(rng, 1, BOUND + 1, 1))
    np.testing.assert_array_equal(session.state()["past_key"], kept["past_key"])
    (row, other) = decoder_bundle.manifest["state"]
    assert row["most"] == other["most"] == 4 * 2 * (BOUND + 8) * 4 * 4
    assert session.memory().state_capacity == 2 * 2 * (-(-row["most"] // 4096) * 4096)  # whole pages
    session.reset()
    steps(session, decoder_by_hand(1), rng, 1, 3)


def test_sessions_and_threads_are_independent(decoder_bundle: Bundle) -> None:
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            session, own = load(decoder_bundle, threads=1), np.random.default_rng(seed)
            steps(session, decoder_by_hand(1 + seed % 3), own, 1 + seed % 3, 15)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


class Meeting:
    """The library of a session, whose runs stay in it until another call of that session comes in, or so long
    that one would have come which does not wait."""

    def __init__(self, session: Session) -> None:
        self.session, self.lib = session, session._lib
        self.inside, self.came = threading.Event(), threading.Event()
        self.met: list[str] = []

    def __getattr__(self, name: str) -> Any:
        fn = getattr(self.lib, name)

        def call(*args: Any) -> Any:
            if args and args[0] is self.session._handle:
                self.entered(name)
            return fn(*args)

        return call

    def entered(self, name: str) -> None:
        if self.inside.is_set():
            self.met.append(name)
            self.came.set()
        elif name == "smelt_run":
            self.inside.set()
            self.came.wait(0.3)
            self.inside.clear()


CALLS: dict[str, Callable[[Session, dict[str, Any]], object]] = {
    "run": lambda s, feed: s.run(None, feed),
    "state": lambda s, _: s.state(),
    "set_state": lambda s, _: s.set_state({}),
    "reset": lambda s, _: s.reset(),
    "fork": lambda s, _: s.fork(),
    "memory": lambda s, _: s.memory(),
    "trim": lambda s, _: s.trim(),
    "profile": lambda s, _: s.profile(),
    "close": lambda s, _: s.close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_threads_on_one_session_wait(name: str, lstm_bundle: Bundle) -> None:
    """No call gets into the library while a run of the same session is in it."""
    session, feed = load(lstm_bundle), {"x": np.ones((1, 1, 4), np.float32)}
    session.run(None, feed)
    meeting = Meeting(session)
    session._lib = meeting  # type: ignore[assignment]
    done = threading.Event()

    def other() -> None:
        assert meeting.inside.wait(60)
        CALLS[name](session, feed)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    session.run(None, feed)
    thread.join(60)
    assert done.is_set() and not meeting.met, f"{meeting.met} while a run was in the library"


DEVICES = [pytest.param("opencl", marks=needs_opencl), pytest.param("vulkan", marks=needs_vulkan)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", [{}, {"*": "cpu"}, {"present_*": "cpu"}], ids=["device", "cpu", "both"])
def test_state_at_units(
    place: dict[str, str], device: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    """In a device's memory, on the host, and made at another unit than the one that reads it."""
    for model, pairs in ((decoder(), DECODER_STATE), (lstm(), LSTM_STATE)):
        out = tmp_path / next(iter(pairs))
        session = load(smelt.compile(model, f"host+{device}", state=pairs, place=place, output=out))
        if pairs is LSTM_STATE:
            by_hand = lstm_by_hand(2)
            for _ in range(5):
                step(session, by_hand, {"x": rng.standard_normal((1, 2, 4)).astype(np.float32)})
            continue
        hand = decoder_by_hand(2)
        steps(session, hand, rng, 2, 4)
        with pytest.raises(SmeltError):
            session.run(None, {"ids": np.zeros((2, 1), np.int64), "mask": np.zeros((2, 1), np.float32)})
        session.trim()
        other, by_hand = session.fork(), copy.copy(hand)
        steps(session, hand, rng, 2, 3)
        steps(other, by_hand, rng, 2, 1)
        other.set_state(session.state())
        steps(other, copy.copy(hand), rng, 2, 2)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"past": "present_key"}, "no input is called 'past'; there are: ids, mask, past_key, past_value"),
        ({"past_key": "present"}, "no output is called 'present'"),
        ({"past_*": "here_*"}, r"no output is called 'here_key' \(for 'past_\*'\)"),
        ({"old_*": "present_*"}, r"no input is called 'old_\*'"),
        ({"past_*": "present_key"}, r"wants one '\*' on each side"),
        ({"past_*": "present_*", "past_key": "present_value"}, "'past_key' is replaced twice"),
        ({"past_key": "present_key", "past_value": "present_key"}, "'present_key' replaces two inputs"),
        ({"ids": "present_key"}, "it has f32 elements, the input i64"),
        ({"past_key": "logits"}, "it has 3 axes, the input 4"),
        ({"mask": 3}, "state: expected a text"),
    ],
)  # fmt: skip
def test_pairs_that_cannot_be(state: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match=said):
        smelt.compile(decoder(), state=state, output=tmp_path / "out")


@pytest.mark.parametrize(
    ("before", "more", "said"),
    [("3", 1, "axis 0 has an extent of 4, the input's of 3"),
     ("n", 9, "its axis 0 has an extent of n . 9, the input's of n")],
)  # fmt: skip
def test_extents_that_can_never_follow(before: str, more: int, said: str, tmp_path: Path) -> None:
    zeros = ", ".join(["0"] * more)
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[{before}] a) => (float[m] b) {{'
        f" z = Constant <value = float[{more}] {{{zeros}}}> ()  b = Concat <axis = 0> (a, z) }}"
    )
    with pytest.raises(SmeltError, match=said):
        dims = {"n": (0, 8)} if before == "n" else {}
        smelt.compile(model, state={"a": "b"}, dims=dims, output=tmp_path / "out")


def test_strings_are_no_state(tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (string[n] a) => (string[n] b) { b = Identity (a) }'
    )
    with pytest.raises(SmeltError, match="'a' is of kind 'strings'; only a tensor of numbers can be state"):
        smelt.compile(model, state={"a": "b"}, output=tmp_path / "out")


# ---------------------------------------------------------------- the manifest


def test_manifest(decoder_bundle: Bundle) -> None:
    row = decoder_bundle.manifest["state"][0]
    assert {k: row[k] for k in ("name", "output", "shape", "next", "start")} == {
        "name": "past_key", "output": "present_key", "shape": ["batch", 2, "past", 4],
        "next": ["batch", 2, "past + seq", 4], "start": ["batch", 2, 0, 4],
    }  # fmt: skip
    assert row["in_place"] and row["room"] == [2, BOUND + 8] and row["bytes"] == "1024*batch"
    assert [r["name"] for r in decoder_bundle.manifest["inputs"]] == ["ids", "mask"]
    header = (decoder_bundle.path / decoder_bundle.manifest["library"]["header"]).read_text()
    assert "MODEL_STATE_PAST_VALUE = 1, /* float[batch, 2, past, 4], 'past_value' */" in header
    assert "model_state_set(" in header and "model_fork(" in header


def test_a_dump_brings_the_state(folder: Path, tmp_path: Path) -> None:
    """A compile that goes on from its first pass and from its last one makes the same bundle."""
    dumps, words = tmp_path / "dumps", ["--state", "past_*=present_*", "--name", "decoder"]
    dumps.mkdir()
    cli("compile", folder / "decoder.onnx", *words, "-o", tmp_path / "out", SMELT_DUMP=str(dumps))
    whole = read_bundle(tmp_path / "out").manifest
    made = sorted(dumps.glob("*.smelt"))
    for dump in (made[0], made[-1]):
        again = smelt.compile(dump, output=tmp_path / dump.stem).manifest
        assert again["state"] == whole["state"] and len(whole["state"]) == 2
        assert again["files"] == whole["files"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "ids"}, "one of manifest.inputs, or two of its own, have one name"),
        ({"name": "past_value"}, "one of manifest.inputs, or two of its own"),
        ({"output": "logits"}, "one of manifest.outputs, or two of its own"),
        ({"start": [1, 2]}, "has shapes of different rank"),
        ({"start": ["other", 2, 0, 4]}, "starts with sizes that no input has"),
        ({"shape": ["other", 2, 0, 4]}, "has unknown sizes"),
        ({"next": [0, 1, 2, "((("]}, "found .the end."),
        ({"bytes": "1 +"}, "found .the end."),
        ({"bytes": None}, "state.0..bytes"),
        ({"most": -1}, "state.0..most"),
        ({"dtype": "f33"}, "the name of an element type"),
    ],
)
def test_damaged_entries_are_refused(decoder_bundle: Bundle, change: dict[str, Any], said: str) -> None:
    manifest = json.loads(json.dumps(decoder_bundle.manifest))
    check_manifest(manifest)
    manifest["state"][0] |= change
    with pytest.raises(ValueError, match=said):
        check_manifest(manifest)


def test_a_manifest_that_the_code_contradicts(decoder_bundle: Bundle) -> None:
    manifest = json.loads(json.dumps(decoder_bundle.manifest))
    manifest["state"].pop()
    with pytest.raises(SmeltError, match="its manifest and its code have other states"):
        load(Bundle(decoder_bundle.path, manifest))


def test_what_has_no_state(tmp_path: Path) -> None:
    session = load(read_bundle(smelt.compile(lstm(), output=tmp_path / "out").path))
    assert session.state() == {} and session.memory().state_capacity == 0
    session.reset()
    session.set_state({})
    with pytest.raises(SmeltError, match="no state is called 'h'; there are: none"):
        session.set_state({"h": np.zeros((1, 1, 8), np.float32)})


# ---------------------------------------------------------------- on a device, and the commands


def test_a_runner_keeps_the_state(decoder_bundle: Bundle, rng: np.random.Generator) -> None:
    hand = decoder_by_hand(1)
    with running(decoder_bundle) as client:
        assert client.model is not None and [t.name for t in client.model.state] == ["past_key", "past_value"]
        for _ in range(2):
            for past in range(4):
                feed = tokens(rng, 1, past, 1)
                want = hand.run(feed)["logits"]
                got = client.run(feed).outputs["logits"]
                np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)
            client.reset_state()
            hand = decoder_by_hand(1)
        report = client.run(tokens(rng, 1, 0, 1), QUICK)
        assert report.outputs["logits"].shape == (1, 1, 11) and report.memory.state_capacity > 0


def cli(*words: object, **env: str) -> dict[str, Any]:
    """The answer of a command."""
    done = forked_smelt(*words, "--json", environment={**os.environ, **env})
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    onnx.save(decoder(), str(made / "decoder.onnx"))
    onnx.save(lstm(), str(made / "lstm.onnx"))
    return made


def test_validate_makes_steps(folder: Path) -> None:
    for name, state in (("decoder", ["past_*=present_*"]), ("lstm", ["h=next_h", "c=next_c"])):
        options = [word for pair in state for word in ("--state", pair)]
        found = cli("validate", folder / f"{name}.onnx", *options)
        assert found["ok"] and {c["status"] for c in found["cases"]} == {"pass"}
        assert all(c["label"].endswith(", 4 steps") for c in found["cases"])


def test_validate_finds_a_wrong_state(folder: Path, tmp_path: Path) -> None:
    """The halves of the cache exchanged, which ONNX Runtime is not: the first step is right, no other is."""
    model = folder / "decoder.onnx"
    crossed = {"past_key": "present_value", "past_value": "present_key"}
    bundle = smelt.compile(model, state=crossed, output=tmp_path / "out")
    for row in bundle.manifest["state"]:
        row["output"] = row["name"].replace("past", "present")
    found = validate(bundle, model, cases(bundle, count=2), enough=2)
    assert {c.status for c in found.cases} == {"mismatch"}
    assert all(c.label.endswith(", step 2") for c in found.cases)


def test_commands(folder: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "out", folder / "decoder.onnx"
    made = cli("compile", model, "--state", "past_*=present_*", "--dim", "past=0..16", "-o", out)
    assert [row["name"] for row in made["state"]] == ["past_key", "past_value"]
    assert cli("inspect", out)["state"] == made["state"]
    assert cli("run", out, "--random")["ok"]
    assert cli("bench", out, "--plan", "quick", "--shape", "batch=1,seq=2")["cases"][0]["samples"] > 0
    race = cli("bench", model, "--state", "past_*=present_*", "--against", "onnxruntime", "--count", 1)
    assert race["ok"] and race["cases"][0]["speed_ratio"] > 0
    for words, said in (
        (["compile", model, "--state", "past"], "write INPUT=OUTPUT"),
        (["compile", model, "--state", "a=b", "--state", "a=c"], "names 'a' twice"),
        (["compile", model, "--state", "a=b"], "no input is called 'a'"),
    ):
        assert said in json.dumps(cli(*words, *(["-o", out] if words[0] == "compile" else [])))
