"""Random tree ensembles as attributes of ONNX nodes, with every kind of node and unbalanced trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

ML = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
Attributes = dict[str, Any]


def nodes(
    rng: np.random.Generator, trees: int, depth: int, features: int, modes: tuple[str, ...]
) -> Attributes:
    """nodes_* of random trees, some of them a single leaf. Thresholds are often equal to small integers."""
    made: dict[str, list[Any]] = {
        k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }

    def grow(tree: int, number: int, left: int) -> int:
        """Append the subtree whose root has that number; the next free number."""
        at = len(made["treeids"])
        leaf = left == 0 or rng.random() < 0.2
        made["treeids"].append(tree)
        made["nodeids"].append(number)
        made["featureids"].append(0 if leaf else int(rng.integers(features)))
        made["values"].append(
            0.0 if leaf else float(rng.integers(-2, 3) if rng.random() < 0.5 else rng.normal())
        )
        made["modes"].append("LEAF" if leaf else str(rng.choice(modes)))
        made["truenodeids"].append(0)
        made["falsenodeids"].append(0)
        free = number + 1
        if not leaf:
            made["truenodeids"][at] = free
            free = grow(tree, free, left - 1)
            made["falsenodeids"][at] = free
            free = grow(tree, free, left - 1)
        return free

    for tree in range(trees):
        grow(tree, 0, depth if tree % 3 != 2 else 1)
    return {f"nodes_{k}": v for k, v in made.items()}


def missing(rng: np.random.Generator, own: Attributes) -> Attributes:
    """Which nodes send a NaN to their first child."""
    return {"nodes_missing_value_tracks_true": [int(v) for v in rng.integers(0, 2, len(own["nodes_modes"]))]}


def leaves(
    rng: np.random.Generator, own: Attributes, kind: str, targets: int, form: str, low: float = -1.0
) -> Attributes:
    """Weights of the leaves. form: 'all' (each leaf has every target), 'tree' (a tree has one target), 'some'
    (a leaf has one of the targets) or 'first' (all have target 0)."""
    rows: list[tuple[int, int, int, float]] = []
    for tree, node, mode in zip(own["nodes_treeids"], own["nodes_nodeids"], own["nodes_modes"], strict=True):
        if mode != "LEAF":
            continue
        picks = {
            "all": range(targets),
            "tree": [tree % targets],
            "some": [int(rng.integers(targets))],
            "first": [0],
        }[form]
        rows += [(tree, node, t, float(rng.uniform(low, 1))) for t in picks]
    names = ("treeids", "nodeids", "ids", "weights")
    return {f"{kind}_{k}": list(v) for k, v in zip(names, zip(*rows, strict=True), strict=True)}


def model(
    op: str,
    attributes: Attributes,
    outputs: tuple[int, ...],
    dtype: int = TensorProto.FLOAT,
    features: int | str = "f",
    opset: int = 3,
) -> onnx.ModelProto:
    """A model of one node of ai.onnx.ml on x[n, features]; outputs: their element types."""
    names = [f"y{k}" for k in range(len(outputs))]
    node = helper.make_node(op, ["x"], names, domain=ML, **attributes)
    x = helper.make_tensor_value_info("x", dtype, ["n", features])
    made = [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, outputs, strict=True)]
    graph = helper.make_graph([node], "g", [x], made)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, opset)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def rows(rng: np.random.Generator, count: int, features: int, odd: bool = True) -> Any:
    """Features, many of them equal to thresholds; odd: with NaN and infinities."""
    x = np.where(rng.random((count, features)) < 0.5, rng.integers(-2, 3, (count, features)), 0)
    x = np.where(rng.random((count, features)) < 0.5, rng.normal(size=(count, features)), x)
    if odd:
        for value in (np.nan, np.inf, -np.inf):
            x = np.where(rng.random((count, features)) < 0.05, value, x)
    return x
