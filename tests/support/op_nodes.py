"""An operator's name and a generator of numbers in; nodes of it with arrays at the edges of its types out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper
from op_values import Array, edges, kind, plain, special

VERSION = 23
"""The opset of all nodes that it has: the newest that ONNX Runtime has released kernels for in full."""

NAMES = {
    "float": np.float32, "double": np.float64, "float16": np.float16, "int8": np.int8, "int16": np.int16,
    "int32": np.int32, "int64": np.int64, "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32,
    "uint64": np.uint64, "bool": np.bool_,
}  # fmt: skip
BFLOAT16 = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
CODED = ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "int4", "uint4", "float4e2m1")


@dataclass(frozen=True)
class Case:
    """One node. arrays: its inputs, None where one is absent. version: of its domain. skip: outputs left out.
    wanted: the outputs of the arrays, where nobody else has a kernel. atol, rtol, steps: how far its floats
    and integers may be apart, besides the operator's bound."""

    op: str
    arrays: tuple[Array | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    fixed: tuple[int, ...] = ()  # inputs that stay constants at run time: axes and sizes
    domain: str = ""
    version: int = VERSION
    skip: tuple[int, ...] = ()
    wanted: Callable[..., Sequence[Array]] | None = None
    atol: float = 0
    rtol: float = 0
    steps: int = 0

    @property
    def results(self) -> tuple[str, ...]:
        """Names of its outputs, "" for one left out."""
        return tuple("" if k in self.skip else f"y{k}" for k in range(self.outputs))

    def __str__(self) -> str:
        given = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in self.arrays)
        return f"{self.op}({given}) {dict(self.attrs)}"


def version_of(op: str) -> int:
    """The opset of a standard operator's nodes: those newer than all others' have their first."""
    if onnx.defs.has(op, VERSION, ""):
        return VERSION
    history = onnx.defs.get_all_schemas_with_history()
    return min((s.since_version for s in history if s.name == op and s.domain == ""), default=VERSION)


def types(op: str, variable: str = "T") -> list[Any]:
    """The element types that a type variable of the operator's schema allows, that NumPy computes with."""
    schema = onnx.defs.get_schema(op, VERSION, "")
    allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable), ())
    names = [t.removeprefix("tensor(").removesuffix(")") for t in allowed]
    found = [np.dtype(NAMES[n]) for n in names if n in NAMES]
    return found + ([BFLOAT16] if "bfloat16" in names else [])


def shapes(rng: np.random.Generator, count: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast: equal ones, rows against columns, scalars, nothing, ones."""
    n, m = int(rng.integers(5, 24)), int(rng.integers(3, 12))
    pairs = [
        [(n,), (n,)], [(n, 1), (1, m)], [(n, m), (m,)], [(), (n,)], [(n,), ()], [(), ()], [(0,), (1,)],
        [(1,), (n,)], [(2, 1, 3), (4, 1)], [(n, m), (n, m)], [(0, 3), (1, 3)],
    ]  # fmt: skip
    weights = np.array([5, 6, 3, 1, 1, 1, 0.5, 1, 1, 3, 0.5])
    first, second = pairs[int(rng.choice(len(pairs), p=weights / weights.sum()))]
    return [(first, second)[k % 2] for k in range(count)]


def pick(rng: np.random.Generator, of: Sequence[Any]) -> Any:
    """One of them."""
    return of[int(rng.integers(len(of)))]


Draw = Callable[[np.random.Generator, str], Case]


def _unary(attrs: Callable[[np.random.Generator], Mapping[str, Any]] | None = None) -> Draw:
    def draw(rng: np.random.Generator, op: str) -> Case:
        schema = onnx.defs.get_schema(op, VERSION, "")
        dtype = pick(rng, types(op, schema.inputs[0].type_str))
        shape = pick(rng, [(), (0,), (1,), (17,), (64,), (7, 9), (64,), (64,)])
        return Case(op, (special(rng, dtype, shape, 1.0),), attrs(rng) if attrs else {})

    return draw


def _nary(count: int, same: bool = True) -> Draw:
    """Operands of one type, or of a type each; their divisors are as the schema leaves them."""

    def draw(rng: np.random.Generator, op: str) -> Case:
        schema = onnx.defs.get_schema(op, VERSION, "")
        variables = [schema.inputs[min(k, len(schema.inputs) - 1)].type_str for k in range(count)]
        chosen: dict[str, Any] = {}
        for v in variables:
            chosen.setdefault(v, pick(rng, types(op, v)))
        arrays = [special(rng, chosen[v], s) for v, s in zip(variables, shapes(rng, count), strict=True)]
        return Case(op, tuple(arrays))

    return draw


def _variadic(rng: np.random.Generator, op: str) -> Case:
    dtype, count = pick(rng, types(op, "T")), int(rng.integers(1, 5))
    return Case(op, tuple(special(rng, dtype, s) for s in shapes(rng, count)))


def _nonzero(a: Array) -> Array:
    return np.where(a == 0, np.ones_like(a), a) if kind(a.dtype) in "iu" else a


def _division(rng: np.random.Generator, op: str) -> Case:
    """No integer zero as a divisor: an error in smelt (docs/differences.md)."""
    drawn = _nary(2)(rng, op)
    a, b = drawn.arrays
    assert a is not None and b is not None
    attrs = {} if op == "Div" else {"fmod": int(kind(a.dtype) == "f" or rng.random() < 0.5)}
    return Case(op, (a, _nonzero(b)), attrs)


def _cast(rng: np.random.Generator, op: str) -> Case:
    a, b = pick(rng, types("Cast", "T1")), pick(rng, types("Cast", "T2"))
    x = special(rng, a, pick(rng, [(), (64,), (80,), (0, 2)]), 1.0)
    if op == "CastLike":
        return Case(op, (x, np.zeros((2,), b)))
    return Case(op, (x,), {"to": int(helper.np_dtype_to_tensor_dtype(b))})


def _shift(rng: np.random.Generator, op: str) -> Case:
    drawn = _nary(2)(rng, op)
    return Case(op, drawn.arrays, {"direction": pick(rng, ["LEFT", "RIGHT"])})


def _clip(rng: np.random.Generator, op: str) -> Case:
    dtype = pick(rng, types(op))
    low, high = (special(rng, dtype, ()) if rng.random() < 0.8 else None for _ in range(2))
    return Case(op, (special(rng, dtype, (40,), 1.0), low, high))


def _where(rng: np.random.Generator, op: str) -> Case:
    dtype, (a, b) = pick(rng, types(op, "T")), shapes(rng, 2)
    return Case(op, (plain(rng, np.bool_, a), special(rng, dtype, b), special(rng, dtype, a)))


def _prelu(rng: np.random.Generator, op: str) -> Case:
    dtype = pick(rng, types(op))
    return Case(op, (special(rng, dtype, (20, 3)), special(rng, dtype, pick(rng, [(1,), (3,), (20, 1)]))))


def _reduction(rng: np.random.Generator, op: str) -> Case:
    """Few terms: orders of sums are not what is asked here, overflow and signs are."""
    dtype = pick(rng, types(op))
    few = op == "ReduceProd"  # whether a product overflows on the way depends on the order
    shape = pick(
        rng, [(5, 1), (1,), (2,), (1, 2)] if few else [(4, 3), (6, 2), (5, 1), (3, 2, 2), (1,), (2,)]
    )
    x = special(rng, dtype, shape, pick(rng, [0.2, 0.5, 1.0]))
    keep = {"keepdims": int(rng.integers(2))}
    axes = [np.array(a, np.int64) for a in ([-1], [0], list(range(len(shape))))]
    axis = pick(rng, [*axes, None])
    if axis is None:
        return Case(op, (x,), keep | ({"noop_with_empty_axes": 1} if rng.random() < 0.3 else {}))
    return Case(op, (x, axis), keep, fixed=(1,))


def _arg(rng: np.random.Generator, op: str) -> Case:
    dtype = pick(rng, types(op))
    x = special(rng, dtype, pick(rng, [(4, 5), (3, 2, 6)]), pick(rng, [0.1, 0.6]))
    x.reshape(-1)[1::3] = x.reshape(-1)[0]  # ties
    attrs = {"axis": int(rng.integers(-1, 2)), "keepdims": int(rng.integers(2)),
             "select_last_index": int(rng.integers(2))}  # fmt: skip
    return Case(op, (x,), attrs)


def _softmax(rng: np.random.Generator, op: str) -> Case:
    x = special(rng, pick(rng, types(op)), pick(rng, [(8, 3), (5, 1), (4, 4)]), pick(rng, [0.1, 0.5]))
    return Case(op, (x,), {"axis": int(rng.integers(-1, 2))})


def _cumulative(rng: np.random.Generator, op: str) -> Case:
    dtype = pick(rng, types(op, "T"))
    attrs = {"exclusive": int(rng.integers(2)), "reverse": int(rng.integers(2))}
    axis = np.array(pick(rng, [0, 1, -1]), np.int32 if rng.random() < 0.5 else np.int64)
    return Case(op, (special(rng, dtype, (5, 4), pick(rng, [0.2, 0.8])), axis), attrs, fixed=(1,))


def _topk(rng: np.random.Generator, op: str) -> Case:
    dtype = pick(rng, types(op, "T"))
    x = special(rng, dtype, (5, 7), pick(rng, [0.1, 0.6]))
    x[:, 2::3] = x[:, :1]
    attrs = {"largest": int(rng.integers(2)), "sorted": 1, "axis": -1}
    return Case(op, (x, np.array([int(rng.integers(1, 8))])), attrs, outputs=2, fixed=(1,))


def _quantize(rng: np.random.Generator, op: str) -> Case:
    to = pick(rng, [np.int8, np.uint8, np.int16, np.uint16])
    dtype = pick(rng, [np.float32, np.float32, np.float16])
    scale = np.array(pick(rng, [1.0, 0.5, 0.1, 3.0, 2.0**-20, 1e4, 1e-30]), dtype)
    if dtype == np.float16:
        scale = np.array(pick(rng, [1.0, 0.5, 0.1]), dtype)
    return Case(op, (special(rng, dtype, (90,), 0.8), scale, special(rng, to, ())))


def _dequantize(rng: np.random.Generator, op: str) -> Case:
    source = pick(rng, [np.int8, np.uint8, np.int16, np.uint16, np.int32])
    scale = np.array(pick(rng, [1.0, 0.1, 2.0**-20, 1e4, 1e-38, 1e35]), np.float32)
    zero = np.zeros((), source) if source == np.int32 else special(rng, source, ())
    return Case(op, (special(rng, source, (60,), 0.8), scale, zero))


def _matmul(rng: np.random.Generator, op: str) -> Case:
    """One term, or two ordinary ones: sums of more have an order of their own."""
    dtype = pick(rng, types(op, "T"))
    k = int(rng.integers(1, 3))
    share = 0.7 if k == 1 else 0.0
    return Case(op, (special(rng, dtype, (6, k), share), special(rng, dtype, (k, 6), share)))


def _matmul_integer(rng: np.random.Generator, op: str) -> Case:
    a, b = (pick(rng, [np.int8, np.uint8]) for _ in range(2))
    k = int(rng.integers(1, 40))
    zeros = (special(rng, a, ()), special(rng, b, pick(rng, [(), (5,)])))
    return Case(op, (special(rng, a, (4, k)), special(rng, b, (k, 5)), *zeros))


def _range(rng: np.random.Generator, op: str) -> Case:
    dtype = pick(rng, [np.float32, np.float64, np.int32, np.int64, np.int16])
    if kind(dtype) == "f":
        start, step = (float(rng.integers(-30, 30)) / 10 for _ in range(2))
        step, count = step or 0.3, int(rng.integers(0, 12))
        return Case(
            op, tuple(np.array(v, dtype) for v in (start, start + step * count, step)), fixed=(0, 1, 2)
        )
    start, step = int(rng.integers(-9, 9)), pick(rng, [-3, -1, 1, 2, 5])
    return Case(op, tuple(np.array(v, dtype) for v in (start, start + int(rng.integers(-20, 20)), step)),
                fixed=(0, 1, 2))  # fmt: skip


def _isinf(rng: np.random.Generator) -> Mapping[str, Any]:
    return {"detect_negative": int(rng.integers(2)), "detect_positive": int(rng.integers(2))}


def _alpha(*names: str) -> Callable[[np.random.Generator], Mapping[str, Any]]:
    return lambda rng: {n: float(pick(rng, [0.1, 1.0, 2.5, 0.3, 1e-3])) for n in names if rng.random() < 0.6}


DRAWS: dict[str, Draw] = {
    **dict.fromkeys((
        "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Cos", "Cosh", "Erf",
        "Exp", "Floor", "HardSwish", "IsNaN", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round",
        "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "Identity",
    ), _unary()),
    "IsInf": _unary(_isinf),
    "Gelu": _unary(lambda rng: {"approximate": pick(rng, ["none", "tanh"])}),
    "LeakyRelu": _unary(_alpha("alpha")), "Elu": _unary(_alpha("alpha")), "Celu": _unary(_alpha("alpha")),
    "Selu": _unary(_alpha("alpha", "gamma")), "HardSigmoid": _unary(_alpha("alpha", "beta")),
    "ThresholdedRelu": _unary(_alpha("alpha")), "Shrink": _unary(_alpha("bias", "lambd")),
    **dict.fromkeys((
        "Add", "Sub", "Mul", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater", "LessOrEqual",
        "GreaterOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
    ), _nary(2)),
    **dict.fromkeys(("Min", "Max", "Sum", "Mean"), _variadic),
    "Div": _division, "Mod": _division, "Cast": _cast, "CastLike": _cast, "BitShift": _shift, "Clip": _clip,
    "Where": _where, "PRelu": _prelu,
    **dict.fromkeys((
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
        "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
    ), _reduction),
    "ArgMax": _arg, "ArgMin": _arg, "Softmax": _softmax, "LogSoftmax": _softmax, "Hardmax": _softmax,
    "CumSum": _cumulative, "TopK": _topk, "QuantizeLinear": _quantize, "DequantizeLinear": _dequantize,
    "MatMul": _matmul, "MatMulInteger": _matmul_integer, "Range": _range,
}  # fmt: skip
"""A draw for each operator whose inputs may be anything; others take their shipped cases (op_shipped)."""


@cache
def operators() -> tuple[str, ...]:
    """The operators with a draw, by name."""
    return tuple(sorted(DRAWS))


def draw(rng: np.random.Generator, op: str) -> Case:
    """A node of that operator."""
    return DRAWS[op](rng, op)


__all__ = ["BFLOAT16", "DRAWS", "VERSION", "Case", "draw", "edges", "operators", "types"]
