"""Bundles with several entries on a device, and in the commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boards import need_emulator
from entry_models import LLM, LLM_DIMS, SPEECH, ByHand, numbers, same
from in_process import smelt_says
from onnx import helper
from state_models import DECODER_STATE

import smelt
from smelt.cli.main import main
from smelt.compare import validate_entries
from smelt.core.bundle import Bundle, read_bundle
from smelt.core.diag import SmeltError
from smelt.devicefarm.measure import QUICK
from smelt.running import running


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("entries") / "llm"
    return smelt.compile(LLM, dims=LLM_DIMS, state=DECODER_STATE, output=out, name="llm")


# ---------------------------------------------------------------- on a device


def test_a_runner_has_entries(llm: Bundle, rng: np.random.Generator) -> None:
    """One loaded model, whose entries share the state; an entry that does not exist changes nothing."""
    hand, ids = ByHand(), rng.integers(0, 11, (2, 4))
    prompt = {"ids": ids, "mask": np.zeros((2, 4), np.float32)}
    with running(llm) as client:
        assert client.model is not None and client.model.entries == ("prefill", "decode")
        for _ in range(2):
            client.use_entry("prefill")
            same(client.run(prompt).outputs["logits"], hand.prefill(ids))
            assert [t.name for t in client.use_entry("decode").inputs] == ["ids", "mask"]
            for past in (4, 5, 6):
                feed = {"ids": np.full((2, 1), 2), "mask": np.zeros((2, past + 1), np.float32)}
                same(client.run(feed).outputs["logits"], hand.decode(feed["ids"]))
        with pytest.raises(SmeltError, match="has no entry 'encode'; there are: prefill, decode"):
            client.use_entry("encode")
        client.reset_state()
        feed = {"ids": np.full((1, 1), 2), "mask": np.zeros((1, 1), np.float32)}
        report = client.run(feed, QUICK)
        assert report.outputs["logits"].shape == (1, 1, 11) and report.samples_ns
    with running(llm.entry("decode")) as client:
        assert client.run(feed).outputs["logits"].shape == (1, 1, 11)


def test_the_runner_for_people(llm: Bundle) -> None:
    def said(*words: str) -> str:
        done = subprocess.run([llm.path / "smelt_run", llm.path, *words], capture_output=True, text=True)
        return done.stdout + done.stderr

    assert "entry  prefill\nentry  decode\n" in said("--info")
    shape = ["--shape", "ids:2x1", "--shape", "mask:2x1"]
    assert "output logits: float32[2, 1, 11]" in said("--entry", "decode", *shape, "--repeat", "2")
    assert "has no entry 'x'; there are: prefill, decode (invalid)" in said("--entry", "x")


# ---------------------------------------------------------------- the commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    for name, model in {**LLM, **SPEECH}.items():
        (made / f"{name}.onnx").write_bytes(model.SerializeToString())
    return made


def cli(folder: Path, *words: object) -> dict[str, Any]:
    """The answer of a command."""
    answer: dict[str, Any] = json.loads(smelt_says(*words, "--json", folder=folder)[1])
    return answer


PAIR = ["prefill=prefill.onnx", "decode=decode.onnx", "--state", "past_*=present_*"]
SPOKEN = ["encoder=encoder.onnx", "decoder=decoder.onnx"]
SPOKEN += ["--state", "enc_out=encoder/last_hidden", "--state", "decoder/before=after"]
PAIR += ["--dim", "n=1..16", "--dim", "decode/past=0..32", "--dim", "decode/seq=1"]


def test_validate_goes_through_all_entries(folder: Path) -> None:
    """In one session: an entry goes on from what those before have left."""
    for words in (PAIR, SPOKEN):
        found = cli(folder, "validate", *words)
        assert found["ok"] and found["verdict"] == "pass" and len(found["entries"]) == 2
        for entry in found["entries"].values():
            assert [c["status"] for c in entry["cases"]] == ["pass"] * 3
        labels = [c["label"] for c in [*found["entries"].values()][1]["cases"]]
        assert all(label.endswith((", step 4", ", step 3")) for label in labels)
    alone = cli(folder, "validate", *PAIR, "--entry", "decode", "--count", 1)
    assert alone["ok"] and alone["cases"][0]["label"].endswith(", 4 steps")


def test_validate_finds_what_an_entry_left_wrong(llm: Bundle, folder: Path, tmp_path: Path) -> None:
    """The halves of the cache exchanged by prefill, which ONNX Runtime's are not: decode is wrong."""
    crossed = {
        "prefill/past_key": "present_value",
        "prefill/past_value": "present_key",
        "decode/past_*": "present_*",
    }
    bundle = smelt.compile(LLM, dims=LLM_DIMS, state=crossed, output=tmp_path / "out")
    manifest = json.loads(json.dumps(bundle.manifest))
    for row in manifest["state"]:
        row["output"] = row["name"].replace("past", "present")
    wrong = Bundle(bundle.path, manifest)
    models = {name: folder / f"{name}.onnx" for name in LLM}
    found = validate_entries(wrong, models, count=2)
    assert [c.status for c in found["prefill"].cases] == ["pass", "pass"]
    assert {c.status for c in found["decode"].cases} == {"mismatch"}


def test_commands(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = cli(folder, "compile", *PAIR, "-o", out, "--name", "llm")
    assert [e["name"] for e in made["entries"]] == ["prefill", "decode"]
    assert made["entries"][1]["inputs"][0]["shape"] == ["batch", 1]
    seen = cli(folder, "inspect", out)
    assert [e["name"] for e in seen["entries"]] == ["prefill", "decode"] and seen["states"]
    one = cli(folder, "inspect", out, "--entry", "decode")
    assert one["inputs"] == made["entries"][1]["inputs"] and one["digest"] == seen["digest"] == made["digest"]
    assert cli(folder, "run", out, "--random", "--entry", "decode")["outputs"][0]["shape"] == [1, 1, 11]
    assert cli(folder, "run", out, "--random")["ok"]
    timed = cli(folder, "bench", out, "--plan", "quick", "--entry", "decode", "--shape", "batch=1")
    assert timed["cases"][0]["label"].startswith("ids:1x1")
    named = [word for name in LLM for word in ("--model", f"{name}={name}.onnx")]
    race = cli(folder, "bench", out, *named, "--entry", "decode", "--against", "onnxruntime", "--count", 1)
    assert race["ok"] and race["cases"][0]["speed_ratio"] > 0
    assert cli(folder, "validate", out, *named, "--count", 1)["verdict"] == "pass"
    plan = cli(folder, "check", *PAIR)
    assert [e["name"] for e in plan["entries"]] == ["prefill", "decode"]
    told = cli(folder, "report", *PAIR, "--count", 1, "-o", tmp_path / "report")
    assert told["verdict"] == "pass" and [*told["entries"]] == ["prefill", "decode"]


def test_what_commands_refuse(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    cli(folder, "compile", *PAIR, "-o", out)
    for words, said in (
        (["run", out, "--random", "--entry", "x"], "has no entry 'x'; there are: prefill, decode"),
        (["validate", out, "--model", "prefill.onnx"], "--model prefill=MODEL --model decode=MODEL"),
        (
            ["validate", out, "--model", "prefill=decode.onnx", "--model", "decode=decode.onnx"],
            "another file than",
        ),
        (["validate", *PAIR, "--shape", "ids:1x1"], "--shape and --inputs are about one entry"),
        (["compile", "a=none.onnx", "-o", out], "no model file 'none.onnx'"),
        (["compile", *PAIR[:2], "-o", out, "--dim", "width=3"], "no entry has a size 'width'"),
        (["compile", *PAIR[:2], "-o", out, "--maxShapes", "ids:1x1"], "say --dim ENTRY/DIM=LOW..HIGH"),
    ):
        assert said in json.dumps(cli(folder, *words), ensure_ascii=False), said
    for words in (["a=prefill.onnx", "decode.onnx"], ["a=prefill.onnx", "a=decode.onnx"]):
        command = [sys.executable, "-m", "smelt.cli", "compile", *words]
        assert subprocess.run(command, capture_output=True, cwd=folder).returncode == 2


def test_check_tells_the_problems_of_all_entries(folder: Path) -> None:
    graph = [helper.make_node("Nothing", ["x"], ["y"], name="here")]
    bad = helper.make_model(helper.make_graph(graph, "g", [numbers("x")], [numbers("y")]))
    (folder / "bad.onnx").write_bytes(bad.SerializeToString())
    found = cli(folder, "check", "one=bad.onnx", "two=prefill.onnx", "three=bad.onnx")["problems"]
    assert [(p["node"], p["message"].split(":")[0]) for p in found] == [
        ("here", "entry 'one'"), ("here", "entry 'three'")
    ]  # fmt: skip
    _, said = smelt_says("check", "--sarif", "two=prefill.onnx", "one=bad.onnx", folder=folder)
    (ran,) = json.loads(said)["runs"]
    assert [a["location"]["uri"] for a in ran["artifacts"]] == ["prefill.onnx", "bad.onnx"]
    place = ran["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "bad.onnx", "index": 1}


@pytest.mark.parametrize("target", ["aarch64-linux", "armv7"])
def test_entries_on_emulated_boards(target: str, folder: Path) -> None:
    """Pointers of 64 and of 32 bits."""
    need_emulator(target)
    found = cli(folder, "validate", *PAIR, "--target", target, "--count", 1)
    assert found["verdict"] == "pass"
    assert all(e["emulated"] and e["cases"][0]["status"] == "pass" for e in found["entries"].values())


def test_dumps_have_a_folder_per_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they are the bundle that they came from, after any pass; each of them goes on alone, too."""
    monkeypatch.setenv("SMELT_DUMP", str(tmp_path / "dumps"))
    options: dict[str, Any] = {"outputs": ("decode/logits",), "threads": 2, "place": {"prefill/*": "cpu"}}
    bundle = smelt.compile(LLM, dims=LLM_DIMS, state=DECODER_STATE, output=tmp_path / "out", **options)
    monkeypatch.delenv("SMELT_DUMP")
    made = {e: sorted(p.name for p in (tmp_path / "dumps" / e).glob("*.smelt")) for e in LLM}
    assert made["prefill"] == made["decode"] and made["decode"]
    last = tmp_path / "dumps" / "decode" / made["decode"][-1]
    alone = smelt.compile(last, state=DECODER_STATE, output=tmp_path / "alone")
    assert alone.entries == ("main",) and [r["name"] for r in alone.manifest["state"]] == [
        "past_key",
        "past_value",
    ]
    for k in range(0, len(made["decode"]), 14):
        dumps = {e: tmp_path / "dumps" / e / made[e][-1 - k] for e in LLM}
        assert smelt.compile(dumps, output=tmp_path / "again").digest == bundle.digest, dumps
    words = [f"{e}={path}" for e, path in dumps.items()]
    assert main(["compile", *words, "-o", str(tmp_path / "typed"), "--name", "other"]) == 0
    again = read_bundle(tmp_path / "typed")
    assert again.entries == bundle.entries and again.manifest["model"]["name"] == "other"
    with pytest.raises(SmeltError, match=r"entries that are dumps \(decode\) and others that are none"):
        smelt.compile({**LLM, "decode": last}, output=tmp_path / "again")
    with pytest.raises(SmeltError, match=r"'prefill': the dump was made with dims .*, found {'batch': 3}"):
        smelt.compile(dumps, dims={"batch": 3}, output=tmp_path / "again")
    monkeypatch.setenv("SMELT_DUMP", str(tmp_path / "half"))
    smelt.compile(LLM["decode"], fp16=True, output=tmp_path / "half_out")
    monkeypatch.delenv("SMELT_DUMP")
    (other,) = (tmp_path / "half").glob("05-*.smelt")
    with pytest.raises(SmeltError, match="made with different values of fp16: False and True"):
        smelt.compile({**dumps, "decode": other}, output=tmp_path / "again")
