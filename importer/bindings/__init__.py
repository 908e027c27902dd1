"""The table of ONNX ops: name and opset in, the row that translates it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from smelt.core.diag import SmeltError
from smelt.importer.bindings import (
    contrib,
    contrib_attention,
    contrib_branches,
    contrib_decode,
    contrib_experts,
    contrib_grouped,
    contrib_image,
    contrib_other,
    contrib_product,
    contrib_qlinear,
    contrib_quant,
    contrib_sparse,
    contrib_state,
    contrib_text,
    control,
    conv,
    early,
    elementwise,
    elimination,
    linear,
    ml,
    ml_linear,
    ml_trees,
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
    strings,
    tables,
)
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
    tables,
    strings,
    ml,
    ml_linear,
    ml_trees,
    contrib,
    contrib_attention,
    contrib_branches,
    contrib_decode,
    early,
    contrib_experts,
    contrib_grouped,
    contrib_sparse,
    contrib_image,
    contrib_product,
    contrib_qlinear,
    contrib_other,
    contrib_state,
    contrib_quant,
    contrib_text,
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
    """Put bindings of a plug-in into the table, before a model is read. Raises SmeltError for doubles."""
    for row in rows:
        key = (row.domain, row.name)
        known = _TABLE.get(key, ())
        if row in known:
            continue
        if any(r.since == row.since for r in known):
            where = row.domain or "ai.onnx"
            raise SmeltError(f"'{row.name}' of domain '{where}', version {row.since} is bound already")
        _TABLE[key] = tuple(sorted((*known, row), key=lambda r: -r.since))


def find(domain: str, name: str, opset: int) -> OnnxOp | None:
    """The row in force at that opset; None when there is none."""
    return next((r for r in BINDINGS.get((domain, name), ()) if r.since <= opset), None)
