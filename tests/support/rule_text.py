"""A module -> the program that makes it, in the notation of a rule's forms (rule_forms.py), on one line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rule_forms import DEFAULTS

from smelt.core.dim import Dim
from smelt.core.dtype import DType
from smelt.core.ir.graph import Graph, Module, Node, Ref
from smelt.core.passes.rewriting.editor import Editor, Workshop, used_refs

FEW = 4
"""Elements of a constant that are written out; of larger ones the type."""


def text_of(module: Module) -> str:
    """The nodes and results; values used once stand where they are used, the others are v0, v1, ..."""
    return _Writer(module).graph(module.main)


class _Writer:
    def __init__(self, module: Module) -> None:
        self.g = Editor(Workshop(module), module.main, {})
        self.weights = module.weights
        self.known: dict[Ref, str] = {v.name: v.name[1:] for v in module.main.inputs}

    def graph(self, graph: Graph) -> str:
        uses: dict[Ref, int] = {}
        for r in (*graph.outputs, *(r for n in graph.nodes for r in used_refs(n))):
            uses[r] = uses.get(r, 0) + 1
        parts = []
        for n in graph.nodes:
            made = self.node(n)
            if len(n.outputs) == 1 and uses.get(n.output.name, 0) == 1:
                self.known[n.output.name] = made
                continue
            names = [f"v{len(self.known) + k}" for k in range(len(n.outputs))]
            self.known.update(zip((v.name for v in n.outputs), names, strict=True))
            parts.append(f"{', '.join(names)} = {made}")
        results = ", ".join(map(self.ref, graph.outputs))
        return "; ".join([*parts, results if len(graph.outputs) == 1 else f"({results})"])

    def node(self, n: Node) -> str:
        given = [self.ref(r) for r in n.inputs]
        attrs = dict(n.attrs)
        if n.op in DEFAULTS:
            usual = DEFAULTS[n.op](self.g, n.inputs, n.attrs)
            attrs = {k: v for k, v in attrs.items() if usual.get(k) != v}
        given += [f"{k}={_value(v)}" for k, v in attrs.items()]
        given += [f"{r.name}: {self.graph(r)}" for r in n.regions]
        return f"{n.op}({', '.join(given)})"

    def ref(self, ref: Ref) -> str:
        if not ref.startswith("@"):
            return self.known[ref] if ref else "''"
        w = self.weights[ref]
        kind = f"{w.dtype.name}{list(w.shape)}"
        flat = w.array().reshape(-1)
        if math.prod(w.shape) and len({repr(x) for x in flat.tolist()}) == 1:
            one = _number(flat[0])
            return one if kind == "f32[]" else f"{kind}({one})"
        return f"{kind}({', '.join(map(_number, flat))})" if flat.size <= FEW else kind


def _number(x: Any) -> str:
    item = x.item()
    return f"{np.float64(item):.8g}" if isinstance(item, float) else str(item)


def _value(v: Any) -> str:
    if isinstance(v, tuple):
        return f"({', '.join(map(_value, v))}{',' if len(v) == 1 else ''})"
    if isinstance(v, DType):
        return v.name
    if isinstance(v, float):
        return _number(np.float64(v))
    return str(v) if isinstance(v, Dim) else repr(v)
