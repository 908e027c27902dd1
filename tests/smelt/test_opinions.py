"""Before `validate` says mismatch: who else is asked, what is excused, and that planted faults are not."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.bisect import bisect
from smelt.compare import validate
from smelt.difference import compare_values
from smelt.opinions import AS_WRITTEN, EVALUATOR, WITHIN, Opinions, Ruling
from smelt.reference import Reference
from smelt.script import SessionStep
from smelt.shapes import RunCase

Array = np.ndarray[Any, np.dtype[Any]]
K, N, BLOCK = 128, 32, 32


def save(path: Path, nodes: list[onnx.NodeProto], inputs: dict[str, list[Any]], constants: list[Any]) -> Path:
    """A model of float inputs whose one output is that of the last node."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)], constants,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def blocked(path: Path, fault: float = 1.0) -> Path:
    """MatMul of a blocked 4-bit weight: the optimiser rounds the activations to bytes, which no node
    says. fault: one scale of the weight is so many times what it should be."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-8, 8, (K, N))
    scales = rng.uniform(0.02, 0.1, (K // BLOCK, N)).astype(np.float32)
    scales[1, 5] *= fault
    constants = [
        helper.make_tensor("w", TensorProto.INT4, [K, N], codes.reshape(-1).tolist()),
        numpy_helper.from_array(scales, "s"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], "dequantize", axis=0, block_size=BLOCK),
        helper.make_node("MatMul", ["x", "d"], ["m"], "product"),
        helper.make_node("Relu", ["m"], ["y"], "relu"),
    ]
    return save(path, nodes, {"x": ["rows", K]}, constants)


def case() -> RunCase:
    x = np.random.default_rng(1).standard_normal((3, K)).astype(np.float32)
    return RunCase("x:3x128", {"x": x})


def test_a_right_model_passes_though_the_optimiser_contradicts_it(tmp_path: Path) -> None:
    model = blocked(tmp_path / "m.onnx")
    feed = case().feed
    first, written = Reference(model).run(feed), Reference(model, optimise=False).run(feed)
    assert not compare_values("y", first["y"], written["y"])[0].ok, "the optimiser rounds nothing any more"
    (found,) = validate(smelt.compile(model, output=tmp_path / "out"), model, [case()]).cases
    assert found.status == "pass" and AS_WRITTEN in found.why
    assert [e.ok for e in found.outputs] == [True]
    (opinion,) = found.opinions["y"]
    assert opinion.errors[0].ok and not opinion.apart[0].ok


@pytest.mark.parametrize("fault", [1.05, -1.0, float("inf")])
def test_a_fault_planted_in_the_same_model_is_found(tmp_path: Path, fault: float) -> None:
    model = blocked(tmp_path / "m.onnx")
    wrong = smelt.compile(blocked(tmp_path / "wrong.onnx", fault), output=tmp_path / "out")
    (found,) = validate(wrong, model, [case()]).cases
    assert found.status == "mismatch"
    assert [o.who for o in found.opinions["y"]] == [AS_WRITTEN, EVALUATOR]
    assert AS_WRITTEN in found.why and EVALUATOR in found.why


def test_bisect_blames_the_fault_and_not_what_the_optimiser_does(tmp_path: Path) -> None:
    model = blocked(tmp_path / "m.onnx")
    right = smelt.compile(model, output=tmp_path / "right")
    assert bisect(right, model, [SessionStep(case())], ["y"]).first is None
    wrong = smelt.compile(blocked(tmp_path / "wrong.onnx", 1.05), output=tmp_path / "out")
    first = bisect(wrong, model, [SessionStep(case())], ["y"]).first
    assert first is not None and "dequantize" in [s.name for s in first.suspects]


def test_the_evaluator_is_heard(tmp_path: Path) -> None:
    """The largest of NaN and numbers: ONNX Runtime's answer depends on where the NaN stands."""
    model = save(
        tmp_path / "m.onnx", [helper.make_node("ReduceMax", ["x"], ["y"], keepdims=0)], {"x": ["n"]}, []
    )
    feed = {"x": np.float32([1, np.nan, 2, 5, 6, 7, 8, 9])}
    want = Reference(model).run(feed)
    assert want["y"] == 9.0 or want["y"] == 8.0 or not np.isnan(want["y"])
    rule = partial(Opinions(model, compare_values).rule, feed)
    assert rule({"y": np.float32([np.nan])[0:1].reshape(())}, want)["y"].right
    assert not rule({"y": np.array(3.0, np.float32)}, want)["y"].right


def steps(path: Path) -> Path:
    """Floor of a product: a rounding moves some elements by 1."""
    w = np.random.default_rng(2).standard_normal((K, 64 * N)).astype(np.float32) * 1e4
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Floor", ["m"], ["y"])]
    return save(path, nodes, {"x": ["rows", K]}, [numpy_helper.from_array(w, "w")])


def ruling(model: Path, got: Array, spread: bool = True) -> Ruling:
    """On these values, with no tolerance: only the spread can excuse them."""
    strict = partial(compare_values, rtol=0.0, atol=0.0)
    want = Reference(model).run(case().feed)
    return Opinions(model, strict, spread=spread).rule(case().feed, {"y": got}, want)["y"]


def test_the_spread_of_the_reference_excuses_rounding_and_nothing_more(tmp_path: Path) -> None:
    model = steps(tmp_path / "m.onnx")
    x = case().feed["x"]
    rng = np.random.default_rng(3)
    rounded = (x * (1 + 2.0**-21 * rng.uniform(-1, 1, x.shape))).astype(np.float32)
    near = Reference(model).run({"x": rounded})["y"]
    assert (near != Reference(model).run({"x": x})["y"]).any()
    found = ruling(model, near)
    assert found.right and found.why == WITHIN
    assert not ruling(model, near, spread=False).right
    far = near.copy()
    far[1, 7] += 5
    assert not ruling(model, far).right, "one element far away"
    assert not ruling(model, near + np.float32(1)).right, "all elements a step away"
    for poison in (np.nan, np.inf):
        lost = near.copy()
        lost[0, 0] = poison
        assert not ruling(model, lost).right
    assert not ruling(model, near[:2]).right, "another shape"


@pytest.mark.parametrize("op", ["MatMulInteger", "DynamicQuantizeMatMul"])
def test_products_of_bytes_are_exact_on_every_processor(op: str, tmp_path: Path) -> None:
    """Without VNNI ONNX Runtime's default ends sums of two products of u8 and i8 at 2^15."""
    w = np.full((64, 8), 127, np.int8)
    scale = [numpy_helper.from_array(np.float32(1), "s")]
    whole = op == "MatMulInteger"
    node = helper.make_node(op, ["q", "w"] if whole else ["x", "w", "s"], ["i" if whole else "y"],
                            domain="" if whole else "com.microsoft")  # fmt: skip
    nodes = [
        helper.make_node("Cast", ["x"], ["q"], to=TensorProto.UINT8), node,
        helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ] if whole else [node]  # fmt: skip
    path = save(tmp_path / "m.onnx", nodes, {"x": ["rows", 64]}, [numpy_helper.from_array(w, "w"), *scale])
    if not whole:
        m = onnx.load(path)
        m.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        onnx.save(m, path)
    found = Reference(path).run({"x": np.full((4, 64), 255, np.float32)})["y"]
    np.testing.assert_array_equal(found, np.full((4, 8), 255.0 * 127 * 64, np.float32))


def variance(path: Path) -> Path:
    """E[x²] - E[x]² of columns of nearly equal values, and what a normalisation makes of it."""
    a = numpy_helper.from_array(np.int64([0]), "a")
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["q"]), helper.make_node("ReduceMean", ["q", "a"], ["m"]),
        helper.make_node("ReduceMean", ["x", "a"], ["e"]), helper.make_node("Mul", ["e", "e"], ["s"]),
        helper.make_node("Sub", ["m", "s"], ["v"]), helper.make_node("Sqrt", ["v"], ["y"]),
    ]  # fmt: skip
    return save(path, nodes, {"x": ["rows", "columns"]}, [a])


def test_the_order_of_a_sum_is_no_fault_and_other_sums_are(tmp_path: Path) -> None:
    """What cancels leaves the roundings of the sums: no perturbation of the input shows how much."""
    model = variance(tmp_path / "m.onnx")
    x = (0.6 + 3e-3 * np.random.default_rng(4).standard_normal((2048, 16))).astype(np.float32)
    want = Reference(model).run({"x": x})

    def right(got: Array) -> bool:
        return Opinions(model, compare_values).rule({"x": x}, {"y": got.astype(np.float32)}, want)["y"].right

    q, e = ((p.astype(np.float64)).mean(0, keepdims=True) for p in (x * x, x))
    exact = np.sqrt(q - e * e)
    assert not compare_values("y", exact.astype(np.float32), want["y"])[0].ok, "the sums are too exact"
    assert right(exact)
    assert not right(exact * 1.2) and not right(np.sqrt(q - e * e + 1e-5))
