"""Attention of any form (scales, masks, caps, rows without keys, heads that share keys, sizes that only a run
knows), compiled and run on some threads at some sizes -> ONNX Runtime's result."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from campaign import Outcome, main
from onnx import TensorProto, helper, numpy_helper
from oracle import plain_session

import smelt
from smelt.compiler import compile_here
from smelt.request import Request

EXTENTS = (0, 1, 1, 2, 3, 5, 16, 17, 33, 48, 49, 64, 97, 130)
NORMS = ("Softmax", "Softmax", "Softmax", "LogSoftmax")
RUNS = 3
TOLERANCE = {TensorProto.FLOAT: 2e-5, TensorProto.FLOAT16: 6e-3}
Array = np.ndarray[Any, Any]


@dataclass
class _Graph:
    """Nodes of a model that is made step by step."""

    kind: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def emit(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        name = f"w{len(self.weights)}"
        array = np.array(value, dtype or helper.tensor_dtype_to_np_dtype(self.kind))
        self.weights.append(numpy_helper.from_array(array, name))
        return name


@dataclass(frozen=True)
class _Case:
    """A model, and the sizes that its shapes name."""

    model: onnx.ModelProto
    names: tuple[str, ...]
    fixed: dict[str, int]


def _case(rng: random.Random) -> _Case:
    kind = rng.choice((TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT16))
    g = _Graph(kind)
    heads, share = rng.choice((1, 2, 9)), rng.choice((1, 1, 3))
    depth, width = rng.choice((3, 8)), rng.choice((1, 5, 32))
    sizes = {"batch": rng.choice((1, 2)), "rows": rng.choice(EXTENTS), "keys": rng.choice(EXTENTS)}
    fixed = {n: v for n, v in sizes.items() if rng.random() < 0.3 and v}
    b, s, t = (fixed.get(n, n) for n in ("batch", "rows", "keys"))
    inputs = {"q": [b, heads * share, s, depth], "k": [b, heads, t, depth], "v": [b, heads, t, width]}
    keys, values = (_repeated(g, x, heads, share, inputs[x][-1]) for x in "kv")
    y = g.emit("MatMul", "q", g.emit("Transpose", keys, perm=[0, 1, 3, 2]))
    for step in rng.sample(("scale", "cap", "mask", "where"), rng.randint(0, 3)):
        y = _step(g, step, y, inputs, rng, (b, s, t))
    # the sum of many logarithms of little precision cancels
    norm = rng.choice(NORMS) if kind == TensorProto.FLOAT else "Softmax"
    y = g.emit(norm, y, axis=-1)
    if rng.random() < 0.3:
        y = g.emit("Where", g.emit("IsNaN", y), g.constant(0), y)
    y = g.emit("MatMul", y, values)
    if rng.random() < 0.5:
        y = g.emit("Transpose", y, perm=[0, 2, 1, 3])
    kinds = {n: TensorProto.BOOL if n == "c" else kind for n in inputs}
    made = [helper.make_tensor_value_info(n, kinds[n], d) for n, d in inputs.items()]
    out = helper.make_tensor_value_info(y, kind, None)
    graph = helper.make_graph(g.nodes, "attention", made, [out], g.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return _Case(model, ("batch", "rows", "keys"), fixed)


def _repeated(g: _Graph, x: str, heads: int, share: int, last: int) -> str:
    """x with each of its heads several times, as exporters write it."""
    if share == 1:
        return x
    shape = g.emit("Shape", x)
    batch, length = (g.emit("Gather", shape, g.constant([a], np.int64)) for a in (0, 2))
    end = g.constant([last], np.int64)
    wide = g.emit("Concat", batch, g.constant([heads, share], np.int64), length, end, axis=0)
    joined = g.emit("Concat", batch, g.constant([heads * share], np.int64), length, end, axis=0)
    apart = g.emit("Unsqueeze", x, g.constant([2], np.int64))
    return g.emit("Reshape", g.emit("Expand", apart, wide), joined, allowzero=1)


def _step(g: _Graph, step: str, y: str, inputs: dict[str, list[Any]], rng: random.Random, dims: Any) -> str:
    """What is done to scores before they become weights."""
    b, s, t = dims
    if step == "scale":
        return g.emit(rng.choice(("Mul", "Div")), y, g.constant(rng.choice((0.125, 0.5, 3))))
    if step == "cap":
        return g.emit("Mul", g.emit("Tanh", g.emit("Div", y, g.constant(4))), g.constant(4))
    shape = rng.choice(([b, 1, s, t], [b, 1, 1, t], [1, 1, s, t], [s, t], [t]))
    if step == "mask":
        inputs["m"] = shape
        return g.emit("Add", y, "m")
    inputs["c"] = shape
    low = -np.inf if g.kind == TensorProto.FLOAT16 else rng.choice((-np.inf, -1e4))
    return g.emit("Where", "c", y, g.constant(low))


def _feeds(model: onnx.ModelProto, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for v in model.graph.input:
        dims = v.type.tensor_type.shape.dim
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        dtype = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        x = rng.normal(size=shape)
        if dtype == np.float16:
            x *= 0.3  # where scores are large, f16 says little about their exponentials
        if v.name == "m":
            x = np.where(rng.random(shape) < 0.2, -np.inf, x)
        found[v.name] = x < 1 if v.name == "c" else x.astype(dtype)
    return found


def attack(seed: int) -> Outcome:
    """One model, at some sizes."""
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    case = _case(rng)
    with tempfile.TemporaryDirectory(prefix="smelt-attack-") as folder:
        path = Path(folder) / "m.onnx"
        onnx.save(case.model, path)
        compile_here(Request(str(path), "host", output=f"{folder}/out", runner=False))
        kernels = json.loads(Path(folder, "out", "manifest.json").read_text("utf-8"))["kernels"]
        session, wanted = smelt.load(f"{folder}/out", threads=rng.choice((1, 3))), plain_session(case.model)
        for _ in range(RUNS):
            sizes = {n: case.fixed.get(n) or rng.choice(EXTENTS) for n in case.names}
            feeds = _feeds(case.model, sizes, draw)
            (y,), (want,) = session.run(None, feeds), wanted.run(None, feeds)
            near = TOLERANCE[case.model.graph.input[0].type.tensor_type.elem_type]
            if y.shape != want.shape or not np.allclose(y, want, near, near, equal_nan=True):
                far = np.abs(y - want).max(initial=0) if y.shape == want.shape else "shapes"
                what = f"at {sizes}: {y.shape}, {want.shape}, {far}\n{onnx.printer.to_text(case.model)}"
                return Outcome("differs", True, f"seed {seed} {what}")
    blocks = any("stage_operand" in k["schedule"] for k in kernels)
    return Outcome("agrees in " + ("one kernel" if blocks else "several kernels"))


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or ""))
