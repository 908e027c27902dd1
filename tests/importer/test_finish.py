"""What an import ends with: a check stands before all that may lean on it."""

from __future__ import annotations

from onnx import helper
from onnx_models import imported, model

from smelt.core.ir.graph import attr_dims

node = helper.make_node


def test_checks_stand_behind_what_their_sizes_come_from() -> None:
    nodes = [
        node("Compress", ["x", "keep"], ["some"], axis=0),
        node("Relu", ["some"], ["a"]),
        node("Sigmoid", ["a"], ["b"]),
        node("Concat", ["b", "z"], ["y"], axis=1),  # asks for as many rows in b as in z
    ]
    inputs = {"x": ("f32", ["N", 3]), "keep": ("bool", ["N"]), "z": ("f32", ["M", 2])}
    main = imported(model(nodes, inputs, {"y": "f32"})).main
    ops = [n.op for n in main.nodes]
    (check,) = (n for n in main.nodes if n.op == "check" and n.attrs["relation"] == "==")
    (unknown,) = (str(n.attrs["symbol"]) for n in main.nodes if n.op == "bind")
    assert unknown in {s for a in check.attrs.values() for d in attr_dims(a) for s in d.symbols}
    assert ops.index("bind") < main.nodes.index(check) < min(ops.index("relu"), ops.index("sigmoid"))
