"""Fixtures for every test: golden texts (bless them with --bless), reproducible random numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smelt.importer.plugins import load_all

load_all()  # what walks the tables of ops, sees the families as well
gc.freeze()
gc.set_threshold(200_000, 20, 20)  # as a compile's own process has it: a tenth of the tests' time

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bless", action="store_true", help="write what the tests produce into tests/golden"
    )
    parser.addoption(
        "--every-model", action="store_true", help="large models on devices, too, which takes minutes each"
    )


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


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20240229)
