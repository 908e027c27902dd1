"""Models whose outputs are the next run's inputs, with the results of ONNX Runtime, which gets the state as
inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper, parser

Array = np.ndarray[Any, np.dtype[Any]]

_HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
_LSTM = """(float[1, batch, 4] x, float[1, batch, 8] h, float[1, batch, 8] c)
    => (float[1, 1, batch, 8] y, float[1, batch, 8] next_h, float[1, batch, 8] next_c) {
  y, next_h, next_c = LSTM <hidden_size = 8> (x, w, r, b, , h, c)
}"""
_DECODER = """(int64[batch, seq] ids, float[batch, m] mask, float[batch, 2, past, 4] past_key,
     float[batch, 2, past, 4] past_value)
    => (float[batch, seq, 11] logits, float[batch, 2, t1, 4] present_key,
        float[batch, 2, t2, 4] present_value) {
  heads = Constant <value = int64[4] {0, 0, 2, 4}> ()
  flat = Constant <value = int64[3] {0, 0, 8}> ()
  axes = Constant <value = int64[2] {1, 2}> ()
  half = Constant <value = float {0.5}> ()
  e = Gather (emb, ids)
  q0 = MatMul (e, wq)  q1 = Reshape (q0, heads)  q = Transpose <perm = [0, 2, 1, 3]> (q1)
  k0 = MatMul (e, wk)  k1 = Reshape (k0, heads)  k = Transpose <perm = [0, 2, 1, 3]> (k1)
  v0 = MatMul (e, wv)  v1 = Reshape (v0, heads)  v = Transpose <perm = [0, 2, 1, 3]> (v1)
  present_key = Concat <axis = 2> (past_key, k)
  present_value = Concat <axis = 2> (past_value, v)
  kt = Transpose <perm = [0, 1, 3, 2]> (present_key)
  s0 = MatMul (q, kt)  s1 = Mul (s0, half)
  m = Unsqueeze (mask, axes)
  s = Add (s1, m)
  p = Softmax <axis = -1> (s)
  o0 = MatMul (p, present_value)  o1 = Transpose <perm = [0, 2, 1, 3]> (o0)
  o = Reshape (o1, flat)
  logits = MatMul (o, wo)
}"""


def _model(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    rng = np.random.default_rng(7)
    model = parser.parse_model(_HEAD + text)
    for name, shape in weights.items():
        values = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


def lstm() -> onnx.ModelProto:
    """A step of an LSTM: x and the states h and c; any batch."""
    return _model(_LSTM, w=(1, 32, 4), r=(1, 32, 8), b=(1, 64))


def decoder() -> onnx.ModelProto:
    """A layer of attention over a cache that grows by the tokens of each run; any batch. `mask` is added to
    the scores, for as many tokens as the cache then has."""
    model = _model(_DECODER, emb=(11, 8), wq=(8, 8), wk=(8, 8), wv=(8, 8), wo=(8, 11))
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "past + seq"  # as exporters write it
    return model


LSTM_STATE = {"h": "next_h", "c": "next_c"}
DECODER_STATE = {"past_*": "present_*"}


class ByHand:
    """ONNX Runtime with the outputs of a run fed to the next one."""

    def __init__(self, model: onnx.ModelProto, start: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """start: name of an input -> the output that replaces it, and its first shape."""
        self._session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self._pairs = {name: output for name, (output, _) in start.items()}
        self.state: dict[str, Array] = {n: np.zeros(s, np.float32) for n, (_, s) in start.items()}

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name; the state moves on."""
        names = [o.name for o in self._session.get_outputs()]
        found = dict(zip(names, self._session.run(None, {**feed, **self.state}), strict=True))
        self.state = {name: found[output] for name, output in self._pairs.items()}
        return found


def lstm_by_hand(batch: int) -> ByHand:
    """The LSTM at its start."""
    return ByHand(lstm(), {n: (o, (1, batch, 8)) for n, o in LSTM_STATE.items()})


def decoder_by_hand(batch: int) -> ByHand:
    """The decoder with an empty cache."""
    empty = (batch, 2, 0, 4)
    return ByHand(
        decoder(), {"past_key": ("present_key", empty), "past_value": ("present_value", empty)}
    )


def tokens(rng: np.random.Generator, batch: int, past: int, new: int) -> dict[str, Array]:
    """Inputs of the decoder for so many new tokens."""
    mask = np.where(rng.random((batch, past + new)) < 0.2, -1e4, 0.0).astype(np.float32)
    return {"ids": rng.integers(0, 11, (batch, new)), "mask": mask}
