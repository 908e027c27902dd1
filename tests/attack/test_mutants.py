"""Mutants of sound models: an answer or a refusal in words; never a crash or a bug."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from attack_mutants import attack, examined, mutant
from campaign import Outcome
from file_judge import HANG, outcome_of
from isolated import isolated

PART = 30


def outcomes(files: Sequence[tuple[int, bytes]]) -> list[Outcome]:
    """Those of files in a child; where it ends early, of each in a child of its own. No machine code."""
    how, reports = isolated(lambda: [examined(data, code=False) for _, data in files], HANG)
    if how == "ok":
        return [outcome_of(f"mutant {seed}", r) for (seed, _), r in zip(files, reports, strict=True)]
    if len(files) == 1:
        return [Outcome(f"{how} {reports}", True, f"mutant {files[0][0]}")]
    return [o for f in files for o in outcomes([f])]


@pytest.mark.table(2)
@pytest.mark.parametrize("part", range(10))
def test_mutants(part: int) -> None:
    seeds = [s for s in range(part * PART * 2, (part + 1) * PART * 2) if s % 4 != 1][:PART]  # 1: drawn models
    files = [(s, mutant(s)) for s in seeds]
    bad = [o.detail for o in outcomes(files) if o.failed]
    assert not bad, "\n\n".join([f"{len(bad)} of {len(files)}", *bad[:10]])


@pytest.mark.parametrize("seed", [0, 2, 4, 10, 25])
def test_compared_with_onnx_runtime(seed: int) -> None:
    outcome = attack(seed)
    assert not outcome.failed, outcome.detail


def test_a_defect_is_seen() -> None:
    """What the judges look for is found where it is planted."""
    how, found = isolated(partial(_planted, RuntimeError("planted")))
    assert how == "ok" and found.failed and "RuntimeError" in found.what


def _planted(error: Exception) -> Outcome:
    import smelt.importer

    def broken(*given: object) -> None:
        raise error

    smelt.importer.check_model = broken  # type: ignore[assignment]
    return outcome_of("planted", examined(mutant(0)))
