"""Kernel, dims and input arrays in, output arrays out: the exact oracle for primitives and emitters.

Statements run one after the other, every level as a plain loop, with the accumulator types of the tree:
a sum adds its terms in order in its own dtype. Expressions of 16-bit floats are computed in f32 and rounded
where they are stored or cast, as targets do. Loops around a single store run as NumPy arrays where
that cannot change the meaning (no instance reads what another writes, elements written once), which is
decided per statement. Nothing wraps: an access outside its buffer is an internal error that names buffer,
index and extent. Fresh buffers are poisoned, so that reading before writing shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Any, TypeAlias

import numpy as np

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, FloorDiv, Max, Min, Mod, SymbolAtom
from smelt.core.dtype import Array, DType, bf16, f16, f32
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import (
    Axis,
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
    walk_expr,
)
from smelt.core.ir.rewrite import free_symbols

LoopEnv: TypeAlias = Mapping[str, Any]
"""Symbol -> int, or an int64 array over the loops that run at once."""

CHUNK_ELEMENTS = 1 << 20  # elements evaluated at once: a few arrays of this size stay in cache
WIDE_REDUCTION = 1 << 11  # elements from which a reduction runs term by term: NumPy's scans are slow there


# ---------------------------------------------------------------- scalars and index expressions


@lru_cache(maxsize=8192)
def dim_function(d: Dim) -> Callable[[LoopEnv], Any]:
    """d as a function of an environment of ints or int64 arrays; floors as Dim.evaluate does."""
    if d.const_or_none is not None:
        value = d.const
        return lambda env: value
    terms = [_term_function(coef, factors) for coef, factors in d.terms()]
    if len(terms) == 1:
        return terms[0]

    def total(env: LoopEnv) -> Any:
        result = terms[0](env)
        for t in terms[1:]:
            result = result + t(env)
        return result

    return total


def _term_function(coef: int, factors: Sequence[tuple[Any, int]]) -> Callable[[LoopEnv], Any]:
    atoms = [(_atom_function(a), power) for a, power in factors]
    if coef == 1 and len(atoms) == 1 and atoms[0][1] == 1:
        return atoms[0][0]

    def value(env: LoopEnv) -> Any:
        result: Any = coef
        for f, power in atoms:
            result = result * f(env) ** power
        return result

    return value


def _atom_function(a: Any) -> Callable[[LoopEnv], Any]:
    if isinstance(a, SymbolAtom):
        name = a.name
        return lambda env: env[name]
    if isinstance(a, FloorDiv):
        x, y = dim_function(a.a), dim_function(a.b)
        return lambda env: x(env) // y(env)
    if isinstance(a, Mod):
        x, y = dim_function(a.a), dim_function(a.b)
        return lambda env: x(env) % y(env)
    assert isinstance(a, Min | Max)
    parts = [dim_function(p) for p in a.args]
    pick: Any = np.minimum if isinstance(a, Min) else np.maximum

    def value(env: LoopEnv) -> Any:
        result = parts[0](env)
        for p in parts[1:]:
            result = pick(result, p(env))
        return result

    return value


def cast_array(x: Array, to: DType) -> Array:
    """Conversion by the IR's rules: float to int truncates towards 0, saturates, and takes NaN to 0; to
    bool is != 0; int to int wraps."""
    with np.errstate(all="ignore"):
        return _converted(np.asarray(x), to)


def _converted(x: Array, to: DType) -> Array:
    if x.dtype == to.numpy:
        return x
    is_float = x.dtype.kind in "fV"  # bf16 is a void-like extension type
    if to.category == "bool":
        return np.asarray(np.not_equal(x, np.zeros((), x.dtype)))
    if is_float and to.is_int:
        info = np.iinfo(to.numpy)
        wide = np.trunc(x.astype(np.float64))
        inside = (wide > float(info.min)) & (wide < float(info.max))
        exact = np.where(inside, wide, 0).astype(to.numpy)
        high, low = to.numpy.type(info.max), to.numpy.type(info.min)
        ends = np.where(wide >= float(info.max), high, np.where(wide <= float(info.min), low, 0))
        return np.asarray(np.where(inside, exact, ends.astype(to.numpy)), to.numpy)
    return np.asarray(x.astype(to.numpy))


def held_type(dtype: DType) -> np.dtype[Any]:
    """The type that a value of an expression is computed in: f32 for 16-bit floats."""
    return f32.numpy if dtype.is_float and dtype.bits == 16 else dtype.numpy


def _held(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype in _HALVES else x


def _term(values: Array, e: Reduce) -> Array:
    """Terms in the type that a reduction is computed in."""
    return _held(values) if e.body.dtype == e.dtype else _held(cast_array(values, e.dtype))


_HALVES = (f16.numpy, bf16.numpy)
_BY_BITS = ("bitcast", "isinf", "isnan")
"""What looks at the bits of a value, rounded to its own type."""


def identity(kind: str, dtype: DType) -> Any:
    """What an empty reduction gives."""
    if kind in ("sum", "any"):
        return dtype.numpy.type(0)
    if kind in ("prod", "all"):
        return dtype.numpy.type(1)
    if dtype.is_float:
        return dtype.numpy.type(-np.inf if kind == "max" else np.inf)
    if dtype.category == "bool":
        return np.bool_(kind == "min")
    low, high = dtype.limits
    return dtype.numpy.type(low if kind == "max" else high)


_STEP: Mapping[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


# What `accumulate` does to a product of fma as well: both round the product first (see intrinsics.fma).
_ACCUMULATE: Mapping[str, Any] = {
    "add": np.add,
    "fma": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def tile_sizes(extent: int, sizes: Sequence[int], mode: str) -> list[int]:
    """The sizes of the tiles that cover 0 .. extent-1, in order (see kernel.Tiles)."""
    if extent <= 0:
        return []
    if mode == "balanced":
        n = -(-extent // sizes[0])
        base, extra = divmod(extent, n)
        return [base + 1] * extra + [base] * (n - extra)
    found = []
    for s in sizes:
        found += [s] * (extent // s)
        extent %= s
    assert extent == 0, f"sizes {sizes} do not end in 1"
    return found


# ---------------------------------------------------------------- evaluation


@dataclass(frozen=True, slots=True)
class _Nest:
    """Loops around one store. first: where the suffix starts that may run as arrays. careful: elements
    must be distinct for that. summed: where the loops start, up to first, that accumulate into the same
    elements and may run as one ordered scan."""

    loops: tuple[Loop, ...]
    store: Store
    first: int
    careful: bool
    summed: int


class Runner:
    """One run of a kernel: buffers by name."""

    def __init__(self, kernel: Kernel, env: dict[str, int]) -> None:
        self.kernel = kernel
        self.env = env
        self.buffers: dict[str, Array] = {}
        self.nests: dict[int, tuple[_Nest, ...]] = {}
        self.free: dict[int, frozenset[str]] = {}

    def fresh(self, b: Buffer, env: LoopEnv) -> Array:
        shape = tuple(int(dim_function(d)(env)) for d in b.shape)
        return poison(shape, b.dtype)

    # -- statements

    def broken(self, message: str) -> SmeltError:
        """The error of this kernel."""
        return SmeltError(f"kernel '{self.kernel.name}': {message}", kind="internal")

    def whole(self) -> None:
        """All of the kernel."""
        self.run(self.kernel.body, self.env)

    def run(self, body: tuple[Stmt, ...], env: LoopEnv) -> None:
        for s in body:
            if isinstance(s, Store):
                self.store(s, env, ())
            elif isinstance(s, Loop):
                self.loop(s, env)
            elif isinstance(s, Tiles):
                self.tiles(s, env)
            else:
                self.block(s, env)

    def scoped(self, s: Loop | Tiles | Block, env: LoopEnv, inside: Callable[[], None] | None = None) -> None:
        """The body of s (or what `inside` does) with its buffers, which vanish afterwards."""
        hidden = {b.name: self.buffers.get(b.name) for b in s.buffers}
        for b in s.buffers:
            self.buffers[b.name] = self.fresh(b, env)
        if inside is None:
            self.run(s.body, env)
        else:
            inside()
        for name, old in hidden.items():
            if old is None:
                del self.buffers[name]
            else:
                self.buffers[name] = old

    def loop(self, s: Loop, env: LoopEnv) -> None:
        if id(s) not in self.nests:
            self.nests[id(s)] = _nests_of(s)
        for nest in self.nests[id(s)]:
            self.nest(nest, 0, env)
        if self.nests[id(s)]:
            return
        for n in range(int(dim_function(s.extent)(env))):
            self.scoped(s, {**env, s.var: n})

    def tiles(self, s: Tiles, env: LoopEnv) -> None:
        start = 0
        for rows in tile_sizes(int(dim_function(s.extent)(env)), s.sizes, s.mode):
            assert rows in s.sizes, f"tile of {rows} rows is not in {s.sizes}"
            self.scoped(s, {**env, s.start: start, s.rows: rows})
            start += rows

    def block(self, s: Block, env: LoopEnv) -> None:
        inner = self.bound(s, env)
        if inner is not None:
            self.scoped(s, inner)

    def bound(self, s: Block, env: LoopEnv) -> LoopEnv | None:
        """env with a block's lets; None where its guard does not hold."""
        inner = dict(env)
        for var, value, low, high in s.let:
            inner[var] = int(self.clamped(value, low, high, inner, True))
        return inner if all(_holds(b, inner) for b in s.guard) else None

    def nest(self, n: _Nest, depth: int, env: LoopEnv) -> None:
        """Loops from `depth` on: one by one until the rest may run as arrays of at most CHUNK_ELEMENTS."""
        rest = n.loops[depth:]
        if depth >= n.first:
            extents = [int(dim_function(x.extent)(env)) for x in rest]
            if any(e <= 0 for e in extents):
                return
            if len(rest) <= 1 or prod(extents) <= CHUNK_ELEMENTS:
                rank = len(rest)
                at_once = {**env, **_ranges(rest, extents, rank)}
                if not n.careful or self.distinct(n.store, at_once, tuple(extents)):
                    self.store(n.store, at_once, tuple(extents))
                    return
        if not rest:
            self.store(n.store, env, ())
            return
        if n.summed <= depth < n.first and self.scan(n, depth, env):
            return
        for i in range(int(dim_function(rest[0].extent)(env))):
            self.nest(n, depth + 1, {**env, rest[0].var: i})

    def scan(self, n: _Nest, depth: int, env: LoopEnv) -> bool:
        """Loops that accumulate into elements picked by the loops inside them, in order, many at once.
        False when that cannot be (the caller runs them one by one)."""
        outer, inner = n.loops[depth : n.first], n.loops[n.first :]
        counts = [int(dim_function(x.extent)(env)) for x in outer]
        shape = tuple(int(dim_function(x.extent)(env)) for x in inner)
        if min((*counts, *shape)) <= 0:
            return True
        rank = len(shape) + 1
        at_once = {**env, **_ranges(inner, shape, rank)}
        if prod(shape) > CHUNK_ELEMENTS:
            return False
        if n.careful and not self.distinct(n.store, at_once, (1, *shape)):
            return False
        target = self.buffers[n.store.buffer]
        index = self.index(n.store.buffer, n.store.index, at_once, True)
        total, step = prod(counts), max(1, CHUNK_ELEMENTS // prod(shape))
        ufunc = _ACCUMULATE[n.store.accumulate or ""]
        carried = np.broadcast_to(target[index], (1, *shape))
        for at in range(0, total, step):
            flat = np.arange(at, min(at + step, total), dtype=np.int64)
            at_once.update(_unflatten(outer, counts, flat.reshape(-1, *[1] * len(shape))))
            values = np.broadcast_to(self.eval(n.store.value, at_once, True), (len(flat), *shape))
            if n.store.value.dtype.numpy != target.dtype:
                raise self.broken(f"stores {n.store.value.dtype} into {n.store.buffer} of {target.dtype}")
            carried = ufunc.accumulate(np.concatenate([carried, values]), axis=0)[-1:]
        places = tuple(np.broadcast_to(i, (1, *shape)) for i in index)
        target[places] = carried if places else carried.reshape(())
        return True

    def distinct(self, s: Store, env: LoopEnv, shape: tuple[int, ...]) -> bool:
        flat: Any = 0
        for d, extent in zip(s.index, self.buffers[s.buffer].shape, strict=True):
            flat = flat * max(extent, 1) + dim_function(d)(env)
        flat = np.sort(np.broadcast_to(flat, shape), axis=None)
        return bool(np.all(flat[1:] != flat[:-1]))

    def store(self, s: Store, env: LoopEnv, shape: tuple[int, ...]) -> None:
        live = _mask(s.guard, env, True)
        everywhere = live is True or bool(np.all(live))
        if not everywhere and not np.any(live):
            return

        def select(v: Array) -> Array:
            """The elements that are stored, in the order of the loops."""
            if whole:
                return v
            spread = v if np.shape(v) == shape else np.broadcast_to(v, shape)
            return spread.reshape(-1) if everywhere else spread[np.broadcast_to(live, shape)]

        value = self.eval(s.value, env, live) if s.accumulate != "fma" else None
        index = self.index(s.buffer, s.index, env, live)
        # an element for each instance: NumPy spreads what is stored as it spreads the index
        whole = not shape or (everywhere and np.broadcast(*index).shape == shape)
        index = tuple(map(select, index))
        target = self.buffers[s.buffer]
        if s.accumulate is not None:
            old = target[index] if index else target[()]
            value = self.accumulated(s, old, value, env, live, select)
        elif shape:
            value = select(np.asarray(value))
        assert value is not None
        if value.dtype not in (target.dtype, held_type(s.value.dtype)) or s.value.dtype.numpy != target.dtype:
            raise self.broken(f"stores {s.value.dtype} into {s.buffer} of {target.dtype}")
        value = value.astype(target.dtype, copy=False)
        target[index if index else ()] = value if index or shape == () else value[-1]

    def accumulated(
        self,
        s: Store,
        old: Array,
        value: Array | None,
        env: LoopEnv,
        live: Any,
        select: Callable[[Array], Array],
    ) -> Array:
        if s.accumulate == "fma":
            assert isinstance(s.value, Call) and s.value.fn == "mul", "fma wants a product"
            a, b = (select(self.eval(x, env, live)) for x in s.value.args)
            return np.asarray(INTRINSICS["fma"].meaning(a, b, old))
        assert value is not None and s.accumulate is not None
        return np.asarray(INTRINSICS[s.accumulate].meaning(old, select(value)))

    # -- expressions

    def eval(self, e: Expr, env: LoopEnv, live: Any) -> Array:
        if isinstance(e, Load):
            return self.load(e, env, live)
        if isinstance(e, Call):
            args = [self.eval(a, env, live) for a in e.args]
            if e.fn == "cast":
                return cast_array(args[0], e.dtype)
            if e.fn in _BY_BITS:
                args = [x.astype(a.dtype.numpy, copy=False) for x, a in zip(args, e.args, strict=True)]
            if e.fn == "bitcast":
                return np.ascontiguousarray(args[0]).reshape(np.shape(args[0])).view(e.dtype.numpy)
            result = np.asarray(INTRINSICS[e.fn].meaning(*map(_held, args)))
            return result.astype(held_type(e.dtype), copy=False)
        if isinstance(e, Const):
            return np.asarray(e.value, held_type(e.dtype))
        if isinstance(e, Index):
            return np.asarray(dim_function(e.dim)(env)).astype(e.dtype.numpy)
        if isinstance(e, Let):
            value = self.clamped(e.value, e.low, e.high, env, live)
            return self.eval(e.body, {**env, e.var: value}, live)
        return self.reduce(e, env, live)

    def clamped(self, value: Expr, low: Dim, high: Dim, env: LoopEnv, live: Any) -> Any:
        v = self.eval(value, env, live).astype(np.int64)
        return np.minimum(np.maximum(v, dim_function(low)(env)), dim_function(high)(env))

    def index(self, name: str, dims: tuple[Dim, ...], env: LoopEnv, live: Any) -> tuple[Any, ...]:
        """The index where live (some element elsewhere); an internal error when it leaves the buffer."""
        shape = self.buffers[name].shape
        if len(dims) != len(shape):
            raise self.broken(f"{len(dims)} indices for {name} of rank {len(shape)}")
        found: list[int | Array] = []
        for axis, (d, extent) in enumerate(zip(dims, shape, strict=True)):
            at = dim_function(d)(env)
            if type(at) is int and 0 <= at < extent:
                found.append(at)
                continue
            i = np.asarray(at, np.int64)
            # as unsigned numbers those below 0 are beyond any extent
            if i.size and np.maximum.reduce(i.view(np.uint64), axis=None) >= extent:
                i = np.where(live, i, 0)
                bad = ((i < 0) | (i >= extent)) & live
                if np.any(bad):
                    raise self.broken(
                        f"{name}[{', '.join(map(str, dims))}]: index {i[bad].flat[0]} of axis {axis} "
                        f"is outside 0 .. {extent - 1} (extent {extent})",
                    )
            found.append(i)
        return tuple(found)

    def load(self, e: Load, env: LoopEnv, live: Any) -> Array:
        data = self.buffers[e.buffer]
        if data.dtype != e.dtype.numpy:
            raise self.broken(f"loads {e.dtype} from {e.buffer} of {data.dtype}")
        inside = _mask(e.guard, env, live)
        if inside is True or np.all(inside):
            return np.asarray(data[self.index(e.buffer, e.index, env, inside)])
        zero = np.zeros((), e.dtype.numpy)
        other = zero if e.otherwise is None else self.eval(e.otherwise, env, live)
        if not np.any(inside):
            return np.broadcast_to(other, np.broadcast_shapes(np.shape(inside), other.shape))
        found = data[self.index(e.buffer, e.index, env, inside)]
        return np.asarray(np.where(inside, found, other))

    def reduce(self, e: Reduce, env: LoopEnv, live: Any) -> Array:
        extents = [int(dim_function(a.extent)(env)) for a in e.axes]
        total = prod(extents)
        if total <= 0 or any(n < 0 for n in extents):
            if e.kind in ("argmax", "argmin"):
                raise self.broken(f"{e.kind} over nothing")
            return np.asarray(identity(e.kind, e.dtype))
        # Only what the reduction mentions: a row's mean is taken once per row, not once per element.
        if id(e) not in self.free:
            self.free[id(e)] = free_symbols(e)
        env = {k: env[k] for k in self.free[id(e)]}
        width = prod(np.broadcast_shapes(*(np.shape(v) for v in env.values()), np.shape(live), (1,)))
        if width >= WIDE_REDUCTION and e.kind not in ("argmax", "argmin"):
            return self.reduce_wide(e, env, live, extents)
        outer = {k: v[..., None] if isinstance(v, np.ndarray) and v.ndim else v for k, v in env.items()}
        inner_live = live[..., None] if isinstance(live, np.ndarray) and live.ndim else live
        step = total if e.kind in ("argmax", "argmin") else max(1, CHUNK_ELEMENTS // max(1, width))
        carried: Array | None = None
        for at in range(0, total, step):
            values = self.terms(e, outer, inner_live, extents, at, min(step, total - at))
            if e.kind in ("argmax", "argmin"):
                return _position(e, values)
            if carried is not None:
                shape = (*values.shape[:-1], 1)
                first = np.broadcast_to(carried[..., None], shape)
                values = np.concatenate([first, values], axis=-1)
            carried = np.asarray(_STEP[e.kind].accumulate(values, axis=-1)[..., -1])
        assert carried is not None
        # A sum starts at 0: the only term it changes is -0.0.
        result = carried + carried.dtype.type(0) if e.kind == "sum" else carried
        return np.asarray(result).astype(held_type(e.dtype), copy=False)

    def reduce_wide(self, e: Reduce, env: LoopEnv, live: Any, extents: Sequence[int]) -> Array:
        """Term after term, for many elements at once."""
        total = np.asarray(identity(e.kind, e.dtype))
        inner = dict(env)
        for at in np.ndindex(*extents):
            inner.update(zip((a.var for a in e.axes), at, strict=True))
            term = _term(self.eval(e.body, inner, live), e)
            total = np.asarray(_STEP[e.kind](total, term)).astype(held_type(e.dtype), copy=False)
        return total

    def terms(
        self, e: Reduce, outer: LoopEnv, live: Any, extents: Sequence[int], at: int, count: int
    ) -> Array:
        """Terms at .. at+count-1 of a reduction, in row-major order of its axes, along a last axis."""
        flat = np.arange(at, at + count, dtype=np.int64)
        env = {**outer, **_unflatten(e.axes, extents, flat)}
        values = self.eval(e.body, env, live)
        if e.kind not in ("argmax", "argmin"):
            values = _term(values, e)
        shape = np.broadcast_shapes(
            (1,), *((*np.shape(v)[:-1], 1) for v in outer.values() if np.ndim(v)), values.shape
        )
        return np.broadcast_to(values, (*shape[:-1], count))


def _ranges(loops: Sequence[Loop], extents: Sequence[int], rank: int) -> dict[str, Array]:
    """Each loop's variable as an array along an axis of its own, the last loop's along the last."""
    found = {}
    for k, (x, n) in enumerate(zip(loops, extents, strict=True)):
        shape = [1] * rank
        shape[rank - len(loops) + k] = n
        found[x.var] = np.arange(n, dtype=np.int64).reshape(shape)
    return found


def _unflatten(axes: Sequence[Loop | Axis], extents: Sequence[int], flat: Array) -> dict[str, Array]:
    """Variables at flat row-major positions of their common space."""
    found = {}
    stride = 1
    for a, n in zip(reversed(axes), reversed(extents), strict=True):
        found[a.var] = (flat // stride) % n
        stride *= n
    return found


def _position(e: Reduce, values: Array) -> Array:
    """First (or last) position of the extreme; where a NaN counts as extreme is not specified."""
    if values.dtype.kind == "V":
        values = values.astype(np.float32)
    pick = np.argmax if e.kind == "argmax" else np.argmin
    n = values.shape[-1]
    found = n - 1 - pick(values[..., ::-1], axis=-1) if e.last else pick(values, axis=-1)
    return np.asarray(found).astype(e.dtype.numpy)


def _mask(guard: tuple[Bound, ...], env: LoopEnv, live: Any) -> Any:
    result = live
    for b in guard:
        low, i, high = (dim_function(d)(env) for d in (b.low, b.index, b.high))
        inside = (low <= i) & (i < high)
        result = inside if result is True else inside & result
    return result


def _holds(b: Bound, env: LoopEnv) -> bool:
    return bool(_mask((b,), env, True))


def _nests_of(s: Loop) -> tuple[_Nest, ...]:
    """The nests that start at s, when it is loops without buffers around one store, or around stores of which
    none sees what another one wrote, so that each may have the loops to itself."""
    loops: list[Loop] = []
    body: tuple[Stmt, ...] = (s,)
    while len(body) == 1 and isinstance(body[0], Loop) and not body[0].buffers:
        loops.append(body[0])
        body = body[0].body
    stores = [x for x in body if isinstance(x, Store)]
    if len(stores) < len(body) or (len(body) > 1 and not _apart(stores)):
        return ()
    return tuple(_nest_of(loops, x) for x in stores)


def _apart(stores: Sequence[Store]) -> bool:
    """Whether no element that one stores is stored or loaded by another, in whatever round of the loops."""
    for a, b in combinations(stores, 2):
        pairs = zip(a.index, b.index, strict=False)
        if a.buffer == b.buffer and not any(p.is_const and q.is_const and p != q for p, q in pairs):
            return False
    loaded = {e.buffer for x in stores for e in walk_expr(x.value) if isinstance(e, Load)}
    return loaded.isdisjoint(x.buffer for x in stores)


def _nest_of(loops: Sequence[Loop], inner: Store) -> _Nest:
    """The nest of loops around a store."""
    # Variables that extents depend on, or that pick the element not at all, run one by one.
    ragged = {v for x in loops for v in x.extent.symbols}
    own = False
    for e in walk_expr(inner.value):
        if isinstance(e, Reduce):
            ragged.update(v for a in e.axes for v in a.extent.symbols)
        elif isinstance(e, Load) and e.buffer == inner.buffer:
            own = True
            if e.index != inner.index:
                return _Nest(tuple(loops), inner, len(loops), False, len(loops))
    if any(isinstance(e, Let) and e.var in ragged for e in walk_expr(inner.value)):
        return _Nest(tuple(loops), inner, len(loops), False, len(loops))
    picked = {v for d in inner.index for v in d.symbols}
    first = len(loops)
    while first and loops[first - 1].var in picked and loops[first - 1].var not in ragged:
        first -= 1
    summed = first
    if inner.accumulate is not None and not own and not inner.guard:
        while summed and loops[summed - 1].var not in picked | ragged:
            summed -= 1
    careful = (own or inner.accumulate is not None) and not _one_each(inner, {x.var for x in loops[first:]})
    return _Nest(tuple(loops), inner, first, careful, summed)


def _one_each(s: Store, picking: set[str]) -> bool:
    """Whether each of these variables picks along an axis of its own, so that no two instances meet."""
    axes = [(d, d.symbols & picking) for d in s.index]
    return all(len(v) <= 1 for _, v in axes) and picking <= {
        name for d, v in axes for name in v if (form := d.linear(name)) and form[0].const_or_none
    }


def poison(shape: tuple[int, ...], dtype: DType) -> Array:
    """A buffer nobody wrote yet: NaN, or a pattern that is unlikely by chance."""
    if dtype.is_float:
        return np.full(shape, np.nan, dtype.numpy)
    if dtype.category == "bool":
        return np.ones(shape, np.bool_)
    raw = np.full((prod(shape) * dtype.bytes,), 0x5A, np.uint8)
    return raw.view(dtype.numpy).reshape(shape)


def run_kernel(
    kernel: Kernel,
    dims: Mapping[str, int] | Sequence[int],
    inputs: Sequence[Array],
    make: Callable[[Kernel, dict[str, int]], Runner] = Runner,
) -> tuple[Array, ...]:
    """The outputs of a kernel. dims: values of its dims, by name or in order; inputs: arrays whose dtypes
    and shapes fit its input buffers. make: another order of execution. Raises SmeltError(kind='internal')
    for an access outside a buffer and for arrays that do not fit."""
    names = [d.name for d in kernel.dims]
    env = dict(dims) if isinstance(dims, Mapping) else dict(zip(names, dims, strict=True))
    run = make(kernel, {n: int(env[n]) for n in names})
    if len(inputs) != len(kernel.inputs):
        raise run.broken(f"{len(inputs)} inputs, expected {len(kernel.inputs)}")
    for b, x in zip(kernel.inputs, inputs, strict=True):
        x = np.asarray(x)
        shape = tuple(int(dim_function(d)(run.env)) for d in b.shape)
        if x.dtype != b.dtype.numpy or x.shape != shape:
            found, wanted = f"{x.dtype}{list(x.shape)}", f"{b.dtype}{list(shape)}"
            raise run.broken(f"input {b.name} is {found}, expected {wanted}")
        run.buffers[b.name] = x
    for b in (*kernel.outputs, *kernel.scratch):
        run.buffers[b.name] = run.fresh(b, run.env)
    with np.errstate(all="ignore"):
        run.whole()
    return tuple(run.buffers[b.name] for b in kernel.outputs)
