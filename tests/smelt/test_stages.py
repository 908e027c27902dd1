"""A compile that goes on from a dump after any pass ends as the one that was not interrupted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

import model_sources
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.compiler import compile_here, lower
from smelt.core.diag import SmeltError
from smelt.core.ir.dump import dump_text
from smelt.core.ir.graph import Module
from smelt.core.ir.store import FOLDER
from smelt.core.ir.text import print_module
from smelt.core.ir.verify import module_facts
from smelt.core.passes.manager import run_pipeline
from smelt.core.plan.build import make_plan
from smelt.driver import Request
from smelt.stages import PASSES, PORTABLE, Compilation, after, resumed
from smelt.targets.platform import parse_target
from smelt.targets.registry import default_unit, machines

HOST = parse_target("host")
UNITS, UNIT = machines(HOST), default_unit(HOST)
MODELS = 3


def models(source: str) -> Iterator[Module]:
    """The models of a source, seed by seed, without those that are refused."""
    for seed in count():
        with suppress(SmeltError):
            module = model_sources.SOURCES[source](seed)
            if module is not None:
                yield module


@pytest.mark.table(3)
@pytest.mark.parametrize("source", model_sources.SOURCES)
@pytest.mark.parametrize("number", range(MODELS))
def test_every_pass_goes_on_from_text(source: str, number: int, tmp_path: Path) -> None:
    """A pass that gets what the one before it left in a dump makes what it makes of the module in memory."""
    module = next(islice(models(source), number, None))
    path = tmp_path / "a.smelt"
    begun = Compilation(Request(source=str(path)), module, "0" * 64)
    context = begun.context(UNITS, UNIT)
    for p in PASSES:
        module = run_pipeline(module, (p,), context)
        begun = begun.advanced(p.name, run_pipeline(begun.module, (p,), context))
        assert print_module(begun.module) == print_module(module), p.name
        begun.write(path)
        begun = resumed(Request(source=str(path)))
    assert begun.place == len(PASSES)
    for ref, w in module.weights.items():
        assert begun.module.weights[ref].array().tobytes() == np.ascontiguousarray(w.array()).tobytes(), ref
    assert make_plan(begun.module, module_facts(begun.module)) == make_plan(module, module_facts(module))


def product(path: Path, seed: int = 0) -> Path:
    """y = relu(x @ w + b) @ v, with weights that are too large for the text and one in a file of its own."""
    rng = np.random.default_rng(seed)
    w, b, v = (rng.standard_normal(s).astype(np.float32) for s in ((300, 200), (200,), (200, 40)))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "first"),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"], "bent"),
        helper.make_node("MatMul", ["r", "v"], ["y"], "second"),
    ]
    held = [numpy_helper.from_array(a, n) for n, a in zip("wbv", (w, b, v), strict=True)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 300])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 40])
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (path.parent / "w.bin").unlink(missing_ok=True)
    onnx.save(made, str(path), save_as_external_data=True, location="w.bin", size_threshold=100_000)
    return path


@pytest.fixture
def dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path, str]]:
    """Compile a model with dumps: their folder, and the digest of the bundle."""

    def compiled(**options: Any) -> tuple[Path, str]:
        model = product(tmp_path / "net.onnx")
        with monkeypatch.context() as m:
            m.setenv("SMELT_DUMP", str(tmp_path / "dumps"))
            made = smelt.compile(model, output=tmp_path / "whole", **options)
        return tmp_path / "dumps", made.digest

    return compiled


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fp16": True, "dims": {"n": (1, 64)}, "outputs": ("r",)},
        {"target": "arm64:cortex-a53", "opt": 0, "dims": {"n": 4}, "name": "other", "fast_math": True,
         "threads": 2},
    ],
    ids=["plain", "fp16", "other"],
)  # fmt: skip
def test_bundles_are_the_same(
    options: dict[str, Any], dumped: Callable[..., tuple[Path, str]], tmp_path: Path
) -> None:
    """Of every eighth dump and the last two, by the hash of the bundle, after the model's files are gone.
    Every pass is gone on from in test_every_pass_goes_on_from_text."""
    folder, digest = dumped(**options)
    found = sorted(folder.glob("*.smelt"))
    assert len(found) == sum(p.level <= options.get("opt", 3) for p in PASSES)
    (tmp_path / "net.onnx").unlink()
    (tmp_path / "w.bin").unlink()
    for path in found[::8] + found[-2:]:
        made = compile_here(Request(source=str(path), output=str(tmp_path / "again")))
        assert made.digest == digest, path.name
    # what only plans or looks, as `smelt tune` does, takes a dump with its own options too
    assert lower(Request(source=str(found[-1]))).spec == parse_target(options.get("target", "host"))


@pytest.mark.parametrize(
    "options",
    [{"target": "x86"}, {"target": "x86+opencl", "fallback": True}, {"target": "x86+opencl", "choose": True}],
    ids=["levels", "fallback", "choose"],
)
def test_bundles_of_several_variants(
    options: dict[str, Any], dumped: Callable[..., tuple[Path, str]], tmp_path: Path
) -> None:
    """Before a machine is asked a dump is of all variants, and says so; after that it is of the best one."""
    folder, digest = dumped(**options)
    found = sorted(folder.glob("*.smelt"))
    for path in (found[0], found[PORTABLE - 1]):
        assert compile_here(Request(source=str(path), output=str(tmp_path / "again"))).digest == digest
    best = compile_here(Request(source=str(found[-1]), output=str(tmp_path / "best")))
    assert not best.manifest["variants"] and best.digest != digest


def test_the_front_door_takes_dumps(
    dumped: Callable[..., tuple[Path, str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """smelt.compile in its child, and the command line; the model's name stays."""
    from smelt.cli.main import main

    folder, digest = dumped()
    path = folder / "09-patterns.smelt"
    assert smelt.compile(path, output=tmp_path / "again").digest == digest
    assert main(["compile", str(path), "-o", str(tmp_path / "typed"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["digest"] == digest
    renamed = smelt.compile(path, output=tmp_path / "renamed", name="called", threads=2).manifest
    assert renamed["model"]["name"] == "called" and renamed["options"]["threads"] == 2
    assert main(["compile", str(path), "-o", str(tmp_path / "typed"), "--optShapes=x:4x300"]) == 2
    capfd.readouterr()
    assert main(["check", str(path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["memory"]["arenas"] == renamed["memory"]["arenas"]
    assert main(["validate", str(path)]) == 2
    assert "is a dump: compile it" in capfd.readouterr().err


def test_opt_writes_what_compile_goes_on_from(
    dumped: Callable[..., tuple[Path, str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from smelt.cli.main import main

    folder, digest = dumped()
    model = product(tmp_path / "net.onnx")
    made = tmp_path / "made" / "09-patterns.smelt"
    made.parent.mkdir()
    names = ",".join(p.name for p in PASSES[: int(made.name[:2]) + 1])
    assert main(["opt", str(model), "-p", names, "-o", str(made)]) == 0
    assert made.read_text() == (folder / made.name).read_text()
    last = made.with_name("last.smelt")
    assert main(["opt", str(made), "-o", str(last)]) == 0
    assert smelt.compile(last, output=tmp_path / "again").digest == digest
    capfd.readouterr()
    assert main(["opt", str(last), "-p", "schedule"]) == 0
    assert capfd.readouterr().out == (folder / "28-schedule.smelt").read_text()


def test_an_edited_module_is_another_model(dumped: Callable[..., tuple[Path, str]], tmp_path: Path) -> None:
    folder, digest = dumped()
    path = folder / "01-regions.smelt"
    text = path.read_text()
    assert "relu(" in text
    path.write_text(text.replace("relu(", "neg("))
    edited = smelt.compile(path, output=tmp_path / "edited")
    whole = smelt.load(tmp_path / "whole")
    assert edited.digest != digest
    assert edited.manifest["model"]["sha256"] != whole.bundle.manifest["model"]["sha256"]
    x = np.random.default_rng(1).standard_normal((3, 300)).astype(np.float32)
    (y,) = smelt.load(edited).run(None, {"x": x})
    assert np.abs(y - whole.run(None, {"x": x})[0]).max() > 1


def test_places_of_passes() -> None:
    names = [p.name for p in PASSES]
    place = 0
    for k, name in enumerate(names, 1):
        place = after(place, name)
        assert place == k
    done = names.index("checked") + 1
    assert after(done, "patterns") == names.index("patterns") + 1, "what is left out is left out"
    assert after(0, "patterns") == 0, "sizes that checks fix are fixed in every compile"
    assert after(0, "fuse") == 0, "ops are expanded before they are fused"
    assert after(names.index("lower") + 1, "fold") == names.index("lower") + 1, "too late for this one"


HAND = """module "small" {
  sym n in 1..*
  graph @main(%x: f32[n] from "x") -> (%y as "y") {
    %y = relu(%x) : f32[n]
  }
}
"""


def test_a_module_by_hand(tmp_path: Path) -> None:
    """Without a head it is a model of its own, with the options of the command line."""
    path = tmp_path / "hand.smelt"
    path.write_text(HAND)
    made = smelt.compile(path, output=tmp_path / "b", opt=1)
    assert made.manifest["options"]["opt"] == 1 and made.manifest["model"]["name"] == "hand"
    x = np.array([-1, 2], np.float32)
    np.testing.assert_array_equal(smelt.load(made).run(None, {"x": x})[0], [0, 2])
    for stage in ("lower", "schedule"):
        begun = Compilation(Request(source=str(path)), resumed(Request(source=str(path))).module, "0" * 64)
        one = [p for p in PASSES if p.name == stage]
        path.write_text(print_module(run_pipeline(begun.module, one, begun.context(UNITS, UNIT))))
        (y,) = smelt.load(smelt.compile(path, output=tmp_path / "b")).run(None, {"x": x})
        np.testing.assert_array_equal(y, [0, 2])
    with pytest.raises(SmeltError, match="fp16 comes before"):
        smelt.compile(path, output=tmp_path / "b", fp16=True)
    with pytest.raises(SmeltError, match="what its text says"):
        smelt.compile(path, output=tmp_path / "b", dims={"n": 3})


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"target": "arm64"}, "made with target"),
        ({"dims": {"n": 3}}, "made with dims"),
        ({"opt": 1}, "made with opt 3"),
        ({"fp16": True}, "made with fp16"),
        ({"fast_math": True}, "made with fast_math"),
        ({"outputs": ("r",)}, "made with outputs"),
        ({"libraries": True}, "made with libraries"),
    ],
)
def test_other_options_are_refused(
    option: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.smelt"
    Compilation(Request(source="m.onnx"), resumed(_hand(tmp_path)).module, "0" * 64).write(path)
    with pytest.raises(SmeltError, match=message):
        smelt.compile(path, output=tmp_path / "b", **option)
    smelt.compile(path, output=tmp_path / "b", target=str(HOST))


def _hand(folder: Path) -> Request:
    (folder / "hand.smelt").write_text(HAND)
    return Request(source=str(folder / "hand.smelt"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"smelt": ".*?"', '"smelt": "0.0.1"', "no such place"),
        ('"place": 0', '"place": 1', "no such place"),
        ('"place": 0', '"place": 1000', "place"),
        ('"place": 0', '"place": true', "place"),
        ('"source": "0', '"source": "../', "SHA-256"),
        ('"prefix": ""', '"prefix": "../../etc/x"', "cannot be a model's name"),
        ('"target": ".*?"', '"target": "vax"', "vax"),
        ('"target": ".*?"', '"target": ["host"]', "target"),
        ('"dims": {}', '"dims": []', "dims"),
        ('"opt": 3', '"opt": 9', "opt"),
        ('"fast_math": \\[\\]', '"fast_math": ["all of it"]', "fast-math has no part"),
        ('"threads": null', '"threads": -1', "threads"),
        ('"groups": null', '"groups": 3', "groups"),
        ('"request": ', '"wish": ', "request"),
        ("compile {", "compile 3 {", "JSON"),
        ("relu\\(%x\\)", "relu(%x) {alpha = 3}", "is no sound module"),
        ("relu\\(%x\\)", "cast(%x) {to = 3}", "is no sound module"),
        ("compile {", "compile " + "[" * 100_000 + "{", "JSON"),
        ("relu", "no_such_op", "there is no op 'no_such_op'"),
        ("relu\\(%x\\)", "relu(%z)", "is no sound module"),
        ("relu\\(%x\\)", "relu(%x, %x)", "is no sound module"),
        ("relu\\(%x\\)", "relu()", "is no sound module"),
        (r": f32\[n\]\n", ": i8[n]\n", "is no sound module"),
        (r": f32\[n\]\n", ": f32[n + 1]\n", "is no sound module"),
        ("relu\\(%x\\)", "transpose(%x) {perm = 3}", "is no sound module"),
        ("relu\\(%x\\)", "transpose(%x)", "is no sound module"),
        # the size of what is read only the type says, and every rule of types believes it
        ("relu\\(%x\\)", "slice(%x) {ends = [2*n + 7], starts = [max(n + 7, 0)], steps = (1,)}", "(bounds)"),
    ],
)
def test_what_no_dump_says(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.smelt"
    text = Compilation(Request(source="m.onnx"), resumed(_hand(tmp_path)).module, "0" * 64).dump()
    changed, count = re.subn(old, lambda m: new, text)
    assert count == 1
    path.write_text(changed)
    with pytest.raises(SmeltError, match=re.escape(message)) as e:
        smelt.compile(path, output=tmp_path / "b")
    assert e.value.kind == "invalid" or "vax" in message
    assert not (tmp_path / "b").exists()


def test_a_dump_loads_no_plugin(tmp_path: Path) -> None:
    """Whatever its head says: who compiles it names the plug-ins."""
    mark, evil = tmp_path / "ran", tmp_path / "evil.py"
    evil.write_text(f"open({str(mark)!r}, 'w')\n")
    path = tmp_path / "a.smelt"
    begun = Compilation(Request(source="m.onnx"), resumed(_hand(tmp_path)).module, "0" * 64)
    head = begun.head()
    head["request"]["plugins"] = head["plugins"] = [str(evil)]
    path.write_text(dump_text(begun.module, head))
    smelt.compile(path, output=tmp_path / "b")
    assert not mark.exists()


def test_missing_weights_are_named(dumped: Callable[..., tuple[Path, str]], tmp_path: Path) -> None:
    folder, _ = dumped()
    (folder / FOLDER).rename(tmp_path / "moved")
    with pytest.raises(SmeltError, match="has no file") as e:
        smelt.compile(folder / "00-dce.smelt", output=tmp_path / "b")
    assert FOLDER in str(e.value.hint)
