"""The processor of this machine -> the cost of each scalar function per element, in multiply-adds.

    .venv/bin/python benchmarks/intrinsics.py

The time of sums of 2 * CALLS calls per element, minus that of CALLS calls, on a row that fits the L1 cache,
divided by the time of as many multiply-adds between registers (peak.py). Each time is the least processor
time of ROUNDS rounds.
"""

from __future__ import annotations

import time

import numpy as np
from peak import CHAINS, STEPS, peak_function

from smelt.core.dim import sym, to_dim
from smelt.core.dtype import f32
from smelt.core.ir.intrinsics import INTRINSICS
from smelt.core.ir.kernel import Buffer, Call, Const, Expr, Kernel, Load, Loop, Store
from smelt.core.machine import COSTS
from smelt.core.schedule.module import schedule_kernel
from smelt.targets.llvm.jit import jit
from smelt.targets.llvm.machines import host

N, CALLS, ROUNDS, RUNS = 2048, 8, 31, 50
BETWEEN = {"acosh": (1.5, 3.0), "log": (0.5, 2.0)}
"""Function -> the range of its arguments, where that is not 0.1 to 0.9."""


def several(fn: str, count: int) -> Kernel:
    """y[i] = fn(x[i] + a) + fn(x[i] + b) + ...: calls that do not wait for each other."""
    x: Expr = Load("x", (sym("i0"),), f32)
    total = x
    for k in range(count):
        shifted = Call("add", (x, Const(-k / 256, f32)), f32)
        operands = {1: (shifted,), 2: (Const(1.37, f32), shifted)}[INTRINSICS[fn].arity]
        total = Call("add", (total, Call(fn, operands, f32)), f32)
    body = Loop("serial", "i0", to_dim(N), (Store("y", (sym("i0"),), total),))
    x_buffer, y_buffer = (Buffer(name, f32, (to_dim(N),)) for name in "xy")
    return Kernel(f"several_{fn}", (), (x_buffer,), (y_buffer,), (body,))


def main() -> None:
    """Measure and print."""
    cpu = host()
    lanes = cpu.machine.lanes(32)
    peak, engine = peak_function(lanes)
    runs = {}
    for fn in COSTS:
        for length in (CALLS, 2 * CALLS):
            made = jit(schedule_kernel(several(fn, length), cpu.machine), cpu)
            low, high = BETWEEN.get(fn, (0.1, 0.9))
            x = np.linspace(low, high, N, dtype=np.float32)
            y = np.zeros(N, np.float32)
            runs[fn, length] = made, made.pack([x, y], {}), made.groups({}), (x, y)
    times: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    peaks: list[float] = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        peak(STEPS, 0.5)
        peaks.append(time.thread_time() - start)
        for key, (made, args, groups, _) in runs.items():
            start = time.thread_time()
            for _ in range(RUNS):
                made.launch(args, groups)
            times[key].append(time.thread_time() - start)
    del engine
    unit = min(peaks) / (STEPS * CHAINS * lanes)
    print(f"{cpu.cpu}, {cpu.machine.name}: a multiply-add of one element takes {unit * 1e9:.4f} ns")
    for fn, now in COSTS.items():
        call = (min(times[fn, 2 * CALLS]) - min(times[fn, CALLS])) / (CALLS * RUNS * N)
        print(f"{fn:8} {call / unit - 1:6.1f}   (Machine.costs: {now})")


if __name__ == "__main__":
    main()
