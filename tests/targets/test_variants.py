"""Bundles with code for several processors: a session runs the best that fits, and gives what it should.

`SMELT_CPU_WITHOUT` makes features count as missing; emulators really lack them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import decoder_models as decoders
import numpy as np
import onnx
import pytest
from boards import need_qemu
from onnx import helper, numpy_helper
from oracle import runtime_session
from qdq_models import Net

import smelt
from smelt.cli.main import main
from smelt.compiler import compile_here
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.channel import PipeChannel
from smelt.devicefarm.client import RunnerClient
from smelt.request import Request
from smelt.running import running
from smelt.targets.llvm.compile import parse
from smelt.targets.platform import host_platform_name, parse_target

Array = np.ndarray[Any, Any]
ON_X86 = pytest.mark.skipif(host_platform_name() != "x86_64-linux", reason="the processor is not an x86")

RUNS = """
import json, sys, numpy as np, smelt
out, feeds = sys.argv[1:]
try:
    session = smelt.load(out, threads=1)
except smelt.SmeltError as e:
    print(json.dumps([e.kind, str(e)]))
else:
    rows = [session.run(None, dict(np.load(f))) for f in json.loads(feeds)]
    print(json.dumps([session.variant, [y.tolist() for row in rows for y in row]]))
"""


def model(rows: int = 64) -> onnx.ModelProto:
    """A product, a convolution, a softmax and quantised layers."""
    rng, net = np.random.default_rng(1), Net()
    w = (rng.standard_normal((48, rows)) / 7).astype(np.float32)
    x = net.op("MatMul", "x", net.const(w))
    q = net.qdq(x, 0.05, 128)
    b = net.const(rng.integers(-90, 90, (rows, 32), np.int8))
    scale, zero = net.const(np.array(0.01, np.float32)), net.const(np.array(0, np.int8))
    y = net.op("MatMul", q, net.op("DequantizeLinear", b, scale, zero))
    net.nodes.append(helper.make_node("Softmax", [net.qdq(y, 0.1, 128)], ["y"], axis=-1))
    weights = [numpy_helper.from_array(a, name) for name, a in net.constants.items()]
    graph = helper.make_graph(
        net.nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 48])],
        [helper.make_tensor_value_info("y", 1, ["n", 32])], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("variants")
    onnx.save(model(), made / "m.onnx")
    for n in (0, 1, 7):
        np.savez(made / f"{n}.npz", x=np.random.default_rng(n).standard_normal((n, 48)).astype(np.float32))
    return made


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    return smelt.compile(folder / "m.onnx", "x86", output=folder / "any")


def answers(folder: Path, out: Path, without: str, **more: str) -> Any:
    feeds = json.dumps([str(folder / f"{n}.npz") for n in (0, 1, 7)])
    asked = [sys.executable, "-P", "-c", RUNS, str(out), feeds]
    env = {"SMELT_CPU_WITHOUT": without, "PATH": "/usr/bin", **more}
    return json.loads(subprocess.run(asked, capture_output=True, text=True, check=True, env=env).stdout)


@ON_X86
def test_the_best_variant_that_fits_runs(folder: Path, bundle: Bundle) -> None:
    """Each agrees with ONNX Runtime; what no variant fits is refused in words."""
    oracle = runtime_session(folder / "m.onnx")
    wanted = [oracle.run(None, dict(np.load(folder / f"{n}.npz")))[0] for n in (0, 1, 7)]
    ran = []
    for without in ("", "avx512vnni", "avx,avx2", "popcnt"):
        name, found = answers(folder, Path(bundle.path), without)
        ran.append(name)
        if name == "device":
            assert "that have" in found and "popcnt" in found and "compile it for this one" in found
            continue
        for y, want in zip(found, wanted, strict=True):
            # one step of the last quantised layer, through softmax
            np.testing.assert_allclose(np.reshape(y, want.shape), want, atol=2e-2)
    best = "x86-64-v4-vnni" if ran[0] == "x86-64-v4-vnni" else "x86-64-v3"
    assert ran == [best, "x86-64-v3", "x86-64-v2", "device"]


@ON_X86
@pytest.mark.parametrize(
    ("cpu", "name"), [("Nehalem-v1", "x86-64-v2"), ("Haswell-v4", "x86-64-v3"), ("core2duo-v1", "")]
)
def test_lesser_processors_run_what_they_can(cpu: str, name: str, folder: Path, bundle: Bundle) -> None:
    """The whole program is emulated: an instruction that the processor has not would end it."""
    need_qemu("qemu-x86_64-static")
    words = ["qemu-x86_64-static", "-cpu", cpu, str(Path(bundle.path) / "smelt_run"), str(bundle.path)]
    done = subprocess.run([*words, "--shape", "x:5x48", "--repeat", "1"], capture_output=True, text=True)
    assert done.returncode == (0 if name else 1), done.stdout + done.stderr
    assert f"runs {name}\n" in done.stdout if name else "lacks; compile it" in done.stderr


@ON_X86
@pytest.mark.parametrize("cpu", ["Nehalem-v1", "Haswell-v4"])
def test_what_lesser_processors_compute(cpu: str, folder: Path, bundle: Bundle) -> None:
    """Inputs and outputs of a whole run there, against ONNX Runtime's."""
    need_qemu("qemu-x86_64-static")
    oracle = runtime_session(folder / "m.onnx")
    words = ["qemu-x86_64-static", "-cpu", cpu, str(Path(bundle.path) / "smelt_run"), "--serve"]
    budget = Budget(StepLimits(total=120))
    client = RunnerClient(PipeChannel(words, emulated=True), emulated=True, budget=budget)
    try:
        client.load(str(bundle.path))
        for n in (0, 1, 7):
            feeds = dict(np.load(folder / f"{n}.npz"))
            # one step of the last quantised layer, through softmax
            np.testing.assert_allclose(client.run(feeds).outputs["y"], oracle.run(None, feeds)[0], atol=2e-2)
    finally:
        client.close()


def floats(bundle: Bundle) -> set[int]:
    """Where weights of floats lie."""
    rows = bundle.manifest["weights"]["tensors"]
    return {t["offset"] for t in rows if t["dtype"] == "f32" and t["shape"]}


def test_levels_of_x86_share_all_weights(folder: Path, bundle: Bundle) -> None:
    """Of floats and of bytes: three levels have no more of them than one."""
    alone = smelt.compile(folder / "m.onnx", "x86_64-linux", output=folder / "v3")
    assert len(bundle.manifest["variants"]) == 3 and alone.manifest["variants"] == []
    assert bundle.manifest["weights"]["bytes"] == alone.manifest["weights"]["bytes"]


def test_short_names_are_levels_where_no_device_does_the_work() -> None:
    for name in ("x86", "arm64", "android"):
        spec = parse_target(name)
        assert len(spec.levels()) == 3
        assert parse_target(f"{name}+opencl").levels() == (parse_target(f"{spec.platform.name}+opencl"),)
        assert not parse_target(spec.platform.name).better
    assert parse_target("x86:x86-64-v3") == parse_target("x86_64-linux")


def test_the_bytes_of_a_bundle_do_not_depend_on_how_many_processes_made_it(
    folder: Path, bundle: Bundle
) -> None:
    """Compiled in one process here, and by the forks of a child there."""
    here = compile_here(Request(str(folder / "m.onnx"), "x86", output=str(folder / "here")))
    assert here.manifest["files"] == bundle.manifest["files"]
    assert here.manifest["weights"] == bundle.manifest["weights"]


def test_variants_of_arm_use_what_each_has(folder: Path) -> None:
    """Of quantised products each level takes its own instruction; weights of floats lie in the file once."""
    need_qemu("qemu-aarch64-static")
    out = folder / "arm64"
    bundle = smelt.compile(folder / "m.onnx", "arm64", output=out)
    assert [v["processor"] for v in bundle.manifest["variants"]] == [
        "cortex-a76-i8mm", "cortex-a76", "cortex-a53",
    ]  # fmt: skip
    alone = smelt.compile(folder / "m.onnx", "aarch64-linux", output=folder / "alone")
    assert len(floats(bundle)) == len(floats(alone))
    said = {}
    for cpu in ("cortex-a53", "cortex-a76", "max"):
        words = ["qemu-aarch64-static", "-cpu", cpu, str(out / "smelt_run"), str(out)]
        done = subprocess.run([*words, "--shape", "x:5x48", "--repeat", "1"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        said[cpu] = re.findall(r"^runs (.*)$", done.stdout, re.M) + re.findall(r"crc32 (\w+)", done.stdout)
    assert [v[0] for v in said.values()] == ["cortex-a53", "cortex-a76", "cortex-a76-i8mm"]
    assert len({v[1] for v in said.values()}) == 1  # the quantised layers' sums are exact


@ON_X86
def test_states_live_in_every_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(decoders.decoder("grouped", 1), tmp_path / "m.onnx")
    made = smelt.compile(tmp_path / "m.onnx", "x86:x86-64-v2:x86-64-v3", output=tmp_path / "out",
                         state=decoders.STATE)  # fmt: skip
    found = []
    for without in ("", "avx2"):
        monkeypatch.setenv("SMELT_CPU_WITHOUT", without)
        session = smelt.load(made, threads=1)
        past, rows = 0, []
        for new in (3, 1, 1):
            rows.append(session.run(["logits"], decoders.step("grouped", 1, past, new))[0].copy())
            past += new
        twin = session.fork()
        assert twin.variant == session.variant
        found.append((session.variant, rows))
    assert [name for name, _ in found] == ["x86-64-v3", "x86-64-v2"]
    for a, b in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@ON_X86
def test_a_missing_device_leaves_the_best_processor(folder: Path) -> None:
    """The code for the CPU alone has a variant for each processor."""
    made = smelt.compile(folder / "m.onnx", "x86:x86-64-v2:x86-64-v3+opencl", output=folder / "cl",
                         fallback=True)  # fmt: skip
    rows = [(v["processor"], v["units"]) for v in made.manifest["variants"]]
    assert rows == [("x86-64-v2", ["opencl"]), ("x86-64-v3", []), ("x86-64-v2", [])]
    name, found = answers(folder, folder / "cl", "", OCL_ICD_VENDORS=str(folder / "none"))
    assert name == "x86-64-v3" and len(found) == 3


def test_the_text_of_a_target_with_several_processors() -> None:
    spec = parse_target("x86:x86-64-v2:x86-64-v4-vnni+opencl")
    assert [s.processor for s in spec.levels()] == ["x86-64-v4-vnni", "x86-64-v2"]
    assert spec.levels()[0].features == "+avx512vnni" and not spec.levels()[0].better
    assert str(spec) == "x86_64-linux:x86-64-v2:x86-64-v4-vnni+opencl"
    for text in ("x86", "arm64", "android", str(spec)):
        assert parse_target(str(parse_target(text))) == parse_target(text)
    with pytest.raises(SmeltError, match="names a cpu twice"):
        parse_target("x86:haswell:haswell")
    with pytest.raises(SmeltError, match="no cpu 'cortex-a76-i8m'"):
        parse_target("arm64:cortex-a53:cortex-a76-i8m")


def test_a_dump_is_of_one_variant(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That which the passes ran for last, the best one; it is resumed as a target of its own."""
    monkeypatch.setenv("SMELT_DUMP", str(tmp_path))
    smelt.compile(folder / "m.onnx", "x86:x86-64-v2:x86-64-v3", output=tmp_path / "out")
    (dump,) = tmp_path.glob("*-fuse.smelt")
    monkeypatch.delenv("SMELT_DUMP")
    again = smelt.compile(dump, output=tmp_path / "again")
    assert again.target == "x86_64-linux" and again.manifest["variants"] == []
    with pytest.raises(SmeltError, match="dump"):
        smelt.compile(dump, "x86:x86-64-v2:x86-64-v3", output=tmp_path / "third")


def test_the_dumped_code_of_every_processor_is_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program around the kernels stands with the least processor's, and declares those of the others."""
    monkeypatch.setenv("SMELT_DUMP", str(tmp_path))
    smelt.compile(folder / "m.onnx", "x86:x86-64-v2:x86-64-v3", output=tmp_path / "out")
    for cpu in ("x86-64-v2", "x86-64-v3"):
        parse((tmp_path / f"model.{cpu}.ll").read_text("utf-8"), cpu)


def test_inspect_tells_the_variants(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bundle.path)]) == 0
    assert "  variants      x86-64-v4-vnni, x86-64-v3, x86-64-v2\n" in capsys.readouterr().out


@ON_X86
def test_values_of_another_variant_are_not_probed(
    folder: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest describes the launches of the first variant."""
    monkeypatch.setenv("SMELT_CPU_WITHOUT", "avx512f")
    with running(bundle) as client, pytest.raises(SmeltError, match="only that of the first variant"):
        client.trace({"x": np.zeros((2, 48), np.float32)})
