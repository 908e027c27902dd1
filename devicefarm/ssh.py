"""The transport to a device over ssh: pinned host key, own socket, every wait bounded; no port is opened on
it."""

from __future__ import annotations

import contextlib
import queue
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from smelt.core.bundle import RUNNER
from smelt.core.diag import SmeltError
from smelt.core.lazily import Lazily
from smelt.devicefarm.budget import LINK_LOST, LINK_STALLED, Budget, InfraError, StepLimits, infra
from smelt.devicefarm.channel import EXIT_WAIT, Channel, Tail, ended_with
from smelt.devicefarm.room import StoreRules
from smelt.devicefarm.sftp import SftpFiles, link_failure
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

    def __init__(self, channel: paramiko.Channel, close_limit: float) -> None:
        self._channel = channel
        self._close_limit = close_limit
        self._incoming: queue.Queue[bytes] = queue.Queue(RECEIVE_QUEUE)
        self._tail = Tail()
        self._closing = False
        self._ended = False
        for body in (self._drain_out, self._drain_err):
            threading.Thread(target=body, daemon=True).start()

    def send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            left = deadline - time.monotonic()
            if left <= 0:
                raise infra("sending to the device took longer than its limit", status=LINK_STALLED)
            self._channel.settimeout(left)
            try:
                sent = self._channel.send(bytes(view[:SSH_PIECE]))
            except TimeoutError:
                continue
            except (OSError, paramiko.SSHException, EOFError) as error:
                raise self.ended() from error
            if sent == 0:
                raise self.ended()
            view = view[sent:]

    def receive(self, deadline: float) -> bytes:
        if self._ended:
            return b""
        while not self._closing:
            left = deadline - time.monotonic()
            try:
                data = self._incoming.get(timeout=min(max(left, 0.0), 0.25))
            except queue.Empty:
                if left > 0:
                    continue
                what = "waiting for the device took longer than its limit"
                raise infra(what, status=LINK_STALLED) from None
            self._ended = not data
            return data
        raise infra("the channel was closed")

    def stderr_tail(self) -> str:
        return self._tail.text()

    def ended(self) -> InfraError:
        """A program that a signal ended has no exit code here, nor has one whose link is lost: the state of
        the connection tells them apart, a moment later."""
        code = -1
        if self._channel.status_event.wait(EXIT_WAIT):
            code = self._channel.recv_exit_status()
        transport = self._channel.get_transport()
        if code < 0 and (transport is None or not transport.is_active()):
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


def bounded(action: Callable[[], object], limit: float) -> None:
    """Run a closing action in a thread and wait at most `limit` seconds: some close calls of paramiko can
    hang."""

    def body() -> None:
        with contextlib.suppress(Exception):
            action()

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(limit)


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
        self._client: paramiko.SSHClient | None = None
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
        return SshChannel(self._begun(command, "starting the runner", budget), budget.limits.close)

    def execute(self, argv: list[str], budget: Budget) -> Completed:
        deadline = budget.deadline(budget.limits.command)
        session = self._begun(shlex.join(argv), f"running '{argv[0]}'", budget)
        channel = SshChannel(session, budget.limits.close)
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
        limit = self._close_limit
        if self._store is not None:
            bounded(partial(self._store.close, Budget(StepLimits(command=limit, total=limit))), limit)
        self._drop()

    def _drop(self) -> None:
        """Forget the connection, which is closed or of no use any more."""
        client, self._client, self._files, self._store = self._client, None, None, None
        if client is not None:
            bounded(client.close, self._close_limit)

    # ---- connection ----

    def _connected(self, budget: Budget) -> paramiko.SSHClient:
        transport = self._client.get_transport() if self._client else None
        if self._client is not None and transport is not None and transport.is_active():
            return self._client
        self.close()  # what is left of a connection that was lost
        self._client = self._connect(budget)
        self._close_limit = budget.limits.close
        return self._client

    def _connect(self, budget: Budget) -> paramiko.SSHClient:
        a, limit = self.address, budget.limits.connect
        where = f"device '{self.name}' ({a.user}@{a.host}:{a.port})"
        try:
            sock = socket.create_connection((a.host, a.port), timeout=limit)
        except OSError as error:
            raise infra(f"{where} cannot be reached: {error}", hint=_why_absent(error)) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # paramiko's keepalive does not notice a dead link; this ends it when bytes stay unacknowledged
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limit * 1000))
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        known = a.host if a.port == 22 else f"[{a.host}]:{a.port}"
        pinned = _parse_host_key(self.name, a.host_key)
        client.get_host_keys().add(known, pinned.get_name(), pinned)
        try:
            client.connect(
                a.host, a.port, a.user,
                key_filename=str(a.key_file), sock=sock, allow_agent=False, look_for_keys=False,
                timeout=limit, banner_timeout=limit, auth_timeout=limit, channel_timeout=limit,
            )  # fmt: skip
        except paramiko.BadHostKeyException as error:
            bounded(client.close, 2.0)
            raise infra(
                f"{where} showed another host key than the pinned one",
                hint="if the board was set up anew, pin its new key in devices.toml; if not, do not trust it",
            ) from error
        except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
            bounded(client.close, 2.0)
            hint = "is the public half of its key_file in this user's authorized_keys on the device?"
            raise infra(f"{where} refused the connection: {error}", hint=hint) from error
        return client

    def _session(self, budget: Budget) -> paramiko.Channel:
        """A new channel, asked for twice unless the device is silent: nothing has begun yet. The connection
        may be lost, which nothing had told before (then there is a new one), and dropbear may close a new
        channel while another one ends."""
        try:
            return self._channel(budget)
        except InfraError as error:
            if error.status == LINK_STALLED:
                raise
        return self._channel(budget)

    def _channel(self, budget: Budget) -> paramiko.Channel:
        transport = self._connected(budget).get_transport()
        if transport is None:
            raise infra(f"the link to device '{self.name}' was lost")
        with self._doing("opening a channel", budget):
            return transport.open_session(timeout=budget.limits.connect)

    def _opened(self, budget: Budget) -> DeviceStore:
        files = self._sftp_files(budget)
        if self._store is None:
            self._store = DeviceStore(files, rules=self._rules)
        return self._store

    def _sftp_files(self, budget: Budget) -> SftpFiles:
        """The one sftp channel, which stays open as long as the connection: dropbear refuses a runner's
        channel that is opened while it closes."""
        self._connected(budget)
        if self._files is None:
            doing = "opening sftp (is an sftp server installed there?)"
            channel = self._session(budget)
            channel.settimeout(budget.limits.command)
            self._ask(partial(channel.invoke_subsystem, "sftp"), channel, doing, budget)
            with self._doing(doing, budget):
                sftp = paramiko.SFTPClient(channel)
                root = self._root if self._root.startswith("/") else f"{sftp.normalize('.')}/{self._root}"
            self._files = SftpFiles(self.name, sftp, root, self.execute)
        return self._files

    def _begun(self, command: str, doing: str, budget: Budget) -> paramiko.Channel:
        """A channel on which the command was begun. Where it was closed before that, on a connection that is
        still there, dropbear did so (see `_session`): then it is asked once more."""
        session = self._session(budget)
        try:
            self._ask(partial(session.exec_command, command), session, doing, budget)
            return session
        except InfraError as error:
            link = self._client.get_transport() if self._client else None
            if error.status == LINK_STALLED or link is None or not link.is_active():
                raise
        session = self._session(budget)
        self._ask(partial(session.exec_command, command), session, doing, budget)
        return session

    def _ask(
        self, request: Callable[[], object], channel: paramiko.Channel, doing: str, budget: Budget
    ) -> None:
        """Ask something of a channel. paramiko waits for the answer without an end, until the channel is
        closed: after the limit it is."""
        late = threading.Event()

        def give_up() -> None:
            late.set()
            channel.close()

        timer = threading.Timer(budget.limits.connect, give_up)
        timer.daemon = True
        timer.start()
        with self._doing(doing, budget):
            try:
                request()
            except paramiko.SSHException as error:
                if late.is_set():
                    raise TimeoutError from error
                raise
            finally:
                timer.cancel()

    @contextmanager
    def _doing(self, doing: str, budget: Budget) -> Iterator[None]:
        """Turn what paramiko and sockets raise into SmeltError(kind='infra')."""
        try:
            yield
        except (paramiko.SSHException, paramiko.SFTPError, OSError, EOFError) as error:
            what = f"{doing} failed on device '{self.name}'"
            lost = link_failure(self.name, what, error, budget.limits.connect)
            raise lost or infra(f"{what}: {error or type(error).__name__}") from error


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
