"""Products by a warp's matrix instructions: their code for CUDA, run on this machine, agrees with NumPy and
with the naive kernel, and assembles without spills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from cuda_run import OnHost

from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Kernel, walk
from smelt.core.ir.layout import apply_numpy
from smelt.core.ir.text import parse_kernel, print_kernel
from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.schedule.module import schedule_kernel
from smelt.targets.cuda.emit import emit_program
from smelt.targets.cuda.machine import STATIC_BYTES, cpu_for, scheduled_for
from smelt.targets.cuda.ptx import assemble, module, ptx, resources

CHIP = "sm_80"
MACHINE = scheduled_for(CHIP)
Array = np.ndarray[Any, Any]

TEXT = """
kernel @product({dims}a: {kind}[{b}{m}, {k}], w: {kind}[{right}]) -> (y: {kind}[{b}{m}, {n}]) {{
  serial i0 in {m} {{ serial i1 in {n} {{
    y[i0, i1] = cast:{kind}(sum k0 in {k} {{ cast:f32(a[i0, k0]) * cast:f32(w[{at}]) }})
  }} }}
}}"""


def kernel(m: str, k: str, n: str, kind: str = "f16", along: str = "n") -> Kernel:
    """y = a @ w, or a @ w.T where w lies along k. Letters are dims that only a run knows."""
    dims = "".join(f"{d}: dim in 0..*, " for d in (m, k, n) if d.isalpha())
    right, at = (f"{k}, {n}", "k0, i1") if along == "n" else (f"{n}, {k}", "i1, k0")
    return parse_kernel(TEXT.format(dims=dims, m=m, k=k, n=n, kind=kind, right=right, at=at, b=""))


def agrees(k: Kernel, sizes: Mapping[str, int], constant: bool = False) -> Kernel:
    done = schedule_kernel(k, MACHINE, frozenset({"w"}) if constant else frozenset())
    assert [s.by for s in walk(done.body) if getattr(s, "by", "")], done.schedule
    verify_kernel(done, "scheduled", machine=MACHINE)
    assert parse_kernel(print_kernel(done)) == done
    rng = np.random.default_rng(len(done.schedule))
    shapes = [tuple(d.evaluate(sizes) for d in b.shape) for b in k.inputs]
    a, w = (rng.integers(-4, 5, s).astype(b.dtype.numpy) for s, b in zip(shapes, k.inputs, strict=True))
    left, right = a.astype(np.float32), w.astype(np.float32)
    wide = left @ (right.T if k.inputs[1].shape[1] == k.inputs[0].shape[1] else right)
    given = [a, w]
    layout = done.inputs[1].layout
    if layout is not None:
        given[1] = apply_numpy(layout.spec, w)
    (got,) = OnHost(done, CHIP)(given, sizes)
    np.testing.assert_array_equal(got.astype(np.float32), wide.astype(a.dtype).astype(np.float32))
    return done


CASES: Mapping[str, tuple[tuple[str, str, str], Mapping[str, int], dict[str, str]]] = {
    "one-tile": (("128", "64", "128"), {}, {}),
    "rows-and-columns-left": (("m", "64", "n"), {"m": 77, "n": 41}, {}),
    "no-divisor": (("m", "k", "n"), {"m": 130, "k": 50, "n": 150}, {}),
    "short": (("m", "k", "n"), {"m": 9, "k": 3, "n": 7}, {}),
    "nothing-to-sum": (("m", "k", "n"), {"m": 9, "k": 0, "n": 7}, {}),
    "no-rows": (("m", "32", "48"), {"m": 0}, {}),
    "along-k": (("m", "96", "n"), {"m": 33, "n": 65}, {"along": "k"}),
    "along-k-no-divisor": (("m", "k", "n"), {"m": 33, "n": 65, "k": 71}, {"along": "k"}),
    "bf16": (("m", "48", "n"), {"m": 40, "n": 24}, {"kind": "bf16"}),
    "few-columns": (("m", "80", "24"), {"m": 300}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_it_agrees(name: str) -> None:
    (m, k, n), sizes, more = CASES[name]
    agrees(kernel(m, k, n, **more), sizes)


@pytest.mark.parametrize("rows", [1, 4, 5, 64, 65, 130])
def test_rows_of_all_heights(rows: int) -> None:
    """Of a weight in panels: by dot products, in low tiles whose groups share the reduction, in high ones."""
    done = agrees(kernel("m", "512", "72"), {"m": rows}, constant=True)
    assert done.inputs[1].layout is not None and len(done.scratch) > 0


@pytest.mark.table(3)
@pytest.mark.parametrize("chip", ["sm_80", "sm_87", "sm_90"])
@pytest.mark.parametrize("along", ["n", "k"])
def test_it_assembles_without_spills(chip: str, along: str) -> None:
    done = schedule_kernel(kernel("m", "4096", "4096", along=along), scheduled_for(chip), frozenset({"w"}))
    program = emit_program([done], cpu_for(chip))
    text = ptx(module(program), chip)
    assert "mma.sync.aligned.m16n8k16" in text and "ldmatrix" in text and "cp.async.cg" in text
    made = assemble(text, chip, "-v")
    assert made is not None
    assert {n: r.spills for n, r in resources(made[1]).items() if r.spills} == {}
    asked = [p.asked_bytes for p in program.parts.values()]
    assert max(asked) > STATIC_BYTES and max(asked) <= MACHINE.shared_bytes


IMAGE = """
kernel @image(b: dim in 0..*, h: dim in 1..*, l: dim in 1..*, x: f16[b, h, l, {c}], w: f16[{n}, 3, 3, {c}])
    -> (y: f16[b, h, l, {n}]) {{
  serial i0 in b {{ serial i1 in h {{ serial i2 in l {{ serial i3 in {n} {{
    y[i0, i1, i2, i3] = cast:f16(sum k0 in 3, k1 in 3, k2 in {c} {{
      cast:f32((x[i0, i1 + k0 - 1, i2 + k1 - 1, k2] if (0 <= i1 + k0 - 1 < h, 0 <= i2 + k1 - 1 < l)))
        * cast:f32(w[i3, k0, k1, k2])
    }})
  }} }} }} }}
}}"""
"""A convolution of 3 x 3 with a border, channels last."""


@pytest.mark.parametrize(("c", "n", "size"), [(16, 32, (1, 5, 19)), (32, 40, (2, 9, 17)), (64, 8, (1, 1, 3))])
def test_positions_of_an_image(c: int, n: int, size: tuple[int, int, int]) -> None:
    k = parse_kernel(IMAGE.format(c=c, n=n))
    done = schedule_kernel(k, MACHINE, frozenset({"w"}))
    assert any(getattr(s, "by", "") for s in walk(done.body)), done.schedule
    verify_kernel(done, "scheduled", machine=MACHINE)
    rng = np.random.default_rng(c)
    x, w = (rng.integers(-4, 5, s).astype(np.float16) for s in ((*size, c), (n, 3, 3, c)))
    dims = dict(zip("bhl", size, strict=True))
    (want,) = run_kernel(k, dims, [x, w])
    layout = done.inputs[1].layout
    (got,) = OnHost(done, CHIP)([x, w if layout is None else apply_numpy(layout.spec, w)], dims)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("k", "n"), [("8", "3"), ("24", "5"), ("16", "1"), ("3", "40"), ("40", "33")])
def test_any_size_of_a_weight_is_scheduled(k: str, n: str) -> None:
    """By instructions or without them."""
    done = schedule_kernel(kernel("m", k, n), MACHINE, frozenset({"w"}))
    verify_kernel(done, "scheduled", machine=MACHINE)
    rng = np.random.default_rng(7)
    a, w = (rng.integers(-4, 5, s).astype(np.float16) for s in ((70, int(k)), (int(k), int(n))))
    layout = done.inputs[1].layout
    (got,) = OnHost(done, CHIP)([a, w if layout is None else apply_numpy(layout.spec, w)], {"m": 70})
    np.testing.assert_array_equal(got, a @ w)


def test_every_level_is_one_of_the_machine() -> None:
    """A product over one term is no product any more: its elements are lanes of their own."""
    for machine in (MACHINE, scheduled_for("sm_53")):
        verify_kernel(schedule_kernel(kernel("128", "1", "33"), machine), "scheduled", machine=machine)
