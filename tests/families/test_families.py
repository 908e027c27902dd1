"""The families: the index says what they have, models load what they use, no plug-in takes their names."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from in_process import smelt_says
from onnx import parser

import smelt
from smelt import plugin
from smelt.core import ops
from smelt.importer import import_model
from smelt.importer.bindings import table
from smelt.importer.families import BY_BINDING, BY_CORE, FAMILIES, Family

ROOT = Path(__file__).parents[2]
Array = np.ndarray[Any, Any]

TREE = """
    y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1, nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2],
        nodes_featureids = [1, 0, 0], nodes_values = [0.5, 0.0, 0.0], nodes_truenodeids = [1, 0, 0],
        nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_falsenodeids = [2, 0, 0],
        target_treeids = [0, 0], target_nodeids = [1, 2], target_ids = [0, 0],
        target_weights = [3.0, 5.0]> (x)
"""
F32, TEXT = "float[n, 4] x", "string[n] x"
MODELS = {
    "plain": (F32, "float[n, 4] y", "t = Relu(x) y = com.microsoft.FusedMatMul <transB = 1> (t, t)"),
    "strings": (TEXT, "float[n] y", "e = Equal(x, x) w = Where(e, x, x) y = Cast <to = 1> (w)"),
    "ml": (F32, "float[n, 1] y", TREE),
    "text": (TEXT, "string[n, p] y", 'y, c = StringSplit <delimiter = ","> (x)'),
    "tokens": (
        TEXT, "string[n, p] y",
        'y = com.microsoft.Tokenizer <mark = 0, mincharnum = 1, pad_value = "", tokenexp = "[a-z]+"> (x)',
    ),
    "microsoft": (
        f"{F32}, float[n, 2] r, float[2, 6, 4] v, float[2, 4, 6] w", "float[n, 4] y",
        "y = com.microsoft.MoE <k = 1> (x, r, v, , w)",
    ),
}  # fmt: skip
LOADS = {
    "plain": [], "strings": [], "ml": ["ml"], "text": ["text"], "tokens": ["text"],
    "microsoft": ["microsoft"],
}  # fmt: skip


def model(name: str) -> onnx.ModelProto:
    inputs, outputs, body = MODELS[name]
    head = '<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 3, "com.microsoft" : 1]>'
    return parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{ {body} }}")


def saved(name: str, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    onnx.save(model(name), path)
    return path


def python(code: str, cwd: Path, *args: str) -> str:
    """What a process of its own prints: this one has loaded all families."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(cwd: Path, *args: str, text: str | None = None) -> str:
    """What a command of smelt prints."""
    words = [sys.executable, "-m", "smelt.cli", *args]
    done = subprocess.run(words, cwd=cwd, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---------------------------------------------------------------- the index


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.module)
def test_the_index_is_what_the_families_have(family: Family) -> None:
    module = importlib.import_module(family.module)
    assert sorted({(r.domain, r.name) for r in module.BINDINGS}) == sorted(family.bound())
    assert sorted(op.name for op in module.OPS) == sorted(family.core.split())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.module)
def test_a_family_leaves_none_of_its_rows_out(family: Family) -> None:
    module = importlib.import_module(family.module)
    found = pkgutil.walk_packages(module.__path__, f"{family.module}.")
    files = [importlib.import_module(m.name) for m in found]
    core = [m for m in files if f"{family.module}.ops." in m.__name__]
    assert _rows(core) == sorted(op.name for op in module.OPS)
    assert _rows([m for m in files if m not in core]) == sorted(r.name for r in module.BINDINGS)


def _rows(files: list[ModuleType]) -> list[str]:
    return sorted(row.name for m in files for row in getattr(m, "ROWS", ()))


def test_every_family_is_in_the_index() -> None:
    folders = {p.parent.name for p in (ROOT / "families").glob("*/__init__.py")}
    assert {f.module for f in FAMILIES} == {f"smelt.families.{name}" for name in folders}


def test_no_name_is_in_two_places() -> None:
    """A lookup loads a family where the table has no row of the name: none but the family may have one."""
    own = {(r.domain, r.name) for file in table._FILES for r in file.ROWS}
    core = {op.name for room in ops._ROOMS for op in room.ROWS}
    assert not own & BY_BINDING.keys()
    assert not core & BY_CORE.keys()
    assert len(BY_BINDING) == sum(len(f.bound()) for f in FAMILIES)
    assert len(BY_CORE) == sum(len(f.core.split()) for f in FAMILIES)


def test_all_are_loaded_here() -> None:
    """What walks the tables in these tests walks the families as well (tests/conftest.py)."""
    assert BY_BINDING.keys() <= table.BINDINGS.keys()
    assert BY_CORE.keys() <= ops.OPS.keys()


# ---------------------------------------------------------------- what a model loads

LOADED = """
import sys
def loaded():
    return sorted({m.split(".")[2] for m in sys.modules if m.startswith("smelt.families.")})
"""


@pytest.mark.parametrize("name", MODELS)
def test_a_model_loads_what_it_uses(name: str, tmp_path: Path) -> None:
    code = LOADED + "from smelt.importer import import_model\nimport_model(sys.argv[1])\nprint(loaded())"
    assert python(code, tmp_path, str(saved(name, tmp_path))) == f"{LOADS[name]}\n"


def test_a_compile_without_rare_ops_loads_none(tmp_path: Path) -> None:
    code = LOADED + (
        "import smelt.cli.main, smelt.session, smelt.plugin\n"
        "from smelt.compiler import Request, compile_here\n"
        "compile_here(Request(sys.argv[1], output=sys.argv[2]))\nprint(loaded())"
    )
    assert python(code, tmp_path, str(saved("plain", tmp_path)), str(tmp_path / "out")) == "[]\n"


def test_check_finds_the_family(tmp_path: Path) -> None:
    said = command(tmp_path, "check", str(saved("ml", tmp_path)))
    assert "every node is supported" in said


def test_check_says_what_is_wrong_with_a_node_of_a_family(tmp_path: Path) -> None:
    m = model("ml")
    next(a for a in m.graph.node[0].attribute if a.name == "target_ids").ints[0] = 7
    onnx.save(m, tmp_path / "m.onnx")
    words = [sys.executable, "-m", "smelt.cli", "check", "--json", str(tmp_path / "m.onnx")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    (problem,) = json.loads(done.stdout)["problems"]
    assert done.returncode == 3
    assert problem["kind"] == "invalid"
    assert "no operator" not in problem["message"]


@pytest.mark.table(2)
@pytest.mark.parametrize("given", ["file", "stdin"])
@pytest.mark.parametrize("name", [n for n, loads in LOADS.items() if loads])
def test_opt_knows_the_core_ops_in_a_text(name: str, given: str, tmp_path: Path) -> None:
    """The text of a model, from a file and from stdin, becomes what the model becomes."""
    source = saved(name, tmp_path)
    module = import_model(source)
    text = tmp_path / "m.smelt"
    assert smelt_says("opt", source, "-p", "", "-o", text)[0] == 0
    wanted = smelt_says("opt", source)[1]
    if given == "file":
        assert command(tmp_path, "opt", str(text)) == wanted
    else:
        assert command(tmp_path, "opt", "-", text=text.read_text()) == wanted
    own = {n.op for n in module.main.walk()} & BY_CORE.keys()
    assert own
    assert not any(f" {op}(" in wanted for op in own)


FEEDS: dict[str, Array] = {
    "ml": np.array([[0, 0, 0, 0], [0, 1, 0, 0]], np.float32),
    "text": np.array(["a,b", "", "c"], object),
    "tokens": np.array(["ab 12 c", "x"], object),
}
WANTED: dict[str, list[Any]] = {
    "ml": [[3.0], [5.0]],
    "text": [["a", "b"], ["", ""], ["c", ""]],
    "tokens": [["ab", "c"], ["x", ""]],
}


@pytest.mark.parametrize("name", FEEDS)
def test_the_command_line_compiles_a_family(name: str, tmp_path: Path) -> None:
    """In a child process, which loads nothing that it is not told of."""
    command(tmp_path, "compile", str(saved(name, tmp_path)), "-o", str(tmp_path / "out"))
    assert smelt.load(tmp_path / "out").run(None, {"x": FEEDS[name]})[0].tolist() == WANTED[name]


# ---------------------------------------------------------------- plug-ins beside them

REFUSED = """
import sys
from smelt.core.diag import SmeltError
from smelt.core.ops import OPS
from smelt.importer.bindings import BINDINGS, find
from smelt.plugin import load_plugins
if sys.argv[2] == "first":
    find("ai.onnx.ml", "TreeEnsemble", 5)
try:
    load_plugins([sys.argv[1]])
except SmeltError as e:
    print(e.message)
print("mine" in OPS, ("own", "Mine") in BINDINGS)
"""
OWN = """
from smelt.plugin import Case, OnnxOp, Op, TensorType
def same(name):
    return Op(name, "x", lambda c, args, attrs: (args[0].type,), None, ())
def row(name, since, domain):
    return OnnxOp(name, since, lambda c: c.x(), domain)
"""


@pytest.mark.parametrize("when", ["first", "not"])
@pytest.mark.parametrize(
    ("defined", "said"),
    [
        (
            "OPS = (same('mine'), same('forest'))",
            "{blamed}there is a core op 'forest' already\nFalse False\n",
        ),
        (
            "BINDINGS = (row('Mine', 1, 'own'), row('TreeEnsemble', 5, 'ai.onnx.ml'))",
            "{blamed}'TreeEnsemble' of domain 'ai.onnx.ml', version 5 is bound already\nFalse False\n",
        ),
        ("BINDINGS = (row('Mine', 1, 'own'), row('TreeEnsemble', 99, 'ai.onnx.ml'))", "False True\n"),
    ],
)
def test_a_familys_name_is_taken(when: str, defined: str, said: str, tmp_path: Path) -> None:
    """Whether or not a model asked for the family before; a newer version of its op is no double."""
    plugin = tmp_path / "thief.py"
    plugin.write_text(OWN + defined)
    assert python(REFUSED, tmp_path, str(plugin), when) == said.format(blamed=f"plug-in '{plugin}': ")


def test_a_newer_version_leaves_the_older_ones(tmp_path: Path) -> None:
    plugin = tmp_path / "newer.py"
    plugin.write_text(OWN + "BINDINGS = (row('TreeEnsemble', 99, 'ai.onnx.ml'),)")
    code = (
        "import sys\nfrom smelt.importer.bindings import find\nfrom smelt.plugin import load_plugins\n"
        "load_plugins([sys.argv[1]])\nprint([find('ai.onnx.ml', 'TreeEnsemble', n).since for n in (5, 99)])\n"
        "print(find('ai.onnx.ml', 'TreeEnsemble', 4))"
    )
    assert python(code, tmp_path, str(plugin)) == "[5, 99]\nNone\n"


def test_a_plugin_emits_a_familys_core_op(tmp_path: Path) -> None:
    """Though no node of the model asks for the family."""
    plugin = tmp_path / "parts.py"
    plugin.write_text(
        OWN + "BINDINGS = (OnnxOp('Parts', 1, lambda c: c.emit('text_parts', c.x(), delimiter=',', most=-1),"
        " 'own'),)"
    )
    text = '<ir_version: 9, opset_import: ["own" : 1]> g (uint8[n, 3] x) => (int64[n] y) { y = own.Parts(x) }'
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    code = LOADED + (
        "from smelt.importer import import_model\nfrom smelt.plugin import load_plugins\n"
        "load_plugins([sys.argv[2]])\nprint(loaded())\nimport_model(sys.argv[1])\nprint(loaded())"
    )
    assert python(code, tmp_path, str(tmp_path / "m.onnx"), str(plugin)) == "[]\n['text']\n"


def test_a_family_is_a_plugin() -> None:
    """It can be named as one; it is loaded already, and stays what it is."""
    before = len(ops.OPS), len(table.BINDINGS)
    plugin.load_plugins([f.module for f in FAMILIES])
    assert (len(ops.OPS), len(table.BINDINGS)) == before


def test_threads_that_need_a_family_at_once(tmp_path: Path) -> None:
    """Whoever comes second waits until the first has it: half a module has no rows."""
    code = (
        "import sys, threading\nfrom smelt.importer import check_model\n"
        "found, ready = [], threading.Barrier(6)\n"
        "def work():\n    ready.wait()\n    found.append(check_model(sys.argv[1]))\n"
        "threads = [threading.Thread(target=work) for _ in range(6)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()\nprint([str(p) for f in found for p in f])"
    )
    assert python(code, tmp_path, str(saved("ml", tmp_path))) == "[]\n"
