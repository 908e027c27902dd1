"""Graph -> Graph: of equal nodes, and of equal weights, only the first stays."""

from __future__ import annotations

from collections.abc import Hashable
from types import MappingProxyType

from smelt.core.ir.graph import Module, Node, Ref, Weight, attrs_key
from smelt.core.ops import OPS
from smelt.core.passes.context import Context
from smelt.core.passes.editor import Editor, edit_module, renamed_graph


def cse(module: Module, ctx: Context) -> Module:
    """The module with one node for each pure computation and one weight for each content."""
    return edit_module(_share_weights(module), _share_nodes)


def _share_weights(module: Module) -> Module:
    """One weight per (dtype, shape, content). Only weights that agree in type are hashed."""
    alike: dict[Hashable, list[Weight]] = {}
    for w in module.weights.values():
        alike.setdefault((w.dtype, w.shape), []).append(w)
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
    for key in editor.in_order():
        node = editor.nodes[key]
        if node.op not in OPS or not OPS[node.op].pure or node.regions:
            continue
        outputs = tuple(v.name for v in node.outputs)
        kept = seen.setdefault(_identity(node), outputs)
        if kept != outputs:
            for old, new in zip(outputs, kept, strict=True):
                editor.replace(old, new)


def _identity(node: Node) -> Hashable:
    return (node.op, node.inputs, attrs_key(node.attrs), tuple(v.type for v in node.outputs))
