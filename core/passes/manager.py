"""Runs passes over a module: names, times, verifies, has them dumped; the passes themselves stay silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.passes.context import Context
from smelt.core.passes.numerics import EXACT

PassFn: TypeAlias = Callable[[Module, Context], Module]


@dataclass(frozen=True, slots=True)
class Pass:
    """One row of a pipeline. level: the lowest optimisation level that runs it (0: always). kind: what it may
    do to numbers, a class of numerics.py; '' where an option asks for more (fp16). why: what it does to a
    module and for which reasons, in lines."""

    name: str
    run: PassFn
    level: int = 1
    kind: str = EXACT
    why: Callable[[Module, Context], Sequence[str]] | None = None


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
        before, start = module, time.perf_counter()
        module = p.run(before, ctx)
        nodes = len(module.main.nodes) if "main" in module.graphs else 0
        timings.append(PassTiming(p.name, time.perf_counter() - start, nodes))
        try:
            if ctx.verify:
                _verify(module, p.name)
            for hook in ctx.on_pass:
                hook(before, p.name, module)
        finally:  # what does not verify is what somebody wants to read
            if ctx.dump is not None:
                ctx.dump(module, p.name)
    return module, tuple(timings)


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
