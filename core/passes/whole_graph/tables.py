"""Graph -> Graph: the product by a constant matrix of rows that a run picks from a constant table is computed
for the whole table when compiling; a run picks its rows of that.

gather(T, i) @ W  -->  gather(T @ W, i): an embedding that a recurrent layer or a decoder's step multiplies
"""

from __future__ import annotations

from collections import Counter

from smelt.core.dim import to_dim
from smelt.core.ir.graph import Attr, Module, Node, Ref, TensorType, Value
from smelt.core.passes.cleanup.fold import evaluate
from smelt.core.passes.context import Context, Options
from smelt.core.passes.rewriting.constants import dims_of, ints_of
from smelt.core.passes.rewriting.editor import Editor, edit_module

TABLE_GROWTH = 2
"""How many times the bytes of what nothing uses any more the product of a table may take. A step of a decoder
reads a few rows of it and does not read the matrix, whatever their sizes: this bounds the bundle alone
(benchmarks/results/choices.md)."""


def tables(module: Module, ctx: Context) -> Module:
    """The module with every such product in its table, as long as that has at most ctx.options.fold_limit
    bytes and TABLE_GROWTH times those of the table and the matrix, where these go."""
    readers = _readers(module)
    return edit_module(module, lambda editor: _tables(editor, readers, ctx.options), ops={"matmul"})


def _readers(module: Module) -> Counter[Ref]:
    """How many nodes and outputs of all graphs and regions read each weight."""
    found: Counter[Ref] = Counter()
    for graph in module.graphs.values():
        found.update(graph.outputs)
        for node in graph.walk():
            found.update(node.inputs)
            found.update(r for region in node.regions for r in region.outputs)
    return found


def _tables(editor: Editor, readers: Counter[Ref], options: Options) -> None:
    for key in editor.in_order():
        node = editor.nodes[key]
        found = _picked(editor, node) if node.op == "matmul" else None
        if found is None:
            continue
        gather, moves = found
        editor.at(key)
        product = _product(editor, node, gather, moves, readers, options)
        if product is None:
            continue
        ref = editor.emit("gather", (product, gather.inputs[1]), gather.attrs)
        for m in reversed(moves):
            ref = editor.emit(m.op, (ref,), _widened(editor, m, ref))
        editor.replace(node.output.name, ref)


def _picked(editor: Editor, product: Node) -> tuple[Node, list[Node]] | None:
    """The gather of whole rows of a constant matrix that the product by another one multiplies, and the nodes
    between them, the last first, which leave the rows whole."""
    left, right = product.inputs
    moves: list[Node] = []
    while (n := editor.made_by(left, "reshape", "transpose")) is not None:
        if not _keeps_rows(editor, n):
            return None
        moves.append(n)
        left = n.inputs[0]
    gather = editor.made_by(left, "gather")
    if gather is None or gather.attrs["axis"] != 0 or not editor.is_weight(right):
        return None
    matrices = [editor.shop.weights[r].shape for r in (gather.inputs[0], right) if editor.is_weight(r)]
    return (gather, moves) if [len(s) for s in matrices] == [2, 2] else None


def _keeps_rows(editor: Editor, move: Node) -> bool:
    """Whether the last axis stays the last one, and as long as it was."""
    before, after = editor.shape(move.inputs[0]), editor.shape(move.output.name)
    if move.op == "transpose":
        return ints_of(move.attrs["perm"])[-1] == len(before) - 1
    return bool(before) and bool(after) and before[-1] == after[-1]


def _widened(editor: Editor, move: Node, ref: Ref) -> dict[str, Attr]:
    """The attributes of a move for rows as long as those of ref."""
    if move.op == "transpose":
        return dict(move.attrs)
    return {**move.attrs, "shape": (*dims_of(move.attrs["shape"])[:-1], editor.shape(ref)[-1])}


def _product(
    editor: Editor, node: Node, gather: Node, moves: list[Node], readers: Counter[Ref], options: Options
) -> Ref | None:
    """The product of the whole table, a new weight; None where it has no rows or is too large."""
    table, matrix = gather.inputs[0], node.inputs[1]
    (rows, _), (_, columns) = (editor.shop.weights[r].shape for r in (table, matrix))
    made = rows * columns * node.output.type.dtype.bytes
    chain = [gather, *moves]
    alone = readers[table] == 1 and all(editor.uses(n.output.name) == 1 for n in chain)
    goes = [r for r, last in ((table, alone), (matrix, readers[matrix] == 1)) if last]
    given = sum(editor.shop.weights[r].bytes for r in goes)
    if not 0 < made <= min(options.fold_limit, TABLE_GROWTH * given):
        return None
    shape = (to_dim(rows), to_dim(columns))
    output = Value("%table", TensorType(node.output.type.dtype, shape))
    whole = node.with_(inputs=(table, matrix), outputs=(output,))
    (data,) = evaluate(whole, [editor.array(r) for r in whole.inputs], options.flush)
    return editor.constant(data, table[1:], origin=node.output.origin)
