"""An ONNX model in; ONNX Runtime's session of it out, which runs its nodes as they stand."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime


def plain_session(model: onnx.ModelProto | bytes | Path) -> onnxruntime.InferenceSession:
    """Nothing is rewritten or fused, on one thread; warnings stay silent."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    given = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
