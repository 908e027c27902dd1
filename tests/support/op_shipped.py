"""An operator of which ONNX ships cases -> a node of one of them in some type, with values at the edges."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper
from op_nodes import DRAWS, Case, pick, version_of
from op_values import Array, edges, kind

from smelt.conformance import single
from smelt.conformance.cases import Shipped
from smelt.conformance.dtypes import CONTROL, in_dtype, variables
from smelt.conformance.judge import RANDOM
from smelt.importer.bindings import find

ELSEWHERE = frozenset(DRAWS) | CONTROL | RANDOM | {
    # their own generators and tests: see attack_resize, tests/importer/test_strings and test_sequences
    "Resize", "Upsample", "Constant", "Dropout", "ImageDecoder", "OptionalGetElement", "OptionalHasElement",
    "SplitToSequence",
}  # fmt: skip
MOVES = frozenset({
    "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Pad",
    "Reshape", "ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze",
    "Tile", "Transpose", "Trilu", "Unsqueeze", "OneHot", "CenterCropPad", "Scatter",
})  # fmt: skip
"""Operators that compute nothing: any value goes through as it is."""


@cache
def operators() -> tuple[str, ...]:
    """Operators of the standard domain with a case that smelt binds and that no draw makes."""
    return tuple(o for o in single.operators() if "." not in o and o not in ELSEWHERE and _usable(o)[1])


@cache
def _usable(op: str) -> tuple[int, tuple[Shipped, ...]]:
    """An opset and cases of tensors of the operator as it is there: the usual one, or the newest."""
    both = ((v, _cases_of(op, v)) for v in (version_of(op), onnx.defs.onnx_opset_version()))
    return next(((v, cases) for v, cases in both if cases), (0, ()))


def _cases_of(op: str, opset: int) -> tuple[Shipped, ...]:
    if find("", op, opset) is None:
        return ()
    newest = onnx.defs.get_schema(op, opset, "")
    found = []
    for s in single.candidates(op)[:12]:
        version = single.version_of(s.model, "")
        arrays = all(isinstance(a, np.ndarray) and a.dtype.kind in "fiubV" for a in s.data[0][0])
        small = arrays and sum(int(np.size(a)) for a in s.data[0][0]) < 3000
        if small and _alike(onnx.defs.get_schema(op, version, ""), newest):
            found.append(s)
    return tuple(found)


def _alike(a: Any, b: Any) -> bool:
    """Whether two versions of an operator have the same parameters: some only add element types."""
    same = [p.name for p in (*a.inputs, *a.outputs)] == [p.name for p in (*b.inputs, *b.outputs)]
    return same and a.attributes.keys() == b.attributes.keys()


def draw(rng: np.random.Generator, op: str) -> Case | None:
    """A node of the operator; None where the case that was drawn has no such type."""
    opset, usable = _usable(op)
    base = pick(rng, usable)
    every = ((v, t) for v, types in variables(op).items() for t in types)
    choices = sorted((v, t) for v, t in every if t not in ("string", "bool", "complex64", "complex128"))
    if choices and rng.random() < 0.7:
        made = in_dtype(op, *pick(rng, choices))
        base = made if isinstance(made, Shipped) else base
    node = single.node_of(base.model, op)
    assert node is not None
    feed = single.feed_of(base)
    feed |= {n.output[0]: onnx.numpy_helper.to_array(n.attribute[0].t) for n in base.model.graph.node
             if n.op_type == "Constant" and n.attribute[0].HasField("t")}  # fmt: skip
    feed |= {t.name: onnx.numpy_helper.to_array(t) for t in base.model.graph.initializer}
    if any(n and not isinstance(feed.get(n), np.ndarray) for n in node.input):
        return None
    if any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute) or "" in node.output:
        return None
    arrays = [feed[n] if n else None for n in node.input]
    whole = [a is not None and kind(a.dtype) in "iu" and a.ndim < 2 for a in arrays]
    fixed = tuple(i for i, w in enumerate(whole) if w and i)
    if op in MOVES and arrays[0] is not None:
        arrays[0] = _edged(rng, arrays[0])
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return Case(op, tuple(arrays), attrs, len(node.output), fixed, version=opset)


def _edged(rng: np.random.Generator, a: Array) -> Array:
    """A third of the elements at the edges of their type."""
    found: Any = np.array(a)
    if a.dtype.kind not in "fiub":
        return found
    pool, flat = edges(a.dtype), found.reshape(-1)
    at = rng.random(flat.size) < 0.3
    flat[at] = pool[rng.integers(len(pool), size=int(at.sum()))]
    return found
