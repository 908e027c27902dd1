"""The suite's small models before and after every pass: forms of rules, golden files, drawn and QDQ ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from attack_passes import FORMS, KINDS, MACHINE, attack, validated
from onnx_models import imported
from qdq_models import Net
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


@pytest.mark.parametrize("seed", [s for s in range(24) if s % 4 > 1])
def test_drawn_models(seed: int) -> None:
    """Fuzzed models and nested loops and branches."""
    outcome = attack(seed)
    assert not outcome.failed, outcome.detail


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


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_random_graphs(seed: int) -> None:
    assert not (found := validated(Random(seed).module(), seed)), found


def _quantised(kind: str) -> Module:
    rng, net = np.random.default_rng(0), Net()
    x = net.qdq("x", 0.05, 120)
    if kind == "conv":
        w = net.weight(rng.integers(-127, 128, (6, 4, 3, 3)).astype(np.int8), np.full(6, 0.02, np.float32),
                       np.zeros(6, np.int8))  # fmt: skip
        y = net.qdq(net.op("Relu", net.op("Conv", x, w, pads=[1] * 4)), 0.3, 0)
        return imported(net.model(y, x=["n", 4, "h", "w"]))
    if kind == "pool":
        return imported(net.model(net.op("MaxPool", x, kernel_shape=[2, 2]), x=["n", 3, "h", "w"]))
    w = net.weight(
        rng.integers(-127, 128, (10, 6)).astype(np.int8), np.array(0.02, np.float32), np.array(3, np.int8)
    )
    return imported(net.model(net.qdq(net.op("MatMul", x, w), 0.2, 128), x=["n", "m", 10]))


@pytest.mark.parametrize("kind", ["conv", "pool", "matmul"])
def test_quantised_models(kind: str) -> None:
    assert not (found := validated(_quantised(kind), 2)), found


def test_a_pass_that_lies_is_named() -> None:
    """The validator is no rubber stamp: a pass that drops an op is caught, with its name and the inputs."""
    module = build(mutant("x: f32[N, 4]; relu(neg(x))", 0))

    def lying(m: Module, ctx: Context) -> Module:
        return build(mutant("x: f32[N, 4]; neg(x)", 0))

    context = Context(MACHINE, on_pass=(validator({"lying": EXACT}),))
    with pytest.raises(SmeltError, match=r"pass 'lying' changed the model: output 0 at .*\nfor x = "):
        run_pipeline(module, (Pass("lying", lying),), context)
    assert set(KINDS) >= {"canonical", "patterns", "quantize", "fuse", "lower"}
