"""What a processor can do at most -> the least time that a kernel's work takes; this machine -> its peaks.

Peaks are measured, or stated by whoever knows the device. A peak is of float32 multiply-adds between
registers and of copies that no cache holds, on as many threads as the model has.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smelt.core.bundle import spelled_dim
from smelt.core.lazily import Lazily
from smelt.devicefarm.probe import LaunchTrace

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")
llvm: Any = Lazily("llvmlite.binding")

CHAINS = 12
"""Independent accumulators: latency 4 times 2 units is 8, and more cover uneven issue."""
PEAK_STEPS, PEAK_ROUNDS = 1_000_000, 5
PEAK_COPIED = 32 << 20
"""Bytes that each thread copies at a time, far more than its share of any cache."""
_STATED = re.compile(r"(\d{1,9}(?:\.\d{1,6})?),(\d{1,9}(?:\.\d{1,6})?)")


@dataclass(frozen=True, slots=True)
class Peaks:
    """flops: float32 operations per second; bytes: read and written per second; source: how it is known."""

    flops: float
    bytes: float
    source: str


@dataclass(frozen=True, slots=True)
class Least:
    """The least times of a kernel's launches in a run: for its arithmetic, and for its bytes where no cache
    has them. ns: of each launch the longer one."""

    ns: float
    arithmetic: float
    memory: float


def stated_peaks(text: str) -> Peaks:
    """'GFLOPS,GBPS' of a device's processor, as its maker or a measurement says. Raises ValueError."""
    found = _STATED.fullmatch(text)
    if found is None or not float(found[1]) or not float(found[2]):
        raise ValueError("wanted are two numbers above 0 with a comma between them: GFLOP/s,GB/s")
    return Peaks(float(found[1]) * 1e9, float(found[2]) * 1e9, f"stated with --peak {text}")


def measured_peaks(threads: int) -> Peaks:
    """Those of this machine's processor on so many threads, the best of a few rounds."""
    features = llvm.get_host_cpu_features()
    lanes = 16 if features.get("avx512f") else 8 if features.get("fma") else 4
    function, engine = peak_function(lanes)
    size = PEAK_COPIED // 4
    arrays = [(np.ones(size, np.float32), np.zeros(size, np.float32)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:

        def best(work: Callable[[int], object]) -> float:
            return min(_seconds(lambda: [*pool.map(work, range(threads))]) for _ in range(PEAK_ROUNDS))

        arithmetic = best(lambda n: function(PEAK_STEPS, 0.5))
        copies = best(lambda n: np.copyto(arrays[n][1], arrays[n][0]))
    del engine
    source = (
        f"measured on this machine before the kernels, on {threads} thread{'s' if threads > 1 else ''}: "
        f"multiply-adds between registers, and copies of {PEAK_COPIED >> 20} MiB each"
    )
    return Peaks(
        2.0 * lanes * CHAINS * PEAK_STEPS * threads / arithmetic, 2.0 * PEAK_COPIED * threads / copies, source
    )


def _seconds(f: Callable[[], object]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def least_times(manifest: Mapping[str, Any], trace: LaunchTrace, peaks: Peaks) -> dict[str, Least]:
    """Kernel -> the least time of all its launches in a run. Without those whose work is not known, that are
    mostly about integers, or that run on another unit than the CPU: the peaks are not theirs."""
    if trace.cut:
        return {}
    rows = {k["name"]: k for k in manifest["kernels"] if "work" in k and k.get("unit", "cpu") == "cpu"}
    probes = manifest["probes"]
    formulas = {n: {f: spelled_dim(text, {}) for f, text in k["work"].items()} for n, k in rows.items()}
    cases = {k["name"]: k["hot"] for k in manifest["kernels"] if "hot" in k}
    found: dict[str, dict[str, float]] = {}
    skipped: set[str] = set()
    for one in trace.launches:
        name = probes["sites"][one.site]["callee"] if one.site < len(probes["sites"]) else ""
        if name not in rows or name not in probes["callees"]:
            continue
        dims = dict(zip(probes["callees"][name]["dims"], one.dims, strict=False))
        if not _runs(name, dims, cases):
            continue
        try:
            work = {f: float(d.evaluate(dims)) for f, d in formulas[name].items()}
        except (KeyError, ValueError, ArithmeticError):  # a manifest that smelt did not write
            skipped.add(name)
            continue
        if work["integers"] > work["flops"] and work["integers"] > work["bytes"]:
            skipped.add(name)
        # each statement of a kernel is a launch, and the work is that of all of them
        part = 1e9 / max(rows[name]["statements"], 1)
        sums = found.setdefault(name, {"arithmetic": 0.0, "memory": 0.0, "least": 0.0})
        needed = {"arithmetic": work["flops"] / peaks.flops, "memory": work["bytes"] / peaks.bytes}
        for limit, seconds in needed.items():
            sums[limit] += seconds * part
        sums["least"] += max(needed.values()) * part
    return {
        name: Least(s["least"], s["arithmetic"], s["memory"])
        for name, s in found.items()
        if name not in skipped
    }


def _runs(name: str, dims: Mapping[str, int], cases: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a launch of the kernel at these sizes has any groups: where there are others for some sizes,
    the first that fits has all. cases: the manifest's fields 'hot' by kernel."""
    of = cases[name]["of"] if name in cases else name
    fits = (n for n, c in cases.items() if c["of"] == of and c["dims"].items() <= dims.items())
    return next(fits, of) == name


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
