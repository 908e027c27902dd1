"""A rule's form (a program in one line) -> modules: instances of the form, and near-misses of it.

    x: f32[N, 4]; c: f32[4] = draw; mul(layer_norm(x, axis=1, epsilon=1e-5), c)

`name: type` is an input, `name: type = value` a constant (a number, a list, `draw` for random numbers, or
`draw(low, high)`); `name = op(...)` is a node; the last statement is the result, or a tuple of results. A
number among the operands of an op is a scalar constant of its neighbours' type.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, sym, to_dim
from smelt.core.dtype import ALL
from smelt.core.ir.graph import Graph, Module, Ref, Symbol, TensorType, Value
from smelt.core.passes.rewriting.editor import Editor, Workshop

DIMS = frozenset(
    [
        "shape",
        "starts",
        "ends",
        "before",
        "after",
        "repeats",
        "pads_begin",
        "pads_end",
        "output_padding",
        "values",
    ]
)  # attributes that are Dims
SYMBOLS = ("N", "M", "H", "K")


def _window(g: Editor, refs: Sequence[Ref], given: Mapping[str, Any]) -> dict[str, Any]:
    rank = len(given["kernel"]) if "kernel" in given else g.type_of(refs[0]).rank - 2
    ones, zeros = (1,) * rank, (to_dim(0),) * rank
    return {
        "strides": ones,
        "dilations": ones,
        "pads_begin": zeros,
        "pads_end": zeros,
        "channels_last": False,
    }


def _conv(g: Editor, refs: Sequence[Ref], given: Mapping[str, Any]) -> dict[str, Any]:
    return {**_window(g, refs, given), "group": 1}


def _transposed(g: Editor, refs: Sequence[Ref], given: Mapping[str, Any]) -> dict[str, Any]:
    made = _conv(g, refs, given)
    return {**made, "output_padding": made["pads_end"]}


def _pool(g: Editor, refs: Sequence[Ref], given: Mapping[str, Any]) -> dict[str, Any]:
    return {**_window(g, refs, given), "ceil_mode": False}


DEFAULTS: Mapping[str, Callable[[Editor, Sequence[Ref], Mapping[str, Any]], dict[str, Any]]] = {
    "conv": _conv, "conv_transpose": _transposed, "max_pool": _pool, "average_pool": _pool,
}  # fmt: skip


def build(program: ast.Module) -> Module:
    """The module of a program. Raises SmeltError where an op does not fit its operands."""
    return _Builder(program).run()


class _Builder:
    def __init__(self, program: ast.Module) -> None:
        names = {n.id for n in ast.walk(program) if isinstance(n, ast.Name)}
        self.program = program
        self.rng = np.random.default_rng(0)
        self.symbols = tuple(Symbol(s, 1) for s in SYMBOLS if s in names)
        self.env: dict[str, Any] = {
            **{s: sym(s) for s in SYMBOLS}, **ALL, "inf": np.inf, "nan": np.nan, "True": True, "False": False,
            "fill": self.fill,
        }  # fmt: skip
        inputs = [s for s in program.body if isinstance(s, ast.AnnAssign) and s.value is None]
        values = []
        for s in inputs:
            name = self.name(s)
            values.append(Value(f"%{name}", self.type(s), name))
            self.env[name] = f"%{name}"
        base = Module("form", self.symbols, graphs={"main": Graph("main", tuple(values), (), ())})
        self.shop = Workshop(base)
        self.g = Editor(self.shop, base.main, {})

    @staticmethod
    def name(s: ast.AnnAssign) -> str:
        assert isinstance(s.target, ast.Name)
        return s.target.id

    def type(self, s: ast.AnnAssign) -> TensorType:
        assert isinstance(s.annotation, ast.Subscript) and isinstance(s.annotation.value, ast.Name)
        inner = s.annotation.slice
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        return TensorType(ALL[s.annotation.value.id], tuple(to_dim(self.value(p)) for p in parts))

    def run(self) -> Module:
        result: Any = ()
        for s in self.program.body:
            if isinstance(s, ast.AnnAssign):
                if s.value is not None:
                    self.env[self.name(s)] = self.weight(self.type(s), s.value)
            elif isinstance(s, ast.Assign):
                (target,) = s.targets
                assert isinstance(target, ast.Name)
                self.env[target.id] = self.value(s.value)
            else:
                assert isinstance(s, ast.Expr)
                result = self.value(s.value)
        outputs = result if isinstance(result, tuple) else (result,)
        self.g.outputs = list(outputs)
        graph = self.g.graph().with_(output_names=tuple(f"y{k}" for k in range(len(outputs))))
        weights = MappingProxyType(dict(self.shop.weights))
        return Module("form", self.symbols, weights, {"main": graph})

    def weight(self, t: TensorType, value: ast.expr) -> Ref:
        shape = tuple(d.const for d in t.shape)
        if (isinstance(value, ast.Name) and value.id == "draw") or isinstance(value, ast.Call):
            low, high = (-1.0, 1.0) if t.dtype.is_float else (-5, 5)
            if isinstance(value, ast.Call):
                low, high = (self.value(a) for a in value.args)
            if t.dtype.is_float:
                return self.g.constant(self.rng.uniform(low, high, shape).astype(t.dtype.numpy))
            low = max(int(low), 0) if t.dtype.category == "uint" else int(low)
            return self.g.constant(self.rng.integers(low, int(high) + 1, shape).astype(t.dtype.numpy))
        with np.errstate(all="ignore"):
            array = np.asarray(self.value(value)).astype(t.dtype.numpy)
        return self.g.constant(np.broadcast_to(array, shape).copy())

    def fill(self, number: float, *shape: int) -> tuple[str, float, tuple[int, ...]]:
        return "fill", number, shape

    def value(self, e: ast.expr) -> Any:
        if isinstance(e, ast.Constant):
            return e.value
        if isinstance(e, ast.Name):
            return self.env[e.id]
        if isinstance(e, ast.Tuple | ast.List):
            return tuple(self.value(x) for x in e.elts)
        if isinstance(e, ast.UnaryOp):
            return -self.value(e.operand)
        if isinstance(e, ast.BinOp):
            a, b = self.value(e.left), self.value(e.right)
            ops = {ast.Add: lambda: a + b, ast.Sub: lambda: a - b, ast.Mult: lambda: a * b,
                   ast.Div: lambda: a / b,
                   ast.FloorDiv: lambda: a // b}  # fmt: skip
            return ops[type(e.op)]()
        assert isinstance(e, ast.Call) and isinstance(e.func, ast.Name), ast.dump(e)
        args = [self.value(a) for a in e.args]
        if e.func.id == "fill":
            return self.fill(*args)
        return self.call(e.func.id.rstrip("_"), args, {k.arg or "": self.value(k.value) for k in e.keywords})

    def call(self, op: str, args: list[Any], given: dict[str, Any]) -> Any:
        values = [a for a in args if isinstance(a, str) and a]
        like = self.g.type_of(values[0]).dtype if values else ALL["f32"]
        if op == "where" and len(values) > 1:  # the first is the condition
            like = self.g.type_of(values[-1]).dtype
        if op in ("dequantize", "quantize"):  # a number among their operands is the scale
            like = self.g.type_of(values[0]).dtype if op == "quantize" else ALL["f32"]
        refs = [a if isinstance(a, str) else self.number(a, like) for a in args]
        attrs = {k: _dims(v) if k in DIMS else v for k, v in given.items()}
        defaults = DEFAULTS.get(op)
        if defaults is not None:
            attrs = {**defaults(self.g, refs, given), **attrs}
        made = self.g.emit_all(op, refs, attrs, origin=f"{op}_{len(self.g.nodes)}")
        if self.shop.engine.take_checks():
            raise SmeltError(f"{op}: the sizes fit only by chance")
        return made[0] if len(made) == 1 else made

    def number(self, a: Any, like: Any) -> Ref:
        shape: tuple[int, ...] = ()
        if isinstance(a, tuple):
            _, a, shape = a
        with np.errstate(all="ignore"):
            return self.g.constant(np.full(shape, np.asarray(a).astype(like.numpy)))


def _dims(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_dims(v) for v in value)
    return to_dim(value) if isinstance(value, int | Dim) and not isinstance(value, bool) else value


# ---------------------------------------------------------------- what is nearly like a form

SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0,
    0.5,
    3.0,
    1e-3,
    1e4,
    1e20,
    1e-20,
    3e38,
    1e-38,
    1e-42,
    12582912.0,
    "inf",
    "-inf",
    "nan",
)
FLOATS, INTS = ("f32", "f64", "f16", "bf16"), ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool")
ALIKE = (
    ("add", "sub", "mul", "div", "min", "max", "pow"),
    ("relu", "abs", "neg", "floor", "round", "exp", "sigmoid", "tanh"),
    ("reduce_mean", "reduce_sum", "reduce_max", "reduce_min"),
    ("less", "greater", "less_equal", "greater_equal"),
    ("log", "sqrt", "reciprocal", "erf", "tanh"), ("max_pool", "average_pool"), ("softmax", "log_softmax"),
    ("quantize",), ("slice",),
)  # fmt: skip
Rng = np.random.Generator


def _numbers(p: ast.Module) -> list[tuple[Any, str, int | None]]:
    """Places of numbers that stand for constants: (owner, field, index)."""
    found: list[tuple[Any, str, int | None]] = []
    for n in ast.walk(p):
        if isinstance(n, ast.AnnAssign) and n.value is not None and not isinstance(n.value, ast.Call):
            found.append((n, "value", None))
        if isinstance(n, ast.Call):
            found += [(n, "args", k) for k, a in enumerate(n.args)
                      if isinstance(a, ast.Constant | ast.UnaryOp)
                      and not (isinstance(a, ast.Constant) and isinstance(a.value, str))]  # fmt: skip
    return found


def _put(place: tuple[Any, str, int | None], e: ast.expr) -> None:
    owner, field, k = place
    if k is None:
        setattr(owner, field, e)
    else:
        getattr(owner, field)[k] = e


def _get(place: tuple[Any, str, int | None]) -> ast.expr:
    owner, field, k = place
    found: ast.expr = getattr(owner, field) if k is None else getattr(owner, field)[k]
    return found


def _any(rng: Rng, items: Sequence[Any]) -> Any:
    return items[int(rng.integers(len(items)))] if items else None


def _expr(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def dtype(p: ast.Module, rng: Rng) -> None:
    """Another element type, everywhere or for one tensor."""
    types = [n.annotation.value for n in p.body
             if isinstance(n, ast.AnnAssign) and isinstance(n.annotation, ast.Subscript)]  # fmt: skip
    first = _any(rng, types)
    new = _any(rng, FLOATS if first.id in FLOATS and rng.random() < 0.8 else (*FLOATS, *INTS))
    for t in types if rng.random() < 0.8 else [first]:
        if t.id == first.id or t is first:
            t.id = new


def number(p: ast.Module, rng: Rng) -> None:
    """Another constant: a special one, one that is a little off, or its negative."""
    place = _any(rng, _numbers(p))
    if place is None:
        return
    old = _get(place)
    if isinstance(old, ast.Name | ast.List) or rng.random() < 0.6:
        _put(place, _expr(str(_any(rng, SPECIAL))))
        return
    value = (
        ast.literal_eval(old)
        if not isinstance(old, ast.UnaryOp) or not isinstance(old.operand, ast.Name)
        else 1.0
    )
    factor = _any(rng, (1 + 1e-7, 1 + 1e-6, 1 - 1e-4, 1 + 1e-3, -1.0, 2.0, 1e10))
    _put(place, _expr(repr(float(value) * factor)))


def wide(p: ast.Module, rng: Rng) -> None:
    """A constant of another shape: it may make the result larger."""
    shape = _any(rng, ((1,), (4,), (4, 1), (1, 1), (1, 1, 1), (2, 1, 1), (3, 1), (1, 4), (8,), (1, 8), (3,)))
    place = _any(rng, _numbers(p))
    if place is None:
        return
    if isinstance(place[0], ast.AnnAssign):
        place[0].annotation.slice = ast.Tuple([_expr(str(n)) for n in shape], ast.Load())
    else:
        _put(
            place, ast.Call(ast.Name("fill", ast.Load()), [_get(place), *(_expr(str(n)) for n in shape)], [])
        )


def extent(p: ast.Module, rng: Rng) -> None:
    """Another extent, everywhere, or one axis more or less for one tensor."""
    types = [n.annotation for n in p.body if isinstance(n, ast.AnnAssign)]
    t = _any(rng, types)
    inner = t.slice
    parts = list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
    if rng.random() < 0.4:
        at = int(rng.integers(len(parts) + 1))
        if rng.random() < 0.5 or not parts:
            parts.insert(at, _expr(_any(rng, ("1", "2", "M"))))
        else:
            del parts[min(at, len(parts) - 1)]
        t.slice = ast.Tuple(parts, ast.Load())
        return
    old, new = _any(rng, parts), _any(rng, ("1", "2", "3", "4", "5", "8", "M", "N", "1"))
    if old is None:
        return
    text = ast.dump(old)

    class Change(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, ast.expr) and ast.dump(node) == text:
                return _expr(new)
            return super().generic_visit(node)

    if isinstance(old, ast.Name) and rng.random() < 0.7:
        p.body[:] = [Change().visit(s) for s in p.body]
    else:
        parts[parts.index(old)] = _expr(new)
        t.slice = ast.Tuple(parts, ast.Load())


def attribute(p: ast.Module, rng: Rng) -> None:
    """Another value of an attribute."""
    k = _any(rng, [k for n in ast.walk(p) if isinstance(n, ast.Call) for k in n.keywords])
    if k is None:
        return
    v = k.value
    if isinstance(v, ast.Tuple) and v.elts:
        at = int(rng.integers(len(v.elts)))
        if rng.random() < 0.4:
            v.elts = [v.elts[int(j)] for j in rng.permutation(len(v.elts))]
        else:
            v.elts[at] = _expr(_any(rng, ("0", "1", "2", "3", "N", "-1", "4")))
    elif isinstance(v, ast.Constant) and isinstance(v.value, bool):
        k.value = ast.Constant(not v.value)
    elif isinstance(v, ast.Name) and v.id in ALL:
        k.value = _expr(_any(rng, (*FLOATS, *INTS)))
    elif isinstance(v, ast.Constant) and isinstance(v.value, str):
        k.value = ast.Constant(_any(rng, ("constant", "edge", "reflect", "nearest")))
    else:
        k.value = _expr(
            _any(rng, ("0", "1", "2", "-1", "1e-5", "0.1666666716337204", "0.1665", "0.5", "-0.001"))
        )


def operator(p: ast.Module, rng: Rng) -> None:
    """An op of the same kind in the place of another one."""
    calls = [(n, group) for n in ast.walk(p) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
             for group in ALIKE if n.func.id in group]  # fmt: skip
    found = _any(rng, calls)
    if found is not None:
        found[0].func.id = _any(rng, found[1])


def swap(p: ast.Module, rng: Rng) -> None:
    """Two operands the other way round."""
    n = _any(rng, [n for n in ast.walk(p) if isinstance(n, ast.Call) and len(n.args) > 1])
    if n is not None:
        a, b = (int(k) for k in rng.choice(len(n.args), 2, replace=False))
        n.args[a], n.args[b] = n.args[b], n.args[a]


def another(p: ast.Module, rng: Rng) -> None:
    """One of the uses of an input is of another input of the same type."""
    inputs = {s.target.id: s for s in p.body
              if isinstance(s, ast.AnnAssign) and s.value is None
              and isinstance(s.target, ast.Name)}  # fmt: skip
    uses = [(n, k) for n in ast.walk(p) if isinstance(n, ast.Call)
            for k, a in enumerate(n.args) if isinstance(a, ast.Name) and a.id in inputs]  # fmt: skip
    found = _any(rng, uses)
    if found is None:
        return
    call, k = found
    more = copy.deepcopy(inputs[call.args[k].id])
    more.target = ast.Name("other", ast.Store())
    call.args[k] = ast.Name("other", ast.Load())
    p.body.insert(0, more)


def shared(p: ast.Module, rng: Rng) -> None:
    """A value inside is a result too."""
    last = p.body[-1]
    assert isinstance(last, ast.Expr)
    inner = [(n, k) for n in ast.walk(last) if isinstance(n, ast.Call)
             for k, a in enumerate(n.args)
             if isinstance(a, ast.Call) and getattr(a.func, "id", "") != "fill"]  # fmt: skip
    found = _any(rng, inner)
    if found is None or isinstance(last.value, ast.Tuple):
        return
    call, k = found
    p.body.insert(-1, ast.Assign([ast.Name("inner", ast.Store())], call.args[k]))
    call.args[k] = ast.Name("inner", ast.Load())
    last.value = ast.Tuple([last.value, ast.Name("inner", ast.Load())], ast.Load())


def between(p: ast.Module, rng: Rng) -> None:
    """An op more between two others."""
    found = [(n, k) for n in ast.walk(p) if isinstance(n, ast.Call)
             for k, a in enumerate(n.args) if isinstance(a, ast.Call | ast.Name)]  # fmt: skip
    place = _any(rng, [f for f in found if isinstance(f[0].args[f[1]], ast.Call)] or found)
    if place is not None:
        call, k = place
        call.args[k] = ast.Call(
            ast.Name(_any(rng, ("neg", "abs", "not_", "bit_not")), ast.Load()), [call.args[k]], []
        )


def opened(p: ast.Module, rng: Rng) -> None:
    """A constant becomes an input."""
    s = _any(rng, [s for s in p.body if isinstance(s, ast.AnnAssign) and s.value is not None])
    if s is not None:
        s.value = None


CHANGES = (dtype, dtype, number, number, number, wide, wide, extent, extent, attribute,
           attribute, operator, swap,
           another, shared, between, between, opened)  # fmt: skip


def mutant(form: str, seed: int) -> ast.Module:
    """The form after none (seed 0), one or two changes."""
    p, rng = ast.parse(re.sub(r"(\w)\[\]", r"\1[()]", form)), np.random.default_rng(seed)
    for _ in range(0 if seed == 0 else int(rng.choice([1, 1, 2]))):
        _any(rng, CHANGES)(p, rng)
    return ast.parse(ast.unparse(ast.fix_missing_locations(p)))
