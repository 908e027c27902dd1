"""Models with sequences and optionals for tests: built in a line, compiled here, compared with ONNX."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TypeProto, ValueInfoProto, helper
from onnx_models import TYPES

from smelt.compiler import compile_here
from smelt.driver import Request
from smelt.session import Session, load

ELEMENTS = {**TYPES, "f16": onnx.TensorProto.FLOAT16, "f64": onnx.TensorProto.DOUBLE}


def tensor(dtype: str, dims: Sequence[int | str | None] | None = ()) -> TypeProto:
    """The type of a tensor; dims None: not even its rank is declared."""
    return helper.make_tensor_type_proto(ELEMENTS[dtype], dims)


def seq(dtype: str, dims: Sequence[int | str | None] | None = None) -> TypeProto:
    """The type of a sequence."""
    return helper.make_sequence_type_proto(tensor(dtype, dims))


def opt(inner: TypeProto) -> TypeProto:
    """The type of an optional."""
    return helper.make_optional_type_proto(inner)


def info(name: str, t: TypeProto) -> ValueInfoProto:
    """A declared value."""
    return helper.make_value_info(name, t)


def body(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, TypeProto], outputs: Mapping[str, TypeProto]
) -> onnx.GraphProto:
    """A subgraph."""
    return helper.make_graph(
        nodes, "body", [info(n, t) for n, t in inputs.items()], [info(n, t) for n, t in outputs.items()]
    )


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, TypeProto],
    outputs: Mapping[str, TypeProto],
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model."""
    g = body(nodes, inputs, outputs)
    for name, value in (constants or {}).items():
        g.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    made = helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def compiled(m: onnx.ModelProto, folder: str) -> Session:
    """The model, compiled in this process."""
    source = Path(folder) / "model.onnx"
    source.write_bytes(m.SerializeToString())
    return load(compile_here(Request(str(source), output=f"{folder}/out", runner=False)), threads=1)


def agree(m: onnx.ModelProto, *feeds: Mapping[str, Any]) -> list[list[Any]]:
    """Assert that the model, compiled once, gives what ONNX Runtime gives for each of the feeds."""
    theirs = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    found = []
    with tempfile.TemporaryDirectory() as folder:
        session = compiled(m, folder)
        for feed in feeds:
            got, want = session.run(None, feed), theirs.run(None, dict(feed))
            for g, w in zip(got, want, strict=True):
                same(g, w)
            found.append(got)
    return found


def same(got: Any, want: Any) -> None:
    """Assert that two values are of one kind, and equal up to rounding."""
    if want is None:
        assert got is None
    elif isinstance(want, list):
        assert isinstance(got, list)
        assert len(got) == len(want), (len(got), len(want))
        for g, w in zip(got, want, strict=True):
            same(g, w)
    else:
        want = np.asarray(want)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
