"""A model and its inputs in; the outputs that ONNX's evaluator or ONNX Runtime gives for them out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import ModelProto

from smelt.conformance.cases import CaseValue

ONLY_TYPES = frozenset({"GlobalLpPool", "MaxRoiPool", "Multinomial"})
"""Operators to which opset 22 added only bfloat16; ONNX Runtime implements them up to opset 21."""

Oracle: TypeAlias = Callable[[ModelProto, Mapping[str, CaseValue]], "tuple[CaseValue, ...] | None"]


def evaluator(model: ModelProto, feed: Mapping[str, CaseValue]) -> tuple[CaseValue, ...] | None:
    """The outputs that onnx.reference computes; None when it fails."""
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found: Any = ReferenceEvaluator(model).run(None, dict(feed))
        except Exception:  # whatever an evaluator of another project raises: it has no answer
            return None
    return _typed(model, found)


def runtime(model: ModelProto, feed: Mapping[str, CaseValue]) -> tuple[CaseValue, ...] | None:
    """The outputs that ONNX Runtime computes; None when it fails, or is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")  # see smelt/reference.py
    try:
        session = onnxruntime.InferenceSession(
            _capped(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        found = session.run(None, dict(feed))
    except Exception:  # as above
        return None
    return _typed(model, found)


def first(
    model: ModelProto, feed: Mapping[str, CaseValue], oracles: Sequence[Oracle]
) -> tuple[tuple[CaseValue, ...], Oracle] | None:
    """The first oracle's answer that is not None, with that oracle; None where no oracle has one."""
    for oracle in oracles:
        found = oracle(model, feed)
        if found is not None:
            return found, oracle
    return None


def _typed(model: ModelProto, found: Sequence[CaseValue]) -> tuple[CaseValue, ...] | None:
    """The answer, converted to the declared element types. None where there are fewer outputs, or
    types that are not floats differ: an evaluator may compute f64 in f32."""
    if len(found) != len(model.graph.output):
        return None
    outputs = []
    for o, y in zip(model.graph.output, found, strict=True):
        if o.type.WhichOneof("value") == "tensor_type":
            if y is None or isinstance(y, list):
                return None
            y = np.asarray(y)
            wanted = onnx.helper.tensor_dtype_to_np_dtype(o.type.tensor_type.elem_type)
            if y.dtype.kind == wanted.kind == "f":
                y = y.astype(wanted)
            if y.dtype != wanted and not (wanted.kind == "O" and y.dtype.kind in "OSU"):
                return None
        outputs.append(y)
    return tuple(outputs)


@cache
def _newest_runtime() -> int:
    """The newest opset that the installed ONNX Runtime reads."""
    import onnxruntime

    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in "xy")
    for version in range(onnx.defs.onnx_opset_version(), 1, -1):
        made = onnx.helper.make_model(
            onnx.helper.make_graph([node], "g", [x], [y]),
            opset_imports=[onnx.helper.make_opsetid("", version)],
            ir_version=8,
        )
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(made.SerializeToString(), options)
        except Exception:  # the only way that it tells
            continue
        return version
    return 1


def _capped(model: ModelProto) -> ModelProto:
    """The model at an opset that ONNX Runtime reads, where its operators are the same there."""
    needed = max((_since(model, n) for n in model.graph.node), default=1)
    made = ModelProto()
    made.CopyFrom(model)
    made.ir_version = min(made.ir_version, 10)
    for o in made.opset_import:
        if o.domain in ("", "ai.onnx"):
            o.version = min(o.version, max(needed, _newest_runtime()))
            if {n.op_type for n in made.graph.node} & ONLY_TYPES:
                o.version = min(o.version, 21)
    return made


def _since(model: ModelProto, n: onnx.NodeProto) -> int:
    if n.domain not in ("", "ai.onnx"):
        return 1
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    try:
        return int(onnx.defs.get_schema(n.op_type, version, "").since_version)
    except onnx.defs.SchemaError:
        return 1
