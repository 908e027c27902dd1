"""Operators that are algorithms, or move elements in odd ways -> the rows that benchmarks/ops.py measures: a
model in ONNX's text form, the sizes, and inputs of which values decide how much there is to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from smelt.core.dtype import Array

Size = dict[str, int]
Made = Callable[[np.random.Generator, tuple[int, ...]], Array]
"""(random numbers, shape) -> an input's elements."""


@dataclass(frozen=True)
class OpRow:
    """An operator's model without head, the values of its symbols, its weights (name -> shape), the inputs that
    are no random numbers from -1 to 1, its opset, and the domain of operators beside ONNX's own."""

    name: str
    text: str
    sizes: tuple[Size, ...]
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    made: Mapping[str, Made] = field(default_factory=dict)
    opset: int = 20


# ---------------------------------------------------------------- inputs


def below(most: int, least: int = 0, kind: type[np.generic] = np.int64) -> Made:
    """Integers from `least` to `most` - 1."""
    return lambda rng, shape: rng.integers(least, most, shape).astype(kind)


def spread(low: float, high: float) -> Made:
    """Floats between two numbers."""
    return lambda rng, shape: rng.uniform(low, high, shape).astype(np.float32)


def ties(values: int) -> Made:
    """Few values, each often."""
    return lambda rng, shape: (rng.integers(0, values, shape) / 7).astype(np.float32)


def rising(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Each element along the last axis greater than those before: the worst order for a choice of the largest."""
    return np.sort(rng.uniform(-1, 1, shape).astype(np.float32), axis=-1)


def equal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """One value everywhere."""
    return np.ones(shape, np.float32)


def ones_at(share: float) -> Made:
    """Ones in about this share of the elements, else zeros."""
    return lambda rng, shape: (rng.uniform(0, 1, shape) < share).astype(np.float32)


def boxes(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Boxes of 5 to 60 pixels, anywhere in a picture of 640."""
    start = rng.uniform(0, 600, (*shape[:-1], 2))
    return np.concatenate([start, start + rng.uniform(5, 60, start.shape)], -1).astype(np.float32)


def one_place(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Boxes that nearly coincide, so that the best of them suppresses all others."""
    return (np.array([10, 10, 60, 60]) + rng.uniform(0, 1, shape)).astype(np.float32)


def far_apart(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Boxes of which none meets another, so that each is compared with all before it."""
    start = 10.0 * np.arange(shape[-2])[:, None] + np.zeros((*shape[:-1], 2))
    return np.concatenate([start, start + 5], -1).astype(np.float32)


def regions(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Boxes of 5 to 35 cells in a map of 50 x 60."""
    start = rng.uniform(0, 20, (*shape[:-1], 2))
    return np.concatenate([start, start + rng.uniform(5, 35, start.shape)], -1).astype(np.float32)


def some_order(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Row numbers, each once, in any order: [rows, 1]."""
    return rng.permutation(shape[0]).reshape(shape).astype(np.int64)


# ---------------------------------------------------------------- choices and orders


def _constant(name: str, values: Iterable[int], rank: int = 1) -> str:
    told = ", ".join(map(str, values))
    count = len(told.split(", "))
    return f"{name} = Constant <value = int64{f'[{count}]' if rank else ''} {{{told}}}> ()  "


def _top(
    name: str, shape: str, k: str, sizes: tuple[Size, ...], made: Made | None = None, more: str = ""
) -> OpRow:
    """k: a number, or the name of a dim of x that is its own size."""
    told = f"axis = {more}" if more else "axis = -1"
    wanted = (
        _constant("k", [int(k)]) if k.isdigit() else f"s = Shape (x)  g = {_scalar(-1)}  k = Gather (s, g)  "
    )
    out = ", ".join("abcde"[: shape.count(",") + 1])
    text = f"(float[{shape}] x) => (float[{out}] y, int64[{out}] i) {{ {wanted}y, i = TopK <{told}> (x, k) }}"
    return OpRow(name, text, sizes, made={"x": made} if made else {})


def _scalar(value: int) -> str:
    return f"Constant <value = int64[1] {{{value}}}> ()"


CHOICES = (
    *(_top(f"TopK of {k}", "n, m", str(k), sizes) for k, sizes in {
        1: ({"n": 1, "m": 80}, {"n": 1, "m": 8400}, {"n": 200, "m": 1000}, {"n": 1, "m": 500000}),
        5: ({"n": 1, "m": 1000}, {"n": 200, "m": 1000}, {"n": 1, "m": 50257}),
        40: ({"n": 1, "m": 1000}, {"n": 1, "m": 50257}, {"n": 64, "m": 1000}),
        100: ({"n": 1, "m": 300}, {"n": 1, "m": 8400}, {"n": 16, "m": 8400}, {"n": 1, "m": 120000}),
        300: ({"n": 1, "m": 8400}, {"n": 1, "m": 80000}, {"n": 8, "m": 20000}),
        1000: ({"n": 1, "m": 8400}, {"n": 2, "m": 50000}, {"n": 1, "m": 250000}),
    }.items()),
    *(_top(f"TopK of all, {name}", "n, m", "m", ({"n": 1, "m": 100}, {"n": 50, "m": 1000}, {"n": 1, "m": 50000}), f)
      for name, f in {"random": None, "equal": equal, "rising": rising, "few values": ties(9)}.items()),
    *(_top(f"TopK of 100, {name}", "n, m", "100", ({"n": 1, "m": 8400}, {"n": 1, "m": 120000}), f)
      for name, f in {"equal": equal, "rising": rising, "few values": ties(9)}.items()),
    *(_top(f"TopK of 5, {name}", "n, m", "5", ({"n": 1, "m": 8400}, {"n": 64, "m": 1000}), f)
      for name, f in {"equal": equal, "rising": rising, "few values": ties(9)}.items()),
    _top("TopK of 5, axis 1 of 3", "n, m, c", "5", ({"n": 2, "m": 1000, "c": 80}, {"n": 1, "m": 85, "c": 5000}),
         more="1"),
    _top("TopK of 100, axis 1 of 3", "n, m, c", "100", ({"n": 2, "m": 1000, "c": 80},), more="1"),
    _top("TopK of 300, axis 0", "m, c", "300", ({"m": 8400, "c": 4},), more="0"),
    *(OpRow(f"ArgMax, axis {axis} of 3",
            f"(float[n, m, c] x) => (int64[a, b, d] y) {{ y = ArgMax <axis = {axis}> (x) }}",
            ({"n": 4, "m": 30, "c": 50}, {"n": 8, "m": 200, "c": 300})) for axis in (0, 1, 2)),
    OpRow("ArgMax, last", "(float[n, m] x) => (int64[n] y) {"
          " y = ArgMax <axis = 1, keepdims = 0, select_last_index = 1> (x) }",
          ({"n": 1, "m": 50257}, {"n": 500, "m": 80}, {"n": 20000, "m": 4})),
    *(OpRow(f"NonZero, {share:.0%}", "(float[n, m] x) => (int64[2, k] y) { y = NonZero (x) }",
            ({"n": 3, "m": 40}, {"n": 100, "m": 1000}, {"n": 1000, "m": 1000}), made={"x": ones_at(share)})
      for share in (0.0, 0.01, 0.5, 1.0)),
    OpRow("NonZero of rank 1", "(int64[m] x) => (int64[1, k] y) { y = NonZero (x) }",
          ({"m": 100}, {"m": 100000}), made={"x": below(2)}),
    OpRow("Compress, axis 0", "(float[n, m] x, bool[n] c) => (float[k, m] y) { y = Compress <axis = 0> (x, c) }",
          ({"n": 100, "m": 64}, {"n": 5000, "m": 256}), made={"c": below(2, kind=np.bool_)}),
    *(OpRow(f"Unique, sorted={by}, {name}", "(float[m] x) => (float[k] y, int64[k] i, int64[m] j, int64[k] c) {"
            f" y, i, j, c = Unique <sorted = {by}> (x) }}", ({"m": 100}, {"m": 5000}, {"m": 100000}), made={"x": f})
      for by in (0, 1) for name, f in {"few values": ties(50), "all different": spread(-1, 1)}.items()),
    OpRow("Unique of rows", "(int64[n, 8] x) => (int64[k, 8] y) { y = Unique <axis = 0> (x) }",
          ({"n": 30}, {"n": 2000}), made={"x": below(3)}),
)  # fmt: skip


def _suppression(
    name: str,
    most: int,
    overlap: float,
    least: float,
    sizes: tuple[Size, ...],
    box: Made = boxes,
    score: Made = spread(0, 1),
) -> OpRow:
    text = ("(float[b, n, 4] x, float[b, c, n] s) => (int64[k, 3] y) {"
            f" m = Constant <value = int64 {{{most}}}> ()  o = Constant <value = float {{{overlap}}}> ()"
            f" l = Constant <value = float {{{least}}}> ()  y = NonMaxSuppression (x, s, m, o, l) }}")  # fmt: skip
    return OpRow(f"NonMaxSuppression, {name}", text, sizes, made={"x": box, "s": score})


_BOXED = ({"b": 1, "n": 100, "c": 1}, {"b": 1, "n": 1000, "c": 1}, {"b": 1, "n": 8400, "c": 1})
SUPPRESSION = (
    _suppression(
        "100 stay", 100, 0.5, 0.1, (*_BOXED, {"b": 1, "n": 1000, "c": 20}, {"b": 4, "n": 300, "c": 3})
    ),
    _suppression("few are worth it", 100, 0.5, 0.97, (*_BOXED, {"b": 1, "n": 8400, "c": 80})),
    _suppression("none is worth it", 100, 0.5, 2.0, (*_BOXED, {"b": 1, "n": 8400, "c": 80})),
    _suppression("all stay", 10000, 0.5, 0.0, _BOXED[:2], far_apart),
    _suppression("one stays", 10000, 0.3, 0.0, _BOXED, one_place),
    _suppression("5 stay", 5, 0.5, 0.0, _BOXED),
    _suppression("equal scores", 100, 0.5, 0.0, _BOXED, score=equal),
)

# ---------------------------------------------------------------- indices


def _scatter(reduction: str) -> tuple[OpRow, ...]:
    told = f'reduction = "{reduction}"'
    return (
        OpRow(f"ScatterElements {reduction}, axis 0", "(float[n, m] x, int64[k, m] i, float[k, m] u) =>"
              f" (float[n, m] y) {{ y = ScatterElements <axis = 0, {told}> (x, i, u) }}",
              ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 500}), made={"i": below(8)}),
        OpRow(f"ScatterElements {reduction}, axis 1", "(float[n, m] x, int64[n, k] i, float[n, k] u) =>"
              f" (float[n, m] y) {{ y = ScatterElements <axis = 1, {told}> (x, i, u) }}",
              ({"n": 1000, "m": 64, "k": 50},), made={"i": below(64)}),
        OpRow(f"ScatterND {reduction}, rows", "(float[n, m] x, int64[k, 1] i, float[k, m] u) => (float[n, m] y) {"
              f" y = ScatterND <{told}> (x, i, u) }}",
              ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 3000}), made={"i": below(8)}),
        OpRow(f"ScatterND {reduction}, elements", "(float[n, m] x, int64[k, 2] i, float[k] u) => (float[n, m] y) {"
              f" y = ScatterND <{told}> (x, i, u) }}",
              ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 30000}), made={"i": below(8)}),
    )  # fmt: skip


INDICES = (
    *(row for kind in ("none", "add", "mul", "max", "min") for row in _scatter(kind)),
    OpRow("GatherND of rows", "(float[n, m] x, int64[k, 1] i) => (float[k, m] y) { y = GatherND (x, i) }",
          ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 3000}), made={"i": below(8)}),
    OpRow("GatherND of elements", "(float[n, m] x, int64[k, 2] i) => (float[k] y) { y = GatherND (x, i) }",
          ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 30000}), made={"i": below(8)}),
    OpRow("GatherND, batches", "(float[b, n, m] x, int64[b, k, 1] i) => (float[b, k, m] y) {"
          " y = GatherND <batch_dims = 1> (x, i) }", ({"b": 8, "n": 50, "m": 32, "k": 70},), made={"i": below(50)}),
    OpRow("GatherElements, axis 0", "(float[n, m] x, int64[k, m] i) => (float[k, m] y) {"
          " y = GatherElements <axis = 0> (x, i) }", ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 3000}),
          made={"i": below(8)}),
    OpRow("GatherElements, axis 1", "(float[n, m] x, int64[n, k] i) => (float[n, k] y) {"
          " y = GatherElements <axis = 1> (x, i) }", ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 30}),
          made={"i": below(16)}),
    OpRow("Gather, axis 1", "(float[n, m, 32] x, int64[k] i) => (float[n, k, 32] y) {"
          " y = Gather <axis = 1> (x, i) }", ({"n": 8, "m": 50, "k": 70},), made={"i": below(50)}),
    OpRow("Gather, last axis", "(float[n, m] x, int64[k] i) => (float[n, k] y) { y = Gather <axis = 1> (x, i) }",
          ({"n": 8, "m": 50, "k": 70}, {"n": 1000, "m": 64, "k": 30}), made={"i": below(50)}),
    OpRow("OneHot", "(int64[n, m] i) => (float[n, m, 50] y) { d = Constant <value = int64[1] {50}> ()"
          " v = Constant <value = float[2] {0, 1}> ()  y = OneHot (i, d, v) }",
          ({"n": 1, "m": 10}, {"n": 50, "m": 100}), made={"i": below(50)}),
    OpRow("OneHot, axis 1", "(int64[n, m] i) => (float[n, 50, m] y) { d = Constant <value = int64[1] {50}> ()"
          " v = Constant <value = float[2] {0, 1}> ()  y = OneHot <axis = 1> (i, d, v) }",
          ({"n": 50, "m": 100},), made={"i": below(50)}),
    OpRow("Trilu", "(float[b, n, m] x) => (float[b, n, m] y) { y = Trilu <upper = 0> (x) }",
          ({"b": 1, "n": 20, "m": 20}, {"b": 4, "n": 300, "m": 500})),
    OpRow("EyeLike", "(float[n, m] x) => (float[n, m] y) { y = EyeLike (x) }", ({"n": 300, "m": 500},)),
    OpRow("ReverseSequence", "(float[t, n, 64] x, int64[n] l) => (float[t, n, 64] y) { y = ReverseSequence (x, l) }",
          ({"t": 50, "n": 8},), made={"l": below(50, 1)}),
    *(OpRow(f"CumSum, axis {axis} of 3{more and ', '}{more}", "(float[n, m, c] x) => (float[n, m, c] y) {"
            f" a = Constant <value = int64 {{{axis}}}> ()  y = CumSum <{told}> (x, a) }}",
            ({"n": 4, "m": 30, "c": 50}, {"n": 20, "m": 200, "c": 100}))
      for axis in (0, 1, 2) for more, told in {"": "reverse = 0", "reverse, exclusive": "reverse = 1, exclusive = 1"}
      .items()),
    OpRow("CumSum of integers", "(int64[n, m] x) => (int64[n, m] y) {"
          " a = Constant <value = int64 {1}> ()  y = CumSum (x, a) }", ({"n": 1, "m": 100}, {"n": 50, "m": 1000})),
)  # fmt: skip

# ---------------------------------------------------------------- windows and interpolation

_PLANES = ({"n": 1, "h": 7, "w": 7}, {"n": 1, "h": 56, "w": 56}, {"n": 2, "h": 27, "w": 31})


def _planes(
    name: str,
    op: str,
    more: str,
    sizes: tuple[Size, ...] = _PLANES,
    channels: int = 64,
    weights: Mapping[str, tuple[int, ...]] | None = None,
) -> OpRow:
    args = ", ".join(("x", *(weights or {})))
    text = f"(float[n, {channels}, h, w] x) => (float[n, c, a, b] y) {{ y = {op} <{more}> ({args}) }}"
    return OpRow(name, text, sizes, weights or {})


def _transposed(name: str, x: str, w: tuple[int, ...], more: str, sizes: tuple[Size, ...]) -> OpRow:
    out = ", ".join("abcde"[: len(w)])
    text = f"(float[{x}] x) => (float[{out}] y) {{ y = ConvTranspose <{more}> (x, w) }}"
    return OpRow(f"ConvTranspose {name}", text, sizes, {"w": w})


_LINE = ({"n": 1, "w": 50}, {"n": 2, "w": 1000})
WINDOWS = (
    _planes("MaxPool of 2", "MaxPool", "kernel_shape = [2, 2], strides = [2, 2]"),
    _planes("MaxPool of 3 by 2", "MaxPool", "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"),
    _planes("MaxPool of 5 by 1", "MaxPool", "kernel_shape = [5, 5], pads = [2, 2, 2, 2]"),
    _planes("MaxPool of 13 by 1", "MaxPool", "kernel_shape = [13, 13], pads = [6, 6, 6, 6]"),
    _planes("MaxPool of 3, 1 channel", "MaxPool", "kernel_shape = [3, 3], strides = [2, 2]", channels=1),
    _planes("MaxPool of 3, 3 channels, ceil", "MaxPool", "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1",
            channels=3),
    _planes("AveragePool of 3", "AveragePool", "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"),
    _planes("AveragePool of 2", "AveragePool", "kernel_shape = [2, 2], strides = [2, 2]"),
    _planes("AveragePool of 3, with pads", "AveragePool",
            "kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1"),
    _planes("GlobalAveragePool", "GlobalAveragePool", ""),
    _planes("GlobalMaxPool", "GlobalMaxPool", ""),
    _planes("LpPool", "LpPool", "kernel_shape = [3, 3], strides = [2, 2]"),
    OpRow("MaxPool with indices", "(float[n, 64, h, w] x) => (float[n, c, a, b] y, int64[n, c, a, b] i) {"
          " y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }", _PLANES),
    OpRow("MaxPool of 3 with indices", "(float[n, 64, h, w] x) => (float[n, c, a, b] y, int64[n, c, a, b] i) {"
          " y, i = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x) }", _PLANES),
    OpRow("MaxPool, 1-D", "(float[n, 40, w] x) => (float[n, c, a] y) {"
          " y = MaxPool <kernel_shape = [3], strides = [2]> (x) }", _LINE),
    OpRow("AveragePool, 1-D", "(float[n, 40, w] x) => (float[n, c, a] y) {"
          " y = AveragePool <kernel_shape = [4], strides = [4]> (x) }", _LINE),
    OpRow("MaxPool, 3-D", "(float[n, 16, d, h, w] x) => (float[n, c, a, b, e] y) {"
          " y = MaxPool <kernel_shape = [3, 3, 3], strides = [2, 2, 2]> (x) }",
          ({"n": 1, "d": 5, "h": 8, "w": 8}, {"n": 1, "d": 17, "h": 40, "w": 40})),
    OpRow("AveragePool, 3-D", "(float[n, 16, d, h, w] x) => (float[n, c, a, b, e] y) {"
          " y = AveragePool <kernel_shape = [2, 2, 2], strides = [2, 2, 2]> (x) }",
          ({"n": 1, "d": 17, "h": 40, "w": 40},)),
    OpRow("MaxUnpool", "(float[n, 16, h, w] x, int64[n, 16, h, w] i) => (float[n, c, a, b] y) {"
          " y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i) }", ({"n": 1, "h": 28, "w": 28},),
          made={"i": below(10000)}),
    _planes("LRN", "LRN", "size = 5"),
    _transposed("3x3 by 2", "n, 32, h, w", (32, 16, 3, 3), "strides = [2, 2]", _PLANES),
    _transposed("2x2 by 2", "n, 64, h, w", (64, 64, 2, 2), "strides = [2, 2]", _PLANES),
    _transposed("4x4 by 2", "n, 64, h, w", (64, 32, 4, 4), "strides = [2, 2], pads = [1, 1, 1, 1]", _PLANES),
    _transposed("3x3 by 1", "n, 32, h, w", (32, 32, 3, 3), "pads = [1, 1, 1, 1]", _PLANES),
    _transposed("5x5 by 3", "n, 32, h, w", (32, 16, 5, 5), "strides = [3, 3]", _PLANES),
    _transposed("3x3 by 2, 4 groups", "n, 32, h, w", (32, 8, 3, 3), "strides = [2, 2], group = 4", _PLANES),
    _transposed("4x4 by 2, depthwise", "n, 32, h, w", (32, 1, 4, 4), "strides = [2, 2], group = 32", _PLANES),
    _transposed("3x3 by 2, to 1 channel", "n, 32, h, w", (32, 1, 3, 3), "strides = [2, 2]", _PLANES),
    _transposed("1-D, 16 by 8", "n, 64, w", (64, 32, 16), "strides = [8], pads = [4, 4]", _LINE),
    _transposed("1-D, 4 by 2", "n, 64, w", (64, 32, 4), "strides = [2], pads = [1, 1]", _LINE),
    _transposed("3-D, 2 by 2", "n, 16, d, h, w", (16, 8, 2, 2, 2), "strides = [2, 2, 2]",
                ({"n": 1, "d": 4, "h": 8, "w": 8}, {"n": 1, "d": 8, "h": 20, "w": 20})),
    OpRow("Col2Im", "(float[n, 144, l] x, int64[2] s) => (float[n, c, a, b] y) {"
          " k = Constant <value = int64[2] {3, 3}> ()  y = Col2Im (x, s, k) }",
          ({"n": 1, "l": 26 * 26},), made={"s": lambda rng, shape: np.array([28, 28])}),
    OpRow("DeformConv", "(float[n, 32, h, w] x, float[n, 18, h, w] o) => (float[n, 32, h, w] y) {"
          " y = DeformConv <pads = [1, 1, 1, 1]> (x, w, o) }", _PLANES, {"w": (32, 32, 3, 3)}),
    *(OpRow(f"GridSample, {mode}, {channels} channels", f"(float[n, {channels}, h, w] x, float[n, a, b, 2] z) =>"
            f' (float[n, {channels}, a, b] y) {{ y = GridSample <mode = "{mode}", padding_mode = "{pad}"> (x, z) }}',
            ({"n": 1, "h": 48, "w": 64, "a": 40, "b": 50}, {"n": 2, "h": 12, "w": 12, "a": 8, "b": 8}))
      for mode, pad, channels in (("linear", "zeros", 1), ("linear", "border", 16), ("nearest", "zeros", 16),
                                  ("cubic", "zeros", 3), ("cubic", "reflection", 16), ("linear", "zeros", 128))),
    OpRow("GridSample, 3-D", "(float[n, 8, d, h, w] x, float[n, 5, 20, 20, 3] z) => (float[n, 8, 5, 20, 20] y) {"
          " y = GridSample (x, z) }", ({"n": 1, "d": 8, "h": 24, "w": 24},)),
    *(OpRow(f"RoiAlign, {name}", "(float[1, 256, 50, 60] x, float[n, 4] r, int64[n] b) => (float[n, 256, 7, 7] y) {"
            f" y = RoiAlign <output_height = 7, output_width = 7, sampling_ratio = {ratio}, mode = \"{mode}\">"
            " (x, r, b) }", ({"n": 1}, {"n": 50}), made={"r": regions, "b": below(1)})
      for name, ratio, mode in (("2 samples", 2, "avg"), ("as many as fit", 0, "avg"), ("max", 2, "max"))),
    *(OpRow(f"Resize, {name}", f"(float[n, {channels}, h, w] x) => (float[n, {channels}, a, b] y) {{"
            f" s = Constant <value = float[4] {{1.0, 1.0, {scale}, {scale}}}> ()"
            f" y = Resize <{more}> (x, , s) }}", ({"n": 1, "h": 16, "w": 16}, {"n": 1, "h": 96, "w": 128}))
      for name, channels, scale, more in (
          ("nearest by 2", 16, 2.0, 'mode = "nearest"'),
          ("nearest by 2, asymmetric", 64, 2.0,
           'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'),
          ("linear by 2, 3 channels", 3, 2.0, 'mode = "linear"'),
          ("linear by 2, 1 channel", 1, 2.0, 'mode = "linear"'),
          ("linear by 0.4", 16, 0.4, 'mode = "linear"'),
          ("linear by 2, corners", 16, 2.0, 'mode = "linear", coordinate_transformation_mode = "align_corners"'),
          ("cubic by 2, 1 channel", 1, 2.0, 'mode = "cubic"'),
          ("cubic by 2, 16 channels", 16, 2.0, 'mode = "cubic"'),
          ("linear by 0.4, antialias", 3, 0.4, 'mode = "linear", antialias = 1'),
          ("cubic by 0.4, antialias", 16, 0.4, 'mode = "cubic", antialias = 1'))),
    OpRow("AffineGrid", "(float[1, 2, 3] t) => (float[n, a, b, 2] y) {"
          " s = Constant <value = int64[4] {1, 3, 60, 80}> ()  y = AffineGrid (t, s) }", ({},)),
)  # fmt: skip

# ---------------------------------------------------------------- norms, movement, signals, recurrences


def _norm(
    name: str, op: str, c: int, more: str, weights: tuple[str, ...], shape: str, sizes: tuple[Size, ...]
) -> OpRow:
    args = ", ".join(("x", *weights))
    return OpRow(name, f"(float[{shape}] x) => (float[{shape}] y) {{ y = {op} <{more}> ({args}) }}", sizes,
                 {w: (c,) for w in weights})  # fmt: skip


_SPACE = ({"n": 1, "h": 7, "w": 7}, {"n": 2, "h": 56, "w": 56}, {"n": 1, "h": 27, "w": 31})
NORMS = (
    _norm("LayerNorm of 7", "LayerNormalization", 7, "axis = -1", ("s", "b"), "n, 7", ({"n": 1}, {"n": 5000})),
    _norm("LayerNorm of 97", "LayerNormalization", 97, "axis = -1", ("s", "b"), "n, 97", ({"n": 1}, {"n": 500})),
    _norm("LayerNorm of 768", "LayerNormalization", 768, "axis = -1", ("s", "b"), "n, 768", ({"n": 1}, {"n": 128})),
    _norm("LayerNorm of 4096", "LayerNormalization", 4096, "axis = -1", ("s", "b"), "n, 4096", ({"n": 1}, {"n": 64})),
    *(OpRow(f"GroupNorm, {c} in {g}", f"(float[n, {c}, h, w] x) => (float[n, {c}, h, w] y) {{"
            f" y = GroupNormalization <num_groups = {g}> (x, s, b) }}", _SPACE, {"s": (c,), "b": (c,)}, opset=21)
      for c, g in ((64, 32), (48, 3), (32, 1))),
    _norm("InstanceNorm of 64", "InstanceNormalization", 64, "", ("s", "b"), "n, 64, h, w", _SPACE),
    _norm("InstanceNorm of 3", "InstanceNormalization", 3, "", ("s", "b"), "n, 3, h, w", _SPACE),
    OpRow("InstanceNorm, 1-D", "(float[n, 40, w] x) => (float[n, 40, w] y) { y = InstanceNormalization (x, s, b) }",
          _LINE, {"s": (40,), "b": (40,)}),
    _norm("BatchNorm of 64", "BatchNormalization", 64, "", ("s", "b", "m", "v"), "n, 64, h, w", _SPACE),
    _norm("BatchNorm of 3", "BatchNormalization", 3, "", ("s", "b", "m", "v"), "n, 3, h, w", _SPACE),
    _norm("BatchNorm of rank 2", "BatchNormalization", 97, "", ("s", "b", "m", "v"), "n, 97", ({"n": 1}, {"n": 300})),
    *(OpRow(f"LpNormalization, axis {axis}", f"(float[n, m, 50] x) => (float[n, m, 50] y) {{"
            f" y = LpNormalization <axis = {axis}> (x) }}", ({"n": 20, "m": 100},)) for axis in (1, 2)),
    OpRow("MeanVariance", "(float[n, 16, h, w] x) => (float[n, 16, h, w] y) { y = MeanVarianceNormalization (x) }",
          ({"n": 2, "h": 27, "w": 31},)),
    OpRow("LogSoftmax, axis 1 of 4", "(float[n, 21, h, w] x) => (float[n, 21, h, w] y) { y = LogSoftmax <axis = 1> (x) }",
          _SPACE),
    OpRow("Hardmax", "(float[n, m] x) => (float[n, m] y) { y = Hardmax (x) }", ({"n": 1, "m": 1000}, {"n": 200, "m": 97})),
)  # fmt: skip


def _einsum(equation: str, a: str, b: str, sizes: tuple[Size, ...]) -> OpRow:
    out = ", ".join("uvxyz"[: len(equation.split("->")[1])])
    inputs = ", ".join(f"float[{', '.join(s)}] {n}" for s, n in ((a, "p"), (b, "q")) if s)
    args = ", ".join(n for s, n in ((a, "p"), (b, "q")) if s)
    return OpRow(f"Einsum {equation}", f'({inputs}) => (float[{out}] o) {{ o = Einsum <equation = "{equation}"> ({args}) }}',
                 sizes)  # fmt: skip


MOVEMENT = (
    *(OpRow(f"DepthToSpace of {b}, {mode}", f"(float[n, 48, h, w] x) => (float[n, c, e, f] y) {{"
            f' y = DepthToSpace <blocksize = {b}, mode = "{mode}"> (x) }}', _PLANES)
      for b in (2, 4) for mode in ("DCR", "CRD")),
    OpRow("SpaceToDepth of 2", "(float[n, 12, h, w] x) => (float[n, c, e, f] y) { y = SpaceToDepth <blocksize = 2> (x) }",
          ({"n": 1, "h": 8, "w": 8}, {"n": 1, "h": 160, "w": 160})),
    *(OpRow(f"Pad, {mode}", "(float[n, 16, h, w] x) => (float[n, 16, a, b] y) {"
            f" p = Constant <value = int64[8] {{0, 0, 2, 3, 0, 0, 4, 1}}> ()  y = Pad <mode = \"{mode}\"> (x, p) }}", _PLANES)
      for mode in ("constant", "edge", "reflect", "wrap")),
    OpRow("Where of rank 5", "(bool[a, 1, c, 1, e] i, float[1, b, c, d, 1] x, float[e] z)"
          " => (float[a, b, c, d, e] y) { y = Where (i, x, z) }",
          ({"a": 2, "b": 3, "c": 4, "d": 5, "e": 6}, {"a": 3, "b": 5, "c": 7, "d": 30, "e": 40}),
          made={"i": below(2, kind=np.bool_)}),
    OpRow("Expand to rank 5", "(float[b, 1, d, 1] x, int64[5] s) => (float[e, f, g, h, i] y) { y = Expand (x, s) }",
          ({"b": 5, "d": 30},), made={"s": lambda rng, shape: np.array([3, 5, 7, 30, 40])}),
    OpRow("Tile", "(float[n, m] x) => (float[a, b] y) { r = Constant <value = int64[2] {3, 5}> ()  y = Tile (x, r) }",
          ({"n": 3, "m": 5}, {"n": 100, "m": 130})),
    OpRow("Tile of 3", "(float[n, 3] x) => (float[a, b] y) { r = Constant <value = int64[2] {1, 300}> ()  y = Tile (x, r) }",
          ({"n": 200},)),
    OpRow("Slice by steps", "(float[n, m] x) => (float[a, b] y) { s = Constant <value = int64[2] {-1, 1}> ()"
          " e = Constant <value = int64[2] {-1000000, 1000000}> ()  i = Constant <value = int64[2] {0, 1}> ()"
          " t = Constant <value = int64[2] {-2, 3}> ()  y = Slice (x, s, e, i, t) }", ({"n": 300, "m": 1000},)),
    OpRow("Split of 3", "(float[n, 96, h, w] x) => (float[n, a, h, w] y, float[n, b, h, w] z, float[n, c, h, w] v) {"
          " y, z, v = Split <axis = 1, num_outputs = 3> (x) }", _PLANES),
    *(OpRow(f"Transpose {''.join(map(str, perm))}", "(float[a, b, c, d] x) => (float[e, f, g, h] y) {"
            f" y = Transpose <perm = {list(perm)}> (x) }}",
            ({"a": 2, "b": 3, "c": 5, "d": 7}, {"a": 4, "b": 30, "c": 40, "d": 64}))
      for perm in ((0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (2, 0, 1, 3), (0, 1, 3, 2))),
    _einsum("bhwc,hkc->bhwk", "bhwc", "hkc", ({"b": 1, "h": 14, "w": 14, "c": 64, "k": 14}, {"b": 25, "h": 14, "w": 14, "c": 64, "k": 14})),
    _einsum("bij,bjk->bik", "bij", "bjk", ({"b": 8, "i": 50, "j": 60, "k": 70},)),
    _einsum("ij,jk->ki", "ij", "jk", ({"i": 100, "j": 120, "k": 130},)),
    _einsum("bij,bij->b", "bij", "bij", ({"b": 20, "i": 50, "j": 60},)),
    _einsum("ii->i", "ii", "", ({"i": 500},)),
    _einsum("ij->j", "ij", "", ({"i": 300, "j": 500},)),
    _einsum("i,j->ij", "i", "j", ({"i": 300, "j": 500},)),
    _einsum("bchw,bkc->bkhw", "bchw", "bkc", ({"b": 1, "c": 32, "h": 40, "w": 40, "k": 100},)),
    _einsum("ijk,jil->kl", "ijk", "jil", ({"i": 20, "j": 30, "k": 40, "l": 50},)),
)  # fmt: skip


def _recurrent(op: str, gates: int, hidden: int, sizes: tuple[Size, ...], both: bool = False) -> OpRow:
    ways, outputs = (2, 'direction = "bidirectional", ') if both else (1, "")
    weights = {
        "w": (ways, gates * hidden, 24),
        "r": (ways, gates * hidden, hidden),
        "b": (ways, 2 * gates * hidden),
    }
    return OpRow(f"{op} of {hidden}{', both ways' if both else ''}", f"(float[t, n, 24] x) => (float[t, d, n, {hidden}] y) {{"
                 f" y = {op} <{outputs}hidden_size = {hidden}> (x, w, r, b) }}", sizes, weights)  # fmt: skip


_STEPS = ({"t": 1, "n": 1}, {"t": 50, "n": 1}, {"t": 20, "n": 8})
SIGNALS = (
    *(_recurrent(op, gates, hidden, _STEPS) for op, gates in {"LSTM": 4, "GRU": 3, "RNN": 1}.items() for hidden in (8, 20, 64, 256)),
    _recurrent("LSTM", 4, 33, _STEPS, both=True),
    *(OpRow(f"DFT of {m}", f"(float[n, {m}, 1] x) => (float[n, {m}, 2] y) {{ y = DFT (x) }}", ({"n": 1}, {"n": 20}))
      for m in (64, 127, 257, 400, 512, 1000, 1031, 4096)),
    OpRow("DFT of any length", "(float[n, m, 1] x) => (float[n, m, 2] y) { y = DFT (x) }",
          ({"n": 4, "m": 97}, {"n": 4, "m": 512}, {"n": 4, "m": 1031})),
    OpRow("DFT of 512, one side", "(float[n, 512, 1] x) => (float[n, 257, 2] y) { y = DFT <onesided = 1> (x) }", ({"n": 20},)),
    OpRow("DFT of 400, inverse", "(float[n, 400, 2] x) => (float[n, 400, 2] y) { y = DFT <inverse = 1> (x) }", ({"n": 20},)),
    OpRow("DFT of 256, axis 1", "(float[n, 256, 20, 2] x) => (float[n, 256, 20, 2] y) { a = Constant <value = int64 {1}> ()"
          "  y = DFT (x, , a) }", ({"n": 2},)),
    OpRow("STFT of 400 by 160", "(float[n, m, 1] x) => (float[n, f, 201, 2] y) { s = Constant <value = int64 {160}> ()"
          " l = Constant <value = int64 {400}> ()  y = STFT (x, s, w, l) }",
          ({"n": 1, "m": 1600}, {"n": 1, "m": 48000}), {"w": (400,)}),
    OpRow("STFT of 512 by 256", "(float[n, m, 1] x) => (float[n, f, 257, 2] y) { s = Constant <value = int64 {256}> ()"
          " l = Constant <value = int64 {512}> ()  y = STFT (x, s, w, l) }", ({"n": 1, "m": 48000},), {"w": (512,)}),
    *(OpRow(f"{op}", f"(int64 n) => (float[m] y) {{ y = {op} (n) }}", ({},), made={"n": lambda rng, shape: np.array(400)})
      for op in ("HannWindow", "HammingWindow", "BlackmanWindow")),
    OpRow("MelWeightMatrix", "(int64 b, int64 f, int64 r, float l, float u) => (float[m, k] y) { y = MelWeightMatrix (b, f, r, l, u) }",
          ({},), made={"b": lambda rng, shape: np.array(80), "f": lambda rng, shape: np.array(400),
                       "r": lambda rng, shape: np.array(16000), "l": lambda rng, shape: np.array(0, np.float32),
                       "u": lambda rng, shape: np.array(8000, np.float32)}),
)  # fmt: skip

OP_ROWS = (*CHOICES, *SUPPRESSION, *INDICES, *WINDOWS, *NORMS, *MOVEMENT, *SIGNALS)
