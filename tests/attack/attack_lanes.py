"""Products of matrices of any sizes and types, some of which only a run knows, scheduled for CUDA chips with
and without matrix instructions, and their code run on this machine -> NumPy's sums, which are exact."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from campaign import Outcome, main
from cuda_run import OnHost

from smelt.core.diag import SmeltError
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.layout import apply_numpy
from smelt.core.ir.text import parse_kernel, print_kernel
from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.schedule.module import schedule_kernel
from smelt.targets.cuda.machine import scheduled_for

EXTENTS = (
    0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 72, 96, 100, 128, 130, 200,
)  # fmt: skip
CHIPS = ("sm_53", "sm_80", "sm_90")
KINDS = ("f16", "bf16", "f32")
MOST_PRODUCTS = 1_200_000
"""Multiply-adds of a case: threads take turns here."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Case:
    """A kernel, its operands, the sizes that a run knows, and what to make of it. turned: the right operand
    lies along the reduction. constant: it is a weight."""

    kernel: Kernel
    a: Array
    w: Array
    dims: dict[str, int]
    turned: bool
    constant: bool
    chip: str


def _case(seed: int) -> _Case:
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    kind, chip = rng.choice(KINDS), rng.choice(CHIPS)
    sizes = {"m": rng.choice(EXTENTS), "k": rng.choice(EXTENTS), "n": rng.choice(EXTENTS)}
    if sizes["m"] * sizes["k"] * sizes["n"] > MOST_PRODUCTS:
        sizes["m"] = min(sizes["m"], 40)
    batch = rng.choice((None, None, 1, 2, 3))
    if batch is not None:
        sizes["b"] = batch
    dims = {name: n for name, n in sizes.items() if rng.random() < 0.5}
    said = {name: name if name in dims else str(n) for name, n in sizes.items()}
    turned, every = rng.random() < 0.4, rng.random() < 0.5
    lead = [] if batch is None else ["b"]
    shapes = {"a": [*lead, "m", "k"], "w": [*(lead if every else []), *("nk" if turned else "kn")]}
    at = {"b": "i9", "m": "i0", "k": "k0", "n": "i1"}

    def typed(name: str) -> str:
        return f"{name}: {kind}[{', '.join(said[x] for x in shapes[name])}]"

    def load(name: str) -> str:
        index = ", ".join(at[x] for x in shapes[name])
        return f"{name}[{index}]" if kind == "f32" else f"cast:f32({name}[{index}])"

    out = [*lead, "m", "n"]
    total = f"sum k0 in {said['k']} {{ {load('a')} * {load('w')} }}"
    body = f"y[{', '.join(at[x] for x in out)}] = " + (total if kind == "f32" else f"cast:{kind}({total})")
    for x in reversed(out):
        body = f"serial {at[x]} in {said[x]} {{ {body} }}"
    head = ", ".join([*(f"{name}: dim in 0..*" for name in dims), typed("a"), typed("w")])
    result = f"y: {kind}[{', '.join(said[x] for x in out)}]"
    kernel = parse_kernel(f"kernel @product({head}) -> ({result}) {{ {body} }}")
    a, w = (draw.integers(-3, 4, [sizes[x] for x in shapes[name]]).astype(b.dtype.numpy)
            for name, b in zip("aw", kernel.inputs, strict=True))  # fmt: skip
    return _Case(kernel, a, w, dims, turned, rng.random() < 0.5, chip)


def attack(seed: int) -> Outcome:
    """One product on one chip."""
    c = _case(seed)
    text = f"{c.chip}, {'weight' if c.constant else 'two inputs'}, {c.dims}:\n{print_kernel(c.kernel)}"
    machine = scheduled_for(c.chip)
    try:
        done = schedule_kernel(c.kernel, machine, frozenset({"w"} if c.constant else ()))
        verify_kernel(done, "scheduled", machine=machine)
        layout = done.inputs[1].layout
        given = [c.a, c.w if layout is None else apply_numpy(layout.spec, c.w)]
        (got,) = OnHost(done, c.chip)(given, c.dims)
    except (SmeltError, AssertionError) as e:
        return Outcome(f"no code: {type(e).__name__}", True, f"{text}\n{e}")
    right = c.w.astype(np.float32)
    want = (c.a.astype(np.float32) @ (np.swapaxes(right, -1, -2) if c.turned else right)).astype(c.a.dtype)
    if not np.array_equal(got.reshape(want.shape).astype(np.float32), want.astype(np.float32)):
        return Outcome("disagrees", True, text)
    return Outcome("agrees by " + ("an instruction" if "block by" in print_kernel(done) else "lanes"))


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 500))
