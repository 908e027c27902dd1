"""Dims in, their exact values in 64 bits out, with a jump to an error where a value does not fit."""

from __future__ import annotations

from collections.abc import Callable

from smelt.core.dim import Dim
from smelt.targets.llvm.builder import FunctionBuilder, Scope, Value
from smelt.targets.llvm.index import Env, Indexer, Number, bounds

LEAST, MOST = -(1 << 63), (1 << 63) - 1


class Exact(Indexer):
    """Evaluates Dims on the host, where nothing may wrap: what comes out sizes memory, loops and checks.

    Each product and difference that may overflow by its operands' bounds is followed by a jump on overflow.
    Sums of sizes, of which a plan has thousands, have one jump for all of a Dim: each that does not fit is
    negative, and the signs are gathered. A total that fits is refused too where a partial sum does not.
    overflow: the label for the overflow of a Dim. Code that may jump is not hoisted: a branch that is not
    taken refuses nothing. Nothing is nsw, since code runs on with a sum that did not fit.
    """

    def __init__(self, builder: FunctionBuilder, overflow: Callable[[Dim], str]) -> None:
        super().__init__(builder, "i64")
        self.overflow = overflow
        self._whole: Dim | None = None
        self._signs: Value | None = None  # negative where a sum of sizes did not fit

    def exact(self, dim: Dim, env: Env, taken_from: Value | None = None) -> Value:
        """The dim, or a number less the dim."""
        self._whole = dim
        number = self.number(dim, env)
        made = self.as_value(number if taken_from is None else self.sub(taken_from, number))
        if self._signs is not None:
            self._leave_if(self.b.here(f"icmp slt {self._signs.typed}, 0", "i1", 0))
        self._whole = self._signs = None
        return made

    def as_value(self, n: Number) -> Value:
        if isinstance(n, int) and not self.fits(n):
            self._leave_if(self.b.integer(1, "i1"))
            n = 0
        return super().as_value(n)

    def floordiv(self, a: Number, b: Number) -> Number:
        return super().floordiv(a, self._divisor_that_fits(b))

    def mod(self, a: Number, b: Number) -> Number:
        return super().mod(a, self._divisor_that_fits(b))

    def _divisor_that_fits(self, b: Number) -> Number:
        if isinstance(b, int) and not self.fits(b):
            self.as_value(b)
            return 1
        return b

    def _ring(self, op: str, a: Number, b: Number, low: int | None, high: int | None) -> Value:
        if op == "mul":
            low, high = _product(a, b)
        if low is not None and high is not None and low >= LEAST and high <= MOST:
            return self._op(op, a, b, low, high)
        if op == "add" and _is_size(a) and _is_size(b):
            return self._sum_of_sizes(a, b, low, high)
        x, y = self.as_value(a), self.as_value(b)
        key = f"exact {op} {x.text}, {y.text}"
        found = self._known(key)
        if found is not None:
            return found
        name = f"llvm.s{op}.with.overflow.i64"
        self.b.declare(name, "{ i64, i1 }", ["i64", "i64"], "nounwind memory(none)")
        both = self.b.here(f"call {{ i64, i1 }} @{name}({x.typed}, {y.typed})", "", 0)
        made = self.b.here(f"extractvalue {{ i64, i1 }} {both.text}, 0", "i64", 0)
        self._leave_if(self.b.here(f"extractvalue {{ i64, i1 }} {both.text}, 1", "i1", 0))
        made.low = LEAST if low is None else max(low, LEAST)
        made.high = MOST if high is None else min(high, MOST)
        self.b.scope.cache[key] = made
        return made

    def _sum_of_sizes(self, a: Number, b: Number, low: int | None, high: int | None) -> Value:
        made = self._op("add", a, b, low, MOST if high is None else min(high, MOST))
        if self._known(key := f"exact add {made.text}") is None:
            before = self._signs
            self._signs = made if before is None else self.b.here(f"or {before.typed}, {made.text}", "i64", 0)
            self.b.scope.cache[key] = made
        return made

    def _leave_if(self, flag: Value) -> None:
        assert self._whole is not None
        go_on = self.b.block("next")
        self.b.effect(f"br i1 {flag.text}, label %{self.overflow(self._whole)}, label %{go_on.label}")
        self.b.scope.block = go_on

    def _known(self, key: str) -> Value | None:
        scope: Scope | None = self.b.scope
        while scope is not None:
            if key in scope.cache:
                return scope.cache[key]
            scope = scope.parent
        return None


def _is_size(n: Number) -> bool:
    low, _ = bounds(n)
    return low is not None and low >= 0


def _product(a: Number, b: Number) -> tuple[int | None, int | None]:
    """Bounds of a product."""
    (al, ah), (bl, bh) = bounds(a), bounds(b)
    if al is None or ah is None or bl is None or bh is None:
        return (0 if al is not None and bl is not None and al >= 0 and bl >= 0 else None), None
    ends = (al * bl, al * bh, ah * bl, ah * bh)
    return min(ends), max(ends)
