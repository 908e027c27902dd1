"""Rare ops of com.microsoft: images, mixtures of experts, recurrent states, decoding. Bindings and core
ops."""

from __future__ import annotations

from smelt.core.ops.table import Op
from smelt.families.microsoft import branches, decode, experts, image, other, sparse, state
from smelt.families.microsoft.ops import experts as products
from smelt.importer.call import OnnxOp

BINDINGS: tuple[OnnxOp, ...] = (
    *branches.ROWS, *decode.ROWS, *experts.ROWS, *sparse.ROWS, *image.ROWS, *other.ROWS, *state.ROWS,
)  # fmt: skip
OPS: tuple[Op, ...] = products.ROWS
