"""Expressions of a kernel in, values of a dialect out; the dialect says how each operation is written.

A value is what the dialect computes with: a text, an id. Reductions and let-bound indices become statements
before what uses them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Generic, Protocol, TypeVar

from smelt.core.dim import YES, Dim, Facts, sym, to_dim
from smelt.core.dtype import DType, bool_
from smelt.core.ir.analysis.scope import Binder, enter, holding
from smelt.core.ir.idle import axes_needed, guards
from smelt.core.ir.intrinsics import REDUCE_FN
from smelt.core.ir.kernel import Axis, Bound, Buffer, Call, Const, Expr, Index, Let, Load, Reduce, children
from smelt.core.ir.rewrite import bound_symbols, free_symbols
from smelt.targets.grid.reduce import highest, lowest, neutral

T = TypeVar("T")
P = TypeVar("P", bound="GridPlace")


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPlace:
    """Where a buffer is: in global memory, or in an array of values of constant `extents`. leading: how many
    leading indices are a lane's own and are left out."""

    buffer: Buffer
    extents: tuple[int, ...] | None = None
    leading: int = 0

    @property
    def is_array(self) -> bool:
        return self.extents is not None


class GridCell(Protocol[T]):
    """A variable of the function that is written."""

    def get(self) -> T:
        """Its value here."""

    def set(self, value: T, /) -> None:
        """Another value from here on."""


class GridExprs(ABC, Generic[T, P]):
    """Evaluates expressions in the current place of one function.

    env: what index symbols are here, or their numbers. facts: what holds for them. The memo keeps the values
    of expressions, by identity; its frames follow the blocks, so that no value is used where it may not be.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.env: dict[str, T | int] = {}
        self.places: dict[str, P] = {}
        self._memo: list[dict[int, tuple[Expr, T]]] = [{}]

    # -- the dialect: indices

    @abstractmethod
    def index(self, d: Dim) -> T:
        """A Dim as a number to count, divide and compare with."""

    def address(self, d: Dim) -> T:
        """A Dim as the place of an element."""
        return self.index(d)

    @abstractmethod
    def compare(self, a: Dim, operator: str, b: Dim) -> T:
        """a < b or a <= b."""

    @abstractmethod
    def both(self, a: T, b: T) -> T:
        """Whether two conditions hold."""

    @abstractmethod
    def clamped(self, var: str, value: Expr, low: Dim, high: Dim) -> T:
        """The value of a let-bound index, brought into low .. high."""

    # -- the dialect: values

    @abstractmethod
    def literal(self, value: bool | int | float, dtype: DType) -> T: ...

    @abstractmethod
    def index_value(self, e: Index) -> T:
        """A Dim as a value of a dtype."""

    @abstractmethod
    def cast(self, v: T, source: DType, target: DType) -> T: ...

    @abstractmethod
    def bitcast(self, v: T, source: DType, target: DType) -> T: ...

    @abstractmethod
    def select(self, condition: T, a: T, b: T) -> T:
        """a where the condition holds, else b; both may be computed."""

    @abstractmethod
    def choose(self, condition: T, a: Callable[[], T], b: Callable[[], T]) -> T:
        """a() where the condition holds, else b(); what one loads is loaded there alone."""

    @abstractmethod
    def intrinsic(self, fn: str, dtype: DType, *args: T) -> T:
        """fn on operands of a dtype."""

    @abstractmethod
    def contracted(self, dtype: DType, a: T, b: T, total: T) -> T:
        """a * b + total, rounded once or twice."""

    def once(self, dtype: DType, v: T) -> T:
        """A value that is written once and used often."""
        return v

    def kept(self, e: Expr, v: T) -> T:
        """The value of an expression, which the memo has from here on if that is worth it."""
        self.remember(e, v)
        return v

    # -- the dialect: memory and blocks

    @abstractmethod
    def read(self, place: P, at: T) -> T:
        """The value of one element."""

    @abstractmethod
    def write(self, place: P, at: T, value: T) -> None:
        """Store a value."""

    @abstractmethod
    def cell(self, dtype: DType, first: T) -> GridCell[T]:
        """A new variable."""

    @abstractmethod
    def when(self, condition: T) -> AbstractContextManager[None]:
        """What is written inside happens where the condition holds."""

    @abstractmethod
    def looped(
        self, var: str, extent: Dim, others: Collection[Dim], level: str = ""
    ) -> AbstractContextManager[T]:
        """A loop over 0 .. extent - 1. others: what must not be 0 for it to do anything. level: of a Loop."""

    @contextmanager
    def frame(self) -> Iterator[None]:
        """What is remembered inside is forgotten afterwards."""
        self._memo.append({})
        yield
        self._memo.pop()

    # -- names in scope

    @contextmanager
    def scope(self, values: Mapping[str, T | int], facts: Facts) -> Iterator[None]:
        """Symbols with their values, and what is known inside."""
        before = self.env, self.facts
        self.env, self.facts = {**self.env, **values}, facts
        yield
        self.env, self.facts = before

    @contextmanager
    def bind(self, values: Mapping[str, T | int], binder: Binder) -> Iterator[None]:
        """Values for what a loop, tile, let or reduction binds, inside."""
        facts = enter(self.facts, binder)
        for name, v in values.items():
            if isinstance(v, int):
                facts = facts.with_range(name, v, v)
        with self.scope(values, facts):
            yield

    def number(self, d: Dim) -> int | None:
        """The value of a Dim that is constant here."""
        known = {s: v for s in d.symbols if isinstance(v := self.env.get(s), int)}
        return d.substitute(known).const_or_none

    def unless_idle(self, extent: Dim, others: Collection[Dim]) -> T | None:
        """The condition of a loop of that extent where all that it does depends on others that may be 0."""
        if self.number(extent) is not None:
            return None
        return self._all([self.compare(to_dim(0), "<", d)
                          for d in guards(extent, others, self.facts, self.env.keys())])  # fmt: skip

    def condition(self, guard: Sequence[Bound]) -> T | None:
        """The conjunction of what is not proved; None when everything is."""
        tests: list[T] = []
        for b in guard:
            if self.facts.prove_le(b.low, b.index) is not YES:
                tests.append(self.compare(b.low, "<=", b.index))
            if self.facts.prove_lt(b.index, b.high) is not YES:
                tests.append(self.compare(b.index, "<", b.high))
        return self._all(tests)

    def _all(self, tests: Sequence[T]) -> T | None:
        return reduce(self.both, dict.fromkeys(tests)) if tests else None

    @contextmanager
    def guarded(self, guard: Sequence[Bound]) -> Iterator[None]:
        """What is written inside happens where the guard holds."""
        condition = self.condition(guard)
        if condition is None:
            yield
            return
        with self.when(condition), self.scope({}, holding(self.facts, guard)):
            yield

    def element(self, name: str, index: Sequence[Dim]) -> tuple[P, T]:
        """The place of a buffer and where in it an element is."""
        place = self.places[name]
        return place, self.address(flat_index(place, index))

    # -- expressions

    def value(self, e: Expr) -> T:
        """The value of an expression."""
        if isinstance(e, Const):
            return self.literal(e.value, e.dtype)
        for frame in reversed(self._memo):
            if id(e) in frame:
                return frame[id(e)][1]
        return self.kept(e, self._compute(e))

    def remember(self, e: Expr, v: T) -> None:
        """The value of e, in the current block."""
        self._memo[-1][id(e)] = (e, v)

    def _compute(self, e: Expr) -> T:
        match e:
            case Index():
                return self.index_value(e)
            case Load():
                return self._load(e)
            case Call():
                return self._call(e)
            case Let():
                return self._let(e)
            case Reduce():
                return self._reduce(e)
        raise AssertionError(e)

    def _load(self, e: Load) -> T:
        condition = self.condition(e.guard)
        if condition is None:
            return self.read(*self.element(e.buffer, e.index))

        def there() -> T:
            with self.frame(), self.scope({}, holding(self.facts, e.guard)):
                return self.read(*self.element(e.buffer, e.index))

        def otherwise() -> T:
            with self.frame():
                return self.literal(0, e.dtype) if e.otherwise is None else self.value(e.otherwise)

        return self.choose(condition, there, otherwise)

    def _call(self, e: Call) -> T:
        args = [self.value(a) for a in e.args]
        kind = e.args[0].dtype
        match e.fn:
            case "cast":
                return self.cast(args[0], kind, e.dtype)
            case "bitcast":
                return self.bitcast(args[0], kind, e.dtype)
            case "select":
                return self.select(*args)
        return self.intrinsic(e.fn, kind, *args)

    def _let(self, e: Let) -> T:
        at = self.clamped(e.var, e.value, e.low, e.high)
        # a frame: the same body under another binding of the variable is another value
        with self.bind({e.var: at}, e), self.frame():
            return self.value(e.body)

    # -- reductions

    def _reduce(self, e: Reduce) -> T:
        self._hoist(e)
        if e.kind in ("argmax", "argmin"):
            return self._arg_extreme(e)
        total = self.cell(e.dtype, self.literal(neutral(e.kind, e.dtype), e.dtype))
        with self._axes(e.axes):
            total.set(self.accumulated(REDUCE_FN[e.kind], e.dtype, total.get(), e.body))
        return total.get()

    def _hoist(self, e: Reduce) -> None:
        """Reductions inside that do not change with this one's variables are computed before it."""
        own = bound_symbols(e)
        seen: set[int] = set()

        def visit(x: Expr) -> None:
            if id(x) in seen:
                return
            seen.add(id(x))
            if isinstance(x, Reduce):
                free = free_symbols(x)
                if free <= self.env.keys() and not free & own:
                    self.remember(x, self.value(x))
                    return
            for c in children(x):
                visit(c)

        visit(e.body)

    @contextmanager
    def _axes(self, axes: Sequence[Axis]) -> Iterator[None]:
        """Nested loops over the axes around what is written inside."""
        if not axes:
            with self.frame():
                yield
            return
        axis = axes[0]
        with (
            self.looped(axis.var, axis.extent, axes_needed(axes[1:])) as at,
            self.bind({axis.var: at}, (axis,)),
            self._axes(axes[1:]),
        ):
            yield

    def _arg_extreme(self, e: Reduce) -> T:
        """The position of the first (or last) extreme; NaN counts as the extreme, as in NumPy."""
        (axis,) = e.axes
        kind, most = e.body.dtype, e.kind == "argmax"
        best = self.cell(kind, self.literal(lowest(kind) if most else highest(kind), kind))
        place = self.cell(e.dtype, self.literal(0, e.dtype))
        beats = ("g" if most else "l") + ("e" if e.last else "t")
        with self._axes(e.axes):
            v, old = self.once(kind, self.value(e.body)), best.get()
            better = self.intrinsic(beats, kind, v, old)
            if kind.is_float:
                nan = self.intrinsic("isnan", kind, v)
                if not e.last:
                    known = self.intrinsic("isnan", kind, old)
                    nan = self.intrinsic("and", bool_, nan, self.intrinsic("not", bool_, known))
                better = self.intrinsic("or", bool_, better, nan)
            with self.when(better):
                best.set(v)
                place.set(self.index_value(Index(sym(axis.var), e.dtype)))
        return place.get()

    def accumulated(self, fn: str, dtype: DType, old: T, value: Expr) -> T:
        """fn(old, value); of 'fma' the value is a product, and so are terms of sums often."""
        product = isinstance(value, Call) and value.fn == "mul" and value.dtype == dtype
        if fn in ("fma", "add") and product and dtype.is_float:
            a, b = (self.value(x) for x in children(value))
            return self.contracted(dtype, a, b, old)
        assert fn != "fma" or product, "fma wants a product"
        return self.intrinsic("add" if fn == "fma" else fn, dtype, old, self.value(value))


def flat_index(place: GridPlace, index: Sequence[Dim]) -> Dim:
    """Where an element is, in elements."""
    shape: Sequence[Dim | int] = place.buffer.shape if place.extents is None else place.extents
    flat = to_dim(0)
    for i, n in zip(index[place.leading :], shape, strict=True):
        flat = flat * n + i
    return flat
