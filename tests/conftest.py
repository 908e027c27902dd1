"""Fixtures for every test: golden texts (bless them with --bless), reproducible random numbers; and which
cases of large tables of tests are run."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from smelt.importer.plugins import load_all

load_all()  # what walks the tables of ops, sees the families as well
gc.freeze()
gc.set_threshold(200_000, 20, 20)  # as a compile's own process has it: a tenth of the tests' time

# How long a draw takes says how busy the machine is. A change is judged by the same examples each time;
# `--hypothesis-profile searching` draws others.
for profile, fixed in (("searching", False), ("fixed", True)):
    hypothesis.settings.register_profile(
        profile, deadline=None, derandomize=fixed, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("fixed")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bless", action="store_true", help="write what the tests produce into tests/golden"
    )
    parser.addoption(
        "--every-model", action="store_true", help="large models on devices, too, which takes minutes each"
    )
    parser.addoption(
        "--whole-tables", action="store_true", help="all cells of tables of tests that are marked `table`"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "table(n, k=0): of a test with several parameters one cell in n is run, so that each value of each"
        " parameter is, where it has n values or more; of a test with one parameter, the values from the"
        " (n - k)th on, every nth, where other tests have the rest of them. --whole-tables runs them all",
    )


@pytest.hookimpl(tryfirst=True)  # the places of cells do not depend on -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--whole-tables"):
        run = [is_run(item, at) for item, at in zip(items, places(items), strict=True)]
        config.hook.pytest_deselected(items=[item for item, yes in zip(items, run, strict=True) if not yes])
        items[:] = [item for item, yes in zip(items, run, strict=True) if yes]


def places(items: Sequence[pytest.Item]) -> list[list[int]]:
    """Of each item the number of its value on each axis of its table. pytest 9 numbers the cells instead:
    with two axes, every second cell had the first and the third of four processors, never the others."""
    seen: dict[tuple[str, int], dict[str, int]] = {}

    def place(item: pytest.Item) -> list[int]:
        call, name = getattr(item, "callspec", None), item.nodeid.partition("[")[0]
        axes = [(seen.setdefault((name, n), {}), word) for n, word in enumerate(call._idlist if call else ())]
        return [axis.setdefault(word, len(axis)) for axis, word in axes]

    return [place(item) for item in items]


def is_run(item: pytest.Item, at: Sequence[int]) -> bool:
    """Whether the cell is on one of the diagonals of its table that are run."""
    mark = item.get_closest_marker("table")
    if mark is None or not at:
        return True
    one_in, *shift = mark.args
    return (sum(at) + sum(shift)) % one_in == 0


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden('text/gemm.smelt', produced): compares with the file under tests/golden, or writes it when
    blessing. A file with a `# ---` line keeps what stands before it (a header and the input)."""
    bless = bool(request.config.getoption("--bless"))

    def check(name: str, produced: str) -> None:
        path = GOLDEN / name
        old = path.read_text() if path.exists() else ""
        head, mark, expected = old.partition("# ---\n")
        if not mark:
            head, expected = "", old
        if bless:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(head + mark + produced)
            return
        assert old, f"{path} is missing; run pytest --bless"
        assert produced == expected

    return check


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run of the tests, the same one for all processes that share it."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20240229)
