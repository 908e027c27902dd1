"""smelt farm run: a model or bundle -> its validation, or its times, on several devices at once."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from smelt.bench import PLANS, measure
from smelt.cli.bench import measured_text
from smelt.cli.common import (
    SUMMARIES,
    AddParser,
    Progress,
    Result,
    Usage,
    add_trial_options,
    colour,
    command,
    shape_specs,
    table,
    tell_place,
    tolerance,
    value_ranges,
    whole,
)
from smelt.cli.entries import add_entry_option, add_models, chosen_entry
from smelt.cli.validate import bundle_and_models, validation_text
from smelt.compare import validate
from smelt.core.bundle import Bundle
from smelt.core.scratch import scratch_folder
from smelt.devicefarm.claim import DeviceClaim
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.inventory import find_device
from smelt.devicefarm.leases.holder import Lease
from smelt.devicefarm.leases.jobs import Job, JobOutcome
from smelt.devicefarm.verdict import INFRASTRUCTURE, worst
from smelt.fleet import Fleet, FleetPart, named, tagged
from smelt.leasing import HeldDevice, make_well, open_desk
from smelt.running import transport_for
from smelt.shapes import RunCase, cases


def register(add: AddParser) -> None:
    """Add the command to the parser."""
    summary = SUMMARIES["farm"]
    parser = add("farm", help=summary, description=summary[0].upper() + summary[1:] + ".")
    group = parser.add_subparsers(metavar="run", required=True)
    new = command(
        group.add_parser, "run", run,
        "smelt farm run out --model model.onnx --device pi4,pi5,rock5\n"
        "smelt farm run out --model model.onnx --tag shelf2 --devices 4 --bench",
        "validate a bundle on several devices at once, or time it there",
    )  # fmt: skip
    new.set_defaults(command="farm run")
    add_models(new, "source", "MODEL|BUNDLE", "a model is compiled first")
    new.add_argument(
        "--model", dest="original", action="append", metavar="MODEL|NAME=MODEL",
        help="the ONNX file that a bundle was made of",
    )  # fmt: skip
    add_entry_option(new, "the first")
    new.add_argument(
        "--tag", dest="tags", action="append", default=[], help="devices that have all these tags"
    )
    new.add_argument("--pool", default="", help="devices of this pool")
    new.add_argument(
        "--devices", type=whole(1, 1000), metavar="N", help="so many of those that fit (default: all of them)"
    )
    new.add_argument("--bench", action="store_true", help="time it instead of validating it")
    new.add_argument("--plan", choices=tuple(PLANS), default="steady", help="of --bench (default: steady)")
    new.add_argument(
        "--tries", type=whole(1, 20), default=3, help="how often infrastructure may fail (default: 3)"
    )
    new.add_argument("--rtol", type=tolerance, help="relative tolerance of an element")
    new.add_argument("--atol", type=tolerance, help="absolute tolerance of an element")
    add_trial_options(new, 3)


def run(args: argparse.Namespace) -> Result:
    """Do the work on every device; the exit code is that of the worst part."""
    if args.device is not None and (args.tags or args.devices or args.pool):
        raise Usage("name them with --device A,B,C, or choose by --tag, --pool and --devices, not both")
    with scratch_folder("farm") as folder:
        bundle, models = bundle_and_models(args, folder)
        bundle = chosen_entry(args, bundle)
        model = models[bundle.entries[0]]
        if args.device is not None:
            crowd = named([n for n in args.device.split(",") if n])
        else:
            crowd = tagged(str(bundle.manifest["platform"]), args.tags, args.devices, args.pool)
        specs = shape_specs(args)
        count = len(specs) or args.count
        tried = list(islice(cases(bundle, specs, seed=args.seed, ranges=value_ranges(args)), count))
        work = _Work(args, bundle, model, tried)
        progress = Progress(args)
        desk = open_desk()
        work.desk = desk
        with closing(desk.database):
            fleet = Fleet(
                desk, bundle, crowd, work, what={"command": "bench" if args.bench else "validate"},
                priority=args.priority, timeout=args.wait, tries=args.tries,
                on_wait=partial(tell_place, args.command),
                on_part=lambda p: progress(f"{p.device}: {p.verdict.value}"),
            )  # fmt: skip
            parts = fleet.run()
        progress.done()
    verdict = worst([p.verdict for p in parts])
    data = {"verdict": verdict.value, "parts": [_data(p) for p in parts]}
    return Result(verdict.exit_code, data, _text(parts, work.told))


def _data(part: FleetPart) -> dict[str, Any]:
    return {**asdict(part), "verdict": part.verdict.value}


def _text(parts: tuple[FleetPart, ...], told: Mapping[str, str]) -> str:
    rows = [["device", "verdict", "attempts", "job"]]
    rows += [[p.device or "-", p.verdict.value, str(p.attempts), p.job] for p in parts]
    lines = [told[p.job] for p in parts if p.job in told]
    lines += [f"{colour(p.verdict.value, 'red')} on {p.device or 'no device'}: {p.message}"
              for p in parts if p.message and (p.job not in told or p.verdict in INFRASTRUCTURE)]  # fmt: skip
    return "\n".join([*lines, table(rows)])


class _Work:
    """Validates or times the bundle on the device of a lease. told: job -> its text for people."""

    def __init__(self, args: argparse.Namespace, bundle: Bundle, model: Path, tried: list[RunCase]) -> None:
        self.args, self.bundle, self.model, self.tried = args, bundle, model, tried
        self.told: dict[str, str] = {}
        self.desk: Any = None

    def __call__(self, job: Job, lease: Lease, claim: DeviceClaim) -> JobOutcome:
        seen: list[RunnerClient] = []
        held = HeldDevice(lease.device, claim, lease, on_open=seen.append)
        self._make_well(lease.device)
        if self.args.bench:
            found = measure(
                self.bundle, self.tried, device=held, threads=self.args.threads or 0,
                plan=PLANS[self.args.plan],
            )  # fmt: skip
            self.told[job.id] = measured_text(found)
            samples = {m.label: m.report.samples_ns for m in found}
            return JobOutcome(worst([m.verdict for m in found]), "", _fingerprint(seen), samples)
        checked = validate(
            self.bundle, self.model, self.tried, device=held, rtol=self.args.rtol, atol=self.args.atol,
            threads=self.args.threads or 0,
        )  # fmt: skip
        self.told[job.id] = validation_text(checked)
        bad = next((c.why for c in checked.cases if c.status != "pass" and c.why), "")
        return JobOutcome(checked.verdict, bad, _fingerprint(seen))

    def _make_well(self, name: str) -> None:
        device = find_device(name)
        transport = transport_for(self.bundle, device)
        try:
            make_well(self.desk, device, transport, Path(self.bundle.path))
        finally:
            transport.close()


def _fingerprint(seen: list[RunnerClient]) -> str:
    return seen[0].origin.device_fingerprint if seen else ""
