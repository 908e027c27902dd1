"""The house rules that a machine can check: layers, what the checkers see, first lines of files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from functools import cache
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
        if not text.startswith('"""') and text.strip() and not ast.get_docstring(ast.parse(text)):
            bare.append(str(path.relative_to(ROOT)))
    assert bare == []


def test_no_file_is_too_long() -> None:
    long = [
        f"{p.relative_to(ROOT)}: {n}"
        for p in tracked("*.py", "*.c", "*.h")
        if (n := len(p.read_text("utf-8").splitlines())) > 700
    ]
    assert long == []


SHARED = {
    "ROWS": "entries of a table: ops, bindings, instructions; a tuple for each file that has some",
    "RULES": "a pass's rewrite rules, one tuple for each file of core/passes; those of SARIF",
    "T": "a type variable",
    "TYPE_CHECKING": "the name of the standard library, without importing it",
    "Call": "a call of an intrinsic in a kernel; in the importer, a node of the file, as plug-ins know it",
    "Value": "a tensor of a graph; in targets/llvm, a value as LLVM has it",
}
"""Names that several files may define, with the reason."""


def definitions(
    folders: Sequence[str], wanted: Callable[[str, type[ast.stmt]], bool], but: Collection[str] = ()
) -> dict[str, list[str]]:
    """Name -> the files of these folders, but not of folders called so, that define it at their top level."""
    places: dict[str, set[str]] = {}
    for path in tracked(*(f"{f}/**.py" for f in folders)):
        for name, kind in () if path.parent.name in but else defined(path):
            if wanted(name, kind):
                places.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return {n: sorted(p) for n, p in places.items()}


@cache
def defined(path: Path) -> list[tuple[str, type[ast.stmt]]]:
    """The names that a file defines at its top level for others, each with the kind of its statement."""
    found = []
    for node in ast.parse(path.read_text("utf-8")).body:
        bound = ast.walk(node) if isinstance(node, ast.Assign | ast.AnnAssign) else ()
        names = [e.id for e in bound if isinstance(e, ast.Name) and isinstance(e.ctx, ast.Store)]
        names += [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
        found += [(name, type(node)) for name in names if name[0] != "_"]
    return found


def twice(places: dict[str, list[str]]) -> dict[str, list[str]]:
    return {n: p for n, p in places.items() if len(p) > 1 and n not in SHARED}


def test_a_function_of_core_has_one_definition() -> None:
    """One name, one meaning: who looks for a name finds one answer. A method belongs to its class."""
    found = definitions(["core"], lambda name, kind: kind is ast.FunctionDef)
    assert len(found) > 400
    assert twice(found) == {}


@pytest.mark.parametrize("target", sorted(p.parent.name for p in ROOT.glob("targets/*/target.py")))
def test_a_constant_or_class_has_one_definition(target: str) -> None:
    """Targets implement one protocol and import nothing of each other, so each is looked at on its own; what
    all share lies in targets/ itself. Families are plug-ins, which nothing imports by name."""
    others = {p.parent.name for p in ROOT.glob("targets/*/target.py")} - {target}
    folders = ["core", "importer", "smelt", "devicefarm", "targets"]
    found = definitions(folders, lambda name, kind: name[0].isupper(), others)
    assert len(found) > 1000
    assert twice(found) == {}


def test_top_folders_are_no_packages_of_their_own() -> None:
    """`import core` from the checkout would be a second copy of every class."""
    names = "|".join(LAYERS)
    looks_so = re.compile(rf"(\b(from|import)|[,\\])\s*({names})\b")
    found = [
        f"{p.relative_to(ROOT)}:{node.lineno}"
        for p in tracked("*.py", "**/*.py")
        if looks_so.search(text := p.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LAYERS)
        or (isinstance(node, ast.Import) and any(a.name.split(".")[0] in LAYERS for a in node.names))
    ]
    assert found == []


GPU_APIS = ("opencl", "vulkan", "cuda", "spirv", "spir-v", "ptx", "cublas", "nvidia", "webgpu", "rocm")


def test_core_names_no_gpu_api() -> None:
    """What differs between devices is a field of the Machine. Names of system libraries, which no bundle may
    take, are a list of words."""
    found = []
    for path in tracked("core/**.py"):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            words = re.findall(r"[a-z][a-z-]*", line.lower().replace("_", " "))
            libraries = path.name == "naming.py" and len(words) > 10
            if set(words) & set(GPU_APIS) and not libraries:
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []
