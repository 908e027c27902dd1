"""One quantised network, with pairs around nodes on floats and with operators on bytes: one graph out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from oracle import plain_session
from qdq_models import Net, optimised

from smelt.core.ir.graph import Module
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.core.passes.whole_graph.layout import leftovers

Array = np.ndarray[Any, Any]
ACTIVATIONS = {np.uint8: 128, np.int8: 0}
STEP = 0.03
SIZES = ({"n": 2, "h": 9, "w": 6}, {"n": 1, "h": 4, "w": 13})


@dataclass
class Writer:
    """Values are bytes with a scale; each op says what it is among floats, and of which operator on bytes.

    pairs: floats between pairs; else operators. weights: their type and zero point."""

    pairs: bool
    dtype: Any
    weights: tuple[Any, int]
    net: Net = field(default_factory=Net)
    scales: dict[str, float] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def point(self, scale: float) -> list[str]:
        """Names of a scale and of the activations' zero point."""
        zero = np.array(ACTIVATIONS[self.dtype], self.dtype)
        return [self.net.const(np.array(scale, np.float32)), self.net.const(zero)]

    def bytes(self, x: str, scale: float) -> str:
        y = self.net.op("QuantizeLinear", x, *self.point(scale))
        self.scales[y] = scale
        return y

    def floats(self, x: str) -> str:
        return self.net.op("DequantizeLinear", x, *self.point(self.scales[x]))

    def own(self, x: str) -> list[str]:
        return [x, *self.point(self.scales[x])]

    def made(self, y: str, scale: float) -> str:
        self.scales[y] = scale
        return y

    def op(self, op: str, *xs: str, scale: float = STEP, **attrs: Any) -> str:
        """QLinear<op> of com.microsoft: inputs with their points, then that of the result."""
        if self.pairs:
            return self.bytes(self.net.op(op, *map(self.floats, xs), **attrs), scale)
        parts = [r for x in xs for r in self.own(x)]
        y = self.net.op(f"QLinear{op}", *parts, *self.point(scale), domain="com.microsoft", **attrs)
        return self.made(y, scale)

    def concat(self, *xs: str, scale: float = STEP) -> str:
        if self.pairs:
            return self.bytes(self.net.op("Concat", *map(self.floats, xs), axis=1), scale)
        parts = [r for x in xs for r in self.own(x)]
        y = self.net.op("QLinearConcat", *self.point(scale), *parts, domain="com.microsoft", axis=1)
        return self.made(y, scale)

    def move(self, op: str, x: str, *more: Array, **attrs: Any) -> str:
        """An op that moves bytes in either form."""
        parts = [self.net.const(m) for m in more]
        if self.pairs:
            return self.bytes(self.net.op(op, self.floats(x), *parts, **attrs), self.scales[x])
        return self.made(self.net.op(op, x, *parts, **attrs), self.scales[x])

    def conv(self, x: str, shape: Sequence[int], scale: float = STEP, **attrs: Any) -> str:
        kind, zero = self.weights
        whole = self.rng.integers(-90, 91, shape)
        w = np.clip(whole + zero, np.iinfo(kind).min, np.iinfo(kind).max).astype(kind)
        own = self.rng.uniform(0.002, 0.004, shape[0]).astype(np.float32)
        bias = self.rng.integers(-3000, 3000, shape[0]).astype(np.int32)
        parts = [self.net.const(a) for a in (w, own, np.full(shape[0], zero, kind))]
        step = (np.float32(self.scales[x]) * own).astype(np.float32)
        if self.pairs:
            b = self.net.weight(bias, step, np.zeros(shape[0], np.int32))
            w_ref = self.net.op("DequantizeLinear", *parts, axis=0)
            return self.bytes(self.net.op("Conv", self.floats(x), w_ref, b, **attrs), scale)
        y = self.net.op(
            "QLinearConv", *self.own(x), *parts, *self.point(scale), self.net.const(bias), **attrs
        )
        return self.made(y, scale)

    def joined(self, x: str, *channels: int) -> str:
        """x with these channels before its height and width, which are those of the model's input."""
        ends = [self.net.const(np.array([e])) for e in (2, 4)]
        size = self.net.op("Slice", self.net.op("Shape", "x"), *ends)
        shape = self.net.op("Concat", self.net.const(np.array([0, *channels])), size, axis=0)
        if self.pairs:
            return self.bytes(self.net.op("Reshape", self.floats(x), shape), self.scales[x])
        return self.made(self.net.op("Reshape", x, shape), self.scales[x])

    def model(self) -> onnx.ModelProto:
        """Shuffled halves of channels, a sum, a product with a gate, a pool, a joined end."""
        around = {"pads": [1] * 4}
        x = self.conv(self.bytes("x", 0.04), (8, 3, 3, 3), **around)
        for _ in range(2):
            a, b = (self.move("Slice", x, *map(np.array, ([c], [c + 4], [1]))) for c in (0, 4))
            b = self.conv(self.conv(b, (4, 1, 3, 3), 0.02, group=4, **around), (4, 4, 1, 1), 0.025)
            x = self.joined(self.concat(a, b), 2, 4)
            x = self.joined(self.move("Transpose", x, perm=[0, 2, 1, 3, 4]), 8)
        x = self.op("Add", x, self.conv(x, (8, 8, 3, 3), **around), scale=0.0503)
        gate = self.op("Sigmoid", self.conv(self.op("GlobalAveragePool", x), (8, 8, 1, 1)), scale=0.0077)
        x = self.op("Mul", x, gate)
        x = self.op("AveragePool", self.concat(x, self.op("LeakyRelu", x)), kernel_shape=[3, 3])
        y = self.floats(self.conv(x, (5, 16, 3, 3), 0.05, **around))
        model = self.net.model(y, x=["n", 3, "h", "w"])
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
        return model


def kinds(module: Module) -> Counter[tuple[str, str]]:
    """How many nodes of each op and type of element there are."""
    return Counter((n.op, n.output.type.dtype.name) for n in module.main.nodes if n.outputs)


def with_bytes(model: onnx.ModelProto, dtype: Any) -> onnx.ModelProto:
    """The model with what each operator on bytes makes as an output, too."""
    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = [n.output[0] for n in model.graph.node if n.op_type.startswith("QLinear")]
    seen.graph.output.extend(onnx.helper.make_tensor_value_info(name, kind, None) for name in made)
    return seen


@pytest.mark.parametrize(
    ("dtype", "weights"),
    [
        (np.uint8, (np.int8, 0)), (np.int8, (np.int8, 0)), (np.uint8, (np.uint8, 128)),
        (np.uint8, (np.uint8, 117)),
    ],
)  # fmt: skip
def test_both_forms_become_one(dtype: Any, weights: tuple[Any, int]) -> None:
    """No sum, product or mean lies between two steps, so that ONNX Runtime's bytes are the same, too."""
    models = [Writer(pairs, dtype, weights).model() for pairs in (True, False)]
    pairs, operators = (optimised(m) for m in models)
    assert kinds(pairs) == kinds(operators)
    assert all(n.attrs["channels_last"] for n in operators.main.nodes if n.op == "conv")
    seen = with_bytes(models[1], dtype)
    rng = np.random.default_rng(1)
    for size in SIZES:
        given = {"x": rng.uniform(-5, 5, (size["n"], 3, size["h"], size["w"])).astype(np.float32)}
        want = plain_session(seen).run(None, given)
        for name, a, b in zip(seen.graph.output, run_module(optimised(seen), given, OPS), want, strict=True):
            assert (a == b).all(), name.name
        for module in (pairs, operators):
            assert (run_module(module, given, OPS)[0] == want[0]).all()


@pytest.mark.parametrize("weights", [(np.int8, 0), (np.uint8, 117)])
def test_a_shuffle_of_channels_leaves_them_last(weights: tuple[Any, int]) -> None:
    """All that is moved: the input and the result, and the bytes of each shuffle."""
    moved = [t.ref for t in leftovers(optimised(Writer(False, np.uint8, weights).model()))]
    assert len(moved) == 4, moved
