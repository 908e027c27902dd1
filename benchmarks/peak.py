"""The processor of this machine -> its measured multiply-add peak, and a matrix product as a share of it."""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from smelt.devicefarm.measure import median
from smelt.driver import compile
from smelt.session import load

N = 768
CHAINS = 12  # independent accumulators: latency 4 times 2 units is 8, and more cover uneven issue
STEPS = 2_000_000  # about as long as the product, so that a neighbour meets both alike


@dataclass(frozen=True)
class Share:
    """A matrix product's share of the peak. gflops: of the product; peak: of multiply-adds between registers,
    measured in turns with it."""

    gflops: float
    peak: float
    machine: str

    @property
    def share(self) -> float:
        """gflops / peak."""
        return self.gflops / self.peak


def fma_text(lanes: int) -> str:
    """LLVM IR of `float peak(i64 steps)`: CHAINS independent vector multiply-adds per step."""
    v = f"<{lanes} x float>"
    name = f"llvm.fma.v{lanes}f32"
    phis = "\n".join(f"  %a{i} = phi {v} [zeroinitializer, %entry], [%b{i}, %loop]" for i in range(CHAINS))
    fmas = "\n".join(f"  %b{i} = call {v} @{name}({v} %a{i}, {v} %x, {v} %y)" for i in range(CHAINS))
    sums = [f"  %s0 = fadd {v} %b0, zeroinitializer"]
    sums += [f"  %s{i} = fadd {v} %s{i - 1}, %b{i}" for i in range(1, CHAINS)]
    joined = "\n".join(sums)
    return f"""
declare {v} @{name}({v}, {v}, {v})
define float @peak(i64 %steps, float %seed) {{
entry:
  %x0 = insertelement {v} undef, float %seed, i32 0
  %x = shufflevector {v} %x0, {v} undef, <{lanes} x i32> zeroinitializer
  %y = fmul {v} %x, %x
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%k1, %loop]
{phis}
{fmas}
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %steps
  br i1 %more, label %loop, label %done
done:
{joined}
  %r = extractelement {v} %s{CHAINS - 1}, i32 0
  ret float %r
}}
"""


def peak_function(lanes: int) -> tuple[Callable[[int, float], float], object]:
    """The compiled function, and the engine that owns its code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    wide = ",-prefer-256-bit" if lanes == 16 else ""
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features + wide, opt=2
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(fma_text(lanes)), machine)
    engine.finalize_object()
    address = engine.get_function_address("peak")
    return ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_float)(address), engine


def matmul_share(rounds: int = 15) -> Share:
    """Measure both in turns, so that frequency and other load affect them alike; the medians of `rounds`."""
    features = llvm.get_host_cpu_features()
    lanes = 16 if features.get("avx512f") else 8 if features.get("fma") else 4
    function, engine = peak_function(lanes)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((N, N), np.float32)
    with tempfile.TemporaryDirectory(prefix="smelt-peak-") as folder:
        session = load(compile(_model(rng), "host", dims={"m": (1, None)}, output=f"{folder}/out"), threads=1)
        for _ in range(3):
            function(STEPS, 0.5)
            session.run(None, {"a": a})
        ratios: list[float] = []
        peaks: list[float] = []
        for _ in range(rounds):
            peak = 2.0 * lanes * CHAINS * STEPS / _nanoseconds(lambda: function(STEPS, 0.5))
            speed = 2.0 * N**3 / _nanoseconds(lambda: session.run(None, {"a": a}))
            ratios.append(speed / peak)
            peaks.append(peak)
        session.close()
    del engine
    best = median(peaks)
    return Share(median(ratios) * best, best, llvm.get_host_cpu_name())


def _model(rng: np.random.Generator) -> object:
    weight = numpy_helper.from_array(rng.standard_normal((N, N), np.float32), "b")
    a = helper.make_tensor_value_info("a", TensorProto.FLOAT, ["m", N])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", N])
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "matmul", [a], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _nanoseconds(f: Callable[[], object]) -> int:
    # of this thread's processor time: one thread runs, and a shared machine should not count
    start = time.thread_time_ns()
    f()
    return time.thread_time_ns() - start
