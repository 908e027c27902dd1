"""A wish for a device -> the right to it, held by a lease while a block of code runs.

Devices of the inventory's file are leased. Those that are built in, this machine and emulators on it, are so
where somebody names them and a farm is kept already; nothing of SQLAlchemy is imported for any other run.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from smelt.core.diag import SmeltError
from smelt.devicefarm.claim import UNCLAIMED, DeviceClaim
from smelt.devicefarm.inventory import BUILTIN, Device
from smelt.devicefarm.places import HOLDER, farm_exists, farm_rules, farm_url, host_fence
from smelt.devicefarm.transport import Transport

if TYPE_CHECKING:
    from smelt.devicefarm.client import RunnerClient
    from smelt.devicefarm.leases.desk import Desk, Waiting
    from smelt.devicefarm.leases.holder import Lease

FULL_CHECK = 3600.0
"""Seconds after which a device is examined in full before it is used again."""


def _silent(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Wish:
    """A device by name, and how to wait for it. timeout: seconds, None for as long as it takes. on_wait:
    called when the place in the queue changes."""

    device: str
    priority: str = "normal"
    timeout: float | None = None
    on_wait: Callable[[Waiting], None] = _silent


@dataclass(frozen=True)
class HeldDevice:
    """A device that is held. on_open: called with each runner that is opened on it."""

    device: str
    claim: DeviceClaim = UNCLAIMED
    lease: Lease | None = None
    on_open: Callable[[RunnerClient], None] = field(default=_silent, compare=False)


Where: TypeAlias = str | Wish | HeldDevice | None
"""What names a device: None is the default one of a platform, which needs no lease."""


def name_of(where: Where) -> str | None:
    """The device's name."""
    return where if where is None or isinstance(where, str) else where.device


def is_leased(where: Where, device: Device) -> bool:
    """Whether a lease has to be taken."""
    if where is None or isinstance(where, HeldDevice):
        return False
    own = device not in BUILTIN
    return own or farm_exists()


def open_desk() -> Desk:
    """The desk of this user's farm. Raises SmeltError where its database cannot be used."""
    from smelt.devicefarm.leases.database import Database
    from smelt.devicefarm.leases.desk import Desk

    return Desk(Database(farm_url()), farm_rules())


def user_name() -> str:
    """Who asks for devices."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())


@contextmanager
def hold(devices: Sequence[str], wish: Wish, desk: Desk | None = None) -> Iterator[HeldDevice]:
    """A lease of one of these devices, taken by the wish. Raises NoDevice, QueueTimeout, and
    SmeltError(kind='infra')."""
    from smelt.devicefarm.leases.holder import take

    own = desk is None
    at = desk or open_desk()
    try:
        with take(
            at, devices, user=user_name(), holder=os.environ.get(HOLDER) or None, priority=wish.priority,
            timeout=wish.timeout, on_wait=wish.on_wait,
        ) as lease:  # fmt: skip
            yield HeldDevice(lease.device, claim_of(lease), lease)
    finally:
        if own:
            at.database.close()


def claim_of(lease: Lease) -> DeviceClaim:
    """What sessions under a lease show, and check before each request: the lease, and the host's fence."""
    host = host_fence(lease.device)

    def check() -> None:
        lease.check()
        host.admit(lease.fence)

    return DeviceClaim(lease.fence, check, place=str(host.path))


@contextmanager
def right_to(where: Where, device: Device, transport: Transport, bundle: Path) -> Iterator[HeldDevice]:
    """The right to use a device on which a bundle is about to run; it is well then.

    Raises as `hold`, and Unwell for a device that could not be mended: it is in quarantine from then on.
    """
    if isinstance(where, HeldDevice):
        yield where
        return
    if not is_leased(where, device):
        yield HeldDevice(device.name)
        return
    wish = where if isinstance(where, Wish) else Wish(device.name)
    desk = open_desk()
    try:
        with hold([device.name], wish, desk) as held:
            make_well(desk, device, transport, bundle)
            yield held
    finally:
        desk.database.close()


def make_well(desk: Desk, device: Device, transport: Transport, bundle: Path) -> None:
    """Check a device that is held, in full where that was not done for an hour, and mend it if need be.
    Raises Unwell after it was put into quarantine."""
    from smelt.devicefarm.health import Unwell, boot_id, ensure_well, full_check, patient_of, quick_check

    if device in BUILTIN and not device.power:
        return  # this machine, or a process of it
    due = desk.unexamined_for(device.name) > FULL_CHECK
    patient = patient_of(device, transport, desk.boot_of(device.name))
    try:
        steps = ensure_well(patient, check=partial(full_check, bundle=bundle) if due else quick_check)
    except Unwell as error:
        desk.quarantine(device.name, error.message)
        raise
    if steps or due:
        try:
            desk.examined(device.name, boot_id(transport))
        except SmeltError:  # it answers, which is what counts
            return
