"""A node, its attributes and the types of its inputs in; SmeltError out where ONNX's definition of its op
does not allow them. These checks, common to all ops, come before the binding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from smelt.core.diag import SmeltError, shown
from smelt.core.dtype import DType
from smelt.core.ir.graph import TensorType
from smelt.importer.domains import MS
from smelt.importer.weights import ONNX_OF

Fail = Callable[[str], SmeltError]

TYPES = {v: k for k, v in AttributeProto.AttributeType.items()}


@dataclass(frozen=True)
class Parameter:
    """An input of an op. types: its allowed element types, as ONNX writes them. variable: the type variable,
    which equal types share; empty where there is none. ranks: the allowed ones; empty where any is."""

    name: str
    required: bool
    types: frozenset[str]
    variable: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Signature:
    """The definition of an op. attributes: name -> (type, whether it is required). inputs: the last one
    stands for all further ones, of which there are `most` at most with it. grows: a later release may give
    the op more under the same version (com.microsoft's do). ranges: attribute -> its least and largest."""

    attributes: Mapping[str, tuple[int, bool]]
    inputs: tuple[Parameter, ...]
    least: int
    most: int
    outputs: int
    grows: bool = False
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=lambda: MappingProxyType({}))

    def input(self, k: int) -> Parameter:
        """The parameter of input k, which is present."""
        return self.inputs[min(k, len(self.inputs) - 1)]


RANGES: Mapping[tuple[str, str], Mapping[str, tuple[float, float]]] = {
    ("", "Attention"): {"is_causal": (0, 1), "qk_matmul_output_mode": (0, 3), "softcap": (0, math.inf)},
    (MS, "GroupQueryAttention"): {"softcap": (0, math.inf)},
}
"""Parameters that no binding reads: of ops that ONNX defines as functions, and those that ONNX Runtime
ignores."""


@cache
def signature(domain: str, op: str, version: int) -> Signature | None:
    """The signature in force; None where ONNX does not define the op: of other domains, and experiments."""
    try:
        s: Any = onnx.defs.get_schema(op, version, domain)  # its stubs lack the values of its enums
    except onnx.defs.SchemaError:
        return None
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    inputs = tuple(
        Parameter(p.name, p.option == single, frozenset(p.types), p.type_str if p.is_homogeneous else "")
        for p in s.inputs
    )
    attributes = {k: (int(a.type.value), bool(a.required)) for k, a in s.attributes.items()}
    ranges = RANGES.get((domain, op), {})
    return Signature(attributes, inputs, s.min_input, s.max_input, s.max_output, ranges=ranges)


def check_node(
    s: Signature, n: NodeProto, given: Mapping[str, AttributeProto], fail: Fail, unsupported: Fail
) -> None:
    """Check a node's attributes and its numbers of inputs and outputs.
    Raises what `fail` makes of a message; `unsupported` of what a later release may have given the op."""
    beyond = unsupported if s.grows else fail
    for name, a in given.items():
        if name not in s.attributes:
            known = ", ".join(sorted(s.attributes)) or "none"
            raise beyond(f"attribute '{shown(name)}' is not one of the operator's ({known})")
        kind = s.attributes[name][0]
        if a.type != kind:
            raise fail(f"attribute '{name}' is {TYPES.get(a.type, a.type)}, wanted {TYPES[kind]}")
        low, high = s.ranges.get(name, (-math.inf, math.inf))
        value = onnx.helper.get_attribute_value(a) if name in s.ranges else low
        if not low <= value <= high:
            raise fail(f"{name} is {value}, wanted {low} to {high}")
    for name, (_, required) in s.attributes.items():
        if required and name not in given:
            raise fail(f"attribute '{name}' is missing")
    if len(n.input) > s.most:
        raise beyond(f"found {len(n.input)} inputs, the operator takes {s.most} at most")
    for k in range(max(len(n.input), s.least)):
        if not s.inputs or not s.input(k).required:
            continue
        if k >= len(n.input) or not n.input[k]:
            raise fail(f"input {k} is missing: {s.input(k).name}")
    if len(n.output) > s.outputs:
        raise beyond(f"found {len(n.output)} outputs, the operator has {s.outputs}")


def check_types(s: Signature, found: Sequence[TensorType | None], fail: Fail) -> None:
    """Check that each input has an allowed element type and rank, and that inputs of one type variable have
    the same type. found: None for an input that is absent or no tensor. Raises what `fail` makes of a
    message."""
    bound: dict[str, tuple[int, DType]] = {}
    for k, t in enumerate(found):
        if t is None or not s.inputs:
            continue
        p, dtype = s.input(k), t.dtype
        if p.ranks and t.rank not in p.ranks:
            wanted = " or ".join(map(str, p.ranks))
            raise fail(f"input {k} ({p.name}) has rank {t.rank}, wanted {wanted}")
        if not any(t.startswith("tensor(") for t in p.types):
            continue  # a map: the binding says so
        if f"tensor({_spelt(dtype)})" not in p.types:
            named = ", ".join(sorted(t[7:-1] for t in p.types if t.startswith("tensor(")))
            raise fail(f"input {k} ({p.name}) is {dtype}, wanted {named}")
        first, other = bound.setdefault(p.variable, (k, dtype)) if p.variable else (k, dtype)
        if other != dtype:
            raise fail(f"inputs {first} and {k} are {other} and {dtype}, wanted one type")


@cache
def _spelt(dtype: DType) -> str:
    """An element type as ONNX writes it."""
    return str(TensorProto.DataType.Name(ONNX_OF[dtype]).lower())
