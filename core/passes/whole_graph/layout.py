"""Graph -> Graph: windows and interpolations work on channels-last tensors; transposes sink and cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.core.ir.graph import Module, Node, Ref
from smelt.core.ops.rows.window import CONVOLUTIONS
from smelt.core.ops.traits import nominal_bytes
from smelt.core.passes.cleanup.canonical import RULES as CANONICAL
from smelt.core.passes.context import Context
from smelt.core.passes.numerics import EXACT, SUMS
from smelt.core.passes.rewriting.constants import ints_of, is_one
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rewrite, rule
from smelt.core.passes.whole_graph.sink import (
    POOLS,
    Perm,
    Sinking,
    channels_pay,
    interpolated_axes,
    inverse,
    remapped,
    sink_rules,
    wants_channels_last,
)

TIDY = tuple(
    r for r in CANONICAL
    if r.name in {"reshape_reshape", "reshape_same", "transpose_transpose", "transpose_view",
                  "transpose_of_unit_reshape"}
)


def layout(module: Module, ctx: Context) -> Module:
    """The module with channels last around convolutions and pools, on machines that have vectors.

    After it every conv and conv_transpose has channels_last=True. Of the graphs without sinking, with it, and
    with it past shuffles of channels, it is the one that transposes the fewest bytes."""
    if ctx.machine.vector_bits == 0 and ctx.machine.max_lanes == 1:
        return module
    # lanes of a device share rows of planes as well as channels: nothing says that turning pools would pay
    rules = RULES if ctx.machine.max_lanes == 1 else (_channels_last,)
    turned = rewrite(module, (*rules, *TIDY))
    state = Sinking()
    sunk = [rewrite(turned, (*TIDY, *sink_rules(state)))]
    if state.shuffled:
        sunk.insert(0, rewrite(turned, (*TIDY, *sink_rules(Sinking(shuffles=False)))))
    return min(*sunk, turned, key=transposed_bytes)


def to_last(rank: int) -> Perm:
    """[N, C, *S] -> [N, *S, C]"""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> Perm:
    """[N, *S, C] -> [N, C, *S]"""
    return (0, rank - 1, *range(1, rank - 1))


# a convolution's weight in its channels-last form, by op: [M, C/g, *K] -> [*K, C/g, M], and for
# transposed ones [C, M/g, *K] -> [*K, C, M/g]
_WEIGHT = {
    "conv": lambda rank: (*range(2, rank), 1, 0),
    "conv_transpose": lambda rank: (*range(2, rank), 0, 1),
}


@rule(*CONVOLUTIONS, kind=SUMS, forms=[
    "x: f32[N, 2, H]; w: f32[3, 2, 3] = draw; b: f32[3] = draw; conv(x, w, b, pads_begin=(1,))",
    "x: f32[N, 2, H]; w: f32[2, 3, 3] = draw; conv_transpose(x, w, strides=(2,))",
])
def _channels_last(g: Editor, n: Node) -> Ref | None:
    # conv(x, w)  -->  to_first(conv(to_last(x), w'), channels_last)
    if n.attrs.get("channels_last", False):
        return None
    rank = n.output.type.rank
    x = g.emit("transpose", n.inputs[:1], {"perm": to_last(rank)})
    w = relaid(g, n.inputs[1], _WEIGHT[n.op](rank))
    y = g.emit(n.op, (x, w, *n.inputs[2:]), {**n.attrs, "channels_last": True})
    return g.emit("transpose", (y,), {"perm": to_first(rank)})


@rule(*POOLS, kind=SUMS, forms=[
    "x: f32[N, 16, H, 6]; max_pool(x, kernel=(2, 2), strides=(2, 2), pads_begin=(1, 0))",
    "x: f32[N, 32, H]; average_pool(x, kernel=(3,), pads_begin=(1,), pads_end=(1,))",
])
def _pools_last(g: Editor, n: Node) -> Ref | None:
    # max_pool(x)  -->  to_first(max_pool(to_last(x), channels_last)) of several channels
    return None if n.attrs.get("channels_last", False) or not wants_channels_last(n) else _turned(g, n)


@rule("resize", kind=SUMS, forms=[
    'x: f32[N, 16, 4, 6]; resize(x, shape=(N, 16, 8, 12), scales=(1.0, 1.0, 2.0, 2.0), scale_at=None, '
    'roi_at=None, mode="linear", nearest_mode="floor", coordinate_mode="half_pixel", antialias=False, '
    'cubic_coeff=-0.75, exclude_outside=False, extrapolation=0.0, roi=None)',
])
def _resize_last(g: Editor, n: Node) -> Ref | None:
    # resize(x)  -->  to_first(resize(to_last(x))) where rows are interpolated, of several channels
    axes, rank = interpolated_axes(g, n), n.output.type.rank
    if axes is None or rank < 3 or any(axes[:2]) or not axes[-1] or not channels_pay(n.output.type.shape[1]):
        return None
    x = g.emit("transpose", n.inputs[:1], {"perm": to_last(rank)})
    y = g.emit("resize", (x, *n.inputs[1:]), remapped(n, to_first(rank)))
    return g.emit("transpose", (y,), {"perm": to_first(rank)})


@rule("grid_sample", "roi_align", kind=EXACT, forms=[
    'x: f32[N, 16, 4, 6]; p: f32[N, 3, 5, 2]; grid_sample(x, p, mode="linear", padding="zeros", '
    'align_corners=False)',
    'x: f32[2, 16, 4, 6]; r: f32[3, 4]; b: i64[3] = 0; roi_align(x, r, b, size=(2, 2), samples=(2, 2), '
    'scale=1.0, half_pixel=True, mode="avg")',
])
def _samples_last(g: Editor, n: Node) -> Ref | None:
    # grid_sample(x, p)  -->  to_first(grid_sample(to_last(x), p, channels_last)) of several channels
    last = n.attrs["mode"] == "nearest" or n.attrs.get("channels_last", False)
    return None if last or not channels_pay(n.output.type.shape[1]) else _turned(g, n)


def _turned(g: Editor, n: Node) -> Ref:
    """The node on its channels-last input, transposed back."""
    rank = n.output.type.rank
    x = g.emit("transpose", n.inputs[:1], {"perm": to_last(rank)})
    y = g.emit(n.op, (x, *n.inputs[1:]), {**n.attrs, "channels_last": True})
    return g.emit("transpose", (y,), {"perm": to_first(rank)})


def relaid(g: Editor, ref: Ref, perm: Perm) -> Ref:
    """The tensor transposed: a weight at compile time, a value by a node."""
    if not g.is_weight(ref):
        return g.emit("transpose", (ref,), {"perm": perm})
    return g.shop.weight(g.shop.weights[ref].transposed(perm, ref))


@dataclass(frozen=True, slots=True)
class Leftover:
    """A transpose that stays: its value and its bytes at nominal sizes."""

    ref: Ref
    bytes: int


def leftovers(module: Module) -> tuple[Leftover, ...]:
    """The transposes of a module that really move elements."""
    from smelt.core.ops.infer import Engine

    facts = Engine.of(module).facts
    stay = [
        n.output for graph in module.graphs.values() for n in graph.walk() if n.op == "transpose" and moves(n)
    ]
    sizes = {t: nominal_bytes(facts, t) for t in {v.type for v in stay}}
    return tuple(Leftover(v.name, sizes[v.type]) for v in stay)


def transposed_bytes(module: Module) -> int:
    """How many bytes all transposes write, at nominal sizes."""
    return sum(x.bytes for x in leftovers(module))


def moves(node: Node) -> bool:
    """Whether a transpose changes the order of axes longer than 1."""
    perm, out = ints_of(node.attrs["perm"]), node.output.type.shape
    back = inverse(perm)
    long = [a for a in range(len(perm)) if not is_one(out[back[a]])]
    order = [back[a] for a in long]
    return order != sorted(order)


RULES: Sequence[Rule] = (_channels_last, _pools_last, _resize_last, _samples_last)
