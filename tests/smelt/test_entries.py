"""Bundles with several entries: prefill and decode, encoder and decoder, against ONNX Runtime fed by hand."""

from __future__ import annotations

import copy
import gc
import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import needs_opencl
from entry_models import (
    LLM,
    LLM_DIMS,
    SPEECH,
    SPEECH_STATE,
    Array,
    ByHand,
    Oracle,
    attending,
    encoder,
    numbers,
    same,
)
from installed import program_path
from onnx import helper, numpy_helper, parser
from state_models import DECODER_STATE, decoder

import smelt
from smelt.core.bundle import Bundle, read_bundle
from smelt.core.diag import SmeltError, SmeltWarning
from smelt.core.manifest_schema import check_manifest
from smelt.entries import requests_of
from smelt.request import Request
from smelt.session import Session, load

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("entries") / "llm"
    return smelt.compile(LLM, dims=LLM_DIMS, state=DECODER_STATE, output=out, name="llm", static=True)


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("entries") / "speech"
    return smelt.compile(SPEECH, state=SPEECH_STATE, output=out)


def say(session: Session, hand: ByHand, rng: np.random.Generator, batch: int, prompt: int, more: int) -> None:
    """A prompt and so many tokens more; the cache agrees after each."""
    ids = rng.integers(0, 11, (batch, prompt))
    feed = {"ids": ids, "mask": np.zeros(ids.shape, np.float32)}
    same(session["prefill"].run(None, feed)[0], hand.prefill(ids))
    go_on(session, hand, rng, more)


def go_on(session: Session, hand: ByHand, rng: np.random.Generator, more: int) -> None:
    for _ in range(more):
        same(session.state()["past_key"], hand.key)
        same(session.state()["past_value"], hand.value)
        ids = rng.integers(0, 11, (len(hand.key), 1))
        feed = {"ids": ids, "mask": np.zeros((len(ids), hand.key.shape[2] + 1), np.float32)}
        same(session["decode"].run(None, feed)[0], hand.decode(ids))


# ---------------------------------------------------------------- runs


def test_prefill_and_decode(llm: Bundle, rng: np.random.Generator) -> None:
    session = load(llm)
    assert session.entries == ("prefill", "decode") and session["prefill"] is session
    assert [a.name for a in session["decode"].get_inputs()] == ["ids", "mask"]
    assert session["decode"].get_inputs()[0].shape == ["batch", 1]
    opened = session.memory()
    for batch, prompt in ((2, 5), (1, 16), (4, 1)):  # each prompt begins a cache anew
        say(session, ByHand(), rng, batch, prompt, 6)
    assert session.memory().allocations == opened.allocations, "dims are bounded: open has reserved all"


def test_an_encoder_that_a_decoder_attends_to(speech: Bundle, rng: np.random.Generator) -> None:
    session, first, second = load(speech), Oracle(encoder()), Oracle(attending())
    assert [a.name for a in session["decoder"].get_inputs()] == ["words"]
    assert session.get_outputs() == []
    for batch, heard in ((2, 7), (1, 30)):
        session.reset()
        sound = rng.standard_normal((batch, heard, 6)).astype(np.float32)
        session.run(None, {"sound": sound})
        enc, before = first(sound=sound)["last_hidden"], np.zeros((batch, 8), np.float32)
        same(session.state()["enc_out"], enc)
        for said in (1, 3, 2):
            words = rng.standard_normal((batch, said, 8)).astype(np.float32)
            want = second(words=words, enc_out=enc, before=before)
            got, after = session["decoder"].run(["out", "after"], {"words": words})
            same(got, want["out"])
            same(after, want["after"])
            before = want["after"]


def test_one_file_with_two_signatures(tmp_path: Path, rng: np.random.Generator) -> None:
    """The same tensors by other kernels: one for any number of tokens, one for one."""
    model = tmp_path / "decoder.onnx"
    model.write_bytes(decoder().SerializeToString())
    dims = {"past": (0, 32), "batch": 1, "many/seq": (1, 8), "one/seq": 1}
    bundle = smelt.compile(
        {"many": model, "one": model}, dims=dims, state=DECODER_STATE, output=tmp_path / "out"
    )
    session, by_hand = load(bundle), Oracle(decoder())
    cache = {n: np.zeros((1, 2, 0, 4), np.float32) for n in ("past_key", "past_value")}
    for entry, new in (("many", 3), ("one", 1), ("one", 1), ("many", 2), ("one", 1)):
        mask = np.zeros((1, cache["past_key"].shape[2] + new), np.float32)
        feed = {"ids": rng.integers(0, 11, (1, new)), "mask": mask}
        want = by_hand(**feed, **cache)
        same(session[entry].run(None, feed)[0], want["logits"])
        cache = {f"past_{n}": want[f"present_{n}"] for n in ("key", "value")}
    with pytest.raises(SmeltError, match=r"entry 'one': input 'ids' axis 1: expected 1, got 2"):
        session["one"].run(None, {"ids": np.zeros((1, 2), np.int64), "mask": np.zeros((1, 10), np.float32)})


def test_entries_without_state(tmp_path: Path, rng: np.random.Generator) -> None:
    """Symbols of one name are each entry's own; ranks and types of inputs of one name may differ."""
    one = parser.parse_model(HEAD + "(float[n] x) => (float[n] y) { y = Neg (x) }")
    two = parser.parse_model(HEAD + "(int64[n, 2] x) => (int64[n, 2] y) { y = Abs (x) }")
    dims = {"a/n": 3, "b/n": (1, 9)}
    session = load(smelt.compile({"a": one, "b": two}, dims=dims, output=tmp_path / "out"))
    x = rng.standard_normal(3).astype(np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], -x)
    for n in (2, 7):
        z = rng.integers(-9, 9, (n, 2))
        np.testing.assert_array_equal(session["b"].run(None, {"x": z})[0], np.abs(z))
    with pytest.raises(SmeltError, match="entry 'a': input 'x' axis 0: expected 3, got 4"):
        session["a"].run(None, {"x": np.zeros(4, np.float32)})
    assert session.state() == {}


# ---------------------------------------------------------------- what they share


def test_weights_are_there_once(llm: Bundle, tmp_path: Path) -> None:
    """The pair has as many bytes as its larger half."""
    dims: dict[str, Any] = {"prefill": {}, "decode": {"seq": 1}}
    alone = [smelt.compile(m, output=tmp_path / n, dims=dims[n]) for n, m in LLM.items()]
    sizes = [_used(b) for b in alone]
    layouts = [{(t["name"], t["layout"]) for t in b.manifest["weights"]["tensors"]} for b in alone]
    extra = len(layouts[0] ^ layouts[1])
    assert _used(llm) <= max(sizes) + extra * max(t["bytes"] for t in llm.manifest["weights"]["tensors"])
    assert _used(llm) < sum(sizes)
    rows = llm.manifest["weights"]["tensors"]
    assert len({(r["name"], r["layout"]) for r in rows}) == len(rows), "each once"


def test_a_row_and_many_rows_read_the_same_weights(tmp_path: Path) -> None:
    """Alone, each of them has panels of another width on a processor with vectors of 8 floats."""
    held = numpy_helper.from_array(np.ones((96, 256), np.float32), "w")
    models = {}
    for name, rows in (("prefill", "n"), ("decode", "1")):
        made = parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 17]>
            g (float[1,{rows},96] x) => (float[1,{rows},256] y) {{ y = MatMul(x, w) }}"""
        )
        made.graph.initializer.append(held)
        models[name] = made
    bundle = smelt.compile(models, "x86_64-linux:znver3", dims={"n": (1, 64)}, output=tmp_path / "both")
    assert len({t["layout"] for t in bundle.manifest["weights"]["tensors"]}) == 1
    assert _used(bundle) == 4 * 96 * 256


def _used(bundle: Bundle) -> int:
    """Bytes of the weights without the padding of the file."""
    return sum({t["offset"]: t["bytes"] for t in bundle.manifest["weights"]["tensors"]}.values())


def test_equal_kernels_are_one(tmp_path: Path) -> None:
    """Two signatures that differ in nothing have one set of kernels, and hardly more code than one."""
    model = decoder()
    both = smelt.compile({"a": model, "b": model}, output=tmp_path / "both", state=DECODER_STATE)
    alone = smelt.compile(model, output=tmp_path / "alone", state=DECODER_STATE)
    names = [{k["name"] for k in both.entry(e).manifest["kernels"]} for e in ("a", "b")]
    assert names[0] == names[1] == {k["name"] for k in alone.manifest["kernels"]}
    assert load(both).kernel_times().keys() == load(alone).kernel_times().keys()
    assert _used(both) == _used(alone)


def test_working_memory_is_that_of_the_largest(tmp_path: Path) -> None:
    model = parser.parse_model(
        HEAD + "(float[n, 64] x) => (float[n, 64] y) {"
        " a = MatMul (x, w)  b = Softmax (a)  c = MatMul (b, w)  y = Softmax (c) }"
    )
    w = np.eye(64, dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    sizes = {"small": 16, "large": 1024}
    made = (smelt.compile(model, dims={"n": n}, output=tmp_path / e) for e, n in sizes.items())
    alone = [load(bundle).memory() for bundle in made]
    dims = {f"{e}/n": n for e, n in sizes.items()}
    session = load(smelt.compile(dict.fromkeys(sizes, model), dims=dims, output=tmp_path / "both"))
    assert session.memory().arena_capacity == max(m.arena_capacity for m in alone) > 0
    for e, n in sizes.items():
        session[e].run(None, {"x": np.ones((n, 64), np.float32)})
    assert session.memory().arena_capacity == max(m.arena_capacity for m in alone)
    assert session.memory().runs == 2


# ---------------------------------------------------------------- the session


def test_reset_fork_and_set_state(llm: Bundle, rng: np.random.Generator) -> None:
    session, hand = load(llm), ByHand()
    say(session, hand, rng, 2, 3, 2)
    other, by_hand = session["decode"].fork(), copy.copy(hand)
    assert other.entries == session.entries and other is not session["decode"]
    assert [a.shape for a in other.get_inputs()] == [a.shape for a in session["decode"].get_inputs()]
    go_on(session, hand, rng, 2)
    go_on(other, by_hand, rng, 3)
    third = load(llm)
    third["decode"].set_state(session.state())
    go_on(third, copy.copy(hand), rng, 2)
    session["decode"].reset()
    assert session.state() == {}
    with pytest.raises(SmeltError, match="entry 'decode': input 'mask' axis 1: expected 1 "):
        session["decode"].run(None, token(3))
    say(session, ByHand(), rng, 1, 2, 1)


def test_a_failed_run_leaves_the_state(llm: Bundle, rng: np.random.Generator) -> None:
    session, hand = load(llm), ByHand()
    say(session, hand, rng, 1, 4, 1)
    bad = {"ids": np.full((1, 2), 99), "mask": np.zeros((1, 2), np.float32)}
    for entry in ("prefill", "decode"):
        with pytest.raises(SmeltError, match=f"entry '{entry}'"):
            session[entry].run(None, bad)
    go_on(session, hand, rng, 2)


def test_the_cache_outgrows_its_range(llm: Bundle, rng: np.random.Generator) -> None:
    session, hand = load(llm), ByHand()
    say(session, hand, rng, 1, 16, 17)  # 33 tokens, decode takes 32
    said = "entry 'decode': state 'past_key' axis 2: past is 33, above"
    with pytest.raises(SmeltError, match=said):
        session["decode"].run(None, token(33))


def token(past: int, new: int = 1) -> dict[str, Array]:
    """Inputs of decode for a new token, or more than it takes."""
    return {"ids": np.full((1, new), 2), "mask": np.zeros((1, past + new), np.float32)}


def test_wrong_names_and_closed_sessions(llm: Bundle) -> None:
    session = load(llm)
    with pytest.raises(SmeltError, match="'llm' has no entry 'encode'; there are: prefill, decode"):
        session["encode"]
    decode = session["decode"]
    decode.close()
    for e in (session, decode):
        with pytest.raises(SmeltError, match="the session is closed"):
            e.memory()
    with pytest.raises(SmeltError, match="the session is closed"):
        session.entry("decode")


def test_an_entry_keeps_its_session(llm: Bundle, rng: np.random.Generator) -> None:
    decode = load(llm)["decode"]
    gc.collect()
    ids = rng.integers(0, 11, (1, 1))
    assert decode.run(None, {"ids": ids, "mask": np.zeros((1, 1), np.float32)})[0].shape == (1, 1, 11)


def test_a_model_that_was_compiled_alone(tmp_path: Path) -> None:
    bundle = smelt.compile(encoder(), output=tmp_path / "out")
    assert bundle.entries == ("main",) and not {"entries", "states"} & bundle.manifest.keys()
    session = load(bundle)
    assert session.entries == ("main",) and session["main"] is session
    with pytest.raises(SmeltError, match="has no entry 'prefill'; there are: main"):
        session["prefill"]


def test_threads_wait_for_each_other(llm: Bundle) -> None:
    """However runs of two entries follow each other, each goes on from a whole step."""
    session = load(llm, threads=1)
    ids = np.array([[3, 1, 4]])
    prompt = {"ids": ids, "mask": np.zeros((1, 3), np.float32)}
    session.run(None, prompt)
    hand, seen = ByHand(), []
    hand.prefill(ids)
    states = [hand.key.tobytes()]
    for _ in range(8):
        hand.decode(np.array([[2]]))
        states.append(hand.key.tobytes())
    failed: list[BaseException] = []

    def decode() -> None:
        for _ in range(60):
            try:
                past = session.state()["past_key"].shape[2]
                session["decode"].run(None, token(past))
            except SmeltError as e:  # the other thread was between the two
                failed.extend([] if "axis" in e.message else [e])

    def begin() -> None:
        for _ in range(60):
            session["prefill"].run(None, prompt)
            seen.append(session.state()["past_key"])

    threads = [threading.Thread(target=f) for f in (decode, begin)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    for key in seen:
        n = key.shape[2]
        assert 3 <= n <= 33
        if n < 3 + len(states):
            same(key, np.frombuffer(states[n - 3], np.float32).reshape(1, 2, n, 4))


GCC = program_path("gcc")


@pytest.mark.skipif(GCC is None, reason="no gcc: apt install gcc libc6-dev")
@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_a_c_program(static: bool, llm: Bundle, tmp_path: Path) -> None:
    """The C functions, of the shared library and of the static one."""
    command = [str(GCC), "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{llm.path}", str(HERE / "entries.c")]
    shared = [f"-L{llm.path}", "-lllm", f"-Wl,-rpath,{llm.path}"]
    command += [str(llm.path / "libllm.a"), "-ldl", "-lpthread", "-lm"] if static else shared
    subprocess.run([*command, "-o", str(tmp_path / "program")], check=True)
    words = [str(tmp_path / "program"), *([str(llm.path)] if static else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    *lines, last = done.stdout.splitlines()
    assert last == "OK", done.stdout
    hand, rows = ByHand(), [line.split() for line in lines]
    want = [hand.prefill(np.array([[3, 1, 4]])), *(hand.decode(np.array([[5]])) for _ in range(2)), hand.key]
    assert [row[0] for row in rows] == ["prefill", "decode", "decode", "key"]
    for row, values in zip(rows, want, strict=True):
        same(np.array(row[1:], np.float32), values.ravel())


@needs_opencl
@pytest.mark.parametrize(
    "place", [{}, {"decode/*": "cpu"}, {"prefill/*": "cpu"}], ids=["device", "decode", "prefill"]
)
def test_entries_at_units(place: dict[str, str], tmp_path: Path, rng: np.random.Generator) -> None:
    """The cache lies at a device, and an entry at another unit reads and replaces it."""
    bundle = smelt.compile(
        LLM, "host+opencl", dims=LLM_DIMS, state=DECODER_STATE, place=place, output=tmp_path / "out"
    )
    session, hand = load(bundle), ByHand()
    say(session, hand, rng, 2, 5, 3)
    session.trim()
    other, by_hand = session.fork(), copy.copy(hand)
    go_on(session, hand, rng, 2)
    go_on(other, by_hand, rng, 1)
    say(session, ByHand(), rng, 1, 3, 2)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"past": "present_key"}, "no input is called 'past'; there are: ids, mask, past_key, past_value"),
        ({"past_key": "present"}, "no output is called 'present'"),
        ({"past_key": "prefill/present"}, "no output of entry 'prefill' is called 'present'"),
        ({"prefill/past_key": "present_key"}, "no entry reads 'past_key'"),
        ({"ids": "present_key"}, "'present_key' of entry 'prefill' has f32 elements, input 'ids' of entry"),
        ({"past_key": "logits"}, "of entry 'prefill' has 3 axes, input 'past_key' of entry 'decode' 4"),
        ({"past_*": "present_*", "past_key": "present_value"}, "'prefill' 'past_key' is replaced twice"),
        ({"past_key": "present_key", "past_value": "present_key"}, "of entry 'prefill' replaces two inputs"),
    ],
)  # fmt: skip
def test_pairs_that_cannot_be(state: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match=said):
        smelt.compile(LLM, dims=LLM_DIMS, state=state, output=tmp_path / "out")


def test_extents_that_can_never_be_read(tmp_path: Path) -> None:
    write = parser.parse_model(HEAD + "(float[n] x) => (float[n] y) { y = Neg (x) }")
    read = parser.parse_model(HEAD + "(float[m] s) => (float[m] z) { z = Abs (s) }")
    both, state, out = {"write": write, "read": read}, {"s": "y"}, tmp_path / "out"
    for dims, said in (
        ({"n": 4, "m": 5}, "axis 0 has an extent of 5 in input 's' of entry 'read', of 4 in output 'y'"),
        ({"n": (8, 9), "m": (1, 7)}, r"output 'y' of entry 'write' is \[n\], which no input 's' can be"),
    ):
        with pytest.raises(SmeltError, match=said):
            smelt.compile(both, dims=dims, state=state, output=out)
    done = smelt.compile(both, dims={"n": 4, "m": (1, 7)}, state=state, output=out)
    session, x = load(done), np.array([1, -2, 3, -4], np.float32)
    assert session["read"].run(None, {})[0].tolist() == [0], "at its start, which has as little as it may"
    assert session.run(["y"], {"x": x})[0].tolist() == (-x).tolist()
    assert session["read"].run(None, {})[0].tolist() == np.abs(x).tolist()
    assert session["read"].run(None, {})[0].tolist() == np.abs(x).tolist(), "reading takes nothing away"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dims": {"width": 3}}, "dims: no entry has a size 'width'; the entries are prefill, decode"),
        ({"dims": {"prefill/past": 3}}, "entry 'prefill': dims: no symbol is called 'past'"),
        ({"outputs": ("nothing",)}, "outputs: no entry has a value 'nothing'"),
        ({"outputs": ("decode/nothing",)}, "entry 'decode': no value of the main graph is called 'nothing'"),
    ],
)
def test_options_that_no_entry_has(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match=said):
        smelt.compile(LLM, output=tmp_path / "out", **options)


def test_options_of_one_entry(tmp_path: Path) -> None:
    bundle = smelt.compile(LLM, output=tmp_path / "out", outputs=("e", "decode/kt"), dims={"n": (2, 5)})
    names = [[o["name"] for o in bundle.entry(e).manifest["outputs"]] for e in bundle.entries]
    own = ["logits", "present_key", "present_value"]
    assert names == [[*own, "e"], [*own, "kt", "e"]]
    assert {s["name"]: (s["low"], s["high"]) for s in bundle.manifest["symbols"]}["n"] == (2, 5)


def test_rules_of_placement_go_to_the_entries_that_have_the_part(tmp_path: Path) -> None:
    """By the name of a node or its op type; what may be a kernel's name, and patterns, go to all."""
    for name, body in (("a", "[low] y = Abs (x)"), ("b", "y = Relu (x)")):
        save = parser.parse_model(f"{HEAD} (float[n] x) => (float[n] y) {{ {body} }}")
        (tmp_path / f"{name}.onnx").write_bytes(save.SerializeToString())
    rules = {"Abs": "cpu", "low": "cpu", "b/Relu": "cpu", "relu": "cpu", "R*": "cpu"}
    entries = tuple((name, str(tmp_path / f"{name}.onnx")) for name in "ab")
    asked = requests_of(Request(source="", entries=entries, place=tuple(rules.items())))
    assert [[rule for rule, _ in asked[name].place] for name in "ab"] == [
        ["Abs", "low", "relu", "R*"],
        ["Relu", "relu", "R*"],
    ]


def test_rules_of_placement_that_fit_no_kernel_are_told(tmp_path: Path) -> None:
    """In no entry; what one of them has is in use."""
    for name, body in (("a", "y = Abs (x)"), ("b", "y = Relu (x)")):
        save = parser.parse_model(f"{HEAD} (float[n] x) => (float[n] y) {{ {body} }}")
        (tmp_path / f"{name}.onnx").write_bytes(save.SerializeToString())
    entries = {name: str(tmp_path / f"{name}.onnx") for name in "ab"}
    rules = {"Ab*": "cpu", "b/R*": "cpu", "a/R*": "cpu", "T?p": "cpu", "*": "cpu"}
    with pytest.warns(SmeltWarning) as told:
        bundle = smelt.compile(entries, place=rules, output=tmp_path / "out")
    notes = [f"place: no kernel fits '{pattern}=cpu'" for pattern in ("a/R*", "T?p")]
    assert [str(w.message).splitlines() for w in told] == [notes]
    assert bundle.manifest["notes"] == notes


def test_problems_say_the_entry(tmp_path: Path) -> None:
    strange = helper.make_model(
        helper.make_graph(
            [helper.make_node("Nothing", ["x"], ["y"], name="here")], "g", [numbers("x")], [numbers("y")]
        )
    )
    with pytest.raises(SmeltError, match=r"entry 'b': .*Nothing") as e:
        smelt.compile({"a": encoder(), "b": strange}, output=tmp_path / "out")
    assert e.value.node == "here"
    for name in ("Prefill", "a-b", "", "x" * 50):
        with pytest.raises(SmeltError, match="cannot be an entry's name"):
            smelt.compile({name: encoder()}, output=tmp_path / "out")
    with pytest.raises(SmeltError, match="the dict of entries is empty"):
        smelt.compile({}, output=tmp_path / "out")


# ---------------------------------------------------------------- the manifest


def test_manifest(llm: Bundle, speech: Bundle) -> None:
    whole = read_bundle(llm.path)
    assert whole.entries == ("prefill", "decode") and whole.manifest["states"] == ["past_key", "past_value"]
    first, second = (whole.entry(e).manifest for e in whole.entries)
    assert [r["name"] for r in first["inputs"]] == [r["name"] for r in second["inputs"]] == ["ids", "mask"]
    row, other = first["state"][0], second["state"][0]
    assert (row["shape"], row["start"], row["next"]) == (None, None, ["batch", 2, "n", 4])
    assert (other["shape"], other["next"]) == (["batch", 2, "past", 4], ["batch", 2, "past + 1", 4])
    assert "entries" not in first and first["files"] == second["files"] == whole.manifest["files"]
    assert first["model"]["sha256"] != second["model"]["sha256"]
    rows = {r["name"]: r for r in speech.entry("decoder").manifest["state"]}
    assert rows["enc_out"]["output"] is None and rows["before"]["output"] == "after"
    with pytest.raises(SmeltError, match="has no entry 'x'"):
        whole.entry("x")


@pytest.mark.parametrize(
    ("at", "change", "said"),
    [
        (("entries",), [{"name": "prefill"}], "a list of 2"),
        (("entries", 1, "name"), "prefill", "two have one name"),
        (("entries", 1, "name"), "De-code", "a name that an entry can have"),
        (("entries", 1, "inputs"), None, "entries.1.: the field 'inputs' is missing"),
        (("entries", 1, "memory", "arenas"), [], "entries.1..memory.arenas"),
        (("entries", 1, "inputs", 0, "shape", 0), "other", "'decode': manifest: 'ids' has unknown sizes"),
        (("entries", 1, "state", 0, "start"), None, "is read or written in part"),
        (("entries", 1, "state", 0, "dtype"), "f16", "another type or rank in another entry"),
        (("entries", 1, "state"), [], "it names other states than the entries read"),
        (("states",), ["past_key"], "it names other states than the entries read"),
        (("states",), ["past_key", "past_key"], "it names other states than the entries read"),
        (("states",), None, "it names other states than the entries read"),
    ],
)
def test_damaged_entries_are_refused(llm: Bundle, at: tuple[Any, ...], change: Any, said: str) -> None:
    manifest = json.loads(json.dumps(llm.manifest))
    check_manifest(manifest)
    place = manifest
    for step in at[:-1]:
        place = place[step]
    if change is None and at != ("entries", 1, "state", 0, "start"):
        del place[at[-1]]
    else:
        place[at[-1]] = change
    with pytest.raises(ValueError, match=said):
        check_manifest(manifest)


def test_a_manifest_that_the_code_contradicts(llm: Bundle) -> None:
    manifest = json.loads(json.dumps(llm.manifest))
    manifest["entries"][1]["name"] = "generate"
    with pytest.raises(SmeltError, match="its manifest and its code have other entries"):
        load(Bundle(llm.path, manifest))
    manifest = json.loads(json.dumps(llm.manifest))
    manifest["entries"][1]["inputs"].pop()
    with pytest.raises(SmeltError, match="its manifest and its code have other inputs"):
        load(Bundle(llm.path, manifest))["decode"]
    manifest = json.loads(json.dumps(llm.manifest))
    del manifest["entries"], manifest["states"]
    with pytest.raises(SmeltError, match="other entries"):
        load(Bundle(llm.path, manifest))
