"""Faults of disks and links to a device's store -> no verdict blames the model, the next run is right, and an
upload that was cut is not sent again from its start.

A seed draws a device (this machine, an emulator, OpenSSH, dropbear, adbd), a bundle with large weights, and
what happens: any file of the store changes before a session, or after the session has verified its bundle;
the link is cut at any byte of the upload, and what had arrived may change, too. Sessions hold a lease, so
that the store has its fence.
"""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "support"), str(TESTS / "devicefarm")]
import adbd as adbd_rig  # noqa: E402  # of tests/devicefarm
import proxy  # noqa: E402
import rig  # noqa: E402
from campaign import Outcome, main  # noqa: E402

from smelt.core.diag import SmeltError  # noqa: E402
from smelt.devicefarm.adb import AdbTransport  # noqa: E402
from smelt.devicefarm.budget import Budget, StepLimits  # noqa: E402
from smelt.devicefarm.claim import DeviceClaim  # noqa: E402
from smelt.devicefarm.client import open_session  # noqa: E402
from smelt.devicefarm.local import LocalTransport  # noqa: E402
from smelt.devicefarm.qemu_user import qemu_user  # noqa: E402
from smelt.devicefarm.ssh import SshTransport  # noqa: E402
from smelt.devicefarm.transport import Transport  # noqa: E402
from smelt.devicefarm.verdict import Verdict, verdict_of_error  # noqa: E402

LIMITS = StepLimits(connect=100, command=100, load=100, run=100, output=100, grace=5, total=600)
HASTY = replace(LIMITS, load=20, run=5)
"""Of a session whose runner is damaged and may hang."""
X = np.arange(6, dtype=np.float32).reshape(2, 3)
MIB = 1 << 20
RESENT = 16 * MIB
"""Most bytes that are sent again besides what was missing."""
Open = Callable[[Path, int], Transport]


@dataclass(frozen=True)
class Device:
    """bundle: what runs there. open: a new session's transport to its store in a folder of this machine, by
    the port of a proxy or, with 0, without one. port: of its server, 0 where there is none to cut."""

    bundle: Path
    open: Open
    port: int = 0


@functools.cache
def workshop() -> tuple[ExitStack, Path]:
    """Servers and bundles of this process, and their folder; both end with it."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attack-store-")))


@functools.cache
def native() -> Path:
    """The fake model for this machine."""
    return rig.build_native(workshop()[1] / "native" / "bundle")


@functools.cache
def device(kind: str) -> Device:
    """The device of this kind, with its server; started once in a process."""
    stack, folder = workshop()
    if kind == "local":
        return Device(native(), lambda root, port: LocalTransport("stored", store=root))
    if kind == "qemu-user":
        (folder / "arm64").mkdir()
        bundle = rig.build_arm64(folder / "arm64" / "bundle")
        return Device(
            bundle, lambda root, port: qemu_user("emulated", "qemu-aarch64", sysroot=rig.SYSROOT, store=root)
        )
    if kind == "adb":
        phone = stack.enter_context(adbd_rig.start_adbd(folder / "adbd"))
        own = int(phone.serial.rpartition(":")[2])

        def over_adb(root: Path, port: int) -> Transport:
            return AdbTransport("phone", f"127.0.0.1:{port or own}", server=phone.server, root=str(root))

        return Device(native(), over_adb, own)
    start = rig.start_sshd if kind == "sshd" else rig.start_dropbear
    address = stack.enter_context(start(folder / kind)).address

    def over_ssh(root: Path, port: int) -> Transport:
        return SshTransport("board", replace(address, port=port or address.port), root=str(root))

    return Device(native(), over_ssh, address.port)


DEVICES = ("local", "qemu-user", "sshd", "dropbear", "adb")
LINKED = ("sshd", "dropbear", "adb")


# ---------------------------------------------------------------- what happens


def damage(path: Path, chance: random.Random) -> str:
    """Change a file as a failing disk does; what was done. A copy takes its place, since the bytes of a
    program that runs cannot be written."""
    data = bytearray(path.read_bytes())
    at, count = chance.randrange(len(data) or 1), chance.choice((1, 64, 32 * 1024))
    how = chance.choice(("flip", "zero", "cut", "more"))
    if how == "cut":
        del data[at:]
    elif how == "more":
        data += chance.randbytes(count)
    else:
        changed = bytes(b ^ 0x5A for b in data[at : at + count]) if how == "flip" else bytes(count)
        data[at : at + count] = changed[: len(data) - at]
    spare = path.with_name(path.name + ".spare")
    spare.write_bytes(data)
    shutil.copymode(path, spare)
    spare.replace(path)
    return f"{how} {path.parent.name}/{path.name[:16]} at {at} of {len(data)}"


def files(root: Path) -> list[Path]:
    """Every file of the store but the locks, whose holders would keep another one."""
    return sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink() and p.suffix != ".busy")


def run(
    at: Device, root: Path, bundle: Path, limits: StepLimits = LIMITS, spoil: Callable[[], None] | None = None
) -> Verdict:
    """A session with one run; its verdict. spoil: called when the bundle has been verified."""
    with closing(at.open(root, 0)) as transport:
        if spoil:
            started = transport.open_runner

            def open_spoiled(remote: str, budget: Budget) -> object:
                spoil()
                return started(remote, budget)

            transport.open_runner = open_spoiled  # type: ignore[method-assign,assignment]
        try:
            with open_session(transport, bundle, budget=Budget(limits), claim=DeviceClaim(7)) as client:
                if np.array_equal(client.run([X, np.int32(0)]).outputs["y"], 2 * X):
                    return Verdict.PASS
                client.confirm()
                return Verdict.MISMATCH
        except SmeltError as error:
            return verdict_of_error(error)


def cut(at: Device, root: Path, bundle: Path, after: int) -> Verdict:
    """An upload whose link is cut after so many bytes; its verdict."""
    with proxy.before(at.port) as link, closing(at.open(root, link.port)) as transport:
        link.cut_after = after
        try:
            transport.deploy(bundle, Budget(LIMITS))
        except SmeltError as error:
            return verdict_of_error(error)
    return Verdict.PASS


def resent(at: Device, root: Path, bundle: Path) -> int:
    """Bytes that a whole deploy sends now."""
    with proxy.before(at.port) as link, closing(at.open(root, link.port)) as transport:
        transport.deploy(bundle, Budget(LIMITS))
        return link.sent


@dataclass(frozen=True)
class Plan:
    """What happens to which kind of device. size: bytes of weights. seed: of all that is drawn later."""

    how: str
    kind: str
    size: int
    seed: int


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    chance = random.Random(seed)
    how = chance.choice(("before", "before", "during", "cut", "cut", "cut and changed"))
    if how in ("before", "during"):
        return Plan(how, chance.choice(DEVICES), chance.choice((1000, 3 * MIB)), seed)
    return Plan(how, chance.choice(LINKED), 24 * MIB, seed)


def happen(plan: Plan) -> Outcome:
    """One store, from empty to used."""
    chance, at, done = random.Random(-1 - plan.seed), device(plan.kind), []
    with tempfile.TemporaryDirectory(prefix="attack-store-") as folder:
        bundle, root = Path(folder) / "bundle", Path(folder) / "root"
        shutil.copytree(at.bundle, bundle)
        (bundle / "model.weights").write_bytes(chance.randbytes(plan.size))

        def spoil() -> None:
            for _ in range(chance.choice((1, 1, 3, 8))):
                done.append(damage(chance.choice(files(root)), chance))

        if plan.how.startswith("cut"):
            after = chance.randrange(1000, plan.size)
            done.append(f"cut after {after}")
            found = cut(at, root, bundle, after)
            if plan.how == "cut":
                again = resent(at, root, bundle)
                if again >= plan.size - after + RESENT:
                    return Outcome("sent too much", True, f"{plan}: {done}, then {again}")
            elif files(root):
                spoil()
        else:
            found = run(at, root, bundle)
            if found is Verdict.PASS and plan.how == "before":
                spoil()
            elif found is Verdict.PASS:
                found = run(at, root, bundle, HASTY, spoil)
        if found is not Verdict.PASS and not found.infrastructure:
            return Outcome(f"called {found.value}", True, f"{plan}: {done}")
        last = run(at, root, bundle)
        if last is not Verdict.PASS:
            return Outcome(f"{last.value} in the next run", True, f"{plan}: {done}, which was {found.value}")
        left = [p.name for part in ("tmp", "use") for p in (root / part).iterdir()]
        if left:
            return Outcome("something is left", True, f"{plan}: {done}, {left}")
        return Outcome(f"{plan.how}: {found.value}")


def attack(seed: int) -> Outcome:
    """The store of a seed."""
    return happen(draw(seed))


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", count=10**6))
