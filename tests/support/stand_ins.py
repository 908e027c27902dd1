"""The body of a program in; a module that run_child runs in place of the compiler out."""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.limits import Limits

SMALL = Limits(4 << 30, 300.0)


def stand_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, top: str = ""
) -> tuple[Path, Path, Limits, None, str]:
    """What run_child needs besides a request, with a program that does this in the compiler's place; top:
    what its server does before."""
    name = f"stand_in_{abs(hash((body, top)))}"
    (folder / "path").mkdir(exist_ok=True)
    text = f"import os, sys, time\n{top}\ndef preload(): pass\ndef main(result):\n    {body}\n    return 0\n"
    (folder / "path" / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(folder / "path"))
    return folder / "result", folder / "out", SMALL, None, name
