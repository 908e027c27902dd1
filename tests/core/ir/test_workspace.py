"""What groups have in memory of their own: how much there is, what may be in it, and that it is apart."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from smelt.core.diag import SmeltError
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import parse_kernel, print_kernel
from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.ir.workspace import MOST_PLACES, workspace
from smelt.core.machine import Machine
from smelt.targets.llvm.abi import constants
from smelt.targets.llvm.jit import jit

HEAD = "kernel @k(m: dim in 0..*, n: dim in 1..*, x: f32[m, n]) -> (y: f32[m, n]) "
LANES = Machine("lanes", 0, 64, levels=("group", "lane"), max_lanes=64)


def turned_rows(body: str = "") -> Kernel:
    """Rows written back to front, by way of a row that every group has."""
    row = "scratch t: f32[n] serial j in n { t[j] = x[i, j] } serial j in n { y[i, j] = t[n - 1 - j] }"
    return parse_kernel(f"{HEAD}{{ group i in m {{ {body or row} }} }}")


def test_a_place_for_each_thread_that_can_have_groups() -> None:
    kernel = turned_rows()
    (found,) = workspace(kernel)
    assert list(kernel.buffers()) == ["x", "y", "t"]
    for m, n, wanted in ((0, 5, (0, 16)), (3, 16, (3, 16)), (3, 17, (3, 32)), (1000, 1, (MOST_PLACES, 16))):
        assert tuple(d.evaluate({"m": m, "n": n}) for d in found.shape) == wanted
    assert constants()["SMELT_MAX_THREADS"] == MOST_PLACES


def test_it_prints_and_runs() -> None:
    kernel = turned_rows()
    assert parse_kernel(print_kernel(kernel)) == kernel
    verify_kernel(kernel, "scheduled", strict=True, machine=Machine("cpu", 512, 32))
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    (y,) = run_kernel(kernel, [3, 5], [x])
    np.testing.assert_array_equal(y, x[:, ::-1])


def test_compiled_groups_use_the_place_that_they_are_given() -> None:
    kernel = turned_rows()
    compiled = jit(kernel)
    dims = {"m": 3, "n": 17}
    x, y = np.arange(51, dtype=np.float32).reshape(3, 17), np.zeros((3, 17), np.float32)
    places = np.full((3, 32), -1, np.float32)
    args = compiled.pack([x, y, places], dims)
    compiled.entries[0](ctypes.addressof(args), 0, 2, 2)
    compiled.entries[0](ctypes.addressof(args), 2, 3, 0)
    np.testing.assert_array_equal(y, x[:, ::-1])
    np.testing.assert_array_equal(places[2, :17], x[1])  # one row after the other in one place
    np.testing.assert_array_equal(places[0, :17], x[2])
    assert (places[1] == -1).all()
    assert (places[:, 17:] == -1).all()


@pytest.mark.parametrize(
    ("body", "machine", "why"),
    [
        ("serial j in n { scratch t: f32[n] t[j] = x[i, j] y[i, j] = t[j] }", None, "is of no group"),
        ("scratch t: f32[i] serial j in n { y[i, j] = x[i, j] }", None, "an extent that follows 'i'"),
        ("", LANES, "groups of lanes have none"),
    ],
)
def test_refusals(body: str, machine: Machine | None, why: str) -> None:
    with pytest.raises(SmeltError, match=why):
        verify_kernel(turned_rows(body), "lowered", machine=machine)
