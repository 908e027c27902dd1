"""IR text in, module, kernel or expression out; every error names line, column, found and wanted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast, get_args

import numpy as np

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, parse_dim
from smelt.core.dtype import ALL, DType
from smelt.core.ir.graph import Attr, Graph, Library, Module, Node, Ref, Symbol, TensorType, Value, Weight
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Bound,
    Buffer,
    Call,
    Const,
    DimParam,
    Expr,
    HotCase,
    Index,
    Kernel,
    Let,
    Level,
    Load,
    Loop,
    Reduce,
    ReduceKind,
    Space,
    Stmt,
    Store,
    Tiles,
)
from smelt.core.ir.layout import Layout, parse_spec
from smelt.core.ir.text_print import INFIX, elements, usual_dtype
from smelt.core.ir.text_tokens import Tokens, error_at

T = TypeVar("T")

_LEVELS: Final = frozenset(get_args(Level))
_SPACES: Final = frozenset(get_args(Space))
_KINDS: Final = frozenset(get_args(ReduceKind)) | {"argmax_last", "argmin_last"}
_ENDS: Final = frozenset({",", ")", "]", "}", "{", "..", "<", "<=", ":", "="})
_WORDS: Final[Mapping[str, float | bool]] = {
    "true": True, "false": False, "inf": math.inf, "nan": math.nan
}
_INFIX: Final = {symbol: (fn, level) for fn, (symbol, level) in INFIX.items()}
_EMPTY: Final[Mapping[str, Attr]] = MappingProxyType({})

MOST_AXES: Final = 32
"""Of an array: NumPy 1.26 has no more."""
MOST_SIZES: Final = 1 << 12
"""That one `a .. b` of tiles stands for; strategies write some dozen."""


class Parser(Tokens):
    """Recursive descent over the tokens of one text. weights: arrays or weights by name or digest, for
    data that the text names by digest only."""

    def __init__(self, text: str, weights: Mapping[str, Weight] | None = None) -> None:
        super().__init__(text)
        self.weights = weights or {}
        self.dims: dict[str, Dim] = {}
        self.scope: dict[str, DType] = {}
        self.head: Mapping[str, Any] | None = None
        self.begins = 0  # where the module does

    def dtype(self) -> DType:
        return ALL[self.one_of(ALL, "an element type")]

    # -- dims

    def dim(self) -> Dim:
        """An index expression, up to a comma, a closing bracket or another delimiter."""
        t = self.tokens[self.at]
        if self.tokens[self.at + 1] in _ENDS and t not in _ENDS:
            # one token, by far the commonest
            found = self.dims.get(t)
            if found is None:
                found = self.dims[t] = self._dim(t)
            self.at += 1
            return found
        first = self.at
        depth = 0
        while self.token and (depth or self.token not in _ENDS):
            depth += {"(": 1, ")": -1}.get(self.token, 0)
            self.at += 1
        last = self.starts[self.at]
        if self.at == first:
            raise self.fail("an index expression")
        text = self.text[self.starts[first] : last].rstrip()
        found = self.dims.get(text)
        if found is None:
            end, self.at = self.at, first
            found = self.dims[text] = self._dim(text)
            self.at = end
        return found

    def _dim(self, text: str) -> Dim:
        try:
            clean = re.sub(r"#[^\n]*", "", text) if "#" in text and "`" not in text else text
            return parse_dim(clean, limit=None)
        except (ValueError, ZeroDivisionError) as e:
            raise error_at(self.text, self.starts[self.at], str(e)) from None

    def shape(self) -> tuple[Dim, ...]:
        self.expect("[")
        return self.listed("]", self.dim)

    def type(self) -> TensorType:
        return TensorType(self.dtype(), self.shape())

    def range(self) -> tuple[int, int | None, int]:
        """'in' low '..' (high | '*') ['%' divisor]"""
        self.expect("in")
        low = self.integer()
        self.expect("..")
        high = None if self.take("*") else self.integer()
        return low, high, self.integer() if self.take("%") else 1

    # -- attributes

    def number(self) -> bool | int | float:
        sign = -1 if self.take("-") else 1
        t = self.token
        if t in _WORDS:
            self.at += 1
            value = _WORDS[t]
            return value if sign > 0 else -value  # the NaN stays the same object: it equals itself then
        if not t[:1].isdigit():
            raise self.fail("a number")
        if t.isdigit():
            return sign * self.integer()
        self.at += 1
        return sign * float(t)

    def attr(self) -> Attr:
        t = self.token
        if t[:1] == '"':
            return self.string()
        if self.take("none"):
            return None
        if self.take("dim"):
            return self.dim()
        if self.take(":"):
            return self.dtype()
        if t == "[":
            return self.shape()
        if self.take("("):
            return self.listed(")", self.attr)
        return self.number()

    def attrs(self) -> Mapping[str, Attr]:
        if not self.take("{"):
            return _EMPTY

        def item() -> tuple[str, Attr]:
            key = self.word()
            self.expect("=")
            return key, self.attr()

        return MappingProxyType(dict(self.listed("}", item)))

    # -- module

    def module(self) -> Module:
        if self.take("compile"):
            self.head = self.json()
        self.begins = self.starts[self.at]
        self.expect("module")
        name = self.string()
        self.expect("{")
        rows: dict[str, list[Any]] = {k: [] for k in ("sym", "weight", "library", "kernel", "graph")}
        readers: dict[str, Callable[[], Any]] = {
            "sym": self.symbol, "weight": self.weight, "library": self.library,
            "kernel": self.kernel, "graph": self.graph,
        }
        taken: set[tuple[str, str]] = set()
        while not self.take("}"):
            if self.token not in readers:
                raise self.fail("sym, weight, library, kernel, graph or '}'")
            what, first = self.token, self.at
            rows[what].append(readers[what]())
            defined = what, rows[what][-1].name
            if defined in taken and what != "sym":  # the verifier's to find: the module holds both
                self.at = first
                raise self.fail("no second {} '{}'".format(*defined))
            taken.add(defined)
        self.end()
        return Module(
            name,
            tuple(rows["sym"]),
            MappingProxyType({w.name: w for w in rows["weight"]}),
            MappingProxyType({g.name: g for g in rows["graph"]}),
            MappingProxyType({k.name: k for k in rows["kernel"]}),
            MappingProxyType({x.name: x for x in rows["library"]}),
        )

    def end(self) -> None:
        if self.token:
            raise self.fail("the end")

    def json(self) -> Mapping[str, Any]:
        """A table of fields."""
        try:
            found, end = json.JSONDecoder().raw_decode(self.text, self.starts[self.at])
        except (ValueError, RecursionError):
            raise self.fail("a table of fields as JSON") from None
        if not isinstance(found, dict):
            raise self.fail("a table of fields as JSON")
        while self.starts[self.at] < end:
            self.at += 1
        return found

    def symbol(self) -> Symbol:
        self.expect("sym")
        name = self.name()
        low, high, divisor = self.range()
        hot = self._list(self.integer) if self.take("hot") else ()
        return Symbol(name, low, high, divisor, self.optional_string("from"), hot)

    def library(self) -> Library:
        self.expect("library")
        name = self.string()
        self.expect("adapter")
        adapter = self.string()
        self.expect("files")
        files = []
        while not self.take(";"):
            files.append(self.string())
        return Library(name, tuple(files), adapter)

    def weight(self) -> Weight:
        self.expect("weight")
        name = self.ref("@")
        self.expect(":")
        dtype = self.dtype()
        shape = self.extents()
        self.expect("=")
        if self.take("sha256"):
            digest = self.string()
            if not digest:
                self.at -= 1
                raise self.fail("a digest")
            origin = self.optional_string("from")
            known = self.weights.get(name) or self.weights.get(digest)
            if known is not None and known.digest == digest:
                place = (known.data, known.path, known.offset, digest)
                return Weight(
                    name, dtype, shape, *place, origin=origin or known.origin, stored=known.stored
                )
            return Weight(name, dtype, shape, known_digest=digest, origin=origin)
        data = self.bytes_(dtype) if self.take("bytes") else self.elements_(dtype)
        if data.size != math.prod(shape):
            raise self.fail(f"the {math.prod(shape)} elements of {name}")
        data = data.reshape(shape)
        data.flags.writeable = False
        return Weight(name, dtype, shape, data, origin=self.optional_string("from"))

    def extents(self) -> tuple[int, ...]:
        """The shape of an array."""
        self.expect("[")
        first = self.at
        shape = self.listed("]", self.integer)
        if min(shape, default=0) < 0 or len(shape) > MOST_AXES:
            self.at = first
            raise self.fail(f"at most {MOST_AXES} extents, none negative")
        return shape

    def bytes_(self, dtype: DType) -> np.ndarray[Any, Any]:
        try:
            return np.frombuffer(bytes.fromhex(self.string()), dtype.numpy).copy()
        except ValueError:
            self.at -= 1
            raise self.fail("whole elements in hexadecimal") from None

    def elements_(self, dtype: DType) -> np.ndarray[Any, Any]:
        self.expect("[")

        def element() -> str:
            sign = "-" if self.take("-") else ""
            if not (self.token[:1].isdigit() or self.token in _WORDS):
                raise self.fail("an element")
            return sign + self.next()

        first = self.at
        try:
            return elements(self.listed("]", element), dtype)
        except (ValueError, OverflowError):
            self.at = first
            raise self.fail(f"elements of {dtype}") from None

    # -- graphs

    def value(self) -> Value:
        name = self.ref("%")
        self.expect(":")
        return self.placed(name)

    def placed(self, name: Ref) -> Value:
        """type ['on' STR] ['from' STR ['axes' '(' INT,* ')']]"""
        t, unit = self.type(), self.optional_string("on")
        origin = self.optional_string("from")
        return Value(name, t, origin, unit, self.axes() if origin and self.take("axes") else ())

    def axes(self) -> tuple[int, ...]:
        self.expect("(")
        return tuple(self.listed(")", self.integer))

    def graph(self, word: str = "graph") -> Graph:
        self.expect(word)
        name = self.ref("@")[1:]
        self.expect("(")
        inputs = self.listed(")", self.value)
        self.expect("->")
        self.expect("(")
        outputs = self.listed(")", self.output)
        self.expect("{")
        nodes = []
        while not self.take("}"):
            nodes.append(self.node())
        names = tuple(n for _, n in outputs if n is not None)
        if names and len(names) != len(outputs):
            raise self.fail("'as' and a name for all outputs or for none")
        return Graph(name, inputs, tuple(nodes), tuple(r for r, _ in outputs), names)

    def output(self) -> tuple[Ref, str | None]:
        ref = self.ref()
        return ref, self.string() if self.take("as") else None

    def argument(self) -> Ref:
        return "" if self.take("_") else self.ref()

    def node(self) -> Node:
        names: list[Ref] = []
        if self.token[:1] == "%":
            names.append(self.ref("%"))
            while self.take(","):
                names.append(self.ref("%"))
            self.expect("=")
        op = self.word()
        self.expect("(")
        inputs = self.listed(")", self.argument)
        attrs = self.attrs()
        outputs: list[Value] = []
        if names:
            self.expect(":")
            for n, name in enumerate(names):
                if n:
                    self.expect(",")
                outputs.append(self.placed(name))
        origin = self.optional_string("at")
        regions = []
        while self.token == "region" and self.tokens[self.at + 1][:1] == "@":
            regions.append(self.graph("region"))
        return Node(op, inputs, tuple(outputs), attrs, tuple(regions), origin)

    # -- kernels

    def kernel(self) -> Kernel:
        self.expect("kernel")
        name = self.ref("@")[1:]
        self.expect("(")
        params = self.listed(")", self.param)
        dims = tuple(p for p in params if isinstance(p, DimParam))
        inputs = tuple(p for p in params if isinstance(p, Buffer))
        if params != (*dims, *inputs):
            raise self.fail("dims before buffers")
        self.expect("->")
        self.expect("(")
        outputs = self.listed(")", lambda: self.asked(self.buffer()))
        notes = self.notes()
        self.scope = {b.name: b.dtype for b in (*inputs, *outputs, *notes.get("scratch", ()))}
        self.expect("{")
        body = self.body()
        return Kernel(name, dims, inputs, outputs, body, **notes)

    def notes(self) -> dict[str, Any]:
        """What stands between a kernel's signature and its body, in any order."""
        found: dict[str, Any] = {}
        readers: dict[str, Callable[[], Any]] = {
            "scratch": lambda: self._list(lambda: self.buffer("scratch")),
            "origin": self.string,
            "schedule": self.string,
            "hot": lambda: self._list(self.hot_case),
        }
        while self.token in readers:
            word = self.next()
            found[word] = readers[word]()
        return found

    def _list(self, item: Callable[[], T]) -> tuple[T, ...]:
        self.expect("(")
        return self.listed(")", item)

    def hot_case(self) -> HotCase:
        """REF '(' (NAME '=' INT),* ')'"""
        kernel = self.ref("@")[1:]

        def value() -> tuple[str, int]:
            name = self.name()
            self.expect("=")
            return name, self.integer()

        return HotCase(kernel, self._list(value))

    def param(self) -> DimParam | Buffer:
        if self.tokens[self.at + 2] == "dim":
            name = self.name()
            self.expect(":")
            self.expect("dim")
            return DimParam(name, *self.range())
        found = self.buffer()
        if not self.take("laid"):
            return found
        return self.asked(replace(found, layout=self.layout()))

    def asked(self, buffer: Buffer) -> Buffer:
        """['ahead' INT]"""
        return replace(buffer, ahead=self.integer()) if self.take("ahead") else buffer

    def buffer(self, usual: Space = "global") -> Buffer:
        name = self.name()
        self.expect(":")
        space = cast(Space, self.next()) if self.token in _SPACES else usual
        t = self.type()
        return Buffer(name, t.dtype, t.shape, space)

    def layout(self) -> Layout:
        """'laid' STR 'of' shape"""
        try:
            spec = parse_spec(self.string())
        except ValueError as e:
            self.at -= 1
            raise self.fail(f"a layout ({e})") from None
        self.expect("of")
        return Layout(spec, self.shape())

    def body(self) -> tuple[Stmt, ...]:
        found: list[Stmt] = []
        while not self.take("}"):
            found.append(self.stmt())
        return tuple(found)

    def stmt(self) -> Stmt:
        after = self.tokens[self.at + 1]
        if after == "[":
            return self.store()
        if self.take("tiles"):
            return self.tiles()
        if self.take("block"):
            return self.block()
        level = cast(Level, self.one_of(_LEVELS, "a statement or '}'"))
        var = self.name()
        self.expect("in")
        extent = self.dim()
        return Loop(level, var, extent, *self.scoped())

    def scoped(self) -> tuple[tuple[Stmt, ...], tuple[Buffer, ...]]:
        """'{' buffers statements '}' -> statements, buffers"""
        self.expect("{")
        outer = self.scope
        buffers: list[Buffer] = []
        while self.token in _SPACES and self.tokens[self.at + 2] == ":":
            space = cast(Space, self.next())
            buffers.append(self.buffer(space))
        self.scope = {**outer, **{b.name: b.dtype for b in buffers}}
        body = self.body()
        self.scope = outer
        return body, tuple(buffers)

    def tiles(self) -> Tiles:
        level = cast(Level, self.one_of(_LEVELS, "a level"))
        self.expect("(")
        start = self.name()
        self.expect(",")
        rows = self.name()
        self.expect(")")
        self.expect("in")
        extent = self.dim()
        self.expect(":")
        mode = self.one_of(frozenset({"balanced", "greedy"}), "balanced or greedy")
        sizes = tuple(x for run in self._list(self.sizes) for x in run)
        body, buffers = self.scoped()
        return Tiles(level, start, rows, extent, sizes, cast(Any, mode), body, buffers)

    def sizes(self) -> tuple[int, ...]:
        """12, or 12 .. 9 for 12, 11, 10, 9"""
        first = self.integer()
        last = self.integer() if self.take("..") else first
        if not 0 <= first - last < MOST_SIZES:
            raise self.fail(f"at most {MOST_SIZES} sizes, the largest first")
        return tuple(range(first, last - 1, -1))

    def block(self) -> Block:
        def binding() -> tuple[str, Expr, Dim, Dim]:
            name = self.name()
            self.expect("=")
            value = self.expr()
            return name, value, *self.clamp()

        by = self.name() if self.take("by") else ""
        ordered = self.take("ordered")
        lets = self._list(binding) if self.take("let") else ()
        guard = self.guard() if self.take("if") else ()
        body, buffers = self.scoped()
        return Block(body, buffers, lets, guard, by, ordered)

    def clamp(self) -> tuple[Dim, Dim]:
        """'in' low '..' high"""
        self.expect("in")
        low = self.dim()
        self.expect("..")
        return low, self.dim()

    def guard(self) -> tuple[Bound, ...]:
        return self._list(self.bound)

    def bound(self) -> Bound:
        low = self.dim()
        self.expect("<=")
        index = self.dim()
        self.expect("<")
        return Bound(low, index, self.dim())

    def store(self) -> Store:
        buffer = self.name()
        index = self.shape()
        accumulate = None if self.token == "=" else self.word()
        self.expect("=")
        value = self.expr()
        guard = self.guard() if self.take("if") else ()
        return Store(buffer, index, value, accumulate, guard)

    # -- expressions

    def expr(self, level: int = 1) -> Expr:
        """Infix operators of at least this precedence, left to right."""
        left = self.primary()
        while self.token in _INFIX and _INFIX[self.token][1] >= level:
            fn, own = _INFIX[self.next()]
            right = self.expr(own + 1)
            left = Call(fn, (left, right), left.dtype)
        return left

    def primary(self) -> Expr:
        t, after = self.token, self.tokens[self.at + 1]
        if t == "(":
            return self.parenthesis()
        if t == "[":
            (dim,) = self.exactly_one(self.shape(), "one index expression")
            self.expect(":")
            return Index(dim, self.dtype())
        if t == "-" or t[:1].isdigit() or (t in _WORDS and after == ":"):
            value = self.number()
            self.expect(":")
            return Const(value, self.dtype())
        if after == "[":
            return self.load()
        if t == "let":
            return self.let()
        return self.call()

    def exactly_one(self, items: tuple[T, ...], wanted: str) -> tuple[T]:
        if len(items) != 1:
            raise self.fail(wanted)
        return (items[0],)

    def parenthesis(self) -> Expr:
        self.expect("(")
        e = self.expr()
        if self.token == "if":
            if not isinstance(e, Load):
                raise self.fail("')'; only a load takes a guard")
            self.at += 1
            guard = self.guard()
            other = self.expr() if self.take("else") else None
            e = Load(e.buffer, e.index, e.dtype, guard, other)
        self.expect(")")
        return e

    def load(self) -> Load:
        first = self.at
        buffer = self.name()
        index = self.shape()
        if self.take(":"):
            return Load(buffer, index, self.dtype())
        if buffer not in self.scope:
            self.at = first
            raise self.fail("a declared buffer, or a dtype after the index")
        return Load(buffer, index, self.scope[buffer])

    def let(self) -> Let:
        self.expect("let")
        var = self.name()
        self.expect("=")
        value = self.expr()
        low, high = self.clamp()
        self.expect("{")
        body = self.expr()
        self.expect("}")
        return Let(var, value, low, high, body)

    def call(self) -> Expr:
        first = self.at
        fn = self.word()
        dtype = self.dtype() if self.take(":") else None
        if self.token != "(" and fn in _KINDS:
            return self.reduce(fn, dtype)
        self.expect("(")
        args = self.listed(")", self.expr)
        dtype = dtype or usual_dtype(fn, args)
        if dtype is None:
            self.at = first
            raise self.fail(f"a dtype, as in {fn}:f32(..), or a known intrinsic")
        return Call(fn, args, dtype)

    def reduce(self, word: str, dtype: DType | None) -> Reduce:
        kind = cast(ReduceKind, word.removesuffix("_last"))

        def axis() -> Axis:
            var = self.name()
            self.expect("in")
            return Axis(var, self.dim())

        first = self.at
        axes = self.listed("{", axis)
        body = self.expr()
        self.expect("}")
        if dtype is None and kind in ("argmax", "argmin"):
            self.at = first
            raise self.fail(f"a dtype, as in {word}:i64")
        return Reduce(kind, axes, body, dtype or body.dtype, word != kind)


def parse_module(text: str, weights: Mapping[str, Weight] | None = None) -> Module:
    """The module that print_module printed, or a person wrote. weights: by name or digest, for data that
    the text refers to. Raises SmeltError(kind='invalid') with line and column."""
    return within_depth(Parser(text, weights).module)


def within_depth(parse: Callable[[], T]) -> T:
    """What it gives. Raises SmeltError(kind='invalid') where the text nests deeper than Python calls do."""
    try:
        return parse()
    except RecursionError:
        raise SmeltError("the text nests too deeply") from None


def parse_kernel(text: str) -> Kernel:
    """One kernel."""
    p = Parser(text)
    found = p.kernel()
    p.end()
    return found


def parse_expr(text: str, scope: Mapping[str, DType] | None = None) -> Expr:
    """One expression; scope: dtypes of the buffers that it loads from."""
    p = Parser(text)
    p.scope = dict(scope or {})
    found = p.expr()
    p.end()
    return found


def parse_stmt(text: str, scope: Mapping[str, DType] | None = None) -> Stmt:
    """One statement; scope: dtypes of the buffers that it loads from."""
    p = Parser(text)
    p.scope = dict(scope or {})
    found = p.stmt()
    p.end()
    return found

