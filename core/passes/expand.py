"""Graph -> Graph: ops that the table defines by other ops are replaced by those."""

from __future__ import annotations

from smelt.core.ir.graph import Module, Node, Ref
from smelt.core.ops import OPS
from smelt.core.passes.context import Context
from smelt.core.passes.editor import Editor
from smelt.core.passes.numerics import ROUNDING
from smelt.core.passes.rules import Rule, rule_pass


def _expand(g: Editor, n: Node) -> tuple[Ref, ...] | None:
    # batch_norm(x, ...)  -->  the ops of its row's expansion
    made = OPS[n.op].expand
    return None if made is None else made(g, n.inputs, n.attrs)


FORMS = ("x: f32[N, 3, H]; s: f32[3]; b: f32[3]; instance_norm(x, s, b, epsilon=1e-5)",)


def rules() -> tuple[Rule, ...]:
    """The rule, for the ops that the table has now: plug-ins add theirs before a model is read."""
    expanding = tuple(name for name, op in OPS.items() if op.expand is not None)
    return (Rule("expand", expanding, _expand, ROUNDING, FORMS),)


def expand(module: Module, ctx: Context) -> Module:
    """The module without ops that are defined by others."""
    return rule_pass(rules())(module, ctx)
