"""An operator's name in; its schema, and its shipped cases of one node out: what sweeps derive cases from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from smelt.conformance.cases import Shipped, shipped

# Operators that ONNX ships no case for.
OWN_MODELS: dict[str, str] = {
    "GlobalLpPool": "(float[2,3,4,5] x) => (float[2,3,1,1] y) { y = GlobalLpPool <p = 2> (x) }",
    "RandomNormal": "() => (float[2,3] y) { y = RandomNormal <shape = [2, 3], seed = 1.0> () }",
    "RandomUniform": "() => (float[2,3] y) { y = RandomUniform <shape = [2, 3], seed = 1.0> () }",
    "RandomNormalLike": "(float[2,3] x) => (float[2,3] y)"
    " { y = RandomNormalLike <seed = 1.0, dtype = 1> (x) }",
    "RandomUniformLike": "(float[2,3] x) => (float[2,3] y)"
    " { y = RandomUniformLike <seed = 1.0, dtype = 1> (x) }",
    "Multinomial": "(float[2,5] x) => (int32[2,4] y) { y = Multinomial <sample_size = 4, seed = 1.0> (x) }",
    "MaxRoiPool": "(float[1,2,6,6] x, float[2,5] rois) => (float[2,2,2,2] y)"
    " { y = MaxRoiPool <pooled_shape = [2, 2]> (x, rois) }",
}
ROIS = np.array([[0, 0, 0, 3, 3], [0, 1, 2, 5, 5]], np.float32)


@dataclass(frozen=True)
class Formal:
    """An input or output of a node: the tensor's name, and the schema's names of the parameter and its
    type."""

    tensor: str
    name: str
    variable: str


def parts(op: str) -> tuple[str, str]:
    """Split an operator's full name into (domain, name)."""
    domain, _, name = op.rpartition(".")
    return domain, name


@cache
def _schemas() -> Mapping[tuple[str, str], tuple[Any, ...]]:
    """All schemas by domain and name, oldest first. ONNX copies all of them, which takes 10 ms."""
    found: dict[tuple[str, str], list[Any]] = {}
    for s in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda s: int(s.since_version)):
        found.setdefault((s.domain, s.name), []).append(s)
    return {op: tuple(versions) for op, versions in found.items()}


def history(op: str) -> tuple[Any, ...]:
    """All schemas of an operator, oldest first."""
    return _schemas().get(parts(op), ())


@cache
def operators() -> tuple[str, ...]:
    """All operators that have a case, by name."""
    every = {o for s in shipped() for o in s.ops} | set(OWN_MODELS)
    return tuple(sorted(o for o in every if history(o)))


@cache
def candidates(op: str) -> tuple[Shipped, ...]:
    """Cases whose only node, besides constants, is this operator: sorted by most inputs first, then by
    size."""
    found = [s for s in _by_op().get(op, ()) if node_of(s.model, op) is not None]
    if not found and op in OWN_MODELS:
        found = [_own(op)]
    return tuple(sorted(found, key=_cost))


def node_of(model: ModelProto, op: str) -> NodeProto | None:
    """The only node of a model that is no Constant, when it is this operator."""
    domain, name = parts(op)
    own = [n for n in model.graph.node if n.op_type != "Constant" or name == "Constant"]
    if len(own) != 1 or own[0].op_type != name:
        return None
    return own[0] if ("" if own[0].domain == "ai.onnx" else own[0].domain) == domain else None


def formals(node: NodeProto, schema: Any, outputs: bool = False) -> Iterator[Formal]:
    """The tensors of a node with the schema's names of their parameters; absent ones are left out."""
    declared = schema.outputs if outputs else schema.inputs
    for k, tensor in enumerate(node.output if outputs else node.input):
        if k >= len(declared) and not (declared and _variadic(declared[-1])):
            return
        p = declared[min(k, len(declared) - 1)]
        if tensor:
            yield Formal(tensor, p.name, p.type_str)


def _variadic(p: Any) -> bool:
    return bool(p.option == onnx.defs.OpSchema.FormalParameterOption.Variadic)


@cache
def _by_op() -> dict[str, list[Shipped]]:
    found: dict[str, list[Shipped]] = {}
    for s in shipped():
        given = s.data and len(s.data[0][0]) == len(s.model.graph.input)
        if len(s.ops) == 1 and "_expanded" not in s.name and given:
            found.setdefault(s.ops[0], []).append(s)
    return found


def _cost(s: Shipped) -> tuple[bool, bool, bool, int, int, str]:
    sizes = [int(v.size) for inputs, _ in s.data[:1] for v in inputs if isinstance(v, np.ndarray)]
    plain = any(v.dtype == np.float32 for i, _ in s.data[:1] for v in i if isinstance(v, np.ndarray))
    tensors = all(isinstance(v, np.ndarray) for inputs, _ in s.data[:1] for v in inputs)
    rich = max(sum(map(bool, n.input)) for n in s.model.graph.node)
    return (not tensors, 0 in sizes, not plain, -rich, sum(sizes), s.name)


def _own(op: str) -> Shipped:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {onnx.defs.onnx_opset_version()}]> g {OWN_MODELS[op]}'
    )
    rng = np.random.default_rng(0)
    inputs: list[Any] = []
    for v in model.graph.input:
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        inputs.append(ROIS if v.name == "rois" else rng.normal(size=shape).astype(np.float32))
    wanted = tuple(_zeros(v) for v in model.graph.output)
    return Shipped(f"own_{op.lower()}", (op,), model, ((tuple(inputs), wanted),), frozenset(), 1e-3, 1e-7)


def _zeros(v: onnx.ValueInfoProto) -> Any:
    t = v.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(t.elem_type)
    return np.zeros([d.dim_value for d in t.shape.dim], dtype)


def feed_of(s: Shipped) -> dict[str, Any]:
    """Input names -> values of the first data set."""
    return {v.name: a for v, a in zip(s.model.graph.input, s.data[0][0], strict=False)}


def version_of(model: ModelProto, domain: str) -> int:
    """The version of a domain that a model imports; 1 when it says nothing."""
    same = ("", "ai.onnx") if domain in ("", "ai.onnx") else (domain,)
    return next((int(o.version) for o in model.opset_import if o.domain in same), 1)


def copied(model: ModelProto) -> ModelProto:
    """A deep copy."""
    made = ModelProto()
    made.CopyFrom(model)
    return made
