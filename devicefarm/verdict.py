"""What happened on the device -> one verdict and the command line's exit code."""

from __future__ import annotations

from enum import Enum

from smelt.core import exits
from smelt.core.diag import SmeltError
from smelt.devicefarm import budget
from smelt.devicefarm.measure import Timing, TimingVerdict


class Verdict(Enum):
    """How a job ended. Those of the infrastructure are never a failure of the model, and a failure of the
    model is never one of them."""

    PASS = "pass"
    MISMATCH = "mismatch"
    CRASH = "crash"
    TIMEOUT = "timeout"
    UNSTABLE = "unstable"
    INFRA = "infra"
    LINK_LOST = budget.LINK_LOST
    LINK_STALLED = budget.LINK_STALLED
    DISK_FULL = budget.DISK_FULL
    READ_ONLY = budget.READ_ONLY
    DAMAGED = budget.DAMAGED
    KILLED = budget.KILLED
    INVALID = "invalid"
    UNSUPPORTED = "unsupported"
    NO_DEVICE = "no device"
    CANCELLED = "cancelled"
    INTERNAL = "internal"

    @property
    def exit_code(self) -> int:
        """The command line's exit code for this verdict."""
        return EXIT_CODES[self]

    @property
    def infrastructure(self) -> bool:
        """Whether it says nothing about the model: link, disk, board or a missing device."""
        return self in INFRASTRUCTURE or self is Verdict.NO_DEVICE


INFRASTRUCTURE = (
    Verdict.DAMAGED,
    Verdict.KILLED,
    Verdict.DISK_FULL,
    Verdict.READ_ONLY,
    Verdict.LINK_LOST,
    Verdict.LINK_STALLED,
    Verdict.INFRA,
)

EXIT_CODES = dict.fromkeys(INFRASTRUCTURE, exits.INFRA) | {
    Verdict.PASS: exits.OK,
    Verdict.MISMATCH: exits.FAILED,
    Verdict.CRASH: exits.FAILED,
    Verdict.TIMEOUT: exits.FAILED,
    Verdict.UNSUPPORTED: exits.UNSUPPORTED,
    Verdict.NO_DEVICE: exits.NO_DEVICE,
    Verdict.UNSTABLE: exits.INCONCLUSIVE,
    Verdict.INVALID: exits.INCONCLUSIVE,  # times that were taken while throttled, too hot, busy, ...
    Verdict.INTERNAL: exits.INTERNAL,
    Verdict.CANCELLED: exits.CANCELLED,
}

# by the status of the runner's END frame, or the kind of an error; a refused shape is the job's failure
BY_STATUS = {
    "ok": Verdict.PASS,
    "invalid": Verdict.UNSUPPORTED,
    "unsupported": Verdict.UNSUPPORTED,
    "shape": Verdict.MISMATCH,
    "device": Verdict.CRASH,
    "infra": Verdict.INFRA,
    "internal": Verdict.INTERNAL,
    "crash": Verdict.CRASH,
    "timeout": Verdict.TIMEOUT,
    "cancelled": Verdict.CANCELLED,
    "protocol": Verdict.INFRA,
    "stale": Verdict.INFRA,
    "no device": Verdict.NO_DEVICE,
    **{v.value: v for v in INFRASTRUCTURE},
}


def verdict_of_error(error: SmeltError) -> Verdict:
    """The verdict of a job that ended with this error; the runner's own status wins over the error's kind."""
    status = getattr(error, "status", None)
    return BY_STATUS[status if status in BY_STATUS else error.kind]


def verdict_of_timing(timing: Timing) -> Verdict:
    """PASS for valid times; INVALID and UNSTABLE mean inconclusive, not wrong."""
    return {TimingVerdict.VALID: Verdict.PASS, TimingVerdict.UNSTABLE: Verdict.UNSTABLE}.get(
        timing.verdict, Verdict.INVALID
    )


def worst(verdicts: list[Verdict]) -> Verdict:
    """The verdict of several: failures of the model first, then those of the infrastructure, then doubts
    about times."""
    return min(verdicts, key=SEVERITY.index, default=Verdict.PASS)


SEVERITY = (
    Verdict.CANCELLED,
    Verdict.INTERNAL,
    Verdict.CRASH,
    Verdict.TIMEOUT,
    Verdict.MISMATCH,
    Verdict.UNSUPPORTED,
    *INFRASTRUCTURE,
    Verdict.NO_DEVICE,
    Verdict.INVALID,
    Verdict.UNSTABLE,
    Verdict.PASS,
)
