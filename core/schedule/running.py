"""The primitive for products of softmaxes: Kernel -> Kernel. A row is made, reduced and multiplied block by
block, so that no row is stored. Shows its rewrite and refuses what it cannot prove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from smelt.core.dim import Dim, Facts, ceildiv, sym, to_dim
from smelt.core.dtype import DType, bool_, i64
from smelt.core.ir.analysis.products import split_factors
from smelt.core.ir.analysis.running import SoftmaxRow, softmax_row
from smelt.core.ir.analysis.scope import enter, expressions
from smelt.core.ir.kernel import (
    Axis,
    Bound,
    Buffer,
    Call,
    Const,
    Expr,
    Index,
    Kernel,
    Load,
    Loop,
    LoopNode,
    Reduce,
    Stmt,
    Store,
    walk_expr,
)
from smelt.core.ir.rewrite import Body, free_symbols, map_expr, rename_vars, substitute_expr
from smelt.core.schedule.loops import new_names
from smelt.core.schedule.reductions import start_value
from smelt.core.schedule.tree import (
    ScheduleError,
    chain,
    declare,
    edit,
    guard_body,
    rebuild,
    tidy,
    var_of,
)

ENDINGS: Mapping[str, str] = MappingProxyType({
    "top": ".start", "sums": ".zero", "scores": ".made", "best": ".most", "change": ".grown",
    "powers": ".power", "part": ".summed", "total": ".added", "scaled": ".scaled", "product": ".times",
})  # fmt: skip
"""What the loops of each statement that `running` makes end in, which is how schedules call them."""
KEPT_OF_A_ROW = ("scores", "top", "best", "scale", "part", "total", "sums")
"""What is kept of a row and of its products; their names begin with that of the sum's axis."""


def running(kernel: Kernel, var: str, axis: str, size: int, pad: int) -> Kernel:
    """<v> { for i { for j { y[i, j] = f(sum k in n { softmax over k of s(i, k) * x[k, j] }) } } }
      -->  <v> { shared top[i] = -inf, total[i] = 0, scores[i, c + pad]; register sums[i, j] = 0;
             for k.o in ceildiv(n, c) {
               for i { for k.made in c { scores[i, k.made] = s(i, k.o*c + k.made), -inf beyond n } };
               for i { best[i] = max k.most in c { scores[i, k.most] } };
               for i { scale[i] = exp(top[i] - max(top[i], best[i])); top[i] max= best[i] };
               for i { for k.power in c { scores[i, k.power] = exp(scores[i, k.power] - top[i]) } };
               for i { part[i] = sum k.summed in c { scores[i, k.summed] } };
               for i { total[i] = total[i]*scale[i] + part[i] };
               for i { for j { sums[i, j] *= scale[i] } };
               for k.times in c { for i { for j { sums[i, j] += scores[i, k.times] * x[.., j] } } } };
             for i { for j { y[i, j] = f(sums[i, j] / total[i]) } } }

    i: the loops inside v that s follows, j those that only x does; all have static extents. Of a row without
    elements the sum is 0, as it is where the factor is 0 for all of a row. -inf as a maximum so far is taken
    for 0 in differences, so that their powers are 0 and not NaN; a row of nothing else is 0/0.
    """
    what = f"running {var} {axis} {size} {pad}"

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        nodes, leaf = chain(node)
        found = _softmax_product(leaf, axis, what)
        inner = nodes[1:]
        made = [f"{x}{s}" for x in (axis, *map(var_of, inner)) for s in ENDINGS.values()]
        new_names(kernel, what, f"{axis}.o", *made, *(f"{axis}.{x}" for x in KEPT_OF_A_ROW))
        if not all(isinstance(x, Loop) and x.extent.is_const and not x.buffers for x in inner):
            raise ScheduleError(what, "a loop inside has no constant extent, or buffers")
        if size < 1 or pad < 0:
            raise ScheduleError(what, "blocks have no elements")
        work = _Running(kernel, found, tuple(x for x in inner if isinstance(x, Loop)), size, pad)
        inside = enter(facts, node)
        blocks = Loop("serial", f"{axis}.o", ceildiv(found.axis.extent, size), ())
        blocks = replace(blocks, body=work.block(enter(inside, blocks)))
        body = tidy((*work.start(), blocks, *work.end(leaf)), inside)
        return declare(replace(node, body=body), work.buffers())

    return edit(kernel, var, rewrite, what)


@dataclass(frozen=True, slots=True)
class _Product:
    """The sum, its axis, what its left factor is the softmax of, and the right factor."""

    whole: Reduce
    axis: Axis
    row: SoftmaxRow
    right: Expr


def _softmax_product(leaf: Body, axis: str, what: str) -> _Product:
    every = {x for e in expressions(leaf) for x in walk_expr(e) if isinstance(x, Reduce)}
    found = {x: parts for x in every if (parts := split_factors(x)) is not None}
    if len(found) != 1 or len(leaf) != 1 or not isinstance(leaf[0], Store):
        raise ScheduleError(what, "no single product of which one factor has reductions")
    ((whole, (left, right)),) = found.items()
    if [a.var for a in whole.axes] != [axis] or not whole.dtype.is_float:
        raise ScheduleError(what, f"the product is not along '{axis}' alone, or of no floats")
    row = softmax_row(left, whole.axes[0])
    if row is None or any(isinstance(x, Reduce) for c, _ in row.unless for x in walk_expr(c)):
        raise ScheduleError(what, "the factor is no softmax along the sum, or 0 where a reduction says so")
    beside = {x for x in every if x not in set(walk_expr(whole))}
    if beside or leaf[0].accumulate is not None:
        raise ScheduleError(what, "there are other reductions beside it")
    return _Product(whole, whole.axes[0], row, right)


class _Running:
    """The statements of one nest; loops: those inside the group."""

    def __init__(
        self, kernel: Kernel, product: _Product, loops: tuple[Loop, ...], size: int, pad: int
    ) -> None:
        self.kernel, self.product, self.loops, self.size, self.pad = kernel, product, loops, size, pad
        follows = free_symbols(product.row.scores)
        self.rows = tuple(x for x in loops if x.var in follows)
        self.names = {x: f"{product.axis.var}.{x}" for x in KEPT_OF_A_ROW}
        self.kind, self.wide = product.row.scores.dtype, product.whole.dtype
        first = sym(f"{product.axis.var}.o") * size
        self.bound = Bound(to_dim(0), first + sym(product.axis.var), product.axis.extent)
        self.first = first

    # -- buffers

    def buffers(self) -> tuple[Buffer, ...]:
        """Those of the group: a row's own, and the sums of products."""
        rows = tuple(x.extent for x in self.rows)
        every = tuple(x.extent for x in self.loops)
        widths = {"scores": (*rows, to_dim(self.size + self.pad))}
        kinds = {"scores": self.kind, "top": self.kind, "best": self.kind}
        made = [Buffer(self.names[x], kinds.get(x, self.wide), widths.get(x, rows), "shared")
                for x in KEPT_OF_A_ROW[:-1]]  # fmt: skip
        return (*made, Buffer(self.names["sums"], self.wide, every, "register"))

    def _index(self, name: str) -> tuple[Dim, ...]:
        return tuple(sym(x.var) for x in (self.loops if name == "sums" else self.rows))

    def _load(self, name: str, *at: Dim) -> Load:
        kind = self.kind if name in ("scores", "top", "best") else self.wide
        return Load(self.names[name], (*self._index(name), *at), kind)

    def _store(self, name: str, value: Expr, *at: Dim, accumulate: str | None = None) -> Store:
        return Store(self.names[name], (*self._index(name), *at), value, accumulate)

    # -- statements

    def _nest(self, of: str, loops: Sequence[LoopNode], *stores: Store) -> Stmt:
        """Loops around stores, with the names of that pass."""
        (made,) = rebuild(loops, stores)
        return self._renamed(of, loops, made)

    def _renamed(self, of: str, loops: Sequence[LoopNode], made: Stmt) -> Stmt:
        return rename_vars(made, {var_of(x): var_of(x) + ENDINGS[of] for x in loops})

    def _along(self) -> Loop:
        """The loop over a block's elements."""
        return Loop("serial", self.product.axis.var, to_dim(self.size), ())

    def start(self) -> Body:
        """A row that has had no elements."""
        top = self._store("top", start_value("max", self.kind))
        total = self._store("total", start_value("sum", self.wide))
        sums = self._store("sums", start_value("sum", self.wide))
        return (self._nest("top", self.rows, top, total), self._nest("sums", self.loops, sums))

    def block(self, facts: Facts) -> Body:
        """What a block of elements adds to a row. What lies beyond its end is not read."""

        def guarded(of: str, loops: Sequence[LoopNode], store: Store) -> Stmt:
            (made,) = guard_body(self.kernel, rebuild(loops, (store,)), facts, self.bound)
            return self._renamed(of, loops, made)

        k, along = sym(self.product.axis.var), self._along()
        here = {self.product.axis.var: self.first + k}
        inside = Call("lt", (Index(self.first + k, i64), Index(self.product.axis.extent, i64)), bool_)
        scores = substitute_expr(self.product.row.scores, here)
        masked = Call("select", (inside, scores, start_value("max", self.kind)), self.kind)
        at = self._load("scores", k)
        top, scale, best = self._load("top"), self._load("scale"), self._load("best")
        above = Call("max", (top, best), self.kind)
        power = Call("exp", (Call("sub", (at, _finite(top)), self.kind),), self.kind)
        change = Call("sub", (_as(top, self.wide), _as(_finite(above), self.wide)), self.wide)
        term = _as(at, self.wide)
        right = _as(substitute_expr(self.product.right, here), self.wide)
        before = Call("mul", (self._load("total"), scale), self.wide)
        grown = Call("add", (before, self._load("part")), self.wide)
        axis = Axis(f"{self.product.axis.var}{ENDINGS['best']}", to_dim(self.size))
        terms = replace(axis, var=f"{self.product.axis.var}{ENDINGS['part']}")
        return (
            guarded("scores", (*self.rows, along), self._store("scores", masked, k)),
            self._nest("best", self.rows, self._store("best", self._reduced("max", axis, self.kind))),
            self._nest("change", self.rows, self._store("scale", Call("exp", (change,), self.wide)),
                       self._store("top", best, accumulate="max")),
            self._nest("powers", (*self.rows, along), self._store("scores", power, k)),
            self._nest("part", self.rows, self._store("part", self._reduced("sum", terms, self.wide))),
            self._nest("total", self.rows, self._store("total", grown)),
            self._nest("scaled", self.loops, self._store("sums", scale, accumulate="mul")),
            guarded("product", (along, *self.loops), self._store(
                "sums", Call("mul", (term, right), self.wide), accumulate="fma")),
        )  # fmt: skip

    def _reduced(self, kind: str, axis: Axis, dtype: DType) -> Reduce:
        """A row of the block, reduced."""
        return Reduce(kind, (axis,), _as(self._load("scores", sym(axis.var)), dtype), dtype)  # type: ignore[arg-type]

    def end(self, leaf: Body) -> Body:
        """The stores as they were, of the product that has been summed."""
        (store,) = leaf
        assert isinstance(store, Store)
        some = Call("lt", (Index(to_dim(0), i64), Index(self.product.axis.extent, i64)), bool_)
        quotient = Call("div", (self._load("sums"), self._load("total")), self.wide)
        zero = start_value("sum", self.wide)
        whole: Expr = Call("select", (some, quotient, zero), self.wide)
        for condition, where in self.product.row.unless:
            values = (zero, whole) if where else (whole, zero)
            whole = Call("select", (condition, *values), self.wide)
        value = map_expr(store.value, lambda e: whole if e == self.product.whole else e)
        return rebuild(self.loops, (replace(store, value=value),))


def _finite(e: Expr) -> Expr:
    """e, or 0 where it is -inf."""
    low = start_value("max", e.dtype)
    zero = Const(0.0, e.dtype)
    return Call("select", (Call("eq", (e, low), bool_), zero, e), e.dtype)


def _as(e: Expr, dtype: DType) -> Expr:
    return e if e.dtype == dtype else Call("cast", (e,), dtype)


__all__ = ["ENDINGS", "running"]
