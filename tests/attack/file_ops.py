"""The sound one-node models of every bound op in; the models in which one attribute or one operand of that
node is hostile out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
NodeChange: TypeAlias = "Callable[[ModelProto, NodeProto], None]"

INTS = (0, -1, 1, -2, 3, 1000, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e38, -1e-40)
WORDS = (b"", b"nonsense", b"\xff\xfe", b"...->,", b"a\0b", b"z" * (1 << 16))


@dataclass(frozen=True)
class OpCase:
    """One change of the node of one sound model. klass: the op and what of it changes."""

    name: str
    klass: str
    base: str
    change: NodeChange

    def data(self) -> bytes:
        """The file."""
        model = ModelProto()
        model.CopyFrom(base_models()[self.base])
        self.change(model, _subject(model, self.base))
        return bytes(model.SerializeToString())


@cache
def base_models() -> dict[str, ModelProto]:
    """Name -> a sound model: per op one for each set of attributes and number of operands. Takes seconds."""
    from smelt.conformance.cases import in_form, shipped

    found: dict[Any, tuple[str, ModelProto]] = {}
    for s in shipped():
        if "_expanded" in s.name or len(s.model.graph.node) != 1:
            continue
        n = s.model.graph.node[0]
        key = (n.domain, n.op_type, frozenset(a.name for a in n.attribute), len(n.input), len(n.output))
        form = ("static", "dynamic")[zlib.crc32(s.name.encode()) % 2]
        model = in_form(s, "dynamic").model if form == "dynamic" else s.model
        found.setdefault(key, (f"{s.name}.{form}", model))
    for name, model in _forms():
        n = model.graph.node[0]
        key = (n.domain, n.op_type, frozenset(a.name for a in n.attribute), len(n.input), len(n.output))
        found.setdefault(key, (name, model))
    return dict(found.values())


def _forms() -> Iterator[tuple[str, ModelProto]]:
    from op_forms import onnx_model
    from other_ops import forms

    for title, form in forms():
        yield title, onnx_model(form, title)


def _subject(m: ModelProto, base: str) -> NodeProto:
    del base
    return m.graph.node[0]


def op_cases() -> Iterator[OpCase]:
    """A case for each change of each attribute and operand of each base model."""
    for base, model in base_models().items():
        n = _subject(model, base)
        op = f"{n.domain}.{n.op_type}" if n.domain else n.op_type
        for klass, what, change in _changes(model, n):
            yield OpCase(f"{base}: {what}", f"{op} {klass}", base, change)


def _changes(m: ModelProto, n: NodeProto) -> Iterator[tuple[str, str, NodeChange]]:
    """(class, what it says, change) of each change."""
    for a in n.attribute:
        for what, made in _attribute_values(a):
            yield f"attribute {a.name}", f"{a.name} {what}", _with_attribute(made)
        yield f"attribute {a.name}", f"{a.name} twice", _repeated(a.name)
        yield f"attribute {a.name}", f"without {a.name}", _without(a.name)
    for a in _absent(n):
        for what, made in _attribute_values(a):
            yield f"attribute {a.name}", f"{a.name} {what}", _with_attribute(made)
    yield "attribute unknown", "an unknown attribute", _with_attribute(helper.make_attribute("nonsense", 1))
    weights = {t.name: t for t in m.graph.initializer}
    for k, name in enumerate(n.input):
        for what, change in _input_changes(m, k, weights.get(name)):
            yield f"input {k}", f"input {k} {what}", change
    yield "inputs", "one input more", _more_inputs
    yield "inputs", "no inputs", _no_inputs
    yield "inputs", "half of the inputs", _half_inputs
    yield "outputs", "one output more", _more_outputs
    yield "outputs", "no outputs", _no_outputs


def _absent(n: NodeProto) -> Iterator[AttributeProto]:
    """Attributes that the node could have, with a default value or one of their type."""
    try:
        schema = onnx.defs.get_schema(n.op_type, onnx.defs.onnx_opset_version(), n.domain)
    except onnx.defs.SchemaError:
        return
    held = {a.name for a in n.attribute}
    empty = {"INT": 1, "FLOAT": 1.0, "STRING": b"x", "INTS": [1], "FLOATS": [1.0], "STRINGS": [b"x"]}
    for name, a in schema.attributes.items():
        kind = a.type.name
        if name not in held and kind in empty:
            yield helper.make_attribute(name, empty[kind])


def _attribute_values(a: AttributeProto) -> Iterator[tuple[str, AttributeProto]]:
    def made(value: Any, kind: int | None = None) -> AttributeProto:
        return helper.make_attribute(a.name, value, attr_type=kind)

    kinds = AttributeProto
    if a.type == kinds.INT:
        for v in INTS:
            yield str(v), made(v)
        yield "a float", made(1.5)
        yield "a list", made([a.i])
    elif a.type == kinds.FLOAT:
        for f in FLOATS:
            yield str(f), made(f)
        yield "an int", made(2)
    elif a.type == kinds.STRING:
        for w in WORDS:
            yield repr(w[:12]), made(w)
        yield "an int", made(2)
    elif a.type == kinds.INTS:
        held = list(a.ints)
        for v in INTS:
            for k in sorted({0, len(held) - 1} if held else ()):
                yield f"[{k}] {v}", made([*held[:k], v, *held[k + 1 :]], kinds.INTS)
            yield f"all {v}", made([v] * max(len(held), 1), kinds.INTS)
        yield "empty", made([], kinds.INTS)
        yield "one more", made([*held, 1], kinds.INTS)
        yield "one less", made(held[:-1], kinds.INTS)
        yield "reversed", made(held[::-1], kinds.INTS)
        yield "the first twice", made([*held[:1], *held], kinds.INTS)
        yield "a number", made(1)
    elif a.type == kinds.FLOATS:
        for f in FLOATS:
            yield f"all {f}", made([f] * max(len(a.floats), 1), kinds.FLOATS)
        yield "empty", made([], kinds.FLOATS)
        yield "one more", made([*a.floats, 1.0], kinds.FLOATS)
        yield "one less", made(list(a.floats)[:-1], kinds.FLOATS)
    elif a.type == kinds.STRINGS:
        for w in WORDS:
            yield f"all {w[:12]!r}", made([w] * max(len(a.strings), 1), kinds.STRINGS)
        yield "empty", made([], kinds.STRINGS)
        yield "one more", made([*a.strings, b"x"], kinds.STRINGS)
        yield "one less", made(list(a.strings)[:-1], kinds.STRINGS)
    elif a.type == kinds.TENSOR:
        for what, array in _arrays(numpy_helper.to_array(a.t)):
            yield what, made(numpy_helper.from_array(array, "t"))
        yield "an empty message", made(TensorProto())
    elif a.type == kinds.GRAPH:
        for what, graph in _graphs(a.g):
            yield what, made(graph)


def _graphs(g: onnx.GraphProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Subgraphs with another number of inputs, outputs or nodes, or other types."""
    for what in ("inputs", "outputs", "node", "initializer"):
        held = getattr(g, "input" if what == "inputs" else "output" if what == "outputs" else what)
        field = {"inputs": "input", "outputs": "output"}.get(what, what)
        for way in ("without", "twice", "one less", "reversed") if held else ():
            other = onnx.GraphProto()
            other.CopyFrom(g)
            items = {"without": [], "twice": [*held, *held], "one less": held[:-1], "reversed": held[::-1]}[
                way
            ]
            items = [type(i).FromString(i.SerializeToString()) for i in items]
            del getattr(other, field)[:]
            getattr(other, field).extend(items)
            yield f"{what} {way}", other
    yield "an empty graph", onnx.GraphProto()
    for k, o in enumerate(g.output[:2]):
        other = onnx.GraphProto()
        other.CopyFrom(g)
        other.output[k].name = "nowhere"
        yield f"output {o.name} undefined", other


def _arrays(array: Array) -> Iterator[tuple[str, Array]]:
    """Contents and shapes that nobody expects, of the same type where there is one."""
    yield "empty", np.zeros((0,), array.dtype)
    yield "a scalar", np.ones((), array.dtype) if array.dtype.kind != "O" else np.array("x", object)
    yield "of rank + 1", array[None]
    yield "of one element", array.reshape(-1)[:1]
    yield "twice as long", np.concatenate([array.reshape(-1)] * 2)
    kind = array.dtype.kind
    if kind == "O":
        return
    if kind in "iu":
        low, high = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
        for v in (0, -1, 1, -2, 3, 1000, 2**31, 2**40, 2**62, high, low):
            if low <= v <= high:
                yield f"all {v}", np.full(array.shape, v, array.dtype)
                if array.size > 1:
                    other = array.copy()
                    other.reshape(-1)[-1] = v
                    yield f"{v} at the end", other
    elif kind == "f":
        for f in (0.0, -1.0, np.nan, np.inf, 1e30):
            with np.errstate(over="ignore"):
                yield f"all {f}", np.full(array.shape, f, array.dtype)
    for dtype in (np.float32, np.int64, np.int32, np.bool_):
        if array.dtype != dtype:
            with np.errstate(invalid="ignore"):
                yield f"as {np.dtype(dtype)}", np.asarray(array).astype(np.float64).astype(dtype)
    yield "as strings", np.full(array.shape, "x", object)


# ---------------------------------------------------------------- changes


def _with_attribute(made: AttributeProto) -> NodeChange:
    def change(m: ModelProto, n: NodeProto) -> None:
        for k, a in enumerate(n.attribute):
            if a.name == made.name:
                n.attribute[k].CopyFrom(made)
                return
        n.attribute.append(made)

    return change


def _repeated(name: str) -> NodeChange:
    def change(m: ModelProto, n: NodeProto) -> None:
        n.attribute.append(next(a for a in n.attribute if a.name == name))

    return change


def _without(name: str) -> NodeChange:
    def change(m: ModelProto, n: NodeProto) -> None:
        del n.attribute[next(k for k, a in enumerate(n.attribute) if a.name == name)]

    return change


def _input_changes(m: ModelProto, k: int, weight: TensorProto | None) -> Iterator[tuple[str, NodeChange]]:
    yield "missing", _named(k, "")
    yield "undefined", _named(k, "nowhere")
    if weight is not None:
        for what, array in _arrays(numpy_helper.to_array(weight)):
            yield what, _constant(k, array)
        return
    infos = [v for v in m.graph.input if v.name == m.graph.node[0].input[k]]
    if not infos or not infos[0].type.HasField("tensor_type"):
        return
    kind = infos[0].type.tensor_type.elem_type
    dims = infos[0].type.tensor_type.shape.dim
    ways: list[tuple[str, int, list[Any] | None]] = [
        ("of rank 0", kind, []),
        ("of rank + 1", kind, [1, *_dims(dims)]),
        ("of rank - 1", kind, _dims(dims)[1:]),
        ("of 0 elements", kind, [0 for _ in dims]),
        ("of 1000 everywhere", kind, [1000 for _ in dims]),
        ("of rank 9", kind, [1] * 9),
        ("without a rank", kind, None),
        ("of 2^62", kind, [2**62 for _ in dims]),
        ("of names", kind, [f"d{i}" for i in range(len(dims))]),
        ("of floats", TensorProto.FLOAT, _dims(dims)),
        ("of ints", TensorProto.INT64, _dims(dims)),
        ("of bools", TensorProto.BOOL, _dims(dims)),
        ("of strings", TensorProto.STRING, _dims(dims)),
        ("of float8", TensorProto.FLOAT8E5M2, _dims(dims)),
        ("of complex", TensorProto.COMPLEX64, _dims(dims)),
        ("of no type", 0, _dims(dims)),
    ]
    for what, elements, shape in ways:
        yield what, _typed(k, elements, shape)
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(kind or 1, _dims(dims)))
    yield "a sequence", _of_type(k, sequence)
    yield (
        "an optional",
        _of_type(k, helper.make_optional_type_proto(helper.make_tensor_type_proto(kind or 1, []))),
    )
    if kind in (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT, TensorProto.BOOL):
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        fixed = [d.dim_value if d.HasField("dim_value") else 2 for d in dims]
        for what, array in _arrays(np.ones(fixed, dtype)):
            yield f"constant, {what}", _constant(k, array)


def _dims(dims: Any) -> list[Any]:
    return [d.dim_value if d.HasField("dim_value") else d.dim_param for d in dims]


def _named(k: int, name: str) -> NodeChange:
    def change(m: ModelProto, n: NodeProto) -> None:
        n.input[k] = name

    return change


def _constant(k: int, array: Array) -> NodeChange:
    def change(m: ModelProto, n: NodeProto) -> None:
        n.input[k] = "hostile"
        m.graph.initializer.append(numpy_helper.from_array(array, "hostile"))

    return change


def _typed(k: int, kind: int, shape: list[Any] | None) -> NodeChange:
    return _of_type(k, helper.make_tensor_type_proto(kind, shape))


def _of_type(k: int, made: onnx.TypeProto) -> NodeChange:
    def change(m: ModelProto, n: NodeProto) -> None:
        for v in m.graph.input:
            if v.name == n.input[k]:
                v.type.CopyFrom(made)

    return change


def _more_inputs(m: ModelProto, n: NodeProto) -> None:
    n.input.extend(n.input[:1] or ["nowhere"])


def _no_inputs(m: ModelProto, n: NodeProto) -> None:
    del n.input[:]


def _half_inputs(m: ModelProto, n: NodeProto) -> None:
    del n.input[len(n.input) // 2 :]


def _more_outputs(m: ModelProto, n: NodeProto) -> None:
    n.output.append("another")
    m.graph.output.append(helper.make_tensor_value_info("another", TensorProto.FLOAT, None))


def _no_outputs(m: ModelProto, n: NodeProto) -> None:
    del n.output[:]
