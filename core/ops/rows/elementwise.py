"""Elementwise ops with NumPy broadcasting: each row gives the formula once, as an expression and in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt.core.dtype import (
    Array,
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    from_numpy,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u64,
)
from smelt.core.ir.graph import TensorType
from smelt.core.ir.interp_kernel import cast_array
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import Expr
from smelt.core.ops.table import Arg, Attrs, Case, ComputeRule, Infer, InferRule, Op, RefRule
from smelt.core.ops.trace import DimIndex, Operand, Trace, call, cast, const, select

UNARY_CASES = (Case(("f32[N, 3, M]",)), Case(("f32[]",)), Case(("f32[0, N]",)))
BINARY_CASES = (
    Case(("f32[N, 3, M]", "f32[N, 3, M]")),
    Case(("f32[N, 1, 4, 1, M]", "f32[2, 1, N, 1]")),
    Case(("f32[]", "f32[N]")),
    Case(("f32[0, N]", "f32[N]")),
)
INT_BINARY_CASES = (
    Case(("i64[N, 3]", "i64[3]"), low=-9, high=9),
    Case(("i32[N, 1]", "i32[1, M]"), low=-9, high=9),
)


# ---------------------------------------------------------------- type rules


def infer_broadcast(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """Same dtype everywhere, shapes broadcast."""
    found = [a for a in args if a is not None]
    first = found[0].dtype
    for a in found[1:]:
        if a.dtype != first:
            raise c.fail(f"operands have different types {first} and {a.dtype}")
    return (TensorType(first, c.broadcast(*(a.shape for a in found))),)


def infer_predicate(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """As infer_broadcast, but the result is bool."""
    (t,) = infer_broadcast(c, args, attrs)
    return (TensorType(bool_, t.shape),)


def infer_number(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """As infer_broadcast, for numbers only: truth values have no sum and no order."""
    if any(a is not None and a.dtype == bool_ for a in args):
        raise c.fail("wants a tensor of numbers, found bool")
    return infer_broadcast(c, args, attrs)


def infer_float(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """As infer_broadcast, for float types only."""
    for a in args:
        if a is not None and not a.dtype.is_float:
            raise c.fail(f"wants a float tensor, found {a.dtype}")
    return infer_broadcast(c, args, attrs)


def infer_logical(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """As infer_broadcast, for bools only: a number has no one meaning as a truth value."""
    for a in args:
        if a is not None and a.dtype != bool_:
            raise c.fail(f"wants a bool tensor, found {a.dtype}")
    return infer_broadcast(c, args, attrs)


def infer_bits(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """As infer_broadcast, for integers and bools only."""
    for a in args:
        if a is not None and a.dtype.is_float:
            raise c.fail(f"wants a tensor of integers, found {a.dtype}")
    return infer_broadcast(c, args, attrs)


def _infer_where(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    condition, then, other = args
    assert condition and then and other
    if condition.dtype != bool_:
        raise c.fail(f"the condition is {condition.dtype}, expected bool")
    if then.dtype != other.dtype:
        raise c.fail(f"branches have different types {then.dtype} and {other.dtype}")
    return (TensorType(then.dtype, c.broadcast(condition.shape, then.shape, other.shape)),)


def _infer_cast(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = args
    to = attrs["to"]
    assert x is not None and isinstance(to, DType)
    return (TensorType(to, x.shape),)


def _infer_bitcast(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = args
    to = attrs["to"]
    assert x is not None and isinstance(to, DType)
    if to.bits != x.dtype.bits:
        raise c.fail(f"{x.dtype} has {x.dtype.bits} bits, {to} has {to.bits}")
    return (TensorType(to, x.shape),)


def _infer_first(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    x = args[0]
    assert x is not None
    for a in args[1:]:
        if a is not None and a.dtype != x.dtype:
            raise c.fail(f"operands have different types {x.dtype} and {a.dtype}")
    return (x.type,)


def _infer_prelu(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (t,) = infer_broadcast(c, args, attrs)
    x = args[0]
    assert x is not None
    if t.rank != x.rank:
        raise c.fail(f"the slope has rank {t.rank}, more than the input's {x.rank}")
    return (t,)


# ---------------------------------------------------------------- builders of rows

ElementFormula = Callable[..., Expr]


def elementwise_op(
    name: str,
    formula: ElementFormula,
    ref: Callable[..., Any],
    *,
    inputs: str = "a b",
    infer: InferRule = infer_number,
    cases: tuple[Case, ...] = BINARY_CASES,
    tolerance: float = 1.0,
    bits: bool = False,
) -> Op:
    """A row from a formula over scalar expressions; formula and ref take the operands, then attrs by
    keyword when the op has any. bits: it is about bits, not numbers; ref gets 16-bit floats as they are."""

    def compute(t: Trace, i: DimIndex, attrs: Attrs, out: TensorType, *operands: Operand | None) -> Expr:
        return formula(*(None if o is None else o.broadcast(i) for o in operands), **attrs)

    def reference(
        arrays: Sequence[Array | None], attrs: Attrs, types: Sequence[TensorType]
    ) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            y = ref(*(arrays if bits else map(held, arrays)), **attrs)
        return (np.asarray(y).astype(types[0].dtype.numpy, copy=False),)

    rule: ComputeRule = compute
    ref_rule: RefRule = reference
    return Op(name, inputs, infer, ref_rule, cases, compute=rule, tolerance=tolerance, broadcasts=0)


def held(x: Array | None) -> Any:
    """A reference's operand: 16-bit floats as f32, because a formula rounds its result alone to 16 bits."""
    return x if x is None or not is_half(x) else x.astype(np.float32)


def is_half(x: Array) -> bool:
    """Whether these are 16-bit floats."""
    return x.dtype in (f16.numpy, bf16.numpy)


def _intrinsic(fn: str) -> ElementFormula:
    return lambda *xs: call(fn, *xs)


def _k(x: Expr, value: float) -> Expr:
    return const(value, x.dtype)


def _sigmoid(x: Expr) -> Expr:
    one = _k(x, 1)
    return call("div", one, call("add", one, call("exp", call("neg", x))))


def _softplus(x: Expr) -> Expr:
    # log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)): no overflow
    tail = call("log1p", call("exp", call("neg", call("abs", x))))
    return call("add", call("max", x, _k(x, 0)), tail)


def _np_softplus(x: Array) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _np_sigmoid(x: Array) -> Any:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Expr, approximate: str = "none") -> Expr:
    half = call("mul", x, _k(x, 0.5))
    if approximate == "none":
        inner = call("erf", call("mul", x, _k(x, math.sqrt(0.5))))
    else:
        cube = call("mul", call("mul", x, x), x)
        inner = call(
            "tanh",
            call("mul", _k(x, math.sqrt(2 / math.pi)), call("fma", cube, _k(x, 0.044715), x)),
        )
    return call("fma", half, inner, half)


def _np_gelu(x: Array, approximate: str = "none") -> Any:
    if approximate == "none":
        return 0.5 * x * (1 + INTRINSICS["erf"].meaning(x * math.sqrt(0.5)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _clip(x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
    # max then min: where low > high the result is high, as ONNX defines it
    y = x if low is None else call("max", x, low)
    return y if high is None else call("min", y, high)


def _np_clip(x: Array, low: Array | None = None, high: Array | None = None) -> Any:
    y = x if low is None else np.maximum(x, low)
    return y if high is None else np.minimum(y, high)


def _isinf(x: Expr, detect_positive: bool = True, detect_negative: bool = True) -> Expr:
    positive = call("eq", x, _k(x, math.inf))
    negative = call("eq", x, _k(x, -math.inf))
    if detect_positive and detect_negative:
        return call("or", positive, negative)
    if detect_positive:
        return positive
    return negative if detect_negative else const(False, bool_)


def _np_isinf(x: Array, detect_positive: bool = True, detect_negative: bool = True) -> Any:
    return (np.isposinf(x) & detect_positive) | (np.isneginf(x) & detect_negative)


def _piecewise(then: Callable[..., Expr]) -> ElementFormula:
    """x where x >= 0, else then(x, attrs)."""
    return lambda x, **attrs: select(call("ge", x, _k(x, 0)), x, then(x, **attrs))


def _expm1(x: Expr) -> Expr:
    return call("sub", call("exp", x), _k(x, 1))


def _celu(x: Expr, alpha: float) -> Expr:
    negative = call("mul", _k(x, alpha), _expm1(call("div", x, _k(x, alpha))))
    return call("add", call("max", x, _k(x, 0)), call("min", negative, _k(x, 0)))


def _selu(x: Expr, alpha: float, gamma: float) -> Expr:
    negative = call("mul", _k(x, alpha), _expm1(x))
    y = select(call("gt", x, _k(x, 0)), x, negative)
    return call("mul", _k(x, gamma), y)


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    y = call("fma", x, _k(x, alpha), _k(x, beta))
    return call("max", call("min", y, _k(x, 1)), _k(x, 0))


def _hard_swish(x: Expr) -> Expr:
    return call("mul", x, _hard_sigmoid(x, 1 / 6, 0.5))


def _prelu(x: Expr, slope: Expr) -> Expr:
    return select(call("lt", x, _k(x, 0)), call("mul", x, slope), x)


def power_type(base: DType, exponent: DType) -> DType:
    """The type that a power is computed in: one that holds both operands as they are. Halves stand for
    themselves where the exponent is no wider; integers of i32 and i64 for the others modulo 2^64."""
    if base.is_float:
        if exponent.is_float:
            both = {base, exponent}
            return base if len(both) == 1 else (f64 if f64 in both else f32)
        room = {f64: 32, f32: 16}.get(base, 8)
        return base if exponent.bits <= room else (f32 if exponent.bits <= 16 else f64)
    if exponent.is_float:
        return f64
    if exponent == base or exponent.bits < base.bits:
        return base
    return u64 if exponent == u64 else i64


def _pow(a: Expr, b: Expr) -> Expr:
    wide = power_type(a.dtype, b.dtype)
    return cast(call("pow", cast(a, wide), cast(b, wide)), a.dtype)


def _np_pow(a: Array, b: Array) -> Any:
    base = from_numpy(a.dtype)
    wide = power_type(base, from_numpy(b.dtype))
    return cast_array(INTRINSICS["pow"].meaning(cast_array(a, wide), cast_array(b, wide)), base)


def _infer_pow(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    """The exponent may have another type (opset 12 on); the result has the base's."""
    a, b = args
    assert a and b
    return (TensorType(a.dtype, c.broadcast(a.shape, b.shape)),)


def _infer_shift(c: Infer, args: Sequence[Arg | None], attrs: Attrs) -> tuple[TensorType, ...]:
    if any(a is not None and a.dtype.category != "uint" for a in args):
        raise c.fail("bit shifts want unsigned integers")
    return infer_broadcast(c, args, attrs)


# ---------------------------------------------------------------- the rows

_BOOL_CASES = (Case(("bool[N, 3]", "bool[3]")), Case(("bool[]", "bool[N]")))
_POSITIVE = (Case(("f32[N, 3, M]",), low=0.01, high=4.0), Case(("f32[]",), low=0.5, high=2.0))
_ENDS = np.array([
    s * x for x in (0.5, 127, 127.9, 128, 129, 255, 255.5, 256, 32767.5, 32768, 65535.5, 65536, 2.0**31, 1e30)
    for s in (1, -1)
] + [np.nan, np.inf, -np.inf, -0.0], np.float32)  # fmt: skip
_UNIT = (Case(("f32[N, 3]",), low=-0.95, high=0.95),)
_COMPARE_CASES = (*INT_BINARY_CASES, *BINARY_CASES)

BINARY: tuple[Op, ...] = (
    elementwise_op("add", _intrinsic("add"), np.add, cases=(*BINARY_CASES, *INT_BINARY_CASES)),
    elementwise_op("sub", _intrinsic("sub"), np.subtract, cases=(*BINARY_CASES, *INT_BINARY_CASES)),
    elementwise_op("mul", _intrinsic("mul"), np.multiply, cases=(*BINARY_CASES, *INT_BINARY_CASES)),
    elementwise_op(
        "div",
        _intrinsic("div"),
        INTRINSICS["div"].meaning,
        cases=(*BINARY_CASES, *INT_BINARY_CASES),
    ),
    elementwise_op("mod", _intrinsic("mod"), INTRINSICS["mod"].meaning, cases=INT_BINARY_CASES),
    elementwise_op(
        "fmod",
        _intrinsic("fmod"),
        INTRINSICS["fmod"].meaning,
        cases=(*BINARY_CASES, *INT_BINARY_CASES),
    ),
    elementwise_op("min", _intrinsic("min"), np.minimum, cases=_COMPARE_CASES),
    elementwise_op("max", _intrinsic("max"), np.maximum, cases=_COMPARE_CASES),
    elementwise_op(
        "pow",
        _pow,
        _np_pow,
        infer=_infer_pow,
        cases=(
            Case(("f32[N, 3]", "f32[3]"), low=0.1, high=3.0),
            Case(("f32[N]", "f32[]"), low=0.2),
            Case(("i32[N]", "f32[]"), low=-4, high=9),
            Case(("f32[N]", np.array([[2**24 + 1], [-3]]))),
            Case(("i32[N]", "i64[3, 1]"), low=-5, high=5),
        ),
    ),
    *(
        elementwise_op(name, _intrinsic(fn), ref, infer=infer_predicate, cases=_COMPARE_CASES)
        for name, fn, ref in (
            ("equal", "eq", np.equal),
            ("not_equal", "ne", np.not_equal),
            ("less", "lt", np.less),
            ("less_equal", "le", np.less_equal),
            ("greater", "gt", np.greater),
            ("greater_equal", "ge", np.greater_equal),
        )
    ),
    *(
        elementwise_op(name, _intrinsic(name), ref, infer=infer_logical, cases=_BOOL_CASES)
        for name, ref in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor))
    ),
    *(
        elementwise_op(f"bit_{name}", _intrinsic(name), ref, infer=infer_bits, cases=INT_BINARY_CASES)
        for name, ref in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor))
    ),
    *(
        elementwise_op(
            name,
            _intrinsic(fn),
            INTRINSICS[fn].meaning,
            infer=_infer_shift,
            cases=(Case(("u32[N, 3]", "u32[3]"), low=0, high=9),),
        )
        for name, fn in (("shift_left", "shl"), ("shift_right", "shr"))
    ),
)


def _unary(
    name: str,
    formula: ElementFormula,
    ref: Callable[..., Any],
    *,
    infer: InferRule = infer_float,
    cases: tuple[Case, ...] = UNARY_CASES,
    bits: bool = False,
) -> Op:
    return elementwise_op(name, formula, ref, inputs="x", infer=infer, cases=cases, bits=bits)


UNARY: tuple[Op, ...] = (
    *(
        _unary(name, _intrinsic(name), getattr(np, ref), cases=cases)
        for name, ref, cases in (
            ("exp", "exp", UNARY_CASES),
            ("log", "log", _POSITIVE),
            ("sqrt", "sqrt", _POSITIVE),
            ("sin", "sin", UNARY_CASES),
            ("cos", "cos", UNARY_CASES),
            ("tan", "tan", _UNIT),
            ("sinh", "sinh", UNARY_CASES),
            ("cosh", "cosh", UNARY_CASES),
            ("tanh", "tanh", UNARY_CASES),
            ("asin", "arcsin", _UNIT),
            ("acos", "arccos", _UNIT),
            ("atan", "arctan", UNARY_CASES),
            ("asinh", "arcsinh", UNARY_CASES),
            ("atanh", "arctanh", _UNIT),
            ("acosh", "arccosh", (Case(("f32[N, 3]",), low=1.1, high=5.0),)),
            ("floor", "floor", UNARY_CASES),
            ("ceil", "ceil", UNARY_CASES),
            ("round", "rint", UNARY_CASES),
        )
    ),
    _unary("erf", _intrinsic("erf"), INTRINSICS["erf"].meaning),
    _unary("neg", _intrinsic("neg"), np.negative, infer=infer_number),
    _unary("abs", _intrinsic("abs"), np.abs, infer=infer_number),
    _unary("sign", _intrinsic("sign"), np.sign, infer=infer_number),
    _unary("reciprocal", lambda x: call("div", _k(x, 1), x), lambda x: 1 / x, cases=_POSITIVE),
    _unary(
        "not",
        _intrinsic("not"),
        np.logical_not,
        infer=infer_logical,
        cases=(Case(("bool[N, 3]",)),),
    ),
    _unary(
        "bit_not",
        _intrinsic("not"),
        np.invert,
        infer=infer_bits,
        cases=(Case(("i32[N, 3]",)),),
    ),
    _unary(
        "bitcast",
        lambda x, to: call("bitcast", x, dtype=to),
        lambda x, to: np.ascontiguousarray(x).view(to.numpy).reshape(x.shape),
        infer=_infer_bitcast,
        bits=True,
        cases=(Case(("f32[N, 3]",), attrs={"to": i32}), Case(("i64[]",), attrs={"to": f64})),
    ),
    _unary("isnan", _intrinsic("isnan"), np.isnan, infer=infer_predicate),
    _unary(
        "isinf",
        _isinf,
        _np_isinf,
        infer=infer_predicate,
        cases=(
            Case((np.array([1, np.inf, -np.inf, np.nan], np.float32),)),
            Case((np.array([np.inf, -np.inf], np.float32),), attrs={"detect_negative": False}),
        ),
    ),
    _unary("sigmoid", _sigmoid, _np_sigmoid),
    _unary("silu", lambda x: call("mul", x, _sigmoid(x)), lambda x: x * _np_sigmoid(x)),
    _unary(
        "relu",
        lambda x: call("max", x, const(0, x.dtype)),
        lambda x: np.maximum(x, 0),
        infer=infer_number,
    ),
    _unary("softplus", _softplus, _np_softplus),
    _unary(
        "softsign",
        lambda x: call("div", x, call("add", call("abs", x), _k(x, 1))),
        lambda x: x / (1 + np.abs(x)),
    ),
    _unary(
        "mish",
        lambda x: call("mul", x, call("tanh", _softplus(x))),
        lambda x: x * np.tanh(_np_softplus(x)),
    ),
    _unary(
        "hard_swish",
        _hard_swish,
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        cases=(Case(("f32[N, 3]",), low=-5, high=5),),
    ),
    _unary(
        "gelu",
        _gelu,
        _np_gelu,
        cases=(
            Case(("f32[N, 3]",), attrs={"approximate": "none"}),
            Case(("f32[N, 3]",), attrs={"approximate": "tanh"}),
        ),
    ),
    _unary(
        "leaky_relu",
        _piecewise(lambda x, alpha: call("mul", x, _k(x, alpha))),
        lambda x, alpha: np.where(x >= 0, x, x * x.dtype.type(alpha)),
        cases=(Case(("f32[N, 3]",), attrs={"alpha": 0.1}),),
    ),
    _unary(
        "elu",
        _piecewise(lambda x, alpha: call("mul", _k(x, alpha), _expm1(x))),
        lambda x, alpha: np.where(x >= 0, x, x.dtype.type(alpha) * (np.exp(x) - 1)),
        cases=(Case(("f32[N, 3]",), attrs={"alpha": 1.5}),),
    ),
    _unary(
        "celu",
        _celu,
        lambda x, alpha: np.maximum(x, 0) + np.minimum(0, alpha * (np.exp(x / alpha) - 1)),
        cases=(Case(("f32[N, 3]",), attrs={"alpha": 2.0}),),
    ),
    _unary(
        "selu",
        _selu,
        lambda x, alpha, gamma: gamma * np.where(x > 0, x, alpha * (np.exp(x) - 1)),
        cases=(Case(("f32[N, 3]",), attrs={"alpha": 1.6733, "gamma": 1.0507}),),
    ),
    _unary(
        "hard_sigmoid",
        _hard_sigmoid,
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        cases=(Case(("f32[N, 3]",), attrs={"alpha": 0.2, "beta": 0.5}, low=-4, high=4),),
    ),
    _unary(
        "thresholded_relu",
        lambda x, alpha: select(call("gt", x, _k(x, alpha)), x, _k(x, 0)),
        lambda x, alpha: np.where(x > alpha, x, 0),
        cases=(Case(("f32[N, 3]",), attrs={"alpha": 0.5}),),
    ),
    _unary(
        "cast",
        lambda x, to: cast(x, to),
        cast_array,
        infer=_infer_cast,
        cases=(
            Case(("f32[N, 3]",), attrs={"to": bool_}),
            Case(("i64[N]",), attrs={"to": f32}),
            *(Case((_ENDS,), attrs={"to": to}) for to in (i8, u8, i16, u16)),
            Case(("bool[N]",), attrs={"to": f32}),
        ),
    ),
)

OTHER: tuple[Op, ...] = (
    elementwise_op(
        "where",
        select,
        np.where,
        inputs="condition a b",
        infer=_infer_where,
        cases=(Case(("bool[N, 1, 4]", "f32[3, 1]", "f32[]")), Case(("bool[]", "i64[N]", "i64[N]"))),
    ),
    elementwise_op(
        "clip",
        _clip,
        _np_clip,
        inputs="x low? high?",
        infer=_infer_first,
        cases=(
            Case(("f32[N, 3]", np.array(-0.5, np.float32), np.array(0.5, np.float32))),
            Case(("f32[N]", "-", np.array(0.1, np.float32))),
            Case(("i32[N]", np.array(-1, np.int32), "-"), low=-4, high=4),
        ),
    ),
    elementwise_op(
        "prelu",
        _prelu,
        lambda x, s: np.where(x < 0, x * s, x),
        inputs="x slope",
        infer=_infer_prelu,
        cases=(Case(("f32[N, 3, 4]", "f32[3, 1]")),),
    ),
)

ROWS: tuple[Op, ...] = (*BINARY, *UNARY, *OTHER)
