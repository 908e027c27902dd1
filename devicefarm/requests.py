"""What is asked of a runner -> the bodies of its request frames."""

from __future__ import annotations

import struct

from smelt.core.diag import SmeltError
from smelt.core.policies import POLICIES
from smelt.devicefarm.measure import RunPlan
from smelt.devicefarm.profiles import MOST_PROCESSORS

SETIN_HEAD = struct.Struct("<IIBBHIQ")
LOAD_HEAD = struct.Struct("<IIIIQ")
CONTROL_HEAD = struct.Struct(f"<IIQ{MOST_PROCESSORS // 8}s")
RUN_BODY = struct.Struct("<IIIIQQQQQ")
PAIR = struct.Struct("<II")
HELLO_BODY = struct.Struct("<IIII")
NS = 1_000_000_000


def milliseconds(seconds: float) -> int:
    """A time limit as the runner reads it; never none."""
    return max(1, min(int(min(seconds, 1e9) * 1000), 0xFFFFFFFF))


def policy_number(name: str) -> int:
    """A policy as LOAD has it. Raises SmeltError(kind='invalid') for none of them."""
    if name in POLICIES:
        return POLICIES.index(name)
    told = ", ".join(POLICIES)
    raise SmeltError(f"policy: expected one of {told}, got {name!r:.80}", kind="invalid")


def packed(layout: struct.Struct, *numbers: int | bytes) -> bytes:
    """The caller's numbers in the protocol's layout. Raises SmeltError(kind='invalid') for one out of
    range."""
    try:
        return layout.pack(*numbers)
    except struct.error as error:
        raise SmeltError(f"a number is out of the range of the runner's protocol: {error}") from None


def run_body(plan: RunPlan, limit: float) -> bytes:
    """A RUN by the plan. limit: seconds for all of it. Raises SmeltError(kind='invalid')."""
    times = (plan.warmup_min, plan.warmup_max, plan.min_time, plan.max_time, plan.sample_time)
    if not all(0 <= t <= 1e9 for t in times):
        raise SmeltError(f"a plan's times are from 0 to 1e9 s, got {times}")
    counts = int(plan.profile), plan.warmup_runs, plan.samples
    return packed(RUN_BODY, milliseconds(limit), *counts, *(int(t * NS) for t in times))
