"""Weights read and packed in parts: the same bytes as whole, whatever axis leads, wherever the data lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smelt.core.bundle import write_weights
from smelt.core.dtype import f32
from smelt.core.ir import graph
from smelt.core.ir.graph import Weight
from smelt.core.schedule import weights
from smelt.core.schedule.pack import apply_numpy, parse_spec

SHAPE = (7, 10, 6)
DATA = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
SPECS = (
    "(1/4, 0, 1%4, 2)",
    "(0, 1, 2)",
    "(2, 1, 0)",
    "(2/4, 0/2, 1, 0%2, 2%4)",
    "(1%4, 1/4, 0, 2)",
    "(0/3, 1, 0%3, 2)",
)


@pytest.fixture(params=["memory", "file"])
def weight(request: pytest.FixtureRequest, tmp_path: Path) -> Weight:
    if request.param == "memory":
        return Weight("@w", f32, SHAPE, data=DATA)
    (tmp_path / "w.bin").write_bytes(b"abcd" + DATA.tobytes() + b"more")
    return Weight("@w", f32, SHAPE, path=tmp_path / "w.bin", offset=4)


@pytest.mark.parametrize("piece", [1, 40, 1 << 20])
def test_pieces_and_windows(weight: Weight, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "PIECE", piece)
    np.testing.assert_array_equal(np.concatenate(list(weight.pieces())), DATA.reshape(-1))
    for axis, extent in enumerate(SHAPE):
        for start, stop in ((0, extent), (2, 5), (extent - 1, extent)):
            want = np.take(DATA, range(start, stop), axis)
            np.testing.assert_array_equal(weight.window(SHAPE, axis, start, stop), want)
    np.testing.assert_array_equal(weight.window((1, 70, 6), 1, 9, 33), DATA.reshape(1, 70, 6)[:, 9:33])
    assert weight.digest == Weight("@w", f32, SHAPE, data=DATA).digest


@pytest.mark.parametrize("text", SPECS)
@pytest.mark.parametrize("part", [100, 1 << 20])
def test_packing_in_parts(weight: Weight, text: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SMALL", 0)
    monkeypatch.setattr(weights, "PART", part)
    spec = parse_spec(text)
    want = apply_numpy(spec, DATA)
    packed = weights._packed(weight, spec, SHAPE, "@p")
    assert packed.shape == want.shape and packed.data is None
    np.testing.assert_array_equal(packed.array(), want)
    pieces = list(packed.pieces())
    assert sum(p.size for p in pieces) == want.size
    if part == 100 and text[1:4] != "1%4":
        assert len(pieces) > 1


def test_a_file_of_weights_has_its_gaps_and_hash(tmp_path: Path) -> None:
    a, b = np.arange(5, dtype=np.uint8), np.arange(3, dtype=np.float32)
    rows = [(2, iter([a[:2], a[2:]])), (12, iter([b]))]
    digest = write_weights(tmp_path / "model.weights", rows, 32)
    want = bytes(2) + a.tobytes() + bytes(5) + b.tobytes() + bytes(8)
    assert (tmp_path / "model.weights").read_bytes() == want + bytes.fromhex(digest)
    import hashlib

    assert digest == hashlib.sha256(want).hexdigest()
