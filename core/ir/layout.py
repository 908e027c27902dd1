"""Layout: the axes of a weight -> those that a kernel reads; data that prints, parses and runs on arrays."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from smelt.core.dim import Dim, align_up, ceildiv, to_dim

DimPart: TypeAlias = Literal["all", "outer", "inner"]
_SPELLING = re.compile(r"(\d+)(?:([/%])(\d+))?")


@dataclass(frozen=True, slots=True)
class PackDim:
    """One axis of the packed operand: source axis `axis` whole, or its quotient or remainder by
    `factor` ('outer' prints as 1/32, 'inner' as 1%32)."""

    axis: int
    part: DimPart = "all"
    factor: int = 1

    def __str__(self) -> str:
        if self.part == "all":
            return str(self.axis)
        return f"{self.axis}{'/' if self.part == 'outer' else '%'}{self.factor}"


@dataclass(frozen=True, slots=True)
class PackSpec:
    """The axes of the packed operand, outermost first. Every source axis appears whole, or once as
    'outer' and once as 'inner' with the same factor; the tail of such an axis is padded with zeros."""

    dims: tuple[PackDim, ...]

    def __post_init__(self) -> None:
        for axis in range(self.rank):
            mine = sorted((d.part, d.factor) for d in self.dims if d.axis == axis)
            whole = [("all", 1)]
            halves = [("inner", mine[0][1]), ("outer", mine[0][1])] if mine else []
            if not mine or mine not in (whole, halves):
                raise ValueError(f"pack spec {self} does not cover source axis {axis} once")

    @property
    def rank(self) -> int:
        """Rank of the source."""
        return 1 + max(d.axis for d in self.dims)

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self.dims)) + ")"

    def factor(self, axis: int) -> int:
        """What the source axis is padded to a multiple of."""
        return next((d.factor for d in self.dims if d.axis == axis), 1)

    def shape(self, source: Sequence[Dim]) -> tuple[Dim, ...]:
        """Packed extents of a source of these extents."""
        return tuple(_extent(d, source[d.axis]) for d in self.dims)

    def index(self, source: Sequence[Dim]) -> tuple[Dim, ...]:
        """Where the element at this source index lies in the packed operand."""
        return tuple(_position(d, source[d.axis]) for d in self.dims)

    def source_index(self, packed: Sequence[Dim]) -> tuple[Dim, ...]:
        """The source index of a packed position (outside the source for padding)."""
        found = [to_dim(0)] * self.rank
        for d, i in zip(self.dims, packed, strict=True):
            found[d.axis] = found[d.axis] + (i * d.factor if d.part == "outer" else i)
        return tuple(found)


def _extent(d: PackDim, n: Dim) -> Dim:
    if d.part == "all":
        return n
    return ceildiv(n, d.factor) if d.part == "outer" else to_dim(d.factor)


def _position(d: PackDim, i: Dim) -> Dim:
    if d.part == "all":
        return i
    return i // d.factor if d.part == "outer" else i % d.factor


def parse_spec(text: str) -> PackSpec:
    """The inverse of str(spec); raises ValueError."""
    body = text.strip()
    if not (body.startswith("(") and body.endswith(")")):
        raise ValueError(f"pack spec {text!r} is not of the form (1/32, 0, 1%32)")
    dims = []
    for item in body[1:-1].split(","):
        m = _SPELLING.fullmatch(item.strip())
        if m is None:
            raise ValueError(f"pack spec {text!r}: {item.strip()!r} is not 0, 0/32 or 0%32")
        part: DimPart = {"/": "outer", "%": "inner", None: "all"}[m[2]]  # type: ignore[assignment]
        dims.append(PackDim(int(m[1]), part, int(m[3] or 1)))
    return PackSpec(tuple(dims))


def apply_numpy(spec: PackSpec, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The packed copy of an array of rank spec.rank, padded with zeros."""
    assert array.ndim == spec.rank, (str(spec), array.shape)
    padded = [align_up(n, spec.factor(a)).const for a, n in enumerate(array.shape)]
    full = np.zeros(padded, array.dtype)
    full[tuple(slice(n) for n in array.shape)] = array
    # split every padded axis into (outer, inner), then put the halves where the spec says
    halves: list[int] = []
    for a, n in enumerate(padded):
        f = spec.factor(a)
        halves += [n // f, f]
    places = [2 * d.axis + (1 if d.part == "inner" else 0) for d in spec.dims]
    rest = [p for p in range(2 * spec.rank) if p not in places]  # the inner halves of whole axes: 1
    packed = full.reshape(halves).transpose([*places, *rest])
    shape = [d.const for d in spec.shape([to_dim(n) for n in array.shape])]
    return np.ascontiguousarray(packed.reshape(shape))


@dataclass(frozen=True, slots=True)
class Layout:
    """How a weight lies for a kernel: the axes of its tensor, of shape `source`, as spec orders them."""

    spec: PackSpec
    source: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.spec} of [{', '.join(map(str, self.source))}]"

    @property
    def shape(self) -> tuple[Dim, ...]:
        """What the kernel sees."""
        return self.spec.shape(self.source)

    @property
    def order(self) -> Hashable:
        """What is equal for layouts under which equal elements become equal bytes: each piece of the source
        that stays whole, from the first one on, by where the source has it and how many elements. ()
        where nothing moves. Extents must be constant."""
        if any(n.const % self.spec.factor(axis) for axis, n in enumerate(self.source)):
            return str(self)  # padded
        pieces = zip(self.spec.dims, self.shape, strict=True)
        packed = [((d.axis, d.part == "inner"), n.const) for d, n in pieces if n != 1]
        places = {place: k for k, (place, _) in enumerate(sorted(packed))}
        groups: list[tuple[int, int, int]] = []  # first place, the one after the last, elements
        for place, n in packed:
            k = places[place]
            first, end, m = groups.pop() if groups and groups[-1][1] == k else (k, k, 1)
            groups.append((first, end + 1, m * n))
        firsts = sorted(first for first, _, _ in groups)
        return tuple((firsts.index(first), n) for first, _, n in groups) if len(groups) > 1 else ()

    def apply(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The elements in this order; the array may have other axes of extent 1 than the source."""
        return apply_numpy(self.spec, array.reshape([d.const for d in self.source]))
