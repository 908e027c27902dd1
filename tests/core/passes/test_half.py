"""Values and weights in f16: which ones, and that kernels compute what they did."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.core.dim import to_dim
from smelt.core.dtype import f16, f32, i64
from smelt.core.ir.graph import Module, Ref, Weight
from smelt.core.ir.text import parse_module, print_module
from smelt.core.ir.verify import verify
from smelt.core.passes.context import Options
from smelt.core.passes.lowering.half import SMALL_WEIGHT, decide, half
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from tests.core.passes.build import CONTEXT, Build, feeds, run
from tests.core.passes.random_graphs import Random

HALF = [p.name for p in PIPELINE].index("half")
SIZES = {"N": 2, "M": 3, "K": 2, "H": 5, "W": 4, "S": 3}
APART = Options(fp16=True, fuse_nodes=1)
"""Every node a kernel of its own, so that every value is stored."""
JUMPS = frozenset({
    "floor", "ceil", "round", "sign", "equal", "less", "greater", "argmax", "argmin", "topk", "cast",
})  # fmt: skip
"""Ops that may fall on the other side when an operand changes in its last bit."""


def halved(module: Module, options: Options = APART) -> Module:
    after = run_pipeline(module, PIPELINE, CONTEXT.with_(options=options, verify=True))
    verify(after, "lowered")
    assert parse_module(print_module(after)) == after
    return after


def close(before: Module, after: Module, inputs: dict[str, Any], limit: float = 1e-2) -> None:
    for a, b in zip(run(before, inputs), run(after, inputs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        assert np.isfinite(a).tolist() == np.isfinite(b).tolist()
        good = np.isfinite(a)
        size = float(np.abs(a[good]).max(initial=0.0))
        np.testing.assert_allclose(b[good], a[good], rtol=limit, atol=limit * size)


@pytest.mark.table(2)
@pytest.mark.parametrize("seed", range(0, 120, 3))
def test_random_graphs_mean_nearly_the_same(seed: int) -> None:
    module = Random(seed).module()
    inputs = feeds(module, SIZES, seed, low=-1, high=1)
    for options in (APART, Options(fp16=True)):
        plain = run_pipeline(module, PIPELINE, CONTEXT.with_(options=replace(options, fp16=False)))
        after = halved(module, options)
        assert after.main.inputs == plain.main.inputs
        if JUMPS.isdisjoint(n.op for n in module.main.nodes):
            close(plain, after, inputs, 3e-2)


def test_without_the_option_nothing_changes() -> None:
    b = Build("f32[N, 3]")
    module = run_pipeline(b.done(b("relu", b("relu", b.inputs[0]))), PIPELINE, CONTEXT)
    assert half(module, CONTEXT) is module


# ---------------------------------------------------------------- which values

Make = Callable[[Build, Ref, Ref], Ref]

STAYS: dict[str, tuple[Make, str]] = {
    "square": (lambda b, x, n: b("mul", x, x), "power"),
    "variance": (
        lambda b, x, n: b("reduce_mean", b("mul", x, x), axes=(1,), keepdims=True), "power"
    ),
    "exponential": (lambda b, x, n: b("exp", x), "exp"),
    "total": (lambda b, x, n: b("reduce_sum", x, axes=(0, 1), keepdims=True), "sum"),
    "running_total": (
        lambda b, x, n: b("cumsum", x, axis=1, exclusive=False, reverse=False), "running"
    ),
    "positions": (lambda b, x, n: b("cast", n, to=f32), "made of integers"),
    "angles": (
        lambda b, x, n: b("mul", b("cast", n, to=f32), b.weight([0.5, 0.25, 0.125])), "made of integers"
    ),
    "inverse": (lambda b, x, n: b("div", b.weight(1.0), x), "reciprocal"),
}  # fmt: skip

HALVES: dict[str, Make] = {
    "relu": lambda b, x, n: b("relu", x),
    "sum_of_features": lambda b, x, n: b("add", x, b("relu", x)),
    "sines": lambda b, x, n: b("sin", b("cast", n, to=f32)),
    "mean": lambda b, x, n: b("reduce_mean", x, axes=(1,), keepdims=True),
    "sigmoid": lambda b, x, n: b("sigmoid", x),
    "elu": lambda b, x, n: b("elu", x, alpha=1.0),
    "softmax": lambda b, x, n: b("softmax", x, axis=1),
    "deviation": lambda b, x, n: b("sqrt", b("mul", x, x)),
    "mask": lambda b, x, n: b("where", b("less", x, b.weight(0.0)), x, b.weight(-3.4e38)),
}


def _chain(make: Make) -> tuple[Module, Module]:
    """(before, after) of abs(f(relu(x), n)), every step in memory."""
    b = Build("f32[N, 3]", "i64[N, 3]")
    y = make(b, b("relu", b.inputs[0]), b.inputs[1])
    module = b.done(b("abs", y))
    return module, halved(module)


@pytest.mark.parametrize("name", STAYS)
def test_what_needs_range_or_digits_stays(name: str) -> None:
    make, why = STAYS[name]
    module, after = _chain(make)
    lowered = run_pipeline(module, PIPELINE[:HALF], CONTEXT.with_(options=APART))
    assert why in " ".join(decide(lowered).kept.values())
    last = [n for n in after.main.nodes if n.op == "call_kernel"][-1]
    assert all(t == f32 for t in _types(after, last.inputs))


@pytest.mark.parametrize("name", HALVES)
def test_features_become_halves(name: str) -> None:
    module, after = _chain(HALVES[name])
    last = [n for n in after.main.nodes if n.op == "call_kernel"][-1]
    assert all(t == f16 for t in _types(after, last.inputs))
    inputs = feeds(module, {"N": 4}, 1)
    if name == "mask":  # finite, but cut to what f16 holds
        assert np.isfinite(run(after, inputs)[0]).all()
    else:
        close(module, after, inputs)


def _types(module: Module, refs: tuple[Ref, ...]) -> list[Any]:
    values = module.main.values()
    return [values[r].type.dtype if r in values else module.weights[r].dtype for r in refs]


def test_finite_numbers_stay_finite_and_infinities_infinite() -> None:
    b = Build("f32[N]")
    moved = b("mul", b("relu", b.inputs[0]), b.weight(1e30))
    module = b.done(b("neg", moved))
    (y,) = run(halved(module), {"x0": np.array([1.0, 0.0, np.inf, np.nan], np.float32)})
    np.testing.assert_array_equal(y, np.array([-65504.0, 0.0, -np.inf, np.nan], np.float32))


def test_a_masked_row_is_no_nan() -> None:
    b = Build("f32[N, 3]", "bool[N, 3]")
    masked = b("where", b.inputs[1], b.inputs[0], b.weight(np.finfo(np.float32).min))
    module = b.done(b("softmax", b("relu", b("neg", b("neg", masked))), axis=1), b("softmax", masked, axis=1))
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    outputs = run(halved(module), {"x0": x, "x1": np.array([[True, True, False], [False] * 3])})
    np.testing.assert_allclose(outputs[1][1], np.full(3, 1 / 3), rtol=1e-3)
    assert all(np.isfinite(y).all() for y in outputs)


# ---------------------------------------------------------------- which weights

RNG = np.random.default_rng(0)
WEIGHTS: dict[str, tuple[Any, bool]] = {
    "usual": (RNG.normal(0, 0.05, (128, 64)), True),
    "with_infinities": (np.where(RNG.random((128, 64)) < 0.1, -np.inf, 1.5), True),
    "mostly_zeros": (np.where(RNG.random((128, 64)) < 0.9, 0, 0.5), True),
    "small": (RNG.normal(0, 0.05, (SMALL_WEIGHT // 64, 64)), False),
    "large_numbers": (RNG.normal(0, 1e5, (128, 64)), False),
    "mask": (np.where(RNG.random((128, 64)) < 0.5, np.finfo(np.float32).min, 0), False),
    "near_zero": (RNG.normal(0, 1e-5, (128, 64)), False),
    "long_integers": (np.arange(128 * 64).reshape(128, 64), False),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str) -> None:
    array, becomes = WEIGHTS[name]
    b = Build("f32[N, 64]")
    w = b.weight(array)
    rows = b("reshape", b.inputs[0], shape=(b.g.shape(b.inputs[0])[0], to_dim(1), to_dim(64)))
    module = b.done(b("relu", b("add", b("relu", rows), w)))
    after = halved(module)
    assert {x.dtype for x in after.weights.values()} == {f16 if becomes else f32}
    x = feeds(module, {"N": 2})
    if becomes:
        close(module, after, x)


def test_a_weight_in_a_file_is_converted_as_it_is_read(tmp_path: Path) -> None:
    data = RNG.normal(0, 1, (300, 40)).astype(np.float32)
    (tmp_path / "w").write_bytes(b"head" + data.tobytes())
    w = Weight("@w", f16, data.shape, path=tmp_path / "w", offset=4, stored=f32)
    want = data.astype(np.float16)
    np.testing.assert_array_equal(w.array(), want)
    np.testing.assert_array_equal(np.concatenate(list(w.pieces())).reshape(300, 40), want)
    np.testing.assert_array_equal(w.window((300, 40), 1, 7, 20), want[:, 7:20])
    np.testing.assert_array_equal(w.window((300, 40), 0, 100, 200), want[100:200])
    assert w.bytes == 2 * 300 * 40
    assert w.digest == Weight("@w", f16, data.shape, want).digest


def test_integers_and_conditions_are_left_alone() -> None:
    b = Build("f32[N, 3]", "i64[N, 3]")
    module = b.done(b("cast", b("relu", b("relu", b.inputs[0])), to=i64), b("add", b.inputs[1], b.inputs[1]))
    after = halved(module)
    assert all(v.type.dtype in (f16, i64) for n in after.main.nodes for v in n.outputs)
    assert math.isfinite(float(run(after, feeds(module, {"N": 2}))[0].sum()))
