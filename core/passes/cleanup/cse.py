"""Graph -> Graph: of equal nodes, of equal weights and of binds of one element, only the first stays."""

from __future__ import annotations

from collections.abc import Hashable
from types import MappingProxyType

from smelt.core.dim import YES, Facts, sym, to_dim
from smelt.core.ir.graph import Module, Node, Ref, Weight, attrs_key
from smelt.core.ops import OPS
from smelt.core.passes.context import Context
from smelt.core.passes.rewriting.editor import Editor, edit_module, renamed_graph


def cse(module: Module, ctx: Context) -> Module:
    """The module with one node for each pure computation and one weight for each content."""
    return edit_module(_share_weights(module), _share_nodes)


def _share_weights(module: Module) -> Module:
    """One weight per (dtype, shape, content). Only weights that agree in type and begin alike are hashed."""
    types: dict[Hashable, list[Weight]] = {}
    for w in module.weights.values():
        types.setdefault((w.dtype, w.shape), []).append(w)
    alike: dict[Hashable, list[Weight]] = {}
    for kind, group in types.items():
        read = not any(w.is_named_only for w in group)
        for w in group if len(group) > 1 else ():
            alike.setdefault((kind, w.head if read else b""), []).append(w)
    first: dict[Hashable, Ref] = {}
    names: dict[Ref, Ref] = {}
    for kind, group in alike.items():
        for w in group if len(group) > 1 else ():
            kept = first.setdefault((kind, w.digest), w.name)
            if kept != w.name:
                names[w.name] = kept
    if not names:
        return module
    graphs = {k: renamed_graph(g, names) for k, g in module.graphs.items()}
    weights = {k: w for k, w in module.weights.items() if k not in names}
    return module.with_(graphs=graphs, weights=MappingProxyType(weights))


def _share_nodes(editor: Editor) -> None:
    seen: dict[Hashable, tuple[Ref, ...]] = {}
    binds: dict[Hashable, Node] = {}
    for key in editor.in_order():
        node = editor.nodes[key]
        if node.op == "bind" and node.inputs:
            first = binds.setdefault((node.inputs, node.attr("index", 0)), node)
            if first is not node and _implied(first, node):
                # q = x[0], where p = x[0] before   -->   q = p: an element is read once
                value = sym(str(first.attr("symbol")))
                attrs = {"symbol": node.attr("symbol"), "value": value}
                editor.set_node(key, node.with_(inputs=(), attrs=MappingProxyType(attrs)))
        if node.op not in OPS or not OPS[node.op].pure or node.regions:
            continue
        outputs = tuple(v.name for v in node.outputs)
        kept = seen.setdefault(_identity(node), outputs)
        if kept != outputs:
            for old, new in zip(outputs, kept, strict=True):
                editor.replace(old, new)


def _implied(first: Node, second: Node) -> bool:
    """Whether the range that one bind demands lies within another's."""
    low, high = (tuple(to_dim(n.attr(side)) for n in (first, second)) for side in ("low", "high"))
    facts = Facts()
    return facts.prove_le(low[1], low[0]) is YES and facts.prove_le(high[0], high[1]) is YES


def _identity(node: Node) -> Hashable:
    return (node.op, node.inputs, attrs_key(node.attrs), tuple(v.type for v in node.outputs))
