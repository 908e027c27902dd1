"""A seed -> a small model, which runs before and after every pass on ordinary and special numbers."""

from __future__ import annotations

import sys

from campaign import Outcome, main
from model_sources import SOURCES

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.ir.text import print_module
from smelt.core.machine import Machine
from smelt.core.passes.context import Context
from smelt.core.passes.equivalence import validator
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE

MACHINE = Machine("test", 512, 32)
KINDS = {p.name: p.kind for p in PIPELINE if p.kind}
TURNS = tuple(SOURCES)


def validated(module: Module, seed: int) -> str:
    """What the first pass that changed the module's meaning did; '' when none did."""
    try:
        run_pipeline(module, PIPELINE, Context(MACHINE, on_pass=(validator(KINDS, seed),)))
    except SmeltError as e:
        return str(e)
    return ""


def attack(seed: int) -> Outcome:
    """One model of one of the sources, in turn."""
    name = TURNS[seed % len(TURNS)]
    return attack_source(name, seed // len(TURNS))


def attack_source(name: str, seed: int) -> Outcome:
    """One model of a source (tests/support/model_sources.py)."""
    try:
        module = SOURCES[name](seed)
    except SmeltError as e:
        return Outcome(f"refused: {e.kind}")
    if module is None:
        return Outcome("no model")
    found = validated(module, seed)
    if found:
        return Outcome(found.partition("changed")[0], True, f"{found}\n{print_module(module)[:20_000]}")
    return Outcome(f"agrees: {name}")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", count=5_000))
