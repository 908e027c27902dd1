"""Runs passes over a module: names, times, verifies, has them dumped; the passes themselves stay silent.

A module may be run for several contexts, as of the processors that a bundle chooses from. Contexts share a
pass as long as all passes so far have learned the same of them, or made the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.passes.context import Asks, Context, nothing
from smelt.core.passes.numerics import EXACT

PassFn: TypeAlias = Callable[[Module, Context], Module]


@dataclass(frozen=True, slots=True)
class Pass:
    """One row of a pipeline. level: the lowest optimisation level that runs it (0: always). kind: what it may
    do to numbers, a class of numerics.py; '' where an option asks for more (fp16). why: what it does to a
    module and for which reasons, in lines. asks: what it learns of a context."""

    name: str
    run: PassFn
    level: int = 1
    kind: str = EXACT
    why: Callable[[Module, Context], Sequence[str]] | None = None
    asks: Asks = nothing


@dataclass(frozen=True, slots=True)
class PassTiming:
    """How long one pass took, in seconds, and how many nodes the entry graph had after it."""

    name: str
    seconds: float
    nodes: int


def run_pipeline(module: Module, passes: Sequence[Pass], ctx: Context) -> Module:
    """The module after all passes whose level the options reach."""
    return run_timed(module, passes, ctx)[0]


def run_timed(
    module: Module, passes: Sequence[Pass], ctx: Context
) -> tuple[Module, tuple[PassTiming, ...]]:
    """As run_pipeline, with the time of each pass.

    Raises SmeltError(kind='internal') naming the pass when what it made does not verify."""
    timings: list[PassTiming] = []
    for p in (q for q in passes if q.level <= ctx.options.level):
        start = time.perf_counter()
        before, module = module, p.run(module, ctx)
        nodes = len(module.main.nodes) if "main" in module.graphs else 0
        timings.append(PassTiming(p.name, time.perf_counter() - start, nodes))
        _done(p, before, module, ctx)
    return module, tuple(timings)


def run_together(
    module: Module, passes: Sequence[Pass], contexts: Sequence[Context]
) -> tuple[Module, ...]:
    """As run_pipeline for each context, all of one level; a pass runs once for those that share it, and for
    the last context last, so that its dumps are those that stay."""
    groups = [(module, tuple(range(len(contexts))))]
    for p in (q for q in passes if q.level <= contexts[0].options.level):
        made: list[tuple[Module, tuple[int, ...]]] = []
        for before, members in groups:
            parts: dict[Hashable, list[int]] = {}
            for k in members:
                parts.setdefault(p.asks(contexts[k]), []).append(k)
            for part in sorted(parts.values(), key=max):
                after = p.run(before, contexts[part[0]])
                for k in part:
                    _done(p, before, after, contexts[k])
                made.append((after, tuple(part)))
        groups = sorted(_joined(made), key=lambda group: max(group[1]))
    found = {k: m for m, members in groups for k in members}
    return tuple(found[k] for k in range(len(contexts)))


def _joined(groups: Sequence[tuple[Module, tuple[int, ...]]]) -> list[tuple[Module, tuple[int, ...]]]:
    """Those with equal modules as one."""
    found: list[tuple[Module, tuple[int, ...]]] = []
    for module, members in groups:
        at = next((n for n, (other, _) in enumerate(found) if _same(module, other)), None)
        if at is None:
            found.append((module, members))
        else:
            found[at] = found[at][0], (*found[at][1], *members)
    return found


def _same(a: Module, b: Module) -> bool:
    """Whether two modules are equal; of weights, whether they are the same ones, which reads none."""
    if a.weights.keys() != b.weights.keys() or any(w is not b.weights[ref] for ref, w in a.weights.items()):
        return False
    rest = (a.name, a.symbols, a.graphs, a.kernels, a.libraries)
    return rest == (b.name, b.symbols, b.graphs, b.kernels, b.libraries)


def _done(p: Pass, before: Module, after: Module, ctx: Context) -> None:
    """What a context wants to be done after a pass."""
    try:
        if ctx.verify:
            _verify(after, p.name)
        for hook in ctx.on_pass:
            hook(before, p.name, after)
    finally:  # what does not verify is what somebody wants to read
        if ctx.dump is not None:
            ctx.dump(after, p.name)


def pick(passes: Sequence[Pass], names: Sequence[str]) -> tuple[Pass, ...]:
    """The passes of these names, in the order given; SmeltError for a name that there is not."""
    table = {p.name: p for p in passes}
    for name in names:
        if name not in table:
            known = ", ".join(dict.fromkeys(p.name for p in passes))
            raise SmeltError(f"there is no pass '{name}'; there are {known}")
    return tuple(table[name] for name in names)


def _verify(module: Module, name: str) -> None:
    from smelt.core.ir.verify import verify

    try:
        verify(module)
    except SmeltError as e:
        e.add_note(f"after pass '{name}'")
        raise
