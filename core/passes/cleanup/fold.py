"""Graph -> Graph: nodes whose inputs are all constants become constants, up to a limit of bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from smelt.core.dim import product
from smelt.core.dtype import Array
from smelt.core.ir.graph import Module, Node, TensorType, Weight
from smelt.core.ops import OPS
from smelt.core.ops.table import Attrs
from smelt.core.passes.context import Context
from smelt.core.passes.rewriting.constants import ints_of
from smelt.core.passes.rewriting.editor import STRUCTURAL, Editor, edit_module
from smelt.core.subnormals import flushed

# what grows beyond this many times its inputs stays an op (a broadcast constant costs less to make
# than to read); 4 lets weights of 8 bits become floats
GROWTH = 4
SMALL_CONSTANT = 4096


def fold(module: Module, ctx: Context) -> Module:
    """The module with every node computed by its reference whose inputs are weights, as long as the result
    has at most ctx.options.fold_limit bytes and is small or not much larger than its inputs."""
    return edit_module(module, lambda editor: _fold(editor, ctx.options.fold_limit, ctx.options.flush))


def _fold(editor: Editor, limit: int, flush: bool) -> None:
    for key in editor.in_order():
        node = editor.nodes[key]
        if not foldable(editor, node, limit):
            continue
        editor.at(key)
        moved = _moved(editor, node)
        if moved is not None:
            editor.replace(node.output.name, editor.shop.weight(moved))
            continue
        arrays = [editor.array(r) if r else None for r in node.inputs]
        try:
            made = evaluate(node, arrays, flush)
        except ValueError:  # NumPy's word for shapes that do not fit: a check in front stops every run
            continue
        for v, data in zip(node.outputs, made, strict=True):
            name = v.name.removeprefix("%")
            editor.replace(v.name, editor.constant(data, name, origin=v.origin))


# what only moves elements, and what it makes of a weight: elements in a file stay there
WEIGHT_MOVES: Mapping[str, Callable[[Weight, Node], Weight]] = {
    "reshape": lambda w, n: w.reshaped(tuple(d.const for d in n.output.type.shape), n.output.name),
    "transpose": lambda w, n: w.transposed(ints_of(n.attrs["perm"]), n.output.name),
}


def _moved(editor: Editor, node: Node) -> Weight | None:
    """The weight that a node of WEIGHT_MOVES makes of one; None for other nodes."""
    move = WEIGHT_MOVES.get(node.op)
    if move is None:
        return None
    return replace(move(editor.shop.weights[node.inputs[0]], node), origin=node.output.origin)


def foldable(editor: Editor, node: Node, limit: int) -> bool:
    """Whether everything that the node reads is constant, and its result neither large nor much larger."""
    if node.op in STRUCTURAL or node.op not in OPS or not OPS[node.op].pure:
        return False
    if not all(editor.is_weight(r) for r in node.inputs if r) or not _settled(tuple(node.attrs.values())):
        return False
    given = sum(editor.shop.weights[r].bytes for r in node.inputs if r)
    made = 0
    for v in node.outputs:
        n = product(v.type.shape)
        if not n.is_const:
            return False
        made += n.const * v.type.dtype.bytes
    return made <= limit and (made <= SMALL_CONSTANT or made <= GROWTH * given)


def _settled(value: object) -> bool:
    """Whether an attribute holds no symbol."""
    if isinstance(value, tuple):
        return all(_settled(v) for v in value)
    symbols = getattr(value, "symbols", None)
    return not symbols


def evaluate(node: Node, arrays: list[Array | None], flush: bool = False) -> list[Array]:
    """The node's outputs by the op's reference, each of its declared type. flush: as Options.flush."""
    types: list[TensorType] = [v.type for v in node.outputs]
    with np.errstate(all="ignore"), flushed(flush):
        found = OPS[node.op].ref(arrays, _plain(node.attrs), types)
    made = []
    for t, a in zip(types, found, strict=True):
        shape = tuple(d.const for d in t.shape)
        data = np.ascontiguousarray(np.asarray(a, t.dtype.numpy)).reshape(shape)
        made.append(data.copy() if not data.flags.owndata else data)
    return made


def _plain(attrs: Attrs) -> Attrs:
    return dict(attrs)
