"""Every form of com.microsoft's ops on packed and quantised tensors agrees with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from op_forms import Array, Form, In, form, form_tests, k, onnx_model, steps_of, w, x

from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.importer import import_model

ROWS = ({"B": 2, "S": 3}, {"B": 1, "S": 1}, {"B": 3, "S": 17})


# ---------------------------------------------------------------- packed weights


def _nbits() -> dict[str, Form]:
    def packed(
        bits: int, block: int, depth: int, *more: In | None, zero: str = "", t: str = "f32",
        data: str = "B S {}", columns: int = 24, **attrs: Any,
    ) -> Form:  # fmt: skip
        blocks = -(-depth // block)
        zeros = {
            "": None,
            "packed": w(f"{columns} {-(-blocks * bits // 8)}", "u8"),
            "flat": w(f"{columns * -(-blocks * bits // 8)}", "u8"),
            "float": w(
                f"{columns} {blocks}", t, make=lambda rng, shape, s: rng.integers(0, 1 << bits, shape)
            ),
        }[zero]
        scales = w(f"{columns} {blocks}", t, make=lambda rng, shape, s: rng.uniform(0.05, 0.2, shape))
        loose = 6e-2 if t == "f16" else 3e-4
        return form(
            "MatMulNBits", x(data.format(depth), t), w(f"{columns} {blocks} {block * bits // 8}", "u8"),
            scales, zeros, *more, K=depth, N=columns, bits=bits, block_size=block, sizes=ROWS, types=(t,),
            atol=loose, rtol=loose * 5, **attrs,
        )  # fmt: skip

    found = {}
    for bits in (2, 4, 8):
        for block in (16, 32, 64, 128, 256):
            for zero in ("", "packed"):
                found[f"{bits} bits of {block}, {zero or 'no'} zeros"] = packed(bits, block, 288, zero=zero)
    return found | {
        "float zeros": packed(4, 32, 96, zero="float"),
        "flat zeros": packed(4, 32, 96, zero="flat"),
        "odd depth": packed(4, 32, 75, zero="packed"),
        "odd depth, 8 bits": packed(8, 16, 33, zero="packed"),
        "odd depth, 2 bits": packed(2, 16, 50, zero="packed"),
        "odd columns": packed(4, 16, 48, zero="packed", columns=7),
        "bias": packed(4, 32, 64, None, w("24")),
        "bias, zeros": packed(8, 32, 64, None, w("24"), zero="packed"),
        "groups in order": packed(4, 16, 64, k(np.arange(64) // 16, "i32")),
        "groups": packed(4, 16, 64, k(np.arange(64) * 7 % 64 // 16, "i32"), zero="float"),
        "groups, bias": packed(4, 16, 64, k(np.arange(64) * 5 % 64 // 16, "i32"), w("24")),
        "rank 2": packed(4, 32, 64, data="S {}"),
        "rank 4": packed(4, 32, 64, data="B 2 S {}"),
        "level 4": packed(4, 32, 64, zero="packed", accuracy_level=4),
        "level 4, 8 bits": packed(8, 64, 192, accuracy_level=4),
        "level 1": packed(4, 32, 64, zero="packed", accuracy_level=1),
        "half": packed(4, 32, 64, zero="packed", t="f16"),
        "half, float zeros": packed(4, 32, 64, zero="float", t="f16"),
        "half, 8 bits": packed(8, 32, 64, t="f16"),
        "half, bias": packed(4, 32, 64, None, w("24", "f16"), t="f16"),
    }


def _gathered() -> dict[str, Form]:
    def table(
        bits: int, shape: str, scales: str, *, zero: str | None = None, ids: str = "B S", rows: int = 10,
        t: str = "f32", kind: str = "u8", index: str = "i64", at: Callable[..., In] = x, **attrs: Any,
    ) -> Form:  # fmt: skip
        more = {} if kind != "u8" else {"bits": bits}
        return form(
            "GatherBlockQuantized", w(shape, kind), at(ids, index, low=-rows, high=rows),
            w(scales, t, make=lambda rng, shape, s: rng.uniform(0.05, 0.2, shape)),
            None if zero is None else w(zero, kind), **more, **attrs, types=(t,),
            atol=1e-2 if t == "f16" else 1e-5,
        )  # fmt: skip

    return {
        "4 bits": table(4, "10 32", "10 2", block_size=32),
        "4 bits, zeros": table(4, "10 32", "10 2", zero="10 1", block_size=32),
        "8 bits": table(8, "10 64", "10 4", block_size=16),
        "8 bits, zeros": table(8, "10 64", "10 4", zero="10 4", block_size=16),
        "2 bits": table(2, "10 32", "10 4", block_size=32),
        "2 bits, zeros": table(2, "10 32", "10 4", zero="10 1", block_size=32),
        "default block": table(4, "10 128", "10 2"),
        "i32 indices": table(4, "10 32", "10 2", block_size=32, index="i32"),
        "one index": table(4, "10 32", "10 2", block_size=32, ids=""),
        "rank 3": table(4, "10 3 32", "10 3 2", zero="10 3 1", block_size=32, quantize_axis=2),
        "negative axis": table(4, "10 3 32", "10 3 2", block_size=32, quantize_axis=-1),
        "half": table(4, "10 32", "10 2", block_size=32, t="f16"),
        "u4": table(4, "10 48", "10 3", block_size=16, kind="u4"),
        "u4, zeros": table(4, "10 48", "10 3", zero="10 3", block_size=16, kind="u4"),
        "i4": table(4, "10 48", "10 3", block_size=16, kind="i4"),
        "i4, zeros": table(4, "10 48", "10 3", zero="10 3", block_size=16, kind="i4"),
        "u4, other axis": table(4, "32 10", "2 10", block_size=16, kind="u4", gather_axis=1, quantize_axis=0),
        "u4, gathered axis in blocks": table(
            4, "32 10", "2 10", zero="2 10", block_size=16, kind="u4", gather_axis=0, quantize_axis=0, rows=32
        ),
        "u4, gathered axis in blocks, constant indices": table(
            4, "32 10", "2 10", zero="2 10", block_size=16, kind="u4", gather_axis=0, quantize_axis=0,
            rows=32, ids="3 5", at=w,
        ),
        "u4, ragged": table(4, "10 40", "10 3", block_size=16, kind="u4"),
        "u4, elements of rows": table(
            4, "32 10", "2 10", block_size=16, kind="u4", gather_axis=1, quantize_axis=0
        ),
        "not there": table(4, "10 32", "10 2", block_size=32, rows=14),
        "not there, blocks": table(
            4, "32 10", "2 10", block_size=16, kind="i4", gather_axis=0, quantize_axis=0, rows=40
        ),
    } | {
        f"{kind} in blocks of {block}, {own} scales, axis {axis}": floats(kind, own, block, axis)
        for kind in ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1")
        for block, own in ((16, "10 2"), (16, "1 2"), (0, "10 1"), (0, "1 1"))
        for axis in (0, 1)
    }


def floats(kind: str, scales: str, block: int, axis: int) -> Form:
    """A table of codes of floats."""
    table = w("10 32", kind, make=lambda rng, shape, s: rng.standard_normal(shape))
    return form(
        "GatherBlockQuantized", table, x("B S", "i64", low=-10, high=10),
        w(scales, make=lambda rng, shape, s: rng.uniform(0.05, 0.2, shape)),
        block_size=block, gather_axis=axis, version=23,
    )  # fmt: skip


def _fours() -> dict[str, Form]:
    """MatMulBnb4."""

    def packed(depth: int, columns: int, block: int, kind: int, fixed: bool = True, **attrs: Any) -> Form:
        make = w if fixed else x
        count, forward = depth * columns, attrs.get("transB", 1)
        top = make(f"{-(-count // block)}", make=lambda rng, shape, s: rng.uniform(0.1, 2, shape))
        return form(
            "MatMulBnb4", x(f"B S {depth if forward else columns}"), make(f"{-(-count // 2)}", "u8"), top,
            K=depth, N=columns, block_size=block, quant_type=kind, **attrs,
        )  # fmt: skip

    found = {
        f"{name} {depth} by {columns} in blocks of {block}": packed(depth, columns, block, kind)
        for kind, name in enumerate(("fp4", "nf4"))
        for depth, columns, block in ((64, 6, 32), (40, 5, 16), (33, 3, 32), (7, 3, 16))
    }
    found["weights at run time"] = packed(64, 6, 32, 1, fixed=False)
    return found


def test_weights_of_four_bits_as_they_stand() -> None:
    """ONNX Runtime's kernel takes weights that are not transposed for [K, N]: by its other form."""
    rng = np.random.default_rng(2)
    codes, top = rng.integers(0, 256, 60).astype(np.uint8), rng.uniform(0.1, 2, 8).astype(np.float32)
    own = {"K": 24, "N": 5, "block_size": 16, "quant_type": 1}
    found = []
    for rows, more in ((np.eye(24), {}), (np.eye(5), {"transB": 0})):
        f = form("MatMulBnb4", x("S T"), k(codes, "u8"), k(top), **own, **more)
        module = import_model(onnx_model(f, "fours"))
        (y,) = run_module(module, {"x0": rows.astype(np.float32)}, OPS)
        found.append(y)
    np.testing.assert_allclose(found[0].T, found[1])


# ---------------------------------------------------------------- ordinary ops on quantised tensors


def mean_of_bytes(a: Array, scale: Array, zero: Array, step: Array, origin: Array) -> list[Array]:
    """Over axes 1 and 3; ONNX Runtime has no kernel."""
    y = ((a.astype(np.float64) - float(zero)) * float(scale)).mean((1, 3)) / float(step)
    return [np.clip(np.rint(y) + float(origin), 0, 255).astype(np.uint8)]


def _ordinary() -> dict[str, Form]:
    found = {
        "QLinearReduceMean": form(
            "QLinearReduceMean", x("B 3 S T", "u8"), k(0.1), k(9, "u8"), k(0.05), k(30, "u8"), axes=[1, 3],
            keepdims=0, types=("u8",), steps=1, wanted=mean_of_bytes,
        )
    }  # fmt: skip
    sizes = ({"B": 2, "I": 7, "J": 5}, {"B": 1, "I": 4, "J": 9})
    for t in ("u8", "i8"):
        z, y = (k(120 if t == "u8" else -7, t), k(9, t))
        low = k(0 if t == "u8" else -128, t)
        a, data = (x("B 3 I J", t), k(0.1), z), x("B 3 I J", t)
        prob = (k(1 / 256), low)

        def q(op: str, *given: In | None, t: str = t, **more: Any) -> Form:
            return form(op, *given, types=(t,), steps=1, **({"sizes": sizes} | more))

        found |= {
            f"QLinearAdd {t}": q("QLinearAdd", *a, data, k(0.05), y, k(0.2), z),
            f"QLinearAdd scalar {t}": q("QLinearAdd", *a, x("", t), k(0.05), y, k(0.2), z),
            f"QLinearAdd broadcast {t}": q("QLinearAdd", *a, x("J", t), k(0.05), y, k(0.2), z),
            f"QLinearMul {t}": q("QLinearMul", *a, data, k(0.05), y, k(0.4), z),
            f"QLinearMul broadcast {t}": q("QLinearMul", *a, x("3 1 1", t), k(0.05), y, k(0.4), z),
            f"QLinearSigmoid {t}": q("QLinearSigmoid", *a, *prob),
            f"QLinearLeakyRelu {t}": q("QLinearLeakyRelu", *a, k(0.1), y, alpha=0.2),
            f"QLinearGlobalAveragePool {t}": q("QLinearGlobalAveragePool", *a, k(0.05), y),
            f"QLinearGlobalAveragePool last {t}": q(
                "QLinearGlobalAveragePool", x("B I J 3", t), k(0.1), z, k(0.05), y, channels_last=1
            ),
            f"QLinearAveragePool {t}": q(
                "QLinearAveragePool", *a, k(0.1), y, kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1]
            ),
            f"QLinearAveragePool counted {t}": q(
                "QLinearAveragePool", *a, k(0.1), y, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1
            ),
            f"QLinearAveragePool ceil {t}": q(
                "QLinearAveragePool", *a, k(0.1), y, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1
            ),
            f"QLinearAveragePool same {t}": q(
                "QLinearAveragePool", *a, k(0.1), y, kernel_shape=[3, 3], auto_pad="SAME_UPPER"
            ),
            f"QLinearAveragePool last {t}": q(
                "QLinearAveragePool", x("B I J 3", t), k(0.1), z, k(0.1), y, kernel_shape=[2, 2],
                pads=[1, 0, 0, 1], channels_last=1,
            ),
            f"QLinearSoftmax {t}": q("QLinearSoftmax", *a, *prob, axis=-1, opset=13),
            f"QLinearSoftmax axis {t}": q("QLinearSoftmax", *a, *prob, axis=1, opset=13),
            f"QLinearSoftmax old {t}": q("QLinearSoftmax", *a, *prob, axis=2, opset=12),
            f"QLinearConcat {t}": q("QLinearConcat", k(0.2), y, *a, x("B 2 I J", t), k(0.05), y, axis=1),
            f"QLinearConcat last {t}": q(
                "QLinearConcat", k(0.2), y, *a, x("B 3 I 2", t), k(0.2), y, *a, axis=-1
            ),
            f"QLinearWhere {t}": q("QLinearWhere", x("B 3 I J", "bool"), *a, data, k(0.05), y, k(0.2), z),
            f"QLinearWhere broadcast {t}": q(
                "QLinearWhere", x("I J", "bool"), *a, x("", t), k(0.05), y, k(0.2), z
            ),
            f"QLinearConv {t}": q(
                "QLinearConv", *a, w("4 3 3 3", "i8"), k(0.01), k(0, "i8"), k(0.3), y,
                w("4", "i32", low=-99, high=99), pads=[1] * 4,
            ),
            f"QLinearConv last {t}": q(
                "QLinearConv", x("B I J 4", t), k(0.1), z, w("4 1 3 3", "i8"), w("4", make=steps_of),
                k([0] * 4, "i8"), k(0.3), y, group=4, channels_last=1, strides=[2, 1],
            ),
        }  # fmt: skip
    return found


# ---------------------------------------------------------------- products


def _products() -> dict[str, Form]:
    found = {}
    for t, s in (("u8", "i8"), ("u8", "u8"), ("i8", "i8")):
        za, zb = k(11, t), k(3, s)
        zy = k(5, t)
        rows, columns = k([3] * 6, s), w("6", make=steps_of)
        bias = w("6", "i32", low=-5000, high=5000)

        def gemm(*given: In | None, t: str = t, **more: Any) -> Form:
            types = (t,) if len(given) > 7 else ("f32",)
            return form("QGemm", *given, sizes=ROWS, types=types, steps=1, **more)

        def to_float(*given: In | None, **more: Any) -> Form:
            # sums of up to 2e5, of which f32 keeps 1e-2
            return form("MatMulIntegerToFloat", *given, sizes=ROWS, atol=2e-3, **more)

        a, b = x("S 20", t), w("20 6", s)
        found |= {
            f"QGemm {t} {s}": gemm(a, k(0.1), za, b, k(0.02), zb, bias, k(0.5), zy),
            f"QGemm per column {t} {s}": gemm(a, k(0.1), za, b, columns, rows, bias, k(0.5), zy),
            f"QGemm no bias {t} {s}": gemm(a, k(0.1), za, b, k(0.02), zb, None, k(0.5), zy),
            f"QGemm float {t} {s}": gemm(a, k(0.1), za, b, columns, rows, bias),
            f"QGemm transposed {t} {s}": gemm(
                x("20 S", t), k(0.1), za, w("6 20", s), columns, rows, bias, k(0.5), zy, transA=1, transB=1
            ),
            f"QGemm alpha {t} {s}": gemm(a, k(0.1), za, b, k(0.02), zb, bias, k(0.5), zy, alpha=0.5),
            f"MatMulIntegerToFloat {t} {s}": to_float(x("B S 20", t), b, k(0.1), k(0.02)),
            f"MatMulIntegerToFloat zeros {t} {s}": to_float(
                x("B S 20", t), b, k(0.1), columns, za, rows, w("6")
            ),
            f"MatMulIntegerToFloat batch {t} {s}": to_float(
                x("B S 20", t), x("B 20 S", s), x("1"), x(""), x("1", t), x("", s)
            ),
        }  # fmt: skip
    for s in ("i8", "u8"):
        found |= {
            f"DynamicQuantizeMatMul {s}": dynamic(w("20 6", s), k(0.02)),
            f"DynamicQuantizeMatMul zero {s}": dynamic(w("20 6", s), k(0.02), k(5, s), w("6")),
            f"DynamicQuantizeMatMul per column {s}": dynamic(
                w("20 6", s), w("6", make=steps_of), k([2, 0, 1, 4, 3, 5], s), w("6")
            ),
            f"DynamicQuantizeMatMul batch {s}": dynamic(x("B 20 S", s), k(0.02)),
        }
    return found


def dynamic(*more: In | None) -> Form:
    return form("DynamicQuantizeMatMul", x("B S 20"), *more, sizes=ROWS)


# ---------------------------------------------------------------- quantised attention and embeddings


def first_two(rng: np.random.Generator, shape: tuple[int, ...], sizes: Any) -> Array:
    """A mask that keeps two columns."""
    return np.broadcast_to(np.arange(shape[1]) < 2, shape)


def _attention() -> dict[str, Form]:
    sizes = ({"B": 2, "S": 3, "P": 4, "C": 7}, {"B": 1, "S": 1, "P": 6, "C": 7})
    fresh = ({"B": 2, "S": 3, "P": 0, "C": 3}, {"B": 1, "S": 5, "P": 0, "C": 5})

    def q(*more: In | None, s: str = "i8", scale: In | None = None, **attrs: Any) -> Form:
        given = (x("B S 16", "u8"), w("16 96", s), w("96"), k(0.02), scale or k(0.01), *more)
        own = {"num_heads": 4} | attrs
        return form("QAttention", *given, atol=1e-4, **({"sizes": fresh} | own))

    zeros = (k(120, "u8"), k(0, "i8"))
    lengths = x("B", "i32", make=lambda rng, shape, s: rng.integers(1, s["C"] + 1, shape))
    return {
        "plain": q(),
        "zeros": q(None, *zeros),
        "causal": q(None, *zeros, unidirectional=1),
        "mask": q(x("B C", "i32", make=first_two), *zeros),
        "lengths": q(lengths, *zeros),
        "past": q(None, *zeros, x("2 B 4 P 8"), unidirectional=1, outputs=2, sizes=sizes),
        "unsigned": q(None, k(120, "u8"), k(128, "u8"), s="u8"),
        "per column": q(None, k(120, "u8"), k([1] * 96, "i8"), scale=w("96", make=steps_of)),
    }


def _embedding() -> dict[str, Form]:
    ids, segments = x("B S", "i32", low=0, high=9), x("B S", "i32", low=0, high=2)
    tables = (w("9 8", "u8"), w("12 8", "u8"))
    scale = (w("8", "u8"), w("8", "u8"))
    mask = x("B S", "i32", make=first_two)
    numbers = (k(0.02), k(0.01), k(0.03), k(0.01), k(0.02))
    zeros = tuple(k(z, "u8") for z in (120, 130, 128, 3, 127))

    def q(*given: In | None) -> Form:
        return form("QEmbedLayerNormalization", *given, outputs=2, types=("f32", "i32"), epsilon=1e-6)

    none = (numbers[0], numbers[1], None, *numbers[3:], zeros[0], zeros[1], None, *zeros[3:])
    return {
        "all": q(ids, segments, *tables, w("2 8", "u8"), *scale, mask, *numbers, *zeros),
        "plain": q(ids, None, *tables, None, *scale, None, *none),
    }


def _codes() -> dict[str, Form]:
    """QuantizeLinear and DequantizeLinear of the domain."""
    found = {}
    for t in ("u8", "i8", "u16", "i16", "u4", "i4"):
        rows = (k([0.1, 0.2, 0.05]), k([1, 2, 3], t))
        packed = t.endswith("4")  # ONNX Runtime takes and gives no arrays of these
        data = (w("2 5 6", t), w("2 3 4", t)) if packed else (x("B S 6", t), x("B 3 S", t))
        found |= {
            f"DequantizeLinear {t}": form("DequantizeLinear", data[0], k(0.1), k(3, t)),
            f"DequantizeLinear axis {t}": form("DequantizeLinear", data[1], *rows, axis=1),
        }
        if not packed:
            wide = x("B S 6", scale=3.0)
            found |= {
                f"QuantizeLinear {t}": form("QuantizeLinear", wide, k(0.1), k(3, t), types=(t,)),
                f"QuantizeLinear axis {t}": form("QuantizeLinear", x("B 3 S"), *rows, types=(t,), axis=1),
            }
    return found | {
        "DequantizeLinear i32": form("DequantizeLinear", x("B S 6", "i32", low=-9999, high=9999), k(0.1)),
        "QuantizeLinear no zero": form("QuantizeLinear", x("B S 6"), k(0.1), types=("u8",)),
    }


def _lstm() -> dict[str, Form]:
    sizes = ({"T": 4, "B": 2}, {"T": 1, "B": 1}, {"T": 9, "B": 3})

    def lstm(n: int, *more: In | None, s: str = "i8", per: int = 1, zero: int = 0, **attrs: Any) -> Form:
        direction = {1: {}, 2: {"direction": "bidirectional"}}[n]
        shape = f"{n}" if per == 1 else f"{n} 20"
        given = [x("T B 3"), w(f"{n} 3 20", s), w(f"{n} 5 20", s), *more]
        given += [None] * (8 - len(given))
        points = [w(shape, make=steps_of), w(shape, s, low=zero, high=zero + 1)]
        return form(
            "DynamicQuantizeLSTM", *given, *points, *points, hidden_size=5, outputs=3, sizes=sizes, atol=1e-4,
            **(direction | attrs),
        )  # fmt: skip

    found = {}
    for s in ("i8", "u8"):
        found |= {
            f"forward {s}": lstm(1, w("1 40"), s=s, zero=0 if s == "i8" else 128),
            f"bidirectional {s}": lstm(2, w("2 40"), s=s, zero=0 if s == "i8" else 128),
            f"per channel {s}": lstm(1, w("1 40"), s=s, per=20, zero=0 if s == "i8" else 128),
        }
    lengths = x("B", "i32", make=lambda rng, shape, z: rng.integers(1, z["T"] + 1, shape))
    states = (x("1 B 5"), x("1 B 5"))
    return found | {
        "reverse": lstm(1, w("1 40"), direction="reverse"),
        "no bias": lstm(1),
        "states": lstm(1, w("1 40"), None, *states),
        "lengths": lstm(1, w("1 40"), lengths, *states),
        "lengths, reverse": lstm(1, w("1 40"), lengths, *states, direction="reverse"),
        "lengths, both": lstm(2, w("2 40"), lengths),
        "peepholes": lstm(1, w("1 40"), None, *states, w("1 15")),
    }


FORMS = {
    f"{op}: {name}": f
    for op, forms in (
        ("MatMulNBits", _nbits()), ("GatherBlockQuantized", _gathered()), ("MatMulBnb4", _fours()),
        ("ordinary", _ordinary()),
        ("product", _products()), ("QAttention", _attention()), ("QEmbedLayerNormalization", _embedding()),
        ("code", _codes()), ("DynamicQuantizeLSTM", _lstm()),
    )
    for name, f in forms.items()
}  # fmt: skip

test_form, test_form_of_unrelated_sizes, test_compiled_form = form_tests(FORMS)
