"""Results in; docs/ops.md, tests/known_failures.txt and their comparison out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from smelt.conformance.cases import FORMS, Form, shipped
from smelt.conformance.judge import BAD, Outcome, Result

HEAD = """\
# Operators: what compiles, and in which form

Made by `make conformance` from ONNX's own backend cases (onnx {version}, opset {opset}; the training domain
and image decoding aside), compiled for the machine it ran on (x86_64, CPU) and run there. Do not edit.

- **static**: the cases as shipped. **dynamic**: sizes are symbols, equal sizes share one, operands that real
  models hold as constants are initialisers. **strict**: every size is a symbol of its own, every operand is a
  run-time input.
- A cell counts cases that pass, of those the operator has. A case of several operators counts for each.
- What is not supported is refused when the model is compiled (`kind == 'unsupported'`).

"""
LIMIT = 110
"""Characters that a reason may have in the table."""


def counts(results: Sequence[Result]) -> dict[Form, Counter[Outcome]]:
    """Outcomes per form."""
    found: dict[Form, Counter[Outcome]] = {f: Counter() for f in FORMS}
    for r in results:
        found[_form(r)][r.outcome] += 1
    return {f: c for f, c in found.items() if c}


def _form(r: Result) -> Form:
    return next(f for f in FORMS if r.id.startswith(f"{f}:"))


def _name(r: Result) -> str:
    return r.id.split(":", 1)[1]


def summary(results: Sequence[Result]) -> str:
    """A Markdown table of shares per form."""
    lines = [
        "| form | cases | pass | share | unsupported | refused, called bad | wrong, internal, crash, hang |",
        "|---|---|---|---|---|---|---|",
    ]
    for form, c in counts(results).items():
        n = sum(c.values())
        lines.append(
            f"| {form} | {n} | {c['pass']} | {100 * c['pass'] / n:.1f} % | {c['unsupported']} "
            f"| {c['refused'] + c['invalid']} | {sum(c[o] for o in BAD)} |"
        )
    return "\n".join(lines)


def ops_page(results: Sequence[Result]) -> str:
    """docs/ops.md."""
    by_op: dict[str, dict[Form, list[Result]]] = {}
    ops = {s.name: s.ops for s in shipped()}
    for r in results:
        for op in ops[_name(r)]:
            by_op.setdefault(op, {}).setdefault(_form(r), []).append(r)
    forms = [f for f in FORMS if f in counts(results)]
    lines = [
        HEAD.format(version=onnx.__version__, opset=onnx.defs.onnx_opset_version()) + summary(results),
        "",
        f"| operator | {' | '.join(forms)} | why not |",
        f"|---|{'---|' * len(forms)}---|",
    ]
    for op in sorted(by_op, key=lambda o: ("." in o, o)):
        rows = by_op[op]
        cells = [_cell(rows.get(f, [])) for f in forms]
        lines.append(f"| {op} | {' | '.join(cells)} | {_why([r for f in forms for r in rows.get(f, [])])} |")
    return "\n".join(lines) + "\n"


def _cell(rows: Sequence[Result]) -> str:
    passed = sum(r.outcome == "pass" for r in rows)
    if not rows:
        return "-"
    return f"yes ({passed})" if passed == len(rows) else f"{passed} of {len(rows)}"


def _why(rows: Sequence[Result]) -> str:
    reasons = Counter(plain(r) for r in rows if r.outcome != "pass")
    text = "; ".join(f"{reason} ({n})" for reason, n in reasons.most_common(2))
    return text.replace("|", "\\|")


def plain(r: Result) -> str:
    """A reason without the names and numbers of one case."""
    text = re.sub(r"'[^']*'", "'_'", r.reason)
    text = re.sub(r"\[[^\]]*\]", "[..]", text)
    text = re.sub(r"\d+(\.\d+)?(e-?\d+)?", "#", text)
    text = text if r.outcome == "unsupported" else f"{r.outcome}: {text}"
    return text if len(text) <= LIMIT else text[: LIMIT - 3] + "..."


# ---------------------------------------------------------------- known failures


def known(path: Path) -> dict[str, tuple[Outcome, str]]:
    """Id -> (outcome, reason) of the listed failures."""
    found: dict[str, tuple[Outcome, str]] = {}
    for line in path.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            name, outcome, reason = (*line.split(" ", 2), "")[:3]
            found[name] = (outcome, reason)  # type: ignore[assignment]
    return found


def failures_text(results: Sequence[Result]) -> str:
    """The file of known failures."""
    lines = ["# form:case outcome reason; written by `make conformance bless=1`, checked by the tests"]
    for r in sorted(results, key=lambda r: r.id):
        if r.outcome != "pass":
            lines.append(f"{r.id} {r.outcome} {plain(r)}")
    return "\n".join(lines) + "\n"


def news(results: Sequence[Result], listed: Mapping[str, tuple[Outcome, str]]) -> tuple[list[str], list[str]]:
    """(failures that are not listed, or listed as milder; listed ones that pass now)."""
    worse, better = [], []
    for r in results:
        outcome = listed.get(r.id, ("pass", ""))[0]
        if r.outcome != "pass" and (outcome == "pass" or (r.outcome in BAD and outcome not in BAD)):
            worse.append(f"{r.id}: {r.outcome}: {r.reason}")
        elif r.outcome == "pass" and outcome != "pass":
            better.append(r.id)
    return worse, better
