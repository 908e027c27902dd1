"""What judges every pass and rule: near enough is stated, and what is farther away is found."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt.core.dtype import u8
from smelt.core.ir.text import parse_module
from smelt.core.passes.equivalence import as_function, difference
from smelt.core.passes.numerics import EXACT, INTEGERS, SUMS, WIDER
from tests.core.passes.build import Build

Array = np.ndarray[Any, Any]
STEPS = (np.arange(400) % 50).astype(np.float32) * np.float32(0.25)
"""Each in the middle between two ties: numbers that are a little off are rounded to the same."""


def found(wanted: Array, given: Array, kind: str = INTEGERS, scale: float = 0.25) -> bool:
    """Whether two results of a quantised model count as different."""
    b = Build("f32[N]")
    step = b.weight(scale)
    y = b("dequantize", b("quantize", b.inputs[0], step, axis=-1, to=u8), step, axis=-1)
    module = b.done(y)
    known = (lambda _: (wanted,), lambda _: (given,))
    return difference(module, module, kind, iter([{"x0": STEPS}]), known) is not None


def moved(count: int, steps: float) -> Array:
    y = STEPS.copy()
    y[:count] += np.float32(0.25 * steps)
    return y


@pytest.mark.parametrize(
    ("count", "steps", "differs"),
    [(0, 0, False), (8, 1, False), (8, -1, False),
     (9, 1, True), (400, 1, True), (1, 2, True), (1, 0.3, True)],
)  # fmt: skip
def test_a_tie_goes_either_way_for_a_few_elements(count: int, steps: float, differs: bool) -> None:
    """2 % of the elements, by one step of the values that occur: no more, no farther, nothing between."""
    assert found(STEPS, moved(count, steps)) is differs
    assert found(STEPS, moved(count, steps), EXACT) is (count > 0)


def test_bytes_of_a_few_elements_may_be_one_step_away() -> None:
    wanted = (np.arange(400) % 200).astype(np.uint8)
    for count, by, differs in ((8, 1, False), (9, 1, True), (1, 2, True)):
        given = wanted.copy()
        given[:count] += np.uint8(by)
        assert found(wanted, given) is differs


def test_infinite_scales_are_not_compared_and_finite_ones_are() -> None:
    """With an infinite scale some bytes stand for NaN, and sums of integers do not: documented."""
    given = np.full(400, np.nan, np.float32)
    assert found(STEPS, given, scale=0.25)
    assert not found(STEPS, given, scale=np.inf)


def one_of(values: list[float], wrong: float) -> tuple[Array, Array]:
    """400 elements of these values, and the same with one changed."""
    x = np.array(values, np.float32)[np.arange(400) % len(values)]
    y = x.copy()
    y[0] = wrong
    return x, y


@pytest.mark.parametrize(
    ("values", "wrong", "differs"),
    [([0], 5, True), ([1], 100, True), ([0, 1], 1.5, True), ([0, 8], 4, True), ([3], 1000, True),
     ([0, 0.25, 0.5], 0.25, False), ([0, 0.25, 0.5], -0.25, False), ([0, 0.25, 0.5], 0.5, True)],
)  # fmt: skip
def test_few_values_tell_no_step(values: list[float], wrong: float, differs: bool) -> None:
    """The wrong value itself must not be what says how far apart two steps are."""
    wanted, found = one_of(values, wrong)
    b = Build("f32[N]")
    module = b.done(b("relu", b.inputs[0]))
    known = (lambda _: (wanted,), lambda _: (found,))
    assert (difference(module, module, INTEGERS, iter([{"x0": wanted}]), known) is not None) is differs


LOG_SOFTMAX = """module "form" {
  graph @main(%x: bf16[1, 4] from "x") -> (%y as "y") {
    %m = reduce_max(%x) {axes = (1,), keepdims = true} : bf16[1, 1]
    %d = sub(%x, %m) : bf16[1, 4]
    %e = exp(%d) : bf16[1, 4]
    %s = reduce_sum(%e) {axes = (1,), keepdims = true} : bf16[1, 1]
    %l = log(%s) : bf16[1, 1]
    %y = sub(%d, %l) : bf16[1, 4]
  }
}
"""


@pytest.mark.parametrize(("off", "kind", "differs"), [
    (-0.00036, WIDER, False), (-0.00036, SUMS, True), (-0.5, WIDER, True), (0.5, WIDER, True)
])  # fmt: skip
def test_what_stays_wider_need_not_lose_what_16_bits_do(off: float, kind: str, differs: bool) -> None:
    """exp(0) + 2 exp(-8.6) is 1 in bf16, and 1.00036 in f32, of which the logarithm is not 0."""
    module = parse_module(LOG_SOFTMAX)
    x = np.array([[-20, -8.625, -8.625, 0]], ml_dtypes.bfloat16)
    (wanted,) = as_function(module)({"x": x})
    assert wanted[0, 3] == 0
    given = wanted.copy()
    given[0, 3] = off
    known = (as_function(module), lambda _: (given,))
    assert (difference(module, module, kind, iter([{"x": x}]), known) is not None) is differs
