"""Of a table of tests the cells that are run have every value of every parameter."""

from __future__ import annotations

from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import is_run


def cell(n: int | None, *indices: int) -> Any:
    """A test's item at these places of its parameters, in a table of which one cell in n is run."""
    mark = None if n is None else SimpleNamespace(args=(n,))
    spec = SimpleNamespace(indices=dict(enumerate(indices)))
    return SimpleNamespace(get_closest_marker=lambda name: mark, callspec=spec)


@pytest.mark.parametrize("sizes", [(3, 3), (6, 102), (5, 19), (3, 4, 5)])
def test_one_in_three_has_every_value(sizes: tuple[int, ...]) -> None:
    cells = [at for at in product(*map(range, sizes)) if is_run(cell(3, *at))]
    assert [len(set(values)) for values in zip(*cells, strict=True)] == [*sizes]
    whole = prod(sizes)
    assert whole / 4 < len(cells) < whole / 2


def test_others_are_run_whole() -> None:
    assert all(is_run(cell(None, k)) for k in range(5))
