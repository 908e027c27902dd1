"""Random graphs mean the same after every pass, verify after every pass, and keep their types."""

from __future__ import annotations

import pytest

from smelt.core.ir.graph import Module
from smelt.core.ir.text import parse_module, print_module
from smelt.core.ir.verify import verify
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.passes.recheck import recheck
from tests.core.passes.build import CONTEXT, assert_same, feeds
from tests.core.passes.random_graphs import Random

SIZES = {"N": 2, "M": 3, "K": 2, "H": 5, "W": 4, "S": 3}


@pytest.mark.table(2)
@pytest.mark.parametrize("seed", range(120))
def test_every_pass_keeps_the_meaning(seed: int) -> None:
    module = Random(seed).module()
    inputs = feeds(module, SIZES, seed, low=-1, high=1)
    stages: list[tuple[str, Module, Module]] = []
    verify(module)
    after = run_pipeline(
        module, PIPELINE, CONTEXT.with_(on_pass=(lambda a, name, b: stages.append((name, a, b)),))
    )
    for name, a, b in stages:
        if a is b or print_module(a) == print_module(b):
            continue
        verify(b, "lowered" if name == "lower" else "graph")
        recheck(b)
        assert_same(module, b, inputs)
    assert parse_module(print_module(after)) == after


@pytest.mark.parametrize("seed", range(0, 120, 13))
def test_the_same_input_gives_the_same_text(seed: int) -> None:
    texts = {print_module(run_pipeline(Random(seed).module(), PIPELINE, CONTEXT)) for _ in range(2)}
    assert len(texts) == 1
