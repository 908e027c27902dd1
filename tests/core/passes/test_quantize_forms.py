"""Quantised regions against ONNX Runtime: other bytes only where a number lies between two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from oracle import plain_session
from qdq_models import Net, optimised

from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.core.passes.quantized.quantize import quantized_products, quantized_summary
from smelt.importer import import_model

Array = np.ndarray[Any, Any]
RANGES = {"u8": (0, 255), "i8": (-128, 127), "u16": (0, 65535), "i16": (-32768, 32767)}
TYPES = {"u8": np.uint8, "i8": np.int8, "u16": np.uint16, "i16": np.int16}


@dataclass(frozen=True)
class Region:
    """build: (net, quantised inputs) -> the value that is quantised at the end. dims: of the inputs; step: of
    the result; kind: of the activations; integer: whether all of it must have become integer kernels."""

    build: Callable[[Net, list[str]], str]
    dims: Mapping[str, list[int | str]]
    sizes: tuple[Mapping[str, int], ...]
    step: float = 0.1
    kind: str = "u8"
    zero: int | None = None
    input_step: float = 0.04
    integer: bool = True
    away: float = 2e-3
    opset: int = 17
    reason: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)


def _weights(
    net: Net, shape: tuple[int, ...], kind: str = "i8", per: int | None = None, zero: int = 0, axis: int = 0
) -> str:
    rng = np.random.default_rng(len(net.constants) + sum(shape))
    low, high = RANGES[kind]
    data = rng.integers(low + (kind == "i8"), high + 1, shape).astype(TYPES[kind])
    n = () if per is None else (shape[per],)
    scale = np.asarray(rng.uniform(0.002, 0.006, n), np.float32)
    return net.weight(data, scale, np.full(n, zero, TYPES[kind]), axis=axis if per is None else per)


IMAGE = ({"n": 2, "h": 9, "w": 7}, {"n": 1, "h": 5, "w": 12})
ROWS = ({"n": 2, "m": 3}, {"n": 1, "m": 17})
PICTURE: dict[str, list[int | str]] = {"x": ["n", 8, "h", "w"]}
TWO: dict[str, list[int | str]] = {"x": ["n", 8, "h", "w"], "y": ["n", 8, "h", "w"]}


def _convolutions() -> dict[str, Region]:
    def conv(
        shape: tuple[int, ...], kind: str = "i8", per: int | None = None, zero: int = 0, bias: bool = False,
        relu: str = "", **attrs: Any,
    ) -> Callable[[Net, list[str]], str]:  # fmt: skip
        def build(net: Net, given: list[str]) -> str:
            w = _weights(net, shape, kind, per, zero)
            more = []
            if bias:
                scale = net.constants[net.nodes[-1].input[1]] * np.float32(0.04)
                whole = np.random.default_rng(3).integers(-3000, 3000, shape[0]).astype(np.int32)
                more = [net.weight(whole, scale.astype(np.float32), np.zeros(scale.shape, np.int32))]
            y = net.op("Conv", given[0], w, *more, **attrs)
            return net.op(relu, y) if relu else y

        return build

    found = {}
    for kind in ("u8", "i8"):
        for per in (None, 0):
            for name, shape, attrs in (
                ("plain", (6, 8, 3, 3), {}),
                ("padded", (6, 8, 3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
                ("depthwise", (8, 1, 3, 3), {"group": 8, "pads": [1] * 4}),
                ("group", (6, 4, 3, 3), {"group": 2, "dilations": [2, 1], "pads": [2, 1, 2, 1]}),
                ("pointwise", (12, 8, 1, 1), {}),
                ("same", (6, 8, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
            ):
                build = conv(shape, per=per, **attrs)
                found[f"conv {name} {kind} per {per}"] = Region(build, PICTURE, IMAGE, kind=kind)
    line = ({"n": 2, "t": 11}, {"n": 1, "t": 30})
    cube = ({"n": 1, "h": 4, "w": 5, "d": 6}, {"n": 2, "h": 5, "w": 4, "d": 3})
    return found | {
        "conv bias": Region(conv((6, 8, 3, 3), bias=True, relu="Relu"), PICTURE, IMAGE),
        "conv bias per channel": Region(conv((6, 8, 3, 3), per=0, bias=True, relu="Relu"), PICTURE, IMAGE),
        "conv sigmoid": Region(conv((6, 8, 3, 3), relu="Sigmoid"), PICTURE, IMAGE, step=1 / 256, zero=0),
        "conv swish": Region(conv((6, 8, 1, 1), relu="HardSwish"), PICTURE, IMAGE),
        "conv unsigned weights": Region(conv((6, 8, 3, 3), "u8", zero=128), PICTURE, IMAGE),
        "conv weights of any zero": Region(conv((6, 8, 3, 3), "u8", zero=113, pads=[1] * 4), PICTURE, IMAGE),
        "conv weights of any zero, signed": Region(conv((6, 8, 3, 3), zero=5, bias=True), PICTURE, IMAGE),
        "conv weights of any zero, group": Region(
            conv((6, 4, 3, 3), "u8", per=0, zero=99, group=2, strides=[2, 1]), PICTURE, IMAGE
        ),
        "conv 1d": Region(conv((6, 8, 3), per=0, pads=[1, 1]), {"x": ["n", 8, "t"]}, line),
        "conv 1d depthwise": Region(conv((8, 1, 5), group=8), {"x": ["n", 8, "t"]}, line),
        "conv 3d": Region(conv((4, 3, 2, 3, 2)), {"x": ["n", 3, "h", "w", "d"]}, cube),
        "conv three channels": Region(conv((6, 3, 3, 3), per=0), {"x": ["n", 3, "h", "w"]}, IMAGE),
        "conv of 16 bits": Region(
            conv((6, 8, 3, 3), relu="Relu"), PICTURE, IMAGE, kind="u16", zero=300, input_step=0.0005,
            step=0.001, integer=False, away=0.2, opset=21,
            reason="the left operand is not quantised to 8 bits",
        ),
    }  # fmt: skip


def _transposed() -> dict[str, Region]:
    def conv(
        shape: tuple[int, ...], kind: str = "i8", per: int | None = None, zero: int = 0, bias: str = "",
        **attrs: Any,
    ) -> Callable[[Net, list[str]], str]:  # fmt: skip
        def build(net: Net, given: list[str]) -> str:
            w, more = _weights(net, shape, kind, per, zero), []
            count = shape[1] * attrs.get("group", 1)
            if bias == "whole":
                scale = net.constants[net.nodes[-1].input[1]] * np.float32(0.04)
                whole = np.random.default_rng(3).integers(-3000, 3000, count).astype(np.int32)
                more = [net.weight(whole, scale.astype(np.float32), np.zeros(scale.shape, np.int32))]
            elif bias:
                more = [net.const(np.random.default_rng(3).uniform(-3, 3, count).astype(np.float32))]
            return net.op("ConvTranspose", given[0], w, *more, **attrs)

        return build

    line: dict[str, list[int | str]] = {"x": ["n", 8, "h"]}
    volume: dict[str, list[int | str]] = {"x": ["n", 8, 3, "h", 2]}
    even = {"strides": [2, 2], "pads": [1] * 4}

    def spread(build: Any, dims: Any = PICTURE, **more: Any) -> Region:
        return Region(build, dims, IMAGE, **more)

    unread = {"integer": False}
    return {
        "stride 2": spread(conv((8, 4, 3, 3), **even)),
        "per channel": spread(conv((8, 4, 3, 3), per=1, **even)),
        "zero points": spread(conv((8, 4, 3, 3), "u8", zero=117, **even)),
        "zero points per channel": spread(conv((8, 4, 4, 4), "u8", per=1, zero=131, **even)),
        "bias": spread(conv((8, 4, 2, 2), bias="float", strides=[2, 2])),
        "whole bias": spread(conv((8, 4, 3, 3), bias="whole", **even)),
        "whole bias per channel": spread(conv((8, 4, 3, 3), per=1, bias="whole", **even)),
        "stride 1": spread(conv((8, 4, 3, 2), bias="float")),
        "stride of each axis": spread(conv((8, 4, 3, 5), strides=[3, 2], pads=[0, 1, 2, 1])),
        "stride beyond the kernel": spread(conv((8, 4, 2, 1), strides=[3, 3])),
        "more behind": spread(conv((8, 4, 2, 2), strides=[2, 2], output_padding=[1, 1])),
        "more behind pads": spread(conv((8, 4, 3, 3), output_padding=[1, 0], **even)),
        "groups": spread(conv((8, 3, 3, 3), per=1, group=2, **even)),
        "groups, bias": spread(conv((8, 3, 3, 3), "u8", per=1, zero=99, bias="float", group=4, **even)),
        "depthwise": spread(conv((8, 1, 4, 4), group=8, **even)),
        "bytes with signs": spread(conv((8, 4, 3, 3), per=1, **even), kind="i8"),
        "line": spread(conv((8, 4, 5), per=1, strides=[2], pads=[2, 1]), line),
        "volume": spread(conv((8, 4, 2, 3, 2), strides=[1, 2, 2], pads=[0, 1, 0, 0, 1, 1]), volume),
        "like the input": spread(conv((8, 4, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER")),
        "as large as said": spread(
            conv((8, 4, 3, 3), strides=[2, 2], output_shape=[20, 26]), {"x": [1, 8, 9, 12]}
        ),
        "dilated": spread(
            conv((8, 4, 3, 3), dilations=[2, 1]), reason="the taps are spread by dilations", **unread
        ),
        "scales of inputs": spread(
            conv((8, 4, 3, 3), per=0), reason="the weight has scales along axis 0", **unread
        ),
        "behind a convolution": spread(_upscaled),
    }  # fmt: skip


def _upscaled(net: Net, given: list[str]) -> str:
    """A convolution, then a transposed one, then another."""
    w = _weights(net, (8, 8, 3, 3), per=0)
    y = net.qdq(net.op("Relu", net.op("Conv", given[0], w, pads=[1] * 4)), 0.05, 0)
    y = net.op("ConvTranspose", y, _weights(net, (8, 8, 4, 4), per=1), strides=[2, 2], pads=[1] * 4)
    y = net.qdq(net.op("Relu", y), 0.05, 0)
    return net.op("Conv", y, _weights(net, (4, 8, 3, 3), per=0), pads=[1] * 4)


# ---------------------------------------------------------------- products


def _products() -> dict[str, Region]:
    rows: dict[str, list[int | str]] = {"x": ["n", "m", 20]}
    flat: dict[str, list[int | str]] = {"x": ["m", 20]}
    both: dict[str, list[int | str]] = {"x": ["n", 2, "m", 16], "y": ["n", 2, 16, "m"]}

    def product(kind: str = "i8", per: int | None = None, zero: int = 0, bias: bool = False) -> Any:
        def build(net: Net, given: list[str]) -> str:
            y = net.op("MatMul", given[0], _weights(net, (20, 6), kind, per, zero, axis=1))
            return net.op("Add", y, net.const(np.arange(6, dtype=np.float32) / 7)) if bias else y

        return build

    def gemm(transposed: int, **attrs: Any) -> Any:
        def build(net: Net, given: list[str]) -> str:
            shape, per = ((6, 20), 0) if transposed else ((20, 6), 1)
            w = _weights(net, shape, per=per)
            c = net.const(np.arange(6, dtype=np.float32) / 5)
            return net.op("Gemm", given[0], w, c, transB=transposed, **attrs)

        return build

    found = {}
    for kind in ("u8", "i8"):
        found |= {
            f"matmul {kind}": Region(product(), rows, ROWS, kind=kind),
            f"matmul per column {kind}": Region(product(per=1), rows, ROWS, kind=kind),
            f"matmul zeros {kind}": Region(product(per=1, zero=-4), rows, ROWS, kind=kind),
            f"matmul unsigned {kind}": Region(product("u8", zero=120), rows, ROWS, kind=kind),
            f"matmul bias {kind}": Region(product(per=1, bias=True), rows, ROWS, kind=kind),
            f"matmul of two {kind}": Region(
                lambda net, given: net.op("MatMul", *given), both, ROWS, kind=kind, step=0.2
            ),
            f"gemm {kind}": Region(gemm(0), flat, ROWS, kind=kind),
            f"gemm transposed {kind}": Region(gemm(1), flat, ROWS, kind=kind),
        }
    return found | {
        "gemm scaled": Region(gemm(0, alpha=0.5, beta=2.0), flat, ROWS),
        "gemm of columns": Region(gemm(1, transA=1), {"x": [20, "m"]}, ROWS),
        "matmul rank 1": Region(product(), {"x": [20]}, ROWS, integer=False, reason="an operand of rank 1"),
        # a byte inside that lies between two steps moves the sums behind it by one step of its own
        "attention": Region(_attention, {"x": ["n", "m", 32]}, ROWS, step=0.05, away=0.2),
    }


def _attention(net: Net, given: list[str]) -> str:
    """Projections, scores, softmax and the product with values, all quantised."""
    heads = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        y = net.qdq(net.op("MatMul", given[0], _weights(net, (32, 32), per=1)), 0.02, 128)
        y = net.op("Reshape", y, net.const(np.array([0, 0, 4, 8])))
        heads.append(net.op("Transpose", y, perm=perm))
    scores = net.qdq(net.op("MatMul", heads[0], heads[1]), 0.05, 128)
    p = net.qdq(net.op("Softmax", scores, axis=-1), 1 / 256, 0)
    y = net.qdq(net.op("MatMul", p, heads[2]), 0.02, 128)
    y = net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.const(np.array([0, 0, 32])))
    return net.op("MatMul", y, _weights(net, (32, 32), per=1))


# ---------------------------------------------------------------- everything else


ACTIVATIONS = (
    "Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Erf", "Exp", "Elu", "Softplus",
    "Abs", "Neg",
)  # fmt: skip


def _others() -> dict[str, Region]:
    def unary(op: str, *more: Any, **attrs: Any) -> Any:
        return lambda net, given: net.op(op, given[0], *(net.const(np.asarray(m)) for m in more), **attrs)

    def binary(op: str) -> Any:
        return lambda net, given: net.op(op, *given)

    big = {"x": ["n", 8, "h", "w"]}
    scales = np.array([1, 1, 2, 2], np.float32)
    found = {}
    for kind in ("u8", "i8", "u16"):
        opset = 21 if kind == "u16" else 17
        fine = {"kind": kind, "opset": opset}
        if kind == "u16":
            fine |= {"input_step": 0.0005, "step": 0.0007, "zero": 20000, "away": 0.05}
        found |= {
            f"add {kind}": Region(binary("Add"), TWO, IMAGE, **fine),
            f"sub {kind}": Region(binary("Sub"), TWO, IMAGE, **fine),
            f"mul {kind}": Region(binary("Mul"), TWO, IMAGE, **fine),
            f"max pool {kind}": Region(unary("MaxPool", kernel_shape=[2, 2]), big, IMAGE, **fine),
            f"average pool {kind}": Region(
                unary("AveragePool", kernel_shape=[3, 2], pads=[1, 0, 1, 1]), big, IMAGE, **fine
            ),
            f"global average {kind}": Region(unary("GlobalAveragePool"), big, IMAGE, **fine),
            f"concat {kind}": Region(
                lambda net, given: net.op("Concat", *given, axis=1), TWO, IMAGE, **fine
            ),
            f"resize {kind}": Region(
                lambda net, given: net.op("Resize", given[0], "", net.const(scales), mode="nearest"), big,
                IMAGE, **fine,
            ),
            f"resize linear {kind}": Region(
                lambda net, given: net.op("Resize", given[0], "", net.const(scales), mode="linear"), big,
                IMAGE, **fine,
            ),
            f"softmax {kind}": Region(unary("Softmax", axis=1), big, IMAGE, **(fine | {"step": 1 / 256})),
            f"reshape {kind}": Region(unary("Reshape", np.array([0, 4, 2, -1])), big, IMAGE, **fine),
            f"transpose {kind}": Region(unary("Transpose", perm=[0, 2, 3, 1]), big, IMAGE, **fine),
            f"pad {kind}": Region(unary("Pad", np.array([0, 0, 1, 1, 0, 0, 2, 0])), big, IMAGE, **fine),
            f"slice {kind}": Region(
                unary("Slice", np.array([1]), np.array([6]), np.array([1]), np.array([2])), big, IMAGE, **fine
            ),
            f"split {kind}": Region(_split, big, IMAGE, **fine),
            f"clip {kind}": Region(unary("Clip", np.float32(-1), np.float32(1.5)), big, IMAGE, **fine),
            **{
                f"{op} {kind}": Region(unary(op), big, IMAGE, **fine)
                for op in ACTIVATIONS
            },
            f"mean {kind}": Region(unary("ReduceMean", axes=[2, 3]) if opset < 18 else
                                   unary("ReduceMean", np.array([2, 3])), big, IMAGE, **fine),
            f"sum of a scalar {kind}": Region(
                lambda net, given: net.op("Add", given[0], net.const(np.float32(0.7))), big, IMAGE, **fine
            ),
        }  # fmt: skip
    return found | {
        "residual": Region(_residual, PICTURE, IMAGE),
    }


def _split(net: Net, given: list[str]) -> str:
    """Halves of the channels, added."""
    names = [f"half{len(net.nodes)}{h}" for h in (0, 1)]
    sizes = net.const(np.array([3, 5]))
    net.nodes.append(onnx.helper.make_node("Split", [given[0], sizes], names, axis=1))
    return net.op("Concat", names[1], names[0], axis=1)


def _residual(net: Net, given: list[str]) -> str:
    """Two convolutions and a sum, as in a residual network."""
    a = net.qdq(
        net.op("Relu", net.op("Conv", given[0], _weights(net, (8, 8, 3, 3), per=0), pads=[1] * 4)), 0.05, 0
    )
    b = net.qdq(net.op("Conv", a, _weights(net, (8, 8, 3, 3), per=0), pads=[1] * 4), 0.05, 128)
    return net.op("Relu", net.op("Add", b, given[0]))


REGIONS = {
    **_convolutions(),
    **{f"transposed: {name}": r for name, r in _transposed().items()},
    **_products(),
    **_others(),
}


def models(region: Region) -> tuple[onnx.ModelProto, onnx.ModelProto, int]:
    """The region between pairs; and the same with what the last pair reads as an output too."""
    net = Net()
    low, high = RANGES[region.kind]
    zero = region.zero if region.zero is not None else (low + high + 1) // 2 + 3
    own = {name: net.qdq(name, region.input_step, zero, TYPES[region.kind]) for name in region.dims}
    y = region.build(net, list(own.values()))
    result = net.qdq(y, region.step, zero, TYPES[region.kind])
    model = net.model(result, **region.dims)
    model.opset_import[0].version = region.opset
    model.ir_version = 10
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.append(onnx.helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None))
    return model, probe, zero


def feeds(region: Region, sizes: Mapping[str, int]) -> dict[str, Array]:
    rng = np.random.default_rng(sum(sizes.values()))
    low, high = RANGES[region.kind]
    reach = (high - low) / 2 * region.input_step * 1.1  # some are cut off
    return {
        name: rng.uniform(-reach, reach, [sizes[d] if isinstance(d, str) else d for d in dims]).astype(
            np.float32
        )
        for name, dims in region.dims.items()
    }


def agrees(region: Region, run: Callable[[dict[str, Array]], Any], probe: onnx.ModelProto) -> None:
    """Each byte is ONNX Runtime's, or its neighbour where the number before is in the middle of the two."""
    session = plain_session(probe)
    for sizes in region.sizes:
        given = feeds(region, sizes)
        want, before = session.run(None, given)
        (got,) = run(given)
        assert got.shape == want.shape and got.dtype == want.dtype
        apart = np.abs(got - want) / region.step
        assert apart.max(initial=0) < 1.001
        at = before[apart > 0.5].astype(np.float64) / region.step
        middle = np.abs(at - np.floor(at) - 0.5)
        assert middle.max(initial=0) < region.away, (
            f"{at.size} bytes differ, up to {middle.max()} from the middle"
        )


@pytest.mark.parametrize("name", REGIONS)
def test_region(name: str) -> None:
    region = REGIONS[name]
    model, probe, _ = models(region)
    module = optimised(model)
    agrees(region, lambda given: run_module(module, given, OPS), probe)
    found = quantized_summary(quantized_products(import_model(model)))
    assert bool(found["float"]) == (not region.integer), found
    if region.reason:
        assert set(found["float"].values()) == {region.reason}  # type: ignore[attr-defined]
