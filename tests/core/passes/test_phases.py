"""Transposed convolutions of floats, phase by phase: as ONNX Runtime computes them, at several sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_models import ops_of
from oracle import plain_session
from qdq_models import optimised

from smelt.core.dim import sym, to_dim
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.core.passes.whole_graph.phases import phases
from tests.core.passes.build import CONTEXT, Build

RNG = np.random.default_rng(0)
SIZES = ((2, 5, 7), (1, 1, 1), (1, 9, 2))


def model(
    shape: tuple[int, ...], dtype: type = np.float32, bias: bool = True, norm: bool = False, **attrs: Any
) -> onnx.ModelProto:
    """x [n, C, h, w, ..] by a constant weight [C, M / group, *K]; norm: and a batch norm behind."""
    rank, group = len(shape) - 2, attrs.get("group", 1)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    channels = shape[1] * group
    held = {"w": RNG.standard_normal(shape).astype(dtype)}
    if bias:
        held["b"] = RNG.standard_normal(channels).astype(dtype)
    nodes = [helper.make_node("ConvTranspose", ["x", *held], ["y"], **attrs)]
    if norm:
        own = {n: RNG.uniform(0.5, 1.5, channels).astype(dtype) for n in ("scale", "shift", "mean", "var")}
        nodes.append(helper.make_node("BatchNormalization", ["y", *own], ["z"]))
        held |= own
    dims = ["n", shape[0], *("h", "w", "d")[:rank]]
    g = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info("z" if norm else "y", kind, None)],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    return helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# name -> (arguments of model, whether phases take the place)
EVEN = {"strides": [2, 2], "pads": [1] * 4}
FORMS: dict[str, tuple[dict[str, Any], bool]] = {
    "three taps": ({"shape": (4, 12, 3, 3), **EVEN}, True),
    "three taps, more behind": ({"shape": (4, 12, 3, 3), "output_padding": [1, 1], **EVEN}, True),
    "three taps, no pads": ({"shape": (4, 9, 3, 3), "strides": [2, 2]}, True),
    "no bias": ({"shape": (4, 9, 3, 3), "bias": False, **EVEN}, True),
    "a norm behind": ({"shape": (4, 9, 3, 3), "norm": True, **EVEN}, True),
    "few channels": ({"shape": (4, 3, 4, 4), **EVEN}, True),
    "one channel": ({"shape": (4, 1, 2, 2), "strides": [2, 2]}, True),
    "other strides": ({"shape": (4, 5, 5, 4), "strides": [3, 2], "pads": [0, 1, 2, 1]}, True),
    "line": ({"shape": (4, 6, 5), "strides": [2], "pads": [2, 1], "output_padding": [1]}, True),
    "volume": ({"shape": (4, 3, 3, 2, 3), "strides": [2, 2, 1]}, True),
    "groups": ({"shape": (4, 3, 3, 3), "group": 2, **EVEN}, True),
    "groups, few channels": ({"shape": (4, 2, 4, 4), "group": 2, **EVEN}, True),
    "groups on a line": ({"shape": (4, 5, 5), "group": 2, "strides": [3]}, True),
    "as large as before": ({"shape": (4, 9, 3, 3), "strides": [2, 2], "auto_pad": "SAME_UPPER"}, True),
    "even taps": ({"shape": (4, 16, 4, 4), **EVEN}, False),
    "stride 1": ({"shape": (4, 3, 3, 3), "pads": [1] * 4}, False),
    "depthwise": ({"shape": (4, 1, 3, 3), "group": 4, **EVEN}, False),
    "dilated": ({"shape": (4, 3, 3, 3), "dilations": [2, 1], **EVEN}, False),
    "stride beyond the kernel": ({"shape": (4, 3, 2, 2), "strides": [3, 3]}, False),
}


@pytest.mark.parametrize("name", FORMS)
def test_as_onnxruntime(name: str) -> None:
    given, replaced = FORMS[name]
    m = model(**given)
    module = optimised(m)
    ops = {n.op for n in module.graphs["main"].nodes}
    assert ("conv_transpose" not in ops) == replaced, ops
    session, dtype = plain_session(m), given.get("dtype", np.float32)
    for n, *sizes in SIZES:
        x = RNG.standard_normal((n, 4, *(*sizes, 3)[: len(given["shape"]) - 2])).astype(dtype)
        (want,), (got,) = session.run(None, {"x": x}), run_module(module, {"x": x}, OPS)
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_pads_that_may_be_negative_stay() -> None:
    """They stand for zeros in front, and a slice that starts there would read what is before the tensor."""
    b = Build("f32[N, 3, H]")
    w = b.weight(RNG.standard_normal((3, 4, 3)))
    for begin, fires in ((to_dim(1), True), (to_dim(-1), False), (sym("N") - 1, False)):
        attrs = {"strides": (2,), "dilations": (1,), "group": 1, "channels_last": False}
        attrs |= {"pads_begin": (begin,), "pads_end": (to_dim(0),), "output_padding": (0,)}
        y = b("conv_transpose", b.inputs[0], w, **attrs)
        module = b.done(y)
        found = phases(module, CONTEXT)
        assert ("conv_transpose" not in ops_of(found)) is fires, begin
