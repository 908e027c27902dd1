"""A module in; nothing, or SmeltError(kind='internal') with the IR around the first broken invariant.

Modules and graphs
  M1 names      keys are the names of what they hold; each value has one definition in a graph and its
                regions; symbols, inputs and outputs are named once.
  M2 symbols    every symbol is declared by the module, with a possible range, and bound before use on
                every path: by inputs (solvable from their shapes), by `bind`, or by the node whose result
                has that size; what a region binds ends with it.
  M3 values     a ref is defined before its use, in its graph or one around it; a weight exists; nothing is
                used outside its region; absent inputs ('') only where a node takes them.
  M4 calls      a called kernel or library exists; counts of dims, inputs and outputs fit its signature;
                dtypes are equal and sizes equal after substitution; dims lie in the declared ranges.
  M5 stage      lowered and later: only reshape, call_kernel, call_library, transfer, check, bind, if, loop.
  M6 regions    fused: one region, its inputs and outputs are the node's; if: two regions with the node's
                outputs; loop: one region (iteration, condition, carried) -> (condition, carried, stacked).
                What goes in, what a region gives and what comes out have one dtype and rank, and no two
                sizes of symbols from outside that are proved to differ.
  M7 attributes checks, binds and trips are well-formed.
  M8 units      all values name the unit that they lie at, or none does; what a kernel reads and writes lies
                at one unit, as a view with its source, a carried value with what it becomes, and a branch's
                result with what the arms give; a transfer's ends lie at two.
  M9 hot        hot values of symbols are in their ranges; a kernel that runs in the place of another at some
                sizes is one of the module, and fits what the plan makes of the other (core/ir/hot.py).

Kernels
  K1 names      dims and parameters are distinct; nothing is bound or declared again in its own scope.
  K2 symbols    every symbol is bound where it is used; dims have possible ranges.
  K3 buffers    declared before use, indexed by their rank; inputs are never written. Local scratch is of
                groups, on machines without lanes.
  K4 types      loads, stores, intrinsics and reductions have the types that they say.
  K5 static     register extents are constant once tiles are expanded, dims decide those of a group's
                scratch, and what a group shares fits the Machine; scheduled: register indices and the extents
                of vector loops are constant too.
  K6 bounds     every access is inside its buffer or guarded. A refuted access is an error always, one
                that is not proved only when `strict`.
  K7 races      instances of a parallel node write disjoint elements, and none reads what another writes;
                lanes of a vector may accumulate into one element (a declared reduction).
  K8 levels     unit, group, lane, vector nest in that order, groups only inside groups, and the Machine has
                them; tile sizes descend to 1 (balanced: every size).
  K9 instructions  a block by an instruction has neither buffers nor lets nor a guard, and is what the
                Machine's row of that name means.
  K10 barriers  lanes wait for each other where all lanes of the group come (core/ir/barriers.py): no lane
                node lies inside another but directly, and shared buffers are declared outside of lanes and
                vectors, where ordered blocks stand too, with no other statement beside them.

That printing then parsing gives an equal module is checked by `verify_text`. That a plan never overlaps
two live buffers is the planner's own check (core/plan).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any, NoReturn

from smelt.core.diag import SmeltError
from smelt.core.dim import NO, ONE, Dim, Facts, product, sym
from smelt.core.dtype import bool_, i64
from smelt.core.ir.graph import Graph, Module, Node, Ref, Symbol, TensorType, Value, attr_dims
from smelt.core.ir.hot import hot_fault
from smelt.core.ir.interp_graph import RELATIONS
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import parse_module, print_module
from smelt.core.ir.text_print import node_lines
from smelt.core.ir.units import CALLS, VIEWS, verify_units
from smelt.core.ir.verify_kernel import CONTEXT, ModuleStage, verify_kernel
from smelt.core.machine import Machine

LOWERED = VIEWS | CALLS | {"transfer", "check", "bind", "if", "loop"}
AROUND = 2  # nodes shown before and after the offender


def verify(
    module: Module, stage: ModuleStage = "graph", strict: bool = False, machine: Machine | None = None
) -> None:
    """Holds a module against the rules above. stage: 'graph' (ops anywhere), 'lowered', 'scheduled'.
    strict: what cannot be proved is an error too. machine: the limits that kernels must keep.
    Raises SmeltError(kind='internal')."""
    _module(module)
    for kernel in module.kernels.values():
        verify_kernel(kernel, stage, strict, machine)
    facts = module_facts(module)
    for g in module.graphs.values():
        seen: set[Ref] = set()
        bound = bound_by_inputs(g.inputs)
        scope = _Scope(module, stage, g, facts, {}, bound, seen)
        for name in sorted(bound - {s.name for s in module.symbols}):
            scope.fail("M2 (symbols)", f"'{name}', a size of an input, is not declared")
        _graph(g, scope)
        verify_units(g)


def verify_text(module: Module) -> None:
    """Printing then parsing must give an equal module (and the same text)."""
    text = print_module(module)
    again = parse_module(text, {w.name: w for w in module.weights.values()})
    if again != module or print_module(again) != text:
        raise SmeltError(f"module '{module.name}' does not survive printing and parsing", kind="internal")


def module_facts(module: Module) -> Facts:
    """Ranges and divisors of a module's symbols, and what those that a run binds are at most."""
    return _facts_of(module.symbols, tuple(most_of_binds(module).items()), threading.get_ident())


@lru_cache(maxsize=4)
def _facts_of(symbols: tuple[Symbol, ...], most: tuple[tuple[str, Dim], ...], thread: int) -> Facts:
    """Kept from pass to pass with the proofs inside; `thread`, because these serve one thread at a time."""
    facts = Facts()
    for s in symbols:
        facts = facts.with_range(s.name, s.low, s.high)
        if s.divisor > 1:
            facts = facts.with_divisor(s.name, s.divisor)
    for name, high in most:
        facts = facts.with_upper(name, high)
    return facts


def most_of_binds(module: Module) -> dict[str, Dim]:
    """What the symbols that nodes of the main graph bind are at most, as formulas in others: the run refuses
    more. Not of those that two nodes bind, nor in loops, where a round may know other sizes than the next."""
    found = [(str(n.attrs["symbol"]), n.attrs.get("high")) for n in module.main.nodes if n.op == "bind"]
    times = Counter(name for name, _ in found)
    return {s: d for s, d in found if times[s] == 1 and isinstance(d, Dim) and not d.is_const}


@dataclass(frozen=True)
class _Scope:
    """What is visible at a node: types of values by ref, symbols bound so far. seen: every name defined
    anywhere in the graph (shared by its regions, grows)."""

    module: Module
    stage: ModuleStage
    graph: Graph
    facts: Facts
    types: dict[Ref, TensorType]
    bound: set[str]
    seen: set[Ref]
    node: Node | None = field(default=None, compare=False)

    def fail(self, rule: str, message: str) -> NoReturn:
        origin = self.node.origin if self.node else None
        at = f"graph '{self.graph.name}'" + (f", op {self.node.op}" if self.node else "")
        shown = "".join(f"\n  | {x}" for x in islice(self.context(), CONTEXT))
        raise SmeltError(
            f"{at} breaks {rule}: {message}{shown}", kind="internal", node=origin or None
        )

    def context(self) -> Iterator[str]:
        """The nodes around the offender; it has a mark."""
        if self.node is None:
            return
        nodes = self.graph.nodes
        k = next((k for k, n in enumerate(nodes) if n is self.node), 0)
        for at in range(max(0, k - AROUND), min(len(nodes), k + AROUND + 1)):
            mark = "> " if at == k else "  "
            yield from (mark + line for line in islice(node_lines(nodes[at]), 6))

    def inside(self, graph: Graph) -> _Scope:
        """The scope of a region of the current node."""
        return replace(self, graph=graph, types=dict(self.types), bound=set(self.bound))


# ---------------------------------------------------------------- modules


def _module(m: Module) -> None:
    tables: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("graph", m.graphs), ("kernel", m.kernels), ("weight", m.weights), ("library", m.libraries),
    )
    for what, table in tables:
        for key, value in table.items():
            if value.name != key:
                _bad(m, "M1 (names)", f"{what} '{value.name}' stands under '{key}'")
    for ref in m.weights:
        if not ref.startswith("@"):
            _bad(m, "M1 (names)", f"weight '{ref}' has no '@'")
    names = [s.name for s in m.symbols]
    if len(set(names)) != len(names):
        _bad(m, "M1 (names)", "a symbol is declared twice")
    for s in m.symbols:
        if s.divisor < 1 or (s.high is not None and s.high < s.low):
            _bad(m, "M2 (symbols)", f"symbol '{s.name}' has an impossible range")
        if any(n < s.low or (s.high is not None and n > s.high) or n % s.divisor for n in s.hot):
            _bad(m, "M9 (hot)", f"a hot value of symbol '{s.name}' is not in its range")
    for kernel in m.kernels.values():
        if kernel.hot and (why := hot_fault(m, kernel)):
            _bad(m, "M9 (hot)", f"kernel '{kernel.name}': {why}")
    if "main" not in m.graphs:
        _bad(m, "M1 (names)", "there is no graph 'main'")


def _bad(m: Module, rule: str, message: str) -> NoReturn:
    raise SmeltError(f"module '{m.name}' breaks {rule}: {message}", kind="internal")


# ---------------------------------------------------------------- graphs


def bound_by_inputs(inputs: Iterable[Value]) -> set[str]:
    """Symbols that the shapes of inputs determine, one linear equation after the other."""
    todo = [d for v in inputs for d in v.type.shape]
    bound: set[str] = set()
    progress = True
    while progress:
        progress = False
        for d in todo:
            unknown = d.symbols - bound
            if len(unknown) == 1:
                (name,) = unknown
                split = d.linear(name)
                if split is not None and split[0].is_const and split[0] != 0:
                    bound.add(name)
                    progress = True
    return bound


def _graph(g: Graph, scope: _Scope) -> None:
    for v in g.inputs:
        _define(v, scope)
        _symbols(v.type.shape, scope, f"the type of input {v.name}")
    for n in g.nodes:
        _node(n, replace(scope, node=n))
    for r in g.outputs:
        if r not in scope.types and not (r.startswith("@") and r in scope.module.weights):
            scope.fail("M3 (values)", f"output '{r}' is not defined")
    if g.output_names and len(g.output_names) != len(g.outputs):
        scope.fail("M1 (names)", f"{len(g.output_names)} names for {len(g.outputs)} outputs")
    if len(set(g.output_names)) != len(g.output_names):
        scope.fail("M1 (names)", "two outputs have one name")


def _define(v: Value, scope: _Scope) -> None:
    if not v.name.startswith("%"):
        scope.fail("M1 (names)", f"value '{v.name}' has no '%'")
    if v.name in scope.seen:
        scope.fail("M1 (names)", f"'{v.name}' is defined twice")
    scope.seen.add(v.name)
    scope.types[v.name] = v.type


def _symbols(dims: Iterable[Dim], scope: _Scope, what: str) -> None:
    for d in dims:
        for name in sorted(d.symbols - scope.bound):
            scope.fail("M2 (symbols)", f"'{name}' is not bound, in {what}")


def _node(n: Node, scope: _Scope) -> None:
    if scope.stage != "graph" and n.op not in LOWERED:
        scope.fail("M5 (stage)", f"'{n.op}' is not lowered")
    for r in n.inputs:
        if r and r not in scope.types and r not in scope.module.weights:
            scope.fail("M3 (values)", f"'{r}' is not defined here")
    for key, a in sorted(n.attrs.items()):
        _symbols(attr_dims(a), scope, f"attribute {key}")
    special = _STRUCTURAL.get(n.op)
    if special is not None:
        special(n, scope)
    elif n.regions:
        scope.fail("M6 (regions)", f"'{n.op}' takes no regions")
    declared = {s.name for s in scope.module.symbols}
    for v in n.outputs:
        for d in v.type.shape:
            for name in sorted(d.symbols - scope.bound):
                # The node decides this size: the result's shape must give it, as inputs' shapes do.
                if name not in declared or d != sym(name):
                    scope.fail("M2 (symbols)", f"'{name}' is not bound, in the type of {v.name}")
                scope.bound.add(name)
        _define(v, scope)


def _type(ref: Ref, scope: _Scope) -> TensorType:
    return scope.types[ref] if ref in scope.types else scope.module.weights[ref].type


# ---------------------------------------------------------------- structural nodes


def _call_kernel(n: Node, scope: _Scope) -> None:
    name = n.attr("kernel")
    kernel = scope.module.kernels.get(name)
    if kernel is None:
        scope.fail("M4 (calls)", f"there is no kernel '{name}'")
    dims = n.attr("dims", ())
    counts = ((dims, kernel.dims), (n.inputs, kernel.inputs), (n.outputs, kernel.outputs))
    for what, (found, wanted) in zip(("dims", "inputs", "outputs"), counts, strict=True):
        if len(found) != len(wanted):
            scope.fail("M4 (calls)", f"{len(found)} {what} for kernel '{name}', expected {len(wanted)}")
    for d, p in zip(dims, kernel.dims, strict=True):
        if scope.facts.prove_le(p.low, d) is NO or (
            p.high is not None and scope.facts.prove_le(d, p.high) is NO
        ):
            high = "*" if p.high is None else p.high
            scope.fail("M4 (calls)", f"dim {p.name} = {d} is outside {p.low}..{high}")
    _signature(n, kernel, dict(zip((p.name for p in kernel.dims), dims, strict=True)), scope)


def _signature(n: Node, kernel: Kernel, dims: Mapping[str, Dim], scope: _Scope) -> None:
    types = [_type(r, scope) if r else None for r in n.inputs] + [v.type for v in n.outputs]
    for b, r in zip(kernel.inputs, n.inputs, strict=True):
        if b.layout is not None and not r.startswith("@"):
            scope.fail("M4 (calls)", f"{b.name} of kernel '{kernel.name}' has a layout, {r} is no weight")
    for t, b in zip(types, (*kernel.inputs, *kernel.outputs), strict=True):
        if t is None:
            scope.fail("M4 (calls)", f"kernel '{kernel.name}' has no absent inputs")
        if t.dtype != b.dtype:
            scope.fail("M4 (calls)", f"{b.name} of kernel '{kernel.name}' is {b.dtype}, found {t.dtype}")
        # Leading dims may be collapsed, so sizes must agree, not shapes.
        logical = b.shape if b.layout is None else b.layout.source
        wanted = product(d.substitute(dims) for d in logical)
        if scope.facts.prove_eq(product(t.shape), wanted) is NO:
            scope.fail("M4 (calls)", f"{b.name} of kernel '{kernel.name}' has {wanted} elements, found {t}")


def _call_library(n: Node, scope: _Scope) -> None:
    if n.attr("library") not in scope.module.libraries:
        scope.fail("M4 (calls)", f"there is no library function '{n.attr('library')}'")


def _transfer(n: Node, scope: _Scope) -> None:
    if len(n.inputs) != 1 or len(n.outputs) != 1 or _type(n.inputs[0], scope) != n.output.type:
        scope.fail("M4 (calls)", "a transfer is one value of one type")


def _fused(n: Node, scope: _Scope) -> None:
    if len(n.regions) != 1:
        scope.fail("M6 (regions)", f"fused has {len(n.regions)} regions, expected 1")
    (region,) = n.regions
    if len(region.inputs) != len(n.inputs) or len(region.outputs) != len(n.outputs):
        scope.fail("M6 (regions)", "the region's inputs and outputs are not the node's")
    for v, r in zip(region.inputs, n.inputs, strict=True):
        if not r or _type(r, scope) != v.type:
            scope.fail("M6 (regions)", f"region input {v.name} is {v.type}, found {r or 'nothing'}")
    inner = replace(scope.inside(region), stage="graph", node=None)
    _graph(region, inner)
    _same_outputs(n, region, inner, scope)
    scope.bound.update(_new_symbols(n, inner, scope))


def _new_symbols(n: Node, inner: _Scope, scope: _Scope) -> set[str]:
    """Symbols of the node's results that its region bound; they live on."""
    used = {x for v in n.outputs for d in v.type.shape for x in d.symbols}
    return used & (inner.bound - scope.bound)


def _same_outputs(n: Node, region: Graph, inner: _Scope, scope: _Scope) -> None:
    for v, r in zip(n.outputs, region.outputs, strict=False):
        _agree(v.name, v.type, _type(r, inner), "the region gives", scope)


def _agree(name: Ref, t: TensorType, found: TensorType, what: str, scope: _Scope) -> None:
    """The types of one value before, in and after a region. Sizes of the symbols that the region binds may be
    anything; others may not be proved to differ."""
    same = t.dtype == found.dtype and t.rank == found.rank
    pairs = zip(t.shape, found.shape, strict=True) if same else ()
    sizes = [(a, b) for a, b in pairs if a.symbols | b.symbols <= scope.bound]
    if not same or any(scope.facts.prove_eq(a, b) is NO for a, b in sizes):
        scope.fail("M6 (regions)", f"{name} is {t}, {what} {found}")


def _if(n: Node, scope: _Scope) -> None:
    if len(n.regions) != 2 or len(n.inputs) != 1:
        scope.fail("M6 (regions)", "if takes one condition and two regions")
    for region in n.regions:
        if region.inputs or len(region.outputs) != len(n.outputs):
            scope.fail("M6 (regions)", f"region '{region.name}' does not give the node's outputs")
        inner = replace(scope.inside(region), node=None)
        _graph(region, inner)
        _same_outputs(n, region, inner, scope)


def _loop(n: Node, scope: _Scope) -> None:
    if len(n.regions) != 1 or len(n.inputs) < 2:
        scope.fail("M6 (regions)", "loop takes a trip count, a condition and one region")
    (body,) = n.regions
    carried = len(n.inputs) - 2
    stacked = len(n.outputs) - carried
    if stacked < 0 or len(body.inputs) != carried + 2 or len(body.outputs) != 1 + carried + stacked:
        scope.fail("M6 (regions)", f"region '{body.name}' does not fit {carried} carried values")
    if not isinstance(n.attr("trips", ONE), Dim):
        scope.fail("M7 (attributes)", "a loop's trips is a Dim")
    inner = replace(scope.inside(body), node=None)
    # The region's own sizes change from one iteration to the next; its inputs bind them.
    inner.bound.update(bound_by_inputs(body.inputs))
    _graph(body, inner)
    gives = [_type(r, inner) for r in body.outputs]
    counter, before = body.inputs[:2]
    scalars = (("round", counter.type, i64), ("flag", before.type, bool_), ("flag", gives[0], bool_))
    for what, t, dtype in scalars:
        if t != TensorType(dtype, ()):
            scope.fail("M6 (regions)", f"the {what} of region '{body.name}' is {t}, not {dtype}[]")
    for r, v, g, o in zip(n.inputs[2:], body.inputs[2:], gives[1:], n.outputs, strict=False):
        if not r:
            scope.fail("M6 (regions)", f"carried value {v.name} has no first state")
        _agree(v.name, v.type, _type(r, scope), "its first state", scope)
        _agree(v.name, v.type, g, "the region gives", scope)
        _agree(o.name, o.type, g, "the region gives", scope)
    for o, g in zip(n.outputs[carried:], gives[1 + carried :], strict=True):
        row = TensorType(o.type.dtype, o.type.shape[1:])
        _agree(o.name, row, g, "less its first axis; the region gives", scope)


def _check(n: Node, scope: _Scope) -> None:
    dims = isinstance(n.attr("left"), Dim) and isinstance(n.attr("right"), Dim)
    if n.inputs or n.outputs or not dims or n.attr("relation") not in RELATIONS:
        scope.fail("M7 (attributes)", "a check is left, relation (==, <=, divides, fits), right")


def _bind(n: Node, scope: _Scope) -> None:
    name = n.attr("symbol")
    if n.inputs:
        _bind_element(n, scope)
    elif n.outputs or not isinstance(name, str) or (n.attr("draw") is True) == ("value" in n.attrs):
        scope.fail("M7 (attributes)", "a bind without input is a symbol, and a value or a draw")
    elif "value" in n.attrs and not isinstance(n.attr("value"), Dim):
        scope.fail("M7 (attributes)", "a bind's value is a Dim")
    if name in scope.bound:
        scope.fail("M2 (symbols)", f"'{name}' is bound twice")
    if name not in {s.name for s in scope.module.symbols}:
        scope.fail("M2 (symbols)", f"'{name}' is not declared by the module")
    scope.bound.add(str(name))


def _bind_element(n: Node, scope: _Scope) -> None:
    name, index = n.attr("symbol"), n.attr("index", 0)
    if len(n.inputs) != 1 or n.outputs or not isinstance(name, str) or not isinstance(index, int):
        scope.fail("M7 (attributes)", "a bind is one input, a symbol and an index")
    if not _type(n.inputs[0], scope).dtype.is_int:
        scope.fail("M7 (attributes)", f"binds '{name}' to an element of {_type(n.inputs[0], scope)}")
    for key in ("low", "high"):
        if not isinstance(n.attr(key), Dim):
            scope.fail("M7 (attributes)", f"a bind's {key} is a Dim")


_STRUCTURAL = {
    "call_kernel": _call_kernel,
    "call_library": _call_library,
    "transfer": _transfer,
    "fused": _fused,
    "if": _if,
    "loop": _loop,
    "check": _check,
    "bind": _bind,
}

__all__ = ["ModuleStage", "bound_by_inputs", "module_facts", "verify", "verify_kernel", "verify_text"]
