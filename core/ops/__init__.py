"""The op table: every core op by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.core.ops import (
    cache,
    elementwise,
    generate,
    indexing,
    linear,
    movement,
    nbits,
    norm,
    quantized,
    reduce,
    resize,
    select,
    window,
)
from smelt.core.ops.table import Op

_ROOMS = (elementwise, reduce, linear, norm, window, movement, indexing, resize, generate, cache, nbits, select)

OPS: Mapping[str, Op] = MappingProxyType({op.name: op for room in (*_ROOMS, quantized) for op in room.ROWS})
