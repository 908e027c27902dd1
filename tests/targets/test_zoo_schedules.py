"""Golden texts of the schedules that kernels as models have them get on the machines of the targets."""

# ruff: noqa: E501  (a table)

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator

from rule_forms import build

from smelt.core.passes.context import Context
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.schedule import schedule_module
from smelt.targets.llvm.machines import machine_for
from smelt.targets.opencl.machine import MACHINE as OPENCL

MACHINES = {
    "avx512": machine_for("x86_64-unknown-linux-gnu", "x86-64-v4"),
    "avx2": machine_for("x86_64-unknown-linux-gnu", "x86-64-v3"),
    "neon": machine_for("aarch64-unknown-linux-gnu", "generic"),
    "neon with dotprod": machine_for("aarch64-unknown-linux-gnu", "cortex-a76"),
    "neon with i8mm": machine_for("aarch64-unknown-linux-gnu", "cortex-x2"),
    "opencl": OPENCL,
}
# name -> a program in the notation of tests/support/rule_forms.py; images have their channels last
ZOO = {
    "matmul-of-rows": "x: f32[M, 512]; w: f32[512, 768] = draw; b: f32[768] = draw; relu(add(matmul(x, w), b))",
    "vector-times-matrix": "x: f32[1, 512]; w: f32[512, 1000] = draw; matmul(x, w)",
    "matrix-times-vector": "x: f32[M, 512]; y: f32[512, 1]; matmul(x, y)",
    "attention-scores": "q: f32[N, 8, M, 64]; k: f32[N, 8, K, 64]; matmul(q, transpose(k, perm=(0, 1, 3, 2)))",
    "conv-3x3": "x: f32[N, H, K, 64]; w: f32[3, 3, 64, 96] = draw; b: f32[96] = draw; "
                "relu(conv(x, w, b, channels_last=True, pads_begin=(1, 1), pads_end=(1, 1)))",
    "conv-3x3-of-an-image": "x: f32[1, 224, 224, 3]; w: f32[3, 3, 3, 32] = draw; "
                            "conv(x, w, channels_last=True, strides=(2, 2), pads_begin=(1, 1), pads_end=(0, 0))",
    "conv-1x1": "x: f32[N, H, K, 64]; w: f32[1, 1, 64, 128] = draw; conv(x, w, channels_last=True)",
    "depthwise-3x3": "x: f32[N, H, K, 96]; w: f32[3, 3, 1, 96] = draw; "
                     "conv(x, w, group=96, channels_last=True, pads_begin=(1, 1), pads_end=(1, 1))",
    "max-pool": "x: f32[N, H, K, 64]; max_pool(x, kernel=(3, 3), strides=(2, 2), channels_last=True)",
    "softmax": "x: f32[N, M]; softmax(x, axis=1)",
    "softmax-times-values": "x: f32[N, 8, M, K]; v: f32[N, 8, K, 64]; matmul(softmax(x, axis=3), v)",
    "layer-norm": "x: f32[N, M, 768]; s: f32[768] = draw; b: f32[768] = draw; layer_norm(x, s, b, axis=2, epsilon=1e-5)",
    "mean-of-columns": "x: f32[N, 256]; reduce_mean(x, axes=(0,), keepdims=False)",
    "transpose-of-heads": "x: f32[N, M, 8, 64]; transpose(x, perm=(0, 2, 1, 3))",
    "transpose-of-rows": "x: f32[M, N]; transpose(x, perm=(1, 0))",
    "sum-of-broadcasts": "x: f32[N, 1, H, 1, K]; y: f32[1, M, 1, 4, K]; add(x, y)",
    "gelu": "x: f32[N, M, 3072]; gelu(x, approximate=\"none\")",
    "embedding": "x: f32[1000, 256]; i: i64[N, M]; gather(x, i, axis=0)",
    "concat-of-channels": "x: f32[N, H, K, 24]; y: f32[N, H, K, 40]; concat(x, y, axis=3)",
    "matmul-of-bytes": "x: u8[M, 256]; z: u8[] = 100; w: i8[256, 64] = draw; t: u8[] = 3; "
                       "quantize(matmul(dequantize(x, 0.05, z, axis=-1), dequantize(w, 0.02, axis=-1)), 0.1, t, axis=-1, to=u8)",
    "conv-of-bytes": "x: u8[N, 32, H, K]; z: u8[] = 100; w: i8[48, 32, 3, 3] = draw; t: u8[] = 3; "
                     "quantize(conv(dequantize(x, 0.05, z, axis=-1), dequantize(w, 0.02, axis=-1), pads_begin=(1, 1), pads_end=(1, 1)), 0.1, t, axis=-1, to=u8)",
}  # fmt: skip


def schedules(name: str, machine: str) -> tuple[str, ...]:
    """The steps of each kernel of a program, in lines of whole steps."""
    module = build(ast.parse(ZOO[name].replace("[]", "[()]")))
    lowered = run_pipeline(module, PIPELINE, Context(MACHINES[machine]))
    done = schedule_module(lowered, MACHINES[machine]).kernels.values()
    return tuple(f"  {k.name}\n{_filled(k.schedule)}" for k in done)


def _filled(schedule: str) -> str:
    glued = schedule.replace(" ", "\0").replace(";\0", "; ")
    lines = textwrap.wrap(glued, 100, break_on_hyphens=False, break_long_words=False)
    return textwrap.indent("\n".join(lines).replace("\0", " "), "    ")


def written() -> Iterator[str]:
    """A paragraph for each program: the machines, those of equal kernels together, and the kernels' steps."""
    for name in ZOO:
        alike: dict[tuple[str, ...], list[str]] = {}
        for machine in MACHINES:
            alike.setdefault(schedules(name, machine), []).append(machine)
        for steps, machines in alike.items():
            yield f"{name} on {', '.join(machines)}"
            yield from steps
        yield ""


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("schedules/zoo.txt", "\n".join(written()))
