"""A seed in, an ONNX model with branches and loops in each other out: random nodes on one shape."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper
from onnx_models import Array, info, model

UNARY = ("Tanh", "Neg", "Sigmoid", "Abs", "Identity")
BINARY = ("Add", "Mul", "Sub", "Max")
SHAPE = ("n", 3)


@dataclass
class FlowModel:
    """Draws one model. Values are f32[n, 3]; `flags` are bool scalars, `counts` i64 scalars."""

    draw: random.Random
    names: int = 0
    flags: list[str] = field(default_factory=lambda: ["c0", "c1"])
    counts: list[str] = field(default_factory=lambda: ["k0", "k1", "two"])

    def fresh(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def nodes(self, seen: list[str], depth: int, count: int) -> list[onnx.NodeProto]:
        """Some nodes; what they make is added to `seen`."""
        made: list[onnx.NodeProto] = []
        for _ in range(count):
            kind = self.draw.random()
            if depth and kind < 0.18:
                made.append(self.branch(seen, depth - 1))
            elif depth and kind < 0.4:
                made.extend(self.loop(seen, depth - 1))
            elif kind < 0.7:
                x = self.draw.choice(seen)
                made.append(helper.make_node(self.draw.choice(UNARY), [x], [self.fresh()]))
            else:
                pair = [self.draw.choice(seen), self.draw.choice(seen)]
                made.append(helper.make_node(self.draw.choice(BINARY), pair, [self.fresh()]))
            seen.extend(o for o in made[-1].output if o not in seen)
        return made

    def branch(self, seen: list[str], depth: int) -> onnx.NodeProto:
        results = self.draw.randint(1, 2)
        arms = []
        for _ in range(2):
            inner = list(seen)
            nodes = self.nodes(inner, depth, self.draw.randint(1, 3))
            # a graph of its own must make its outputs, each under a name of its own
            outputs = [self.fresh() for _ in range(results)]
            nodes += [helper.make_node("Identity", [self.draw.choice(inner[-4:])], [o]) for o in outputs]
            arms.append(helper.make_graph(nodes, "arm", [], [info(o, "f32", None) for o in outputs]))
        outputs = [self.fresh() for _ in range(results)]
        flag = self.draw.choice(self.flags)
        return helper.make_node("If", [flag], outputs, then_branch=arms[0], else_branch=arms[1])

    def loop(self, seen: list[str], depth: int) -> list[onnx.NodeProto]:
        states = [self.fresh() for _ in range(self.draw.randint(1, 3))]
        i, going = self.fresh(), self.fresh()
        inner = [*seen, *states]
        self.counts.append(i)
        nodes = self.nodes(inner, depth, self.draw.randint(1, 4))
        self.counts.remove(i)
        nexts = [self.fresh() for _ in states]
        picks = [self.draw.choice(inner[-6:]) for _ in states]
        nodes += [helper.make_node("Identity", [p], [o]) for p, o in zip(picks, nexts, strict=True)]
        on, stacked = self.fresh(), [self.fresh() for _ in range(self.draw.randint(0, 1))]
        nodes += [helper.make_node("Identity", [self.draw.choice(inner[-4:])], [o]) for o in stacked]
        nodes.append(helper.make_node("Identity", [going], [on]))
        inputs = [info(i, "i64", []), info(going, "bool", []), *(info(s, "f32", None) for s in states)]
        outputs = [info(on, "bool", None), *(info(o, "f32", None) for o in [*nexts, *stacked])]
        body = helper.make_graph(nodes, "body", inputs, outputs)
        first = [self.draw.choice(seen) for _ in states]
        results, stacks = [self.fresh() for _ in states], [self.fresh() for _ in stacked]
        # the height of a stack must not be 0: ONNX Runtime then loses its rank
        count = self.draw.choice(self.counts[:3] if stacked else self.counts)
        made = [helper.make_node("Loop", [count, "", *first], [*results, *stacks], body=body)]
        for s in stacks:  # back to the shape of all
            made.append(helper.make_node("ReduceSum", [s, "front"], [self.fresh()], keepdims=0))
        made.append(helper.make_node("Identity", [results[0]], [self.fresh()]))
        seen.extend([*results, *(n.output[0] for n in made[1:])])
        return made


def flow_model(seed: int) -> onnx.ModelProto:
    """The model of a seed: inputs x, y f32[n, 3], c0, c1 bool, k0, k1 i64 (trip counts)."""
    flow = FlowModel(random.Random(seed))
    seen = ["x", "y"]
    nodes = flow.nodes(seen, 3, flow.draw.randint(3, 6))
    outputs = list(dict.fromkeys([*seen[-3:], *flow.draw.sample(seen, 2)]))
    outputs = [o for o in outputs if o not in ("x", "y")]
    inputs = {
        "x": ("f32", SHAPE), "y": ("f32", SHAPE), "c0": ("bool", []), "c1": ("bool", []),
        "k0": ("i64", []), "k1": ("i64", []),
    }  # fmt: skip
    constants: Mapping[str, Array] = {"front": np.array([0]), "two": np.array(2)}
    return model(nodes, inputs, dict.fromkeys(outputs, "f32"), constants)


def flow_feeds(seed: int, n: int) -> dict[str, Array]:
    """Inputs with n rows."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((n, 3)).astype(np.float32),
        "y": rng.standard_normal((n, 3)).astype(np.float32),
        "c0": np.array(bool(rng.integers(2))), "c1": np.array(bool(rng.integers(2))),
        "k0": np.array(int(rng.integers(1, 4))), "k1": np.array(int(rng.integers(1, 3))),
    }  # fmt: skip
