"""Products of bytes by the rows of each processor: scheduled, interpreted and run, equal to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from boards import need_qemu
from emulated import Board, build, run
from naive_kernels import op_kernel
from native_cpus import CPUS

from smelt.core.dim import Facts, to_dim
from smelt.core.dtype import DType, f32, i8, i16, i32, u8
from smelt.core.ir.instructions import Match, match
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Block, Kernel, Loop, Stmt
from smelt.core.ir.layout import apply_numpy
from smelt.core.ir.rewrite import map_stmts
from smelt.core.ir.text import parse_kernel, print_kernel
from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.machine import Machine
from smelt.core.schedule.schedule import apply, parse
from smelt.core.schedule.strategies import draft
from smelt.targets.llvm.jit import jit
from smelt.targets.llvm.machines import Cpu, cpu_for

Array = np.ndarray[Any, Any]


def product(k: int, n: int, left: DType = u8) -> Kernel:
    return op_kernel("matmul", [("m", k), (k, n)], ("m", n), dtypes=[left, i8], out_dtype=i32)


def convolution(c: int, n: int, k: int, pad: int, left: DType = u8) -> Kernel:
    attrs = {
        "strides": (2, 1), "dilations": (1, 1), "group": 1, "channels_last": True,
        "pads_begin": (to_dim(pad),) * 2, "pads_end": (to_dim(pad),) * 2, "origin": 100,
    }  # fmt: skip
    out = ("n", f"(h + {2 * pad - k})//2 + 1", f"w + {2 * pad - k} + 1", n)
    shapes = [("n", "h", "w", c), (k, k, c, n), (n,)]
    return op_kernel("conv", shapes, out, attrs, dtypes=[left, i8, i32], out_dtype=i32)


# One vector and several, a cut one, one column more; K below, at, above and far above a row's depth.
KERNELS = {
    **{f"product-{k}x{n}": (product, (k, n)) for k, n in ((3, 5), (8, 16), (30, 100), (129, 33), (64, 65))},
    "conv-3x3-3": (convolution, (3, 40, 3, 1)),
    "conv-3x3-19": (convolution, (19, 7, 3, 1)),
    "conv-1x1-16": (convolution, (16, 24, 1, 0)),
}
ENVS = ({"m": 1}, {"m": 2}, {"m": 7}, {"m": 13})
CONV_ENVS = ({"n": 1, "h": 5, "w": 4}, {"n": 2, "h": 6, "w": 9})


def case(name: str, left: DType = u8) -> tuple[Kernel, tuple[dict[str, int], ...]]:
    make, args = KERNELS[name]
    return make(*args, left), ENVS if make is product else CONV_ENVS  # type: ignore[operator]


def scheduled(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel for a machine, its B constant; what it says is what it means, in text as well."""
    d = draft(kernel, machine, frozenset("bc"))
    verify_kernel(d.kernel, "scheduled", machine=machine)
    assert parse_kernel(print_kernel(d.kernel)) == d.kernel
    assert apply(kernel.with_(schedule=""), parse(str(d.schedule)), machine.instructions) == d.kernel
    return d.kernel


def arrays(kernel: Kernel, env: dict[str, int], seed: int) -> list[Array]:
    """Bytes with runs of the extremes, where a sum of two products leaves 16 bits."""
    rng = np.random.default_rng(seed)
    out = []
    for b in kernel.inputs:
        low, high = b.dtype.limits if b.dtype.bits == 8 else (-1000, 1000)
        shape = [d.evaluate(env) for d in b.shape]
        if b.dtype.is_float:  # scales: of whole numbers whose sums are exact
            out.append(rng.integers(1, 3, shape).astype(b.dtype.numpy))
            continue
        x = rng.integers(low, high + 1, shape).astype(b.dtype.numpy)
        x[rng.random(x.shape) < 0.2] = high
        x[rng.random(x.shape) < 0.2] = low
        out.append(x)
    return out


def operands(kernel: Kernel, given: list[Array], env: dict[str, int]) -> list[Array]:
    """The inputs as a scheduled kernel takes them."""
    pairs = zip(given, kernel.inputs, strict=True)
    found = [x if b.layout is None else apply_numpy(b.layout.spec, x) for x, b in pairs]
    shapes = [[d.evaluate(env) for d in b.shape] for b in kernel.inputs]
    return [x.reshape(s) for x, s in zip(found, shapes, strict=True)]


def native() -> list[Cpu]:
    """The processors of CPUS, and AVX2 with VNNI where this one has it."""
    flags = llvm.get_host_cpu_features()
    more = ["+avxvnni"] if flags.get("avxvnni") else []
    return [*CPUS, *(cpu_for("x86_64-unknown-linux-gnu", "x86-64-v3", f) for f in more)]


@pytest.mark.table(3)
@pytest.mark.parametrize("cpu", native(), ids=lambda c: f"{c.cpu}{c.features[:8]}")
@pytest.mark.parametrize("name", KERNELS)
def test_products_of_bytes_on_each_level(name: str, cpu: Cpu) -> None:
    naive, envs = case(name)
    kernel = scheduled(naive, cpu.machine)
    deep = [r for r in cpu.machine.instructions if r.name.startswith(("vpdpbusd", "vpmaddwd"))]
    assert ("replace" in kernel.schedule) == bool(deep)
    code = jit(kernel, cpu)
    for seed, env in enumerate(envs):
        given = arrays(naive, env, seed)
        (want,) = run_kernel(naive, env, given)
        feeds = operands(kernel, given, env)
        for (got,) in (run_kernel(kernel, env, feeds), code(feeds, env)):
            np.testing.assert_array_equal(got.reshape(want.shape), want, err_msg=f"{env}")


@pytest.mark.table(3)
@pytest.mark.parametrize("cpu", native(), ids=lambda c: f"{c.cpu}{c.features[:8]}")
@pytest.mark.parametrize(("k", "n"), [(3, 5), (8, 16), (33, 100), (64, 65)])
def test_products_of_words_on_each_level(k: int, n: int, cpu: Cpu) -> None:
    """Of 16 bits: an odd number of terms ends in half a word. Sums wrap, as they are defined to."""
    naive = op_kernel("matmul", [("m", k), (k, n)], ("m", n), dtypes=[i16, i16], out_dtype=i32)
    kernel = scheduled(naive, cpu.machine)
    assert ("vpmaddwd.i16" in kernel.schedule) == any("i16" in r.name for r in cpu.machine.instructions)
    code = jit(kernel, cpu)
    for seed, env in enumerate(ENVS):
        rng = np.random.default_rng(seed)
        ends = [-(1 << 15), -(1 << 15) + 1, -1, 0, 1, (1 << 15) - 1]
        given = [rng.choice(ends, [d.evaluate(env) for d in b.shape]).astype(np.int16) for b in naive.inputs]
        want = (given[0].astype(np.int64) @ given[1].astype(np.int64)).astype(np.int32)
        feeds = operands(kernel, given, env)
        for (got,) in (run_kernel(kernel, env, feeds), code(feeds, env)):
            np.testing.assert_array_equal(got.reshape(want.shape), want, err_msg=f"{env}")


BOTH_GIVEN = """
kernel @t(m: dim in 0..*, a: u8[2, {rows}, {k}], b: i8[2, {b}]) -> (y: i32[2, {rows}, {n}]) {{
  serial h in 2 {{ serial i in {rows} {{ serial j in {n} {{
    y[h, i, j] = sum k in {k} {{ cast:i32(a[h, i, k]) * cast:i32(b[h, {at}]) }}
  }} }} }}
}}"""


@pytest.mark.table(3)
@pytest.mark.parametrize("cpu", native(), ids=lambda c: f"{c.cpu}{c.features[:8]}")
@pytest.mark.parametrize("along", ["rows", "columns"])
@pytest.mark.parametrize(("rows", "few"), [("m", False), ("40", False), ("9", True)])
def test_products_of_two_given_factors(along: str, rows: str, few: bool, cpu: Cpu) -> None:
    """The right one is copied in words; few rows are worth that where its terms lie in words."""
    k, n = 30, 100
    b, at = (f"{k}, {n}", "k, j") if along == "rows" else (f"{n}, {k}", "j, k")
    naive = parse_kernel(BOTH_GIVEN.format(rows=rows, k=k, n=n, b=b, at=at))
    d = draft(naive, cpu.machine)
    verify_kernel(d.kernel, "scheduled", machine=cpu.machine)
    deep = [r for r in cpu.machine.instructions if r.name.startswith(("vpdpbusd", "vpmaddwd"))]
    assert ("replace" in d.kernel.schedule) == (bool(deep) and not (few and along == "rows"))
    code = jit(d.kernel, cpu)
    for seed, env in enumerate(ENVS):
        given = arrays(naive, env, seed)
        (want,) = run_kernel(naive, env, given)
        for (got,) in (run_kernel(d.kernel, env, given), code(given, env)):
            np.testing.assert_array_equal(got, want, err_msg=f"{env}")


ARM64, ARM32 = "aarch64-unknown-linux-gnu", "armv7-unknown-linux-gnueabihf"
BOARDS = {
    ARM64: (("-target", "aarch64-linux-none"), ("qemu-aarch64-static", "-cpu", "max")),
    ARM32: (("-target", "arm-linux-none", "-mcpu=cortex_a7"), ("qemu-arm-static", "-cpu", "cortex-a7")),
}
ARM = {
    "neon": (ARM64, "", i8, "smull"),
    "neon32": (ARM32, "+neon", i8, "vmull.s8"),
    "dotprod": (ARM64, "+dotprod", i8, "sdot"),
    "i8mm": (ARM64, "+dotprod,+i8mm", u8, "usmmla"),
    "i8mm-signed": (ARM64, "+dotprod,+i8mm", i8, "smmla"),
}


@pytest.mark.table(3)
@pytest.mark.parametrize(("first", "deep"), [(0, "product-64x65"), (1, "product-129x33")])
@pytest.mark.parametrize("level", ARM)
def test_products_of_bytes_on_arm(level: str, first: int, deep: str, tmp_path: Path) -> None:
    """Every second kernel, in one program."""
    triple, features, left, row = ARM[level]
    cpu = cpu_for(triple, "generic" if triple == ARM64 else "cortex-a7", features)
    board = Board(cpu, *BOARDS[triple])
    names = list(KERNELS)[first::2]
    naive = [case(name, left) for name in names]
    kernels = [scheduled(k, cpu.machine).with_(name=f"t{i}") for i, (k, _) in enumerate(naive)]
    assert all("replace" in k.schedule for k in kernels)
    assert f" {row}" in kernels[names.index(deep)].schedule
    need_qemu(board.qemu[0])
    work, wanted = [], []
    for i, ((plain, envs), kernel) in enumerate(zip(naive, kernels, strict=True)):
        for seed, env in enumerate(envs):
            given = arrays(plain, env, seed)
            work.append((i, kernel, env, operands(kernel, given, env)))
            wanted += run_kernel(plain, env, given)
    found = run(board, build(board, kernels, tmp_path), work)
    for (i, _, env, _), (got,), want in zip(work, found, wanted, strict=True):
        np.testing.assert_array_equal(got.reshape(want.shape), want, err_msg=f"{names[i]} {env}")


def packed(bits: int, block: int, blocks: int, n: int, zeros: bool, word: int = 4) -> Kernel:
    """A product of bytes and packed weights in words."""
    rows, columns = ("m", blocks), (n, blocks)
    shapes = [("m", block * blocks), rows, rows, (*columns, block * bits // 8), columns]
    more = [columns] if zeros else []
    attrs = {"bits": bits, "block": block, "word": word}
    kinds = [i8, f32, i32, u8, f32, *([u8] if zeros else [])]
    return op_kernel("matmul_steps", [*shapes, *more], ("m", n), attrs, dtypes=kinds, out_dtype=f32)


# One word of a block, a few and more than are written out; columns as above; all widths.
PACKED = {
    "4 bits": (4, 32, 2, 33, False), "4 bits, zeros": (4, 16, 3, 100, True),
    "4 bits, one block": (4, 128, 1, 16, False), "2 bits": (2, 16, 3, 5, True),
    "8 bits": (8, 32, 2, 65, False), "8 bits, one block": (8, 16, 1, 20, True),
    "no blocks": (4, 16, 0, 7, False),
}  # fmt: skip


@pytest.mark.table(3)
@pytest.mark.parametrize("cpu", native(), ids=lambda c: f"{c.cpu}{c.features[:8]}")
@pytest.mark.parametrize("name", PACKED)
def test_products_of_packed_weights_on_each_level(name: str, cpu: Cpu) -> None:
    naive = packed(*PACKED[name])
    d = draft(naive, cpu.machine, frozenset("def"))
    verify_kernel(d.kernel, "scheduled", machine=cpu.machine)
    turned = [r for r in cpu.machine.instructions if ".i8." in r.name]
    assert ("replace" in d.kernel.schedule) == bool(turned and PACKED[name][2])
    code = jit(d.kernel, cpu)
    for seed, env in enumerate(ENVS):
        given = arrays(naive, env, seed)
        (want,) = run_kernel(naive, env, given)
        feeds = operands(d.kernel, given, env)
        for (got,) in (run_kernel(d.kernel, env, feeds), code(feeds, env)):
            np.testing.assert_array_equal(got.reshape(want.shape), want, err_msg=f"{env}")


@pytest.mark.parametrize(("row", "features", "word"), [("sdot", "+dotprod", 4), ("smull", "", 2)])
def test_products_of_packed_weights_on_arm(row: str, features: str, word: int, tmp_path: Path) -> None:
    """Fields of fewer than 8 bits are signed bytes as well, whose products have a row."""
    cpu = cpu_for(ARM64, "generic", features)
    board = Board(cpu, *BOARDS[ARM64])
    naive = {n: packed(*args, word) for n, args in PACKED.items()}
    drafts = [draft(k, cpu.machine, frozenset("def")).kernel for k in naive.values()]
    taken = [bits < 8 and blocks > 0 for bits, _, blocks, *_ in PACKED.values()]
    assert [f" {row}" in k.schedule for k in drafts] == taken
    need_qemu(board.qemu[0])
    kernels = [k.with_(name=f"t{i}") for i, k in enumerate(drafts)]
    work, wanted = [], []
    for i, (plain, kernel) in enumerate(zip(naive.values(), kernels, strict=True)):
        for seed, env in enumerate(ENVS):
            given = arrays(plain, env, seed)
            work.append((i, kernel, env, operands(kernel, given, env)))
            wanted += run_kernel(plain, env, given)
    found = run(board, build(board, kernels, tmp_path), work)
    for (i, _, env, _), (got,), want in zip(work, found, wanted, strict=True):
        np.testing.assert_array_equal(got.reshape(want.shape), want, err_msg=f"{list(PACKED)[i]} {env}")


@pytest.mark.parametrize("cpu", [c for c in CPUS if any(r.name[:3] == "vfm" for r in c.machine.instructions)])
def test_the_multiply_add_of_a_contraction_is_a_row(cpu: Cpu) -> None:
    """What the strategy makes of a product of floats means the row whose cost it asked for."""
    naive = op_kernel("matmul", [("m", 24), (24, 48)], ("m", 48))
    d = draft(naive, cpu.machine, frozenset("b"))
    row = cpu.machine.instructions[0]

    def by_row(s: Stmt) -> Stmt:
        rows = isinstance(s, Loop) and s.var == "i0.i" and isinstance(match((s,), row, Facts()), Match)
        return Block((s,), by=row.name) if rows else s

    marked = d.kernel.with_(body=map_stmts(d.kernel.body, by_row))
    assert marked != d.kernel
    verify_kernel(marked, "scheduled", machine=cpu.machine)
    rng = np.random.default_rng(0)
    given = [rng.normal(size=s).astype(np.float32) for s in ((7, 24), (24, 48))]
    feeds = operands(d.kernel, given, {"m": 7})
    want, got = (jit(k, cpu)(feeds, {"m": 7}) for k in (d.kernel, marked))
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(run_kernel(marked, {"m": 7}, feeds)[0], want[0], rtol=1e-5, atol=1e-5)
