"""Random models agree with ONNX Runtime: a few fixed seeds, and every finding of `make fuzz` so far."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fuzz_graph
import numpy as np
import onnx
import pytest
from fuzz_graph import Found, build
from fuzz_shrink import shrink
from fuzzer import Options, Verdict, campaign, difference, judged
from onnx import helper

from smelt.importer.bindings import BINDINGS

F32, I64 = "float32", "int64"
node = helper.make_node


def test_fixed_seeds() -> None:
    tally = campaign(itertools.islice(itertools.count(7000), 10), seconds=25, shrinking=0)
    assert not tally.failures, "\n".join(tally.scripts.values())
    assert tally.counts["ok"] >= 3, tally.counts


# ---------------------------------------------------------------- findings


def found(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[str, Sequence[int | str]]],
    outputs: Mapping[str, str],
    constants: Mapping[str, Any],
    *sizes: Mapping[str, int],
    opset: int = 18,
) -> Found:
    """A finding, with inputs of small whole numbers at these sizes."""
    m = build(
        nodes, [(n, np.dtype(d), s) for n, (d, s) in inputs.items()],
        [(n, np.dtype(d)) for n, d in outputs.items()], {n: np.asarray(a) for n, a in constants.items()},
        opset,
    )  # fmt: skip
    rng = np.random.default_rng(0)

    def feed(env: Mapping[str, int]) -> dict[str, Any]:
        shapes = {n: [env.get(e, e) for e in s] for n, (_, s) in inputs.items()}  # type: ignore[arg-type]
        return {n: np.asarray(rng.integers(-4, 5, shapes[n])).astype(d) for n, (d, _) in inputs.items()}

    return Found(m, tuple(feed(env) for env in sizes))


def arm(last: onnx.NodeProto, kind: int = onnx.TensorProto.FLOAT) -> onnx.GraphProto:
    """A branch of one node, whose output has elements of that kind."""
    return helper.make_graph([last], "arm", [], [helper.make_tensor_value_info(last.output[0], kind, None)])


FINDINGS: dict[str, Found] = {
    # a transpose was moved behind an op that asks for the element's position
    "trilu-of-transpose": found(
        [node("Transpose", ["x"], ["t"], perm=[1, 4, 0, 3, 2]), node("Trilu", ["t"], ["y"], upper=0)],
        {"x": ("int32", ["M", "M", "M", 2, "N"])}, {"y": "int32"}, {}, {"M": 16, "N": 7}, {"M": 3, "N": 4},
    ),
    # a reshape divided by the product of extents, which was 0
    "reshape-of-nothing": found(
        [
            node("Gather", ["x", "none"], ["a"], axis=-1),
            node("Sqrt", ["a"], ["b"]),
            node("Reshape", ["b", "shape"], ["y"]),
        ],
        {"x": (F32, ["N", "N", 3])}, {"y": F32},
        {"none": np.zeros((0, 2), np.int64), "shape": np.array([-1, 1, 2])}, {"N": 5}, {"N": 1},
    ),
    # 0 / 0 along the axis
    "norm-of-zeros": found(
        [node("Mul", ["x", "zero"], ["z"]), node("LpNormalization", ["z"], ["y"], axis=0, p=1)],
        {"x": (F32, ["N", 2])}, {"y": F32}, {"zero": np.float32([0, 1])}, {"N": 1}, {"N": 4},
    ),
    # ceil_mode lets a window begin inside that ends beyond
    "window-wider-than-the-input": found(
        [node("AveragePool", ["x"], ["y"], ceil_mode=1, kernel_shape=[1, 2], strides=[1, 3])],
        {"x": (F32, [1, 1, "H", 1])}, {"y": F32}, {}, {"H": 1}, {"H": 5},
    ),
    # extents of 0 seemed to pair axes, and the reshape moved above the slice
    "reshape-of-an-empty-slice": found(
        [
            node("Slice", ["x", "one", "zero", "zero"], ["a"]),
            node("Reshape", ["a", "none"], ["y"], allowzero=1),
        ],
        {"x": (F32, [1, "N"])}, {"y": F32},
        {"one": np.array([1]), "zero": np.array([0]), "none": np.array([0])}, {"N": 5}, {"N": 1},
    ),
    # the size of what a branch makes was wanted, and nothing else of it: the branch was dropped
    "size-of-a-branch": found(
        [
            node(
                "If", ["f"], ["a"],
                then_branch=arm(node("Concat", ["x", "x"], ["t"], axis=0)),
                else_branch=arm(node("Identity", ["x"], ["e"])),
            ),
            node("Shape", ["a"], ["y"]),
        ],
        {"x": (F32, [1, "N"]), "f": ("bool", [])}, {"y": I64}, {}, {"N": 2}, {"N": 3}, {"N": 5},
    ),
    # a computed extent of 0 or 1 never equals 2, and was refused instead of broadcast
    "slice-of-one-that-broadcasts": found(
        [
            node("Slice", ["x", "from", "to", "zero"], ["a"]),
            node("Add", ["a", "z"], ["y"]),
        ],
        {"x": (F32, ["N"]), "z": (F32, [2])}, {"y": F32},
        {"from": np.array([-2]), "to": np.array([-1]), "zero": np.array([0])}, {"N": 5}, {"N": 2},
    ),
    # the offset of a plane's positions, min(h, 1) by min(w, 1), was taken to be as large as the pooled plane
    "positions-less-their-first": found(
        [
            node("MaxPool", ["x"], ["pooled", "positions"], kernel_shape=[2, 2], strides=[2, 2]),
            node("MaxPool", ["x"], ["same", "all"], kernel_shape=[1, 1], strides=[1, 1]),
            node("Slice", ["all", "zero", "one", "axes"], ["first"]),
            node("Sub", ["positions", "first"], ["y"]),
        ],
        {"x": (F32, ["b", 3, "h", "w"])}, {"pooled": F32, "y": I64},
        {"zero": np.array([0, 0]), "one": np.array([1, 1]), "axes": np.array([2, 3])},
        {"b": 2, "h": 9, "w": 12}, {"b": 1, "h": 2, "w": 3}, {"b": 3, "h": 16, "w": 11},
    ),
    # planning looked at small sizes, at which a number of windows that divides is 0, and divided by it
    "division-by-a-number-of-windows": found(
        [
            node("Shape", ["x"], ["sizes"]),
            node("Split", ["sizes"], ["b", "h", "w"], num_outputs=3),
            node("Div", ["h", "side"], ["down"]),
            node("Div", ["w", "side"], ["across"]),
            node("Mul", ["down", "across"], ["windows"]),
            node("Mul", ["b", "h"], ["rows"]),
            node("Div", ["rows", "windows"], ["n"]),
            node("Expand", ["one", "n"], ["ones"]),
            node("CumSum", ["ones", "axis"], ["sums"]),
            node("CumSum", ["sums", "axis"], ["y"]),
        ],
        {"x": (F32, ["b", "h", "w"])}, {"y": F32},
        {"side": np.array([16]), "one": np.array([1], np.float32), "axis": np.array(0)},
        {"b": 2, "h": 32, "w": 32}, {"b": 3, "h": 47, "w": 17}, {"b": 1, "h": 16, "w": 16},
    ),
    # a size of the input was replaced by the one that equals it and that the values of the sequence decide
    "a-size-before-it-is-known": found(
        [
            node("SplitToSequence", ["x", "two"], ["parts"], axis=0),
            node("ConcatFromSequence", ["parts"], ["y"], axis=0),
        ],
        {"x": (F32, ["2*N"])}, {"y": F32}, {"two": np.array(2)}, {"2*N": 66}, {"2*N": 7}, {"2*N": 1},
    ),
    # kernels took sizes for 0 or more that only a run knows and that may be less: what a Pad cuts off
    "pads-that-cut": found(
        [node("Pad", ["x", "pads"], ["y"])],
        {"x": (F32, ["N", "M"]), "pads": (I64, [4])}, {"y": F32}, {},
        {"N": 9, "M": 10}, {"N": 12, "M": 9}, {"N": 10, "M": 17},
    ),
    # memory of a size that an arm decides was reserved anew before what the arm had made was copied there
    "size-that-an-arm-decides": found(
        [
            node(
                "If", ["f"], ["a"],
                then_branch=arm(node("NonZero", ["x"], ["t"]), onnx.TensorProto.INT64),
                else_branch=arm(node("NonZero", ["x"], ["e"]), onnx.TensorProto.INT64),
            ),
            node("Transpose", ["a"], ["places"]),
            node("GatherND", ["x", "places"], ["y"]),
        ],
        {"x": (F32, ["N", "M"]), "f": ("bool", [])}, {"y": F32}, {},
        {"N": 2, "M": 5}, {"N": 7, "M": 40}, {"N": 17, "M": 33},
    ),
    # empty spatial axes
    "convolution-of-nothing": found(
        [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        {"x": (F32, ["N", 2, "H", "W"])}, {"y": F32}, {"w": np.ones((3, 2, 3, 3), np.float32)},
        {"N": 2, "H": 4, "W": 5}, {"N": 0, "H": 4, "W": 5}, {"N": 1, "H": 1, "W": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(FINDINGS))
def test_findings_stay_fixed(name: str) -> None:
    for options in (Options(3), Options(0)):
        verdict = judged(FINDINGS[name], options)
        assert not verdict.failed, verdict


# ---------------------------------------------------------------- the fuzzer itself

NOT_DRAWN = {
    "a generator of random numbers of its own": (
        "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
    ),
    "text": ("StringConcat", "StringSplit", "StringNormalizer", "RegexFullMatch"),
    "ONNX Runtime has no such kernel for processors": ("CausalConvWithState",),
    "an experiment that ended with opset 10": (
        "Affine", "Crop", "DynamicSlice", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh",
    ),
}  # fmt: skip


def test_every_op_is_drawn_or_there_is_a_reason() -> None:
    """Of the standard's; by the names in the steps' source."""
    sources = "".join(p.read_text() for p in Path(fuzz_graph.__file__).parent.glob("fuzz_*.py"))
    excused = {n for names in NOT_DRAWN.values() for n in names}
    bound = {name for domain, name in BINDINGS if not domain}
    missing = sorted(n for n in bound - excused if f'"{n}"' not in sources)
    assert not missing, f"neither drawn nor excused: {', '.join(missing)}"


def test_the_oracle_is_awake() -> None:
    good = np.linspace(0, 1, 12, dtype=np.float32)
    assert not difference(good, good.copy())
    assert difference(good + np.float32(0.01), good)
    assert difference(good[:6], good)
    assert difference(np.array([1, 2]), np.array([1, 3]))
    assert not difference(np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]))
    assert difference(np.float32([1.0]), np.float32([np.nan]))
    assert Verdict("mismatch").failed
    assert not Verdict("ok").failed


def test_failures_shrink_to_the_node_that_fails() -> None:
    names = [f"v{k}" for k in range(9)]
    chain = [node("Abs" if k != 5 else "Neg", [a], [b]) for k, (a, b) in enumerate(itertools.pairwise(names))]
    whole = found(chain, {"v0": (F32, ["N"])}, {"v8": F32}, {}, {"N": 2}, {"N": 3}, {"N": 5})
    small = shrink(whole, lambda f: any(n.op_type == "Neg" for n in f.model.graph.node), 20)
    assert [n.op_type for n in small.model.graph.node] == ["Neg"]
    assert len(small.feeds) == 1
