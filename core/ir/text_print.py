"""Module, kernel, statement or expression in, IR text out (the grammar is at the head of text.py)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.core.dim import Dim, sym
from smelt.core.dtype import DType, bool_
from smelt.core.ir.graph import Attr, Graph, Library, Module, Node, Ref, Symbol, TensorType, Value, Weight
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import (
    Block,
    Bound,
    Buffer,
    Const,
    DimParam,
    Expr,
    HotCase,
    Index,
    Kernel,
    Let,
    Load,
    Reduce,
    Stmt,
    Store,
    Tiles,
)

INLINE = 64  # elements up to which a weight is printed in place
BARE_REF = re.compile(r"[A-Za-z0-9_./$-]+")
INFIX = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "div": ("/", 2)}
"""Intrinsics that print between their operands, with their precedence; all associate to the left."""
ARG_REDUCE = ("argmax", "argmin")

BufferTypes = Mapping[str, DType]
"""dtype of each visible buffer: a load of that dtype need not say it."""


# ---------------------------------------------------------------- words


def quote(text: str) -> str:
    """A string literal, on one line."""
    return json.dumps(text, ensure_ascii=False)


def name_text(name: str) -> str:
    """A name of a symbol, variable or buffer; in backquotes when it is no plain identifier."""
    return str(sym(name))


def ref_text(ref: Ref) -> str:
    """'%name' or '@name', with the name quoted when it has odd characters; '_' when absent."""
    if not ref:
        return "_"
    return ref if BARE_REF.fullmatch(ref, 1) else ref[0] + quote(ref[1:])


def type_text(t: TensorType) -> str:
    return f"{t.dtype}[{', '.join(map(str, t.shape))}]"


def number_text(value: Any) -> str:
    """A number that reads back as the same Python value."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return repr(float(value)) if isinstance(value, float | np.floating) else str(int(value))


def _range(low: int, high: int | None, divisor: int) -> str:
    text = f"{low}..{'*' if high is None else high}"
    return text if divisor == 1 else f"{text} % {divisor}"


def attr_text(a: Attr) -> str:
    """An attribute: [..] is a tuple of Dims, (..) any other tuple, `dim d` a lone Dim, :f32 a dtype."""
    if a is None:
        return "none"
    if isinstance(a, str):
        return quote(a)
    if isinstance(a, Dim):
        return f"dim {a}"
    if isinstance(a, DType):
        return f":{a}"
    if isinstance(a, tuple):
        if a and all(isinstance(x, Dim) for x in a):
            return f"[{', '.join(map(str, a))}]"
        return f"({', '.join(attr_text(x) for x in a)}{',' if len(a) == 1 else ''})"
    return number_text(a)


# ---------------------------------------------------------------- module and graphs


def print_module(module: Module) -> str:
    """The text of a module; parse_module reads it back as an equal module."""
    return "\n".join(_module_lines(module)) + "\n"


def _module_lines(m: Module) -> Iterator[str]:
    yield f"module {quote(m.name)} {{"
    yield from (f"  {_symbol_line(s)}" for s in m.symbols)
    yield from (f"  {_weight_line(w)}" for w in m.weights.values())
    yield from (f"  {_library_line(x)}" for x in m.libraries.values())
    for k in m.kernels.values():
        yield ""
        yield from _indent(kernel_lines(k))
    for g in m.graphs.values():
        yield ""
        yield from _indent(graph_lines(g))
    yield "}"


def _indent(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {x}" if x else x for x in lines)


def _origin(text: str, word: str = "from") -> str:
    return f" {word} {quote(text)}" if text else ""


def _symbol_line(s: Symbol) -> str:
    hot = f" hot ({', '.join(map(str, s.hot))})" if s.hot else ""
    return f"sym {name_text(s.name)} in {_range(s.low, s.high, s.divisor)}{hot}{_origin(s.origin)}"


def _library_line(x: Library) -> str:
    files = "".join(f" {quote(f)}" for f in x.files)
    return f"library {quote(x.name)} adapter {quote(x.adapter)} files{files};"


def _weight_line(w: Weight) -> str:
    shape = ", ".join(map(str, w.shape))
    return f"weight {ref_text(w.name)}: {w.dtype}[{shape}] = {_data(w)}{_origin(w.origin)}"


def _data(w: Weight) -> str:
    """Elements in place when they are few and read back to the same bytes, else the digest."""
    if not stands_in_text(w):
        return f"sha256 {quote(w.digest)}"
    array = np.ascontiguousarray(w.array())
    words = [element_text(x) for x in array.ravel()]
    if elements(words, w.dtype).tobytes() == array.tobytes():
        return f"[{', '.join(words)}]"
    return f"bytes {quote(array.tobytes().hex())}"  # NaNs with a payload


def stands_in_text(w: Weight) -> bool:
    """Whether a weight's elements are printed; others are named by their digest."""
    return math.prod(w.shape) <= INLINE and not w.is_named_only


def element_text(x: Any) -> str:
    """The shortest decimal that gives x in its own dtype."""
    return str(x).lower()


def elements(words: Sequence[str], dtype: DType) -> np.ndarray[Any, Any]:
    """A flat array of printed elements."""
    if dtype.category == "bool":
        return np.array([x == "true" for x in words], np.bool_)
    if dtype.is_float:
        wide = np.float64 if dtype.bits < 32 else dtype.numpy
        return np.array(words, wide).astype(dtype.numpy) if words else np.zeros(0, dtype.numpy)
    return np.array([int(x) for x in words], dtype.numpy)


def value_text(v: Value) -> str:
    return f"{ref_text(v.name)}: {placed_text(v)}"


def placed_text(v: Value) -> str:
    """A value's type, the unit that it lies at, and where it came from."""
    axes = f" axes ({', '.join(map(str, v.axes))})" if v.axes else ""
    return f"{type_text(v.type)}{_origin(v.unit, 'on')}{_origin(v.origin)}{axes}"


def graph_lines(g: Graph, word: str = "graph") -> Iterator[str]:
    """A graph, or a region of a node."""
    inputs = [value_text(v) for v in g.inputs]
    outputs = [
        ref_text(r) + (f" as {quote(g.output_names[n])}" if n < len(g.output_names) else "")
        for n, r in enumerate(g.outputs)
    ]
    head, tail = f"{word} {ref_text('@' + g.name)}(", f") -> ({', '.join(outputs)}) {{"
    if sum(map(len, inputs)) + len(tail) < 90:
        yield f"{head}{', '.join(inputs)}{tail}"
    else:
        yield head
        yield from (f"    {x}," for x in inputs)
        yield tail
    for n in g.nodes:
        yield from _indent(node_lines(n))
    yield "}"


def node_lines(n: Node) -> Iterator[str]:
    """One node, with its regions below it."""
    line = f"{n.op}({', '.join(map(ref_text, n.inputs))})"
    if n.attrs:
        line += f" {{{', '.join(f'{k} = {attr_text(n.attrs[k])}' for k in sorted(n.attrs))}}}"
    if n.outputs:
        line = f"{', '.join(ref_text(v.name) for v in n.outputs)} = {line}"
        line += f" : {', '.join(map(placed_text, n.outputs))}"
    yield line + _origin(n.origin, "at")
    for r in n.regions:
        yield from _indent(graph_lines(r, "region"))


# ---------------------------------------------------------------- kernels


def print_kernel(k: Kernel) -> str:
    """The text of one kernel."""
    return "\n".join(kernel_lines(k)) + "\n"


def kernel_lines(k: Kernel) -> Iterator[str]:
    dims = [_dim_param(d) for d in k.dims]
    inputs = [buffer_text(b) for b in k.inputs]
    outputs = ", ".join(buffer_text(b) for b in k.outputs)
    line = f"kernel {ref_text('@' + k.name)}({', '.join([*dims, *inputs])}) -> ({outputs})"
    notes = []
    if k.scratch:
        notes.append(f"scratch ({', '.join(buffer_text(b, 'scratch') for b in k.scratch)})")
    if k.origin:
        notes.append(f"origin {quote(k.origin)}")
    if k.hot:
        notes.append(f"hot ({', '.join(map(_hot_case, k.hot))})")
    if k.schedule:
        notes.append(f"schedule {quote(k.schedule)}")
    if notes:
        yield line
        yield from (f"    {x}" for x in notes)
        yield "{"
    else:
        yield line + " {"
    scope = {b.name: b.dtype for b in (*k.inputs, *k.outputs, *k.scratch)}  # as it is read: a group's own end
    yield from _indent(body_lines(k.body, scope))
    yield "}"


def _hot_case(case: HotCase) -> str:
    values = ", ".join(f"{name_text(name)} = {n}" for name, n in case.dims)
    return f"{ref_text('@' + case.kernel)} ({values})"


def _dim_param(d: DimParam) -> str:
    return f"{name_text(d.name)}: dim in {_range(d.low, d.high, d.divisor)}"


def buffer_text(b: Buffer, usual: str = "global") -> str:
    space = "" if b.space == usual else f"{b.space} "
    text = f"{name_text(b.name)}: {space}{b.dtype}[{', '.join(map(str, b.shape))}]"
    if b.layout is not None:
        text += f" laid {quote(str(b.layout.spec))} of [{', '.join(map(str, b.layout.source))}]"
    return f"{text} ahead {b.ahead}" if b.ahead else text


def print_stmt(s: Stmt, scope: BufferTypes | None = None) -> str:
    """The text of one statement. Loads of buffers outside of `scope` say their dtype."""
    return "\n".join(stmt_lines(s, scope or {})) + "\n"


def body_lines(body: Iterable[Stmt], scope: BufferTypes) -> Iterator[str]:
    for s in body:
        yield from stmt_lines(s, scope)


def stmt_lines(s: Stmt, scope: BufferTypes) -> Iterator[str]:
    if isinstance(s, Store):
        op = "=" if s.accumulate is None else f"{s.accumulate}="
        target = f"{name_text(s.buffer)}[{', '.join(map(str, s.index))}]"
        guard = f" if {_guard(s.guard)}" if s.guard else ""
        yield f"{target} {op} {print_expr(s.value, scope)}{guard}"
        return
    yield f"{_head(s, scope)} {{"
    inner = {**scope, **{b.name: b.dtype for b in s.buffers}}
    for b in s.buffers:
        yield f"  {b.space} {name_text(b.name)}: {b.dtype}[{', '.join(map(str, b.shape))}]"
    yield from _indent(body_lines(s.body, inner))
    yield "}"


def _head(s: Stmt, scope: BufferTypes) -> str:
    if isinstance(s, Block):
        lets = ", ".join(
            f"{name_text(v)} = {print_expr(e, scope)} in {lo} .. {hi}" for v, e, lo, hi in s.let
        )
        head = "block" + (f" by {name_text(s.by)}" if s.by else "") + (" ordered" if s.ordered else "")
        return head + (f" let ({lets})" if lets else "") + (f" if {_guard(s.guard)}" if s.guard else "")
    if isinstance(s, Tiles):
        names = f"({name_text(s.start)}, {name_text(s.rows)})"
        return f"tiles {s.level} {names} in {s.extent} : {s.mode} ({_sizes(s.sizes)})"
    assert not isinstance(s, Store)
    return f"{s.level} {name_text(s.var)} in {s.extent}"


def _sizes(sizes: Sequence[int]) -> str:
    """Sizes, with runs of more than three neighbours as `12 .. 1`."""
    words: list[str] = []
    at = 0
    while at < len(sizes):
        end = at
        while end + 1 < len(sizes) and sizes[end + 1] == sizes[end] - 1:
            end += 1
        if end - at > 2:
            words.append(f"{sizes[at]} .. {sizes[end]}")
        else:
            words.extend(str(x) for x in sizes[at : end + 1])
        at = end + 1
    return ", ".join(words)


def _guard(guard: Sequence[Bound]) -> str:
    return f"({', '.join(f'{b.low} <= {b.index} < {b.high}' for b in guard)})"


def print_expr(e: Expr, scope: BufferTypes | None = None, precedence: int = 0) -> str:
    """The text of an expression, in parentheses when it binds less than `precedence`."""
    scope = scope or {}
    if isinstance(e, Const):
        return f"{number_text(e.value)}:{e.dtype}"
    if isinstance(e, Index):
        return f"[{e.dim}]:{e.dtype}"
    if isinstance(e, Load):
        return _load(e, scope)
    if isinstance(e, Let):
        value, body = print_expr(e.value, scope), print_expr(e.body, scope)
        return f"let {name_text(e.var)} = {value} in {e.low} .. {e.high} {{ {body} }}"
    if isinstance(e, Reduce):
        axes = ", ".join(f"{name_text(a.var)} in {a.extent}" for a in e.axes)
        usual = None if e.kind in ARG_REDUCE else e.body.dtype
        kind = f"{e.kind}_last" if e.last else e.kind
        head = f"{kind}{_suffix(e.dtype, usual)} {axes}".rstrip()
        return f"{head} {{ {print_expr(e.body, scope)} }}"
    usual = usual_dtype(e.fn, e.args)
    if e.fn in INFIX and e.dtype == usual and len(e.args) == 2:
        op, level = INFIX[e.fn]
        a, b = print_expr(e.args[0], scope, level), print_expr(e.args[1], scope, level + 1)
        return f"({a} {op} {b})" if level < precedence else f"{a} {op} {b}"
    args = ", ".join(print_expr(a, scope) for a in e.args)
    return f"{e.fn}{_suffix(e.dtype, usual)}({args})"


def usual_dtype(fn: str, args: Sequence[Expr]) -> DType | None:
    """The result type that a call has when it says none."""
    if fn == "select" and len(args) == 3:
        return args[1].dtype
    if fn not in INTRINSICS or not args or INTRINSICS[fn].result == "explicit":
        return None
    return bool_ if INTRINSICS[fn].result == "bool" else args[0].dtype


def _suffix(dtype: DType, usual: DType | None) -> str:
    return "" if dtype == usual else f":{dtype}"


def _load(e: Load, scope: BufferTypes) -> str:
    text = f"{name_text(e.buffer)}[{', '.join(map(str, e.index))}]"
    text += _suffix(e.dtype, scope.get(e.buffer))
    if not e.guard and e.otherwise is None:
        return text
    other = "" if e.otherwise is None else f" else {print_expr(e.otherwise, scope)}"
    return f"({text} if {_guard(e.guard)}{other})"
