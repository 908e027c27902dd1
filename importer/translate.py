"""ONNX nodes in, core ops out: picks bindings, inlines functions, enters subgraphs, collects problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from smelt.core.diag import Problem, SmeltError, invalid, shown
from smelt.core.dim import TooLarge
from smelt.core.dtype import DType, bf16, f16, f32
from smelt.core.ir.graph import Ref
from smelt.importer import bindings, refusals, strings
from smelt.importer.branches import never_runs
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call, Undecided
from smelt.importer.contrib_signatures import contrib
from smelt.importer.domains import MS
from smelt.importer.load import captures, guard, label, opsets, ordered, subgraphs
from smelt.importer.sequences import Listed, Map, Maps, Maybe, Packed, Text, Texts, compound_of
from smelt.importer.signature import check_node, check_types, signature
from smelt.importer.undecided import Both, Tried
from smelt.importer.validity import once
from smelt.importer.weights import ONNX_OF, dense, weight_of

WIDE_FUNCTIONS = frozenset({("", "Attention")})
"""ONNX functions whose steps are computed in f32 where the inputs are 16-bit floats."""

REFUSED: Ref = "!"
"""The ref of a value whose node was refused: nodes that read it are skipped without another problem."""

MAX_CALL_DEPTH = 64
"""Deepest nesting of function calls; a deeper one is treated as a recursion."""


MOST_EXPANDED = 100_000
"""Most nodes after inlining of the model's own functions: sixty functions, each of which calls the one before
twice, would be 2^60."""


class Refused(Exception):
    """A subgraph holds a refused node, which has been reported already."""


@dataclass
class Attempt:
    """The result of an attempted translation: the reason of its failure, if any, and the model's problems.
    impossible: it failed at nodes that could never run with the sizes that they are given, though their
    operators' definitions allow them."""

    failed: SmeltError | Refused | None = None
    problems: dict[tuple[str | None, str], Problem] = field(default_factory=dict)
    impossible: bool = False


@dataclass(frozen=True)
class NodeScope:
    """The context of nodes: opsets in force, attributes of the enclosing function, a prefix for names, the
    functions whose calls they are inside of, and whether the last of these is ONNX's own definition."""

    opsets: Mapping[str, int]
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    prefix: str = ""
    calls: tuple[str, ...] = ()
    standard: bool = False


def key(n: NodeProto, scope: NodeScope) -> str:
    """Tells a node from all others of a model."""
    return f"{scope.prefix}{label(n)}:{next((o for o in n.output if o), '')}"


class Translator:
    """Translates the nodes of one model; collects problems until the end, so that all are reported."""

    def __init__(self, model: onnx.ModelProto, folders: tuple[Path, ...]) -> None:
        self.folders = folders
        self.problems: dict[tuple[str | None, str], Problem] = {}
        self.malformed: set[tuple[str | None, str]] = set()  # problems that no other sizes would end
        self.named: dict[str, set[str]] = {}  # op type -> names of its nodes, and of those inside its calls
        self.tried = Tried()
        self._lists = 0  # lists of nodes inside each other that are being translated
        self.functions = {
            ("" if f.domain == "ai.onnx" else f.domain, f.name, f.overload): f for f in model.functions
        }
        self._written: dict[
            tuple[str, str, str], int
        ] = {}  # nodes of a function, those that it calls included
        self._expanded = 0

    # ------------------------------------------------------------ graphs

    def graph(self, b: GraphBuilder, g: GraphProto, scope: NodeScope, given: Iterable[str] = ()) -> list[Ref]:
        """Translate a graph's initialisers and nodes into b; the refs of its outputs."""
        seen: set[str] = set()
        for t in (*g.initializer, *g.sparse_initializer):
            name = t.name if isinstance(t, onnx.TensorProto) else t.values.name
            if name in seen:
                raise invalid(f"initializer '{name}' is defined twice")
            seen.add(name)
            try:
                b.names[name] = self._initial(b, t, name)
            except SmeltError as e:
                reader = next((scope.prefix + label(n) for n in g.node if name in n.input), None)
                self.report(e if e.node else SmeltError(e.message, kind=e.kind, node=reader, hint=e.hint))
                b.names[name] = REFUSED
        for v in (*g.output, *g.value_info):
            if v.type.HasField("tensor_type") and v.type.tensor_type.HasField("shape"):
                b.declared[v.name] = len(v.type.tensor_type.shape.dim)
        outer = _Visible(b)
        nodes = ordered(g.node, [*given, *seen], outer)
        _declare_before(b, nodes)
        self.run(b, nodes, scope, [o.name for o in g.output])
        refs = []
        for o in g.output:
            ref = b.lookup(o.name)
            if ref is None:
                raise invalid(
                    f"graph output '{o.name}' is not defined: no node, input or initializer has this name",
                    hint="export the model again",
                )
            refs.append(ref)
        return refs

    def _initial(self, b: GraphBuilder, t: onnx.TensorProto | onnx.SparseTensorProto, name: str) -> Ref:
        """The value of an initialiser."""
        if isinstance(t, onnx.SparseTensorProto):
            t = dense(t, f"initializer '{name}'")
        if t.data_type == onnx.TensorProto.STRING:
            return strings.of_tensor(b, t, f"initializer '{t.name}'")
        return b.store.add_weight(weight_of(t, b.store.weight_ref(t.name), self.folders))

    def report(self, e: SmeltError, inputs: tuple[str, ...] = ()) -> None:
        """Record the problems of a refused node that reads these inputs."""
        for p in e.problems:
            self.problems.setdefault((p.node, p.message), p if p.inputs else replace(p, inputs=inputs))

    # ------------------------------------------------------------ nodes

    def run(self, b: GraphBuilder, nodes: Sequence[NodeProto], scope: NodeScope, outs: Sequence[str]) -> None:
        """Translate nodes in order; outs: the names that are read after them. Where a run decides a rank, the
        following nodes are translated for both cases. Raises Undecided where the cases do not end in one rank
        and the enclosing list of nodes may succeed."""
        self._lists += 1
        try:
            left, done = list(nodes), 0
            while done < len(left):
                n, made = left[done], len(b.nodes)
                try:
                    self.node(b, n, scope)
                    done += 1
                    continue
                except Undecided as e:
                    b.forget(made)
                    why = e
                both = Both(self, b, left[done:], scope, outs, why, why.key == key(n, scope), self.tried)
                try:
                    left, done = both.translate(), 0
                except Undecided:
                    if self._lists > 1:
                        raise
                    self.tried.firm.add(why.key)
                    left, done = both.nodes, 0
        finally:
            self._lists -= 1

    def node(self, b: GraphBuilder, n: NodeProto, scope: NodeScope) -> None:
        """Translate one node; on a refusal its outputs become REFUSED. Raises Undecided."""
        name = scope.prefix + label(n)
        b.engine.at(name, n.op_type)
        for op_type in (*scope.calls, n.op_type):
            self.named.setdefault(op_type, set()).add(name)
        results: Sequence[Ref]
        try:
            results = self._results(b, n, scope)
        except Refused:
            results = [REFUSED] * len(n.output)
        except Undecided:
            b.engine.take_checks()
            raise
        except TooLarge as e:
            self.report(
                SmeltError(f"{n.op_type}: {e.message}", kind=e.kind, node=name, hint=e.hint), _reads(b, n)
            )
            results = [REFUSED] * len(n.output)
        except SmeltError as e:
            if e.kind == "infra":  # the machine's failure is no problem of the model to go on from
                raise
            self.report(e, _reads(b, n))
            results = [REFUSED] * len(n.output)
        except MemoryError:
            raise
        except Exception as e:
            known = guard(e)
            if known is not None:
                raise SmeltError(known.message, kind=known.kind, node=name, hint=known.hint) from e
            raise SmeltError(
                f"{n.op_type}: internal error: {type(e).__name__}: {e}",
                kind="internal",
                node=name,
                hint="this is a bug of smelt; please report it with the model",
            ) from e
        b.engine.take_checks()
        for o, ref in zip(n.output, [*results, *[REFUSED] * len(n.output)], strict=False):
            if o:
                b.names[o] = ref or REFUSED
                if ref and ref != REFUSED:
                    b.store.origins.setdefault(ref, scope.prefix + o)

    def _results(self, b: GraphBuilder, n: NodeProto, scope: NodeScope) -> Sequence[Ref]:
        domain = "" if n.domain == "ai.onnx" else n.domain
        local = self.functions.get((domain, n.op_type, n.overload))
        version = scope.opsets.get(domain)
        if local is None and version is None:
            raise invalid(
                f"{n.op_type}: the model imports no operator set for domain '{domain or 'ai.onnx'}'",
                node=scope.prefix + label(n),
            )
        row = None if local is not None else bindings.find(domain, n.op_type, version or 0)
        refs = [b.lookup(i) if i else "" for i in n.input]
        waiting = any(r == REFUSED or r is None for r in refs)
        if local is None:
            # ONNX's definitions break its rules of types: SoftmaxCrossEntropyLoss of release 13 takes bf16,
            # and NegativeLogLikelihoodLoss, of which it is made, does not
            typed = () if waiting or scope.standard else refs
            try:
                _check_signature(b, n, domain, version or 0, _given(b, n, scope), typed)
            except SmeltError as e:
                self.malformed.update((p.node, p.message) for p in e.problems)
                raise
        if row is not None:
            if waiting:
                raise Refused
            results = row.build(self._call(b, n, scope, version or 0, [r or "" for r in refs]))
            b.flush_checks()
            found = [results] if isinstance(results, str) else list(results)
            for k, o in enumerate(n.output):
                if o and (k >= len(found) or not found[k]):
                    raise b.engine.fail(f"output {k} ('{o}') is not one that the operator makes here")
            return found
        inputs, back = [r or "" for r in refs], None
        if local is None and not waiting and (domain, n.op_type) in WIDE_FUNCTIONS:
            inputs, back = _widened(b, inputs)
        body = local or self._standard_body(b, n, domain, version or 0, inputs, scope, waiting)
        if body is None:
            raise b.engine.unsupported(
                refusals.message(domain, version or 0, n.op_type), try_=refusals.instead(domain, n.op_type)
            )
        if waiting:
            raise Refused
        defaults = _defaults(n, domain, version, local)
        results = self._inline(b, n, body, replace(scope, standard=local is None), inputs, defaults)
        return results if back is None else [_narrowed(b, r, back) for r in results]

    def _call(
        self, b: GraphBuilder, n: NodeProto, scope: NodeScope, version: int, refs: Sequence[Ref]
    ) -> Call:
        return Call(
            n, version, b, tuple(refs), _given(b, n, scope), tuple(n.output), Subgraphs(self, b, scope)
        )

    # ------------------------------------------------------------ functions

    def _standard_body(
        self,
        b: GraphBuilder,
        n: NodeProto,
        domain: str,
        version: int,
        refs: Sequence[Ref],
        scope: NodeScope,
        waiting: bool,
    ) -> FunctionProto | None:
        """ONNX's own definition of a composite op, when it has one."""
        try:
            schema: Any = onnx.defs.get_schema(n.op_type, version, domain)  # its stubs lack the functions
        except onnx.defs.SchemaError:
            return None
        found = FunctionProto()
        if schema.has_function:
            found.ParseFromString(schema.function_body.SerializeToString())
            return found
        if not schema.has_context_dependent_function:
            return None
        if waiting:
            raise Refused
        types = [_type_proto(b, r) if r else onnx.TypeProto() for r in refs]
        node = NodeProto(op_type=n.op_type, domain=n.domain, input=n.input, output=n.output)
        for name, a in _given(b, n, scope).items():
            node.attribute.add().CopyFrom(a)
            node.attribute[-1].name = name
        try:
            known = [v for v in schema.context_dependent_function_opset_versions if v <= version]
            body = schema.get_context_dependent_function_with_opset_version(
                max(known, default=version), node.SerializeToString(), [t.SerializeToString() for t in types]
            )
        except (RuntimeError, ValueError):  # no body for these types
            return None
        found.ParseFromString(body)
        return found if found.node else None

    def _nodes_of(self, f: FunctionProto) -> int:
        """How many nodes a function has after inlining; computed once per function."""
        key = ("" if f.domain == "ai.onnx" else f.domain, f.name, f.overload)
        if key not in self._written:
            self._written[key] = 0  # one that calls itself is refused for that
            total = 0
            for n in _all_nodes(f.node):
                inner = self.functions.get(("" if n.domain == "ai.onnx" else n.domain, n.op_type, n.overload))
                total += 1 + (0 if inner is None else self._nodes_of(inner))
            self._written[key] = total
        return self._written[key]

    def _inline(
        self,
        b: GraphBuilder,
        n: NodeProto,
        f: FunctionProto,
        scope: NodeScope,
        refs: Sequence[Ref],
        defaults: Mapping[str, AttributeProto],
    ) -> list[Ref]:
        if len(scope.calls) >= MAX_CALL_DEPTH:
            raise invalid(
                f"function '{f.name}' calls itself, or functions are nested too deeply",
                node=scope.prefix + label(n),
            )
        if len(n.output) > len(f.output):
            raise invalid(
                f"{n.op_type}: {len(n.output)} outputs of a function of {len(f.output)}",
                node=scope.prefix + label(n),
            )
        if len(n.input) > len(f.input):
            raise invalid(
                f"{n.op_type}: {len(n.input)} inputs for a function of {len(f.input)}",
                node=scope.prefix + label(n),
            )
        if not scope.calls:
            self._expanded += self._nodes_of(f)
        if self._expanded > MOST_EXPANDED:
            raise b.engine.unsupported(
                f"function '{f.name}' brings the model to more than {MOST_EXPANDED} nodes, written out",
                "an export without functions, or one where they call each other less often",
            )
        given = {**defaults, **_given(b, n, scope)}
        known = {**scope.opsets, **opsets(f.opset_import)}
        prefix, calls = f"{scope.prefix}{label(n)}/", (*scope.calls, n.op_type)
        inner = NodeScope(known, given, prefix, calls, scope.standard)
        own = {o for m in f.node for o in m.output}
        around = {u: r for u, r in _captured(b, given.values()).items() if u not in own}
        names = {**around, **dict(zip(f.input, [*refs, *[""] * len(f.input)], strict=False))}
        outer, b.declared = b.declared, {}
        for o, own in zip(n.output, f.output, strict=False):
            if o in outer:
                b.declared[own] = outer[o]
        with _names(b, names):
            nodes = ordered(f.node, list(names))
            _declare_before(b, nodes)
            self.run(b, nodes, inner, list(f.output))
            for wanted, o in zip(n.output, f.output, strict=False):
                if wanted and o not in b.names:
                    raise invalid(
                        f"{n.op_type}: output '{o}' of function '{f.name}' is not defined: none of its nodes "
                        "makes it",
                        node=scope.prefix + label(n),
                    )
            results = [b.names.get(o, REFUSED) for o in f.output]
        b.declared = outer
        b.engine.at(scope.prefix + label(n), n.op_type)
        return results


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, those of their subgraphs included."""
    for n in nodes:
        yield n
        for g in subgraphs(n):
            yield from _all_nodes(g.node)


def _captured(b: GraphBuilder, attributes: Iterable[AttributeProto]) -> dict[str, Ref]:
    """The values that graphs among a node's attributes capture, by name."""
    graphs = [g for a in attributes for g in ([a.g] if a.HasField("g") else a.graphs)]
    found = {u: b.lookup(u) for g in graphs for u in captures(g)}
    return {u: ref for u, ref in found.items() if ref is not None}


def _widened(b: GraphBuilder, refs: Sequence[Ref]) -> tuple[list[Ref], DType | None]:
    """The inputs with 16-bit floats cast to f32, and the first input's type; unchanged and None where that is
    no 16-bit float."""
    first = b.type_of(refs[0]).dtype if refs and refs[0] else f32
    if first not in (f16, bf16):
        return list(refs), None
    return [b.cast(r, f32) if r and b.type_of(r).dtype in (f16, bf16) else r for r in refs], first


def _narrowed(b: GraphBuilder, ref: Ref, dtype: DType) -> Ref:
    return b.cast(ref, dtype) if ref and ref != REFUSED and b.type_of(ref).dtype == f32 else ref


def _reads(b: GraphBuilder, n: NodeProto) -> tuple[str, ...]:
    """The inputs of a node as texts for messages, with their types where they have one."""
    known = b.store.types.keys() - b.store.compounds.keys()
    refs = {i: b.lookup(i) for i in n.input if i}
    return tuple(f"{i}: {b.type_of(r)}" for i, r in refs.items() if r in known)


RANK_KEEPING = frozenset(
    {"Abs", "Cast", "CastLike", "Clip", "Exp", "Identity", "LeakyRelu", "Log", "LogSoftmax", "Neg",
     "Reciprocal", "Relu", "Sigmoid", "Softmax", "Sqrt", "Tanh"}
)  # fmt: skip
"""Operators whose result has the rank of input 0, as they occur after reductions."""
WINDOWED = frozenset({"AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool"})
OF_RANK = {"Gemm": 2, "GRU": 3, "LSTM": 3, "RNN": 3}
"""Operator -> the one rank that it accepts."""
BROADCASTING = frozenset({"Add", "Div", "Mul", "Pow", "Sub"})
"""Operators whose result has the rank of one input where the other one is a scalar."""


def _demanded(n: NodeProto) -> int | None:
    """The rank of input 0 that a node's attributes imply; None where they imply none."""
    for a in n.attribute:
        if (n.op_type, a.name) == ("Transpose", "perm"):
            return len(a.ints)
        if n.op_type in WINDOWED and a.name == "kernel_shape":
            return len(a.ints) + 2
    return OF_RANK.get(n.op_type)


def _declare_before(b: GraphBuilder, nodes: Sequence[NodeProto]) -> None:
    """Propagate ranks backwards: those that the file declares for results, and those that nodes need of their
    inputs, hold for the nodes that make these."""
    for n in nodes:
        asked = _demanded(n) if n.domain in ("", "ai.onnx") and n.input else None
        if asked is not None:
            b.declared.setdefault(n.input[0], asked)
    scalars = {name for name, ref in b.names.items() if ref in b.store.types and not b.type_of(ref).rank}
    scalars |= {o for n in nodes if n.op_type == "Constant" and _is_scalar(n) for o in n.output}
    for n in reversed(nodes):
        rank = b.declared.get(n.output[0]) if n.output else None
        sources = list(n.input[:1]) if n.op_type in RANK_KEEPING else []
        if n.op_type in BROADCASTING:
            sources = [i for i in n.input if i not in scalars]
        if rank is not None and len(sources) == 1:
            b.declared.setdefault(sources[0], rank)


def _is_scalar(n: NodeProto) -> bool:
    return any(a.name in ("value_float", "value_int") or (a.name == "value" and not a.t.dims)
               for a in n.attribute)  # fmt: skip


def _check_signature(
    b: GraphBuilder,
    n: NodeProto,
    domain: str,
    version: int,
    given: Mapping[str, AttributeProto],
    refs: Sequence[Ref | None],
) -> None:
    """Raise SmeltError where the op's definition does not allow the node. refs: those of its inputs, None for
    one without a type."""
    own = contrib(n.op_type) if domain == MS else signature(domain, n.op_type, version)
    if own is not None:
        check_node(own, n, given, b.engine.fail, b.engine.unsupported)
        tensors = [None if not r or r in b.store.compounds else b.type_of(r) for r in refs]
        check_types(own, tensors, b.engine.fail)


def _given(b: GraphBuilder, n: NodeProto, scope: NodeScope) -> dict[str, AttributeProto]:
    """A node's attributes, with references to those of the function around it resolved."""
    found: dict[str, AttributeProto] = {}
    for a in n.attribute:
        if a.name in found:
            raise b.engine.fail(f"attribute '{shown(a.name)}' is given twice")
        if a.ref_attr_name and not scope.calls:
            raise b.engine.fail(
                f"attribute '{shown(a.name)}' refers to '{shown(a.ref_attr_name)}' of a function around the "
                "node, which has none"
            )
        source = scope.attributes.get(a.ref_attr_name) if a.ref_attr_name else a
        if source is not None:  # one that the caller left out is absent
            found[a.name] = source
    return found


def _defaults(
    n: NodeProto, domain: str, version: int | None, local: FunctionProto | None
) -> dict[str, AttributeProto]:
    """The values of a function's attributes that the node may leave out."""
    if local is not None:
        return {a.name: a for a in local.attribute_proto}
    schema = onnx.defs.get_schema(n.op_type, version or 1, domain)
    found = {k: a.default_value for k, a in schema.attributes.items()}
    return {k: a for k, a in found.items() if a.type != AttributeProto.UNDEFINED}


def _type_proto(b: GraphBuilder, ref: Ref) -> onnx.TypeProto:
    match compound_of(b.store, ref):
        case None:
            t = b.type_of(ref)
            shape = [d.const if d.is_const else str(d) for d in t.shape]
            return onnx.helper.make_tensor_type_proto(ONNX_OF[t.dtype], shape)
        case Maybe(_, item):
            inner = _type_proto(b, item) if item else onnx.TypeProto()
            return onnx.helper.make_optional_type_proto(inner)
        case Listed(dtype) | Packed(dtype):
            element = onnx.helper.make_tensor_type_proto(ONNX_OF[dtype], None)
            return onnx.helper.make_sequence_type_proto(element)
        case Text(chars):
            shape = [d.const if d.is_const else str(d) for d in b.type_of(chars).shape[:-1]]
            return onnx.helper.make_tensor_type_proto(onnx.TensorProto.STRING, shape)
        case Texts():
            element = onnx.helper.make_tensor_type_proto(onnx.TensorProto.STRING, None)
            return onnx.helper.make_sequence_type_proto(element)
        case Maps() | Map() as found:
            raise b.engine.unsupported(f"{found}, where a node is made of others")


@contextmanager
def _names(b: GraphBuilder, names: dict[str, Ref]) -> Iterator[None]:
    """A nested scope of names in the same graph."""
    saved, b.names = b.names, names
    try:
        yield
    finally:
        b.names = saved


class _Visible(Mapping[str, Ref]):
    """The names that a graph can read from enclosing graphs."""

    def __init__(self, b: GraphBuilder) -> None:
        self._b = b

    def __getitem__(self, name: str) -> Ref:
        ref = self._b.lookup(name)
        if ref is None:
            raise KeyError(name)
        return ref

    def __iter__(self) -> Iterator[str]:
        return iter(self._b.names)

    def __len__(self) -> int:
        return len(self._b.names)


@dataclass(frozen=True)
class Subgraphs:
    """The interface by which a binding translates the graphs in its attributes."""

    translator: Translator
    builder: GraphBuilder
    scope: NodeScope

    def may_wait(self, n: NodeProto) -> bool:
        """Whether translating both cases of this node's rank has not been tried yet."""
        return self.key(n) not in self.translator.tried.firm

    def key(self, n: NodeProto) -> str:
        """Tells a node from all others of the model."""
        return key(n, self.scope)

    def external(self, t: onnx.TensorProto, name: str, what: str) -> Ref:
        """The weight of a tensor attribute with external data."""
        store = self.builder.store
        return store.add_weight(weight_of(t, store.weight_ref(name), self.translator.folders, what))

    def inline(self, g: GraphProto) -> list[Ref]:
        """Translate the graph's nodes into the enclosing graph; the refs of its outputs."""
        b = self.builder
        with _names(b, dict(b.names)):
            where, op = b.engine.node, b.engine.op
            refs = self.translator.graph(b, g, self.scope)
            b.engine.at(where, op)
        if REFUSED in refs:
            raise Refused
        return refs

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        """A translation that may fail without a report, unless `give_up` is called."""
        found, engine = Attempt(), self.builder.engine
        where, before = (engine.node, engine.op), dict(self.translator.problems)
        try:
            yield found
        except (SmeltError, Refused) as e:
            found.failed, found.problems = e, self.translator.problems
            never = never_runs(found.problems, before, self.translator.malformed)
            found.impossible = never and isinstance(e, Refused)
            self.translator.problems = before
            engine.take_checks()
            engine.at(*where)

    def give_up(self, attempt: Attempt) -> SmeltError | Refused:
        """Report the problems of a failed attempt; its reason."""
        assert attempt.failed is not None
        self.translator.problems.update(attempt.problems)
        return attempt.failed

    def region(
        self, g: GraphProto, head: Callable[[GraphBuilder], Sequence[Ref]]
    ) -> tuple[GraphBuilder, list[Ref]]:
        """The graph as a region of its own; `head` makes the refs that its inputs stand for."""
        b = GraphBuilder(self.builder.store, self.builder)
        return b, self.body(b, g, head(b))

    def body(self, b: GraphBuilder, g: GraphProto, inputs: Sequence[Ref]) -> list[Ref]:
        """The graph's nodes in a builder, its inputs standing for these refs; the refs of its outputs."""
        if len(g.input) != len(inputs):
            raise b.engine.fail(f"the subgraph has {len(g.input)} inputs, wanted {len(inputs)}")
        once(
            [*(v.name for v in g.input), *(t.name for t in g.initializer)],
            "input or initializer of the subgraph",
        )
        names = dict(b.names) | {v.name: r for v, r in zip(g.input, inputs, strict=True)}
        where, op = b.engine.node, b.engine.op
        with _names(b, names):
            refs = self.translator.graph(b, g, self.scope, [v.name for v in g.input])
        b.engine.at(where, op)
        if REFUSED in refs:
            raise Refused
        return refs
