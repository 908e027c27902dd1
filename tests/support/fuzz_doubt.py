"""A difference from the reference and its model in; whether the reference is unreliable there out: because
rounding alone moves it as far, or because ONNX's own evaluator says what smelt says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from fuzz_graph import Array, Found, walk
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from oracle import plain_session

HALF = 2.0**-10
"""The last bit of 16-bit floats."""
SUMS = frozenset(
    {"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "DFT", "STFT", "CumSum", "ReduceSum", "ReduceMean"}
)
"""Ops whose elements are sums: one that should be 0 is noise, as large as the rounding of its summands."""
FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16})


def difference(got: Array, want: Array) -> str:
    """Empty when they agree: integers exactly, floats within the rounding of their dtype."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"got {got.dtype}{list(got.shape)}, want {want.dtype}{list(want.shape)}"
    if want.dtype.kind != "f":
        bad = got != want
    else:
        half = want.dtype.itemsize == 2
        w, g = want.astype(np.float64), got.astype(np.float64)
        finite = np.abs(w[np.isfinite(w)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        with np.errstate(invalid="ignore"):
            near = np.abs(g - w) <= (2e-2 if half else 1e-3) * np.abs(w) + (1e-2 if half else 1e-5) * scale
        bad = ~(near | (g == w) | (np.isnan(g) & np.isnan(w)))
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} differ, first at {at}: got {got[at]!r}, want {want[at]!r}"


def unstable(found: Found, oracle: Any, feed: dict[str, Array], name: str, want: Array, got: Array) -> bool:
    """Would inputs that differ in their last bits move the reference about as far as we are from it?
    Shapes move too, where data decides them."""
    if got.shape == want.shape and want.dtype.kind not in "fiu":
        return False
    rng = np.random.default_rng(0)
    moved = 0.0
    least = HALF if _has_halves(found.model) else 0.0
    for other in _neighbours(rng, found.model, oracle):
        near = {n: _nudged(rng, a, least) if n in found.loose else a for n, a in feed.items()}
        again = _run(other, name, near)
        if again is None:
            continue
        if got.shape != want.shape and again.shape != want.shape:
            return True
        moved = max(moved, _distance(again, want))
    return got.shape == want.shape and moved * 8 > _distance(got, want)


def contested(found: Found, feed: dict[str, Array], name: str, got: Array) -> bool:
    """Does ONNX's evaluator give what smelt gave? (Extents of empty results, in ONNX Runtime's MatMul.) A
    node that it cannot do is done by ONNX Runtime: it lacks ops, and has faults of its own."""
    values: dict[str, Any] = {t.name: numpy_helper.to_array(t) for t in found.model.graph.initializer}
    values.update(feed)
    for n in found.model.graph.node:
        inner = helper.make_graph([n], n.op_type, [], [onnx.ValueInfoProto(name=o) for o in n.output if o])
        alone = helper.make_model(
            inner, opset_imports=found.model.opset_import, functions=list(found.model.functions)
        )
        reads = {i: values[i] for i in n.input if i}
        try:
            results = ReferenceEvaluator(alone).run(None, reads)
        except Exception:
            results = _alone(alone, reads)
            if results is None:
                return False
        values.update(zip([o for o in n.output if o], results, strict=True))
    want = values.get(name)
    return isinstance(want, np.ndarray) and not difference(got, want)


def _alone(model: onnx.ModelProto, feed: dict[str, Any]) -> list[Any] | None:
    """What ONNX Runtime makes of one node; None when it cannot (a value of a graph around it)."""
    if not all(isinstance(a, np.ndarray) for a in feed.values()):
        return None
    for k, a in feed.items():
        model.graph.input.append(
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        )
    model.ir_version = 10
    try:
        return list(plain_session(model).run(None, feed))
    except Exception:
        return None


def _neighbours(rng: np.random.Generator, model: onnx.ModelProto, oracle: Any) -> Iterator[Any]:
    """Sessions of the model itself and of ones that round a little differently."""
    rounds = any(_quantises(n) for n in walk(model.graph.node))
    for _ in range(8 if rounds else 4):
        yield plain_session(_nudged_scales(rng, model)) if rounds else oracle
    if any(n.op_type in SUMS for n in model.graph.node):
        for _ in range(4):
            yield plain_session(_nudged_sums(rng, model))


def _run(session: Any, name: str, feed: dict[str, Array]) -> Array | None:
    """The output; None where ONNX Runtime has none (the largest of no elements)."""
    try:
        found: Array = session.run([name], feed)[0]
    except Exception:
        return None
    return found


def _nudged_sums(rng: np.random.Generator, model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with what its sums make moved by the last bit of the largest element."""
    other = onnx.shape_inference.infer_shapes(model)
    types = {v.name: v.type.tensor_type.elem_type for v in (*other.graph.value_info, *other.graph.output)}
    nodes: list[onnx.NodeProto] = []
    for n in other.graph.node:
        nodes.append(n)
        if n.op_type not in SUMS or types.get(n.output[0]) not in FLOATS:
            continue
        value, raw = n.output[0], n.output[0] + ".raw"
        n.output[0] = raw
        dtype = helper.tensor_dtype_to_np_dtype(types[value])
        step = np.asarray(float(np.finfo(dtype).eps) * rng.uniform(-2, 2), dtype)
        other.graph.initializer.append(numpy_helper.from_array(step, value + ".step"))
        nodes += [
            helper.make_node("Abs", [raw], [value + ".abs"]),
            helper.make_node("ReduceMax", [value + ".abs"], [value + ".max"], keepdims=0),
            helper.make_node("Mul", [value + ".max", value + ".step"], [value + ".shift"]),
            helper.make_node("Add", [raw, value + ".shift"], [value]),
        ]
    del other.graph.node[:]
    other.graph.node.extend(nodes)
    return other


def _nudged_scales(rng: np.random.Generator, model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with small float constants that differ in their last bits: quotients by a scale stand
    between two integers now and then, and either is right."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    scales = {i for n in walk(model.graph.node) if _quantises(n) for i in n.input}
    for t in other.graph.initializer:
        a = numpy_helper.to_array(t)
        if a.dtype == np.float32 and a.ndim <= 1 and t.name in scales:
            t.CopyFrom(numpy_helper.from_array(_nudged(rng, a), t.name))
    return other


def _quantises(n: onnx.NodeProto) -> bool:
    return "Quant" in n.op_type or n.op_type.startswith("Q")


def _has_halves(model: onnx.ModelProto) -> bool:
    """Whether floats of 16 bits occur: those that the fuzzer draws come from inputs and casts."""
    half = onnx.TensorProto.FLOAT16
    typed = [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]
    casts = [n for n in walk(model.graph.node) if n.op_type in ("Cast", "CastLike")]
    typed += [a.i for n in casts for a in n.attribute if a.name == "to"]
    return half in typed or any(n.op_type == "CastLike" for n in casts)


def _nudged(rng: np.random.Generator, a: Array, least: float = 0.0) -> Array:
    eps = max(float(np.finfo(a.dtype).eps), least)
    return (a * (1 + eps * rng.uniform(-2, 2, a.shape))).astype(a.dtype)


def _distance(a: Array, b: Array) -> float:
    if a.shape != b.shape or not a.size:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        d = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float("inf") if np.isnan(d).any() else float(d.max())
