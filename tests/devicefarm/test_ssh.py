"""What is true of ssh devices alone: keys, servers that are silent or not there, sessions in a row."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paramiko
import pytest
import rig
from processes import children
from proxy import before

from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import LINK_LOST, LINK_STALLED, Budget, InfraError, StepLimits
from smelt.devicefarm.client import open_session
from smelt.devicefarm.doctor import examine, healthy
from smelt.devicefarm.ssh import SshAddress, SshTransport

LIMITS = StepLimits(connect=100, load=100, run=100, output=100, grace=5, total=600)
HANGS = 60.0
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def descendants(pid: int) -> list[int]:
    """The processes that this one has started, and they."""
    return [found for child in children(pid) for found in (child, *descendants(child))]


def test_wrong_host_key(sshd: rig.Sshd, native_bundle: Path, tmp_path: Path) -> None:
    other = rig.make_key(tmp_path / "other")
    transport = SshTransport("board", replace(sshd.address, host_key=other))
    with pytest.raises(SmeltError, match="another host key") as caught:
        transport.deploy(native_bundle, Budget(LIMITS))
    assert caught.value.kind == "infra"
    findings = examine(transport, budget=Budget(LIMITS))
    assert not healthy(findings)
    assert "host key" in findings[0].detail


def test_unknown_user_key(sshd: rig.Sshd, native_bundle: Path, tmp_path: Path) -> None:
    rig.make_key(tmp_path / "stranger")
    transport = SshTransport("board", replace(sshd.address, key_file=tmp_path / "stranger"))
    with pytest.raises(SmeltError, match="refused the connection"):
        transport.deploy(native_bundle, Budget(LIMITS))


def test_unreadable_host_key(sshd: rig.Sshd, native_bundle: Path) -> None:
    transport = SshTransport("board", replace(sshd.address, host_key="ssh-ed25519 AAAAnonsense"))
    with pytest.raises(SmeltError, match="cannot be read"):
        transport.deploy(native_bundle, Budget(LIMITS))


def test_nobody_listens(tmp_path: Path, native_bundle: Path) -> None:
    key = rig.make_key(tmp_path / "key")
    address = SshAddress("127.0.0.1", rig.free_port(), "root", key, tmp_path / "key")
    with pytest.raises(SmeltError, match="cannot be reached"):
        SshTransport("board", address).deploy(native_bundle, Budget(LIMITS))


def test_silent_server_meets_the_deadline(tmp_path: Path, native_bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        key = rig.make_key(tmp_path / "key")
        address = SshAddress("127.0.0.1", server.getsockname()[1], "root", key, tmp_path / "key")
        start = time.monotonic()
        with pytest.raises(SmeltError):
            SshTransport("board", address).deploy(
                native_bundle, Budget(replace(LIMITS, connect=1.0))
            )
        assert time.monotonic() - start < HANGS


def test_dropbear_serves_one_session_after_the_other(
    dropbear: rig.Sshd, native_bundle: Path, tmp_path: Path
) -> None:
    """It once lost one in seven, as an sftp channel was closed right before the runner's was opened."""
    for _ in range(30):
        transport = SshTransport("board", dropbear.address, root=str(tmp_path / "root"))
        with open_session(transport, native_bundle, budget=Budget(LIMITS)) as client:
            assert np.array_equal(client.run([X, np.int32(0)]).outputs["y"], 2 * X)
        transport.close()


def test_remote_arguments_are_not_shell_text(sshd: rig.Sshd) -> None:
    transport = SshTransport("board", sshd.address)
    done = transport.execute(["echo", "$HOME; rm -rf *", "'"], Budget(LIMITS))
    assert done.out == "$HOME; rm -rf * '\n"
    assert transport.execute(["false"], Budget(LIMITS)).code == 1
    transport.close()


def test_a_connection_that_ends_as_a_channel_is_opened_is_made_again(
    sshd: rig.Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody had told before that it is lost."""
    transport, opened, asked = SshTransport("board", sshd.address), paramiko.Transport.open_session, []

    def cut_first(self: paramiko.Transport, **more: Any) -> paramiko.Channel:
        asked.append(self)
        if len(asked) == 2:
            self.close()
        return opened(self, **more)

    monkeypatch.setattr(paramiko.Transport, "open_session", cut_first)
    for word in ("one", "two"):
        assert transport.execute(["echo", word], Budget(LIMITS)).out == f"{word}\n"
    assert asked[0] is asked[1] is not asked[2]
    transport.close()


def test_a_channel_that_is_closed_before_anything_begins_is_opened_anew(
    sshd: rig.Sshd, native_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is opened, or as it is asked for a command or a runner; the connection stays."""
    transport = SshTransport("board", sshd.address, root=str(tmp_path))
    remote = transport.deploy(native_bundle, Budget(LIMITS))
    opened, begun = paramiko.Transport.open_session, paramiko.Channel.exec_command

    def once(self: Any, *args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        if isinstance(self, paramiko.Channel):
            self.close()
        raise paramiko.SSHException("Unable to open channel.")

    for owner, name in ((paramiko.Transport, "open_session"), (paramiko.Channel, "exec_command")):
        monkeypatch.setattr(owner, name, once)
        assert transport.execute(["echo", name], Budget(LIMITS)).out == f"{name}\n"
        monkeypatch.setattr(owner, name, once)
        transport.open_runner(remote, Budget(LIMITS)).close()
    assert (paramiko.Transport.open_session, paramiko.Channel.exec_command) == (opened, begun)
    transport.close()


@pytest.mark.parametrize("server", ["sshd", "dropbear"])
def test_an_sftp_server_that_ends_is_started_anew(
    server: str, request: pytest.FixtureRequest, native_bundle: Path, tmp_path: Path
) -> None:
    """The connection stays, and with it the channels of others."""
    there = request.getfixturevalue(server)
    transport = SshTransport("board", there.address, root=str(tmp_path))
    transport.deploy(native_bundle, Budget(LIMITS))
    ended = [pid for pid in descendants(there.pid) if b"sftp" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    for pid in ended:
        os.kill(pid, signal.SIGKILL)
    assert ended
    with pytest.raises(InfraError) as caught:
        while True:  # until the word of it has come
            transport.free_bytes(Budget(LIMITS))
    assert caught.value.status == LINK_LOST
    transport.deploy(native_bundle, Budget(LIMITS))
    transport.close()


def test_a_command_that_prints_without_an_end_meets_its_limit(sshd: rig.Sshd) -> None:
    transport = SshTransport("board", sshd.address)
    with pytest.raises(InfraError) as caught:
        transport.execute(["yes"], Budget(replace(LIMITS, command=0.5)))
    assert caught.value.status == LINK_STALLED
    assert transport.execute(["echo", "a"], Budget(LIMITS)).out == "a\n"
    transport.close()


@pytest.mark.parametrize("request_name", ["exec_command", "invoke_subsystem"])
def test_a_link_that_stalls_before_the_answer_meets_the_limit(
    request_name: str, sshd: rig.Sshd, native_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel is there, and then nothing comes any more: paramiko itself would wait for ever."""
    ask = getattr(paramiko.Channel, request_name)
    with before(sshd.address.port) as proxy:
        transport = SshTransport("board", replace(sshd.address, port=proxy.port))
        assert transport.execute(["true"], Budget(LIMITS)).code == 0

        def stall(self: paramiko.Channel, *args: Any) -> None:
            proxy.stalled.set()
            ask(self, *args)

        monkeypatch.setattr(paramiko.Channel, request_name, stall)
        with pytest.raises(InfraError, match="no byte came") as caught:
            short = Budget(replace(LIMITS, connect=1.0))
            if request_name == "exec_command":
                transport.execute(["true"], short)
            else:
                transport.deploy(native_bundle, short)
        assert caught.value.status == LINK_STALLED
        transport.close()


@pytest.mark.parametrize("server", ["sshd", "dropbear"])
def test_commands_right_after_a_runner(
    server: str, request: pytest.FixtureRequest, native_bundle: Path, tmp_path: Path
) -> None:
    """A channel is opened while another still closes, which dropbear may answer by closing both."""
    transport = SshTransport("board", request.getfixturevalue(server).address, root=str(tmp_path))
    remote = transport.deploy(native_bundle, Budget(LIMITS))
    for number in range(60):
        transport.open_runner(remote, Budget(LIMITS)).close()
        done = transport.execute(["echo", str(number)], Budget(LIMITS))
        assert (done.code, done.out) == (0, f"{number}\n")
    transport.close()
