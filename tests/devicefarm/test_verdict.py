"""Verdicts: every status has one, and each one its exit code."""

from __future__ import annotations

import pickle

import pytest

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.client import KIND_OF_STATUS
from smelt.devicefarm.measure import summarize
from smelt.devicefarm.report import Condition, Crash, RunnerError, invalid_reasons
from smelt.devicefarm.verdict import (
    BY_STATUS,
    EXIT_CODES,
    SEVERITY,
    Verdict,
    verdict_of_error,
    verdict_of_timing,
    worst,
)


def test_tables_are_complete() -> None:
    assert set(EXIT_CODES) == set(Verdict) == set(SEVERITY)
    assert set(KIND_OF_STATUS) <= set(BY_STATUS)


def test_infra_is_never_a_failure_of_the_model() -> None:
    assert verdict_of_error(SmeltError("x", kind="infra")) is Verdict.INFRA
    assert Verdict.INFRA.exit_code == 6
    for status in ("crash", "timeout"):
        assert verdict_of_error(RunnerError("x", status=status, kind="device")).exit_code == 1
    assert verdict_of_error(RunnerError("x", status="protocol", kind="infra")).exit_code == 6


def test_worst_of_several() -> None:
    assert worst([]) is Verdict.PASS
    assert worst([Verdict.PASS, Verdict.UNSTABLE, Verdict.INFRA]) is Verdict.INFRA
    assert worst([Verdict.INFRA, Verdict.MISMATCH]) is Verdict.MISMATCH


def test_timing_verdicts() -> None:
    steady = [100.0 + i % 3 for i in range(60)]
    assert verdict_of_timing(summarize(steady)) is Verdict.PASS
    assert verdict_of_timing(summarize([*steady[:30], *[200.0] * 30])) is Verdict.UNSTABLE
    assert verdict_of_timing(summarize(steady, invalid=["too hot"])) is Verdict.INVALID
    assert Verdict.UNSTABLE.exit_code == Verdict.INVALID.exit_code == 5


CALM = Condition(45.0, 1_500_000, 1_800_000, "schedutil", 0.2)


@pytest.mark.parametrize(
    ("after", "before", "stable", "word"),
    [
        (CALM, CALM, True, None),
        (Condition(90.0, 1, 1_800_000, "", 0.2), CALM, True, "too hot"),
        (Condition(50.0, 1, 600_000, "", 0.2), CALM, True, "throttled"),
        (CALM, Condition(None, None, None, "", 9.0), True, "busy"),
        (CALM, CALM, False, "warm-up"),
    ],
)
def test_reasons_for_doubt(
    after: Condition, before: Condition, stable: bool, word: str | None
) -> None:
    reasons = invalid_reasons(before, after, emulated=False, cores=2, stable=stable)
    assert (word is None) == (not reasons)
    assert word is None or any(word in r for r in reasons)
    assert (
        len(invalid_reasons(before, after, emulated=True, cores=2, stable=stable))
        == len(reasons) + 1
    )


def test_errors_survive_pickling() -> None:
    crash = Crash(11, 0, 1, 64, "libmodel.so", 16, "run: first", "", "bye")
    error = RunnerError("died", status="crash", kind="device", crash=crash, log="l")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.status, copy.kind, copy.crash, copy.log) == ("crash", "device", crash, "l")
    assert "signal 11 at libmodel.so+0x10, address 0x40" in str(crash)


def test_budget_counts_bytes_and_ends_at_the_total() -> None:
    now = [100.0]
    budget = Budget(StepLimits(upload=10, upload_floor=1000, total=50), clock=lambda: now[0])
    assert budget.deadline(10, 5000) == 115.0
    now[0] = 145.0
    assert budget.deadline(10) == 150.0
    assert budget.left(150.0, "x") == 5.0
    now[0] = 151.0
    with pytest.raises(SmeltError, match="loading took longer"):
        budget.left(150.0, "loading")
