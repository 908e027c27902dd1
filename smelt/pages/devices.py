"""What is known of the farm's devices -> a page with a section for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smelt.pages.render import render


@dataclass(frozen=True)
class DeviceView:
    """A device. row: of the inventory; where: in words; facts: what it told about itself; findings: (ok or
    None, check, detail) of the doctor."""

    name: str
    row: Mapping[str, Any]
    where: str
    findings: Sequence[tuple[bool | None, str, str]] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """'ok', 'doubtful' or 'broken', after its findings; 'unknown' without any."""
        if not self.findings:
            return "unknown"
        if any(ok is False for ok, _, _ in self.findings):
            return "broken"
        return "doubtful" if any(ok is None for ok, _, _ in self.findings) else "ok"


def devices_page(devices: Sequence[DeviceView], inventory: str) -> str:
    """The page. inventory: the file that lists the devices."""
    return render("devices.html", devices=devices, inventory=inventory)
