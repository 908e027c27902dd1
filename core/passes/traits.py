"""Node -> Trait: how it reads each operand and what an element costs, from its traced index expressions."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from smelt.core.dim import YES, Dim, Facts, Symbol, product, sym, to_dim, value_at
from smelt.core.ir.graph import Node, TensorType, attrs_key
from smelt.core.ir.kernel import Axis, Call, Expr, Index, Let, Load, Reduce, children
from smelt.core.ops import OPS
from smelt.core.ops.trace import MARK, element

# what one call of an intrinsic costs, in additions; everything else costs 1
COSTS = {
    "exp": 8, "log": 10, "log1p": 14, "erf": 14, "tanh": 12, "pow": 30, "sin": 15, "cos": 15, "tan": 25,
    "sinh": 16, "cosh": 16, "asin": 25, "acos": 25, "atan": 25, "asinh": 30, "acosh": 30, "atanh": 30,
    "div": 4, "sqrt": 5, "mod": 10, "fmod": 12,
}
FREE = frozenset({"cast", "bitcast"})
PRODUCTS = frozenset({"mul", "dot4"})


@dataclass(frozen=True, slots=True)
class Read:
    """How one operand is read, over all its loads.

    loads: how many loads the expression has. bijective: each element is read at one place, at an index
    that is a permutation of the output's (axes of extent 1 apart). ordered: and the axes keep their
    order. last: and the last axis stays the last. once: no element is read by two output elements.
    linear: every index is a sum of variables times constants. shifted: an index is a variable plus a
    constant, the last axis in its place (a slice). guarded: reads are guarded. depends: an index depends on
    data. reduced: some load is inside a reduction. missing: some output axis takes no part (a broadcast).
    rows: every index is one variable, or 0 where the extent is 1. window: an index mixes variables.
    scattered: the place along the last axis depends on data, so neighbours are not read together.
    """

    loads: int
    bijective: bool = False
    ordered: bool = False
    last: bool = False
    once: bool = False
    linear: bool = False
    shifted: bool = False
    guarded: bool = False
    depends: bool = False
    reduced: bool = False
    missing: bool = False
    rows: bool = False
    window: bool = False
    scattered: bool = False


@dataclass(frozen=True, slots=True)
class Trait:
    """What fusion asks about a node.

    reads: one per input (None: not read). cost: additions per output element, outside reductions.
    size: scalar expressions per output element. heavy: it has a reduction. contraction: it sums
    products. plain: it computes nothing, it casts or moves. known: False for ops without an element formula.
    placed: the element's position is part of its value (trilu, eye_like). moved: the operand of which each
    element of the result is one, as it is; other operands only say which one.
    """

    reads: tuple[Read | None, ...]
    cost: int
    size: int
    heavy: bool
    contraction: bool
    plain: bool
    known: bool = True
    placed: bool = False
    moved: int | None = None

    @property
    def elementwise(self) -> bool:
        """Every operand is read at the output's own index, or broadcast along whole axes, and nothing else
        tells one position from another."""
        return self.known and not self.heavy and not self.placed and all(
            r is None or r.ordered or (r.missing and r.linear and not r.depends and not r.guarded)
            for r in self.reads
        )


OPAQUE = Trait((), 0, 0, False, False, False, known=False)


def out_index(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The output variables, one per axis, and 0 for axes of extent 1."""
    return tuple(to_dim(0) if d.const_or_none == 1 else sym(variable(a)) for a, d in enumerate(shape))


def variable(axis: int) -> str:
    """The name of the output variable of an axis while nodes are composed. No dim of a model starts with
    the mark, so nothing is captured."""
    return f"{MARK}i{axis}"


class Tracer:
    """Traits of nodes, computed once for each (op, attributes, types)."""

    def __init__(self, facts: Facts) -> None:
        self._found: dict[Hashable, Trait] = {}
        self._facts = facts

    def trait(self, node: Node, inputs: Sequence[TensorType | None]) -> Trait:
        """The trait of a node with inputs of these types."""
        row = OPS.get(node.op)
        if row is None or row.compute is None or len(node.outputs) != 1 or isinstance(row.compute, tuple):
            return OPAQUE
        key = (node.op, attrs_key(node.attrs), tuple(inputs), node.output.type)
        if key not in self._found:
            self._found[key] = _trait(node, inputs, self._facts)
        return self._found[key]


def trace_node(node: Node, inputs: Sequence[TensorType | None], index: tuple[Dim, ...]) -> Expr:
    """The element of the node's output at `index`, its operands as loads of buffers x0, x1, ..."""
    rule = OPS[node.op].compute
    assert callable(rule)
    return element(rule, inputs, index, node.attrs, node.output.type)


def _trait(node: Node, inputs: Sequence[TensorType | None], facts: Facts) -> Trait:
    shape = node.output.type.shape
    e = trace_node(node, inputs, out_index(shape))
    operands = [f"x{k}" for k in range(len(inputs))]
    types = {name: t for name, t in zip(operands, inputs, strict=True) if t is not None}
    found = expr_reads(e, shape, types, facts)
    reads = tuple(map(found.get, operands))
    return replace(expr_trait(e, reads), moved=_moved(e, operands))


def expr_trait(e: Expr, reads: tuple[Read | None, ...]) -> Trait:
    """The trait of an element expression whose operands are read like this."""
    cost, size = expr_cost(e), expr_size(e)
    found = [x for x in _walk(e) if isinstance(x, Reduce)]
    return Trait(
        reads, cost, size, bool(found), any(_is_contraction(r) for r in found),
        cost == 0 and not found, placed=_tells_positions(e),
    )


def _moved(e: Expr, operands: Sequence[str]) -> int | None:
    while isinstance(e, Let):
        e = e.body
    return operands.index(e.buffer) if isinstance(e, Load) and not e.guard else None


def _tells_positions(e: Expr) -> bool:
    """Whether a variable is a value, not only an index."""
    indices = (x.dim for x in _walk(e) if isinstance(x, Index))
    return any(s.startswith(MARK) for d in indices for s in d.symbols)


def expr_reads(
    e: Expr, shape: Sequence[Dim], types: Mapping[str, TensorType], facts: Facts
) -> dict[str, Read]:
    """How each buffer is read by the element of a tensor of that shape at `out_index`."""
    loads: dict[str, list[tuple[Load, tuple[Axis, ...], frozenset[str]]]] = {}
    for load, axes, lets in _loads(e, (), frozenset()):
        loads.setdefault(load.buffer, []).append((load, axes, lets))
    variables = {variable(a): d for a, d in enumerate(shape) if d.const_or_none != 1}
    return {name: _read(types[name], found, variables, facts) for name, found in loads.items()}


def _walk(e: Expr) -> Iterator[Expr]:
    stack = [e]
    while stack:
        x = stack.pop()
        yield x
        stack.extend(children(x))


def _loads(
    e: Expr, axes: tuple[Axis, ...], lets: frozenset[str]
) -> Iterator[tuple[Load, tuple[Axis, ...], frozenset[str]]]:
    if isinstance(e, Load):
        yield e, axes, lets
    inner_axes = (*axes, *e.axes) if isinstance(e, Reduce) else axes
    if isinstance(e, Let):
        yield from _loads(e.value, axes, lets)
        yield from _loads(e.body, axes, lets | {e.var})
        return
    for c in children(e):
        yield from _loads(c, inner_axes, lets)


def _read(
    t: TensorType, loads: list[tuple[Load, tuple[Axis, ...], frozenset[str]]],
    variables: dict[str, Dim], facts: Facts,
) -> Read:
    places = {(load.index, axes) for load, axes, _ in loads}
    single = len(places) == 1
    # a chain of sums reads one place again and again
    distinct = {(load.index, axes, lets, bool(load.guard)): (load, axes, lets) for load, axes, lets in loads}
    per_load = [_place(t, load, axes, lets, variables, facts) for load, axes, lets in distinct.values()]

    def every(name: str) -> bool:
        return all(getattr(p, name) for p in per_load)

    def any_of(name: str) -> bool:
        return any(getattr(p, name) for p in per_load)

    return Read(
        len(loads),
        bijective=single and every("bijective"), ordered=single and every("ordered"),
        last=single and every("last"), once=single and every("once"), linear=every("linear"),
        shifted=single and every("shifted"), guarded=any_of("guarded"), depends=any_of("depends"),
        reduced=any_of("reduced"), missing=any_of("missing"), rows=every("rows"),
        window=any_of("window"), scattered=any_of("scattered"),
    )


def _place(
    t: TensorType, load: Load, axes: tuple[Axis, ...], lets: frozenset[str],
    variables: dict[str, Dim], facts: Facts,
) -> Read:
    """The reading of one load."""
    scope = {**variables, **{a.var: a.extent for a in axes}}
    used = {s for d in load.index for s in d.symbols}
    depends, guarded = bool(used & lets), bool(load.guard)
    reduced = bool(axes)
    linear = not depends and all(_linear(d, scope) for d in load.index)
    own = [_variable(d, scope) for d in load.index]
    names = [v for v, _ in own if v is not None]
    distinct = len(set(names)) == len(names)
    rest_zero = all(v is not None or off == to_dim(0) for v, off in own)
    shifts = all(
        v is not None or not (d.symbols & scope.keys()) for (v, _), d in zip(own, load.index, strict=True)
    )
    missing = bool(variables.keys() - used)
    injective = shifts and distinct and not depends and not (scope.keys() - set(names))
    exact = all(
        v is None or (off == to_dim(0) and equal(facts, scope[v], t.shape[a]))
        for a, (v, off) in enumerate(own)
    )
    units = all(v is not None or t.shape[a].const_or_none == 1 for a, (v, _) in enumerate(own))
    bijective = injective and rest_zero and exact and units and not guarded and not axes
    order = [_axis(v) for v in names if v in variables]
    long = [a for a, d in enumerate(t.shape) if d.const_or_none != 1]
    last = bijective and (not long or own[long[-1]][0] == max(variables, key=_axis))
    return Read(
        1, bijective=bijective, ordered=bijective and order == sorted(order), last=last,
        once=injective, linear=linear, shifted=injective and not guarded and order == sorted(order),
        guarded=guarded, depends=depends, reduced=reduced, missing=missing,
        rows=rest_zero and exact and units and not guarded,
        window=any(len(d.symbols & scope.keys()) > 1 for d in load.index),
        scattered=bool(long and load.index[long[-1]].symbols & lets),
    )


def _axis(name: str) -> int:
    return int(name[len(MARK) + 1 :])


def equal(facts: Facts, a: Dim, b: Dim) -> bool:
    """Whether two sizes are known to be equal."""
    return a == b or (not (a.is_const and b.is_const) and facts.prove_eq(a, b) is YES)


def _variable(d: Dim, scope: dict[str, Dim]) -> tuple[str | None, Dim]:
    """(v, c) where d is the variable v plus c, and c has no variable; (None, d) otherwise."""
    mine = [s for s in d.symbols if s in scope]
    if len(mine) != 1:
        return None, d
    parts = d.linear(mine[0])
    if parts is None or parts[0] != to_dim(1) or (parts[1].symbols & scope.keys()):
        return None, d
    return mine[0], parts[1]


def _linear(d: Dim, scope: dict[str, Dim]) -> bool:
    """Whether every variable occurs as a sum of coefficients times plain variables."""
    for _, factors in d.terms():
        mine = [(atom, power) for atom, power in factors if _names(atom) & scope.keys()]
        if len(mine) > 1 or any(power != 1 or not isinstance(atom, Symbol) for atom, power in mine):
            return False
    return True


def _names(atom: object) -> frozenset[str]:
    if isinstance(atom, Symbol):
        return frozenset({atom.name})
    found: frozenset[str] = frozenset()
    for part in (getattr(atom, "a", None), getattr(atom, "b", None), *getattr(atom, "args", ())):
        if isinstance(part, Dim):
            found |= part.symbols
    return found


def _is_contraction(r: Reduce) -> bool:
    """A sum of a product of two loads (through casts and guards) at two places: x @ transpose(x) is one, a
    sum of squares is none."""
    return r.kind == "sum" and isinstance(r.body, Call) and r.body.fn in PRODUCTS and all(
        any(isinstance(x, Load) for x in _walk(a)) for a in r.body.args
    ) and len({(x.buffer, x.index) for x in _walk(r.body) if isinstance(x, Load)}) > 1


def expr_cost(e: Expr) -> int:
    """Additions per element, with reductions counted once."""
    own = 0 if not isinstance(e, Call) or e.fn in FREE else COSTS.get(e.fn, 1)
    return own + sum(expr_cost(c) for c in children(e))


def expr_size(e: Expr) -> int:
    """How many scalar expressions it has, repeated ones counted as often as they stand there."""
    return 1 + sum(expr_size(c) for c in children(e))


def nominal(facts: Facts, d: Dim) -> int:
    """The Dim with every symbol at a middling size that its range allows: for comparing costs."""
    env: dict[str, int] = {}
    for s in d.symbols:
        low, high = facts.bounds(sym(s))
        value = max(32, low or 0)
        env[s] = value if high is None else min(value, high)
    return value_at(d, env)


def nominal_bytes(facts: Facts, t: TensorType) -> int:
    """What a tensor takes at such sizes."""
    return nominal(facts, product(t.shape)) * t.dtype.bytes
