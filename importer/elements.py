"""Elements known as sizes -> the result of a scalar intrinsic on them: the number that a run computes, for
all values of the sizes, or None."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from types import MappingProxyType
from typing import Any, TypeAlias

from smelt.core.dim import ONE, ZERO, Dim, Truth, ceildiv, dmax, dmin, to_dim
from smelt.core.dtype import DType, bool_, i32, i64
from smelt.core.ops.infer import Engine
from smelt.importer.known import Element, Equality, Known, Ratio, full


def decided(c: Engine, known: Known) -> Known:
    """The elements simplified by all facts about sizes that are known so far."""
    return full(
        known.shape, [_equal(c, e.a, e.b) if isinstance(e, Equality) else e for e in known.reshape(-1)]
    )


def _ratio(e: Element) -> Ratio | None:
    if isinstance(e, Ratio):
        return e
    return Ratio(e) if isinstance(e, Dim) else None


def _reduced(num: Dim, den: Dim) -> Ratio:
    if num == den:
        return Ratio(ONE)
    if num.is_const and den.is_const:
        f = Fraction(num.const, den.const)
        return Ratio(to_dim(f.numerator), to_dim(f.denominator))
    if den.is_const and den.const != 1:
        whole = num // den
        if whole * den == num:
            return Ratio(whole)
    if not den.is_const:
        whole = num // den  # a symbol that divides is a size, so it is positive
        if whole * den == num:
            return Ratio(whole)
    return Ratio(num, den)


Two: TypeAlias = "Callable[[Engine, Any, Any], Element]"


def _arith(
    ints: Callable[[Engine, Dim, Dim], Element], floats: Callable[[Engine, Ratio, Ratio], Element]
) -> Two:
    def apply(c: Engine, a: Element, b: Element) -> Element:
        if isinstance(a, Dim) and isinstance(b, Dim):
            found = ints(c, a, b)
            return c.simplify(found) if isinstance(found, Dim) else found
        x, y = _ratio(a), _ratio(b)
        return None if x is None or y is None else floats(c, x, y)

    return apply


def _not_negative(c: Engine, d: Dim) -> bool:
    low = c.bounds(d)[0]
    return low is not None and low >= 0


def _positive(c: Engine, d: Dim) -> bool:
    # sizes that divide are taken as positive: x / h is a scale, and h == 0 has no scale
    low = c.bounds(d)[0]
    return low is not None and (low > 0 or (low == 0 and not d.is_const and bool(d.symbols)))


def _div_int(c: Engine, a: Dim, b: Dim) -> Element:
    if b == ZERO:
        return None
    if a.is_const and b.is_const:
        return to_dim(int(Fraction(a.const, b.const)))  # C division truncates
    if b.is_const and b.const < 0:
        return None
    whole = a // b
    return whole if whole * b == a or (_not_negative(c, a) and _positive(c, b)) else None


def _div_float(c: Engine, a: Ratio, b: Ratio) -> Element:
    num, den = a.num * b.den, a.den * b.num
    if den.is_const and den.const < 0:
        num, den = -num, -den
    return _reduced(num, den) if _positive(c, den) else None


def _mod_int(c: Engine, a: Dim, b: Dim) -> Element:
    return a % b if _positive(c, b) else None


def _fmod_int(c: Engine, a: Dim, b: Dim) -> Element:
    return a % b if _positive(c, b) and _not_negative(c, a) else None


def _pow_int(c: Engine, a: Dim, b: Dim) -> Element:
    if not b.is_const or not 0 <= b.const <= 8:
        return None
    return reduce(lambda x, y: x * y, [a] * b.const, ONE)


def _extreme(pick: Callable[..., Dim], first: bool) -> Two:
    def floats(c: Engine, a: Ratio, b: Ratio) -> Element:
        if a.den == b.den:
            return Ratio(c.simplify(pick(a.num, b.num)), a.den)
        less = _decide(c.prove_le(a.num * b.den, b.num * a.den))
        return None if less is None else (a if less is first else b)

    return _arith(lambda c, a, b: pick(a, b), floats)


def _decide(t: Truth) -> bool | None:
    return None if t is Truth.UNKNOWN else t is Truth.YES


def _compare(prove: Callable[[Engine, Dim, Dim], bool | None]) -> Two:
    def apply(c: Engine, a: Element, b: Element) -> Element:
        if isinstance(a, bool) and isinstance(b, bool):
            return prove(c, to_dim(int(a)), to_dim(int(b)))
        x, y = _ratio(a), _ratio(b)
        if x is None or y is None:
            return None
        return prove(c, x.num * y.den, y.num * x.den)

    return apply


def _negate(prove: Callable[[Engine, Dim, Dim], bool | None]) -> Callable[[Engine, Dim, Dim], bool | None]:
    def apply(c: Engine, a: Dim, b: Dim) -> bool | None:
        found = prove(c, a, b)
        return None if found is None else not found

    return apply


def _eq(c: Engine, a: Dim, b: Dim) -> bool | None:
    return _decide(c.prove_eq(a, b))


def _le(c: Engine, a: Dim, b: Dim) -> bool | None:
    return _decide(c.prove_le(a, b))


def _ge(c: Engine, a: Dim, b: Dim) -> bool | None:
    return _decide(c.prove_le(b, a))


def _equal(c: Engine, a: Element, b: Element) -> Element:
    found = _compare(_eq)(c, a, b)
    if found is None and isinstance(a, Dim) and isinstance(b, Dim):
        return Equality(a, b)
    return found


def _and(c: Engine, a: Element, b: Element) -> Element:
    if a is False or b is False:
        return False
    return True if a is True and b is True else None


def _or(c: Engine, a: Element, b: Element) -> Element:
    if a is True or b is True:
        return True
    return False if a is False and b is False else None


def _where(c: Engine, condition: Element, a: Element, b: Element) -> Element:
    if not isinstance(condition, bool):
        return a if a == b else None
    return a if condition is True else b


_min = _extreme(dmin, True)
_max = _extreme(dmax, False)


def _neg(c: Engine, x: Element) -> Element:
    if isinstance(x, Ratio):
        return Ratio(-x.num, x.den)
    return -x if isinstance(x, Dim) else None


def _abs(c: Engine, x: Element) -> Element:
    d = x.num if isinstance(x, Ratio) else x
    if not isinstance(d, Dim):
        return None
    if _not_negative(c, d):
        return x
    return _neg(c, x) if _not_negative(c, -d) else None


def _floor(c: Engine, x: Element) -> Element:
    return Ratio(c.simplify(x.num // x.den)) if isinstance(x, Ratio) else None


def _ceil(c: Engine, x: Element) -> Element:
    return Ratio(c.simplify(ceildiv(x.num, x.den))) if isinstance(x, Ratio) else None


def _round(c: Engine, x: Element) -> Element:
    if not isinstance(x, Ratio):
        return None
    if x.den == ONE:
        return x
    return None if x.const is None else Ratio(to_dim(round(x.const)))  # both round half to even


def cast_element(c: Engine, x: Element, to: DType) -> Element:
    """ONNX's Cast of one element; None where the value is not known after it."""
    if isinstance(x, bool):
        return x if to == bool_ else to_dim(int(x)) if to.is_int else Ratio(to_dim(int(x)))
    if x is None or isinstance(x, Equality):
        return x if to == bool_ else None
    if to == bool_:
        return _compare(_negate(_eq))(c, x, ZERO)
    if to.is_float:
        return _ratio(x)
    whole = x if isinstance(x, Dim) else _truncated(c, x)
    if whole is None or to in (i64, i32) or (whole.is_const and 0 <= whole.const < 128):
        return whole  # a size that does not fit 32 bits is refused by the run-time limits anyway
    return None


def _truncated(c: Engine, x: Ratio) -> Dim | None:
    if x.den == ONE:
        return x.num
    if x.const is not None:
        return to_dim(int(x.const))
    return c.simplify(x.num // x.den) if _not_negative(c, x.num) else None


def _add_float(c: Engine, a: Ratio, b: Ratio) -> Element:
    return _reduced(a.num * b.den + b.num * a.den, a.den * b.den)


def _sub_float(c: Engine, a: Ratio, b: Ratio) -> Element:
    return _reduced(a.num * b.den - b.num * a.den, a.den * b.den)


def _nothing(c: Engine, a: Ratio, b: Ratio) -> Element:
    return None


_add = _arith(lambda c, a, b: a + b, _add_float)
_mul = _arith(lambda c, a, b: a * b, lambda c, a, b: _reduced(a.num * b.num, a.den * b.den))

ELEMENT_CALLS: Mapping[str, Callable[..., Element]] = MappingProxyType(
    {
        "add": _add,
        "sub": _arith(lambda c, a, b: a - b, _sub_float),
        "mul": _mul,
        "div": _arith(_div_int, _div_float),
        "mod": _arith(_mod_int, _nothing),
        "fmod": _arith(_fmod_int, _nothing),
        "fma": lambda c, a, b, d: _add(c, _mul(c, a, b), d),
        "pow": _arith(_pow_int, _nothing),
        "min": _min,
        "max": _max,
        "neg": _neg,
        "abs": _abs,
        "floor": _floor,
        "ceil": _ceil,
        "round": _round,
        "eq": _equal,
        "ne": _compare(_negate(_eq)),
        "le": _compare(_le),
        "ge": _compare(_ge),
        "lt": _compare(_negate(_ge)),
        "gt": _compare(_negate(_le)),
        "and": _and,
        "or": _or,
        "not": lambda c, x: (not x) if isinstance(x, bool) else None,
        "select": _where,
    }
)
"""Intrinsic -> its meaning for elements. The result of any other is unknown."""

ELEMENT_STEPS: Mapping[str, Callable[[Engine, Element, Element], Element]] = MappingProxyType(
    {"sum": _add, "prod": _mul, "max": _max, "min": _min, "any": _or, "all": _and}
)
"""Kind of a reduction -> the combination of the accumulator and one more element."""
