"""Two modules in, where they differ out: both run from their formulas, on ordinary and on special numbers.

What is compared is what code is generated from: each module is lowered to naive kernels, which the kernel
interpreter runs. How far results may be apart is said by a class of numerics.py:

    EXACT     the same bits; any NaN is as good as another
    ROUNDING  NaN and infinities where they were; numbers within 16 times what the first module's own results
              change by when each number that goes in is off by a unit in the last place, or within 16 units
              in the last place of the result
    SUMS      as ROUNDING (what goes in is within its limits; where constant factors are not, finite results
              only)
    INTEGERS  as ROUNDING, with the units of the tensor's largest number; quantised results may besides be one
              step apart, one in 50
    WIDER     as ROUNDING where a value has 16 bits, finite results only; EXACT elsewhere
    TRANSFORMS ordinary numbers only: within CLOSE of the tensor's magnitude
    FAST      within LOOSE of the tensor's magnitude; constant factors as in SUMS
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import ml_dtypes
import numpy as np

from smelt.core.diag import SmeltError
from smelt.core.dtype import Array, DType, finfo
from smelt.core.ir.graph import Module, Node, Value, Weight
from smelt.core.ir.interp_graph import RunLimits, run_module
from smelt.core.machine import Machine
from smelt.core.ops import OPS
from smelt.core.passes.context import Context, Hook, Options
from smelt.core.passes.lowering.lower import lower
from smelt.core.passes.numerics import EXACT, FAST, INTEGERS, SUMS, TRANSFORMS, WIDER
from smelt.core.passes.whole_graph.expand import expand

NAIVE = Context(Machine("naive", 0, 16), Options(level=0))
JITTERS = (1, 4, 24)
"""How often the first module runs on numbers that are a little off. Where few do not explain a difference,
more may: a result in the middle of two steps goes either way by chance."""
LIMITS = RunLimits(rounds=10_000, elements=1 << 22)
"""Feeds that ask for more are left out: on NaN a loop's condition may never become false."""
SPREAD, UNITS = 16, 16
LOOSE = 2e-3
"""What --fast-math may change ordinary results by, relatively; 16 times that in types of 16 bits."""
CLOSE = 2.0**-16
"""What TRANSFORMS may change ordinary results by, relatively."""
ORDINARY: Mapping[str, float] = MappingProxyType({TRANSFORMS: CLOSE, **dict.fromkeys(FAST, LOOSE)})
"""Classes that speak of ordinary numbers alone -> the share of the magnitude by which results may be off."""
MODERATE = 16.0
"""Constants up to this size are off by a little as well. Larger ones (1.5 * 2^23 to round by) are not: half
of what rules must not do shows only where such a one is taken at its word."""

SUMS_LIMIT = 2.0**40
"""The largest size of numbers that SUMS and INTEGERS speak of; its reciprocal is the least."""
SCALED = frozenset({"quantize", "dequantize", "dequantize_blocks"})
"""Ops whose second input says what a byte stands for."""
SUMMING = frozenset({"matmul", "conv", "conv_transpose"})

Feeds = Mapping[str, Array]
Meaning = Callable[[Feeds], tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two modules disagree. feeds: what went in."""

    what: str
    feeds: Feeds

    def __str__(self) -> str:
        given = "; ".join(f"{k} = {np.array2string(v, threshold=40)}" for k, v in self.feeds.items())
        return f"{self.what}\nfor {given}"


def as_function(module: Module, off: int | None = None) -> Meaning:
    """The module as a function of its inputs, from the formulas of its ops. off: the seed by which floats of
    16 bits are off by up to a unit in the last place wherever they are made; None: they are not."""
    naive = lower(expand(module, NAIVE), NAIVE)

    def run(feeds: Feeds) -> tuple[Array, ...]:
        watch = None if off is None else _halves_off(np.random.default_rng(off))
        return run_module(naive, feeds, OPS, watch=watch, limits=LIMITS)

    return run


def difference(
    before: Module,
    after: Module,
    kind: str,
    feeds: Iterator[Feeds],
    known: tuple[Meaning, Meaning] | None = None,
) -> Difference | None:
    """The first difference that the class does not allow; None when there is none. Feeds that the first
    module refuses are left out. known: the meanings of both, where they are at hand."""
    first, second = known or (as_function(before), as_function(after))
    nearby: list[Meaning] = []
    if kind == WIDER and not _has_halves(before):
        kind = EXACT
    overflows = kind == WIDER or (kind in (SUMS, *FAST) and _large_factors(before))
    for given in feeds:
        try:
            wanted = first(given)
        except SmeltError:
            continue
        try:
            found = second(given)
        except SmeltError as e:
            return Difference(f"refused: {e}", given)
        others: list[tuple[Array, ...]] = []
        for k, (a, b) in enumerate(zip(wanted, found, strict=True)):
            if a.dtype != b.dtype or a.shape != b.shape:
                what = f"output {k}: {a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}"
                return Difference(what, given)
            bad = ~_same(a, b)
            if kind in ORDINARY:
                bad &= ~_loosely(a, b, ORDINARY[kind])
            elif kind != EXACT and bad.any():
                for count in JITTERS:
                    more = range(len(nearby), count)
                    nearby += [as_function(_jittered(before, s), s if kind == WIDER else None) for s in more]
                    others += [nearby[s](_off(given, s)) for s in range(len(others), count)]
                    if (near := _near(a, b, [o[k] for o in others], kind)).all():
                        break
                bad &= ~near
            if overflows and _is_float(a):
                bad &= np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64))
            if bad.any() and not _defined(before, given):
                break
            if bad.any() and (
                (kind == WIDER and _overflows(before, given))
                or (kind == INTEGERS and not _finite_scales(before, given))
            ):
                break
            if bad.any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                return Difference(f"output {k} at {list(at)}: {a[at]} became {b[at]}", given)
    return None


def _large_factors(module: Module) -> bool:
    """Whether a sum of products has constants outside the limits of SUMS: 3e38 overflows in one order, and
    not in another. Other constants (-3e38 in masks) do not count."""
    names = {r for n in module.main.walk() if n.op in SUMMING for r in n.inputs if r in module.weights}
    floats = [w for r in names if (w := module.weights[r]).dtype.is_float and not w.dtype.coded]
    found = [np.abs(w.array().astype(np.float64)) for w in floats]
    return any(bool((np.isfinite(a) & (a > SUMS_LIMIT)).any()) for a in found)


def _has_halves(module: Module) -> bool:
    """Whether a value has a float type of 16 bits."""
    made = [v for n in module.main.walk() for v in n.outputs]
    return any(_is_half(v) for v in (*made, *module.main.inputs))


def _is_half(value: Value) -> bool:
    """Whether its type is a float of 16 bits."""
    return value.type.dtype.is_float and value.type.dtype.bits == 16


def _defined(module: Module, feeds: Feeds) -> bool:
    """Whether the references of its ops accept the feeds. A formula reads what it is told to: of f32[N, 1]
    that is broadcast to [1, 4], which is right for N = 1 only, it reads the first row for N = 4. No rule owes
    anything to such sizes; an importer puts a check before the node."""
    try:
        run_module(module, feeds, OPS, limits=LIMITS)
    except (SmeltError, ValueError):  # NumPy's word for shapes that do not fit
        return False
    return True


def _overflows(module: Module, feeds: Feeds) -> bool:
    """Whether some number of 16 bits is infinite on the way, of which a quotient may be finite again."""
    found = []

    def watch(node: Node, value: Value, array: Array) -> None:
        found.append(_is_half(value) and bool(np.isinf(array.astype(np.float32)).any()))

    run_module(module, feeds, OPS, watch=watch, limits=LIMITS)
    return any(found)


def _finite_scales(module: Module, feeds: Feeds) -> bool:
    """Whether bytes stand for finite numbers: with an infinite scale some are NaN, and sums of integers are
    not."""
    scales = {n.inputs[1] for n in module.main.walk() if n.op in SCALED}
    found = [module.weights[r].array() for r in scales if r in module.weights]
    found += [feeds[v.origin or v.name[1:]] for v in module.main.inputs if v.name in scales]

    def watch(node: Node, value: Value, array: Array) -> None:
        if value.name in scales:
            found.append(array)

    run_module(module, feeds, OPS, watch=watch, limits=LIMITS)
    return all(bool(np.isfinite(a.astype(np.float64)).all()) for a in found)


# ---------------------------------------------------------------- comparing


def _is_float(a: Array) -> bool:
    return bool(a.dtype.kind == "f" or a.dtype == ml_dtypes.bfloat16)


def _same(a: Array, b: Array) -> Array:
    """Where two arrays have the same bits, or NaN both."""
    if not _is_float(a):
        return np.asarray(a == b)
    bits = np.dtype(f"u{a.dtype.itemsize}")
    equal = np.ascontiguousarray(a).view(bits).reshape(a.shape) == np.ascontiguousarray(b).view(bits).reshape(
        a.shape
    )
    return np.asarray(equal | (np.isnan(a) & np.isnan(b)))


def _near(a: Array, b: Array, others: list[Array], kind: str) -> Array:
    """Where b is a rounding of a; others: what a is for numbers that are a little off."""
    if not _is_float(a):
        rounded = np.asarray(np.any([b == o for o in others], axis=0))
        if kind != INTEGERS or a.dtype.itemsize > 2 or a.dtype == np.bool_:
            return rounded
        apart = np.where(rounded, 0, np.abs(a.astype(np.int64) - b.astype(np.int64)))
        few = np.count_nonzero(apart) <= max(1, a.size // 50)  # the middles of steps do not count: rounded
        return np.asarray((apart <= 1) & few)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        near = [o.astype(np.float64) for o in others]
        spread = np.max([np.where(np.isfinite(o - x), np.abs(o - x), 0) for o in near], axis=0)
        unit = _unit(a)
        unit = unit.max(initial=0) if kind == INTEGERS else unit
        good = np.abs(x - y) <= SPREAD * spread + UNITS * unit
        if kind == INTEGERS:
            good |= _one_step(x, y, good)
        alike = np.any([_class(o) == _class(y) for o in [x, *near]], axis=0)
    return np.asarray(np.where(np.isfinite(x) & np.isfinite(y), good, alike))


def _one_step(x: Array, y: Array, good: Array) -> Array:
    """Where y is one step from x, all values of x being multiples of a step apart, and hardly any is not
    good: in the middle of two steps a sum of rounded products goes either way. Fewer than three values tell
    no step."""
    known = np.unique(x[np.isfinite(x)])
    if known.size < 3 or np.count_nonzero(~good) > max(1, x.size // 50):
        return np.zeros(x.shape, bool)
    step = np.diff(known).min()
    # 255 steps of f32, each rounded to 1.2e-7 of the largest, are off by 0.01 of a step
    places, apart = (known - known[0]) / step, np.abs(x - y) / step
    stepped = bool(np.all(np.abs(places - np.round(places)) < 0.05))
    return np.asarray(stepped & (np.abs(apart - np.round(apart)) < 0.05) & (apart < 1.5))


def _loosely(a: Array, b: Array, share: float) -> Array:
    """Where b is a but for such a share of the magnitude, or 16 times that in types of 16 bits."""
    if not _is_float(a):
        return np.asarray(a == b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    share *= 1 if a.dtype.itemsize > 2 else 16
    with np.errstate(invalid="ignore"):  # inf - inf
        return np.asarray(np.abs(x - y) <= share * np.abs(x).max(initial=1.0))


def _class(a: Array) -> Array:
    """NaN, -inf, inf or a number, as 3, -1, 1, 0."""
    return np.where(np.isnan(a), 3, np.where(np.isinf(a), np.sign(a), 0))


def _unit(a: Array) -> Array:
    """The unit in the last place, as f64; at least that of the smallest normal number."""
    info = finfo(a.dtype)
    size = np.maximum(np.abs(a.astype(np.float64)), float(info.tiny))
    return np.asarray(np.exp2(np.floor(np.log2(np.where(np.isfinite(size), size, 1)))) * float(info.eps))


# ---------------------------------------------------------------- numbers that are a little off


def _off(feeds: Feeds, seed: int) -> Feeds:
    rng = np.random.default_rng(seed)
    return {k: _shaken(v, rng) for k, v in feeds.items()}


def _shaken(a: Array, rng: np.random.Generator) -> Array:
    """Each float of the array, off by up to a unit in the last place; zeros and infinities stay."""
    if not _is_float(a) or not a.size:
        return a
    info = finfo(a.dtype)
    with np.errstate(all="ignore"):
        wide = a.astype(np.float64) * (1 + float(info.eps) * rng.choice([-1.0, 0.0, 1.0], a.shape))
        made = wide.astype(a.dtype)
    return np.asarray(np.where(np.isfinite(a), np.where(np.isfinite(made), made, a), a), a.dtype)


def _halves_off(rng: np.random.Generator) -> Callable[[Node, Value, Array], Array | None]:
    """Of run_module: what is made in 16 bits was rounded, and is not where it stays f32."""

    def watch(node: Node, value: Value, array: Array) -> Array | None:
        return _shaken(array, rng) if _is_half(value) else None

    return watch


def _jittered(module: Module, seed: int) -> Module:
    """The module with its moderate constants a little off."""
    rng = np.random.default_rng(seed + 1000)

    def shaken(w: Weight) -> Weight:
        if not w.dtype.is_float or w.dtype.coded:
            return w
        data = w.array()
        made = np.where(np.abs(data.astype(np.float64)) <= MODERATE, _shaken(data, rng), data).astype(
            data.dtype
        )
        return replace(w, data=made, recipe=None, known_digest="")

    return module.with_(weights=MappingProxyType({k: shaken(w) for k, w in module.weights.items()}))


# ---------------------------------------------------------------- feeds


def sizes(module: Module, rng: np.random.Generator) -> dict[str, int]:
    """A small size for each symbol."""
    found = {}
    for s in module.symbols:
        high = 6 if s.high is None else min(s.high, max(6, s.low))
        step = s.divisor
        choices = range(-(-max(s.low, 1) // step) * step, max(high, s.low, step) + 1, step)
        found[s.name] = int(rng.choice(list(choices) or [s.low]))
    return found


def numbers(
    dtype: DType, shape: tuple[int, ...], rng: np.random.Generator, mood: str, limit: float = np.inf
) -> Array:
    """An array of ordinary, large or special numbers of a type. mood: 'plain', 'large' or 'special'. limit:
    of the size of floats other than infinities, and its reciprocal of those other than 0."""
    if dtype.category == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.coded:
        return np.asarray(rng.uniform(0, 2, shape)).astype(dtype.numpy)
    if not dtype.is_float:
        low, high = dtype.limits if mood != "plain" else (max(dtype.limits[0], -3), 9)
        made: Array = rng.integers(low, high, shape, dtype.numpy, endpoint=True)
        if mood == "special":
            few = np.array([*dtype.limits, 0, 1], dtype.numpy)
            made = np.where(rng.random(shape) < 0.5, few[rng.integers(0, 4, shape)], made)
        return np.asarray(made, dtype.numpy)
    f = finfo(dtype.numpy)
    most, least = min(float(f.max), limit), max(float(f.tiny), 1 / limit)
    made = rng.uniform(-3, 3, shape)
    if mood == "large":
        size = np.exp2(rng.uniform(np.log2(least), np.log2(most), shape))
        made = rng.choice([-1.0, 1.0], shape) * size
    if mood == "special":
        ends = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, most, -most, least, -least, 0.5, 2.5,
                         max(float(f.smallest_subnormal), 1 / limit), -1.5, most / 2])  # fmt: skip
        made = np.where(rng.random(shape) < 0.6, ends[rng.integers(0, len(ends), shape)], made)
    with np.errstate(all="ignore"):
        return np.asarray(made, dtype.numpy)


MOODS = ("plain", "special", "large")


def feeds_of(module: Module, seed: int, kind: str = EXACT) -> Iterator[Feeds]:
    """Feeds of each mood at small sizes, the same for the same seed. kind: a class of numerics.py, for which
    they are made: --fast-math and TRANSFORMS need only be right for ordinary numbers, SUMS and INTEGERS
    within limits."""
    rng = np.random.default_rng(seed)
    counts = any(n.op == "loop" for n in module.main.walk())  # integers may be rounds, 2^62 take too long
    for mood in MOODS[:1] if kind in ORDINARY else MOODS:
        env = sizes(module, rng)
        made = {}
        for v in module.main.inputs:
            shape = tuple(d.evaluate(env) for d in v.type.shape)
            limit = SUMS_LIMIT if kind in (SUMS, INTEGERS) else np.inf
            own = "plain" if counts and not v.type.dtype.is_float else mood
            made[v.origin or v.name[1:]] = numbers(v.type.dtype, shape, rng, own, limit)
        yield made


# ---------------------------------------------------------------- after each pass


def validator(kinds: Mapping[str, str], seed: int = 0) -> Hook:
    """A hook that holds the module after each pass against the one before it. kinds: pass -> class.
    Raises SmeltError(kind='internal') that names the pass and shows the inputs."""

    last: list[tuple[Module, Meaning]] = []  # what a pass made is what the next one takes

    def look(before: Module, name: str, after: Module) -> None:
        if before is after or name not in kinds:
            return
        first = last[0][1] if last and last[0][0] is before else as_function(before)
        last[:] = [(after, as_function(after))]
        feeds = feeds_of(before, seed, kinds[name])
        found = difference(before, after, kinds[name], feeds, (first, last[0][1]))
        if found is not None:
            raise SmeltError(f"pass '{name}' changed the model: {found}", kind="internal")

    return look
