"""Where a library's bytes come from: every byte once, and the host's parts are the host's."""

from __future__ import annotations

from pathlib import Path

from onnx import TensorProto, helper

import smelt
from smelt.size import sizes

LAUNCHES = 150
LEAST = 40
"""Bytes of machine code that a launch takes at the least; 79 were measured."""


def test_parts_of_a_long_run_are_the_host_program(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Softmax", [f"v{k}"], [f"v{k + 1}"], axis=k % 2 + 1) for k in range(LAUNCHES)
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3, 4]) for n in ("v0", f"v{LAUNCHES}"))
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    bundle = smelt.compile(model, output=tmp_path / "out")
    found = sizes(bundle)
    assert sum(found.code.values()) == found.files[bundle.names.library]
    assert found.code["host program"] > LAUNCHES * LEAST
    assert found.code["kernels"] > 0
