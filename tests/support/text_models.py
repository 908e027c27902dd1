"""Models in ONNX's text form in; compiled here and compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import parser
from oracle import plain_session

import smelt
from smelt.compiler import compile_here
from smelt.driver import Request

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Flow:
    """A model, and what to run it on."""

    inputs: str
    outputs: str
    body: str
    feeds: Sequence[Mapping[str, Array]]
    opset: int = 17


def model_of(inputs: str, outputs: str, body: str, opset: int = 17) -> onnx.ModelProto:
    """A model; values written as [] or [?] have no declared shape, but for scalars in graphs inside."""
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    found = parser.parse_model(text)
    open_ends(found.graph)
    return found


def open_ends(g: onnx.GraphProto, inner: bool = False) -> None:
    """Take away shapes without a number or a name, here and in the graphs inside."""
    for v in (*g.output, *(g.input if inner else ())):
        t = v.type
        while (kind := t.WhichOneof("value")) in ("sequence_type", "optional_type"):
            t = getattr(t, kind).elem_type
        dims = t.tensor_type.shape.dim
        if (dims or not inner) and not any(d.HasField("dim_value") or d.dim_param for d in dims):
            t.tensor_type.ClearField("shape")
    for n in g.node:
        for a in n.attribute:
            open_ends(a.g, inner=True)


def floats(*shape: int) -> Array:
    """Normal floats, the same ones for the same shape."""
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def whole(v: Any) -> Array:
    """64-bit integers."""
    return np.array(v, np.int64)


def flag(v: Any) -> Array:
    """Bools."""
    return np.array(v, np.bool_)


def agree(m: onnx.ModelProto, folder: Path, cases: Sequence[Mapping[str, Array]]) -> None:
    """Compiled once, the model gives what ONNX Runtime gives."""
    path = folder / "model.onnx"
    path.write_bytes(m.SerializeToString())
    made = compile_here(Request(source=str(path), output=str(folder / "bundle"), runner=False))
    found, wanted = smelt.load(made, threads=1), plain_session(m)
    for feeds in cases:
        for a, b in zip(found.run(None, dict(feeds)), wanted.run(None, dict(feeds)), strict=True):
            assert a.dtype == b.dtype
            if b.shape == (0,) and a.shape[:1] == (0,):
                continue  # a stack without rounds: ONNX Runtime does not know the other extents
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def agree_flow(flow: Flow, folder: Path) -> None:
    """As agree, of a row of a table."""
    agree(model_of(flow.inputs, flow.outputs, flow.body, flow.opset), folder, flow.feeds)
