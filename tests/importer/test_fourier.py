"""Fourier transforms of lengths that are known, and that a run knows, against NumPy's, and what they cost."""

from __future__ import annotations

from math import log2, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_models import imported, model

from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.importer.bindings.standard.fourier import STEP_COST, factors, smooth_length

node = helper.make_node


@given(st.integers(1, 1 << 20))
def test_factors_are_those_of_the_length(n: int) -> None:
    assert prod(factors(n)) == n
    assert n == 1 or min(factors(n)) > 1


@settings(deadline=None)
@given(st.integers(1, 1 << 21))
def test_lengths_of_convolutions_are_cheap(least: int) -> None:
    """Little longer than wanted, and never more than some steps of small factors."""
    n = smooth_length(least)
    assert least <= n < 2 * least + 1
    assert sum(factors(n)) + STEP_COST * len(factors(n)) <= 16 * max(2, log2(n))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("onesided", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 97, 128, 210, 251, 509, 1024])
def test_known_length(n: int, onesided: bool, parts: int) -> None:
    nodes = [node("DFT", ["x"], ["y"], axis=1, onesided=int(onesided))]
    module = imported(model(nodes, {"x": ("f32", ["b", n, parts])}, {"y": "f32"}, opset=18))
    read = {r for m in module.main.nodes if m.op == "matmul" for r in m.inputs}
    sides = [d for r, w in module.weights.items() if r in read for d in w.shape]
    assert max(sides) <= 512
    x = np.random.default_rng(n).standard_normal((2, n, parts)).astype(np.float32)
    wanted = np.fft.fft(x[..., 0].astype(np.float64) + (1j * x[..., 1] if parts == 2 else 0), axis=1)
    (y,) = run_module(module, {"x": x}, OPS)
    wanted = wanted[:, : n // 2 + 1] if onesided else wanted
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], wanted, rtol=1e-6, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 200), st.integers(0, 2), st.booleans(), st.sampled_from([1, 2]))
def test_length_of_the_run(n: int, batch: int, inverse: bool, parts: int) -> None:
    nodes = [node("DFT", ["x"], ["y"], axis=1, inverse=int(inverse))]
    module = imported(model(nodes, {"x": ("f32", ["b", "n", parts])}, {"y": "f32"}, opset=18))
    x = np.random.default_rng(n).standard_normal((batch, n, parts)).astype(np.float32)
    (y,) = run_module(module, {"x": x}, OPS)
    signal = x[..., 0].astype(np.float64) + (1j * x[..., 1] if parts == 2 else 0)
    wanted = (np.fft.ifft if inverse else np.fft.fft)(signal, axis=1)
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], wanted, rtol=1e-6, atol=1e-5)


def test_a_length_of_the_run_makes_no_square_of_waves() -> None:
    nodes = [node("DFT", ["x"], ["y"], axis=1)]
    module = imported(model(nodes, {"x": ("f32", ["b", "n", 2])}, {"y": "f32"}, opset=18))
    sines = {str(n.output.type) for n in module.main.nodes if n.op == "sin"}
    assert sines == {"f64[n]", "f64[side*side]", "f64[side, side]"}
