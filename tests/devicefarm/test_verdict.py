"""Verdicts: every status has one, and each one its exit code."""

from __future__ import annotations

import pickle

import pytest

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.client import KIND_OF_STATUS
from smelt.devicefarm.measure import Doubt, TimingVerdict, summarize
from smelt.devicefarm.report import Crash, RunnerError
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
    for kind in set(TimingVerdict) - {TimingVerdict.VALID, TimingVerdict.UNSTABLE}:
        assert verdict_of_timing(summarize(steady, [Doubt(kind, "why")])) is Verdict.INVALID
    assert Verdict.UNSTABLE.exit_code == Verdict.INVALID.exit_code == 5


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
