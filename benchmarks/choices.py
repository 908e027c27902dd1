"""The thresholds of strategies and fusion -> the run times with other values of them on this machine.

    .venv/bin/python benchmarks/choices.py [NAME ...]

Each threshold is listed with small models whose schedule it decides. Every model is compiled once per value;
all run in turns in this process on one thread; the medians of their processor time are printed as ratios to
the value in use: above 1 the other value is slower. "same" is a value that makes the same kernels.
"""

from __future__ import annotations

import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
from onnx import numpy_helper

import smelt
from smelt.compiler import compile_here
from smelt.core import machine
from smelt.core.passes.lowering import fusion_rules
from smelt.driver import Request
from smelt.targets.llvm.machines import host

STRATEGIES = "smelt.core.schedule.strategies"
contraction, elementwise, reduction = (
    import_module(f"{STRATEGIES}.{name}") for name in ("contraction", "elementwise", "reduction")
)
ROUNDS, SAMPLE = 41, 2e-3
HEAD = '<ir_version: 8, opset_import: ["" : 17]> m '


@dataclass(frozen=True)
class Model:
    """A model. text: in ONNX's text syntax; inputs that begin with w are weights. sizes: values of its
    symbols."""

    text: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Choice:
    """A threshold: its name, the modules that define it, the values to try, the models that it affects."""

    name: str
    modules: Sequence[ModuleType]
    values: Sequence[float]
    models: Sequence[Model]

    @property
    def used(self) -> float:
        """The value in use."""
        return float(getattr(self.modules[0], self.name))


def product(n: int, k: int, m: int, b: str = "w", rows: str = "N") -> Model:
    """[n, k] * [k, m], B a weight or (b="b") given at run time."""
    text = f"(float[{rows},{k}] x, float[{k},{m}] {b}) => (float[{rows},{m}] y) {{ y = MatMul(x, {b}) }}"
    return Model(text, {"N": n})


def unary(op: str, n: int) -> Model:
    """One op on n elements."""
    return Model(f"(float[N] x) => (float[N] y) {{ y = {op}(x) }}", {"N": n})


def convolution(c: int, size: int, m: int, k: int, group: int = 1) -> Model:
    """k x k taps on c channels of size x size."""
    shape = f"float[N,{c},{size},{size}] x, float[{m},{c // group},{k},{k}] w"
    pads = ", ".join([str(k // 2)] * 4)
    y = f"float[N,{m},{size},{size}] y"
    return Model(f"({shape}) => ({y}) {{ y = Conv<group = {group}, pads = [{pads}]>(x, w) }}", {"N": 1})


def rows(op: str, length: int, n: int) -> Model:
    """An op along rows of a constant length."""
    return Model(f"(float[N,{length}] x) => (float[N,{length}] y) {{ y = {op}(x) }}", {"N": n})


def attention(heads: int, n: int) -> Model:
    """Scores of n x n in each head: softmax, times 64 columns."""
    text = f"(float[{heads},N,N] s, float[{heads},N,64] v) => (float[{heads},N,64] y)"
    return Model(f"{text} {{ p = {SOFTMAX}(s) y = MatMul(p, v) }}", {"N": n})


def normed(n: int, k: int, m: int) -> Model:
    """Rows of k, normalised, times [k, m]."""
    text = f"(float[{n},{k}] x, float[{k}] ws, float[{k}] wb, float[{k},{m}] w) => (float[{n},{m}] y)"
    return Model(f"{text} {{ p = LayerNormalization<axis = -1>(x, ws, wb) y = MatMul(p, w) }}", {"N": n})


SOFTMAX = "Softmax<axis = -1>"
STORED = (
    "(float[N,256] x, float[N,256] z) => (float[N,256] y, float[N,256] v)"
    "{ a = Add(x, z) s = Mul(a, x) b = Mul(s, z) y = Relu(b) v = Neg(b) }"
)
NORMED = (
    "(float[N,256] x) => (float[N,256] y)"
    "{ e = Abs(x) f = Add(e, x) g = Mul(f, x) h = Mul(g, e) y = Softmax<axis = -1>(h) }"
)
PARTS = "(" + ", ".join(f"float[N,64] x{k}" for k in range(24)) + ") => (float[N,1536] y) "
PARTS += "{ y = Concat<axis = 1>(" + ", ".join(f"x{k}" for k in range(24)) + ") }"
SUMS = "(" + ", ".join(f"float[N] x{k}" for k in range(30)) + ") => (float[N] y) { y = Sum("
SUMS += ", ".join(f"x{k}" for k in range(30)) + ") }"
DEPTHWISE = tuple(convolution(64, 56, 64, k, 64) for k in (3, 5, 7))
FEW = tuple(product(n, 512, 2048, "b", f"{n}") for n in (6, 12, 24, 64))
ROW_PRODUCTS = (attention(12, 512), attention(96, 128), normed(4096, 384, 64), normed(4096, 384, 384))
CHOICES = (
    Choice("MAX_ROWS", (contraction,), (4, 8, 12, 24), (product(512, 256, 8), product(512, 256, 16))),
    Choice("SUPPLY", (contraction,), (1, 2, 8), (product(384, 384, 384), product(128, 1536, 384))),
    Choice("SPILLED", (contraction,), (1.0, 2.0), (product(256, 8192, 64), product(256, 4096, 96))),
    Choice("SECOND_NEST", (contraction,), (0.0, 1.0), (product(256, 256, 72), product(256, 256, 100))),
    Choice("FEW_ROWS", (contraction,), (8, 16, 128), FEW),
    Choice("MANY_ROWS", (contraction,), (1, 1 << 20), (product(512, 384, 384, rows="512"),)),
    Choice("FAR", (contraction,), (1024, 8192), tuple(
        product(48, 512, m, "b", "48") for m in (512, 1024))),
    Choice("FAR_MANY", (contraction,), (256, 4096), tuple(
        product(256, 256, m, "b", "256") for m in (128, 256, 512))),
    Choice("SHORT_AXIS", (contraction,), (0, 8), (convolution(3, 64, 32, 3), convolution(8, 64, 32, 3))),
    Choice("CHUNK_BYTES", (elementwise,), (2048, 4096, 65536), (unary("Relu", 100_000), unary("Abs", 3000))),
    Choice("HEAVY_CHUNK_BYTES", (elementwise,), (1024, 16384), (unary("Exp", 100_000), unary("Erf", 3000))),
    Choice("MAX_PARTS", (elementwise,), (1, 8, 16, 64), (Model(PARTS, {"N": 200}),)),
    Choice("IN_FLIGHT", (reduction, elementwise), (1, 2, 8), (unary("Relu", 4000), rows(SOFTMAX, 1024, 64))),
    Choice("HEAVY_IN_FLIGHT", (reduction, elementwise), (1, 4), (unary("Tanh", 4000), unary("Exp", 4000))),
    Choice("SHORT_ROW", (reduction,), (0, 128, 2048), (rows(SOFTMAX, 64, 4000), rows(SOFTMAX, 512, 500))),
    Choice("GROUP_ELEMENTS", (reduction,), (256, 16384), (rows(SOFTMAX, 16, 8000), rows(SOFTMAX, 128, 999))),
    Choice("MOST_TILE", (reduction,), (2, 4, 16), DEPTHWISE),
    Choice("WIDE_TILE", (reduction,), (2, 3, 6, 8), DEPTHWISE),
    Choice("UNROLL_TAPS", (reduction,), (0, 9, 25), DEPTHWISE),
    Choice("BLOCK_ROWS", (machine,), (12, 24, 96), ROW_PRODUCTS),
    # whether it is one kernel or two
    Choice("NARROW", (fusion_rules,), (0,), (attention(12, 512),)),
    Choice("BLOCKS", (fusion_rules,), (0, 1 << 20), (
        attention(96, 128), normed(96, 384, 64), normed(4096, 384, 64))),
    Choice("WIDE_BLOCKS", (fusion_rules,), (0, 1 << 20), tuple(normed(n, 384, 384) for n in (512, 4096))),
    Choice("CHEAP", (fusion_rules,), (0, 2, 16), (Model(NORMED, {"N": 1000}),)),
    Choice("RECOMPUTE", (fusion_rules,), (0, 1, 8), (Model(STORED, {"N": 1000}),)),
    Choice("MAX_INPUTS", (fusion_rules,), (8, 64), (Model(SUMS, {"N": 50_000}),)),
)  # fmt: skip


def made(model: Model) -> onnx.ModelProto:
    """The model with weights in the place of inputs that begin with w."""
    m = onnx.parser.parse_model(HEAD + model.text)
    rng = np.random.default_rng(0)
    for v in [v for v in m.graph.input if v.name.startswith("w")]:
        m.graph.input.remove(v)
        shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
        m.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), v.name))
    return m


def feed(m: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Random inputs."""
    rng = np.random.default_rng(1)
    dims = {v.name: v.type.tensor_type.shape.dim for v in m.graph.input}
    shapes = {name: [d.dim_value or sizes[d.dim_param] for d in found] for name, found in dims.items()}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def compiled(choice: Choice, value: float, source: Path, folder: Path) -> smelt.Bundle:
    """The model compiled with that value of the threshold."""
    kind = type(getattr(choice.modules[0], choice.name))
    with ExitStack() as stack:
        for module in choice.modules:
            stack.enter_context(patch.object(module, choice.name, kind(value)))
        return compile_here(Request(str(source), output=str(folder), runner=False, threads=1))


def kernels(bundle: smelt.Bundle) -> str:
    """The kernels and schedules of a bundle as text, to compare two of them."""
    return str([row["schedule"] for row in bundle.manifest["kernels"]])


def compare(choice: Choice, model: Model, folder: Path) -> str:
    """A line of the table: the ratios of the choice's values on one model."""
    m = made(model)
    source = folder / "m.onnx"
    onnx.save(m, str(source))
    given = feed(m, model.sizes)
    values = (choice.used, *choice.values)
    bundles = [compiled(choice, v, source, folder / f"{k}") for k, v in enumerate(values)]
    sessions = [smelt.load(b, threads=1) for b in bundles]
    start = time.thread_time()
    sessions[0].run(None, given)
    inner = max(1, int(SAMPLE / max(time.thread_time() - start, 1e-6)))
    taken: list[list[float]] = [[] for _ in values]
    for turn in range(ROUNDS):
        for k in range(len(values)) if turn % 2 else reversed(range(len(values))):
            start = time.thread_time()
            for _ in range(inner):
                sessions[k].run(None, given)
            taken[k].append(time.thread_time() - start)
    medians = [statistics.median(t) for t in taken]
    same = [kernels(b) == kernels(bundles[0]) for b in bundles]
    cells = ["same" if same[k] else f"{medians[k] / medians[0]:.2f}" for k in range(1, len(values))]
    return " ".join(f"{v:g}: {cell}," for v, cell in zip(choice.values, cells, strict=True))[:-1]


def main() -> None:
    """Print a table of the numbers named on the command line, or of all."""
    cpu = host()
    print(f"{platform.processor() or platform.machine()}, {cpu.cpu}, {cpu.machine.name}\n")
    print("| number | in use | model | other values, and their time over that of the one in use |")
    print("|---|---|---|---|")
    for choice in CHOICES:
        if sys.argv[1:] and choice.name not in sys.argv[1:]:
            continue
        for model in choice.models:
            with tempfile.TemporaryDirectory(prefix="choices-") as folder:
                line = compare(choice, model, Path(folder))
            text = model.text if len(model.text) < 90 else model.text[:60] + " ... " + model.text[-24:]
            print(f"| {choice.name} | {choice.used:g} | `{text}` N={model.sizes['N']} | {line} |", flush=True)


if __name__ == "__main__":
    main()
