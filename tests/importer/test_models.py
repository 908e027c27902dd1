"""Real models, where they are at hand: shape arithmetic is gone, import is quick, values agree."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from onnx_models import Array, types_of
from oracle import runtime_session

from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.verify import verify
from smelt.core.ops import OPS
from smelt.importer import import_model

FOLDER = Path(os.environ.get("SMELT_MODELS", "models"))
SHAPE_OPS = {"from_dims", "gather_elements", "non_zero"}

H, W = "p2o.DynamicDimension.1", "p2o.DynamicDimension.2"
# name -> (types of the outputs, a small input)
ROWS: dict[str, tuple[list[str] | None, dict[str, Array]]] = {
    "magika_v3_3": (["f32[unk__214, 214]"], {"bytes": np.full((2, 2048), 65, np.int32)}),
    "ppocrv4_rec": (
        ["f32[p2o.DynamicDimension.0, (p2o.DynamicDimension.1 + 3)//8, 6625]"],
        {"x": np.full((1, 3, 48, 33), 0.5, np.float32)},
    ),
    "ppocrv4_det": (
        [f"f32[p2o.DynamicDimension.0, 1, 4*(({H} + 3)//4), 4*(({W} + 3)//4)]"],
        {"x": np.full((1, 3, 64, 96), 0.5, np.float32)},
    ),
    "minilm_real": (
        ["f32[batch_size, sequence_length, 384]"],
        {k: np.ones((2, 5), np.int64) for k in ("input_ids", "attention_mask", "token_type_ids")},
    ),
    "resnet18_dyn": (["f32[s77, 1000]"], {"x": np.full((1, 3, 64, 40), 0.5, np.float32)}),
    "nudenet_320n_yolov8": (None, {"images": np.full((1, 3, 64, 96), 0.5, np.float32)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_model(name: str) -> None:
    path = FOLDER / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path} is not there; set SMELT_MODELS to the folder of the models")
    start = time.process_time()
    module = import_model(path)
    assert time.process_time() - start < 3  # seconds of this process: they take 0.02 to 0.4
    verify(module)
    wanted, feeds = ROWS[name]
    if wanted is not None:
        assert types_of(module) == wanted
    nodes = module.main.nodes
    assert SHAPE_OPS.isdisjoint(n.op for n in nodes)
    read = {s for n in nodes for v in n.outputs for d in v.type.shape for s in d.symbols}
    # what a node is given as an index is bound for its check; no size comes out of a run
    assert read.isdisjoint(n.attrs["symbol"] for n in nodes if n.op == "bind")
    for w, f in zip(runtime_session(path).run(None, feeds), run_module(module, feeds, OPS), strict=True):
        assert w.shape == f.shape
        np.testing.assert_allclose(f, w, rtol=1e-3, atol=1e-4)
