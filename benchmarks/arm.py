"""Arm without a board: inner loops -> their share of a core's arithmetic limit; models -> the instructions
they execute.

usage: arm.py loops [--only TEXT] [--core NAME]... | arm.py counts [--level NAME]... [MODEL.onnx...]

loops: single operators (kernels.py, and products of bytes) are compiled for each core; of each kernel's
busiest inner loop, llvm-mca tells the cycles, and arm_loops.py what part of them the arithmetic needs.
counts: a run of each model (the ones that Python packages carry) at its first shape in shapes.toml on an
emulated core, smelt's instructions over those of ONNX Runtime. Neither is a time, and no time follows from
them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from arm_counts import LEVELS, Level, counted, tool
from arm_loops import CORES, Core, Loop, Mca, busiest
from kernels import SWEEPS, model
from onnx import TensorProto, helper, numpy_helper, parser
from run import cases_of

from smelt.compiler import compile_here, lower
from smelt.devicefarm.measure import geomean
from smelt.request import Request
from smelt.samples import SAMPLES, fetch
from smelt.targets.registry import cpu_target

LEAST_ARITHMETIC = 4
"""Loops with less of it copy."""
FLOATS = (
    "matmul 255x511", "matmul of two", "conv 3x3", "conv 1x1", "conv 5x5 grouped, 24", "conv 3x3 depthwise",
    "conv 3x3 dilated", "conv 7x7 stem", "conv 1-D of 9", "average pool", "softmax, last axis", "layer norm",
    "gelu", "LSTM of 128",
)  # fmt: skip
_PRODUCT, _CONVOLUTION = "y = MatMulInteger (x, w)", "y = ConvInteger <pads = [1, 1, 1, 1]> (x, w)"
OTHERS = {
    "one row": ("float[1, 1024] x", "float[1, 1024] y", "y = MatMul (x, w)", "f4", (1024, 1024)),
    "product of u8": ("uint8[m, 255] x", "int32[m, 511] y", _PRODUCT, "i1", (255, 511)),
    "product of i8": ("int8[m, 1024] x", "int32[m, 1024] y", _PRODUCT, "i1", (1024, 1024)),
    "conv 3x3 of u8": ("uint8[n, 64, h, v] x", "int32[n, 64, a, b] y", _CONVOLUTION, "i1", (64, 64, 3, 3)),
}
"""Name -> input, output, node, and the type and shape of the weight w."""


def operators() -> Iterator[tuple[str, onnx.ModelProto]]:
    """What is compiled: names and models."""
    yield from ((s.name, model(s)) for s in SWEEPS if s.name in FLOATS)
    for name, (takes, makes, text, kind, shape) in OTHERS.items():
        made = parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : 20]> g ({takes}) => ({makes}) {{ {text} }}'
        )
        weight = np.random.default_rng(0).integers(-127, 128, shape).astype(kind)
        made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
        yield name, made


def loops_of(made: onnx.ModelProto, core: Core) -> dict[str, Loop]:
    """The busiest inner loop of each kernel that computes something."""
    with tempfile.TemporaryDirectory(prefix="smelt-arm-") as folder:
        path = f"{folder}/model.onnx"
        onnx.save(made, path)
        lowered = lower(Request(path, f"arm64:{core.compiled}", output=f"{folder}/out"))
    listings = {n: cpu_target().listing(k, lowered.spec) for n, k in lowered.linked.kernels.items()}
    found = {
        n: loop for n, text in listings.items() if (loop := busiest(text)) is not None and not loop.calls
    }
    return {n: loop for n, loop in found.items() if len(loop.arithmetic) >= LEAST_ARITHMETIC}


def loops(cores: Sequence[str], only: str) -> None:
    """Print a row for each kernel."""
    mca = Mca(tool("usr/lib/llvm-19/bin/llvm-mca"))
    print(f"{mca.version()}\n\n| operator | kernel | {' | '.join(cores)} |\n|---|---|{'---|' * len(cores)}")
    for name, made in operators():
        if only not in name:
            continue
        rows: dict[str, dict[str, str]] = {}
        for core in cores:
            for kernel, loop in loops_of(made, CORES[core]).items():
                spilled = f", {loop.spills} spilled" if loop.spills else ""
                share = f"{mca.share(loop, CORES[core]):.0%} of {len(loop.arithmetic)}/{len(loop.lines)}"
                rows.setdefault(kernel, {})[core] = share + spilled
        for kernel, cells in rows.items():
            print(f"| {name} | {kernel} | {' | '.join(cells.get(c, '') for c in cores)} |", flush=True)


def counts(level: Level, name: str, models: Sequence[Path]) -> None:
    """Print a row for each model, and their geometric mean; first one for a model that only copies: what the
    interpreter around each run takes."""
    ratios = []
    with tempfile.TemporaryDirectory(prefix="smelt-arm-") as folder:
        nothing = Path(folder) / "nothing.onnx"
        port = [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["n"]) for x in "xy"]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", port[:1], port[1:])
        onnx.save(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), nothing
        )
        for n, path in enumerate((nothing, *models)):
            bundle = compile_here(Request(str(path), level.target, output=f"{folder}/{n}"))
            case = cases_of(bundle, path.stem)[0]
            ours = counted("smelt", level, Path(bundle.path), case.tensors)
            theirs = counted("onnxruntime", level, path, case.tensors)
            print(
                f"| {name} | {path.stem} | {case.label} | {ours:,} | {theirs:,} | {ours / theirs:.3f} |",
                flush=True,
            )
            ratios += [ours / theirs] if n else []
    if ratios:
        print(f"\n{name}: geometric mean {geomean(ratios):.3f}", flush=True)


def main() -> None:
    """Print what was asked for."""
    parser_ = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser_.add_argument("what", choices=("loops", "counts"))
    parser_.add_argument("models", nargs="*", type=Path)
    parser_.add_argument("--only", default="", help="operators whose name has this text")
    parser_.add_argument("--core", action="append", choices=list(CORES), default=[])
    parser_.add_argument("--level", action="append", choices=list(LEVELS), default=[])
    asked = parser_.parse_intermixed_args()
    if asked.what == "loops":
        loops(asked.core or list(CORES), asked.only)
        return
    print("| core | model | inputs | smelt | ONNX Runtime | ratio |\n|---|---|---|---|---|---|")
    for name in asked.level or list(LEVELS):
        counts(LEVELS[name], name, asked.models or [fetch(n) for n in SAMPLES])


if __name__ == "__main__":
    main()
