"""Links that fail at any byte: a few of each kind in each phase, at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import attack_links as links
import pytest
from attack_links import HOWS, PATIENT, Fault
from installed import program_path

from smelt.devicefarm.adb import AdbTransport
from smelt.devicefarm.budget import Budget, InfraError

pytestmark = pytest.mark.skipif(program_path("gcc") is None, reason="no gcc: apt install gcc libc6-dev")
PHASES = (0.001, 0.006, 0.1, 0.5, 0.97)
"""Where in a session's bytes, up or down: in the handshake, among the files, in an upload or an output, at
its end."""


AT_ONCE = 4
"""dropbear lets in no more than five that have shown no key yet."""


def test_a_fault_of_each_kind_in_each_phase() -> None:
    faults = []
    for i, part in enumerate(PHASES):
        for k, how in enumerate(HOWS):
            server, up = ("sshd", "dropbear")[(i + k) % 2], (i + k // 2) % 2
            faults.append((server, Fault(how, bool(up), int(links.bytes_of(server)[up] * part), i)))
    with ThreadPoolExecutor(2 * AT_ONCE) as pool:
        found = list(pool.map(lambda row: links.happen(*row), faults))
    assert [(row, o) for row, o in zip(faults, found, strict=True) if o.failed] == []
    assert sum(o.what != "answered" for o in found) > len(faults) / 2


@pytest.mark.parametrize("at", [30, 100])
def test_what_a_garbled_byte_makes_of_a_phone_does_not_last(at: int) -> None:
    """adb's server keeps for ever what the phone has said that it is (byte 30) and can (100), and processes
    share the server."""
    with links.device("adbd") as (first, link):
        assert isinstance(first, AdbTransport)
        link.fault = Fault("garble", False, at)
        with pytest.raises(InfraError):
            first.execute(["true"], Budget(PATIENT))
        second = AdbTransport("phone", first.serial, server=first.server)
        assert second.execute(["echo", "a"], Budget(PATIENT)).out == "a\n"
