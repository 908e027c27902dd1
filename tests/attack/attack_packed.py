"""Products with weights of 2, 4 and 8 bits in blocks, of any depth and number of rows and columns, as one
operator or as a DequantizeLinear before a product, built in drawn ways -> the products of the numbers that
the codes stand for, in f64. Where a model allows activations to be rounded to bytes, as far as that moves
them."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from campaign import Outcome, main
from drawn_builds import Drawn, built, with_build
from onnx import TensorProto, helper, numpy_helper

from smelt.core.diag import SmeltError

DEPTHS = (1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 65, 96, 100, 128, 160, 257, 384)
COLUMNS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 130)
ROWS = (0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
RUNS = 4
ROUNDED = {TensorProto.FLOAT: 1e-5, TensorProto.FLOAT16: 4e-3}
"""Of the sum of the products' magnitudes, for results and for what is rounded to 16 bits on the way."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Case:
    """A product. weight: the numbers that its codes stand for, [depth, columns]; block: elements of the left
    operand that are rounded together where it may be rounded to bytes, else 0."""

    model: onnx.ModelProto
    weight: Array
    bias: Array
    kind: int
    block: int = 0


def _packed(codes: Array, bits: int) -> Array:
    """u8: the codes of the last axis, 8 / bits in a byte, the first one in the lowest bits."""
    per = 8 // bits
    short = -codes.shape[-1] % per
    wide = np.pad(codes.astype(np.uint8), [(0, 0)] * (codes.ndim - 1) + [(0, short)])
    parts = wide.reshape(*codes.shape[:-1], -1, per)
    return np.bitwise_or.reduce(parts << np.arange(0, 8, bits, dtype=np.uint8), axis=-1).astype(np.uint8)


def _in_one(rng: random.Random, draw: np.random.Generator) -> _Case:
    """MatMulNBits."""
    kind = rng.choice((TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT16))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    bits, block = rng.choice((4, 4, 4, 8, 2)), rng.choice((16, 32, 32, 64, 128))
    depth, columns = rng.choice(DEPTHS), rng.choice(COLUMNS)
    blocks = -(-depth // block)
    codes = draw.integers(0, 1 << bits, (columns, blocks * block))
    codes[:, depth:] = rng.choice((0, 1 << (bits - 1)))
    scale = draw.uniform(-0.02 if rng.random() < 0.2 else 0.01, 0.1, (columns, blocks)).astype(dtype)
    zero = np.full((columns, blocks), 1 << (bits - 1), np.float64)
    held = {"w": _packed(codes.reshape(columns, blocks, block), bits), "scales": scale}
    given, way = ["x", "w", "scales"], rng.choice(("", "packed", "packed", "floats"))
    if rng.random() < 0.3:
        held["scales"] = scale.reshape(-1)
    if way == "packed":
        zero = draw.integers(0, 1 << bits, zero.shape).astype(np.float64)
        held["zeros"] = _packed(zero.astype(np.int64), bits)
    elif way == "floats":
        zero = draw.uniform(0, 1 << bits, zero.shape).astype(dtype).astype(np.float64)
        held["zeros"] = zero.astype(dtype)
    given += ["zeros"] if way else []
    bias = np.zeros(columns)
    if rng.random() < 0.3:
        held["bias"] = draw.standard_normal(columns).astype(dtype)
        given += [""] * (5 - len(given)) + ["bias"]
        bias = held["bias"].astype(np.float64)
    level = rng.choice((0, 0, 1, 4, 4))
    attrs = {"K": depth, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", given, ["y"], domain="com.microsoft", **attrs)
    each = [np.repeat(a, block, 1)[:, :depth] for a in (zero, scale.astype(np.float64))]
    weight = ((codes[:, :depth] - each[0]) * each[1]).T
    model = _model(rng, [node], kind, depth, [numpy_helper.from_array(a, n) for n, a in held.items()])
    return _Case(model, weight, bias, kind, block if level == 4 else 0)


def _in_two(rng: random.Random, draw: np.random.Generator) -> _Case:
    """DequantizeLinear in blocks, as a whole or by columns; a transposition, perhaps; MatMul or Gemm."""
    kind = rng.choice((TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT16))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    name, low, high = rng.choice(
        (("int4", -8, 8), ("uint4", 0, 16), ("int4", -8, 8), ("int8", -128, 128), ("uint8", 0, 256))
    )
    depth, columns, turned = rng.choice(DEPTHS), rng.choice(COLUMNS), rng.random() < 0.5
    shape = (columns, depth) if turned else (depth, columns)
    codes = draw.integers(low, high, shape)
    axis, block = rng.randrange(2), rng.choice((16, 32, 64, 128))
    way = rng.choice(("blocks", "blocks", "blocks", "columns", "whole"))
    attrs: dict[str, int] = {}
    if way == "blocks":
        own = tuple(-(-n // block) if a == axis else n for a, n in enumerate(shape))
        attrs = {"axis": axis, "block_size": block}
    elif way == "columns":
        axis = 0 if turned else 1
        own, attrs = (columns,), {"axis": axis - 2 if rng.random() < 0.5 else axis}
    else:
        own = ()
    scale = draw.uniform(0.01, 0.1, own).astype(dtype)
    zero = draw.integers(low, high, own) if rng.random() < 0.5 else np.zeros(own, np.int64)

    def spread(a: Array) -> Array:
        a = a.astype(np.float64)
        if way == "blocks":
            return np.repeat(a, block, axis).take(range(shape[axis]), axis)
        return np.expand_dims(a, 1 - axis) if way == "columns" else a

    weight = (codes - spread(zero)) * spread(scale)
    if kind == TensorProto.FLOAT16:
        weight = weight.astype(np.float16).astype(np.float64)
    stored = np.dtype(getattr(ml_dtypes, name)) if name.endswith("4") else np.dtype(name)
    held = [_typed(codes.astype(stored), "w"), _typed(scale, "scale")]
    given = ["w", "scale"]
    if zero.any() or rng.random() < 0.3:
        held.append(_typed(zero.astype(stored), "zero"))
        given.append("zero")
    nodes, right = [helper.make_node("DequantizeLinear", given, ["d"], **attrs)], "d"
    gemm = rng.random() < 0.3
    if turned and not gemm:
        nodes.append(helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]))
        right = "t"
    bias = np.zeros(columns)
    if gemm:
        bias = draw.standard_normal(columns).astype(dtype)
        held.append(_typed(bias, "bias"))
        nodes.append(helper.make_node("Gemm", ["x", right, "bias"], ["y"], transB=int(turned)))
    else:
        nodes.append(helper.make_node("MatMul", ["x", right], ["y"]))
    model = _model(rng, nodes, kind, depth, held, flat=gemm)
    return _Case(model, weight.T if turned else weight, bias.astype(np.float64), kind)


def _typed(array: Array, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def _model(
    rng: random.Random, nodes: list[onnx.NodeProto], kind: int, depth: int, weights: list[onnx.TensorProto],
    flat: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    rows: list[Any] = ["m"] if flat else rng.choice((["m"], ["b", "m"], [1, "m"], ["m", 1], [2, "m"]))
    x = helper.make_tensor_value_info("x", kind, [*rows, depth])
    y = helper.make_tensor_value_info("y", kind, None)
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(
        helper.make_graph(nodes, "packed", [x], [y], weights), opset_imports=sets, ir_version=10
    )


def _drawn(seed: int) -> tuple[_Case, Drawn]:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    case = rng.choice((_in_one, _in_one, _in_two))(rng, draw)
    dtype, feeds = helper.tensor_dtype_to_np_dtype(case.kind), []
    for _ in range(RUNS):
        sizes = {"m": rng.choice(ROWS), "b": rng.choice((1, 2))}
        dims = case.model.graph.input[0].type.tensor_type.shape.dim
        shape = [sizes.get(d.dim_param, d.dim_value) for d in dims]
        feeds.append({"x": draw.standard_normal(shape).astype(dtype)})
    return case, with_build(seed, case.model, feeds)


def drawn(seed: int) -> Drawn:
    """One product, built in one way, of some numbers of rows."""
    return _drawn(seed)[1]


def attack(seed: int) -> Outcome:
    """What comes of it."""
    case, made = _drawn(seed)
    shapes = {t.name: list(t.dims) for t in case.model.graph.initializer}
    text = f"seed {seed}, {made.build}, {shapes}\n{[str(n) for n in case.model.graph.node]}"
    try:
        with built(made) as (session, _):
            for feed in made.feeds:
                (got,) = session.run(None, feed)
                far = _beyond(case, feed["x"], got)
                if far:
                    return Outcome("disagrees", True, f"{text}\nat {feed['x'].shape}: {far}")
    except SmeltError as e:
        return Outcome("refused", True, f"{text}\n{e}")
    return Outcome("agrees, of bytes" if case.block else "agrees")


def _beyond(case: _Case, x: Array, got: Array) -> str:
    """Which element is further off than rounding explains; '' when none is."""
    wide = x.astype(np.float64)
    want = wide @ case.weight + case.bias
    magnitude = np.abs(wide) @ np.abs(case.weight) + np.abs(case.bias)
    bound = ROUNDED[case.kind] * (magnitude + 1e-3)
    if case.block:
        short = -x.shape[-1] % case.block
        blocks = np.pad(np.abs(wide), [(0, 0)] * (wide.ndim - 1) + [(0, short)])
        most = blocks.reshape(*x.shape[:-1], blocks.shape[-1] // case.block, case.block).max(-1, initial=0)
        half = np.repeat(most, case.block, -1)[..., : x.shape[-1]] / 127 * 0.5001
        bound = bound + half @ np.abs(case.weight)
    if got.shape != want.shape:
        return f"shape {got.shape}, wanted {want.shape}"
    wrong = ~(np.abs(got - want) <= bound)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size}, first at {at}: {got[at]}, wanted {want[at]} +- {bound[at]}"


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 500))
