"""Naive nests whose divisions vanish: a loop over i with i//q and i%q in its indices becomes two loops."""

from __future__ import annotations

from collections.abc import Iterator

from smelt.core.dim import YES, Dim, Facts, FloorDiv, Max, Min, Mod, sym, to_dim
from smelt.core.ir.analysis.scope import enter
from smelt.core.ir.kernel import Bound, Call, Expr, Index, Let, Load, Reduce, children
from smelt.core.ir.rewrite import substitute_expr
from smelt.core.passes.lowering.collapse import NestForm
from smelt.core.passes.lowering.compose import Simplifier


def split_divided(nest: NestForm, facts: Facts) -> NestForm:
    """y[.., i] = x[.., i // q] * w[i % q]  -->  y[.., a * q + b] = x[.., a] * w[b]

    For a variable whose extent q divides, when that leaves no division by q: groups of a convolution,
    phases of a transposed one. Guards that always hold go."""
    for v, extent in nest.variables:
        for q in sorted(set(_divisors(nest.value, v)), reverse=True):
            if q > 1 and facts.prove_divisible(extent, q) is YES:
                made = _split(nest, v, extent, q, facts)
                if made is not None:
                    return split_divided(made, facts)
    return nest


def _dims(e: Expr) -> Iterator[Dim]:
    """Every Dim that positions or guards an access, or is a value."""
    if isinstance(e, Index):
        yield e.dim
    elif isinstance(e, Load):
        yield from e.index
        for b in e.guard:
            yield from (b.low, b.index, b.high)
    for c in children(e):
        yield from _dims(c)


def _atoms(d: Dim) -> Iterator[object]:
    for _, factors in d.terms():
        for atom, _ in factors:
            yield atom
            if isinstance(atom, FloorDiv | Mod):
                yield from _atoms(atom.a)
                yield from _atoms(atom.b)
            elif isinstance(atom, Min | Max):
                for x in atom.args:
                    yield from _atoms(x)


def _divisors(e: Expr, v: str) -> Iterator[int]:
    """Constants that something with v is divided by."""
    for d in _dims(e):
        if v in d.symbols:
            for atom in _atoms(d):
                if isinstance(atom, FloorDiv | Mod) and atom.b.is_const and v in atom.a.symbols:
                    yield atom.b.const


def _split(nest: NestForm, v: str, extent: Dim, q: int, facts: Facts) -> NestForm | None:
    outer, inner = f"{v}o", f"{v}i"
    mapping = {v: sym(outer) * q + sym(inner)}
    variables: list[tuple[str, Dim]] = []
    for name, n in nest.variables:
        variables += [(outer, extent // q), (inner, to_dim(q))] if name == v else [(name, n)]
    for name, n in variables:
        facts = facts.with_index(name, n)
    value = substitute_expr(nest.value, mapping)
    value = _without_idle_guards(Simplifier(facts).expr(value, facts), facts)
    if any(True for name in (outer, inner) for _ in _divisors(value, name)):
        return None
    index = tuple(d.substitute(mapping) for d in nest.index)
    kept = tuple((name, n) for name, n in variables if n.const_or_none != 1)
    gone = {name: 0 for name, n in variables if n.const_or_none == 1}
    if gone:
        value, index = substitute_expr(value, gone), tuple(d.substitute(gone) for d in index)
    return NestForm(kept, nest.output, index, value, nest.inputs)


def _without_idle_guards(e: Expr, facts: Facts) -> Expr:
    """Bounds over constants that are proved are dropped."""
    if isinstance(e, Load):
        other = None if e.otherwise is None else _without_idle_guards(e.otherwise, facts)
        guard = tuple(b for b in e.guard if not _holds(b, facts))
        return Load(e.buffer, e.index, e.dtype, guard, other if guard else None)
    if isinstance(e, Call):
        return Call(e.fn, tuple(_without_idle_guards(a, facts) for a in e.args), e.dtype)
    if isinstance(e, Reduce):
        body = _without_idle_guards(e.body, enter(facts, e.axes))
        return Reduce(e.kind, e.axes, body, e.dtype, e.last)
    if isinstance(e, Let):
        value = _without_idle_guards(e.value, facts)
        return Let(e.var, value, e.low, e.high, _without_idle_guards(e.body, enter(facts, e)))
    return e


def _holds(b: Bound, facts: Facts) -> bool:
    return facts.prove_le(b.low, b.index) is YES and facts.prove_lt(b.index, b.high) is YES


__all__ = ["split_divided"]
