"""The table of bindings: the rows of the packages below and of plug-ins in; name -> rows out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from smelt.core.diag import SmeltError
from smelt.importer.bindings.microsoft import attention, fused, grouped, product, qlinear
from smelt.importer.bindings.microsoft import quant as microsoft_quant
from smelt.importer.bindings.standard import (
    control,
    conv,
    early,
    elementwise,
    elimination,
    linear,
    move,
    norm,
    old,
    quant,
    random,
    recurrent,
    reduce,
    resize,
    sample,
    scan,
    select,
    sequence,
    sequence_split,
    shape,
    signal,
)
from smelt.importer.bindings.text import strings
from smelt.importer.call import OnnxOp

_FILES = (
    elementwise,
    reduce,
    shape,
    move,
    select,
    linear,
    conv,
    norm,
    old,
    resize,
    quant,
    control,
    scan,
    sequence,
    sequence_split,
    recurrent,
    signal,
    random,
    sample,
    elimination,
    fused,
    attention,
    early,
    grouped,
    product,
    qlinear,
    microsoft_quant,
)


def _collected() -> dict[tuple[str, str], tuple[OnnxOp, ...]]:
    table: dict[tuple[str, str], list[OnnxOp]] = {}
    for file in _FILES:
        for row in file.ROWS:
            table.setdefault((row.domain, row.name), []).append(strings.aware(row))
    return {key: tuple(sorted(rows, key=lambda r: -r.since)) for key, rows in table.items()}


_TABLE = _collected()
BINDINGS: Mapping[tuple[str, str], tuple[OnnxOp, ...]] = MappingProxyType(_TABLE)


def extend(rows: Iterable[OnnxOp]) -> None:
    """Put bindings of a plug-in into the table: all of them, or none and SmeltError for doubles."""
    new: dict[tuple[str, str], tuple[OnnxOp, ...]] = {}
    for row in rows:
        key = (row.domain, row.name)
        known = new.get(key, _TABLE.get(key, ()))
        if row in known:
            continue
        if any(r.since == row.since for r in known):
            where = row.domain or "ai.onnx"
            what = f"'{row.name}' of domain '{where}', version {row.since} is bound already"
            raise SmeltError(what, hint="give it another name or domain, or the version in which it changed")
        new[key] = tuple(sorted((*known, row), key=lambda r: -r.since))
    _TABLE.update(new)
