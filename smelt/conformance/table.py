"""Results in; a table of supported operators (table.json beside this file) and the page docs/ops.md out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from smelt.conformance.cases import FORMS, shipped
from smelt.conformance.judge import JudgedCase
from smelt.conformance.keys import STATIC_ONLY
from smelt.conformance.report import parsed, plain, summary
from smelt.importer.weights import DTYPE_OF

PATH = Path(__file__).with_name("table.json")
Table: TypeAlias = dict[str, Any]

HEAD = """\
# Operators: what compiles, for which opset, element type, form and target

Made by `make conformance` (onnx {onnx}, opset {opset}); do not edit. The same facts as JSON are in
smelt/conformance/table.json. What is not supported is refused when the model is compiled
(`kind == 'unsupported'`), and `smelt check` says so before.

- **opsets**: the versions of the operator, by the first opset of each (7 includes older ones). For each
  version a case written for it is compiled and compared with ONNX Runtime or ONNX's evaluator.
- **types**: element types for each type variable of the operator's schema, with a case each, whose
  extents are symbols. 16-bit floats are compared with the exact answer, rounded once, to two units of the
  last place.
- **static**, **dynamic**, **strict**: ONNX's own backend cases, without the training domain and image
  decoding: how many pass of those that have the operator. static: as shipped. dynamic: extents are symbols,
  equal extents share one, operands that are constants in real models are initialisers. strict: every extent
  is a symbol of its own, every operand is a run-time input.
- **{targets}**: a tenth of the same cases, chosen by hash, on other targets.
- *not tested*: no case could be derived, or no oracle has its answer.

"""


def build(results: Sequence[JudgedCase]) -> Table:
    """The table of all operators that occur in the results."""
    ops = {s.name: s.ops for s in shipped()}
    found: dict[str, Table] = {}

    def row(op: str) -> Table:
        return found.setdefault(op, {"forms": {}, "targets": {}, "opsets": {}, "types": {}, "why": {}})

    for r in results:
        key = parsed(r.id)
        if key.kind == "dtype":
            op, variable, dtype = key.rest.split(":")
            row(op)["types"].setdefault(variable, {})[_short(dtype)] = _verdict(r)
        elif key.kind == "opset":
            op, version = key.rest.split(":")
            row(op)["opsets"][version] = _verdict(r)
        else:
            for op in ops.get(key.rest, ()):
                place, name = ("forms", key.kind) if key.target == "host" else ("targets", key.target)
                passed, of = row(op)[place].get(name, (0, 0))
                row(op)[place][name] = (passed + (r.outcome == "pass"), of + 1)
                if r.outcome != "pass":
                    why = row(op)["why"]
                    why[plain(r)] = why.get(plain(r), 0) + 1
    return {
        "onnx": onnx.__version__,
        "opset": onnx.defs.onnx_opset_version(),
        "operators": {op: _packed(found[op]) for op in sorted(found, key=lambda o: ("." in o, o))},
    }


def _verdict(r: JudgedCase) -> str:
    if r.outcome == "pass":
        return "static" if r.reason.startswith(STATIC_ONLY) else "yes"
    return "untested" if r.outcome == "untested" else plain(r)


def _packed(row: Table) -> Table:
    """The row inverted, verdict -> what has it, so that equal verdicts take one line."""
    turned = {v: _turned(t) for v, t in row["types"].items()}
    counted: Counter[str] = Counter(row["why"])
    packed = {
        **row,
        "opsets": _turned(row["opsets"]),
        "types": turned,
        "why": [f"{w} ({n})" for w, n in counted.most_common(3)],
    }
    return {k: v for k, v in packed.items() if v}


def _turned(verdicts: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for name, verdict in verdicts.items():
        found.setdefault(verdict, []).append(name)
    return {verdict: " ".join(names) for verdict, names in found.items()}


def _short(onnx_type: str) -> str:
    code = onnx.TensorProto.DataType.Value(onnx_type.upper())
    return DTYPE_OF[code].name if code in DTYPE_OF else onnx_type


def text(table: Table) -> str:
    """The text of table.json: a line per operator."""
    rows = [f"  {json.dumps(op)}: {json.dumps(row)}" for op, row in table["operators"].items()]
    head = {k: v for k, v in table.items() if k != "operators"}
    return json.dumps(head)[:-1] + ', "operators": {\n' + ",\n".join(rows) + "\n}}\n"


# ---------------------------------------------------------------- the page


def page(table: Table, results: Sequence[JudgedCase]) -> str:
    """The text of docs/ops.md."""
    rows = table["operators"]
    targets = sorted({t for row in rows.values() for t in row.get("targets", ())})
    head = HEAD.format(onnx=table["onnx"], opset=table["opset"], targets="**, **".join(targets) or "targets")
    columns = ["operator", "opsets", "types", *FORMS, *targets, "why not"]
    lines = [head + summary(results), "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for op, row in rows.items():
        cells = [op, _opsets(row.get("opsets", {})), _types(row.get("types", {}))]
        cells += [_share(row.get("forms", {}).get(f)) for f in FORMS]
        cells += [_share(row.get("targets", {}).get(t)) for t in targets]
        cells.append(_why(row))
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"


def _share(pair: Sequence[int] | None) -> str:
    if not pair:
        return "-"
    return f"yes ({pair[0]})" if pair[0] == pair[1] else f"{pair[0]} of {pair[1]}"


def _opsets(turned: Mapping[str, str]) -> str:
    passed = [v for verdict in ("yes", "static") for v in turned.get(verdict, "").split()]
    rest = [f"not tested: {v}" for k, v in turned.items() if k == "untested"]
    rest += [f"no: {v}" for k, v in turned.items() if k not in ("yes", "static", "untested")]
    return "; ".join([" ".join(sorted(passed, key=int)) or "-", *rest])


# Types that are told in one word where all of them pass.
OPERATOR_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("i8..i64", ("i8", "i16", "i32", "i64")),
    ("u8..u64", ("u8", "u16", "u32", "u64")),
    ("f8", ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz")),
    ("i2 u2 i4 u4", ("i2", "u2", "i4", "u4")),
)
ORDER = ("f64", "f32", "f16", "bf16", "f8", "i8..i64", "u8..u64", "bool")


def _types(turned: Mapping[str, Mapping[str, str]]) -> str:
    cells = []
    for variable, verdicts in turned.items():
        parts_ = [_grouped(verdicts["yes"].split())] if "yes" in verdicts else []
        parts_ += [f"{_grouped(t.split())} static only" for k, t in verdicts.items() if k == "static"]
        parts_ += [f"{_grouped(t.split())} not tested" for k, t in verdicts.items() if k == "untested"]
        rest = [t for k, t in verdicts.items() if k not in ("yes", "static", "untested")]
        if rest:
            parts_.append(f"no {_grouped(' '.join(rest).split())}")
        cells.append(f"{variable}: {', '.join(parts_)}")
    return "; ".join(cells) or "-"


def _grouped(types: Sequence[str]) -> str:
    left, words = list(types), []
    for word, members in OPERATOR_GROUPS:
        if set(members) <= set(left):
            left = [t for t in left if t not in members]
            words.append(word)
    words += left
    return " ".join(sorted(words, key=lambda w: (ORDER.index(w) if w in ORDER else len(ORDER), w)))


def _why(row: Table) -> str:
    reasons = list(row.get("why", ())[:2])
    for turned in (row.get("opsets", {}), *row.get("types", {}).values()):
        reasons += [f"{names}: {w}" for w, names in turned.items() if w not in ("yes", "static", "untested")]
    return "; ".join(reasons[:4])
