"""Operators that compute or move each element by itself, reduce, convert, or work on bytes -> rows that
benchmarks/ops.py measures."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from op_rows import Made, OpRow, Size, below, spread

_FLAT = ({"n": 1, "m": 50}, {"n": 100, "m": 97}, {"n": 500, "m": 1000})
_MAPS = ({"n": 1, "h": 7, "w": 7}, {"n": 2, "h": 27, "w": 31}, {"n": 1, "h": 56, "w": 56})
_POSITIVE = spread(0.1, 2.0)


def _each(op: str, more: str = "", made: Made | None = None, kind: str = "float", out: str = "") -> OpRow:
    """One input of rank 2, an output of its shape."""
    told = f" <{more}>" if more else ""
    text = f"({kind}[n, m] x) => ({out or kind}[n, m] y) {{ y = {op}{told} (x) }}"
    name = f"{op}{', ' if more else ''}{more}" + (f" of {kind}" if kind != "float" else "")
    return OpRow(name, text, _FLAT, made={"x": made} if made else {})


def _both(
    name: str,
    op: str,
    a: str,
    b: str,
    sizes: tuple[Size, ...],
    kind: str = "float",
    out: str = "",
    made: Mapping[str, Made] | None = None,
    more: str = "",
) -> OpRow:
    """Two inputs of given shapes, an output of the broadcast's rank."""
    rank = max(len(a.split(",")), len(b.split(",")))
    shape = ", ".join("stuvz"[:rank])
    told = f" <{more}>" if more else ""
    text = f"({kind}[{a}] x, {kind}[{b}] z) => ({out or kind}[{shape}] y) {{ y = {op}{told} (x, z) }}"
    return OpRow(f"{op}, {name}", text, sizes, made=made or {})


ELEMENTS = (
    *(
        _each(op)
        for op in ("Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Gelu", "HardSwish", "Mish", "Softplus", "Elu")
    ),
    *(_each(op) for op in ("Sin", "Cos", "Atan", "Floor", "Round", "Sign", "Neg", "Abs", "Reciprocal")),
    *(_each(op, made=_POSITIVE) for op in ("Sqrt", "Log")),
    *(_each(op) for op in ("Tan", "Asin", "Acos", "Sinh", "Cosh", "Asinh", "Atanh", "Selu", "Celu")),
    *(_each(op) for op in ("HardSigmoid", "LeakyRelu", "ThresholdedRelu", "Shrink", "Softsign")),
    _each("Gelu", 'approximate = "tanh"'),
    _each("IsNaN", out="bool"),
    _each("IsInf", out="bool"),
    _each("Not", made=below(2, kind=np.bool_), kind="bool"),
    _each("Abs", made=below(100, -100), kind="int64"),
    _each("Relu", made=below(100, -100, np.int32), kind="int32"),
    *(
        _both(op, op, "n, m", "n, m", _FLAT, made={"x": _POSITIVE, "z": _POSITIVE})
        for op in ("Add", "Mul", "Div", "Pow", "Max", "Min", "Sub")
    ),
    _both("to a power of 2", "Pow", "n, m", "1", _FLAT, made={"z": lambda r, s: np.full(s, 2, np.float32)}),
    _both("row", "Add", "n, m", "m", _FLAT),
    _both("column", "Mul", "n, m", "n, 1", _FLAT),
    _both("row and column", "Add", "n, 1", "1, m", _FLAT),
    _both("channels", "Mul", "n, 64, h, w", "64, 1, 1", _MAPS),
    _both("channels of each", "Mul", "n, 64, h, w", "n, 64, 1, 1", _MAPS),
    _both("plane", "Add", "n, 64, h, w", "1, 1, h, w", _MAPS),
    _both("middle", "Add", "n, h, 1, 64", "1, h, w, 64", _MAPS),
    _both("floats", "Mod", "n, m", "n, m", _FLAT, made={"z": _POSITIVE}, more="fmod = 1"),
    *(
        _both(f"{op} of integers", op, "n, m", "n, m", _FLAT, "int64", made={"z": below(9, 1)})
        for op in ("Add", "Mul", "Div", "Mod")
    ),
    *(_both("floats", op, "n, m", "n, m", _FLAT, out="bool") for op in ("Equal", "Less", "GreaterOrEqual")),
    _both("integers", "Equal", "n, m", "n, 1", _FLAT, "int64", "bool", {"x": below(4), "z": below(4)}),
    *(
        _both("bools", op, "n, m", "n, m", _FLAT, "bool", made=dict.fromkeys("xz", below(2, kind=np.bool_)))
        for op in ("And", "Or", "Xor")
    ),
    _both("bits", "BitwiseAnd", "n, m", "n, m", _FLAT, "int32"),
    _both(
        "bits",
        "BitShift",
        "n, m",
        "n, m",
        _FLAT,
        "uint32",
        made={"z": below(9, kind=np.uint32)},
        more='direction = "LEFT"',
    ),
    _both("slopes of channels", "PRelu", "n, 64, h, w", "64, 1, 1", _MAPS),
    OpRow(
        "Clip",
        "(float[n, m] x, float l, float h) => (float[n, m] y) { y = Clip (x, l, h) }",
        _FLAT,
        made={"l": lambda r, s: np.array(-0.5, np.float32), "h": lambda r, s: np.array(0.5, np.float32)},
    ),
    OpRow(
        "Sum of 4",
        "(float[n, m] a, float[m] b, float[n, 1] c, float[n, m] d)"
        " => (float[n, m] y) { y = Sum (a, b, c, d) }",
        _FLAT,
    ),
    OpRow(
        "Where, row and column",
        "(bool[n, m] c, float[m] x, float[n, 1] z) => (float[n, m] y) { y = Where (c, x, z) }",
        _FLAT,
        made={"c": below(2, kind=np.bool_)},
    ),
    OpRow(
        "Where, scalar",
        "(bool[n, m] c, float[n, m] x, float z) => (float[n, m] y) { y = Where (c, x, z) }",
        _FLAT,
        made={"c": below(2, kind=np.bool_)},
    ),
)


def _cast(source: str, target: str, number: int, made: Made | None = None) -> OpRow:
    return OpRow(
        f"Cast, {source} to {target}",
        f"({source}[n, m] x) => ({target}[n, m] y) {{ y = Cast <to = {number}> (x) }}",
        _FLAT,
        made={"x": made} if made else {},
    )


CASTS = (
    _cast("float", "int64", 7, spread(-100, 100)),
    _cast("float", "int32", 6, spread(-100, 100)),
    _cast("float", "uint8", 2, spread(0, 200)),
    _cast("float", "bool", 9),
    _cast("float", "float16", 10),
    _cast("float", "bfloat16", 16),
    _cast("float", "double", 11),
    _cast("float16", "float", 1),
    _cast("int64", "float", 1),
    _cast("int64", "int32", 6),
    _cast("int32", "int64", 7),
    _cast("bool", "float", 1, below(2, kind=np.bool_)),
    _cast("bool", "int64", 7, below(2, kind=np.bool_)),
    _cast("uint8", "float", 1),
    _cast("double", "float", 1),
)


def _reduced(
    op: str, axes: str, shape: str, sizes: tuple[Size, ...], keep: int = 1, kind: str = "float"
) -> OpRow:
    rank, count = len(shape.split(",")), len(axes.split(","))
    out = ", ".join("stuvz"[: rank - (0 if keep else count)])
    text = (
        f"({kind}[{shape}] x) => ({kind}[{out}] y) {{ a = Constant <value = int64[{count}] {{{axes}}}> () "
        f" y = {op} <keepdims = {keep}> (x, a) }}"
    )
    return OpRow(f"{op} of {shape}{' of ' + kind if kind != 'float' else ''}, axes {axes}", text, sizes)


_CUBES = ({"a": 3, "b": 5, "c": 7}, {"a": 20, "b": 30, "c": 40}, {"a": 50, "b": 100, "c": 100})
REDUCTIONS = (
    *(
        _reduced("ReduceSum", axes, "a, b, c", _CUBES)
        for axes in ("0", "1", "2", "0, 1", "0, 2", "1, 2", "0, 1, 2")
    ),
    *(
        _reduced(op, axes, "a, b, c", _CUBES)
        for op in ("ReduceMax", "ReduceMean", "ReduceL2", "ReduceLogSumExp", "ReduceProd")
        for axes in ("1", "2")
    ),
    _reduced("ReduceSum", "1", "n, 3", ({"n": 10}, {"n": 1000}, {"n": 100000})),
    _reduced("ReduceSum", "1", "n, m", ({"n": 10, "m": 4}, {"n": 20000, "m": 4}, {"n": 50000, "m": 9})),
    _reduced("ReduceMax", "1", "n, m", ({"n": 10, "m": 4}, {"n": 20000, "m": 4}, {"n": 50000, "m": 9})),
    _reduced("ReduceMean", "2, 3", "n, 64, h, w", _MAPS),
    _reduced("ReduceSum", "1", "n, m", _FLAT, 0, "int64"),
    _reduced("ReduceMax", "0", "n, m", _FLAT, 0, "int32"),
    *(
        OpRow(
            f"ArgMax of {kind}, axis {axis}",
            f"({kind}[n, m] x) => (int64[k] y) {{ y = ArgMax <axis = {axis}, keepdims = 0> (x) }}",
            (*_FLAT, {"n": 5000, "m": 3}, {"n": 5000, "m": 12}, {"n": 5000, "m": 30}),
        )
        for kind in ("float", "int32")
        for axis in (0, 1)
    ),
    OpRow(
        "ArgMin, axis 1 of 4",
        "(float[n, 64, h, w] x) => (int64[n, h, w] y) { y = ArgMin <axis = 1, keepdims = 0> (x) }",
        _MAPS,
    ),
    *(
        OpRow(
            f"{op}, axis {axis}",
            f"(float[n, m] x) => (float[n, m] y) {{ y = {op} <axis = {axis}> (x) }}",
            (*_FLAT, {"n": 5000, "m": 3}, {"n": 5000, "m": 12}, {"n": 1, "m": 50000}),
        )
        for op in ("Softmax", "LogSoftmax")
        for axis in (0, 1)
    ),
    OpRow(
        "SoftmaxCrossEntropyLoss",
        "(float[n, c] x, int64[n] t) => (float y) { y = SoftmaxCrossEntropyLoss (x, t) }",
        ({"n": 8, "c": 10}, {"n": 300, "c": 1000}),
        made={"t": below(10)},
    ),
)

_ROWS = ({"n": 2, "m": 10}, {"n": 100, "m": 97}, {"n": 1000, "m": 500})
PLACES = (
    *(
        OpRow(
            f"Concat of {kind}, axis {axis}",
            f"({kind}[n, m] a, {kind}[n, m] b, {kind}[n, m] c) => ({kind}[s, t] y) {{"
            f" y = Concat <axis = {axis}> (a, b, c) }}",
            _ROWS,
        )
        for kind in ("float", "int64")
        for axis in (0, 1)
    ),
    OpRow(
        "Concat of channels",
        "(float[n, 16, h, w] a, float[n, 48, h, w] b) => (float[n, 64, h, w] y)"
        " { y = Concat <axis = 1> (a, b) }",
        _MAPS,
    ),
    OpRow(
        "Concat of columns",
        "(float[n, 1] a, float[n, 1] b, float[n, 2] c) => (float[n, 4] y)"
        " { y = Concat <axis = 1> (a, b, c) }",
        ({"n": 10}, {"n": 1000}, {"n": 100000}),
    ),
    OpRow(
        "Split, last axis",
        "(float[n, 96] x) => (float[n, 32] a, float[n, 32] b, float[n, 32] c) {"
        " a, b, c = Split <axis = 1, num_outputs = 3> (x) }",
        ({"n": 4}, {"n": 200}, {"n": 5000}),
    ),
    OpRow(
        "Split of columns",
        "(float[n, 4] x) => (float[n, 1] a, float[n, 1] b, float[n, 1] c, float[n, 1] d) {"
        " a, b, c, d = Split <axis = 1, num_outputs = 4> (x) }",
        ({"n": 10}, {"n": 1000}, {"n": 100000}),
    ),
    *(
        OpRow(
            f"Transpose {''.join(map(str, perm))} of {kind}",
            f"({kind}[a, b, c] x) => ({kind}[d, e, f] y) {{ y = Transpose <perm = {list(perm)}> (x) }}",
            _CUBES,
        )
        for kind in ("float", "int64", "uint8")
        for perm in ((0, 2, 1), (1, 0, 2), (2, 1, 0), (2, 0, 1))
    ),
    OpRow(
        "Transpose 10, few columns",
        "(float[n, 4] x) => (float[4, n] y) { y = Transpose <perm = [1, 0]> (x) }",
        ({"n": 10}, {"n": 1000}, {"n": 100000}),
    ),
    OpRow(
        "Transpose 10, few rows",
        "(float[4, n] x) => (float[n, 4] y) { y = Transpose <perm = [1, 0]> (x) }",
        ({"n": 10}, {"n": 1000}, {"n": 100000}),
    ),
    *(
        OpRow(
            f"Expand, {name}",
            f"(float[{shape}] x, int64[{rank}] s) => (float[{', '.join('stuvz'[:rank])}] y)"
            " { y = Expand (x, s) }",
            sizes,
            made={"s": lambda rng, shape, to=to: np.array(to)},
        )
        for name, shape, rank, to, sizes in (
            ("rows", "1, m", 2, (300, 1), ({"m": 7}, {"m": 1000})),
            ("columns", "n, 1", 2, (1, 300), ({"n": 7}, {"n": 1000})),
            ("middle", "n, 1, m", 3, (1, 50, 1), ({"n": 7, "m": 5}, {"n": 40, "m": 100})),
            ("scalar", "1", 3, (10, 100, 100), ({},)),
            ("heads", "1, n, 1, m, 64", 5, (1, 1, 4, 1, 1), ({"n": 2, "m": 5}, {"n": 8, "m": 200})),
        )
    ),
    OpRow(
        "Gather of rows",
        "(float[n, m] x, int64[a, b] i) => (float[a, b, m] y) { y = Gather (x, i) }",
        ({"n": 10, "m": 8, "a": 1, "b": 4}, {"n": 1000, "m": 384, "a": 2, "b": 128}),
        made={"i": below(10)},
    ),
    OpRow(
        "Gather of elements",
        "(int64[n] x, int64[a, b] i) => (int64[a, b] y) { y = Gather (x, i) }",
        ({"n": 10, "a": 3, "b": 4}, {"n": 1000, "a": 200, "b": 300}),
        made={"i": below(10)},
    ),
    OpRow(
        "Gather of a column",
        "(float[n, m] x, int64 i) => (float[n] y) { y = Gather <axis = 1> (x, i) }",
        ({"n": 10, "m": 4}, {"n": 10000, "m": 6}),
        made={"i": lambda r, s: np.array(2)},
    ),
    OpRow(
        "Compress, axis 1",
        "(float[n, m] x, bool[m] c) => (float[n, k] y) { y = Compress <axis = 1> (x, c) }",
        _ROWS,
        made={"c": below(2, kind=np.bool_)},
    ),
    OpRow(
        "Compress of all",
        "(float[n, m] x, bool[k] c) => (float[j] y) { y = Compress (x, c) }",
        ({"n": 4, "m": 25, "k": 100}, {"n": 200, "m": 500, "k": 100000}),
        made={"c": below(2, kind=np.bool_)},
    ),
    OpRow(
        "ReverseSequence, time second",
        "(float[n, t, m] x, int64[n] l) => (float[n, t, m] y) {"
        " y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, l) }",
        ({"n": 2, "t": 10, "m": 5}, {"n": 8, "t": 100, "m": 200}, {"n": 100, "t": 300, "m": 1}),
        made={"l": below(10, 1)},
    ),
    OpRow(
        "Pad, last axis",
        "(float[n, m] x) => (float[n, k] y)"
        " { p = Constant <value = int64[4] {0, 1, 0, 2}> ()  y = Pad (x, p) }",
        _ROWS,
    ),
    OpRow(
        "Pad of known and unknown",
        "(float[n, 16, h, w] x, int64[8] p) => (float[s, t, u, v] y) { y = Pad (x, p) }",
        _MAPS,
        made={"p": lambda r, s: np.array([0, 0, 1, 2, 0, 0, 3, 1])},
    ),
    OpRow(
        "Slice of columns",
        "(float[n, 85] x) => (float[n, 4] y) { s = Constant <value = int64[1] {0}> ()"
        " e = Constant <value = int64[1] {4}> ()  a = Constant <value = int64[1] {1}> () "
        " y = Slice (x, s, e, a) }",
        ({"n": 10}, {"n": 25200}),
    ),
    OpRow(
        "Slice by 2 of planes",
        "(float[n, 3, h, w] x) => (float[n, 3, a, b] y) { s = Constant <value = int64[2] {0, 1}> ()"
        " e = Constant <value = int64[2] {1000000, 1000000}> ()  a = Constant <value = int64[2] {2, 3}> ()"
        " t = Constant <value = int64[2] {2, 2}> ()  y = Slice (x, s, e, a, t) }",
        ({"n": 1, "h": 20, "w": 20}, {"n": 1, "h": 320, "w": 320}),
    ),
    OpRow(
        "Range",
        "(int64 n) => (int64[m] y) { z = Constant <value = int64 {0}> ()"
        " o = Constant <value = int64 {1}> ()  y = Range (z, n, o) }",
        ({},),
        made={"n": lambda r, s: np.array(10000)},
    ),
    OpRow(
        "ConstantOfShape",
        "(int64[2] s) => (float[n, m] y) { y = ConstantOfShape (s) }",
        ({},),
        made={"s": lambda r, s: np.array([300, 500])},
    ),
    OpRow(
        "CenterCropPad",
        "(float[n, m] x, int64[2] s) => (float[a, b] y) { y = CenterCropPad (x, s) }",
        ({"n": 20, "m": 30}, {"n": 300, "m": 500}),
        made={"s": lambda r, s: np.array([150, 600])},
    ),
    OpRow(
        "Trilu, upper",
        "(float[n, m] x, int64 k) => (float[n, m] y) { y = Trilu (x, k) }",
        ({"n": 10, "m": 10}, {"n": 500, "m": 500}),
        made={"k": lambda r, s: np.array(1)},
    ),
    OpRow(
        "Det",
        "(float[n, m, m] x) => (float[n] y) { y = Det (x) }",
        ({"n": 1, "m": 3}, {"n": 100, "m": 3}, {"n": 2, "m": 60}),
    ),
)


def _plane(name: str, channels: int, more: str, to: str, sizes: tuple[Size, ...]) -> OpRow:
    """A resize of two axes: by factors, or to extents."""
    scales, extents = (to, "") if "." in to else ("", to)
    given = (
        f"s = Constant <value = float[4] {{1.0, 1.0, {scales}}}> ()  y = Resize <{more}> (x, , s)"
        if scales
        else f"s = Constant <value = int64[2] {{{extents}}}> () "
        f" y = Resize <axes = [2, 3], {more}> (x, , , s)"
    )
    text = f"(float[n, {channels}, h, w] x) => (float[n, {channels}, a, b] y) {{ {given} }}"
    return OpRow(f"Resize of {channels}, {name}", text, sizes)


_PICTURES = ({"n": 1, "h": 16, "w": 16}, {"n": 1, "h": 50, "w": 70}, {"n": 1, "h": 160, "w": 160})
RESIZES = (
    _plane("nearest by 2", 1, 'mode = "nearest"', "2.0, 2.0", _PICTURES),
    _plane(
        "nearest by 2, asymmetric",
        3,
        'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
        "2.0, 2.0",
        _PICTURES,
    ),
    _plane("nearest by 3", 16, 'mode = "nearest"', "3.0, 3.0", _PICTURES),
    _plane("nearest by 0.5", 16, 'mode = "nearest"', "0.5, 0.5", _PICTURES),
    _plane("nearest by 1.7", 16, 'mode = "nearest"', "1.7, 1.3", _PICTURES),
    _plane("nearest to 40 x 60", 16, 'mode = "nearest"', "40, 60", _PICTURES),
    _plane("linear by 2", 64, 'mode = "linear"', "2.0, 2.0", _PICTURES[:2]),
    _plane("linear by 1.7", 3, 'mode = "linear"', "1.7, 1.3", _PICTURES),
    _plane("linear to 224 x 224", 3, 'mode = "linear"', "224, 224", _PICTURES),
    _plane(
        "linear to 224 x 224",
        1,
        'mode = "linear", coordinate_transformation_mode = "align_corners"',
        "224, 224",
        _PICTURES,
    ),
    _plane("cubic to 60 x 60", 3, 'mode = "cubic"', "60, 60", _PICTURES[:2]),
    OpRow(
        "Resize, linear, 1-D",
        "(float[n, 16, w] x) => (float[n, 16, a] y) {"
        " s = Constant <value = float[3] {1.0, 1.0, 2.0}> () "
        ' y = Resize <mode = "linear"> (x, , s) }',
        ({"n": 1, "w": 50}, {"n": 2, "w": 2000}),
    ),
    OpRow(
        "Resize, linear, channels last",
        "(float[n, h, w, 16] x) => (float[n, a, b, 16] y) {"
        " s = Constant <value = float[4] {1.0, 2.0, 2.0, 1.0}> () "
        ' y = Resize <mode = "linear"> (x, , s) }',
        _PICTURES[:2],
    ),
)


def _quantised(op: str, name: str, kind: str, shape: str, sizes: tuple[Size, ...], more: str = "") -> OpRow:
    """QuantizeLinear or DequantizeLinear with a scale and a zero point as constants."""
    source, target = ("float", kind) if op == "QuantizeLinear" else (kind, "float")
    out = ", ".join("stuvz"[: len(shape.split(","))])
    text = (
        f"({source}[{shape}] x) => ({target}[{out}] y) {{ s = Constant <value = float {{0.02}}> () "
        f" z = Constant <value = {kind} {{3}}> ()  y = {op}{more} (x, s, z) }}"
    )
    return OpRow(f"{op}, {name}", text, sizes)


BYTES = (
    _quantised("QuantizeLinear", "uint8", "uint8", "n, m", _FLAT),
    _quantised("QuantizeLinear", "int8", "int8", "n, m", _FLAT),
    _quantised("DequantizeLinear", "uint8", "uint8", "n, m", _FLAT),
    _quantised("DequantizeLinear", "int8", "int8", "n, m", _FLAT),
    OpRow(
        "DynamicQuantizeLinear",
        "(float[n, m] x) => (uint8[n, m] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear (x) }",
        _FLAT,
    ),
    OpRow(
        "MatMulInteger",
        "(uint8[n, m] x, int8[m, k] w) => (int32[n, k] y) { y = MatMulInteger (x, w) }",
        ({"n": 1, "m": 64, "k": 64}, {"n": 50, "m": 200, "k": 300}, {"n": 128, "m": 384, "k": 384}),
    ),
    OpRow(
        "QLinearMatMul",
        "(uint8[n, m] x, uint8[m, k] w) => (uint8[n, k] y) { s = Constant <value = float {0.02}> ()"
        " z = Constant <value = uint8 {128}> ()  y = QLinearMatMul (x, s, z, w, s, z, s, z) }",
        ({"n": 1, "m": 64, "k": 64}, {"n": 50, "m": 200, "k": 300}, {"n": 128, "m": 384, "k": 384}),
    ),
    *(
        OpRow(
            f"{op} of bytes, between floats",
            f"(uint8[n, 32, h, w] x) => (uint8[n, c, a, b] y) {{ s = Constant <value = float {{0.02}}> () "
            f" z = Constant <value = uint8 {{3}}> ()  f = DequantizeLinear (x, s, z)  g = {op}{more} (f) "
            f" y = QuantizeLinear (g, s, z) }}",
            _MAPS,
        )
        for op, more in {
            "MaxPool": " <kernel_shape = [2, 2], strides = [2, 2]>",
            "AveragePool": " <kernel_shape = [2, 2], strides = [2, 2]>",
            "GlobalAveragePool": "",
            "Sigmoid": "",
            "Softmax": " <axis = 1>",
        }.items()
    ),
    OpRow(
        "Add of bytes, between floats",
        "(uint8[n, 32, h, w] x, uint8[n, 32, h, w] v) => (uint8[n, c, a, b] y) {"
        " s = Constant <value = float {0.02}> ()  z = Constant <value = uint8 {3}> () "
        " f = DequantizeLinear (x, s, z)  e = DequantizeLinear (v, s, z)  g = Add (f, e)"
        "  y = QuantizeLinear (g, s, z) }",
        _MAPS,
    ),
    OpRow(
        "MaxPool of bytes",
        "(uint8[n, 32, h, w] x) => (uint8[n, c, a, b] y)"
        " { y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (x) }",
        _MAPS,
    ),
)


def _recurrent(
    name: str, op: str, gates: int, more: str, hidden: int, sizes: tuple[Size, ...], made: Mapping[str, Made]
) -> OpRow:
    """A recurrence whose sequences have lengths of their own."""
    weights = {"w": (1, gates * hidden, 24), "r": (1, gates * hidden, hidden), "b": (1, 2 * gates * hidden)}
    text = (
        f"(float[t, n, 24] x, int32[n] l) => (float[t, d, n, {hidden}] y) {{"
        f" y = {op} <hidden_size = {hidden}{more}> (x, w, r, b, l) }}"
    )
    return OpRow(name, text, sizes, weights, made)


_STEPS = ({"t": 5, "n": 1}, {"t": 30, "n": 4}, {"t": 20, "n": 32})
RECURRENCES = tuple(
    _recurrent(
        f"{op} of {hidden} with lengths{told}", op, gates, more, hidden, _STEPS, {"l": below(6, 1, np.int32)}
    )
    for op, gates, more, told in (
        ("LSTM", 4, "", ""),
        ("GRU", 3, "", ""),
        ("GRU", 3, ", linear_before_reset = 1", ", linear first"),
        ("RNN", 1, ', direction = "reverse"', ", from the end"),
    )
    for hidden in (32, 128)
)

PLAIN_ROWS = (*ELEMENTS, *CASTS, *REDUCTIONS, *PLACES, *RESIZES, *BYTES, *RECURRENCES)
