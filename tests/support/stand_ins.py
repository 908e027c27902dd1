"""The body of a program in; a module that run_child runs in place of the compiler out."""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.limits import Limits

SMALL = Limits(4 << 30, 300.0)


def stand_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, top: str = "", rest: str = "pass"
) -> tuple[Path, Path, Limits, None, str]:
    """What run_child needs besides a request, with a program that does this in the compiler's place; top:
    what its server does before, rest: what it does beside the first child."""
    name = f"stand_in_{abs(hash((body, top, rest)))}"
    (folder / "path").mkdir(exist_ok=True)
    loads = f"def preload(): pass\ndef preload_rest(): {rest}\n"
    text = f"import os, sys, time\n{top}\n{loads}def main(result):\n    {body}\n    return 0\n"
    (folder / "path" / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder / "path"))
    return folder / "result", folder / "out", SMALL, None, name
