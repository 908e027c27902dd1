"""A memory formula -> lines that people can read: short names, rounded-up divisions, one case per line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.core.bundle import spelled_dim
from smelt.core.dim import Dim, Max, dmax, sym, to_dim

LONG_NAME = 4
"""Characters of a name up to which it is not replaced by a letter."""

MOST_CASES = 3
"""How many cases a summary has at most."""
MODEST, VAST = 64, 1 << 20
"""Values of a dim that stays small, and of one that grows without bound."""

_LETTERS = "nhwabcdefgijklmopqrstuvxyz"
# ceil(x/k) is printed as (x + k-1)//k
_ROUNDED = re.compile(r"\(\((\w+) \+ (\d+)\)//(\d+)\)|\((\w+) \+ (\d+)\)//(\d+)")


@dataclass(frozen=True)
class Formula:
    """The formula unit * max(arms). legend: (letter, name) of the symbols that are written as a letter."""

    unit: int
    arms: tuple[Dim, ...]
    legend: tuple[tuple[str, str], ...]

    def lines(self, at: Sequence[Mapping[str, int]] = ()) -> list[str]:
        """The formula as text. at: symbol values (by their full names); only arms that are the largest at one
        of them are shown, and how many others there are."""
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
        """The dominating arm as each symbol grows towards its high (None: without bound) while the others
        stay at MODEST: a line per arm that is then the largest, at most MOST_CASES of them."""
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
    """The formula of a Dim such as an arena's size. Both have the same value for all values of the
    symbols."""
    legend = tuple(_short(dim.symbols))
    unit, arms = _arms(dim.substitute({name: sym(short) for short, name in legend}))
    return Formula(unit, arms, legend)


def memory_text(
    manifest: Mapping[str, Any], at: Sequence[Mapping[str, int]] = (), exact: bool = False
) -> str:
    """The peak-memory formula of a manifest, in bytes: its dominating cases as each dim grows, and its upper
    bound. at: symbol values; only the cases that are the largest at one of them. exact: all cases."""
    highs = {s["name"]: s["high"] for s in manifest["symbols"]}
    first, *others = (readable(spelled_dim(text, manifest)) for text in manifest["memory"]["arenas"])
    lines = ["peak memory of the arena, in bytes:"]
    lines += first.lines(at) if at or exact else first.growing(highs)
    for f in others:
        lines += ["and once the sizes in it are known:", *(f.lines() if exact else f.growing(highs))]
    most = manifest["memory"].get("most", [None])
    if manifest["symbols"] and None not in most:
        lines.append(f"within the bounds of the dims: {sum(most):,} at most, reserved at open")
    if state := manifest["state"]:
        held = sum((spelled_dim(row["bytes"], manifest) for row in state), to_dim(0))
        lines += ["and of the state, in two buffers each:", *readable(held).lines()]
        bounds = [row["most"] for row in state if row["output"] is not None]
        known = f"{2 * sum(bounds):,} at most" if None not in bounds else "without a bound: --dim gives one"
        lines.append(f"  {known}")
    return "\n".join(lines)


def _short(symbols: frozenset[str]) -> Iterator[tuple[str, str]]:
    """(letter, name) of each name that is too long to be repeated, sorted by name."""
    taken = {s for s in symbols if len(s) <= LONG_NAME}
    free = (c for c in _LETTERS if c not in taken)
    for name in sorted(symbols - taken):
        short = next(free, None)
        if short is not None:
            yield short, name


def _arms(dim: Dim) -> tuple[int, tuple[Dim, ...]]:
    """(unit, arms) with dim == unit * max(arms): what is added to a maximum is added to each of its arms.
    (1, (dim,)) for a Dim without one."""
    found = [
        (unit, mono[0][0])
        for mono, unit in dim.sorted_items()
        if unit > 0 and len(mono) == 1 and mono[0][1] == 1 and isinstance(mono[0][0], Max)
    ]
    if not found:
        return 1, (dim,)
    unit, most = max(found, key=lambda f: len(f[1].args))  # used at once
    rest = dim - unit * dmax(*most.args)
    part = rest // unit
    if part * unit == rest:
        return unit, tuple(part + a for a in most.args)
    return 1, tuple(rest + unit * a for a in most.args)


def _ceil(text: str) -> str:
    def swap(m: re.Match[str]) -> str:
        name, more, by = (m[1], m[2], m[3]) if m[1] else (m[4], m[5], m[6])
        return f"ceil({name}/{by})" if int(more) == int(by) - 1 else m[0]

    return _ROUNDED.sub(swap, text)
