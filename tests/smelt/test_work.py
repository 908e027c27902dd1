"""The work of kernels: by hand for known ops, and the same whatever entry or dump they are compiled from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from entry_models import LLM, SPEECH
from onnx import numpy_helper, parser

import smelt
from smelt.core.bundle import Bundle, spelled_dim

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '


def compiled(tmp_path: Path, text: str, **weights: np.ndarray[Any, Any]) -> Bundle:
    model = parser.parse_model(HEAD + text)
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in weights.items())
    return smelt.compile(model, "host", output=tmp_path / "out")


def work(bundle: Bundle, *dims: int) -> dict[str, tuple[int, int, int]]:
    """Kernel -> flops, integer operations and bytes with these dims."""
    found = {}
    for k in bundle.manifest["kernels"]:
        names = bundle.manifest["probes"]["callees"][k["name"]]["dims"]
        at = dict(zip(names, dims, strict=False))
        row = {f: spelled_dim(text, {}).evaluate(at) for f, text in k["work"].items()}
        found[k["name"]] = row["flops"], row["integers"], row["bytes"]
    return found


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("n", [1, 9])
def test_a_product(tmp_path: Path, n: int) -> None:
    """Padding to whole vectors is no work."""
    made = compiled(tmp_path, "(float[n, 5] x) => (float[n, 3] y) { y = MatMul (x, w) }", w=normal(5, 3))
    assert list(work(made, n).values()) == [(2 * n * 5 * 3, 0, 4 * (n * 5 + 5 * 3 + n * 3))]


def test_a_softmax_counts_its_sums_once(tmp_path: Path) -> None:
    """In naive loops they stand inside of each element."""
    made = compiled(tmp_path, "(float[n, 10] x) => (float[n, 10] y) { y = Softmax <axis = -1> (x) }")
    ((flops, integers, moved),) = work(made, 4).values()
    # the largest, the sum, the division; differences and exponentials for the sum and for the element
    assert flops == 4 * 10 * 7 and (integers, moved) == (0, 2 * 4 * 10 * 4)


def test_a_table_is_not_read_whole(tmp_path: Path) -> None:
    text = "(int64[n] i) => (float[n, 8] y) { y = Gather (t, i) }"
    flops, _, moved = work(compiled(tmp_path, text, t=normal(1000, 8)), 3)["gather"]
    assert flops == 0 and moved == 3 * 8 + 2 * 3 * 8 * 4


def test_integers_are_counted_apart(tmp_path: Path) -> None:
    text = "(int8[n, 64] x) => (int32[n, 9] y) { y = MatMulInteger (x, w) }"
    weight = np.random.default_rng(0).integers(-9, 9, (64, 9)).astype(np.int8)
    found = work(compiled(tmp_path, text, w=weight), 5)
    assert sum(f for f, _, _ in found.values()) == 0
    assert sum(i for _, i, _ in found.values()) >= 2 * 5 * 64 * 9


def test_a_shared_expression_is_counted_once(tmp_path: Path) -> None:
    """Each line reads the one before twice, so the written-out expression has 2^40 operations."""
    lines = "\n".join(f"a{n + 1} = Mul (a{n}, a{n})" for n in range(40))
    made = compiled(tmp_path, f"(float[n] a0) => (float[n] a40) {{ {lines} }}")
    launches = {k["name"]: k["launches"] for k in made.manifest["kernels"]}
    assert sum(launches[name] * flops for name, (flops, _, _) in work(made, 6).items()) == 40 * 6


def test_every_entry_and_dump_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = smelt.compile(SPEECH, "host", output=tmp_path / "pair")
    for name, model in SPEECH.items():
        alone = smelt.compile(model, "host", output=tmp_path / name)
        rows = [[k["work"] for k in b.manifest["kernels"]] for b in (alone, pair.entry(name))]
        assert rows[0] == rows[1] and len(rows[0]) == len(alone.manifest["kernels"])
    onnx.save(LLM["prefill"], tmp_path / "m.onnx")
    monkeypatch.setenv("SMELT_DUMP", str(tmp_path / "dumps"))
    first = smelt.compile(tmp_path / "m.onnx", "host", output=tmp_path / "first")
    monkeypatch.delenv("SMELT_DUMP")
    for dump in sorted((tmp_path / "dumps").glob("*.smelt"))[-3:]:
        again = smelt.compile(dump, "host", output=tmp_path / f"of-{dump.stem}")
        assert again.manifest["kernels"] == first.manifest["kernels"], dump
