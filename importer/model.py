"""An ONNX model in; a Module of core ops out, or all problems that prevent it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import onnx

from smelt.core.diag import Problem, SmeltError, invalid, merge, unsupported
from smelt.core.ir.graph import Module, Ref
from smelt.core.ops.infer import Demand, Engine
from smelt.importer import sequences as sq
from smelt.importer.builder import GraphBuilder, ImportStore
from smelt.importer.finish import check_declared, finish, with_file_names
from smelt.importer.interface import DeclaredPort, input_tensors, made_port, port, received, returned, typed
from smelt.importer.load import UNSAID, Loaded, Source, guard, label, load, opsets, subgraphs
from smelt.importer.symbols import Dims, declare_inputs, known_dims
from smelt.importer.translate import NodeScope, Translator
from smelt.importer.validity import once

Named: TypeAlias = Mapping[str, Collection[str]]
"""Op type of ONNX, or name of a function -> the origins of its nodes, those inside its calls included."""

_Found: TypeAlias = tuple[Module | None, list[Problem], Named]


def import_model(
    source: Source, dims: Dims | None = None, outputs: Sequence[str] = (), *, flush: bool = False
) -> Module:
    """Read an ONNX model: a path, bytes, or a ModelProto.

    dims: fixes or bounds symbols by name: {"batch": 1, "seq": (1, 512)}; an unnamed dim of an input is called
    'input:axis'. outputs: ONNX names of values to return after the model's own outputs. flush: subnormal
    numbers are 0 to the arithmetic of constants.

    The Module's graph 'main' holds core ops only; every value has a dtype and a shape of Dims; weights are
    mapped from external files on use.

    Raises SmeltError: 'invalid' when no runtime could accept the file, 'unsupported' with all the nodes that
    smelt cannot translate.
    """
    return import_named(source, dims, outputs, flush=flush)[0]


def import_named(
    source: Source, dims: Dims | None = None, outputs: Sequence[str] = (), *, flush: bool = False
) -> tuple[Module, Named]:
    """The Module of `import_model`, and by op type what its nodes are called there. Raises as that."""
    module, problems, named = _imported(source, dims, outputs, flush)
    if problems:
        raise merge(tuple(problems))
    assert module is not None
    return module, named


def check_model(source: Source, dims: Dims | None = None) -> list[Problem]:
    """Every problem that import_model would raise; an empty list when there is none."""
    try:
        return _imported(source, dims, (), False)[1]
    except SmeltError as e:
        return list(e.problems)


def names_of(
    source: Source, dims: Iterable[str], values: Iterable[str], nodes: Iterable[str]
) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """(the keys of `dims`, the names of values, the names and op types of nodes) out of these that a model
    has. Raises SmeltError."""
    loaded = load(source)
    g = loaded.model.graph
    inputs = _inputs(g)
    known = known_dims([v for p in inputs for v in input_tensors(port(p, "input"))], dims)
    own = {name for n in g.node for name in n.output} | {v.name for v in inputs}
    named = {name for n in _all_nodes(loaded.model) for name in (label(n), n.op_type)}
    return known, frozenset(values) & own, frozenset(nodes) & named


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Those of functions and of inner graphs as well."""
    left = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    while left:
        n = left.pop()
        yield n
        left += [inner for g in subgraphs(n) for inner in g.node]


def _inputs(g: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    constants = {t.name for t in g.initializer} | {s.values.name for s in g.sparse_initializer}
    return [v for v in g.input if v.name not in constants]  # before IR 4 initialisers were inputs as well


def _imported(
    source: Source, dims: Dims | None, outputs: Sequence[str], flush: bool
) -> _Found:
    try:
        return _translated(load(source), dims, outputs, flush)
    except (UnicodeDecodeError, RecursionError) as e:
        known = guard(e)
        assert known is not None
        raise known from e


def _translated(loaded: Loaded, dims: Dims | None, extra: Sequence[str], flush: bool) -> _Found:
    """Translate once; or twice where a broadcast met extents that may be 1, and later nodes imply more about
    them."""
    engine, found = _attempt(loaded, dims, extra, (), flush)
    if engine.joined and engine.demands:
        _, found = _attempt(loaded, dims, extra, engine.demands, flush)
    return found


def _attempt(
    loaded: Loaded, dims: Dims | None, extra: Sequence[str], demands: Sequence[Demand], flush: bool
) -> tuple[Engine, _Found]:
    model, g = loaded.model, loaded.model.graph
    inputs = _inputs(g)
    once([v.name for v in inputs], "graph input")
    if not g.output:
        raise invalid("the graph has no outputs", hint="export the model again")
    engine = Engine()
    b = GraphBuilder(ImportStore(engine, flush=flush))
    _receive(b, [port(v, "input") for v in inputs], dims)
    engine.expect(demands)
    translator = Translator(model, loaded.folders)
    scope = NodeScope({**UNSAID, **opsets(model.opset_import)})
    refs = translator.graph(b, g, scope, [v.name for v in inputs])
    if not translator.problems:
        for e in check_declared(b, g):
            translator.report(e)
    if translator.problems:
        return engine, (None, list(translator.problems.values()), {})
    refs, infos = _return(b, g.output, refs)
    own = [o.name for o in infos]
    once(own, "graph output")
    more = [name for name in dict.fromkeys(extra) if name not in own]
    refs += [_extra(b, name) for name in more]
    names = [*own, *more]
    module = finish(_module_name(loaded.name), b, refs, names)
    return engine, (with_file_names(module, infos), [], translator.named)


def _receive(b: GraphBuilder, ports: Sequence[DeclaredPort], dims: Dims | None) -> None:
    """Declare the tensors that represent the inputs, and name the values assembled of them."""
    infos = [(p, v) for p in ports for v in input_tensors(p)]
    once([v.name for _, v in infos], "graph input")
    types = declare_inputs(b.engine, [v for _, v in infos], dims)
    refs = {name: b.add_input(_input_ref(b, name), t, name) for name, t in types.items()}
    for p in ports:
        b.names[p.name] = received(b, p, [refs[part] for part in p.parts])


def _return(
    b: GraphBuilder, outputs: Sequence[onnx.ValueInfoProto], refs: Sequence[Ref]
) -> tuple[list[Ref], list[onnx.ValueInfoProto]]:
    """The tensors that represent the outputs, and their declarations."""
    parts: list[Ref] = []
    infos: list[onnx.ValueInfoProto] = []
    for v, ref in zip(outputs, refs, strict=True):
        p = port(v, "output") if typed(v) else made_port(b, v.name, ref)
        parts += returned(b, p, ref)
        infos += [v] if p.kind == "tensor" else [onnx.ValueInfoProto(name=name) for name in p.parts]
    return parts, infos


def _extra(b: GraphBuilder, name: str) -> Ref:
    """The ref of a value that the caller asks for by its ONNX name."""
    ref = b.names.get(name)
    if not ref:
        raise invalid(f"no value of the main graph is called '{name}'", hint="pass names of node outputs")
    if sq.compound_of(b.store, ref) is not None:
        raise unsupported(f"value '{name}' is no tensor, so it cannot be returned as well")
    return ref


def _input_ref(b: GraphBuilder, name: str) -> str:
    base = re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip("_.") or "x"
    # %v1, %v2, ... are the names of computed values
    base = f"%x{base}" if base[0].isdigit() or re.fullmatch(r"v\d+", base) else f"%{base}"
    ref, n = base, 1
    while ref in b.store.types:
        ref, n = f"{base}_{n}", n + 1
    return ref


def _module_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_") or "model"
