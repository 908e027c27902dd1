"""What a compile says of its kernels in; lines of `smelt inspect --kernels`, with costs at shapes, out."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smelt.cli.common import Usage, count_bytes, tolerance
from smelt.core.diag import shortened
from smelt.core.dim import parse_dim
from smelt.core.estimate import roofline
from smelt.core.machine import Machine

LONGEST_SHOWN = 160
"""Characters of a formula or of a line of a tree; --json has all of them."""
OUTLINE_LINES = 24
"""Lines of a tree's outline; --source has all of the tree."""

Row = dict[str, Any]
NamedSizes = Sequence[tuple[str, Mapping[str, int]]]
"""(label of the shapes, size by name)."""


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """Add --kernels and what goes with it."""
    parser.add_argument(
        "--kernels", action="store_true",
        help="every kernel with its schedule; of a model also its tree, what it takes and what it does",
    )  # fmt: skip
    parser.add_argument(
        "--source", dest="sources", action="append", default=[], metavar="NAME",
        help="--kernels of these alone (with * and ?), with the whole tree and the source or assembly",
    )  # fmt: skip
    parser.add_argument(
        "--peak", action="append", default=[], metavar="[UNIT=]N",
        help="arithmetic operations a second of a unit (default: of all units), for estimates",
    )  # fmt: skip
    parser.add_argument(
        "--bandwidth", action="append", default=[], metavar="[UNIT=]N",
        help="bytes a second of a unit's memory, for estimates",
    )  # fmt: skip


def given_rates(words: Sequence[str], option: str, units: Sequence[str]) -> dict[str, float]:
    """Unit -> number, from an option with UNIT=N or N; the last one for a unit holds. Raises Usage."""
    found: dict[str, float] = {}
    for word in words:
        unit, _, number = word.rpartition("=")
        if unit and unit not in units:
            raise Usage(f"{option} {word:.80}: there is no unit '{unit}'; units: {', '.join(units)}")
        try:
            value = tolerance(number)
        except argparse.ArgumentTypeError as e:
            raise Usage(f"{option} {word:.80}: {e}") from None
        if not value:
            raise Usage(f"{option} {word:.80}: a rate is above 0")
        found.update(dict.fromkeys([unit] if unit else units, value))
    return found


def with_costs(
    rows: Sequence[Row], at: NamedSizes, peak: Mapping[str, float], bandwidth: Mapping[str, float]
) -> list[Row]:
    """The rows with 'costs': for each of the shapes, the work's formulas as numbers, and the least time in
    which the unit can do that. A rate that is given stands in place of the machine's own."""
    made = []
    for row in rows:
        known = row["machine"]
        rates = {
            "operations": peak.get(row["unit"], known["operations"]),
            "bandwidth": bandwidth.get(row["unit"], known["bandwidth"]),
        }
        machine = Machine(known["name"], known["vector_bits"], 0, **rates)
        costs = [_cost(row["work"], label, values, machine) for label, values in at]
        made.append({**row, "machine": {**known, **rates}, "costs": costs})
    return made


def _cost(work: Mapping[str, str] | None, label: str, values: Mapping[str, int], machine: Machine) -> Row:
    names = ("floating", "integer", "read", "written")
    found = {n: None if work is None else _number(work[n], values) for n in names}
    row: Row = {"shapes": label, **found, "seconds": None, "bound": None}
    numbers = {n: value for n, value in found.items() if value is not None}
    if len(numbers) < len(names):
        return row
    operations, moved = numbers["floating"] + numbers["integer"], numbers["read"] + numbers["written"]
    row["intensity"] = operations / moved if moved else None
    if (line := roofline(machine, operations, moved)) is not None:
        row |= {"seconds": line.seconds, "bound": line.bound, "knee": line.knee}
    return row


def _number(formula: str, values: Mapping[str, int]) -> int | None:
    """None where a run decides one of its sizes."""
    found = parse_dim(formula)
    return found.evaluate(values) if found.symbols <= values.keys() else None


# ---------------------------------------------------------------- text


def described_text(rows: Sequence[Row], about: Mapping[str, Mapping[str, Any]], whole: bool) -> str:
    """Lines about each kernel. about: name -> the manifest's row. whole: all of the tree and of the code."""
    return "\n".join(line for row in rows for line in _kernel(row, about.get(row["name"], {}), whole))


def _kernel(row: Row, known: Mapping[str, Any], whole: bool) -> Iterator[str]:
    parts = row["parts"]
    places = f" x{known['launches']}" if known else ""
    yield f"  {row['name']} on {row['unit']}{places}, {len(parts)} statement(s)"
    if known:
        yield f"    from      {known['origin']}"
        yield f"    schedule  {known['schedule']}"
    for n, part in enumerate(parts):
        number = f" {n}" if len(parts) > 1 else ""
        yield from _part(row, part, number)
    yield from _work(row)
    if whole:
        yield from (f"    {line}" for line in row["tree"].splitlines())
        for text in (row["listing"], *(p["listing"] for p in parts)):
            yield from () if text is None else (f"    | {line}" for line in text.splitlines())
    else:
        yield from (f"    {line}" for line in outline(row["tree"]))


def _part(row: Row, part: Row, number: str) -> Iterator[str]:
    lanes, machine = part["lanes"], row["machine"]
    groups = _short(" or ".join(part["groups"]))
    words = [f"{groups} group(s)"]
    words += [f"of {lanes} lane(s)"] if machine["lanes"] > 1 else []
    words += [f"vectors of {' and '.join(map(str, part['vectors']))}"] if part["vectors"] else []
    yield f"    binding{number:3}{', '.join(words)}"
    if machine["lanes"] == 1:
        return  # a processor: its registers are in the assembly, and it has no memory of groups
    shared = part["shared_bytes"]
    taken = "unknown" if shared is None else f"{shared:,} of {machine['shared_bytes']:,} bytes"
    yield f"    shared    {taken}"
    if part["forms"]:
        yield f"    forms     {', '.join(form or 'plain' for form in part['forms'])}"
    for used in part["usage"]:
        yield f"    {used['machine']:9} {_usage(used)}"
    if not part["usage"]:
        yield "    registers unknown, and so is the occupancy: the device's driver chooses them"


def _usage(used: Row) -> str:
    if used["registers"] is None:
        return "unknown: no assembler here knows this chip (docs/units.md)"
    text = f"{used['registers']} registers, {used['spilled']} bytes spilled"
    text += f", {used['shared_bytes']:,} bytes shared"
    held = used["occupancy"]
    if held is None:
        return f"{text}; occupancy unknown: nobody has said what a core holds"
    return (
        f"{text}; a core holds {held['groups']} group(s), {held['share']:.0%} of its lanes "
        f"(limit: {held['limit']})"
    )


def _work(row: Row) -> Iterator[str]:
    work = row["work"]
    if work is None:
        yield "    work      unknown: the compile began after the schedule, or a formula is too large"
        return
    kinds = [f"{_short(work[k])} on {what}" for k, what in (("floating", "floats"), ("integer", "integers"))]
    kinds = [text for text in kinds if not text.startswith("0 on")]
    yield f"    work      operations: {', '.join(kinds) or 'none'}"
    yield f"    bytes     read: {_short(work['read'])}, written: {_short(work['written'])}"
    above, below = work["intensity"]
    if above != "0":
        yield f"    intensity {_ratio(above, below)} operations a byte"
    for cost in row.get("costs", ()):
        yield f"    at {cost['shapes']}: {_cost_text(cost, row)}"


def _ratio(above: str, below: str) -> str:
    if above.isdigit() and below.isdigit() and below != "0":
        return f"{int(above) / int(below):.3g}"
    return f"({_short(above)}) / ({_short(below)})"


def _cost_text(cost: Row, row: Row) -> str:
    if cost["read"] is None:
        return "unknown, since these shapes do not tell all of its sizes"
    operations, moved = cost["floating"] + cost["integer"], cost["read"] + cost["written"]
    ratio = f", {cost['intensity']:.3g} a byte" if cost["intensity"] is not None else ""
    text = f"{operations:,} operations, {count_bytes(moved)}{ratio}"
    if cost["seconds"] is not None:
        return f"{text}; at least {1e6 * cost['seconds']:.3g} us, by {cost['bound']}"
    options = (("peak", "operations"), ("bandwidth", "bandwidth"))
    missing = [f"--{option}" for option, key in options if not row["machine"][key]]
    return f"{text}; least time unknown without {' and '.join(missing)} of {row['unit']}"


def outline(tree: str) -> list[str]:
    """The nodes of a tree, a line each: loops, blocks, local buffers, and what is stored where."""
    lines = tree.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.endswith("{")) + 1
    kept = [_node(line) for line in lines[begin:] if line.strip("} ")]
    if len(kept) > OUTLINE_LINES:
        kept = [*kept[:OUTLINE_LINES], f"  .. {len(kept) - OUTLINE_LINES} lines more (--source NAME)"]
    return kept


_STORED = re.compile(r"^(\s*[^\s\[]+\[.*?\] \w*=) ")


def _node(line: str) -> str:
    """A line of a tree without its expression."""
    store = _STORED.match(line)
    return f"{store[1]} .." if store else _short(line.removesuffix(" {"))


def _short(text: str) -> str:
    return shortened(text, LONGEST_SHOWN)
