"""A memory formula -> lines that people can read: short names, rounded-up divisions, one case per line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.core.bundle import formula
from smelt.core.dim import Dim, Max, sym, to_dim

LONG = 4
"""Names up to this length stay as they are."""

MOST_CASES = 3
"""Cases that a summary has."""
MODEST, VAST = 64, 1 << 20
"""Sizes of dims that stay, and that grow without end."""

_LETTERS = "nhwabcdefgijklmopqrstuvxyz"
# ceil(x/k) is printed as (x + k-1)//k
_ROUNDED = re.compile(r"\(\((\w+) \+ (\d+)\)//(\d+)\)|\((\w+) \+ (\d+)\)//(\d+)")


@dataclass(frozen=True)
class Formula:
    """unit * max(arms): `legend` says what the short names stand for, (short, name)."""

    unit: int
    arms: tuple[Dim, ...]
    legend: tuple[tuple[str, str], ...]

    def lines(self, at: Sequence[Mapping[str, int]] = ()) -> list[str]:
        """The formula. at: symbol values (by the real names); only arms that are the largest at one of them
        are shown, and the number of others is told."""
        shown = self._largest(at) if at else self.arms
        text = [_ceil(str(a)) for a in shown]
        unit = "" if self.unit == 1 else f"{self.unit} * "
        hidden = len(self.arms) - len(shown)
        if len(self.arms) == 1:
            rows = [f"{unit}({text[0]})" if unit and " " in text[0] else f"{unit}{text[0]}"]
        else:
            rest = [f"{hidden} more, larger at other sizes"] if hidden else []
            rows = [f"{unit}the largest of", *(f"  {t}" for t in (*text, *rest))]
        if self.legend:
            rows.append("where " + ", ".join(f"{s} = {n}" for s, n in self.legend))
        return ["  " + r for r in rows]

    def growing(self, highs: Mapping[str, int | None]) -> list[str]:
        """What the formula comes to as each name grows towards its high (None: without end) while the others
        stay at MODEST: a line for each case that is then the largest, at most MOST_CASES of them."""
        if len(self.arms) <= MOST_CASES:
            return self.lines()
        names = dict(self.legend)
        modest = {s: min(MODEST, highs.get(names.get(s, s)) or MODEST) for a in self.arms for s in a.symbols}
        grows: dict[Dim, list[str]] = {}
        for s in sorted(modest):
            high = highs.get(names.get(s, s))
            env = {**modest, s: VAST if high is None else high}
            grows.setdefault(max(self.arms, key=lambda a: a.evaluate(env)), []).append(s)  # used at once
        told = sorted(grows.items(), key=lambda g: -len(g[1]))[:MOST_CASES]
        unit = "" if self.unit == 1 else f"{self.unit} * "
        rows = [f"{unit}the largest of {len(self.arms)}, which is"]
        rows += [f"  {_ceil(str(arm))}  as {', '.join(of)} grow{'s' * (len(of) == 1)}" for arm, of in told]
        used = {s for arm, _ in told for s in arm.symbols}
        if legend := [f"{s} = {n}" for s, n in self.legend if s in used]:
            rows.append("where " + ", ".join(legend))
        return ["  " + r for r in rows]

    def _largest(self, at: Sequence[Mapping[str, int]]) -> tuple[Dim, ...]:
        names = dict(self.legend)
        found: list[Dim] = []
        for values in at:
            env = {s: values[names.get(s, s)] for a in self.arms for s in a.symbols}
            best = max(self.arms, key=lambda a: a.evaluate(env))  # used at once
            if best not in found:
                found.append(best)
        return tuple(found)


def readable(dim: Dim) -> Formula:
    """The formula of a Dim such as an arena's size. It has the same value everywhere."""
    legend = tuple(_short(dim.symbols))
    unit, arms = _arms(dim.substitute({name: sym(short) for short, name in legend}))
    return Formula(unit, arms, legend)


def memory_text(
    manifest: Mapping[str, Any], at: Sequence[Mapping[str, int]] = (), exact: bool = False
) -> str:
    """The peak-memory formula of a manifest, in bytes: what it comes to as each dim grows, and what it is at
    most. at: symbol values that choose which of its cases are shown; exact: all."""
    highs = {s["name"]: s["high"] for s in manifest["symbols"]}
    first, *others = (readable(formula(text)) for text in manifest["memory"]["arenas"])
    lines = ["peak memory of the arena, in bytes:"]
    lines += first.lines(at) if at or exact else first.growing(highs)
    for f in others:
        lines += ["and once the sizes in it are known:", *(f.lines() if exact else f.growing(highs))]
    most = manifest["memory"].get("most", [None])
    if manifest["symbols"] and None not in most:
        lines.append(f"within the bounds of the dims: {sum(most):,} at most, reserved at open")
    if state := manifest["state"]:
        held = sum((formula(row["bytes"]) for row in state), to_dim(0))
        lines += ["and of the state, in two buffers each:", *readable(held).lines()]
        bounds = [row["most"] for row in state if row["output"] is not None]
        known = f"{2 * sum(bounds):,} at most" if None not in bounds else "without a bound: --dim gives one"
        lines.append(f"  {known}")
    return "\n".join(lines)


def _short(symbols: frozenset[str]) -> Iterator[tuple[str, str]]:
    """(letter, name) of the names that are too long, in the names' order."""
    taken = {s for s in symbols if len(s) <= LONG}
    free = (c for c in _LETTERS if c not in taken)
    for name in sorted(symbols - taken):
        short = next(free, None)
        if short is not None:
            yield short, name


def _arms(dim: Dim) -> tuple[int, tuple[Dim, ...]]:
    """dim = unit * max(arms), where it is one; else 1 and itself."""
    items = dim.sorted_items()
    if len(items) == 1:
        ((mono, unit),) = items
        if len(mono) == 1 and mono[0][1] == 1 and isinstance(mono[0][0], Max):
            return unit, mono[0][0].args
    return 1, (dim,)


def _ceil(text: str) -> str:
    def swap(m: re.Match[str]) -> str:
        name, more, by = (m[1], m[2], m[3]) if m[1] else (m[4], m[5], m[6])
        return f"ceil({name}/{by})" if int(more) == int(by) - 1 else m[0]

    return _ROUNDED.sub(swap, text)
