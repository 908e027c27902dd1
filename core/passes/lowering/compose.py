"""Nodes -> Expr: compute rules applied to their producers' rules; loads are left of outside tensors only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from smelt.core.dim import Dim, Facts, SymbolAtom
from smelt.core.dim.expr import atom_dim
from smelt.core.ir.analysis.scope import enter
from smelt.core.ir.graph import Node, Ref, TensorType, Weight
from smelt.core.ir.kernel import Axis, Bound, Call, Const, Expr, Index, Let, Load, Reduce
from smelt.core.ops import OPS
from smelt.core.ops.trace import MARK, Operand, Trace
from smelt.core.ops.traits import variable
from smelt.core.passes.lowering.collapse import drop_unit_axes

TypeOf = Callable[[Ref], TensorType]


class Composer:
    """The element of one output of some nodes at an index; every (value, index) is traced once, so that
    what several consumers read at one place is one shared expression with one set of variables.

    inline: the Const that a ref stands for, or None (small constants become part of the kernel)."""

    def __init__(self, nodes: Sequence[Node], type_of: TypeOf, inline: Callable[[Ref], Const | None]) -> None:
        self._makers = {v.name: (n, k) for n in nodes for k, v in enumerate(n.outputs)}
        self._type_of = type_of
        self._inline = inline
        self._trace = Trace(MARK)
        self._memo: dict[tuple[Ref, tuple[Dim, ...]], Expr] = {}

    def at(self, ref: Ref, index: tuple[Dim, ...]) -> Expr:
        """The element of ref at index."""
        key = (ref, index)
        if key not in self._memo:
            self._memo[key] = self._element(ref, index)
        return self._memo[key]

    def _element(self, ref: Ref, index: tuple[Dim, ...]) -> Expr:
        made = self._makers.get(ref)
        if made is None:
            found = self._inline(ref)
            return Load(ref, index, self._type_of(ref).dtype) if found is None else found
        node, slot = made
        rules = OPS[node.op].compute
        rule = rules[slot] if isinstance(rules, tuple) else rules
        assert rule is not None, node.op
        operands = [self._operand(r) if r else None for r in node.inputs]
        return rule(self._trace, index, node.attrs, node.outputs[slot].type, *operands)

    def _operand(self, ref: Ref) -> Operand:
        t = self._type_of(ref)
        return Operand(t.dtype, t.shape, lambda i: self.at(ref, i))


def inline_scalars(weights: Mapping[Ref, Weight]) -> Callable[[Ref], Const | None]:
    """Weights of one element as literals."""

    def inline(ref: Ref) -> Const | None:
        w = weights.get(ref)
        if w is None or any(n != 1 for n in w.shape):
            return None
        array = np.asarray(w.array()).reshape(())
        value = (array.view(np.uint8) if w.dtype.coded else array).item()  # a code, not what it stands for
        return Const(float(value) if w.dtype.is_float else value, w.dtype)

    return inline


# ---------------------------------------------------------------- index expressions under what is known


def is_plain(d: Dim) -> bool:
    """Whether no variable stands inside a division, remainder, minimum or maximum."""
    return all(
        isinstance(atom, SymbolAtom) or not any(s.startswith(MARK) for s in atom_dim(atom).symbols)
        for _, factors in d.terms()
        for atom, _ in factors
    )


class Simplifier:
    """Index expressions with what the ranges of the variables decide; memoised, so share it."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._memo: dict[tuple[int, Dim], Dim] = {}
        self._scopes: dict[tuple[int, object], Facts] = {}
        self._plain: dict[Dim, bool] = {}

    def element(self, e: Expr, shape: Sequence[Dim]) -> Expr:
        """e, the element of a tensor of that shape at `out_index`."""
        key = (0, tuple(shape))
        if key not in self._scopes:
            self._scopes[key] = indexed(self._facts, shape)
        return self.expr(drop_unit_axes(e), self._scopes[key])

    def dim(self, d: Dim, facts: Facts) -> Dim:
        """d, simplified."""
        if d not in self._plain:
            self._plain[d] = is_plain(d)
        if self._plain[d]:
            return d
        key = (id(facts), d)
        if key not in self._memo:
            self._memo[key] = facts.simplify(d)
        return self._memo[key]

    def _enter(self, facts: Facts, binder: Let | tuple[Axis, ...]) -> Facts:
        key = (id(facts), binder if isinstance(binder, tuple) else (binder.var, binder.low, binder.high))
        if key not in self._scopes:
            self._scopes[key] = enter(facts, binder)
        return self._scopes[key]

    def expr(self, e: Expr, facts: Facts) -> Expr:
        """e with every index expression simplified where it stands."""
        if isinstance(e, Load):
            index = tuple(self.dim(d, facts) for d in e.index)
            other = None if e.otherwise is None else self.expr(e.otherwise, facts)
            return Load(e.buffer, index, e.dtype, self._guard(e.guard, facts), other)
        if isinstance(e, Call):
            return Call(e.fn, tuple(self.expr(a, facts) for a in e.args), e.dtype)
        if isinstance(e, Reduce):
            axes = tuple(Axis(a.var, self.dim(a.extent, facts)) for a in e.axes)
            return Reduce(e.kind, axes, self.expr(e.body, self._enter(facts, axes)), e.dtype, e.last)
        if isinstance(e, Let):
            body = self.expr(e.body, self._enter(facts, e))
            low, high = self.dim(e.low, facts), self.dim(e.high, facts)
            return Let(e.var, self.expr(e.value, facts), low, high, body)
        return Index(self.dim(e.dim, facts), e.dtype) if isinstance(e, Index) else e

    def _guard(self, guard: tuple[Bound, ...], facts: Facts) -> tuple[Bound, ...]:
        return tuple(
            Bound(self.dim(b.low, facts), self.dim(b.index, facts), self.dim(b.high, facts)) for b in guard
        )


def indexed(facts: Facts, shape: Sequence[Dim]) -> Facts:
    """facts with the output variables inside their extents."""
    for a, d in enumerate(shape):
        if d.const_or_none != 1:
            facts = facts.with_index(variable(a), d)
    return facts
