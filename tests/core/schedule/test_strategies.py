"""Strategies: every kind of kernel, for machines of every shape, keeps its meaning at awkward sizes, and breaks
no rule of the IR."""

# ruff: noqa: E501  (a table)

from __future__ import annotations

import numpy as np
import pytest
from kept_meaning import kept
from naive_kernels import random_inputs
from strategy_kernels import KERNELS, MACHINES, scaled

from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.interp_lanes import run_lanes
from smelt.core.ir.kernel import Kernel, Store, Tiles, walk
from smelt.core.ir.layout import apply_numpy
from smelt.core.ir.text import parse_kernel
from smelt.core.machine import Machine
from smelt.core.schedule.strategies import draft
from smelt.core.schedule.strategies.contraction import choose_shape, register_shapes


@pytest.mark.table(8)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.name)
@pytest.mark.parametrize("name", KERNELS)
def test_meaning_is_kept(name: str, machine: Machine) -> None:
    naive, envs = scaled(name, machine)[0], KERNELS[name][2]
    kernel = kept(name, machine).kernel
    if "running" in kernel.schedule:  # thousands of blocks, one after the other, say no more than a few
        envs = (min(envs, key=lambda e: sum(e.values()) if all(e.values()) else 1 << 30),)
        if name.endswith("long-rows"):
            return
    for env in envs if machine.has_lanes else ():
        in_any_order(naive, kernel, env, machine.max_lanes)


def in_any_order(naive: Kernel, scheduled: Kernel, env: dict[str, int], lanes: int) -> None:
    """Lanes that run in a drawn order between barriers give what lanes one after the other do."""
    given = random_inputs(naive, env, 0)
    packed = []
    for x, b in zip(given, scheduled.inputs, strict=True):
        x = x if b.layout is None else apply_numpy(b.layout.spec, x)
        packed.append(x.reshape(tuple(n.evaluate(env) for n in b.shape)))
    want = run_kernel(scheduled, env, packed)
    for got, x in zip(run_lanes(scheduled, env, packed, lanes), want, strict=True):
        np.testing.assert_array_equal(got, x)


# what a strategy must reach, told by a fragment of the schedule: a fallback would be right, and slow
REACHED = {
    "matmul-packed": "pack b", "matmul-dynamic": "accumulate", "scores": "stage b", "batched": "accumulate",
    "conv-3x3": "pack b", "conv-1x1": "collapse", "conv-depthwise": "unroll", "conv-grouped": "accumulate",
    "conv-transpose-2x2": "pack b", "max-pool": "accumulate", "softmax": "keep", "softmax-middle": "keep",
    "softmax-of-a-broadcast": "unclamp [i1 k1 k2]", "softmax-of-a-transpose": "keep", "add-broadcast": "unclamp [i1]",
    "layer-norm": "hoist", "layer-norm-2": "strip_reduce", "sum-2": "strip_reduce", "sum-0": "accumulate",
    "sum-012": "strip_reduce", "add": "collapse", "gather": "bind_let", "concat-last": "peel",
    "concat-turned": "unroll j.i", "append": "part i2", "scan": "bind i group",
    "transpose-2d": "split i1", "argmax-of-4": "strip i0 16 2 no", "sum-of-2x3": "strip i0_i1 16 2 no",
    "max-of-3-bytes": "strip i0 64 2 no", "transpose-one-group": "bind one group; unroll i0", "transpose": "unroll i1; strip i2_i3 16 4 no",
    "vector-matrix": "pack b", "dot": "strip_reduce", "conv-3d": "pack b", "conv-1d": "pack b",
    "frames": "widen", "softmax-matmul": "keep acc1 rows", "softmax-matmul-turned": "stage b", "norm-matmul": "pack d",
    "dots-that-share": "strip_together acc 16; unroll h", "max-of-blocks": "strip_together acc 16",
    "softmax-vector": "strip_reduce acc2", "softmax-of-one-row-each": "bind i2 vector",
    "softmax-of-few-rows": "unroll i0", "softmax-of-long-rows": "chunk i0 4 i0.c",
}  # fmt: skip


@pytest.mark.parametrize("name", REACHED)
def test_the_intended_strategy_is_taken(name: str) -> None:
    naive, constants, _ = KERNELS[name]
    assert REACHED[name] in str(draft(naive, MACHINES[0], frozenset(constants)).schedule)


@pytest.mark.parametrize("name", KERNELS)
def test_registers_fit(name: str) -> None:
    """Accumulators of a tile, in vectors, leave room for operands."""
    naive, constants, _ = KERNELS[name]
    machine = MACHINES[0]
    kernel = draft(naive, machine, frozenset(constants)).kernel
    rows = {s.rows: s.sizes[0] for s in walk(kernel.body) if isinstance(s, Tiles)}
    for s in walk(kernel.body):
        if isinstance(s, Store):
            continue
        total = 0
        for b in (x for x in s.buffers if x.space == "register"):
            elements = 1
            for n in b.shape:
                elements *= n.substitute(rows).const
            total += max(1, elements * b.dtype.bits // machine.vector_bits)
        assert total <= machine.vector_registers - 3, f"{name}: {total} registers at {s}"


def test_register_tiles_of_real_machines() -> None:
    """The widest that keeps the pipes busy: 6x64 on AVX-512, 6x16 on AVX2; of few rows all at once."""

    def best(machine: Machine, rows: int | None) -> tuple[int, int]:
        s = choose_shape(register_shapes(machine, machine.lanes(32), 1, False), 768, rows, 8)
        return s.rows, s.columns

    assert best(Machine("avx512", 512, 32), 768) == (6, 64)
    assert best(Machine("avx512", 512, 32), None) == (6, 64)
    assert best(Machine("avx2", 256, 16), 768) == (6, 16)
    assert best(Machine("avx2", 256, 16), None) == (6, 16)
    assert best(Machine("neon", 128, 32), 768) == (6, 16)
    assert best(Machine("avx512", 512, 32), 1) == (2, 128)
    # by 6 they were 4 and 3, and 3 wait for the panel; 8 are 4 and 4
    assert best(Machine("avx512", 512, 32), 7) == (12, 32)
    assert best(Machine("avx512", 512, 32), 8) == (6, 64)


def test_equal_kernels_are_scheduled_alike() -> None:
    """Same input, same schedule: names come from the kernel alone."""
    naive, constants, _ = KERNELS["conv-3x3"]
    texts = {str(draft(naive, MACHINES[0], frozenset(constants)).schedule) for _ in range(2)}
    assert len(texts) == 1


@pytest.mark.parametrize(("terms", "lanes"), [(4, 64), (40, 8)])
def test_vectors_of_a_long_expression_hold_what_it_computes_in(terms: int, lanes: int) -> None:
    """A byte from many operations on 64 bits: eight elements of 512 bits at a time, not 64 in eight vectors."""
    value = "x[i]"
    for n in range(terms):
        value = f"min({value} * {n + 2}:i64, {1000 + n}:i64)"
    nest = f"serial i in n {{ y[i] = cast:u8({value}) }}"
    text = f"kernel @k(n: dim in 0..*, x: i64[n]) -> (y: u8[n]) {{\n  {nest}\n}}\n"
    steps = str(draft(parse_kernel(text), MACHINES[0], frozenset()).schedule).split("; ")
    assert [s.split()[2] for s in steps if s.startswith("strip ")] == [str(lanes)], steps
