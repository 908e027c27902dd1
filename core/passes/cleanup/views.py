"""Graph -> Graph: views move up to where tensors are stored anyway, so that fusion need not see them."""

from __future__ import annotations

from smelt.core.dim import to_dim
from smelt.core.ir.graph import Node, Ref
from smelt.core.ops.rows.movement import reshape_groups
from smelt.core.passes.cleanup.canonical import RULES as CANONICAL
from smelt.core.passes.numerics import EXACT
from smelt.core.passes.rewriting.constants import dims_of, is_one
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rule, rule_pass


@rule("reshape", kind=EXACT, forms=[
    "x: f32[N, 2, 4]; y: f32[N, 3, 4]; reshape(concat(x, y, axis=1), shape=(2 * N, 10))",
    "x: f32[N, 2, 4]; y: f32[N, 3, 4]; reshape(concat(x, y, axis=1), shape=(N, 5, 2, 2))",
])
def _above_concat(g: Editor, n: Node) -> Ref | None:
    # reshape(concat(a, b))  -->  concat(reshape(a), reshape(b))  where the joined axis stays one axis
    joined = g.made_by(n.inputs[0], "concat")
    if joined is None or g.uses(n.inputs[0]) != 1:
        return None
    axis = int(joined.attr("axis"))
    source, target = g.shape(n.inputs[0]), n.output.type.shape
    at = _kept_axis(source, target, axis)
    if at is None:
        return None
    parts = []
    for r in joined.inputs:
        shape = tuple(g.shape(r)[axis] if a == at else d for a, d in enumerate(target))
        parts.append(g.emit("reshape", (r,), {"shape": shape}))
    return g.emit("concat", parts, {"axis": at})


@rule("reshape", kind=EXACT, forms=[
    "x: f32[N, 6, 4]; reshape(slice(x, starts=(0, 1, 0), ends=(N, 6, 4), steps=(1, 2, 1)), shape=(N, "
    "3, 2, 2))",
])
def _above_slice(g: Editor, n: Node) -> Ref | None:
    # reshape(slice(x, one axis))  -->  slice(reshape(x), that axis)  where the axis stays one axis
    part = g.made_by(n.inputs[0], "slice")
    if part is None or g.uses(n.inputs[0]) != 1:
        return None
    x, source, target = part.inputs[0], g.shape(n.inputs[0]), n.output.type.shape
    cut = [a for a, (d, e) in enumerate(zip(g.shape(x), source, strict=True)) if d != e]
    starts = dims_of(part.attrs["starts"])
    if len(cut) != 1 or any(d != to_dim(0) for a, d in enumerate(starts) if a not in cut):
        return None
    at = _kept_axis(source, target, cut[0])
    if at is None or is_one(source[cut[0]]):
        return None
    shape = tuple(g.shape(x)[cut[0]] if a == at else d for a, d in enumerate(target))
    view = g.emit("reshape", (x,), {"shape": shape})
    zeros, ones = (to_dim(0),) * len(shape), (1,) * len(shape)

    def put(values: tuple[object, ...], value: object) -> tuple[object, ...]:
        return tuple(value if a == at else v for a, v in enumerate(values))

    attrs = {
        "starts": put(zeros, starts[cut[0]]),
        "ends": put(shape, dims_of(part.attrs["ends"])[cut[0]]),
        "steps": put(ones, part.attrs["steps"][cut[0]]),  # type: ignore[index]
    }
    return g.emit("slice", (view,), attrs)  # type: ignore[arg-type]


def _kept_axis(source: tuple[object, ...], target: tuple[object, ...], axis: int) -> int | None:
    """The axis of target that is exactly this axis of source. Sizes that a check alone makes equal differ."""
    for mine, theirs in reshape_groups(source, target):  # type: ignore[arg-type]
        if mine == (axis,):
            return theirs[0] if len(theirs) == 1 and source[axis] == target[theirs[0]] else None
    return None


RULES: tuple[Rule, ...] = (_above_concat, _above_slice)
views = rule_pass((*CANONICAL, *RULES))
