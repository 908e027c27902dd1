"""Index expressions (Dims) in, OpenCL C expressions of type long out, with divisions that floor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from smelt.core.dim import YES, Atom, Dim, Facts, FloorDiv, Max, Min, Mod, SymbolAtom
from smelt.targets.opencl.helpers import Helpers

Env: TypeAlias = Mapping[str, str | int]
"""Symbol -> the C variable or the number that it stands for."""

INT_MIN = -(1 << 63)


def long_literal(n: int) -> str:
    """n as a long; the lowest one has no literal of its own."""
    if n == INT_MIN:
        return f"({n + 1}L - 1L)"
    return f"{n}L" if n >= 0 else f"({n}L)"


def index_text(d: Dim, env: Env, facts: Facts, helpers: Helpers) -> str:
    """d as C text that is safe inside any other expression. env has every symbol of d; facts: what is
    known about them, which decides whether a division may be C's own."""
    numbers = {s: v for s in d.symbols if isinstance(v := env[s], int)}
    if numbers:
        d = d.substitute(numbers)
    return _Writer(env, facts, helpers).text(d)


class _Writer:
    def __init__(self, env: Env, facts: Facts, helpers: Helpers) -> None:
        self.env, self.facts, self.helpers = env, facts, helpers

    def text(self, d: Dim) -> str:
        if d.is_const:
            return long_literal(d.const)
        terms = d.terms()
        if len(terms) == 1 and terms[0][0] == 1 and [p for _, p in terms[0][1]] == [1]:
            return self.atom(terms[0][1][0][0])
        parts: list[str] = []
        for coefficient, factors in terms:
            size = abs(coefficient)
            names = [self.atom(a) for a, power in factors for _ in range(power)]
            if size != 1 or not names:
                names.append(f"{size}L")
            sign = "-" if coefficient < 0 else "+"
            parts.append(f"{sign} {' * '.join(names)}")
        return f"({' '.join([parts[0].removeprefix('+ '), *parts[1:]])})"

    def atom(self, a: Atom) -> str:
        match a:
            case SymbolAtom():
                return str(self.env[a.name])
            case FloorDiv():
                return self.division(a.a, a.b, "/", "floordiv")
            case Mod():
                return self.division(a.a, a.b, "%", "floormod")
            case Min() | Max():
                name = self.helpers.use("index_min" if isinstance(a, Min) else "index_max")
                out = self.text(a.args[0])
                for d in a.args[1:]:
                    out = f"{name}({out}, {self.text(d)})"
                return out
        raise AssertionError(a)

    def division(self, a: Dim, b: Dim, operator: str, helper: str) -> str:
        left, right = self.text(a), self.text(b)
        if self.facts.prove_le(0, a) is YES and self.facts.prove_le(1, b) is YES:
            return f"({left} {operator} {right})"
        return f"{self.helpers.use(helper)}({left}, {right})"
