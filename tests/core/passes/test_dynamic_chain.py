"""Products quantised by their input's range, one behind the other: as near to exact ones as ONNX Runtime's.

A number next to the middle of two steps goes to the one or the other with the last bit of a float, and every
product behind it sees other bytes. So two right runtimes may differ by steps; what can be asked is that both
agree where no number is in the middle, and that neither is further from the exact result than the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from oracle import plain_session
from qdq_models import Net, optimised

from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS

Array = np.ndarray[Any, Any]
WIDTH, LAYERS = 48, 3


def chain() -> tuple[onnx.ModelProto, list[tuple[Array, Array, Array]]]:
    """Layers of DynamicQuantizeLinear, MatMulInteger, scales, a norm and Softplus; and what each holds:
    weights, scales and zeros."""
    net, rng, x = Net(), np.random.default_rng(0), "x"
    layers = []
    for k in range(LAYERS):
        w = rng.integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8)
        scale = rng.uniform(0.001, 0.003, WIDTH).astype(np.float32)
        zero = rng.integers(-3, 4, WIDTH).astype(np.int8)
        layers.append((w, scale, zero))
        names = [f"{part}{k}" for part in ("bytes", "step", "zero")]
        net.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], names))
        y = net.op("MatMulInteger", names[0], net.const(w), names[2], net.const(zero))
        y = net.op(
            "Mul", net.op("Cast", y, to=onnx.TensorProto.FLOAT), net.op("Mul", names[1], net.const(scale))
        )
        norm = [net.const(np.ones(WIDTH, np.float32)), net.const(np.full(WIDTH, 0.1, np.float32))]
        x = net.op("Softplus", net.op("LayerNormalization", y, *norm, epsilon=1e-5))
    return net.model(x, x=["n", "m", WIDTH]), layers


def exact(x: Array, layers: list[tuple[Array, Array, Array]]) -> tuple[Array, float]:
    """The result in double precision; and how near a number came to the middle of two steps."""
    y, nearest = x.astype(np.float64), 0.5
    for w, scale, zero in layers:
        low, high = min(float(y.min()), 0.0), max(float(y.max()), 0.0)
        step = (high - low) / 255
        origin = np.clip(np.rint(-low / step), 0, 255)
        at = y / step
        nearest = min(nearest, float(np.abs(at - np.floor(at) - 0.5).min()))
        q = np.clip(np.rint(at) + origin, 0, 255)
        sums = (q - origin) @ (w.astype(np.float64) - zero)
        y = sums * (step * scale.astype(np.float64))
        y = y - y.mean(-1, keepdims=True)
        y = np.log1p(np.exp(y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-5) + np.float32(0.1)))
    return y, nearest


@pytest.fixture(scope="module")
def errors() -> list[tuple[float, float, float]]:
    """For each of many inputs: smelt's distance from the exact result, ONNX Runtime's (both as shares of the
    largest number), and the nearest middle."""
    model, layers = chain()
    session = plain_session(model)
    module = optimised(model)
    found = []
    for seed in range(60):
        x = np.random.default_rng(seed).standard_normal((2, 5 + seed, WIDTH)).astype(np.float32)
        want, nearest = exact(x, layers)
        away = [
            float(np.abs(y - want).max() / np.abs(want).max())
            for y in (run_module(module, {"x": x}, OPS)[0], session.run(None, {"x": x})[0])
        ]
        found.append((away[0], away[1], nearest))
    return found


def test_results_are_exact_where_no_number_is_in_the_middle(errors: list[tuple[float, float, float]]) -> None:
    clear = [(ours, theirs) for ours, theirs, nearest in errors if nearest > 2e-5]
    assert len(clear) > 10
    for ours, theirs in clear:
        assert ours < 2e-6
        assert theirs < 2e-6


def test_results_are_no_further_from_exact_ones_than_those_of_onnxruntime(
    errors: list[tuple[float, float, float]],
) -> None:
    ours, theirs = (np.array([e[k] for e in errors]) for k in (0, 1))
    assert (ours > 1e-5).sum() <= (theirs > 1e-5).sum() + 2
    assert ours.mean() <= theirs.mean() * 1.25 + 1e-6
