"""What the docs tell a reader to type is typed here: commands of the README and the guides, their Python."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pytest
from boards import need_emulator
from entry_models import prefill
from forked import forked_smelt
from onnx import TensorProto, helper, numpy_helper
from state_models import decoder, tokens

import smelt
from smelt.bench import PLANS
from smelt.core.ir.text import parse_kernel, parse_module, print_kernel
from smelt.core.ops import OPS
from smelt.core.ops.rows import quantized
from smelt.core.passes.context import Context
from smelt.core.passes.lowering.fuse import fuse
from smelt.core.passes.lowering.lower import lower
from smelt.core.passes.rewriting.editor import Editor, edit_module
from smelt.devicefarm.measure import SHOWN
from smelt.importer import import_model
from smelt.stages import PASSES
from smelt.targets.instructions import arm
from tests.core.passes.build import CONTEXT

ROOT = Path(__file__).parents[1]
DOCS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
SHAPES = "x:1x3x24x20"
"""In the place of larger ones and of '...': these tests are about the words."""


def fenced(path: Path, language: str = "") -> list[str]:
    """The blocks between lines of three backticks, of those with the language after the first one."""
    found: list[str] = []
    block: list[str] | None = None
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("```"):
            if block is not None:
                block.append(line)
        elif block is None:
            block, wanted = [], line[3:] == language
        else:
            found += ["\n".join(block) + "\n"] if wanted else []
            block = None
    return found


def code(path: Path, start: str) -> str:
    """The one Python block that begins like this."""
    (found,) = (b for b in fenced(path, "python") if b.startswith(start))
    return found


def commands(path: Path) -> list[str]:
    """Lines that begin with a command of smelt, without what explains them: that stands two spaces or more
    after it, and a command's name is at most six before its arguments."""
    lines = [line.strip() for b in fenced(path) for line in b.splitlines()]
    lines += [line.strip() for line in re.findall(r"^    (.*)$", path.read_text("utf-8"), re.M)]
    found = (re.match(r"((?:\w+=\S+ )*smelt [a-z]+)(?: {1,6}(\S.*?))?(?:\s{2,}.*)?$", line) for line in lines)
    return [f"{m[1]} {m[2] or ''}".strip() for m in found if m is not None]


SUBJECTS = MappingProxyType({
    "inspect": "out", "run": f"out --random --shape {SHAPES}", "bench": f"model.onnx --shape {SHAPES}",
})  # fmt: skip
"""Command -> what it is about, where a sentence speaks of the option alone."""
NAMED = MappingProxyType({
    "FILE.smelt": "module.smelt", "-p tidy": "-p fold", "NAME": "x86", "...": "model.onnx",
    "MODEL": "model.onnx", "BUNDLE": "out",
})  # fmt: skip
"""What stands for something of the reader's -> something."""


def inline(path: Path) -> list[str]:
    """Commands with arguments inside sentences, made whole; those that read a dump have their own test."""
    found = re.findall(r"`((?:\w+=\S+ )*smelt [a-z]+ [^`]+)`", path.read_text("utf-8"))
    made = []
    for command in (c for c in found if "dir/" not in c and not c.endswith(" -p")):
        for words, instead in NAMED.items():
            command = command.replace(words, instead)
        verb, rest = re.findall(r"smelt ([a-z]+) (.*)", command)[0]
        alone = rest.startswith("-") and verb in SUBJECTS
        made.append(f"{command} {SUBJECTS[verb]}" if alone else command)
    return made


@pytest.fixture(autouse=True)
def _a_few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed is run as often as on an emulated device: these tests are about the words."""
    for plan in PLANS:
        monkeypatch.setitem(PLANS, plan, SHOWN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands name: model.onnx, det.onnx, module.smelt; two bundles and a package."""
    made = tmp_path_factory.mktemp("docs")
    rng = np.random.default_rng(0)
    held = {"w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("Sigmoid", ["c"], ["y"], "sigmoid"),
    ]
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", k, "h", "w"])
        for n, k in (("x", 3), ("y", 4))
    )
    kept = [numpy_helper.from_array(a, n) for n, a in held.items()]
    sets = [helper.make_opsetid("", 17)]
    m = helper.make_model(helper.make_graph(nodes, "g", [x], [y], kept), opset_imports=sets, ir_version=8)
    for name in ("model.onnx", "det.onnx"):
        onnx.save(m, str(made / name))
    for name in ("out", "old"):
        smelt.compile(m, output=made / name)
    smelt.compile_portable(m, output=made / "package")
    run("smelt opt model.onnx -p '' -o module.smelt", made)
    return made


def run(command: str, folder: Path, **env: str) -> None:
    """A command line, in the folder, in a fork that alone has the plug-ins of the line."""
    *variables, rest = re.match(r"((?:\w+=\S+ )*)smelt (.*)", command).groups()  # type: ignore[union-attr]
    own = {**os.environ, **dict(v.split("=", 1) for v in variables[0].split()), **env}
    done = forked_smelt(*shlex.split(rest), folder=folder, environment=own)
    # too busy to time anything, which it says
    timed = rest.startswith(("bench", "devices doctor")) and done.returncode == 5
    assert done.returncode == 0 or timed, f"{command}\n{done.stdout}{done.stderr}"


TYPED = [(path, c) for path in DOCS for c in commands(path)]
SAID = [(path, c) for path in DOCS for c in inline(path)]
ELSEWHERE = MappingProxyType({
    "add-target.md": "tests/targets/test_new_device.py adds the target",
    "add-op.md": "test_plugin_of_the_guide has the plug-in",
    "state.md": "test_the_page_on_state has the decoder",
    "entries.md": "test_the_page_on_entries has the models",
    "tune.md": "test_the_page_on_tuning has the file that they write",
    "farm.md": "tests/smelt/test_fleet.py has the boards",
    "dims.md": "test_the_page_on_sizes has a model with these axes",
})  # fmt: skip


ONCE = {c: p for p, c in TYPED if p.name not in ELSEWHERE}
"""A command -> a page that has it."""


def test_the_docs_have_commands() -> None:
    names = {path.name for path, _ in TYPED}
    assert {"README.md", "debug.md", "add-op.md", "add-target.md"} <= names and len(TYPED) > 12


@pytest.mark.parametrize(
    ("path", "command"),
    [pytest.param(p, c, id=f"{p.stem}: {c}") for c, p in ONCE.items()],
)
def test_commands(path: Path, command: str, folder: Path, tmp_path: Path) -> None:
    target = re.search(r"--target (\S+)", command)
    if target is not None and target[1] == "T":
        command = command.replace("--target T", "--target host")
    elif target is not None:
        need_emulator(target[1])
    command = re.sub(r"x:1x3x224x224|\.\.\.", SHAPES, command)
    command = re.sub(r" -o (out|package)$", "", command)
    command = re.sub(r"--budget \d+", "--budget 4", command)
    if command.startswith("smelt bench") and "--shape" not in command:
        command += f" --shape {SHAPES}"
    if command.startswith(("smelt compile", "smelt finalise")):
        command += f" -o {tmp_path / 'out'}"
    run(command, folder)


def test_sentences_have_commands() -> None:
    assert {"debug.md", "add-pass.md", "add-target.md"} <= {path.name for path, _ in SAID}


@pytest.mark.parametrize(
    ("path", "command"),
    [pytest.param(p, c, id=f"{p.stem}: {c}") for p, c in SAID if p.name != "dims.md"],
)
def test_commands_in_sentences(
    path: Path, command: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "arm64-units" in command and not request.config.getoption("--every-model"):
        pytest.skip("540 MB of packages, as tests/devicefarm/test_userland.py has them: --every-model")
    own = re.sub(r" -o \S+", "", command)
    own += " --count 1" if "smelt validate" in own and "--count" not in own else ""
    run(f"{own} -o {tmp_path / 'out'}" if "smelt compile" in own else own, folder, SMELT_DUMP=str(tmp_path))


def test_the_readmes_python(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(folder / "model.onnx", tmp_path)
    monkeypatch.chdir(tmp_path)
    x = np.ones((2, 3, 5, 7), np.float32)
    names: dict[str, Any] = {"x": x}
    exec(code(ROOT / "README.md", "import smelt\n"), names)
    assert names["y"].shape == (2, 4, 5, 7)


def test_plugin_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's plug-in, with the two commands below it."""
    path = ROOT / "docs" / "add-op.md"
    (tmp_path / "my_ops.py").write_text(code(path, "# my_ops.py\n"))
    nodes = [
        helper.make_node("Gate", ["a"], ["g"], domain="my.domain", beta=2.0),
        helper.make_node("Distance", ["g", "b"], ["y"], domain="my.domain"),
    ]
    ins = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [n, 4]) for n in "ab"]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    m = helper.make_model(helper.make_graph(nodes, "g", ins, outs), opset_imports=sets, ir_version=8)
    onnx.save(m, str(tmp_path / "model.onnx"))
    (line,) = re.findall(r"^    (smelt\.compile\(.*)  # ", path.read_text("utf-8"), re.M)
    monkeypatch.chdir(tmp_path)
    exec(line, {"smelt": smelt})
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, 4)).astype(np.float32) for n in (3, 2))
    (y,) = smelt.load(tmp_path / "out").run(None, {"a": a, "b": b})
    gate = a / (1 + np.exp(-2 * a))
    np.testing.assert_allclose(y, np.sqrt(((gate[:, None] - b[None]) ** 2).sum(-1)), rtol=1e-4)
    (typed,) = (c for c in commands(path) if "SMELT_PLUGINS" in c)
    run(f"{typed} -o again", tmp_path)


def unparsed(nodes: Iterable[ast.AST]) -> list[str]:
    return [ast.unparse(n) for n in nodes]


def function(tree: ast.Module, name: str) -> ast.FunctionDef:
    """The function of a module's top level."""
    (found,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    return found


def test_the_entry_of_the_guide() -> None:
    """It is the one of the table: its formula to the letter, its other fields by value."""
    block = ast.parse(code(ROOT / "docs" / "add-op.md", "def _blocks("))
    source = ast.parse((ROOT / "core/ops/rows/quantized.py").read_text("utf-8"))
    theirs = function(source, "_blocks").body
    assert unparsed(function(block, "_blocks").body) == unparsed(theirs)
    (entry,) = (n.value for n in block.body if isinstance(n, ast.Expr))
    made = eval(ast.unparse(entry), vars(quantized))
    op = OPS["dequantize_blocks"]
    assert made.cases and set(map(repr, made.cases)) <= set(map(repr, op.cases))
    assert replace(made, cases=op.cases) == op


def test_the_binding_of_the_guide() -> None:
    """What it shows stands in the importer."""
    block = ast.parse(code(ROOT / "docs" / "add-op.md", "# importer/bindings/standard/quant.py"))
    source = ast.parse((ROOT / "importer/bindings/standard/quant.py").read_text("utf-8"))
    shown = [n for n in function(block, "_dequantized").body if ast.unparse(n) != "..."]
    assert shown and set(unparsed(shown)) <= set(unparsed(function(source, "_dequantized").body))
    rows = [{ast.unparse(x) for n in t.body if ast.unparse(n).startswith("ROWS") for x in n.value.elts}
            for t in (block, source)]  # type: ignore[attr-defined]  # fmt: skip
    assert len(rows[0]) == 2 and rows[0] - {"..."} <= rows[1]


def test_the_tests_of_the_guide_are_there() -> None:
    """Its line for pytest finds tests of the interpreter and of compiled code."""
    text = (ROOT / "docs" / "add-op.md").read_text("utf-8")
    (line,) = re.findall(r"^    \.venv/bin/python (-m pytest .*)$", text, re.M)
    asked = [sys.executable, *line.split(), "-n0", "-q", "--collect-only", "-p", "no:cacheprovider"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(r"test_llvm_ops\.py: ?[1-9]|test_llvm_ops\.py::", done.stdout), done.stdout


def test_the_instruction_of_the_guide() -> None:
    (block,) = (b for b in fenced(ROOT / "docs" / "add-target.md") if b.startswith("kernel @sdot"))
    (row,) = (r for r in arm.ROWS if r.name == "sdot")
    assert print_kernel(parse_kernel(block)) == print_kernel(parse_kernel(row.meaning))


def test_the_golden_file_of_the_guide() -> None:
    """Every golden file has the form that it shows."""
    form = re.compile(r'# run: [\w,]+\n(# .*\n)*module "[^"]*" \{.*\}\n# ---\n', re.S)
    (block,) = (b for b in fenced(ROOT / "docs" / "add-pass.md") if b.startswith("# run"))
    assert form.fullmatch(block)
    golden = sorted((ROOT / "tests/golden/passes").glob("*.smelt"))
    assert golden and [p.name for p in golden if not form.match(p.read_text("utf-8"))] == []


def test_the_page_on_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands, and its Python: what was saved is there again at the end."""
    page = ROOT / "docs" / "state.md"
    onnx.save(decoder(), str(tmp_path / "decoder.onnx"))
    for command in commands(page):
        run(command, tmp_path)
    monkeypatch.chdir(tmp_path)
    first, then = tokens(np.random.default_rng(0), 1, 0, 5), tokens(np.random.default_rng(1), 1, 5, 1)
    names: dict[str, Any] = {"prompt": first["ids"], "mask": first["mask"]}
    names |= {"token": then["ids"], "longer": then["mask"]}
    exec(code(page, "import smelt\n"), names)
    assert names["logits"].shape == (1, 1, 11) and names["saved"]["past_key"].shape == (1, 2, 6, 4)
    for session in (names["session"], names["other"]):
        np.testing.assert_array_equal(session.state()["past_value"], names["saved"]["past_value"])


def test_the_page_on_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands and its Python, whose bundle has the tokens of both runs in its cache."""
    page = ROOT / "docs" / "entries.md"
    onnx.save(prefill(), str(tmp_path / "prefill.onnx"))
    onnx.save(decoder(), str(tmp_path / "decode.onnx"))
    for command in commands(page):
        run(command, tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"prompt": np.array([[3, 1, 4]]), "mask": np.zeros((1, 3), np.float32)}
    names |= {"token": np.array([[2]]), "longer": np.zeros((1, 4), np.float32)}
    exec(code(page, "import smelt\n"), names)
    assert names["logits"].shape == (1, 1, 11)
    assert names["session"].state()["past_key"].shape == (1, 2, 4, 4)


def test_the_page_on_sizes(tmp_path: Path) -> None:
    """Its commands, of a model whose axes are called as there."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", "seq", 64]) for n in ("x", "y"))
    w = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph([node], "g", [x], [y], [w])
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(m, tmp_path / "model.onnx")
    said = [c for p, c in (*TYPED, *SAID) if p.name == "dims.md"]
    assert len(said) > 2
    for command in said:
        out = "" if "-o" in command or "smelt compile" not in command else " -o out"
        run(command + out, tmp_path)


def test_the_page_on_the_ir() -> None:
    """Its module can be read, and its kernel is what becomes of it."""
    written, kernel, _ = fenced(ROOT / "docs" / "ir.md")
    module = parse_module(written.replace('"..."', f'"{0:064}"'))
    (made,) = lower(fuse(module, CONTEXT), CONTEXT).kernels.values()
    assert print_kernel(made) == kernel


def test_the_page_on_packages(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(folder / "model.onnx", tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code(ROOT / "docs" / "portable.md", "import smelt\n"), names)
    assert names["bundle"].manifest["platform"] == "aarch64-linux"


def test_the_page_on_units(tmp_path: Path) -> None:
    """Its Python on tensors that stay: a run reads what the one before has left."""
    nodes = [
        helper.make_node("Add", ["past", "ids"], ["present"]),
        helper.make_node("Neg", ["present"], ["logits"]),
    ]
    names = ("ids", "past", "logits", "present")
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in names]
    sets = [helper.make_opsetid("", 17)]
    m = helper.make_model(helper.make_graph(nodes, "g", ports[:2], ports[2:]), opset_imports=sets)
    m.ir_version = 8
    array = np.ones(3, np.float32)
    known: dict[str, Any] = {"array": array, "ids": array, "more": 2 * array}
    known["session"] = smelt.load(smelt.compile(m, output=tmp_path / "out"))
    text = (ROOT / "docs" / "units.md").read_text("utf-8")
    (block,) = re.findall(r"^## Tensors that stay\n\n((?:    .*\n)+)", text, re.M)
    exec(textwrap.dedent(block), known)
    np.testing.assert_array_equal(known["logits"], -4 * array)
    np.testing.assert_array_equal(known["a"].numpy(), 4 * array)


def test_the_page_on_tuning(folder: Path, tmp_path: Path) -> None:
    """Its commands, one after the other: the compile reads what the tuner has written."""
    shutil.copy(folder / "model.onnx", tmp_path)
    for command in commands(ROOT / "docs" / "tune.md"):
        run(command.replace("x:1x3x224x224", SHAPES), tmp_path)
    found = json.loads((tmp_path / "out" / "manifest.json").read_text())["schedules"]
    assert found["kernels"] > 0 and found["notes"] == []


def test_the_pass_of_the_guide(folder: Path) -> None:
    """Its function is one, and its row fits the pipeline."""
    names: dict[str, Any] = {"edit_module": edit_module, "Editor": Editor, "Context": Context}
    exec("from smelt.core.ir.graph import Module\n" + code(ROOT / "docs" / "add-pass.md", '"""Graph'), names)
    module = import_model(folder / "model.onnx")
    assert names["tidy"](module, CONTEXT) is module


def test_dumps_are_compiled_again(folder: Path, tmp_path: Path) -> None:
    """debug.md: a file for every pass, named as it says; the commands work, the bundle is the same."""
    guide = ROOT / "docs" / "debug.md"
    dumps = tmp_path / "dir"
    run(f"smelt compile model.onnx -o {tmp_path / 'out'}", folder, SMELT_DUMP=str(dumps))
    made = sorted(p.name for p in dumps.glob("*.smelt"))
    assert made == [f"{k:02d}-{p.name}.smelt" for k, p in enumerate(PASSES)]
    assert {"model.ll", "model.o"} <= {p.name for p in dumps.iterdir()}
    text = guide.read_text("utf-8")
    assert set(re.findall(r"\d\d-\w+\.smelt", text)) <= {*made}
    (typed,) = re.findall(r"`(smelt opt dir/.*?)`", text)
    run(typed, tmp_path)
    for source in ("dir/09-patterns.smelt", "dir/28-schedule.smelt"):
        run(f"smelt compile {source} -o again", tmp_path)
        assert (tmp_path / "again" / "manifest.json").read_bytes() == (
            tmp_path / "out" / "manifest.json"
        ).read_bytes()
    run("smelt compile dir/mine.smelt -o mine", tmp_path)
