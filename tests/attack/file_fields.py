"""A sound model that uses every message of onnx.proto in; for each field of each message the models in which
that field alone holds something hostile out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Step: TypeAlias = "tuple[str, int | None]"
Change: TypeAlias = "Callable[[Any, Any], None]"
"""(message, descriptor of its field): changes the field."""

LONG = "n" * (1 << 20)
TEXTS = {
    "empty": "",
    "long": LONG,
    "300 letters": "q" * 300,
    "nul": "a\0b",
    "newline": "a\nb",
    "quotes": "\"';\\",
    "percent": "%s%n{got}{0}",
    "comment": "*/ #error /*",
    "path": "../../../etc/passwd",
    "letters": "é漢\u202e\U0001f4a9",
    "control": "\x1b[31m\x07",
    "blank": " ",
    "slashes": "/a//b/",
    "number": "0",
    "at": "@%v1",
    "line": "\u2028\u2029\x85",
    "spaces": "many words " * 100_000,
}
INTS = (0, -1, 1, 7, 25, 1000, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63 - 1, -(2**63), 2**64 - 1)
FLOATS = (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e38, 1e-45)
DATA = (b"", b"\xff", b"\xff\xfe\x00", b"x" * 1000, b"\0" * (1 << 20))


@dataclass(frozen=True)
class FieldCase:
    """One field with one hostile value. klass: the field, by its message's name."""

    name: str
    klass: str
    path: tuple[Step, ...]
    field: str
    change: Change

    def data(self) -> bytes:
        """The file."""
        model = onnx.ModelProto()
        model.CopyFrom(specimen())
        at: Any = model
        for name, index in self.path:
            at = getattr(at, name) if index is None else getattr(at, name)[index]
        self.change(at, type(at).DESCRIPTOR.fields_by_name[self.field])
        return bytes(model.SerializeToString())


EXTERNAL = np.arange(16, dtype=np.float32)
"""What the file w.bin beside the specimen holds."""


@cache
def specimen() -> onnx.ModelProto:
    """A model that compiles, with at least one of each message that an importer reads."""
    f32, i64 = TensorProto.FLOAT, TensorProto.INT64
    node = helper.make_node
    outside = TensorProto(name="E", data_type=f32, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "64")):
        outside.external_data.add(key=key, value=value)
    then = helper.make_graph([node("Neg", ["h"], ["t"], "neg")], "then", [], [_info("t")])
    other = helper.make_graph(
        [node("Add", ["h", "k"], ["e"], "plus")], "else", [], [_info("e")], [_floats("k", [1.0])]
    )
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["still"], "going"),
            node("Add", ["s", "s"], ["s2"], "twice"),
            node("ReduceSum", ["s"], ["sum"], "summed", keepdims=0),
        ],
        "body",
        [
            _info("i", i64, []),
            _info("go", TensorProto.BOOL, []),
            _info("s"),
        ],
        [_info("still", TensorProto.BOOL, []), _info("s2"), _info("sum", f32, [])],
    )
    nodes = [
        node("MatMul", ["x", "W"], ["m"], "product"),
        node("Add", ["m", "B"], ["a"], "bias", doc_string="adds"),
        node("Gemm", ["a", "E"], ["g"], "gemm", alpha=0.5, transB=1),
        node("Scaled", ["g"], ["f"], "called", domain="local", by=2.0),
        node("Mul", ["f", "S"], ["h"], "sparse"),
        node("If", ["c"], ["b"], "branch", then_branch=then, else_branch=other),
        node("Loop", ["n", "", "b"], ["l", "sums"], "rounds", body=body),
        node("Transpose", ["l"], ["p"], "turn", perm=[1, 0]),
        node("Constant", [], ["z"], "held", value=_floats("held_value", [1, 2, 3, 4])),
        node("Constant", [], ["thin"], "thin", sparse_value=_sparse("v", 4)),
        node("Unsqueeze", ["z", "axes"], ["u"], "column"),
        node("Add", ["p", "u"], ["y0"], "last"),
        node("Clip", ["y0", "", "top"], ["y"], "clipped"),
        node("Resize", ["x4", "", "scales"], ["up"], "resized", mode="nearest"),
        node("Mul", ["thin", "z"], ["thick"], "thickened"),
    ]
    shape = helper.make_tensor_value_info("x", f32, ["N", 4])
    shape.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    graph = helper.make_graph(
        nodes,
        "graph",
        [shape, _info("c", TensorProto.BOOL, []), _info("x4", f32, [1, 2, "H", "K"])],
        [
            _info("y", f32, [4, "N"]),
            _info("sums", f32, [3]),
            _info("up", f32, [1, 2, "H2", "K2"]),
            _info("thick", f32, [4]),
        ],
        [
            numpy_helper.from_array(np.eye(4, dtype=np.float32), "W"),
            _floats("B", [0.5, 1.0, 1.5, 2.0]),
            outside,
            TensorProto(name="axes", data_type=i64, dims=[1], int64_data=[1]),
            TensorProto(name="n", data_type=i64, dims=[], int64_data=[3]),
            TensorProto(name="top", data_type=f32, dims=[], float_data=[6.0]),
            TensorProto(name="scales", data_type=f32, dims=[4], float_data=[1.0, 1.0, 2.0, 2.0]),
        ],
        doc_string="all of it",
        value_info=[_info("m", f32, ["N", 4]), _info("h", f32, ["N", 4])],
        sparse_initializer=[_sparse("S", 4)],
    )
    graph.quantization_annotation.add(tensor_name="m").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="top"
    )
    graph.metadata_props.add(key="k", value="v")
    function = helper.make_function(
        "local",
        "Scaled",
        ["a"],
        ["b"],
        [node("Constant", [], ["by"], "factor"), node("Mul", ["a", "by"], ["b"], "scaled")],
        [helper.make_opsetid("", 20)],
        ["by"],
    )
    referring = function.node[0].attribute.add(name="value_float", type=onnx.AttributeProto.FLOAT)
    referring.ref_attr_name = "by"
    function.value_info.add().CopyFrom(_info("b"))
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=10)
    model.producer_name, model.doc_string, model.domain = "producer", "said", "org.example"
    model.metadata_props.add(key="k", value="v")
    return model


def _info(name: str, kind: int = TensorProto.FLOAT, shape: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _floats(name: str, values: list[float]) -> TensorProto:
    return TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[len(values)], float_data=values)


def _sparse(name: str, size: int) -> onnx.SparseTensorProto:
    indices = TensorProto(name=f"{name}_at", data_type=TensorProto.INT64, dims=[2], int64_data=[0, 2])
    return onnx.SparseTensorProto(values=_floats(name, [2.0, 3.0]), indices=indices, dims=[size])


# ---------------------------------------------------------------- every field


def field_cases() -> Iterator[FieldCase]:
    """A case for each field of each message of the specimen and each hostile value of its type."""
    for path, message in _messages(specimen(), ()):
        kind = type(message).DESCRIPTOR
        where = ".".join(f"{n}{'' if i is None else f'[{i}]'}" for n, i in path) or "model"
        for field in kind.fields:
            for what, change in _changes(field, _present(message, field)):
                name = f"{where}.{field.name} {what}"
                yield FieldCase(name, f"{kind.name}.{field.name}", path, field.name, change)


def change_a_field(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Something hostile in one field, drawn from all of the model's messages."""
    messages = [m for _, m in _messages(model, ())]
    message = messages[int(rng.integers(len(messages)))]
    fields = type(message).DESCRIPTOR.fields
    field = fields[int(rng.integers(len(fields)))]
    if not _present(message, field) and rng.random() < 0.7:
        held = [f for f, _ in message.ListFields()]
        field = held[int(rng.integers(len(held)))] if held else field
    changes = [c for _, c in _changes(field, _present(message, field))]
    changes[int(rng.integers(len(changes)))](message, field)


def _messages(message: Any, path: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], Any]]:
    yield path, message
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if field.is_repeated:
            for i, inner in enumerate(value):
                yield from _messages(inner, (*path, (field.name, i)))
        else:
            yield from _messages(value, (*path, (field.name, None)))


def _present(message: Any, field: Any) -> bool:
    return len(getattr(message, field.name)) > 0 if field.is_repeated else bool(message.HasField(field.name))


def _changes(field: Any, present: bool) -> Iterator[tuple[str, Change]]:
    if present:
        yield "missing", _cleared
    if field.is_repeated and present:
        yield "twice", _twice
        yield "1000 times", _thousand
        yield "reversed", _reversed
        yield "without the last", _without_last
    if field.type == field.TYPE_MESSAGE:
        yield "default", _default
        return
    values = _values(field)
    for text, value in values:
        yield text, _valued(value)


def _values(field: Any) -> list[tuple[str, Any]]:
    if field.type == field.TYPE_STRING:
        return list(TEXTS.items())
    if field.type == field.TYPE_BYTES:
        return [(f"{len(d)} bytes", d) for d in DATA]
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return [(str(v), v) for v in FLOATS]
    if field.type == field.TYPE_ENUM:
        return [(v.name, v.number) for v in field.enum_type.values]
    low, high = {
        field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
        field.CPPTYPE_UINT32: (0, 2**32 - 1),
        field.CPPTYPE_UINT64: (0, 2**64 - 1),
    }[field.cpp_type]
    return [(str(v), v) for v in INTS if low <= v <= high]


def _valued(value: Any) -> Change:
    def change(message: Any, field: Any) -> None:
        if field.is_repeated:
            held = getattr(message, field.name)
            if held:
                held[-1] = value
            else:
                held.append(value)
        else:
            setattr(message, field.name, value)

    return change


def _cleared(message: Any, field: Any) -> None:
    message.ClearField(field.name)


def _twice(message: Any, field: Any) -> None:
    held = getattr(message, field.name)
    held.extend(list(held))


def _thousand(message: Any, field: Any) -> None:
    held = getattr(message, field.name)
    held.extend([held[0]] * 1000)


def _reversed(message: Any, field: Any) -> None:
    held = getattr(message, field.name)
    items = list(held)[::-1]
    del held[:]
    held.extend(items)


def _without_last(message: Any, field: Any) -> None:
    del getattr(message, field.name)[-1]


def _default(message: Any, field: Any) -> None:
    """An empty message."""
    if field.is_repeated:
        getattr(message, field.name).add()
    else:
        message.ClearField(field.name)
        getattr(message, field.name).SetInParent()
