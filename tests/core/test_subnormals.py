"""The mode in which a thread flushes subnormal numbers: NumPy, f64 and f32, in it and after it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from smelt.core.subnormals import flush_is_possible, flushed, keeps_subnormals

TINY = np.array([1e-40, -1e-39, 1e-30], np.float32)

pytestmark = pytest.mark.skipif(not flush_is_possible(), reason="this system has no such mode")


def test_operands_and_results_are_flushed() -> None:
    with flushed():
        assert ((TINY * 1 == 0) == [True, True, False]).all()  # operands
        assert (np.float32(2e-38) * np.array([0.5], np.float32) == 0).all()  # a result
        assert (np.array([5e-324]) * 1.0 == 0).all()
    assert (TINY * 1 != 0).all() and (np.array([5e-324]) * 1.0 != 0).all()


def test_off_changes_nothing_and_an_error_ends_it() -> None:
    with flushed(False):
        assert (TINY * 1 != 0).all()
    with pytest.raises(KeyError), flushed():
        raise KeyError
    assert (TINY * 1 != 0).all()


def test_other_threads_keep_theirs() -> None:
    seen: list[bool] = []
    begun, done = threading.Event(), threading.Event()

    def other() -> None:
        begun.set()
        done.wait(10)
        seen.append(bool((TINY * 1 != 0).all()))

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(10)
    with flushed():
        done.set()
        thread.join()
    assert seen == [True]


def test_bundles_of_before_keep_them() -> None:
    assert keeps_subnormals({}) and keeps_subnormals({"keep_subnormals": True})
    assert not keeps_subnormals({"keep_subnormals": False})
