"""A thread's copy of neighbours from global to shared memory in, one move of them out: from sm_80 on an
asynchronous one, which nothing waits for before the next barrier; else a load and a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from smelt.core.dim import YES, Dim, Facts, Mod, sym
from smelt.core.ir.analysis.scope import accesses
from smelt.core.ir.kernel import Bound, Const, Load, Loop, Stmt, Store, Tiles, walk
from smelt.targets.llvm.builder import FunctionBuilder, Value

if TYPE_CHECKING:
    from smelt.targets.cuda.emit import KernelPart

MOVE_SIZES = (4, 8, 16)
"""Bytes that can be moved at once."""
COPIES = {n: f"llvm.nvvm.cp.async.{'cg' if n == 16 else 'ca'}.shared.global.{n}.s" for n in MOVE_SIZES}
"""Bytes -> the instruction, which is told how many of them to read; the others are zeros. 16 bytes go past
the first cache."""
WAIT, COMMIT, WAIT_MOST = (f"llvm.nvvm.cp.async.{x}" for x in ("wait.all", "commit.group", "wait.group"))
"""For all of a thread's copies; the end of a group of them; for all but the last groups."""


def copies(s: Stmt) -> bool:
    """Whether there is a loop that `moved` may move, somewhere in a statement."""
    nodes = [x for x in walk((s,)) if not isinstance(x, Store)]
    shared = {b.name for x in nodes for b in x.buffers if b.space == "shared"}
    loops = [x for x in nodes if isinstance(x, Loop) and x.level == "unroll"]
    return any(_copy(x, shared) is not None for x in loops)


def under_way(node: Loop | Tiles) -> int:
    """How many passes of a loop, the last one included, may have copies that are still coming when the next
    pass begins: what that reads was copied S - 1 passes before, where S parts of a tile take turns."""
    if not isinstance(node, Loop):
        return 0
    shared = {s.buffer for x in walk(node.body) if (s := _filled(x)) is not None}
    stages = {_turn(d, node.var) for name in shared for d in _firsts(node.body, name)}
    numbers = {n for n, _ in filter(None, stages)}
    if None in stages or len(numbers) != 1:
        return 0
    (n,) = numbers
    return n - 2 if {ahead for _, ahead in filter(None, stages)} == {0, n - 1} else 0


def _filled(s: Stmt) -> Store | None:
    """The store of a loop that copies neighbours."""
    if isinstance(s, Loop) and s.level == "unroll" and len(s.body) == 1 and isinstance(s.body[0], Store):
        return s.body[0] if isinstance(s.body[0].value, Load) else None
    return None


def _firsts(body: Sequence[Stmt], name: str) -> list[Dim]:
    """The first index of every access of a buffer."""
    return [a.index[0] for a in accesses(tuple(body)) if a.buffer == name]


def _turn(d: Dim, var: str) -> tuple[int, int] | None:
    """(S, k) of (var + k) % S"""
    terms = list(d.terms())
    atom = terms[0][1][0][0] if len(terms) == 1 and terms[0][0] == 1 and len(terms[0][1]) == 1 else None
    if not isinstance(atom, Mod) or not atom.b.is_const:
        return None
    ahead = (atom.a - sym(var)).const_or_none
    return None if ahead is None else (atom.b.const, ahead % atom.b.const)


def wait_for_copies(b: FunctionBuilder, most: int) -> None:
    """Until all of the thread's copies are there, but for those since the last `most` waits but this one."""
    if not most:
        b.declare(WAIT, "void", [], "nounwind")
        b.effect(f"call void @{WAIT}()")
        return
    b.declare(COMMIT, "void", [], "nounwind")
    b.effect(f"call void @{COMMIT}()")
    b.declare(WAIT_MOST, "void", ["i32"], "nounwind")
    b.effect(f"call void @{WAIT_MOST}(i32 {most})")


def in_line(code: KernelPart, body: Sequence[Stmt]) -> bool:
    """Whether what a thread copies always begins at a multiple of what is moved at once, as buffers do; else
    that, or the end of a row, is to be found out at each of them."""
    s = body[0] if len(body) == 1 else None
    found = _copy(s, set(code.shared)) if isinstance(s, Loop) and s.level == "unroll" else None
    if found is None or not isinstance(s, Loop) or not s.extent.is_const:
        return False
    e, n = found[1], s.extent.const
    if e.buffer not in code.kernel.buffers() or mentions(e.guard, s.var):
        return False
    flat = code.flat(code.memory[e.buffer].buffer, e.index)
    return Facts({}).prove_divisible(flat.substitute({s.var: 0}), n) is YES


def mentions(guard: Sequence[Bound], var: str) -> bool:
    """Whether a guard follows a variable."""
    return any(var in d.symbols for g in guard for d in _dims(g))


def _dims(g: Bound) -> tuple[Dim, Dim, Dim]:
    return g.low, g.index, g.high


def _copy(s: Loop, shared: set[str]) -> tuple[Store, Load] | None:
    """t[.. + v] = x[.. + v]  of the loop v, t one of `shared` and x none."""
    fill = s.body[0] if len(s.body) == 1 and not s.buffers else None
    if not isinstance(fill, Store) or fill.accumulate or fill.guard or fill.buffer not in shared:
        return None
    e = fill.value
    if not isinstance(e, Load) or e.buffer in shared or not _else_zero(e):
        return None
    return fill, e


def _else_zero(e: Load) -> bool:
    other = e.otherwise
    return other is None or (isinstance(other, Const) and other.value == 0 and str(other.value) != "-0.0")


def moved(code: KernelPart, s: Loop, plain: Callable[[], None]) -> bool:
    """Emit the loop as one move; False where it is no copy of neighbours. plain: emits it element by element,
    for what lies across the end of a row, or at addresses that are no multiples of what is moved."""
    found = _copy(s, set(code.shared))
    n = s.extent.const_or_none
    if found is None or n is None or found[1].buffer not in code.kernel.buffers():
        return False
    fill, e = found
    to, source = code.memory[fill.buffer], code.memory[e.buffer]
    size = n * e.dtype.bytes
    there, here = (code.flat(m.buffer, x.index) for m, x in ((to, fill), (source, e)))
    if size not in MOVE_SIZES or not neighbours(there, s.var) or not neighbours(here, s.var):
        return False
    if Facts({}).prove_divisible(there.substitute({s.var: 0}), n) is not YES:
        return False
    moving = tuple(g for g in e.guard if mentions((g,), s.var))
    if any(d.linear(s.var) is None for g in moving for d in _dims(g)):
        return False
    fixed = tuple(g for g in e.guard if g not in moving)
    code.start_statement()
    with code.bind({s.var: n - 1}, 0):
        whole = code.condition(moving)
    with code.bind({s.var: 0}, 0):
        whole = code.s.both(whole, code.condition(moving))
        inside = code.condition(fixed)
        at, target = code.pointer(source, e.index), code.pointer(to, fill.index)
    if not code.in_line:
        whole = code.s.both(whole, _aligned(code, at, size))
    code.branch(whole, lambda: _move(code, target, at, size, inside, s), plain, (s,))
    return True


def neighbours(flat: Dim, var: str) -> bool:
    """Whether elements along var lie side by side."""
    step = flat.linear(var)
    return step is not None and step[0] == 1


def _aligned(code: KernelPart, at: Value, size: int) -> Value:
    """Whether an address is a multiple of the size, a power of two."""
    b = code.b
    number = b.pure(f"ptrtoint {at.typed} to i64", "i64", 0, at)
    low = b.pure(f"and {number.typed}, {size - 1}", "i64", 0, number)
    return b.pure(f"icmp eq {low.typed}, 0", "i1", 0, low)


def _move(code: KernelPart, target: Value, at: Value, size: int, inside: Value, s: Loop) -> None:
    """`size` bytes, or as many zeros where they are not inside."""
    b = code.b
    if code.asynchronous:
        count = (
            b.integer(size, "i32")
            if inside.const
            else b.pure(f"select {inside.typed}, i32 {size}, i32 0", "i32", 0, inside)
        )
        near = b.pure(f"addrspacecast {target.typed} to ptr addrspace(3)", "ptr addrspace(3)", 0, target)
        far = b.pure(f"addrspacecast {at.typed} to ptr addrspace(1)", "ptr addrspace(1)", 0, at)
        name = COPIES[size]
        b.declare(name, "void", [near.type, far.type, "i32"], "nounwind memory(argmem: readwrite)")
        b.effect(f"call void @{name}({near.typed}, {far.typed}, {count.typed})")
        return
    kind = f"<{size // 4} x i32>"

    def store(v: str) -> None:
        b.effect(f"store {kind} {v}, ptr {target.text}, align {size}")

    def load() -> None:
        store(b.here(f"load {kind}, ptr {at.text}, align {size}", "i32", size // 4).text)

    if inside.const is not None:
        load() if inside.const else store("zeroinitializer")
    else:
        code.branch(inside, load, lambda: store("zeroinitializer"), (s,))


__all__ = [
    "COMMIT", "COPIES", "MOVE_SIZES", "WAIT", "WAIT_MOST", "copies", "in_line", "mentions", "moved",
    "neighbours", "under_way", "wait_for_copies",
]  # fmt: skip
