"""Where a window's maximum is found axis by axis, and what that takes."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.core.passes.whole_graph.pools import best_axis

SIZES = st.lists(st.tuples(st.integers(1, 13), st.integers(1, 4)), min_size=1, max_size=3)


@given(SIZES)
def test_an_axis_is_chosen_where_less_is_compared(sizes: list[tuple[int, int]]) -> None:
    kernel, strides = [k for k, _ in sizes], [s for _, s in sizes]
    axis = best_axis(kernel, strides)
    if axis is not None:
        before = kernel[axis] * prod(s for a, s in enumerate(strides) if a != axis)
        assert 1 < kernel[axis] < prod(kernel)
        assert before + prod(kernel) // kernel[axis] < prod(kernel)


@pytest.mark.parametrize(
    ("kernel", "strides", "chosen"),
    [
        ((3,), (1,), None),
        ((13, 1), (1, 1), None),
        ((2, 2), (2, 2), None),
        ((3, 3), (2, 2), None),
        ((3, 3), (1, 1), 0),
        ((13, 13), (1, 1), 0),
        ((7, 7), (2, 1), 0),
        ((7, 7), (1, 2), 1),
        ((3, 3, 3), (1, 1, 1), 0),
    ],
)
def test_choice(kernel: tuple[int, ...], strides: tuple[int, ...], chosen: int | None) -> None:
    """The strided axis first, which leaves less; none where windows hardly overlap or have one axis."""
    assert best_axis(kernel, strides) == chosen
