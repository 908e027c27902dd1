"""Another program on the board's processor, from a moment by chance: no median that it has spoilt is called
valid.

First by a scheduler of a few lines over many seeds, then by a real program on a real processor. What a
median should have been is told by the processor time of the samples, which no verdict depends on.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.channel import PipeChannel
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.condition import Condition
from smelt.devicefarm.doubts import Samples, find_doubts
from smelt.devicefarm.measure import RunPlan, TimingVerdict, median, summarize

OFF = 1.10
MS = 10**6


def is_off(samples: Samples) -> bool:
    """Whether the median is more than 10 % above what the model's own work took."""
    return median(samples.ns) > OFF * median(samples.cpu_ns)


def scheduled(rng: random.Random, *, told: bool) -> Samples:
    """Samples of equal work on a processor that is shared, in slices, from a moment on. told: whether the
    kernel says how long the work waited."""
    work, count = int(rng.choice([0.2, 1, 3, 10, 40]) * MS), rng.choice([10, 50, 200])
    own, others = int(rng.uniform(0.5, 6) * MS), int(rng.uniform(0.5, 12) * MS)
    left = int(rng.uniform(-0.3, 1.1) * work * count)  # work until the first slice is over
    ns, waits, taken = [], [], []
    for _ in range(count):
        todo, waited, preempted = int(work * rng.uniform(0.99, 1.01)), 0, 0
        spent = todo
        left = max(left, 1)
        while todo > left:
            todo, left = todo - left, own
            waited, preempted = waited + others, preempted + 1
        left -= todo
        ns.append(spent + waited)
        waits.append(waited if told else None)
        taken.append(preempted)
    cpu = tuple(n - p * others for n, p in zip(ns, taken, strict=True))
    return Samples(1, tuple(ns), cpu, tuple(waits), tuple(taken), (0,) * count)


@pytest.mark.parametrize("told", [True, False])
def test_no_spoilt_median_is_valid(told: bool) -> None:
    spoilt = valid = 0
    for seed in range(2000):
        samples = scheduled(random.Random(seed), told=told)
        doubts = find_doubts(samples, (), Condition(), Condition(), emulated=False, settled=True)
        verdict = summarize(samples.per_run, doubts).verdict
        spoilt += is_off(samples)
        valid += verdict is TimingVerdict.VALID
        assert not (is_off(samples) and verdict is TimingVerdict.VALID), f"seed {seed}"
    assert spoilt > 400 and valid > 100  # both happen, so that the line above says something


HOG = (
    "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print('runs', flush=True)\nwhile True: pass"
)


class LateHog(threading.Thread):
    """A hog on a processor, from some seconds on."""

    def __init__(self, core: str, after: float) -> None:
        super().__init__()
        self.core, self.after = core, after
        self.hog: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        time.sleep(self.after)
        self.hog = subprocess.Popen([sys.executable, "-c", HOG, self.core], stdout=subprocess.DEVNULL)

    def end(self) -> None:
        self.join()
        assert self.hog is not None
        self.hog.kill()
        self.hog.wait()


def test_a_real_hog_on_the_models_processor(native_bundle: Path) -> None:
    core = str(max(os.sched_getaffinity(0)))
    channel = PipeChannel([str(native_bundle / "smelt_run"), "--serve"])
    os.sched_setaffinity(channel.process.pid, {int(core)})  # the worker's, too, which is forked later
    client = RunnerClient(channel, budget=Budget(StepLimits(total=120)))
    plan = RunPlan(3, 0.02, 0.1, samples=30, min_time=0.4, max_time=3, sample_time=0.01)
    rng = random.Random(1)
    try:
        client.load(str(native_bundle))
        inputs = [np.ones((500, 1000), np.float32), np.int32(0)]
        for _ in range(6):
            hogs = LateHog(core, rng.uniform(0, 0.4))
            hogs.start()
            try:
                report = client.run(inputs, plan, outputs=False)
            finally:
                hogs.end()
            assert report.timing is not None
            # where others keep the machine busy, every run may be doubted: that is right, too
            assert not (is_off(report.samples) and report.timing.verdict is TimingVerdict.VALID), (
                report.doubts
            )
        hog = subprocess.Popen([sys.executable, "-c", HOG, core], stdout=subprocess.PIPE)
        assert hog.stdout is not None and hog.stdout.readline()
        try:
            report = client.run(inputs, plan, outputs=False)
        finally:
            hog.kill()
            hog.wait()
        assert report.timing is not None and is_off(report.samples)
        assert report.timing.verdict is TimingVerdict.BUSY
        assert any("had no processor" in d.text for d in report.doubts)
    finally:
        client.close()
