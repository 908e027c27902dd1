"""The house rules that a machine can check: layers, what the checkers see, first lines of files."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("core", "importer", "families", "targets", "devicefarm")


def tracked(*patterns: str) -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def test_imports_go_down_only() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_checkers_see_every_file() -> None:
    """mypy walks the links in smelt/; a lost link would silently check nothing."""
    from mypy.find_sources import create_source_list
    from mypy.options import Options

    seen = {Path(s.path or "").resolve() for s in create_source_list([str(ROOT / "smelt")], Options())}
    ours = tracked("smelt/*.py", "smelt/**/*.py", *(f"{f}/**.py" for f in LAYERS))
    missing = sorted(str(p.relative_to(ROOT)) for p in ours if p.resolve() not in seen)
    assert len(ours) > 100
    assert missing == []


@pytest.mark.parametrize("layer", LAYERS)
def test_links_lead_to_the_layers(layer: str) -> None:
    link = ROOT / "smelt" / layer
    assert link.is_symlink(), "make links"
    assert link.resolve() == ROOT / layer


def test_every_file_opens_with_a_sentence() -> None:
    bare = []
    for path in tracked("smelt/**.py", "benchmarks/**.py", "examples/**.py", *(f"{f}/**.py" for f in LAYERS)):
        text = path.read_text("utf-8")
        if text.strip() and not ast.get_docstring(ast.parse(text)):
            bare.append(str(path.relative_to(ROOT)))
    assert bare == []


def test_no_file_is_too_long() -> None:
    long = [
        f"{p.relative_to(ROOT)}: {n}"
        for p in tracked(*(f"{f}/**.py" for f in (*LAYERS, "smelt")))
        if (n := len(p.read_text("utf-8").splitlines())) > 700
    ]
    assert long == []


SHARED = {
    "ROWS": "an op table's entries, one tuple for each file of core/ops/rows",
    "RULES": "a pass's rewrite rules, one tuple for each file of core/passes",
    "T": "a type variable",
}
"""Names of core that several files may define, with the reason."""


def test_a_constant_or_class_of_core_has_one_definition() -> None:
    """One name, one meaning: a reader who looks for a name finds one answer."""
    places: dict[str, set[str]] = {}
    for path in tracked("core/**.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            bound = ast.walk(node) if isinstance(node, ast.Assign | ast.AnnAssign) else ()
            names = [e.id for e in bound if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)]
            names += [node.name] if isinstance(node, ast.ClassDef) else []
            for name in names:
                if name[0].isupper():
                    places.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    twice = {n: sorted(p) for n, p in places.items() if len(p) > 1 and n not in SHARED}
    assert len(places) > 300
    assert twice == {}


def test_top_folders_are_no_packages_of_their_own() -> None:
    """`import core` from the checkout would be a second copy of every class."""
    found = [
        f"{p.relative_to(ROOT)}:{node.lineno}"
        for p in tracked("*.py", "**/*.py")
        for node in ast.walk(ast.parse(p.read_text("utf-8")))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LAYERS)
        or (isinstance(node, ast.Import) and any(a.name.split(".")[0] in LAYERS for a in node.names))
    ]
    assert found == []
