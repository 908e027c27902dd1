"""Kernels of every kind with numbers in the place of some of their sizes, 0 and 1 among them, as static
models and hot sizes have them, scheduled for a machine -> what the naive kernel computes."""

from __future__ import annotations

import random
import sys
import traceback

from campaign import Outcome, main
from naive_kernels import check, random_inputs
from strategy_kernels import KERNELS, MACHINES

from smelt.core.diag import SmeltError
from smelt.core.ir.hot import admits, pinned
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.text import print_kernel
from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.schedule.strategies import draft
from smelt.targets.llvm.machines import machine_for

REAL = tuple(
    machine_for(f"{arch}-unknown-linux-gnu", cpu)
    for arch, cpu in (
        ("x86_64", "x86-64-v2"), ("x86_64", "x86-64-v3"), ("x86_64", "sapphirerapids"),
        ("aarch64", "cortex-a76"),
    )
)  # fmt: skip
NUMBERS = (0, 1, 1, 1, 2, 3, 5, 16, 17)
SIZES = (0, 1, 2, 3, 5, 7)
NAMES = tuple(name for name in KERNELS if "long" not in name)
"""Rows of 20,000 elements take the interpreter a while."""


def attack(seed: int) -> Outcome:
    """One kernel on one machine, at one set of sizes."""
    rng = random.Random(seed)
    name, machine = rng.choice(NAMES), rng.choice((*MACHINES, *REAL))
    naive, constants, _ = KERNELS[name]
    fits = {p.name: [n for n in NUMBERS if admits(p, n)] for p in naive.dims}
    values = {d: rng.choice(own) for d, own in fits.items() if own and rng.random() < 0.7}
    env = {
        p.name: values.get(p.name, rng.choice([n for n in SIZES if admits(p, n)] or [p.low]))
        for p in naive.dims
    }
    at = pinned(naive, values)
    text = f"seed {seed}: {name} on {machine.name}, pinned {values}, at {env}\n"
    try:
        run_kernel(at, env, random_inputs(at, env, 0))
    except (SmeltError, ValueError):
        return Outcome("no such sizes")  # a window does not fit
    try:
        done = draft(at, machine, frozenset(constants))
        text += f"{done.schedule}\n{print_kernel(done.kernel)}\n"
        verify_kernel(done.kernel, "scheduled", machine=machine)
        check(at, done.kernel, env, rtol=2e-3 if "f16" in name else 2e-5)
    except Exception:
        return Outcome(f"fails: {name}", True, text + traceback.format_exc())
    return Outcome("agrees")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 3000))
