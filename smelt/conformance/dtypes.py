"""An operator, one of its type variables and an element type in; a case in that type out, answer included.

The case is a shipped one with the tensors of that variable converted. Answers in 16-bit floats are computed
in wider types and rounded once; all others come from ONNX's evaluator, or from ONNX Runtime where it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from smelt.conformance.cases import CaseValue, Shipped
from smelt.conformance.judge import RANDOM
from smelt.conformance.oracle import Oracle, evaluator, first, runtime
from smelt.conformance.single import (
    candidates,
    copied,
    feed_of,
    formals,
    history,
    node_of,
    operators,
    parts,
)

# Where an attribute, not an input, says what a type variable is.
ATTRIBUTES: dict[tuple[str, str], str] = {
    ("BitCast", "T2"): "to",
    ("Cast", "T2"): "to",
    ("Bernoulli", "T2"): "dtype",
    ("EyeLike", "T2"): "dtype",
    ("Multinomial", "T2"): "dtype",
    ("RandomNormal", "T"): "dtype",
    ("RandomNormalLike", "T2"): "dtype",
    ("RandomUniform", "T"): "dtype",
    ("RandomUniformLike", "T2"): "dtype",
    ("BlackmanWindow", "T2"): "output_datatype",
    ("HammingWindow", "T2"): "output_datatype",
    ("HannWindow", "T2"): "output_datatype",
    ("MelWeightMatrix", "T3"): "output_datatype",
    ("ConstantOfShape", "T2"): "value",
    ("Constant", "T"): "value",
}
# Where an integer zero has no answer: (operator, name of the input).
NOT_ZERO = {("Div", "B"), ("Mod", "B"), ("Range", "delta")}
# Zero points of float types are 0: the schema says so only in words.
ZERO_POINTS = {(q, f"{x}_zero_point") for q, x in (("QuantizeLinear", "y"), ("DequantizeLinear", "x"))} | {
    ("QLinearMatMul", f"{x}_zero_point") for x in "aby"
}
# Variables that the operator's meaning ties to another, where no attribute sets them apart.
COUPLED: dict[tuple[str, str], tuple[str, ...]] = {
    ("Attention", "T1"): ("T2",),
    ("Attention", "T2"): ("T1",),
    ("DequantizeLinear", "T2"): ("T3",),
    ("LinearAttention", "T"): ("S",),
    ("LinearAttention", "S"): ("T",),
    ("OptionalGetElement", "O"): ("V",),
    ("SequenceInsert", "T"): ("S",),
    ("SplitToSequence", "T"): ("S",),
}
# Where ONNX's evaluator computes f64 in f32, or with a constant that it holds as f32.
COARSE = frozenset({"Erf", "Gelu", "HardSwish"})
# Where ONNX's evaluator takes weights between 0 and 1 for integers, or rounds what ONNX Runtime cuts off:
# answered in f64 and cut off.
CUT_OFF = frozenset({"GridSample", "Resize", "Upsample"})
CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap", "ai.onnx.ml.LabelEncoder"})
"""Operators with graphs or tables as attributes, whose types would contradict converted inputs."""

NARROW_FLOATS = ("float16", "bfloat16")
# (relative, absolute): two units in the last place; what f32 sums lose; and f64 must not be f32 inside.
TOLERANCE = {"float16": (2**-9, 1e-6), "bfloat16": (2**-6, 1e-6), "double": (1e-9, 1e-12)}
MIXED_TYPES = (TensorProto.FLOAT,)
SMALL_INTEGERS = 9
"""Bound of integers converted from floats, so that products of a few of them fit 8 bits."""


def keys() -> Iterator[str]:
    """The keys 'dtype:operator:variable:type', sorted by operator, with types as ONNX spells them."""
    for op in operators():
        for variable, types in variables(op).items():
            yield from (f"dtype:{op}:{variable}:{t}" for t in types)


def variables(op: str) -> dict[str, tuple[str, ...]]:
    """Type variable -> its allowed element types, for those that an operator's inputs or attributes
    determine."""
    if op in CONTROL:
        return {}
    schema, found = history(op)[-1], {}
    for c in schema.type_constraints:
        name = c.type_param_str
        decided = any(i.type_str == name for i in schema.inputs) or (op, name) in ATTRIBUTES
        tensors = [t for t in c.allowed_type_strs if t.startswith("tensor(")]
        if decided and tensors:
            found[name] = tuple(t.removeprefix("tensor(").removesuffix(")") for t in tensors)
    for i in schema.inputs:  # types that are written out, as tensor(int64) of a shape, are no variables
        found.pop(i.type_str if i.type_str.startswith("tensor(") else "", None)
    return found


def in_dtype(op: str, variable: str, dtype: str) -> Shipped | str:
    """The case of a key, or the reason why there is none."""
    why = "no case has an input of this type"
    for base in candidates(op)[:40]:
        node, schema = node_of(base.model, op), history(op)[-1]
        assert node is not None
        tensors = {f.tensor: f.name for f in formals(node, schema) if f.variable == variable}
        if not (tensors or (op, variable) in ATTRIBUTES) or (not base.data[0][0] and op not in _SOURCES):
            continue
        made = _converted(_raised(base, op, variable, dtype), op, variable, dtype)
        if isinstance(made, Shipped):
            return made
        why = made
    return why


def _raised(s: Shipped, op: str, variable: str, dtype: str) -> Shipped:
    """The case at the operator's newest version, where the case's own version lacks the element type."""
    domain, name = parts(op)
    (own,) = [o for o in s.model.opset_import if o.domain in (domain, domain or "ai.onnx")]
    allowed = {
        t
        for c in onnx.defs.get_schema(name, own.version, domain).type_constraints
        if c.type_param_str == variable
        for t in c.allowed_type_strs
    }
    if any(f"tensor({dtype})" in t for t in allowed):
        return s
    model = copied(s.model)
    for o in model.opset_import:
        if o.domain == own.domain:
            o.version = max(o.version, history(op)[-1].since_version)
    return replace(s, model=model)


_SOURCES = ("RandomNormal", "RandomUniform", "Constant")


def answered(s: Shipped, oracles: tuple[Oracle, ...] = (evaluator, runtime)) -> Shipped | None:
    """The case with the answer of the first oracle that has one; None where none has."""
    found = first(s.model, feed_of(s), oracles)
    return None if found is None else replace(s, data=((s.data[0][0], found[0]),))


# ---------------------------------------------------------------- converting


def _converted(base: Shipped, op: str, variable: str, dtype: str) -> Shipped | str:
    """The base case's first data set with all tensors of a type variable converted, or the reason why not."""
    code = TensorProto.DataType.Value(dtype.upper())
    model, feed = _model(base, op, variable, code)
    mixed = any(_elem(v.type) in MIXED_TYPES for v in model.graph.input)  # what is f32 may be computed in f32
    mixed = mixed or op in COARSE or "stash_type" in history(op)[-1].attributes
    rtol, atol = (base.rtol, base.atol) if mixed else TOLERANCE.get(dtype, (base.rtol, base.atol))
    name = f"{base.name} with {variable} = {dtype}"
    inputs = tuple(feed[v.name] for v in model.graph.input)
    made = Shipped(name, (op,), model, ((inputs, ()),), base.constants, rtol, atol)
    rounded = dtype in NARROW_FLOATS and op != "BitCast"
    cut = op in CUT_OFF and dtype.startswith(("int", "uint"))
    answer = _wide_answer(base, op, variable, dtype, feed) if rounded or cut else None
    if op in RANDOM:
        answer = tuple(map(_zeros, model.graph.output, base.data[0][1]))
    if answer is None:
        found = first(model, feed, (evaluator, runtime))
        answer = None if found is None else found[0]
    if answer is None and dtype == "bool":
        answer = _wide_answer(base, op, variable, dtype, feed, ("uint8",))
    if answer is None:
        return f"neither ONNX's evaluator nor ONNX Runtime computes it for {dtype}"
    return replace(made, data=((inputs, tuple(map(_texts, answer))),))


def _texts(value: CaseValue) -> CaseValue:
    """The value with '' in place of the number 0, which ONNX's evaluator uses as default padding of
    strings."""
    if not isinstance(value, np.ndarray) or value.dtype != np.dtype(object):
        return value
    found = [e if isinstance(e, str) else "" for e in value.reshape(-1)]
    return np.array(found, object).reshape(value.shape)


def _model(base: Shipped, op: str, variable: str, code: int) -> tuple[ModelProto, dict[str, CaseValue]]:
    model, schema = copied(base.model), history(op)[-1]
    node = node_of(model, op)
    assert node is not None
    group = _group(op, variable, TensorProto.DataType.Name(code).lower())
    inside = {f.tensor: f.name for f in formals(node, schema) if f.variable in group}
    outside = {f.tensor for f in formals(node, schema, outputs=True) if f.variable in group}
    to = onnx.helper.tensor_dtype_to_np_dtype(code)
    feed = dict(feed_of(base))
    for tensor, formal in inside.items():
        if tensor in feed:
            if op in CUT_OFF and variable == "T1":  # no plane: hardly a sample of it lies on an integer
                feed[tensor] = feed[tensor] * feed[tensor]
            feed[tensor] = _value(feed[tensor], to, (op, formal) in NOT_ZERO)
            if (op, formal) in ZERO_POINTS and _kind(np.dtype(to)) == "float":
                feed[tensor] = np.zeros_like(feed[tensor])
    for v in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if v.name in inside or v.name in outside:
            _retype(v.type, code)
    for t in model.graph.initializer:
        if t.name in inside:
            t.CopyFrom(numpy_helper.from_array(_value(numpy_helper.to_array(t), to), t.name))
    for n in model.graph.node:
        if n.op_type == "Constant" and n is not node and n.output[0] in inside:
            for a in n.attribute:
                a.t.CopyFrom(numpy_helper.from_array(_value(numpy_helper.to_array(a.t), to)))
    if op in ("Cast", "CastLike") and variable == "T2":
        first_input = next(iter(feed))
        feed[first_input] = _inside(feed[first_input], to)
    if op == "BitCast":
        _same_width(model, node, variable, code, feed)
    if (op, variable) in ATTRIBUTES:
        _set_type(node, ATTRIBUTES[op, variable], code, to)
    return model, feed


def _group(op: str, variable: str, dtype: str) -> set[str]:
    """The type variable, and those that must change with it and allow the type."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in history(op)[-1].type_constraints}
    tied = COUPLED.get((op, variable), ())
    return {variable, *(v for v in tied if any(f"tensor({dtype})" in t for t in allowed[v]))}


def _set_type(node: NodeProto, name: str, code: int, to: Any) -> None:
    old = [a for a in node.attribute if a.name == name]
    if name == "value":
        array = numpy_helper.to_array(old[0].t) if old else np.ones(1, np.float32)
        new = onnx.helper.make_attribute("value", numpy_helper.from_array(_value(array, to)))
    else:
        new = onnx.helper.make_attribute(name, code)
    for a in old:
        node.attribute.remove(a)
    node.attribute.append(new)


TYPE_BITS = {"double": 64, "float": 32, "bfloat16": 16, "bool": 8, "complex64": 64}


def _same_width(
    model: ModelProto, node: NodeProto, variable: str, code: int, feed: dict[str, CaseValue]
) -> None:
    """Give the other side of a BitCast an unsigned type of the same width."""
    name = TensorProto.DataType.Name(code).lower()
    found = re.fullmatch(r"(?:u?int|float)(2|4|8|16|32|64)(?:e\d.*)?", name)
    bits = TYPE_BITS.get(name) or int(found[1] if found else 8)
    other = TensorProto.DataType.Value(f"UINT{bits}")
    if variable == "T1":
        _set_type(node, "to", other, None)
        _retype(model.graph.output[0].type, other)
    else:
        (x,) = model.graph.input
        _retype(x.type, other)
        feed[x.name] = _value(feed[x.name], onnx.helper.tensor_dtype_to_np_dtype(other))


def _retype(t: Any, code: int) -> None:
    kind = t.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        getattr(t, kind).elem_type = code
    elif kind in ("sequence_type", "optional_type"):
        _retype(getattr(t, kind).elem_type, code)


def _value(v: CaseValue, to: Any, not_zero: bool = False) -> CaseValue:
    """A value in another element type: fractions become small integers, and every element is
    representable."""
    if isinstance(v, list):
        return [_value(x, to, not_zero) for x in v]
    if v is None:
        return None
    y = _array(np.asarray(v), np.dtype(to))
    if not_zero and y.dtype.kind in "iu":
        y = np.where(y == 0, np.ones_like(y), y)
    return y


def _inside(x: Any, to: Any) -> Any:
    """The elements clipped to an integer type's range: beyond it, ONNX does not define the result of a cast.
    For strings, with a fraction: ONNX does not define whether a whole number ends in '.0'."""
    if _kind(np.dtype(to)) == "string" and np.asarray(x).dtype.kind == "f":
        return np.rint(x) + np.asarray(0.5, x.dtype)
    if _kind(np.dtype(to)) != "int":
        return x
    low, high = _range(to)
    return np.clip(x, max(low, -SMALL_INTEGERS), min(high, SMALL_INTEGERS)).astype(x.dtype)


def _range(to: Any) -> tuple[int, int]:
    info: Any = ml_dtypes.iinfo(to)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


def _array(x: Any, to: Any) -> Any:
    kind = _kind(to)
    if x.dtype == to:
        return x
    if x.dtype.kind in "OSU":
        x = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    if kind == "string":
        return np.array([str(v) for v in x.reshape(-1).tolist()], object).reshape(x.shape)
    if kind == "bool":
        return x > 0 if x.dtype.kind == "f" else x.astype(bool)
    with np.errstate(all="ignore"):
        wide = x.astype(np.complex64).real if x.dtype.kind == "c" else x.astype(np.float64)
        if kind == "int":
            low, high = _range(to)
            if not np.array_equal(wide, np.rint(wide)):
                wide = np.clip(np.rint(np.nan_to_num(wide) * 4), -SMALL_INTEGERS, SMALL_INTEGERS)
            if low == 0:
                wide = np.abs(wide)
            exact = 2**53
            wide = np.clip(np.nan_to_num(wide), max(low, -exact), min(high, exact))
            return np.asarray(wide).astype(np.int64).astype(to)
        return wide.astype(to)


def _kind(dtype: Any) -> str:
    if dtype.kind == "O":
        return "string"
    if dtype == np.bool_:
        return "bool"
    name = dtype.name
    return "int" if name.startswith(("int", "uint")) else "complex" if dtype.kind == "c" else "float"


# ---------------------------------------------------------------- answers of 16-bit floats


def _wide_answer(
    base: Shipped,
    op: str,
    variable: str,
    dtype: str,
    feed: Mapping[str, CaseValue],
    wides: tuple[str, ...] = ("double", "float"),
) -> tuple[CaseValue, ...] | None:
    """The answer, computed in f64 or f32 from the rounded inputs, with outputs rounded (or truncated)
    once."""
    if (op, variable) in ATTRIBUTES:
        return None
    allowed = variables(op)[variable]
    for wide in wides:
        if wide not in allowed:
            continue
        model, _ = _model(base, op, variable, TensorProto.DataType.Value(wide.upper()))
        to = onnx.helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(wide.upper()))
        own = {v.name for v in model.graph.input if _elem(v.type) == TensorProto.DataType.Value(wide.upper())}
        wider = {k: _cast(v, to, any_kind=True) if k in own else v for k, v in feed.items()}
        found = first(model, wider, (evaluator, runtime))
        if found is None:
            continue
        node = node_of(model, op)
        assert node is not None
        group = _group(op, variable, dtype)
        rounded = {f.tensor for f in formals(node, history(op)[-1], outputs=True) if f.variable in group}
        names = [o.name for o in model.graph.output]
        narrow = onnx.helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(dtype.upper()))
        with np.errstate(all="ignore"):
            return tuple(
                _cast(y, narrow, any_kind=True) if n in rounded else y
                for n, y in zip(names, found[0], strict=True)
            )
    return None


def _zeros(output: onnx.ValueInfoProto, like: CaseValue) -> CaseValue:
    """Zeros in place of random outputs, of which only types and shapes are compared."""
    return np.zeros(np.shape(like), onnx.helper.tensor_dtype_to_np_dtype(_elem(output.type)))


def _elem(t: Any) -> int:
    kind = t.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _elem(getattr(t, kind).elem_type)
    return int(getattr(t, kind).elem_type)


def _cast(v: CaseValue, to: Any, any_kind: bool = False) -> CaseValue:
    """Convert floats to another type; any_kind: integers too."""
    if isinstance(v, list):
        return [_cast(x, to, any_kind) for x in v]
    if v is None or not (any_kind or _kind(np.asarray(v).dtype) == "float"):
        return v
    return np.asarray(v).astype(to)
