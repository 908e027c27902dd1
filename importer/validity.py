"""A parsed model in; SmeltError out for duplicate or illegal operator sets, functions and names, before nodes
are translated."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from smelt.core.diag import invalid, shown, unsupported

NUL = "\0"
LONGEST_TENSOR_NAME = 1 << 14
"""Most characters of a tensor's or node's name: exporters that join names of fused nodes write thousands."""


def check_definitions(model: onnx.ModelProto) -> None:
    """Check definitions. Raises SmeltError: 'invalid' for operator sets and functions that are defined twice,
    and names that C strings cannot hold; 'unsupported' for an opset newer than the known ones, and too long
    names."""
    check_imports(model.opset_import, "the model")
    if not model.opset_import and model.graph.node:
        raise invalid("the model imports no operator set", hint="its export is incomplete; export it again")
    _check_functions(model.functions)
    for what, named in (("input", model.graph.input), ("output", model.graph.output)):
        for v in named:
            if NUL in v.name:
                raise invalid(f"the name of {what} '{v.name}' holds a NUL character")
    _check_names(model.graph)
    for f in model.functions:
        _check_lengths((*f.input, *f.output))
        _check_nodes(f.node)


def _check_names(graph: onnx.GraphProto) -> None:
    """Check the lengths of all names of a graph and of its nodes' subgraphs."""
    _check_lengths(v.name for v in (*graph.input, *graph.output, *graph.initializer))
    _check_lengths(t.values.name for t in graph.sparse_initializer)
    _check_nodes(graph.node)


def _check_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for n in nodes:
        _check_lengths((n.name, *n.input, *n.output))
        for a in n.attribute:
            for g in (*a.graphs, *((a.g,) if a.HasField("g") else ())):
                _check_names(g)


def _check_lengths(names: Iterable[str]) -> None:
    for name in names:
        if len(name) > LONGEST_TENSOR_NAME:
            raise unsupported(
                f"a name has {len(name)} characters: '{shown(name)}'",
                try_=f"names of at most {LONGEST_TENSOR_NAME}",
            )


def check_imports(imports: Iterable[onnx.OperatorSetIdProto], what: str) -> None:
    """Raise SmeltError for a domain with two versions, or with an impossible one."""
    found: dict[str, int] = {}
    for o in imports:
        domain = "" if o.domain == "ai.onnx" else o.domain
        if o.version < 1:
            raise invalid(f"{what} imports version {o.version} of domain '{domain or 'ai.onnx'}'")
        if found.setdefault(domain, o.version) != o.version:
            raise invalid(
                f"{what} imports versions {found[domain]} and {o.version} of domain '{domain or 'ai.onnx'}'",
                hint="export the model again",
            )
    version, newest = found.get("", 1), onnx.defs.onnx_opset_version()
    if version > newest:
        raise unsupported(
            f"opset {version} is newer than {newest}, the newest known", try_="a newer onnx package"
        )


def _check_functions(functions: Iterable[onnx.FunctionProto]) -> None:
    seen: set[tuple[str, str, str]] = set()
    for f in functions:
        key = ("" if f.domain == "ai.onnx" else f.domain, f.name, f.overload)
        if key in seen:
            raise invalid(f"function '{f.name}' of domain '{f.domain}' is defined twice")
        seen.add(key)
        for what, names in (
            ("input", list(f.input)),
            ("output", list(f.output)),
            ("attribute", [*f.attribute, *(a.name for a in f.attribute_proto)]),
        ):
            once(names, f"{what} of function '{f.name}'")
        check_imports(f.opset_import, f"function '{f.name}'")


def once(names: Iterable[str], what: str) -> None:
    """Raise SmeltError for a name that occurs twice or is empty."""
    seen: set[str] = set()
    for n in names:
        if not n:
            raise invalid(f"an {what} has no name" if what[0] in "aeio" else f"a {what} has no name")
        if n in seen:
            raise invalid(f"{what} '{n}' is declared twice", hint="give one of them another name")
        seen.add(n)
