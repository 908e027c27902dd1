"""A quantised model compiled: its results, and what inspect says of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from oracle import plain_session
from qdq_models import Net

import smelt
from smelt.cli.inspect import quantised_text


def test_compiled_bytes_agree_and_are_reported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    net = Net()
    scales = rng.uniform(0.01, 0.03, 40).astype(np.float32)
    w = net.weight(rng.integers(-127, 128, (40, 6, 3, 3)).astype(np.int8), scales, np.zeros(40, np.int8))
    y = net.op("Relu", net.op("Conv", net.qdq("x", 0.05, 100), w, pads=[1, 1, 1, 1]))
    each = np.full(40, 0.1, np.float32), np.full(40, 3, np.int8)
    odd = net.weight(np.ones((2, 40, 1, 1), np.int8), *each, axis=1)
    m = net.model(net.op("Conv", net.qdq(y, 0.1, 0), odd), x=["n", 6, "h", "w"])
    bundle = smelt.compile(m, output=tmp_path / "out")
    session = smelt.load(bundle)
    oracle = plain_session(m)
    for size in ((1, 6, 5, 7), (3, 6, 16, 9)):
        x = rng.uniform(-5, 6, size).astype(np.float32)
        (want,), (got,) = oracle.run(None, {"x": x}), session.run(None, {"x": x})
        # a sum that falls between two steps may be rounded to either: each is 0.1 * -0.2 in the result
        assert np.abs(got - want).max() <= 0.1 * 0.2 * 4
        assert (np.abs(got - want) > 1e-3).mean() < 0.02
    (text,) = quantised_text(bundle)
    assert "1 of 2 convolutions and products are integer kernels" in text
    assert "the weight has scales along axis 1" in text
