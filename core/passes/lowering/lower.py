"""Graph -> Graph: ops and fused nodes become calls of naive kernels; equal kernels are one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

from smelt.core.diag import unsupported
from smelt.core.dim import YES, Dim, Facts, SymbolAtom, dmax, sym
from smelt.core.dim.expr import sole_atom
from smelt.core.ir.analysis.scope import Access, accesses, kernel_facts
from smelt.core.ir.graph import Attr, Graph, Module, Node, Ref, TensorType
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Buffer,
    DimParam,
    Expr,
    Kernel,
    Let,
    Loop,
    Reduce,
    Stmt,
    Store,
    Tiles,
    children,
)
from smelt.core.ir.params import parameter, union
from smelt.core.ir.rewrite import bound_here, free_symbols, map_stmt_dims, rename_vars
from smelt.core.ir.units import HELD, VIEWS
from smelt.core.ops import OPS
from smelt.core.ops.trace import MARK, Trace, cast
from smelt.core.ops.traits import out_index, variable
from smelt.core.passes.context import Context
from smelt.core.passes.lowering.abstract import (
    Abstraction,
    Equation,
    all_inside,
    equations,
    independent,
)
from smelt.core.passes.lowering.alike import Alike
from smelt.core.passes.lowering.collapse import NestForm, collapse_nest, drop_units, read_buffers
from smelt.core.passes.lowering.compose import Composer, Simplifier, inline_scalars
from smelt.core.passes.lowering.split import split_divided
from smelt.core.passes.rewriting.editor import STRUCTURAL, Editor, edit_module

KEEP = (STRUCTURAL - {"fused"}) | VIEWS
NAME_OPS = 5  # ops that a kernel's name spells out
QUIET = frozenset({"reshape", "transpose", "broadcast_to", "slice", "cast"})  # not in names of mixed groups


def lower(module: Module, ctx: Context) -> Module:
    """The module whose graphs hold only views, calls, checks, bindings and control flow.

    Each remaining op becomes a naive kernel: a nest of serial loops over the output with one store for
    each output. Extents are the kernel's dims; leading axes that are only iterated together are one dim.
    Where rules are to place kernels, calls say the names of the nodes that they hold. Raises
    SmeltError(kind='unsupported') for an op without a formula."""
    room, named = _Room(dict(module.kernels)), bool(ctx.options.place)
    lowered = edit_module(module, lambda editor: _lower(editor, room, named))
    return lowered.with_(kernels=MappingProxyType(room.kernels))


class _Room:
    """The kernels made so far, by structure and by name."""

    def __init__(self, kernels: dict[str, Kernel]) -> None:
        self.kernels = kernels
        self._names: dict[Kernel, str] = {}

    def name_of(self, kernel: Kernel) -> str:
        """The name under which an equal kernel stands; a new one gets its own."""
        key = kernel.with_(name="", origin="", dims=tuple(DimParam(d.name) for d in kernel.dims))
        found = self._names.get(key)
        if found is not None:
            known = self.kernels[found]
            dims = tuple(union(a, b) for a, b in zip(known.dims, kernel.dims, strict=True))
            self.kernels[found] = known.with_(dims=dims)
            return found
        name, n = kernel.name, 1
        while name in self.kernels:
            n += 1
            name = f"{kernel.name}_{n}"
        self._names[key] = name
        self.kernels[name] = kernel.with_(name=name)
        return name


def _lower(editor: Editor, room: _Room, named: bool) -> None:
    simplifier = Simplifier(editor.engine.facts)
    alike = Alike(inline_scalars(editor.shop.weights))
    # what equal nodes became: the kernel's name, the positions of what it reads, its dims
    made: dict[Hashable, tuple[str, tuple[int, ...], tuple[Dim, ...]]] = {}
    for key in editor.in_order():
        node = editor.nodes[key]
        if node.op in KEEP:
            continue
        same, reads = _same(editor, node, alike)
        if same not in made:
            kernel, refs, dims = _kernel(editor, node, simplifier)
            made[same] = room.name_of(kernel), tuple(map(reads.index, refs)), dims
        name, places, dims = made[same]
        inputs = tuple(reads[p] for p in places)
        attrs: dict[str, Attr] = {"kernel": name, "dims": dims}
        if named:
            attrs[HELD] = _origins(_parts(node))
        editor.set_node(
            key, Node("call_kernel", inputs, node.outputs, MappingProxyType(attrs), origin=node.origin)
        )


def _same(editor: Editor, node: Node, alike: Alike) -> tuple[Hashable, tuple[Ref, ...]]:
    """A key that nodes with equal kernels share, and the refs that the node may read, in the key's order."""
    if node.op != "fused":
        # a nest reads literals from memory, as any other operand
        own = OPS.get(node.op)
        scope = Alike(lambda ref: None) if own is not None and own.nest is not None else alike
        return scope.key((node,), editor.type_of)
    region = node.regions[0]
    types = {v.name: v.type for v in region.inputs}
    outside = dict(zip((v.name for v in region.inputs), node.inputs, strict=True))
    key, refs = alike.key(region.nodes, lambda r: types[r] if r in types else editor.type_of(r))
    outer = tuple(outside.get(r, r) for r in refs)
    return (key, _slots(region), tuple(map(outer.index, outer))), outer


def _slots(region: Graph) -> tuple[tuple[int, int], ...]:
    """Which node's which output each result of a region is."""
    at = {v.name: (i, k) for i, n in enumerate(region.nodes) for k, v in enumerate(n.outputs)}
    return tuple(at[r] for r in region.outputs)


def _kernel(
    editor: Editor, node: Node, simplifier: Simplifier
) -> tuple[Kernel, tuple[Ref, ...], tuple[Dim, ...]]:
    """The naive kernel of a node, the refs that it reads, and what its dims are here."""
    nodes = _parts(node)
    for n in nodes:
        if n.op not in OPS:
            raise unsupported(f"op '{n.op}' has no formula", node=n.origin or None)
    facts = editor.engine.facts
    if len(nodes) == 1 and OPS[nodes[0].op].nest is not None:
        body, buffers, refs = _nest(editor, nodes[0])
    else:
        body, buffers, refs = _formula(editor, node, nodes, simplifier)
    inputs, outputs, scratch = buffers
    body, inputs, outputs, scratch, dims, params = _in_own_dims(body, inputs, outputs, scratch, facts)
    body = tuple(_renumbered(s) for s in body)
    ops = [n.op for n in nodes if n.op not in QUIET] or [n.op for n in nodes if n.op != "reshape"]
    kernel = Kernel(
        "_".join(ops[:NAME_OPS]) + ("_etc" if len(ops) > NAME_OPS else ""),
        params, inputs, outputs, body, scratch, origin=", ".join(_origins(nodes))
    )
    return kernel, refs, dims


def _parts(node: Node) -> tuple[Node, ...]:
    """The nodes that a kernel is made of."""
    return node.regions[0].nodes if node.op == "fused" else (node,)


def _origins(nodes: Sequence[Node]) -> tuple[str, ...]:
    """What the model calls the nodes, each name once."""
    return tuple(dict.fromkeys(n.origin for n in nodes if n.origin))


NestBuffers = tuple[tuple[Buffer, ...], tuple[Buffer, ...], tuple[Buffer, ...]]


def _nest(editor: Editor, node: Node) -> tuple[tuple[Stmt, ...], NestBuffers, tuple[Ref, ...]]:
    """An op whose row writes its own statements."""
    rule = OPS[node.op].nest
    assert rule is not None
    refs = tuple(dict.fromkeys(r for r in node.inputs if r))
    buffers = {r: _buffer(f"x{k}", editor.type_of(r)) for k, r in enumerate(refs)}
    outputs = tuple(
        _buffer("y" if len(node.outputs) == 1 else f"y{k}", v.type) for k, v in enumerate(node.outputs)
    )
    made = rule(Trace(MARK), node.attrs, [buffers.get(r) for r in node.inputs], outputs)
    return made.body, (tuple(buffers.values()), outputs, made.scratch), refs


def _buffer(name: str, t: TensorType) -> Buffer:
    return Buffer(name, t.dtype, t.shape)


def _formula(
    editor: Editor, node: Node, nodes: Sequence[Node], simplifier: Simplifier
) -> tuple[tuple[Stmt, ...], NestBuffers, tuple[Ref, ...]]:
    """Composed compute rules: one nest for each output."""
    region: Graph | None = node.regions[0] if node.op == "fused" else None
    types: dict[Ref, TensorType] = {}
    outside: dict[Ref, Ref] = {}
    if region is not None:
        types = {v.name: v.type for v in region.inputs}
        outside = dict(zip((v.name for v in region.inputs), node.inputs, strict=True))
    types |= {v.name: v.type for n in nodes for v in n.outputs}
    inline = inline_scalars(editor.shop.weights)

    def type_of(ref: Ref) -> TensorType:
        return types[ref] if ref in types else editor.type_of(ref)

    made = {v.name for n in nodes for v in n.outputs}
    reads = dict.fromkeys(r for n in nodes for r in n.inputs if r and r not in made and inline(r) is None)
    names = {r: f"x{k}" for k, r in enumerate(reads)}
    composer = Composer(nodes, type_of, inline)
    results = region.outputs if region is not None else tuple(v.name for v in node.outputs)
    nests = []
    for k, (ref, v) in enumerate(zip(results, node.outputs, strict=True)):
        shape, index = v.type.shape, out_index(v.type.shape)
        e = simplifier.element(composer.at(ref, index), shape)
        e = _renamed(cast(e, v.type.dtype), names)
        variables = tuple((variable(a), n) for a, n in enumerate(shape) if n.const_or_none != 1)
        output = _buffer("y" if len(results) == 1 else f"y{k}", v.type)
        inputs = tuple(_buffer(names[r], type_of(r)) for r in reads)
        nests.append(NestForm(variables, output, index, e, inputs))
    if len(nests) == 1:
        nests = [split_divided(collapse_nest(drop_units(nests[0])), editor.engine.facts)]
    used = {b for n in nests for b in read_buffers(n.value)}
    inputs = tuple(b for b in nests[0].inputs if b.name in used)
    refs = tuple(outside.get(r, r) for r in reads if names[r] in used)
    body = tuple(_loops(n) for n in nests)
    return body, (inputs, tuple(n.output for n in nests), ()), refs


def _renamed(e: Expr, names: dict[Ref, str]) -> Expr:
    from smelt.core.ir.rewrite import rename_buffers_expr

    return rename_buffers_expr(e, names)


def _loops(nest: NestForm) -> Stmt:
    """The store inside its serial loops."""
    body: Stmt = Store(nest.output.name, nest.index, nest.value)
    for v, n in reversed(nest.variables):
        body = Loop("serial", v, n, (body,))
    return body


def _renumbered(s: Stmt) -> Stmt:
    """Variables named by their order: loops i0, i1, ..., reductions k0, k1, ..., lets g0, g1, ..."""
    names: dict[str, str] = {}
    counts = dict.fromkeys("ikg", 0)
    for letter, v in _bound(s):
        if v not in names:
            names[v] = f"{letter}{counts[letter]}"
            counts[letter] += 1
    return rename_vars(s, names) if any(a != b for a, b in names.items()) else s


def _bound(s: Stmt) -> Iterator[tuple[str, str]]:
    if isinstance(s, Loop | Tiles):
        yield from (("i", v) for v in bound_here(s))
    if isinstance(s, Store):
        yield from _bound_in(s.value)
        return
    if isinstance(s, Block):
        for v, e, _, _ in s.let:
            yield "g", v
            yield from _bound_in(e)
    for c in s.body:
        yield from _bound(c)


def _bound_in(e: Expr) -> Iterator[tuple[str, str]]:
    if isinstance(e, Reduce):
        yield from (("k", a.var) for a in e.axes)
    elif isinstance(e, Let):
        yield "g", e.var
    for c in children(e):
        yield from _bound_in(c)


# ---------------------------------------------------------------- dims

KernelParts = tuple[
    tuple[Stmt, ...], tuple[Buffer, ...], tuple[Buffer, ...], tuple[Buffer, ...],
    tuple[Dim, ...], tuple[DimParam, ...],
]


def _in_own_dims(
    body: tuple[Stmt, ...], inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...],
    scratch: tuple[Buffer, ...], facts: Facts,
) -> KernelParts:
    """The kernel in dims of its own. First every extent is a dim by itself, which lets layers of
    different sizes share the kernel. When that loses what keeps the accesses inside, extents that others
    give are spelt by those; and when that does not help either, the module's symbols are the dims."""
    sizes = [n for b in (*outputs, *inputs, *scratch) for n in b.shape]
    extents = (n for s in body for n in _extents(s))
    sizes += [n for n in extents if not any(v.startswith(MARK) for v in n.symbols)]
    symbols = sorted({s for n in sizes for s in n.symbols} | set(free_symbols(body)))
    choices: tuple[Callable[[], tuple[Equation, ...]], ...] = (
        lambda: equations(sizes, facts),
        lambda: independent(sizes, facts),
        lambda: equations([sym(s) for s in symbols], facts),
    )
    first: KernelParts | None = None
    for choose in choices:
        made = _rewritten(body, inputs, outputs, scratch, facts, choose())
        if _proved(made):
            return made
        first = first or made
    assert first is not None
    return first


def _rewritten(
    body: tuple[Stmt, ...], inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...],
    scratch: tuple[Buffer, ...], facts: Facts, found: Sequence[Equation],
) -> KernelParts:
    abstraction = Abstraction(found)
    body = tuple(map_stmt_dims(s, abstraction) for s in body)

    def own(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(replace(b, shape=tuple(abstraction(n) for n in b.shape)) for b in buffers)

    inputs, outputs, scratch = own(inputs), own(outputs), own(scratch)
    speaks = {s for b in (*inputs, *outputs, *scratch) for n in b.shape for s in n.symbols}
    speaks |= set(free_symbols(body))
    given = {e.name: e.size for e in reversed(abstraction.equations)}
    names = list(dict.fromkeys(e.name for e in abstraction.equations if e.name in speaks))
    names += sorted(speaks - given.keys())
    dims: list[Dim] = []
    mapping: dict[str, Dim] = {}
    for s in names:
        first, *rest = _unsigned(given.get(s, sym(s)), facts)
        mapping[s] = sym(f"d{len(dims)}") - (sym(f"d{len(dims) + 1}") if rest else 0)
        dims += first, *rest
    if any(sym(s) != d for s, d in mapping.items()):

        def change(d: Dim) -> Dim:
            return d.substitute(mapping)

        body = tuple(map_stmt_dims(s, change) for s in body)
        inputs, outputs, scratch = (
            tuple(replace(b, shape=tuple(change(n) for n in b.shape)) for b in buffers)
            for buffers in (inputs, outputs, scratch)
        )
    params = tuple(parameter(f"d{k}", d, facts) for k, d in enumerate(dims))
    return body, inputs, outputs, scratch, tuple(dims), params


def _unsigned(size: Dim, facts: Facts) -> tuple[Dim, ...]:
    """Dims of a kernel, which are 0 or more, for a size: itself; or, of a number that may be less (what a Pad
    cuts off), what it has above 0 and what it has below, whose difference it is."""
    if not isinstance(sole_atom(size), SymbolAtom) or facts.prove_le(0, size) is YES:
        return (size,)
    return dmax(size, 0), dmax(-size, 0)


def _extents(s: Stmt) -> Iterator[Dim]:
    """Extents of loops and reductions."""
    if isinstance(s, Store):
        yield from _axis_extents(s.value)
        return
    if isinstance(s, Loop):
        yield s.extent
    for c in s.body:
        yield from _extents(c)


def _axis_extents(e: Expr) -> Iterator[Dim]:
    if isinstance(e, Reduce):
        for a in e.axes:
            yield a.extent
    for c in children(e):
        yield from _axis_extents(c)


def _proved(made: KernelParts) -> bool:
    """Whether every access of the kernel is proved to stay inside, or has a guard."""
    body, inputs, outputs, scratch, _, params = made
    if not params:
        return True
    shapes = {b.name: b.shape for b in (*inputs, *outputs, *scratch)}
    facts = kernel_facts(Kernel("", tuple(DimParam(p.name) for p in params), (), (), ()))
    scopes: dict[tuple[int, ...], tuple[object, Facts]] = {}  # with the binders, so that their ids stay taken

    def within(a: Access) -> Facts:
        key = tuple(map(id, a.binders))
        if key not in scopes:
            scopes[key] = a.binders, a.facts(facts)
        return scopes[key][1]

    places = ((a.index, shapes[a.buffer], a.guard, within(a)) for a in accesses(body))
    return all_inside(places)


__all__ = ["Axis", "lower"]
