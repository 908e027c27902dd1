"""A sound ONNX model and a seed in, a damaged one out: bytes flipped, cut or repeated, or fields changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

NUMBERS = (0, 1, -1, 2, 3, -2, 7, 1000, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, -(2**63), 2**63 - 1)


def damaged(model: onnx.ModelProto, seed: int) -> bytes:
    """One to three changes."""
    rng = np.random.default_rng(seed)
    if rng.random() < 0.3:
        return _bytes(model.SerializeToString(), rng)
    m = onnx.ModelProto()
    m.CopyFrom(model)
    for _ in range(int(rng.integers(1, 4))):
        CHANGES[int(rng.integers(len(CHANGES)))](m, rng)
    return bytes(m.SerializeToString())


def _bytes(data: bytes, rng: Any) -> bytes:
    b = bytearray(data)
    way = int(rng.integers(4))
    if way == 0:
        return bytes(b[: int(rng.integers(len(b)))])
    if way == 1:
        return bytes(rng.integers(0, 256, int(rng.integers(1, 400)), np.uint8))
    if way == 2:
        at, n = int(rng.integers(len(b))), int(rng.integers(1, 40))
        return bytes(b[:at] + b[at : at + n] + b[at:])
    for _ in range(int(rng.integers(1, 6))):
        b[int(rng.integers(len(b)))] = int(rng.integers(256))
    return bytes(b)


def _node(m: onnx.ModelProto, rng: Any) -> onnx.NodeProto:
    nodes = m.graph.node
    return nodes[int(rng.integers(len(nodes)))] if nodes else onnx.NodeProto()


def _number(rng: Any) -> int:
    return int(NUMBERS[int(rng.integers(len(NUMBERS)))])


def _attribute(m: onnx.ModelProto, rng: Any) -> None:
    n = _node(m, rng)
    if not n.attribute:
        return
    a = n.attribute[int(rng.integers(len(n.attribute)))]
    if a.type == onnx.AttributeProto.INT:
        a.i = _number(rng)
    elif a.type == onnx.AttributeProto.INTS and a.ints:
        a.ints[int(rng.integers(len(a.ints)))] = _number(rng)
        if rng.random() < 0.2:
            a.ints.append(_number(rng))
    elif a.type == onnx.AttributeProto.FLOAT:
        a.f = float(rng.choice([0, -1, np.nan, np.inf, 1e38]))
    elif a.type == onnx.AttributeProto.STRING:
        a.s = bytes(rng.integers(32, 127, 5, np.uint8))


def _drop_attribute(m: onnx.ModelProto, rng: Any) -> None:
    n = _node(m, rng)
    if n.attribute:
        del n.attribute[int(rng.integers(len(n.attribute)))]


def _add_attribute(m: onnx.ModelProto, rng: Any) -> None:
    name = ("axis", "axes", "to", "group", "pads", "perm", "alpha", "mode", "keepdims", "nonsense")
    n = _node(m, rng)
    chosen = name[int(rng.integers(len(name)))]
    if all(a.name != chosen for a in n.attribute):
        n.attribute.append(
            helper.make_attribute(chosen, [_number(rng)] if rng.random() < 0.5 else _number(rng))
        )


def _swap_inputs(m: onnx.ModelProto, rng: Any) -> None:
    n = _node(m, rng)
    names = [v.name for v in m.graph.input] + [o for k in m.graph.node for o in k.output]
    if n.input and names:
        n.input[int(rng.integers(len(n.input)))] = names[int(rng.integers(len(names)))]


def _lose_input(m: onnx.ModelProto, rng: Any) -> None:
    n = _node(m, rng)
    if n.input:
        n.input[int(rng.integers(len(n.input)))] = ("", "nowhere")[int(rng.integers(2))]


def _cut_inputs(m: onnx.ModelProto, rng: Any) -> None:
    n = _node(m, rng)
    if n.input:
        del n.input[-1]


def _op_type(m: onnx.ModelProto, rng: Any) -> None:
    n, other = _node(m, rng), _node(m, rng)
    n.op_type = (
        other.op_type if rng.random() < 0.7 else ("Conv", "Resize", "Nonsense", "Loop")[int(rng.integers(4))]
    )


def _weight(m: onnx.ModelProto, rng: Any) -> None:
    if not m.graph.initializer:
        return
    t = m.graph.initializer[int(rng.integers(len(m.graph.initializer)))]
    way = int(rng.integers(4))
    if way == 0 and t.dims:
        t.dims[int(rng.integers(len(t.dims)))] = _number(rng)
    elif way == 1:
        t.data_type = int(rng.integers(0, 26))
    elif way == 2 and t.raw_data:
        data = np.frombuffer(t.raw_data, np.uint8).copy()
        data[int(rng.integers(len(data)))] = int(rng.integers(256))
        t.raw_data = data.tobytes()
    elif t.data_type == onnx.TensorProto.INT64 and t.raw_data and len(t.raw_data) % 8 == 0:
        numbers = np.frombuffer(t.raw_data, np.int64).copy()
        numbers[int(rng.integers(len(numbers)))] = _number(rng)
        t.raw_data = numbers.tobytes()


def _drop_weight(m: onnx.ModelProto, rng: Any) -> None:
    if m.graph.initializer:
        del m.graph.initializer[int(rng.integers(len(m.graph.initializer)))]


def _input_type(m: onnx.ModelProto, rng: Any) -> None:
    if not m.graph.input:
        return
    t = m.graph.input[int(rng.integers(len(m.graph.input)))].type.tensor_type
    way = int(rng.integers(4))
    if way == 0:
        t.elem_type = int(rng.integers(0, 26))
    elif way == 1 and t.shape.dim:
        t.shape.dim[int(rng.integers(len(t.shape.dim)))].dim_value = _number(rng)
    elif way == 2 and t.shape.dim:
        del t.shape.dim[-1]
    elif t.shape.dim:
        texts = ("N*", "", "2*N-9", "N/0", "(", "a b", "N" * 300, "-1", "N//M", "x.y")
        t.shape.dim[int(rng.integers(len(t.shape.dim)))].dim_param = texts[int(rng.integers(len(texts)))]


def _names(m: onnx.ModelProto, rng: Any) -> None:
    n, other = _node(m, rng), _node(m, rng)
    if n.output and other.output:
        n.output[0] = other.output[0]


def _opset(m: onnx.ModelProto, rng: Any) -> None:
    m.opset_import[0].version = int(rng.choice([0, 1, 6, 7, 9, 12, 13, 17, 18, 21, 24, 28, 29, 1000, -3]))


def _order(m: onnx.ModelProto, rng: Any) -> None:
    nodes = [*m.graph.node]
    rng.shuffle(nodes)
    del m.graph.node[:]
    m.graph.node.extend(nodes)


def _outputs(m: onnx.ModelProto, rng: Any) -> None:
    if m.graph.output and rng.random() < 0.5:
        o = m.graph.output[int(rng.integers(len(m.graph.output)))]
        o.type.tensor_type.elem_type = int(rng.integers(0, 26))
        o.type.tensor_type.shape.dim.add().dim_value = _number(rng)
    elif m.graph.output:
        m.graph.output[0].name = "nowhere"


CHANGES: tuple[Callable[[onnx.ModelProto, Any], None], ...] = (
    _attribute, _attribute, _attribute, _drop_attribute, _add_attribute, _swap_inputs, _swap_inputs,
    _lose_input,
    _cut_inputs, _op_type, _weight, _weight, _weight, _drop_weight, _input_type, _input_type, _names,
    _opset, _order,
    _outputs,
)  # fmt: skip
