"""The small models of the suite before and after every pass: golden files, and what tests/support offers."""

from __future__ import annotations

from pathlib import Path

import pytest
from attack_passes import KINDS, MACHINE, attack_source, validated
from model_sources import ELSEWHERE, FORMS, SOURCES
from rule_forms import build, mutant

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.ir.text import parse_module
from smelt.core.passes.context import Context
from smelt.core.passes.equivalence import validator
from smelt.core.passes.manager import Pass, run_pipeline
from smelt.core.passes.numerics import EXACT
from tests.core.passes.random_graphs import Random

GOLDEN = Path(__file__).parents[1] / "golden" / "passes"
SUPPORT = Path(__file__).parents[1] / "support"


WRITTEN = ("sequence_models", "text_models", "onnx_models")
"""Recorded from tests that run for it, which takes seconds: one of them a day here, all in `make fuzz`.
ONNX's shipped cases take as long to load."""


@pytest.mark.parametrize("name", [n for n in SOURCES if n not in (*WRITTEN, "rule_forms", "op_shipped")])
def test_small_models(name: str) -> None:
    for seed in range(1 + (name != "decoder_models")):  # a decoder takes as long as all others
        outcome = attack_source(name, seed)
        assert not outcome.failed, outcome.detail


def test_models_that_tests_write() -> None:
    for seed in range(3):  # those of the other files run in `make fuzz`
        outcome = attack_source(WRITTEN[0], seed)
        assert not outcome.failed, outcome.detail


def test_every_maker_of_models_is_a_source() -> None:
    """Models that tests/support makes are held to every pass, or it is said why not."""
    makers = {p.stem for p in SUPPORT.glob("*_models.py")} | {"forests"}
    assert makers <= {*SOURCES, *ELSEWHERE}, "add it to SOURCES of tests/support/model_sources.py"
    assert {*SOURCES, *ELSEWHERE} <= {p.stem for p in SUPPORT.glob("*.py")} and not {*SOURCES} & {*ELSEWHERE}


@pytest.mark.parametrize("part", range(6))
def test_forms_of_all_rules(part: int) -> None:
    first = dict(reversed(FORMS))  # the others run in `make fuzz`
    for name, form in list(first.items())[part::6]:
        found = validated(build(mutant(form, 0)), part)
        assert not found, f"{name}: {form}\n{found}"


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem) for p in sorted(GOLDEN.glob("*.smelt"))])
def test_golden_files(path: Path) -> None:
    module = parse_module(path.read_text().partition("# ---\n")[0])
    assert not (found := validated(module, 1)), found


@pytest.mark.parametrize("seed", range(0, 40, 8))
def test_random_graphs(seed: int) -> None:
    assert not (found := validated(Random(seed).module(), seed)), found


def test_a_pass_that_lies_is_named() -> None:
    """The validator is no rubber stamp: a pass that drops an op is caught, with its name and the inputs."""
    module = build(mutant("x: f32[N, 4]; relu(neg(x))", 0))

    def lying(m: Module, ctx: Context) -> Module:
        return build(mutant("x: f32[N, 4]; neg(x)", 0))

    context = Context(MACHINE, on_pass=(validator({"lying": EXACT}),))
    with pytest.raises(SmeltError, match=r"pass 'lying' changed the model: output 0 at .*\nfor x = "):
        run_pipeline(module, (Pass("lying", lying),), context)
    assert set(KINDS) >= {"canonical", "patterns", "quantize", "fuse", "lower"}
