"""Kernels scheduled for lanes that run in step keep their meaning in any order of lanes, on machines of two
widths, and fit the memory of a group."""

from __future__ import annotations

import importlib
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from device_trees import IN_STEP, in_step
from naive_kernels import Shape, check, op_kernel, random_inputs
from strategy_kernels import KERNELS

from smelt.core.dtype import f16
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.interp_lanes import run_lanes
from smelt.core.ir.kernel import Kernel, Loop, walk
from smelt.core.ir.layout import apply_numpy
from smelt.core.ir.rewrite import local_buffers
from smelt.core.ir.text import print_kernel
from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.machine import Machine
from smelt.core.schedule.strategies import draft, lane_tiles
from smelt.core.schedule.strategies.lane_tiles import Tile, choose_tile
from smelt.core.schedule.tree import ScheduleError

LEVELS = ("group", "lane", "vector")
NARROW = Machine("narrow", 0, 64, levels=LEVELS, max_lanes=16, shared_bytes=16 << 10, subgroup=8)
WIDE = Machine("wide", 0, 255, levels=LEVELS, max_lanes=128, shared_bytes=48 << 10, subgroup=32,
               lane_bytes=16)  # fmt: skip


def meaning_is_kept(name: str, machine: Machine) -> tuple[Kernel, Sequence[dict[str, int]]]:
    """A kernel as it is scheduled and its sizes, of which each gives what the naive kernel does."""
    naive, _, _, _ = IN_STEP[name]
    kernel, envs = in_step(name, machine)
    verify_kernel(kernel, "scheduled", machine=machine)
    halves = any(b.dtype.bits == 16 for b in naive.outputs)
    for env in envs:
        check(naive, kernel, env, rtol=2e-3 if halves else 1e-4)
    return kernel, envs


@pytest.mark.table(2)
@pytest.mark.parametrize("name", IN_STEP)
def test_meaning_is_kept_by_many_lanes(name: str) -> None:
    """In one order, since so many take minutes in any; a narrow machine has the other kernels, too."""
    meaning_is_kept(name, WIDE)


@pytest.mark.parametrize("name", IN_STEP)
def test_meaning_is_kept_in_any_order_of_lanes(name: str) -> None:
    kernel, envs = meaning_is_kept(name, NARROW)
    env = min(envs, key=lambda e: sum(e.values()) if any(e.values()) else 1 << 30)
    given = []
    for x, b in zip(random_inputs(IN_STEP[name][0], env, 0), kernel.inputs, strict=True):
        x = x if b.layout is None else apply_numpy(b.layout.spec, x)
        given.append(x.reshape(tuple(n.evaluate(env) for n in b.shape)))
    want = run_kernel(kernel, env, given)
    for got, x in zip(run_lanes(kernel, env, given, NARROW.max_lanes), want, strict=True):
        np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("machine", [NARROW, WIDE], ids=lambda m: m.name)
@pytest.mark.parametrize(("a", "b", "out"), [
    ((0, 40), (40, 20), (0, 20)), ((3, 0), (0, 20), (3, 20)), (("m", 0), (0, 20), ("m", 20)),
    ((0, 2, 2048), (0, 2048, 8), (0, 2, 8)), ((9, 40), (40, 0), (9, 0)), ((1, 4096), (4096, 8), (1, 8)),
])  # fmt: skip
def test_extents_that_are_0(a: Shape, b: Shape, out: Shape, machine: Machine) -> None:
    """Known when compiling; the last has none, and is long enough to be shared by groups."""
    naive = op_kernel("matmul", [a, b], out)
    kernel = draft(naive, machine, frozenset("b")).kernel
    verify_kernel(kernel, "scheduled", machine=machine)
    check(naive, kernel, {"m": 5} if naive.dims else {}, rtol=1e-3)


@pytest.mark.parametrize("name", [n for n, (_, _, step, _) in IN_STEP.items() if step == "fetch"])
def test_lanes_that_are_tasks_of_their_own_copy_nothing(name: str) -> None:
    """On a processor shared memory is no nearer than the cache."""
    with pytest.raises(AssertionError):
        in_step(name, replace(NARROW, vector_bits=512, subgroup=1))


Drafted = tuple[dict[str, Kernel], dict[str, list[str]]]


@pytest.fixture(scope="module")
def drafted() -> Drafted:
    """Every kernel as it is scheduled for a narrow machine, and which `tiled` takes or why it does not."""
    seen: dict[str, list[str]] = {}
    products = importlib.import_module("smelt.core.schedule.strategies.lane_products")

    def watched(*args: object) -> None:
        try:
            lane_tiles.tiled(*args)  # type: ignore[arg-type]
        except ScheduleError as e:
            seen.setdefault(f"declines: {e}", []).append(name)
            raise
        seen.setdefault("takes", []).append(name)

    done = {}
    table = [(n, k, c) for n, (k, c, _) in KERNELS.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "tiled", watched)
        for name, kernel, constants in [*table, *((n, k, c) for n, (k, c, *_) in IN_STEP.items())]:
            done[name] = draft(kernel, NARROW, frozenset(constants)).kernel
    return done, seen


def test_golden_of_tiles(golden: Callable[[str, str], None], drafted: Drafted) -> None:
    """Which products of many rows are tiled, which are not and why, and what becomes of two."""
    done, seen = drafted
    lines = [f"tiles of products, on a machine of {NARROW.subgroup} lanes in step"]
    for why in sorted(seen):
        names = ", ".join(dict.fromkeys(seen[why]))
        lines += ["", why, textwrap.fill(names, 100, initial_indent="  ", subsequent_indent="  ",
                                         break_on_hyphens=False)]  # fmt: skip
    for name in ("tiles", "convolution"):
        lines += ["", f"makes of {name}", print_kernel(done[name]).rstrip().replace("; ", ";\n        ")]
    golden("schedules/lane_tiles.txt", "\n".join(lines) + "\n")


def test_golden_of_copies(golden: Callable[[str, str], None], drafted: Drafted) -> None:
    """Which elementwise kernels go through shared memory, which do not, and what becomes of three."""
    done, _ = drafted
    plain = {n: k for n, k in done.items() if "reduce" not in k.schedule and "accumulate" not in k.schedule}
    lines = [f"elementwise, on a machine of {NARROW.subgroup} lanes in step"]
    for what, shared in (("through shared memory", True), ("in place", False)):
        names = ", ".join(n for n, k in plain.items() if ("fetch" in k.schedule) is shared)
        lines += ["", what, textwrap.fill(names, 100, initial_indent="  ", subsequent_indent="  ",
                                          break_on_hyphens=False)]  # fmt: skip
    for name in ("transpose-2d", "wide", "add-row"):
        lines += ["", f"makes of {name}", print_kernel(done[name]).rstrip().replace("; ", ";\n        ")]
    golden("schedules/lane_copies.txt", "\n".join(lines) + "\n")


def test_golden_of_runs(golden: Callable[[str, str], None]) -> None:
    """What becomes of products of few rows where a lane reads several neighbours at once."""
    lines = [f"few rows, on a machine of {NARROW.subgroup} lanes in step that read 16 bytes at once"]
    for name in ("runs-of-halves", "runs-of-nibbles", "runs-of-bytes", "neighbours-in-place"):
        kernel, _ = in_step(name, replace(NARROW, lane_bytes=16))
        text = print_kernel(kernel.with_(body=kernel.body[:1])).rstrip().replace("; ", ";\n        ")
        lines += ["", f"makes of {name}", text]
    golden("schedules/lane_runs.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("room", [16 << 10, 4 << 10])
def test_blocks_of_halves_that_are_floats_in_shared_memory(room: int) -> None:
    """What a group shares fits, also where an element takes more than in memory."""
    machine = replace(NARROW, held_bytes=4, shared_bytes=room)
    kernel = draft(KERNELS["attention-f16"][0], machine).kernel
    (blocks,) = [s for s in kernel.body if any(x.var == "k1.m.o" for x in walk((s,)) if isinstance(x, Loop))]
    shared = [b for b in local_buffers((blocks,)) if b.space == "shared"]
    assert 4 * sum(math.prod(n.const for n in b.shape) for b in shared) <= room


@pytest.mark.parametrize(("room", "times"), [(20 << 10, 2), (16 << 10, 1)])
def test_tiles_are_there_twice_where_there_is_room_for_what_they_hold(room: int, times: int) -> None:
    """Of halves that are floats in shared memory, 10 KiB: twice in 20, and once in 16."""
    product = op_kernel("matmul", [("m", 512), (512, 256)], ("m", 256), dtypes=[f16, f16])
    machine = replace(WIDE, held_bytes=4, shared_bytes=room)
    kernel = draft(product, machine).kernel
    verify_kernel(kernel, "scheduled", machine=machine)
    tiles = [b for b in local_buffers(kernel.body) if b.name in ("a.tile", "b.tile")]
    assert sum(math.prod(n.const for n in b.shape) for b in tiles) * 4 == times * 10 << 10


def test_tiles_of_real_limits() -> None:
    """Taller than wide, of a quarter of a lane's registers; no taller than the rows."""
    cuda, vulkan = WIDE, replace(NARROW, max_lanes=64, subgroup=32)
    assert choose_tile(cuda, 32, None, None) == Tile(4, 32, 8, 4)
    assert choose_tile(vulkan, 32, None, None) == Tile(2, 32, 8, 2)
    assert choose_tile(cuda, 32, 16, 40) == Tile(4, 32, 4, 2)
    assert choose_tile(cuda, 20, None, 20) == Tile(4, 20, 8, 1)
