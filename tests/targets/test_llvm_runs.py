"""Neighbours that one load reads for several steps: in code for Arm, and the same sums when emulated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from boards import need_qemu
from emulated import Board, build, run
from naive_kernels import op_kernel
from onnx import numpy_helper, parser

from smelt.compiler import lower
from smelt.core.dim import to_dim
from smelt.core.dtype import f32
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.layout import apply_numpy
from smelt.core.schedule.strategies import draft
from smelt.request import Request
from smelt.targets.llvm.compile import assembly
from smelt.targets.llvm.emit import emit_kernel
from smelt.targets.llvm.machines import Cpu, cpu_for
from smelt.targets.registry import cpu_target

Array = np.ndarray[Any, Any]
ARM = "aarch64-unknown-linux-gnu"
A76 = cpu_for(ARM, "cortex-a76")


def product(k: int | str, n: int | str) -> Kernel:
    return op_kernel("matmul", [("m", k), (k, n)], ("m", n), dtypes=[f32, f32], out_dtype=f32)


def convolution(c: int, n: int, pad: int) -> Kernel:
    attrs = {
        "strides": (1, 1), "dilations": (1, 1), "group": 1, "channels_last": True,
        "pads_begin": (to_dim(pad),) * 2, "pads_end": (to_dim(pad),) * 2, "origin": 100,
    }  # fmt: skip
    side = 2 * pad - 2
    shapes = [("n", "h", "w", c), (3, 3, c, n), (n,)]
    return op_kernel("conv", shapes, ("n", f"h + {side}", f"w + {side}", n), attrs)


# K a multiple of a run, and one, two and three more; too short for runs; dynamic. Padding keeps out whole
# runs.
KERNELS: dict[str, tuple[Kernel, tuple[dict[str, int], ...]]] = {
    **{f"product-{k}x{n}": (product(k, n), tuple({"m": m} for m in (0, 1, 5, 13)))
       for k, n in ((64, 64), (33, 70), (34, 7), (35, 17), (7, 20), (8, 1))},
    "dynamic": (
        product("k", "n"), ({"m": 3, "k": 0, "n": 5}, {"m": 7, "k": 3, "n": 20}, {"m": 6, "k": 22, "n": 37}),
    ),
    "conv": (convolution(16, 24, 1), ({"n": 1, "h": 5, "w": 4}, {"n": 2, "h": 4, "w": 11})),
    "conv, no padding": (convolution(9, 12, 0), ({"n": 1, "h": 5, "w": 8},)),
}  # fmt: skip


def arrays(kernel: Kernel, env: dict[str, int], seed: int) -> list[Array]:
    """Whole numbers, whose sums are exact."""
    rng = np.random.default_rng(seed)
    shapes = [[d.evaluate(env) for d in b.shape] for b in kernel.inputs]
    return [rng.integers(-99, 100, s).astype(np.float32) for s in shapes]


def operands(kernel: Kernel, given: list[Array], env: dict[str, int]) -> list[Array]:
    """The inputs as a scheduled kernel takes them."""
    pairs = zip(given, kernel.inputs, strict=True)
    found = [x if b.layout is None else apply_numpy(b.layout.spec, x) for x, b in pairs]
    shapes = [[d.evaluate(env) for d in b.shape] for b in kernel.inputs]
    return [x.reshape(s) for x, s in zip(found, shapes, strict=True)]


def test_products_in_runs_under_emulation(tmp_path: Path) -> None:
    board = Board(A76, ("-target", "aarch64-linux-none"), ("qemu-aarch64-static", "-cpu", "max"))
    need_qemu(board.qemu[0])
    known = {n: frozenset() if n == "dynamic" else frozenset("bc") for n in KERNELS}
    drafts = [draft(k, A76.machine, known[n]) for n, (k, _) in KERNELS.items()]
    kernels = [d.kernel.with_(name=f"t{i}") for i, d in enumerate(drafts)]
    runs = [bool(re.search(r"split (\S+) 4 \1\.n", k.schedule)) for k in kernels]
    alone = {n for n, found in zip(KERNELS, runs, strict=True) if not found}
    assert alone == {"product-7x20", "product-8x1"}
    work, wanted = [], []
    for i, ((plain, envs), kernel) in enumerate(zip(KERNELS.values(), kernels, strict=True)):
        for seed, env in enumerate(envs):
            given = arrays(plain, env, seed)
            work.append((i, kernel, env, operands(kernel, given, env)))
            wanted += run_kernel(plain, env, given)
    found = run(board, build(board, kernels, tmp_path), work)
    for (i, _, env, _), (got,), want in zip(work, found, wanted, strict=True):
        np.testing.assert_array_equal(got, want.reshape(got.shape), err_msg=f"{list(KERNELS)[i]} {env}")


def busiest(text: str, word: str) -> str:
    """The basic block with the most of these instructions."""
    return max(re.split(r"\n(?=\.LBB)", text), key=lambda block: len(re.findall(rf"\t{word}\t", block)))


@pytest.mark.parametrize("core", ["cortex-a53", "cortex-a55", "cortex-a76", "cortex-x2"])
def test_rows_are_loaded_four_steps_at_a_time(core: str) -> None:
    """20 sums for four steps: every multiply-add takes a lane, and nothing else is loaded."""
    cpu = cpu_for(ARM, core)
    kernel = draft(product(64, 512), cpu.machine, frozenset("b")).kernel
    block = busiest(assembly(emit_kernel(kernel, cpu).module(cpu), cpu), "fmla").split("\tb.l")[0]
    assert len(re.findall(r"\tfmla\tv\d+\.4s, v\d+\.4s, v\d+\.s\[[0-3]\]", block)) == 80
    assert not re.search(r"\tld1r|\tldr\ts|\[sp", block)
    assert len(re.findall(r"\tldp?r?\t", block)) <= 5 + 16


def test_paired_loads_are_for_cores_that_have_them() -> None:
    """LLVM's table of the Cortex-A55 has 6 cycles for a pair of 128 bits."""
    def pairs(cpu: Cpu) -> int:
        kernel = draft(product(64, 512), cpu.machine, frozenset("b")).kernel
        return len(re.findall(r"\tldp\tq", assembly(emit_kernel(kernel, cpu).module(cpu), cpu)))

    assert pairs(cpu_for(ARM, "cortex-a55")) == 0 < pairs(A76)


# model -> the instructions that its products of bytes are made of at each level
QUANTISED = {
    "of two": "(uint8[40, 64] x, uint8[64, 96] v) => (int32[40, 96] y) { y = MatMulInteger (x, v) }",
    "MatMulInteger": "(uint8[m, 64] x) => (int32[m, 96] y) { y = MatMulInteger (x, w) }",
    "dequantised": """(float[m, 64] x) => (float[m, 96] y) {
        s = Constant <value = float {0.05}> ()  z = Constant <value = uint8 {128}> ()
        t = Constant <value = int8 {0}> ()  a = QuantizeLinear (x, s, z)
        b = DequantizeLinear (a, s, z)  v = DequantizeLinear (w, s, t)  y = MatMul (b, v) }""",
}
LEVELS = {
    "cortex-a72": ("smull", "[su]dot|[us]+mmla|smlal"), "cortex-a76": ("[su]dot", "smull|smlal|[us]+mmla"),
    "cortex-x2": ("us?mmla", "smull|smlal"),
}  # fmt: skip


@pytest.mark.parametrize("core", LEVELS)
@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_models_take_the_instructions_of_the_level(name: str, core: str, tmp_path: Path) -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 20]> g ' + QUANTISED[name])
    weight = np.random.default_rng(0).integers(-127, 128, (64, 96)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "model.onnx")
    lowered = lower(Request(str(tmp_path / "model.onnx"), f"arm64:{core}", output=str(tmp_path / "out")))
    text = "\n".join(cpu_target().listing(k, lowered.spec) for k in lowered.linked.kernels.values())
    taken, left = LEVELS[core]
    assert re.search(rf"\t({taken})\t", text)
    assert not re.search(rf"\t({left})\t", text)
