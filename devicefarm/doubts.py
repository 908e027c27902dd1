"""Samples of a run, what each was refused, and telemetry -> the reasons to doubt their times, in words.

Not the load average: it is a minute late, and one busy program on two processors stays below any limit that a
quiet device keeps. What counts is what the model itself was refused, and what others did meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smelt.devicefarm.condition import HOT, TICK_NS, Condition, TelemetryReading
from smelt.devicefarm.measure import Doubt, TimingVerdict, median

DISTURBED = 0.02  # a sample that waited for a processor for this share of its time is disturbed
MOST_DISTURBED = 0.10  # of the samples: then quantiles up to the median are still those of a quiet device
MOST_WAITED = 0.05  # of the time of all samples
FOREIGN_PROCESSORS = 0.10  # of all that the device has may work for others, but
FOREIGN_MOST = 0.5  # not more than half of one: it takes cache, memory bandwidth and heat
STOLEN = 0.02  # of the time, by a hypervisor
FEW_TICKS = 10  # in fewer the ticks tell nothing
TICK_ERROR = 2
FREQUENCY_CHANGE = 0.05  # from the first third of the readings to the last
FIRMWARE_NOW, FIRMWARE_SINCE = 0xF, 0xF0000  # get_throttled: under-voltage, capped, throttled, soft limit


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples in the order taken, as the runner sends them; one element of each column belongs to a sample.

    ns: time of `inner` runs. cpu_ns: processor time of all threads. wait_ns: how long threads were ready
    and had no processor, None where the kernel does not say. preempted: how often another program took the
    processor. cpu: the processor on which it ended.
    """

    inner: int = 1
    ns: tuple[int, ...] = ()
    cpu_ns: tuple[int, ...] = ()
    wait_ns: tuple[int | None, ...] = ()
    preempted: tuple[int, ...] = ()
    cpu: tuple[int, ...] = ()

    @property
    def per_run(self) -> tuple[float, ...]:
        """Nanoseconds of one run."""
        return tuple(n / self.inner for n in self.ns)

    @property
    def disturbed(self) -> int:
        """How many samples another program has lengthened."""
        told = zip(self.ns, self.wait_ns, self.preempted, strict=True)
        return sum(taken > 0 if wait is None else wait > DISTURBED * ns for ns, wait, taken in told)


def find_doubts(
    samples: Samples,
    telemetry: Sequence[TelemetryReading],
    before: Condition,
    after: Condition,
    *,
    emulated: bool,
    settled: bool,
) -> tuple[Doubt, ...]:
    """Why these times are not what the device can do; () where nothing speaks against them.

    settled: whether the warm-up ended because run times agreed.
    """
    found = [
        *(
            [Doubt(TimingVerdict.EMULATED, "they say nothing about the speed of any device")]
            if emulated
            else []
        ),
        *_throttled(telemetry, before, after),
        *_hot(telemetry, after),
        *_busy(samples),
        *_others(samples, telemetry),
        *_frequency(telemetry),
    ]
    if not settled:
        found.append(Doubt(TimingVerdict.UNSTABLE, "the warm-up reached its limit before run times settled"))
    return tuple(found)


def _throttled(telemetry: Sequence[TelemetryReading], before: Condition, after: Condition) -> Iterator[Doubt]:
    def doubt(text: str) -> Doubt:
        return Doubt(TimingVerdict.THROTTLED, text)

    fallen = [
        (p.cpus or str(p.policy), p.limit_khz, q.limit_khz)
        for p, q in zip(before.policies, after.policies, strict=False)
        if p.limit_khz is not None and q.limit_khz is not None and q.limit_khz < p.limit_khz
    ]
    for cpus, high, low in fallen:
        yield doubt(f"the frequency limit of processors {cpus} fell from {high} to {low} kHz")
    limits = [r.limits_khz for r in telemetry if r.limits_khz is not None]
    if limits and min(limits) < limits[0] and not fallen:
        yield doubt(f"the frequency limits fell for a time, in all from {limits[0]} to {min(limits)} kHz")
    levels = [c.level for place in (before, after) for c in place.cooling if c.level is not None]
    level = max([*levels, *(r.cooling for r in telemetry if r.cooling is not None)], default=0)
    if level:
        yield doubt(f"the kernel slows processors down to cool them (level {level})")
    past = (before.firmware or 0) & FIRMWARE_SINCE
    bits = (after.firmware or 0) & (FIRMWARE_NOW | FIRMWARE_SINCE & ~past)
    if bits:
        yield doubt(f"the firmware reports under-voltage or throttling ({bits:#x})")


def _hot(telemetry: Sequence[TelemetryReading], after: Condition) -> Iterator[Doubt]:
    seen = [t for t in (after.temperature, *(r.degrees for r in telemetry)) if t is not None]
    if max(seen, default=0.0) > HOT:
        yield Doubt(TimingVerdict.TOO_HOT, f"{max(seen):.0f} degrees C, the limit is {HOT:.0f}")


def _busy(samples: Samples) -> Iterator[Doubt]:
    """What the model itself was refused."""
    total, n = sum(samples.ns), len(samples.ns)
    if not total:
        return
    waited = sum(w for w in samples.wait_ns if w is not None)
    if samples.disturbed > MOST_DISTURBED * n or waited > MOST_WAITED * total:
        taken = sum(samples.preempted)
        lost = f"; in all its threads waited for {waited / total:.0%} of the time" if waited else ""
        yield Doubt(
            TimingVerdict.BUSY,
            f"the model was ready and had no processor in {samples.disturbed} of {n} samples "
            f"({taken} preemptions){lost}",
        )


def _others(samples: Samples, telemetry: Sequence[TelemetryReading]) -> Iterator[Doubt]:
    """What others, and a hypervisor, did on any processor meanwhile."""
    if not telemetry or telemetry[-1].at_ns < FEW_TICKS * TICK_NS:
        return
    last = telemetry[-1]
    ticks = last.at_ns / TICK_NS
    foreign = sum(last.busy) - sum(samples.cpu_ns) / TICK_NS
    allowed = min(FOREIGN_PROCESSORS * len(last.busy), FOREIGN_MOST)
    if foreign > allowed * ticks + TICK_ERROR:
        yield Doubt(
            TimingVerdict.BUSY,
            f"other programs used {foreign / ticks:.2f} processors, {allowed:.2f} are allowed",
        )
    used = set(samples.cpu)
    stolen = max((s for cpu, s in enumerate(last.stolen) if cpu in used), default=0)
    if stolen > STOLEN * ticks + TICK_ERROR:
        yield Doubt(
            TimingVerdict.BUSY, f"the hypervisor took the processor for {stolen / ticks:.0%} of the time"
        )


def _frequency(telemetry: Sequence[TelemetryReading]) -> Iterator[Doubt]:
    """One reading may be anywhere, with boost states; what counts is that it goes somewhere."""
    seen = [float(r.khz) for r in telemetry if r.khz is not None]
    third = max(1, len(seen) // 3)
    if len(seen) < 2:
        return
    first, last = median(seen[:third]), median(seen[-third:])
    if abs(last - first) > FREQUENCY_CHANGE * first:
        text = f"the processor's frequency went from {first:.0f} to {last:.0f} kHz"
        yield Doubt(TimingVerdict.UNSTABLE, text)
