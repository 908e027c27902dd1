"""The inputs of a graph -> steps that bind their symbols and check every other axis, in the plan phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, sym, to_dim
from smelt.core.ir.graph import Symbol, TensorType, Value
from smelt.core.plan.program import BindInput, Check, CheckInput, HostStep, StartAxis

_Axis: TypeAlias = "tuple[int, int, Dim]"
"""Number of an input, axis, extent."""


class InputBinder:
    """Used once per plan. check: text -> number of a new check."""

    def __init__(self, symbols: Sequence[Symbol], check: Callable[[str], int]) -> None:
        self.declared = {s.name: s for s in symbols}
        self.check = check
        self.steps: list[HostStep] = []
        self.names: list[str] = []
        self.bound: dict[str, None] = {}

    def bind(self, inputs: Sequence[Value], replacements: Sequence[TensorType | None] = ()) -> None:
        """Bind each symbol at the first axis that determines it; check every other axis against it.
        replacements: the types of the outputs that replace the last inputs, which are state; None where none
        of this graph does.

        A state starts with what the fed inputs say of its symbols. Where they say nothing, and along axes
        that a run changes, symbols have their lowest value: an empty cache, whatever a mask's length is.
        Raises SmeltError(kind='unsupported') for an axis that does not determine its symbols.
        """
        fed = len(inputs) - len(replacements)
        roles = ["input"] * fed + ["state"] * len(replacements)
        self.names = [f"{r} '{v.origin or v.name[1:]}'" for r, v in zip(roles, inputs, strict=True)]
        rows = [(n, a, d) for n, v in enumerate(inputs) for a, d in enumerate(v.type.shape)]
        held = [row for row in rows if row[0] >= fed]
        after = [None if t is None else t.shape for t in replacements]
        moving = {
            s for n, a, d in held if (e := after[n - fed]) is not None and d != e[a] for s in d.symbols
        }
        waiting = self._settle([row for row in rows if row[0] < fed and not row[2].symbols & moving])
        for n, a, d in held:
            free = d.symbols - self.bound.keys()
            lowest = {s: self.declared[s].low if s in self.declared else 0 for s in free}
            self.steps.append(StartAxis(n, a, d.substitute(lowest)))
        waiting = self._settle([*held, *(r for r in rows if r[0] < fed and r[2].symbols & moving), *waiting])
        if waiting:
            n, a, d = waiting[0]
            raise SmeltError(
                f"{self.names[n]} axis {a}: its extent {d} does not determine its symbols",
                kind="unsupported",
                hint="fix or name one of them with --dim",
            )

    def _settle(self, waiting: list[_Axis]) -> list[_Axis]:
        """Bind or check the axes whose symbols become known; those that are left."""
        progress = True
        while progress:
            progress = False
            for row in list(waiting):
                n, a, d = row
                free = sorted(d.symbols - self.bound.keys())
                if len(free) > 1:
                    continue
                where = f"{self.names[n]} axis {a}"
                if not free:
                    text = f"{where}: expected {{want}}{_formula(d)}, got {{got}}"
                    self.steps.append(CheckInput(n, a, d, self.check(text)))
                elif not self._bind_axis(n, a, d, free[0], where):
                    continue
                waiting.remove(row)
                progress = True
        return waiting

    def _bind_axis(self, n: int, a: int, d: Dim, symbol: str, where: str) -> bool:
        parts = d.linear(symbol)
        if parts is None or parts[0].const_or_none is None or parts[0].const <= 0:
            return False
        factor, rest = parts[0].const, parts[1]
        text = f"{where}: expected {d} for some whole {symbol}, got {{got}}"
        self.steps.append(BindInput(symbol, n, a, factor, rest, self.check(text)))
        self.bound[symbol] = None
        if symbol in self.declared:
            self._check_range(self.declared[symbol], where)
        return True

    def _check_range(self, s: Symbol, where: str) -> None:
        v = sym(s.name)
        span = f"{s.low}..{'*' if s.high is None else s.high}"
        hint = "compile with another --dim range to allow it"
        if where.startswith("state"):
            hint = f"reset the state, or {hint}"
        if s.low > 0:
            text = f"{where}: {s.name} is {{want}}, below its declared range {span}; {hint}"
            self.steps.append(Check(to_dim(s.low), "<=", v, self.check(text)))
        if s.high is not None:
            text = f"{where}: {s.name} is {{got}}, above its declared range {span}; {hint}"
            self.steps.append(Check(v, "<=", to_dim(s.high), self.check(text)))
        if s.divisor > 1:
            text = f"{where}: {s.name} is {{want}}, not a multiple of {s.divisor}"
            self.steps.append(Check(to_dim(s.divisor), "divides", v, self.check(text)))


def _formula(d: Dim) -> str:
    return "" if d.is_const else f" ({d})"
