"""Formulas of manifests and answers: short enough for every reader, equal to those that the planner made."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sample_models import MODELS, Model

import smelt
from smelt.cli.main import main
from smelt.compiler import compile_here
from smelt.core.bundle import read_bundle, spelled_dim
from smelt.core.dim import MAX_TEXT, Dim, named_dims, parse_dim
from smelt.core.dim.parts import LONGEST
from smelt.driver import planned
from smelt.formula import memory_text, readable
from smelt.request import Request

FORMULAS = frozenset({"arenas", "bytes", "next", "offset", "parts", "peak_memory", "shape", "sizes", "start"})


def spelt(value: Any, field: str = "") -> Iterator[str]:
    """All texts of a manifest, or of an answer, that are formulas."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from spelt(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from spelt(item, field)
    elif isinstance(value, str) and field in FORMULAS:
        yield value


def dims(manifest: Mapping[str, Any]) -> list[Dim]:
    """What its formulas stand for. Raises ValueError for a text beyond the parser's limit."""
    named = named_dims(manifest["parts"])
    return [parse_dim(text, names=named) for text in spelt({**manifest, "parts": [], "sizes": []})]


@pytest.mark.table(2)
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_every_formula_of_a_model_is_short(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = planned(str(model.path()), "host")
    texts = list(spelt(manifest))
    assert texts and max(map(len, texts)) <= LONGEST
    dims(manifest)
    assert main(["check", str(model.path()), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["memory"] == manifest["memory"] and answer["parts"] == manifest["parts"]


def monster(path: Path, count: int) -> Path:
    """Sums of softmax(x_k @ x_j^T) for pairs of inputs, each of a length of its own: so many orders of sizes
    that the formula of the arena has over 20,000 characters."""
    rng = np.random.default_rng(0)
    matrices = rng.standard_normal((count, 16, 16)).astype(np.float32)
    held = [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(matrices)]
    nodes = []
    for k in range(count):
        nodes.append(helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"a{k}"]))
        nodes.append(helper.make_node("Softmax", [f"a{k}"], [f"b{k}"], axis=0))
    for k in range(count):
        nodes.append(helper.make_node("Transpose", [f"b{(k * 3 + 1) % count}"], [f"t{k}"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", [f"b{k}", f"t{k}"], [f"c{k}"]))
        nodes.append(helper.make_node("Softmax", [f"c{k}"], [f"d{k}"], axis=0))
        nodes.append(helper.make_node("ReduceSum", [f"d{k}"], [f"y{k}"], keepdims=0))
    ports = [
        [helper.make_tensor_value_info(f"{n}{k}", TensorProto.FLOAT, shape(k)) for k in range(count)]
        for n, shape in (("x", lambda k: [f"length_of_the_sequence_number_{k}", 16]), ("y", lambda k: []))
    ]
    graph = helper.make_graph(nodes, "g", *ports, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_a_formula_beyond_the_parsers_limit_is_the_same_number_everywhere(tmp_path: Path) -> None:
    count = 14
    path = monster(tmp_path / "monster.onnx", count)
    bundle = read_bundle(compile_here(Request(source=str(path), target="host", output=str(tmp_path / "out"))))
    manifest = bundle.manifest
    assert len(str(bundle.arenas[0])) > MAX_TEXT, "the model is one that the parser would refuse"
    assert max(map(len, spelt(manifest))) <= LONGEST
    assert spelled_dim(manifest["memory"]["arenas"][0], manifest) is bundle.arenas[0]
    rng = np.random.default_rng(1)
    session = smelt.load(bundle)
    for _ in range(3):
        feeds = {f"x{k}": rng.random((int(rng.integers(1, 90)), 16), np.float32) for k in range(count)}
        lengths = [feeds[f"x{(k * 3 + 1) % count}"].shape[0] for k in range(count)]
        assert np.allclose(session.run(None, feeds), lengths, rtol=1e-4)
        values = bundle.bind({name: a.shape for name, a in feeds.items()})
        needed = bundle.peak_bytes(values)
        assert session.memory().arena_bytes == needed == in_order(manifest, values)
        assert "the largest of" in memory_text(manifest, [values])
    session.close()


def in_order(manifest: Mapping[str, Any], sizes: Mapping[str, int]) -> int:
    """Bytes of the arena as a tool finds them that evaluates one row after the other."""
    env = dict(sizes)
    for name, text in manifest["parts"]:
        env[name] = parse_dim(text).evaluate(env)
    return parse_dim(manifest["memory"]["arenas"][0]).evaluate(env)


@pytest.mark.parametrize(
    ("text", "unit", "arms"),
    [
        ("64*max(n, 3*m)", 64, 2),
        ("128*n + 64*max(n, 3*m, k) + 64*(n*m//64)", 64, 3),
        ("8*n + 64*max(n*m, 3*m)", 1, 2),
        ("max(n, m) + 2*max(n, 3*m, k)", 1, 3),
        ("n*max(n, m) + 5", 1, 1),
        ("n + m", 1, 1),
    ],
)
def test_what_is_added_to_a_maximum_is_in_each_of_its_cases(text: str, unit: int, arms: int) -> None:
    """People read cases, each a sum, and not a sum of maxima."""
    dim = parse_dim(text)
    found = readable(dim)
    assert (found.unit, len(found.arms)) == (unit, arms)
    rng = np.random.default_rng(0)
    for _ in range(20):
        env = {s: int(v) for s, v in zip("nmk", rng.integers(0, 100, 3), strict=True)}
        assert found.unit * max(a.evaluate(env) for a in found.arms) == dim.evaluate(env)
