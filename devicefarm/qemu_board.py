"""A whole arm64 machine under qemu-system-aarch64 -> a device behind ssh whose power can be cut.

The machine runs while anybody uses it and ends with its last user, even one that was killed: users hold a
lock on a file, and a shell beside the emulator waits for the last one. Its ssh is reached through a port of
this machine's loopback; the emulated network has no way out. The board keeps its files in memory, so that a
reset or a power cut takes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from smelt.core.bundle import replace_file
from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError, printable
from smelt.core.turns import take_turn
from smelt.devicefarm.board_image import BoardImage, board_image, dropbear_key, keys_archive, openssh_line
from smelt.devicefarm.budget import Budget, infra
from smelt.devicefarm.room import StoreRules
from smelt.devicefarm.ssh import DEFAULT_ROOT, SshAddress, SshTransport
from smelt.devicefarm.ssh_link import SshLink

BOARD_EMULATOR = "qemu-system-aarch64"
_PACKAGE = "apt-get install qemu-system-arm"
DEFAULT_CPU = "max,pauth-impdef=on"
"""All features; the pointer authentication is the emulator's cheap one."""
BOOT_LINE = "console=ttyAMA0 quiet panic=1 cryptomgr.notests"
"""Without the kernel's own tests of its ciphers: a quarter of the 7 s of processor time until it is up."""
BOOT_LIMIT = 180.0
"""Seconds from power to ssh; eight on an idle machine."""
QMP_LIMIT, _START_LIMIT = 10.0, 60.0
TURN_LIMIT = 900.0
"""Seconds that another process may take to start the machine, for which it may have to fetch packages."""
MEMORY_MB, CORES = 768, 2

# what runs beside the emulator, which has a lock as long as it lives: it waits until nobody holds `users`
_KEEPER = """
(flock -x 9 && exec "$@") 9>on.lock >emulator.log 2>&1 & board=$!
echo $board >emulator.pid
while kill -0 $board 2>/dev/null; do
  # a new user waits for the lock, and finds it off
  flock -x -w 5 users sh -c "kill -9 $board; flock -x on.lock true" && break
done
wait $board
"""


@dataclass(frozen=True, slots=True)
class BoardPower:
    """The power of a machine, by its emulator's control socket. They raise SmeltError(kind='infra')."""

    folder: Path

    def off(self) -> None:
        """Cut the power: nothing is written back, no process is asked."""
        if not self.is_on():
            return
        try:
            emulator = os.pidfd_open(int((self.folder / "emulator.pid").read_text()))
        except (OSError, ValueError):
            return  # it has ended meanwhile
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(emulator, signal.SIGKILL)
            if not select.select([emulator], [], [], QMP_LIMIT)[0]:
                raise infra("the emulator does not end", hint="see the devices' doctor")
        finally:
            os.close(emulator)

    def cycle(self, budget: Budget) -> None:
        """Cut the power and give it back: the board boots when this returns, or when it is used next, if its
        emulator was silent."""
        try:
            self._ask("system_reset")
            self._ask("cont")  # a board that hangs starts, too
        except SmeltError:
            self.off()

    def reset(self) -> None:
        """Press the reset button."""
        self._ask("system_reset")

    def hang(self) -> None:
        """Stop all processors, as a board that hangs: its connections stay open and nothing answers."""
        self._ask("stop")

    def resume(self) -> None:
        """Let a hanging board go on."""
        self._ask("cont")

    def panic(self) -> None:
        """Have the kernel crash, by a break and a 'c' on its serial console; it restarts by itself."""
        with _dial(self.folder, "console") as console:
            self._ask("chardev-send-break", id="console")
            console.sendall(b"c")

    def is_on(self) -> bool:
        """Whether the emulator runs, be it silent."""
        try:
            fd = os.open(self.folder / "on.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # two that look do not see each other
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def status(self) -> str:
        """The emulator's word for what the machine does: running, paused and so on."""
        return str(self._ask("query-status")["status"])

    def console(self) -> str:
        """What the board has printed."""
        try:
            text = (self.folder / "console.log").read_text("utf-8", "replace")
            return printable(text.replace("\r", ""), lines=True)
        except OSError:
            return ""

    def _ask(self, command: str, **arguments: str) -> Any:
        """One command of QMP; its answer."""
        request = {"execute": command} | ({"arguments": arguments} if arguments else {})
        with _dial(self.folder, "qmp") as link, link.makefile("r", encoding="utf-8") as lines:
            try:
                lines.readline()  # its greeting
                for sent in ({"execute": "qmp_capabilities"}, request):
                    link.sendall(json.dumps(sent).encode() + b"\n")
                    answer = _answer(lines)
            except (OSError, ValueError) as error:
                raise infra(f"the board's emulator did not answer '{command}': {error}") from error
        if "return" not in answer:
            raise infra(f"the board's emulator refused '{command}': {answer.get('error', answer)}")
        return answer["return"]


def _answer(lines: IO[str]) -> dict[str, Any]:
    """The next line that is no event."""
    while line := lines.readline():
        answer = json.loads(line)
        if "event" not in answer:
            return dict(answer)
    raise ValueError("it has closed the connection")


@contextmanager
def _dial(folder: Path, name: str) -> Iterator[socket.socket]:
    """A connection to a socket in the folder; through a descriptor, since a path of a socket is short."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(QMP_LIMIT)
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                link.connect(f"/proc/self/fd/{fd}/{name}.sock")
            finally:
                os.close(fd)
        except OSError as error:
            what = f"the board in '{folder}' is switched off"
            raise infra(what, hint="using the device starts it") from error
        yield link


def board_emulator() -> str:
    """The path of the emulator. Raises SmeltError(kind='device') where it is not installed."""
    program = shutil.which(BOARD_EMULATOR)
    if program is None:
        raise SmeltError(f"{BOARD_EMULATOR} is not installed", kind="device", hint=_PACKAGE)
    return program


class BoardMachine:
    """The machine of a name, shared by all processes of this user. cpu: the emulator's -cpu."""

    def __init__(self, name: str, *, cpu: str = "", folder: Path | None = None) -> None:
        self.name, self.cpu = name, cpu or DEFAULT_CPU
        self.folder = folder or cache_dir() / "boards" / name
        self.power = BoardPower(self.folder)
        self._user: IO[str] | None = None

    def start(self, limit: float = BOOT_LIMIT) -> SshAddress:
        """Be a user of the machine, which is started unless it runs, and wait until its ssh answers. Raises
        SmeltError: 'device' without the emulator, 'infra' for a board that does not boot."""
        program = board_emulator()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._user is None:
            self._user = (self.folder / "users").open("a")
            take_turn(self._user.fileno(), self._user.name, TURN_LIMIT, fcntl.LOCK_SH)
        for _ in range(2):  # the first one may have been about to end
            with (self.folder / "start.lock").open("w") as lock:
                take_turn(lock.fileno(), lock.name, TURN_LIMIT)
                if not self.power.is_on():
                    self._switch_on(program, board_image())
                state = json.loads((self.folder / "state.json").read_text())
            if self._came_up(state["port"], limit):
                key = self.folder / "user_key"
                return SshAddress("127.0.0.1", state["port"], "root", state["host_key"], key)
        raise infra(f"the board's emulator ended: {self._said()!r}", hint="see the devices' doctor")

    def release(self) -> None:
        """Be no user any more; the machine ends with its last one."""
        if self._user is not None:
            self._user.close()
            self._user = None

    def _switch_on(self, program: str, image: BoardImage) -> None:
        for name in ("state.json", "qmp.sock", "console.sock"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "console.log").write_bytes(b"")
        host_key = self._make_keys(image)
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        argv = [
            program, "-M", "virt", "-cpu", self.cpu, "-smp", str(CORES), "-m", str(MEMORY_MB), "-nographic",
            "-nodefaults", "-qmp", "unix:qmp.sock,server=on,wait=off",
            "-chardev", "socket,id=console,path=console.sock,server=on,wait=off,logfile=console.log",
            "-serial", "chardev:console", "-kernel", str(image.kernel), "-initrd", "initrd.gz",
            "-append", BOOT_LINE,
            "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22",
            "-device", "virtio-net-device,netdev=net",
        ]  # fmt: skip
        keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER, "board", *argv], cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        state = {"port": port, "host_key": host_key}
        replace_file(self.folder / "state.json", json.dumps(state).encode())

        def started() -> bool:
            if keeper.poll() is not None:
                raise infra(f"the emulator ended at once: {self._said()!r}", hint=f"does it know {self.cpu}?")
            with contextlib.suppress(SmeltError):
                return bool(self.power.status())
            return False

        _wait_until(started, _START_LIMIT, "the emulator does not start")

    def _make_keys(self, image: BoardImage) -> str:
        """New keys for board and user, and the initial file system with them; the board's public key."""
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        board, user = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        public = [k.public_key().public_bytes_raw() for k in (board, user)]
        private = user.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
        host_key = dropbear_key(board.private_bytes_raw(), public[0])
        keys = keys_archive(host_key, openssh_line(public[1]) + "\n")
        replace_file(self.folder / "user_key", private)
        (self.folder / "user_key").chmod(0o600)
        replace_file(self.folder / "initrd.gz", image.initrd.read_bytes() + keys)
        return openssh_line(public[0])

    def _came_up(self, port: int, limit: float) -> bool:
        """Wait for ssh; False where the emulator has ended. That accepts connections before the board does:
        only the banner tells."""

        def answers() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as s:
                s.settimeout(5)
                return s.recv(4) == b"SSH-"
            return False

        try:
            what = f"the board does not come up within {limit:.0f} s"
            _wait_until(lambda: answers() or not self.power.is_on(), limit, what)
        except SmeltError as error:
            said = self.power.console().strip()[-300:] or self._said()
            raise infra(f"{error.message}; it printed: {said!r}", hint=error.hint) from error
        return self.power.is_on()

    def _said(self) -> str:
        try:
            return (self.folder / "emulator.log").read_text("utf-8", "replace").strip()[-300:]
        except OSError:
            return ""


class QemuBoardTransport(SshTransport):
    """ssh to the machine, which is started when it is needed and is off."""

    def __init__(
        self, name: str, machine: BoardMachine, *, root: str = DEFAULT_ROOT, rules: StoreRules | None = None
    ) -> None:
        nowhere = SshAddress("127.0.0.1", 0, "root", "", machine.folder / "user_key")
        super().__init__(name, nowhere, root=root, rules=rules, emulated=True)
        self.machine = machine

    def _connect(self, budget: Budget) -> SshLink:
        self.address = self.machine.start()
        return super()._connect(budget)

    def close(self) -> None:
        """Close the connection; a machine without users ends."""
        super().close()
        self.machine.release()


def _wait_until(condition: Callable[[], bool], limit: float, what: str) -> None:
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise infra(what, hint="see the devices' doctor")
        time.sleep(0.1)
