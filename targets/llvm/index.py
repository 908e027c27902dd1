"""Dims in, integer values out: index arithmetic with its constants folded and its invariants hoisted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smelt.core.diag import SmeltError
from smelt.core.dim import Atom, Dim, FloorDiv, Max, Min, Mod, SymbolAtom
from smelt.core.dim.atoms import Mono
from smelt.targets.llvm.builder import FunctionBuilder, Value

LONGEST_APART = 8
"""Elements of rows that are read whole and taken apart: as many vectors live at a time."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """A vector variable while lanes start .. start+count-1 of its loop are computed together."""

    start: int
    count: int


Binding: TypeAlias = "int | Value | Lanes"
Env: TypeAlias = "dict[str, Binding]"
Number: TypeAlias = "int | Value"
ScaledValue: TypeAlias = "tuple[int, Value]"
Split: TypeAlias = "tuple[int, int, list[ScaledValue]]"
NamedTerm: TypeAlias = "tuple[int, tuple[str, ...] | None, Mono]"
"""A coefficient and what it multiplies: the names of symbols, as often as their power says, or, where there
are other atoms, None and the atoms."""


def moves(bound: Binding) -> bool:
    """Whether the lanes of the current vector see different values of a variable."""
    return isinstance(bound, Lanes) or (isinstance(bound, Value) and bound.lanes > 0)


def _varies(dim: Dim, env: Env) -> bool:
    return any(moves(env[name]) for name in dim.symbols)


class Indexer:
    """Evaluates Dims to values of the index type (i64, or i32 where addresses have 32 bits)."""

    def __init__(self, builder: FunctionBuilder, elem: str) -> None:
        self.b = builder
        self.elem = elem
        self._terms: dict[Dim, list[NamedTerm]] = {}
        self._constants: dict[int, Value] = {}

    # -- uniform values

    def value(self, dim: Dim, env: Env) -> Value:
        """The dim as a scalar; no symbol of it may differ between lanes."""
        return self.as_value(self.number(dim, env))

    def number(self, dim: Dim, env: Env) -> Number:
        """The dim as an int when the environment makes it one, else as a scalar."""
        const, parts = self.parts(dim, env)
        return self.total(const, parts)

    def parts(self, dim: Dim, env: Env) -> tuple[int, list[ScaledValue]]:
        """(constant, [(coefficient, value)]) whose sum is the dim."""
        const, parts = 0, []
        for coef, names, mono in self._named(dim):
            values: list[Value] = []
            if names is not None:
                for name in names:
                    bound = env[name]
                    assert bound.__class__ is not Lanes, f"{name} differs between lanes"
                    if isinstance(bound, Value):
                        values.append(self._width(bound))
                    else:
                        coef *= bound  # type: ignore[operator]
            else:
                for atom, power in mono:
                    coef = self._times(self.atom(atom, env), power, coef, values)
            if coef == 0:
                continue
            if values:
                parts.append((coef, self.product(values)))
            else:
                const += coef
        return const, parts

    def _named(self, dim: Dim) -> list[NamedTerm]:
        found = self._terms.get(dim)
        if found is None:
            found = self._terms[dim] = [(coef, _names(mono), mono) for coef, mono in dim.terms()]
        return found

    def _times(self, n: Number, power: int, coef: int, values: list[Value]) -> int:
        """The coefficient with one factor more, which joins `values` instead where it is none."""
        if isinstance(n, int):
            return coef * int(n**power)
        values.extend([n] * power)
        return coef

    def total(self, const: int, parts: Iterable[ScaledValue]) -> Number:
        """The sum, outer scopes' parts first, so that they stay invariant inside."""
        acc: Number | None = None
        for coef, v in sorted(parts, key=_part_depth):
            if acc is None:
                acc = self.mul(v, coef)
            elif coef < 0:
                acc = self.sub(acc, self.mul(v, -coef))
            else:
                acc = self.add(acc, self.mul(v, coef))
        if acc is None:
            return const
        return self.add(acc, const) if const else acc

    def product(self, values: list[Value]) -> Value:
        if len(values) == 1:
            return values[0]
        first, *others = sorted(values, key=_depth)
        for v in others:
            product = self.mul(first, v)
            assert isinstance(product, Value)
            first = product
        return first

    def atom(self, atom: Atom, env: Env) -> Number:
        if isinstance(atom, SymbolAtom):
            bound = env[atom.name]
            assert not isinstance(bound, Lanes), f"{atom.name} differs between lanes"
            return bound if isinstance(bound, int) else self._width(bound)
        if isinstance(atom, FloorDiv):
            return self.floordiv(self.number(atom.a, env), self.number(atom.b, env))
        if isinstance(atom, Mod):
            return self.mod(self.number(atom.a, env), self.number(atom.b, env))
        fn = "smin" if isinstance(atom, Min) else "smax"
        acc = self.number(atom.args[0], env)
        for arg in atom.args[1:]:
            acc = self.pick(fn, acc, self.number(arg, env))
        return acc

    def _width(self, v: Value) -> Value:
        if v.elem == self.elem:
            return v
        fn = "sext" if self.elem == "i64" else "trunc"
        made = self.b.pure(f"{fn} {v.typed} to {self.elem}", self.elem, 0, v)
        made.low, made.high = v.low, v.high
        return made

    # -- arithmetic with bounds

    def as_value(self, n: Number) -> Value:
        """Raises SmeltError(unsupported) for a number that the target's addresses cannot reach."""
        if n.__class__ is Value:
            return n
        assert isinstance(n, int)
        found = self._constants.get(n)
        if found is not None:
            return found
        if not self.fits(n):
            raise SmeltError(
                f"a size or an offset of {n} does not fit in the target's {self.elem[1:]}-bit addresses",
                kind="unsupported",
                hint="look for an attribute or a constant that large",
            )
        found = self._constants[n] = self.b.integer(n, self.elem)
        return found

    def fits(self, n: int) -> bool:
        """Whether a value can hold the number."""
        return -(half := 1 << int(self.elem[1:]) - 1) <= n < half

    def _op(self, op: str, a: Number, b: Number, low: int | None, high: int | None) -> Value:
        x, y = self.as_value(a), self.as_value(b)
        made = self.b.pure(f"{op} {x.typed}, {y.text}", self.elem, 0, x, y)
        made.low, made.high = low, high
        return made

    def _ring(self, op: str, a: Number, b: Number, low: int | None, high: int | None) -> Value:
        """A sum, difference or product. It wraps (no nsw: a result that fits is right whatever its parts
        were, and code that is hoisted out of loops that do not run must be harmless)."""
        return self._op(op, a, b, low, high)

    def add(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if b == 0:
            return a
        if a == 0:
            return b
        (al, ah), (bl, bh) = bounds(a), bounds(b)
        low = None if al is None or bl is None else al + bl
        high = None if ah is None or bh is None else ah + bh
        return self._ring("add", a, b, low, high)

    def sub(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        if b == 0:
            return a
        (al, ah), (bl, bh) = bounds(a), bounds(b)
        low = None if al is None or bh is None else al - bh
        high = None if ah is None or bl is None else ah - bl
        return self._ring("sub", a, b, low, high)

    def mul(self, a: Number, b: Number) -> Number:
        if isinstance(a, int):
            if isinstance(b, int):
                return a * b
            a, b = b, a
        if isinstance(b, int):
            if b == 0:
                return 0
            if b == 1:
                return a
        return self.b.once("mul", a, b, self._mul)

    def _mul(self, a: Number, b: Number) -> Value:
        (al, ah), (bl, bh) = bounds(a), bounds(b)
        low = high = None
        if al is not None and bl is not None and al >= 0 and bl >= 0:
            low = al * bl
            high = None if ah is None or bh is None else ah * bh
        return self._ring("mul", a, b, low, high)

    def floordiv(self, a: Number, b: Number) -> Number:
        """a // b rounded down. A divisor that is not constant counts as at least 1: it is a size."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if b == 1:
            return a
        (al, ah), safe = bounds(a), self._divisor(b)
        if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            shift = "lshr" if al is not None and al >= 0 else "ashr"
            low = None if al is None else al // b
            return self._op(shift, a, b.bit_length() - 1, low, None if ah is None else ah // b)
        if al is not None and al >= 0 and not (isinstance(b, int) and b < 0):
            return self._divided("udiv", a, safe, 0, ah)
        quotient = self._divided("sdiv", a, safe, None, None)
        rest = self._op("sub", a, self._op("mul", quotient, safe, None, None), None, None)
        low, high = (None, None) if isinstance(b, int) and b < 0 else _towards_zero(al, ah)
        return self._op("sub", quotient, self._wrong_sign(rest, safe), low, high)

    def mod(self, a: Number, b: Number) -> Number:
        """a % b with the sign of b."""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        if b == 1:
            return 0
        (al, _), safe = bounds(a), self._divisor(b)
        if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            return self._op("and", a, b - 1, 0, b - 1)
        if al is not None and al >= 0 and not (isinstance(b, int) and b < 0):
            high = b - 1 if isinstance(b, int) else None
            return self._divided("urem", a, safe, 0, high)
        rest = self._divided("srem", a, safe, None, None)
        fix = self._op("mul", self._wrong_sign(rest, safe), safe, None, None)
        high = b - 1 if isinstance(b, int) and b > 0 else None
        made = self._op("add", rest, fix, None if isinstance(b, int) and b < 0 else 0, high)
        return made

    def _divided(self, op: str, a: Number, b: Number, low: int | None, high: int | None) -> Value:
        """A quotient or a remainder, which stays in the block where it stands: LLVM's loop strength reduction
        sees through divisions and would repeat them in each round of the loops inside. It does not see
        through a freeze."""
        found = self._op(op, a, b, None, None)
        made = self.b.pure(f"freeze {found.typed}", self.elem, 0, found)
        made.low, made.high = low, high
        return made

    def _divisor(self, b: Number) -> Number:
        # A size of zero must not trap: divisions are hoisted out of the loops that would not run.
        return b if isinstance(b, int) else self.pick("smax", b, 1)

    def _wrong_sign(self, rest: Number, divisor: Number) -> Value:
        """1 where a remainder is not zero and its sign differs from the divisor's, else 0."""
        r, d = self.as_value(rest), self.as_value(divisor)
        zero = f"icmp ne {r.typed}, 0"
        some = self.b.pure(zero, "i1", 0, r)
        mixed = self._op("xor", r, d, None, None)
        below = self.b.pure(f"icmp slt {mixed.typed}, 0", "i1", 0, mixed)
        both = self.b.pure(f"and {some.typed}, {below.text}", "i1", 0, some, below)
        made = self.b.pure(f"zext {both.typed} to {self.elem}", self.elem, 0, both)
        made.low, made.high = 0, 1
        return made

    def pick(self, fn: str, a: Number, b: Number) -> Number:
        """smin or smax of two."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b) if fn == "smin" else max(a, b)
        (al, ah), (bl, bh) = bounds(a), bounds(b)
        if fn == "smax":
            if al is not None and bh is not None and al >= bh:
                return a
            if bl is not None and ah is not None and bl >= ah:
                return b
            low = max((x for x in (al, bl) if x is not None), default=None)
            high = None if ah is None or bh is None else max(ah, bh)
        else:
            if ah is not None and bl is not None and ah <= bl:
                return a
            if bh is not None and al is not None and bh <= al:
                return b
            low = None if al is None or bl is None else min(al, bl)
            high = min((x for x in (ah, bh) if x is not None), default=None)
        x, y = self.as_value(a), self.as_value(b)
        made = self.b.intrinsic(fn, self.elem, 0, x, y)
        made.low, made.high = low, high
        return made

    # -- lanes

    def vector(self, dim: Dim, env: Env, lanes: int) -> Value:
        """The dim for each lane: base + step*lane where it is affine, else lane by lane."""
        step, base = self.affine(dim, env)
        if step is not None and base is not None:
            first = self.as_value(base)
            if step == 0:
                return self.b.splat(first, lanes)
            offsets = ", ".join(f"{self.elem} {step * i}" for i in range(lanes))
            start = self.b.splat(first, lanes)
            rhs = f"add {start.typed}, <{offsets}>"
            return self.b.pure(rhs, self.elem, lanes, start)
        return self.b.vector([self.value(dim, self.lane(env, i)) for i in range(lanes)])

    def affine(self, dim: Dim, env: Env) -> tuple[int | None, Number | None]:
        """(step, base) with dim == base + step*lane for constant step; (None, None) when it is not."""
        split = self.split(dim, env)
        if split is None:
            return None, None
        step, const, parts = split
        return step, self.total(const, parts)

    def split(self, dim: Dim, env: Env) -> Split | None:
        """(step, constant, parts) with dim == constant + sum(parts) + step*lane; None when not affine."""
        step, const = 0, 0
        parts: list[ScaledValue] = []
        for coef, names, mono in self._named(dim):
            values: list[Value] = []
            moving: Lanes | None = None
            if names is None:
                found = self._factors(coef, mono, env, values)
                if found is None:
                    return None
                more, coef, moving = found
                step += more
            for name in names or ():
                bound = env[name]
                if isinstance(bound, int):
                    coef *= bound
                elif isinstance(bound, Lanes):
                    if moving is not None:
                        return None
                    moving = bound
                else:
                    assert isinstance(bound, Value)
                    if bound.lanes:
                        return None
                    values.append(self._width(bound))
            if moving is not None:
                if values:
                    return None
                step += coef
                const += coef * moving.start
            elif coef and values:
                parts.append((coef, self.product(values)))
            else:
                const += coef
        return step, const, parts

    def _factors(
        self, coef: int, mono: Mono, env: Env, values: list[Value]
    ) -> tuple[int, int, Lanes | None] | None:
        """What a product of any atoms adds to the step, its coefficient, and its one vector variable; the
        other factors join `values`. None when it is not affine."""
        step = 0
        moving: Lanes | None = None
        for atom, power in mono:
            if isinstance(atom, SymbolAtom):
                bound = env[atom.name]
                if isinstance(bound, Lanes):
                    if moving is not None or power != 1:
                        return None
                    moving = bound
                    continue
                if isinstance(bound, Value) and bound.lanes:
                    return None
                coef = self._times(self.atom(atom, env), power, coef, values)
                continue
            if any(_varies(d, env) for d in _operands(atom)):
                block = self._within_block(atom, env)
                if block is None or (block[0] and (len(mono) > 1 or power > 1)):
                    return None
                step += coef * block[0]
                coef = self._times(self.total(*block[1:]), power, coef, values)
            else:
                coef = self._times(self.atom(atom, env), power, coef, values)
        return step, coef, moving

    def _within_block(self, atom: Atom, env: Env) -> Split | None:
        """As `split`, of a quotient or a remainder whose operand differs between lanes that all lie in one
        block of the divisor: the quotient does not differ, the remainder steps as the operand does."""
        if not isinstance(atom, FloorDiv | Mod):
            return None
        size, found = atom.b.const_or_none, self.split(atom.a, env)
        if size is None or size < 1 or found is None:
            return None
        step, const, parts = found
        lanes = max(v.count for name in atom.a.symbols if isinstance(v := env[name], Lanes))
        last = const % size + step * (lanes - 1)
        if not 0 <= last < size or any(c % size for c, _ in parts):
            return None
        if isinstance(atom, Mod):
            return step, const % size, []
        return 0, const // size, [(c // size, v) for c, v in parts]

    def near(self, dim: Dim, env: Env, lanes: int) -> tuple[Split, list[int]] | None:
        """(the least place, places from there) of lanes that see places a few apart, in any order; None where
        they are not a few apart whatever the other variables are."""
        moving = [name for name in dim.symbols if moves(env[name])]
        start = env[moving[0]] if len(moving) == 1 else None
        if not isinstance(start, Lanes):
            return None
        places = [dim.substitute({moving[0]: start.start + i}) for i in range(lanes)]
        apart = [(p - places[0]).const_or_none for p in places]
        known = [n for n in apart if n is not None]
        if len(known) < lanes or max(known) - min(known) >= lanes:
            return None
        found = self.split(places[known.index(min(known))], env)
        return None if found is None else (found, [n - min(known) for n in known])

    def lane(self, env: Env, i: int) -> Env:
        """The environment that lane i sees."""
        out: Env = {}
        for name, bound in env.items():
            if isinstance(bound, Lanes):
                out[name] = bound.start + i
            elif isinstance(bound, Value) and bound.lanes:
                out[name] = self._lane_value(bound, i)
            else:
                out[name] = bound
        return out

    def _lane_value(self, v: Value, i: int) -> Value:
        made = self.b.lane(v, i)
        if made.low is None:
            made.low, made.high = v.low, v.high
        return made


def in_whole_rows(shape: Sequence[Dim], split: Split) -> bool:
    """Whether lanes step by rows of a few elements, each of which lies whole in a buffer of that shape."""
    step, _, parts = split
    row = 1
    for n in reversed(shape):
        if row >= step or not n.is_const:
            break
        row *= n.const
    return 1 < step <= LONGEST_APART and row == step and all(coef % step == 0 for coef, _ in parts)


def bounds(n: Number) -> tuple[int | None, int | None]:
    """Inclusive bounds; None where unknown."""
    return (n, n) if isinstance(n, int) else (n.low, n.high)


def _towards_zero(low: int | None, high: int | None) -> tuple[int | None, int | None]:
    """Bounds of x // d, rounded down, for any d >= 1 and x in these bounds."""
    return None if low is None else min(low, 0), None if high is None else max(high, -1)


def _names(mono: Mono) -> tuple[str, ...] | None:
    """The symbols of a product, each as often as its power says; None where it has other atoms."""
    names: list[str] = []
    for atom, power in mono:
        if not isinstance(atom, SymbolAtom):
            return None
        names.extend([atom.name] * power)
    return tuple(names)


def _operands(atom: FloorDiv | Mod | Min | Max) -> tuple[Dim, ...]:
    return (atom.a, atom.b) if isinstance(atom, FloorDiv | Mod) else atom.args


def _depth(v: Value) -> int:
    return v.scope.depth


def _part_depth(part: ScaledValue) -> int:
    return part[1].scope.depth
