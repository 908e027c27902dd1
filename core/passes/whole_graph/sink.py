"""Rules that move transposes from the inputs of an op to its output, axis by axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from smelt.core.dim import Dim, to_dim
from smelt.core.ir.graph import Node, Ref
from smelt.core.ops import current_ops
from smelt.core.ops.rows.movement import reshape_groups
from smelt.core.ops.table import Attrs
from smelt.core.passes.numerics import EXACT, SUMS
from smelt.core.passes.rewriting.constants import ints_of, is_one
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule

Perm: TypeAlias = tuple[int, ...]


def inverse(p: Perm) -> Perm:
    """q with transpose(transpose(x, p), q) == x."""
    q = [0] * len(p)
    for o, a in enumerate(p):
        q[a] = o
    return tuple(q)


# ---------------------------------------------------------------- attributes under a permutation

Remap: TypeAlias = Callable[[Any, Perm], Any]


def _axis(value: Any, p: Perm) -> Any:
    return p[int(value)]


def _list(value: Any, p: Perm) -> Any:
    """One entry per axis: entry o of the output goes to axis p[o]."""
    return tuple(value[o] for o in inverse(p))


def _optional_list(value: Any, p: Perm) -> Any:
    return None if value is None else _list(value, p)


def _roi(value: Any, p: Perm) -> Any:
    """Starts of all axes, then ends of all axes."""
    if value is None:
        return None
    n = len(p)
    return (*_list(value[:n], p), *_list(value[n:], p))


def _scale_axis(value: Any, p: Perm) -> Any:
    """The axis of a vector of scales; -1 says that there is one scale."""
    return value if value == -1 else _axis(value, p)


# op -> attribute -> what becomes of it when the input is read untransposed; the output is then the
# same op's output, transposed by the same permutation
_SAME: Mapping[str, Mapping[str, Remap]] = {
    "concat": {"axis": _axis},
    "slice": {"starts": _list, "ends": _list, "steps": _list},
    "pad": {"before": _list, "after": _list},
    "extend": {"before": _list, "after": _list},
    "tile": {"repeats": _list},
    "broadcast_to": {"shape": _list},
    "resize": {
        "shape": _list, "scales": _optional_list, "roi": _roi, "scale_at": _optional_list, "roi_at": _roi,
    },
    "softmax": {"axis": _axis},
    "log_softmax": {"axis": _axis},
    "hardmax": {"axis": _axis},
    "cumsum": {"axis": _axis},
    "quantize": {"axis": _scale_axis},
    "dequantize": {"axis": _scale_axis},
}
# how many leading inputs are tensors of the output's axes; the rest (a pad value) stay as they are
_TENSORS = {"quantize": 1, "dequantize": 1, "pad": 1, "resize": 1, "slice": 1, "tile": 1, "broadcast_to": 1}
POOLS = ("max_pool", "average_pool", "lp_pool")
LEAST_CHANNELS = 2
"""Channels from which pooling and interpolation are quicker on channels-last tensors, even if these are
transposed for it alone."""
SINKABLE_REDUCTIONS = (
    "reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_mean", "reduce_l1", "reduce_l2",
    "reduce_sum_square", "reduce_log_sum", "reduce_log_sum_exp",
)  # fmt: skip
ARGS = ("argmax", "argmin")


def wants_channels_last(n: Node) -> bool:
    """Whether a pool should not be one of planes."""
    channels = n.output.type.shape[-1 if n.attrs.get("channels_last", False) else 1]
    return channels_pay(channels) and prod(ints_of(n.attrs["kernel"])) > 1


def remapped(n: Node, p: Perm) -> Attrs:
    """The attributes of op(transpose(x, p)) when x is read untransposed."""
    remap = _SAME[n.op]
    return {k: remap[k](v, p) if k in remap else v for k, v in n.attrs.items()}


def _would_interpolate_rows(g: Editor, n: Node, p: Perm) -> bool:
    """Whether an interpolation whose rows are channels would have rows of which it interpolates elements."""
    axes, channels = interpolated_axes(g, n), n.output.type.shape[-1]
    return axes is not None and not axes[-1] and axes[inverse(p)[-1]] and channels_pay(channels)


def interpolated_axes(g: Editor, n: Node) -> tuple[bool, ...] | None:
    """Of a resize that interpolates, which axes it does; None of any that copies elements."""
    if n.attrs["mode"] == "nearest":
        return None
    shapes = zip(g.shape(n.inputs[0]), n.output.type.shape, strict=True)
    return tuple(before != after for before, after in shapes)


def channels_pay(n: Dim) -> bool:
    """Whether so many channels are worth being last."""
    return n.const_or_none is not None and n.const >= LEAST_CHANNELS


_BETTER_LEFT: Mapping[str, Callable[[Editor, Node, Perm], bool]] = {"resize": _would_interpolate_rows}
"""op -> whether it is quicker as it is than on what it reads untransposed."""


def sink_rules(state: Sinking) -> tuple[Rule, ...]:
    """The sinking rules; in `state` they remember which transposes they made on the way, and leave those."""
    return (
        Rule("sink_same", tuple(_SAME), state.same, EXACT, (
            "x: f32[N, 3, 4]; softmax(transpose(x, perm=(0, 2, 1)), axis=1)",
            "x: f32[N, 3, 4]; t = transpose(x, perm=(0, 2, 1)); concat(t, t, axis=2)",
            "x: f32[N, 3, 4]; slice(transpose(x, perm=(0, 2, 1)), starts=(0, 1, 0), ends=(N, 4, 3), "
            "steps=(1, 1, 2))",
        )),
        Rule("sink_reduce", (*SINKABLE_REDUCTIONS, *ARGS), state.reduce, SUMS, (
            "x: f32[N, 3, 4]; reduce_sum(transpose(x, perm=(0, 2, 1)), axes=(1, 2), keepdims=False)",
            "x: f32[N, 3, 4]; argmax(transpose(x, perm=(0, 2, 1)), axis=1, keepdims=True, last=False)",
        )),
        Rule("sink_pool", POOLS, state.pool, SUMS, (
            "x: f32[N, H, 3]; average_pool(transpose(x, perm=(0, 2, 1)), kernel=(2,), "
            "count_include_pad=False)",
            "x: f32[N, H, 3]; max_pool(transpose(x, perm=(0, 2, 1)), kernel=(2,), pads_begin=(1,))",
        )),
        Rule("sink_reshape", ("reshape",), state.reshape, EXACT, (
            "x: f32[N, 3, 4]; reshape(transpose(x, perm=(0, 2, 1)), shape=(N, 2, 2, 3))",
            "x: f32[N, H, 2, 3]; reshape(transpose(x, perm=(0, 3, 2, 1)), shape=(N, 6, H))",
        )),
        Rule("sink_gather", ("gather",), state.gather, EXACT, (
            "x: f32[N, 3, 4]; i: i64[2]; gather(transpose(x, perm=(0, 2, 1)), i, axis=1)",
        )),
        Rule("sink_elementwise", state.plain, state.elementwise, EXACT, (
            "x: f32[N, 3, 4]; y: f32[N, 3, 4]; "
            "add(transpose(x, perm=(0, 2, 1)), transpose(y, perm=(0, 2, 1)))",
            "x: f32[N, 3, 4]; c: f32[4, 1] = draw; mul(transpose(x, perm=(0, 2, 1)), c)",
            "x: f32[N, 3, 4]; s: f32[N, 1, 3]; c: f32[4, 1] = draw; "
            "sub(transpose(x, perm=(0, 2, 1)), mul(s, c))",
            "x: f32[N, 3, 4]; y: f32[3, 4]; add(x, y)",
        )),
    )


class Sinking:
    """The rules, and the transposes that they put on operands that had none (pinned).

    shuffles: a transpose that brings axes together may stay so that another one sinks. shuffled: one did.
    plain: ops that have no other rule."""

    def __init__(self, shuffles: bool = True) -> None:
        self.shuffles, self.shuffled = shuffles, False
        apart = {*_SAME, *POOLS, *SINKABLE_REDUCTIONS, "reshape", "transpose"}
        self.plain = tuple(op.name for op in current_ops() if op.name not in apart and op.compute is not None)
        self._pinned: set[Ref] = set()

    def _source(self, g: Editor, ref: Ref) -> tuple[Ref, Perm] | None:
        """(x, p) where ref is transpose(x, p) and may sink."""
        n = g.made_by(ref, "transpose")
        if n is None or ref in self._pinned:
            return None
        return n.inputs[0], ints_of(n.attrs["perm"])

    def _wrap(self, g: Editor, y: Ref, p: Perm) -> Ref:
        return g.emit("transpose", (y,), {"perm": p})

    def _common(self, g: Editor, refs: Sequence[Ref], rank: int) -> Perm | None:
        """The permutation that moves the most bytes among the operands' transposes."""
        weight: dict[Perm, int] = {}
        for r in dict.fromkeys(refs):
            found = self._source(g, r) if r else None
            if found is not None and len(found[1]) == rank:
                weight[found[1]] = weight.get(found[1], 0) + self._bytes(g, r)
        return max(weight, key=lambda p: weight[p]) if weight else None

    def _bytes(self, g: Editor, ref: Ref) -> int:
        return g.shop.bytes(g.type_of(ref))

    def _turned(self, g: Editor, ref: Ref, p: Perm) -> Ref:
        """The operand with the axes that it has before the transpose p."""
        found = self._source(g, ref)
        if found is not None and found[1] == p:
            return found[0]
        if not ref or not g.shape(ref):
            return ref
        made = None if self._free(g, ref, p) else self._raised(g, ref, p)
        if made is not None:
            return g.emit(made.op, [self._turned(g, r, p) for r in made.inputs], made.attrs)
        q, shape = inverse(p), g.shape(ref)
        if g.is_weight(ref):
            w = g.shop.weights[ref]
            full = w.reshaped((1,) * (len(p) - len(w.shape)) + w.shape, ref)
            return g.shop.weight(full.transposed(q, ref))
        if len(shape) < len(p):
            ones = (to_dim(1),) * (len(p) - len(shape))
            ref = g.emit("reshape", (ref,), {"shape": (*ones, *shape)})
        y = g.emit("transpose", (ref,), {"perm": q})
        self._pinned.add(y)
        return y

    def _extra(self, g: Editor, refs: Sequence[Ref], p: Perm) -> int:
        """Bytes of the transposes that operands without one would need."""
        total = 0
        for r in dict.fromkeys(refs):
            if r and not self._free(g, r, p) and self._raised(g, r, p) is None:
                total += self._bytes(g, r)
        return total

    def _free(self, g: Editor, ref: Ref, p: Perm) -> bool:
        """Whether an operand has the axes before the transpose p without a move of its elements."""
        found = self._source(g, ref)
        if g.is_weight(ref) or (found is not None and found[1] == p):
            return True
        shape = g.shape(ref)
        full = (to_dim(1),) * (len(p) - len(shape)) + tuple(shape)
        order = [a for a in inverse(p) if not is_one(full[a])]
        return order == sorted(order)

    def _raised(self, g: Editor, ref: Ref, p: Perm) -> Node | None:
        """The elementwise node that makes an operand of this use alone, where all that it reads is free."""
        n = g.maker(ref)
        if n is None or len(n.outputs) != 1 or g.uses(ref) != 1 or len(g.shape(ref)) != len(p):
            return None
        if n.op not in self.plain or not g.trait(n).elementwise:
            return None
        return n if all(not r or self._free(g, r, p) for r in n.inputs) else None

    def _pays(self, g: Editor, n: Node, refs: Sequence[Ref], p: Perm) -> bool:
        """Whether moving the transposes of these operands after n leaves no more to transpose."""
        extra = self._extra(g, refs, p)
        if extra == 0:
            return True
        gone = 0
        for r in dict.fromkeys(refs):
            found = self._source(g, r) if r else None
            if found is not None and found[1] == p:
                gone += self._bytes(g, r)
        y = n.output.name
        own = self._bytes(g, y)
        undone = any(u.op == "transpose" for u in g.users(y))
        return extra + (0 if undone else own) <= gone + (own if undone else 0)

    # ------------------------------------------------------------ the rules

    def same(self, g: Editor, n: Node) -> Ref | None:
        """op(transpose(x, p), axis)  -->  transpose(op(x, p[axis]), p)"""
        count = _TENSORS.get(n.op, len(n.inputs))
        tensors = n.inputs[:count]
        p = self._common(g, tensors, n.output.type.rank)
        if p is None or not self._pays(g, n, tensors, p):
            return None
        if any(len(g.shape(r)) != len(p) for r in tensors):
            return None
        if n.op in _BETTER_LEFT and _BETTER_LEFT[n.op](g, n, p):
            return None
        attrs = remapped(n, p)
        inputs = (*(self._turned(g, r, p) for r in tensors), *n.inputs[count:])
        return self._wrap(g, g.emit(n.op, inputs, attrs), p)

    def elementwise(self, g: Editor, n: Node) -> Ref | None:
        """f(transpose(x, p), transpose(y, p), c)  -->  transpose(f(x, y, c'), p)"""
        if len(n.outputs) != 1 or all(self._source(g, r) is None for r in n.inputs if r):
            return None
        if not g.trait(n).elementwise:
            return None
        p = self._common(g, n.inputs, n.output.type.rank)
        if p is None or not self._pays(g, n, n.inputs, p):
            return None
        inputs = [self._turned(g, r, p) for r in n.inputs]
        return self._wrap(g, g.emit(n.op, inputs, n.attrs), p)

    def reduce(self, g: Editor, n: Node) -> Ref | None:
        """sum(transpose(x, p), axes)  -->  transpose(sum(x, p[axes]), what is left of p)"""
        found = self._source(g, n.inputs[0])
        if found is None:
            return None
        x, p = found
        one = n.op in ARGS
        axes = (int(n.attr("axis")),) if one else ints_of(n.attrs["axes"])
        mine = tuple(sorted(p[a] for a in axes))
        y = g.emit(n.op, (x,), {**n.attrs, **({"axis": mine[0]} if one else {"axes": mine})})
        if n.attrs["keepdims"]:
            return self._wrap(g, y, p)
        kept = [a for a in range(len(p)) if a not in mine]
        left = tuple(kept.index(p[o]) for o in range(len(p)) if o not in axes)
        return self._wrap(g, y, left)

    def pool(self, g: Editor, n: Node) -> Ref | None:
        """pool(to_first(x))  -->  to_first(pool(x, channels_last))"""
        found = self._source(g, n.inputs[0])
        if found is None:
            return None
        x, p = found
        rank = len(p)
        first, last = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
        if p != (last if n.attrs.get("channels_last", False) else first):
            return None
        turned = not n.attrs.get("channels_last", False)
        if not turned and wants_channels_last(n):
            return None
        return self._wrap(g, g.emit(n.op, (x,), {**n.attrs, "channels_last": turned}), p)

    def gather(self, g: Editor, n: Node) -> Ref | None:
        """gather(transpose(x, p), indices[k], axis)  -->  transpose(gather(x, indices, p[axis]), p)"""
        found = self._source(g, n.inputs[0])
        if found is None or len(g.shape(n.inputs[1])) != 1:
            return None
        x, p = found
        axis = p[int(n.attr("axis"))]
        return self._wrap(g, g.emit("gather", (x, n.inputs[1]), {"axis": axis}), p)

    def reshape(self, g: Editor, n: Node) -> Ref | None:
        """reshape(transpose(x, p))  -->  transpose(reshape(x'), q) where x' is x, if groups of axes stay
        together in it; else x transposed so that they are, if q moves others"""
        found = self._source(g, n.inputs[0])
        if found is None:
            return None
        (x, p), target = found, n.output.type.shape
        groups = reshape_groups(g.shape(n.inputs[0]), target)
        if not all(axes for axes, _ in groups):
            return None
        ordered = sorted(groups, key=lambda group: max(p[o] for o in group[0]))
        together = [p[o] for axes, _ in ordered for o in axes]
        if together != sorted(together):
            if not self.shuffles or ordered == list(groups):
                return None
            self.shuffled = True
            ones = [a for a in range(len(p)) if a not in together]
            x = g.emit("transpose", (x,), {"perm": (*ones, *together)})
        order = [s for s in range(len(target)) if not any(s in mine for _, mine in groups)]
        order += [s for _, mine in ordered for s in mine]
        y = g.emit("reshape", (x,), {"shape": tuple(target[s] for s in order)})
        return self._wrap(g, y, tuple(order.index(s) for s in range(len(target))))
