"""Graph -> Graph: ops that the table defines by other ops are replaced by those."""

from __future__ import annotations

from smelt.core.ir.graph import Node, Ref
from smelt.core.ops import OPS
from smelt.core.passes.numerics import ROUNDING
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import rule, rule_pass


@rule(
    kind=ROUNDING,
    forms=["x: f32[N, 3, H]; s: f32[3]; b: f32[3]; instance_norm(x, s, b, epsilon=1e-5)"],
    where=lambda op: op.expand is not None,
)
def _expand(g: Editor, n: Node) -> tuple[Ref, ...]:
    # batch_norm(x, ...)  -->  the ops of its row's expansion
    made = OPS[n.op].expand
    assert made is not None  # see `where`
    return made(g, n.inputs, n.attrs)


RULES = (_expand,)
expand = rule_pass(RULES)
