"""docs/files.md has every file with its first sentence; --bless writes it from the files themselves."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "files.md"
ORDER = (
    "smelt", "smelt/cli", "smelt/conformance", "importer", "importer/bindings", "families", "core",
    "core/dim", "core/ir", "core/ops", "core/passes", "core/schedule", "core/plan", "targets", "targets/llvm",
    "targets/opencl", "targets/runtime", "devicefarm",
)  # fmt: skip
"""Folders in the order in which a model flows through them; others follow the one that they are in."""
HEAD = """\
# Every file in a sentence

The first sentence of each file, folder by folder in the order of [map.md](map.md). `make bless` writes it.
"""


def folders() -> dict[str, list[Path]]:
    """Tracked sources by folder, in order."""
    said = subprocess.run(
        ["git", "ls-files", *(o for o in ORDER if "/" not in o)], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    found: dict[str, list[Path]] = {}
    for line in said.stdout.splitlines():
        path = ROOT / line
        if path.suffix in (".py", ".c", ".h") and path.is_file() and path.read_text("utf-8").strip():
            found.setdefault(str(Path(line).parent), []).append(path)
    return dict(sorted(found.items(), key=lambda kv: (place(kv[0]), kv[0])))


def place(folder: str) -> int:
    """Where a folder stands: with the nearest of ORDER that holds it."""
    parts = folder.split("/")
    near = ("/".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next(ORDER.index(f) for f in near if f in ORDER)


def sentence(path: Path) -> str:
    """The first sentence of a file's docstring, or of the comment that a C file opens with."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        opening = re.match(r"/\* [\w.]+: (.*?)\*/", text, re.S)
        said = re.sub(r"\n \*", "\n", opening[1]) if opening else ""
    first = re.match(r"(.*?[.!?])(?=\s|$)", " ".join(said.split("\n\n")[0].split()))
    return first[1] if first else ""


def lines() -> Iterator[str]:
    """The page."""
    yield HEAD
    for folder, paths in folders().items():
        yield f"## {folder}/\n"
        yield "".join(f"- `{p.name}`: {sentence(p)}\n" for p in paths)


def test_every_file_is_on_the_page(request: pytest.FixtureRequest) -> None:
    page = "\n".join(lines())
    if request.config.getoption("--bless"):
        PAGE.write_text(page, "utf-8")
    assert PAGE.read_text("utf-8") == page, "make bless"
    bare = [line for line in page.splitlines() if re.fullmatch(r"- `[^`]*`: ", line)]
    assert bare == [], "these open with no sentence"


def test_the_layers_of_the_map_are_those_that_are_checked() -> None:
    """Of smelt's own modules; the other lines say in words what the contracts say in lists."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers = config["tool"]["importlinter"]["contracts"][0]["layers"]
    checked = [sorted(re.findall(r"(?<=smelt\.)\w+", layer)) for layer in layers]
    own = checked[: checked.index(["families"])]
    page = (ROOT / "docs/map.md").read_text("utf-8")
    (block,) = re.findall(r"^```\n(smelt\.cli.*?)^```", page, re.S | re.M)
    shown = [sorted(line.removeprefix("smelt.").split(", ")) for line in block.splitlines()]
    assert shown[: len(own)] == own
