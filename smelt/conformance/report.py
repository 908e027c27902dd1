"""Results in; their summary, tests/known_failures.txt and the comparison with it out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smelt.conformance.judge import BAD, JudgedCase, Outcome

MOST_REASON = 110
"""Most characters of a reason in the table."""


@dataclass(frozen=True)
class Id:
    """The parts of a result's id, [target/]kind:rest."""

    target: str
    kind: str
    rest: str

    @property
    def group(self) -> str:
        """The row of the summary that counts the result."""
        return self.kind if self.target == "host" else f"{self.target}, {self.kind}"


def parsed(text: str) -> Id:
    """Parse an id; its target is 'host' where it names none."""
    found = re.fullmatch(r"(?:([^:/]+)/)?([^:/]+):(.*)", text)
    assert found, text
    return Id(found[1] or "host", found[2], found[3])


def counts(results: Sequence[JudgedCase]) -> dict[str, Counter[Outcome]]:
    """Outcomes per form, sweep and target, in the order of the results."""
    found: dict[str, Counter[Outcome]] = {}
    for r in results:
        found.setdefault(parsed(r.id).group, Counter())[r.outcome] += 1
    return found


def summary(results: Sequence[JudgedCase]) -> str:
    """A Markdown table of shares; untested cases are not counted."""
    lines = [
        "| form or sweep | cases | pass | share | unsupported | refused, called bad "
        "| wrong, internal, crash, hang |",
        "|---|---|---|---|---|---|---|",
    ]
    for group, c in counts(results).items():
        n = sum(c.values()) - c["untested"]
        share = f"{100 * c['pass'] / n:.1f} %" if n else "-"
        lines.append(
            f"| {group} | {n} | {c['pass']} | {share} | {c['unsupported']} "
            f"| {c['refused'] + c['invalid']} | {sum(c[o] for o in BAD)} |"
        )
    return "\n".join(lines)


def plain(r: JudgedCase) -> str:
    """The reason with names and numbers replaced, so that equal causes in different cases are equal texts."""
    text = re.sub(r"'[^']*'", "'_'", r.reason)
    text = re.sub(r"\[[^\]]*\]", "[..]", text)
    text = re.sub(r"(?<![A-Za-z0-9_])\d+(\.\d+)?(e[-+]?\d+)?(?![A-Za-z0-9_])", "#", text)
    text = text if r.outcome in ("unsupported", "pass") else f"{r.outcome}: {text}"
    return text if len(text) <= MOST_REASON else text[: MOST_REASON - 3] + "..."


# ---------------------------------------------------------------- known failures


BY_HAND = "because "
"""How a reason begins that was written by hand."""


def known(path: Path) -> dict[str, tuple[Outcome, str]]:
    """Id -> (outcome, reason) of the listed failures; a reason written by hand begins with 'because'."""
    found: dict[str, tuple[Outcome, str]] = {}
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        if line and not line.startswith("#"):
            name, outcome, reason = (*line.split(" ", 2), "")[:3]
            found[name] = (outcome, reason)  # type: ignore[assignment]
    return found


def failures_text(
    results: Sequence[JudgedCase], before: Mapping[str, tuple[Outcome, str]] | None = None
) -> str:
    """The file of known failures. before: the listed failures; those of cases that did not run are kept."""
    listed = dict(before or {})
    for r in results:
        old = listed.pop(r.id, ("pass", ""))
        if old[1].startswith(BY_HAND) and r.outcome in (old[0], "pass"):
            listed[r.id] = old
        elif r.outcome not in ("pass", "untested"):
            listed[r.id] = (r.outcome, plain(r))
    lines = [
        "# id outcome reason; written by `make conformance bless=1`, checked by the tests;",
        "# a reason that begins with 'because' was written by hand and stays",
    ]
    lines += [f"{name} {outcome} {why}".rstrip() for name, (outcome, why) in sorted(listed.items())]
    return "\n".join(lines) + "\n"


def unexpected(
    results: Sequence[JudgedCase], listed: Mapping[str, tuple[Outcome, str]]
) -> tuple[list[str], list[str]]:
    """(failures that are not listed, or worse than listed; listed failures that pass).

    On another target a case may fail as it is listed for this machine, or under its own id. What is listed by
    hand may pass: an answer that is nearer than ONNX's lies within the tolerance on some processors only.
    """
    worse, better = [], []
    for r in results:
        here = r.id.split("/", 1)[-1]
        outcome = listed.get(r.id, listed.get(here, ("pass", "")))[0]
        if r.outcome not in ("pass", "untested"):
            if outcome == "pass" or (r.outcome in BAD and outcome not in BAD):
                worse.append(f"{r.id}: {r.outcome}: {r.reason}")
        elif r.outcome == "pass" and not listed.get(r.id, ("pass", BY_HAND))[1].startswith(BY_HAND):
            better.append(r.id)
    return worse, better
