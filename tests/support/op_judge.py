"""A node's results by several implementations -> those that differ by more than the stated bounds.

Bounds are per operator, in units in the last place and as a multiple of the type's epsilon; none means bit
for bit. Where ONNX's evaluator and ONNX Runtime differ from each other, either is
right. What smelt does and neither says has a row of LEFT_OPEN with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from op_nodes import DRAWS, Case
from op_shipped import MOVES
from op_values import Array, kind
from op_ways import Ways


@dataclass(frozen=True)
class Bound:
    """ulps: units in the last place. epsilons: further, absolutely, times the largest of 1 and the inputs'
    magnitude where `scaled`. tiny: results below the least normal number may be 0. chain: a product of many
    factors in any order: where one of these passes below the least normal number, bits are lost. logged: the
    result is the logarithm of what the epsilons are of, a sum in any order."""

    ulps: float = 0
    epsilons: float = 0
    scaled: bool = False
    tiny: bool = False
    chain: bool = False
    logged: bool = False


EXACT = Bound()
# The intrinsics' own bounds (targets/llvm/math.py) against NumPy's, which are correctly rounded or 1 apart.
BOUNDS: dict[str, Bound] = {
    **dict.fromkeys(("Exp", "Log", "Sin", "Cos"), Bound(3, tiny=True)),
    **dict.fromkeys(
        ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan", "Pow"), Bound(3, tiny=True)
    ),
    "Tanh": Bound(6, tiny=True),  # relative 3e-7
    "Erf": Bound(7, 4, tiny=True),  # absolute 3.6e-7
    "Sigmoid": Bound(5, tiny=True),
    "Softplus": Bound(5, tiny=True),
    "Mish": Bound(16, tiny=True),
    # 1 + erf(x), and 1 + tanh(x), cancel for x below 0: an error of an epsilon there is one of x / 2
    "Gelu": Bound(16, 4, scaled=True, tiny=True),
    # exp(x) - 1 cancels near 0, as in ONNX Runtime
    **dict.fromkeys(("Elu", "Celu", "Selu"), Bound(4, 4, tiny=True)),
    # alpha * x + beta in one rounding or two
    **dict.fromkeys(("HardSigmoid", "HardSwish"), Bound(4, 2, scaled=True)),
    "Softmax": Bound(8, tiny=True),
    "LogSoftmax": Bound(8, 8, tiny=True),
    "ReduceLogSumExp": Bound(4, 4, tiny=True),
    "ReduceLogSum": Bound(8, 8, scaled=True, logged=True),
    # a product and a sum in one rounding or two
    **dict.fromkeys(("MatMul", "ReduceSumSquare", "ReduceL2", "Shrink"), Bound(4, 4, scaled=True)),
    **dict.fromkeys(
        ("Mean", "Sum", "ReduceMean", "ReduceSum", "ReduceL1", "CumSum"), Bound(4, 8, scaled=True)
    ),
    "ReduceProd": Bound(4, tiny=True, chain=True),
    "Softsign": Bound(2),
    "Range": Bound(2, 4, scaled=True),
}
# Operators of ONNX's shipped cases: sums in some order, and whole recurrences of them.
COMPOUND = Bound(64, 64, scaled=True, tiny=True)
# Operators whose zero may have either sign: they choose between equal numbers, or add in some order.
ANY_ZERO = frozenset({
    "Min", "Max", "Relu", "Clip", "Gelu", "Sum", "Mean", "MatMul", "HardSwish", "Mish", "Selu", "Celu", "Elu",
    "ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceL1", "ReduceProd", "CumSum", "TopK", "PRelu",
    "LeakyRelu", "ThresholdedRelu", "Shrink", "Softmax", "LogSoftmax", "Mod", "DequantizeLinear", "Range",
    "ReduceLogSumExp", "ReduceLogSum", "Softplus", "CumProd", "Pow",
})  # fmt: skip


@dataclass(frozen=True)
class Open:
    """Elements of standard operators on which smelt need not agree with anybody. where: (case, smelt's
    output) -> a mask that broadcasts against it."""

    ops: tuple[str, ...]
    where: Callable[[Case, Array], Any]
    reason: str


def bound_of(op: str) -> Bound:
    """The bound of an operator."""
    return BOUNDS.get(op, EXACT if op in DRAWS or op in MOVES else COMPOUND)


def _dtype(c: Case, k: int = 0) -> Any:
    a = c.arrays[k]
    return np.dtype(np.float32) if a is None else a.dtype


def _whole_output(test: Callable[[Case], bool]) -> Callable[[Case, Array], Any]:
    return lambda c, y: np.full(y.shape, test(c))


def _beyond_integers(c: Case, y: Array) -> Any:
    """Floats that the integer type of the result does not hold."""
    x = c.arrays[0]
    if kind(y.dtype) not in "iu" or x is None or kind(x.dtype) != "f":
        return False
    wide, info = x.astype(np.float64), np.iinfo(y.dtype)
    return ~((wide > float(info.min) - 1) & (wide < float(info.max)))


def _has_nan(c: Case, y: Array) -> Any:
    return any(
        a is not None and kind(a.dtype) == "f" and np.isnan(a.astype(np.float64)).any() for a in c.arrays
    )


def _is_integer(c: Case) -> bool:
    return kind(_dtype(c)) in "iu"


LEFT_OPEN: tuple[Open, ...] = (
    Open(
        ("Cast", "CastLike"), _beyond_integers, "NaN is 0 and what is too large the nearest integer there is"
    ),
    Open(
        ("QuantizeLinear",),
        lambda c, y: ~(np.abs(c.arrays[0].astype(np.float64) / c.arrays[1].astype(np.float64)) < 2.0**31),  # type: ignore[union-attr]
        "saturates beyond 2^31, where the others' conversion to an integer has no meaning; NaN is the lowest",
    ),
    Open(
        ("ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "TopK", "Hardmax", "Min", "Max", "Clip", "Softmax"),
        _has_nan,
        "NaN wins, as in NumPy; ONNX Runtime's answer depends on where it stands",
    ),
    Open(
        (
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMean",
            "ReduceProd",
            "ReduceSum",
            "ReduceSumSquare",
            "Shrink",
            "ReduceL1",
        ),
        _whole_output(_is_integer),
        "integers: sums and products wrap, roots and logarithms are cut off; the others go through floats",
    ),
    Open(
        ("GridSample",),
        _whole_output(_is_integer),
        "integers between integers are cut off; ONNX's evaluator rounds their weights",
    ),
    Open(
        ("PRelu",),
        lambda c, y: c.arrays[0] == 0,
        "0 for 0, as the specification says; the others multiply 0 by the slope",
    ),
    Open(
        ("Pow",),
        _whole_output(lambda c: _is_integer(c) or _is_integer(Case("", c.arrays[1:]))),
        "powers of integers wrap; an integer exponent keeps its last bit",
    ),
    Open(
        ("Erf", "Gelu", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu"),
        _whole_output(lambda c: _dtype(c) == np.float64),
        "ONNX's evaluator computes f64 with f32 inside, and ONNX Runtime has no kernel",
    ),
)


def complaints(w: Ways) -> Iterator[str]:
    """What is wrong with a node, a text each."""
    if w.refused:
        return
    assert w.folded is not None and w.compiled is not None and w.formula is not None
    for k, y in enumerate(w.compiled):
        for name, other in (("folded", w.folded[k]), ("formula", w.formula[k])):
            if other.dtype != y.dtype or other.shape != y.shape:
                yield f"{name} is {other.dtype}{list(other.shape)}, compiled {y.dtype}{list(y.shape)}"
            else:
                yield from _told(w.case, y, other, ~agree(w.case, y, other, keep=w.keep), name)
        yield from _against(w, k, y)


def _against(w: Ways, k: int, y: Array) -> Iterator[str]:
    """smelt's output against those of the others that have one."""
    others = [o[k] for o in (w.evaluator, w.runtime, w.wide) if o is not None]
    with np.errstate(all="ignore"):
        others = [o.astype(y.dtype) if kind(o.dtype) == kind(y.dtype) == "f" else o for o in others]
    if not others:
        return
    if all(o.shape != y.shape for o in others):
        yield f"output {k} is {list(y.shape)}, the others have {[list(o.shape) for o in others]}"
        return
    right = np.zeros(y.shape, bool)
    for o in others:
        if o.shape == y.shape and o.dtype == y.dtype:
            right |= agree(w.case, y, o, 2, w.keep)
            if y.dtype == np.float64 and bound_of(w.case.op) == COMPOUND:
                # ONNX's evaluator takes attributes and statistics as f32 there
                with np.errstate(all="ignore"):
                    right |= agree(w.case, y.astype(np.float32), o.astype(np.float32), 2, w.keep)
    for row in LEFT_OPEN:
        if w.case.op in row.ops and not w.case.domain:
            mask = np.asarray(row.where(w.case, y))
            right |= np.broadcast_to(mask, y.shape) if mask.ndim <= y.ndim else True
    if not all(o.dtype != y.dtype for o in others):
        yield from _told(w.case, y, others[-1], ~right, "ONNX")


FLUSHED = 4096
"""Least normal numbers by which results may differ where subnormal ones are 0 on the way."""


def agree(c: Case, a: Array, b: Array, factor: float = 1, keep: bool = True) -> Any:
    """Where two outputs are one and the same within the operator's bound. keep: subnormal numbers."""
    if kind(a.dtype) != "f":
        # scales of 8 bits: what a pass sums as integers, the formula sums as rounded products
        halves = any(x.dtype.itemsize == 2 and kind(x.dtype) == "f" for x in c.arrays if x is not None)
        steps = max(c.steps, int(halves and c.op.startswith("QLinear")))
        return np.abs(a.astype(np.int64) - b) <= steps if steps else a == b
    bound = bound_of(c.op)
    coarse = [a.dtype, *(x.dtype for x in c.arrays if x is not None and kind(x.dtype) == "f")]
    info: Any = ml_dtypes.finfo(max(coarse, key=lambda t: -t.itemsize) if bound == COMPOUND else a.dtype)
    x, y = a.astype(np.float64), b.astype(np.float64)
    tiny, eps = float(info.tiny), float(info.eps)
    with np.errstate(all="ignore"):
        size = np.maximum(np.maximum(np.abs(x), np.abs(y)), tiny)
        room = bound.ulps * factor * np.exp2(np.floor(np.log2(size))) * eps
        part = np.exp(-np.minimum(x, y)) if bound.logged else 1.0  # d log(s) = ds / s
        room = room + bound.epsilons * factor * eps * (_magnitude(c) if bound.scaled else 1) * part
        room = room + (tiny if bound.tiny else 0) + (c.atol + c.rtol * size) * factor
        if a.dtype.itemsize == 2 and bound != EXACT:
            room = room + np.exp2(np.floor(np.log2(size))) * eps
        if not keep:
            room = room + FLUSHED * tiny
        lost = bound.chain and _vanishes(c, tiny)
        near = np.isfinite(x) & np.isfinite(y) & ((np.abs(x - y) <= room) | lost)
        # the largest number and infinity are next to each other
        least, one = np.minimum(np.abs(x), np.abs(y)), np.isfinite(x) ^ np.isfinite(y)
        near = near | (one & (least >= float(info.max) * (1 - 4 * eps)))
    any_zero = c.op in ANY_ZERO or bound == COMPOUND
    same = (x == y) & ((np.signbit(x) == np.signbit(y)) | (x != 0) | any_zero)
    return same | (np.isnan(x) & np.isnan(y)) | (near if bound != EXACT or not keep else same)


def _vanishes(c: Case, tiny: float) -> bool:
    """Whether the factors below 1 alone multiply to less than `tiny`."""
    x = np.abs(np.asarray(c.arrays[0]).astype(np.float64))
    return bool(np.log2(x[(x > 0) & (x < 1)]).sum() < np.log2(tiny))


def _magnitude(c: Case) -> float:
    """The largest finite input."""
    every = [np.abs(a[np.isfinite(a.astype(np.float64))].astype(np.float64)).max(initial=1.0)
             for a in c.arrays if a is not None and kind(a.dtype) == "f"]  # fmt: skip
    return float(max(every, default=1.0))


def _told(c: Case, y: Array, other: Array, wrong: Array, name: str) -> Iterator[str]:
    if not wrong.any():
        return
    at = tuple(np.argwhere(wrong)[0])
    found = other[at] if other.shape == y.shape else "?"
    yield f"{c} at {list(map(int, at))} of {_inputs_at(c, y, at)}: compiled {y[at]!r}, {name} {found!r}"


def _inputs_at(c: Case, y: Array, at: tuple[Any, ...]) -> list[Any]:
    found: list[Any] = []
    for a in c.arrays:
        try:
            found.append(None if a is None else repr(np.broadcast_to(a, y.shape)[at]))
        except ValueError:
            found.append(a.tolist() if a is not None and a.size < 13 else "..")
    return found
