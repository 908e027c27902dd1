"""Graph -> Graph: what rounds of a loop do not change leaves the loop.

    a carried value that every round hands on   ->  the body reads the value before the loop
    a product or sum that is alike in each round ->  computed before the loop

The second moves only what takes long, with what it is made from and what is made of it at its size: a
broadcast outside would cost memory and save nothing. What follows a check inside stays after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from smelt.core.ir.graph import Attr, Graph, Module, Node, Ref, TensorType, attr_dims
from smelt.core.ops import OPS
from smelt.core.ops.traits import nominal_bytes
from smelt.core.passes.context import Context
from smelt.core.passes.rewriting.editor import Editor, edit_module, renamed_graph


def regions(module: Module, ctx: Context) -> Module:
    """The module whose loops carry only what changes and repeat only what differs."""
    return edit_module(module, _clean, ops={"loop"})


def _clean(editor: Editor) -> None:
    for key in editor.in_order():
        node = editor.nodes[key]
        if node.op == "loop":
            editor.at(key)
            _hoist(editor, _without_constants(editor, key, node))


# ---------------------------------------------------------------- carried values that stay


def _without_constants(editor: Editor, old_key: int, node: Node) -> int:
    """The key of the loop without the values that every round hands on as they are."""
    (body,), first = node.regions, node.inputs[2:]
    stays = [
        body.outputs[1 + k] in (v.name, first[k]) and editor.type_of(first[k]) == v.type
        for k, v in enumerate(body.inputs[2:])
    ]
    if not any(stays):
        return old_key
    names = {v.name: first[k] for k, v in enumerate(body.inputs[2:]) if stays[k]}
    keep = [k for k, s in enumerate(stays) if not s]
    count = len(stays)
    inner = renamed_graph(body, names).with_(
        inputs=(*body.inputs[:2], *(body.inputs[2 + k] for k in keep))
    )
    inner = inner.with_(
        outputs=(inner.outputs[0], *(inner.outputs[1 + k] for k in keep), *inner.outputs[1 + count :])
    )
    old = [*(node.outputs[k] for k in keep), *node.outputs[count:]]
    made = tuple(replace(v, name=editor.shop.name(v.name)) for v in old)
    inputs = (*node.inputs[:2], *(first[k] for k in keep))
    key = editor.add(Node("loop", inputs, made, node.attrs, (inner,), node.origin))
    editor.binds_for(old_key, key)
    for v, w in zip(old, made, strict=True):
        editor.replace(v.name, w.name)
    for k, s in enumerate(stays):
        if s:
            editor.replace(node.outputs[k].name, first[k])
    return key


# ---------------------------------------------------------------- work that stays the same


def _hoist(editor: Editor, key: int) -> None:
    """Move work that is alike in each round before the loop."""
    loop = editor.nodes[key]
    (body,) = loop.regions
    types = {v.name: v.type for v in (*body.inputs, *(v for n in body.nodes for v in n.outputs))}

    def type_of(ref: Ref) -> TensorType:
        return types[ref] if ref in types else editor.type_of(ref)

    alike = _alike(editor, body)
    heavy = {n.output.name for n in alike if _takes_long(editor, n, type_of)}
    moved = _around(alike, heavy, lambda n: _grows(editor, n, type_of))
    if not moved:
        return
    for n in moved:
        editor.add(n)
    names = {v.name for n in moved for v in n.outputs}
    rest = tuple(n for n in body.nodes if not any(v.name in names for v in n.outputs))
    editor.set_node(key, loop.with_(regions=(body.with_(nodes=rest),)))


def _alike(editor: Editor, body: Graph) -> list[Node]:
    """Pure nodes whose inputs and sizes are known before the loop."""
    inside: dict[Ref, TensorType] = {v.name: v.type for v in body.inputs}
    free: set[Ref] = set()  # made here, but alike in each round
    checked: set[str] = set()
    found = []
    for n in body.nodes:
        if n.op == "check":
            checked.update(_symbols(n.attrs))
        outside = all(r not in inside or r in free for r in n.inputs)
        if n.op in OPS and OPS[n.op].pure and outside and len(n.outputs) == 1 and n.inputs:
            known = {s for r in n.inputs if r for s in _sizes(inside.get(r) or editor.type_of(r))}
            own = _symbols(n.attrs) | _sizes(n.output.type)
            if own <= known and own.isdisjoint(checked):
                free.add(n.output.name)
                found.append(n)
        inside.update((v.name, v.type) for v in n.outputs)
    return found


def _takes_long(editor: Editor, n: Node, type_of: Callable[[Ref], TensorType]) -> bool:
    """Whether an element is a reduction, or no formula says what it is (and it is no view)."""
    trait = editor.shop.tracer.trait(n, [type_of(r) if r else None for r in n.inputs])
    return trait.heavy or (not trait.known and not OPS[n.op].view)


def _grows(editor: Editor, n: Node, type_of: Callable[[Ref], TensorType]) -> bool:
    """Whether the result takes more than what it is made of."""
    facts = editor.engine.facts
    return nominal_bytes(facts, n.output.type) > sum(nominal_bytes(facts, type_of(r)) for r in n.inputs if r)


def _around(alike: list[Node], heavy: set[Ref], grows: Callable[[Node], bool]) -> list[Node]:
    """What takes long, what that is made from, and what is made of it without growing; in order."""
    wanted = set(heavy)
    for n in reversed(alike):
        if n.output.name in wanted:
            wanted.update(r for r in n.inputs if r)
    made = set(heavy)
    for n in alike:
        if any(r in made for r in n.inputs) and not grows(n):
            made.add(n.output.name)
    wanted |= made
    for n in reversed(alike):  # what these need besides
        if n.output.name in wanted:
            wanted.update(r for r in n.inputs if r)
    return [n for n in alike if n.output.name in wanted]


def _sizes(t: TensorType) -> set[str]:
    return {s for d in t.shape for s in d.symbols}


def _symbols(attrs: Mapping[str, Attr]) -> set[str]:
    return {s for v in attrs.values() for d in attr_dims(v) for s in d.symbols}
