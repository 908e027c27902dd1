"""The data of `smelt bench` (its JSON, of one run or of several) -> a page of times, kernels and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.devicefarm.measure import TimingVerdict
from smelt.pages.charts import Chart, Series, histogram, lines, milliseconds, plain, size
from smelt.pages.render import render

SHOWN_KERNELS = 40
TELEMETRY = {"degrees": "degrees C", "khz": "kHz", "limits_khz": "kHz allowed", "cooling": "cooling level"}
"""Columns of the telemetry that are drawn -> what they are called."""


@dataclass(frozen=True)
class BenchRun:
    """One run of the command. title: what it is called beside others; data: as --json has it."""

    title: str
    data: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """The gravest word for the times of a case (TimingVerdict)."""
        order = [v.value for v in TimingVerdict]
        return max((c["timing"] for c in self.data["cases"]), key=order.index, default=order[0])


@dataclass(frozen=True)
class KernelTimes:
    """A kernel's time in one or several runs. share: of the first run's whole time; ns: per run of the model,
    None where a run does not have the kernel. roof: of the first run's time, what the work takes at least,
    None where that is not known; limit: what that least time is for, in words."""

    name: str
    unit: str
    nodes: str
    launches: int
    share: float
    ns: tuple[float | None, ...]
    roof: float | None = None
    limit: str = ""


@dataclass(frozen=True)
class CaseView:
    """A case as the page shows it. rows: that case in each run, None where a run lacks it."""

    label: str
    rows: tuple[Mapping[str, Any] | None, ...]
    charts: tuple[Chart, ...]
    kernels: tuple[KernelTimes, ...]
    left: int


def bench_page(heading: str, runs: Sequence[BenchRun], memory: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page. runs: the one that the page is about comes first. memory: for each size that the arena
    depends on its name, the others' values, and points (value, bytes)."""
    labels = dict.fromkeys(c["label"] for r in runs for c in r.data.get("cases", ()))
    return render(
        "bench.html", heading=heading, runs=runs, cases=[_case(label, runs) for label in labels],
        memory=[(m, _memory_chart(m)) for m in memory],
    )  # fmt: skip


def doubts_of(case: Mapping[str, Any]) -> list[str]:
    """Why the times of a case are not simply valid, each with its kind."""
    return [f"{d['kind']}: {d['text']}" for d in case.get("doubts", ())]


def _case(label: str, runs: Sequence[BenchRun]) -> CaseView:
    rows = [_row(label, r) for r in runs]
    titles = [r.title if len(runs) > 1 else "" for r in runs]  # what is alone needs no legend
    named = [(title, row) for title, row in zip(titles, rows, strict=True) if row is not None]
    samples = [(title, [float(v) for v in row.get("samples_ns", ())]) for title, row in named]
    charts = [
        histogram("distribution", samples, milliseconds),
        lines("in the order taken", [(t, [*enumerate(s, 1)]) for t, s in samples], "sample", y=milliseconds),
        *(_telemetry(key, words, named) for key, words in TELEMETRY.items()),
    ]
    kernels = _kernels([dict(row) if row else {} for row in rows])
    return CaseView(
        label, tuple(rows), tuple(c for c in charts if c is not None), tuple(kernels[:SHOWN_KERNELS]),
        max(0, len(kernels) - SHOWN_KERNELS),
    )  # fmt: skip


def _row(label: str, run: BenchRun) -> Mapping[str, Any] | None:
    found = next((c for c in run.data.get("cases", ()) if c["label"] == label), None)
    return None if found is None else {**found, "reasons": doubts_of(found)}


def _telemetry(key: str, words: str, named: Sequence[tuple[str, Mapping[str, Any]]]) -> Chart | None:
    series: list[Series] = []
    for title, row in named:
        readings = [r for r in row.get("telemetry", ()) if isinstance(r.get(key), int | float)]
        series.append((title, [(r.get("at_ns", n) / 1e9, float(r[key])) for n, r in enumerate(readings)]))
    return lines(words, series, "seconds", y=plain)


def _kernels(rows: Sequence[Mapping[str, Any]]) -> list[KernelTimes]:
    """The slowest first."""
    tables = [{k["name"]: k for k in row.get("kernels", ())} for row in rows]
    names = dict.fromkeys(name for t in tables for name in t)
    whole = sum(k["ns"] for k in tables[0].values()) if tables else 0
    found = []
    for name in names:
        known = next(t[name] for t in tables if name in t)
        share = tables[0][name]["ns"] / whole if name in tables[0] and whole else 0.0
        times = tuple(t[name]["ns"] if name in t else None for t in tables)
        about = known.get("unit", ""), known.get("origin", ""), known["launches"]
        found.append(KernelTimes(name, *about, share, times, *_roof(tables[0].get(name, {}))))
    return sorted(found, key=lambda k: -max(n or 0.0 for n in k.ns))


def _roof(kernel: Mapping[str, Any]) -> tuple[float | None, str]:
    """What is faster than memory has its data from caches, and its limit is arithmetic alone."""
    least, ns = kernel.get("least"), kernel.get("ns")
    if not least or not ns:
        return None, ""
    if least["ns"] > ns and least["memory"] > least["arithmetic"]:
        return least["arithmetic"] / ns, "arithmetic, its data from caches"
    return least["ns"] / ns, "arithmetic" if least["arithmetic"] > least["memory"] else "memory"


def _memory_chart(m: Mapping[str, Any]) -> Chart | None:
    curve = [(float(a), float(b)) for a, b in m["points"]]
    dots = [(float(a), float(b)) for a, b in m.get("measured", ())]
    return lines(
        f"memory against {m['symbol']}", [("", curve)], str(m["symbol"]), y=size, from_zero=True,
        dots=[("measured", dots)] if dots else (),
    )  # fmt: skip
