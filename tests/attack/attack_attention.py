"""Attention of any form (scales, masks, caps, rows without keys, heads that share keys, sizes that only a run
knows, a past), in parts or as the operator, built in drawn ways and run at some sizes -> ONNX Runtime's
result, or of the operator that of ONNX's evaluator, where it is another one."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from campaign import Outcome, main
from drawn_builds import Drawn, built, with_build
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from oracle import plain_session

from smelt.core.diag import SmeltError
from smelt.session import Session

EXTENTS = (0, 1, 1, 2, 3, 5, 16, 17, 33, 48, 49, 64, 97, 130)
BATCHES = (0, 1, 1, 2, 3, 5)
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
    operator: bool = False


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


def _operator(rng: random.Random) -> _Case:
    """Attention of opset 23 or 24, all of its inputs, outputs and attributes."""
    kind = rng.choice((TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT16))
    heads, share, opset = rng.choice((1, 2, 3)), rng.choice((1, 1, 3)), rng.choice((23, 24))
    depth, width = rng.choice((2, 8)), rng.choice((1, 5, 32))
    sizes = {"batch": rng.choice((1, 2)), "rows": rng.choice(EXTENTS), "keys": rng.choice(EXTENTS)}
    fixed = {n: v for n, v in sizes.items() if rng.random() < 0.3 and v}
    b, s, t = (fixed.get(n, n) for n in ("batch", "rows", "keys"))
    inputs: dict[str, list[Any]] = {
        "q": [b, heads * share, s, depth], "k": [b, heads, t, depth], "v": [b, heads, t, width],
    }  # fmt: skip
    attrs: dict[str, Any] = {"is_causal": rng.randrange(2)}
    if rng.random() < 0.5:
        inputs = {n: [d[0], d[2], d[1] * d[3]] for n, d in inputs.items()}
        attrs |= {"q_num_heads": heads * share, "kv_num_heads": heads}
    attrs |= {"scale": rng.choice((0.25, 1.0))} if rng.random() < 0.3 else {}
    attrs |= {"softcap": rng.choice((2.0, 30.0))} if rng.random() < 0.3 else {}
    given, past = ["q", "k", "v", "", "", ""], rng.random() < 0.5
    if past:
        inputs |= {"pk": [b, heads, "past", depth], "pv": [b, heads, "past", width]}
        given[4:] = ["pk", "pv"]
    if rng.random() < 0.6:
        name, total = rng.choice("mc"), f"past+{t}" if past else t
        inputs[name] = rng.choice(
            ([s, total], [1, 1, s, total], [b, 1, s, total], [b, heads * share, s, total])
        )
        given[3] = name
    outputs = ["y"]
    if past or rng.random() < 0.3:
        outputs += ["present_k", "present_v"] if past else ["", ""]
        if rng.random() < 0.3:
            outputs.append("qk")
            attrs["qk_matmul_output_mode"] = rng.randrange(4)
    while not given[-1]:
        given.pop()
    while not outputs[-1]:
        outputs.pop()
    kinds = {n: TensorProto.BOOL if n == "c" else kind for n in inputs}
    made = [helper.make_tensor_value_info(n, kinds[n], d) for n, d in inputs.items()]
    graph = helper.make_graph(
        [helper.make_node("Attention", given, outputs, **attrs)], "attention", made,
        [helper.make_tensor_value_info(n, kind, None) for n in outputs if n],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    names = ("batch", "rows", "keys", "past") if past else ("batch", "rows", "keys")
    return _Case(model, names, fixed, operator=True)


def _feeds(model: onnx.ModelProto, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for v in model.graph.input:
        dims = v.type.tensor_type.shape.dim
        shape = [_extent(d, sizes) for d in dims]
        dtype = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
        x = rng.normal(size=shape)
        if dtype == np.float16:
            x *= 0.3  # where scores are large, f16 says little about their exponentials
        if v.name == "m":
            x = np.where(rng.random(shape) < 0.2, -np.inf, x)
        found[v.name] = x < 1 if v.name == "c" else x.astype(dtype)
    return found


def _extent(d: onnx.TensorShapeProto.Dimension, sizes: dict[str, int]) -> int:
    """A number, a named size, or the sum of the past's and the keys'."""
    together = sizes["past"] + sizes["keys"] if "+" in d.dim_param else 0
    return sizes.get(d.dim_param, together) if d.dim_param else int(d.dim_value)


def _drawn(seed: int) -> tuple[_Case, Drawn]:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    case = rng.choice((_case, _case, _operator))(rng)
    extents = {n: BATCHES if n == "batch" else EXTENTS for n in case.names}
    runs = [{n: case.fixed.get(n) or rng.choice(e) for n, e in extents.items()} for _ in range(RUNS)]
    return case, with_build(seed, case.model, [_feeds(case.model, sizes, draw) for sizes in runs])


def drawn(seed: int) -> Drawn:
    """One model, at some sizes, built in one way."""
    return _drawn(seed)[1]


def attack(seed: int) -> Outcome:
    """What comes of it."""
    case, made = _drawn(seed)
    text = f"seed {seed}, {made.build}\n{onnx.printer.to_text(case.model)}"
    try:
        with built(made) as (session, bundle):
            kernels = bundle.manifest["kernels"]
            for feeds in made.feeds:
                said = _compared(case, feeds, session)
                if said:
                    shapes = {n: list(a.shape) for n, a in feeds.items()}
                    return Outcome("differs", True, f"{text}\nat {shapes}: {said}")
    except SmeltError as e:
        return Outcome("refused", True, f"{text}\n{e}")
    blocks = any("stage_operand" in k["schedule"] for k in kernels)
    return Outcome("agrees in " + ("one kernel" if blocks else "several kernels"))


def _compared(case: _Case, feeds: Mapping[str, Array], session: Session) -> str:
    """What is other than both references have it; '' when nothing is."""
    names = [o.name for o in case.model.graph.output]
    got, said = session.run(names, feeds), []
    for reference in (plain_session, ReferenceEvaluator) if case.operator else (plain_session,):
        try:
            wanted = reference(case.model).run(names, feeds)
        except Exception:  # ONNX Runtime wants rows and keys, the evaluator lacks types
            continue
        now = _differences(case, names, got, wanted)
        if not now:
            return ""
        said.append(f"{reference.__name__}: {now}")
    return "; ".join(said)


def _differences(case: _Case, names: list[str], got: list[Array], wanted: list[Array]) -> str:
    near = TOLERANCE[case.model.graph.input[0].type.tensor_type.elem_type]
    for name, y, want in zip(names, got, wanted, strict=True):
        if y.shape != want.shape:
            return f"{name}: {y.shape}, {want.shape}"
        if not np.allclose(y, want, near, near, equal_nan=True):
            with np.errstate(invalid="ignore"):
                far = np.nanmax(np.abs(y - want), initial=0)
            return f"{name}: {far}, NaN {np.isnan(y).sum()} times, wanted {np.isnan(want).sum()} times"
    return ""


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or ""))
