"""smelt devices leases | release | quarantine | restore: who has which device, which are given to none."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import asdict

from smelt.cli.common import AddParser, Result, command, table
from smelt.core.exits import OK
from smelt.devicefarm.inventory import find_device, read_inventory
from smelt.devicefarm.places import farm_exists, farm_url
from smelt.leasing import open_desk


def register(add: AddParser) -> None:
    """Add the four subcommands to the parser of `devices`."""
    shown = command(add, "leases", run_leases, "smelt devices leases", "who has which device, who waits")
    shown.set_defaults(command="devices leases")
    release = command(
        add, "release", run_release, "smelt devices release pi5",
        "end the lease of a device, whoever holds it; what its holder still does is refused",
    )  # fmt: skip
    shut = command(
        add, "quarantine", run_quarantine, "smelt devices quarantine pi5 --reason 'fan broken'",
        "give a device to nobody until it is restored",
    )  # fmt: skip
    restore = command(
        add, "restore", run_restore, "smelt devices restore pi5", "give a device out again"
    )  # fmt: skip
    for p, name in ((release, "release"), (shut, "quarantine"), (restore, "restore")):
        p.add_argument("name", metavar="NAME")
        p.set_defaults(command=f"devices {name}")
    shut.add_argument("--reason", default="by hand", help="stored, and told to whoever asks for it")


def run_leases(args: argparse.Namespace) -> Result:
    """List every device with its holder, the seconds left, who waits, and its quarantine."""
    rows = [["name", "held by", "left", "waiting", "quarantine"]]
    standings = {}
    if farm_exists():
        desk = open_desk()
        with closing(desk.database):
            standings = {s.device: s for s in desk.standings()}
    for name in sorted({*read_inventory(), *standings}):
        s = standings.get(name)
        if s is None:
            rows.append([name, "-", "", "", ""])
            continue
        shut = f"for {s.since:.0f} s: {s.reason}" if s.quarantined else ""
        left = f"{s.left:.0f} s" if s.holder else ""
        rows.append([name, f"{s.user} ({s.holder})" if s.holder else "-", left, str(s.waiting or ""), shut])
    data = {"devices": [asdict(s) for s in standings.values()], "farm": _shown() if standings else ""}
    return Result(OK, data, table(rows))


def run_release(args: argparse.Namespace) -> Result:
    """End a device's lease."""
    device = find_device(args.name)
    desk = open_desk()
    with closing(desk.database):
        fence = desk.revoke(device.name)
    told = f"ended the lease of '{device.name}'" if fence else f"nobody held '{device.name}'"
    return Result(OK, {"device": device.name, "fence": fence or None}, told)


def run_quarantine(args: argparse.Namespace) -> Result:
    """Give a device to nobody."""
    device = find_device(args.name)
    desk = open_desk()
    with closing(desk.database):
        desk.quarantine(device.name, args.reason)
    data = {"device": device.name, "reason": args.reason}
    return Result(OK, data, f"'{device.name}' is in quarantine: {args.reason}")


def run_restore(args: argparse.Namespace) -> Result:
    """Give a device out again."""
    device = find_device(args.name)
    desk = open_desk()
    with closing(desk.database):
        was = desk.restore(device.name)
    told = f"'{device.name}' is given out again" if was else f"'{device.name}' was not in quarantine"
    return Result(OK, {"device": device.name, "restored": was}, told)


def _shown() -> str:
    from smelt.devicefarm.leases.database import shown

    return shown(farm_url())
