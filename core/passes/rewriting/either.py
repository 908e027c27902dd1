"""A size that only a run knows and two ways to compute one value -> an `if` node that takes the right one.

For sums that fit 32 bits up to some number of terms (core/ops/accumulate.py):

    either_by_size(g, terms, most_terms(left, right), n.output.type,
                   lambda inner: integer form, emitted on `inner`, lambda inner: float form on `inner`)
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from smelt.core.dim import Dim
from smelt.core.dtype import i64
from smelt.core.ir.graph import Graph, Node, Ref, TensorType, Value
from smelt.core.passes.rewriting.editor import Editor

RegionBuild: TypeAlias = Callable[[Editor], Ref]
"""Emits nodes on the editor that it is given, the region's own, and says which value they make. Values from
around may be read by name; that editor does not know who made them."""


def either_by_size(
    g: Editor, size: Dim, most: int, type_: TensorType, then: RegionBuild, other: RegionBuild
) -> Ref:
    """The value of `then` where size <= most, of `other` beyond; both are of the type given."""
    found = g.emit("from_dims", (), {"values": (size,), "shape": (), "dtype": i64})
    fits = g.emit("less_equal", (found, g.constant(np.array(most, np.int64), "most")))
    graphs = tuple(_region(g, name, build, type_) for name, build in (("then", then), ("else", other)))
    made = Value(g.shop.name("%either"), type_)
    g.add(Node("if", (fits,), (made,), MappingProxyType({}), graphs, g.origin))
    return made.name


def _region(g: Editor, name: str, build: RegionBuild, type_: TensorType) -> Graph:
    inner = g.inside(name)
    ref = build(inner)
    assert inner.type_of(ref) == type_, f"{name}: {inner.type_of(ref)}, wanted {type_}"
    inner.outputs.append(ref)
    return inner.graph()
