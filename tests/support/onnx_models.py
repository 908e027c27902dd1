"""Small ONNX models for tests, and their runs: through the importer and its oracle, and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from oracle import runtime_session

from smelt.core.ir.graph import Module
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.verify import verify
from smelt.core.ops import OPS
from smelt.importer import import_model

Array = np.ndarray[Any, Any]
Dims = Sequence[int | str | None]

TYPES = {
    "f32": TensorProto.FLOAT, "i64": TensorProto.INT64, "i32": TensorProto.INT32, "bool": TensorProto.BOOL,
    "u8": TensorProto.UINT8, "i8": TensorProto.INT8,
}  # fmt: skip


def info(name: str, dtype: str, dims: Dims | None) -> onnx.ValueInfoProto:
    """A declared tensor; None as a dim leaves it unnamed."""
    return helper.make_tensor_value_info(name, TYPES[dtype], dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[str, Dims]],
    outputs: Mapping[str, str],
    constants: Mapping[str, Array] | None = None,
    opset: int = 17,
    **graph: Any,
) -> onnx.ModelProto:
    """A model; outputs: name -> dtype (their shapes are left out)."""
    g = helper.make_graph(
        nodes,
        "g",
        [info(n, dtype, dims) for n, (dtype, dims) in inputs.items()],
        [info(n, dtype, None) for n, dtype in outputs.items()],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
        **graph,
    )
    made = helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def imported(m: onnx.ModelProto, **options: Any) -> Module:
    """The model's module, verified."""
    module = import_model(m, **options)
    verify(module)
    return module


def types_of(module: Module) -> list[str]:
    """The types of the outputs as text."""
    values = {v.name: v.type for v in module.main.values().values()}
    values.update({ref: w.type for ref, w in module.weights.items()})
    return [str(values[r]) for r in module.main.outputs]


def ops_of(module: Module) -> list[str]:
    """The ops of the main graph, in order."""
    return [n.op for n in module.main.nodes]


def agree(m: onnx.ModelProto, feeds: Mapping[str, Array], tolerance: float = 1e-5, **options: Any) -> None:
    """The imported model gives what ONNX Runtime gives."""
    wanted = runtime_session(m).run(None, dict(feeds))
    found = run_module(imported(m, **options), feeds, OPS)
    for w, f in zip(wanted, found, strict=True):
        assert w.dtype == f.dtype
        assert w.shape == f.shape
        np.testing.assert_allclose(f, w, rtol=tolerance, atol=tolerance)
