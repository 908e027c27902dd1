"""Small modules for pass tests: built node by node, run by the graph interpreter before and after."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from smelt.core.dim import parse_dim
from smelt.core.dtype import DTYPES
from smelt.core.ir.graph import Attr, Graph, Module, Ref, Symbol, TensorType, Value
from smelt.core.ir.interp_graph import run_module
from smelt.core.machine import Machine
from smelt.core.ops import OPS
from smelt.core.ops.table import Case
from smelt.core.passes.context import Context
from smelt.core.passes.rewriting.editor import Editor, Workshop

MACHINE = Machine("test", 256, 16)
CONTEXT = Context(MACHINE)
Array = np.ndarray[Any, Any]


def parse_type(text: str) -> TensorType:
    """'f32[N, 3]' as a type."""
    found = re.fullmatch(r"(\w+)\[(.*)\]", text)
    assert found, text
    dims = [d for d in re.split(r",(?![^()]*\))", found[2]) if d.strip()]
    return TensorType(DTYPES[found[1]], tuple(parse_dim(d.strip()) for d in dims))


class Build:
    """A module under construction: `x = b.input('f32[N, 3]')`, `y = b('relu', x)`, `b.done(y)`."""

    def __init__(self, *inputs: str, symbols: Sequence[Symbol] = ()) -> None:
        types = [parse_type(t) for t in inputs]
        values = tuple(Value(f"%x{k}", t, f"x{k}") for k, t in enumerate(types))
        names = sorted({s for t in types for d in t.shape for s in d.symbols})
        known = {s.name: s for s in symbols}
        self._symbols = tuple(known.get(n, Symbol(n)) for n in names)
        base = Module("test", self._symbols, graphs={"main": Graph("main", values, (), ())})
        self.shop = Workshop(base)
        self.g = Editor(self.shop, base.main, {})
        self.inputs: tuple[Ref, ...] = tuple(v.name for v in values)

    def __call__(self, op: str, *inputs: Ref, **attrs: Attr) -> Ref:
        """One node."""
        return self.g.emit(op, inputs, attrs, origin=f"{op}{len(self.g.nodes)}")

    def weight(self, array: Any, dtype: Any = np.float32) -> Ref:
        """A constant."""
        return self.g.constant(np.asarray(array, dtype))

    def done(self, *outputs: Ref) -> Module:
        """The module with these outputs."""
        self.g.outputs = list(outputs)
        graph = self.g.graph()
        graph = graph.with_(output_names=tuple(f"y{k}" for k in range(len(outputs))))
        weights = MappingProxyType(dict(self.shop.weights))
        return Module("test", self._symbols, weights, {"main": graph})


def feeds(
    module: Module, env: Mapping[str, int], seed: int = 0, low: float = -2.0, high: float = 2.0
) -> dict[str, Array]:
    """Random inputs at these sizes."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for v in module.main.inputs:
        shape = [d.evaluate(env) for d in v.type.shape]
        dtype = v.type.dtype
        if dtype.is_float:
            data = rng.uniform(low, high, shape).astype(dtype.numpy)
        elif dtype.name == "bool":
            data = rng.integers(0, 2, shape).astype(bool)
        else:
            first = int(max(low, -3)) if dtype.category == "int" else 0
            data = rng.integers(first, int(high) + 1, shape).astype(dtype.numpy)
        found[v.origin] = data
    return found


def run(module: Module, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """The outputs by the interpreter."""
    return run_module(module, inputs, OPS)


def assert_same(before: Module, after: Module, inputs: Mapping[str, Array], factor: float = 1.0) -> None:
    """Both modules give the same outputs."""
    for a, b in zip(run(before, inputs), run(after, inputs), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        if a.dtype.kind == "f":
            wide = 2e-2 if a.dtype.itemsize == 2 else 2e-5
            x, y = a.astype(np.float64), b.astype(np.float64)
            np.testing.assert_allclose(x, y, rtol=wide * factor, atol=wide * factor)
        else:
            np.testing.assert_array_equal(a, b)


def case_module(op: str, case: Case) -> Module:
    """One node of a conformance case; arrays among its inputs become constants."""
    types = [t for t in case.inputs if isinstance(t, str) and t != "-"]
    b = Build(*types)
    extra = {s for v in case.attrs.values() for s in _symbols(v)} - {s.name for s in b._symbols}
    if extra:
        b = Build(*types, *(f"f32[{s}]" for s in sorted(extra)))
    left = list(b.inputs)
    refs: list[Ref] = []
    for t in case.inputs:
        if isinstance(t, str):
            refs.append("" if t == "-" else left.pop(0))
        else:
            refs.append(b.g.constant(np.asarray(t)))
    outputs = b.g.emit_all(op, refs, case.attrs, origin=op)
    return b.done(*outputs)


def _symbols(value: Attr) -> set[str]:
    if isinstance(value, tuple):
        return {s for v in value for s in _symbols(v)}
    return set(getattr(value, "symbols", ()))
