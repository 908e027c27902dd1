"""Bindings of If and Loop: regions, or nothing at all where the condition is known."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.core.dim import Dim, Truth
from smelt.core.dtype import bool_, i64
from smelt.core.ir.graph import Attr, Graph, Ref, TensorType
from smelt.importer import known as kn
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call, OnnxOp

ROUNDS = 8
"""Attempts at the shapes that a loop carries; each makes at least one more extent dynamic."""


def _flag(c: Call, ref: Ref) -> bool | None:
    """A condition that is known now."""
    found = c.builder.known_of(ref)
    if found is None or found.size != 1:
        return None
    e = found.reshape(-1)[0]
    return e if isinstance(e, bool) else None


def _subgraph(c: Call, name: str) -> object:
    if name not in c.attributes:
        raise c.fail(f"attribute '{name}' is missing")
    return c.attributes[name].g


def _closed(b: GraphBuilder, name: str, refs: Sequence[Ref]) -> Graph:
    """A finished region."""
    outputs = tuple(b.real(r) for r in refs)
    return Graph(name, tuple(b.inputs), tuple(b.nodes), outputs)


# ---------------------------------------------------------------- if


def _if(c: Call) -> Sequence[Ref]:
    if c.type().dtype != bool_:
        raise c.fail(f"the condition is {c.type().dtype}, wanted bool")
    known = _flag(c, c.x())
    if known is not None:
        refs: list[Ref] = c.translate.inline(_subgraph(c, "then_branch" if known else "else_branch"))
        return refs
    condition = c.builder.reshape(c.x(), ())
    built = []
    for name in ("then_branch", "else_branch"):
        with c.engine.conditional():
            b, refs = c.translate.region(_subgraph(c, name), ())
            types = [b.type_of(r) for r in refs]
            graph = _closed(b, name.removesuffix("_branch"), refs)
        built.append((graph, refs, types, _inner_symbols(b)))
    (then, then_refs, then_types, then_own), (other, other_refs, other_types, other_own) = built
    if len(then_refs) != len(other_refs) or len(then_refs) != len(c.outputs):
        raise c.fail(
            f"the branches have {len(then_refs)} and {len(other_refs)} outputs, the node has {len(c.outputs)}"
        )
    types = [
        _joined(c, k, a, b, then_own | other_own)
        for k, (a, b) in enumerate(zip(then_types, other_types, strict=True))
    ]
    refs = list(c.builder.append("if", (condition,), {}, types, (then, other)))
    for ref, a, b in zip(refs, then_refs, other_refs, strict=True):
        _join_known(c, ref, c.builder.store.known.get(a), c.builder.store.known.get(b))
    return refs


def _inner_symbols(b: GraphBuilder) -> frozenset[str]:
    """Symbols that nodes of a region bind: outside they mean nothing."""
    outer = {s for v in b.inputs for d in v.type.shape for s in d.symbols}
    found: set[str] = set()
    for node in b.nodes:
        if node.op == "bind":
            found.add(str(node.attrs["symbol"]))
        if node.op in ("non_zero", "if", "loop"):
            found |= {s for v in node.outputs for d in v.type.shape for s in d.symbols}
    return frozenset(found - outer)


def _joined(c: Call, k: int, a: TensorType, b: TensorType, own: frozenset[str]) -> TensorType:
    """The type of output k of an If: an extent on which the branches differ becomes a fresh symbol."""
    if a.dtype != b.dtype:
        raise c.fail(f"output {k} is {a.dtype} in one branch and {b.dtype} in the other")
    if a.rank != b.rank:
        raise c.unsupported(
            f"output {k} has rank {a.rank} in one branch and {b.rank} in the other",
            try_="fixing the size that the condition asks for (dims=)",
        )
    shape = []
    for d, e in zip(a.shape, b.shape, strict=True):
        same = c.engine.prove_eq(d, e) is Truth.YES and own.isdisjoint(d.symbols)
        shape.append(d if same else c.engine.fresh("if_size"))
    return TensorType(a.dtype, tuple(shape))


def _join_known(c: Call, ref: Ref, a: kn.Known | None, b: kn.Known | None) -> None:
    if a is not None and b is not None and a.shape == b.shape:
        both = [x if x == y else None for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)]
        if any(e is not None for e in both):
            c.builder.store.known[ref] = kn.full(a.shape, both)


# ---------------------------------------------------------------- loop


def _loop(c: Call) -> Sequence[Ref]:
    """carried' = body(i, condition, carried) while i < trip and condition; scan outputs pile up."""
    g = _subgraph(c, "body")
    b = c.builder
    trip = b.cast(b.reshape(c.x(0), ()), i64) if c.has(0) else ""
    condition = b.reshape(c.x(1), ()) if c.has(1) else ""
    carried = [c.x(i) for i in range(2, len(c.inputs))]
    entry = [b.type_of(r) for r in carried]
    types = list(entry)
    head = [TensorType(i64, ()), TensorType(bool_, ())]
    for _ in range(ROUNDS):
        with c.engine.conditional():
            region, refs = c.translate.region(g, [*head, *types])
            outs = [region.type_of(r) for r in refs]
            flag = _flag(c, refs[0]) if refs else None
            stays = bool(refs) and refs[0] == region.inputs[1].name
            graph = _closed(region, "body", refs)
        if len(refs) < 1 + len(carried):
            raise c.fail(
                f"the body has {len(refs)} outputs, wanted a condition and {len(carried)} carried values"
            )
        wider = [
            _widened(c, k, t, o, _inner_symbols(region))
            for k, (t, o) in enumerate(zip(types, outs[1:], strict=False))
        ]
        if wider == types:
            break
        types = wider
    else:
        raise c.unsupported("a loop whose carried shapes never settle")
    # an extent that grows inside has another size behind the loop
    final = [
        TensorType(
            t.dtype,
            tuple(
                d if d == e else c.engine.fresh("loop_size") for d, e in zip(t.shape, s.shape, strict=True)
            ),
        )
        for t, s in zip(types, entry, strict=True)
    ]
    always = (not condition or _flag(c, condition) is True) and (flag is True or stays)
    count = _trips(c, trip, always)
    scans = [_scanned(c, k, t, count, _inner_symbols(region)) for k, t in enumerate(outs[1 + len(carried) :])]
    attrs: dict[str, Attr] = {"carried": len(carried), "count": count, "counted": always}
    return b.append("loop", (trip, condition, *carried), attrs, [*final, *scans], (graph,))


def _trips(c: Call, trip: Ref, always: bool) -> Dim:
    """How often the body runs: the trip count where nothing else ends the loop, else a fresh symbol."""
    if not trip:
        return c.engine.fresh("trips")
    found = c.builder.known_of(trip)
    e = None if found is None else found.reshape(-1)[0]
    limit = c.engine.simplify(e) if isinstance(e, Dim) else None
    low = None if limit is None else c.engine.bounds(limit)[0]
    if limit is None or low is None or low < 0:
        limit = None
    if always and limit is not None:
        return limit
    return c.engine.fresh("trips", 0, limit)


def _widened(c: Call, k: int, t: TensorType, o: TensorType, own: frozenset[str]) -> TensorType:
    """The type of carried value k at the head of the body: what one round changes is dynamic."""
    if t.dtype != o.dtype:
        raise c.fail(f"carried value {k} is {t.dtype} before and {o.dtype} behind the body")
    if t.rank != o.rank:
        raise c.unsupported(f"carried value {k} has rank {t.rank} before and {o.rank} behind the body")
    shape = []
    for d, e in zip(t.shape, o.shape, strict=True):
        same = c.engine.prove_eq(d, e) is Truth.YES
        dynamic = d.symbols and all(s.startswith("loop_in") for s in d.symbols)
        shape.append(d if same or dynamic else c.engine.fresh("loop_in"))
    return TensorType(t.dtype, tuple(shape))


def _scanned(c: Call, k: int, t: TensorType, count: Dim, own: frozenset[str]) -> TensorType:
    if any(not own.isdisjoint(d.symbols) or any(s.startswith("loop_in") for s in d.symbols) for d in t.shape):
        raise c.unsupported(f"scan output {k} whose shape changes from round to round")
    return TensorType(t.dtype, (count, *t.shape))


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("If", 1, _if),
    OnnxOp("Loop", 1, _loop),
)
