"""Which arithmetic of a model is an error of a run, and which has a value: docs/safety.md, "Numbers"."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import smelt
from smelt.core.diag import SmeltError

I64, U64, F32 = TensorProto.INT64, TensorProto.UINT64, TensorProto.FLOAT
LOW, HIGH = -(2**63), 2**63 - 1

# name: (type, shape, what is fed where nothing is to fail)
INPUTS: dict[str, tuple[int, list[Any], Any]] = {
    "x": (I64, [4], [7, -7, LOW, HIGH]),
    "divisor": (I64, [4], [2, -1, -1, 1]),
    "modulus": (I64, [4], [2, 3, -1, -3]),
    "u": (U64, [2], [1, 3]),
    "by": (U64, [2], [70, 1]),
    "f": (F32, [3], [1, 2, 3]),
    "zero": (F32, [3], [0, 0, 0]),
    "at": (I64, ["k"], [-3, 2]),
    "put": (I64, ["j"], [-1]),
    "more": (F32, ["j"], [9]),
    "depth": (I64, [], 3),
    "step": (I64, [], 2),
    "to": (I64, [2], [3, 1]),
    "power": (I64, [4], [2, 3, 2, 0]),
}
NODES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "Div": (["x", "divisor"], {}),
    "Mod": (["x", "modulus"], {}),
    "Add": (["x", "x"], {}),
    "Mul": (["x", "x"], {}),
    "Neg": (["x"], {}),
    "Abs": (["x"], {}),
    "Pow": (["x", "power"], {}),
    "BitShift": (["u", "by"], {"direction": "LEFT"}),
    "Gather": (["f", "at"], {}),
    "ScatterElements": (["f", "put", "more"], {}),
    "OneHot": (["at", "depth", "ends"], {}),
    "Range": (["zero_", "ten", "step"], {}),
    "Reshape": (["f", "to"], {}),
    "Sqrt": (["minus"], {}),
    "Reciprocal": (["zero"], {}),
    "Cast": (["huge"], {"to": I64}),
}
CONSTANTS = {
    "ends": np.float32([0, 1]), "zero_": np.array(0), "ten": np.array(10), "minus": np.float32([-1]),
    "huge": np.float32([1e30, -1e30, np.nan]),
}  # fmt: skip


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> smelt.Session:
    """One model of all the operators: what is fed decides which of them fails."""
    nodes = [helper.make_node(op, names, [f"y{op}"], name=op, **a) for op, (names, a) in NODES.items()]
    inputs = [helper.make_tensor_value_info(n, t, s) for n, (t, s, _) in INPUTS.items()]
    held = [onnx.numpy_helper.from_array(a, n) for n, a in CONSTANTS.items() if n != "huge"]
    inputs.append(helper.make_tensor_value_info("huge", F32, [3]))
    outputs = [onnx.ValueInfoProto(name=f"y{op}") for op in NODES]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return smelt.load(smelt.compile(model, output=tmp_path_factory.mktemp("faults") / "out"))


def fed(**changed: Any) -> dict[str, Any]:
    kinds = {n: helper.tensor_dtype_to_np_dtype(t) for n, (t, _, _) in INPUTS.items()}
    usual = {n: value for n, (_, _, value) in INPUTS.items()}
    return {n: np.array(v, kinds[n]) for n, v in {**usual, **changed}.items()} | {"huge": CONSTANTS["huge"]}


# what is fed: the message
FAULTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"divisor": [1, 1, 0, 1]}, r"'Div'.*an integer is divided by 0"),
    ({"modulus": [1, 0, 1, 1]}, r"'Mod'.*an integer is divided by 0"),
    ({"at": [0, 3]}, r"'Gather'.*index of axis 0 is 3, expected at most 2"),
    ({"at": [-4]}, r"'Gather'.*index of axis 0 is -4"),
    ({"put": [3]}, r"'ScatterElements'.*index of axis 0 is 3, expected at most 2"),
    ({"depth": -1}, r"depth is -1, expected at least 0"),
    ({"step": 0}, r"'Range'.*delta is 0"),
    ({"to": [2, 2]}, r"'Reshape'.*number of elements"),
    ({"to": [-2, 1]}, r"'Reshape'"),
)


@pytest.mark.parametrize(("changed", "message"), FAULTS)
def test_faults_of_the_model_are_errors_that_name_the_node(
    session: smelt.Session, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(SmeltError, match=message) as caught:
        session.run(None, fed(**changed))
    assert caught.value.kind == "shape"
    session.run(None, fed())  # and the session stays usable


def test_all_other_arithmetic_has_a_value(session: smelt.Session) -> None:
    """Integers wrap; floats follow IEEE 754."""
    y = dict(zip(NODES, session.run(None, fed()), strict=True))
    wanted: dict[str, list[Any]] = {
        "Div": [3, 7, LOW, HIGH],
        "Mod": [1, 2, 0, HIGH % -3],
        "Add": [14, -14, 0, -2],
        "Mul": [49, 49, 0, 1],
        "Neg": [-7, 7, LOW, LOW + 1],
        "Abs": [7, 7, LOW, HIGH],
        "Pow": [49, -343, 0, 1],
        "BitShift": [0, 6],
        "Gather": [1, 3],
        "Sqrt": [np.nan],
        "Reciprocal": [np.inf] * 3,
        "Cast": [HIGH, LOW, 0],
    }
    for op, want in wanted.items():
        np.testing.assert_array_equal(y[op], np.array(want, y[op].dtype), op)
