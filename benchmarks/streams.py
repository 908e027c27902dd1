"""Two stages in a stream and one after the other -> items per second of both, by the units of the stages.

usage: streams.py [--items 40] [--rounds 9]. Each stage has one thread and, if it is OpenCL's, one of the
device's (PoCL: POCL_MAX_PTHREAD_COUNT=1), so that two processors are enough. The stages are a network of
convolutions, the second with pictures for which it takes as long as the first. The two ways take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", "1")  # read when the driver is loaded

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.session import Session

CHANNELS, SIDE, LAYERS = 32, 64, 6


def network() -> onnx.ModelProto:
    """Convolutions over x[n, 32, h, w]."""
    rng = np.random.default_rng(0)
    nodes, held = [], []
    for k in range(LAYERS):
        w = rng.standard_normal((CHANNELS, CHANNELS, 3, 3)).astype(np.float32) / CHANNELS
        held.append(numpy_helper.from_array(w, f"w{k}"))
        nodes += [
            helper.make_node("Conv", [f"x{k}", f"w{k}"], [f"c{k}"], pads=[1] * 4),
            helper.make_node("Relu", [f"c{k}"], [f"x{k + 1}"]),
        ]
    shape = ["n", CHANNELS, "h", "w"]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x0", f"x{LAYERS}"))
    graph = helper.make_graph(nodes, "network", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def seconds(session: Session, side: int) -> float:
    x = np.zeros((1, CHANNELS, side, side), np.float32)
    times = []
    for _ in range(7):
        start = time.perf_counter()
        session.run(None, {"x0": x})
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def balanced(a: Session, b: Session) -> int:
    """The side of the second stage's pictures with which it takes as long as the first."""
    wanted = seconds(a, SIDE)
    return min(range(16, 129, 4), key=lambda side: abs(seconds(b, side) - wanted))


def measure(a: Session, b: Session, items: int, rounds: int) -> tuple[float, float]:
    """Items per second one after the other and in a stream, medians of rounds that alternate."""
    side = balanced(a, b)
    rng = np.random.default_rng(1)
    first, second = (
        [rng.standard_normal((1, CHANNELS, s, s)).astype(np.float32) for _ in range(4)] for s in (SIDE, side)
    )
    given: list[dict[str, Any]] = [{"first": first[k % 4], "second": second[k % 4]} for k in range(items)]
    stages = [
        smelt.Stage(s, {"x0": name}, {f"x{LAYERS}": f"of {name}"}, name)
        for s, name in ((a, "first"), (b, "second"))
    ]
    rates: tuple[list[float], list[float]] = ([], [])
    with smelt.Stream(stages) as stream:
        for _ in range(rounds):
            start = time.perf_counter()
            for values in given:
                for stage in stages:
                    stage(values)
            rates[0].append(items / (time.perf_counter() - start))
            start = time.perf_counter()
            count = sum(1 for _ in stream(given))
            rates[1].append(count / (time.perf_counter() - start))
    return statistics.median(rates[0]), statistics.median(rates[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print("| stages | in sequence, items/s | in a stream | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for units in ("host host", "host+opencl host", "host host+opencl"):
            sessions = [
                smelt.load(smelt.compile(network(), target=t, output=f"{folder}/{t}"), threads=1)
                for t in units.split()
            ]
            before, after = measure(sessions[0], sessions[1], options.items, options.rounds)
            names = " then ".join("OpenCL" if "+" in t else "CPU" for t in units.split())
            print(f"| {names} | {before:.1f} | {after:.1f} | {after / before:.2f} |", flush=True)
            for session in sessions:
                session.close()


if __name__ == "__main__":
    main()
