"""Operators that choose, put in order or pick elements -> rows that benchmarks/ops.py measures: a model in
ONNX's text form, sizes, and inputs whose elements decide how much there is to do."""

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
    """An operator's model without head, the values of its symbols, its weights (name -> shape), the inputs
    that are no random numbers from -1 to 1, and its opset."""

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
    """Each element of a row greater than those before: the worst order for a choice of the largest."""
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
    *(
        _top(f"TopK of {k}", "n, m", str(k), sizes)
        for k, sizes in {
            1: ({"n": 1, "m": 80}, {"n": 1, "m": 8400}, {"n": 200, "m": 1000}, {"n": 1, "m": 500000}),
            5: ({"n": 1, "m": 1000}, {"n": 200, "m": 1000}, {"n": 1, "m": 50257}),
            40: ({"n": 1, "m": 1000}, {"n": 1, "m": 50257}, {"n": 64, "m": 1000}),
            100: ({"n": 1, "m": 300}, {"n": 1, "m": 8400}, {"n": 16, "m": 8400}, {"n": 1, "m": 120000}),
            300: ({"n": 1, "m": 8400}, {"n": 1, "m": 80000}, {"n": 8, "m": 20000}),
            1000: ({"n": 1, "m": 8400}, {"n": 2, "m": 50000}, {"n": 1, "m": 250000}),
        }.items()
    ),
    *(
        _top(
            f"TopK of all, {name}",
            "n, m",
            "m",
            ({"n": 1, "m": 100}, {"n": 50, "m": 1000}, {"n": 1, "m": 50000}),
            f,
        )
        for name, f in {"random": None, "equal": equal, "rising": rising, "few values": ties(9)}.items()
    ),
    *(
        _top(f"TopK of 100, {name}", "n, m", "100", ({"n": 1, "m": 8400}, {"n": 1, "m": 120000}), f)
        for name, f in {"equal": equal, "rising": rising, "few values": ties(9)}.items()
    ),
    *(
        _top(f"TopK of 5, {name}", "n, m", "5", ({"n": 1, "m": 8400}, {"n": 64, "m": 1000}), f)
        for name, f in {"equal": equal, "rising": rising, "few values": ties(9)}.items()
    ),
    _top(
        "TopK of 5, axis 1 of 3",
        "n, m, c",
        "5",
        ({"n": 2, "m": 1000, "c": 80}, {"n": 1, "m": 85, "c": 5000}),
        more="1",
    ),
    _top("TopK of 100, axis 1 of 3", "n, m, c", "100", ({"n": 2, "m": 1000, "c": 80},), more="1"),
    _top("TopK of 300, axis 0", "m, c", "300", ({"m": 8400, "c": 4},), more="0"),
    *(
        OpRow(
            f"ArgMax, axis {axis} of 3",
            f"(float[n, m, c] x) => (int64[a, b, d] y) {{ y = ArgMax <axis = {axis}> (x) }}",
            ({"n": 4, "m": 30, "c": 50}, {"n": 8, "m": 200, "c": 300}),
        )
        for axis in (0, 1, 2)
    ),
    OpRow(
        "ArgMax, last",
        "(float[n, m] x) => (int64[n] y) { y = ArgMax <axis = 1, keepdims = 0, select_last_index = 1> (x) }",
        ({"n": 1, "m": 50257}, {"n": 500, "m": 80}, {"n": 20000, "m": 4}),
    ),
    *(
        OpRow(
            f"NonZero, {share:.0%}",
            "(float[n, m] x) => (int64[2, k] y) { y = NonZero (x) }",
            ({"n": 3, "m": 40}, {"n": 100, "m": 1000}, {"n": 1000, "m": 1000}),
            made={"x": ones_at(share)},
        )
        for share in (0.0, 0.01, 0.5, 1.0)
    ),
    OpRow(
        "NonZero of rank 1",
        "(int64[m] x) => (int64[1, k] y) { y = NonZero (x) }",
        ({"m": 100}, {"m": 100000}),
        made={"x": below(2)},
    ),
    OpRow(
        "Compress, axis 0",
        "(float[n, m] x, bool[n] c) => (float[k, m] y) { y = Compress <axis = 0> (x, c) }",
        ({"n": 100, "m": 64}, {"n": 5000, "m": 256}),
        made={"c": below(2, kind=np.bool_)},
    ),
    *(
        OpRow(
            f"Unique, sorted={by}, {name}",
            "(float[m] x)"
            " => (float[k] y, int64[k] i, int64[m] j, int64[k] c) {"
            f" y, i, j, c = Unique <sorted = {by}> (x) }}",
            ({"m": 100}, {"m": 5000}, {"m": 100000}),
            made={"x": f},
        )
        for by in (0, 1)
        for name, f in {"few values": ties(50), "all different": spread(-1, 1)}.items()
    ),
    OpRow(
        "Unique of rows",
        "(int64[n, 8] x) => (int64[k, 8] y) { y = Unique <axis = 0> (x) }",
        ({"n": 30}, {"n": 2000}),
        made={"x": below(3)},
    ),
)


_SCORES = spread(0, 1)


def _suppression(
    name: str,
    most: int,
    overlap: float,
    least: float,
    sizes: tuple[Size, ...],
    box: Made = boxes,
    score: Made = _SCORES,
) -> OpRow:
    text = (
        "(float[b, n, 4] x, float[b, c, n] s) => (int64[k, 3] y) {"
        f" m = Constant <value = int64 {{{most}}}> ()  o = Constant <value = float {{{overlap}}}> ()"
        f" l = Constant <value = float {{{least}}}> () "
        f" y = NonMaxSuppression (x, s, m, o, l) }}"
    )
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
        OpRow(
            f"ScatterElements {reduction}, axis 0",
            "(float[n, m] x, int64[k, m] i, float[k, m] u) =>"
            f" (float[n, m] y) {{ y = ScatterElements <axis = 0, {told}> (x, i, u) }}",
            ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 500}),
            made={"i": below(8)},
        ),
        OpRow(
            f"ScatterElements {reduction}, axis 1",
            "(float[n, m] x, int64[n, k] i, float[n, k] u) =>"
            f" (float[n, m] y) {{ y = ScatterElements <axis = 1, {told}> (x, i, u) }}",
            ({"n": 1000, "m": 64, "k": 50},),
            made={"i": below(64)},
        ),
        OpRow(
            f"ScatterND {reduction}, rows",
            "(float[n, m] x, int64[k, 1] i, float[k, m] u)"
            " => (float[n, m] y) {"
            f" y = ScatterND <{told}> (x, i, u) }}",
            ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 3000}),
            made={"i": below(8)},
        ),
        OpRow(
            f"ScatterND {reduction}, elements",
            "(float[n, m] x, int64[k, 2] i, float[k] u)"
            " => (float[n, m] y) {"
            f" y = ScatterND <{told}> (x, i, u) }}",
            ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 30000}),
            made={"i": below(8)},
        ),
    )


INDICES = (
    *(row for kind in ("none", "add", "mul", "max", "min") for row in _scatter(kind)),
    OpRow(
        "GatherND of rows",
        "(float[n, m] x, int64[k, 1] i) => (float[k, m] y) { y = GatherND (x, i) }",
        ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 3000}),
        made={"i": below(8)},
    ),
    OpRow(
        "GatherND of elements",
        "(float[n, m] x, int64[k, 2] i) => (float[k] y) { y = GatherND (x, i) }",
        ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 30000}),
        made={"i": below(8)},
    ),
    OpRow(
        "GatherND, batches",
        "(float[b, n, m] x, int64[b, k, 1] i) => (float[b, k, m] y) { y = GatherND <batch_dims = 1> (x, i) }",
        ({"b": 8, "n": 50, "m": 32, "k": 70},),
        made={"i": below(50)},
    ),
    OpRow(
        "GatherElements, axis 0",
        "(float[n, m] x, int64[k, m] i) => (float[k, m] y) { y = GatherElements <axis = 0> (x, i) }",
        ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 3000}),
        made={"i": below(8)},
    ),
    OpRow(
        "GatherElements, axis 1",
        "(float[n, m] x, int64[n, k] i) => (float[n, k] y) { y = GatherElements <axis = 1> (x, i) }",
        ({"n": 8, "m": 16, "k": 5}, {"n": 1000, "m": 64, "k": 30}),
        made={"i": below(16)},
    ),
    OpRow(
        "Gather, axis 1",
        "(float[n, m, 32] x, int64[k] i) => (float[n, k, 32] y) { y = Gather <axis = 1> (x, i) }",
        ({"n": 8, "m": 50, "k": 70},),
        made={"i": below(50)},
    ),
    OpRow(
        "Gather, last axis",
        "(float[n, m] x, int64[k] i) => (float[n, k] y) { y = Gather <axis = 1> (x, i) }",
        ({"n": 8, "m": 50, "k": 70}, {"n": 1000, "m": 64, "k": 30}),
        made={"i": below(50)},
    ),
    OpRow(
        "OneHot",
        "(int64[n, m] i) => (float[n, m, 50] y) { d = Constant <value = int64[1] {50}> ()"
        " v = Constant <value = float[2] {0, 1}> ()  y = OneHot (i, d, v) }",
        ({"n": 1, "m": 10}, {"n": 50, "m": 100}),
        made={"i": below(50)},
    ),
    OpRow(
        "OneHot, axis 1",
        "(int64[n, m] i) => (float[n, 50, m] y) { d = Constant <value = int64[1] {50}> ()"
        " v = Constant <value = float[2] {0, 1}> ()  y = OneHot <axis = 1> (i, d, v) }",
        ({"n": 50, "m": 100},),
        made={"i": below(50)},
    ),
    OpRow(
        "Trilu",
        "(float[b, n, m] x) => (float[b, n, m] y) { y = Trilu <upper = 0> (x) }",
        ({"b": 1, "n": 20, "m": 20}, {"b": 4, "n": 300, "m": 500}),
    ),
    OpRow("EyeLike", "(float[n, m] x) => (float[n, m] y) { y = EyeLike (x) }", ({"n": 300, "m": 500},)),
    OpRow(
        "ReverseSequence",
        "(float[t, n, 64] x, int64[n] l) => (float[t, n, 64] y) { y = ReverseSequence (x, l) }",
        ({"t": 50, "n": 8},),
        made={"l": below(50, 1)},
    ),
    *(
        OpRow(
            f"CumSum, axis {axis} of 3{more and ', '}{more}",
            "(float[n, m, c] x) => (float[n, m, c] y) {"
            f" a = Constant <value = int64 {{{axis}}}> ()  y = CumSum <{told}> (x, a) }}",
            ({"n": 4, "m": 30, "c": 50}, {"n": 20, "m": 200, "c": 100}),
        )
        for axis in (0, 1, 2)
        for more, told in {"": "reverse = 0", "reverse, exclusive": "reverse = 1, exclusive = 1"}.items()
    ),
    OpRow(
        "CumSum of integers",
        "(int64[n, m] x) => (int64[n, m] y) { a = Constant <value = int64 {1}> ()  y = CumSum (x, a) }",
        ({"n": 1, "m": 100}, {"n": 50, "m": 1000}),
    ),
)

OP_ROWS = (*CHOICES, *SUPPRESSION, *INDICES)
