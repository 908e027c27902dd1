"""Golden files of passes: `# run: fold,fuse`, perhaps `# fast: all`, before, `# ---`, after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from smelt.core.ir.text import parse_module, print_module
from smelt.core.ir.verify import verify
from smelt.core.passes.context import Options
from smelt.core.passes.manager import pick, run_pipeline
from smelt.core.passes.numerics import fast_parts
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.passes.recheck import recheck
from tests.core.passes.build import CONTEXT, assert_same, feeds

FOLDER = Path(__file__).parents[2] / "golden" / "passes"
FILES = sorted(FOLDER.glob("*.smelt"))


def test_there_are_files() -> None:
    assert len(FILES) >= 20


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem) for p in FILES])
def test_golden(path: Path, golden: Callable[[str, str], None]) -> None:
    text, _, _ = path.read_text().partition("# ---\n")
    header = text.splitlines()[0]
    assert header.startswith("# run: "), path
    names = header.removeprefix("# run: ").split(",")
    module = parse_module(text)
    verify(module)
    fast = [line.removeprefix("# fast: ") for line in text.splitlines() if line.startswith("# fast: ")]
    context = CONTEXT.with_(options=Options(fast=fast_parts(fast[0] if fast else "")))
    after = run_pipeline(module, pick(PIPELINE, names), context)
    golden(f"passes/{path.name}", print_module(after))
    verify(after, "lowered" if "lower" in names else "graph")
    recheck(after)
    for size in (2, 3):
        env = {s.name: max(s.low, size) for s in module.symbols}
        inputs = feeds(module, env, size)
        assert_same(module, after, inputs)
