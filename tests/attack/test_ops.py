"""Operators at the edges of their types: fixed seeds of the generators, each operator at least once, and what
they have found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attack_attention
import attack_convolutions
import attack_decoding
import attack_fourier
import attack_lanes
import attack_ops
import attack_packed
import attack_regions
import attack_resize
import attack_table
import attack_windows
import numpy as np
import op_classical
import op_nodes
import op_other_forms
import op_shipped
import pytest
from campaign import Outcome
from op_judge import complaints
from op_nodes import BFLOAT16, Case
from op_ways import by_all

from smelt.importer.bindings import table
from smelt.importer.families import BY_BINDING

INF, NAN = np.inf, np.nan


def f(*values: float, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.array(values, dtype)


# name: (node, its output; None: what ONNX's evaluator and ONNX Runtime say)
FOUND: dict[str, tuple[Case, Any]] = {
    "a fraction as the exponent of an integer": (
        Case("Pow", (np.array([4, 9, 2, 0, -4], np.int32), f(0.5))),
        [2, 3, 1, 0, 0],
    ),
    "a negative exponent of an integer": (
        Case("Pow", (np.array([2, 1, -1, -1, 0], np.int64), np.array([-1, -5, -3, -2, -1]))),
        [0, 1, -1, 1, 0],
    ),
    "an odd exponent that f32 does not hold": (Case("Pow", (f(-1), np.array([2**24 + 1]))), [-1]),
    "an exponent wider than the base": (
        Case("Pow", (np.array([2, 3], np.int32), np.array([2**32, 3]))),
        [0, 27],
    ),
    "the tail of Gelu by tanh": (Case("Gelu", (f(-1e20, 1e20, -30),), {"approximate": "tanh"}), [0, 1e20, 0]),
    "the tail of Gelu by erf": (Case("Gelu", (f(-1e20, 1e20, -30),)), [0, 1e20, 0]),
    "an infinity in an exclusive running sum": (
        Case("CumSum", (f(1, INF, 2), np.array(0)), {"exclusive": 1}, fixed=(1,)),
        [0, 1, INF],
    ),
    "a cancelled running sum": (
        Case("CumSum", (f(1, 1e20, 2), np.array(0)), {"exclusive": 1}, fixed=(1,)),
        [0, 1, 1e20],
    ),
    "the sum of exponentials of large numbers": (
        Case(
            "ReduceLogSumExp", (np.array([[1000, 0]], np.int32), np.array([1])), {"keepdims": 0}, fixed=(1,)
        ),
        [1000],
    ),
    "the mean of whole numbers beyond 2^53": (
        Case("ReduceMean", (np.array([2**53 + 1, 2**53 + 1]), np.array([0])), {"keepdims": 0}, fixed=(1,)),
        2**53 + 1,
    ),
    "NaN as bytes": (
        Case("QuantizeLinear", (f(NAN, -INF, INF), f(1)[0], np.array(4, np.int8))),
        [-128, -128, 127],
    ),
    "a block as long as the axis, of a matrix of one column": (
        Case(
            "DequantizeLinear",
            (np.array([[4], [-2], [7]], np.int8), f(0.5).reshape(1, 1), np.array([[1]], np.int8)),
            {"axis": 0, "block_size": 16},
        ),
        [[1.5], [-1.5], [3]],
    ),
    "boxes whose scores are masked, and no least score": (
        Case(
            "NonMaxSuppression",
            (f(0, 0, 1, 1, 2, 2, 3, 3).reshape(1, 2, 4), f(-INF, 0.5).reshape(1, 1, 2), np.array([9])),
        ),
        [[0, 0, 1], [0, 0, 0]],
    ),
    "bfloat16 as bytes": (Case("Cast", (f(256, -1, NAN, dtype=BFLOAT16),), {"to": 2}), [255, 0, 0]),
    "a sum of three halves is rounded once": (
        Case("Sum", (f(2048, dtype=np.float16), f(1, dtype=np.float16), f(1, dtype=np.float16))),
        [2050],
    ),
    "the sign of zero": (Case("Sign", (f(-0.0, 0.0, NAN),)), [0.0, 0.0, NAN]),
    "the sine of zero": (Case("Sin", (f(-0.0, 0.0),)), [-0.0, 0.0]),
    "a largest bfloat16": (
        Case("MaxPool", (f(1, -2, 3, dtype=BFLOAT16).reshape(1, 1, 3),), {"kernel_shape": [1]}),
        None,
    ),
    "steps of tenths": (
        Case("Range", (f(0.9)[0], f(3.9)[0], f(1.5)[0]), fixed=(0, 1, 2)),
        [0.9, 2.4, float(np.float32(0.9) + np.float32(3))],
    ),
    "steps of fifths": (Case("Range", (f(-2.8)[0], f(-27)[0], f(-2.2)[0]), fixed=(0, 1, 2)), None),
    "the default slope is a float": (
        Case("LeakyRelu", (f(-3, dtype=np.float64),)),
        [-3 * float(np.float32(0.01))],
    ),
    "of equal experts the last": (
        Case(
            "MoE",
            (
                *(np.zeros(s, np.float32) for s in ((3, 2), (3, 4), (4, 2, 2), (4, 2), (4, 2, 2))),
                np.arange(8, dtype=np.float32).reshape(4, 2),
            ),
            {"k": 2, "activation_type": "identity"},
            domain="com.microsoft",
            version=1,
        ),
        [[2.5, 3]] * 3,
    ),
    "a threshold between integers": (
        Case("Binarizer", (np.array([[2, 3, -1]]),), {"threshold": 2.5}, domain="ai.onnx.ml", version=1),
        [[0, 1, 0]],
    ),
    "a threshold below all integers": (
        Case("Binarizer", (np.array([[2, 3, -1]]),), {"threshold": -1e30}, domain="ai.onnx.ml", version=1),
        [[1, 1, 1]],
    ),
}


@pytest.mark.parametrize("seed", range(attack_ops.SLICES))
def test_operators(seed: int) -> None:
    found = attack_ops.attack(seed)
    assert not found.failed, found.detail


NOT_DRAWN: dict[str, frozenset[str]] = {
    "its graphs are a model each: the fuzzer draws them": frozenset({"If", "Loop", "Scan"}),
    "its numbers are random: tests/smelt/test_random.py": frozenset({
        "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
        "RandomUniformLike",
    }),
    "no tensors: tests/importer/test_sequences.py": frozenset({
        "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt",
        "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
        "SplitToSequence",
    }),
    "strings: tests/importer/test_strings.py": frozenset({
        "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit",
    }),
    "attack_resize draws it": frozenset({"Resize", "Upsample"}),
    "it is its attribute": frozenset({"Constant"}),
    "the standard domain's is drawn": frozenset({"com.microsoft.SimplifiedLayerNormalization"}),
    "the fuzzer draws it": frozenset({"com.microsoft.BiasSoftmax"}),
    "maps or strings: tests/families": frozenset({
        "ai.onnx.ml.CastMap", "ai.onnx.ml.CategoryMapper", "ai.onnx.ml.DictVectorizer", "ai.onnx.ml.ZipMap",
        "com.microsoft.Tokenizer",
    }),
}  # fmt: skip
"""Operators that attack_ops does not draw, by reason."""


def test_every_operator_is_drawn_or_listed() -> None:
    drawn = {*op_nodes.operators(), *op_shipped.operators()}
    drawn |= {*op_other_forms.operators(), *(f"ai.onnx.ml.{op}" for op in op_classical.CLASSICAL)}
    listed = frozenset[str]().union(*NOT_DRAWN.values())
    assert sum(map(len, NOT_DRAWN.values())) == len(listed)
    bound = {f"{domain}.{name}".lstrip(".") for domain, name in (*table._TABLE, *BY_BINDING)}
    assert bound - drawn == listed


@pytest.mark.parametrize("seed", range(attack_table.SLICES))
def test_rows_of_the_table(seed: int) -> None:
    found = attack_table.attack(seed)
    assert not found.failed, found.detail


def test_resize() -> None:
    found = attack_resize.attack(0)
    assert not found.failed, found.detail


DRAWN: dict[str, tuple[Callable[[int], Outcome], int]] = {
    "windows": (attack_windows.attack, 4),
    "convolutions": (attack_convolutions.attack, 2),
    "regions": (attack_regions.attack, 2),
    "fourier": (attack_fourier.attack, 1),
    "packed": (attack_packed.attack, 2),
    "decoding": (attack_decoding.attack, 1),
}
"""Generators of models that are built in drawn ways, with how many seeds of each are run here."""


@pytest.mark.parametrize(("name", "seed"), [(n, s) for n, (_, count) in DRAWN.items() for s in range(count)])
def test_drawn_models(name: str, seed: int) -> None:
    found = DRAWN[name][0](seed)
    assert not found.failed, found.detail


@pytest.mark.parametrize("seed", range(4))
def test_lanes(seed: int) -> None:
    found = attack_lanes.attack(seed)
    assert not found.failed, found.detail


def test_attention() -> None:
    """Half of the fixed seeds are one kernel; one has a row and a column alone, at a hot size."""
    found = [attack_attention.attack(seed) for seed in range(6)]
    assert not any(o.failed for o in found), [o.detail for o in found if o.failed]
    assert sum(o.what == "agrees in one kernel" for o in found) >= len(found) // 2


def test_what_was_found() -> None:
    for (name, (_, wanted)), ways in zip(FOUND.items(), by_all([c for c, _ in FOUND.values()]), strict=True):
        assert not ways.refused, (name, ways.refused)
        assert not list(complaints(ways)), (name, list(complaints(ways)))
        if wanted is not None:
            assert ways.compiled is not None
            y = ways.compiled[0]
            want = np.asarray(wanted).astype(y.dtype).reshape(y.shape)
            np.testing.assert_array_equal(y, want, name)
            if "of zero" in name:
                np.testing.assert_array_equal(np.signbit(y) & (y == 0), np.signbit(want) & (want == 0), name)
