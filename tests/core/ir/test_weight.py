"""Weights that are made from others when they are read: whole, in pieces, and any part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smelt.core.dtype import f32
from smelt.core.ir.graph import HEAD_BYTES, Weight

SHAPE = (24, 40, 3, 50)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Weight, np.ndarray]:
    """A weight in a file, and its elements."""
    data = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    path = tmp_path / "w.bin"
    path.write_bytes(bytes(16) + data.tobytes())
    return Weight("@w", f32, SHAPE, path=path, offset=16), data


def check(w: Weight, wanted: np.ndarray) -> None:
    """Read in every way, the weight has these elements, and none of them in memory."""
    assert w.data is None and w.shape == wanted.shape
    np.testing.assert_array_equal(w.array(), wanted)
    np.testing.assert_array_equal(np.concatenate(list(w.pieces())), wanted.reshape(-1))
    for axis, extent in enumerate(w.shape):
        for start, stop in ((0, extent), (1, 2), (extent - 2, extent)):
            part = wanted.take(range(start, stop), axis)
            np.testing.assert_array_equal(w.window(w.shape, axis, start, stop), part)


def test_transposed_and_scaled(pair: tuple[Weight, np.ndarray]) -> None:
    w, data = pair
    rows = np.random.default_rng(1).standard_normal((24, 1, 1, 1))
    many = np.random.default_rng(2).standard_normal((24, 40, 1, 1))
    scaled = [(data.astype(np.float64) * k).astype(np.float32) for k in (rows, many)]
    check(w, data)
    check(w.transposed((2, 3, 1, 0), "@t"), data.transpose(2, 3, 1, 0))
    check(w.scaled(rows, "@s"), scaled[0])
    check(w.scaled(many, "@s").transposed((3, 0, 2, 1), "@t"), scaled[1].transpose(3, 0, 2, 1))
    twice = w.transposed((1, 0, 3, 2), "@t").transposed((2, 0, 1, 3), "@u")
    check(twice, data.transpose(1, 0, 3, 2).transpose(2, 0, 1, 3))


def test_reshaped(pair: tuple[Weight, np.ndarray]) -> None:
    w, data = pair
    flat = data.transpose(1, 0, 2, 3).reshape(40, 72, 50)
    check(w.reshaped((960, 150), "@r"), data.reshape(960, 150))
    check(w.transposed((1, 0, 2, 3), "@t").reshaped((40, 72, 50), "@r"), flat)
    held = Weight("@h", f32, SHAPE, data).reshaped((72, 2000), "@r")
    assert held.array().shape == held.shape == (72, 2000)


def test_small_ones_and_those_in_memory_are_made_at_once() -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    w = Weight("@w", f32, (2, 3), data)
    turned, scaled = w.transposed((1, 0), "@t"), w.scaled(np.array([[2.0], [3.0]]), "@s")
    assert turned.data is not None and scaled.data is not None
    np.testing.assert_array_equal(turned.array(), data.T)
    np.testing.assert_array_equal(scaled.array(), [[0, 2, 4], [9, 12, 15]])
    with pytest.raises(ValueError, match="read-only"):
        turned.array()[0] = 1
    empty = Weight("@e", f32, (0, 3), np.zeros((0, 3), np.float32))
    assert empty.transposed((1, 0), "@t").array().shape == (3, 0)
    scalar = Weight("@z", f32, (), np.float32(7).reshape(()))
    assert scalar.scaled(np.array(2.0), "@s").array() == 14


def test_the_head_is_of_the_elements_however_they_are_kept(pair: tuple[Weight, np.ndarray]) -> None:
    w, data = pair
    turned = data.transpose(2, 3, 1, 0)
    held = Weight("@h", f32, SHAPE, data)
    for found, wanted in ((w, data), (held, data), (w.transposed((2, 3, 1, 0), "@t"), turned)):
        assert found.head == np.ascontiguousarray(wanted).tobytes()[:HEAD_BYTES]
    short = Weight("@s", f32, (3,), recipe=lambda: iter((data.ravel()[:1], data.ravel()[1:3])))
    assert short.head == data.ravel()[:3].tobytes()
    assert Weight("@e", f32, (0, 3), path=w.path).head == b""
