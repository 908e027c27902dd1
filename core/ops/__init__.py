"""The op table: every core op by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from smelt.core.diag import SmeltError
from smelt.core.ops.rows import (
    borders,
    boxes,
    cache,
    elementwise,
    generate,
    indexing,
    linear,
    movement,
    nbits,
    norm,
    pool_index,
    quantized,
    random,
    reduce,
    region_pool,
    resize,
    roi,
    room,
    sample,
    select,
    text_find,
    text_number,
    window,
    winograd,
)
from smelt.core.ops.table import Op

_ROOMS = (
    elementwise, reduce, linear, norm, window, movement, indexing, resize, generate, cache, nbits, quantized,
    select, boxes, sample, roi, borders, random, pool_index, region_pool, text_find, text_number, room,
    winograd,
)  # fmt: skip
_TABLE: dict[str, Op] = {op.name: op for rows in _ROOMS for op in rows.ROWS}
OPS: Mapping[str, Op] = MappingProxyType(_TABLE)


def current_ops() -> tuple[Op, ...]:
    """A copy of the table at this moment; another thread may load a family, which changes the table
    itself."""
    return tuple(_TABLE.values())


def extend(ops: Iterable[Op]) -> None:
    """Put ops of a plug-in into the table: all of them, or none and SmeltError when a name is taken."""
    new: dict[str, Op] = {}
    for op in ops:
        if new.setdefault(op.name, _TABLE.get(op.name, op)) is not op:
            raise SmeltError(f"there is a core op '{op.name}' already", hint="give the new op another name")
    _TABLE.update(new)
