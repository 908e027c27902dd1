"""Float models -> what the two forms of their quantised ones cost: pairs around nodes, operators on bytes.

usage: quantised.py [MODEL ...] [--shape DIM=N,...] [--types u8s8,s8s8,u8u8]

ONNX Runtime's tool quantises each model in both forms, with its own choice of scales, which are not always
the same: what one form requantises the other may only move. Without models: small networks of residual
blocks, inverted residuals and shuffled channels. A row has the kernels of both bundles, the shortest
milliseconds of both on one thread (processor time), and ratios of times, medians of pairs in turns in one
process: of operators over pairs, and of each form over ONNX Runtime's on the same file.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from hot import build, by_turns  # beside this file, as is
from onnx import helper, numpy_helper
from onnxruntime import quantization as tool

import smelt
from smelt.shapes import bind, case, parse_shapes

TYPES = {
    "u8s8": (tool.QuantType.QUInt8, tool.QuantType.QInt8),
    "s8s8": (tool.QuantType.QInt8, tool.QuantType.QInt8),
    "u8u8": (tool.QuantType.QUInt8, tool.QuantType.QUInt8),
}
FORMS = (tool.QuantFormat.QDQ, tool.QuantFormat.QOperator)
SHAPE = "n=1,h=128,w=160"


@dataclass
class Network:
    """A float network of images [n, 3, h, w] under construction."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def const(self, a: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(a), f"c{len(self.weights)}"))
        return self.weights[-1].name

    def op(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        names = [f"{op}{len(self.nodes)}.{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=names[0], **attrs))
        return names[0] if outputs == 1 else names

    def conv(self, x: str, given: int, made: int, k: int = 1, s: int = 1, *, group: int = 1) -> str:
        w = self.rng.standard_normal((made, given // group, k, k)).astype(np.float32)
        w *= np.sqrt(2 / (given // group * k * k))
        bias = self.rng.uniform(-0.1, 0.1, made).astype(np.float32)
        parts = x, self.const(w), self.const(bias)
        return str(self.op("Conv", *parts, strides=[s, s], pads=[k // 2] * 4, group=group))

    def relu(self, *conv: Any, **attrs: Any) -> str:
        return str(self.op("Relu", self.conv(*conv, **attrs)))

    def done(self, x: str, channels: int) -> onnx.ModelProto:
        x = self.op("Flatten", self.op("GlobalAveragePool", x))
        w = self.rng.standard_normal((channels, 100)).astype(np.float32) * 0.1
        self.op("Gemm", x, self.const(w), self.const(np.zeros(100, np.float32)))
        y = self.nodes[-1].output[0]
        given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, "h", "w"])
        made = helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, ["n", 100])
        g = helper.make_graph(self.nodes, "g", [given], [made], self.weights)
        return helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def residual() -> onnx.ModelProto:
    """Three residual blocks."""
    net = Network()
    x = net.op("MaxPool", net.relu("x", 3, 32, 3, 2), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for given, made, s in ((32, 32, 1), (32, 64, 2), (64, 64, 1)):
        y = net.conv(net.relu(x, given, made, 3, s), made, made, 3)
        x = net.op("Relu", net.op("Add", y, x if given == made else net.conv(x, given, made, 1, s)))
    return net.done(x, 64)


def inverted() -> onnx.ModelProto:
    """Inverted residuals around depthwise convolutions."""
    net = Network()
    x = net.relu("x", 3, 32, 3, 2)
    for given, made, s in ((32, 16, 1), (16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1)):
        wide = 4 * given
        y = net.conv(net.relu(net.relu(x, given, wide), wide, wide, 3, s, group=wide), wide, made)
        x = net.op("Add", y, x) if given == made else y
    return net.done(x, 40)


def shuffled() -> onnx.ModelProto:
    """Halves of channels, of which one is convolved, shuffled block by block."""
    net = Network()
    x = net.relu("x", 3, 48, 3, 2)
    for _ in range(4):
        a, b = net.op("Split", x, net.const(np.array([24, 24])), outputs=2, axis=1)
        b = net.relu(net.conv(net.relu(b, 24, 24), 24, 24, 3, group=24), 24, 24)
        x = net.op("Concat", a, b, axis=1)
        size = net.op("Slice", net.op("Shape", x), net.const(np.array([2])), net.const(np.array([4])))
        for shape in ([0, 2, 24], [0, 48]):
            x = net.op("Reshape", x, net.op("Concat", net.const(np.array(shape)), size, axis=0))
            x = net.op("Transpose", x, perm=[0, 2, 1, 3, 4]) if len(shape) == 3 else x
    return net.done(x, 48)


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "residual": residual, "inverted": inverted, "shuffled": shuffled,
}  # fmt: skip


class Calibration(tool.CalibrationDataReader):  # type: ignore[misc]
    """Three inputs of normal numbers."""

    def __init__(self, model: Path) -> None:
        (given,) = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).get_inputs()
        shape = [d if isinstance(d, int) else (1, 3, 128, 160)[a % 4] for a, d in enumerate(given.shape)]
        rng = np.random.default_rng(0)
        self._left = iter([{given.name: rng.standard_normal(shape).astype(np.float32)} for _ in range(3)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def quantised(model: Path, types: str, folder: Path) -> Iterator[Path]:
    """The files of both forms."""
    activations, weights = TYPES[types]
    ready = folder / "ready.onnx"
    tool.quant_pre_process(str(model), str(ready), skip_symbolic_shape=True)
    for form in FORMS:
        path = folder / f"{model.stem}-{form.name}.onnx"
        tool.quantize_static(
            str(ready), str(path), Calibration(ready), quant_format=form, activation_type=activations,
            weight_type=weights, per_channel=weights == tool.QuantType.QInt8,
        )  # fmt: skip
        yield path


def row(model: Path, types: str, shape: str, folder: Path) -> str:
    """The model's row of the table."""
    files = list(quantised(model, types, folder))
    builds = [build(f"{p.stem}-{types}", p, {}, folder) for p in files]
    one = ort.SessionOptions()
    one.intra_op_num_threads = one.inter_op_num_threads = 1
    theirs = [ort.InferenceSession(str(p), one, providers=["CPUExecutionProvider"]) for p in files]
    ours = [smelt.load(b.bundle, threads=1) for b in builds]
    feed = case(builds[0].bundle, bind(builds[0].bundle, parse_shapes(shape))).feed
    pairs, operators, their_pairs, their_operators = by_turns([*ours, *theirs], 1, feed)
    cells = [f"{model.stem} {types}", *(str(len(b.bundle.manifest["kernels"])) for b in builds)]
    cells += [f"{pairs[0]:.3f}", f"{operators[0]:.3f}", f"{operators[1]:.2f}"]
    cells += [f"{pairs[1] / their_pairs[1]:.2f}", f"{operators[1] / their_operators[1]:.2f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--shape", default=SHAPE)
    parser.add_argument("--types", default=",".join(TYPES))
    asked = parser.parse_args()
    print("| model | kernels, pairs | operators | ms, pairs | operators | operators / pairs | pairs / ORT |"
          " operators / ORT |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="smelt-quantised-") as name:
        models = asked.models or [Path(name) / f"{n}.onnx" for n in NETWORKS]
        for n, make in () if asked.models else NETWORKS.items():
            onnx.save(make(), str(Path(name) / f"{n}.onnx"))
        for model in models:
            for types in asked.types.split(","):
                print(row(model, types, asked.shape, Path(name)), flush=True)


if __name__ == "__main__":
    main()
