"""smelt devices report: the farm's devices, what they are and whether they work, on one page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from smelt.cli.common import AddParser, Progress, Result, command, write_result
from smelt.core.exits import OK
from smelt.devicefarm.doctor import Finding
from smelt.devicefarm.inventory import Device, describe, find_device, inventory_path, read_inventory
from smelt.pages.devices import DeviceView, devices_page

Examine = Callable[..., Sequence[Finding]]


def register(add: AddParser, examine: Examine) -> None:
    """Add the subcommand. examine: what the doctor does with a device."""
    parser = command(
        add, "report", lambda args: run(args, examine),
        "smelt devices report --html farm.html\nsmelt devices report local --html farm.html --quick",
        "write a page about the devices",
    )  # fmt: skip
    parser.add_argument("names", metavar="NAME", nargs="*", help="(default: all)")
    parser.add_argument("--html", metavar="FILE.html", required=True, help="where to write the page")
    parser.add_argument("--quick", action="store_true", help="do not start a runner on them")
    parser.set_defaults(command="devices report")


def run(args: argparse.Namespace, examine: Examine) -> Result:
    """Examine the devices and write the page; the exit code is about the page: the doctor's is about them."""
    progress = Progress(args)
    devices = [find_device(n) for n in args.names]
    devices = devices or sorted(read_inventory().values(), key=lambda d: d.name)
    views = []
    for d in devices:
        progress(f"examining {d.name}")
        views.append(_view(d, examine(d, quick=args.quick)))
    progress.done()
    write_result(args.html, devices_page(views, str(inventory_path())).encode(), ".html")
    states = {v.name: v.state for v in views}
    data: dict[str, Any] = {"file": args.html, "devices": states}
    text = "\n".join([*(f"{name}: {state}" for name, state in states.items()), f"wrote {args.html}"])
    return Result(OK, data, text)


def _view(d: Device, findings: Sequence[Finding]) -> DeviceView:
    rows = [(f.ok, f.check, f.detail) for f in findings]
    private = ("name", "tags", "host_key", "key_file")
    facts = {k: str(v) for k, v in asdict(d).items() if v and k not in private}
    return DeviceView(d.name, asdict(d), describe(d), rows, facts)
