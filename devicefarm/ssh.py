"""The transport to a device over ssh: pinned host key, own socket, every wait bounded; no port is opened on
it."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from smelt.core.bundle import RUNNER
from smelt.core.diag import SmeltError
from smelt.core.lazily import Lazily
from smelt.devicefarm.budget import Budget, infra
from smelt.devicefarm.channel import Channel, Tail
from smelt.devicefarm.transport import Completed, deploy_files

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
                raise infra("sending to the device took longer than its limit")
            self._channel.settimeout(left)
            try:
                sent = self._channel.send(bytes(view[:SSH_PIECE]))
            except TimeoutError:
                continue
            except (OSError, paramiko.SSHException, EOFError) as error:
                raise infra(f"the link to the device was lost: {error}") from error
            if sent == 0:
                raise infra("the runner does not read any more")
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
                raise infra(
                    "waiting for the device took longer than its limit",
                    hint="the board hangs or the link is dead; see the devices' doctor",
                ) from None
            self._ended = not data
            return data
        raise infra("the channel was closed")

    def stderr_tail(self) -> str:
        return self._tail.text()

    def close(self) -> None:
        self._closing = True
        bounded(self._channel.close, self._close_limit)

    def _drain_out(self) -> None:
        while True:
            try:
                data = self._channel.recv(SSH_PIECE * 8)
            except TimeoutError:  # `send` sets the timeout of both directions
                if self._closing:
                    return
                continue
            except Exception:  # whatever paramiko raises here means one thing: the stream is over
                data = b""
            while not self._closing:
                try:
                    self._incoming.put(data, timeout=0.5)
                    break
                except queue.Full:
                    continue
            if not data or self._closing:
                return

    def _drain_err(self) -> None:
        while not self._closing:
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

    emulated = False

    def __init__(self, name: str, address: SshAddress, *, root: str = DEFAULT_ROOT) -> None:
        self.name = name
        self.address = address
        self._root = root
        self._client: paramiko.SSHClient | None = None
        self._close_limit = 5.0

    # ---- Transport ----

    def deploy(self, bundle: Path, budget: Budget) -> str:
        with self._sftp(budget) as sftp:
            return deploy_files(_SftpFiles(self, sftp, self._absolute_root(sftp)), bundle, budget)

    def open_runner(self, remote: str, budget: Budget) -> Channel:
        channel = self._session(budget)
        with _as_infra(self.name, "starting the runner"):
            channel.exec_command(f"exec {shlex.join([f'{remote}/{RUNNER}', '--serve'])}")
        return SshChannel(channel, budget.limits.close)

    def execute(self, argv: list[str], budget: Budget) -> Completed:
        deadline = budget.deadline(budget.limits.command)
        session = self._session(budget)
        with _as_infra(self.name, f"running '{argv[0]}'"):
            session.exec_command(shlex.join(argv))
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
        with self._sftp(budget) as sftp:
            root = self._absolute_root(sftp)
        done = self.execute(["df", "-Pk", root], budget)
        if done.code != 0:
            done = self.execute(["df", "-Pk", "."], budget)
        fields = done.out.splitlines()[-1].split() if done.out.strip() else []
        return 1024 * int(fields[3]) if len(fields) >= 4 and fields[3].isdigit() else None

    def close(self) -> None:
        if self._client is not None:
            bounded(self._client.close, self._close_limit)
            self._client = None

    # ---- connection ----

    def _connected(self, budget: Budget) -> paramiko.SSHClient:
        transport = self._client.get_transport() if self._client else None
        if self._client is not None and transport is not None and transport.is_active():
            return self._client
        self._client = self._connect(budget)
        self._close_limit = budget.limits.close
        return self._client

    def _connect(self, budget: Budget) -> paramiko.SSHClient:
        a, limit = self.address, budget.limits.connect
        where = f"device '{self.name}' ({a.user}@{a.host}:{a.port})"
        try:
            sock = socket.create_connection((a.host, a.port), timeout=limit)
        except OSError as error:
            raise infra(f"{where} cannot be reached: {error}") from error
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
            raise infra(f"{where} refused the connection: {error}") from error
        return client

    def _session(self, budget: Budget) -> paramiko.Channel:
        client = self._connected(budget)
        transport = client.get_transport()
        if transport is None:
            raise infra(f"the link to device '{self.name}' was lost")
        with _as_infra(self.name, "opening a channel"):
            return transport.open_session(timeout=budget.limits.connect)

    @contextlib.contextmanager
    def _sftp(self, budget: Budget) -> Iterator[paramiko.SFTPClient]:
        client = self._connected(budget)
        with _as_infra(self.name, "opening sftp (is an sftp server installed there?)"):
            sftp = client.open_sftp()
            channel = sftp.get_channel()
            assert channel is not None
            channel.settimeout(budget.limits.command)
        try:
            yield sftp
        finally:
            bounded(sftp.close, budget.limits.close)

    def _absolute_root(self, sftp: paramiko.SFTPClient) -> str:
        if self._root.startswith("/"):
            return self._root
        with _as_infra(self.name, "asking for the home directory"):
            return f"{sftp.normalize('.')}/{self._root}"


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


class _as_infra:
    """Turn what paramiko and sockets raise into SmeltError(kind='infra')."""

    def __init__(self, device: str, doing: str) -> None:
        self.what = f"{doing} failed on device '{device}'"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (paramiko.SSHException, OSError, EOFError)):
            why = str(error) or type(error).__name__
            raise infra(f"{self.what}: {why}") from error


@dataclass(frozen=True)
class _SftpFiles:
    """`Files` over sftp; hashes are computed on the device when it can."""

    transport: SshTransport
    sftp: paramiko.SFTPClient
    root: str

    def full_path(self, path: str) -> str:
        return f"{self.root}/{path}"

    def exists(self, path: str, budget: Budget) -> bool:
        with self._doing("looking for", path):
            try:
                self.sftp.stat(self.full_path(path))
            except FileNotFoundError:
                return False
            return True

    def make_dirs(self, path: str, budget: Budget) -> None:
        if self.exists(path, budget):
            return
        full = self.full_path(path)
        at = ""
        for part in full.strip("/").split("/"):
            at += f"/{part}"
            try:
                self.sftp.stat(at)
            except FileNotFoundError:
                with self._doing("creating", at), contextlib.suppress(FileExistsError):
                    self._mkdir(at)

    def _mkdir(self, at: str) -> None:
        try:
            self.sftp.mkdir(at)
        except OSError:
            self.sftp.stat(at)  # somebody else was faster, or the error stands

    def put(self, source: Path, path: str, budget: Budget) -> None:
        deadline = budget.deadline(budget.limits.upload, source.stat().st_size)
        with (
            self._doing("uploading", source.name),
            source.open("rb") as reader,
            self.sftp.open(self.full_path(path), "wb") as writer,
        ):
            writer.set_pipelined(True)
            while piece := reader.read(SSH_PIECE):
                budget.left(deadline, f"uploading '{source.name}'")
                writer.write(piece)

    def sha256(self, path: str, budget: Budget) -> str:
        done = self.transport.execute(["sha256sum", "--", self.full_path(path)], budget)
        word = done.out.split()[:1]
        if done.code == 0 and word and len(word[0]) == 64:
            return word[0]
        return self._sha256_by_reading(path)

    def _sha256_by_reading(self, path: str) -> str:
        digest = hashlib.sha256()
        with self._doing("reading", path), self.sftp.open(self.full_path(path), "rb") as reader:
            reader.prefetch()
            while piece := reader.read(SSH_PIECE):
                digest.update(piece)
        return digest.hexdigest()

    def rename(self, old: str, new: str, budget: Budget) -> None:
        with self._doing("renaming", old):
            self.sftp.rename(self.full_path(old), self.full_path(new))

    def link(self, target: str, path: str, budget: Budget) -> None:
        with self._doing("linking", path):
            self.sftp.symlink(target, self.full_path(path))

    def set_executable(self, path: str, budget: Budget) -> None:
        with self._doing("marking executable", path):
            self.sftp.chmod(self.full_path(path), 0o755)

    def remove(self, path: str, budget: Budget) -> None:
        with self._doing("removing", path):
            try:
                self.sftp.remove(self.full_path(path))
            except FileNotFoundError:
                return

    def _doing(self, doing: str, path: str) -> _as_infra:
        return _as_infra(self.transport.name, f"{doing} '{path}'")
