"""Rows of benchmarks/op_rows*.py -> each operator's latency over ONNX Runtime's at each size, as a table.

usage: ops.py [--only TEXT] [--seconds 0.6] [--above 0]. One thread, in turns in one process, each operator
compiled once for all its sizes, with dynamic dims. Of the rounds' times the least of each count, which other
programs disturb least; where the ratio of medians is another by a quarter, a question mark follows. Calls
take turns among as many random inputs as fit TURNS_BYTES, so that no branch can be learnt.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser
from op_rows import OP_ROWS, OpRow, Size
from op_rows_plain import PLAIN_ROWS
from op_rows_spatial import SPATIAL_ROWS

from smelt.bench import Pair, against
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.devicefarm.measure import geomean
from smelt.driver import compile
from smelt.shapes import RunCase, bind, case, shapes_at

TURNS, TURNS_BYTES = 16, 1 << 18
"""The most inputs that take turns, and the bytes that they may take beside the first."""


def row_model(row: OpRow) -> onnx.ModelProto:
    """The row's model, with random weights."""
    text = row.text.replace("<> ", "")  # the form has no empty list of attributes
    made = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {row.opset}]> g {text}')
    rng = np.random.default_rng(0)
    for name, shape in row.weights.items():
        values = rng.uniform(0.1, 1.0, shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]))
        made.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return made


def row_case(row: OpRow, bundle: Bundle, size: Size, seed: int = 0) -> RunCase:
    """Inputs of one size."""
    values = bind(bundle, size)
    given = {
        name: make(np.random.default_rng([seed, zlib.crc32(name.encode())]), shapes_at(bundle, values)[name])
        for name, make in row.made.items()
    }
    return case(bundle, values, seed=seed, given=given, ranges={"": (-1.0, 1.0)})


def measured(row: OpRow, seconds: float) -> tuple[Pair, ...]:
    """The row's times at each of its sizes. Raises SmeltError where one of the two runtimes refuses it."""
    with tempfile.TemporaryDirectory(prefix="smelt-ops-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(row_model(row), str(path))
        bundle = compile(str(path), "host", output=f"{folder}/out")
        sizes = [row_case(row, bundle, s) for s in row.sizes]

        def others(first: RunCase) -> list[RunCase]:
            taken = max(1, sum(a.nbytes for a in first.tensors.values()))
            size = next(s for s, c in zip(row.sizes, sizes, strict=True) if c is first)
            return [row_case(row, bundle, size, 1 + k) for k in range(min(TURNS - 1, TURNS_BYTES // taken))]

        return against(bundle, path, sizes, seconds=seconds, others=others)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="", help="rows whose name has one of these texts, split at '|'")
    options.add_argument("--seconds", type=float, default=0.6, help="per size (default: 0.6)")
    options.add_argument("--above", type=float, default=0.0, help="show only ratios above this")
    args = options.parse_args()
    print("| operator | size | us | ONNX Runtime's us | ratio |\n|---|---|---|---|---|")
    ratios: list[float] = []
    for row in (*OP_ROWS, *SPATIAL_ROWS, *PLAIN_ROWS):
        if not any(text in row.name for text in args.only.split("|")):
            continue
        try:
            pairs = measured(row, args.seconds)
        except SmeltError as e:
            print(f"| {row.name} | not run: {str(e).splitlines()[0][:120]} | | | |", flush=True)
            continue
        for size, pair in zip(row.sizes, pairs, strict=True):
            ours, theirs = min(pair.smelt_ns), min(pair.rival_ns)
            ratios.append(ours / theirs)
            told = ", ".join(f"{k}={v}" for k, v in size.items())
            if ratios[-1] >= args.above:
                mark = "?" if abs(1 / pair.ratio / ratios[-1] - 1) > 0.25 else ""
                times = f"{ours / 1e3:.1f} | {theirs / 1e3:.1f}"
                print(f"| {row.name} | {told} | {times} | {ratios[-1]:.2f}{mark} |", flush=True)
    if ratios:
        print(f"\n{len(ratios)} sizes, geometric mean {geomean(ratios):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
