"""Single operators at sizes that no model has -> latency over ONNX Runtime's, and the share of the limit.

usage: kernels.py [--only TEXT] [--seconds 1.5]. One thread, in turns, dynamic dims where a row's text has
names, compiled once for all its sizes. The limit is the longer of the kernels' arithmetic at this processor's
measured peak and of their bytes at its copy rate (`smelt bench --html`); what fits a cache may exceed it.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from smelt.bench import against
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.devicefarm.measure import ONCE, geomean, median
from smelt.driver import compile
from smelt.roofline import Peaks, least_times, measured_peaks
from smelt.running import running
from smelt.shapes import RunCase, bind, case

_HEAD = '<ir_version: 8, opset_import: ["" : 20]> g '


@dataclass(frozen=True)
class Sweep:
    """An operator's model in ONNX's text form, with weights (name -> shape) and the sizes it is run at."""

    name: str
    text: str
    sizes: tuple[dict[str, int], ...]
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ()
    range: tuple[float, float] = (-1.0, 1.0)


def _conv(name: str, x: str, w: tuple[int, ...], sizes: tuple[dict[str, int], ...], more: str = "") -> Sweep:
    rank = len(w) - 2
    y = ", ".join("abcdef"[: rank + 2])
    pads = ", ".join(str(k // 2) for k in 2 * w[2:])
    attributes = ", ".join(filter(None, [f"pads = [{pads}]", more]))
    return Sweep(
        name, f"(float[{x}] x) => (float[{y}] y) {{ y = Conv <{attributes}> (x, w) }}", sizes, (("w", w),)
    )


_ROWS = tuple({"m": m} for m in (1, 2, 3, 4, 5, 8, 13, 17, 64, 200))
_PICTURES = ({"n": 1, "h": 56, "w": 56}, {"n": 2, "h": 27, "w": 31})
SWEEPS = (
    Sweep("matmul 255x511", "(float[m, 255] x) => (float[m, 511] y) { y = MatMul (x, w) }", _ROWS,
          (("w", (255, 511)),)),
    Sweep("matmul 1024x1024", "(float[m, 1024] x) => (float[m, 1024] y) { y = MatMul (x, w) }", _ROWS,
          (("w", (1024, 1024)),)),
    Sweep("matmul of two", "(float[b, m, k] x, float[b, k, n] z) => (float[b, m, n] y) { y = MatMul (x, z) }",
          ({"b": 12, "m": 1, "k": 64, "n": 200}, {"b": 12, "m": 77, "k": 64, "n": 77},
           {"b": 3, "m": 255, "k": 129, "n": 63})),
    _conv("conv 3x3", "n, 64, h, w", (64, 64, 3, 3), _PICTURES),
    _conv("conv 1x1", "n, 64, h, w", (96, 64, 1, 1), _PICTURES),
    _conv("conv 5x5 grouped, 24", "n, 24, h, w", (24, 6, 5, 5), _PICTURES, "group = 4"),
    _conv("conv 3x3 depthwise", "n, 72, h, w", (72, 1, 3, 3), _PICTURES, "group = 72"),
    _conv("conv 3x3 dilated", "n, 32, h, w", (32, 32, 3, 3), _PICTURES, "dilations = [2, 2]"),
    _conv("conv 7x7 stem", "n, 3, h, w", (32, 3, 7, 7), _PICTURES, "strides = [2, 2]"),
    _conv("conv 3x3x3", "n, 16, d, h, w", (16, 16, 3, 3, 3), ({"n": 1, "d": 9, "h": 28, "w": 28},)),
    _conv("conv 1-D of 9", "n, 40, w", (80, 40, 9), ({"n": 1, "w": 999}, {"n": 3, "w": 100})),
    Sweep("transposed conv", "(float[n, 32, h, w] x) => (float[n, 16, a, b] y) {"
          " y = ConvTranspose <strides = [2, 2]> (x, w) }", _PICTURES, (("w", (32, 16, 3, 3)),)),
    Sweep("max pool 3-D", "(float[n, 16, d, h, w] x) => (float[n, 16, a, b, c] y) {"
          " y = MaxPool <kernel_shape = [3, 3, 3], strides = [2, 2, 2]> (x) }",
          ({"n": 1, "d": 17, "h": 40, "w": 40},)),
    Sweep("max pool of 2", "(float[n, 64, h, w] x) => (float[n, 64, a, b] y) {"
          " y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }", _PICTURES),
    Sweep("max pool of 3", "(float[n, 64, h, w] x) => (float[n, 64, a, b] y) {"
          " y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x) }", _PICTURES),
    Sweep("average pool", "(float[n, 64, h, w] x) => (float[n, 64, a, b] y) {"
          " y = AveragePool <kernel_shape = [3, 3], strides = [1, 1], pads = [1, 1, 1, 1]> (x) }", _PICTURES),
    Sweep("softmax, last axis", "(float[n, m] x) => (float[n, m] y) { y = Softmax <axis = -1> (x) }",
          ({"n": 1, "m": 50257}, {"n": 600, "m": 77}, {"n": 12, "m": 1500})),
    Sweep("softmax, axis 1 of 5", "(float[n, c, d, h, w] x) => (float[n, c, d, h, w] y) {"
          " y = Softmax <axis = 1> (x) }", ({"n": 2, "c": 21, "d": 3, "h": 33, "w": 30},)),
    Sweep("layer norm", "(float[n, 384] x) => (float[n, 384] y) { y = LayerNormalization (x, w) }",
          ({"n": 1}, {"n": 200}), (("w", (384,)),)),
    Sweep("sum, middle axis", "(float[n, m, k] x) => (float[n, k] y) {"
          " a = Constant <value = int64[1] {1}> ()  y = ReduceSum <keepdims = 0> (x, a) }",
          ({"n": 7, "m": 300, "k": 65}, {"n": 1, "m": 4000, "k": 16})),
    Sweep("sum of all", "(float[n, m] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }",
          ({"n": 1000, "m": 1000},)),
    Sweep("gelu", "(float[n, m] x) => (float[n, m] y) { y = Gelu (x) }", ({"n": 100, "m": 1000},)),
    Sweep("broadcast of rank 5", "(float[a, 1, c, 1, e] x, float[1, b, c, d, 1] z)"
          " => (float[a, b, c, d, e] y) { y = Mul (x, z) }", ({"a": 3, "b": 5, "c": 7, "d": 30, "e": 40},)),
    Sweep("transpose 0213", "(float[b, s, 12, 64] x) => (float[b, 12, s, 64] y) {"
          " y = Transpose <perm = [0, 2, 1, 3]> (x) }", ({"b": 1, "s": 300},)),
    Sweep("transpose of planes", "(float[n, m] x) => (float[m, n] y) { y = Transpose <perm = [1, 0]> (x) }",
          ({"n": 700, "m": 900},)),
    Sweep("top 5 of 1000", "(float[n, 1000] x) => (float[n, 5] y, int64[n, 5] i) {"
          " k = Constant <value = int64[1] {5}> ()  y, i = TopK (x, k) }", ({"n": 1}, {"n": 200})),
    Sweep("top 1000 of 50000", "(float[n, 50000] x) => (float[n, 1000] y, int64[n, 1000] i) {"
          " k = Constant <value = int64[1] {1000}> ()  y, i = TopK (x, k) }", ({"n": 2},)),
    Sweep("top 100 of 8400", "(float[n, 8400] x) => (float[n, 100] y, int64[n, 100] i) {"
          " k = Constant <value = int64[1] {100}> ()  y, i = TopK (x, k) }", ({"n": 1},)),
    Sweep("sort", "(float[n, 1000] x) => (float[n, 1000] y, int64[n, 1000] i) {"
          " k = Constant <value = int64[1] {1000}> ()  y, i = TopK (x, k) }", ({"n": 1}, {"n": 50})),
    Sweep("running sum of rows", "(float[n, m] x) => (float[n, m] y) {"
          " a = Constant <value = int64 {0}> ()  y = CumSum (x, a) }",
          ({"n": 200, "m": 1000}, {"n": 4000, "m": 64})),
    Sweep("scatter of rows", "(float[n, 64] x, int64[m, 1] i, float[m, 64] u) => (float[n, 64] y) {"
          " y = ScatterND <reduction = \"add\"> (x, i, u) }", ({"n": 1000, "m": 3000},), range=(0, 999)),
    Sweep("cumulative sum", "(float[n, m] x) => (float[n, m] y) {"
          " a = Constant <value = int64 {1}> ()  y = CumSum (x, a) }", ({"n": 200, "m": 1000},)),
    Sweep("resize, linear", "(float[n, 16, h, w] x) => (float[n, 16, a, b] y) {"
          " s = Constant <value = float[4] {1, 1, 2, 2}> ()  y = Resize <mode = \"linear\"> (x, , s) }",
          ({"n": 1, "h": 48, "w": 64},)),
    Sweep("grid sample", "(float[n, 16, h, w] x, float[n, 40, 50, 2] z) => (float[n, 16, 40, 50] y) {"
          " y = GridSample (x, z) }", ({"n": 1, "h": 48, "w": 64},)),
    Sweep("gather of rows", "(float[n, 256] x, int64[m] i) => (float[m, 256] y) { y = Gather (x, i) }",
          ({"n": 1000, "m": 3000},), range=(0, 999)),
    Sweep("DFT of 400", "(float[n, 400, 1] x) => (float[n, 201, 2] y) {"
          " y = DFT <onesided = 1> (x) }", ({"n": 100},)),
    Sweep("DFT of 1031", "(float[n, 1031, 1] x) => (float[n, 1031, 2] y) { y = DFT (x) }", ({"n": 20},)),
    Sweep("LSTM of 128", "(float[t, n, 64] x) => (float[t, 1, n, 128] y) {"
          " y = LSTM <hidden_size = 128> (x, w, r) }", ({"t": 50, "n": 1}, {"t": 20, "n": 8}),
          (("w", (1, 512, 64)), ("r", (1, 512, 128)))),
    Sweep("where and compare", "(float[n, m] x, float[m] z) => (float[n, m] y) {"
          " c = Greater (x, z)  y = Where (c, x, z) }", ({"n": 300, "m": 1000},)),
    Sweep("arg max", "(float[n, m] x) => (int64[n] y) { y = ArgMax <axis = 1, keepdims = 0> (x) }",
          ({"n": 1, "m": 50257}, {"n": 500, "m": 80})),
    Sweep("concat and slice", "(float[n, 64, h, w] x, float[n, 32, h, w] z) => (float[n, 90, h, w] y) {"
          " c = Concat <axis = 1> (x, z)  s = Constant <value = int64[1] {3}> ()"
          " e = Constant <value = int64[1] {93}> ()  a = Constant <value = int64[1] {1}> ()"
          " y = Slice (c, s, e, a) }", _PICTURES),
)  # fmt: skip


def model(sweep: Sweep) -> onnx.ModelProto:
    """The model, with random weights."""
    made = parser.parse_model(_HEAD + sweep.text)
    rng = np.random.default_rng(0)
    for name, shape in sweep.weights:
        values = rng.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]))
        made.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return made


def _share(bundle: Bundle, cases: list[RunCase], peaks: Peaks, times: list[float]) -> list[float]:
    """Of each case, the least time of its kernels over the time it took."""
    found = []
    with running(bundle, threads=1) as client:
        for one, ns in zip(cases, times, strict=True):
            client.run(one.tensors, ONCE, outputs=False)
            found.append(sum(t.ns for t in least_times(bundle.manifest, client.trace(), peaks).values()) / ns)
    return found


def measure(sweep: Sweep, peaks: Peaks, seconds: float) -> list[float]:
    """Print a row for each size; the ratios."""
    with tempfile.TemporaryDirectory(prefix="smelt-kernels-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model(sweep), str(path))
        bundle = compile(str(path), "host", output=f"{folder}/out")
        cases = [case(bundle, bind(bundle, s), ranges={"": sweep.range}) for s in sweep.sizes]
        pairs = against(bundle, path, cases, seconds=seconds)
        ours = [median(p.smelt_ns) for p in pairs]
        shares = _share(bundle, cases, peaks, ours)
    ratios = [1 / p.ratio for p in pairs]
    for size, ns, ratio, share in zip(sweep.sizes, ours, ratios, shares, strict=True):
        told = ", ".join(f"{k}={v}" for k, v in size.items())
        print(f"| {sweep.name} | {told} | {ns / 1e3:.1f} | {ratio:.2f} | {share:.0%} |", flush=True)
    return ratios


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="", help="rows whose name has this text")
    options.add_argument("--seconds", type=float, default=1.5, help="per size (default: 1.5)")
    args = options.parse_args()
    peaks = measured_peaks(1)
    print(f"{peaks.flops / 1e9:.0f} GFLOP/s, {peaks.bytes / 1e9:.1f} GB/s: {peaks.source}\n")
    print("| operator | size | us | / ONNX Runtime's | share of the limit |\n|---|---|---|---|---|")
    ratios: list[float] = []
    for sweep in SWEEPS:
        if args.only in sweep.name:
            try:
                ratios += measure(sweep, peaks, args.seconds)
            except SmeltError as e:
                print(f"| {sweep.name} | not run: {str(e).splitlines()[0][:120]} | | | |", flush=True)
    if ratios:
        print(f"\ngeometric mean of latencies over ONNX Runtime's: {geomean(ratios):.2f}")


if __name__ == "__main__":
    main()
