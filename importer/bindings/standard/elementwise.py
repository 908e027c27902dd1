"""Bindings of the elementwise ONNX ops: mostly data, a row per op."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smelt.core.dim import Truth
from smelt.core.dtype import DTYPES, DType, bool_, f64, i32
from smelt.core.ir.graph import Ref
from smelt.core.ir.interp_kernel import cast_array
from smelt.importer.attributes import rounding
from smelt.importer.bindings.indices import divides
from smelt.importer.bindings.wide import widened
from smelt.importer.call import Build, Call, OnnxOp
from smelt.importer.coded import decoded, encoded
from smelt.importer.weights import dtype_of


def same(op: str, arity: int, **defaults: float | str) -> Build:
    """The core op on the first `arity` inputs, with attributes of the same names."""

    def build(c: Call) -> Ref:
        attrs: dict[str, float | str] = {
            k: c.text(k, d) if isinstance(d, str) else c.number(k, d) for k, d in defaults.items()
        }
        return c.emit(op, *(c.x(i) for i in range(arity)), **attrs)

    return build


# ONNX name, core op, first opset, attributes with their defaults
UNARY_BINDINGS: tuple[tuple[str, str, int, dict[str, float | str]], ...] = (
    *(
        (name, name.lower(), since, {})
        for name, since in (
            ("Abs", 1),
            ("Acos", 7),
            ("Acosh", 9),
            ("Asin", 7),
            ("Asinh", 9),
            ("Atan", 7),
            ("Atanh", 9),
            ("Ceil", 1),
            ("Cos", 7),
            ("Cosh", 9),
            ("Erf", 9),
            ("Exp", 1),
            ("Floor", 1),
            ("Log", 1),
            ("Mish", 18),
            ("Neg", 1),
            ("Not", 1),
            ("Reciprocal", 1),
            ("Relu", 1),
            ("Round", 11),
            ("Sigmoid", 1),
            ("Sign", 9),
            ("Sin", 7),
            ("Sinh", 9),
            ("Softplus", 1),
            ("Softsign", 1),
            ("Sqrt", 1),
            ("Tan", 7),
            ("Tanh", 1),
        )
    ),
    ("BitwiseNot", "bit_not", 18, {}),
    ("HardSwish", "hard_swish", 14, {}),
    ("LeakyRelu", "leaky_relu", 1, {"alpha": 0.01}),
    ("Elu", "elu", 1, {"alpha": 1.0}),
    ("Celu", "celu", 12, {"alpha": 1.0}),
    ("Selu", "selu", 1, {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    ("HardSigmoid", "hard_sigmoid", 1, {"alpha": 0.2, "beta": 0.5}),
    ("ThresholdedRelu", "thresholded_relu", 1, {"alpha": 1.0}),  # an experiment before opset 10
    ("Gelu", "gelu", 20, {"approximate": "none"}),
)

BINARY_BINDINGS: tuple[tuple[str, str, int], ...] = (
    ("Add", "add", 7),
    ("Sub", "sub", 7),
    ("Mul", "mul", 7),
    ("And", "and", 7),
    ("Or", "or", 7),
    ("Xor", "xor", 7),
    ("Equal", "equal", 7),
    ("Less", "less", 7),
    ("Greater", "greater", 7),
    ("LessOrEqual", "less_equal", 12),
    ("GreaterOrEqual", "greater_equal", 12),
    ("BitwiseAnd", "bit_and", 18),
    ("BitwiseOr", "bit_or", 18),
    ("BitwiseXor", "bit_xor", 18),
)


def _chain(op: str) -> Build:
    """a op b op c ...: the variadic ops."""

    def build(c: Call) -> Ref:
        y = c.x(0)
        for i in range(1, len(c.inputs)):
            y = c.emit(op, y, c.x(i))
        return y

    return build


def _mean(c: Call) -> Ref:
    total = _chain("add")(c)
    assert isinstance(total, str)
    return c.emit("div", total, c.scalar(len(c.inputs), total))


def _number(c: Call) -> Ref:
    """Input 0, with codes decoded to numbers."""
    return decoded(c.builder, c.x()) if c.type().dtype.coded else c.x()


def _is_nan(c: Call) -> Ref:
    return c.emit("isnan", _number(c))


def _is_inf(c: Call) -> Ref:
    return c.emit(
        "isinf",
        _number(c),
        detect_positive=c.flag("detect_positive", 1),
        detect_negative=c.flag("detect_negative", 1),
    )


def _div(c: Call) -> Ref:
    divides(c, c.x(1))
    return c.emit("div", c.x(0), c.x(1))


def _mod(c: Call) -> Ref:
    divides(c, c.x(1))
    return c.emit("fmod" if c.flag("fmod") else "mod", c.x(0), c.x(1))


def _pow(c: Call) -> Ref:
    """A constant exponent that the type of a float base holds as it is becomes one of that type."""
    x, by = c.x(0), c.x(1)
    known, dtype = c.builder.constant_of(by), c.type(0).dtype
    if known is not None and dtype.is_float and c.type(1).dtype != dtype:
        own = cast_array(known, dtype)
        if np.array_equal(own.astype(np.float64), known.astype(np.float64)):
            by = c.builder.constant(own)
    return c.emit("pow", x, by)


def _bit_shift(c: Call) -> Ref:
    ops = {"LEFT": "shift_left", "RIGHT": "shift_right"}
    direction = c.text("direction")
    if direction not in ops:
        raise c.fail(f"direction '{direction}' is neither LEFT nor RIGHT")
    x, by, dtype = c.x(0), c.x(1), c.type(0).dtype
    if dtype.category != "int":
        return c.emit(ops[direction], x, by)
    plain = DTYPES[f"u{dtype.bits}"]  # a negative distance is a huge one, which shifts everything out
    by = c.emit("bitcast", by, to=plain)
    if direction == "LEFT":
        return c.emit("bitcast", c.emit("shift_left", c.emit("bitcast", x, to=plain), by), to=dtype)
    negative = c.emit("less", x, c.scalar(0, x))
    bits = c.emit("bitcast", c.emit("where", negative, c.emit("bit_not", x), x), to=plain)
    y = c.emit("bitcast", c.emit("shift_right", bits, by), to=dtype)
    return c.emit("where", negative, c.emit("bit_not", y), y)


def _bit_cast(c: Call) -> Ref:
    return c.emit("bitcast", c.x(), to=dtype_of(c.integer("to"), "attribute 'to'", c.engine.node))


def _prelu(c: Call) -> Ref:
    x, slope = c.x(0), c.x(1)
    rank, shape = c.type(0).rank, c.shape(1)
    apart = len(shape) == 1 and c.engine.prove_eq(c.shape(0)[-1], shape[0]) is Truth.NO
    if len(shape) == 1 and rank > 1 and shape[0].const_or_none != 1 and (apart or c.opset < 7):
        # a plain list of slopes is one per channel before opset 7, and in files of old exporters
        slope = c.builder.reshape(slope, (shape[0], *(1,) * (rank - 2)))
    return c.emit("prelu", x, slope)


def _clip6(c: Call) -> Ref:
    x = c.x()
    bounds = [c.scalar(c.number(n), x) if c.given(n) else "" for n in ("min", "max")]
    return c.emit("clip", x, *bounds) if any(bounds) else x


def _clip11(c: Call) -> Ref:
    bounds = [c.builder.reshape(c.x(i), ()) if c.has(i) else "" for i in (1, 2)]
    return c.emit("clip", c.x(), *bounds) if any(bounds) else c.x()


def _cast(c: Call) -> Ref:
    return _cast_to(c, dtype_of(c.integer("to"), "attribute 'to'", c.engine.node))


def _cast_like(c: Call) -> Ref:
    return _cast_to(c, c.type(1).dtype)


def _cast_to(c: Call, to: DType) -> Ref:
    if not to.coded or c.type(0).dtype == to:
        return c.cast(c.x(0), to)
    return encoded(c.builder, c.x(0), to, c.flag("saturate", 1), rounding(c))


def _dropout(c: Call) -> tuple[Ref, ...]:
    """The input: what Dropout is outside of training."""
    if c.has(2):
        mode = c.builder.constant_of(c.x(2))
        if mode is None or mode.reshape(-1)[:1].any():
            raise c.unsupported("training_mode is not the constant false", try_="exporting in eval mode")
    mask = c.builder.broadcast_to(c.builder.constant(np.array(True)), c.shape()) if c.wants(1) else ""
    return (c.x(), mask)


def _identity(c: Call) -> Ref:
    return c.x()


def _swish(c: Call) -> Ref:
    x, alpha = c.x(), c.number("alpha", 1.0)
    inner = x if alpha == 1.0 else c.emit("mul", x, c.scalar(alpha, x))
    return c.emit("silu", x) if alpha == 1.0 else c.emit("mul", x, c.emit("sigmoid", inner))


def _logical(op: str) -> Callable[[Call], Ref]:
    """Comparisons of bools go through integers."""

    def build(c: Call) -> Ref:
        a, b = c.x(0), c.x(1)
        if c.type(0).dtype == bool_ and c.type(1).dtype == bool_:
            return (
                c.emit("not", c.emit("xor", a, b))
                if op == "equal"
                else c.emit(op, c.cast(a, i32), c.cast(b, i32))
            )
        return c.emit(op, a, b)

    return build


def _shrink(c: Call) -> Ref:
    """x + bias where x < -lambd, else x - bias where x > lambd, else 0; of integers in f64, then cut off."""
    dtype, bias, lambd = c.type().dtype, c.number("bias", 0.0), c.number("lambd", 0.5)
    x = c.x() if dtype.is_float else c.cast(c.x(), f64)
    high = c.emit(
        "where", c.emit("greater", x, c.scalar(lambd, x)), c.emit("sub", x, c.scalar(bias, x)), c.scalar(0, x)
    )
    low = c.emit("add", x, c.scalar(bias, x))
    return c.cast(c.emit("where", c.emit("less", x, c.scalar(-lambd, x)), low, high), dtype)


ROWS: tuple[OnnxOp, ...] = (
    *(OnnxOp(name, since, same(op, 1, **attrs)) for name, op, since, attrs in UNARY_BINDINGS),
    *(OnnxOp(name, since, same(op, 2)) for name, op, since in BINARY_BINDINGS if op not in ("equal",)),
    OnnxOp("Equal", 7, _logical("equal")),
    *(OnnxOp(name, 1, _chain(op)) for name, op in (("Min", "min"), ("Max", "max"))),
    OnnxOp("Sum", 1, widened(_chain("add"))),
    OnnxOp("Mean", 1, widened(_mean)),
    OnnxOp("IsInf", 10, _is_inf),
    OnnxOp("IsNaN", 9, _is_nan),
    OnnxOp("Div", 7, _div),
    OnnxOp("Mod", 10, _mod),
    OnnxOp("Pow", 7, _pow),
    OnnxOp("BitShift", 11, _bit_shift),
    OnnxOp("BitCast", 26, _bit_cast),
    OnnxOp("PRelu", 1, _prelu),
    OnnxOp("Clip", 1, _clip6),
    OnnxOp("Clip", 11, _clip11),
    OnnxOp("Where", 9, same("where", 3)),
    OnnxOp("Cast", 6, _cast),
    OnnxOp("CastLike", 15, _cast_like),
    OnnxOp("Dropout", 1, _dropout),
    OnnxOp("Identity", 1, _identity),
    OnnxOp("Swish", 24, _swish),
    OnnxOp("Shrink", 9, _shrink),
)
