"""A seed -> a small model, which runs before and after every pass on ordinary and special numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable

from campaign import Outcome, main
from flow_models import flow_model
from fuzz_draw import draw
from rule_forms import build, mutant

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.ir.text import print_module
from smelt.core.machine import Machine
from smelt.core.passes.context import Context
from smelt.core.passes.equivalence import validator
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.passes.rulebook import rulebook
from smelt.importer import import_model

MACHINE = Machine("test", 512, 32, dot4=True)
KINDS = {p.name: p.kind for p in PIPELINE if p.kind}
FORMS = [(name, form) for name, r in rulebook().items() for form in r.forms]


def _form(seed: int) -> Module | None:
    """A rule's form or a mutant of one, through all passes: those of the others meet it too."""
    _, form = FORMS[seed % len(FORMS)]
    try:
        return build(mutant(form, seed // len(FORMS)))
    except (SmeltError, ArithmeticError, LookupError, AssertionError, TypeError, ValueError):
        return None


def _fuzzed(seed: int) -> Module | None:
    found = draw(seed)
    return None if found is None else import_model(found.model)


def _flow(seed: int) -> Module | None:
    return import_model(flow_model(seed))


SOURCES: tuple[Callable[[int], Module | None], ...] = (_form, _form, _fuzzed, _flow)


def validated(module: Module, seed: int) -> str:
    """What the first pass that changed the module's meaning did; '' when none did."""
    try:
        run_pipeline(module, PIPELINE, Context(MACHINE, on_pass=(validator(KINDS, seed),)))
    except SmeltError as e:
        return str(e)
    return ""


def attack(seed: int) -> Outcome:
    """One model of one of the sources, in turn."""
    source = SOURCES[seed % len(SOURCES)]
    try:
        module = source(seed // len(SOURCES))
    except SmeltError as e:
        return Outcome(f"refused: {e.kind}")
    if module is None:
        return Outcome("no model")
    found = validated(module, seed)
    if found:
        return Outcome(found.partition("changed")[0], True, f"{found}\n{print_module(module)[:20_000]}")
    return Outcome(f"agrees: {source.__name__.strip('_')}")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", count=5_000))
