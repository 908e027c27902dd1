"""The processor of this machine -> its measured multiply-add peak, and a matrix product as a share of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from smelt.devicefarm.measure import median
from smelt.driver import compile
from smelt.roofline import CHAINS, peak_function
from smelt.session import load

N = 768
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
