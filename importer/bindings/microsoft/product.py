"""Bindings of com.microsoft's matrix products and convolutions with fused activations and scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from smelt.core.dtype import i32
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.standard.conv import conv_of
from smelt.importer.bindings.standard.linear import gemm_of
from smelt.importer.call import Call, OnnxOp
from smelt.importer.domains import MS

# ---------------------------------------------------------------- activations


def _scaled(c: Call, y: Ref, by: float) -> Ref:
    return c.emit("mul", y, c.scalar(by, y))


def _clipped(c: Call, y: Ref, low: float, high: float) -> Ref:
    return c.emit("clip", y, c.scalar(low, y), c.scalar(high, y))


def _selu(c: Call, y: Ref, alpha: float, gamma: float) -> Ref:
    """gamma * elu(y, alpha)"""
    return _scaled(c, c.emit("elu", y, alpha=alpha), gamma)


def _plain(op: str) -> Callable[[Call, Ref], Ref]:
    return lambda c, y: c.emit(op, y)


def _alpha(op: str) -> Callable[..., Ref]:
    return lambda c, y, alpha: c.emit(op, y, alpha=alpha)


# name -> (function of the call, the value and parameters; the parameters' names)
FUSED_ACTIVATIONS: Mapping[str, tuple[Callable[..., Ref], tuple[str, ...]]] = MappingProxyType(
    {
        "": (lambda c, y: y, ()),
        "Relu": (_plain("relu"), ()),
        "Tanh": (_plain("tanh"), ()),
        "Sigmoid": (_plain("sigmoid"), ()),
        "HardSwish": (_plain("hard_swish"), ()),
        "Softplus": (_plain("softplus"), ()),
        "Softsign": (_plain("softsign"), ()),
        "LeakyRelu": (_alpha("leaky_relu"), ("alpha",)),
        "Elu": (_alpha("elu"), ("alpha",)),
        "ThresholdedRelu": (_alpha("thresholded_relu"), ("alpha",)),
        "HardSigmoid": (
            lambda c, y, alpha, beta: c.emit("hard_sigmoid", y, alpha=alpha, beta=beta),
            ("alpha", "beta"),
        ),
        "Clip": (_clipped, ("alpha", "beta")),
        "Selu": (_selu, ("alpha", "gamma")),
        "ScaledTanh": (
            lambda c, y, alpha, beta: _scaled(c, c.emit("tanh", _scaled(c, y, beta)), alpha),
            ("alpha", "beta"),
        ),
        "ParametricSoftplus": (
            lambda c, y, alpha, beta: _scaled(c, c.emit("softplus", _scaled(c, y, beta)), alpha),
            ("alpha", "beta"),
        ),
    }
)


def _activated(c: Call, y: Ref) -> Ref:
    """The node's activation of y; parameters are a list, or attributes of their own."""
    name = c.text("activation", "")
    if name not in FUSED_ACTIVATIONS:
        raise c.unsupported(f"activation '{name}'")
    make, names = FUSED_ACTIVATIONS[name]
    if any(c.given(f"activation_{n}") for n in names):
        values = tuple(c.number(f"activation_{n}") for n in names)
    else:
        values = c.floats("activation_params", ())
    if len(values) != len(names):
        raise c.fail(f"activation '{name}' has {len(values)} parameters, wanted {len(names)}")
    return make(c, y, *values)


# ---------------------------------------------------------------- products


def _fused_matmul(c: Call) -> Ref:
    """alpha * A' @ B'; a transposed batch stands after its rows: [m, *batch, k]."""
    operands = []
    for i, side in ((0, "A"), (1, "B")):
        x, rank = c.x(i), c.type(i).rank
        order = list(range(rank))
        if c.flag(f"transBatch{side}") and rank > 2:
            order = [*order[1:-1], order[0], order[-1]]
        if c.flag(f"trans{side}") and rank > 1:
            order[-2:] = reversed(order[-2:])
        operands.append(c.builder.transpose(x, order))
    y = c.emit("matmul", *operands)
    alpha = c.number("alpha", 1.0)
    return _activated(c, y if alpha == 1.0 else _scaled(c, y, alpha))


def _fused_gemm(c: Call) -> Ref:
    return _activated(c, gemm_of(c))


def _gemm_fast_gelu(c: Call) -> Ref:
    y = c.emit("matmul", c.x(0), c.x(1))
    return c.emit("gelu", c.emit("add", y, c.x(2)) if c.has(2) else y, approximate="tanh")


def _wide_product(c: Call) -> Ref:
    """Of 16-bit integers, summed in 32 bits."""
    return c.emit("matmul", c.cast(c.x(0), i32), c.cast(c.x(1), i32))


# ---------------------------------------------------------------- convolutions


def _fused_conv(c: Call) -> Ref:
    y = conv_of(c, c.x(0), c.x(1), c.optional(2))
    if c.has(3):
        y = c.emit("add", y, c.x(3))
    return _activated(c, y)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("FusedMatMul", 1, _fused_matmul, MS),
    OnnxOp("FusedMatMulActivation", 1, _fused_matmul, MS),
    OnnxOp("TransposeMatMul", 1, _fused_matmul, MS),
    OnnxOp("FusedGemm", 1, _fused_gemm, MS),
    OnnxOp("GemmFastGelu", 1, _gemm_fast_gelu, MS),
    OnnxOp("MatMulInteger16", 1, _wide_product, MS),
    OnnxOp("FusedConv", 1, _fused_conv, MS),
)
