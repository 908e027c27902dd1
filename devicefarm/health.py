"""A device that does not answer as it should -> the same mended, by steps of growing force, or the reason why
not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, InfraError, StepLimits, infra
from smelt.devicefarm.doctor import Finding, examine, healthy
from smelt.devicefarm.inventory import Device
from smelt.devicefarm.power import PowerControl, power_of
from smelt.devicefarm.ssh import DEFAULT_ROOT
from smelt.devicefarm.transport import Transport

BOOT_ID = "/proc/sys/kernel/random/boot_id"
MAY_REBOOT = "reboot"
"""The tag of a device that may be told to reboot: never that of a machine which others use."""
HERE = frozenset({"local", "qemu-user", "android"})
"""Transports to processes of this machine, which have a store only where the inventory names its root."""
PASSING = frozenset({"load", "temperature"})
"""Findings about a moment, not about the device."""
CHECK_LIMITS = StepLimits(connect=10.0, command=10.0)

# kills the runners of one store by the paths in their command lines: others' on the same machine stay
_KILL = (
    'for p in /proc/[0-9]*; do tr "\\000" " " <$p/cmdline 2>/dev/null | '
    'grep -qF -- "$1/bundles/" && [ "${p#/proc/}" != $$ ] && kill -9 ${p#/proc/}; done; true'
)


@dataclass(frozen=True)
class Ladder:
    """Limits of a recovery, in seconds: of all its steps, of one boot, and between two looks at it."""

    total: float = 300.0
    boot: float = 120.0
    look: float = 0.5


@dataclass(frozen=True, slots=True)
class Rung:
    """A step that was tried. mended: whether the device is well after it."""

    name: str
    mended: bool
    detail: str


@dataclass(frozen=True)
class Patient:
    """A device with the means to mend it. root: of its store, '' without one. boot_id: the last that was
    seen."""

    transport: Transport
    root: str = ""
    power: PowerControl | None = None
    may_reboot: bool = False
    boot_id: str = ""


class Unwell(InfraError):
    """The device could not be mended. steps: what was tried."""

    def __init__(self, device: str, steps: tuple[Rung, ...]) -> None:
        self.device, self.steps = device, steps
        told = "; ".join(f"{s.name}: {s.detail}" for s in steps)
        super().__init__(
            f"device '{device}' does not work, and could not be mended ({told})",
            hint=f"see 'smelt devices doctor {device}'; once it works: smelt devices restore {device}",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (Unwell, (self.device, self.steps))


def patient_of(device: Device, transport: Transport, boot_id: str = "") -> Patient:
    """What the inventory allows."""
    root = device.root or ("" if device.transport in HERE else DEFAULT_ROOT)
    return Patient(transport, root, power_of(device), MAY_REBOOT in device.tags, boot_id)


def quick_check(transport: Transport) -> tuple[Finding, ...]:
    """The checks before a lease is used: it answers, and has room."""
    return examine(transport, budget=Budget(CHECK_LIMITS))


def full_check(transport: Transport, bundle: Path) -> tuple[Finding, ...]:
    """The quick checks, and that the bundle's runner starts there and tells its facts. A device that is only
    busy or hot is well."""
    found = examine(transport, bundle=bundle, budget=Budget(CHECK_LIMITS))
    return tuple(replace(f, ok=None) if f.check in PASSING else f for f in found)


def boot_id(transport: Transport, budget: Budget | None = None) -> str:
    """The id of the device's boot; '' where it does not tell. Raises SmeltError(kind='infra')."""
    return transport.execute(["cat", BOOT_ID], budget or Budget(CHECK_LIMITS)).out.strip()[:64]


def ensure_well(
    patient: Patient,
    *,
    check: Callable[[Transport], tuple[Finding, ...]] = quick_check,
    ladder: Ladder | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Rung, ...]:
    """Check the device and mend it by as few steps as do; the steps that it took. Raises Unwell."""
    ladder = ladder or Ladder()
    found = check(patient.transport)
    if healthy(found):
        return ()
    steps = [Rung("check", False, _why(found))]
    climb = _Climb(patient, ladder, clock, sleep, clock() + ladder.total)
    for name, act in LADDER.items():
        if clock() >= climb.end:
            steps.append(Rung(name, False, f"not tried: {ladder.total:g} s have passed"))
            break
        try:
            detail = act(climb)
        except SmeltError as error:
            steps.append(Rung(name, False, error.message))
            continue
        if detail is None:
            continue  # the device has no such means
        found = check(patient.transport)
        steps.append(Rung(name, healthy(found), detail if healthy(found) else _why(found)))
        if steps[-1].mended:
            return tuple(steps)
    raise Unwell(patient.transport.name, tuple(steps))


def _why(findings: tuple[Finding, ...]) -> str:
    return "; ".join(f"{f.check}: {f.detail}" for f in findings if f.ok is False)


@dataclass
class _Climb:
    """A recovery under way."""

    patient: Patient
    ladder: Ladder
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    end: float

    def budget(self, seconds: float) -> Budget:
        left = max(0.1, min(seconds, self.end - self.clock()))
        return Budget(replace(CHECK_LIMITS, connect=min(10.0, left), command=min(10.0, left), total=left))

    def booted(self, before: str) -> str:
        """Wait for another boot id than `before`; it."""
        transport, last = self.patient.transport, "it did not answer"
        until = min(self.end, self.clock() + self.ladder.boot)
        while self.clock() < until:
            try:
                now = boot_id(transport, self.budget(10.0))
                if now and now != before:
                    return f"boot id {now}"
                last = "its boot id is the same, so it has not restarted" if now else "it tells no boot id"
            except SmeltError as error:
                last = error.message
                transport.close()
            self.sleep(self.ladder.look)
        raise infra(f"it did not come back in time: {last}")

    def before(self) -> str:
        try:
            return boot_id(self.patient.transport, self.budget(10.0)) or self.patient.boot_id
        except SmeltError:
            self.patient.transport.close()
            return self.patient.boot_id


def _reconnect(climb: _Climb) -> str | None:
    climb.patient.transport.close()
    return "connected anew"


def _kill(climb: _Climb) -> str | None:
    if not climb.patient.root:
        return None
    climb.patient.transport.execute(["sh", "-c", _KILL, "sh", climb.patient.root], climb.budget(10.0))
    return "ended the runners of its store"


def _reboot(climb: _Climb) -> str | None:
    if not climb.patient.may_reboot:
        return None
    before = climb.before()
    try:
        climb.patient.transport.execute(["sh", "-c", "sync; reboot || /sbin/reboot"], climb.budget(10.0))
    except SmeltError:
        climb.patient.transport.close()  # the link ends with the system
    return climb.booted(before)


def _cycle(climb: _Climb) -> str | None:
    if climb.patient.power is None:
        return None
    before = climb.before()
    climb.patient.power.cycle(climb.budget(30.0))
    climb.patient.transport.close()
    return climb.booted(before)


LADDER: dict[str, Callable[[_Climb], str | None]] = {
    "reconnect": _reconnect,
    "kill": _kill,
    "reboot": _reboot,
    "power cycle": _cycle,
}
"""The ladder, the gentlest first. A step returns what it did, None where the device has no such means."""
