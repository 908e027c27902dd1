"""A seed -> an instance or near-miss of a rewrite rule's form: the results before and after it must agree."""

from __future__ import annotations

import ast
import dataclasses
import sys

from campaign import Outcome, main
from rule_forms import build, mutant

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module, Node, Ref
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.text import print_module
from smelt.core.ir.verify import verify
from smelt.core.ops import OPS
from smelt.core.passes.equivalence import as_function, difference, feeds_of
from smelt.core.passes.numerics import REASSOCIATE
from smelt.core.passes.recheck import recheck
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rewrite
from smelt.core.passes.rulebook import rulebook

BOOK = rulebook()
NAMES = tuple(BOOK)

# What the proof of all rules leaves out, by rule, and why.
PLAIN = {"expand": "an expansion is what its op means: conformance holds it against the op's reference"}
TAKES_ALL = {
    "expand": "every op with an expansion is expanded",
    "channels_last": "every convolution is turned",
}
"""Rules that no node of theirs is a near-miss of."""


def rewritten(module: Module, name: str) -> tuple[Module, int]:
    """The module after one rule came to rest, and how often it fired."""
    fired = 0

    def counted(g: Editor, n: Node) -> Ref | tuple[Ref, ...] | None:
        nonlocal fired
        made = rule.apply(g, n)
        fired += made is not None
        return made

    rule = rulebook()[name]  # a fresh one: some remember what they did
    probe: Rule = dataclasses.replace(rule, apply=counted)
    return rewrite(module, (probe,)), fired


def attack_rule(name: str, seed: int, compared: bool = True) -> Outcome:
    """One instance or near-miss of a rule. compared: False tells only whether the rule fires."""
    rule = BOOK[name]
    program = mutant(rule.forms[seed % len(rule.forms)], seed // len(rule.forms))
    text = f"{name}: {'; '.join(ast.unparse(s) for s in program.body)}"
    try:
        before = build(program)
        verify(before)
        meaning = as_function(before)
        for feeds in feeds_of(before, seed, REASSOCIATE):
            run_module(before, feeds, OPS)
            meaning(feeds)
    except (SmeltError, ArithmeticError, LookupError, AssertionError, TypeError, ValueError):
        return Outcome("no module")  # nor would an importer write it
    try:
        after, fired = rewritten(before, name)
        if not fired:
            return Outcome("refused")
        verify(after)
        recheck(after)
        if not compared or name in PLAIN:
            return Outcome("fired")
        feeds = feeds_of(before, seed, rule.kind)
        found = difference(before, after, rule.kind, feeds, (meaning, as_function(after)))
    except Exception as e:  # whatever it is, it is a defect
        return Outcome(f"{name}: {type(e).__name__}", True, f"{text}\n{e}")
    if found is not None:
        return Outcome(f"{name}: differs", True, f"{text}\n{found}\n{print_module(after)}")
    return Outcome("fired")


def attack(seed: int) -> Outcome:
    """One instance or near-miss of one rule, in turn."""
    return attack_rule(NAMES[seed % len(NAMES)], seed // len(NAMES))


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", count=20_000))
