"""Numbers that decide what is fast stand in a page of benchmarks/results, with machine and date."""

from __future__ import annotations

import ast
import re
from dataclasses import astuple
from pathlib import Path

from smelt.core.machine import COSTS
from smelt.core.schedule.hot import UNMEASURED
from smelt.targets.platform import parse_target
from smelt.targets.registry import machines

ROOT = Path(__file__).parents[1]
PAGES = "\n".join(p.read_text("utf-8") for p in sorted((ROOT / "benchmarks/results").glob("*.md")))
RIGHT = {
    "passes/equivalence.py": "what a test of passes takes for equal",
    "passes/quantized/quantize.py": "which sums of products fit 32 bits",
    "passes/lowering/lower.py": "how much of a kernel's origin its name tells",
    "passes/lowering/half_marks.py": "which values f16 can hold",
    "passes/whole_graph/patterns.py": "which constants are those of a formula",
    "passes/whole_graph/affine.py": "how much rounding a joined weight may add",
}
"""Files of core whose numbers decide about results."""
EXACT = {
    "TINY": "the least normal number of f16",
    "MOST_TINY": "how much of a weight may lose precision in f16",
    "F16_EXACT": "integers that f16 has",
    "LONGEST_BLOCK": "which blocks' sums of products fit 32 bits",
    "LARGE_SIZE": "which statements are for small sizes alone",
    "LOST": "how much transformed convolutions may lose",
    "TRIAL_TILES": "by how many tiles that is measured",
}
"""The same of files that have numbers of both kinds."""


def numbers(path: Path) -> list[str]:
    """The constants of a file whose values are numbers."""
    allowed = (ast.Tuple, ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop, ast.expr_context)
    found = []
    for node in ast.parse(path.read_text("utf-8")).body:
        if not isinstance(node, ast.Assign) or not all(isinstance(x, allowed) for x in ast.walk(node.value)):
            continue
        values = [x.value for x in ast.walk(node.value) if isinstance(x, ast.Constant)]
        names = [x.id for t in node.targets for x in ast.walk(t) if isinstance(x, ast.Name)]
        found += names if values and all(isinstance(x, int | float) for x in values) else []
    return found


def test_a_number_that_decides_what_is_fast_has_been_measured() -> None:
    core = ROOT / "core"
    files = [core / "machine.py", *core.glob("schedule/**/*.py"), *core.glob("passes/**/*.py")]
    rows = {x for row in re.findall(r"^\| ([A-Z0-9_, ]+) \|", PAGES, re.M) for x in row.split(", ")}
    found = {
        (name, str(p.relative_to(core)))
        for p in files
        if str(p.relative_to(core)) not in RIGHT
        for name in numbers(p)
        if name not in EXACT
    }
    assert len(found) > 30
    assert sorted(f"{where}: {name}" for name, where in found if name not in rows) == []


TARGETS = ("x86:x86-64-v2", "x86", "x86:znver4", "arm64", "armv7", "riscv64", "jetson-orin",
           "x86+opencl+vulkan+cuda")  # fmt: skip


def test_figures_of_units_are_those_measured() -> None:
    """Each has a row; what nobody has measured has none."""
    page = (ROOT / "benchmarks/results/units.md").read_text("utf-8")
    known = {(unit, m) for target in TARGETS for unit, m in machines(parse_target(target)).items()}
    rated = {(unit, m.name, m.figures) for unit, m in known if m.figures is not None}
    assert {name for _, name, _ in rated} == {"avx2", "avx512"}
    for unit, name, figures in rated:
        assert f"| {unit} | {name} | {' | '.join(f'{n:.3g}' for n in astuple(figures))} |" in page
    assert len(known) > len(rated)
    assert min(astuple(f) for _, _, f in rated if f is not None) == astuple(UNMEASURED)


def test_costs_of_functions_are_those_measured() -> None:
    """The mean of the processors on the page."""
    page = (ROOT / "benchmarks/results/intrinsics.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    mean = {name: (float(a) + float(b)) / 2 for name, a, b in rows}
    assert mean.keys() == COSTS.keys()
    assert {n: c for n, c in COSTS.items() if abs(c - mean[n]) > max(0.5, 0.005 * mean[n])} == {}
