"""Two runners of one device over one connection, as `smelt bench --baseline` uses them: in turns, each
launch a fresh process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import rig

from smelt.devicefarm.budget import Budget
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.ssh import SshTransport
from smelt.devicefarm.transport import Transport

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_local_runners_take_turns(native_bundle: Path) -> None:
    take_turns(LocalTransport(), native_bundle)


def test_runners_over_ssh_take_turns(sshd: rig.Sshd, native_bundle: Path, tmp_path: Path) -> None:
    transport = SshTransport("board", sshd.address, root=str(tmp_path / "root"))
    try:
        take_turns(transport, native_bundle)
    finally:
        transport.close()


def take_turns(transport: Transport, bundle: Path) -> None:
    budget = Budget()
    remote = transport.deploy(bundle, budget)
    pair = [RunnerClient(transport.open_runner(remote, budget), budget=budget) for _ in range(2)]
    workers = set()
    try:
        for client in (*pair, *reversed(pair), *pair):
            client.load(remote)
            count = client.run([X, np.int32(0)]).outputs["count"]
            assert count == X.size  # with the number of earlier runs in its upper half: there were none
            assert client.facts is not None
            workers |= set(children(client.facts.pid))
            client.reset()
            assert [children(c.facts.pid) for c in pair if c.facts is not None] in ([[]], [[], []])
    finally:
        for client in pair:
            client.close()
    assert len(workers) == 6
