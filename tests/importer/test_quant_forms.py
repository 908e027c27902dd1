"""Every form of ONNX's own quantising ops and products of bytes agrees with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_forms import Array, Form, In, form, form_tests, k, steps_of, w, x


def std(op: str, *given: In | None, **more: Any) -> Form:
    """A form of an op of ONNX's own domain."""
    return form(op, *given, domain="", **({"version": 21} | more))


def _blocks() -> dict[str, Form]:
    """QuantizeLinear and DequantizeLinear in blocks and with types of their own."""
    found = {}
    for t in ("u8", "i8", "i32", "u16", "i16", "u4", "i4"):
        packed = t.endswith("4")
        for axis, shape, blocks in (
            (0, "32 6", "2 6"),
            (1, "6 32", "6 2"),
            (-1, "6 40", "6 3"),
            (1, "2 32 3", "2 2 3"),
        ):
            data = w(shape, t, low=-99, high=99) if t == "i32" else w(shape, t)
            zero = None if t == "i32" else w(blocks, t)
            found[f"DequantizeLinear blocks {t} {shape} {axis}"] = std(
                "DequantizeLinear", data, w(blocks, make=steps_of), zero, axis=axis, block_size=16
            )
        if not packed:
            more = {"low": -9999, "high": 9999} if t == "i32" else {}
            found[f"DequantizeLinear blocks at run time {t}"] = std(
                "DequantizeLinear", x("B 32 S", t, **more), x("B 2 S", make=steps_of), axis=1, block_size=16
            )
        if t != "i32" and not packed:
            found[f"QuantizeLinear blocks {t}"] = std(
                "QuantizeLinear", x("B 32 S"), x("B 2 S", make=steps_of), x("B 2 S", t, low=0, high=3),
                axis=1, block_size=16, types=(t,), steps=1,
            )  # fmt: skip
            found[f"QuantizeLinear type {t}"] = std(
                "QuantizeLinear", x("B S"), k(0.01), types=(t,), output_dtype=onnx_type(t)
            )
    return found


def _steps() -> dict[str, Form]:
    """QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear with one scale, or one per axis."""
    half = {"types": ("f16",), "atol": 1e-2}
    return {
        "DequantizeLinear half": std("DequantizeLinear", x("B S", "i8"), k(0.1, "f16"), k(3, "i8"), **half),
        "DequantizeLinear half blocks": std(
            "DequantizeLinear",
            w("6 32", "u4"),
            w("6 2", "f16", make=steps_of),
            w("6 2", "u4"),
            axis=1,
            block_size=16,
            **half,
        ),
        "DequantizeLinear output type": std(
            "DequantizeLinear", x("B S", "i8"), k(0.1), k(3, "i8"), version=23, output_dtype=10, **half
        ),
        "DequantizeLinear negative axis": std(
            "DequantizeLinear", x("B S 3", "i8"), k([0.1, 0.2, 0.3]), axis=-1
        ),
        "QuantizeLinear half": std(
            "QuantizeLinear", x("B S", "f16"), k(0.1, "f16"), k(3, "u8"), types=("u8",), steps=1
        ),
        "QuantizeLinear precision": std(
            "QuantizeLinear", x("B S"), k(0.1), k(3, "u8"), version=23, precision=1, types=("u8",)
        ),
        "QuantizeLinear one per axis": std(
            "QuantizeLinear", x("B 1 S"), k([0.1]), k([3], "u8"), types=("u8",)
        ),
        "DequantizeLinear rank 0": std("DequantizeLinear", x("", "u8"), k(0.1), k(3, "u8")),
        "DequantizeLinear rank 1": std(
            "DequantizeLinear", x("3", "u8"), k([0.1, 0.2, 0.3]), k([3, 2, 1], "u8"), axis=0
        ),
        "DynamicQuantizeLinear": std(
            "DynamicQuantizeLinear", x("B S"), outputs=3, types=("u8", "f32", "u8"), steps=1
        ),
        "DynamicQuantizeLinear rank 0": std(
            "DynamicQuantizeLinear", x(""), outputs=3, types=("u8", "f32", "u8"), steps=1
        ),
    }


def _integers() -> dict[str, Form]:
    """ConvInteger and MatMulInteger."""
    return {
        "ConvInteger": std("ConvInteger", x("B 3 S 9", "u8"), w("4 3 1 3", "i8"), types=("i32",)),
        "ConvInteger zeros": std(
            "ConvInteger",
            x("B 3 7 S", "u8"),
            w("4 3 3 1", "u8"),
            x("", "u8"),
            w("", "u8"),
            types=("i32",),
            pads=[1, 0, 1, 0],
            strides=[2, 1],
        ),
        "ConvInteger per channel": std(
            "ConvInteger",
            x("B 4 7 S", "u8"),
            w("6 2 3 1", "i8"),
            x("", "u8"),
            w("6", "i8"),
            types=("i32",),
            pads=[1, 1, 1, 1],
            group=2,
            wanted=grouped_sums,
        ),
        "ConvInteger signed": std(
            "ConvInteger",
            x("B 4 T", "i8"),
            w("4 1 2", "i8"),
            k(-3, "i8"),
            types=("i32",),
            pads=[1, 0],
            group=4,
        ),
        "ConvInteger weights at run time": std(
            "ConvInteger",
            x("B 2 T", "u8"),
            x("3 2 2", "u8"),
            x("", "u8"),
            x("", "u8"),
            types=("i32",),
            pads=[0, 1],
        ),
        "MatMulInteger": std("MatMulInteger", x("B S 6", "u8"), w("6 5", "i8"), types=("i32",)),
        "MatMulInteger zeros": std(
            "MatMulInteger", x("B S 6", "u8"), x("B 6 T", "u8"), x("", "u8"), x("", "u8"), types=("i32",)
        ),
        "MatMulInteger per column": std(
            "MatMulInteger", x("S 6", "u8"), w("6 5", "i8"), k(7, "u8"), w("5", "i8"), types=("i32",)
        ),
        "MatMulInteger signed": std(
            "MatMulInteger", x("S 6", "i8"), w("6 5", "i8"), k(7, "i8"), k(-2, "i8"), types=("i32",)
        ),
        "MatMulInteger vectors": std("MatMulInteger", x("6", "u8"), x("6", "i8"), types=("i32",)),
    }


def _products() -> dict[str, Form]:
    """QLinearMatMul and QLinearConv."""
    return {
        "QLinearMatMul": std(
            "QLinearMatMul",
            x("B S 6", "u8"),
            k(0.1),
            k(9, "u8"),
            x("B 6 T", "u8"),
            k(0.02),
            k(5, "u8"),
            k(0.3),
            k(100, "u8"),
            types=("u8",),
            steps=1,
        ),
        "QLinearMatMul half": std(
            "QLinearMatMul",
            x("B S 6", "i8"),
            k(0.1),
            k(9, "i8"),
            w("6 5", "i8"),
            w("5", make=steps_of),
            k([0] * 5, "i8"),
            k(0.3),
            k(10, "i8"),
            types=("i8",),
            steps=1,
        ),
        "QLinearConv": std(
            "QLinearConv",
            x("B 3 S 9", "u8"),
            k(0.1),
            k(9, "u8"),
            w("4 3 1 3", "u8"),
            k(0.02),
            k(100, "u8"),
            k(0.3),
            k(100, "u8"),
            types=("u8",),
            steps=1,
            pads=[0, 1, 0, 1],
        ),
        "QLinearConv bias": std(
            "QLinearConv",
            x("B 4 S 9", "i8"),
            k(0.1),
            k(9, "i8"),
            w("4 1 3 3", "i8"),
            w("4", make=steps_of),
            k([0] * 4, "i8"),
            k(0.3),
            k(10, "i8"),
            w("4", "i32", low=-999, high=999),
            types=("i8",),
            steps=1,
            group=4,
            pads=[1] * 4,
        ),
    }


def grouped_sums(a: Array, weight: Array, zero: Array, own: Array) -> list[Array]:
    """Two groups, padded by 1, windows of [3, 1]: ONNX Runtime has no zero points per channel here."""
    padded = np.pad(a.astype(np.int64) - int(zero), [(0, 0), (0, 0), (1, 1), (1, 1)])
    parts = weight.astype(np.int64) - own.astype(np.int64).reshape(-1, 1, 1, 1)
    rows = a.shape[2]
    y = np.zeros((a.shape[0], 6, rows, a.shape[3] + 2), np.int64)
    for m in range(6):
        for i in range(3):
            for channel in range(2):
                source = padded[:, m // 3 * 2 + channel, i : i + rows]
                y[:, m] += source * parts[m, channel, i, 0]
    return [y.astype(np.int32)]


def onnx_type(name: str) -> int:
    """The number of an element type."""
    return {"u8": 2, "i8": 3, "u16": 4, "i16": 5}[name]


FORMS = {**_blocks(), **_steps(), **_integers(), **_products()}

test_form, test_form_of_unrelated_sizes, test_compiled_form = form_tests(FORMS, fresh=1)
