"""Kernels: a tree of nodes over symbolic index spaces, with scalar expressions at the leaves.

Index expressions are Dims over the kernel's dims and the variables of the loops around them, so one
algebra serves shapes, access maps, offsets and proofs. Data-dependent indices enter through `Let`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from smelt.core.dim import Dim
from smelt.core.dtype import DType
from smelt.core.ir.layout import Layout

Space = Literal["global", "scratch", "shared", "register"]
Level = Literal["unit", "group", "lane", "vector", "serial", "unroll"]
ReduceKind = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Row-major storage. Register extents must be constants (after tile sizes are substituted).
    layout: of an input that is a weight at every call, and lies so before the kernel runs; shape is then the
    layout's. ahead: how many bytes after what a vector reads of it, or writes of an output, the cache is
    asked for more; 0: not."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    space: Space = "global"
    layout: Layout | None = None
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """low <= index < high; a conjunction of these guards a load, a store or a block."""

    low: Dim
    index: Dim
    high: Dim


# ---------------------------------------------------------------- expressions


@dataclass(frozen=True, slots=True)
class Const:
    """A literal. Floats are Python floats (inf and nan allowed), integers Python ints."""

    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, slots=True)
class Index:
    """An index expression as a value of an integer (or float) dtype."""

    dim: Dim
    dtype: DType


@dataclass(frozen=True, slots=True)
class Load:
    """buffer[index], or `otherwise` (0 when None) where a bound does not hold."""

    buffer: str
    index: tuple[Dim, ...]
    dtype: DType
    guard: tuple[Bound, ...] = ()
    otherwise: Expr | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A scalar intrinsic of the closed set in core/ir/intrinsics.py; `dtype` is the result's.

    `cast` converts args[0] to dtype; `select` is (condition, then, else)."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Axis:
    """A reduction variable running over 0 .. extent-1."""

    var: str
    extent: Dim


@dataclass(frozen=True, slots=True)
class Reduce:
    """kind over axes of body. dtype is the accumulator's and result's type; argmax/argmin give the
    (first, or last when `last`) position along their only axis, as dtype. An empty sum is 0, an empty
    max is the type's lowest value."""

    kind: ReduceKind
    axes: tuple[Axis, ...]
    body: Expr
    dtype: DType
    last: bool = False


@dataclass(frozen=True, slots=True)
class Let:
    """Bind symbol `var` to an integer value, clamped into low .. high (inclusive), inside body."""

    var: str
    value: Expr
    low: Dim
    high: Dim
    body: Expr

    @property
    def dtype(self) -> DType:
        """The body's."""
        return self.body.dtype


Expr: TypeAlias = Const | Index | Load | Call | Reduce | Let


# ---------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value, or (accumulate) buffer[index] = fn(buffer[index], value) where fn is an
    intrinsic: 'add', 'mul', 'max', 'min', 'fma' (value is then a product a*b given as Call('mul')).
    Nothing happens where a bound does not hold."""

    buffer: str
    index: tuple[Dim, ...]
    value: Expr
    accumulate: str | None = None
    guard: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """Replicate body over var in 0 .. extent-1 at a level. `buffers` live inside one iteration, except
    that a register buffer with leading lane dims lives across sibling lane loops. Those of space scratch,
    which only groups have, may be of any size that dims decide (workspace.py).
    Directly nested group loops (a group Loop/Tiles whose only statement is a group Loop/Tiles) form one
    flattened parallel space, outermost slowest."""

    level: Level
    var: str
    extent: Dim
    body: tuple[Stmt, ...]
    buffers: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class Tiles:
    """Cover 0 .. extent-1 by consecutive tiles; body sees symbol `start` and symbol `rows`, the tile's
    size, which is a constant of `sizes` in each expansion (sizes: descending, ends in 1).

    balanced: n = ceildiv(extent, sizes[0]) tiles whose sizes differ by at most one (13 -> 7 + 6, every
              size from 1 to sizes[0] must be in sizes).
    greedy:   as many of sizes[0] as fit, then the rest by the next sizes (vector tails).
    As a group level it contributes ceildiv(extent, sizes[0]) groups; greedy's last group does the tail.
    """

    level: Level
    start: str
    rows: str
    extent: Dim
    sizes: tuple[int, ...]
    mode: Literal["balanced", "greedy"]
    body: tuple[Stmt, ...]
    buffers: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Statements in order, with buffers of their own and optional integer bindings and guard.
    let: symbols bound to values (clamped to low..high), visible in body. Runs only where guard holds.
    by: the name of a machine's instruction that the body, one nest of loops, is computed by; the body is what
    it means (see core/ir/instructions.py).
    ordered: it begins when all before it in its body has ended, whatever that touched: buffers of different
    names may lie in one place of memory (see core/schedule/chain.py)."""

    body: tuple[Stmt, ...]
    buffers: tuple[Buffer, ...] = ()
    let: tuple[tuple[str, Expr, Dim, Dim], ...] = ()
    guard: tuple[Bound, ...] = ()
    by: str = ""
    ordered: bool = False


Stmt: TypeAlias = Store | Loop | Tiles | Block
LoopNode: TypeAlias = Loop | Tiles


@dataclass(frozen=True, slots=True)
class DimParam:
    """A dim argument of a kernel with its inclusive range (high None: unbounded) and divisor."""

    name: str
    low: int = 0
    high: int | None = None
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class HotCase:
    """The name of a kernel that runs in the place of another one where dims of that have these values: (dim,
    value). See hot.py."""

    kernel: str
    dims: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """dims: int64 arguments. inputs/outputs: global buffers, destination-passing. scratch: global
    buffers that the planner owns for the duration of the call. body: top-level siblings run one after
    the other; each is one parallel region. origin: names of the ops inside, for people. hot: kernels that run
    in its place at some sizes; the first that fits does. lies: where a launch is given memories in which
    several buffers lie, of each buffer (the memory's number, that of the dim which is its byte offset)."""

    name: str
    dims: tuple[DimParam, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    scratch: tuple[Buffer, ...] = ()
    schedule: str = ""
    origin: str = ""
    hot: tuple[HotCase, ...] = ()
    lies: tuple[tuple[int, int], ...] = ()

    def buffers(self) -> dict[str, Buffer]:
        """What lies in memory, by name: parameters, scratch, and scratch that groups have."""
        own = (b for s in self.body for b in own_scratch(s))
        return {b.name: b for b in (*self.inputs, *self.outputs, *self.scratch, *own)}

    def memories(self) -> int:
        """How many a launch is given: one for each buffer, but where several lie in one."""
        return 1 + max(memory for memory, _ in self.lies) if self.lies else len(self.buffers())

    def with_(self, **changes: Any) -> Kernel:
        """A copy with some fields replaced."""
        return replace(self, **changes)


# ---------------------------------------------------------------- traversal


def own_scratch(s: Stmt) -> Iterator[Buffer]:
    """What each group of a top-level statement has in memory of its own."""
    while isinstance(s, Loop | Tiles) and s.level == "group":
        yield from (b for b in s.buffers if b.space == "scratch")
        if len(s.body) != 1:
            return
        s = s.body[0]


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions."""
    if isinstance(e, Call):
        return e.args
    if isinstance(e, Reduce):
        return (e.body,)
    if isinstance(e, Let):
        return (e.value, e.body)
    if isinstance(e, Load):
        return () if e.otherwise is None else (e.otherwise,)
    return ()


def walk_expr(e: Expr) -> Iterator[Expr]:
    """The expression and everything below it, outer first."""
    left = [e]
    while left:
        e = left.pop()
        yield e
        if isinstance(e, Call):  # most have no other parts: without a call of `children` for each
            left += e.args[::-1]
        elif not isinstance(e, Const | Index):
            left += children(e)[::-1]


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """All statements of a body, outer first."""
    left = list(body[::-1])
    while left:
        s = left.pop()
        yield s
        if not isinstance(s, Store):
            left += s.body[::-1]
