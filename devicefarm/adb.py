"""The transport to a device of the official adb, by a server of our own; nothing but its adbd listens on it.

The server is the user's alone and stands on a private port, so that no other program's `adb kill-server` or
version ends a job. Neither adb's exit codes nor its silence are believed: a link that is lost in the middle
of a command looks like success. Each command's end is written by the device's own shell.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from smelt.core.bundle import RUNNER
from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError
from smelt.devicefarm.adb_files import AdbFiles
from smelt.devicefarm.budget import LINK_LOST, LINK_STALLED, Budget, InfraError, StepLimits, infra
from smelt.devicefarm.channel import EXIT_WAIT, Channel, PipeChannel, ended_with
from smelt.devicefarm.command import Ran, TooLong, run_within
from smelt.devicefarm.logcat import read_log
from smelt.devicefarm.room import StoreRules
from smelt.devicefarm.store import DeviceStore
from smelt.devicefarm.transport import Completed

_PROGRAM = "adb"
_PACKAGE = "apt-get install adb, or Android's platform-tools"
PORT_VARIABLE = "SMELT_ADB_PORT"
DEFAULT_PORT = 5931
"""Not 5037, which is everybody's."""
ANDROID_ROOT = "/data/local/tmp/smelt-farm"
"""The one place of an unrooted Android whose files may be executed."""
_OUTPUT_LIMIT = 64 * 1024
_MOST_ANSWER = 32 << 20
"""Bytes of one command's output that are kept; what is read back has half of it."""
NETWORK_SERIAL = re.compile(r".+:[0-9]{1,5}")

_HINTS = {
    "unauthorized": "allow this machine's key on the device's screen, then run again",
    "offline": "its adbd does not answer: unplug and plug it in again, or restart the device",
    "no permissions": "this user may not open the USB device: install adb's udev rules, or join plugdev",
}
_ABSENT = (
    "is it connected, with USB debugging on? `adb devices` shows what other servers hold: a USB device "
    "belongs to one server, and `adb kill-server` frees it"
)


@dataclass(frozen=True)
class AdbServer:
    """The adb server on a port of this machine, with its keys and log in `home`."""

    program: str
    port: int
    home: Path

    def command(self, *arguments: str) -> list[str]:
        """The client's command line."""
        return [self.program, "-P", str(self.port), *arguments]

    def environment(self) -> dict[str, str]:
        """What the client runs with: a server that it starts has its own key and log, and knows the keys
        that the user's devices have allowed already."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ADB_", "ANDROID_"))}
        users = Path.home() / ".android" / "adbkey"
        own = {"HOME": str(self.home), "TMPDIR": str(self.home), "ADB_MDNS_AUTO_CONNECT": "0"}
        return kept | own | ({"ADB_VENDOR_KEYS": str(users)} if users.exists() else {})

    def start(self, budget: Budget) -> None:
        """Have it run; one that runs already is used. Raises SmeltError(kind='infra')."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        limit = budget.left(budget.deadline(budget.limits.connect), "starting the adb server")
        done = self.run(["start-server"], limit)
        if done.code != 0:
            said = _text(done.err).strip()[-300:]
            raise infra(
                f"the adb server cannot be started on port {self.port}: {said}",
                hint=f"another program may have the port: name another one with {PORT_VARIABLE}",
            )

    def run(self, arguments: Sequence[str], limit: float, source: bytes = b"") -> Ran:
        """Run the client. source: its stdin. limit: seconds. Raises SmeltError(kind='infra')."""
        try:
            argv, env = self.command(*arguments), self.environment()
            return run_within(argv, limit, most=_MOST_ANSWER, env=env, source=source)
        except TooLong as error:
            what = f"adb did not end within {limit:.0f} s"
            raise infra(what, status=LINK_STALLED) from error
        except OSError as error:
            raise infra(f"'{self.program}' cannot be started: {error.strerror}", hint=_PACKAGE) from error


def private_server() -> AdbServer:
    """The server that all of this user's sessions share. Raises SmeltError: 'device' without adb, 'invalid'
    for a port that is none."""
    program = shutil.which(_PROGRAM)
    if program is None:
        raise SmeltError("adb is not installed", kind="device", hint=_PACKAGE)
    text = os.environ.get(PORT_VARIABLE) or str(DEFAULT_PORT)
    if not text.isdecimal() or not 0 < int(text) < 65536 or int(text) == 5037:
        raise SmeltError(f"{PORT_VARIABLE} is '{text}', which is no private port", kind="invalid")
    return AdbServer(program, int(text), cache_dir() / "adb")


class AdbChannel(PipeChannel):
    """The stdio of a command by `adb shell`; the device's shell tells on stderr how it ended."""

    def __init__(self, transport: AdbTransport, command: str, budget: Budget) -> None:
        self._mark = secrets.token_hex(8)
        self._transport = transport
        self._told = re.compile(rf"\n?{self._mark} ([0-9]{{1,3}})\n?")
        # without `exec`, which would leave nobody to tell the end
        text = f"{command}; printf '\\n{self._mark} %d\\n' $? >&2"
        server = transport.server
        argv = server.command("-s", transport.serial, "shell", "-T", text)
        super().__init__(argv, env=server.environment(), close_limit=budget.limits.close)

    def send(self, data: bytes, deadline: float) -> None:
        with self._doubting():
            super().send(data, deadline)

    def receive(self, deadline: float) -> bytes:
        with self._doubting():
            return super().receive(deadline)

    @contextlib.contextmanager
    def _doubting(self) -> Iterator[None]:
        try:
            yield
        except InfraError as error:
            if error.status == LINK_STALLED:
                self._transport.doubt()
            raise

    def stderr_tail(self) -> str:
        return self._told.sub("", super().stderr_tail())

    def ended(self) -> InfraError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(EXIT_WAIT)
        self._drain.join(EXIT_WAIT)
        found = self._told.search(super().stderr_tail())
        return ended_with(int(found[1])) if found else self._transport.lost("the runner's channel closed")


class AdbTransport:
    """A device by its serial number, or by 'host:port' for one that is reached by TCP."""

    def __init__(
        self,
        name: str,
        serial: str,
        *,
        server: AdbServer | None = None,
        root: str = ANDROID_ROOT,
        rules: StoreRules | None = None,
        emulated: bool = False,
    ) -> None:
        self.name, self.serial, self.emulated = name, serial, emulated
        self.server = server or private_server()
        self._files = AdbFiles(name, root, self._shell, self.execute)
        self._rules = rules
        self._store: DeviceStore | None = None
        self._started = False
        self._doubtful = True  # the server keeps connections from one session, and process, to the next
        self._close_limit = StepLimits().close

    # ---- Transport ----

    def deploy(self, bundle: Path, budget: Budget) -> str:
        return self._opened(budget).deploy(bundle, budget)

    def damaged(self, bundle: Path, budget: Budget) -> tuple[str, ...]:
        return self._opened(budget).damaged(bundle, budget)

    def open_runner(self, remote: str, budget: Budget) -> Channel:
        self._connect(budget)
        return AdbChannel(self, shlex.join([f"{remote}/{RUNNER}", "--serve"]), budget)

    def execute(self, argv: list[str], budget: Budget) -> Completed:
        code, out, err = self._shell(shlex.join(argv), budget)
        return Completed(code, _text(out[:_OUTPUT_LIMIT]), err[:_OUTPUT_LIMIT])

    def free_bytes(self, budget: Budget) -> int | None:
        space = self._files.space(budget)
        return space.free if space is not None else None

    def system_log(self, seconds: float, pid: int) -> str:
        return read_log(lambda text, budget: _text(self._shell(text, budget)[1]), seconds, pid)

    def close(self) -> None:
        """Give the store back; the server stays for other sessions, as adb's always does."""
        if self._store is not None:
            limit = self._close_limit
            self._store.close(Budget(StepLimits(connect=limit, command=limit, total=limit)))
            self._store = None

    # ---- the link ----

    def state(self, budget: Budget) -> str:
        """What the server says of the device: 'device' when it can be used, else 'offline', 'unauthorized'
        and so on; '' when it knows no such device."""
        done = self._asked(["-s", self.serial, "get-state"], budget.limits.command, budget)
        said = _text(done.out).strip()
        if said:
            return said
        complaint = _text(done.err)
        return next((s for s in _HINTS if s in complaint), "")

    def lost(self, what: str) -> InfraError:
        """The error for a link that ended in the middle of something."""
        self._started, self._doubtful = False, True
        with contextlib.suppress(SmeltError):
            state = self.state(Budget(StepLimits(command=EXIT_WAIT)))
            if state != "device":
                said = f"it is {state} now" if state else "it is gone"
                return infra(f"{what}: device '{self.name}' ({self.serial}): {said}", status=LINK_LOST)
        return infra(f"{what}: the link to device '{self.name}' ({self.serial}) was lost", status=LINK_LOST)

    def _connect(self, budget: Budget) -> None:
        """Have the server know the device. Raises SmeltError(kind='infra') that says what to do."""
        if self._started and not self._doubtful:
            return
        self.server.start(budget)
        state, network = self.state(budget), NETWORK_SERIAL.fullmatch(self.serial)
        sound = state == "device" and (not self._doubtful or self._answers(budget))
        if network and not sound:
            if state:  # whatever it says is of a connection, which one garbled byte has spoilt for good
                self._asked(["disconnect", self.serial], budget.limits.connect, budget)
            self._asked(["connect", self.serial], budget.limits.connect, budget)
        elif state == "device" and not sound:
            self._asked(["-s", self.serial, "reconnect"], budget.limits.connect, budget)
            self._asked(["-s", self.serial, "wait-for-device"], budget.limits.connect, budget)
        state = state if sound else self.state(budget)
        if state != "device":
            where = f"device '{self.name}' ({self.serial})"
            why = f"adb says '{state}' of it" if state else "adb does not find it"
            raise infra(f"{where} cannot be reached: {why}", hint=_HINTS.get(state, _ABSENT))
        self._started, self._doubtful = True, False

    def doubt(self) -> None:
        """Something was waited for in vain: the server notices no link that is silent, or that has told it
        nonsense."""
        self._doubtful = True

    def _answers(self, budget: Budget) -> bool:
        words = ["-s", self.serial, "shell", "-T", "echo a"]
        try:
            return b"a" in self._asked(words, budget.limits.connect, budget).out
        except InfraError:
            return False

    def _asked(self, words: Sequence[str], seconds: float, budget: Budget) -> Ran:
        """Have the client do something within so many seconds, and the budget's total."""
        limit = budget.left(budget.deadline(seconds), f"reaching device '{self.name}'")
        return self.server.run(words, limit)

    def _opened(self, budget: Budget) -> DeviceStore:
        if self._store is None:
            self._store = DeviceStore(self._files, rules=self._rules)
            self._close_limit = budget.limits.close
        return self._store

    def _shell(
        self, text: str, budget: Budget, source: bytes | None = None, size: int = 0
    ) -> tuple[int, bytes, str]:
        """Run a text of the device's shell: exit code, output, errors. source: its stdin. size: bytes that it
        takes or gives. Raises SmeltError(kind='infra')."""
        self._connect(budget)
        mark = secrets.token_hex(8)
        if source:  # adbd drops the output of a command that leaves its input unread
            text = f"({text}) || {{ c=$?; cat >/dev/null; exit $c; }}"
        told = f"({text}); printf '\\n{mark} %d\\n' $?"
        deadline = budget.deadline(budget.limits.command, size)
        limit = budget.left(deadline, f"a command on device '{self.name}'")
        try:
            done = self.server.run(["-s", self.serial, "shell", "-T", told], limit, source or b"")
        except InfraError:
            self.doubt()
            raise
        out, end, code = done.out.rpartition(f"\n{mark} ".encode())
        if not end or not re.fullmatch(rb"[0-9]{1,3}\n", code):
            said = _text(done.err).strip()[-200:]
            raise self.lost(f"a command did not end ({said})" if said else "a command did not end")
        return int(code), out, _text(done.err)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
