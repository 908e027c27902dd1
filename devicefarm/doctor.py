"""A transport -> findings about the device's health."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.condition import HOT
from smelt.devicefarm.report import DeviceFacts
from smelt.devicefarm.transport import Transport

ECHO = "smelt-doctor"
LEAST_FREE = 256 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ok: None where it could not be determined."""

    check: str
    ok: bool | None
    detail: str


def examine(
    transport: Transport, *, bundle: Path | None = None, budget: Budget | None = None
) -> tuple[Finding, ...]:
    """Check echo, free space and, with a bundle, the runner and its facts; errors become findings."""
    budget = budget or Budget()
    checks: list[tuple[str, Callable[[], list[Finding]]]] = [
        ("echo", lambda: [_echo(transport, budget)]),
        ("disk", lambda: [_disk(transport, budget)]),
    ]
    if bundle is not None:
        chosen = bundle
        checks.append(("runner", lambda: _runner(transport, chosen, budget)))
    found: list[Finding] = []
    for name, check in checks:
        try:
            found += check()
        except SmeltError as error:
            found.append(Finding(name, False, str(error)))
            if name == "echo":
                break  # a device that does not answer fails everything else in the same way
    return tuple(found)


def healthy(findings: tuple[Finding, ...]) -> bool:
    """Whether no check has failed."""
    return all(f.ok is not False for f in findings)


def _echo(transport: Transport, budget: Budget) -> Finding:
    start = time.monotonic()
    done = transport.execute(["echo", ECHO], budget)
    took = (time.monotonic() - start) * 1000
    if done.out.strip() != ECHO:
        return Finding("echo", False, f"'echo {ECHO}' answered {done.out.strip()[:80]!r}")
    return Finding("echo", True, f"answered in {took:.0f} ms")


def _disk(transport: Transport, budget: Budget) -> Finding:
    free = transport.free_bytes(budget)
    if free is None:
        return Finding("disk", None, "the device does not say how much space is free")
    return Finding("disk", free >= LEAST_FREE, f"{free >> 20} MiB free")


def _runner(transport: Transport, bundle: Path, budget: Budget) -> list[Finding]:
    remote = transport.deploy(bundle, budget)
    client = RunnerClient(
        transport.open_runner(remote, budget), device=transport.name, budget=budget
    )
    try:
        facts = client.hello(units=True)
    finally:
        client.close()
    detail = (
        f"{facts.arch}, {facts.cores} cores, {facts.memory_kb >> 10} MiB, kernel {facts.kernel}, "
        f"{facts.libc}, {facts.cpu or facts.board or 'unnamed cpu'}"
    )
    return [Finding("runner", True, detail), *_board(facts, transport), *_condition(facts)]


def _board(facts: DeviceFacts, transport: Transport) -> list[Finding]:
    """What the board is."""
    why = facts.emulation or ("its row says so" if transport.emulated else "")
    real = f"emulated: {why}" if why else "nothing on it says that it is emulated"
    if facts.hypervisor:
        real += f"; a virtual machine ({facts.hypervisor}): others may take its time"
    found = [Finding("board", None if why else True, real), Finding("fingerprint", True, facts.fingerprint)]
    if facts.clusters:
        kinds = Counter(map(str, facts.clusters))
        told = (f"{n} times {kind}" if n > 1 else kind for kind, n in kinds.items())
        found.append(Finding("processors", True, "; ".join(told)))
    for unit in facts.units or ():
        found.append(Finding(unit.api or "units", None if unit.error else True, unit.error or str(unit)))
    return found


BUSY_LOAD = 1.5  # runnable processes per core that are not ours


def _condition(facts: DeviceFacts) -> list[Finding]:
    c = facts.condition
    heat = Finding("temperature", None, "no thermal zone") if c.temperature is None else Finding(
        "temperature", c.temperature <= HOT, f"{c.temperature:.0f} degrees C"
    )  # fmt: skip
    load = Finding("load", c.load <= BUSY_LOAD * facts.cores, f"{c.load} on {facts.cores} cores")
    governor = Finding("governor", None, ", ".join(c.governors) or "not shown by this device")
    return [heat, load, governor]
