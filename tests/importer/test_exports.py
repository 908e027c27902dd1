"""What exporters write that is rare elsewhere, each in its smallest form; agreement with ONNX Runtime out."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx_models import agree, model

from smelt.core.diag import SmeltError
from smelt.importer import import_model

node = helper.make_node


@pytest.mark.parametrize("sizes", [[7, 5], [8, 12], [2, 3]])
@pytest.mark.parametrize("nearest", ["floor", "round_prefer_ceil"])
def test_nearest_at_tensorflow_centres(sizes: list[int], nearest: str) -> None:
    """tf.image.resize(method="nearest") becomes a mode that newer opsets have dropped."""
    nodes = [
        node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest", nearest_mode=nearest, axes=[2, 3],
             coordinate_transformation_mode="tf_half_pixel_for_nn")
    ]  # fmt: skip
    m = model(nodes, {"x": ("f32", ["b", 3, "h", "w"])}, {"y": "f32"}, {"sizes": np.array(sizes)}, opset=18)
    for shape in ((2, 3, 4, 6), (1, 3, 5, 7)):
        agree(m, {"x": np.random.default_rng(1).random(shape, np.float32)})


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("coordinate_transformation_mode", "middle", "'middle' is none of half_pixel, asymmetric"),
        ("nearest_mode", "up", "nearest_mode 'up' is none of floor, ceil"),
    ],
)
def test_resize_of_an_unknown_mode_is_refused(attribute: str, value: str, message: str) -> None:
    nodes = [node("Resize", ["x", "", "s"], ["y"], **{attribute: value})]
    scales = {"s": np.array([1, 1, 2, 2], np.float32)}
    m = model(nodes, {"x": ("f32", [1, 1, "h", "w"])}, {"y": "f32"}, scales)
    with pytest.raises(SmeltError, match=message):
        import_model(m)
