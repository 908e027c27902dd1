"""A row of the inventory -> how its device's power is taken away and given back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, infra
from smelt.devicefarm.inventory import Device
from smelt.devicefarm.qemu_board import BoardMachine


class PowerControl(Protocol):
    """Controls the power of one device."""

    def cycle(self, budget: Budget) -> None:
        """Take the power away and give it back; the device need not be up when this returns. Raises
        SmeltError(kind='infra')."""


@dataclass(frozen=True, slots=True)
class ShellPower:
    """A command of this host, run by its shell with the device's name as SMELT_DEVICE."""

    device: str
    command: str

    def cycle(self, budget: Budget) -> None:
        limit = budget.left(budget.deadline(budget.limits.command), "the power command")
        env = {**os.environ, "SMELT_DEVICE": self.device}
        try:
            done = subprocess.run(
                ["sh", "-c", self.command], env=env, capture_output=True, text=True, check=False,
                timeout=limit,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise infra(f"the power command of device '{self.device}' failed: {error}") from error
        if done.returncode:
            said = " ".join(done.stderr.split())[-300:]
            raise infra(f"the power command of device '{self.device}' ended with {done.returncode}: {said}")


POWER_KINDS: dict[str, Callable[[Device, str], PowerControl]] = {
    "shell": lambda d, rest: ShellPower(d.name, rest),
    "qemu-board": lambda d, rest: BoardMachine(rest or d.name).power,
}
"""What stands before the ':' of a row's `power` -> its control, made of the row and the rest."""


def power_of(device: Device) -> PowerControl | None:
    """The control of a device's power; None without one. Raises SmeltError for a kind that there is not."""
    if not device.power:
        return None
    kind, _, rest = device.power.partition(":")
    if kind not in POWER_KINDS:
        kinds = ", ".join(f"'{k}:...'" for k in POWER_KINDS)
        raise SmeltError(f"device '{device.name}' has power '{device.power}'; there are {kinds}")
    return POWER_KINDS[kind](device, rest.strip())
