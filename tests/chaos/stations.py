"""Emulated devices of all transports with a place to break each: their description is a JSON file that agents
read, their servers and links belong to the campaign.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import adbd as adbd_rig
import rig
from processes import started

from smelt.devicefarm.adb import AdbServer, AdbTransport
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.qemu_board import BoardMachine, QemuBoardTransport
from smelt.devicefarm.qemu_user import find_emulator
from smelt.devicefarm.ssh import SshAddress, SshTransport
from smelt.devicefarm.transport import Transport

RELAY = Path(__file__).with_name("relay.py")
TMPFS_MB = 300  # a device with less than 256 MiB free is not well


@dataclass(frozen=True)
class Station:
    """A device as agents see it. relay: the folder in which its pipe's faults are ordered; port: its link's.
    """

    name: str
    kind: str  # local, qemu, ssh, adb, board
    root: str
    bundle: str
    relay: str = ""
    port: int = 0
    user: str = ""
    host_key: str = ""
    key_file: str = ""
    serial: str = ""
    home: str = ""  # of an adb server, or of a board

    def open(self) -> Transport:
        """A transport to it."""
        if self.kind == "ssh":
            address = SshAddress("127.0.0.1", self.port, self.user, self.host_key, Path(self.key_file))
            return SshTransport(self.name, address, root=self.root)
        if self.kind == "adb":
            server = AdbServer(str(rig.program_path("adb")), self.port, Path(self.home))
            return AdbTransport(self.name, self.serial, server=server, root=self.root)
        if self.kind == "board":
            machine = BoardMachine(self.name, folder=Path(self.home))
            return QemuBoardTransport(self.name, machine, root=self.root)
        prefix = [sys.executable, "-I", "-S", str(RELAY), self.relay]
        if self.kind == "qemu":
            prefix += [find_emulator("qemu-aarch64"), "-L", str(rig.SYSROOT)]
        return LocalTransport(self.name, store=Path(self.root), prefix=tuple(prefix))


def read(path: Path) -> dict[str, Station]:
    """The stations that a file describes, by name."""
    return {row["name"]: Station(**row) for row in json.loads(path.read_text())}


def write(path: Path, stations: list[Station]) -> None:
    """Write that file."""
    path.write_text(json.dumps([asdict(s) for s in stations]))


# ---------------------------------------------------------------- links that break


@dataclass
class Link:
    """A TCP proxy on loopback before a server, whose faults the campaign orders."""

    target: int
    port: int = 0
    sent: int = 0  # bytes from clients
    cut_at: int | None = None
    garble: bool = False
    stalled: threading.Event = field(default_factory=threading.Event)
    ends: list[socket.socket] = field(default_factory=list)

    def cut(self) -> None:
        """End every connection."""
        for s in self.ends:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        self.ends.clear()

    def heal(self) -> None:
        """Pass everything on again."""
        self.cut_at, self.garble = None, False
        self.stalled.clear()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                while self.stalled.is_set():
                    time.sleep(0.02)
                if counted:
                    self.sent += len(data)
                    if self.cut_at is not None and self.sent >= self.cut_at:
                        self.cut_at = None
                        break
                if self.garble:
                    self.garble = False
                    at = len(data) // 2
                    data = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
                sink.sendall(data)
        for s in (source, sink):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(ValueError):
                self.ends.remove(s)
        if not counted:  # both directions are over once the answers are
            source.close()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = server.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.target), timeout=2)
                    far.settimeout(None)
                except OSError:
                    near.close()
                    continue
                self.ends += [near, far]
                for ends in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    @contextmanager
    def running(self) -> Iterator[Link]:
        """Accept connections within the block."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
            try:
                yield self
            finally:
                self.heal()
                server.shutdown(socket.SHUT_RDWR)
                self.cut()


# ---------------------------------------------------------------- servers that die


@dataclass
class Server:
    """An sshd or dropbear that can be killed, started again, and made to show another host key."""

    argv: list[str]
    port: int
    host_key: Path
    other_key: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self.process = subprocess.Popen(
            self.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        for _ in range(400):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.025)
        raise RuntimeError(f"{self.argv[0]} does not start")

    def kill(self) -> None:
        """End it and all of its sessions at once."""
        if self.process is None:
            return
        for pid in [*started(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def swap_keys(self) -> None:
        """Show the other host key from now on."""
        self.kill()
        spare = self.host_key.with_suffix(".spare")
        self.host_key.rename(spare)
        self.other_key.rename(self.host_key)
        spare.rename(self.other_key)
        self.start()


def sshd(home: Path) -> tuple[Server, SshAddress]:
    """OpenSSH's server with keys of its own, not started yet."""
    with rig.start_sshd(home) as made:
        address = made.address
    rig.make_key(home / "other_key")
    return Server(rig.sshd_command(home), address.port, home / "host_key", home / "other_key"), address


def dropbear(home: Path) -> tuple[Server, SshAddress]:
    """dropbear, likewise."""
    with rig.start_dropbear(home) as made:
        address = made.address
    made_key = [str(rig.program_path("dropbearkey")), "-t", "ed25519", "-f", str(home / "other_key")]
    rig.run(made_key)
    argv = rig.dropbear_command(home, address.port)
    return Server(argv, address.port, home / "host_key", home / "other_key"), address


# ---------------------------------------------------------------- all of it


@dataclass
class Fleet:
    """The stations with what breaks them, by name. disks: their small file systems; phones: their adbd;
    their whole machines."""

    stations: dict[str, Station]
    links: dict[str, Link]
    servers: dict[str, Server]
    disks: dict[str, Path]
    phones: dict[str, adbd_rig.Adbd]
    boards: dict[str, BoardMachine]


@contextmanager
def fleet(folder: Path, native: Path, arm64: Path, *, board: bool = False) -> Iterator[Fleet]:
    """All stations, up and whole; gone with the block. board: a whole emulated machine, too."""
    with ExitStack() as stack:
        found = Fleet({}, {}, {}, {}, {}, {})
        for name, kind, bundle in (("bench-1", "local", native), ("bench-2", "local", native),
                                   ("arm-1", "qemu", arm64)):  # fmt: skip
            relay, root = folder / f"{name}.relay", folder / name
            relay.mkdir()
            root.mkdir()
            found.stations[name] = Station(name, kind, str(root), str(bundle), relay=str(relay))
        disk = folder / "bench-2"
        if os.geteuid() == 0 and mount(disk):
            stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=False)
            found.disks["bench-2"] = disk
        for name, make in (("ssh-1", sshd), ("ssh-2", sshd), ("drop-1", dropbear)):
            server, address = make(folder / f"{name}.home")
            server.start()
            stack.callback(server.kill)
            link = stack.enter_context(Link(server.port).running())
            found.servers[name], found.links[name] = server, link
            found.stations[name] = Station(
                name, "ssh", str(folder / name), str(native), port=link.port, user=address.user,
                host_key=address.host_key, key_file=str(address.key_file),
            )  # fmt: skip
        phone = stack.enter_context(phones(folder / "phone-1.home"))
        found.phones["phone-1"] = phone
        found.stations["phone-1"] = Station(
            "phone-1", "adb", str(folder / "phone-1"), str(native), port=phone.server.port,
            serial=phone.serial, home=str(phone.server.home),
        )  # fmt: skip
        if board:
            machine = stack.enter_context(rig.start_board(folder / "board-1.home"))
            found.boards["board-1"] = machine
            found.stations["board-1"] = Station(
                "board-1", "board", "/tmp/smelt-farm", str(arm64), home=str(machine.folder)
            )
        yield found


@contextmanager
def phones(home: Path) -> Iterator[adbd_rig.Adbd]:
    """A phone whose adbd is started again when it dies, as Android's init does."""
    again = "['sh', '-c', 'while :; do \"$@\"; sleep 0.3; done', 'sh', *sys.argv[2:]]"
    inside = adbd_rig.INSIDE
    adbd_rig.INSIDE = inside.replace("subprocess.Popen(sys.argv[2:])", f"subprocess.Popen({again})")
    try:
        with adbd_rig.start_adbd(home) as made:
            yield made
            below = started(made.pid)
            os.kill(made.pid, signal.SIGKILL)  # before what it would start again
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    finally:
        adbd_rig.INSIDE = inside


def mount(folder: Path) -> bool:
    """Give the folder a small file system of its own."""
    options = ["-t", "tmpfs", "-o", f"size={TMPFS_MB}m", "tmpfs"]
    return subprocess.run(["mount", *options, str(folder)], check=False, capture_output=True).returncode == 0


def runners(root: str) -> list[int]:
    """Processes of runners in a store."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{root}/bundles/".encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def flip(root: str, rng: random.Random) -> str:
    """Flip bits at a random place of a random file of the store's content; which, '' where there is none."""
    files = sorted(p for p in Path(root, "cas").glob("*") if p.is_file() and p.stat().st_size)
    if not files:
        return ""
    chosen = rng.choice(files)
    at = rng.randrange(chosen.stat().st_size)
    count = rng.choice([1, 64, 4096])
    # a copy in its place: the bytes of a program that runs cannot be written
    damaged = bytearray(chosen.read_bytes())
    for k in range(at, min(at + count, len(damaged))):
        damaged[k] ^= 0xA5
    spare = Path(root, f"flipped.{rng.getrandbits(32):x}")
    spare.write_bytes(damaged)
    shutil.copymode(chosen, spare)
    spare.replace(chosen)
    return f"{count} bytes at {at} of {chosen.name[:12]}"
