"""Convolutions of any rank, window, padding and number of channels, alone and in chains, built in drawn ways
and run at sizes of 0, 1 and more -> the values of ONNX Runtime.

Left out is what docs/differences.md lists: windows that do not fit, SAME_* padding of steps beyond the
window.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from campaign import Outcome, main
from drawn_builds import Drawn, built, with_build
from onnx import TensorProto, helper, numpy_helper
from oracle import plain_session

from smelt.core.diag import SmeltError

CHANNELS = (1, 2, 3, 8, 16, 17, 32, 40, 64)
TAPS = {1: (1, 2, 3, 4, 5, 7), 2: (1, 2, 3, 3, 3, 4, 5), 3: (1, 2, 3)}
EXTENTS = {1: (1, 2, 3, 5, 8, 13, 31, 64), 2: (1, 2, 3, 5, 8, 13, 20), 3: (1, 2, 3, 5, 7)}
BATCHES = (0, 1, 1, 2, 3)
ACTIVATIONS = ("Relu", "Sigmoid", "HardSwish", "LeakyRelu", "Tanh", "Clip")
RUNS = 4
Array = np.ndarray[Any, Any]


@dataclass
class _Net:
    """A model that grows along one path. windows: of each convolution, an axis after the other, the elements
    that a window reaches over, its steps, and the padding; None where that is as much as it takes."""

    rng: random.Random
    draw: np.random.Generator
    rank: int
    channels: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    windows: list[list[tuple[int, int, int | None]]] = field(default_factory=list)
    last: str = "x"

    def constant(self, array: Array) -> str:
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def emit(self, op: str, *inputs: str, **attrs: Any) -> None:
        self.last = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [self.last], **attrs))

    def conv(self) -> None:
        """One more convolution, as networks have it most of the time, as nobody has it now and then."""
        rng, n = self.rng, self.rank
        taps = [rng.choice(TAPS[n])] * n if rng.random() < 0.6 else [rng.choice(TAPS[n]) for _ in range(n)]
        group = rng.choice([g for g in (1, 1, 1, 1, 2, self.channels) if self.channels % g == 0])
        made = group * rng.choice([c for c in CHANNELS if group == 1 or c <= 8])
        attrs: dict[str, Any] = {"group": group, "kernel_shape": taps}
        steps = [rng.choice((1, 2, 3)) for _ in taps] if rng.random() < 0.2 else [1] * n
        wide = [rng.choice((1, 2)) for _ in taps] if rng.random() < 0.15 else [1] * n
        attrs |= {"strides": steps, "dilations": wide}
        spans = [d * (k - 1) + 1 for d, k in zip(wide, taps, strict=True)]
        auto = rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "", "", ""))
        if auto.startswith("SAME") and (
            max(wide) > 1 or any(s > k for s, k in zip(steps, taps, strict=True))
        ):
            auto = ""
        pads = [0] * (2 * n)
        if auto:
            attrs["auto_pad"] = auto
        elif rng.random() < 0.8:
            pads = (
                [rng.randint(0, s) for s in spans * 2] if rng.random() < 0.4 else [s // 2 for s in spans * 2]
            )
            attrs["pads"] = pads
        same = auto.startswith("SAME")
        totals = [None if same else pads[a] + pads[a + n] for a in range(n)]
        self.windows.append(list(zip(spans, steps, totals, strict=True)))
        weight = self.draw.standard_normal((made, self.channels // group, *taps))
        inputs = [
            self.last,
            self.constant(weight * (2.0 ** rng.choice((-3, 0, 0, 4))) / weight[0].size ** 0.5),
        ]
        if rng.random() < 0.6:
            inputs.append(self.constant(self.draw.standard_normal(made)))
        self.emit("Conv", *inputs, **attrs)
        self.channels = made

    def step(self) -> None:
        """What may stand between convolutions."""
        rng, way = self.rng, self.rng.random()
        if way < 0.5:
            op = rng.choice(ACTIVATIONS)
            self.emit(op, self.last, *([self.constant(np.array(v)) for v in (0, 6)] if op == "Clip" else []))
        elif way < 0.7:
            self.emit("Add", self.last, self.last)
        elif way < 0.85:
            scale = self.draw.standard_normal((self.channels, *(1,) * self.rank))
            self.emit("Mul", self.last, self.constant(scale))

    def extent(self, axis: int) -> int:
        """A drawn length of an axis, in which every window fits."""
        drawn = self.rng.choice(EXTENTS[self.rank])
        while not self._fits(axis, drawn):
            drawn += 1
        return drawn

    def _fits(self, axis: int, extent: int) -> bool:
        for own in self.windows:
            span, step, pad = own[axis]
            if pad is not None and extent + pad < span:
                return False
            extent = -(-extent // step) if pad is None else (extent + pad - span) // step + 1
        return True


def _model(rng: random.Random, draw: np.random.Generator) -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    """The model, and what it is fed."""
    rank = rng.choice((1, 2, 2, 2, 3))
    names = ("n", "h", "w", "d")[: rank + 1]
    net = _Net(rng, draw, rank, rng.choice(CHANNELS))
    channels = net.channels
    for _ in range(rng.choice((1, 1, 2, 3))):
        net.conv()
        net.step()
    fixed = {a: net.extent(k) for k, a in enumerate(names[1:]) if rng.random() < 0.3}
    fixed |= {"n": rng.choice((1, 2))} if rng.random() < 0.3 else {}
    feeds = []
    for _ in range(RUNS):
        drawn = {"n": rng.choice(BATCHES), **{a: net.extent(k) for k, a in enumerate(names[1:])}, **fixed}
        shape = [drawn[names[0]], channels, *(drawn[a] for a in names[1:])]
        feeds.append({"x": draw.standard_normal(shape, np.float32)})
    dims: list[int | str] = [fixed.get(a, a) for a in names]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [dims[0], channels, *dims[1:]])
    y = helper.make_tensor_value_info(net.last, TensorProto.FLOAT, None)
    graph = helper.make_graph(net.nodes, "convolutions", [x], [y], net.weights)
    sets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8), feeds


def drawn(seed: int) -> Drawn:
    """One model, built in one way, at some sizes."""
    return with_build(seed, *_model(random.Random(seed), np.random.default_rng(seed)))


def attack(seed: int) -> Outcome:
    """What comes of it."""
    return compared(drawn(seed), f"seed {seed}")


def compared(case: Drawn, where: str) -> Outcome:
    """What the model built so computes, against ONNX Runtime."""
    text = f"{where}, {case.build}\n{_spelled(case.model)}"
    rival, refused = plain_session(case.model), 0
    try:
        with built(case) as (session, _):
            for feed in case.feeds:
                shapes = {n: list(a.shape) for n, a in feed.items()}
                try:
                    wanted = rival.run(None, feed)
                except Exception:
                    refused += 1
                    continue
                for got, want in zip(session.run(None, feed), wanted, strict=True):
                    scale = max(1.0, float(np.abs(want).max(initial=0)))
                    if got.shape != want.shape or not np.allclose(got, want, rtol=1e-3, atol=1e-5 * scale):
                        far = (
                            np.abs(got - want).max(initial=0) / scale
                            if got.shape == want.shape
                            else got.shape
                        )
                        return Outcome("disagrees", True, f"{text}\nat {shapes}: {far}, wanted {want.shape}")
    except SmeltError as e:
        return Outcome("refused", True, f"{text}\n{e}")
    return Outcome("agrees" if refused < len(case.feeds) else "ONNX Runtime refuses")


def _spelled(model: onnx.ModelProto) -> str:
    """The model without its weights' elements."""
    shapes = {t.name: list(t.dims) for t in model.graph.initializer}
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.initializer[:]
    return f"{onnx.printer.to_text(bare)}\n{shapes}"


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 500))
