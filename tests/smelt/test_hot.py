"""Bundles with hot sizes: right at these and others; plan, memory and weights are those of one without."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from boards import needs_opencl
from entry_models import LLM, ByHand
from onnx import helper, numpy_helper, parser
from onnx_models import model
from oracle import runtime_session
from state_models import DECODER_STATE

import smelt
from smelt.cli.main import main
from smelt.cli.report import _NEXT_DIM
from smelt.compiler import compile_here, plan_here
from smelt.core.bundle import Bundle
from smelt.core.exits import OK, UNSUPPORTED, USAGE
from smelt.core.schedule import hot
from smelt.difference import compare_arrays
from smelt.finalising import finalise
from smelt.reproducer import command_of, options_of
from smelt.request import DimSpec, Request, bounds, spelled_spec
from smelt.shapes import parse_dim_spec

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '


@pytest.fixture(autouse=True)
def all_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small kernels are scheduled again, too; compiles in this process see it."""
    monkeypatch.setattr(hot, "LEAST_SECONDS", 0.0)


def numbers(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32)


def text_model(text: str, **weights: Array) -> onnx.ModelProto:
    made = parser.parse_model(HEAD + text)
    made.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in weights.items())
    return made


def attention() -> onnx.ModelProto:
    """Queries of n rows against keys and values of n + past."""
    return text_model(
        """(float[b, 2, n, 16] q, float[b, 2, past, 16] old, float[b, 2, n, 16] k) => (float[b, 2, n, 16] y) {
          keys = Concat <axis = 2> (old, k)
          kt = Transpose <perm = [0, 1, 3, 2]> (keys)
          s = MatMul (q, kt)
          p = Softmax <axis = -1> (s)
          y = MatMul (p, keys)
        }"""
    )


def layers() -> onnx.ModelProto:
    """Products with weights, what follows in place, a norm, and columns that fill no vector."""
    return text_model(
        """(float[b, n, 24] x) => (float[b, n, 37] y) {
          h = MatMul (x, w0)  r = Relu (h)  s = Sigmoid (r)  t = Add (s, x0)
          m = ReduceMean <axes = [-1], keepdims = 1> (t)  c = Sub (t, m)
          y = MatMul (c, w1)
        }""",
        w0=numbers(24, 40), x0=numbers(40, seed=1), w1=numbers(40, 37, seed=2),
    )  # fmt: skip


def in_place() -> onnx.ModelProto:
    """Sums that overwrite what they read: run twice they would be other sums."""
    return text_model(
        """(float[b, n] x) => (float[b, n] y, float[n, b] z) {
          s = Softmax <axis = 0> (x)  a = Exp (s)  c = CumSum (a, axis)  e = Add (c, a)  y = Softmax (e)
          z = Transpose (e)
        }""",
        axis=np.array(1),
    )  # fmt: skip


def convolution() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p", "v"], ["y"], strides=[2, 2]),
    ]
    constants = {"w": numbers(8, 3, 3, 3), "v": numbers(5, 8, 3, 3, seed=1)}
    return model(nodes, {"x": ("f32", ["b", 3, "n", "past"])}, {"y": "f32"}, constants)


def branches() -> onnx.ModelProto:
    """Sizes in a loop and a size that data decide, beside hot ones."""
    return text_model(
        """(float[b, n] x, int64 trips) => (float[b, n] y, float[k] z) {
          flag = Constant <value = bool {1}> ()
          y = Loop (trips, flag, x) <body = step (int64 i, bool c, float[b, n] v) => (bool d, float[b, n] u) {
            d = Identity (c)  s = Softmax <axis = -1> (v)  u = Add (s, v)
          }>
          zero = Constant <value = float {0.0}> ()
          big = Greater (x, zero)  at = NonZero (big)  rows = Transpose <perm = [1, 0]> (at)
          found = GatherND (x, rows)  z = Exp (found)
        }"""
    )


MODELS = {f.__name__: f for f in (attention, layers, in_place, convolution, branches)}
DIMS: dict[str, DimSpec] = {"b": (1, 3, (1,)), "n": (1, 40, (1, 16)), "past": (1, 40, (16,))}
SIZES = [(1, 1, 16), (1, 16, 16), (2, 16, 16), (1, 16, 5), (3, 7, 9), (1, 1, 1), (2, 1, 40)]


def dims_of(m: onnx.ModelProto, dims: Mapping[str, DimSpec]) -> dict[str, DimSpec]:
    """Those that the model has; an image is at least as large as its windows."""
    known = {d.dim_param for i in m.graph.input for d in i.type.tensor_type.shape.dim}
    conv = any(n.op_type == "Conv" for n in m.graph.node)
    found = {k: v for k, v in dims.items() if k in known}
    if conv:
        found |= {"n": (8, 40, (8, 16)), "past": (8, 40, (16,))}
    return found


def feed(m: onnx.ModelProto, sizes: Sequence[int], seed: int) -> dict[str, Array]:
    at, made = dict(zip(("b", "n", "past"), sizes, strict=True)), {}
    for i in m.graph.input:
        shape = [at[d.dim_param] if d.dim_param else d.dim_value for d in i.type.tensor_type.shape.dim]
        floats = i.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        made[i.name] = numbers(*shape, seed=seed) if floats else np.array(3)
    return made


def built(m: onnx.ModelProto, folder: Path, dims: Mapping[str, DimSpec], **options: Any) -> Bundle:
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(m, folder / "m.onnx")
    return compile_here(Request(str(folder / "m.onnx"), dims=dims, output=str(folder / "out"), **options))


def hot_kernels(bundle: Bundle) -> list[dict[str, Any]]:
    return [k for k in bundle.manifest["kernels"] if "hot" in k]


def agrees(m: onnx.ModelProto, bundle: Bundle, half: bool = False) -> None:
    """At hot sizes and others, in any order, as ONNX Runtime; the second time with the same bits."""
    oracle = runtime_session(m)
    conv = any(n.op_type == "Conv" for n in m.graph.node)
    for threads in (1, 3):
        session = smelt.load(bundle, threads=threads)
        for seed, sizes in enumerate(SIZES):
            values = feed(m, [sizes[0], *(max(8, n) for n in sizes[1:])] if conv else sizes, seed)
            want, got = oracle.run(None, values), session.run(None, values)
            for w, g in zip(want, got, strict=True):
                error = compare_arrays("y", g, w, half=half)
                assert error.ok, (sizes, str(error))
            assert all((a == b).all() for a, b in zip(got, session.run(None, values), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_hot_and_other_sizes_are_right(name: str, tmp_path: Path) -> None:
    m = MODELS[name]()
    dims = dims_of(m, DIMS)
    bundle = built(m, tmp_path / "hot", dims)
    assert hot_kernels(bundle)
    agrees(m, bundle)
    plain = built(m, tmp_path / "plain", {n: bounds(d) for n, d in dims.items()})
    # what copies an operand is scheduled once more for one row, asked or not (hot.steps)
    assert all([*k["hot"]["dims"].values()] == [1] for k in hot_kernels(plain))
    assert len(hot_kernels(plain)) < len(hot_kernels(bundle))
    for field in ("weights", "memory", "values", "sizes", "checks", "state", "inputs", "outputs"):
        assert bundle.manifest[field] == plain.manifest[field], field
    assert bundle.manifest["library"]["identity"] == plain.manifest["library"]["identity"]


WAYS: dict[str, dict[str, Any]] = {
    "fp16": {"fp16": True},
    "levels": {"target": "x86"},
    "fast math": {"fast_math": ("sums",), "opt": 1},
    "opencl": {"target": "x86+opencl"},
}


@pytest.mark.table(2)
@pytest.mark.parametrize("name", ["attention", "layers"])
@pytest.mark.parametrize("way", [pytest.param(w, marks=needs_opencl if w == "opencl" else ()) for w in WAYS])
def test_every_way_to_compile(name: str, way: str, tmp_path: Path) -> None:
    m = MODELS[name]()
    bundle = built(m, tmp_path, dims_of(m, DIMS), **WAYS[way])
    found = hot_kernels(bundle)
    assert found and (way != "opencl" or {k["unit"] for k in found} == {"opencl"})
    agrees(m, bundle, half=way == "fp16")


@pytest.mark.parametrize("target", ["arm64", "riscv64", "armv7", "x86+vulkan", "x86+cuda"])
def test_every_target_has_kernels_for_hot_sizes(target: str, tmp_path: Path) -> None:
    onnx.save(layers(), tmp_path / "m.onnx")
    dims, out = dims_of(layers(), DIMS), str(tmp_path / "out")
    request = Request(str(tmp_path / "m.onnx"), dims=dims, target=target, output=out, runner=False)
    unit = target.partition("+")[2]
    rows = compile_here(request).manifest["kernels"] if unit else plan_here(request)["kernels"]
    assert {k["unit"] for k in rows if "hot" in k} == {unit or "cpu"}


def test_entries_and_state(tmp_path: Path, rng: np.random.Generator) -> None:
    """A decode step of one token is hot, beside a prefill; the cache is the session's."""
    paths = {}
    for name, m in LLM.items():
        onnx.save(m, tmp_path / f"{name}.onnx")
        paths[name] = str(tmp_path / f"{name}.onnx")
    dims: dict[str, DimSpec] = {
        "batch": (1, 4, (2,)), "n": (1, 16, (4,)), "decode/past": (0, 32), "decode/seq": (1, 4, (1,)),
    }  # fmt: skip
    request = Request(
        paths["prefill"], entries=tuple(paths.items()), dims=dims, state=DECODER_STATE, name="llm",
        output=str(tmp_path / "out"),
    )  # fmt: skip
    bundle = compile_here(request)
    rows = {e["name"]: [k for k in e.get("kernels", bundle.manifest["kernels"]) if "hot" in k]
            for e in bundle.manifest["entries"]}  # fmt: skip
    assert all(rows.values())
    session, hand = smelt.load(bundle), ByHand()
    for batch, length in ((2, 4), (3, 4), (2, 5)):
        ids = rng.integers(0, 11, (batch, length))
        (logits,) = session["prefill"].run(["logits"], {"ids": ids, "mask": np.zeros(ids.shape, np.float32)})
        np.testing.assert_allclose(logits, hand.prefill(ids), rtol=1e-4, atol=1e-5)
        for past in range(length, length + 3):
            step = {"ids": np.full((batch, 1), 2), "mask": np.zeros((batch, past + 1), np.float32)}
            (logits,) = session["decode"].run(["logits"], step)
            np.testing.assert_allclose(logits, hand.decode(step["ids"]), rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- from dumps and packages


def test_dumps_go_on_with_hot_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    m = layers()
    dims = dims_of(m, DIMS)
    monkeypatch.setenv("SMELT_DUMP", str(tmp_path / "dumps"))
    bundle = built(m, tmp_path, dims)
    monkeypatch.delenv("SMELT_DUMP")
    dumps = sorted((tmp_path / "dumps").glob("*.smelt"))
    assert len(dumps) > 10
    for dump in (dumps[0], dumps[-2], dumps[-1]):
        again = compile_here(Request(str(dump), output=str(tmp_path / "again")))
        assert again.manifest == bundle.manifest, dump.name


def test_packages_carry_hot_sizes(tmp_path: Path) -> None:
    """Finalised in a process of its own, where small kernels do not matter: of a product that does."""
    m = text_model("(float[n, 512] x) => (float[n, 700] y) { y = MatMul (x, w) }", w=numbers(512, 700))
    package = smelt.compile_portable(m, dims={"n": (1, 64, [1])}, output=tmp_path / "package")
    made = finalise(package, "host", output=tmp_path / "out")
    assert [k["hot"]["dims"] for k in hot_kernels(made)] == [{"d0": 1}]
    whole = smelt.compile(m, dims={"n": (1, 64, [1])}, output=tmp_path / "whole")
    assert whole.manifest["kernels"] == made.manifest["kernels"]


# ---------------------------------------------------------------- what is told


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    code = main([str(w) for w in words])
    out = capsys.readouterr()
    return code, out.out + out.err


def test_what_is_told_of_hot_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = built(layers(), tmp_path, dims_of(layers(), DIMS))
    code, text = said(capsys, "inspect", bundle.path, "--kernels")
    assert code == OK and "1..40, fast at 1, 16" in text
    count = len(hot_kernels(bundle))
    assert f", and {count} for hot sizes, launched" in text and text.count("    instead   of ") == count
    file = tmp_path / "m.onnx"
    code, text = said(capsys, "opt", file, "--dim", "n=1..40:opt=1,16", "--dim", "b=1..3:opt=1", "--why")
    assert code == OK and text.count("b=1, n=16") >= 2 and "scheduled again" in text
    code, text = said(capsys, "opt", file, "--dim", "n=1..40:opt=1", "-p", "", "--json")
    assert "sym n in 1..40 hot (1)" in json.loads(text)["module"]


def test_the_kernels_work_is_that_of_the_one_in_whose_place_it_runs(tmp_path: Path) -> None:
    bundle = built(layers(), tmp_path, dims_of(layers(), DIMS))
    rows = {k["name"]: k for k in bundle.manifest["kernels"]}
    assert all(k["work"] == rows[k["hot"]["of"]]["work"] for k in hot_kernels(bundle))


BAD = {
    "n=4:opt=4": "fixed to 4",
    "n=1..8:opt=9": "outside of 1..8: 9",
    "n=2..:opt=1": "outside of 2..*: 1",
    "n=1..8:opt=": "cannot read the dim",
    "n=1..8:opt=1,x": "cannot read the dim",
    "x:2=1..24:opt=3": "always 24",
    "k=1..24:opt=3": "data-dependent sizes have no hot ones",
    "n=1..9:opt=1,2,3,4,5,6,7,8,9": "9 combinations",
}


@pytest.mark.parametrize("dim", BAD)
def test_hot_sizes_that_make_no_sense(
    dim: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(layers(), tmp_path / "m.onnx")
    code, text = said(capsys, "opt", tmp_path / "m.onnx", "--dim", dim, "--why")
    assert code == (USAGE if "cannot read" in BAD[dim] else UNSUPPORTED) and BAD[dim] in text


SPECS: tuple[tuple[DimSpec, str], ...] = (
    (4, "4"), ((1, 8), "1..8"), ((1, None), "1.."), ((1, 8, (2, 3)), "1..8:opt=2,3"),
    ((1, None, (2,)), "1..:opt=2"),
)  # fmt: skip


@pytest.mark.parametrize(("spec", "text"), SPECS)
def test_a_spec_is_spelled_as_it_is_read(spec: DimSpec, text: str) -> None:
    assert spelled_spec(spec) == text and parse_dim_spec(f"n={text}") == ("n", spec)
    assert Request.from_json(Request("m", dims={"n": spec}).to_json()).dims == {"n": spec}
    assert bounds(spec) == (spec if isinstance(spec, int) else spec[:2])


def test_several_dims_in_one_word() -> None:
    words = _NEXT_DIM.sub(" ", "n=1..8:opt=1,2,b=3, x:1=4 seq=1..:opt=5,6 c=7").split()
    assert words == ["n=1..8:opt=1,2", "b=3", "x:1=4", "seq=1..:opt=5,6", "c=7"]


def test_reproducers_have_the_hot_sizes(tmp_path: Path) -> None:
    """What is wrong at a hot size alone is wrong in a compile that has it."""
    bundle = built(layers(), tmp_path, dims_of(layers(), DIMS))
    options = options_of(bundle, tmp_path / "m.onnx", None, None, None, 0)
    assert dict(options.dims) == {"b": (1, 3, (1,)), "n": (1, 40, (1, 16))}
    words = command_of(options, "model.onnx", dict(options.dims))
    assert "n=1..40:opt=1,16" in words and "b=1..3:opt=1" in words
