"""Primitives on reductions: Kernel -> Kernel. Reduce expressions become register accumulators and serial
loops, row-invariant values become earlier stages. Each shows its rewrite and refuses what it cannot prove."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from smelt.core.dim import YES, Dim, Facts, ceildiv, dmin, sym, to_dim
from smelt.core.dtype import DType
from smelt.core.ir.analysis.scope import enter
from smelt.core.ir.kernel import (
    Axis,
    Block,
    Bound,
    Buffer,
    Call,
    Const,
    Expr,
    Kernel,
    Let,
    Load,
    Loop,
    LoopNode,
    Reduce,
    Stmt,
    Store,
    Tiles,
    children,
    walk_expr,
)
from smelt.core.ir.rewrite import (
    Body,
    alpha,
    free_symbols,
    fresh_name,
    local_buffers,
    map_expr,
    substitute_expr,
    with_children,
)
from smelt.core.schedule.tree import (
    ScheduleError,
    chain,
    declare,
    edit,
    guard_body,
    is_static,
    map_loads,
    names_of,
    rebuild,
    stores,
    tidy,
    var_of,
    within,
)

UPDATE: Mapping[str, str] = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
"""Reduction kind -> the accumulating intrinsic; other kinds stay expressions."""


def start_value(kind: str, dtype: DType) -> Const:
    """The start value of an accumulator."""
    if kind in ("sum", "prod"):
        one = kind == "prod"
        return Const(float(one) if dtype.is_float else int(one), dtype)
    if dtype.is_float:
        return Const(float("-inf") if kind == "max" else float("inf"), dtype)
    if dtype.category == "bool":
        return Const(kind == "min", dtype)
    low, high = dtype.limits
    return Const(low if kind == "max" else high, dtype)


# ---------------------------------------------------------------- stages


Pick = Callable[[Expr, "frozenset[str]", Sequence[LoopNode]], bool]
"""(expression, variables bound inside the value around it, loops around the store) -> stage it?"""


class _Stager:
    """Moves picked sub-expressions of the stores under one loop into register stages before them."""

    def __init__(self, base: str, taken: set[str], pick: Pick) -> None:
        self.base, self.taken, self.pick = base, taken, pick
        self.buffers: list[Buffer] = []
        self.known: dict[tuple[Expr, tuple[str, ...]], Load] = {}

    def body(self, body: Body) -> Body:
        out: list[Stmt] = []
        for s in body:
            nodes, leaf = chain(s)
            if not all(isinstance(x, Store) for x in leaf):
                out.append(s)
                continue
            stages: list[Stmt] = []
            done = []
            for x in leaf:
                assert isinstance(x, Store)
                done.append(replace(x, value=self.value(x.value, frozenset(), nodes, stages)))
            out += [*stages, *rebuild(nodes, tuple(done))]
        return tuple(out)

    def value(self, e: Expr, bound: frozenset[str], nodes: Sequence[LoopNode], stages: list[Stmt]) -> Expr:
        inner = bound
        if isinstance(e, Reduce):
            inner = bound | {a.var for a in e.axes}
        elif isinstance(e, Let):
            inner = bound | {e.var}
        if not isinstance(e, Reduce) and self.pick(e, bound, nodes):
            return self.stage(e, nodes, stages)
        parts = tuple(self.value(c, inner, nodes, stages) for c in children(e))
        done = with_children(e, parts) if parts else e
        if isinstance(done, Reduce) and self.pick(done, bound, nodes):
            return self.stage(done, nodes, stages)
        return done

    def stage(self, e: Expr, nodes: Sequence[LoopNode], stages: list[Stmt]) -> Expr:
        free = free_symbols(e)
        around = [n for n in nodes if var_of(n) in free]
        key = (alpha(e), tuple(var_of(n) for n in around))
        if key not in self.known:
            name = fresh_name(self.base, self.taken)
            self.taken.add(name)
            self.buffers.append(Buffer(name, e.dtype, tuple(n.extent for n in around), "register"))
            index = tuple(sym(var_of(n)) for n in around)
            self.known[key] = Load(name, index, e.dtype)
            stages += rebuild(around, (Store(name, index, e),))
        return self.known[key]


def _static(nodes: Sequence[LoopNode], kernel: Kernel) -> bool:
    """True when registers over these loops have static extents."""
    return all(isinstance(n, Loop) and is_static(n.extent, kernel) for n in nodes)


def stage_reduce(kernel: Kernel, var: str, base: str = "acc") -> Kernel:
    """Reductions become registers that are filled before they are used:

    <v> { for i { for j { y[i, j] = f(sum k { e(i, k) }, j) } } }
      -->  <v> { register acc[i]; for i { acc[i] = sum k { e(i, k) } };
                 for i { for j { y[i, j] = f(acc[i], j) } } }

    A register has the loops inside v that its reduction depends on; equal reductions share one.
    Reductions over loops without static extent stay where they are.
    """
    what = f"stage_reduce {var}"

    def pick(e: Expr, bound: frozenset[str], nodes: Sequence[LoopNode]) -> bool:
        if not isinstance(e, Reduce):
            return False
        free = free_symbols(e)
        around = [n for n in nodes if var_of(n) in free]
        return not (free & bound) and _static(around, kernel)

    return _with_stages(kernel, var, base, pick, what)


_CHEAP = frozenset(("cast", "select", "add", "sub", "mul", "neg", "min", "max"))


def hoist(kernel: Kernel, var: str, base: str = "inv") -> Kernel:
    """Costly values that the inner loops only repeat are computed once per iteration of v:

    <v> { for j { y[j] = x[j] * rsqrt(acc) } }
      -->  <v> { register inv; inv = rsqrt(acc); for j { y[j] = x[j] * inv } }

    Division by such a value becomes multiplication by its reciprocal when it is a float (one rounding
    more). Values inside a reduction count with the reduction's axes as inner loops.
    """
    what = f"hoist {var}"

    def pick(e: Expr, bound: frozenset[str], nodes: Sequence[LoopNode]) -> bool:
        if not isinstance(e, Call):
            return False
        inside = tuple(walk_expr(e))
        costly = any(isinstance(x, Call) and x.fn not in _CHEAP for x in inside)
        if not costly or any(isinstance(x, Reduce) for x in inside):
            return False
        free = free_symbols(e)
        around = [n for n in nodes if var_of(n) in free]
        repeated = bool(bound) or len(around) < len(nodes)
        return repeated and not (free & bound) and _static(around, kernel)

    def invariant(e: Expr, bound: frozenset[str], nodes: Sequence[LoopNode]) -> bool:
        if isinstance(e, Const) or any(isinstance(x, Reduce) for x in walk_expr(e)):
            return False
        free = free_symbols(e)
        return (bool(bound) or any(var_of(n) not in free for n in nodes)) and not (free & bound)

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        body = tuple(_reciprocals(s, invariant) for s in node.body)
        stager = _Stager(base, names_of(kernel), pick)
        body = stager.body(body)
        if not stager.buffers:
            raise ScheduleError(what, "nothing costly is repeated")
        return declare(replace(node, body=body), tuple(stager.buffers))

    return edit(kernel, var, rewrite, what)


def once(kernel: Kernel, var: str, base: str = "held") -> Kernel:
    """Values from memory that the loops inside v only repeat are read, and decoded, once per iteration of v:

    <v> { for k in 8 { acc += x[v, k] * cast(s[v]) } }
      -->  <v> { register held; held = cast(s[v]); for k in 8 { acc += x[v, k] * held } }

    Nothing inside v writes what they are read from. The loops have static extents, so that none is empty. Of
    loops that are written out some may be followed, if another one repeats the value: a register for each.
    """
    what = f"once {var}"

    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        mine = {s.buffer for s in stores(node.body)} | {b.name for b in local_buffers(node.body)}

        def pick(e: Expr, bound: frozenset[str], nodes: Sequence[LoopNode]) -> bool:
            loads = {x.buffer for x in walk_expr(e) if isinstance(x, Load)}
            runs = bool(nodes) and _static(nodes, kernel) and all(n.extent != 0 for n in nodes)
            free = free_symbols(e)
            followed = [n for n in nodes if var_of(n) in free]
            others = [n for n in nodes if n not in followed and n.level != "unroll"]
            repeated = not followed or (all(n.level == "unroll" for n in followed) and bool(others))
            return runs and bool(loads) and not loads & mine and repeated and not free & bound

        stager = _Stager(base, names_of(kernel), pick)
        body = stager.body(node.body)
        if not stager.buffers:
            raise ScheduleError(what, "nothing that is read is repeated")
        return declare(replace(node, body=body), tuple(stager.buffers))

    return edit(kernel, var, rewrite, what)


def _reciprocals(s: Stmt, invariant: Pick) -> Stmt:
    """x / inv  -->  x * (1 / inv) for float inv that the inner loops repeat."""
    nodes, leaf = chain(s)
    if not all(isinstance(x, Store) for x in leaf):
        return s

    def visit(e: Expr, bound: frozenset[str]) -> Expr:
        inner = bound | {a.var for a in e.axes} if isinstance(e, Reduce) else bound
        inner = inner | {e.var} if isinstance(e, Let) else inner
        parts = tuple(visit(c, inner) for c in children(e))
        e = with_children(e, parts) if parts else e
        if not (isinstance(e, Call) and e.fn == "div" and e.dtype.is_float):
            return e
        top, bottom = e.args
        if invariant(e, bound, nodes) or not invariant(bottom, bound, nodes):
            return e
        one = Call("div", (Const(1.0, e.dtype), bottom), e.dtype)
        return Call("mul", (top, one), e.dtype)

    done = tuple(replace(x, value=visit(x.value, frozenset())) for x in leaf if isinstance(x, Store))
    return rebuild(nodes, done)[0] if nodes else done[0]


def _with_stages(kernel: Kernel, var: str, base: str, pick: Pick, what: str) -> Kernel:
    def rewrite(node: LoopNode, facts: Facts) -> Stmt:
        stager = _Stager(base, names_of(kernel), pick)
        body = stager.body(node.body)
        if not stager.buffers:
            raise ScheduleError(what, "there is no reduction to stage")
        return declare(replace(node, body=body), tuple(stager.buffers))

    return edit(kernel, var, rewrite, what)


# ---------------------------------------------------------------- accumulators


def edit_stage(
    kernel: Kernel, name: str, fn: Callable[[tuple[LoopNode, ...], Store, Reduce, Facts], Body], what: str
) -> Kernel:
    """fn(loops, store, reduction, facts outside the loops) in the place of `loops { name[..] = Reduce }`."""
    from smelt.core.ir.analysis.scope import kernel_facts

    hits = 0

    def visit(body: Body, facts: Facts) -> Body:
        nonlocal hits
        out: list[Stmt] = []
        for s in body:
            nodes, leaf = chain(s)
            store = leaf[0] if len(leaf) == 1 else None
            if (
                isinstance(store, Store)
                and store.buffer == name
                and store.accumulate is None
                and isinstance(store.value, Reduce)
            ):
                hits += 1
                out += fn(nodes, store, store.value, facts)
            elif isinstance(s, Store):
                out.append(s)
            else:
                out.append(replace(s, body=visit(s.body, enter(facts, s))))
        return tuple(out)

    done = kernel.with_(body=visit(kernel.body, kernel_facts(kernel)))
    if not hits:
        raise ScheduleError(what, f"no register '{name}' is filled by a reduction")
    return done


def update_of(e: Reduce, what: str) -> tuple[str, Expr]:
    """The accumulating intrinsic and the value it takes."""
    if e.kind not in UPDATE:
        raise ScheduleError(what, f"'{e.kind}' has no accumulating form")
    value = e.body if e.body.dtype == e.dtype else Call("cast", (e.body,), e.dtype)
    product = isinstance(value, Call) and value.fn == "mul" and e.dtype.is_float
    return ("fma" if e.kind == "sum" and product else UPDATE[e.kind]), value


def accumulate(kernel: Kernel, name: str, axes: tuple[str, ...] = ()) -> Kernel:
    """for i { acc[i] = sum k { e(i, k) } }
      -->  for i { acc[i] = 0 }; for k { for i { acc[i] += e(i, k) } }

    axes: the order of the new serial loops (default: as in the reduction).
    """
    what = f"accumulate {name}"

    def rewrite(nodes: tuple[LoopNode, ...], store: Store, e: Reduce, facts: Facts) -> Body:
        fn, value = update_of(e, what)
        by_name = {a.var: a for a in e.axes}
        order = axes or tuple(by_name)
        if sorted(order) != sorted(by_name):
            raise ScheduleError(what, f"axes {order} are not {tuple(by_name)}")
        start = rebuild(nodes, (replace(store, value=start_value(e.kind, e.dtype)),))
        body = rebuild(nodes, (replace(store, value=value, accumulate=fn),))
        loops = [Loop("serial", v, by_name[v].extent, ()) for v in order]
        return (*start, *rebuild(loops, body))

    return edit_stage(kernel, name, rewrite, what)


def accumulate_blocks(kernel: Kernel, name: str, axis: str, size: int, outer: str, part: str) -> Kernel:
    """for i { acc[i] = sum j, k in n, l { e(i, j, k, l) } }
      -->  for i { acc[i] = 0 };
           for j { for o in ceildiv(n, c) { register part[..];
             for i { part[i] = sum k in min(c, n - o*c), l { e(i, j, o*c + k, l) } };
             for i { acc[i] += part[i] } } }

    A block has the axis (not where c is 1) and those after it; it is a stage, to be accumulated in turn.
    """
    what = f"accumulate_blocks {name} {axis} {size}"
    if {outer, part} & names_of(kernel) or outer == part:
        raise ScheduleError(what, f"name '{outer}' or '{part}' is taken")
    shape = next((b.shape for b in local_buffers(kernel.body) if b.name == name), ())

    def rewrite(nodes: tuple[LoopNode, ...], store: Store, e: Reduce, facts: Facts) -> Body:
        fn = update_of(replace(e, body=Load(part, store.index, e.dtype)), what)[0]
        at = next((i for i, a in enumerate(e.axes) if a.var == axis), None)
        if at is None or size < 1 or (size == 1 and at + 1 == len(e.axes)):
            raise ScheduleError(what, "the blocks have no terms")
        n, first = e.axes[at].extent, sym(outer) * size
        if facts.prove_le(n, size) is YES:
            raise ScheduleError(what, "it is one block")
        rest = to_dim(size) if facts.prove_divisible(n, size) is YES else dmin(size, n - first)
        axes = (*([Axis(axis, rest)] if size > 1 else []), *e.axes[at + 1 :])
        block = replace(e, axes=axes, body=substitute_expr(e.body, {axis: first + sym(axis) * (size > 1)}))
        start = rebuild(nodes, (replace(store, value=start_value(e.kind, e.dtype)),))
        fill = rebuild(nodes, (replace(store, buffer=part, value=block),))
        added = rebuild(nodes, (replace(store, value=Load(part, store.index, e.dtype), accumulate=fn),))
        register = Buffer(part, e.dtype, shape, "register")
        blocks = Loop("serial", outer, ceildiv(n, size), (*fill, *added), (register,))
        loops = [Loop("serial", a.var, a.extent, ()) for a in e.axes[:at]]
        return tidy((*start, *rebuild(loops, (blocks,))), facts)

    return edit_stage(kernel, name, rewrite, what)


def widen(kernel: Kernel, name: str, var: str, width: int) -> Kernel:
    """The loop v of an accumulator's stage runs further, over padding that nobody stores:

    register acc[5]; for v in 5 { acc[v] = e }  -->  register acc[8]; for v in 8 { acc[v] = e }

    Every load that may go elsewhere on the padding must be proved to stay inside its buffer.
    """
    what = f"widen {name} {var} {width}"
    shapes = {b.name: b.shape for b in kernel.buffers().values()}
    axis: list[int] = []
    settled = False

    def inside(e: Load, facts: Facts) -> Expr:
        moves = not settled or any(var in x.symbols for x in e.index)
        if moves and e.buffer in shapes and not e.guard and not within(e.index, shapes[e.buffer], facts):
            raise ScheduleError(what, f"{e.buffer}[{', '.join(map(str, e.index))}] may leave its buffer")
        return e

    def rewrite(nodes: tuple[LoopNode, ...], store: Store, e: Reduce, facts: Facts) -> Body:
        nonlocal settled
        if sym(var) not in store.index:
            raise ScheduleError(what, f"'{var}' is no axis of the register")
        axis.append(store.index.index(sym(var)))
        settled = _ranges_without(nodes, e, var)
        done = [replace(n, extent=to_dim(width)) if var_of(n) == var else n for n in nodes]
        for n in done:
            facts = enter(facts, n)
        map_loads(e, facts, inside)
        return rebuild(done, (store,))

    kernel = edit_stage(kernel, name, rewrite, what)

    def buffers(s: Stmt) -> Stmt:
        if isinstance(s, Store):
            return s
        mine = tuple(
            replace(b, shape=tuple(to_dim(width) if a == axis[0] else n for a, n in enumerate(b.shape)))
            if b.name == name
            else b
            for b in s.buffers
        )
        return replace(s, buffers=mine, body=tuple(map(buffers, s.body)))

    return kernel.with_(body=tuple(map(buffers, kernel.body)))


def _ranges_without(nodes: tuple[LoopNode, ...], e: Expr, var: str) -> bool:
    """Whether v's loop runs at least once and nothing else ranges further where v does: then a load without
    v in its index reads on the padding what it reads before."""
    for n in nodes:
        if var_of(n) == var and not (n.extent.is_const and n.extent.const > 0):
            return False
        if var_of(n) != var and var in n.extent.symbols:
            return False
    parts = tuple(walk_expr(e))
    spans = (a.extent for x in parts if isinstance(x, Reduce) for a in x.axes)
    return not any(isinstance(x, Let) for x in parts) and not any(var in d.symbols for d in spans)


# ---------------------------------------------------------------- vectors along the reduced axis


def strip_reduce(kernel: Kernel, name: str, lanes: int, wide: int, masked: bool) -> Kernel:
    """A reduction into a scalar runs over its last axis in vectors (W = wide*lanes) and ends across them:

    acc = sum k in n { e(k) }  -->  register p[W]; vector l in W { p[l] = 0 };
                                    for k.o in n // W { vector l in W { p[l] += e(k.o*W + l) } };
                                    tails as in `strip`; acc = sum l in W { p[l] }
    """
    what = f"strip_reduce {name}"
    taken = names_of(kernel)
    partial = fresh_name(f"{name}.p", taken)

    def rewrite(nodes: tuple[LoopNode, ...], store: Store, e: Reduce, facts: Facts) -> Body:
        fn, value = update_of(e, what)
        inner = facts
        for n in nodes:
            inner = enter(inner, n)
        inner = enter(inner, e.axes[:-1])
        lane = fresh_name(f"{e.axes[-1].var}.l", taken)
        strips = _ReduceStrips(kernel, partial, (), e.axes[-1], lane, fn, value, inner)
        width, pieces = strips.pieces(lanes, wide, masked)
        buffer = Buffer(partial, e.dtype, (to_dim(width),), "register")
        index = (sym(lane),)
        start = Store(partial, index, start_value(e.kind, e.dtype))
        loops = [Loop("serial", a.var, a.extent, ()) for a in e.axes[:-1]]
        axis = (Axis(lane, to_dim(width)),)
        end = replace(store, value=Reduce(e.kind, axis, Load(partial, index, e.dtype), e.dtype))
        body = (Loop("vector", lane, to_dim(width), (start,)), *rebuild(loops, pieces), end)
        return rebuild(nodes, (Block(body, (buffer,)),))

    return edit_stage(kernel, name, rewrite, what)


def strip_together(kernel: Kernel, name: str, lanes: int) -> Kernel:
    """As `strip_reduce`, for all elements of the register at once, so that the ends across vectors come
    together and those who share an operand read it once:

    for i in m { acc[i] = sum k in n { e(i, k) } }
      -->  register p[m, W]; for i' in m { vector l in W { p[i', l] = 0 } };
           for k.o in n // W { for i' in m { vector l in W { p[i', l] += e(i', k.o*W + l) } } };
           tails as in `strip`; for i in m { acc[i] = sum l in W { p[i, l] } },  i' = i.p

    W is lanes, or n where that is less. Of several loops i the last becomes the first of i'.
    """
    what = f"strip_together {name} {lanes}"
    taken = names_of(kernel)
    partial = fresh_name(f"{name}.p", taken)

    def rewrite(nodes: tuple[LoopNode, ...], store: Store, e: Reduce, facts: Facts) -> Body:
        fn, value = update_of(e, what)
        (axis, *others), loops = e.axes, [n for n in nodes if isinstance(n, Loop)]
        plain = all(n.level == "serial" and is_static(n.extent, kernel) for n in loops)
        if others or axis.extent.const_or_none in (None, 0) or len(loops) < len(nodes) or not plain:
            raise ScheduleError(what, "no reduction along one axis of known length in loops of such lengths")
        names = {n.var: f"{n.var}.p" for n in loops}
        if len({*names.values()} - taken) < len(names):
            raise ScheduleError(what, "a name of a loop is taken")
        around = tuple(replace(n, var=names[n.var], body=()) for n in (*loops[-1:], *loops[:-1]))
        inner = facts
        for n in around:
            inner = enter(inner, n)
        value = substitute_expr(value, {old: sym(new) for old, new in names.items()})
        lane, lead = fresh_name(f"{axis.var}.l", taken), tuple(sym(names[n.var]) for n in loops)
        strips = _ReduceStrips(kernel, partial, lead, axis, lane, fn, value, inner, around)
        width, pieces = strips.pieces(lanes, 1, False)
        start: Stmt = Store(partial, (*lead, sym(lane)), start_value(e.kind, e.dtype))
        begin = rebuild((*around, Loop("vector", lane, to_dim(width), ())), (start,))
        whole = Load(partial, (*(sym(n.var) for n in loops), sym(lane)), e.dtype)
        end = replace(store, value=Reduce(e.kind, (Axis(lane, to_dim(width)),), whole, e.dtype))
        buffer = Buffer(partial, e.dtype, (*(n.extent for n in loops), to_dim(width)), "register")
        return (Block((*begin, *pieces, *rebuild(nodes, (end,))), (buffer,)),)

    return edit_stage(kernel, name, rewrite, what)


class _ReduceStrips:
    """The loops that fold one axis into a register vector: the elements of `partial` from `lead` on. around:
    loops of `lead` that are inside of those over the axis."""

    def __init__(
        self, kernel: Kernel, partial: str, lead: tuple[Dim, ...], axis: Axis, lane: str, fn: str,
        value: Expr, facts: Facts, around: tuple[LoopNode, ...] = (),
    ) -> None:  # fmt: skip
        self.kernel, self.partial, self.lead, self.axis, self.lane = kernel, partial, lead, axis, lane
        self.fn, self.value, self.facts, self.around = fn, value, facts, around

    def vector(self, base: Dim, width: Dim, facts: Facts, guarded: bool = False) -> Stmt:
        at = base + sym(self.lane)
        value = substitute_expr(self.value, {self.axis.var: at})
        update: Stmt = Store(self.partial, (*self.lead, sym(self.lane)), value, self.fn)
        inside = facts.with_index(self.lane, width)
        (update,) = tidy((update,), inside)
        if guarded:
            bound = Bound(to_dim(0), at, self.axis.extent)
            (update,) = guard_body(self.kernel, (update,), inside, bound, tail=True)
            assert isinstance(update, Store)
            update = replace(update, guard=(bound,))
        (done,) = rebuild((*self.around, Loop("vector", self.lane, width, ())), (update,))
        return done

    def pieces(self, lanes: int, wide: int, masked: bool) -> tuple[int, Body]:
        """(width of the register, loops)"""
        n = self.axis.extent.const_or_none
        var, w = self.axis.var, wide * lanes
        o = f"{var}.o"
        if n is not None:
            if n < w:
                w = max(n // lanes * lanes, min(n, lanes), 1)
            out: list[Stmt] = []
            done = n // w * w
            if n // w > 1:
                facts = self.facts.with_index(o, n // w)
                piece = self.vector(sym(o) * w, to_dim(w), facts)
                out.append(Loop("serial", o, to_dim(n // w), (piece,)))
            elif done:
                out.append(self.vector(to_dim(0), to_dim(w), self.facts))
            for width in ((n - done) // lanes * lanes, (n - done) % lanes):
                if width:
                    out.append(self.vector(to_dim(done), to_dim(width), self.facts))
                    done += width
            return w, tuple(out)
        extent = self.axis.extent
        if masked:
            facts = self.facts.with_index(o, extent // w)
            main = Loop("serial", o, extent // w, (self.vector(sym(o) * w, to_dim(w), facts),))
            p, rest = f"{var}.p", ceildiv(extent % w, lanes)
            facts = self.facts.with_index(p, rest)
            base = extent // w * w + sym(p) * lanes
            tail = self.vector(base, to_dim(lanes), facts, guarded=True)
            return w, (main, Loop("serial", p, rest, (tail,)))
        sizes = tuple(sorted({w, lanes, 1}, reverse=True))
        tiles = Tiles("serial", o, f"{var}.r", extent, sizes, "greedy", ())
        piece = self.vector(sym(o), sym(tiles.rows), enter(self.facts, tiles))
        return w, (replace(tiles, body=(piece,)),)


# ---------------------------------------------------------------- values kept in the output


def keep(kernel: Kernel, name: str, buffer: str) -> Kernel:
    """A value that a reduction and a later store both compute is stored first and read twice:

    acc = sum k { e(k) }; for j { y[j] = f(e(j), acc) }
      -->  for j { y[j] = e(j) }; acc = sum k { y[k] }; for j { y[j] = f(y[j], acc) }

    Needs one store to y, of e's type, and no read of y beside them.
    """
    what = f"keep {name} {buffer}"
    hits = 0

    def visit(body: Body) -> Body:
        nonlocal hits
        at = [(i, s, *chain(s)) for i, s in enumerate(body)]
        stage = [x for x in at if _fills(x[3], name)]
        final = [x for x in at if _writes(x[3], buffer)]
        if stage and final and final[0][0] > stage[0][0]:
            hits += 1
            return _keep(body, stage[0], final[0], what)
        return tuple(s if isinstance(s, Store) else replace(s, body=visit(s.body)) for s in body)

    done = kernel.with_(body=visit(kernel.body))
    if hits != 1:
        raise ScheduleError(what, "no stage and store to share a value")
    return done


def _values(s: Stmt) -> list[Expr]:
    if isinstance(s, Store):
        return [s.value]
    return [e for c in s.body for e in _values(c)]


def _fills(leaf: Body, name: str) -> bool:
    s = leaf[0] if len(leaf) == 1 else None
    return isinstance(s, Store) and s.buffer == name and isinstance(s.value, Reduce)


def _writes(leaf: Body, buffer: str) -> bool:
    return len(leaf) == 1 and isinstance(leaf[0], Store) and leaf[0].buffer == buffer


_Part = tuple[int, Stmt, tuple[LoopNode, ...], Body]


def _keep(body: Body, stage: _Part, final: _Part, what: str) -> Body:
    i, _, stage_nodes, (fill,) = stage
    j, _, final_nodes, (last,) = final
    assert isinstance(fill, Store) and isinstance(fill.value, Reduce) and isinstance(last, Store)
    for read in (x for s in body for e in _values(s) for x in walk_expr(e)):
        if isinstance(read, Load) and read.buffer == last.buffer:
            raise ScheduleError(what, f"'{last.buffer}' is read already")
    extra = [n for n in final_nodes if var_of(n) not in {var_of(m) for m in stage_nodes}]
    e = fill.value
    if len(extra) != 1 or len(e.axes) != 1 or last.guard or last.accumulate:
        raise ScheduleError(what, "the store does not run over the reduced axis alone")
    var, axis = var_of(extra[0]), e.axes[0]
    if extra[0].extent != axis.extent or e.body.dtype != last.value.dtype:
        raise ScheduleError(what, "extents or types differ")
    value = substitute_expr(e.body, {axis.var: sym(var)})
    found = [x for x in walk_expr(last.value) if x == value]
    if not found:
        raise ScheduleError(what, "the store does not compute the reduced value")
    here = Load(last.buffer, last.index, value.dtype)
    there = substitute_expr(here, {var: sym(axis.var)})
    first = rebuild(final_nodes, (replace(last, value=value),))
    reduce = rebuild(stage_nodes, (replace(fill, value=replace(e, body=there)),))
    rest = map_expr(last.value, lambda x: here if x == value else x)
    store = rebuild(final_nodes, (replace(last, value=rest),))
    return (*body[:i], *first, *reduce, *body[i + 1 : j], *store, *body[j + 1 :])


__all__ = [
    "accumulate", "accumulate_blocks", "alpha", "hoist", "keep", "once", "stage_reduce", "start_value",
    "strip_reduce", "strip_together", "widen",
]  # fmt: skip
