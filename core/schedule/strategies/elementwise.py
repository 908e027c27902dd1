"""Nests without reductions (elementwise, broadcasts, data movement): flat loops in chunks of vectors.

What the numbers below are worth stands in benchmarks/results/choices.md."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from smelt.core.dim import YES, Dim, product, to_dim
from smelt.core.ir.analysis.scope import expressions, kernel_facts
from smelt.core.ir.kernel import Call, Expr, Index, Load, walk_expr
from smelt.core.ir.rewrite import bound_symbols
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.strategies.lanes import FEW_GROUPS
from smelt.core.schedule.strategies.reduction import (
    HEAVY_IN_FLIGHT,
    IN_FLIGHT,
    ROW_ELEMENTS,
    cut_columns,
    in_flight,
    panel_names,
)
from smelt.core.schedule.tree import ScheduleError, find
from smelt.core.schedule.view import View

CHUNK_BYTES = 16 * 1024
"""Written per group: enough to pay for claiming it, few enough that cores share short tensors."""
HEAVY_CHUNK_BYTES = 4 * 1024
LANE_BYTES = 16
"""What a lane stores at least where lanes run in step and there is enough: its widest access."""
REST = ".rest"
"""What the names of loops over a second part end in."""
TURNED_LINES, TURNED_BYTES = 16, 32
"""Of blocks that a transpose turns round in registers: the input's lines, and the bytes of each."""
TURNED_BITS = 32
"""Elements up to which that is faster than picking them one by one."""
LONG_EXPRESSION = 48
"""Distinct operations of a long expression."""
MAX_PARTS = 32
"""Nests that peeling at boundaries (concat, pad) may make of one: each is up to 2 KB of code and 30 ms of
compiling, and a concatenation of 24 parts in 8 nests takes four times as long as in 32."""


def elementwise(d: Draft, root: str) -> None:
    """Collapse what accesses allow, cut at boundaries of guards, chunk into groups, vectors inside."""
    v = d.view(root)
    if v.all_reduces():
        raise ScheduleError("elementwise", "there are reductions")
    d.attempt("unclamp", (v.vars[-1],))
    v = collapse_all(d, d.view(root))
    for part in _cut(d, v.vars[0]):
        _one(d, part)


def _one(d: Draft, root: str) -> None:
    v = d.view(root)
    inner = v.vars[-1]
    lanes = d.machine.lanes(_bits(v))
    if d.machine.in_step:
        _in_step(d, v)
        return
    apart = None if d.machine.has_lanes else _apart(v, inner, lanes)
    if apart is not None:
        _taken_apart(d, v, apart, inner, lanes)
        return
    across = None if d.machine.has_lanes else _across(v, inner, lanes)
    if across is not None:
        _transposed(d, v, across, inner, lanes)
        return
    if d.machine.has_lanes:
        _lanes(d, v, lanes)
        return
    if _side_by_side(v, lanes):
        try:
            with d.all_or_nothing():
                return _joined(d, v, lanes)
        except ScheduleError:
            pass  # vectors are as short as the rows then
    size = min(d.kernel.buffers()[s.buffer].dtype.bytes for s in v.stores)
    chunk = d.size("chunk", HEAVY_CHUNK_BYTES if v.is_heavy(d.machine) else CHUNK_BYTES)
    budget = max(chunk // size, 4 * lanes)
    n = v.extent(inner).const_or_none
    groups, parts = list(v.vars[:-1]), [inner]
    row = None
    if n is None or n > budget:
        d.do("chunk", inner, _chunk(n, budget), f"{inner}.g")
        groups.append(f"{inner}.g")
    elif groups and n * 2 <= budget:
        row = groups[-1]
        d.do("chunk", row, max(budget // max(n, 1), 1), f"{row}.g")
        groups[-1] = f"{row}.g"
    for g in groups:
        d.do("bind", g, "group")
    if v.has_lets and row is not None and _parted(d, groups[-1], row):
        parts.append(f"{inner}{REST}")
    elif v.has_lets and len(v.vars) > 1:
        d.attempt("bind_let", v.vars[-2])
    most = HEAVY_IN_FLIGHT if v.is_heavy(d.machine) else IN_FLIGHT
    flight = d.size("in flight", in_flight(d.machine, most, v.stores))
    for loop in parts:
        d.do("strip", loop, lanes, flight, d.machine.masked)
    if d.machine.ahead_of_stores and not v.is_heavy(d.machine):
        _ask_ahead(d, v)


def _bits(v: View) -> int:
    """What vectors hold elements of: what is stored, or the widest that a long expression computes in. Each
    operation on wider elements takes several vectors, and of a long one these fill blocks of thousands of
    instructions, which LLVM takes seconds for."""
    every = [x for s in v.stores for x in walk_expr(s.value)]
    return max(x.dtype.bits for x in every if not isinstance(x, Load)) if _long(every) else v.bits


def _long(every: Sequence[Expr]) -> bool:
    """Whether so many of these are distinct. What stands below others comes first: to hash an expression is
    to hash all below it, which for all of 400 took 12 ms."""
    found: set[Expr] = set()
    for x in reversed(every):
        found.add(x)
        if len(found) > LONG_EXPRESSION:
            return True
    return False


def _ask_ahead(d: Draft, v: View) -> None:
    """Lines of outputs are the core's own by the time that they are written; a short output's are anyway."""
    facts = kernel_facts(d.kernel)
    for b in d.kernel.outputs:
        written = any(s.buffer == b.name for s in v.stores)
        short = facts.prove_le(product((*b.shape, b.dtype.bytes)), CHUNK_BYTES) is YES
        if written and not b.ahead and not short:
            d.do("ask_ahead", b.name, d.machine.ahead_of_stores)


def _lanes(d: Draft, v: View, width: int) -> None:
    """A vector for each lane; where that is cut at the end of a line, elements one by one."""
    inner, groups = v.vars[-1], list(v.vars[:-1])
    n = v.extent(inner).const_or_none
    if n is None or n > width:
        d.do("split", inner, width, f"{inner}.o", f"{inner}.i", True)
        groups.append(f"{inner}.o")
        inner = f"{inner}.i"
    elif not groups:
        groups.append(d.enclose(inner))
    across = _across(v, v.vars[-1], width)
    if across is not None:  # lanes read side by side then, and there are many of them where lines are short
        groups = [*(g for g in groups if g != across), across]
        d.order(*groups, inner)
    for g in groups:
        d.do("bind", g, "group")
    if v.has_lets:
        d.attempt("bind_let", groups[-1])
    d.do("bind", inner, "vector" if "vector" in d.machine.levels else "unroll")


def _in_step(d: Draft, v: View) -> None:
    """A transpose through shared memory where one can be; else every lane has elements as far apart as a
    group is wide, so that lanes have neighbours at each of them."""
    inner, groups = v.vars[-1], list(v.vars[:-1])
    across = _across(v, inner, d.machine.subgroup)
    if across is not None:
        try:
            with d.all_or_nothing():
                return _through_shared(d, v, across, inner)
        except ScheduleError:
            pass  # lanes jump then
    n, width = v.extent(inner).const_or_none, d.machine.max_lanes
    size = max(d.kernel.buffers()[s.buffer].dtype.bytes for s in v.stores)
    each = max(1, LANE_BYTES // size)
    if n is not None and n < each * width * d.machine.cores * FEW_GROUPS:
        each = 1
    if v.has_lets or each == 1:
        _lanes(d, v, 1)
        return
    o, t, i, lane = (f"{inner}.{x}" for x in "otil")
    d.do("split", inner, each * width, o, t, True)
    d.do("split", t, width, i, lane, False)
    d.order(*groups, o, lane, i)
    d.share([*groups, o])
    d.do("bind", lane, "lane")
    d.do("unroll", i)


def _through_shared(d: Draft, v: View, across: str, inner: str) -> None:
    """Squares as wide as lanes are together: copied along the input's lines, stored along the output's. Rows
    of a square have an odd length, so that lanes read from different banks."""
    width = d.machine.subgroup
    loads = [e for s in v.stores for e in walk_expr(s.value) if isinstance(e, Load)]
    turned = [e for e in loads if v.stride(e, inner) not in (None, 0, 1) and v.stride(e, across) == 1]
    for x in (across, inner):
        d.do("split", x, width, f"{x}.o", f"{x}.l", True)
    groups = [x for x in v.vars if x not in (across, inner)] + [f"{across}.o", f"{inner}.o"]
    d.order(*groups, f"{across}.l", f"{inner}.l")
    d.share(groups)
    for x in (across, inner):
        d.do("bind", f"{x}.l", "lane")
    for buffer in dict.fromkeys(e.buffer for e in turned):
        d.do("fetch", groups[-1], buffer, d.fresh(f"{buffer}.tile"), 1)


def _across(v: View, inner: str, lanes: int) -> str | None:
    """A loop along which some load is contiguous while it jumps along the inner one: a transpose."""
    if lanes < 2 or v.has_lets or _short(v.extent(inner), lanes):
        return None
    for s in v.stores:
        for e in walk_expr(s.value):
            if not isinstance(e, Load) or v.stride(e, inner) in (None, 0, 1):
                continue
            for other in v.vars[:-1]:
                if v.stride(e, other) == 1 and not _short(v.extent(other), lanes // 2):
                    return other
    return None


def _short(n: Dim, least: int) -> bool:
    return n.is_const and n.const < least


def _transposed(d: Draft, v: View, across: str, inner: str, lanes: int) -> None:
    """One vector of the output's lines at a time, along the input's. Of whole vectors several lines are
    written out, so that registers turn blocks of elements round. What is left of these, and vectors that are
    cut, gather, where every cache line that a gather touches is used up by the next ones."""
    others = [x for x in v.vars if x not in (across, inner)]
    n, lanes = v.extent(inner), min(lanes, TURNED_LINES)
    turned = 1 if v.is_heavy(d.machine) or v.bits > TURNED_BITS else min(TURNED_BYTES * 8 // v.bits, lanes)
    whole = n.is_const or kernel_facts(d.kernel).prove_divisible(n, lanes) is YES
    parts = cut_columns(d, inner, n, lanes, lanes, True)
    for width, suffix in parts:
        o, i = panel_names(inner, suffix)
        groups = [*(x + suffix for x in others), o]
        d.order(*groups, across + suffix, i)
        for g in groups:
            d.do("bind", g, "group")
        if width == lanes and turned > 1 and (whole or (len(parts) > 1 and not suffix)):
            _block(d, v.extent(across), across + suffix, i, turned)
        d.do("bind", i, "vector")


def _block(d: Draft, n: Dim, across: str, inner: str, lines: int) -> None:
    """Lines of the output written out, `lines` of them at a time; the rest one by one."""
    if n.is_const and n.const < lines:
        return
    if kernel_facts(d.kernel).prove_divisible(n, lines) is not YES:
        d.do("peel", across, n // lines * lines, ".r")
        d.do("bind", f"{inner}.r", "vector")
    d.do("split", across, lines, d.fresh(f"{across}.b"), f"{across}.i", False)
    d.do("unroll", f"{across}.i")


def _apart(v: View, inner: str, lanes: int) -> str | None:
    """A loop over the elements of short rows that lie side by side along the inner one: channels last that
    become channels first."""
    for c in v.vars[:-1] if lanes >= 2 and not v.has_lets else ():
        n = v.extent(c).const_or_none
        loads = [e for s in v.stores for e in walk_expr(s.value) if isinstance(e, Load)]
        rows = [e for e in loads if v.stride(e, c) == 1 and v.stride(e, inner) == n and not e.guard]
        if n is not None and 1 < n <= ROW_ELEMENTS and rows and not _short(v.extent(inner), lanes):
            return c
    return None


def _taken_apart(d: Draft, v: View, element: str, inner: str, lanes: int) -> None:
    """All first elements of some rows, then all second ones: the rows stay near meanwhile."""
    groups = [x for x in v.vars if x not in (element, inner)]
    size = max(d.kernel.buffers()[s.buffer].dtype.bytes for s in v.stores) * v.extent(element).const
    width, n = IN_FLIGHT * lanes, v.extent(inner).const_or_none
    budget = max(CHUNK_BYTES // size, width) // width * width
    d.order(*groups, inner, element)
    if n is None or n > budget:
        d.do("chunk", inner, _chunk(n, budget), f"{inner}.g")
        groups.append(f"{inner}.g")
    elif not groups:
        groups.append(d.enclose(inner))
    d.order(*groups, element, inner)
    d.share(groups)
    d.do("unroll", element)
    d.do("strip", inner, lanes, IN_FLIGHT, False)


def _side_by_side(v: View, lanes: int) -> bool:
    """Whether the innermost loop is so short that it fills no vector, and several rows of it are neighbours
    that are stored, and read from a few places each."""
    if len(v.vars) < 2 or v.has_lets or not 1 < (v.extent(v.vars[-1]).const_or_none or 0) < lanes:
        return False
    row, inner = v.vars[-2:]
    n = v.extent(inner)
    parts = [e for s in v.stores for e in walk_expr(s.value)]
    loads = [e for e in parts if isinstance(e, Load)]
    if any(isinstance(e, Index) for e in parts):
        return False
    near = {(to_dim(a), to_dim(b)) for a, b in ((0, 0), (1, 0), (0, 1), (n, 1))}
    whole = all(v.stride(s, row) == n and v.stride(s, inner) == 1 and not s.guard for s in v.stores)
    return whole and all((v.stride(e, row), v.stride(e, inner)) in near and not e.guard for e in loads)


def _joined(d: Draft, v: View, lanes: int) -> None:
    """As many rows together as fill whole vectors, then a quarter as many; those that are left are as short
    as they are."""
    *groups, row, inner = v.vars
    short = v.extent(inner).const
    rows = lanes // gcd(lanes, short)
    size = max(d.kernel.buffers()[s.buffer].dtype.bytes for s in v.stores) * short
    d.do("chunk", row, max(d.size("chunk", CHUNK_BYTES) // size // rows, 1) * rows, f"{row}.g")
    for g in (*groups, f"{row}.g"):
        d.do("bind", g, "group")
    for together in (rows, rows // 4):
        found = find(d.kernel, row)
        if found is None or together < 2:
            break
        n = found[1].extent
        if n.is_const and n.const < together:
            continue
        if kernel_facts(d.kernel).prove_divisible(n, together) is not YES:
            d.do("peel", row, n // together * together, ".r")
        d.do("split", row, together, f"{row}.o", f"{row}.i", False)
        joined = d.fresh("joined")
        d.do("join", f"{row}.i", inner, joined)
        d.do("bind", joined, "vector")
        row, inner = f"{row}.r", f"{inner}.r"
    if find(d.kernel, inner) is not None:
        d.do("bind", inner, "vector")
    if d.machine.ahead_of_stores:
        _ask_ahead(d, v)


def _chunk(n: int | None, budget: int) -> int:
    """A divisor of n near the budget, so that no chunk is cut; the budget when there is none."""
    if n is None:
        return budget
    return next((c for c in range(budget, budget // 2, -1) if n % c == 0), budget)


def collapse_all(d: Draft, v: View) -> View:
    """Every pair of neighbouring loops that accesses allow, joined, from the inside out."""
    at = len(v.vars) - 2
    while at >= 0:
        a, b = v.vars[at], v.vars[at + 1]
        if d.attempt("collapse", a, b, name := d.fresh(f"{a}_{b}" if len(a) < 12 else "flat")):
            v = d.view(name)
        at -= 1
        at = min(at, len(v.vars) - 2)
    return v


# ---------------------------------------------------------------- boundaries


def _parted(d: Draft, group: str, row: str) -> bool:
    """Rows of two sources, of which a number that a run reads says where the second begins: a loop over the
    rows of each, in which none asks where it comes from."""
    try:
        with d.all_or_nothing():
            d.do("bind_let", group)
            d.do("part", row, _turn(d, row), REST)
    except ScheduleError:
        return False
    return True


def _turn(d: Draft, row: str) -> Dim:
    """The first iteration of the loop from which on a comparison of indices has its other answer."""
    found = find(d.kernel, row)
    assert found is not None, row
    for e in expressions(found[1].body):
        for x in walk_expr(e):
            at = _changes(x, row) if isinstance(x, Call) else None
            if at is not None and not at.symbols & bound_symbols(found[1].body):
                return at
    raise ScheduleError(f"part {row}", "no comparison turns along it")


def _cut(d: Draft, root: str) -> list[str]:
    """Peel loops where a guard's truth changes (concat, slices of pads); the roots of the parts."""
    parts = [root]
    done: list[str] = []
    while parts:
        part = parts.pop(0)
        found = None if len(parts) + len(done) + 1 >= MAX_PARTS else _boundary(d, d.view(part))
        if found is None:
            done.append(part)
            continue
        var, at = found
        names = d.view(part).vars
        with d.all_or_nothing():
            d.order(var, *(n for n in names if n != var))
            d.do("peel", var, at, ".b")
        for s in (".b", ""):
            back = [n + s for n in names]
            d.order(*back)
            parts.insert(0, back[0])
    return done


def _changes(e: Call, row: str) -> Dim | None:
    """Where `a < b` or `a <= b`, of indices that move by 1 against each other, gets its other answer."""
    a, b = e.args if e.fn in ("lt", "le") else (None, None)
    if not isinstance(a, Index) or not isinstance(b, Index):
        return None
    step, rest = (a.dim - b.dim).linear(row) or (to_dim(0), a.dim)
    if step == 1:
        return -rest if e.fn == "lt" else 1 - rest
    return None if step != -1 else rest if e.fn == "le" else rest + 1


def _boundary(d: Draft, v: View) -> tuple[str, Dim] | None:
    """(loop, position) where a bound of some load starts or stops to hold, strictly inside the loop."""
    facts = kernel_facts(d.kernel)
    for s in v.stores:
        for e in walk_expr(s.value):
            for b in e.guard if isinstance(e, Load) else ():
                for loop in v.loops:
                    found = b.index.linear(loop.var)
                    if found is None or found[0] != 1:
                        continue
                    for edge in (b.low - found[1], b.high - found[1]):
                        inside = (
                            not (edge.symbols & set(v.vars))
                            and edge not in (0, loop.extent)
                            and facts.prove_le(0, edge) is YES
                            and facts.prove_le(edge, loop.extent) is YES
                        )
                        if inside:
                            return loop.var, edge
    return None
