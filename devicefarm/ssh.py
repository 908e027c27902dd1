"""The transport to a device over ssh: pinned host key, own socket, every wait bounded; no port is opened on
it."""

from __future__ import annotations

import logging
import queue
import shlex
import socket
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smelt.core.bundle import RUNNER
from smelt.core.diag import SmeltError, printable
from smelt.core.lazily import Lazily
from smelt.devicefarm.budget import LINK_LOST, LINK_STALLED, Budget, InfraError, StepLimits, infra
from smelt.devicefarm.channel import EXIT_WAIT, Channel, Tail, ended_with
from smelt.devicefarm.room import StoreRules
from smelt.devicefarm.sftp import SftpFiles
from smelt.devicefarm.ssh_link import SshLink, bounded, link_failure
from smelt.devicefarm.store import DeviceStore
from smelt.devicefarm.transport import Completed

if TYPE_CHECKING:
    import paramiko
else:
    paramiko = Lazily("paramiko")

SSH_PIECE = 32 * 1024
COMMAND_OUTPUT = 64 * 1024
RECEIVE_QUEUE = 256  # pieces that the drain may be ahead of the reader: 8 MiB
DEFAULT_ROOT = ".cache/smelt-farm"
_QUIET = logging.NullHandler()
"""Without any, Python prints what paramiko logs, which our errors say."""


@dataclass(frozen=True, slots=True)
class SshAddress:
    """Host, port and user. host_key: 'ssh-ed25519 AAAA...', the one key that is accepted."""

    host: str
    port: int
    user: str
    host_key: str
    key_file: Path


class SshChannel:
    """The stdio of one remote command, drained by two threads so that neither stream can block the other."""

    def __init__(self, link: SshLink, channel: paramiko.Channel, close_limit: float) -> None:
        self._link, self._channel = link, channel
        self._close_limit = close_limit
        self._incoming: queue.Queue[bytes] = queue.Queue(RECEIVE_QUEUE)
        self._tail = Tail()
        self._closing = False
        self._ended = False
        for body in (self._drain_out, self._drain_err):
            threading.Thread(target=body, daemon=True).start()

    def send(self, data: bytes, deadline: float) -> None:
        view, left = memoryview(data), deadline - time.monotonic()
        if left <= 0:
            raise self._late("sending to the device")
        with self._link.within(left) as late:  # else one that takes nothing is waited for without end
            while view:
                self._channel.settimeout(max(deadline - time.monotonic(), 0.0))
                try:
                    sent = self._channel.send(bytes(view[:SSH_PIECE]))
                except Exception as error:  # whatever paramiko raises here means one of two things
                    if late.is_set() or isinstance(error, TimeoutError):
                        raise self._late("sending to the device") from error
                    raise self.ended() from error
                if sent == 0:
                    raise self._late("sending to the device") if late.is_set() else self.ended()
                view = view[sent:]

    def receive(self, deadline: float) -> bytes:
        if self._ended:
            return b""
        while not self._closing:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late("waiting for the device")
            try:
                data = self._incoming.get(timeout=min(left, 0.25))
            except queue.Empty:
                continue
            self._ended = not data
            return data
        raise infra("the channel was closed")

    def _late(self, doing: str) -> InfraError:
        self._link.doubt()
        return infra(f"{doing} took longer than its limit", status=LINK_STALLED)

    def stderr_tail(self) -> str:
        return self._tail.text()

    def ended(self) -> InfraError:
        """A program that a signal ended has no exit code here, nor has one whose link is lost: the state of
        the connection tells them apart, a moment later."""
        code = -1
        if self._channel.status_event.wait(EXIT_WAIT):
            code = self._channel.recv_exit_status()
        if code < 0 and not self._link.active:
            return infra("the link to the device was lost", status=LINK_LOST)
        return ended_with(code if code >= 0 else None)

    def close(self) -> None:
        """End the program's input and let the device close the channel. It is closed from here only when that
        takes too long: dropbear ends the whole connection when it has output for a channel that is closed."""
        self._closing = True
        bounded(self._channel.shutdown_write, self._close_limit)
        end = time.monotonic() + self._close_limit
        while not self._channel.closed and time.monotonic() < end:
            time.sleep(0.005)
        bounded(self._channel.close, self._close_limit)

    def _drain_out(self) -> None:
        while True:
            try:
                data = self._channel.recv(SSH_PIECE * 8)
            except TimeoutError:  # `send` sets the timeout of both directions
                continue
            except Exception:  # whatever paramiko raises here means one thing: the stream is over
                data = b""
            while not self._closing:
                try:
                    self._incoming.put(data, timeout=0.5)
                    break
                except queue.Full:
                    continue
            if not data:  # what comes while it is being closed is dropped
                return

    def _drain_err(self) -> None:
        while True:
            try:
                data = self._channel.recv_stderr(4096)
            except TimeoutError:
                continue
            except Exception:  # as above
                return
            if not data:
                return
            self._tail.add(data)


class SshTransport:
    """One ssh connection, made at first use and kept."""

    def __init__(
        self,
        name: str,
        address: SshAddress,
        *,
        root: str = DEFAULT_ROOT,
        rules: StoreRules | None = None,
        emulated: bool = False,
    ) -> None:
        self.name = name
        self.emulated = emulated
        self.address = address
        self._root = root
        self._rules = rules
        self._link: SshLink | None = None
        self._files: SftpFiles | None = None
        self._store: DeviceStore | None = None
        self._close_limit = 5.0

    # ---- Transport ----

    def deploy(self, bundle: Path, budget: Budget) -> str:
        return self._opened(budget).deploy(bundle, budget)

    def damaged(self, bundle: Path, budget: Budget) -> tuple[str, ...]:
        return self._opened(budget).damaged(bundle, budget)

    def open_runner(self, remote: str, budget: Budget) -> Channel:
        command = f"exec {shlex.join([f'{remote}/{RUNNER}', '--serve'])}"
        link, session = self._begun(command, "starting the runner", budget)
        return SshChannel(link, session, budget.limits.close)

    def execute(self, argv: list[str], budget: Budget) -> Completed:
        deadline = budget.deadline(budget.limits.command)
        link, session = self._begun(shlex.join(argv), f"running '{argv[0]}'", budget)
        channel = SshChannel(link, session, budget.limits.close)
        out = b""
        try:
            while data := channel.receive(deadline):
                out = (out + data)[:COMMAND_OUTPUT]
            ended = session.status_event.wait(max(deadline - time.monotonic(), 0.0))
            code = session.recv_exit_status() if ended else -1
        finally:
            channel.close()
        # -1 is paramiko's word both for a signal and for a lost link
        return Completed(
            code if code >= 0 else None, out.decode("utf-8", "replace"), channel.stderr_tail()
        )

    def free_bytes(self, budget: Budget) -> int | None:
        space = self._sftp_files(budget).space(budget)
        return space.free if space is not None else None

    def system_log(self, seconds: float, pid: int) -> str:
        return ""

    def close(self) -> None:
        self._close_store()
        link, self._link = self._link, None
        if link is not None:
            link.close(self._close_limit)

    def _close_store(self) -> None:
        """Give the store back, where the link can still bring the word."""
        store, self._files, self._store = self._store, None, None
        if store is not None:
            limit = self._close_limit
            bounded(partial(store.close, Budget(StepLimits(command=limit, total=limit))), limit)

    # ---- connection ----

    def _connected(self, budget: Budget) -> SshLink:
        if self._link is not None and self._link.alive:
            return self._link
        self.close()  # what is left of a connection that is of no use any more
        self._link = self._connect(budget)
        self._close_limit = budget.limits.close
        return self._link

    def _connect(self, budget: Budget) -> SshLink:
        a, step = self.address, "connecting"
        where = f"device '{self.name}' ({a.user}@{a.host}:{a.port})"
        pinned = _parse_host_key(self.name, a.host_key)
        deadline = budget.deadline(budget.limits.connect)
        limit = budget.left(deadline, step)
        try:
            sock = socket.create_connection((a.host, a.port), timeout=limit)
        except OSError as error:
            raise infra(f"{where} cannot be reached: {error}", hint=_why_absent(error)) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # paramiko's keepalive does not notice a dead link; this ends it when bytes stay unacknowledged
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limit * 1000))
        logging.getLogger("paramiko").addHandler(_QUIET)
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        known = a.host if a.port == 22 else f"[{a.host}]:{a.port}"
        client.get_host_keys().add(known, pinned.get_name(), pinned)
        link = SshLink(self.name, sock, client)
        never = 2 * limit  # the link is cut before: paramiko would wait so long for each of many things
        try:
            with link.within(budget.left(deadline, step)) as late:
                client.connect(
                    a.host, a.port, a.user,
                    key_filename=str(a.key_file), sock=sock, allow_agent=False, look_for_keys=False,
                    timeout=never, banner_timeout=never, auth_timeout=never, channel_timeout=never,
                    transport_factory=partial(_patient, never),
                )  # fmt: skip
        except BaseException as error:
            link.close(2.0)
            if not isinstance(error, Exception):
                raise
            raise _refusal(self.name, where, TimeoutError() if late.is_set() else error, limit) from error
        return link

    def _session(self, budget: Budget) -> tuple[SshLink, paramiko.Channel]:
        """A new channel, asked for twice unless the device is silent: nothing has begun yet. The connection
        may be lost, which nothing had told before (then there is a new one), and dropbear may close a new
        channel while another one ends."""
        link = self._connected(budget)
        try:
            return link, link.open_session(budget.limits.connect)
        except InfraError as error:
            if error.status == LINK_STALLED:
                raise
        link = self._connected(budget)
        return link, link.open_session(budget.limits.connect)

    def _opened(self, budget: Budget) -> DeviceStore:
        files = self._sftp_files(budget)
        if self._store is None:
            self._store = DeviceStore(files, rules=self._rules)
        return self._store

    def _sftp_files(self, budget: Budget) -> SftpFiles:
        """The one sftp channel, which stays open as long as the connection, unless its server ends: dropbear
        refuses a runner's channel that is opened while it closes."""
        self._connected(budget)
        files = self._files
        if files is not None and not files.usable:
            self._close_store()
            bounded(files.close, self._close_limit)
        if self._files is None:
            link, channel = self._session(budget)
            try:
                with link.doing("opening sftp (is an sftp server installed there?)", budget.limits.connect):
                    channel.invoke_subsystem("sftp")
                self._files = SftpFiles(link, channel, self._root, self.execute, budget)
            except BaseException:
                bounded(channel.close, self._close_limit)
                raise
        return self._files

    def _begun(self, command: str, doing: str, budget: Budget) -> tuple[SshLink, paramiko.Channel]:
        """A channel on which the command was begun. Where it was closed before that, on a connection that is
        still there, dropbear did so (see `_session`): then it is asked once more."""
        link, session = self._session(budget)
        try:
            with link.doing(doing, budget.limits.connect):
                session.exec_command(command)
            return link, session
        except InfraError as error:
            if error.status == LINK_STALLED or not link.alive:
                raise
        link, session = self._session(budget)
        with link.doing(doing, budget.limits.connect):
            session.exec_command(command)
        return link, session


def _patient(seconds: float, sock: socket.socket, **more: Any) -> paramiko.Transport:
    """A transport whose handshake may take so long; its own limit is fixed."""
    made = paramiko.Transport(sock, **more)
    made.handshake_timeout = seconds
    return made


def _refusal(device: str, where: str, error: Exception, limit: float) -> InfraError:
    """Why a device that takes connections takes none of ours. limit: the seconds that it had."""
    if isinstance(error, TimeoutError):
        what = f"{where} did not let us in within {limit:.0f} s"
        return infra(what, status=LINK_STALLED)
    if isinstance(error, paramiko.BadHostKeyException):
        return infra(
            f"{where} showed another host key than the pinned one",
            hint="if the board was set up anew, pin its new key in devices.toml; if not, do not trust it",
        )
    what = f"{where} refused the connection"
    known = link_failure(device, what, error, limit)
    if known is not None:
        return known
    ours = isinstance(error, paramiko.AuthenticationException | OSError)
    key = "is the public half of its key_file in this user's authorized_keys on the device?"
    other = "is that an ssh server, is key_file a private key, and does the link keep data whole?"
    hint = key if ours else other
    return infra(f"{what}: {printable(str(error)) or type(error).__name__}", hint=hint)


def _why_absent(error: OSError) -> str:
    """What to do about a device that takes no connection."""
    if isinstance(error, socket.gaierror):
        return "its host name is not known here: check the row in devices.toml, or name an address"
    if isinstance(error, ConnectionRefusedError):
        return "it is there, but nothing listens: is its sshd running, and is the port right?"
    return "is it switched on and in this network? If it hangs, cut its power"


def _parse_host_key(name: str, line: str) -> paramiko.PKey:
    fields = line.split()
    try:
        entry = paramiko.hostkeys.HostKeyEntry.from_line(f"pinned {fields[0]} {fields[1]}")
    except (IndexError, paramiko.SSHException, ValueError):
        entry = None
    if entry is None or entry.key is None:
        raise SmeltError(
            f"device '{name}' has a host key that cannot be read; expected 'ssh-ed25519 AAAA...'",
            kind="invalid",
            hint="ssh-keyscan prints it; compare it with the one that the board shows itself",
        )
    return entry.key
