"""The symbols of a module -> a few assignments of sizes at which plans and placements are weighed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from smelt.core.dim import Dim, value_at
from smelt.core.ir.graph import Symbol

_SAMPLES = (1, 5, 37, 224)


def sample_points(
    symbols: Sequence[Symbol], most: Mapping[str, Dim] = MappingProxyType({})
) -> tuple[Mapping[str, int], ...]:
    """A few assignments inside the symbols' ranges: small, odd, usual and large sizes. most: what symbols
    are at most, as formulas in symbols that come before."""
    points = []
    for base in _SAMPLES:
        point: dict[str, int] = {}
        for n, s in enumerate(symbols):
            value = (base + n) * s.divisor
            high = s.high if s.high is not None else value
            if s.name in most and most[s.name].symbols <= point.keys():
                high = min(high, value_at(most[s.name], point))
            point[s.name] = max(s.low, min(value, high // s.divisor * s.divisor))
        points.append(point)
    return tuple(points)
