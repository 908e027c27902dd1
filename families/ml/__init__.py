"""Classical models (ai.onnx.ml): what a plug-in has, bindings and core ops."""

from __future__ import annotations

from smelt.core.ops.table import Op
from smelt.families.ml import ensembles, features, linear
from smelt.families.ml.ops import coupled, trees
from smelt.importer.call import OnnxOp

BINDINGS: tuple[OnnxOp, ...] = (*features.ROWS, *linear.ROWS, *ensembles.ROWS)
OPS: tuple[Op, ...] = (*trees.ROWS, *coupled.ROWS)
