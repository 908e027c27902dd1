"""Graphs of many nodes -> the cost of compiling each: seconds of processor time, peak memory in MB.

python benchmarks/compile_time.py [--nodes 100000] [--kinds chain,ladder]
Every graph has one dynamic axis. Each compile runs in a process of its own, which measures itself.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDE = 8  # elements of the static axis: the nodes are many, not large


class Graphs:
    """A graph of `nodes` nodes, built from one input x of shape [n, 8]."""

    def __init__(self, nodes: int) -> None:
        self.count = nodes
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shape: list[int | str] = ["n", WIDE]

    def op(self, op: str, *inputs: str, **attributes: object) -> str:
        """The name of what one more node makes."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def weight(self, values: np.ndarray) -> str:
        """The name of one more initializer."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def some(self, *shape: int) -> str:
        """A random weight, different from all others."""
        rng = np.random.default_rng(len(self.weights))
        return self.weight((rng.random(shape) + 0.5).astype(np.float32))

    def model(self, *outputs: str) -> onnx.ModelProto:
        """The model with these outputs."""
        made = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        graph = helper.make_graph(self.nodes, "graph", [x], made, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def chain(g: Graphs) -> onnx.ModelProto:
    """sin(v) + x, again and again."""
    v = "x"
    while len(g.nodes) < g.count:
        v = g.op("Add", g.op("Sin", v), "x")
    return g.model(v)


def ladder(g: Graphs) -> onnx.ModelProto:
    """Two chains, each step of which reads both."""
    a, b = "x", "x"
    while len(g.nodes) < g.count:
        a, b = g.op("Add", a, b), g.op("Mul", g.op("Tanh", a), b)
    return g.model(a, b)


def convolutions(g: Graphs) -> onnx.ModelProto:
    """Convolution with its own weights, relu, residual sum."""
    g.shape = ["n", 4, 6, 6]
    v = "x"
    while len(g.nodes) < g.count:
        made = g.op("Conv", v, g.some(4, 4, 3, 3), pads=[1, 1, 1, 1])
        v = g.op("Add", v, g.op("Relu", made))
    return g.model(v)


def products(g: Graphs) -> onnx.ModelProto:
    """A product with its own weights, its bias, relu, softmax."""
    v = "x"
    while len(g.nodes) < g.count:
        v = g.op("Softmax", g.op("Relu", g.op("Add", g.op("MatMul", v, g.some(WIDE, WIDE)), g.some(WIDE))))
    return g.model(v)


def constants(g: Graphs) -> onnx.ModelProto:
    """One value times many constants, all summed."""
    v = "x"
    while len(g.nodes) < g.count:
        v = g.op("Add", v, g.op("Mul", "x", g.some(WIDE)))
    return g.model(v)


def wide(g: Graphs) -> onnx.ModelProto:
    """One concatenation of very many values."""
    made = [g.op("Sin", "x") for _ in range(g.count - 1)]
    return g.model(g.op("Concat", *made, axis=0))


def outputs(g: Graphs) -> onnx.ModelProto:
    """A chain, each hundredth value of which is an output."""
    v, made = "x", []
    while len(g.nodes) < g.count:
        v = g.op("Tanh" if len(g.nodes) % 3 else "Sin", v)
        if len(g.nodes) % 100 == 0:
            made.append(v)
    return g.model(*dict.fromkeys((*made, v)))


def shapes(g: Graphs) -> onnx.ModelProto:
    """Shape arithmetic as exporters write it, around each sum."""
    v = "x"
    eight = g.weight(np.array([WIDE], np.int64))
    while len(g.nodes) < g.count:
        n = g.op("Slice", g.op("Shape", v), *(g.weight(np.array([k], np.int64)) for k in (0, 1)))
        v = g.op("Add", g.op("Reshape", g.op("Sin", v), g.op("Concat", n, eight, axis=0)), v)
    return g.model(v)


def drawn(g: Graphs) -> onnx.ModelProto:
    """A random choice of operations with as many constants: no two stretches are alike."""
    rng, v = random.Random(0), "x"
    while len(g.nodes) < g.count:
        op = rng.choice(["Add", "Mul", "Sin", "Relu", "Max", "Softmax", "Transpose"])
        if op in ("Add", "Mul", "Max"):
            v = g.op(op, v, g.weight(np.float32(rng.random() + 0.5)))
        elif op == "Transpose":
            v = g.op(op, g.op(op, v, perm=[1, 0]), perm=[1, 0])
        else:
            v = g.op(op, v)
    return g.model(v)


KINDS: Mapping[str, Callable[[Graphs], onnx.ModelProto]] = MappingProxyType(
    {f.__name__: f for f in (chain, ladder, convolutions, products, constants, wide, outputs, shapes, drawn)}
)

CHILD = """
import resource, sys, time
import smelt
start = time.process_time()
smelt.compile(sys.argv[1], target="host", output=sys.argv[2])
mine, theirs = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
used = time.process_time() - start + theirs.ru_utime + theirs.ru_stime
print(f"{used:.1f} {max(mine.ru_maxrss, theirs.ru_maxrss) // 1024}")
"""


def measured(model: onnx.ModelProto) -> str:
    """Seconds and megabytes of one compile, or its error."""
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder) / "model.onnx"
        onnx.save(model, at)
        command = [sys.executable, "-c", CHILD, str(at), str(Path(folder) / "out")]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    return done.stdout.strip() or done.stderr.strip()[-300:]


def main() -> int:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--nodes", type=int, default=100_000)
    p.add_argument("--kinds", default=",".join(KINDS))
    args = p.parse_args()
    for kind in args.kinds.split(","):
        model = KINDS[kind](Graphs(args.nodes))
        print(f"{kind:14s} {len(model.graph.node):7d} nodes: {measured(model)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
