"""Resize by nearest neighbours, all coordinate and rounding modes, any scale and size: compiled code reads
the very elements that ONNX Runtime reads."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from campaign import Outcome, main
from onnx import helper, numpy_helper
from oracle import plain_session

from smelt.compiler import compile_here
from smelt.driver import Request
from smelt.session import load

MODES = tuple(
    (coordinates, nearest)
    for coordinates in (
        "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric",
        "tf_crop_and_resize",
    )
    for nearest in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
)  # fmt: skip
ROI = np.array([0.1, 0.8], np.float32)
GIVEN = ("constant", "scales", "sizes")
"""How the extent is given: a scale in the file, one at run time, a size at run time."""


def model(scale: float) -> onnx.ModelProto:
    """x f32[N], its scale and its size -> an output per mode and way to give the extent."""
    nodes, outputs = [], []
    for n, (coordinates, nearest) in enumerate(MODES):
        for how in GIVEN if coordinates != "align_corners" else GIVEN[2:]:  # (docs/differences.md)
            names = (
                ["x", "roi", "", "z"] if how == "sizes" else ["x", "roi", "c" if how == "constant" else "s"]
            )
            y = f"y{n}_{how}"
            attrs = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
            nodes.append(
                helper.make_node("Resize", names, [y], mode="nearest", extrapolation_value=-1.0, **attrs)
            )
            outputs.append(helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, [f"m{y}"]))
    info = helper.make_tensor_value_info
    inputs = [
        info("x", onnx.TensorProto.FLOAT, ["N"]),
        info("s", onnx.TensorProto.FLOAT, [1]),
        info("z", onnx.TensorProto.INT64, [1]),
    ]
    held = [numpy_helper.from_array(np.array([scale], np.float32), "c"), numpy_helper.from_array(ROI, "roi")]
    g = helper.make_graph(nodes, "g", inputs, outputs, held)
    return helper.make_model(g, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def attack(seed: int) -> Outcome:
    """One scale in the file, other scales and sizes at run time, for inputs of 1 to 50 elements."""
    rng = np.random.default_rng(seed)
    drawn = [0.1 * int(rng.integers(1, 31)), float(rng.uniform(0.1, 3.0)), int(rng.integers(1, 9)) / 7]
    scale = float(np.float32(drawn[seed % 3]))
    made = model(scale)
    session = _compiled(made)
    wrong: list[str] = []
    for _ in range(6):
        n = int(rng.integers(max(1, int(np.ceil(1 / scale))), 51))
        own = np.float32(rng.choice([0.1 * int(rng.integers(1, 31)), float(rng.uniform(0.1, 3.0))]))
        own = max(own, np.float32(1.01 / n))
        m = int(rng.integers(1, 80))
        feed = {"x": np.arange(n, dtype=np.float32), "s": np.array([own]), "z": np.array([m])}
        wanted = plain_session(made).run(None, feed)
        for o, got, want in zip(made.graph.output, session.run(None, feed), wanted, strict=True):
            same = got.shape == want.shape and bool((got == want).all())
            # ONNX Runtime copies what keeps its extent, whatever its scale
            if not same and not (len(want) == n and np.array_equal(want, feed["x"])):
                mode = MODES[int(o.name[1:].split("_")[0])]
                wrong.append(
                    f"{mode} by {o.name} of {n}: scales {scale}, {own}, size {m}:\n  {got}\n  {want}"
                )
    session.close()
    return Outcome("reads other elements", True, "\n".join(wrong[:5])) if wrong else Outcome("agrees")


def _compiled(made: onnx.ModelProto) -> Any:
    with tempfile.TemporaryDirectory(prefix="smelt-resize-") as folder:
        source = Path(folder) / "m.onnx"
        source.write_bytes(made.SerializeToString())
        bundle = compile_here(Request(str(source), "host", output=str(Path(folder) / "out"), runner=False))
        return load(bundle, threads=1)


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 100))
