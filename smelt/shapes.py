"""Shape options as users type them, and a model's inputs -> concrete shapes and reproducible arrays."""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from smelt.core.bundle import Bundle, spelled_dim
from smelt.core.diag import SmeltError
from smelt.core.dim import Dim
from smelt.core.dtype import ALL, INT64, Array, DType
from smelt.core.lazily import Lazily
from smelt.groups import Group, GroupValue, groups, named_arrays, packed
from smelt.request import DimSpec

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")

ShapeSpec: TypeAlias = "Mapping[str, int | tuple[int, ...]]"
"""What a user fixes: symbol name -> value, input name -> whole shape."""
MOST_SHAPES_SHOWN = 4
"""A case of more inputs, such as a cache of many layers, is named by its dims where these tell all."""


@dataclass(frozen=True)
class Port:
    """An input of a compiled model; shape: Dims over the model's symbols."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class InputSymbol:
    """A symbolic dim with its legal values: low..high (None: unbounded), multiples of divisor.

    hot: those at which it is to be fast. batch: the first axis of every input that has the symbol. image: an
    axis of an input of rank 4.
    """

    name: str
    low: int
    high: int | None
    divisor: int
    batch: bool = False
    image: bool = False
    hot: tuple[int, ...] = ()

    def is_legal(self, value: int) -> bool:
        """Whether the model accepts the value."""
        return self.low <= value and (self.high is None or value <= self.high) and not value % self.divisor

    def nearest(self, value: int) -> int:
        """The legal value closest to `value` from below, or the smallest legal one."""
        value = value if self.high is None else min(value, self.high)
        value -= value % self.divisor
        least = -(-max(self.low, 1) // self.divisor) * self.divisor
        if self.high is not None and least > self.high:
            return self.high - self.high % self.divisor  # only zero is legal
        return max(value, least)


@dataclass(frozen=True)
class RunCase:
    """The inputs of one run. label: the shapes as text. feed: input name -> value, as a session takes them.
    packed: the tensors that represent them, where some are sequences or optionals. state: the start of the
    model's state, for a reference that gets it as inputs. then: the state's shapes after the run -> the
    inputs of the next run; None where the model accepts no further run."""

    label: str
    feed: Mapping[str, GroupValue]
    packed: Mapping[str, Array] | None = None
    state: Mapping[str, Array] = field(default_factory=dict)
    then: Callable[[Mapping[str, tuple[int, ...]]], RunCase | None] = lambda shapes: None

    @property
    def tensors(self) -> Mapping[str, Array]:
        """Tensor name -> array, as the compiled code takes them."""
        return self.feed if self.packed is None else self.packed

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Tensor name -> shape."""
        return {name: a.shape for name, a in self.tensors.items()}


def ports(bundle: Bundle) -> tuple[Port, ...]:
    """The bundle's inputs that are tensors or optional tensors, in order."""
    return tuple(
        Port(g.name, g.element, _dims(g.extents, bundle))
        for g in groups(bundle.manifest, "inputs")
        if not g.sequence
    )


def feed_case(bundle: Bundle, feed: Mapping[str, GroupValue]) -> RunCase:
    """A case of given inputs."""
    found = groups(bundle.manifest, "inputs")
    shapes = {n: np.shape(a) for n, a in named_arrays(feed).items()}
    if not all(g.plain for g in found):
        return RunCase(label(shapes), feed, packed(found, feed, bundle.manifest))
    return RunCase(dims_label(bundle, shapes) or label(shapes), feed)


def symbols(bundle: Bundle) -> tuple[InputSymbol, ...]:
    """The symbols of the inputs' shapes, in order of appearance, then those that only the state has, whose
    one legal value is that of the state's start."""
    rows = {r["name"]: r for r in bundle.manifest["symbols"]}
    places: dict[str, list[tuple[int, int]]] = {}
    shapes = [p.shape for p in ports(bundle)] + [_dims(row["shape"], bundle) for row in read_state(bundle)]
    own = _own_symbols(bundle)
    for shape in shapes:
        for axis, d in enumerate(shape):
            for s in sorted(d.symbols):
                places.setdefault(s, []).append((axis, len(shape)))
    return tuple(
        InputSymbol(
            s,
            int(rows[s]["low"]),
            int(rows[s]["low"]) if s in own else rows[s]["high"],
            int(rows[s]["divisor"]),
            batch=all(axis == 0 for axis, _ in at),
            image=any(rank == 4 for _, rank in at),
            hot=() if s in own else tuple(rows[s].get("hot", ())),
        )
        for s, at in places.items()
    )


def _dims(shape: Iterable[int | str], bundle: Bundle) -> tuple[Dim, ...]:
    return tuple(spelled_dim(d, bundle.manifest) for d in shape)


def _own_symbols(bundle: Bundle) -> frozenset[str]:
    """The symbols that only the state has: runs determine them, not inputs."""
    sides = [
        frozenset(s for row in read_state(bundle) for d in _dims(row[side], bundle) for s in d.symbols)
        for side in ("shape", "start")
    ]
    return sides[0] - sides[1]


def read_state(bundle: Bundle) -> list[Mapping[str, Any]]:
    """The rows of the states that the entry reads."""
    return [row for row in bundle.manifest["state"] if row["shape"] is not None]


def state_values(
    bundle: Bundle, shapes: Mapping[str, tuple[int, ...]], every: bool = False
) -> dict[str, int] | None:
    """The symbol values that these shapes of the state imply. None where the entry cannot take such a state:
    a constant extent differs, a value is illegal for its symbol, or two extents imply different values.
    every: include symbols that inputs have too."""
    rows, own = {r["name"]: r for r in bundle.manifest["symbols"]}, _own_symbols(bundle)
    found: dict[str, int] = {}
    for state in read_state(bundle):
        for d, n in zip(_dims(state["shape"], bundle), shapes.get(state["name"], ()), strict=False):
            if d.is_const and d.const != n:
                return None
            known = len(d.symbols) == 1 and (every or d.symbols <= own)
            name = next(iter(d.symbols)) if known else None
            parts = None if name is None else d.linear(name)
            if name is None or parts is None or not (parts[0].is_const and parts[1].is_const):
                continue
            value, rest = divmod(n - parts[1].const, parts[0].const)
            if rest or found.setdefault(name, value) != value:
                return None
    legal = all(_symbol(s, rows[s]).is_legal(n) for s, n in found.items() if s in rows)
    return found if legal else None


def _symbol(name: str, row: Mapping[str, Any]) -> InputSymbol:
    return InputSymbol(name, int(row["low"]), row["high"], int(row["divisor"]))


# ---------------------------------------------------------------- what users type

_SHAPE = r"\[[^\]]*\]|-?\d+(?:x-?\d+)*"
_ENTRY = re.compile(
    rf"""\s*(?:"(?P<dq>[^"]*)"|'(?P<sq>[^']*)'|(?P<plain>[^\s,=]+?))\s*(?P<sep>[:=])\s*(?P<value>{_SHAPE})\s*(?:,|$)"""
)


def parse_shapes(text: str) -> dict[str, int | tuple[int, ...]]:
    """'x:1x3x224x224,y:[1,8]' or 'batch=2': whole shapes by input name, values by dim name.

    Names with a ':' may be quoted. Rank 0 is '[]'. Raises SmeltError(kind='invalid').
    """
    found: dict[str, int | tuple[int, ...]] = {}
    at = 0
    while at < len(text):
        m = _ENTRY.match(text, at)
        if m is None:
            raise SmeltError(
                f"cannot read the shape '{text[at : at + 200]}'",
                hint="write NAME:1x3x224x224, NAME:[1,3,224,224] or DIM=4",
            )
        name = next(g for g in (m["dq"], m["sq"], m["plain"]) if g is not None)
        numbers = [n.strip() for n in m["value"].strip("[]").replace("x", ",").split(",")]
        if not all(map(_extent, filter(None, numbers))) or ("" in numbers and len(numbers) > 1):
            said = f"shape '{m['value']:.200}' of '{name:.200}'"
            raise SmeltError(f"{said}: extents are whole numbers from 0 to {INT64}")
        shape = tuple(int(n) for n in numbers if n)
        found[name] = shape[0] if m["sep"] == "=" and len(shape) == 1 else shape
        at = m.end()
    return found


def _extent(text: str) -> bool:
    """A whole number that fits 64 bits; Python refuses to read one of thousands of digits."""
    return re.fullmatch(r"[0-9]{1,19}", text) is not None and int(text) <= INT64


_HOT = re.compile(r"(.*=[^=]*):opt=([^=]*)", re.DOTALL)


def parse_dim_spec(text: str) -> tuple[str, DimSpec]:
    """'N=4' -> ('N', 4); 'N=1..512' -> ('N', (1, 512)); 'N=1..' has no upper end; 'N=1..512:opt=1,128' ->
    ('N', (1, 512, (1, 128))). Raises SmeltError."""
    hot = _HOT.fullmatch(text)
    name, _, value = (hot[1] if hot else text).rpartition("=")
    m = re.fullmatch(r"\s*(\d+)\s*(?:(\.\.)\s*(\d*))?\s*", value)
    sizes = [n.strip() for n in hot[2].split(",")] if hot else []
    if not name.strip() or m is None or not all(re.fullmatch(r"\d+", n) for n in sizes):
        hint = "write NAME=4, NAME=1..512 or NAME=1..512:opt=1,128"
        raise SmeltError(f"cannot read the dim '{text:.200}'", hint=hint)
    if not all(map(_extent, filter(None, (m[1], m[3], *sizes)))):
        raise SmeltError(f"dim '{name.strip():.200}': a size is a whole number from 0 to {INT64}")
    low = int(m[1])
    high = (int(m[3]) if m[3] else None) if m[2] else low
    if high is not None and high < low:
        raise SmeltError(f"dim '{name.strip()}': the range {low}..{high} is empty")
    if hot:
        return name.strip(), (low, high, tuple(map(int, sizes)))
    return name.strip(), (low, high) if m[2] else low


def bounds_of(
    inputs: Sequence[Port],
    least: Mapping[str, tuple[int, ...]],
    most: Mapping[str, tuple[int, ...]],
    hot: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> dict[str, DimSpec]:
    """Ranges of symbols from the smallest and largest shapes of inputs, and hot values from those shapes that
    are to be fast (trtexec's profiles)."""
    by_name = {p.name: p for p in inputs}
    lows: list[tuple[Dim, int]] = []
    highs: list[tuple[Dim, int]] = []
    hots: list[tuple[Dim, int]] = []
    for name in [*least, *(n for n in most if n not in least)]:
        port = by_name.get(name)
        if port is None:
            raise _no_input(name, inputs)
        low, high = least.get(name, most.get(name, ())), most.get(name, least.get(name, ()))
        opt = hot.get(name, low)
        if any(len(s) != len(port.shape) for s in (low, high, opt)):
            raise SmeltError(f"input '{name}' has rank {len(port.shape)}, the shapes given have another")
        lows += zip(port.shape, low, strict=True)
        highs += zip(port.shape, high, strict=True)
        hots += zip(port.shape, opt, strict=True) if name in hot else ()
    a, b, fast = _solved(lows, {}), _solved(highs, {}), _solved(hots, {})
    return {
        s: a[s] if a[s] == b[s] else (a[s], b[s], (fast[s],)) if s in fast else (a[s], b[s])
        for s in a
        if s in b
    }


def _solved(extents: Sequence[tuple[Dim, int]], values: Mapping[str, int]) -> dict[str, int]:
    """These values, and those of further symbols that the extents imply, rounded down: `8*h` of 64 says that
    h is 8, and `past + seq` what past is where another extent says what seq is."""
    found, more = dict(values), True
    while more:
        more = False
        for d, n in extents:
            name, *others = d.symbols - found.keys() or [""]
            parts = d.linear(name) if name and not others else None
            if parts is None:
                continue
            each, rest = (p.evaluate(found) for p in parts)
            if each > 0 and n >= rest:
                found[name], more = (n - rest) // each, True
    return found


# ---------------------------------------------------------------- concrete shapes


def bind(bundle: Bundle, spec: ShapeSpec) -> dict[str, int]:
    """The symbol values that a spec fixes; symbols that it leaves open get the first default.

    Raises SmeltError(kind='shape') for an unknown name, a wrong rank or extents that contradict.
    """
    inputs, known = ports(bundle), symbols(bundle)
    by_name, names = {p.name: p for p in inputs}, {s.name for s in known}
    values: dict[str, int] = {}
    later: list[tuple[str, int, Dim, int]] = []
    for name, value in spec.items():
        if isinstance(value, int) and name in names:
            values[name] = value
            continue
        port = by_name.get(name)
        if port is None:
            raise _no_input(name, inputs, names)
        shape = (value,) if isinstance(value, int) else value
        if len(shape) != len(port.shape):
            wanted = ", ".join(map(str, port.shape))
            raise SmeltError(
                f"input '{name}': expected rank {len(port.shape)} [{wanted}], got {list(shape)}", kind="shape"
            )
        later += [(name, axis, d, n) for axis, (d, n) in enumerate(zip(port.shape, shape, strict=True))]
    values = _solved([(d, n) for _, _, d, n in later], values)
    first = next(defaults(known))
    full = {s.name: values.get(s.name, first[s.name]) for s in known}
    for name, axis, d, n in later:
        if d.evaluate(full) != n:
            raise SmeltError(
                f"input '{name}' axis {axis}: expected {d.evaluate(full)} ({d}), got {n}", kind="shape"
            )
    return full


def _no_input(name: str, inputs: Sequence[Port], dims: Iterable[str] = ()) -> SmeltError:
    said = ", ".join([p.name for p in inputs] + sorted(dims))
    return SmeltError(f"there is no input or dim '{name}'; there are: {said}", kind="shape")


# batch, an image's height and width in turn, any other size; images are multiples of 32, because that is
# what most detectors need; the odd sizes come last and are allowed to be refused by the reference
_LADDER = (
    (1, (64, 64), (8, 8)),
    (2, (96, 160), (17, 17)),
    (1, (224, 224), (64, 64)),
    (3, (160, 96), (31, 31)),
    (3, (97, 131), (13, 13)),
)


def defaults(known: Sequence[InputSymbol]) -> Iterator[dict[str, int]]:
    """Combinations of symbol values to try, none twice: hot ones first, which have code of their own, then
    small ones."""
    ladder = []
    for batch, image, size in _LADDER:
        wanted = (batch if s.batch else image[i % 2] if s.image else size[i % 2] for i, s in enumerate(known))
        ladder.append({s.name: s.nearest(n) for s, n in zip(known, wanted, strict=True)})
    hot = ({s.name: s.hot[k % len(s.hot)] if s.hot else ladder[0][s.name] for s in known}
           for k in range(max((len(s.hot) for s in known), default=0)))  # fmt: skip
    seen: list[dict[str, int]] = []
    for values in (*hot, *ladder):
        if values not in seen:
            seen.append(values)
            yield values


def shapes_at(bundle: Bundle, values: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shape of every input for these symbol values."""
    return {p.name: tuple(d.evaluate(values) for d in p.shape) for p in ports(bundle)}


def label(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The shapes as text: 'x:1x3x64x64, y:[]'."""
    return ", ".join(f"{n}:{'x'.join(map(str, s)) if s else '[]'}" for n, s in shapes.items())


def dims_label(bundle: Bundle, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The dims that give the inputs these shapes, as --shape takes them: 'batch=1, seq=8'. '' where there are
    few inputs, or where dims do not tell all."""
    if len(shapes) <= MOST_SHAPES_SHOWN or shapes.keys() != {p.name for p in ports(bundle)}:
        return ""
    try:
        bound = bundle.bind(shapes)
        values = {s.name: bound[s.name] for s in symbols(bundle) if s.name in bound}
        told = shapes_at(bundle, values) == shapes
    except (SmeltError, KeyError, ValueError):  # shapes that the model refuses
        return ""
    return ", ".join(f"{n}={v}" for n, v in values.items()) if told else ""


# ---------------------------------------------------------------- arrays


def random_array(
    dtype: DType, shape: Sequence[int], rng: np.random.Generator, span: tuple[float, float] | None = None
) -> Array:
    """Random elements: normal floats, integers and booleans 0 or 1; uniform over the span where one is given.
    Raises SmeltError when this machine has too little memory for them."""
    need, have = 8 * math.prod(shape), memory()
    if need > have:
        said = f"random values of shape {list(shape)} take {need:,} bytes, this machine has {have:,}"
        raise SmeltError(said, kind="shape", hint="choose a smaller --shape")
    if dtype.category == "float":
        drawn = rng.standard_normal(shape) if span is None else rng.uniform(span[0], span[1], shape)
        return np.asarray(drawn).astype(dtype.numpy)
    low, high = (0, 1) if span is None else (int(span[0]), int(span[1]))
    return np.asarray(rng.integers(low, high, shape, endpoint=True)).astype(dtype.numpy)


def random_strings(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Random short words, some of them empty, some with a space or a letter of two bytes."""
    flat = np.empty(int(np.prod(shape, dtype=np.int64)), object)
    for k in range(flat.size):
        flat[k] = "".join(rng.choice(list("abcdeABCDE012 é"), rng.integers(0, 9)))
    return flat.reshape(shape)


def case(
    bundle: Bundle,
    values: Mapping[str, int],
    *,
    seed: int = 0,
    given: Mapping[str, GroupValue] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> RunCase:
    """A case at these symbol values: inputs that are given, and random ones, which depend on seed and name
    alone.

    ranges: input name -> lowest and highest value; the name '' stands for every other input.
    """
    feed: dict[str, GroupValue] = {}
    ranges, shapes = ranges or {}, shapes_at(bundle, values)
    for g in groups(bundle.manifest, "inputs"):
        if given and g.name in given:
            feed[g.name] = given[g.name]
            continue
        rng = np.random.default_rng([seed, zlib.crc32(g.name.encode())])
        if g.kind == "map":
            numbers = random_array(g.element, (ELEMENTS,), rng, ranges.get(g.name, ranges.get("")))
            keys = random_strings((ELEMENTS,), rng).tolist() if g.words else range(ELEMENTS)
            feed[g.name] = dict(zip(keys, numbers.tolist(), strict=False))
            continue
        wanted = _elements(g, seed) if g.sequence else [shapes[g.name]]
        if g.strings:
            words = [random_strings(s, rng) for s in wanted]
            feed[g.name] = words if g.sequence else words[0]
            continue
        found = [random_array(g.element, s, rng, ranges.get(g.name, ranges.get(""))) for s in wanted]
        feed[g.name] = found if g.sequence else found[0]

    def then(after: Mapping[str, tuple[int, ...]]) -> RunCase | None:
        own = state_values(bundle, after)
        return None if own is None else case(bundle, {**values, **own}, seed=seed + 1, ranges=ranges)

    state = {}
    for row in read_state(bundle):
        extents = [d.evaluate(values) for d in _dims(row["start"], bundle)]
        state[row["name"]] = np.zeros(extents, ALL[row["dtype"]].numpy)
    return replace(feed_case(bundle, feed), state=state, then=then)


ELEMENTS = 3
"""How many elements a random sequence has."""


def _elements(g: Group, seed: int) -> list[tuple[int, ...]]:
    """The shapes of a random sequence's elements: declared numbers as they are, and for a symbol a random
    size, the same in the k-th element of every sequence."""

    def size(d: int | str, k: int) -> int:
        return d if isinstance(d, int) else 1 + zlib.crc32(f"{seed} {d} {k}".encode()) % 6

    return [tuple(size(d, k) for d in (("",) if g.shape is None else g.shape)) for k in range(ELEMENTS)]


def cases(
    bundle: Bundle,
    specs: Sequence[ShapeSpec] = (),
    *,
    count: int = 3,
    seed: int = 0,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> Iterator[RunCase]:
    """One case per spec. Without specs, cases at the shapes of `trials`: at least `count` of them where there
    are so many, so that a caller can replace skipped ones."""
    if specs:
        for spec in specs:
            yield case(bundle, bind(bundle, spec), seed=seed, ranges=ranges)
        return
    for values in islice(trials(bundle), max(count, len(_LADDER))):
        yield case(bundle, values, seed=seed, ranges=ranges)


def trials(bundle: Bundle) -> list[dict[str, int]]:
    """Symbol values to try when the user names none, small ones first: those of `defaults` that take at most
    a quarter of this machine's memory by the bundle's formulas; where none does, the smallest that fits.
    Raises SmeltError(kind='shape') when none fits."""
    sized = [(_bytes(bundle, v), v) for v in defaults(symbols(bundle))]
    found = [v for n, v in sized if n <= memory() // 4]
    least = min(n for n, _ in sized)
    if not found and least <= memory():
        return [next(v for n, v in sized if n == least)]
    if not found:
        said = f"the least of the shapes that are tried takes {least:,} bytes, this machine has {memory():,}"
        raise SmeltError(said, kind="shape", hint="name one with --shape")
    return found


def memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _bytes(bundle: Bundle, values: Mapping[str, int]) -> int:
    """Bytes of inputs, state and arenas at these sizes, without data-dependent arenas."""
    inputs = sum(p.dtype.bytes * math.prod(d.evaluate(values) for d in p.shape) for p in ports(bundle))
    state = bundle.state_bytes
    kept = state.evaluate(values) if state.symbols <= values.keys() else 0
    return inputs + kept + bundle.peak_bytes(values)
