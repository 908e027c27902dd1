"""Rule lists over a graph: each rule is a named rewrite of one node; a worklist runs them to a fixpoint."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from smelt.core.diag import SmeltError
from smelt.core.dim import UNKNOWN
from smelt.core.ir.graph import Module, Node, Ref
from smelt.core.ops import current_ops
from smelt.core.ops.infer import State
from smelt.core.ops.table import Op
from smelt.core.passes.context import Context
from smelt.core.passes.numerics import FAST
from smelt.core.passes.rewriting.editor import Editor, edit_module

Rewrite: TypeAlias = Callable[[Editor, Node], "Ref | tuple[Ref, ...] | None"]
"""(editor, node) -> what takes the place of the node's outputs, or None for no change. It may emit
nodes; when it answers None it must not have emitted any."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewrite: tried on nodes of these ops. Directional: the right side is never worse.

    where: which rows of the op table, instead of names; asked when rules run, since plug-ins add rows.
    kind: its class of numerics.py. forms: programs that it fits, from which tests make instances and
    near-misses (tests/support/rule_forms.py reads them)."""

    name: str
    ops: tuple[str, ...]
    apply: Rewrite
    kind: str
    forms: tuple[str, ...]
    where: Callable[[Op], bool] | None = None

    def names(self) -> tuple[str, ...]:
        """The ops of today's table that it is tried on."""
        return self.ops if self.where is None else tuple(op.name for op in current_ops() if self.where(op))


def rule(
    *ops: str, kind: str, forms: Sequence[str], where: Callable[[Op], bool] | None = None
) -> Callable[[Rewrite], Rule]:
    """Make a Rule of a function; it takes the function's name."""

    def make(fn: Rewrite) -> Rule:
        return Rule(fn.__name__.strip("_"), ops, fn, kind, tuple(forms), where)

    return make


def allowed(rules: Sequence[Rule], ctx: Context) -> tuple[Rule, ...]:
    """The rules that a compile may use: those of --fast-math only where their part is asked for."""
    return tuple(r for r in rules if r.kind not in FAST or r.kind in ctx.options.fast)


def run_rules(editor: Editor, rules: Sequence[Rule]) -> int:
    """Apply rules until none fits; how many times one did. Nodes are visited in order, then those that a
    change has touched."""
    table: dict[str, list[Rule]] = {}
    for r in rules:
        for op in r.names():
            table.setdefault(op, []).append(r)
    work = deque(editor.in_order())
    queued = set(work)
    applied, limit = 0, 60 * len(queued) + 10_000
    while work:
        key = work.popleft()
        queued.discard(key)
        node = editor.nodes.get(key)
        if node is None:
            continue
        if _dead(editor, node):
            _queue(work, queued, _remove(editor, key))
            continue
        touched = _try(editor, key, table.get(node.op, ()))
        if touched:
            applied += 1
            assert applied < limit, f"rules do not come to rest: {[r.name for r in rules]}"
            _queue(work, queued, touched)
    return applied


def _queue(work: deque[int], queued: set[int], keys: Sequence[int]) -> None:
    for k in keys:
        if k not in queued:
            queued.add(k)
            work.append(k)


def _remove(editor: Editor, key: int) -> list[int]:
    """Drop a node; the keys of those around it: what it used has one user less, and rules look at that."""
    node = editor.nodes[key]
    editor.remove(key)
    values = [r for r in dict.fromkeys(node.inputs) if r and editor.maker(r) is not None]
    return [k for r in values for k in (editor.key(r), *editor.user_keys(r))]


def _dead(editor: Editor, node: Node) -> bool:
    if node.op in ("check", "bind", "if", "loop") or not node.outputs:
        return False  # others may speak of sizes that it decides; the editor's graph knows
    return all(editor.uses(v.name) == 0 for v in node.outputs)


def _try(editor: Editor, key: int, rules: Sequence[Rule]) -> list[int]:
    """The nodes to look at again after the first rule that fits; empty when none does."""
    node = editor.nodes[key]
    if not rules:
        return []
    editor.at(key)
    before = editor.engine.state()
    for r in rules:
        found = r.apply(editor, node)
        if found is None:
            continue
        refs = (found,) if isinstance(found, str) else found
        if len(refs) != len(node.outputs):
            raise SmeltError(f"rule {r.name} gives {len(refs)} values for {node.op}", kind="internal")
        touched = editor.take_fresh()
        if not _lawful(editor, before, node, refs):
            _drop(editor, touched)
            before = editor.engine.state()
            continue
        for v, new in zip(node.outputs, refs, strict=True):
            touched += editor.replace(v.name, new, f"rule {r.name}")
            if editor.maker(new) is not None:
                touched.append(editor.key(new))
        touched += _remove(editor, key) if _dead(editor, node) else [key]
        return [k for k in dict.fromkeys(touched) if k in editor.nodes] or [key]
    assert not editor.take_fresh(), f"a rule on {node.op} emitted nodes and then gave up"
    return []


def _lawful(editor: Editor, before: State, node: Node, refs: Sequence[Ref]) -> bool:
    """Whether it is proved that the new values have the shapes of the old ones, and that the new nodes need
    no check that the old ones did not have. What is not proved is no rewrite: a check in its place could
    refuse a run that the model allows."""
    engine = editor.engine
    unknown = any(editor.fits(v.name, r) is UNKNOWN for v, r in zip(node.outputs, refs, strict=True))
    asked = engine.claims_since(before)
    if not asked:
        return not unknown
    engine.back_to(before)
    if unknown:
        return False
    editor.infer(node.op, node.inputs, node.attrs)
    had = engine.claims_since(before)
    engine.back_to(before)
    return asked <= had


def _drop(editor: Editor, fresh: Sequence[int]) -> None:
    """Take back the nodes of a rewrite that is not done."""
    for key in reversed(fresh):
        editor.remove(key)


def rule_pass(rules: Sequence[Rule]) -> Callable[[Module, Context], Module]:
    """A pass that runs a rule list on every graph."""

    def run(module: Module, ctx: Context) -> Module:
        return rewrite(module, allowed(rules, ctx))

    return run


def rewrite(module: Module, rules: Sequence[Rule]) -> Module:
    """The module on every graph of which the rules have come to rest."""

    def change(editor: Editor) -> None:
        run_rules(editor, rules)

    return edit_module(module, change, ops={op for r in rules for op in r.names()})
