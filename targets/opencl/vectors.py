"""Vector loops in, OpenCL's vector types out; what has no such form is left to a plain loop.

A vector of bools is an int vector of 0 and -1. Where bounds cut the loop short, the vector stands behind a
test that all of them hold for its first and last element, and a plain loop does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from smelt.core.dim import Dim, Facts, sym
from smelt.core.dtype import DType, bf16, bool_, f16, f64, i64
from smelt.core.ir.alike import alike
from smelt.core.ir.analysis.scope import holding
from smelt.core.ir.kernel import (
    Bound,
    Call,
    Const,
    Expr,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Stmt,
    Store,
    walk_expr,
)
from smelt.core.ir.rewrite import free_symbols, map_expr
from smelt.core.machine import Machine
from smelt.targets.opencl.dialect import LONG, Dialect, Place, count_uses
from smelt.targets.opencl.helpers import Helpers, storage_type, unsigned_type, value_type
from smelt.targets.opencl.shared_values import ahead, independent
from smelt.targets.opencl.vector_arrays import WIDTHS

_COMPARE: Mapping[str, str] = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_ARITHMETIC: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*"}
_BITS: Mapping[str, str] = {"and": "&", "or": "|", "xor": "^"}
_FLOAT_ALIKE = frozenset((
    "exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan",
    "asinh", "acosh", "atanh", "erf", "floor", "ceil", "round", "trunc", "neg", "abs", "div", "pow",
    "fma", "fmod", "add", "sub", "mul",
))  # fmt: skip
"""What is written for vectors of floats as it is for one float."""


class _Scalar(Exception):
    """Something in a loop has no vector form."""


@dataclass(frozen=True, slots=True)
class _Value:
    """C text, and whether it is one element for all of the vector."""

    text: str
    uniform: bool


class Vectors(Dialect):
    """Prints the innermost loops over elements that lie side by side."""

    _var: str = ""
    _width: int = 0

    def __init__(
        self, kernel: Kernel, s: Stmt, machine: Machine, helpers: Helpers, name: str = ""
    ) -> None:
        super().__init__(kernel, s, machine, helpers, name)
        self._made: list[list[Store]] = []  # `uses` goes by identity: what it counts has to stay

    def vectors(self, s: Loop, count: int) -> bool:
        """A vector loop of that many iterations by vector types; False, and nothing printed, when it has no
        such form."""
        if not all(isinstance(x, Store) for x in s.body) or s.buffers or count < 2:
            return False
        found = [x for x in s.body if isinstance(x, Store)]
        mark, frames, env, facts = self.w.mark(), len(self._memo), self.env, self.facts
        try:
            self._pieces(s, found, count)
        except _Scalar:
            self.w.back(mark)
            del self._memo[frames:]
            self.env, self.facts, self._var = env, facts, ""
            return False
        return True

    def _pieces(self, s: Loop, found: list[Store], count: int) -> None:
        """All elements. What all loads of several vectors ask alike is asked once."""
        loads = [e for x in found for e in walk_expr(x.value) if isinstance(e, Load)]
        steady = {_steady(e, s.var) for e in loads if e.guard and s.var in free_symbols(e)}
        shared = next(iter(steady)) if len(steady) == 1 and count > WIDTHS[0] else ()
        test = self.condition(shared)
        if test is None:
            self._row(s, found, count, frozenset())
            return
        with self.when(test), self.scope({}, holding(self.facts, shared)):
            self._row(s, found, count, frozenset(shared))
        with self.block("else"):
            self._row(s, [_failing(x, shared) for x in found], count, frozenset())

    def _row(self, s: Loop, found: list[Store], count: int, hold: frozenset[Bound]) -> None:
        at = 0
        if independent(found):
            one, uses = alike(), dict[int, int]()
            found = [replace(s, value=one(s.value)) for s in found]
            for x in found:
                count_uses(x.value, uses)
            self.uses.update(uses)
            self._made.append(found)
        while at < count:
            width = next((w for w in WIDTHS if w <= count - at), 1)
            self._piece(s, found, at, width, hold)
            at += width

    def _piece(self, s: Loop, found: list[Store], at: int, width: int, hold: frozenset[Bound]) -> None:
        """The elements at .. at + width - 1. hold: bounds that do."""
        inside = self.facts.with_range(s.var, at, at + width - 1)
        bounds = dict.fromkeys(b for x in found for b in _bounds(x) if s.var in _symbols(b))
        tests: list[str] = []
        for b in bounds:
            steps = [d.linear(s.var) for d in (b.low, b.index, b.high)]
            if any(x is None or not x[0].is_const for x in steps):
                raise _Scalar
            for end in {at, at + width - 1}:
                ends = (Bound(*(d.substitute({s.var: end}) for d in (b.low, b.index, b.high))),)
                with self.scope({}, inside):
                    test = self.condition(ends)
                tests += [test] if test and test not in tests else []
        if tests:
            with self.when(" && ".join(tests)):
                self._whole(found, s.var, at, width, inside, hold | frozenset(bounds))
            head = self.named(s.var)
            with self.block("else"):
                self.w.line("#pragma unroll")
                loop = f"for (long {head} = {at}; {head} < {at + width}; ++{head})"
                with self.block(loop), self.scope({s.var: head}, inside):
                    for x in found:
                        self.store(x)
            return
        self._whole(found, s.var, at, width, inside, hold | frozenset(bounds))

    def _whole(
        self, found: list[Store], var: str, at: int, width: int, facts: Facts, hold: frozenset[Bound]
    ) -> None:
        if width == 1:
            with self.frame(), self.scope({var: at}, facts.with_range(var, at, at)):
                for x in found:
                    self.store(x)
            return
        before = self._var, self._width
        self._var, self._width = var, width
        with self.frame(), self.scope({var: at}, facts):
            tests = [self.condition(tuple(b for b in x.guard if b not in hold)) for x in found]
            known: dict[int, tuple[Expr, _Value]] = {}
            if independent(found):
                always = [x for x, test in zip(found, tests, strict=True) if test is None]
                shapes = {name: place.buffer.shape for name, place in self.places.items()}
                for e in ahead(found, always, self.facts, shapes):
                    self._vec(e, hold, known)
            for x, test in zip(found, tests, strict=True):
                if test is None:
                    self._vector_write(x, hold, dict(known))
                    continue
                with self.when(test):
                    self._vector_write(x, hold, dict(known))
        self._var, self._width = before

    # -- stores

    def _vector_write(self, s: Store, hold: frozenset[Bound], known: dict[int, tuple[Expr, _Value]]) -> None:
        place, at, step = self._flat(s.buffer, s.index)
        if step == 0:
            raise _Scalar
        dtype = place.buffer.dtype
        if s.accumulate is None:
            value = self._wide(self._vec(s.value, hold, known), dtype)
        else:
            if step != 1:
                raise _Scalar
            old = self._read_vector(place, at)
            value = self._accumulated(s.accumulate, dtype, old, s.value, hold, known)
        self._write_vector(place, at, step, value)

    def _accumulated(
        self, fn: str, dtype: DType, old: str, e: Expr, hold: frozenset[Bound],
        known: dict[int, tuple[Expr, _Value]],
    ) -> str:  # fmt: skip
        product = isinstance(e, Call) and e.fn == "mul" and e.dtype == dtype
        if fn in ("fma", "add") and product and dtype.is_float:
            assert isinstance(e, Call)
            a, b = (self._wide(self._vec(x, hold, known), dtype) for x in e.args)
            return f"{self.helpers.use('muladd', dtype, self._width)}({a}, {b}, {old})"
        value = self._wide(self._vec(e, hold, known), dtype)
        return self._intrinsic("add" if fn == "fma" else fn, dtype, dtype, [old, value])

    # -- memory

    def _flat(self, name: str, index: tuple[Dim, ...]) -> tuple[Place, Dim, int]:
        """The place of a buffer, the flat index of the vector's first element, the step to the next."""
        place = self.places[name]
        flat = self.flat(place, index)
        if self._var not in flat.symbols:
            return place, flat, 0
        found = flat.linear(self._var)
        if found is None:  # one panel of several side by side, that has all of the vector
            flat = self.facts.simplify(flat)
            found = flat.linear(self._var)
        if found is None or found[0].const_or_none is None:
            raise _Scalar
        return place, flat, found[0].const

    def _read_vector(self, place: Place, at: Dim) -> str:
        """The vector that begins at a flat index (with the loop's variable at its first element)."""
        w, dtype = self._width, place.buffer.dtype
        if place.vectors[1]:
            return self._register(place, at)
        place, i = self.based(place, at)
        if not place.is_array and dtype == f16:
            return f"vload_half{w}(0, {place.name} + {i})"
        if not place.is_array and dtype == bf16:
            return f"as_float{w}(convert_uint{w}({self._vload(place, i)}) << 16)"
        if dtype == bool_:
            return f"(convert_int{w}({self._vload(place, i)}) != 0)"
        return self._vload(place, i)

    def _vload(self, place: Place, i: str) -> str:
        """The elements from i on, as they lie. Of memory by one access: where vload is made of accesses to
        parts, a compiler does not always find out that they are neighbours."""
        if place.is_array:
            return f"vload{self._width}(0, {place.name} + {i})"
        kind = self.helpers.packed(place.buffer.dtype, self._width)
        return f"((__global const {kind} *)({place.name} + {i}))->v"

    def _write_vector(self, place: Place, at: Dim, step: int, value: str) -> None:
        w, dtype = self._width, place.buffer.dtype
        if step != 1:
            name = self.w.temporary(f"{self._kind(dtype)}", value)
            for n in range(w):
                one = f"{name}.s{n:x}"
                self.write(*self.based(place, at + step * n), f"(-{one})" if dtype == bool_ else one)
            return
        if place.vectors[1]:
            self.w.line(f"{self._register(place, at)} = {value};")
            return
        place, i = self.based(place, at)
        if not place.is_array and dtype == f16:
            self.w.line(f"vstore_half{w}_rte({value}, 0, {place.name} + {i});")
        elif not place.is_array and dtype == bf16:
            raise _Scalar
        else:
            stored = f"convert_{storage_type(dtype)}{w}(-{value})" if dtype == bool_ else value
            if place.is_array:
                self.w.line(f"vstore{w}({stored}, 0, {place.name} + {i});")
                return
            kind = self.helpers.packed(dtype, w)
            self.w.line(f"((__global {kind} *)({place.name} + {i}))->v = {stored};")

    def _register(self, place: Place, at: Dim) -> str:
        """The vector at a flat index of an array of vectors, or the part of one (see `whole_vectors`)."""
        name, width = place.vectors
        first = self.env[self._var]
        assert isinstance(first, int)
        text = f"{name}[{self.index((at - sym(self._var)) // width + first // width)}]"
        part = "".join(f"{n:x}" for n in range(first % width, first % width + self._width))
        return text if self._width == width else f"{text}.s{part}"

    # -- expressions

    def _kind(self, dtype: DType) -> str:
        """The C type of a vector of values."""
        return f"int{self._width}" if dtype == bool_ else f"{value_type(dtype)}{self._width}"

    def _wide(self, v: _Value, dtype: DType) -> str:
        if not v.uniform:
            return v.text
        return f"(({self._kind(dtype)}){f'(-(int)({v.text}))' if dtype == bool_ else f'({v.text})'})"

    def _vec(self, e: Expr, hold: frozenset[Bound], known: dict[int, tuple[Expr, _Value]]) -> _Value:
        """The value for all elements of the vector."""
        if isinstance(e, Const) or self._var not in free_symbols(e):
            return _Value(self.value(e), True)
        if id(e) in known:
            return known[id(e)][1]
        if e.dtype.coded:
            raise _Scalar
        text = self._vector_text(e, hold, known)
        if self.uses.get(id(e), 2) > 1 or len(text) > LONG:
            text = self.w.temporary(self._kind(e.dtype), text)
        known[id(e)] = e, _Value(text, False)
        return known[id(e)][1]

    def _vector_text(self, e: Expr, hold: frozenset[Bound], known: dict[int, tuple[Expr, _Value]]) -> str:
        match e:
            case Load():
                return self._vector_load(e, hold, known)
            case Call():
                args = [(a.dtype, self._vec(a, hold, known)) for a in e.args]
                return self._vector_call(e, args)
            case Index():
                return self._vector_index(e)
            case Let():
                if self._var in free_symbols(e.value) | e.low.symbols | e.high.symbols:
                    raise _Scalar
                name = self.clamped(e.var, e.value, e.low, e.high)
                with self.bind({e.var: name}, e):
                    return self._wide(self._vec(e.body, hold, {}), e.dtype)
        raise _Scalar

    def _vector_index(self, e: Index) -> str:
        step = e.dim.linear(self._var)
        if step is None or not step[0].is_const or not (e.dtype.is_int or value_type(e.dtype) == "float"):
            raise _Scalar
        steps = ", ".join(f"{step[0].const * n}L" for n in range(self._width))
        text = f"((long{self._width})({self.index(e.dim)}) + (long{self._width})({steps}))"
        if e.dtype.is_float and e.dtype.bits == 16:
            raise _Scalar
        return text if e.dtype == i64 else f"convert_{self._kind(e.dtype)}({text})"

    def _vector_load(self, e: Load, hold: frozenset[Bound], known: dict[int, tuple[Expr, _Value]]) -> str:
        place, at, step = self._flat(e.buffer, e.index)
        rest = tuple(b for b in e.guard if b not in hold)
        condition = self.condition(rest)
        dtype = place.buffer.dtype
        if step == 1:
            text = self._read_vector(place, at)
        elif step == 0:
            one = self.read(*self.based(place, at))
            text = self._wide(_Value(one, True), dtype)
        else:
            each = [self.read(*self.based(place, at + step * n)) for n in range(self._width)]
            each = [f"(-(int){x})" for x in each] if dtype == bool_ else each
            text = f"(({self._kind(dtype)})({', '.join(each)}))"
        if not condition:
            return text
        other = Const(0.0 if dtype.is_float else 0, dtype) if e.otherwise is None else e.otherwise
        return f"({condition} ? {text} : {self._wide(self._vec(other, hold, known), dtype)})"

    def _vector_call(self, e: Call, args: list[tuple[DType, _Value]]) -> str:
        kind = e.args[0].dtype
        if e.fn == "select":
            condition = args[0][1]
            a, b = (self._wide(v, e.dtype) for _, v in args[1:])
            if condition.uniform:
                return f"({condition.text} ? {a} : {b})"
            return f"({self._mask(condition.text, e.dtype)} ? {a} : {b})"
        texts = [self._wide(v, d) for d, v in args]
        if e.fn == "cast":
            return self._convert(texts[0], kind, e.dtype)
        if e.fn == "bitcast":
            if kind.bits == 16 or bool_ in (kind, e.dtype):
                raise _Scalar
            return f"as_{self._kind(e.dtype)}({texts[0]})"
        if e.fn in ("shl", "shr"):
            by = e.args[1]
            if not isinstance(by, Const) or not 0 <= int(by.value) < kind.bits:
                raise _Scalar
            return f"({texts[0]} {'<<' if e.fn == 'shl' else '>>'} {texts[1]})"
        return self._intrinsic(e.fn, kind, e.dtype, texts)

    def _mask(self, text: str, dtype: DType) -> str:
        """A vector of bools as one of integers as wide as dtype's values."""
        bits = 32 if dtype == bool_ or value_type(dtype) == "float" else dtype.bits
        kind = {8: "char", 16: "short", 64: "long"}.get(bits)
        return text if kind is None else f"convert_{kind}{self._width}({text})"

    def _truth(self, text: str, kind: DType) -> str:
        """What a comparison of vectors of `kind` gives, as a vector of bools."""
        same = kind == bool_ or value_type(kind) == "float" or kind.bits == 32
        return text if same else f"convert_int{self._width}({text})"

    def _convert(self, v: str, source: DType, target: DType) -> str:
        if source == target or (value_type(source) == value_type(target) and target.bits != 16):
            return v
        kind = self._kind(target)
        if target == bool_:
            return self._truth(f"({v} != ({self._kind(source)})(0))", source)
        if target.bits == 16 and target.is_float:
            raise _Scalar
        if source == bool_:
            return f"convert_{kind}(-{v})"
        if source.is_float and target.is_int:
            zero = f"(({self._kind(source)})(0))"
            return f"convert_{kind}_sat_rtz({v} == {v} ? {v} : {zero})"
        return f"convert_{kind}({v})"

    def _intrinsic(self, fn: str, kind: DType, result: DType, args: list[str]) -> str:
        if fn in _COMPARE:
            if kind == bool_ and fn not in ("eq", "ne"):
                raise _Scalar
            return self._truth(f"({args[0]} {_COMPARE[fn]} {args[1]})", kind)
        if fn == "isnan" and kind.is_float:
            return self._truth(f"({args[0]} != {args[0]})", kind)
        if fn in ("min", "max") and kind != bool_:
            name = f"{fn}_{'float' if kind.is_float else 'int'}"
            return f"{self.helpers.use(name, kind, self._width)}({args[0]}, {args[1]})"
        if fn in _BITS:
            return f"({args[0]} {_BITS[fn]} {args[1]})"
        if fn == "not":
            return f"(~{args[0]})"
        if kind.is_float and kind != f64 and fn in _FLOAT_ALIKE:
            return self.intrinsic(fn, kind, *args)
        if kind == f64 and fn in ("add", "sub", "mul", "div", "neg", "abs", "sqrt"):
            return self.intrinsic(fn, kind, *args)
        if fn == "sign" and kind.is_float:
            return f"{self.helpers.use('sign_float', kind, self._width)}({args[0]})"
        if kind.is_int and fn in _ARITHMETIC:
            wide, back = f"as_{unsigned_type(kind)}{self._width}", f"as_{self._kind(kind)}"
            return f"{back}({wide}({args[0]}) {_ARITHMETIC[fn]} {wide}({args[1]}))"
        raise _Scalar


def _symbols(b: Bound) -> frozenset[str]:
    return b.low.symbols | b.index.symbols | b.high.symbols


def _steady(e: Load, var: str) -> tuple[Bound, ...]:
    """The bounds of a load that are the same for all of a vector loop."""
    return tuple(b for b in e.guard if var not in _symbols(b))


def _failing(s: Store, bounds: tuple[Bound, ...]) -> Store:
    """The store where one of these bounds does not hold: what loads that ask for all of them give then."""

    def other(e: Expr) -> Expr:
        if not isinstance(e, Load) or not set(bounds) <= set(e.guard):
            return e
        return Const(0.0 if e.dtype.is_float else 0, e.dtype) if e.otherwise is None else e.otherwise

    return Store(s.buffer, s.index, map_expr(s.value, other), s.accumulate, s.guard)


def _bounds(s: Store) -> Iterator[Bound]:
    """Every bound of a store and of what it loads, outside of reductions."""
    yield from s.guard
    for e in walk_expr(s.value):
        if isinstance(e, Load):
            yield from e.guard
        elif isinstance(e, Reduce) and any(isinstance(x, Load) and x.guard for x in walk_expr(e.body)):
            return
