"""Kernels that are made wrong on purpose are named by --bisect, and their reproducers fail while they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import front_models
import numpy as np
import onnx
import pytest
from boards import need_emulator
from entry_models import LLM, SPEECH
from forked import forked_smelt
from onnx import helper, parser

import smelt
from smelt.bisect import IN_REGION, OWN_VALUE, bisect, stored_values
from smelt.cli.main import main
from smelt.compare import validate
from smelt.model_cut import ModelGraph
from smelt.running import running
from smelt.script import SessionStep
from smelt.shapes import RunCase, bind, case, feed_case

PLANTED = Path(__file__).parents[1] / "support" / "planted.py"
HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
LOOP = """g (float[n, 4] x) => (float[n, 4] y) {
  before = Tanh (x)
  rounds = Constant <value = int64 {5}> ()
  go = Constant <value = bool {1}> ()
  last = Loop (rounds, go, before)
      <body = round (int64 i, bool c, float[n, 4] s) => (bool again, float[n, 4] t) {
    again = Identity (c)
    u = Sin (s)
    t = Softmax <axis = 1> (u)
  }>
  y = Exp (last)
}"""
STATE = """g (float[n] x, float[n] s) => (float[n] y, float[n] t) {
  sum = Add (s, x)
  t = Identity (sum)
  twice = Add (s, s)
  far = CumSum (twice, axis)
  y = Sub (far, x)
}"""


def environment(plant: str) -> dict[str, str]:
    """Of a process that compiles, with a wrong kernel ('' for none)."""
    more = {"SMELT_PLUGINS": str(PLANTED), "SMELT_PLANT": plant} if plant else {}
    kept = {k: v for k, v in os.environ.items() if k not in ("SMELT_PLUGINS", "SMELT_PLANT")}
    return {**kept, **more, "SMELT": f"{sys.executable} -m smelt.cli"}


def run(plant: str, *words: object) -> dict[str, Any]:
    """The answer of `smelt WORDS --json`."""
    return dict(json.loads(forked_smelt(*words, "--json", environment=environment(plant)).stdout))


def says(script: Path) -> list[str]:
    """The words after `smelt` in a repro.sh."""
    env = {**os.environ, "SMELT": r"printf %s\0"}
    done = subprocess.run([script], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def save(path: Path, text: str, constants: tuple[onnx.TensorProto, ...] = ()) -> Path:
    model = parser.parse_model(HEAD + text)
    model.graph.initializer.extend(constants)
    for n, node in enumerate(model.graph.node):
        node.name = f"{node.op_type.lower()}{n}"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bisect") / "small.onnx"
    onnx.save(front_models.small(), path)
    return path


def perceptron(path: Path) -> Path:
    """Two products with what stands around them, of which all but the last is fused."""
    rng = np.random.default_rng(1)
    weights = {"up": rng.standard_normal((6, 20)), "down": rng.standard_normal((20, 5))}
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"], name="up0"),
        helper.make_node("Sigmoid", ["h"], ["s"], name="gate0"),
        helper.make_node("Mul", ["h", "s"], ["g"], name="swish0"),
        helper.make_node("MatMul", ["g", "down"], ["d"], name="down0"),
        helper.make_node("Tanh", ["d"], ["y"], name="end0"),
    ]
    onnx.save(front_models.model(nodes, {"x": ["n", 6]}, {"y": ["n", 5]}, weights), path)
    return path


def planted(tmp_path: Path, model: Path, plant: str, shape: str, *more: str) -> dict[str, Any]:
    """What bisect says of a planted kernel; its repro.sh fails with the plant and passes without."""
    return dict(reproduced(tmp_path, plant, model, "--shape", shape, *more)["first_bad"])


def reproduced(tmp_path: Path, plant: str, *words: object) -> dict[str, Any]:
    """All that `smelt validate WORDS` says then."""
    repro = tmp_path / "repro"
    found = run(plant, "validate", *words, "--bisect", "--repro", repro)
    assert found["exit_code"] == 1 and found["first_bad"] is not None, found
    assert found["repro"]["has"], found
    words = says(repro / "repro.sh")
    for name, code in ((plant, 1), ("", 0)):
        done = forked_smelt(*words, folder=repro, environment=environment(name))
        assert done.returncode == code, (name, done.stdout, done.stderr)
    return found


def suspects(first: dict[str, Any]) -> list[str]:
    return [s["name"] for s in first["suspects"]]


def test_a_kernel_of_one_node(tmp_path: Path, small: Path) -> None:
    first = planted(tmp_path, small, "pool0", "x:2x3x9x9")
    assert (first["name"], first["node"], first["op"]) == ("p", "pool0", "GlobalAveragePool")
    assert len(onnx.load(tmp_path / "repro" / "model.onnx").graph.node) == 1


def test_a_kernel_that_is_wrong_only_when_it_is_fused(tmp_path: Path, small: Path) -> None:
    """Whoever makes the inner value visible, to compare it, compiles the fault away."""
    words = ["validate", small, "--shape", "x:2x3x9x9"]
    assert run("relu0+", *words, "-O0")["exit_code"] == 0, "the plant is there without fusion, too"
    first = planted(tmp_path, small, "relu0+", "x:2x3x9x9")
    assert (first["name"], first["kernel"], suspects(first)) == ("r", "conv_relu", ["conv0", "relu0"])
    assert first["node"] == "", "one of two nodes was blamed, which nobody can know"


def test_a_fused_kernel_in_a_perceptron(tmp_path: Path) -> None:
    model = perceptron(tmp_path / "m.onnx")
    first = planted(tmp_path, model, "swish0", "x:7x6")
    assert first["name"] == "g" and suspects(first) == ["up0", "gate0", "swish0"]


def test_in_half_precision(tmp_path: Path) -> None:
    model = perceptron(tmp_path / "m.onnx")
    assert planted(tmp_path, model, "swish0", "x:7x6", "--fp16")["name"] == "g"


def test_on_an_emulated_device(tmp_path: Path, small: Path) -> None:
    need_emulator("arm64")
    assert planted(tmp_path, small, "mm0", "x:1x3x5x7", "--target", "aarch64-linux")["node"] == "mm0"


def test_inside_a_loop(tmp_path: Path) -> None:
    """The reference shows nothing of a loop: the ops' own references say what is wrong in it, and when."""
    model = save(tmp_path / "m.onnx", LOOP)
    inner = onnx.load(model)
    body = next(n for n in inner.graph.node if n.op_type == "Loop").attribute[0].g
    for n, node in enumerate(body.node):
        node.name = f"inner{n}"
    onnx.save(inner, model)
    found = run("inner2", "validate", model, "--shape", "x:3x4", "--bisect")
    first = found["first_bad"]
    assert suspects(first) == ["loop3"], found
    assert (first["inside"], first["round"]) == ("t", 0)


def test_in_a_later_step_of_a_state(tmp_path: Path) -> None:
    """The state is zero at first, and so is what the wrong kernel makes of it."""
    axis = helper.make_tensor("axis", onnx.TensorProto.INT64, [], [0])
    model = save(tmp_path / "m.onnx", STATE, (axis,))
    words = ["validate", model, "--state", "s=t", "--shape", "x:5", "--bisect"]
    found = run("cumsum3", *words, "--repro", tmp_path / "repro")
    assert "step 2" in found["cases"][0]["label"], found
    assert found["first_bad"]["name"] == "far" and "cumsum3" in suspects(found["first_bad"])
    done = subprocess.run([tmp_path / "repro" / "repro.sh"], env=environment("cumsum3"), check=False)
    assert done.returncode == 1
    assert run("", *words)["first_bad"] is None


PAIR = ["--state", "past_*=present_*", "--dim", "n=1..16"]
PAIR += ["--dim", "decode/past=0..32", "--dim", "decode/seq=1"]
ATTENTION = [
    "decode_transpose16", "decode_matmul17", "decode_mul18", "decode_unsqueeze19", "decode_add20",
    "decode_softmax21", "decode_matmul22",
]  # fmt: skip
"""One kernel."""
SPOKEN = ("--state", "enc_out=encoder/last_hidden", "--state", "decoder/before=after")


@pytest.mark.parametrize(
    ("models", "options", "plant", "name", "nodes", "where"),
    [
        (LLM, PAIR, "decode_matmul22", "o0", ATTENTION, ("decode", 1)),
        # a sum that the decoder keeps for its next run: no output of this one shows it
        (SPEECH, SPOKEN, "decoder_add9", "after", ["decoder_reducemean8", "decoder_add9"], ("decoder", 1)),
        # the encoder has no output; what it leaves is wrong, and only the decoder shows it
        (SPEECH, SPOKEN, "encoder_tanh1", "last_hidden", ["encoder_matmul0", "encoder_tanh1"], ("encoder", 0))
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_in_an_entry_of_several(
    tmp_path: Path, models: dict[str, onnx.ModelProto], options: Sequence[str], plant: str, name: str,
    nodes: list[str], where: tuple[str, int],
) -> None:  # fmt: skip
    """The run that is wrong is told, and the entry; it need not be the one whose output shows it."""
    words = []
    for entry, model in models.items():
        own = onnx.ModelProto.FromString(model.SerializeToString())
        for n, node in enumerate(own.graph.node):
            node.name = f"{entry}_{node.op_type.lower()}{n}"
        onnx.save(own, tmp_path / f"{entry}.onnx")
        words.append(f"{entry}={tmp_path / entry}.onnx")
    found = reproduced(tmp_path, plant, *words, *options, "--count", 1)
    assert (found["first_bad"]["name"], suspects(found["first_bad"])) == (name, nodes)
    assert (found["bisect"]["entry"], found["bisect"]["step"]) == where
    made = onnx.load(tmp_path / "repro" / "model.onnx").graph.node
    readers = {n.name for n in made if n.op_type != "Constant"}
    assert readers == {*nodes}, "the reproducer has the suspects alone"


def test_right_models_are_blamed_for_nothing(tmp_path: Path, small: Path) -> None:
    """Every value that is compared has the name of what it is."""
    for model, feed in (
        (small, {"x": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)}),
        (save(tmp_path / "l.onnx", LOOP), {"x": np.ones((3, 4), np.float32)}),
    ):
        bundle = smelt.compile(str(model), output=tmp_path / f"out-{model.stem}")
        found = bisect(bundle, model, [SessionStep(feed_case(bundle, feed))], [])
        assert found.first is None and found.right >= {"y"}
        assert {*found.skipped} <= {IN_REGION, OWN_VALUE}


def test_probes_leave_the_state_as_it_was(tmp_path: Path) -> None:
    axis = helper.make_tensor("axis", onnx.TensorProto.INT64, [], [0])
    model = save(tmp_path / "m.onnx", STATE, (axis,))
    bundle = smelt.compile(str(model), state={"s": "t"}, output=tmp_path / "out")
    x = np.arange(4, dtype=np.float32)
    with running(bundle) as client:
        client.run({"x": x})
        before = client.trace({"x": x})
        values = list(stored_values(bundle.manifest["probes"], before, ModelGraph(model)))
        far = next(v for v in values if any(r["name"] == "far" for r in v.names))
        first = client.peek([far.wish])
        assert client.peek([far.wish]) == first and client.trace() == before
        np.testing.assert_allclose(np.frombuffer(first[0], np.float32), np.cumsum(2 * x), rtol=1e-6)
        np.testing.assert_allclose(client.run({"x": x}).outputs["y"], np.cumsum(2 * x) - x, rtol=1e-6)


def test_a_run_that_is_right_the_second_time(tmp_path: Path, small: Path) -> None:
    bundle = smelt.compile(str(small), output=tmp_path / "out")
    one = case(bundle, bind(bundle, {"x": (1, 3, 4, 4)}))
    assert not bisect(bundle, small, [SessionStep(one)], ["y"]).repeated


def test_a_fault_that_a_compile_does_not_bring_back(
    tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reproducer is then the bundle itself."""
    run("pool0", "compile", small, "-o", tmp_path / "out")
    words = ["validate", str(tmp_path / "out"), "--model", str(small), "--repro", str(tmp_path / "repro")]
    assert main([*words, "--json"]) == 1
    assert "the bundle itself" in json.loads(capsys.readouterr().out)["repro"]["has"]
    done = subprocess.run([tmp_path / "repro" / "repro.sh"], env=environment(""), check=False)
    assert done.returncode == 1


def test_a_reproducer_wants_an_empty_folder(
    tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    words = ["validate", str(small), "--shape", "x:1x3x4x4", "--rtol", "0", "--atol", "0"]
    assert main([*words, "--repro", str(tmp_path)]) == 3
    assert "wants an empty folder" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_a_bundle_of_before_says_so(tmp_path: Path, small: Path) -> None:
    bundle = smelt.compile(str(small), output=tmp_path / "out")
    old = type(bundle)(bundle.path, {k: v for k, v in bundle.manifest.items() if k != "probes"})
    with pytest.raises(smelt.SmeltError, match="made without probe points"):
        bisect(old, small, [SessionStep(RunCase("", {}))], [])


def test_determinism(tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(small), "--shape", "x:2x3x9x9", "--determinism", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["determinism"]["cases"]
    assert row["unsteady"] == []
    draws = "g (float[n] x) => (float[n] y) { r = RandomNormalLike (x) y = Add (x, r) }"
    drawn = save(tmp_path / "r.onnx", draws)
    main(["validate", str(drawn), "--shape", "x:9", "--determinism", "--json"])
    assert "draws random numbers" in json.loads(capsys.readouterr().out)["determinism"]["skipped"]


def test_validate_takes_inputs_from_a_file(
    tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((2, 3, 5, 6), np.float32))
    assert main(["validate", str(small), "--inputs", str(tmp_path / "in.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cases"][0]["label"] == "x:2x3x5x6"
    assert main(["validate", str(small), "--inputs", str(small)]) == 3
    assert "as .npz" in capsys.readouterr().err


def test_cuts(tmp_path: Path) -> None:
    graph = ModelGraph(save(tmp_path / "m.onnx", LOOP))
    part = graph.between(["y"], ["before"])
    assert [graph.suspect(n).op for n in part.nodes] == ["Constant", "Constant", "Loop", "Exp"]
    assert part.reads == ("before",)
    graph.cut(part, ["y"], {"before": np.ones((3, 4), np.float32)}, tmp_path / "cut.onnx")
    bundle = smelt.compile(str(tmp_path / "cut.onnx"), output=tmp_path / "out")
    one = feed_case(bundle, {"before": np.ones((3, 4), np.float32)})
    assert validate(bundle, tmp_path / "cut.onnx", [one]).cases[0].status == "pass"
