"""A kernel in; nothing, or the first broken invariant with the IR around it. The rules head verify.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NoReturn

from smelt.core.diag import SmeltError
from smelt.core.dim import NO, YES, Dim, Facts, Truth, product
from smelt.core.dtype import DType, bool_
from smelt.core.ir.analysis.scope import Access, accesses, enter, holding, kernel_buffers, kernel_facts
from smelt.core.ir.edges import PARALLEL, disjoint_writes
from smelt.core.ir.instructions import lanes_differ, match, row_of
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import (
    Block,
    Bound,
    Buffer,
    Call,
    Const,
    Expr,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Stmt,
    Store,
    Tiles,
)
from smelt.core.ir.text_print import print_expr, print_stmt
from smelt.core.machine import Machine

ModuleStage = Literal["graph", "lowered", "scheduled"]
CONTEXT = 16  # lines of IR in a message

ACCUMULATE = ("add", "mul", "max", "min", "fma")
ARG_KINDS = ("argmax", "argmin")
BOOL_KINDS = ("any", "all")
MIXED = {"select": 1, "shl": 1, "shr": 1}
"""Intrinsics whose arguments need not all have one type -> how many leading ones are apart."""
LEVEL_ORDER = {"unit": 0, "group": 1, "lane": 2, "vector": 3}
STATIC_LEVELS = ("unroll", "vector", "lane")
"""Levels whose variables are constants (or lanes) once an emitter has expanded the tree."""


@dataclass(frozen=True)
class _Scope:
    """What is visible at a point of the tree. levels: level of each bound loop variable; 'rows' for a
    tile's size, 'let', 'axis' and 'dim' for the others. lanes: the loops over lanes around it. apart: a guard
    or an extent further in may let some lanes through and others not. shared: bytes of the buffers that a
    group has had so far."""

    kernel: Kernel
    stage: ModuleStage
    strict: bool
    machine: Machine | None
    facts: Facts
    buffers: Mapping[str, Buffer]
    levels: Mapping[str, str]
    path: tuple[str, ...] = ()
    lanes: tuple[Loop | Tiles, ...] = ()
    apart: bool = False
    shared: list[int | None] = field(default_factory=list, compare=False)
    where: Stmt | None = field(default=None, compare=False)

    def fail(self, rule: str, message: str, at: Stmt | Expr | None = None) -> NoReturn:
        at = at or self.where
        scope = {b.name: b.dtype for b in self.buffers.values()}
        text = ""
        if isinstance(at, Store | Loop | Tiles | Block):
            text = print_stmt(at, scope)
        elif at is not None:
            text = print_expr(at, scope)
        lines = text.splitlines()
        if len(lines) > CONTEXT:
            lines = [*lines[:CONTEXT], "..."]
        shown = "".join(f"\n  | {x}" for x in lines)
        raise SmeltError(f"kernel '{self.kernel.name}' breaks {rule}: {message}{shown}", kind="internal")

    def bind(self, names: Iterable[tuple[str, str]]) -> _Scope:
        levels = dict(self.levels)
        for name, level in names:
            if name in levels:
                self.fail("K1 (names)", f"variable '{name}' is bound again inside its own scope")
            levels[name] = level
        return replace(self, levels=levels)

    def declare(self, buffers: Sequence[Buffer]) -> _Scope:
        found = dict(self.buffers)
        for b in buffers:
            if b.name in found:
                self.fail("K1 (names)", f"buffer '{b.name}' is declared twice")
            self.symbols(b.shape)
            found[b.name] = b
        return replace(self, buffers=found)

    def symbols(self, dims: Iterable[Dim], at: Stmt | Expr | None = None) -> None:
        for d in dims:
            for name in sorted(d.symbols - self.levels.keys()):
                self.fail("K2 (symbols)", f"'{name}' is not bound here, in {d}", at)


def verify_kernel(
    kernel: Kernel,
    stage: ModuleStage = "lowered",
    strict: bool = False,
    machine: Machine | None = None,
) -> None:
    """Raises SmeltError(kind='internal') for the first broken rule K1..K10 (see verify.py)."""
    base = _Scope(kernel, stage, strict, machine, kernel_facts(kernel), {}, {})
    for d in kernel.dims:
        if d.divisor < 1 or d.low < 0 or (d.high is not None and d.high < d.low):
            base.fail("K2 (symbols)", f"dim '{d.name}' has an impossible range")
    scope = base.bind((d.name, "dim") for d in kernel.dims)
    scope = scope.declare((*kernel.inputs, *kernel.outputs, *kernel.scratch))
    for b in scope.buffers.values():
        if b.space not in ("global", "scratch"):
            scope.fail("K3 (buffers)", f"parameter '{b.name}' is {b.space}")
        if b.layout is not None and b.layout.shape != b.shape:
            shape = ", ".join(map(str, b.layout.shape))
            scope.fail("K3 (buffers)", f"parameter '{b.name}' has a layout of shape [{shape}]")
        if b.ahead < 0 or (b.ahead and b.layout is None and b not in kernel.outputs):
            why = f"is asked for {b.ahead} bytes ahead: only weights in a layout and outputs are, forwards"
            scope.fail("K3 (buffers)", f"parameter '{b.name}' {why}")
    for s in kernel.body:
        _stmt(s, replace(scope, shared=[]))
    _accesses(kernel, scope)
    _parallel(kernel.body, scope, kernel_buffers(kernel))


# ---------------------------------------------------------------- statements


def _stmt(s: Stmt, scope: _Scope) -> None:
    scope = replace(scope, where=s)
    if isinstance(s, Store):
        _store(s, scope)
        return
    inner = _enter(s, scope)
    for b in s.buffers:
        _local(b, s, inner)
    inner = inner.declare(s.buffers)
    if isinstance(s, Block):
        _guard(s.guard, inner)
    _order(s.body, inner)
    for c in s.body:
        _stmt(c, inner)


def _enter(s: Loop | Tiles | Block, scope: _Scope) -> _Scope:
    """The scope of the body, after a check of what stands at its head."""
    if isinstance(s, Block):
        if s.by:
            _instruction(s, scope)
        for var, value, low, high in s.let:
            _integer(value, scope)
            scope.symbols((low, high))
            scope = scope.bind(((var, "let"),))
        apart = scope.apart or (bool(scope.lanes) and bool(s.guard or s.let))
        return replace(scope, facts=enter(scope.facts, s), apart=apart)
    scope.symbols((s.extent,))
    _nesting(s, scope)
    path = (*scope.path, s.level)
    if isinstance(s, Loop):
        if s.level == "vector" and scope.stage == "scheduled" and not _is_static(s.extent, scope):
            scope.fail("K5 (static)", f"a vector loop's extent {s.extent} is not constant")
        names: list[tuple[str, str]] = [(s.var, s.level)]
    else:
        _tiles(s, scope)
        names = [(s.start, s.level), (s.rows, "rows")]
    lanes = (*scope.lanes, s) if s.level == "lane" else scope.lanes
    apart = scope.apart or (bool(lanes) and not s.extent.is_const)
    return replace(scope.bind(names), facts=enter(scope.facts, s), path=path, lanes=lanes, apart=apart)


def _instruction(s: Block, scope: _Scope) -> None:
    if s.let or s.guard or s.buffers:
        scope.fail("K9 (instructions)", "a block by an instruction has lets, a guard or buffers")
    if scope.machine is None:
        return
    row = row_of(scope.machine, s.by)
    if row is None:
        scope.fail("K9 (instructions)", f"{scope.machine.name} has no '{s.by}'")
    found = match(s.body, row, scope.facts)
    if isinstance(found, str):
        scope.fail("K9 (instructions)", f"this is not '{s.by}': {found}")
    why = lanes_differ(found, scope.lanes)
    if row.lanes is not None and scope.apart:
        why = "its lanes may not all come here"
    if why:
        scope.fail("K9 (instructions)", f"this is not '{s.by}': {why}")


def _order(body: Sequence[Stmt], scope: _Scope) -> None:
    """Ordered blocks are all that their body has, where all lanes of a group come."""
    ordered = [isinstance(c, Block) and c.ordered for c in body]
    if any(ordered) and not all(ordered):
        scope.fail("K10 (barriers)", "some statements of a body are ordered blocks, and others are not")
    if any(ordered) and {"lane", "vector"} & {*scope.path}:
        scope.fail("K10 (barriers)", "ordered blocks in a lane, which cannot wait for the others there")


def _nesting(s: Loop | Tiles, scope: _Scope) -> None:
    above = [x for x in scope.path if x in LEVEL_ORDER]
    if s.level in LEVEL_ORDER and above and LEVEL_ORDER[s.level] < LEVEL_ORDER[above[-1]]:
        scope.fail("K8 (levels)", f"a {s.level} node inside a {above[-1]} node")
    if s.level == "group" and any(x not in ("unit", "group") for x in scope.path):
        scope.fail("K8 (levels)", f"a group node inside a {scope.path[-1]} node")
    levels = LEVEL_ORDER if scope.machine is None else (*scope.machine.levels, "unit")
    if scope.machine is not None and s.level in LEVEL_ORDER and s.level not in levels:
        scope.fail("K8 (levels)", f"{scope.machine.name} has no level '{s.level}'")
    if s.level == "lane" and "lane" in scope.path and scope.path[-1] != "lane":
        scope.fail("K10 (barriers)", "lanes inside of a lane would have to wait for each other there")


def _tiles(s: Tiles, scope: _Scope) -> None:
    n = s.sizes
    if not n or n[-1] != 1 or any(a <= b for a, b in pairwise(n)):
        scope.fail("K8 (levels)", f"tile sizes {n} are not descending to 1")
    if s.mode == "balanced" and n != tuple(range(n[0], 0, -1)):
        scope.fail("K8 (levels)", f"balanced tiles want every size from {n[0]} to 1, found {n}")


def _is_static(d: Dim, scope: _Scope) -> bool:
    return all(scope.levels.get(x) in ("rows", "unroll") for x in d.symbols)


def _local(b: Buffer, s: Stmt, scope: _Scope) -> None:
    if b.space == "register" and not all(_is_static(d, scope) for d in b.shape):
        scope.fail("K5 (static)", f"register '{b.name}' has an extent that is not constant")
    if b.space == "scratch":
        _of_groups(b, s, scope)
    if b.space != "shared":
        return
    if {"lane", "vector"} & {*scope.path}:
        scope.fail("K10 (barriers)", f"shared '{b.name}' is a lane's own, lanes of a group share it")
    size = b.dtype.bytes if scope.machine is None else scope.machine.held(b.dtype.bytes)
    high = scope.facts.bounds(product(b.shape) * size)[1]
    scope.shared.append(high)
    if scope.machine is not None:
        total = None if None in scope.shared else sum(n or 0 for n in scope.shared)
        if total is None or total > scope.machine.shared_bytes:
            have = f"{scope.machine.name} has {scope.machine.shared_bytes}"
            more = " with what its group shares besides" if len(scope.shared) > 1 else ""
            scope.fail("K5 (static)", f"shared '{b.name}' needs {total} bytes{more}, {have}")


def _of_groups(b: Buffer, s: Stmt, scope: _Scope) -> None:
    """Memory that a group has of its own: its size is known when the kernel is called."""
    if not isinstance(s, Loop | Tiles) or s.level != "group":
        scope.fail("K3 (buffers)", f"scratch '{b.name}' is of no group")
    moving = sorted(x for d in b.shape for x in d.symbols if scope.levels.get(x) != "dim")
    if moving:
        scope.fail("K5 (static)", f"scratch '{b.name}' of a group has an extent that follows '{moving[0]}'")
    if scope.machine is not None and scope.machine.has_lanes:
        scope.fail("K3 (buffers)", f"scratch '{b.name}': groups of {scope.machine.name} have none")


def _store(s: Store, scope: _Scope) -> None:
    b = scope.buffers.get(s.buffer)
    if b is None:
        scope.fail("K3 (buffers)", f"'{s.buffer}' is not declared here")
    if s.buffer in {x.name for x in scope.kernel.inputs}:
        scope.fail("K3 (buffers)", f"stores to input '{s.buffer}'")
    _index(b, s.index, scope)
    _guard(s.guard, scope)
    found = _expr(s.value, scope)
    if found != b.dtype:
        scope.fail("K4 (types)", f"stores {found} into '{b.name}' of {b.dtype}")
    if s.accumulate is not None and s.accumulate not in ACCUMULATE:
        scope.fail("K4 (types)", f"cannot accumulate by '{s.accumulate}'")
    if s.accumulate == "fma" and not (isinstance(s.value, Call) and s.value.fn == "mul"):
        scope.fail("K4 (types)", "fma accumulates a product only")


def _index(b: Buffer, index: Sequence[Dim], scope: _Scope) -> None:
    if len(index) != len(b.shape):
        scope.fail("K3 (buffers)", f"{len(index)} indices for '{b.name}' of rank {len(b.shape)}")
    scope.symbols(index)
    if b.space == "register" and scope.stage == "scheduled":
        allowed = (*STATIC_LEVELS, "rows", "axis")
        for d in index:
            for x in sorted(d.symbols):
                if scope.levels.get(x) not in allowed:
                    level = scope.levels.get(x)
                    scope.fail("K5 (static)", f"register '{b.name}' is indexed by {level} variable '{x}'")


def _guard(guard: Sequence[Bound], scope: _Scope) -> None:
    scope.symbols(d for b in guard for d in (b.low, b.index, b.high))


# ---------------------------------------------------------------- expressions


def _integer(e: Expr, scope: _Scope) -> None:
    found = _expr(e, scope)
    if not found.is_int:
        scope.fail("K4 (types)", f"binds an index to a value of {found}", e)


def _expr(e: Expr, scope: _Scope) -> DType:
    """The type of an expression, checked all the way down."""
    if isinstance(e, Const):
        if e.dtype.is_int and isinstance(e.value, float) and not e.value.is_integer():
            scope.fail("K4 (types)", f"constant {e.value} of {e.dtype}", e)
        return e.dtype
    if isinstance(e, Index):
        scope.symbols((e.dim,), e)
        return e.dtype
    if isinstance(e, Load):
        return _load(e, scope)
    if isinstance(e, Let):
        _integer(e.value, scope)
        scope.symbols((e.low, e.high), e)
        inner = replace(scope.bind(((e.var, "let"),)), facts=enter(scope.facts, e))
        return _expr(e.body, inner)
    if isinstance(e, Reduce):
        return _reduce(e, scope)
    return _call(e, scope)


def _load(e: Load, scope: _Scope) -> DType:
    b = scope.buffers.get(e.buffer)
    if b is None:
        scope.fail("K3 (buffers)", f"'{e.buffer}' is not declared here", e)
    if b.dtype != e.dtype:
        scope.fail("K4 (types)", f"loads {e.dtype} from '{b.name}' of {b.dtype}", e)
    _index(b, e.index, scope)
    _guard(e.guard, scope)
    if e.otherwise is not None:
        other = _expr(e.otherwise, scope)
        if other != e.dtype:
            scope.fail("K4 (types)", f"a load of {e.dtype} is {other} where its guard fails", e)
    return e.dtype


def _reduce(e: Reduce, scope: _Scope) -> DType:
    scope.symbols((a.extent for a in e.axes), e)
    inner = replace(scope.bind((a.var, "axis") for a in e.axes), facts=enter(scope.facts, e.axes))
    found = _expr(e.body, inner)
    if e.kind in ARG_KINDS:
        if len(e.axes) != 1 or not e.dtype.is_int:
            scope.fail("K4 (types)", f"{e.kind} wants one axis and an integer result", e)
    elif e.kind in BOOL_KINDS and found != bool_:
        scope.fail("K4 (types)", f"{e.kind} over {found}", e)
    elif found.category != e.dtype.category:
        scope.fail("K4 (types)", f"{e.kind} of {found} in an accumulator of {e.dtype}", e)
    return e.dtype


def _call(e: Call, scope: _Scope) -> DType:
    rule = INTRINSICS.get(e.fn)
    if rule is None:
        scope.fail("K4 (types)", f"'{e.fn}' is no intrinsic", e)
    if len(e.args) != rule.arity:
        scope.fail("K4 (types)", f"{e.fn} takes {rule.arity} arguments, found {len(e.args)}", e)
    types = [_expr(a, scope) for a in e.args]
    alike = types[MIXED.get(e.fn, 0) :]
    if len(set(alike)) > 1:
        scope.fail("K4 (types)", f"{e.fn} of {' and '.join(map(str, types))}", e)
    if e.fn == "select" and types[0] != bool_:
        scope.fail("K4 (types)", f"select by a condition of {types[0]}", e)
    wanted = {"same": types[0], "bool": bool_, "explicit": e.dtype}[rule.result]
    if e.fn == "select":
        wanted = types[1]
    if e.fn == "bitcast" and e.dtype.bits != types[0].bits:
        scope.fail("K4 (types)", f"bitcast from {types[0]} to {e.dtype}", e)
    if e.dtype != wanted:
        scope.fail("K4 (types)", f"{e.fn} gives {wanted}, says {e.dtype}", e)
    return e.dtype


# ---------------------------------------------------------------- bounds and races


def _accesses(kernel: Kernel, scope: _Scope) -> None:
    buffers = kernel_buffers(kernel)
    for s in kernel.body:
        inside: dict[tuple[int, ...], tuple[object, Facts]] = {}  # with the binders: their ids stay taken
        seen, around = set(), replace(scope, where=s)
        for a in accesses(s):
            place = tuple(map(id, a.binders))
            if place not in inside:
                inside[place] = a.binders, a.facts(scope.facts)
            key = (a.buffer, a.index, a.guard, a.is_store, place)
            if key not in seen:
                seen.add(key)
                _bounded(a, buffers[a.buffer], around, inside[place][1])


def _bounded(a: Access, b: Buffer, scope: _Scope, inner: Facts) -> None:
    bad = out_of_bounds(a, b, scope.facts, inner)
    if bad is None:
        return
    axis, truth = bad
    if truth is NO or scope.strict:
        what = "is outside" if truth is NO else "is not proved inside"
        place = f"{a.buffer}[{', '.join(map(str, a.index))}]"
        scope.fail("K6 (bounds)", f"{place}: axis {axis} {what} 0 .. {b.shape[axis]} - 1")


def out_of_bounds(a: Access, b: Buffer, facts: Facts, inner: Facts) -> tuple[int, Truth] | None:
    """The first axis of an access that is not proved inside its buffer, and whether it is UNKNOWN or NO
    (never inside, though the access happens). None when every axis is proved. facts: what holds outside
    of all the access's binders; inner: what holds at the access."""
    worst: tuple[int, Truth] | None = None
    for axis, (d, extent) in enumerate(zip(a.index, b.shape, strict=True)):
        truth = _inside(inner, d, extent)
        if truth is not YES and a.guard:
            if any(_inside_bound(inner, g) is NO for g in a.guard):
                return None  # never happens
            truth = _inside_guarded(inner, d, extent, a.guard)
        if truth is not YES and not a.may_run(facts):
            return None
        if truth is NO and extent == 0 and not a.is_store:
            truth = Truth.UNKNOWN  # that it is never read, a check of the graph may know alone
        if truth is not YES and (worst is None or truth is NO):
            worst = (axis, truth)
    return worst


def _inside(facts: Facts, d: Dim, extent: Dim) -> Truth:
    return _both(facts.prove_le(0, d), facts.prove_lt(d, extent))


def _both(a: Truth, b: Truth) -> Truth:
    return NO if NO in (a, b) else YES if a is YES and b is YES else Truth.UNKNOWN


def _inside_guarded(facts: Facts, d: Dim, extent: Dim, guard: Sequence[Bound]) -> Truth:
    """0 <= d < extent where the guard holds: either half by a bound on d itself, up to an offset, or by
    the solver, which learns the bounds as inequalities."""
    known = holding(facts, guard)
    low, high = known.prove_le(0, d), known.prove_lt(d, extent)
    for g in guard:
        offset = d - g.index
        if low is not YES and known.prove_le(0, g.low + offset) is YES:
            low = YES
        if high is not YES and known.prove_le(g.high + offset, extent) is YES:
            high = YES
    return _both(low, high)


def _inside_bound(facts: Facts, g: Bound) -> Truth:
    return _inside(facts, g.index - g.low, g.high - g.low)


def _parallel(body: Sequence[Stmt], scope: _Scope, buffers: Mapping[str, Buffer], chained: str = "") -> None:
    """chained: the level of the parallel node whose only statement this is; its check covers ours."""
    for s in body:
        if isinstance(s, Store):
            continue
        level = s.level if isinstance(s, Loop | Tiles) and s.level in PARALLEL else ""
        if isinstance(s, Loop | Tiles) and level and level != chained:
            shared = disjoint_writes(s, scope.facts, buffers)
            if shared:
                message = f"instances of the {level} node may write the same element of '{shared[0]}'"
                scope.fail("K7 (races)", message, s)
        inner = replace(scope, facts=enter(scope.facts, s))
        _parallel(s.body, inner, buffers, level if len(s.body) == 1 else "")
