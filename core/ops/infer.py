"""Type inference: types, ranges and equalities of sizes in, output types and run-time checks out."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, islice
from math import gcd, lcm
from typing import Literal, NamedTuple

from smelt.core.diag import SmeltError
from smelt.core.dim import (
    ONE,
    Atom,
    Dim,
    Facts,
    FloorDiv,
    Max,
    Min,
    Range,
    SymbolAtom,
    TooLarge,
    Truth,
    dmax,
    dmin,
    large,
    sole_atom,
    sym,
    to_dim,
)
from smelt.core.ir.graph import Module, Symbol, TensorType

Relation = Literal["==", "<=", "divides", "fits"]
"""left relation right; fits: left is 1 or equals right, so that it broadcasts to it."""
LARGEST_SIZE = to_dim(2**31 - 1)
"""The largest size that a run-time integer may have where nothing else bounds it."""
LARGEST_EXTENT = 2**62
"""The largest extent that an axis of an empty tensor may have."""

MOST_JOINED = 16
"""Unrelated extents that one result of broadcasts remembers it was made of."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """A relation that could not be proved; it becomes a `check` node before the node that needs it."""

    left: Dim
    relation: Relation
    right: Dim
    text: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A fresh symbol that stands for a formula which nothing needs to look into: a `bind` without input."""

    symbol: str
    value: Dim


@dataclass(frozen=True, slots=True)
class Demand:
    """An equality of sizes of inputs that every run must meet, and the node that wants it. fits: 1 will do
    for `left`."""

    left: Dim
    right: Dim
    fits: bool
    what: str
    node: str
    op: str


class State(NamedTuple):
    """What an engine knows, and how much it has recorded."""

    facts: Facts
    equal: int
    differ: int
    pending: int
    demands: int


class Engine:
    """What is known about the sizes of one module; implements the `Infer` protocol of the op table.

    Knowledge comes in three strengths. *Solved* symbols (an equality that every run must meet, solved for a
    symbol of the inputs) vanish from all types: binding the inputs checks them. *Ranges* of input symbols
    shrink when an unconditional node needs it: binding checks them as well. Anything else becomes an
    `Unproven` and is known only below it. Inside a region that may not run (`conditional`), only checks are
    recorded.

    learn: False for passes, which re-infer types that were inferred before and must change nothing.
    """

    def __init__(self, symbols: Iterable[Symbol] = (), learn: bool = True) -> None:
        self.facts = Facts()
        self._symbols: dict[str, Symbol] = {}
        self._free: dict[str, int] = {}  # symbols that inputs bind, by rank: a higher one goes first
        self._solved: dict[str, Dim] = {}
        self._uppers: dict[str, Dim] = {}
        self._equal: list[tuple[Dim, Dim]] = []
        self._differ: list[tuple[Dim, Dim]] = []
        self._pending: list[Unproven | Definition] = []
        self._memo: dict[Dim, Dim] = {}
        self._types: dict[Hashable, tuple[TensorType, ...]] = {}
        self._types_under: tuple[object, ...] = ()
        self._final: Facts | None = None
        self._settled: dict[Dim, Dim] = {}
        self._joins: dict[Dim, tuple[Dim, ...]] = {}  # results of broadcasts -> the extents that may be 1
        self._fits: dict[Dim, Dim] = {}  # extents that are 1 or another one
        self._demands: dict[Demand, None] = {}
        self._where = ""
        self._op = ""
        self._conditional = 0
        self._learn = learn
        for s in symbols:
            self.declare(s)

    @staticmethod
    def of(module: Module) -> Engine:
        """An engine that knows a module's symbols and learns nothing: for passes."""
        return Engine(module.symbols, learn=False)

    # ------------------------------------------------------------ symbols

    def declare(self, symbol: Symbol, *, from_input: bool = False, generated: bool = False) -> Dim:
        """Make a symbol known. from_input: binding the inputs gives it its value, so that an equality may
        solve it. generated: its name was made up, so it is the first to go."""
        self._symbols[symbol.name] = symbol
        if from_input:
            self._free[symbol.name] = len(self._free) + (1_000_000 if generated else 0)
        self._know_range(symbol)
        return sym(symbol.name)

    def symbols(self) -> tuple[Symbol, ...]:
        """Every symbol that is left, in the order of declaration, with what was learned of its range."""
        return tuple(s for s in self._symbols.values() if s.name not in self._solved)

    def hot(self) -> dict[str, tuple[int, ...]]:
        """The hot values of all symbols that were declared with some, solved ones among them."""
        return {s.name: s.hot for s in self._symbols.values() if s.hot}

    def unique(self, base: str) -> str:
        """A symbol name that is not taken."""
        base = re.sub(r"[^A-Za-z0-9_]+", "_", base).strip("_") or "n"
        if base[0].isdigit():
            base = f"n{base}"
        if base not in self._symbols:
            return base
        n = 1
        while f"{base}_{n}" in self._symbols:
            n += 1
        return f"{base}_{n}"

    def fresh(self, base: str, low: int = 0, high: Dim | None = None) -> Dim:
        """A new symbol, low <= symbol <= high, that the current node binds at run time."""
        high = None if high is None else self.simplify(high)
        limit = None if high is None else self.facts.bounds(high)[1]
        s = Symbol(self.unique(base), low, limit, 1, self._where)
        d = self.declare(s)
        if high is not None and not high.is_const:
            self._uppers[s.name] = high
            self.facts = self.facts.with_upper(s.name, high)
        return d

    def _know_range(self, s: Symbol) -> None:
        self.facts = self.facts.with_range(s.name, s.low, s.high)
        if s.divisor != 1:
            self.facts = self.facts.with_divisor(s.name, s.divisor)
        self._memo.clear()
        self._final = None
        self._settled.clear()

    # ------------------------------------------------------------ where we are

    def at(self, node: str, op: str = "") -> None:
        """Later messages and checks speak of this node."""
        self._where, self._op = node, op

    @contextmanager
    def conditional(self) -> Iterator[None]:
        """A region that may not run: what it needs is checked inside and forgotten after it."""
        facts, equal, differ = self.facts, list(self._equal), list(self._differ)
        count = len(self._symbols)
        self._conditional += 1
        try:
            yield
        finally:
            self._conditional -= 1
            self.facts, self._equal, self._differ = facts, equal, differ
            for s in islice(self._symbols.values(), count, None):  # symbols of the region stay declared
                self._know_range(s)
            self._memo.clear()

    def suppose(self, facts: Facts) -> None:
        """Know this from here on, instead of what was known: inside a graph, what its checks make sure of."""
        if facts is not self.facts:
            self.facts = facts
            self._memo.clear()

    @property
    def node(self) -> str:
        """The node that messages speak of."""
        return self._where

    @property
    def op(self) -> str:
        """The operator of that node."""
        return self._op

    def take_checks(self) -> tuple[Unproven | Definition, ...]:
        """The checks and definitions recorded since the last call."""
        found, self._pending = tuple(self._pending), []
        return found

    def state(self) -> State:
        """What is known and asked at this point, for `asked_since` and `back_to`."""
        counts = (len(self._equal), len(self._differ), len(self._pending), len(self._demands))
        return State(self.facts, *counts)

    def asked_since(self, state: State) -> bool:
        """Whether something was taken to hold since then that only a check at run time could tell."""
        return len(self._pending) > state.pending

    def claims_since(self, state: State) -> frozenset[tuple[Dim, str, Dim] | Definition]:
        """What that was."""
        found = self._pending[state.pending :]
        return frozenset(p if isinstance(p, Definition) else (p.left, p.relation, p.right) for p in found)

    def back_to(self, state: State) -> None:
        """Forget what was taken to hold since then (symbols stay declared)."""
        self.facts = state.facts
        del self._equal[state.equal :], self._differ[state.differ :], self._pending[state.pending :]
        while len(self._demands) > state.demands:
            self._demands.popitem()
        self._memo.clear()

    def once(self, node: Hashable, infer: Callable[[], tuple[TensorType, ...]]) -> tuple[TensorType, ...]:
        """The types that `infer` finds, kept as long as nothing new is known: large graphs ask for the same
        few thousand times. What records a check or learns of a size is asked each time."""
        if self._types_under != (now := self._knowledge()):
            self._types.clear()
            self._types_under = now
        found = self._types.get(node)
        if found is None:
            said = len(self._pending), len(self._demands)
            found = infer()
            if self._knowledge() == now and (len(self._pending), len(self._demands)) == said:
                self._types[node] = found
        return found

    def _knowledge(self) -> tuple[object, ...]:
        """What a node's types depend on beside its inputs and attributes."""
        counts = (len(self._symbols), len(self._solved), len(self._equal), len(self._differ))
        return (self.facts, self._conditional, *counts)

    # ------------------------------------------------------------ the protocol

    def simplify(self, d: Dim) -> Dim:
        """d under everything known so far."""
        if d.is_const:
            return d
        found = self._memo.get(d)
        if found is None:
            found = self.facts.simplify(self._resolve(d))
            if len(self._memo) > 20_000:
                self._memo.clear()
            self._memo[d] = found
        return found

    def simplify_type(self, t: TensorType) -> TensorType:
        """t with its extents simplified."""
        return TensorType(t.dtype, tuple(self.simplify(d) for d in t.shape))

    def same(self, what: str, a: Dim, b: Dim) -> Dim:
        """a and b must be equal; the one to use from here on."""
        a, b = self.simplify(a), self.simplify(b)
        if a == b:
            return a
        truth = self.facts.prove_eq(a, b)
        if truth is Truth.NO:
            raise self.fail(f"{what}: found {a} and {b}, which differ")
        if truth is Truth.YES:
            return self._simpler(a, b)
        self._demand(what, a, b)
        if self._unify(what, a, b) or self._order(what, a, b) or self._pinned(what, a, b):
            return self.simplify(a)
        self._record(what, a, "==", b)
        self._equal.append((a, b))
        self.facts = self.facts.with_equal(a, b)
        self._memo.clear()
        return self._simpler(a, b)

    def at_most(self, what: str, a: Dim, b: Dim) -> None:
        """a <= b must hold."""
        a, b = self.simplify(a), self.simplify(b)
        truth = self.facts.prove_le(a, b)
        if truth is Truth.NO:
            raise self.fail(f"{what}: {a} is more than {b}")
        if truth is Truth.UNKNOWN and not self._shrink(what, b - a):
            self._record(what, a, "<=", b)

    def divides(self, what: str, divisor: Dim, d: Dim) -> None:
        """divisor must divide d."""
        divisor, d = self.simplify(divisor), self.simplify(d)
        truth = self.facts.prove_divisible(d, divisor)
        if truth is Truth.NO:
            raise self.fail(f"{what}: {d} is no multiple of {divisor}")
        if truth is Truth.UNKNOWN and not self._multiple(divisor, d):
            self._record(what, divisor, "divides", d)

    def broadcast(self, *shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """NumPy's broadcast. Where neither extent is the constant 1 they are taken to be equal, and what
        cannot be proved of that is checked at run time."""
        rank = max((len(s) for s in shapes), default=0)
        result = [ONE] * rank
        for s in shapes:
            for axis, d in enumerate(s, rank - len(s)):
                d = self.simplify(d)
                if d == ONE or d == result[axis]:
                    continue
                if result[axis] == ONE:
                    result[axis] = d
                else:
                    result[axis] = self.same(f"axis {axis} of the broadcast result", result[axis], d)
        return tuple(result)

    def join(self, what: str, extents: Sequence[Dim], assume: bool = True) -> Dim:
        """The extent that NumPy's broadcast makes of these. Where one may be 1, the result is a maximum, and
        that the others are 1 or equal to it is checked. But a computed extent is hardly ever 1 by chance: it
        is taken to be equal to one that it shares sizes with, and to a number.
        assume: also where that other one is a size of its own, not only where it is computed too."""
        found: list[Dim] = []
        for d in map(self.simplify, extents):
            before = tuple(found)  # the parts of one extent are known to differ
            parts = self._joins.get(d, (d,))
            # questions grow with the square of the parts: a result of many is a size like any other
            for part in parts if len(parts) <= MOST_JOINED else (d,):
                if part != ONE and all(self.facts.prove_eq(part, f) is not Truth.YES for f in before):
                    found.append(part)
        if len(found) < 2:
            return found[0] if found else ONE
        firm = [d for d in found if self._more_than_one(d)]
        plain = sum(map(self._plain, found))
        assumed = plain == 0 or (assume and plain < len(found))
        assumed = assumed and all(self._related(a, b) for a, b in combinations(found, 2))
        if assumed:
            unlike = any(self.facts.prove_eq(a, b) is Truth.NO for a, b in combinations(found, 2))
            # min(h, 1) beside another extent is not 1 by chance: it is there to be broadcast
            assumed = not unlike and all(self.facts.bounds(d)[1] != 1 for d in found)
        if len(firm) == len(found) or assumed:
            result = found[0]
            for d in found[1:]:
                result = self.same(what, result, d)
            return result
        if firm:
            result = firm[0]
            for d in firm[1:]:
                result = self.same(what, result, d)
        else:
            result = self._widest(found)
        for d in found:
            if d not in firm and d != result:
                self._fit(what, d, result)
        return result

    def fits(self, what: str, d: Dim, wide: Dim) -> None:
        """d must be 1 or `wide`."""
        d, wide = self.simplify(d), self.simplify(wide)
        if d in (ONE, wide) or self.facts.prove_eq(d, wide) is Truth.YES:
            return
        if self._more_than_one(d):
            self.same(what, d, wide)
        else:
            self._fit(what, d, wide)

    def fail(self, message: str, hint: str | None = None) -> SmeltError:
        """SmeltError(kind='invalid') about the current node."""
        return SmeltError(self._about(message), kind="invalid", node=self._where or None, hint=hint)

    def unsupported(self, message: str, try_: str | None = None) -> SmeltError:
        """SmeltError(kind='unsupported') about the current node."""
        hint = f"try {try_}" if try_ else None
        return SmeltError(self._about(message), kind="unsupported", node=self._where or None, hint=hint)

    # ------------------------------------------------------------ questions of importers and passes

    def prove_eq(self, a: Dim, b: Dim) -> Truth:
        """Whether a == b, by what is known."""
        a, b = self.simplify(a), self.simplify(b)
        found = self.facts.prove_eq(a, b)
        apart = found is Truth.UNKNOWN and any(
            a - b in (self.simplify(x) - self.simplify(y), self.simplify(y) - self.simplify(x))
            for x, y in self._differ
        )
        return Truth.NO if apart else found

    def differ(self, a: Dim, b: Dim) -> None:
        """Know from here on that a != b, which holds where this is asked for."""
        self._differ.append((a, b))
        if self.bounds(a - b)[0] == 0:
            self.facts = self.facts.with_le(b + 1, a)
            self._memo.clear()

    def is_input_size(self, d: Dim) -> bool:
        """Whether the sizes of inputs give d its value."""
        return self._bound_by_inputs(self.simplify(d))

    def prove_le(self, a: Dim, b: Dim) -> Truth:
        """Whether a <= b, by what is known."""
        return self.facts.prove_le(self.simplify(a), self.simplify(b))

    def bounds(self, d: Dim) -> Range:
        """The range of d."""
        return self.facts.bounds(self.simplify(d))

    def settled(self, d: Dim) -> Dim:
        """d under what holds everywhere in the module, above checks too: solved symbols and ranges."""
        if self._final is None:
            self._final = Facts()
            for s in self.symbols():
                self._final = self._final.with_range(s.name, s.low, s.high)
                if s.divisor != 1:
                    self._final = self._final.with_divisor(s.name, s.divisor)
        found = self._settled.get(d)
        if found is None:
            found = self._settled[d] = self._final.simplify(self._resolve(d))
        return found

    # ------------------------------------------------------------ demands on the inputs

    @property
    def joined(self) -> bool:
        """Whether a broadcast was met whose extents may each be 1 for all that is known."""
        return bool(self._joins)

    @property
    def demands(self) -> tuple[Demand, ...]:
        """What unconditional nodes want of the sizes of inputs, in order."""
        return tuple(self._demands)

    def expect(self, demands: Iterable[Demand]) -> None:
        """Know from the start what some node will want: the broadcasts before it are clearer for it."""
        for d in demands:
            self.at(d.node, d.op)
            if d.fits:
                self._fits[d.left] = d.right
            else:
                self.same(d.what, d.left, d.right)

    def _demand(self, what: str, a: Dim, b: Dim) -> None:
        if not self._learn or self._conditional:
            return
        for whole, part in ((a, b), (b, a)):
            parts = self._joins.get(whole, ())
            if part in parts:
                for other in parts:
                    if other != part:
                        self._demands[Demand(other, part, True, what, self._where, self._op)] = None
                return
        if self._bound_by_inputs(a - b):
            self._demands[Demand(a, b, False, what, self._where, self._op)] = None

    def _plain(self, d: Dim) -> bool:
        """A size of its own: a symbol, a number, or what a Reshape's -1 makes of sizes."""
        atom = sole_atom(d)
        shared = isinstance(atom, FloorDiv) and len(atom.a.terms()) == 1
        return d.is_const or d in self._joins or isinstance(atom, SymbolAtom) or shared

    def _related(self, a: Dim, b: Dim) -> bool:
        """Whether both speak of the same sizes, or one is a number and the other is computed."""
        if a.is_const or b.is_const:
            return not (self._plain(a) and self._plain(b))
        rest = _affine(a - b)  # 2*c and c are equal at one size only, so one of them is there to be broadcast
        pinned = rest is not None and isinstance(rest[1], SymbolAtom)
        return not pinned and not a.symbols.isdisjoint(b.symbols)

    def _more_than_one(self, d: Dim) -> bool:
        low, high = self.facts.bounds(d)
        return (low is not None and low > 1) or (high is not None and high < 1)

    def _widest(self, parts: Sequence[Dim]) -> Dim:
        """The maximum, or 0 when one is 0."""
        for d in parts:
            if all(o == d or self._fits.get(o) == d for o in parts):
                return d
        low = min(self.facts.bounds(d)[0] or 0 for d in parts)
        value = dmax(*parts) if low > 0 else dmax(*parts) * dmin(1, *parts)
        # a name of its own: proofs that multiplied such formulas would not end
        result = self.fresh("joined", max(low, 0))
        self._pending.append(Definition(str(result), value))
        self._joins[result] = tuple(parts)
        return result

    def _fit(self, what: str, d: Dim, wide: Dim) -> None:
        """d is 1 or `wide`."""
        others = " or ".join(str(p) for p in self._joins.get(wide, (wide,)) if p != d)
        node = f"node '{self._where}' ({self._op}): " if self._where else ""
        self._pending.append(Unproven(d, "fits", wide, f"{node}{what}: {d} must be 1 or equal {others}"))

    # ------------------------------------------------------------ learning

    def _about(self, message: str) -> str:
        return f"{self._op}: {message}" if self._op else message

    def _record(self, what: str, a: Dim, relation: Relation, b: Dim) -> None:
        node = f"node '{self._where}' ({self._op}): " if self._where else ""
        wish = {
            "==": "{} must equal {}",
            "<=": "{} must be at most {}",
            "divides": "{} must divide {}",
        }
        self._pending.append(Unproven(a, relation, b, f"{node}{what}: {wish[relation].format(a, b)}"))

    def _resolve(self, d: Dim) -> Dim:
        if not self._solved or self._solved.keys().isdisjoint(d.symbols):
            return d
        return d.substitute(self._solved)

    def _bound_by_inputs(self, d: Dim) -> bool:
        return all(s in self._free for s in d.symbols)

    def _simpler(self, a: Dim, b: Dim) -> Dim:
        """The one that later types should use: bound earlier, then shorter."""
        return min(a, b, key=lambda d: (not self._bound_by_inputs(d), len(d.symbols), len(str(d))))

    def _unify(self, what: str, a: Dim, b: Dim) -> bool:
        """Solve a == b for a symbol that the inputs bind.

        # s + rest == 0   -->  s := -rest      (and the other way round)
        # c*s + k == 0    -->  s := -k // c    k constant
        """
        if not self._learn or self._conditional:
            return False
        diff = a - b
        if not self._bound_by_inputs(diff):
            return False
        for name in sorted(diff.symbols, key=lambda s: -self._free[s]):
            found = diff.linear(name)
            if found is None or not found[0].is_const:
                continue
            coefficient, rest = found[0].const, found[1]
            if self._grows(name, rest):
                continue
            if coefficient in (1, -1):
                self._solve(what, name, rest * -coefficient)
                return True
            if rest.is_const and rest.const % coefficient == 0:
                self._solve(what, name, to_dim(-rest.const // coefficient))
                return True
        return False

    def _grows(self, name: str, value: Dim) -> bool:
        """Whether a formula would be large with the value in place of the name: then it is only checked."""
        try:
            return large(value) or any(large(v.substitute({name: value})) for v in self._solved.values())
        except TooLarge:
            return True

    def _order(self, what: str, a: Dim, b: Dim) -> bool:
        """Read an equality with an extreme as an order.

        # s == min(s, k)  -->  s <= k
        # s == max(s, k)  -->  k <= s
        """
        if not self._learn or self._conditional:
            return False
        for whole, part in ((a, b), (b, a)):
            atom = sole_atom(whole)
            if isinstance(atom, Min | Max) and part in atom.args:
                for other in atom.args:
                    if other != part:
                        low, high = (part, other) if isinstance(atom, Min) else (other, part)
                        self.at_most(what, low, high)
                return True
        return False

    def _pinned(self, what: str, a: Dim, b: Dim) -> bool:
        """e // n == k pins e to a range: k*n <= e <= k*n + n - 1."""
        if not self._learn or self._conditional or not (a.is_const or b.is_const):
            return False
        atom = sole_atom(b if a.is_const else a)
        if not isinstance(atom, FloorDiv) or not self._shrinkable(atom):
            return False
        return self._shrink(what, a - b) and self._shrink(what, b - a)

    def _shrinkable(self, atom: FloorDiv) -> bool:
        inner = _lone_atom(atom.a)
        if not atom.b.is_const or atom.b.const <= 0 or inner is None:
            return False
        if isinstance(inner, FloorDiv):
            return self._shrinkable(inner)
        return isinstance(inner, SymbolAtom) and inner.name in self._free

    def _solve(self, what: str, name: str, value: Dim) -> None:
        """name := value everywhere; its range and divisor become demands on the value."""
        one = {name: value}
        self._solved = {k: v.substitute(one) for k, v in self._solved.items()} | one
        self._equal = [(a.substitute(one), b.substitute(one)) for a, b in self._equal]
        self._uppers = {k: v.substitute(one) for k, v in self._uppers.items() if k != name}
        gone = self._symbols[name]
        self._rebuild()
        self.at_most(f"{what}: size {name}", to_dim(gone.low), value)
        if gone.high is not None:
            self.at_most(f"{what}: size {name}", value, to_dim(gone.high))
        if gone.divisor != 1:
            self.divides(f"{what}: size {name}", to_dim(gone.divisor), value)

    def _rebuild(self) -> None:
        self.facts = Facts()
        for s in self.symbols():
            self._know_range(s)
        for name, high in self._uppers.items():
            self.facts = self.facts.with_upper(name, high)
        for a, b in self._equal:
            if a != b:
                self.facts = self.facts.with_equal(a, b)
        self._memo.clear()

    def _shrink(self, what: str, d: Dim) -> bool:
        """Make d >= 0 a range of input symbols when that says the same.

        # c*s + k >= 0           -->  s >= ceil(-k / c)      c > 0
        # c*s + k >= 0           -->  s <= floor(k / -c)     c < 0
        """
        if not self._learn or self._conditional:
            return False
        made = [self._narrow(what, _affine(part)) for part in self.facts.unfolded(d)]
        return all(made)

    def _narrow(self, what: str, part: tuple[int, Atom, int] | None) -> bool:
        if part is None or not isinstance(part[1], SymbolAtom) or part[1].name not in self._free:
            return False
        coefficient, name, rest = part[0], part[1].name, part[2]
        s = self._symbols[name]
        if coefficient > 0:
            s = replace(s, low=max(s.low, -(rest // coefficient)))
        else:
            limit = rest // -coefficient
            s = replace(s, high=limit if s.high is None else min(s.high, limit))
        if s.high is not None and s.low > s.high:
            raise self.fail(
                f"{what}: no value of {name} is left: it must be at least {s.low} and at most {s.high}"
            )
        if s.low > LARGEST_EXTENT:
            raise self.fail(f"{what}: {name} would have to be at least {s.low}, more than any tensor has")
        self._symbols[name] = s
        self._know_range(s)
        return True

    def _multiple(self, divisor: Dim, d: Dim) -> bool:
        """Make `divisor divides s` a divisor of an input symbol s."""
        if not self._learn or self._conditional or not divisor.is_const:
            return False
        found = _affine(d)
        if found is None or not isinstance(found[1], SymbolAtom) or found[2] != 0 or divisor.const <= 0:
            return False
        s = self._symbols[found[1].name]
        if s.name not in self._free:
            return False
        # k divides c*s exactly when k / gcd(k, c) divides s
        needed = divisor.const // gcd(divisor.const, found[0])
        self._symbols[s.name] = replace(s, divisor=lcm(s.divisor, needed))
        self._know_range(self._symbols[s.name])
        return True


def _affine(d: Dim) -> tuple[int, Atom, int] | None:
    """(c, atom, k) when d == c*atom + k; None when it is anything else."""
    rest, found = 0, None
    for coefficient, factors in d.terms():
        if not factors:
            rest = coefficient
        elif found is None and len(factors) == 1 and factors[0][1] == 1:
            found = (coefficient, factors[0][0])
        else:
            return None
    return None if found is None else (found[0], found[1], rest)


def _lone_atom(d: Dim) -> Atom | None:
    """The only atom that d depends on, when it does so affinely."""
    found = _affine(d)
    return None if found is None else found[1]
