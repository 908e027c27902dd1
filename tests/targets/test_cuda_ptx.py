"""Kernels of the op table and of models become PTX that ptxas assembles, exact and without spills."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import decoder_models as decoders
import numpy as np
import onnx
import op_cases as cases
import pytest
from naive_kernels import op_kernel
from sample_models import model_named

from smelt.compiler import lower
from smelt.core.diag import SmeltError
from smelt.core.dtype import f16, u8
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import parse_kernel
from smelt.core.schedule.module import schedule_kernel
from smelt.core.schedule.strategies import draft
from smelt.driver import Request
from smelt.targets.cuda.emit import emit_program
from smelt.targets.cuda.images import CUBIN, PTX
from smelt.targets.cuda.machine import MACHINE, cpu_for
from smelt.targets.cuda.ptx import ARCHITECTURES, Resources, assemble, module, ptx, resources
from smelt.targets.cuda.target import TARGET, architectures
from smelt.targets.cuda.wide import RESIDENT
from smelt.targets.platform import parse_target

PROVEN = ("sm_53", "sm_72", "sm_87", "sm_90")
LOWEST = cpu_for("sm_53")
# add, sub, mul and fma without a rounding may be put together by ptxas; ftz makes 0 of subnormal numbers
INEXACT = re.compile(r"\b(?:add|sub|mul|mad|fma)\.f(?:16|32|64)\b|\.ftz\b|\.approx\b|\.full\b")
WHATEVER = """
kernel @types(n: dim in 0..*, h: f16[n], b: bf16[n], f: f32[n], d: f64[n], c: i8[n], l: i64[n], m: bool[n])
    -> (y: f16[n], z: bf16[n], w: f64[n], v: i64[n], u: u8[n], t: bool[n]) {
  group i in n {
    y[i] = (h[i] * h[i]) + h[i]
    z[i] = b[i] / b[i]
    w[i] = (sqrt(d[i]) * d[i]) + (pow(d[i], cast:f64(f[i])) + mod(d[i], 3.0: f64))
    v[i] = (mod(l[i], 7: i64) * l[i]) / (l[i] - 3: i64)
    u[i] = cast:u8(f[i]) + cast:u8(tan(f[i]))
    t[i] = select(m[i], gt(f[i], 0.0: f32), eq(cast:i32(c[i]), 3: i32))
  }
}"""


def assembled(kernels: Sequence[Kernel], architecture: str, *words: str) -> dict[str, Resources]:
    """The kernels through LLVM and ptxas, which has to be there: it is in the development extra."""
    text = ptx(module(emit_program(kernels, cpu_for(architecture))), architecture)
    assert not INEXACT.search(text), INEXACT.search(text)
    made = assemble(text, architecture, *words)
    assert made is not None, "pip install nvidia-cuda-nvcc-cu12==12.6.85"
    return resources(made[1])


@cache
def first_rows() -> tuple[Kernel, ...]:
    """The first row of each op, scheduled for all architectures alike."""
    first = {r.op.name: r for r in reversed(cases.rows()) if cases.naive_kernel(r) is not None}
    kernels = [cases.naive_kernel(r) for r in first.values()]
    return tuple(schedule_kernel(k, MACHINE) for k in kernels if k is not None)


@cache
def contractions() -> tuple[Kernel, ...]:
    """Products and convolutions of the op table, as a compile schedules them."""
    names = ("matmul", "conv", "linear", "einsum", "attention", "gemm", "dot")
    rows = [r for r in cases.rows() if any(n in r.op.name for n in names)]
    kernels = [(r.name, cases.naive_kernel(r)) for r in rows]
    return tuple(schedule_kernel(k, MACHINE).with_(name=name) for name, k in kernels if k is not None)


@pytest.mark.table(4)  # each kernel for an older architecture or for a newer one
@pytest.mark.parametrize("half", range(2))
@pytest.mark.parametrize("architecture", PROVEN)
def test_op_table(architecture: str, half: int) -> None:
    """Optimised little: ptxas refuses what it refuses either way."""
    kernels = first_rows()[half::2]
    found = assembled(kernels, architecture, "-O1")
    assert len(found) == sum(len(k.body) for k in kernels) > 50


@pytest.mark.parametrize("architecture", PROVEN)
def test_every_type(architecture: str) -> None:
    (one,) = assembled([parse_kernel(WHATEVER)], architecture).values()
    assert one.registers <= 255


@pytest.mark.table(4)  # each kernel for an older architecture or for a newer one
@pytest.mark.parametrize("half", range(2))
@pytest.mark.parametrize("architecture", PROVEN)
def test_contractions_do_not_spill(architecture: str, half: int) -> None:
    """As ptxas optimises them."""
    found = assembled(contractions()[half::2], architecture)
    assert len(found) > 3
    assert {name: r.spills for name, r in found.items() if r.spills} == {}


CACHED = "a cache of 65 layers"
ALWAYS = ("magika_v3_3",)
SELDOM = (
    "silero_vad_v6.2.3", "onnx_asr_nemo128_stft", "smart_turn_v3.2_int8", "ppocrv4_rec", "ppocrv4_det",
    "nudenet_320n_yolov8", "slanet_plus_table", "resnet18_dyn", "minilm_real", "whisper_tiny_encoder",
    "smollm_genai_int4", CACHED,
)  # fmt: skip
"""Models whose kernels are assembled."""

WIDE_LOAD = re.compile(r"ld\.global\.(?:nc\.)?(?:v4\.b32|v2\.b64)")
DECODE = {
    "floats": op_kernel("matmul", [("m", 4096), (4096, 256)], ("m", 256)),
    "halves": op_kernel("matmul", [("m", 4096), (4096, 256)], ("m", 256), dtypes=[f16, f16]),
    "nibbles": op_kernel("matmul_nbits", [("m", 4096), (256, 128, 16), (256, 128), (256, 128)], ("m", 256),
                         {"bits": 4, "block": 32}, dtypes=[f16, u8, f16, u8]),
}  # fmt: skip


@pytest.mark.parametrize("name", DECODE)
def test_few_rows_read_weights_16_bytes_at_a_time(name: str) -> None:
    """All loads of a step are on their way before the first is used, and one row's step has 64 bytes of B."""
    kernel = draft(DECODE[name], MACHINE, frozenset("bcd")).kernel
    text = ptx(module(emit_program([kernel.with_(name=name)], LOWEST)), "sm_87").split(".entry")[1]
    one_row = [block for block in re.split(r"^\$L", text, flags=re.M) if WIDE_LOAD.search(block)]
    assert len(one_row) >= 4 and min(len(WIDE_LOAD.findall(block)) for block in one_row) >= 8
    for architecture in ("sm_87", "sm_90"):
        found = assembled([kernel.with_(name=name)], architecture)
        assert {n: r.spills for n, r in found.items() if r.spills} == {}


def test_a_core_holds_fewer_groups_rather_than_spill() -> None:
    """Of the kernels that would, these are two: one is to be there four times, the other says nothing."""
    product = op_kernel("matmul", [(16, "m", 512), (16, 512, 512)], (16, "m", 512))
    crowded = draft(product, MACHINE, frozenset("b")).kernel.with_(name="crowded")
    few = draft(DECODE["floats"], MACHINE, frozenset("b")).kernel.with_(name="few")
    for architecture in ("sm_72", "sm_87"):
        text = ptx(module(emit_program([crowded, few], cpu_for(architecture))), architecture)
        assert text.count(f".minnctapersm {RESIDENT}\n") == 2
        found = assembled([crowded, few], architecture)
        assert {n: r.spills for n, r in found.items() if r.spills} == {}
        assert 128 < found["k_crowded"].registers <= 168 and found["k_few"].registers <= 128


def test_the_oldest_ptx_that_has_the_architecture() -> None:
    text = module(emit_program([parse_kernel(WHATEVER)], LOWEST))
    for architecture, version in (("sm_53", "4.2"), ("sm_72", "6.1"), ("sm_87", "7.4"), ("sm_110", "9.0")):
        made = ptx(text, architecture)
        assert f".version {version}\n" in made and f".target {architecture}\n" in made


def test_only_what_is_needed_is_there() -> None:
    text = module(emit_program([parse_kernel(WHATEVER)], LOWEST))
    assert "@smelt.pow(" in text and "@smelt.tanf(" in text and "@smelt.tan(" in text
    assert "@smelt.asinh" not in text


def test_products_and_sums_stay_two_operations() -> None:
    kernel = parse_kernel("kernel @k(n: dim in 0..*, x: f32[n]) -> (y: f32[n]) { group i in n "
                          "{ y[i] = (x[i] * x[i]) + (sqrt(x[i]) / x[i]) } }")  # fmt: skip
    text = ptx(module(emit_program([kernel], LOWEST)), "sm_53")
    for word in ("mul.rn.f32", "add.rn.f32", "sqrt.rn.f32", "div.rn.f32"):
        assert text.count(word) == 1
    assert "fma" not in text


def test_images_of_the_named_architectures() -> None:
    program = emit_program([parse_kernel(WHATEVER)], LOWEST)
    rows = [(i.kind, i.architecture) for i in TARGET.images(program, 0, ())]
    assert rows == [(PTX, "sm_53")]
    rows = [(i.kind, i.architecture) for i in TARGET.images(program, 0, ("sm_72", "sm_87", "sm_110"))]
    assert rows == [(PTX, "sm_72"), (CUBIN, "sm_72"), (CUBIN, "sm_87")]  # this ptxas ends at sm_90


def test_architectures_are_checked() -> None:
    assert architectures(parse_target("x86+cuda:sm_87:sm_53")) == ("sm_53", "sm_87")
    assert set(PROVEN) <= set(ARCHITECTURES)
    with pytest.raises(SmeltError, match="there is no CUDA architecture 'sm_88'") as error:
        architectures(parse_target("x86+cuda:sm_88"))
    assert "sm_87" in (error.value.hint or "")


def test_large_programs_come_in_batches() -> None:
    one = parse_kernel(WHATEVER)
    kernels = [one.with_(name=f"types{i}") for i in range(60)]
    spec = parse_target("x86+cuda")
    code = TARGET.emit(kernels, spec)
    batches, images = np.frombuffer(code.code[8:16], "<u4")
    assert batches == images > 1 and len(code.parts) == 60
    assert code.code == TARGET.emit(kernels, spec).code


@pytest.mark.parametrize("name", [*ALWAYS, *SELDOM])
def test_kernels_of_models(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """As the compiler makes them, on each architecture; none spills. Those of the larger: --every-model."""
    if name in SELDOM and not request.config.getoption("--every-model"):
        pytest.skip("takes a minute: --every-model")
    path = tmp_path / "m.onnx"
    if name == CACHED:
        onnx.save(decoders.decoder("grouped", 65), path)
    else:
        path = model_named(name).path()
    lowered = lower(Request(source=str(path), target="x86+cuda"))
    names = dict.fromkeys(e.kernel for e in lowered.linked.rows if e.unit)
    kernels = [lowered.linked.kernels[k] for k in names]
    for architecture in PROVEN:
        found = assembled(kernels, architecture)
        assert len(found) == sum(len(k.body) for k in kernels) > 10
        assert {n: r.spills for n, r in found.items() if r.spills} == {}
