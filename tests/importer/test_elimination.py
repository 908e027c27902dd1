"""Det of matrices whose size a run decides, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from sequence_models import compiled, model, tensor


@pytest.mark.parametrize("shape", [("b", "n", "n"), ("n", "m"), (2, 3, 6, 6), ("b", 3, 3)])
def test_det(shape: Any, tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    dims = [None] * (len(shape) - 2)
    nodes = [helper.make_node("Det", ["x"], ["y"])]
    m = model(nodes, {"x": tensor("f32", shape)}, {"y": tensor("f32", dims)}, opset=22)
    session = compiled(m, str(tmp_path))
    for n in (0, 1, 2, 5, 9):
        own = [d if isinstance(d, int) else {"b": 4}.get(d, n) for d in shape]
        swapped = np.broadcast_to(rng.permutation(np.eye(own[-1])), own)
        for x in (rng.standard_normal(own), np.ones(own), swapped):
            (y,) = session.run(None, {"x": x.astype(np.float32)})
            want = np.linalg.det(x.astype(np.float32).astype(np.float64))
            assert y.shape == want.shape
            np.testing.assert_allclose(y, want, rtol=2e-4, atol=1e-4)
