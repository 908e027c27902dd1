"""Products of many matrices, as of attention: nothing is repeated or scaled in memory for them.

What repeats a matrix for several others (the keys and values of a group of heads) disappears: the axis along
which it is repeated is an axis of the product of its own, which the matrix does not have. Constant factors of
the operands become one of the product, which its kernel applies before it stores."""

from __future__ import annotations

import math
from dataclasses import dataclass

from smelt.core.dim import ONE, Dim, to_dim
from smelt.core.dtype import f16
from smelt.core.ir.graph import Node, Ref
from smelt.core.ops.rows.movement import reshape_groups
from smelt.core.passes.cleanup.canonical import RULES as CANONICAL
from smelt.core.passes.numerics import EXACT, SUMS
from smelt.core.passes.rewriting.constants import ints_of, is_one, splat, whole
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rule, rule_pass
from smelt.core.passes.whole_graph.affine import FACTOR

# ---------------------------------------------------------------- scaled matrices


@rule("matmul", kind=SUMS, forms=[
    "x: f32[N, M, 4]; k: f32[N, H, 4]; matmul(mul(x, 0.7), transpose(mul(k, 0.7), perm=(0, 2, 1)))",
    "x: f32[N, M, 4]; k: f32[N, 4, H]; matmul(x, mul(k, 0.5))",
    "x: f32[N, 5, 4]; k: f32[N, 4, 3]; matmul(mul(x, 0.5), div(k, 3.0))",
])
def _scaled_matrices(g: Editor, n: Node) -> Ref | None:
    # matmul(x * c, k * d)  -->  matmul(x, k) * (c * d): a kernel of its own could store k * d, the product
    # multiplies what it has in registers. x * c alone stays, and k * d where k is made here: they may be in
    # the weights
    if any(map(g.is_weight, n.inputs)) or not n.output.type.dtype.is_float or n.output.type.dtype == f16:
        return None
    left, right = (_scaled(g, r) for r in n.inputs)
    if right is None or _of_weights(g, right.source):
        return None
    c = right.factor if left is None else left.factor * right.factor
    if not 1 / FACTOR <= abs(c) <= FACTOR:
        return None
    parts = [r if s is None else s.without(g) for r, s in zip(n.inputs, (left, right), strict=True)]
    y = g.emit("matmul", parts)
    return g.emit("mul", (y, g.like(c, y)))


@dataclass(frozen=True)
class _Scaled:
    """Nodes that move elements, the last one first, of source * factor."""

    source: Ref
    factor: float
    moves: tuple[Node, ...]

    def without(self, g: Editor) -> Ref:
        """What the nodes make of the source alone."""
        y = self.source
        for n in reversed(self.moves):
            y = g.emit(n.op, (y,), n.attrs)
        return y


def _scaled(g: Editor, ref: Ref) -> _Scaled | None:
    """ref as moved elements of a product with a constant, which nobody else reads."""
    moves: list[Node] = []
    while g.uses(ref) == 1 and (n := g.maker(ref)) is not None:
        if len(n.inputs) == len(n.outputs) == 1 and g.trait(n).moved == 0:
            moves.append(n)
            ref = n.inputs[0]
            continue
        c = splat(g, n.inputs[1]) if n.op in ("mul", "div") else None
        if c is None or not whole(g, n.inputs[0], n) or not 1 / FACTOR <= abs(c) <= FACTOR:
            return None
        return _Scaled(n.inputs[0], float(c) if n.op == "mul" else 1 / float(c), tuple(moves))
    return None


def _of_weights(g: Editor, ref: Ref, depth: int = 8) -> bool:
    """Whether a product or convolution with weights makes it, which can have the factor in them."""
    n = g.maker(ref)
    if n is None or depth == 0:
        return False
    t = g.trait(n)
    if t.contraction and any(map(g.is_weight, n.inputs)):
        return True
    follows = len(n.outputs) == 1 and (t.moved == 0 or t.elementwise)
    return follows and any(r and _of_weights(g, r, depth - 1) for r in n.inputs)


# ---------------------------------------------------------------- rows that are masked as a whole


@rule("where", kind=EXACT, forms=[
    "x: f32[N, M, H]; where(equal(reduce_max(broadcast_to(0.0, shape=(M, H)), axes=(1,), keepdims=True), "
    "-inf), 0.0, x)",
])
def _masked_by_nothing(g: Editor, n: Node) -> Ref | None:
    # where(max(c, c, ..) == d, a, b)  -->  b  for constants c != d: the maximum is another one only of no
    # elements, and then the result, which has these axes too, has none
    test = g.made_by(n.inputs[0], "equal")
    extreme = None if test is None else g.made_by(test.inputs[0], "reduce_max", "reduce_min")
    if test is None or extreme is None or not extreme.attrs["keepdims"] or not whole(g, n.inputs[2], n):
        return None
    wide = g.made_by(extreme.inputs[0], "broadcast_to")
    c = None if wide is None else splat(g, wide.inputs[0])
    d = splat(g, test.inputs[1])
    if c is None or d is None or math.isnan(c) or c == d:
        return None
    shape, out = g.shape(extreme.inputs[0]), n.output.type.shape
    lead = len(out) - len(shape)
    same = lead >= 0 and all(shape[a] == out[lead + a] for a in ints_of(extreme.attrs["axes"]))
    return n.inputs[2] if same and len(g.shape(n.inputs[0])) == len(shape) else None


# ---------------------------------------------------------------- repeated matrices


@rule("matmul", kind=SUMS, forms=[
    "x: f32[N, 6, M, 4]; k: f32[N, 2, H, 4]; matmul(x, transpose(reshape(broadcast_to(reshape(k, "
    "shape=(N, 2, 1, H, 4)), shape=(N, 2, 3, H, 4)), shape=(N, 6, H, 4)), perm=(0, 1, 3, 2)))",
    "x: f32[N, 6, M, H]; v: f32[N, 2, 1, H, 4]; matmul(x, reshape(broadcast_to(v, shape=(N, 2, 3, H, 4)), "
    "shape=(N, 6, H, 4)))",
    "x: f32[N, 6, 1, 3]; v: f32[3, 4]; matmul(x, broadcast_to(v, shape=(N, 6, 3, 4)))",
])
def _repeated_matrices(g: Editor, n: Node) -> Ref | None:
    # matmul(x, [T] reshape(broadcast_to(k)))  -->  reshape(matmul(reshape(x), [T] k))  where the broadcast
    # repeats whole matrices, and the axes that the reshape joins are of the batch: they stay apart
    x, shape = n.inputs[0], g.shape(n.inputs[1])
    found = _repeated(g, n.inputs[1])
    if found is None or len(g.shape(x)) != len(shape):
        return None
    k, apart, turned = found
    batch = _axes_apart(apart, shape[:-2]) if len(apart) > len(shape) else apart[:-2]
    if batch is None or tuple(g.shape(x)[:-2]) != tuple(shape[:-2]):
        return None
    own = g.shape(k)
    own = (to_dim(1),) * (len(apart) - len(own)) + tuple(own)
    matrices = any(a != b for a, b in zip(own[:-2], batch, strict=True))
    if not matrices or own[-2:] != apart[-2:]:
        return None
    rows = g.shape(x)[-2:]
    y = g.emit("reshape", (x,), {"shape": (*batch, *rows)}) if batch != shape[:-2] else x
    b = g.emit("reshape", (k,), {"shape": own}) if own != g.shape(k) else k
    if turned:
        b = g.emit("transpose", (b,), {"perm": _turned(len(own))})
    y = g.emit("matmul", (y, b))
    return y if g.shape(y) == n.output.type.shape else g.emit("reshape", (y,), {
        "shape": n.output.type.shape})


def _turned(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _repeated(g: Editor, ref: Ref) -> tuple[Ref, tuple[Dim, ...], bool] | None:
    """(k, shape, whether its matrices are transposed) where ref is broadcast_to(k, shape), its matrices
    transposed and axes before them joined or cut by one reshape at most."""
    turned = viewed = False
    while (n := g.made_by(ref, "transpose", "reshape", "broadcast_to")) is not None:
        inner, rank = n.inputs[0], n.output.type.rank
        if n.op == "broadcast_to":
            return inner, n.output.type.shape, turned
        if n.op == "transpose":
            if ints_of(n.attrs["perm"]) != _turned(rank):
                return None
            turned = not turned
        elif viewed or g.shape(inner)[-2:] != n.output.type.shape[-2:]:
            return None
        else:
            viewed = True
        ref = inner
    return None


def _axes_apart(apart: tuple[Dim, ...], joined: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """The axes of a batch of which a reshape joins some into those of `joined`; None where it does more."""
    batch = apart[:-2]
    groups = reshape_groups(batch, joined)
    return batch if all(len(theirs) == 1 and mine for mine, theirs in groups) else None


# ---------------------------------------------------------------- views of products


@dataclass(frozen=True)
class _Joined:
    """A reshape that joins axes: its operand, and of each of its own axes those that it joins; none of some
    of extent 1."""

    x: Ref
    axes: tuple[tuple[int, ...], ...]


def _joined(g: Editor, ref: Ref) -> _Joined | None:
    """ref as axes of something joined that a product makes, and that nobody needs as it is."""
    n = g.made_by(ref, "reshape")
    if n is None or not _passing(g, ref) or not _of_product(g, n.inputs[0]):
        return None
    groups = reshape_groups(g.shape(n.inputs[0]), n.output.type.shape)
    whole_axes = all(len(theirs) == 1 and mine for mine, theirs in groups)
    if not whole_axes or all(len(mine) == 1 for mine, _ in groups):
        return None
    found = {theirs[0]: mine for mine, theirs in groups}
    return _Joined(n.inputs[0], tuple(found.get(a, ()) for a in range(n.output.type.rank)))


def _passing(g: Editor, ref: Ref) -> bool:
    """Whether one reads it, or all who do take it element by element."""
    if g.uses(ref) == 1 or ref in g.outputs:
        return g.uses(ref) == 1
    readers = [g.nodes[k] for k in g.user_keys(ref)]
    return all(len(n.outputs) == 1 and g.trait(n).elementwise for n in readers)


def _of_product(g: Editor, ref: Ref, depth: int = 8) -> bool:
    """Whether a product makes it, and what follows takes element by element or along one axis."""
    n = g.maker(ref)
    if n is None or depth == 0:
        return False
    follows = n.op == "softmax" or (len(n.outputs) == 1 and g.trait(n).elementwise)
    return n.op == "matmul" or (follows and any(
        g.shape(r) == n.output.type.shape and _of_product(g, r, depth - 1) for r in n.inputs if r
    ))


@rule(kind=EXACT, where=lambda op: op.broadcasts == 0, forms=[
    "x: f32[N, 2, 3, M, 4]; k: f32[N, 2, 1, 4, H]; m: f32[N, 1, M, H]; "
    "add(reshape(matmul(x, k), shape=(N, 6, M, H)), m)",
    "x: f32[2, 3, M, 4]; k: f32[2, 1, 4, H]; c: bool[M, 1]; "
    "where(c, 0.0, reshape(matmul(x, k), shape=(6, M, H)))",
    "x: f32[2, 3, M, 4]; k: f32[2, 1, 4, H]; p = reshape(matmul(x, k), shape=(6, M, H)); "
    "where(isnan(p), 0.0, p)",
])
def _joined_last(g: Editor, n: Node) -> Ref | None:
    # f(reshape(x), y)  -->  reshape(f(x, reshape(y)))  where the reshape joins axes of a product along which
    # y is repeated, or joined as these: then the kernel of the product can apply f
    if len(n.outputs) != 1:
        return None
    views = [_joined(g, r) if r else None for r in n.inputs]
    k, view = next(((k, v) for k, v in enumerate(views) if v is not None), (0, None))
    if view is None or g.shape(n.inputs[k]) != n.output.type.shape or n.inputs.count(n.inputs[k]) != 1:
        return None
    like = [v.x if v is not None and _alike(g, v, view) else r for r, v in zip(n.inputs, views, strict=True)]
    shapes = [_apart(view, g.shape(r)) if r and r == x else None for r, x in zip(n.inputs, like, strict=True)]
    if any(s is None and r and r == x for s, r, x in zip(shapes, n.inputs, like, strict=True)):
        return None
    if not g.trait(n).elementwise:
        return None
    inputs = [
        x if s is None or s == g.shape(x) or set(s) == {ONE} else g.emit("reshape", (x,), {"shape": s})
        for x, s in zip(like, shapes, strict=True)
    ]
    return g.emit("reshape", (g.emit(n.op, inputs, n.attrs),), {"shape": n.output.type.shape})


def _alike(g: Editor, a: _Joined, b: _Joined) -> bool:
    """Whether both join the same axes."""
    return a.axes == b.axes and g.shape(a.x) == g.shape(b.x)


def _apart(view: _Joined, shape: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """The shape that an operand has beside what the view joins: its own if that is one element, else of the
    rank before; None where it follows an axis of several."""
    if all(map(is_one, shape)) and not shape:
        return shape
    lead = len(view.axes) - len(shape)
    found = [ONE] * (1 + max(a for axes in view.axes for a in axes))
    for at, axes in enumerate(view.axes):
        d = shape[at - lead] if at >= lead else ONE
        if len(axes) == 1:
            found[axes[0]] = d
        elif not is_one(d):
            return None
    return tuple(found)


@rule("softmax", "log_softmax", kind=EXACT, forms=[
    "x: f32[N, 2, 3, M, 4]; k: f32[N, 2, 1, 4, H]; "
    "softmax(reshape(matmul(x, k), shape=(N, 6, M, H)), axis=3)",
])
def _joined_after_rows(g: Editor, n: Node) -> Ref | None:
    # softmax(reshape(x))  -->  reshape(softmax(x))  where the reshape joins other axes of a product
    view = _joined(g, n.inputs[0])
    axes = () if view is None else view.axes[int(n.attr("axis"))]
    if view is None or len(axes) != 1:
        return None
    y = g.emit(n.op, (view.x,), {**n.attrs, "axis": axes[0]})
    return g.emit("reshape", (y,), {"shape": n.output.type.shape})


@rule("transpose", kind=EXACT, forms=[
    "x: f32[N, 2, 3, M, H]; v: f32[N, 2, 1, H, 4]; "
    "transpose(reshape(matmul(x, v), shape=(N, 6, M, 4)), perm=(0, 2, 1, 3))",
])
def _joined_after_transpose(g: Editor, n: Node) -> Ref | None:
    # transpose(reshape(x))  -->  reshape(transpose(x))  where the reshape joins axes of a product
    view = _joined(g, n.inputs[0])
    if view is None:
        return None
    perm = [a for at in ints_of(n.attrs["perm"]) for a in view.axes[at]]
    ones = [a for a in range(len(g.shape(view.x))) if a not in perm]
    y = g.emit("transpose", (view.x,), {"perm": (*ones, *perm)})
    return g.emit("reshape", (y,), {"shape": n.output.type.shape})


BATCHED_RULES: tuple[Rule, ...] = (_scaled_matrices, _masked_by_nothing)
RULES: tuple[Rule, ...] = (_repeated_matrices, _joined_last, _joined_after_rows, _joined_after_transpose)

batched = rule_pass((*CANONICAL, *RULES))
