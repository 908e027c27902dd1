"""Decoders of several layers over a cache, as exporters write them: attention as one operator, or in parts.

Both read tokens and the mask that their exporter asks for; `past_*` are replaced by `present_*`. RMS norm,
rotary positions, a gated product, a head that shares the embedding's weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from smelt.compiler import compile_here
from smelt.driver import Request

Array = np.ndarray[Any, np.dtype[Any]]

HEADS, GROUPS, SIZE, WIDE, TOKENS, POSITIONS = 4, 2, 16, 48, 40, 64
HIDDEN = HEADS * SIZE
STATE = {"past_*": "present_*"}
F, I64, I32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


class _Net:
    def __init__(self, products: int) -> None:
        self.products = products
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.rng = np.random.default_rng(5)

    def __call__(self, op: str, *inputs: str, out: str | list[str] = "", **attributes: Any) -> str:
        """The name of a node's first output."""
        outputs = out if isinstance(out, list) else [out or f"v{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, inputs, outputs, name=f"n{len(self.nodes)}", **attributes))
        return outputs[0]

    def weight(self, name: str, *shape: int) -> str:
        self.weights[name] = (self.rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return name

    def integers(self, *values: int) -> str:
        name = "i" + "_".join(str(v).replace("-", "m") for v in values)
        self.weights[name] = np.array(values, np.int64)
        return name

    def norm(self, x: str, name: str) -> str:
        """x over the root of its mean square, times a weight."""
        self.weights[name] = np.linspace(0.5, 1.5, HIDDEN).astype(np.float32)
        self.weights["eps"], self.weights["two"] = np.float32(1e-5), np.float32(2)
        mean = self("ReduceMean", self("Pow", x, "two"), axes=[-1], keepdims=1)
        root = self("Sqrt", self("Add", mean, "eps"))
        return self("Mul", self("Div", x, root), name)

    def gated(self, x: str, n: int) -> str:
        """x after layer n's gated product, where that has one."""
        if n >= self.products:
            return x
        return self("Add", x, self._gated(self.norm(x, f"after{n}"), n))

    def _gated(self, x: str, n: int) -> str:
        up = self("MatMul", x, self.weight(f"up{n}", HIDDEN, WIDE))
        gate = self("MatMul", x, self.weight(f"gate{n}", HIDDEN, WIDE))
        gate = self("Mul", gate, self("Sigmoid", gate))
        return self("MatMul", self("Mul", gate, up), self.weight(f"down{n}", WIDE, HIDDEN))

    def projections(self, x: str, n: int) -> list[str]:
        widths = {"q": HIDDEN, "k": GROUPS * SIZE, "v": GROUPS * SIZE}
        return [self("MatMul", x, self.weight(f"w{c}{n}", HIDDEN, w)) for c, w in widths.items()]


def _grouped(net: _Net, layers: int) -> list[onnx.ValueInfoProto]:
    """com.microsoft's GroupQueryAttention; a mask of ones says how long everything is."""
    length = net("Gather", net("Shape", "attention_mask"), net.integers(1), axis=0)
    total = net("Cast", length, to=I32)
    sums = net("ReduceSum", "attention_mask", net.integers(1), keepdims=1)
    last = net("Cast", net("Sub", sums, net.integers(1)), to=I32)
    angles = np.outer(np.arange(POSITIONS), 10.0 ** -np.arange(SIZE // 2))
    net.weights["cos"], net.weights["sin"] = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
    x = net("Gather", net.weight("embed", TOKENS, HIDDEN), "input_ids")
    for n in range(layers):
        q, k, v = net.projections(net.norm(x, f"before{n}"), n)
        past = [f"past_key.{n}", f"past_value.{n}"]
        present = [f"present_key.{n}", f"present_value.{n}"]
        a = net(
            "GroupQueryAttention", q, k, v, *past, last, total, "cos", "sin", out=[f"a{n}", *present],
            domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1,
        )  # fmt: skip
        x = net("Add", x, net("MatMul", a, net.weight(f"wo{n}", HIDDEN, HIDDEN)))
        x = net.gated(x, n)
    net("MatMul", net.norm(x, "last"), net("Transpose", "embed", perm=[1, 0]), out="logits")
    return [helper.make_tensor_value_info("attention_mask", I64, ["batch", "total"])]


def _rotated(net: _Net, x: str, cos: str, sin: str) -> str:
    """x [batch, heads, seq, SIZE] turned by its positions, in halves."""
    low, high = (
        net("Slice", x, net.integers(a), net.integers(b), net.integers(3), net.integers(1))
        for a, b in ((0, SIZE // 2), (SIZE // 2, SIZE))
    )
    turned = net("Concat", net("Neg", high), low, axis=-1)
    return net("Add", net("Mul", x, cos), net("Mul", turned, sin))


def _parts(net: _Net, layers: int) -> list[onnx.ValueInfoProto]:
    """Standard operators, with the shape arithmetic that exporters leave."""
    shape = net("Shape", "input_ids")
    batch = net("Gather", shape, net.integers(0), axis=0)
    seq = net("Gather", shape, net.integers(1), axis=0)
    past = net("Gather", net("Shape", "past_key.0"), net.integers(2), axis=0)
    net.weights["zero"], net.weights["one"] = np.int64(0), np.int64(1)
    everything = net("Squeeze", net("Add", past, seq))
    rows = net("Range", net("Squeeze", past), everything, "one")
    columns = net("Range", "zero", everything, "one")
    later = net("Greater", columns, net("Unsqueeze", rows, net.integers(1)))
    net.weights["lowest"], net.weights["nothing"] = np.float32(-1e9), np.float32(0)
    causal = net("Where", later, "lowest", "nothing")
    seen = net("Cast", net("Unsqueeze", "attention_mask", net.integers(1, 2)), to=TensorProto.BOOL)
    mask = net("Add", net("Where", seen, "nothing", "lowest"), causal)
    net.weights["turns"] = (10.0 ** -np.arange(SIZE // 2)).astype(np.float32)[None, None]
    at = net("Cast", net("Unsqueeze", "position_ids", net.integers(2)), to=F)
    half = net("Mul", at, "turns")
    angles = net("Unsqueeze", net("Concat", half, half, axis=-1), net.integers(1))
    cos, sin = net("Cos", angles), net("Sin", angles)
    x = net("Gather", net.weight("embed", TOKENS, HIDDEN), "input_ids")
    net.weights["scale"] = np.float32(SIZE**-0.5)
    for n in range(layers):
        heads, all_three = [], net.projections(net.norm(x, f"before{n}"), n)
        for y, count in zip(all_three, (HEADS, GROUPS, GROUPS), strict=True):
            to = net("Concat", batch, seq, net.integers(count), net.integers(SIZE), axis=0)
            heads.append(net("Transpose", net("Reshape", y, to), perm=[0, 2, 1, 3]))
        q, k, v = _rotated(net, heads[0], cos, sin), _rotated(net, heads[1], cos, sin), heads[2]
        k = net("Concat", f"past_key.{n}", k, axis=2, out=f"present_key.{n}")
        v = net("Concat", f"past_value.{n}", v, axis=2, out=f"present_value.{n}")
        full = [_repeated(net, y, batch) for y in (k, v)]
        scores = net("Mul", net("MatMul", q, net("Transpose", full[0], perm=[0, 1, 3, 2])), "scale")
        found = net("MatMul", net("Softmax", net("Add", scores, mask), axis=-1), full[1])
        flat = net("Concat", batch, seq, net.integers(HIDDEN), axis=0)
        a = net("Reshape", net("Transpose", found, perm=[0, 2, 1, 3]), flat)
        x = net("Add", x, net("MatMul", a, net.weight(f"wo{n}", HIDDEN, HIDDEN)))
        x = net.gated(x, n)
    net("MatMul", net.norm(x, "last"), net("Transpose", "embed", perm=[1, 0]), out="logits")
    return [
        helper.make_tensor_value_info("attention_mask", I64, ["batch", "past + seq"]),
        helper.make_tensor_value_info("position_ids", I64, ["batch", "seq"]),
    ]


def _repeated(net: _Net, x: str, batch: str) -> str:
    """[batch, GROUPS, total, SIZE] -> [batch, HEADS, total, SIZE]: each group's for all its heads."""
    wide = net("Unsqueeze", x, net.integers(2))
    total = net("Gather", net("Shape", x), net.integers(2), axis=0)
    parts = [batch, net.integers(GROUPS), net.integers(HEADS // GROUPS), total, net.integers(SIZE)]
    wide = net("Expand", wide, net("Concat", *parts, axis=0))
    return net("Reshape", wide, net("Concat", batch, net.integers(HEADS), total, net.integers(SIZE), axis=0))


FORMS = {"grouped": _grouped, "parts": _parts}


def decoder(form: str, layers: int, products: int | None = None) -> onnx.ModelProto:
    """A decoder in one of FORMS. products: how many layers have a gated product after the attention."""
    net = _Net(layers if products is None else products)
    more = FORMS[form](net, layers)
    cache = ["batch", GROUPS, "past", SIZE]
    names = [f"{kind}.{n}" for n in range(layers) for kind in ("key", "value")]
    inputs = [helper.make_tensor_value_info("input_ids", I64, ["batch", "seq"]), *more]
    inputs += [helper.make_tensor_value_info(f"past_{n}", F, cache) for n in names]
    outputs = [helper.make_tensor_value_info("logits", F, ["batch", "seq", TOKENS])]
    outputs += [helper.make_tensor_value_info(f"present_{n}", F, None) for n in names]
    weights = [numpy_helper.from_array(np.asarray(a), name) for name, a in net.weights.items()]
    graph = helper.make_graph(net.nodes, form, inputs, outputs, weights)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def choosing(folder: Path, layers: int, target: str) -> Path:
    """folder/out: a decoder with its cache as state, as a bundle that chooses among the target's units."""
    onnx.save(decoder("grouped", layers), folder / "m.onnx")
    compile_here(
        Request(
            source=str(folder / "m.onnx"), target=target, output=str(folder / "out"), choose=True, state=STATE
        )
    )
    return folder


def step(form: str, batch: int, past: int, new: int) -> dict[str, Array]:
    """What a step of `new` tokens after `past` is fed, without its state."""
    rng = np.random.default_rng(past)
    feed: dict[str, Array] = {
        "input_ids": rng.integers(0, TOKENS, (batch, new)),
        "attention_mask": np.ones((batch, past + new), np.int64),
    }
    if form == "parts":
        feed["position_ids"] = np.broadcast_to(np.arange(past, past + new), (batch, new)).copy()
    return feed


def empty(layers: int, batch: int) -> Mapping[str, Array]:
    """The cache before the first step."""
    names = [f"past_{kind}.{n}" for n in range(layers) for kind in ("key", "value")]
    return {name: np.zeros((batch, GROUPS, 0, SIZE), np.float32) for name in names}
