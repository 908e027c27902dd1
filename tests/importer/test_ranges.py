"""Integers lie within what the formulas that made them say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from op_cases import Row, arrays, concrete, environments, evaluated, infer, rows

from smelt.core.diag import SmeltError
from smelt.core.dim import dmin, sym, to_dim
from smelt.core.dtype import f32, i64
from smelt.core.ir.graph import Node, Symbol, TensorType, Value
from smelt.core.ops.infer import Engine
from smelt.importer.ranges import span

BOUNDED = (
    "reshape", "transpose", "broadcast_to", "tile", "gather", "gather_elements", "gather_nd", "reduce_max",
    "reduce_min", "concat", "slice", "pad", "argmax", "argmin", "topk", "non_zero", "iota", "cast", "where",
    "min", "max", "clip", "mod", "add", "sub", "equal", "not",
)  # fmt: skip
"""Ops between data and where it is an index."""


@dataclass(frozen=True)
class Graph:
    """What the question asks a builder: inputs are constants, and one node made the rest."""

    engine: Engine
    types: Mapping[str, TensorType]
    held: Mapping[str, Any]
    node: Node

    def type_of(self, ref: str) -> TensorType:
        return self.types[ref]

    def known_of(self, ref: str) -> None:
        return None

    def constant_of(self, ref: str) -> Any:
        return self.held.get(ref)

    def producer(self, ref: str) -> Node | None:
        return None if ref in self.held else self.node


def bounded(row: Row, env: Mapping[str, int]) -> int:
    """How many bounds of a case's results are known; the references keep them all."""
    inputs, outs = arrays(row, env), concrete(infer(row), env)
    attrs = evaluated(row.case.attrs, env)
    types = concrete(tuple(t or TensorType(f32, ()) for t in row.types), env)
    named = {f"a{k}": (t, a) for k, (t, a) in enumerate(zip(types, inputs, strict=True)) if a is not None}
    refs = tuple(f"a{k}" if a is not None else "" for k, a in enumerate(inputs))
    values = tuple(Value(f"y{k}", t) for k, t in enumerate(outs))
    made = {n: t for n, (t, _) in named.items()} | {v.name: v.type for v in values}
    held = {n: a for n, (_, a) in named.items()}
    b = Graph(Engine([]), made, held, Node(row.op.name, refs, values, attrs))
    with np.errstate(all="ignore"):
        results = row.op.ref(inputs, attrs, outs)
    count = 0
    for v, result in zip(values, results, strict=True):
        low, high = span(b, v.name)
        if v.type.dtype.coded or not result.size:
            continue
        count += (low is not None) + (high is not None)
        assert low is None or low.const <= result.min(), (row.name, env, low, result.min())
        assert high is None or result.max() <= high.const, (row.name, env, high, result.max())
    return count


def of_integers(row: Row) -> Row:
    """The case with integers for floats."""
    types = tuple(t and (replace(t, dtype=i64) if t.dtype == f32 else t) for t in row.types)
    with np.errstate(invalid="ignore"):
        given = tuple(a if a is None or a.dtype.kind != "f" else a.astype(np.int64) for a in row.given)
    return replace(row, types=types, given=given)


def cases(name: str) -> Iterator[Row]:
    for row in rows():
        if row.op.name == name:
            yield row
            if name not in BOUNDED:
                continue
            try:
                infer(of_integers(row))
            except SmeltError:
                continue
            yield of_integers(row)


NAMES = sorted({r.op.name for r in rows() if r.op.pure})


@pytest.mark.parametrize("name", NAMES)
def test_integers_lie_within(name: str) -> None:
    count = sum(bounded(r, env) for r in cases(name) for env in environments(r))
    assert count or name not in BOUNDED


def test_symbols_and_rows() -> None:
    """A row of what NonZero gives holds positions on one axis, read through views."""
    n, m, k = (sym(s) for s in "nmk")
    types = {
        "x": TensorType(f32, (n, m)),
        "p": TensorType(i64, (to_dim(2), k)),
        "t": TensorType(i64, (k, to_dim(2))),
        "c": TensorType(i64, (k, to_dim(1))),
        "y": TensorType(i64, (k,)),
    }
    cut = {"starts": (to_dim(0), to_dim(1)), "ends": (k, to_dim(2)), "steps": (1, 1)}
    nodes = {
        "p": Node("non_zero", ("x",), (Value("p", types["p"]),), {"count": k}),
        "t": Node("transpose", ("p",), (Value("t", types["t"]),), {"perm": (1, 0)}),
        "c": Node("slice", ("t",), (Value("c", types["c"]),), cut),
        "y": Node("reshape", ("c",), (Value("y", types["y"]),), {"shape": (k,)}),
    }

    class Chain(Graph):
        def producer(self, ref: str) -> Node | None:
            return nodes.get(ref)

    b = Chain(Engine([Symbol(s) for s in "nmk"]), types, {}, nodes["y"])
    assert span(b, "y") == (to_dim(0), m - 1)
    low, high = span(b, "p")
    assert low == to_dim(0) and {str(s) for s in high.symbols} == {"n", "m"}  # type: ignore[union-attr]


def test_columns_of_a_concatenation() -> None:
    """An index has a column for each axis: a column's numbers are those of the part that it comes from."""
    n, m = sym("n"), sym("m")
    types = {
        "a": TensorType(i64, (m, to_dim(1))),
        "b": TensorType(i64, (m, to_dim(2))),
        "x": TensorType(f32, (n, m)),
        "t": TensorType(i64, (m, to_dim(3))),
        "c": TensorType(i64, (m, to_dim(1))),
        "d": TensorType(i64, (m, to_dim(2))),
    }
    whole = {"starts": (to_dim(0), to_dim(0)), "ends": (m, to_dim(1)), "steps": (1, 1)}
    rest = {"starts": (to_dim(0), to_dim(1)), "ends": (m, to_dim(3)), "steps": (1, 1)}
    nodes = {
        "a": Node("argmax", ("x",), (Value("a", types["a"]),), {"axis": 0, "keepdims": True}),
        "t": Node("concat", ("a", "b"), (Value("t", types["t"]),), {"axis": 1}),
        "c": Node("slice", ("t",), (Value("c", types["c"]),), whole),
        "d": Node("slice", ("t",), (Value("d", types["d"]),), rest),
    }

    class Chain(Graph):
        def producer(self, ref: str) -> Node | None:
            return nodes.get(ref)

    b = Chain(Engine([Symbol(s) for s in "nm"]), types, {}, nodes["t"])
    assert span(b, "c") == (dmin(n - 1, 0), n - 1)
    assert span(b, "t") == span(b, "d") == (None, None)
