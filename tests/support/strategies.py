"""Hypothesis strategies: dims, expressions, kernels (for text and runnable ones), modules.

Each is made once: to make and to check one takes longer than to draw from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np
from hypothesis import strategies as st

from smelt.core.dim import Dim, ceildiv, dmax, dmin, sym, to_dim
from smelt.core.dtype import DTYPES, DType, bool_, f32, f64, i32, i64
from smelt.core.ir.graph import Graph, Library, Module, Node, Symbol, TensorType, Value, Weight
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Bound,
    Buffer,
    Call,
    Const,
    DimParam,
    Expr,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Stmt,
    Store,
    Tiles,
)
from smelt.core.ir.layout import Layout, parse_spec

T = TypeVar("T")

SYMBOLS = ("n", "m", "batch", "p2o.Dynamic 0", "a`b", "min", "seq", "in", "x.y", "dim")
TEXTS = st.text(max_size=12)
INTS = st.integers(-9, 9)
FLOATS = st.one_of(
    st.floats(allow_nan=False), st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan])
)


@cache
def dims(names: tuple[str, ...] = SYMBOLS) -> st.SearchStrategy[Dim]:
    """Index expressions of every form over these symbols."""
    leaf = st.one_of(st.sampled_from(names).map(sym), INTS.map(to_dim))

    def grow(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
        two = st.tuples(inner, inner)
        return st.one_of(
            two.map(lambda p: p[0] + p[1]),
            two.map(lambda p: p[0] * p[1]),
            two.map(lambda p: dmin(*p)),
            two.map(lambda p: dmax(*p)),
            st.tuples(inner, st.integers(1, 8)).map(lambda p: p[0] // p[1]),
            st.tuples(inner, st.integers(1, 8)).map(lambda p: p[0] % p[1]),
        )

    return st.recursive(leaf, grow, max_leaves=4)


# ---------------------------------------------------------------- trees of any shape (text only)


@cache
def _seq(x: st.SearchStrategy[T], low: int = 0, high: int = 3) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(x, min_size=low, max_size=high).map(tuple)


NAMES = st.sampled_from(("i", "j", "k1", "odd name", "group", "tiles", "let", "sum", "inf", "last"))
BUFFERS = st.sampled_from(("x", "y", "w.packed", "block", "serial", "acc`", "true", "register"))
TYPES = st.sampled_from(tuple(DTYPES.values()))
GUARDS = _seq(st.builds(Bound, dims(), dims(), dims()), 0, 2)


@st.composite
def constants(draw: st.DrawFn) -> Const:
    dtype = draw(TYPES)
    if dtype.is_float:
        return Const(draw(FLOATS), dtype)
    return Const(draw(st.booleans()) if dtype == bool_ else draw(INTS), dtype)


@cache
def _or_none(inner: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.none() | inner


FUNCTIONS = st.sampled_from(sorted(INTRINSICS))
REDUCTIONS = st.sampled_from(("sum", "max", "min", "prod", "any", "all", "argmax", "argmin"))
AXES = _seq(st.builds(Axis, NAMES, dims()), 0, 2)


@st.composite
def loads(draw: st.DrawFn, inner: st.SearchStrategy[Expr]) -> Load:
    other = draw(_or_none(inner))
    return Load(draw(BUFFERS), draw(_seq(dims(), 0, 2)), draw(TYPES), draw(GUARDS), other)


@st.composite
def calls(draw: st.DrawFn, inner: st.SearchStrategy[Expr]) -> Call:
    fn = draw(FUNCTIONS)
    n = INTRINSICS[fn].arity
    args = draw(_seq(inner, n, n))
    return Call(fn, args, args[0].dtype if draw(st.booleans()) else draw(TYPES))


@st.composite
def reduces(draw: st.DrawFn, inner: st.SearchStrategy[Expr]) -> Reduce:
    kind = draw(REDUCTIONS)
    axes = draw(AXES)
    last = kind.startswith("arg") and draw(st.booleans())
    return Reduce(cast(Any, kind), axes, draw(inner), draw(TYPES), last)


@cache
def exprs() -> st.SearchStrategy[Expr]:
    """Expressions that print, whether or not they make sense."""
    leaf: st.SearchStrategy[Expr] = st.one_of(
        constants(), st.builds(Index, dims(), TYPES), loads(constants())
    )

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        lets = st.builds(Let, NAMES, inner, dims(), dims(), inner)
        return st.one_of(calls(inner), reduces(inner), lets, loads(inner))

    return st.recursive(leaf, grow, max_leaves=5)


@cache
def buffers(spaces: tuple[str, ...]) -> st.SearchStrategy[Buffer]:
    return st.builds(Buffer, BUFFERS, TYPES, _seq(dims(), 0, 2), st.sampled_from(cast(Any, spaces)))


SPACES = ("global", "scratch", "shared", "register")
LEVELS = ("unit", "group", "lane", "vector", "serial", "unroll")
SIZES = st.sampled_from([(12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1), (64, 16, 8, 4, 1), (1,), (5, 4, 1)])


@cache
def stmts() -> st.SearchStrategy[Stmt]:
    """Statements that print, whether or not they make sense."""
    accumulate = st.sampled_from([None, "add", "mul", "max", "min", "fma"])
    leaf: st.SearchStrategy[Stmt] = st.builds(
        Store, BUFFERS, _seq(dims(), 0, 2), exprs(), accumulate, GUARDS
    )

    def grow(inner: st.SearchStrategy[Stmt]) -> st.SearchStrategy[Stmt]:
        body, own = _seq(inner, 0, 2), _seq(buffers(SPACES), 0, 2)
        level = st.sampled_from(cast(Any, LEVELS))
        mode = st.sampled_from(cast(Any, ("balanced", "greedy")))
        lets = _seq(st.tuples(NAMES, exprs(), dims(), dims()), 0, 2)
        return st.one_of(
            st.builds(Loop, level, NAMES, dims(), body, own),
            st.builds(Tiles, level, NAMES, NAMES, dims(), SIZES, mode, body, own),
            st.builds(Block, body, own, lets, GUARDS),
        )

    return st.recursive(leaf, grow, max_leaves=3)


@cache
def dim_params() -> st.SearchStrategy[DimParam]:
    high = st.none() | st.integers(10, 99)
    return st.builds(DimParam, NAMES, st.integers(0, 9), high, st.integers(1, 8))


@cache
def kernels() -> st.SearchStrategy[Kernel]:
    """Kernels that print, whether or not they make sense."""
    own = _seq(buffers(SPACES), 0, 2)
    return st.builds(
        Kernel, TEXTS, _seq(dim_params(), 0, 2), _seq(st.one_of(buffers(SPACES), laid()), 0, 2),
        _seq(st.one_of(buffers(SPACES), asked()), 0, 2),
        _seq(stmts(), 0, 2), own, TEXTS, TEXTS,
    )  # fmt: skip


@cache
def asked() -> st.SearchStrategy[Buffer]:
    """Outputs whose lines are asked for before they are written."""
    return st.builds(replace, buffers(SPACES), ahead=st.sampled_from([64, 1024]))


@cache
def laid() -> st.SearchStrategy[Buffer]:
    """Inputs that are weights in a layout."""
    specs = st.sampled_from(["(1/32, 0, 1%32)", "(0)", "(1, 0)"]).map(parse_spec)
    layouts = st.builds(Layout, specs, _seq(dims(), 0, 2))
    ahead = st.sampled_from([0, 64, 4096])
    return st.builds(Buffer, BUFFERS, TYPES, _seq(dims(), 0, 2), st.just("global"), layouts, ahead)


# ---------------------------------------------------------------- modules


@cache
def attrs() -> st.SearchStrategy[Any]:
    leaf = st.one_of(
        st.none(), st.booleans(), st.integers(), FLOATS, TEXTS, dims(), TYPES,
        st.lists(dims(), max_size=3).map(tuple),
    )
    return st.recursive(leaf, lambda x: st.lists(x, max_size=3).map(tuple), max_leaves=4)


@st.composite
def weights(draw: st.DrawFn) -> Weight:
    dtype = draw(TYPES)
    shape = draw(_seq(st.integers(0, 9), 0, 3))
    raw = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, 8192, np.uint8)
    if dtype == bool_:
        raw &= 1
    count = math.prod(shape)
    data = raw[: count * dtype.bytes].view(dtype.numpy).reshape(shape)
    return Weight("@" + draw(TEXTS), dtype, shape, data, origin=draw(TEXTS))


@cache
def values() -> st.SearchStrategy[Value]:
    types = st.builds(TensorType, TYPES, _seq(dims(), 0, 3))
    return st.builds(Value, TEXTS.map(lambda x: "%" + x), types, TEXTS)


@cache
def refs() -> st.SearchStrategy[str]:
    return st.one_of(TEXTS.map(lambda x: "%" + x), TEXTS.map(lambda x: "@" + x))


OPS = st.sampled_from(("add", "region", "graph", "check", "f32", "topk", "dim", "kernel"))
KEYS = st.sampled_from(("axis", "shape", "to", "dim", "in"))


@cache
def graphs(depth: int = 1) -> st.SearchStrategy[Graph]:
    """Graphs that print, whether or not they make sense."""
    regions = _seq(graphs(depth - 1), 0, 2) if depth else st.just(())
    nodes = st.builds(
        Node, OPS, _seq(refs() | st.just("")), _seq(values()),
        st.dictionaries(KEYS, attrs(), max_size=2).map(MappingProxyType), regions, TEXTS,
    )

    @st.composite
    def graph(draw: st.DrawFn) -> Graph:
        outputs = draw(_seq(refs()))
        names = draw(_seq(TEXTS, len(outputs), len(outputs))) if draw(st.booleans()) else ()
        return Graph(draw(TEXTS), draw(_seq(values())), draw(_seq(nodes)), outputs, names)

    return graph()


def _named(items: tuple[Any, ...]) -> MappingProxyType[str, Any]:
    return MappingProxyType({x.name: x for x in items})


@cache
def modules() -> st.SearchStrategy[Module]:
    """Modules that print, whether or not they make sense."""
    high = st.none() | st.integers(0, 999)
    symbols = st.builds(Symbol, st.sampled_from(SYMBOLS), INTS, high, st.integers(1, 64), TEXTS)
    return st.builds(
        Module, TEXTS, _seq(symbols), _seq(weights()).map(_named), _seq(graphs(), 0, 2).map(_named),
        _seq(kernels(), 0, 2).map(_named),
        _seq(st.builds(Library, TEXTS, _seq(TEXTS), TEXTS), 0, 2).map(_named),
    )


# ---------------------------------------------------------------- runnable kernels


@dataclass(frozen=True)
class Sample:
    """A well-formed kernel with dims and inputs to run it on."""

    kernel: Kernel
    dims: dict[str, int]
    inputs: tuple[np.ndarray[Any, Any], ...]


@st.composite
def samples(draw: st.DrawFn, dtypes: tuple[DType, ...] = (f32, f64, i32, i64)) -> Sample:
    """Naive kernels that stay inside their buffers: an output nest over a random expression of loads at
    permuted, broadcast, strided, guarded and reduced positions. Extents are symbols or small constants,
    zero included."""
    dtype = draw(st.sampled_from(dtypes))
    names = ("n", "m", "h")
    env = {s: draw(st.integers(0, 6)) for s in names}
    extents = draw(st.lists(st.sampled_from([*map(sym, names), to_dim(1), to_dim(3)]), max_size=3))
    out = [(f"i{k}", e) for k, e in enumerate(extents)]
    maker = _Maker(draw, dtype, env)
    value = maker.expr(tuple(out), 3)
    index = tuple(sym(v) for v, _ in out)
    body: Stmt = Store("y", index, value)
    for v, e in reversed(out):
        body = Loop("serial", v, e, (body,))
    kernel = Kernel(
        "sample", tuple(DimParam(s) for s in names), tuple(maker.inputs),
        (Buffer("y", dtype, tuple(e for _, e in out)),), (body,),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arrays = tuple(_random(rng, b, env) for b in maker.inputs)
    return Sample(kernel, env, arrays)


def _random(rng: np.random.Generator, b: Buffer, env: dict[str, int]) -> np.ndarray[Any, Any]:
    shape = tuple(d.evaluate(env) for d in b.shape)
    return np.asarray(rng.integers(-4, 5, shape)).astype(b.dtype.numpy)


class _Maker:
    """Builds an expression and the inputs that it loads from."""

    def __init__(self, draw: st.DrawFn, dtype: DType, env: dict[str, int]) -> None:
        self.draw = draw
        self.dtype = dtype
        self.env = env
        self.inputs: list[Buffer] = []
        self.variables = 0

    def expr(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        """scope: variables and their extents."""
        kinds = [self.load, self.const, self.padded, self.strided]
        if depth:
            kinds += [self.add, self.mul, self.max, self.sub, self.reduce, self.select, self.gather]
        return self.draw(st.sampled_from(kinds))(scope, depth)

    def buffer(self, shape: tuple[Dim, ...], dtype: DType | None = None) -> Buffer:
        b = Buffer(f"x{len(self.inputs)}", dtype or self.dtype, shape)
        self.inputs.append(b)
        return b

    def some(self, scope: tuple[tuple[str, Dim], ...]) -> list[tuple[str, Dim]]:
        chosen = self.draw(st.lists(st.sampled_from(scope), max_size=3, unique=True)) if scope else []
        return list(chosen)

    def const(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        value = self.draw(st.integers(-3, 3))
        return Const(float(value) if self.dtype.is_float else value, self.dtype)

    def load(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        chosen = self.some(scope)
        b = self.buffer(tuple(e for _, e in chosen))
        return Load(b.name, tuple(sym(v) for v, _ in chosen), self.dtype)

    def padded(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        """x[v - shift] where it exists, else 0 (or another value)."""
        chosen = self.some(scope)
        shift = self.draw(st.integers(-2, 2))
        b = self.buffer(tuple(e for _, e in chosen))
        index = tuple(sym(v) - shift for v, _ in chosen)
        guard = tuple(Bound(to_dim(0), i, e) for i, (_, e) in zip(index, chosen, strict=True))
        other = self.const(scope, 0) if self.draw(st.booleans()) else None
        return Load(b.name, index, self.dtype, guard, other)

    def strided(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        """Every second element, backwards, or one for two."""
        chosen = self.some(scope)
        way = self.draw(st.integers(0, 2))
        rows: dict[int, Callable[[Dim, Dim], tuple[Dim, Dim]]] = {
            0: lambda v, e: (2 * v, dmax(2 * e - 1, 0)),
            1: lambda v, e: (e - 1 - v, e),
            2: lambda v, e: (v // 2, ceildiv(e, 2)),
        }
        pairs = [rows[way](sym(v), e) for v, e in chosen]
        b = self.buffer(tuple(e for _, e in pairs))
        return Load(b.name, tuple(i for i, _ in pairs), self.dtype)

    def two(self, fn: str, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        args = (self.expr(scope, depth - 1), self.expr(scope, depth - 1))
        return Call(fn, args, self.dtype)

    def add(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        return self.two("add", scope, depth)

    def sub(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        return self.two("sub", scope, depth)

    def mul(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        return self.two("mul", scope, depth)

    def max(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        return self.two("max", scope, depth)

    def select(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        a, b = self.expr(scope, depth - 1), self.expr(scope, depth - 1)
        condition = Call("lt", (a, b), bool_)
        return Call("select", (condition, self.expr(scope, 0), b), self.dtype)

    def reduce(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        axes = []
        for _ in range(self.draw(st.integers(1, 2))):
            self.variables += 1
            extent = self.draw(st.sampled_from([sym("h"), sym("m"), to_dim(2), to_dim(4)]))
            axes.append(Axis(f"k{self.variables}", extent))
        kinds = ["sum", "max", "min"] if self.dtype.is_float else ["sum"]  # the empty max of ints overflows
        kind = self.draw(st.sampled_from(kinds))
        inner = (*scope, *((a.var, a.extent) for a in axes))
        return Reduce(cast(Any, kind), tuple(axes), self.expr(inner, depth - 1), self.dtype)

    def gather(self, scope: tuple[tuple[str, Dim], ...], depth: int) -> Expr:
        """x[idx[...]] with an index that may be far outside before it is clamped."""
        self.variables += 1
        chosen = self.some(scope)
        where = self.buffer(tuple(e for _, e in chosen), i64)
        table = self.buffer((sym("n") + 1,))
        value = Load(where.name, tuple(sym(v) for v, _ in chosen), i64)
        var = f"g{self.variables}"
        body = Load(table.name, (sym(var),), self.dtype)
        return Let(var, value, to_dim(0), sym("n"), body)
