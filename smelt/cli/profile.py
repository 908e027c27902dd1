"""A bundle and shapes in; the time of each kernel, by the host's clock and by its device's events, out."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from smelt.cli.common import Progress, milliseconds, table, wished
from smelt.core.bundle import Bundle
from smelt.core.machine import CPU
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.measure import ONCE, median
from smelt.devicefarm.report import KernelTime
from smelt.kernel_names import kernel_names
from smelt.roofline import Peaks, least_times
from smelt.running import running
from smelt.shapes import RunCase

PROFILED = 5
"""Runs of which each kernel's time is the median."""


def with_kernels(
    args: argparse.Namespace, bundle: Bundle, cases: Sequence[RunCase], data: Mapping[str, Any],
    progress: Progress, peaks: Peaks | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The data of `bench` with the kernels' times of each case, the units that were there for them, and the
    bundle's digest. peaks: what the processor does at most, for the least times that the kernels' work
    takes."""
    with running(bundle, wished(args), threads=args.threads or 0) as client:
        units = (client.facts and client.facts.units) or ()
        rows = list(_profiles(client, bundle, cases, progress, peaks))
    wanted = bundle.manifest["devices"]
    return {
        **data,
        "digest": bundle.digest,
        "units": [
            {"unit": u.api, "device": u.device, "version": u.version, "driver": u.driver, "error": u.error}
            for u in units
            if u.api in wanted
        ],
        "cases": [{**c, "kernels": k} for c, k in zip(data["cases"], rows, strict=True)],
    }


@dataclass
class _Times:
    """Of one kernel, a number for each run. told: of how many launches of the last run the device told.
    forms: those that its statements have got, with what keeps each from better ones."""

    ns: list[int] = field(default_factory=lambda: [0] * PROFILED)
    device_ns: list[int] = field(default_factory=lambda: [0] * PROFILED)
    launches: int = 0
    told: int = 0
    forms: dict[str, str] = field(default_factory=dict)

    def add(self, turn: int, k: KernelTime) -> None:
        self.ns[turn] += k.ns
        self.device_ns[turn] += k.device_ns
        self.launches += k.launches
        self.told += k.device_launches
        if k.form is not None:
            self.forms[k.form] = k.lesser


def _profiles(
    client: RunnerClient, bundle: Bundle, cases: Sequence[RunCase], progress: Progress, peaks: Peaks | None
) -> Iterator[list[dict[str, Any]]]:
    """Per case: each kernel's time, the median of some runs after the first, with its unit and its ONNX
    nodes. device_ns: null where the device did not tell the times of all launches; least: only where peaks
    and work are known; forms: only of kernels that their unit's code has in several."""
    rows = {r["name"]: r for r in bundle.manifest["kernels"]}
    names = kernel_names(bundle.manifest["kernels"])
    for case in cases:
        progress(f"{case.label}: kernels")
        times: dict[str, _Times] = {}
        for turn in range(PROFILED):
            report = client.run(case.tensors, replace(ONCE, profile=True), outputs=False)
            for t in times.values():
                t.launches = t.told = 0
            for k in report.profile:
                times.setdefault(names.get(k.name, k.name), _Times()).add(turn, k)
        probed = peaks is not None and "probes" in bundle.manifest
        least = least_times(bundle.manifest, client.trace(), peaks) if peaks and probed else {}
        yield [
            {
                "name": name, "ns": median(t.ns), "launches": t.launches,
                "device_ns": median(t.device_ns) if t.told == t.launches else None,
                **({"least": asdict(least[name])} if name in least else {}),
                **({"forms": [{"asks": a, "lesser": why} for a, why in t.forms.items()]} if t.forms else {}),
                **{f: rows.get(name, {}).get(f, "") for f in ("unit", "origin")},
            }
            for name, t in times.items()
            if t.launches
        ]  # fmt: skip


def _form_text(kernel: Mapping[str, Any]) -> str:
    """What the forms of a kernel's statements ask of the device; '-': there is one form alone."""
    return ", ".join(f["asks"] or "plain" for f in kernel.get("forms", ())) or "-"


def profile_text(data: Mapping[str, Any]) -> str:
    """A table for each of the shapes, the slowest kernel first."""
    parts = [f"{u['unit']}: {u['device']}, {u['version']}, driver {u['driver']}" for u in data["units"]]
    for case in data["cases"]:
        slowest = sorted(case["kernels"], key=lambda k: -k["ns"])
        several = any("forms" in k for k in slowest)
        form = ["form"] if several else []
        rows = [["kernel", "unit", "launches", "host clock", "device events", *form, "from"]]
        rows += [
            [
                k["name"], k["unit"], str(k["launches"]), milliseconds(k["ns"]),
                "-" if k["device_ns"] is None else milliseconds(k["device_ns"]),
                *([_form_text(k)] if several else ()), f"{k['origin']:.60}",
            ]
            for k in slowest
        ]  # fmt: skip
        parts.append(f"kernels at {case['label']}, each launch waited for:\n{table(rows, indent='  ')}")
        lesser = {f["lesser"] for k in slowest for f in k.get("forms", ()) if f["lesser"]}
        parts += [f"  a better form is not used: {why}" for why in sorted(lesser)]
    if any(k["unit"] != CPU and k["device_ns"] is None for c in data["cases"] for k in c["kernels"]):
        parts.append("  -: the device has no events of its own; the host's clock has the launch and the wait")
    return "\n".join(parts)
