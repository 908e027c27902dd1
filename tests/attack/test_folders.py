"""Places where bundles are written, drawn by seed: nothing of others is lost, else the generator sees it."""

from __future__ import annotations

import collections
import shutil
from pathlib import Path

import attack_folders
import pytest

from smelt.core import staging


def test_places() -> None:
    outcomes = [attack_folders.attack(seed) for seed in range(150)]
    assert not [o for o in outcomes if o.failed], [(o.what, o.detail) for o in outcomes if o.failed]
    kinds = collections.Counter(o.what for o in outcomes)
    assert min(kinds["compiled"], kinds["refused"]) > 30, kinds


def test_the_attack_sees_a_compile_that_clears_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `-o` once did."""

    def clears(path: Path, out: Path) -> bool:
        shutil.rmtree(out, ignore_errors=True)
        path.rename(out)
        return True

    monkeypatch.setattr(staging, "check_place", lambda out: None)
    monkeypatch.setattr(staging, "_put", clears)
    assert {attack_folders.attack(seed).what for seed in range(60)} & {"loses files of others"}
