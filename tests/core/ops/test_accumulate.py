"""The law of integer sums: what it says fits does fit, and one term more does not."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.core.dim import NO, UNKNOWN, YES, Facts, sym, to_dim
from smelt.core.dtype import i8, u8
from smelt.core.ops.accumulate import fits, fits_constant, most_terms, reach

CASES = [(u8, 0, i8, 0), (u8, 128, i8, 0), (u8, 3, u8, 250), (i8, -128, i8, 127), (u8, None, u8, None)]


@pytest.mark.parametrize(("a", "za", "b", "zb"), CASES, ids=str)
def test_the_largest_sum_fits_and_one_term_more_does_not(
    a: object, za: int | None, b: object, zb: int | None
) -> None:
    left, right = reach(a, za), reach(b, zb)  # type: ignore[arg-type]
    k = most_terms(left, right)
    for terms, truth in ((k, YES), (k + 1, NO)):
        assert fits(Facts(), to_dim(terms), left, right) is truth
        exact = terms * left * right
        assert (np.int64(exact).astype(np.int32) == exact) == (truth is YES)


def test_an_unknown_number_of_terms_is_asked_at_run_time() -> None:
    facts = Facts().with_range("K", 0, 40_000)
    assert fits(facts, sym("K"), 255, 255) is UNKNOWN
    assert fits(facts, sym("K"), 128, 128) is YES
    assert fits(Facts(), sym("K"), 1, 1) is UNKNOWN


def test_a_known_operand_is_taken_at_its_word() -> None:
    weight = np.ones((70_000, 2), np.int8)
    assert fits_constant(255, weight, 0, (0,)) is YES  # though 70,000 products of bytes need not fit
    weight[:, 1] = -127
    assert fits_constant(255, weight, 0, (0,)) is NO
    assert fits_constant(1, weight, 0, (0,), np.array([0, 2**31 - 1])) is NO
