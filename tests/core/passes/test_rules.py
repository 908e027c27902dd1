"""Golden texts of every rewrite rule: what it makes of its forms, and the programs that it must leave alone.

A file of tests/golden/rules/ speaks of the rules of one room. Of each rule it has

    rule NAME (its class of numerics.py)
      a form of the rule
        -> what the rule makes of it
      not a program that has what the rule looks for, and more or less than that
        why the rule must refuse it
        /= what the rule would make of it: numbers that the class does not allow, another shape, or what is
           no module  # for this reason

The first two lines and the last are written by --bless; the `not` programs, reasons and wrong results by
hand, and blessing keeps them. `always REASON` is said of rules that ask for nothing beside the ops of their
pattern; `not` below `any rule` of programs that every rule of the room must refuse.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path

import pytest
from rule_forms import build
from rule_text import text_of

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module, Node, Ref
from smelt.core.ir.verify import verify
from smelt.core.passes.equivalence import difference, feeds_of
from smelt.core.passes.rewriting.editor import Editor, edit_module
from smelt.core.passes.rewriting.rules import Rule, run_rules
from smelt.core.passes.rulebook import rulebook

FOLDER = Path(__file__).parents[2] / "golden" / "rules"
ROOMS = ("cleanup", "whole_graph", "quantized")
SEEDS = 4
"""How many times three feeds each (equivalence.feeds_of) a wrong result may take to show."""


# ---------------------------------------------------------------- what a golden file says


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A program that a rule must leave alone. wrong: what it must not become, '' where that would be worse
    and not wrong."""

    program: str
    why: str
    wrong: str = ""


@dataclasses.dataclass
class Said:
    """What people wrote about a rule."""

    always: str = ""
    refusals: list[Refusal] = dataclasses.field(default_factory=list)


@lru_cache
def said(room: str) -> tuple[str, dict[str, Said]]:
    """(the lines before the first rule, what is said about each rule) of a golden file."""
    path = FOLDER / f"{room}.txt"
    head, found, own = [], dict[str, Said](), Said()
    for line in path.read_text().splitlines() if path.exists() else ():
        word, _, rest = line.strip().partition(" ")
        if line.startswith("#"):
            head.append(line)
        elif word in ("rule", "any"):
            own = found.setdefault("any" if word == "any" else rest.split()[0], Said())
        elif word == "always":
            own.always = rest
        elif word == "not":
            own.refusals.append(Refusal(rest, ""))
        elif word == "/=":
            wrong, _, _ = rest.partition("  # ")
            own.refusals[-1] = dataclasses.replace(own.refusals[-1], wrong=wrong)
        elif line.startswith("    ") and word != "->":
            own.refusals[-1] = dataclasses.replace(own.refusals[-1], why=line.strip())
    return "\n".join(head), found


def of_room(room: str) -> dict[str, Rule]:
    """The rules of one room of core/passes."""
    return {r.name: r for r in rulebook().values() if f".{room}." in _function(r).__module__}


def _function(r: Rule) -> Callable[..., object]:
    return r.apply.func if isinstance(r.apply, partial) else r.apply


# ---------------------------------------------------------------- running a rule


@dataclasses.dataclass(frozen=True)
class Tried:
    """A rule on a module: how many nodes it was asked about, how often it was applied, what came out."""

    asked: int
    applied: int
    after: Module


def tried(name: str, before: Module) -> Tried:
    """The rule alone, run by the engine until it rests."""
    rule = rulebook()[name]  # a fresh one: some remember what they did
    asked = applied = 0

    def counted(g: Editor, n: Node) -> Ref | tuple[Ref, ...] | None:
        nonlocal asked
        asked += 1
        return rule.apply(g, n)

    def change(g: Editor) -> None:
        nonlocal applied
        applied += run_rules(g, (dataclasses.replace(rule, apply=counted),))

    after = edit_module(before, change)
    return Tried(asked, applied, after)


@lru_cache(maxsize=1 << 10)
def program(text: str) -> Module:
    """The module of a form."""
    return build(ast.parse(text.replace("[]", "[()]")))


def differs(before: Module, after: Module, kind: str, seeds: int = SEEDS) -> str | None:
    """The first difference that the class does not allow."""
    for seed in range(seeds):
        found = difference(before, after, kind, feeds_of(before, seed, kind))
        if found is not None:
            return str(found)
    return None


def wrong_module(r: Refusal) -> Module | str:
    """What a rule must not make: the statements after /= with the inputs of the program; where they make no
    module, why not."""
    body = ast.parse(r.program.replace("[]", "[()]")).body
    given = [ast.unparse(s) for s in body if isinstance(s, ast.AnnAssign)]
    try:
        return program("; ".join([*given, r.wrong]))
    except SmeltError as e:
        return e.message


# ---------------------------------------------------------------- the tests


@lru_cache
def outcomes(name: str, room: str) -> tuple[tuple[Tried, ...], tuple[Tried, ...]]:
    """A rule on its forms, and on the programs that it must refuse."""
    own = said(room)[1].get(name, Said())
    common = said(room)[1].get("any", Said())
    forms = tuple(tried(name, program(f)) for f in rulebook()[name].forms)
    return forms, tuple(tried(name, program(x.program)) for x in (*own.refusals, *common.refusals))


def written(room: str) -> Iterator[str]:
    """The golden file of a room, line by line."""
    head, known = said(room)
    yield head
    if "any" in known:
        yield from ("", "any rule", *_refused(known["any"]))
    for name, r in of_room(room).items():
        yield from ("", f"rule {name} ({r.kind})")
        for form, t in zip(r.forms, outcomes(name, room)[0], strict=True):
            yield f"  {form}"
            yield f"    -> {text_of(t.after) if t.applied else 'as it is'}"
        own = known.get(name, Said())
        if own.always:
            yield f"  always {own.always}"
        yield from _refused(own)


def _refused(own: Said) -> Iterator[str]:
    for x in own.refusals:
        yield f"  not {x.program}"
        yield f"    {x.why}"
        if x.wrong:
            made = wrong_module(x)
            yield f"    /= {x.wrong}" + (f"  # {made}" if isinstance(made, str) else "")


@pytest.mark.parametrize("room", ROOMS)
def test_golden(room: str, golden: Callable[[str, str], None]) -> None:
    golden(f"rules/{room}.txt", "\n".join(written(room)) + "\n")


@pytest.mark.parametrize("name", rulebook())
def test_a_rule_changes_its_forms_only(name: str) -> None:
    """Forms become what they were to the bits that the class allows; refused programs stay as they are, and
    what they were not to become is something else."""
    rule = rulebook()[name]
    room = next(r for r in ROOMS if name in of_room(r))
    forms, refused = outcomes(name, room)
    for form, t in zip(rule.forms, forms, strict=True):
        if t.applied:
            verify(t.after)
            found = differs(program(form), t.after, rule.kind, 1)  # tests/attack/test_rules.py does more
            assert found is None, f"{form}\n{found}"
    own = said(room)[1].get(name, Said())
    for x, t in zip(own.refusals, refused, strict=False):  # those of `any rule` come after them
        assert t.asked, f"{x.program}\nhas no node that the rule is tried on"
        assert not t.applied, f"{x.program}\nbecame {text_of(t.after)}"
        assert x.why, f"{x.program}\nis refused for no reason"
        made = wrong_module(x) if x.wrong else ""
        if isinstance(made, Module):
            assert differs(program(x.program), made, rule.kind), f"{x.program}\nmay be {x.wrong}"
    assert not any(t.applied for t in refused), f"{name} changes what no rule of its room may"


def test_every_rule_fired_and_refused() -> None:
    """Counted by the engine that runs them. A rule that has no pattern either cannot refuse."""
    for room in ROOMS:
        for name in of_room(room):
            forms, refused = outcomes(name, room)
            assert any(t.applied for t in forms), f"{name} changes none of its forms"
            assert any(t.asked and not t.applied for t in refused) or said(room)[1][name].always, (
                f"{name} has nothing to refuse: write a `not` program below it in {FOLDER / room}.txt"
            )
    assert set().union(*map(of_room, ROOMS)) == set(rulebook())


@pytest.mark.parametrize("room", ROOMS)
def test_what_every_rule_refuses_is_asked_of_some(room: str) -> None:
    common = said(room)[1].get("any", Said()).refusals
    for n, x in enumerate(common, -len(common)):
        assert x.why, x.program
        assert any(outcomes(name, room)[1][n].asked for name in of_room(room)), (
            f"{x.program}\nhas no node that a rule of {room} is tried on"
        )


# ---------------------------------------------------------------- rules without a guard

PATTERN = ("made_by", "maker", "_source")
"""What a rule asks about the ops around a node."""


@pytest.mark.parametrize("name", [n for room in ROOMS for n, s in said(room)[1].items() if s.always])
def test_a_rule_that_always_applies_has_no_guard(name: str) -> None:
    """Its function says None only where the ops of its pattern are not there, and nobody says it for it."""
    assert guards(_function(rulebook()[name])) == []


def guards(function: Callable[..., object]) -> list[str]:
    """What lets a rule's function say None besides its pattern: conditions of its own, and functions whose
    answer is its answer and may be None."""
    (fn,) = (x for x in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
             if isinstance(x, ast.FunctionDef))  # fmt: skip
    if "None" not in ast.unparse(fn.returns or ast.Constant(None)):
        return []
    nodes = {ast.unparse(t) for x in ast.walk(fn) if isinstance(x, ast.Assign) and _asks(x.value)
             for t in x.targets}  # fmt: skip
    found = []
    for x in ast.walk(fn):
        if isinstance(x, ast.If | ast.IfExp) and any(_says_none(y) for y in ast.walk(x)):
            of_pattern = (
                isinstance(x.test, ast.Compare)
                and isinstance(x.test.comparators[0], ast.Constant)
                and x.test.comparators[0].value is None
                and (_asks(x.test.left) or ast.unparse(x.test.left) in nodes)
            )
            found += [] if of_pattern else [ast.unparse(x.test)]
        if isinstance(x, ast.Return) and x.value is not None:
            parts = [x.value.body, x.value.orelse] if isinstance(x.value, ast.IfExp) else [x.value]
            calls = [y for y in parts if isinstance(y, ast.Call)]
            found += [ast.unparse(y) for y in calls if _may_be_none(y, function)]
    return found


def _may_be_none(call: ast.Call, function: Callable[..., object]) -> bool:
    """Whether what is called in a function says that it may answer None; who cannot be found may."""
    where: object = inspect.getmodule(function)
    if isinstance(call.func, ast.Attribute):
        owner = ast.unparse(call.func.value)
        where = {"g": Editor, "self": getattr(function, "__self__", None)}.get(owner)
        name = call.func.attr
    else:
        name = ast.unparse(call.func)
    called = getattr(where, name, None)
    return called is None or "None" in str(inspect.signature(called).return_annotation)


def _other(g: Editor, n: Node) -> Ref | None:
    return n.inputs[0] if g.uses(n.inputs[0]) == 1 else None


def _guarded(g: Editor, n: Node) -> Ref | None:
    if g.made_by(n.inputs[0], n.op) is None:
        return None
    return _other(g, n)


def _free(g: Editor, n: Node) -> Ref | None:
    inner = g.made_by(n.inputs[0], n.op)
    return None if inner is None else g.emit(n.op, inner.inputs)


def test_guards_are_found() -> None:
    assert guards(_free) == []
    assert guards(_guarded) == ["_other(g, n)"]
    assert guards(_other) == ["g.uses(n.inputs[0]) == 1"]
    assert guards(_function(rulebook()["neutral"])) != []


def _asks(e: ast.expr) -> bool:
    return isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and e.func.attr in PATTERN


def _says_none(x: ast.AST) -> bool:
    branches = [x.body, x.orelse] if isinstance(x, ast.IfExp) else []
    values = [x.value] if isinstance(x, ast.Return) else branches
    return any(isinstance(v, ast.Constant) and v.value is None for v in values)
