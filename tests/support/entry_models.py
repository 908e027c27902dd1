"""Models for bundles with several entries: prefill and decode with equal weights; encoder and decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper, parser
from state_models import decoder

Array = np.ndarray[Any, np.dtype[Any]]

_HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
_PREFILL = """(int64[batch, n] ids, float[batch, n] mask)
    => (float[batch, n, 11] logits, float[batch, 2, n, 4] present_key, float[batch, 2, n, 4] present_value) {
  heads = Constant <value = int64[4] {0, 0, 2, 4}> ()
  flat = Constant <value = int64[3] {0, 0, 8}> ()
  axes = Constant <value = int64[2] {1, 2}> ()
  half = Constant <value = float {0.5}> ()
  e = Gather (emb, ids)
  q0 = MatMul (e, wq)  q1 = Reshape (q0, heads)  q = Transpose <perm = [0, 2, 1, 3]> (q1)
  k0 = MatMul (e, wk)  k1 = Reshape (k0, heads)  present_key = Transpose <perm = [0, 2, 1, 3]> (k1)
  v0 = MatMul (e, wv)  v1 = Reshape (v0, heads)  present_value = Transpose <perm = [0, 2, 1, 3]> (v1)
  kt = Transpose <perm = [0, 1, 3, 2]> (present_key)
  s0 = MatMul (q, kt)  s1 = Mul (s0, half)
  m = Unsqueeze (mask, axes)
  s = Add (s1, m)
  p = Softmax <axis = -1> (s)
  o0 = MatMul (p, present_value)  o1 = Transpose <perm = [0, 2, 1, 3]> (o0)
  o = Reshape (o1, flat)
  logits = MatMul (o, wo)
}"""
_ENCODER = """(float[batch, heard, 6] sound) => (float[batch, heard, 8] last_hidden) {
  h = MatMul (sound, we)
  last_hidden = Tanh (h)
}"""
_DECODER = """(float[batch, said, 8] words, float[batch, heard, 8] enc_out, float[batch, 8] before)
    => (float[batch, said, 8] out, float[batch, 8] after) {
  k = MatMul (enc_out, wk)
  kt = Transpose <perm = [0, 2, 1]> (k)
  s = MatMul (words, kt)
  p = Softmax <axis = -1> (s)
  o = MatMul (p, enc_out)
  axis = Constant <value = int64[1] {1}> ()
  b = Unsqueeze (before, axis)
  out = Add (o, b)
  mean = ReduceMean <axes = [1], keepdims = 0> (o)
  after = Add (before, mean)
}"""


def prefill() -> onnx.ModelProto:
    """A prompt through the decoder of state_models, whose cache starts empty: it only makes one."""
    model = parser.parse_model(_HEAD + _PREFILL)
    model.graph.initializer.extend(decoder().graph.initializer)
    return model


def encoder() -> onnx.ModelProto:
    """What a decoder attends to."""
    return _with(_ENCODER, we=(6, 8))


def attending() -> onnx.ModelProto:
    """A decoder that attends to `enc_out`, and keeps a sum of its own."""
    return _with(_DECODER, wk=(8, 8))


def _with(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    rng = np.random.default_rng(11)
    model = parser.parse_model(_HEAD + text)
    for name, shape in weights.items():
        values = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


class Oracle:
    """ONNX Runtime on one model: inputs by name in, outputs by name out."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def __call__(self, **feed: Array) -> dict[str, Array]:
        names = [o.name for o in self._session.get_outputs()]
        return dict(zip(names, self._session.run(None, feed), strict=True))


LLM = {"prefill": prefill(), "decode": decoder()}
LLM_DIMS = {"batch": (1, 4), "n": (1, 16), "decode/past": (0, 32), "decode/seq": 1}
SPEECH = {"encoder": encoder(), "decoder": attending()}
SPEECH_STATE = {"enc_out": "encoder/last_hidden", "decoder/before": "after"}


class ByHand:
    """Prefill and decode by ONNX Runtime, with the cache in the caller's hands."""

    def __init__(self) -> None:
        self.first, self.next = Oracle(prefill()), Oracle(decoder())
        self.key = self.value = np.zeros(0, np.float32)

    def prefill(self, ids: Array) -> Array:
        return self._kept(self.first(ids=ids, mask=np.zeros(ids.shape, np.float32)))

    def decode(self, ids: Array) -> Array:
        mask = np.zeros((len(ids), self.key.shape[2] + 1), np.float32)
        return self._kept(self.next(ids=ids, mask=mask, past_key=self.key, past_value=self.value))

    def _kept(self, found: dict[str, Array]) -> Array:
        self.key, self.value = found["present_key"], found["present_value"]
        return found["logits"]


def same(got: Array, want: Array) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def numbers(name: str) -> Any:
    """A declaration of floats."""
    return helper.make_tensor_value_info(name, 1, ["n"])
