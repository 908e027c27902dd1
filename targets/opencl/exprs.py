"""Expression trees in, C expressions out; reductions and let-bound indices become statements before."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from smelt.core.dim import YES, Dim, Facts, sym, to_dim
from smelt.core.dtype import DType, bf16, bool_, f16, i64
from smelt.core.ir.analysis.scope import Binder, enter
from smelt.core.ir.idle import axes_needed, guards
from smelt.core.ir.kernel import (
    Axis,
    Bound,
    Buffer,
    Call,
    Const,
    Expr,
    Index,
    Let,
    Load,
    Reduce,
    children,
)
from smelt.core.ir.rewrite import bound_symbols, free_symbols
from smelt.targets.opencl.helpers import Helpers, storage_type, value_type
from smelt.targets.opencl.index import index_text
from smelt.targets.opencl.scalars import (
    bitcast,
    cast,
    from_bits,
    highest,
    intrinsic,
    literal,
    lowest,
    neutral,
    select,
    to_bits,
)
from smelt.targets.opencl.writer import Writer, identifier

LONG = 100  # characters from which an expression becomes a variable

REDUCE_FN: Mapping[str, str] = {
    "sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer is. name: a C pointer or array. is_array: it holds computed values (see
    helpers.value_type), of constant `extents`. leading: how many leading indices are work-items' own and
    are left out."""

    buffer: Buffer
    name: str
    is_array: bool = False
    extents: tuple[int, ...] = ()
    leading: int = 0


class Exprs:
    """Evaluates expressions in the current place of one function.

    env: what index symbols are called in C, or their numbers. facts: what holds for them here.
    """

    def __init__(self, helpers: Helpers, facts: Facts) -> None:
        self.helpers = helpers
        self.facts = facts
        self.w = Writer()
        self.env: dict[str, str | int] = {}
        self.places: dict[str, Place] = {}
        self._uses: dict[int, int] = {}

    # -- names in scope

    @contextmanager
    def bind(self, values: Mapping[str, str | int], facts: Facts) -> Iterator[None]:
        """Symbols with their values, and what is known about them, inside."""
        old, old_facts = dict(self.env), self.facts
        self.env.update(values)
        self.facts = facts
        yield
        self.env, self.facts = old, old_facts

    def inside(self, binder: Binder) -> Facts:
        """Facts in the body of a loop, let or reduction."""
        return enter(self.facts, binder)

    def variable(self, symbol: str) -> str:
        """A fresh C name for an index symbol."""
        return self.w.fresh(f"i_{identifier(symbol)}")

    # -- indices

    def index(self, d: Dim) -> str:
        """A Dim as a long."""
        return index_text(d, self.env, self.facts, self.helpers)

    def number(self, d: Dim) -> int | None:
        """The value of a Dim that is constant here."""
        known = {s: v for s in d.symbols if isinstance(v := self.env.get(s), int)}
        return d.substitute(known).const_or_none

    def unless_idle(self, extent: Dim, others: Collection[Dim]) -> str:
        """What stands before a loop of that extent where all that it does depends on others that may be 0."""
        if self.number(extent) is not None:
            return ""
        asked = guards(extent, others, self.facts, self.env.keys())
        return f"if ({' && '.join(f'{self.index(d)} > 0L' for d in asked)}) " if asked else ""

    def condition(self, guard: Sequence[Bound]) -> str:
        """The conjunction of what is not proved; empty when everything is."""
        parts: list[str] = []
        for b in guard:
            at = ""
            if self.facts.prove_le(b.low, b.index) is not YES:
                at = self.index(b.index)
                parts.append(f"{self.index(b.low)} <= {at}")
            if self.facts.prove_lt(b.index, b.high) is not YES:
                parts.append(f"{at or self.index(b.index)} < {self.index(b.high)}")
        return " && ".join(dict.fromkeys(parts))

    def where(self, guard: Sequence[Bound]) -> Facts:
        """Facts where the guard holds."""
        facts = self.facts
        for b in guard:
            facts = facts.with_le(b.low, b.index).with_le(b.index + 1, b.high)
        return facts

    # -- memory

    def element(self, name: str, index: Sequence[Dim]) -> tuple[Place, str]:
        """The place of a buffer and the C index of one of its elements."""
        place = self.places[name]
        index = index[place.leading :]
        shape: Sequence[Dim | int] = place.extents if place.is_array else place.buffer.shape
        flat = to_dim(0)
        for i, n in zip(index, shape, strict=True):
            flat = flat * n + i
        return place, self.index(flat)

    def read(self, place: Place, at: str) -> str:
        """The value of one element."""
        dtype = place.buffer.dtype
        if dtype == bool_:
            return f"({place.name}[{at}] != 0)"
        if not place.is_array:
            if dtype == f16:
                return f"vload_half({at}, {place.name})"
            if dtype == bf16:
                return from_bits(self.helpers, f"{place.name}[{at}]", dtype)
        return f"{place.name}[{at}]"

    def write(self, place: Place, at: str, value: str) -> None:
        """Store a value."""
        dtype = place.buffer.dtype
        if not place.is_array and dtype == f16:
            self.w.line(f"vstore_half_rte({value}, {at}, {place.name});")
            return
        if not place.is_array and dtype == bf16:
            value = to_bits(self.helpers, value, dtype)
        elif dtype == bool_:
            value = f"({storage_type(dtype)}){value}"
        self.w.line(f"{place.name}[{at}] = {value};")

    # -- expressions

    def value(self, e: Expr) -> str:
        """C text that is safe inside any other."""
        if isinstance(e, Const):
            return literal(e.value, e.dtype)
        if isinstance(e, Index):
            return cast(self.helpers, self.index(e.dim), i64, e.dtype)
        known = self.w.remembered(e)
        if known is not None:
            return known
        text = self._compute(e)
        if self._uses.get(id(e), 2) > 1 or len(text) > LONG:
            if not text.isidentifier():
                text = self.w.temporary(value_type(e.dtype), text)
            self.w.remember(e, text)
        return text

    def _compute(self, e: Expr) -> str:
        match e:
            case Load():
                return self._load(e)
            case Call():
                return self._call(e)
            case Let():
                return self._let(e)
            case Reduce():
                return self._reduce(e)
        raise AssertionError(e)

    def _load(self, e: Load) -> str:
        place, at = self.element(e.buffer, e.index)
        condition = self.condition(e.guard)
        if not condition:
            return self.read(place, at)
        other = literal(0, e.dtype) if e.otherwise is None else self.value(e.otherwise)
        return f"({condition} ? {self.read(place, at)} : {other})"

    def _call(self, e: Call) -> str:
        args = [self.value(a) for a in e.args]
        kind = e.args[0].dtype
        match e.fn:
            case "cast":
                return cast(self.helpers, args[0], kind, e.dtype)
            case "bitcast":
                return bitcast(self.helpers, args[0], kind, e.dtype)
            case "select":
                return select(e.dtype, *args)
        return intrinsic(self.helpers, e.fn, kind, *args)

    def clamped(self, var: str, value: Expr, low: Dim, high: Dim) -> str:
        """A new variable for a let-bound index, brought into low .. high."""
        raw = cast(self.helpers, self.value(value), value.dtype, i64)
        name = self.variable(var)
        least, most = self.helpers.use("index_max"), self.helpers.use("index_min")
        self.w.line(f"const long {name} = {most}({least}({raw}, {self.index(low)}), {self.index(high)});")
        return name

    def _let(self, e: Let) -> str:
        name = self.clamped(e.var, e.value, e.low, e.high)
        # a frame: the same body under another binding of the variable is another value
        with self.bind({e.var: name}, self.inside(e)), self.w.frame():
            text = self.value(e.body)
        return text

    # -- reductions

    def _reduce(self, e: Reduce) -> str:
        self._hoist(e)
        if e.kind in ("argmax", "argmin"):
            return self._arg_extreme(e)
        fn, kind = REDUCE_FN[e.kind], value_type(e.dtype)
        total = self.w.fresh("sum" if e.kind == "sum" else "acc")
        self.w.line(f"{kind} {total} = {literal(neutral(e.kind, e.dtype), e.dtype)};")
        with self._axes(e.axes):
            self.w.line(f"{total} = {self.accumulated(fn, e.dtype, total, e.body)};")
        return total

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
                    self.w.remember(x, self.value(x))
                    return
            for c in children(x):
                visit(c)

        visit(e.body)

    @contextmanager
    def _axes(self, axes: Sequence[Axis]) -> Iterator[None]:
        """Nested loops over the axes around what is written inside."""
        if not axes:
            yield
            return
        axis = axes[0]
        name = self.variable(axis.var)
        head = f"for (long {name} = 0; {name} < {self.index(axis.extent)}; ++{name})"
        head = self.unless_idle(axis.extent, axes_needed(axes[1:])) + head
        with self.w.braces(head), self.bind({axis.var: name}, self.inside((axis,))), self._axes(axes[1:]):
            yield

    def _arg_extreme(self, e: Reduce) -> str:
        """The position of the first (or last) extreme; NaN counts as the extreme, as in NumPy."""
        (axis,) = e.axes
        kind, most = e.body.dtype, e.kind == "argmax"
        start = literal(lowest(kind) if most else highest(kind), kind)
        best, place = self.w.fresh("best"), self.w.fresh("place")
        self.w.line(f"{value_type(kind)} {best} = {start};")
        self.w.line(f"{value_type(e.dtype)} {place} = 0;")
        beats = (">" if most else "<") + ("=" if e.last else "")
        with self._axes(e.axes):
            v = self.w.temporary(value_type(kind), self.value(e.body))
            better = f"{v} {beats} {best}"
            if kind.is_float:
                better += f" || {v} != {v}" if e.last else f" || ({v} != {v} && {best} == {best})"
            with self.w.braces(f"if ({better})"):
                self.w.line(f"{best} = {v};")
                self.w.line(f"{place} = {cast(self.helpers, self.index(sym(axis.var)), i64, e.dtype)};")
        return place

    # -- stores

    def accumulated(self, fn: str, dtype: DType, old: str, value: Expr) -> str:
        """fn(old, value); of 'fma' the value is a product, and so are terms of sums often."""
        product = isinstance(value, Call) and value.fn == "mul" and value.dtype == dtype
        if fn in ("fma", "add") and product and dtype.is_float:
            a, b = (self.value(x) for x in children(value))
            return f"{self.helpers.use('muladd', dtype)}({a}, {b}, {old})"
        assert fn != "fma" or product, "fma wants a product"
        return intrinsic(self.helpers, "add" if fn == "fma" else fn, dtype, old, self.value(value))

    def count_uses(self, e: Expr) -> None:
        """Prepare for `value` calls on parts of a statement's expression."""
        self._uses = {}
        _count(e, self._uses)


def _count(e: Expr, uses: dict[int, int]) -> None:
    uses[id(e)] = uses.get(id(e), 0) + 1
    if uses[id(e)] == 1:
        for c in children(e):
            _count(c, uses)
