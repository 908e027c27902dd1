"""Ops of another domain from a plug-in: compiled in the child, run, and refused without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from forked import forked_smelt
from onnx import helper

import smelt
from smelt.plugin import load_plugins

PLUGIN = '''
"""A gate (an expansion) and a distance (a formula of its own)."""

import numpy as np

from smelt.plugin import Case, Op, OnnxOp, TensorType, call


def _gate(c):
    """x * sigmoid(beta * x)"""
    x = c.x()
    return c.emit("mul", x, c.emit("sigmoid", c.emit("mul", x, c.scalar(c.number("beta", 1.0), x))))


def _distance(c):
    return c.emit("my_distance", c.x(0), c.x(1))


def _infer(c, args, attrs):
    a, b = args
    c.same("width", a.shape[1], b.shape[1])
    return (TensorType(a.dtype, (a.shape[0], b.shape[0])),)


def _compute(t, i, attrs, out, a, b):
    def square(k):
        d = call("sub", a[i[0], k], b[i[1], k])
        return call("mul", d, d)

    return call("sqrt", t.sum([a.shape[1]], square))


def _ref(arrays, attrs, types):
    a, b = arrays
    return (np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1)),)


OPS = (Op("my_distance", "a b", _infer, _ref, (Case(("f32[N, 4]", "f32[M, 4]")),), compute=_compute),)
BINDINGS = (OnnxOp("Gate", 1, _gate, "my.domain"), OnnxOp("Distance", 1, _distance, "my.domain"))
'''


def model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gate", ["x"], ["g"], domain="my.domain", beta=1.5),
        helper.make_node("Distance", ["g", "c"], ["y"], domain="my.domain"),
    ]
    f32 = onnx.TensorProto.FLOAT
    g = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, f32, [d, 4]) for n, d in (("x", "n"), ("c", "m"))],
        [helper.make_tensor_value_info("y", f32, None)],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    return helper.make_model(g, opset_imports=sets, ir_version=8)


def test_a_plugin_compiles_and_runs(tmp_path: Path) -> None:
    plugin = tmp_path / "my_ops.py"
    plugin.write_text(PLUGIN)
    bundle = smelt.compile(model(), output=tmp_path / "out", plugins=(str(plugin),))
    rng = np.random.default_rng(0)
    x, c = (rng.standard_normal((n, 4)).astype(np.float32) for n in (5, 3))
    (y,) = smelt.load(bundle).run(None, {"x": x, "c": c})
    gate = x / (1 + np.exp(-1.5 * x))
    np.testing.assert_allclose(y, np.sqrt(((gate[:, None] - c[None]) ** 2).sum(-1)), rtol=1e-5)


def test_one_file_by_two_names_is_one_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by the environment and by the call, absolute, relative and through a link."""
    (tmp_path / "my_ops.py").write_text(PLUGIN)
    (tmp_path / "linked.py").symlink_to("my_ops.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMELT_PLUGINS", str(tmp_path / "my_ops.py"))
    smelt.compile(model(), output=tmp_path / "out", plugins=("my_ops.py", "./linked.py"))


def test_without_it_the_op_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(smelt.SmeltError, match=r"Gate.*'my.domain'.*plug-in") as e:
        smelt.compile(model(), output=tmp_path / "out")
    assert e.value.kind == "unsupported"


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    broken, empty = tmp_path / "broken.py", tmp_path / "empty.py"
    broken.write_text("import no_such_module")
    empty.write_text("x = 1")
    for name, said in ((broken, "no_such_module"), (empty, "neither BINDINGS nor OPS")):
        with pytest.raises(smelt.SmeltError, match=said):
            load_plugins([str(name)])


MUTE = "class Mute(Exception):\n    def __str__(self): raise ValueError"
"""An exception that cannot be told."""
FAULTS = {
    "BINDINGS = 5": "BINDINGS is no list of rows",
    "BINDINGS = (5,)": "BINDINGS holds 5, expected OnnxOp",
    'OPS = "abc"': "OPS holds 'a', expected Op",
    'BINDINGS = (OnnxOp("Gate", "1", len, "my.domain"),)': "is no OnnxOp",
    'BINDINGS = (OnnxOp("Gate", 1, None, "my.domain"),)': "is no OnnxOp",
    'BINDINGS = (OnnxOp(5, 1, len, "my.domain"),)': "is no OnnxOp",
    "import sys; sys.exit(0)": "cannot be loaded: SystemExit: 0",
    "raise GeneratorExit('gone')": "cannot be loaded: GeneratorExit: gone",
    f"{MUTE}\nraise Mute": "cannot be loaded: Mute",
    "o = [OnnxOp('Gate', 1, b, 'my.domain') for b in (len, abs)]\nBINDINGS = o": "version 1 is bound already",
    **{
        f"def b(call):\n    {body}\nBINDINGS = (OnnxOp('Gate', 1, b, 'my.domain'),)": said
        for body, said in {
            "return None": "its binding of Gate returned None",
            "return (5,)": "its binding of Gate returned",
            "return 'y'": "its binding of Gate returned 'y', expected references",
            "1 / 0": "its binding of Gate raised ZeroDivisionError",
            "return b(call)": "its binding of Gate raised RecursionError",
            "raise SystemExit(0)": "its binding of Gate raised SystemExit",
            "raise type('Mute', (Exception,), {'__str__': len})": "its binding of Gate raised Mute",
        }.items()
    },
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_of_a_plugin_is_told_as_its_own(text: str, tmp_path: Path) -> None:
    file, there = tmp_path / "faulty.py", tmp_path / "m.onnx"
    file.write_text(f"from smelt.plugin import *\n{text}\n")
    with pytest.raises(smelt.SmeltError, match=re.escape(FAULTS[text])) as e:
        smelt.compile(model(), output=tmp_path / "out", plugins=[str(file)])
    assert e.value.kind == "invalid" and "faulty.py" in str(e.value)
    there.write_bytes(model().SerializeToString())
    done = forked_smelt("check", there, environment={**os.environ, "SMELT_PLUGINS": str(file)})
    assert done.returncode == 3


def test_core_ops_are_not_replaced(tmp_path: Path) -> None:
    thief = tmp_path / "thief.py"
    thief.write_text(PLUGIN.replace("my_distance", "matmul"))
    with pytest.raises(smelt.SmeltError, match="core op 'matmul' already"):
        load_plugins([str(thief)])


EXPANDED = '''
"""An op in other core ops."""

import numpy as np

from smelt.plugin import Case, Op, OnnxOp, TensorType


def _infer(c, args, attrs):
    return (args[0].type,)


def _expand(g, inputs, attrs):
    return (g.emit("mul", (inputs[0], g.emit("tanh", inputs[:1]))),)


def _ref(arrays, attrs, types):
    return (arrays[0] * np.tanh(arrays[0]),)


OPS = (Op("my_swish", "x", _infer, _ref, (Case(("f32[3, 4]",)),), expand=_expand),)
BINDINGS = (OnnxOp("Swish", 1, lambda c: c.emit("my_swish", c.x()), "my.domain"),)
'''


def test_an_op_in_other_ops(tmp_path: Path) -> None:
    """The passes were imported before the plug-in came."""
    plugin = tmp_path / "my_swish.py"
    plugin.write_text(EXPANDED)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    made = helper.make_node("Swish", ["x"], ["y"], domain="my.domain")
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    m = helper.make_model(helper.make_graph([made], "g", [x], [y]), opset_imports=sets, ir_version=8)
    a = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    for opt in (0, 3):
        bundle = smelt.compile(m, output=tmp_path / f"out{opt}", plugins=(str(plugin),), opt=opt)
        np.testing.assert_allclose(smelt.load(bundle).run(None, {"x": a})[0], a * np.tanh(a), rtol=1e-5)


FLIP = '''
"""An op that reads its operand backwards, and one that doubles it."""

import numpy as np

from smelt.plugin import Case, Op, OnnxOp, TensorType, call


def _infer(c, args, attrs):
    return (args[0].type,)


def _flip(t, i, attrs, out, x):
    return x[(*i[:-1], out.shape[-1] - 1 - i[-1])]


def _twice(t, i, attrs, out, x):
    return call("add", x[i], x[i])


OPS = (
    Op("my_flip", "x", _infer, lambda a, *_: (a[0][..., ::-1],), (Case(("f32[3, 4]",)),), compute=_flip),
    Op("reduce_my_twice", "x", _infer, lambda a, *_: (2 * a[0],), (Case(("f32[3, 4]",)),), compute=_twice),
)
BINDINGS = (
    OnnxOp("Flip", 1, lambda c: c.emit("my_flip", c.x()), "my.domain"),
    OnnxOp("Twice", 1, lambda c: c.emit("reduce_my_twice", c.x()), "my.domain"),
)
'''


@pytest.mark.parametrize("more", ["", ", broadcasts=0"])
def test_passes_ask_what_an_op_does_not_what_it_is_called(tmp_path: Path, more: str) -> None:
    """Neither the one that reads backwards nor the one with the name of a reduction is taken for another, not
    even where its row says that it broadcasts like a sum."""
    plugin = tmp_path / "my_flip.py"
    plugin.write_text(FLIP.replace("compute=_flip", f"compute=_flip{more}"))
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"], perm=[1, 0]),
        helper.make_node("Flip", ["a"], ["b"], domain="my.domain"),
        helper.make_node("Reshape", ["b", "flat"], ["c"]),
        helper.make_node("Twice", ["c"], ["d"], domain="my.domain"),
        helper.make_node("Flip", ["d"], ["e"], domain="my.domain"),
        helper.make_node("Reshape", ["e", "wide"], ["f"]),
        helper.make_node("Flip", ["f"], ["y"], domain="my.domain"),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    shapes = [onnx.numpy_helper.from_array(np.array(v), n) for n, v in (("flat", [-1]), ("wide", [-1, 2]))]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y], shapes)
    m = helper.make_model(graph, opset_imports=sets, ir_version=8)
    bundle = smelt.compile(m, output=tmp_path / "out", plugins=(str(plugin),))
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    want = (2 * a.T[:, ::-1].reshape(-1))[::-1].reshape(-1, 2)[:, ::-1]
    np.testing.assert_array_equal(smelt.load(bundle).run(None, {"x": a})[0], want)


HALVES = '''
"""Sizes computed from sizes."""

import numpy as np

from smelt.plugin import Case, Op, OnnxOp, TensorType, call, const


def _infer(c, args, attrs):
    return (args[0].type,)


def _compute(t, i, attrs, out, x):
    return call("div", x[i], const(2, out.dtype))


def _expand(g, inputs, attrs):
    return (g.emit("div", (inputs[0], g.constant(np.array(2)))),)


def _value(c, args, attrs):
    return (None if args[0].value is None else tuple(d // 2 for d in args[0].value),)


OPS = (
    Op("my_half", "x", _infer, lambda a, *_: (a[0] // 2,), (Case(("i64[3]",), low=0, high=9),),
       RULES),
)
BINDINGS = (OnnxOp("Half", 1, lambda c: c.emit("my_half", c.x()), "my.domain"),)
'''


@pytest.mark.parametrize("rules", ["compute=_compute", "expand=_expand, value=_value"])
def test_sizes_go_through_an_op(tmp_path: Path, rules: str) -> None:
    """Shape -> Half -> Expand: the size is n//2 when the model is compiled, not a number that a run finds."""
    plugin = tmp_path / "my_half.py"
    plugin.write_text(HALVES.replace("RULES", rules))
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Half", ["s"], ["h"], domain="my.domain"),
        helper.make_node("Expand", ["one", "h"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    one = [onnx.numpy_helper.from_array(np.ones((1, 1), np.float32), "one")]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y], one)
    m = helper.make_model(graph, opset_imports=sets, ir_version=8)
    bundle = smelt.compile(m, output=tmp_path / "out", plugins=(str(plugin),))
    assert bundle.manifest["outputs"][0]["shape"] == ["n//2", 2]
    assert smelt.load(bundle).run(None, {"x": np.zeros((7, 4), np.float32)})[0].shape == (3, 2)


FLOATS = '''
"""Three ops that hand their input on, defined on floats: on bytes one is refused, one adds 1, one widens."""

from smelt.plugin import DTYPES, Case, Op, OnnxOp, TensorType, call, cast, const

f32 = DTYPES["f32"]


def _wants_floats(c, args, attrs):
    if not args[0].dtype.is_float:
        raise c.fail(f"x is {args[0].dtype}, wanted floats")
    return (args[0].type,)


def _same(c, args, attrs):
    return (args[0].type,)


def _wide(c, args, attrs):
    return (TensorType(f32, args[0].shape),)


def _moves(t, i, attrs, out, x):
    return x[i]


def _counts(t, i, attrs, out, x):
    return x[i] if x.dtype.is_float else call("add", x[i], const(1, x.dtype))


def _widens(t, i, attrs, out, x):
    return cast(x[i], f32)


def _ref(arrays, attrs, types):
    return (arrays[0].copy(),)


CASES = (Case(("f32[N, 4]",)),)
OPS = tuple(
    Op(f"my_{name}", "x", infer, _ref, CASES, compute=compute)
    for name, infer, compute in (
        ("refuses", _wants_floats, _moves), ("counts", _same, _counts), ("widens", _wide, _widens),
    )
)
BINDINGS = tuple(
    OnnxOp(op.name, 1, lambda c, name=op.name: c.emit(name, c.x()), "my.domain") for op in OPS
)
'''


def test_a_plugin_for_floats_alone_moves_no_bytes(tmp_path: Path) -> None:
    """What a formula makes of floats says nothing of bytes: `quantize` leaves such an op where it is."""
    plugin = tmp_path / "floats.py"
    plugin.write_text(FLOATS)
    names = ("refuses", "counts", "widens")
    nodes = [helper.make_node("DequantizeLinear", ["x", "s"], ["d"])]
    nodes += [helper.make_node(f"my_{k}", ["d"], [k], domain="my.domain") for k in names]
    g = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, ["n", 4])],
        [helper.make_tensor_value_info(k, onnx.TensorProto.FLOAT, None) for k in names],
        [onnx.numpy_helper.from_array(np.array(0.25, np.float32), "s")],
    )  # fmt: skip
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    m = helper.make_model(g, opset_imports=sets, ir_version=8)
    bundle = smelt.compile(m, output=tmp_path / "out", plugins=(str(plugin),))
    x = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for y in smelt.load(bundle).run(None, {"x": x}):
        np.testing.assert_array_equal(y, x * np.float32(0.25))


def test_every_command_reads_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that compile nothing as well: `check`, and `opt` of a model and of its text."""
    (tmp_path / "named_ops.py").write_text(PLUGIN)
    onnx.save(model(), tmp_path / "m.onnx")
    text = tmp_path / "m.smelt"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMELT_PLUGINS", "named_ops")  # a module in the current folder
    words = [sys.executable, "-P", "-m", "smelt.cli"]
    for args, said in (
        (["check", "m.onnx"], "every node is supported"),
        (["opt", "m.onnx", "-p", "", "-o", str(text)], ""),
        (["opt", str(text), "-p", "expand,lower"], "kernel @my_distance("),
    ):
        done = subprocess.run([*words, *args], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout, args
    assert "my_distance(" in text.read_text()
