"""Declared inputs and the user's `dims` in; symbols with ranges and the types of the inputs out."""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx

from smelt.core.diag import invalid, unsupported
from smelt.core.dim import Dim, dim_from_param, sym, to_dim
from smelt.core.ir.graph import Symbol, TensorType
from smelt.core.ops.infer import Engine
from smelt.core.ops.infer_node import MAX_RANK, addressable
from smelt.importer.weights import dtype_of

Dims: TypeAlias = "Mapping[str, int | tuple[int, int | None] | tuple[int, int | None, tuple[int, ...]]]"
"""Symbol name (or 'input:axis') -> a fixed size, or its (low, high) range, and perhaps hot sizes, at which it
is to be fast; high None: unbounded."""

ANONYMOUS = frozenset({"", "?", "-1", "None", "none", "unk", "*"})
"""Names that exporters write for an unknown size; two occurrences are two different sizes."""


LONGEST_SYMBOL = 120
"""Most characters of a symbol, since formulas repeat it. The longest that a development model has is 44."""
_LONG_NAME = re.compile(rf"\w{{{LONGEST_SYMBOL + 1},}}")
_LONG_PARAM = 4000


def short(name: str) -> str:
    """A symbol's name; of a long one the beginning and a digest of the whole."""
    if len(name) <= LONGEST_SYMBOL:
        return name
    return f"{name[: LONGEST_SYMBOL - 13]}_{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:12]}"


Ranged: TypeAlias = "tuple[int, int | None, tuple[int, ...]]"
"""Low, high and hot values."""


@dataclass(frozen=True)
class _Slot:
    """One symbolic dim of an input: input, axis and name in the file ('' when unnamed)."""

    input: str
    axis: int
    param: str


def declare_inputs(
    engine: Engine, inputs: Sequence[onnx.ValueInfoProto], dims: Dims | None
) -> dict[str, TensorType]:
    """The types of the graph's inputs; their symbols are declared in the engine, with the user's ranges.

    Unnamed dims get a symbol each, named after the input ('x_0'). Raises SmeltError(kind='invalid') for
    unknown names and impossible ranges in `dims`.
    """
    raw, shapes, origins = _shapes(inputs)
    fixed, ranges = _ranges(dims or {}, shapes, origins)
    for s, (origin, generated) in origins.items():
        if s not in fixed:
            low, high, hot = ranges.get(s, (0, None, ()))
            engine.declare(Symbol(s, low, high, 1, origin, hot), from_input=True, generated=generated)
    found = {
        name: TensorType(dtype_of(raw[name][0], f"input '{name}'"), tuple(d.substitute(fixed) for d in shape))
        for name, shape in shapes.items()
    }
    for name, t in found.items():
        if t.rank > MAX_RANK:
            raise unsupported(f"input '{name}' has rank {t.rank}; tensors have at most {MAX_RANK} axes")
        if not addressable(t.shape):
            raise unsupported(f"input '{name}' of extents {', '.join(map(str, t.shape))} fits no memory")
    return found


def known_dims(inputs: Sequence[onnx.ValueInfoProto], keys: Iterable[str]) -> frozenset[str]:
    """Those of these keys of `dims` that name a dim of these inputs."""
    _, shapes, origins = _shapes(inputs)

    def known(key: str) -> bool:
        head, _, tail = key.rpartition(":")
        return short(key.strip()) in origins or (
            head in shapes and tail.isdigit() and int(tail) < len(shapes[head])
        )

    return frozenset(filter(known, keys))


_Shapes: TypeAlias = (
    "tuple[dict[str, tuple[int, list[int | str]]], dict[str, list[Dim]], dict[str, tuple[str, bool]]]"
)


def _shapes(inputs: Sequence[onnx.ValueInfoProto]) -> _Shapes:
    """(what inputs declare, their shapes, symbol -> (origin, whether its name is generated))."""
    raw: dict[str, tuple[int, list[int | str]]] = {}
    for v in inputs:
        raw[v.name] = declared(v)
    named = _plain_names(raw)
    shapes: dict[str, list[Dim]] = {}
    origins: dict[str, tuple[str, bool]] = {}
    taken = set(named)
    for name, (_, axes) in raw.items():
        shapes[name] = [
            to_dim(d) if isinstance(d, int) else _symbolic(_Slot(name, a, d), named, taken, origins)
            for a, d in enumerate(axes)
        ]
    return raw, shapes, origins


def declared(v: onnx.ValueInfoProto) -> tuple[int, list[int | str]]:
    """Element type and dims of an input: an int, or a name ('' when there is none)."""
    kind = v.type.WhichOneof("value")
    if kind is None:
        raise invalid(f"input '{v.name}' has no type", hint="its export is incomplete; export it again")
    if kind != "tensor_type":
        raise unsupported(f"input '{v.name}' is a {kind.removesuffix('_type')}, not a tensor")
    t = v.type.tensor_type
    if not t.HasField("shape"):
        raise unsupported(
            f"input '{v.name}' has no rank", try_="declaring its shape with one name per dynamic axis"
        )
    return t.elem_type, [dim_text(d) for d in t.shape.dim]


def dim_text(d: onnx.TensorShapeProto.Dimension) -> int | str:
    """A declared dim: its size, its name, or '' where it has neither."""
    if d.WhichOneof("value") == "dim_value" and d.dim_value >= 0:
        return int(d.dim_value)
    param = d.dim_param.strip()
    if param in ANONYMOUS:
        return ""
    param = _LONG_NAME.sub(lambda m: short(m[0]), param)
    return short(param) if len(param) > _LONG_PARAM else param


def _plain_names(raw: Mapping[str, tuple[int, list[int | str]]]) -> set[str]:
    """The symbols that are by themselves the dim of some input, whose extent then determines them."""
    found = set()
    for _, axes in raw.values():
        for d in axes:
            if isinstance(d, str) and d:
                dim = dim_from_param(d)
                found |= {s for s in dim.symbols if dim == sym(s)}
    return found


def _symbolic(slot: _Slot, named: set[str], taken: set[str], origins: dict[str, tuple[str, bool]]) -> Dim:
    where = f"input {slot.input} axis {slot.axis}"
    if slot.param:
        dim = dim_from_param(slot.param)
        if not dim.symbols <= named:  # 2*batch, and batch is nowhere alone: a size of its own
            dim = sym(short(slot.param))
        for s in sorted(dim.symbols):
            taken.add(s)
            origins.setdefault(s, (where, False))
        return dim
    base = f"{_identifier(slot.input)}_{slot.axis}"
    name, n = base, 1
    while name in taken:
        name, n = f"{base}_{n}", n + 1
    taken.add(name)
    origins[name] = (where, True)
    return sym(name)


def _identifier(text: str) -> str:
    clean = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in text)
    return short(clean if clean and not clean[0].isdigit() else f"x{clean}")


def _ranges(
    dims: Dims, shapes: Mapping[str, Sequence[Dim]], origins: Mapping[str, tuple[str, bool]]
) -> tuple[dict[str, int], dict[str, Ranged]]:
    """The user's fixed sizes, and ranges with hot values, by symbol."""
    fixed: dict[str, int] = {}
    ranges: dict[str, Ranged] = {}
    for key, given in dims.items():
        low, high, hot = _ranged(key, given)
        name, static = _find(key, shapes, origins, "; data-dependent sizes have no hot ones" if hot else "")
        if name is None:
            assert static is not None
            if hot:
                raise invalid(f"dims: '{key}' is always {static} in this model, hot sizes are of a range")
            if not (low <= static and (high is None or static <= high)):
                raise invalid(f"dims: '{key}' is always {static} in this model, found {_show(low, high)}")
            continue
        before = (fixed[name], fixed[name], ()) if name in fixed else ranges.get(name, (low, high, hot))
        if before != (low, high, hot):
            raise invalid(
                f"dims: '{key}' names symbol '{name}', which has the range {_show(*before)} already"
            )
        if low == high:
            fixed[name] = low
        else:
            ranges[name] = (low, high, hot)
    return fixed, ranges


def _show(low: int, high: int | None, hot: tuple[int, ...] = ()) -> str:
    said = str(low) if low == high else f"{low}..{'*' if high is None else high}"
    return f"{said} with hot sizes {', '.join(map(str, hot))}" if hot else said


def _find(
    key: str, shapes: Mapping[str, Sequence[Dim]], origins: Mapping[str, tuple[str, bool]], more: str
) -> tuple[str | None, int | None]:
    """(symbol, None), or (None, size) for an axis that is static. more: what the hint says besides."""
    if (symbol := short(str(key).strip())) in origins:
        return symbol, None
    head, _, tail = str(key).rpartition(":")
    if head in shapes and tail.isdigit() and int(tail) < len(shapes[head]):
        d = shapes[head][int(tail)]
        if d.is_const:
            return None, d.const
        alone = [s for s in d.symbols if d == sym(s)]
        if alone:
            return alone[0], None
        raise invalid(f"dims: '{key}' is {d}", hint=f"set one of {', '.join(sorted(d.symbols))}")
    known = (
        ", ".join(f"'{s}' ({origin})" for s, (origin, _) in origins.items())
        or "none: all its dims are static"
    )
    raise invalid(f"dims: no symbol is called '{key}'", hint=f"the model's symbols are {known}{more}")


def _ranged(key: str, given: object) -> Ranged:
    """The range of a dim, and the hot values in it, each once. Raises SmeltError(kind='invalid')."""
    several = isinstance(given, (tuple, list)) and len(given) == 3
    low, high = _range(key, given[:2] if several else given)  # type: ignore[index]
    if not several:
        return low, high, ()
    found: list[int] = []
    try:
        found = [operator.index(n) for n in given[2]]  # type: ignore[index]
    except TypeError:
        raise invalid(f"dims: '{key}' has hot sizes {given[2]!r}, wanted a list of sizes") from None  # type: ignore[index]
    if low == high and found:
        raise invalid(
            f"dims: '{key}' is fixed to {low}, where there is nothing to choose from",
            hint="leave its hot sizes (opt) out, or give it a range",
        )
    outside = [n for n in found if n < low or (high is not None and n > high)]
    if outside:
        said = ", ".join(map(str, outside))
        raise invalid(f"dims: hot sizes (opt) of '{key}' are outside of {_show(low, high)}: {said}")
    return low, high, tuple(dict.fromkeys(found))


def _range(key: str, given: object) -> tuple[int, int | None]:
    pair = given if isinstance(given, (tuple, list)) else (given, given)
    try:
        low = operator.index(pair[0])
        high = None if pair[1] is None and len(pair) == 2 else operator.index(pair[1])
        if len(pair) != 2 or isinstance(given, bool):
            raise TypeError
    except (TypeError, IndexError):
        raise invalid(f"dims: '{key}' is {given!r}, wanted a size or a pair (low, high)") from None
    if low < 0 or (high is not None and high < max(low, 1)):
        raise invalid(
            f"dims: '{key}' is {given!r}, wanted 0 <= low <= high with high at least 1",
            hint=f"for example dims={{'{key}': (1, 512)}}",
        )
    return low, high
