"""Lowered graphs -> lowered graphs: f32 tensors between kernels are stored in f16; kernels compute as before.

Each kernel loads f16 and widens, computes in f32 exactly as without this pass, and narrows what it stores, so
that memory and traffic halve while sums, exponentials and variances keep their precision. Inputs and outputs
of the model keep their types: the first kernels read f32 and the last write it, and no kernel only converts.

    y[i] = f(x[i])    -->    y16[i] = cast(saturate(f(cast(x16[i]))))

A finite number beyond f16's largest is stored as that (masks of -3.4e38 stay finite), infinities stay.

Not stored in f16: what half_marks.py says needs more; what a library or a bit pattern wants; values that are
one storage with such a value (both ends of a view, the states of a loop, the results of a branch); weights
that are small (biases, scales: nothing to win), too large for f16, too close to 0, or large integers; floats
beside quantised weights and those that are quantised next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from smelt.core.dtype import Array, f16, f32
from smelt.core.ir.graph import Graph, Module, Node, Ref, TensorType, Value, Weight
from smelt.core.ir.kernel import Buffer, Call, Const, Expr, Kernel, Load, Stmt, Store
from smelt.core.ir.rewrite import map_expr, map_stmt_exprs, map_stmts
from smelt.core.ir.units import VIEWS
from smelt.core.passes.context import Context, Hook
from smelt.core.passes.lowering.half_marks import (
    COUNTED,
    F16_LARGEST,
    MEASURED,
    NOTHING,
    TRAVELS,
    Marks,
    fits_f16,
    output_marks,
)

SUFFIX = ".f16"
"""Ends the name of a converted weight."""
SMALL_WEIGHT = 4096
"""Elements up to which a weight stays f32."""
TINY = 2.0**-14
"""The least number of full precision in f16."""
MOST_TINY = 1 / 8
"""Share of a weight's numbers that may be less than TINY, 0 apart."""
F16_EXACT = 2048
"""The largest integer up to which f16 has all."""


def half(module: Module, ctx: Context) -> Module:
    """The module with f32 values and weights in f16 where they may be; as it is unless ctx.options.fp16."""
    if not ctx.options.fp16:
        return module
    return _Rewrite(module, decide(module)).run()


# ---------------------------------------------------------------- decisions


@dataclass
class _Classes:
    """Refs that are one storage, or must have one type."""

    parent: dict[Ref, Ref] = field(default_factory=dict)

    def root(self, ref: Ref) -> Ref:
        while (up := self.parent.get(ref, ref)) != ref:
            self.parent[ref] = self.parent.get(up, up)
            ref = up
        return ref

    def join(self, a: Ref, b: Ref) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self.parent[b] = a


@dataclass(frozen=True)
class Decision:
    """half: f32 values to store in f16. kept: the other f32 values that kernels make, and why. weights: those
    to convert where a kernel reads them beside no quantised weight."""

    half: frozenset[Ref]
    kept: Mapping[Ref, str]
    weights: frozenset[Ref]


class _Survey:
    """What a module's f32 values are for."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.classes = _Classes()
        self.types: dict[Ref, TensorType] = {}
        self.pinned: dict[Ref, str] = {}
        self.calls: list[Node] = []
        self.fixed: set[Ref] = set()  # weights that are used as they are
        self.marks: dict[Ref, Marks] = {}
        self.fit = {ref: _convertible(w) for ref, w in module.weights.items() if w.dtype == f32}

    def run(self) -> Decision:
        graphs = self.module.graphs.values()
        for g in graphs:
            self._types(g)
        for g in graphs:
            self._pin("the model's interface", *(v.name for v in g.inputs), *g.outputs)
            self._graph(g)
        self._flow()
        half, kept = set(), {}
        made = {v.name for n in self.calls for v in n.outputs}
        why = {self.classes.root(r): reason for r, reason in self.pinned.items()}
        for ref, t in self.types.items():
            if t.dtype != f32:
                continue
            root = self.classes.root(ref)
            reason = why.get(root) or _reason(self.marks.get(root, NOTHING))
            if not reason:
                half.add(ref)
            elif ref in made:
                kept[ref] = reason
        weights = {r for r, good in self.fit.items() if good and r not in self.fixed}
        return Decision(frozenset(half), MappingProxyType(kept), frozenset(weights))

    # ------------------------------------------------------------ structure

    def _types(self, g: Graph) -> None:
        self.types.update((v.name, v.type) for v in g.inputs)
        for n in g.nodes:
            self.types.update((v.name, v.type) for v in n.outputs)
            for region in n.regions:
                self._types(region)

    def _pin(self, why: str, *refs: Ref) -> None:
        for ref in refs:
            if ref.startswith("@"):
                self.fixed.add(ref)
            elif ref:
                self.pinned.setdefault(ref, why)
                self.marks[self.classes.root(ref)] = Marks(MEASURED)

    def _join(self, *refs: Ref) -> None:
        """All of one type; a weight among them keeps its own."""
        values = [r for r in refs if r in self.types]
        for other in values[1:]:
            self.classes.join(values[0], other)
        if len(values) < len(refs):
            self._pin("one storage with a weight", *refs)

    def _graph(self, g: Graph) -> None:
        for n in g.nodes:
            STRUCTURE[n.op](self, n)
            for region in n.regions:
                self._graph(region)

    def call(self, n: Node) -> None:
        self.calls.append(n)
        outputs = self.module.kernels[str(n.attrs["kernel"])].outputs
        if any(b.dtype.is_int and b.dtype.bits == 8 for b in outputs):
            self.pinned.update((r, "quantised next") for r in n.inputs if r in self.types)

    def view(self, n: Node) -> None:
        self._join(n.output.name, n.inputs[0])

    def foreign(self, n: Node) -> None:
        self._pin("a library's operand" if n.op == "call_library" else "read as bits",
                  *n.inputs, *(v.name for v in n.outputs))  # fmt: skip

    def branch(self, n: Node) -> None:
        for v, results in zip(n.outputs, zip(*(r.outputs for r in n.regions), strict=True), strict=True):
            self._join(v.name, *results)

    def loop(self, n: Node) -> None:
        (body,) = n.regions
        count = len(n.inputs) - 2
        for k in range(count):
            self._join(n.outputs[k].name, n.inputs[2 + k], body.inputs[2 + k].name, body.outputs[1 + k])
        for v, r in zip(n.outputs[count:], body.outputs[1 + count :], strict=True):
            self._join(v.name, r)

    def other(self, n: Node) -> None:
        """Checks and bindings read integers."""

    # ------------------------------------------------------------ marks

    def _flow(self) -> None:
        """Marks along the calls until nothing changes: loops carry them back."""
        pinned, self.marks = self.marks, {}
        for ref, m in pinned.items():
            root = self.classes.root(ref)
            self.marks[root] = self.marks.get(root, NOTHING) | m
        seen: dict[tuple[str, tuple[Marks, ...]], tuple[Marks, ...]] = {}
        changed = True
        while changed:
            changed = False
            for n in self.calls:
                name = str(n.attrs["kernel"])
                key = (name, tuple(self._known(r) for r in n.inputs if r))
                if key not in seen:
                    seen[key] = output_marks(self.module.kernels[name], key[1])
                for v, m in zip(n.outputs, seen[key], strict=True):
                    root = self.classes.root(v.name)
                    old = self.marks.get(root, NOTHING)
                    if v.type.dtype == f32 and old | m != old:
                        self.marks[root], changed = old | m, True

    def _known(self, ref: Ref) -> Marks:
        if ref not in self.types:
            return NOTHING
        t = self.types[ref]
        if t.dtype != f32:
            return Marks(MEASURED) if t.dtype.is_float else NOTHING
        found = self.marks.get(self.classes.root(ref), NOTHING)
        return Marks(found.source, found.marks & TRAVELS)


STRUCTURE = {
    "call_kernel": _Survey.call,
    "call_library": _Survey.foreign,
    **dict.fromkeys(VIEWS, _Survey.view),
    "if": _Survey.branch,
    "loop": _Survey.loop,
    "check": _Survey.other,
    "bind": _Survey.other,
}


def _reason(m: Marks) -> str:
    if m.source == COUNTED:
        return "made of integers"
    return " and ".join(sorted(m.marks))


def decide(module: Module) -> Decision:
    """Which f32 values and weights of a lowered module are stored in f16, and why the others are not."""
    return _Survey(module).run()


def reporter(found: dict[str, Any]) -> Hook:
    """A hook that fills `found` when the pass is done: half: how many of the values that kernels make are in
    f16; float: how many f32 ones are not, by reason; weights: how many weights were converted."""

    def look(before: Module, name: str, after: Module) -> None:
        if name != "half":
            return
        decision = decide(before)
        calls = list(after.calls())
        found["half"] = sum(v.name in decision.half for n in calls for v in n.outputs)
        found["float"] = dict(sorted(Counter(decision.kept.values()).items()))
        found["weights"] = sum(r.endswith(SUFFIX) for r in after.weights)

    return look


# ---------------------------------------------------------------- weights


def _convertible(w: Weight) -> bool:
    """Whether a weight is large enough to win something and loses little; looked at some MiB at a time."""
    if math.prod(w.shape) <= SMALL_WEIGHT:
        return False
    count = tiny = 0
    whole, most = True, 0.0
    for piece in w.pieces():
        size = np.abs(piece)
        size = size[np.isfinite(size) & (size > 0)]
        if not size.size:
            continue
        most = max(most, float(size.max()))
        if most > F16_LARGEST:
            return False
        count, tiny = count + size.size, tiny + int(np.count_nonzero(size < TINY))
        whole = whole and bool((size == np.rint(size)).all())
    return tiny <= MOST_TINY * count and not (whole and most > F16_EXACT)


def _converted(w: Weight, name: Ref) -> Weight:
    """The weight in f16; from a file or a recipe, when it is read."""
    plain = replace(w, name=name, dtype=f16, known_digest="", data=None)
    if w.data is not None:
        data = w.data.astype(np.float16)
        data.flags.writeable = False
        return replace(plain, data=data)
    if w.recipe is not None:
        return replace(plain, recipe=lambda: _pieces(w))
    return replace(plain, stored=w.dtype)


def _pieces(w: Weight) -> Iterator[Array]:
    for piece in w.pieces():
        yield piece.astype(np.float16)


# ---------------------------------------------------------------- rewriting

HalfSignature = tuple[tuple[bool, ...], tuple[bool, ...]]
"""Which inputs and which outputs of a kernel are in f16."""


class _Rewrite:
    """The module with the decision carried out."""

    def __init__(self, module: Module, decision: Decision) -> None:
        self.module = module
        self.decision = decision
        self.kernels: dict[str, Kernel] = {}
        self.weights = dict(module.weights)
        self.names: dict[tuple[str, HalfSignature], str] = {}

    def run(self) -> Module:
        graphs = {name: self._graph(g) for name, g in self.module.graphs.items()}
        used = {r for g in graphs.values() for r in _refs(g)}
        weights = {r: w for r, w in self.weights.items() if r in used}
        return self.module.with_(
            graphs=graphs, kernels=MappingProxyType(self.kernels), weights=MappingProxyType(weights)
        )

    def _graph(self, g: Graph) -> Graph:
        nodes = tuple(self._node(n) for n in g.nodes)
        return g.with_(inputs=tuple(self._value(v) for v in g.inputs), nodes=nodes)

    def _value(self, v: Value) -> Value:
        return replace(v, type=TensorType(f16, v.type.shape)) if v.name in self.decision.half else v

    def _node(self, n: Node) -> Node:
        made = n.with_(
            outputs=tuple(self._value(v) for v in n.outputs), regions=tuple(self._graph(r) for r in n.regions)
        )
        return self._call(made) if n.op == "call_kernel" else made

    def _call(self, n: Node) -> Node:
        kernel = self.module.kernels[str(n.attrs["kernel"])]
        coded = any(r in self.weights and self.weights[r].dtype.bits == 8 for r in n.inputs)
        refs = tuple(self._weight(r) if r in self.decision.weights and not coded else r for r in n.inputs)
        signature = (
            tuple(r in self.decision.half or (r in self.weights and self.weights[r].dtype != b.dtype)
                  for r, b in zip((r for r in refs if r), kernel.inputs, strict=True)),
            tuple(v.type.dtype != b.dtype for v, b in zip(n.outputs, kernel.outputs, strict=True)),
        )  # fmt: skip
        attrs = {**n.attrs, "kernel": self._kernel(kernel, signature)}
        return n.with_(inputs=refs, attrs=MappingProxyType(attrs))

    def _weight(self, ref: Ref) -> Ref:
        name = f"{ref}{SUFFIX}"
        if name not in self.weights:
            self.weights[name] = _converted(self.module.weights[ref], name)
        return name

    def _kernel(self, kernel: Kernel, signature: HalfSignature) -> str:
        """The name of the kernel for operands in these types."""
        key = (kernel.name, signature)
        if key not in self.names:
            name = kernel.name
            if any(map(any, signature)):
                name, n = f"{kernel.name}_half", 1
                while name in self.kernels or name in self.module.kernels:
                    n += 1
                    name = f"{kernel.name}_half_{n}"
            self.names[key] = name
            self.kernels[name] = narrowed(kernel, signature).with_(name=name)
        return self.names[key]


def _refs(g: Graph) -> Iterator[Ref]:
    yield from g.outputs
    for n in g.nodes:
        yield from n.inputs
        for region in n.regions:
            yield from _refs(region)


def narrowed(kernel: Kernel, signature: HalfSignature) -> Kernel:
    """The kernel with some of its buffers in f16 and the same computation in between."""
    inputs, outputs = (
        tuple(replace(b, dtype=f16) if yes else b for b, yes in zip(buffers, given, strict=True))
        for buffers, given in zip((kernel.inputs, kernel.outputs), signature, strict=True)
    )
    loads = _changed(kernel.inputs, inputs)
    stores = _changed(kernel.outputs, outputs)

    def widen(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in loads:
            other = None if e.otherwise is None else narrow(e.otherwise)
            return Call("cast", (replace(e, dtype=f16, otherwise=other),), f32)
        return e

    def store(s: Stmt) -> Stmt:
        return replace(s, value=narrow(s.value)) if isinstance(s, Store) and s.buffer in stores else s

    body = tuple(map_stmt_exprs(s, lambda e: map_expr(e, widen)) for s in kernel.body)
    return kernel.with_(inputs=inputs, outputs=outputs, body=map_stmts(body, store))


def _changed(before: tuple[Buffer, ...], after: tuple[Buffer, ...]) -> frozenset[str]:
    return frozenset(a.name for a, b in zip(before, after, strict=True) if a != b)


def narrow(e: Expr) -> Expr:
    """An f32 expression as f16: a number that f16 has as it is, others rounded, finite ones kept finite."""
    if isinstance(e, Const):
        value = float(e.value)
        return Const(min(max(value, -F16_LARGEST), F16_LARGEST) if math.isfinite(value) else value, f16)
    if isinstance(e, Call) and e.fn == "cast" and e.args[0].dtype == f16:
        return e.args[0]
    return Call("cast", (e if fits_f16(e) else Call("saturate", (e,), f32),), f16)


__all__ = ["Decision", "decide", "half", "narrow", "narrowed", "reporter"]
