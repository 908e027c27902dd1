"""An operator and one of its older versions in; a case written for that version out, answer included.

The case is a shipped one, rewritten by the differences of the two schemas: an input that is an attribute in
the old schema becomes one; attributes that the old schema lacks are dropped where they hold the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, numpy_helper

from smelt.conformance.cases import Shipped
from smelt.conformance.oracle import evaluator, first, runtime
from smelt.conformance.single import (
    Formal,
    candidates,
    copied,
    feed_of,
    formals,
    history,
    node_of,
    operators,
    parts,
    version_of,
)

OLDEST = 7
"""The oldest opset that is tested: older ones broadcast differently, and ONNX Runtime does not read them."""
ALIAS = {"constant_value": "value"}
"""Input -> the name of the attribute that it was, where the names differ."""
TRIES = 60


def keys() -> Iterator[str]:
    """The keys 'opset:operator:version': each version in force at opset 7 or later, by its first opset."""
    for op in operators():
        yield from (f"opset:{op}:{v}" for v in versions(op))


def versions(op: str) -> tuple[int, ...]:
    """The opsets that changed an operator's schema; in the standard domain none before 7."""
    schemas = history(op)
    if parts(op)[0]:
        return tuple(int(s.since_version) for s in schemas if not s.deprecated)
    old = [s for s in schemas if s.since_version <= OLDEST][-1:]
    new = [s for s in schemas if s.since_version > OLDEST]
    return tuple(max(int(s.since_version), OLDEST) for s in (*old, *new) if not s.deprecated)


def at_opset(op: str, version: int) -> Shipped | str:
    """The case of a key, or the reason why there is none."""
    why = "no case"
    for base in candidates(op)[:TRIES]:
        made = _rewritten(base, op, version)
        if isinstance(made, str):
            why = made
            continue
        found = first(made.model, feed_of(made), (runtime, evaluator))
        if found is None:
            why = "neither ONNX Runtime nor ONNX's evaluator computes it"
            continue
        return replace(made, data=((made.data[0][0], found[0]),))
    return why


def _rewritten(base: Shipped, op: str, version: int) -> Shipped | str:
    """The base case's first data set at that version, or the reason why not."""
    domain, name = parts(op)
    old = onnx.defs.get_schema(name, version, domain)
    new = onnx.defs.get_schema(name, version_of(base.model, domain), domain)
    model = copied(base.model)
    node = node_of(model, op)
    assert node is not None
    feed = feed_of(base)
    moved = _move_inputs(node, old, new, model, feed) or _drop_attributes(node, old, new)
    if moved:
        return moved
    for o in model.opset_import:
        if (o.domain or "ai.onnx") == (domain or "ai.onnx"):
            o.version = version
    model.ir_version = min(model.ir_version, 8)
    wrong = _unfit(node, old, model)
    if wrong:
        return wrong
    try:
        onnx.checker.check_model(model)
    except Exception as e:  # the checker raises several kinds
        return " ".join(str(e).split())[:160]
    inputs = tuple(feed[v.name] for v in model.graph.input)
    constants = base.constants & set(feed)
    return Shipped(
        f"{base.name} at opset {version}", (op,), model, ((inputs, ()),), constants, base.rtol, base.atol
    )


# ---------------------------------------------------------------- inputs that were attributes


def _move_inputs(node: NodeProto, old: Any, new: Any, model: ModelProto, feed: dict[str, Any]) -> str:
    """Move inputs to where the old schema has them; the reason why that fails, or ''."""
    places = {p.name.lower(): k for k, p in enumerate(old.inputs)}
    placed: dict[int, str] = {}
    for k, f in _positions(node, new):
        at = places.get(f.name.lower())
        attribute = _attribute(f, old) if at is None else None
        if attribute is not None:
            value = _constant(f.tensor, model, feed)
            if value is None:
                return f"'{f.name}' was an attribute, and its value is not known"
            node.attribute.append(_as_attribute(attribute, old.attributes[attribute].type, value))
            _forget(f.tensor, model, feed)
        elif _many(old):
            placed[k] = f.tensor
        elif at is not None or k < len(old.inputs):
            placed[k if at is None else at] = f.tensor
        else:
            return f"there was no input '{f.name}'"
    inputs = [placed.get(k, "") for k in range(max(placed, default=-1) + 1)]
    if node.op_type == "Resize" and len(inputs) > 2 and not inputs[1] and old.since_version == 11:
        inputs[1] = "no_roi"  # it had to be there
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(0, np.float32), "no_roi"))
    del node.input[:]
    node.input.extend(inputs)
    return ""


def _positions(node: NodeProto, schema: Any) -> Iterator[tuple[int, Formal]]:
    """(position, tensor) of each input that is present."""
    there = [k for k, tensor in enumerate(node.input) if tensor]
    return zip(there, list(formals(node, schema)), strict=False)


def _many(schema: Any) -> bool:
    last = schema.inputs[-1] if len(schema.inputs) else None
    return last is not None and last.option == onnx.defs.OpSchema.FormalParameterOption.Variadic


def _attribute(f: Formal, old: Any) -> str | None:
    names = (f.name, f.name.lower(), ALIAS.get(f.name, ""))
    return next((n for n in names if n in old.attributes), None)


def _constant(tensor: str, model: ModelProto, feed: dict[str, Any]) -> Any:
    if tensor in feed:
        return feed[tensor]
    for t in model.graph.initializer:
        if t.name == tensor:
            return numpy_helper.to_array(t)
    return None


def _forget(tensor: str, model: ModelProto, feed: dict[str, Any]) -> None:
    """Remove a tensor without readers from the model's inputs."""
    feed.pop(tensor, None)
    for rows in (model.graph.input, model.graph.initializer):
        for row in [r for r in rows if r.name == tensor]:
            rows.remove(row)


def _as_attribute(name: str, kind: Any, value: Any) -> AttributeProto:
    flat = np.asarray(value).reshape(-1).tolist()
    kinds = onnx.defs.OpSchema.AttrType
    if kind in (kinds.INTS, kinds.FLOATS):
        plain: Any = [float(v) if kind == kinds.FLOATS else int(v) for v in flat]
        return onnx.helper.make_attribute(
            name, plain, attr_type=AttributeProto.FLOATS if kind == kinds.FLOATS else AttributeProto.INTS
        )
    return onnx.helper.make_attribute(name, float(flat[0]) if kind == kinds.FLOAT else int(flat[0]))


def _drop_attributes(node: NodeProto, old: Any, new: Any) -> str:
    """Remove attributes that the old schema lacks; the reason why one cannot be removed, or ''."""
    for a in [a for a in node.attribute if a.name not in old.attributes]:
        default = new.attributes[a.name].default_value if a.name in new.attributes else None
        if default is None or onnx.helper.get_attribute_value(a) != onnx.helper.get_attribute_value(default):
            return f"there was no attribute '{a.name}'"
        node.attribute.remove(a)
    return ""


def _unfit(node: NodeProto, old: Any, model: ModelProto) -> str:
    """The reason why the old schema refuses an input's type, or ''."""
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in old.type_constraints}
    types = {v.name: v.type for v in model.graph.input}
    for f in formals(node, old):
        if f.tensor in types and types[f.tensor].WhichOneof("value") == "tensor_type":
            elem = types[f.tensor].tensor_type.elem_type
            text = f"tensor({onnx.TensorProto.DataType.Name(elem).lower()})"
            if text not in allowed.get(f.variable, {f.variable}):
                return f"'{f.name}' was no {text}"
    if len([i for i in node.input if i]) < old.min_input or len(node.output) > old.max_output:
        return "another number of inputs or outputs"
    return ""
