"""smelt devices list | add | show | doctor | report | ...: the farm's boards and emulators."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from smelt.cli import devices_report, leases
from smelt.cli.common import SUMMARIES, AddParser, Result, Usage, command, finding_text, table, whole
from smelt.core.diag import SmeltError
from smelt.core.exits import INCONCLUSIVE, INFRA, OK
from smelt.core.scratch import scratch_folder
from smelt.devicefarm.doctor import Finding, examine
from smelt.devicefarm.inventory import (
    DEVICE_NAME,
    TRANSPORTS,
    Device,
    NoDevice,
    choose,
    describe,
    find_device,
    inventory_path,
    open_transport,
    read_inventory,
    write_inventory,
)
from smelt.devicefarm.room import byte_count
from smelt.running import transport_for
from smelt.samples import tiny_bundle
from smelt.targets.platform import PLATFORMS

_TEXTS = (
    "host", "user", "host_key", "key_file", "serial", "root", "emulator", "cpu", "sysroot", "pool", "power",
)  # fmt: skip


def register(add: AddParser) -> None:
    """Add the subcommands to the parser."""
    summary = SUMMARIES["devices"]
    parser = add("devices", help=summary, description=summary[0].upper() + summary[1:] + ".")
    names = "list|add|show|doctor|report|leases|release|quarantine|restore"
    group = parser.add_subparsers(metavar=names, required=True)
    leases.register(group.add_parser)
    listing = command(
        group.add_parser, "list", run_list,
        "smelt devices list\nsmelt devices list --tag big --tag aarch64-linux", "list devices",
    )  # fmt: skip
    listing.set_defaults(command="devices list")
    show = command(group.add_parser, "show", run_show, "smelt devices show local", "show one device")
    doctor = command(
        group.add_parser, "doctor", run_doctor,
        "smelt devices doctor qemu-arm64\nsmelt devices doctor --tag ssh",
        "examine devices and say what to do",
    )  # fmt: skip
    new = command(
        group.add_parser, "add", run_add,
        "smelt devices add pi5 --transport ssh --platform aarch64-linux --host pi5.local \\\n"
        "  --user pi --key-file ~/.ssh/id_ed25519 --host-key 'ssh-ed25519 AAAA...'\n"
        "smelt devices add pixel --transport adb --platform aarch64-android --serial R5CT1234567",
        "add a device, or replace one of that name",
    )  # fmt: skip
    devices_report.register(group.add_parser, examine_device)
    for p, name in ((show, "show"), (doctor, "doctor"), (new, "add")):
        p.add_argument("name", metavar="NAME", nargs="?" if name == "doctor" else None)
        p.set_defaults(command=f"devices {name}")
    for p in (listing, doctor):
        p.add_argument(
            "--tag", dest="tags", action="append", default=[], metavar="TAG",
            help="only those with this tag, transport or platform; several: with all of them",
        )  # fmt: skip
        p.add_argument("--pool", default="", metavar="POOL", help="only those of this pool")
    doctor.add_argument("--quick", action="store_true", help="do not start a runner on it")
    new.add_argument("--transport", required=True, choices=sorted(TRANSPORTS))
    new.add_argument("--platform", required=True, choices=["host", *PLATFORMS])
    new.add_argument("--port", type=whole(1, 65535), default=22)
    new.add_argument("--tag", dest="tags", action="append", default=[])
    new.add_argument("--quota", type=_quota, metavar="SIZE", help="most bytes of bundles, such as '2 GiB'")
    new.add_argument("--emulated", action="store_true", help="it is no real board, whatever it says itself")
    for field in _TEXTS:
        new.add_argument(f"--{field.replace('_', '-')}", default="")


def run_list(args: argparse.Namespace) -> Result:
    """List name, platform, transport, tags and address of each device that is chosen."""
    found = choose(read_inventory().values(), tags=args.tags, pool=args.pool)
    rows = [["name", "platform", "transport", "pool", "tags", "where"]]
    rows += [[d.name, d.platform, d.transport, d.pool, ",".join(d.tags), describe(d)] for d in found]
    return Result(OK, {"devices": [asdict(d) for d in found], "file": str(inventory_path())}, table(rows))


def run_show(args: argparse.Namespace) -> Result:
    """Show every field of one device."""
    device = find_device(args.name)
    rows = [[k, ", ".join(v) if isinstance(v, tuple) else str(v)] for k, v in asdict(device).items() if v]
    return Result(
        OK, {"device": asdict(device), "where": describe(device)}, table([*rows, ["where", describe(device)]])
    )


def _quota(text: str) -> int:
    """The argparse type of an amount of bytes."""
    try:
        return byte_count(int(text) if text.isdecimal() and len(text) < 20 else text)
    except ValueError as why:
        raise argparse.ArgumentTypeError(f"'{text:.40}' is no size: {why}") from None


def run_add(args: argparse.Namespace) -> Result:
    """Add a device to the inventory file."""
    if not DEVICE_NAME.fullmatch(args.name):
        raise Usage(f"'{args.name}' is no device name: lower-case letters, digits and ._-")
    texts = {k: getattr(args, k) for k in _TEXTS}
    device = Device(
        args.name, args.transport, args.platform, port=args.port, tags=tuple(args.tags),
        emulated=args.emulated, quota=args.quota, **texts,
    )  # fmt: skip
    if args.transport in ("ssh", "adb"):
        open_transport(device)  # connects to nothing yet; says what is missing
    path = write_inventory({**read_inventory(), device.name: device})
    return Result(OK, {"device": asdict(device), "file": str(path)}, f"wrote '{device.name}' to {path}")


def run_doctor(args: argparse.Namespace) -> Result:
    """Check echo, disk and runner of one device, or of all. Exit code 6 when one is broken, 5 when too
    busy."""
    chosen = choose(read_inventory().values(), tags=args.tags, pool=args.pool)
    if args.name and (args.tags or args.pool):
        raise Usage("name a device, or choose some by --tag and --pool")
    if not args.name and not chosen:
        raise NoDevice("no device has these tags and is in this pool")
    names = [args.name] if args.name else [d.name for d in chosen]
    found = {n: examine_device(find_device(n), quick=args.quick) for n in names}
    lines = []
    for name, findings in found.items():
        lines.append(name)
        lines += [f"  {finding_text(f)}" for f in findings]
    data = {"devices": {n: [asdict(f) for f in fs] for n, fs in found.items()}}
    bad = {f.check for fs in found.values() for f in fs if f.ok is False}
    # a busy or hot device works, it only cannot be measured now
    code = OK if not bad else INCONCLUSIVE if bad <= {"load", "temperature"} else INFRA
    return Result(code, data, "\n".join(lines))


def examine_device(device: Device, *, quick: bool = False) -> tuple[Finding, ...]:
    """Check one device. quick: without its runner, for which a tiny model must be compiled."""
    with scratch_folder("doctor") as folder:
        try:
            if quick and device.transport != "android":
                transport, bundle = open_transport(device), None
            else:
                made = tiny_bundle(device.platform, f"{folder}/out")
                transport, bundle = transport_for(made, device), Path(made.path)
        except SmeltError as e:
            return (Finding("open", False, str(e)),)
        try:
            return examine(transport, bundle=bundle)
        finally:
            transport.close()
