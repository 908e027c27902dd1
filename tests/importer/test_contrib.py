"""Ops of com.microsoft: small graphs with symbolic sizes agree with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from oracle import plain_session

from smelt.core.diag import SmeltError
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.verify import verify
from smelt.core.ops import OPS
from smelt.importer import import_model

Array = np.ndarray[Any, Any]
MS = "com.microsoft"
RNG = np.random.default_rng(0)


def f(*shape: int, scale: float = 1.0) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def graph(
    op: str,
    given: list[Array | None],
    *,
    constant: tuple[int, ...] = (),
    outputs: int = 1,
    skip: tuple[int, ...] = (),
    types: tuple[Any, ...] = (),
    domain: str = MS,
    shared: Mapping[int, str] | None = None,
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node and its inputs. Sizes above 1 are symbols: equal sizes of different inputs share
    one. constant: inputs that are initializers."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(given)]
    results = ["" if k in skip else f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attrs)
    inputs, weights, feeds = [], [], {}
    for i, a in enumerate(given):
        if a is None:
            continue
        if i in constant:
            weights.append(onnx.numpy_helper.from_array(a, names[i]))
            continue
        dims = [d if d == 1 else f"n{d}" for d in a.shape]
        inputs.append(helper.make_tensor_value_info(names[i], helper.np_dtype_to_tensor_dtype(a.dtype), dims))
        feeds[names[i]] = a
    kinds = [types[k] if k < len(types) else onnx.TensorProto.FLOAT for k in range(outputs)]
    made = [helper.make_tensor_value_info(n, t, None) for n, t in zip(results, kinds, strict=True) if n]
    g = helper.make_graph([node], "g", inputs, made, weights)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    model = helper.make_model(g, opset_imports=sets, ir_version=8)
    return model, feeds


def compare(model: onnx.ModelProto, feeds: dict[str, Array], atol: float = 2e-5, steps: float = 0) -> None:
    """Run by the graph interpreter and by ONNX Runtime. steps: how far quantised results may be apart."""
    session = plain_session(model)
    wanted = session.run(None, feeds)
    module = import_model(model)
    verify(module)
    found = run_module(module, feeds, OPS)
    for w, y in zip(wanted, found, strict=True):
        assert w.shape == y.shape and w.dtype == y.dtype, (w.shape, y.shape, w.dtype, y.dtype)
        if steps:
            assert np.abs(w.astype(np.int64) - y.astype(np.int64)).max(initial=0) <= steps
        else:
            np.testing.assert_allclose(y, w, atol=atol, rtol=1e-4)


# ---------------------------------------------------------------- norms, activations, products

EMBED = (2, 3, 4, 5, 6)
IDS = np.array([[1, 2, 3], [0, 4, 1]], np.int32)
FILLED = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
SEGMENTS = np.array([[0, 1, 1], [0, 0, 1]], np.int32)
SIMPLE: dict[str, tuple[Any, ...]] = {
    "rms": ("SimplifiedLayerNormalization", [f(2, 3, 16), f(16)], {"domain": "", "epsilon": 1e-5}),
    "skip": ("SkipLayerNormalization", [f(2, 3, 16), f(2, 3, 16), f(16), f(16), f(16)],
             {"outputs": 4, "skip": (1, 2)}),
    "skip rows": ("SkipLayerNormalization", [f(2, 3, 16), f(1, 3, 16), f(16)], {}),
    "skip rms": ("SkipSimplifiedLayerNormalization", [f(2, 3, 16), f(2, 3, 16), f(16)],
                 {"outputs": 4, "skip": (1, 2), "epsilon": 1e-4}),
    "gelu": ("Gelu", [f(3, 5)], {}),
    "fast gelu": ("FastGelu", [f(3, 5), f(5)], {}),
    "quick gelu": ("QuickGelu", [f(3, 5)], {"alpha": 1.3}),
    "bias gelu": ("BiasGelu", [f(3, 5), f(5)], {}),
    "fused matmul": ("FusedMatMul", [f(2, 5, 3), f(2, 7, 5)], {"transA": 1, "transB": 1, "alpha": 0.5}),
    "fused matmul batch": ("FusedMatMul", [f(3, 2, 5), f(2, 5, 7)], {"transBatchA": 1}),
    "fused matmul both": ("FusedMatMul", [f(5, 2, 3), f(2, 5, 7)], {"transBatchA": 1, "transA": 1}),
    "fused conv": ("FusedConv", [f(2, 3, 7, 7), f(4, 3, 3, 3), f(4)],
                   {"constant": (1,), "activation": "LeakyRelu", "activation_params": [0.1],
                    "pads": [1] * 4}),
    "fused conv sum": ("FusedConv", [f(2, 3, 7, 7), f(4, 3, 3, 3), f(4), f(2, 4, 5, 5)],
                       {"constant": (1,), "activation": "Relu"}),
    "rotary": ("RotaryEmbedding", [f(2, 3, 32), np.array([[0, 1, 2], [4, 5, 6]]), f(9, 4), f(9, 4)], {}),
    "rotary heads": ("RotaryEmbedding", [f(2, 4, 3, 8), np.array([5]), f(9, 4), f(9, 4)], {}),
    "rotary pairs": ("RotaryEmbedding", [f(2, 3, 32), np.array([2]), f(9, 4), f(9, 4)], {"interleaved": 1}),
    "rotary part": ("RotaryEmbedding", [f(2, 3, 32), np.array([2]), f(9, 2), f(9, 2)],
                    {"num_heads": 4, "rotary_embedding_dim": 4}),
    "embed": ("EmbedLayerNormalization",
              [IDS, SEGMENTS, f(6, 8), f(5, 8), f(2, 8), f(8), f(8), FILLED],
              {"outputs": 3, "types": (1, 6, 1), "epsilon": 1e-6, "constant": EMBED}),
    "embed plain": ("EmbedLayerNormalization",
                    [IDS, None, f(6, 8), f(5, 8), None, f(8), f(8)],
                    {"outputs": 2, "types": (1, 6), "constant": EMBED}),
}  # fmt: skip


@pytest.mark.parametrize("name", SIMPLE)
def test_fused_op(name: str) -> None:
    op, inputs, attrs = SIMPLE[name]
    compare(*graph(op, inputs, **attrs))


# ---------------------------------------------------------------- attention

B, S, H, D = 2, 3, 4, 8
W = H * D
FULL = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
ATTENTION: dict[str, tuple[list[Array | None], dict[str, Any]]] = {
    "plain": ([f(B, S, 16), f(16, 3 * W), f(3 * W)], {}),
    "causal": ([f(B, S, 16), f(16, 3 * W), f(3 * W)], {"unidirectional": 1}),
    "mask": ([f(B, S, 16), f(16, 3 * W), f(3 * W), FULL], {}),
    "lengths": ([f(B, S, 16), f(16, 3 * W), f(3 * W), np.array([3, 2], np.int32)], {}),
    "past": ([f(B, S, 16), f(16, 3 * W), f(3 * W), None, f(2, B, H, 5, D)],
             {"outputs": 2, "unidirectional": 1}),
    "sizes": ([f(B, S, 16), f(16, W + W + 48), f(W + W + 48)], {"qkv_hidden_sizes": [W, W, 48]}),
    "bias": ([f(B, S, 16), f(16, 3 * W), f(3 * W), None, None, f(1, H, S, S)], {"scale": 0.2}),
}  # fmt: skip
MULTI: dict[str, tuple[list[Array | None], dict[str, Any]]] = {
    "cross": ([f(B, S, W), f(B, 5, W), f(B, 5, W)], {}),
    "projected": ([f(B, S, W), f(B, 5, W), f(B, 5, W), f(3 * W)], {}),
    "padding": ([f(B, S, W), f(B, S, W), f(B, S, W), None, FULL], {}),
    "lengths": ([f(B, S, W), f(B, S, W), f(B, S, W), None, np.array([3, 2], np.int32)], {}),
    "causal": ([f(B, S, W), f(B, S, W), f(B, S, W)], {"unidirectional": 1}),
    "past": ([f(B, S, W), f(B, S, W), f(B, S, W), None, None, f(1, 1, S, 9), f(B, H, 6, D), f(B, H, 6, D)],
             {"outputs": 3}),
    "heads": ([f(B, S, W), f(B, H, 5, D), f(B, H, 5, D)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    inputs, attrs = ATTENTION[name]
    compare(*graph("Attention", inputs, constant=(1,), num_heads=H, **attrs))


@pytest.mark.parametrize("name", MULTI)
def test_multi_head_attention(name: str) -> None:
    inputs, attrs = MULTI[name]
    compare(*graph("MultiHeadAttention", inputs, num_heads=H, **attrs))


def test_packed_heads() -> None:
    """ONNX Runtime has no packed form on CPUs: it must give what the plain form gives."""
    q, k, v = (f(B, S, H, D) for _ in range(3))
    plain: list[Array | None] = [x.reshape(B, S, W) for x in (q, k, v)]
    forms = (plain, [np.stack([q, k, v], 3)], [plain[0], np.stack([k, v], 3)])
    found = []
    for inputs in forms:
        model, feeds = graph("MultiHeadAttention", list(inputs), num_heads=H)
        found.append(run_module(import_model(model), feeds, OPS)[0])
    for y in found[1:]:
        np.testing.assert_allclose(y, found[0], atol=1e-6)


def grouped(
    rows: int,
    lengths: list[int],
    total: int,
    cache: int,
    groups: int = 2,
    packed: bool = False,
    *more: Array | None,
    size: int = D,
) -> list[Array | None]:
    """Inputs of GroupQueryAttention: `rows` new ones for caches of `cache` rows."""
    n = len(lengths)
    new: list[Array | None]
    if packed:
        new = [f(n, rows, (H + 2 * groups) * size), None, None]
    else:
        new = [f(n, rows, H * size), f(n, rows, groups * size), f(n, rows, groups * size)]
    old = [f(n, groups, cache, size), f(n, groups, cache, size)] if cache >= 0 else [None, None]
    return [*new, *old, np.array(lengths, np.int32) - 1, np.array(total, np.int32), *more]


TABLES = (f(20, 8), f(20, 8))
PAIRS = {"rotary_interleaved": 1}
GROUPED: dict[str, tuple[list[Array | None], dict[str, Any]]] = {
    "prompt": (grouped(5, [5, 5], 5, 0), {}),
    "prompt without a cache": (grouped(5, [5, 5], 5, -1), {}),
    "step": (grouped(1, [7, 7], 7, 6), {}),
    "step of different lengths": (grouped(1, [7, 4], 7, 6), {}),
    "several": (grouped(3, [9], 9, 6), {}),
    "shared buffer": (grouped(1, [7, 4], 7, 12), {}),
    "shared buffer, prompt": (grouped(5, [5, 5], 5, 12), {}),
    "packed": (grouped(1, [7, 7], 7, 6, 2, True), {}),
    "rotary": (grouped(1, [7, 5], 7, 6, 2, True, *TABLES, size=16), {"do_rotary": 1}),
    "rotary prompt": (grouped(5, [5, 5], 5, 0, 1, True, *TABLES, size=16), {"do_rotary": 1} | PAIRS),
    "window": (grouped(5, [5, 5], 5, 0), {"local_window_size": 2}),
    "window step": (grouped(1, [7, 7], 7, 6), {"local_window_size": 3}),
    "softcap": (grouped(5, [5, 5], 5, 0), {"softcap": 5.0, "scale": 0.7}),
    "smooth": (grouped(5, [5, 5], 5, 0), {"smooth_softmax": 1}),
    "sink": (grouped(5, [5, 5], 5, 0, 2, False, None, None, None, None, f(H)), {}),
    "bias": (grouped(5, [5, 5], 5, 0, 2, False, None, None, None, f(1, H, 5, 5)), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPED)
def test_group_query_attention(name: str) -> None:
    inputs, attrs = GROUPED[name]
    groups = inputs[3].shape[1] if inputs[3] is not None else 2
    compare(*graph("GroupQueryAttention", inputs, outputs=3, num_heads=H, kv_num_heads=groups, **attrs))


# ---------------------------------------------------------------- packed weights


def packed(bits: int, block: int, k: int, n: int, zero: str = "") -> list[Array | None]:
    """x, weights, scales and zero points ('', 'packed' or 'float') of MatMulNBits."""
    blocks = -(-k // block)
    q = RNG.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    zeros = {
        "": None,
        "packed": RNG.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8),
        "float": RNG.integers(0, 1 << bits, (n, blocks)).astype(np.float32),
    }
    scales = RNG.uniform(0.05, 0.2, (n, blocks)).astype(np.float32)
    return [f(2, 3, k), q, scales, zeros[zero]]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zero", ["", "packed", "float"])
@pytest.mark.parametrize("k", [64, 70])
def test_matmul_nbits(bits: int, zero: str, k: int) -> None:
    if bits != 4 and zero == "float":
        pytest.skip("not in ONNX Runtime")
    inputs = packed(bits, 32, k, 24, zero)
    compare(*graph("MatMulNBits", inputs, constant=(1, 2, 3), K=k, N=24, bits=bits, block_size=32), atol=3e-4)


FORMS = [(4, 32, 64), (4, 16, 70), (8, 32, 70), (2, 64, 64), (2, 16, 64)]


@pytest.mark.parametrize(("bits", "block", "k"), FORMS)
@pytest.mark.parametrize("zero", ["", "packed"])
def test_matmul_nbits_of_activations_in_bytes(bits: int, block: int, k: int, zero: str) -> None:
    inputs = packed(bits, block, k, 24, zero)
    inputs[0] = np.concatenate([f(2, 2, k), np.zeros((2, 1, k), np.float32)], 1)
    sizes = {"K": k, "N": 24, "bits": bits, "block_size": block, "accuracy_level": 4}
    compare(*graph("MatMulNBits", inputs, constant=(1, 2, 3), **sizes), atol=3e-4)


def test_matmul_nbits_with_bias_and_groups() -> None:
    inputs = packed(4, 16, 64, 24, "float")  # ONNX Runtime misreads packed zero points of permuted groups
    groups = RNG.permutation(np.arange(64) // 16).astype(np.int32)
    model, feeds = graph(
        "MatMulNBits", [*inputs, groups, f(24)], constant=(1, 2, 3, 4, 5), K=64, N=24, bits=4, block_size=16
    )
    compare(model, feeds, atol=3e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [False, True])
def test_gather_block_quantized(bits: int, zero: bool) -> None:
    q = RNG.integers(0, 256, (10, 64 * bits // 8)).astype(np.uint8)
    scales = RNG.uniform(0.05, 0.2, (10, 2)).astype(np.float32)
    zeros = RNG.integers(0, 256, (10, 2 * bits // 8)).astype(np.uint8) if zero else None
    indices = np.array([[3, 0, 9], [1, 1, -2]], np.int64)
    inputs = [q, indices, scales, zeros]
    compare(*graph("GatherBlockQuantized", inputs, constant=(0, 2, 3), bits=bits, block_size=32))


# ---------------------------------------------------------------- refusals


def test_what_is_not_done_is_refused_by_name() -> None:
    inputs = grouped(1, [7, 7], 7, 6)
    attrs = {
        "num_heads": H,
        "kv_num_heads": 2,
        "sliding_window_cache": 1,
        "local_window_size": 4,
        "qk_output": 1,
    }
    model, _ = graph("GroupQueryAttention", inputs, outputs=4, **attrs)
    with pytest.raises(SmeltError, match="output_qk of a sliding cache") as e:
        import_model(model)
    assert e.value.kind == "unsupported"


REFUSED = {
    "BeamSearch": "decoder alone", "GreedySearch": "decoder alone", "Sampling": "decoder alone",
    "WhisperBeamSearch": "decoder alone", "LongformerAttention": "on GPUs alone",
    "PackedAttention": "on GPUs alone", "PackedMultiHeadAttention": "on GPUs alone",
    "PagedAttention": "on GPUs alone", "QOrderedMatMul": "on GPUs alone", "MatMulFpQ4": "MatMulNBits",
    "SparseToDenseMatMul": "a dense matrix", "MurmurHash3": "a plug-in", "WordConvEmbedding": "a plug-in",
}  # fmt: skip


@pytest.mark.parametrize("op", REFUSED)
def test_what_no_binding_knows_is_refused_by_name(op: str) -> None:
    model, _ = graph(op, [f(2, 3)])
    with pytest.raises(SmeltError, match=op) as e:
        import_model(model)
    assert e.value.kind == "unsupported"
    assert e.value.hint and REFUSED[op] in e.value.hint


def test_layouts_of_one_machine_are_refused() -> None:
    """Of a model that ONNX Runtime saved at its highest level."""
    n = helper.make_node("Conv", ["x", "w"], ["y"], domain="com.microsoft.nchwc")
    x, y = (helper.make_tensor_value_info(v, onnx.TensorProto.FLOAT, [1, 16, 8, 8]) for v in "xy")
    w = onnx.numpy_helper.from_array(np.zeros((16, 16, 1, 1), np.float32), "w")
    g = helper.make_graph([n], "g", [x], [y], [w])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)]
    with pytest.raises(SmeltError, match=r"com\.microsoft\.nchwc") as e:
        import_model(helper.make_model(g, opset_imports=sets, ir_version=8))
    assert e.value.kind == "unsupported"
    assert e.value.hint and "'extended' or below" in e.value.hint


# ---------------------------------------------------------------- ordinary ops on quantised tensors


def q8(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def s8(*shape: int) -> Array:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def scale(*values: float) -> Array:
    return np.array(values[0] if len(values) == 1 else values, np.float32)


Z, Y = np.array(120, np.uint8), np.array(7, np.uint8)
U8, I8 = onnx.TensorProto.UINT8, onnx.TensorProto.INT8
A8 = [q8(2, 3, 4, 5), scale(0.1), Z]
S6 = np.array([0.1, 0.2] * 3, np.float32)
QUANTISED: dict[str, tuple[list[Array | None], dict[str, Any]]] = {
    "QLinearAdd": ([*A8, q8(4, 5), scale(0.05), Y, scale(0.2), Z], {}),
    "QLinearMul": ([*A8, q8(2, 3, 4, 5), scale(0.05), Y, scale(0.4), Z], {}),
    "QLinearSigmoid": ([*A8, scale(1 / 256), np.array(0, np.uint8)], {}),
    "QLinearLeakyRelu": ([*A8, scale(0.1), Y], {"alpha": 0.2}),
    "QLinearGlobalAveragePool": ([*A8, scale(0.05), Y], {}),
    "QLinearAveragePool": ([*A8, scale(0.1), Y], {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
    "QLinearSoftmax": ([*A8, scale(1 / 256), np.array(0, np.uint8)], {"axis": -1, "opset": 13}),
    "QLinearConcat": ([scale(0.2), Y, *A8, q8(2, 2, 4, 5), scale(0.05), Z], {"axis": 1}),
    "QGemm": ([q8(3, 20), scale(0.1), Z, s8(6, 20), S6, np.zeros(6, np.int8),
               np.arange(6, dtype=np.int32) * 50, scale(2.0), Z], {"transB": 1}),
}  # fmt: skip


@pytest.mark.parametrize("op", QUANTISED)
def test_op_on_quantised_tensors(op: str) -> None:
    inputs, attrs = QUANTISED[op]
    data = [i for i, a in enumerate(inputs) if (a is not None and a.ndim > 2) or (op == "QGemm" and i == 0)]
    constant = tuple(i for i in range(len(inputs)) if i not in data)
    compare(*graph(op, inputs, constant=constant, types=(U8,), **attrs), steps=1)


FLOATED: dict[str, tuple[list[Array | None], dict[str, Any]]] = {
    "MatMulIntegerToFloat": ([q8(2, 3, 20), s8(20, 6), scale(0.1), np.array([0.1, 0.2] * 3, np.float32), Z,
                              np.zeros(6, np.int8), f(6)], {}),
    "DynamicQuantizeMatMul": ([f(2, 3, 20), s8(20, 6), np.array([0.1, 0.2] * 3, np.float32),
                               np.zeros(6, np.int8), f(6)], {}),
    "QGemm": ([q8(3, 20), scale(0.1), Z, s8(20, 6), scale(0.1), np.array(0, np.int8)], {}),
}  # fmt: skip


@pytest.mark.parametrize("op", FLOATED)
def test_floats_from_quantised_tensors(op: str) -> None:
    inputs, attrs = FLOATED[op]
    compare(*graph(op, inputs, constant=tuple(range(1, len(inputs))), **attrs), atol=1e-3)


def test_quantised_attention() -> None:
    inputs: list[Array | None] = [
        q8(B, S, 16), s8(16, 3 * W), f(3 * W), scale(0.02), scale(0.01), None, Z, np.array(0, np.int8),
        f(2, B, H, 5, D),
    ]  # fmt: skip
    model, feeds = graph(
        "QAttention", inputs, constant=(1, 2, 3, 4, 6, 7), outputs=2, num_heads=H, unidirectional=1
    )
    compare(model, feeds, atol=1e-4)
