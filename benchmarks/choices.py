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
from dataclasses import dataclass, replace
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
from smelt.core.dtype import Array
from smelt.core.passes.cleanup import fold
from smelt.core.passes.lowering import fusion_rules, half
from smelt.core.passes.quantized import blocks
from smelt.core.passes.whole_graph import phases, winograd
from smelt.core.schedule import view
from smelt.request import Request
from smelt.targets.llvm import machines
from smelt.targets.llvm.machines import host

STRATEGIES = "smelt.core.schedule.strategies"
contraction, elementwise, fitting, reduction = (
    import_module(f"{STRATEGIES}.{name}") for name in ("contraction", "elementwise", "fitting", "reduction")
)
ROUNDS, SAMPLE = 41, 2e-3
HEAD = '<ir_version: 8, opset_import: ["" : 21]> m '


@dataclass(frozen=True)
class Model:
    """A model. text: in ONNX's text syntax; inputs that begin with w are weights. sizes: values of its
    symbols. fp16: whether it is compiled with that option."""

    text: str
    sizes: Mapping[str, int]
    fp16: bool = False


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


def product(n: int, k: int, m: int, b: str = "w", rows: str = "N", of: str = "float") -> Model:
    """[n, k] * [k, m], B a weight or (b="b") given at run time."""
    text = f"({of}[{rows},{k}] x, {of}[{k},{m}] {b}) => ({of}[{rows},{m}] y) {{ y = MatMul(x, {b}) }}"
    return Model(text, {"N": n})


def turned(n: int, k: int, m: int) -> Model:
    """[n, k] * [m, k] turned, both given at run time, in each of 3 heads."""
    text = f"(float[3,{n},{k}] x, float[3,N,{k}] b) => (float[3,{n},N] y)"
    return Model(f"{text} {{ t = Transpose<perm = [0, 2, 1]>(b) y = MatMul(x, t) }}", {"N": m})


def unary(op: str, n: int) -> Model:
    """One op on n elements."""
    return Model(f"(float[N] x) => (float[N] y) {{ y = {op}(x) }}", {"N": n})


def convolution(c: int, size: int, m: int, k: int, group: int = 1, width: int = 0) -> Model:
    """k x k taps on c channels of size x (width or size)."""
    width = width or size
    shape = f"float[N,{c},{size},{width}] x, float[{m},{c // group},{k},{k}] w"
    pads = ", ".join([str(k // 2)] * 4)
    y = f"float[N,{m},{size},{width}] y"
    return Model(f"({shape}) => ({y}) {{ y = Conv<group = {group}, pads = [{pads}]>(x, w) }}", {"N": 1})


def inner_convolution(c: int, size: int, known: bool = True) -> Model:
    """3 x 3 taps on c channels, which come last before and after it as they do within a model."""
    shape = f"float[N,{size if known else 'H'},{size},{c}]"
    turned = "p = Transpose<perm = [0, 3, 1, 2]>(x) q = Conv<pads = [1, 1, 1, 1]>(p, w)"
    head = f"({shape} x, float[{c},{c},3,3] w) => ({shape} y)"
    return Model(f"{head} {{ {turned} y = Transpose<perm = [0, 2, 3, 1]>(q) }}", {"N": 1, "H": size})


def upward(c: int, size: int, m: int) -> Model:
    """A transposed convolution of 4 x 4 taps and stride 2."""
    text = f"(float[N,{c},{size},{size}] x, float[{c},{m},4,4] w) => (float[N,{m},{2 * size},{2 * size}] y)"
    made = "ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w)"
    return Model(f"{text} {{ y = {made} }}", {"N": 1})


def in_blocks(k: int, m: int, block: int) -> Model:
    """A row times [k, m] of bytes with a scale for each block."""
    text = f"(float[N,{k}] x, int8[{k},{m}] w, float[{k // block},{m}] ws) => (float[N,{m}] y)"
    made = f"DequantizeLinear<axis = 0, block_size = {block}>(w, ws) y = MatMul(x, d)"
    return Model(f"{text} {{ d = {made} }}", {"N": 1})


def mean(n: int, m: int, of: str = "Abs") -> Model:
    """Means of a function of n rows of m."""
    text = f"(float[N,{n},{m}] x) => (float[N,1,{m}] y) <int64[1] a = {{1}}>"
    return Model(f"{text} {{ e = {of}(x) y = ReduceMean(e, a) }}", {"N": 8})


def spread(n: int) -> Model:
    """A constant of n equal elements, added to rows."""
    text = f"(float[N,{n}] x, float[1] w) => (float[N,{n}] y) <int64[1] a = {{{n}}}>"
    return Model(f"{text} {{ e = Expand(w, a) y = Add(x, e) }}", {"N": 64})


def rows(op: str, length: int, n: int, count: str = "N") -> Model:
    """An op along rows of a constant length."""
    return Model(f"(float[{count},{length}] x) => (float[{count},{length}] y) {{ y = {op}(x) }}", {"N": n})


def attention(heads: int, n: int) -> Model:
    """Scores of n x n in each head: softmax, times 64 columns."""
    text = f"(float[{heads},N,N] s, float[{heads},N,64] v) => (float[{heads},N,64] y)"
    return Model(f"{text} {{ p = {SOFTMAX}(s) y = MatMul(p, v) }}", {"N": n})


def normed(n: int, k: int, m: int) -> Model:
    """Rows of k, normalised, times [k, m]."""
    text = f"(float[{n},{k}] x, float[{k}] ws, float[{k}] wb, float[{k},{m}] w) => (float[{n},{m}] y)"
    return Model(f"{text} {{ p = LayerNormalization<axis = -1>(x, ws, wb) y = MatMul(p, w) }}", {"N": n})


SOFTMAX = "Softmax<axis = -1>"
BY_COLUMN = "(float[N,M,256] x) => (float[N,1,256] y) <int64[1] a = {1}> { y = ReduceMean(x, a) }"
STORED = (
    "(float[N,256] x, float[N,256] z) => (float[N,256] y, float[N,256] v)"
    "{ a = Add(x, z) s = Mul(a, x) b = Mul(s, z) y = Relu(b) v = Neg(b) }"
)
NORMED = (
    "(float[N,256] x) => (float[N,256] y)"
    "{ e = Abs(x) f = Add(e, x) g = Mul(f, x) h = Mul(g, e) y = Softmax<axis = -1>(h) }"
)
DIVIDED = "(float[N,256] x, float[N,256] z) => (float[N,256] y) { h = Div(x, z) y = Softmax<axis = -1>(h) }"
SCALED = (
    "(float[1,K] x) => (float[1,K] y) <int64[1] a = {1}>"
    "{ b = Abs(x) m = ReduceMax(b, a) q = Div(x, m) s = ReduceSum(q, a) y = Mul(q, s) }"
)
PARTS = "(" + ", ".join(f"float[N,64] x{k}" for k in range(24)) + ") => (float[N,1536] y) "
PARTS += "{ y = Concat<axis = 1>(" + ", ".join(f"x{k}" for k in range(24)) + ") }"
SUMS = "(" + ", ".join(f"float[N] x{k}" for k in range(30)) + ") => (float[N] y) { y = Sum("
SUMS += ", ".join(f"x{k}" for k in range(30)) + ") }"
DEPTHWISE = tuple(convolution(64, 56, 64, k, 64) for k in (3, 5, 7))
FEW = tuple(product(n, 512, 2048, "b", f"{n}") for n in (6, 12, 24, 64))
BYTES = Model(
    "(float[N,512] x, int8[512,512] w, float ws) => (float[N,512] y)"
    "{ d = DequantizeLinear(w, ws) y = MatMul(x, d) }",
    {"N": 64},
)
ROW_PRODUCTS = (attention(12, 512), attention(96, 128), normed(4096, 384, 64), normed(4096, 384, 384))
CHOICES = (
    Choice("MAX_ROWS", (contraction,), (4, 8, 12, 24), (product(512, 256, 8), product(512, 256, 16))),
    Choice("POINTER_ROWS", (contraction,), (4, 12), (
        convolution(32, 28, 32, 3), convolution(128, 14, 64, 3))),
    Choice("BUSY", (fitting,), (1, 16), tuple(
        product(n, 512, m, rows=f"{n}", of="double")
        for n, m in ((1, 24), (2, 24), (2, 40), (4, 8), (64, 256)))),
    Choice("LEAST_ROWS", (view,), (1, 16), tuple(convolution(32, 64, 32, 3, width=n) for n in (2, 8))),
    Choice("SUPPLY", (contraction,), (1, 2, 8), (product(384, 384, 384), product(128, 1536, 384))),
    Choice("SECOND_NEST", (contraction,), (0.0, 1.0), (product(256, 256, 72), product(256, 256, 100))),
    Choice("FEW_ROWS", (contraction,), (8, 16, 128), FEW),
    Choice("DOT_ROWS", (contraction,), (1, 2, 6, 8), tuple(turned(n, 64, 512) for n in (2, 3, 4, 6, 8))),
    Choice("MANY_ROWS", (contraction,), (1, 1 << 20), tuple(
        product(n, 256, 256, "b", f"{n}") for n in (48, 256))),
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
    Choice("KEPT_VECTORS", (reduction,), (2, 4, 16), (
        mean(64, 1024), mean(512, 128), mean(49, 512), mean(4, 4096), mean(200, 72), mean(64, 1024, "Exp"))),
    Choice("BLOCK_TERMS", (reduction,), (16, 256, 1 << 30), (
        mean(512, 128), mean(512, 256), mean(4096, 1024), mean(512, 256, "Exp"),
        *(Model(BY_COLUMN, {"N": n, "M": m}) for n, m in ((1, 512), (8, 512), (1, 20_000), (8, 5))))),
    Choice("TILED_VECTORS", (reduction,), (1, 4), DEPTHWISE),
    Choice("WIDE_WINDOW", (reduction,), (0, 25, 49), tuple(
        convolution(64, 60, 64, k, 64) for k in (3, 5, 7))),
    Choice("MOST_TILE", (reduction,), (2, 4, 16), DEPTHWISE),
    Choice("WIDE_TILE", (reduction,), (2, 3, 6, 8), DEPTHWISE),
    Choice("UNROLL_TAPS", (reduction,), (0, 9, 25), DEPTHWISE),
    Choice("OF_FOUR", (winograd,), (1, 1 << 30), tuple(inner_convolution(c, s) for c, s in (
        (16, 160), (32, 160), (288, 14)))),
    Choice("OF_SIX", (winograd,), (1, 1 << 30), tuple(inner_convolution(c, s) for c, s in (
        (16, 80), (32, 160), (64, 56), (64, 160)))),
    Choice("MOST_TRANSFORMED_WEIGHT", (winograd,), (0, 1 << 30), tuple(
        inner_convolution(c, s, known=False) for c, s in ((128, 28), (256, 28), (512, 7)))),
    Choice("OF_WEIGHT_BYTE", (winograd,), (0, 10), tuple(inner_convolution(c, s) for c, s in (
        (128, 14), (256, 14), (256, 28), (512, 7), (512, 28)))),
    Choice("MOST_TILE_ELEMENTS", (winograd,), (16, 216), (inner_convolution(64, 56),)),
    Choice("AHEAD_OF_STORES", (machines,), (0, 4096), (unary("Relu", 3000), unary("Relu", 5_000_000))),
    Choice("AHEAD", (machines,), (0, 1024, 16384), (
        *(product(n, 2048, 2048) for n in (1, 4, 16, 128)), product(64, 256, 256),
        convolution(64, 56, 64, 3))),
    Choice("BLOCK_ROWS", (machine,), (12, 24, 96), ROW_PRODUCTS),
    # whether it is one kernel or two
    Choice("NARROW", (fusion_rules,), (0,), (attention(12, 512),)),
    Choice("BLOCKS", (fusion_rules,), (0, 1 << 20), (
        attention(96, 128), normed(96, 384, 64), normed(4096, 384, 64))),
    Choice("WIDE_BLOCKS", (fusion_rules,), (0, 1 << 20), tuple(normed(n, 384, 384) for n in (512, 4096))),
    Choice("LONG_ROW", (fusion_rules,), (0, 1 << 20), tuple(
        Model(SCALED.replace("K", str(k)), {"N": 1}) for k in (2048, 65536))),
    Choice("FEW_CHANNELS", (phases,), (0, 1 << 20), tuple(upward(32, 40, m) for m in (3, 8, 12, 16, 24, 32))),
    Choice("LEAST_BLOCK", (blocks,), (1, 64), tuple(in_blocks(1024, 1024, b) for b in (4, 8, 16, 32))),
    Choice("GROWTH", (fold,), (1, 64), (BYTES, spread(65536))),
    Choice("SMALL_CONSTANT", (fold,), (0, 1 << 20), (spread(1000), spread(65536))),
    Choice("SMALL_WEIGHT", (half,), (0, 1 << 20), tuple(
        replace(product(64, n, n), fp16=True) for n in (48, 512))),
    Choice("HEAVY", (machine,), (8, 1 << 20), (
        rows(SOFTMAX, 512, 500), unary("Sqrt", 4000), unary("Tanh", 4000))),
    Choice("CHEAP", (fusion_rules,), (0, 2, 16), (Model(NORMED, {"N": 1000}), Model(DIVIDED, {"N": 1000}))),
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
        m.graph.initializer.append(numpy_helper.from_array(drawn(rng, v, shape), v.name))
    return m


def drawn(rng: np.random.Generator, v: onnx.ValueInfoProto, shape: list[int]) -> Array:
    """Normal numbers of a value's type, in eighths where they are integers."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
    return (rng.normal(size=shape) * (8 if dtype.kind == "i" else 1)).astype(dtype)


def feed(m: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Random inputs."""
    rng = np.random.default_rng(1)
    shapes = {
        v.name: [d.dim_value or sizes[d.dim_param] for d in v.type.tensor_type.shape.dim]
        for v in m.graph.input
    }
    return {v.name: drawn(rng, v, shapes[v.name]) for v in m.graph.input}


def compiled(choice: Choice, value: float, source: Path, folder: Path, fp16: bool) -> smelt.Bundle:
    """The model compiled with that value of the threshold."""
    kind = type(getattr(choice.modules[0], choice.name))
    with ExitStack() as stack:
        for module in choice.modules:
            stack.enter_context(patch.object(module, choice.name, kind(value)))
        return compile_here(Request(str(source), output=str(folder), runner=False, threads=1, fp16=fp16))


def contents(bundle: smelt.Bundle) -> dict[str, str]:
    """Name -> hash of a bundle's library and weights, to compare two of them."""
    return dict(bundle.manifest["files"])


def compare(choice: Choice, model: Model, folder: Path) -> str:
    """A line of the table: the ratios of the choice's values on one model."""
    m = made(model)
    source = folder / "m.onnx"
    onnx.save(m, str(source))
    given = feed(m, model.sizes)
    values = (choice.used, *choice.values)
    bundles = [compiled(choice, v, source, folder / f"{k}", model.fp16) for k, v in enumerate(values)]
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
    same = [contents(b) == contents(bundles[0]) for b in bundles]
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
