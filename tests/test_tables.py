"""Of a table of tests the cells that are run have every value of every parameter."""

from __future__ import annotations

from itertools import product
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import is_run, places


def cell(n: int | None, *words: str) -> Any:
    """A test's item with these values' names, in a table of which one cell in n is run."""
    mark = None if n is None else SimpleNamespace(args=(n,))
    spec = SimpleNamespace(_idlist=words)
    return SimpleNamespace(nodeid="t[x]", get_closest_marker=lambda name: mark, callspec=spec)


def run(n: int | None, *sizes: int) -> list[list[int]]:
    """The places of the cells that are run of a table with so many values on each axis."""
    cells = [cell(n, *(f"v{k}" for k in at)) for at in product(*map(range, sizes))]
    return [at for item, at in zip(cells, places(cells), strict=True) if is_run(item, at)]


@pytest.mark.parametrize("sizes", [(3, 3), (6, 102), (5, 19), (3, 4, 5)])
def test_one_in_three_has_every_value(sizes: tuple[int, ...]) -> None:
    cells = run(3, *sizes)
    assert [len(set(values)) for values in zip(*cells, strict=True)] == [*sizes]
    whole = prod(sizes)
    assert whole / 4 < len(cells) < whole / 2


@pytest.mark.table(2)
@pytest.mark.parametrize("second", range(4))
@pytest.mark.parametrize("first", range(3))
def test_pytest_says_which_values_a_cell_has(first: int, second: int, request: pytest.FixtureRequest) -> None:
    assert list(request.node.callspec._idlist) == [str(first), str(second)]
    assert (first + second) % 2 == 0 or request.config.getoption("--whole-tables")


def test_others_are_run_whole() -> None:
    assert len(run(None, 5)) == 5
