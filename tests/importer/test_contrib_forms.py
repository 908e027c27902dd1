"""Every form of com.microsoft's norms, activations, products and convolutions agrees with ONNX Runtime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import op_forms
from op_forms import Array, Form, In, Sizes, form_tests, w, x

LOOSE = {"f16": 4e-3, "bf16": 4e-2}


def form(op: str, *given: In | None, t: str = "f32", **more: Any) -> Form:
    """A form whose floats are of this type."""
    loose = {"atol": LOOSE[t], "rtol": LOOSE[t], "types": (t,) * 4} if t in LOOSE else {}
    return op_forms.form(op, *given, **(loose | more))


# ---------------------------------------------------------------- norms


def _norms() -> dict[str, Form]:
    found = {}
    for t in ("f32", "f16"):
        found |= {
            f"SkipLayerNormalization {t}": form(
                "SkipLayerNormalization", x("B S 16", t), x("B S 16", t), w("16", t), w("16", t), w("16", t),
                outputs=4, skip=(1, 2), t=t,
            ),
            f"SkipSimplifiedLayerNormalization {t}": form(
                "SkipSimplifiedLayerNormalization", x("B S 16", t), x("B S 16", t), w("16", t), w("16", t),
                outputs=4, skip=(1, 2), t=t,
            ),
        }  # fmt: skip
    skip, rms = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
    data, small = x("B S 16"), x("B S 16", scale=1e-3)
    return found | {
        f"{skip} without beta": form(skip, data, data, w("16")),
        f"{skip} of small numbers": form(skip, small, small, w("16"), w("16")),
        f"{rms} of small numbers": form(rms, small, small, w("16")),
        "SimplifiedLayerNormalization of small numbers": form(
            "SimplifiedLayerNormalization", small, w("16"), domain=""
        ),
        "GatedRMSNorm of small numbers": form("GatedRMSNorm", small, w("4"), data),
        f"{skip} statistics": form(skip, data, data, w("16"), w("16"), w("16"), epsilon=1e-3, outputs=4),
        f"{rms} deviation": form(rms, data, data, w("16"), outputs=3, skip=(1,), epsilon=1e-3),
        "BatchNormalization of each": form(
            "BatchNormalization",
            x("B 3 S"),
            *(w("3 4") for _ in range(3)),
            w("3 4", make=positive),
            domain="",
            version=7,
            spatial=0,
            sizes=({"B": 2, "S": 4}, {"B": 1, "S": 4}),
        ),
        "BatchNormalization of each channel": form(
            "BatchNormalization",
            x("B 16"),
            *(w("16") for _ in range(3)),
            w("16", make=positive),
            domain="",
            version=8,
            spatial=0,
            epsilon=1e-2,
        ),
        f"{skip} without bias": form(skip, data, data, w("16"), w("16"), epsilon=1e-3),
        f"{skip} bias without beta": form(skip, data, data, w("16"), None, w("16")),
        f"{skip} one skip": form(skip, data, x("1 S 16"), w("16")),
        f"{skip} skip of rank 2": form(skip, data, x("S 16"), w("16")),
        f"{skip} rank 2": form(skip, x("S 16"), x("S 16"), w("16"), w("16")),
        f"{skip} weights at run time": form(skip, x("B S 16"), x("B S 16"), x("16"), x("16"), x("16")),
        f"{rms} without bias": form(rms, data, data, w("16")),
        f"{rms} rank 2": form(rms, x("S 16"), x("S 16"), w("16")),
        f"{rms} one skip": form(rms, data, x("1 S 16"), w("16"), epsilon=1e-2),
        "SimplifiedLayerNormalization": form("SimplifiedLayerNormalization", data, w("16"), domain=""),
        "SimplifiedLayerNormalization axis": form(
            "SimplifiedLayerNormalization", x("B 3 16"), w("3 16"), domain="", axis=1
        ),
        "SimplifiedLayerNormalization half": form(
            "SimplifiedLayerNormalization", x("B S 16", "f16"), w("16", "f16"), domain="", t="f16"
        ),
        "SimplifiedLayerNormalization deviation": form(
            "SimplifiedLayerNormalization", data, w("16"), domain="", outputs=2
        ),
        "LayerNormalization before opset 17": form(
            "LayerNormalization", data, w("16"), w("16"), domain="", version=14
        ),
    }


def positive(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.asarray(rng.uniform(0.2, 2, shape))


IDS, SEGMENTS = x("B S", "i32", low=0, high=9), x("B S", "i32", low=0, high=2)
TABLES = (w("9 8"), w("12 8"))


def ones_first(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """A mask of padding behind what counts."""
    lengths = rng.integers(1, shape[1] + 1, shape[0])
    return np.asarray(np.arange(shape[1])[None] < lengths[:, None])


def _embedding() -> dict[str, Form]:
    def embed(*given: In | None, outputs: int = 2, **attrs: Any) -> Form:
        return form("EmbedLayerNormalization", *given, outputs=outputs, types=("f32", "i32", "f32"), **attrs)

    scale = (w("8"), w("8"))
    mask = x("B S", "i32", make=ones_first)
    found = {
        "all": embed(IDS, SEGMENTS, *TABLES, w("2 8"), *scale, mask),
        "plain": embed(IDS, None, *TABLES, None, *scale),
        "sum": embed(IDS, SEGMENTS, *TABLES, w("2 8"), *scale, mask, outputs=3, epsilon=1e-4),
        "positions": embed(IDS, None, *TABLES, None, *scale, None, x("B S", "i32", low=0, high=12)),
        "positions of all": embed(IDS, None, *TABLES, None, *scale, None, x("1 S", "i32", low=0, high=12)),
        "small numbers": embed(IDS, None, w("9 8", scale=1e-4), w("12 8", scale=1e-4), None, *scale),
        "no mask type": embed(IDS, SEGMENTS, *TABLES, w("2 8"), *scale, mask, mask_index_type=0),
    }
    return {f"EmbedLayerNormalization {name}": f for name, f in found.items()}


# ---------------------------------------------------------------- activations


def _activations() -> dict[str, Form]:
    data = x("B S 12")
    return {
        "Gelu": form("Gelu", data),
        "Gelu rank 0": form("Gelu", x("")),
        "FastGelu": form("FastGelu", data),
        "FastGelu bias": form("FastGelu", data, w("12")),
        "BiasGelu": form("BiasGelu", data, x("12")),
        "BiasGelu rank 1": form("BiasGelu", x("12"), w("12")),
        "QuickGelu": form("QuickGelu", data),
        "QuickGelu alpha": form("QuickGelu", data, alpha=-0.7),
        "QuickGelu silu": form("QuickGelu", data, alpha=1.0),
        "BiasAdd": form("BiasAdd", data, w("12"), data, wanted=lambda a, b, c: [a + b + c]),
        "BiasSplitGelu": form("BiasSplitGelu", data, w("12"), wanted=split_gelu),
        "BiasDropout": form("BiasDropout", data, w("12"), data, wanted=lambda a, b, c: [a + b + c]),
        "Gelu half": form("Gelu", x("B S 12", "f16"), t="f16", wanted=lambda a: [gelu(a)]),
        "FastGelu half": form(
            "FastGelu", x("B S 12", "f16"), w("12", "f16"), t="f16", wanted=lambda a, b: [fast_gelu(a + b)]
        ),
        "BiasGelu half": form(
            "BiasGelu", x("B S 12", "f16"), w("12", "f16"), t="f16", wanted=lambda a, b: [gelu(a + b)]
        ),
        "QuickGelu half": form(
            "QuickGelu", x("B S 12", "f16"), t="f16", wanted=lambda a: [a / (1 + np.exp(-a * 1.702))]
        ),
        "Gelu bfloat16": form("Gelu", x("B S 12", "bf16"), t="bf16", wanted=lambda a: [gelu(a)]),
        "ScaledSiLU": form("ScaledSiLU", data, alpha=0.5),
        "ScaledSiLU scale": form("ScaledSiLU", data, x("")),
        "GatedRMSNorm": form("GatedRMSNorm", data, w("4"), data, epsilon=1e-3),
        "GatedRMSNorm sigmoid": form("GatedRMSNorm", data, w("12"), data, activation="sigmoid"),
        "GatedAdd": form("GatedAdd", data, data, x("B S 1")),
        "LinearAttentionGate": form("LinearAttentionGate", data, w("12"), w("12")),
        "LinearAttentionGate beta": form("LinearAttentionGate", data, w("12"), w("12"), data, outputs=2),
    }  # fmt: skip


def gelu(a: Array) -> Array:
    """x Phi(x), in double precision."""
    wide = a.astype(np.float64)
    y = wide * 0.5 * (1 + np.vectorize(math.erf, otypes=[np.float64])(wide / math.sqrt(2)))
    return np.asarray(y.astype(a.dtype))


def fast_gelu(a: Array) -> Array:
    """Its approximation by tanh, in double precision."""
    wide = a.astype(np.float64)
    y = wide * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    return np.asarray(y.astype(a.dtype))


def split_gelu(a: Array, bias: Array) -> list[Array]:
    """The left half times gelu of the right one."""
    left, right = np.split(a + bias, 2, -1)
    return [(left * gelu(right)).astype(a.dtype)]


# ---------------------------------------------------------------- products


def _products() -> dict[str, Form]:
    found = {}
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = ("B 6 S" if ta else "B S 6"), ("B T 6" if tb else "B 6 T")
            flat = ("6 S" if ta else "S 6"), ("T 6" if tb else "6 T")
            attrs = {"transA": ta, "transB": tb}
            found[f"FusedMatMul {ta}{tb}"] = form("FusedMatMul", x(a), x(b), alpha=0.3, **attrs)
            found[f"FusedMatMul rank 2 {ta}{tb}"] = form("FusedMatMul", *map(x, flat), **attrs)
            for ba, bb in ((1, 0), (0, 1), (1, 1)):
                left = ("6 B S" if ta else "S B 6") if ba else a
                right = ("T B 6" if tb else "6 B T") if bb else b
                batch = {"transBatchA": ba, "transBatchB": bb}
                found[f"FusedMatMul batch {ta}{tb}{ba}{bb}"] = form(
                    "FusedMatMul", x(left), x(right), **attrs, **batch
                )
    found |= {
        "FusedMatMul broadcast": form("FusedMatMul", x("B 4 S 6"), w("6 5"), alpha=2.0),
        "FusedMatMul weight": form("FusedMatMul", x("B S 6"), w("5 6"), transB=1),
        "FusedMatMul vector": form("FusedMatMul", x("6"), x("B 6 T"), alpha=0.5),
        "FusedMatMul double": form("FusedMatMul", x("B S 6", "f64"), x("6 T", "f64"), types=("f64",)),
        "FusedMatMul rank 4": form("FusedMatMul", x("S B 4 6"), x("B 4 T 6"), transBatchA=1, transB=1),
        "TransposeMatMul": form("TransposeMatMul", x("B S 6"), x("B T 6"), transB=1, alpha=0.2),
        "GemmFastGelu": form("GemmFastGelu", x("B S 6"), w("6 5"), w("5"), wanted=gemm_gelu),
        "GemmFastGelu plain": form("GemmFastGelu", x("B S 6"), w("6 5"), wanted=gemm_gelu),
        "MatMulInteger16": form("MatMulInteger16", x("S 6", "i16"), x("6 T", "i16"), types=("i32",)),
    }
    activations: dict[str, dict[str, float]] = {
        "Relu": {}, "Tanh": {}, "Sigmoid": {}, "LeakyRelu": {"activation_alpha": 0.2}, "Softplus": {},
        "Elu": {"activation_alpha": 0.4}, "Softsign": {}, "ThresholdedRelu": {"activation_alpha": 0.5},
        "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4},
        "Selu": {"activation_alpha": 1.6, "activation_gamma": 1.05},
        "ParametricSoftplus": {"activation_alpha": 1.6, "activation_beta": 1.05},
        "ScaledTanh": {"activation_alpha": 1.6, "activation_beta": 1.05},
    }  # fmt: skip
    for name, more in activations.items():
        found[f"FusedGemm {name}"] = form(
            "FusedGemm", x("S 6"), w("6 5"), w("5"), activation=name, alpha=0.5, beta=2.0, **more
        )
    found["FusedGemm transposed"] = form(
        "FusedGemm", x("6 S"), w("5 6"), transA=1, transB=1, activation="Relu"
    )
    found["FusedGemm bias"] = form("FusedGemm", x("S 6"), x("6 T"), x("S 1"), activation="Relu")
    for name in ("Relu", "Tanh", "Sigmoid"):
        found[f"FusedMatMulActivation {name}"] = form(
            "FusedMatMulActivation", x("B S 6"), x("B T 6"), activation=name, transB=1, alpha=0.4,
            wanted=lambda a, b, f=name: [ACT[f](0.4 * a @ b.swapaxes(1, 2)).astype(np.float32)],
        )  # fmt: skip
    return found


ACT = {
    "Relu": lambda a: np.maximum(a, 0),
    "Tanh": np.tanh,
    "Sigmoid": lambda a: 1 / (1 + np.exp(-a)),
}


def gemm_gelu(a: Array, b: Array, bias: Array | None = None) -> list[Array]:
    return [fast_gelu(a @ b + (0 if bias is None else bias))]


# ---------------------------------------------------------------- convolutions, images

IMAGE = ({"B": 2, "I": 7, "J": 5}, {"B": 1, "I": 9, "J": 11})


def _images() -> dict[str, Form]:
    def conv(*given: In | None, op: str = "FusedConv", **more: Any) -> Form:
        return form(op, *given, sizes=IMAGE, **more)

    data, weight = x("B 4 I J"), w("6 4 3 3")
    found = {
        f"FusedConv {name}": conv(data, weight, w("6"), activation=name, pads=[1] * 4, **more)
        for name, more in {
            "Relu": {}, "Tanh": {}, "Sigmoid": {}, "LeakyRelu": {"activation_params": [0.1]},
            "Clip": {"activation_params": [-0.5, 0.7]}, "HardSigmoid": {"activation_params": [0.2, 0.6]},
        }.items()
    }  # fmt: skip
    pool_attrs = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 0]}
    return found | {
        "FusedConv sum": conv(data, weight, w("6"), x("B 6 I J"), activation="Relu", pads=[1] * 4),
        "FusedConv sum without bias": conv(data, weight, None, x("B 6 I J"), activation="Relu", pads=[1] * 4),
        "FusedConv plain": conv(data, weight),
        "FusedConv group": conv(data, w("4 1 3 3"), group=4, strides=[2, 2], activation="Relu"),
        "FusedConv same": conv(data, weight, auto_pad="SAME_UPPER", strides=[2, 1], activation="Relu"),
        "FusedConv 1d": conv(x("B 4 I"), w("6 4 3"), dilations=[2], activation="Tanh"),
        "NhwcConv": conv(
            x("B I J 4"),
            weight,
            w("6"),
            op="NhwcConv",
            pads=[1] * 4,
            strides=[2, 1],
            wanted=lambda a, b, c: [nhwc_conv(a, b, c)],
        ),
        "NhwcMaxPool": conv(x("B I J 4", "u8"), op="NhwcMaxPool", types=("u8",), **pool_attrs),
        "NhwcMaxPool signed": conv(
            x("B I J 4", "i8"), op="NhwcMaxPool", types=("i8",), kernel_shape=[2, 2], ceil_mode=1
        ),
        "ConvTransposeWithDynamicPads": conv(
            data,
            w("4 5 3 3"),
            x("4", "i64", low=0, high=2),
            w("5"),
            op="ConvTransposeWithDynamicPads",
            strides=[2, 2],
        ),
        "ConvTransposeWithDynamicPads fixed": conv(
            data,
            w("4 5 3 3"),
            w("4", "i64", low=1, high=2),
            op="ConvTransposeWithDynamicPads",
        ),
        "GridSample": conv(data, x("B 3 5 2"), op="GridSample"),
        "GridSample nearest": conv(data, x("B 3 5 2"), op="GridSample", mode="nearest", align_corners=1),
        "GridSample bicubic": conv(
            data, x("B 3 5 2"), op="GridSample", mode="bicubic", padding_mode="border"
        ),
        "GridSample reflection": conv(
            data, x("B 3 5 2"), op="GridSample", mode="bilinear", padding_mode="reflection"
        ),
        **_crops(),
        **_group_norms(),
    }


def nhwc_conv(a: Array, weight: Array, bias: Array) -> Array:
    """Padded by 1, strides 2 and 1, as sums over the window."""
    padded = np.pad(a, [(0, 0), (1, 1), (1, 1), (0, 0)])
    rows, columns = (a.shape[1] - 1) // 2 + 1, a.shape[2]
    y = np.zeros((a.shape[0], rows, columns, weight.shape[0]), np.float64) + bias
    for i in range(3):
        for j in range(3):
            part = padded[:, i : i + 2 * rows - 1 : 2, j : j + columns]
            y += part.astype(np.float64) @ weight[:, :, i, j].T
    return y.astype(np.float32)


def boxes(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    """Corners between -0.2 and 1.2."""
    return rng.random(shape) * 1.4 - 0.2


def _crops() -> dict[str, Form]:
    sizes = ({"B": 2, "I": 7, "J": 5, "R": 3}, {"B": 1, "I": 4, "J": 6, "R": 1})
    which = x("R", "i32", make=lambda rng, shape, sizes: rng.integers(0, sizes["B"], shape))
    given = (x("B 3 I J"), x("R 4", make=boxes), which)
    found = {
        f"CropAndResize {mode} {value}": form(
            "CropAndResize", *given, w("2", "i32", low=3, high=4), mode=mode, extrapolation_value=value,
            sizes=sizes,
        )
        for mode in ("bilinear", "nearest")
        for value in (0.0, -1.5)
    }  # fmt: skip
    one = w("2", "i32", low=1, high=2)
    any_ = x("2", "i32", low=1, high=3)
    return found | {
        "CropAndResize one": form("CropAndResize", *given, one, sizes=sizes),
        "CropAndResize at run time": form("CropAndResize", *given, any_, sizes=sizes * 3),
    }


def group_norm(a: Array, gamma: Array, beta: Array, groups: int, epsilon: float, silu: bool) -> Array:
    """Channels last."""
    wide = a.astype(np.float64)
    split = wide.reshape(a.shape[0], -1, groups, a.shape[-1] // groups)
    mean, variance = split.mean((1, 3), keepdims=True), split.var((1, 3), keepdims=True)
    y = ((split - mean) / np.sqrt(variance + epsilon)).reshape(a.shape) * gamma + beta
    return np.asarray((y / (1 + np.exp(-y)) if silu else y).astype(a.dtype))


def _group_norms() -> dict[str, Form]:
    last, scale = x("B I J 6"), (w("6"), w("6"))

    def skipped(a: Array, g: Array, b: Array, skip: Array, bias: Array | None = None) -> list[Array]:
        if skip.ndim == 2:
            skip = skip[:, None, None]
        total = a + skip + (0 if bias is None else bias)
        return [group_norm(total, g, b, 2, 1e-5, True), total]

    def first(a: Array, g: Array, b: Array) -> list[Array]:
        return [group_norm(a.transpose(0, 2, 3, 1), g, b, 3, 1e-3, False).transpose(0, 3, 1, 2)]

    more = {"sizes": IMAGE, "groups": 2, "activation": 1}
    return {
        "GroupNorm": form("GroupNorm", last, *scale, **more,
                          wanted=lambda a, g, b: [group_norm(a, g, b, 2, 1e-5, True)]),
        "GroupNorm channels first": form("GroupNorm", x("B 6 I J"), *scale, channels_last=0, groups=3,
                                         activation=0, epsilon=1e-3, sizes=IMAGE, wanted=first),
        "SkipGroupNorm": form("SkipGroupNorm", last, *scale, last, w("6"), **more, outputs=2, wanted=skipped),
        "SkipGroupNorm per batch": form("SkipGroupNorm", last, *scale, x("B 6"), **more, outputs=2,
                                        wanted=skipped),
        "SkipGroupNorm broadcast": form("SkipGroupNorm", last, *scale, x("B 1 1 6"), **more, outputs=2,
                                        wanted=skipped),
    }  # fmt: skip


FORMS = {**_norms(), **_embedding(), **_activations(), **_products(), **_images()}

test_form, test_form_of_unrelated_sizes, test_compiled_form = form_tests(FORMS)
