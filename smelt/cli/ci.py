"""Results of a command -> what CI services read: JUnit XML, GitHub's annotations and summary, SARIF.

An error of the infrastructure is an <error>, a fault of the model a <failure>: a lost link never looks like a
wrong model. GitHub shows ten annotations per step, so the worst ten are given and the summary has all.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol
from xml.etree import ElementTree

from smelt.cli.common import Usage, write_result
from smelt.cli.sarif import located_log
from smelt.core.diag import SmeltError, printable
from smelt.devicefarm.compare_builds import ERROR, Change
from smelt.devicefarm.verdict import Verdict, verdict_of_error
from smelt.pages.bench import doubts_of

if TYPE_CHECKING:
    from smelt.compare import CaseResult, Validation

CaseOutcome = Literal["pass", "failure", "error", "skipped"]

FAILURES = frozenset({Verdict.MISMATCH, Verdict.CRASH, Verdict.TIMEOUT, Verdict.UNSUPPORTED})
"""Verdicts about the model; all others but PASS are about what it ran on, or about smelt."""
MOST_ANNOTATIONS = 10
SUMMARY_BYTES = 1 << 20
"""What GitHub takes as the summary of a step."""
LONGEST_TEXT = 60_000
"""Characters of one result's text."""


@dataclass(frozen=True)
class CiCase:
    """A test case. kind: the verdict in a word; message: one line; text: everything that is known."""

    name: str
    outcome: CaseOutcome = "pass"
    kind: str = ""
    message: str = ""
    text: str = ""
    seconds: float = 0.0
    properties: Mapping[str, str] = field(default_factory=dict)


class HasPlace(Protocol):
    """A finding about nodes of a model."""

    @property
    def model(self) -> str: ...

    @property
    def nodes(self) -> tuple[str, ...]: ...

    @property
    def message(self) -> str: ...


@dataclass
class Report:
    """Collects cases; `reporting` writes them. suite: the command; subject: what it was about."""

    suite: str
    subject: str
    cases: list[CiCase] = field(default_factory=list)
    findings: list[HasPlace] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0

    def add(self, case: CiCase) -> None:
        """One more case."""
        self.cases.append(case)

    def located(self, finding: HasPlace) -> None:
        """A finding with a place, if it names nodes."""
        if finding.nodes:
            self.findings.append(finding)


def add_ci_options(parser: argparse.ArgumentParser, *, located: bool = False) -> None:
    """Add --junit and --github; with `located` --sarif as well."""
    parser.add_argument("--junit", metavar="FILE.xml", help="also write the results as JUnit XML")
    parser.add_argument(
        "--github", action="store_true",
        help="also tell GitHub Actions: annotations, a summary (default: where GITHUB_ACTIONS is set)",
    )  # fmt: skip
    if located:
        parser.add_argument(
            "--sarif", metavar="FILE.sarif", help="also write what has a place in the model as a SARIF log"
        )


def outcome_of(verdict: Verdict) -> CaseOutcome:
    """What a verdict is to JUnit."""
    if verdict is Verdict.PASS:
        return "pass"
    return "failure" if verdict in FAILURES else "error"


@contextmanager
def reporting(args: argparse.Namespace, suite: str, subject: str) -> Iterator[Report]:
    """Write the reports that were asked for when the block ends, also where it ends with an error, which is
    then a case of its own."""
    report, start = Report(suite, printable(str(subject))), time.monotonic()
    try:
        yield report
    except Usage:
        raise
    except SmeltError as e:
        verdict = verdict_of_error(e)
        hint = f"\n{e.hint}" if e.hint else ""
        report.add(
            CiCase("run", outcome_of(verdict), verdict.value, str(e), f"{e}{hint}", time.monotonic() - start)
        )
        report.exit_code = report.exit_code or verdict.exit_code
        _write(args, report, time.monotonic() - start)
        raise
    _write(args, report, time.monotonic() - start)


def _write(args: argparse.Namespace, report: Report, seconds: float) -> None:
    if args.junit:
        write_result(args.junit, junit(report, seconds), ".xml")
    if getattr(args, "sarif", None):
        write_result(args.sarif, sarif(report), ".sarif")
    if args.github or os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github_lines(report):
            print(line, file=sys.stderr)  # GitHub reads both streams, and stdout has the command's own answer
        append_summary(report)


def add_cases(report: Report, found: Validation, entry: str = "") -> None:
    """A case of `validate` each."""
    report.properties |= {
        "device": found.device, "emulated": str(found.emulated).lower(), "reference": found.reference,
    }  # fmt: skip
    for c in found.cases:
        label = f"{entry}: {c.label}" if entry and not c.label.startswith(f"{entry}:") else c.label
        died = c.crash.lines() if c.crash else ()
        text = "\n".join([c.why, *(f"{o.name}: {o}" for o in c.outputs), *died]).strip()
        bad = next((f"{o.name}: {o}" for o in c.outputs if not o.ok), "")
        outcome: CaseOutcome = "skipped" if c.status == "skipped" else outcome_of(c.verdict)
        report.add(
            CiCase(label, outcome, c.verdict.value, _first_line(bad or c.why), text, properties=_shapes(c))
        )


def add_timings(report: Report, data: Mapping[str, Any]) -> None:
    """A case of `bench` each, from its data: times that may not be used are an error, never a failure."""
    report.properties |= {"device": str(data["device"]), "emulated": str(data["emulated"]).lower()}
    for c in data["cases"]:
        verdict, doubts = Verdict(c["verdict"]), doubts_of(c)
        told = {k: str(c[k]) for k in ("latency_ns_p50", "latency_ns_p90", "latency_ns_min", "samples")}
        why = "; ".join(doubts)
        report.add(
            CiCase(c["label"], outcome_of(verdict), c["timing"], _first_line(why), why, properties=told)
        )


CHANGES: Mapping[Change, CaseOutcome] = {
    Change.REGRESSION: "failure",
    Change.IMPROVEMENT: "pass",
    Change.NO_DIFFERENCE: "pass",
    Change.INCONCLUSIVE: "error",
    Change.EMULATED: "error",
}


def add_changes(report: Report, data: Mapping[str, Any]) -> None:
    """A case of `bench --baseline` each, from its data: only a build that is slower is a failure; where
    nothing can be said of the builds, it is an error."""
    report.properties |= {
        "device": str(data["device"]), "emulated": str(data["emulated"]).lower(),
        "new": str(data["new"]), "baseline": str(data["baseline"]),
    }  # fmt: skip
    for c in data["cases"]:
        change, ratio = Change(c["verdict"]), c["ratio"]
        told = {k: str(c[k]) for k in ("ratio", "ratio_low", "ratio_high", "pairs") if c[k] is not None}
        known = [] if ratio is None else [
            f"the new build takes {ratio:.3f} times the baseline's time "
            f"({1 - ERROR:.0%} interval {c['ratio_low']:.3f} to {c['ratio_high']:.3f}, {c['pairs']} pairs)"
        ]  # fmt: skip
        verdicts = Counter(x["timing"] for x in c["launches"])
        launched = "launches: " + ", ".join(f"{n} {v}" for v, n in verdicts.most_common())
        why = [*known, *c["reasons"]]
        what, text = _first_line("; ".join(why)), "\n".join([*why, launched])
        report.add(CiCase(c["label"], CHANGES[change], change.value, what, text, properties=told))


def add_race(report: Report, data: Mapping[str, Any]) -> None:
    """A case of `bench --against` each, from its data: to be slower than another runtime is no failure."""
    for c in data["cases"]:
        doubts = [d["text"] for d in c["doubts"]]
        what = f"{c['speed_ratio']:.2f} times as fast as {data['against']} ({c['timing']})"
        report.add(CiCase(c["label"], "pass", c["timing"], what, "\n".join([what, *doubts])))


def _shapes(c: CaseResult) -> dict[str, str]:
    return {f"shape {n}": "x".join(map(str, s)) for n, s in c.shapes.items()}


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:1000] if text.strip() else ""


# ---------------------------------------------------------------- JUnit


def junit(report: Report, seconds: float) -> bytes:
    """The report as JUnit's XML."""
    counts = {k: str(sum(c.outcome == o for c in report.cases)) for k, o in _COUNTS.items()}
    root = ElementTree.Element("testsuites", {"name": "smelt", "tests": str(len(report.cases)), **counts})
    about = {"name": _legal(f"{report.suite} {report.subject}"), "tests": str(len(report.cases)), **counts}
    suite = ElementTree.SubElement(root, "testsuite", {**about, "time": f"{seconds:.3f}"})
    _properties(suite, report.properties)
    for c in report.cases:
        case = ElementTree.SubElement(
            suite, "testcase",
            {"classname": f"smelt.{report.suite}", "name": _legal(c.name), "time": f"{c.seconds:.3f}"},
        )  # fmt: skip
        _properties(case, c.properties)
        if c.outcome != "pass":
            told = ElementTree.SubElement(case, c.outcome, {"message": _legal(c.message)})
            if c.outcome != "skipped":
                told.set("type", c.kind)
                told.text = _legal(c.text[:LONGEST_TEXT])
        elif c.text:
            ElementTree.SubElement(case, "system-out").text = _legal(c.text[:LONGEST_TEXT])
    ElementTree.indent(root)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root) + b"\n"


_COUNTS: Mapping[str, CaseOutcome] = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def _properties(at: ElementTree.Element, found: Mapping[str, str]) -> None:
    if found:
        box = ElementTree.SubElement(at, "properties")
        for name, value in found.items():
            ElementTree.SubElement(box, "property", {"name": _legal(name), "value": _legal(value)})


def _legal(text: str) -> str:
    """The text without characters that XML 1.0 cannot hold; others in their place."""
    return "".join(c if c in "\t\n" or not _barred(ord(c)) else "\ufffd" for c in text)


def _barred(code: int) -> bool:
    return code < 0x20 or 0x7F <= code <= 0x9F or 0xD800 <= code <= 0xDFFF or code in (0xFFFE, 0xFFFF)


# ---------------------------------------------------------------- GitHub


def worst_first(cases: Sequence[CiCase]) -> list[CiCase]:
    """Failures of the model, then errors, in their order."""
    rank = {"failure": 0, "error": 1}
    return sorted((c for c in cases if c.outcome in rank), key=lambda c: rank[c.outcome])


def github_lines(report: Report) -> list[str]:
    """Workflow commands for the worst results."""
    found = worst_first(report.cases)
    lines = [_command("error", f"smelt {report.suite}: {c.kind}", f"{c.name}: {c.message}") for c in found]
    for f in report.findings:
        lines.insert(0, _command("error", f"smelt {report.suite}", f.message, file=f.model))
    return lines[:MOST_ANNOTATIONS]


def _command(kind: str, title: str, text: str, file: str = "") -> str:
    given = {"file": file, "title": title}
    words = ",".join(f"{k}={_property(v)}" for k, v in given.items() if v)
    return f"::{kind} {words}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def summary(report: Report) -> str:
    """The report as Markdown."""
    counts = {o: sum(c.outcome == o for c in report.cases) for o in ("pass", "failure", "error", "skipped")}
    told = ", ".join(f"{n} {o}" for o, n in counts.items() if n)
    where = f" on {report.properties['device']}" if "device" in report.properties else ""
    lines = [
        f"### smelt {report.suite}: {_cell(report.subject)}{_cell(where)}",
        "",
        told or "nothing was run",
        "",
    ]
    lines += [f"- {_cell(f.message)}" for f in report.findings]
    shown = [*worst_first(report.cases), *(c for c in report.cases if c.outcome == "pass" and c.message)]
    if shown:
        lines += ["", "| case | verdict | what |", "|---|---|---|"]
        lines += [f"| {_cell(c.name)} | {_cell(c.kind)} | {_cell(c.message)} |" for c in shown]
    return "\n".join(lines) + "\n\n"


def _cell(text: str) -> str:
    plain = printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("`", "\\`")
    return plain.replace("<", "&lt;").replace(">", "&gt;")


def append_summary(report: Report) -> None:
    """Append to the file that GITHUB_STEP_SUMMARY names, up to what GitHub takes. Raises
    SmeltError(kind='infra')."""
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if not place:
        return
    text = summary(report).encode()
    try:
        there = Path(place).stat().st_size if os.path.exists(place) else 0
        left = max(0, SUMMARY_BYTES - there)
        if len(text) > left:
            end = b"\n\nThe rest does not fit.\n"
            text = text[: max(0, left - len(end))] + end[:left]
        with open(place, "ab") as f:
            f.write(text)
    except OSError as e:
        raise SmeltError(
            f"cannot write GITHUB_STEP_SUMMARY '{place}': {e.strerror or e}", kind="infra"
        ) from None


# ---------------------------------------------------------------- SARIF


def sarif(report: Report) -> bytes:
    """What has a place in a model, as a SARIF log."""
    rows: list[tuple[str, str, Sequence[str]]] = [(f.model, f.message, f.nodes) for f in report.findings]
    log: dict[str, Any] = located_log(rows, report.exit_code)
    return json.dumps(log, indent=2).encode()
