"""Windows, norms, signals, recurrences, and operators that move elements -> rows that benchmarks/ops.py
measures."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from op_rows import OpRow, Size, below, regions

_PLANES = ({"n": 1, "h": 7, "w": 7}, {"n": 1, "h": 56, "w": 56}, {"n": 2, "h": 27, "w": 31})


def _planes(
    name: str,
    op: str,
    more: str,
    sizes: tuple[Size, ...] = _PLANES,
    channels: int = 64,
    weights: Mapping[str, tuple[int, ...]] | None = None,
) -> OpRow:
    args = ", ".join(("x", *(weights or {})))
    text = f"(float[n, {channels}, h, w] x) => (float[n, c, a, b] y) {{ y = {op} <{more}> ({args}) }}"
    return OpRow(name, text, sizes, weights or {})


def _transposed(name: str, x: str, w: tuple[int, ...], more: str, sizes: tuple[Size, ...]) -> OpRow:
    out = ", ".join("abcde"[: len(w)])
    text = f"(float[{x}] x) => (float[{out}] y) {{ y = ConvTranspose <{more}> (x, w) }}"
    return OpRow(f"ConvTranspose {name}", text, sizes, {"w": w})


_LINE = ({"n": 1, "w": 50}, {"n": 2, "w": 1000})
WINDOWS = (
    _planes("MaxPool of 2", "MaxPool", "kernel_shape = [2, 2], strides = [2, 2]"),
    _planes("MaxPool of 3 by 2", "MaxPool", "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"),
    _planes("MaxPool of 3 by 1", "MaxPool", "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"),
    _planes("MaxPool of 4 by 1", "MaxPool", "kernel_shape = [4, 4], pads = [1, 1, 2, 2]"),
    _planes("MaxPool of 5 by 1", "MaxPool", "kernel_shape = [5, 5], pads = [2, 2, 2, 2]"),
    _planes("MaxPool of 7 by 2", "MaxPool", "kernel_shape = [7, 7], strides = [2, 2], pads = [3, 3, 3, 3]"),
    _planes("MaxPool of 13 by 1", "MaxPool", "kernel_shape = [13, 13], pads = [6, 6, 6, 6]"),
    _planes("MaxPool of 3, 1 channel", "MaxPool", "kernel_shape = [3, 3], strides = [2, 2]", channels=1),
    _planes(
        "MaxPool of 3, 3 channels, ceil",
        "MaxPool",
        "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1",
        channels=3,
    ),
    _planes("AveragePool of 3", "AveragePool", "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"),
    _planes("AveragePool of 2", "AveragePool", "kernel_shape = [2, 2], strides = [2, 2]"),
    _planes(
        "AveragePool of 3, with pads",
        "AveragePool",
        "kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1",
    ),
    _planes("GlobalAveragePool", "GlobalAveragePool", ""),
    _planes("GlobalMaxPool", "GlobalMaxPool", ""),
    _planes("LpPool", "LpPool", "kernel_shape = [3, 3], strides = [2, 2]"),
    OpRow(
        "MaxPool with indices",
        "(float[n, 64, h, w] x) => (float[n, c, a, b] y, int64[n, c, a, b] i) {"
        " y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }",
        _PLANES,
    ),
    OpRow(
        "MaxPool of 3 with indices",
        "(float[n, 64, h, w] x)"
        " => (float[n, c, a, b] y, int64[n, c, a, b] i) {"
        " y, i = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x) }",
        _PLANES,
    ),
    OpRow(
        "MaxPool, 1-D",
        "(float[n, 40, w] x) => (float[n, c, a] y) { y = MaxPool <kernel_shape = [3], strides = [2]> (x) }",
        _LINE,
    ),
    OpRow(
        "AveragePool, 1-D",
        "(float[n, 40, w] x) => (float[n, c, a] y) {"
        " y = AveragePool <kernel_shape = [4], strides = [4]> (x) }",
        _LINE,
    ),
    OpRow(
        "MaxPool, 3-D",
        "(float[n, 16, d, h, w] x) => (float[n, c, a, b, e] y) {"
        " y = MaxPool <kernel_shape = [3, 3, 3], strides = [2, 2, 2]> (x) }",
        ({"n": 1, "d": 5, "h": 8, "w": 8}, {"n": 1, "d": 17, "h": 40, "w": 40}),
    ),
    OpRow(
        "AveragePool, 3-D",
        "(float[n, 16, d, h, w] x) => (float[n, c, a, b, e] y) {"
        " y = AveragePool <kernel_shape = [2, 2, 2], strides = [2, 2, 2]> (x) }",
        ({"n": 1, "d": 17, "h": 40, "w": 40},),
    ),
    OpRow(
        "MaxUnpool",
        "(float[n, 16, h, w] x, int64[n, 16, h, w] i) => (float[n, c, a, b] y) {"
        " y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i) }",
        ({"n": 1, "h": 28, "w": 28},),
        made={"i": below(10000)},
    ),
    _planes("LRN", "LRN", "size = 5"),
    _transposed("3x3 by 2", "n, 32, h, w", (32, 16, 3, 3), "strides = [2, 2]", _PLANES),
    _transposed("2x2 by 2", "n, 64, h, w", (64, 64, 2, 2), "strides = [2, 2]", _PLANES),
    _transposed("4x4 by 2", "n, 64, h, w", (64, 32, 4, 4), "strides = [2, 2], pads = [1, 1, 1, 1]", _PLANES),
    _transposed("3x3 by 1", "n, 32, h, w", (32, 32, 3, 3), "pads = [1, 1, 1, 1]", _PLANES),
    _transposed("5x5 by 3", "n, 32, h, w", (32, 16, 5, 5), "strides = [3, 3]", _PLANES),
    _transposed("3x3 by 2, 4 groups", "n, 32, h, w", (32, 8, 3, 3), "strides = [2, 2], group = 4", _PLANES),
    _transposed("4x4 by 2, depthwise", "n, 32, h, w", (32, 1, 4, 4), "strides = [2, 2], group = 32", _PLANES),
    _transposed("3x3 by 2, to 1 channel", "n, 32, h, w", (32, 1, 3, 3), "strides = [2, 2]", _PLANES),
    _transposed("1-D, 16 by 8", "n, 64, w", (64, 32, 16), "strides = [8], pads = [4, 4]", _LINE),
    _transposed("1-D, 4 by 2", "n, 64, w", (64, 32, 4), "strides = [2], pads = [1, 1]", _LINE),
    _transposed(
        "3-D, 2 by 2",
        "n, 16, d, h, w",
        (16, 8, 2, 2, 2),
        "strides = [2, 2, 2]",
        ({"n": 1, "d": 4, "h": 8, "w": 8}, {"n": 1, "d": 8, "h": 20, "w": 20}),
    ),
    OpRow(
        "Col2Im",
        "(float[n, 144, l] x, int64[2] s) => (float[n, c, a, b] y) {"
        " k = Constant <value = int64[2] {3, 3}> ()  y = Col2Im (x, s, k) }",
        ({"n": 1, "l": 26 * 26},),
        made={"s": lambda rng, shape: np.array([28, 28])},
    ),
    OpRow(
        "DeformConv",
        "(float[n, 32, h, w] x, float[n, 18, h, w] o) => (float[n, 32, h, w] y) {"
        " y = DeformConv <pads = [1, 1, 1, 1]> (x, w, o) }",
        _PLANES,
        {"w": (32, 32, 3, 3)},
    ),
    *(
        OpRow(
            f"GridSample, {mode}, {channels} channels",
            f"(float[n, {channels}, h, w] x, float[n, a, b, 2] z) =>"
            f" (float[n, {channels}, a, b] y)"
            f' {{ y = GridSample <mode = "{mode}", padding_mode = "{pad}"> (x, z) }}',
            ({"n": 1, "h": 48, "w": 64, "a": 40, "b": 50}, {"n": 2, "h": 12, "w": 12, "a": 8, "b": 8}),
        )
        for mode, pad, channels in (
            ("linear", "zeros", 1),
            ("linear", "border", 16),
            ("nearest", "zeros", 16),
            ("cubic", "zeros", 3),
            ("cubic", "reflection", 16),
            ("linear", "zeros", 128),
        )
    ),
    OpRow(
        "GridSample, 3-D",
        "(float[n, 8, d, h, w] x, float[n, 5, 20, 20, 3] z)"
        " => (float[n, 8, 5, 20, 20] y) {"
        " y = GridSample (x, z) }",
        ({"n": 1, "d": 8, "h": 24, "w": 24},),
    ),
    *(
        OpRow(
            f"RoiAlign, {name}",
            "(float[1, 256, 50, 60] x, float[n, 4] r, int64[n] b)"
            " => (float[n, 256, 7, 7] y) {"
            f' y = RoiAlign <output_height = 7, output_width = 7, sampling_ratio = {ratio}, mode = "{mode}">'
            " (x, r, b) }",
            ({"n": 1}, {"n": 50}),
            made={"r": regions, "b": below(1)},
        )
        for name, ratio, mode in (("2 samples", 2, "avg"), ("as many as fit", 0, "avg"), ("max", 2, "max"))
    ),
    *(
        OpRow(
            f"Resize, {name}",
            f"(float[n, {channels}, h, w] x) => (float[n, {channels}, a, b] y) {{"
            f" s = Constant <value = float[4] {{1.0, 1.0, {scale}, {scale}}}> ()"
            f" y = Resize <{more}> (x, , s) }}",
            ({"n": 1, "h": 16, "w": 16}, {"n": 1, "h": 96, "w": 128}),
        )
        for name, channels, scale, more in (
            ("nearest by 2", 16, 2.0, 'mode = "nearest"'),
            (
                "nearest by 2, asymmetric",
                64,
                2.0,
                'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
            ),
            ("linear by 2, 3 channels", 3, 2.0, 'mode = "linear"'),
            ("linear by 2, 1 channel", 1, 2.0, 'mode = "linear"'),
            ("linear by 0.4", 16, 0.4, 'mode = "linear"'),
            (
                "linear by 2, corners",
                16,
                2.0,
                'mode = "linear", coordinate_transformation_mode = "align_corners"',
            ),
            ("cubic by 2, 1 channel", 1, 2.0, 'mode = "cubic"'),
            ("cubic by 2, 16 channels", 16, 2.0, 'mode = "cubic"'),
            ("linear by 0.4, antialias", 3, 0.4, 'mode = "linear", antialias = 1'),
            ("cubic by 0.4, antialias", 16, 0.4, 'mode = "cubic", antialias = 1'),
        )
    ),
    OpRow(
        "AffineGrid",
        "(float[1, 2, 3] t) => (float[n, a, b, 2] y) {"
        " s = Constant <value = int64[4] {1, 3, 60, 80}> ()  y = AffineGrid (t, s) }",
        ({},),
    ),
)

# ---------------------------------------------------------------- norms, movement, signals, recurrences


def _norm(
    name: str, op: str, c: int, more: str, weights: tuple[str, ...], shape: str, sizes: tuple[Size, ...]
) -> OpRow:
    args = ", ".join(("x", *weights))
    return OpRow(
        name,
        f"(float[{shape}] x) => (float[{shape}] y) {{ y = {op} <{more}> ({args}) }}",
        sizes,
        dict.fromkeys(weights, (c,)),
    )


_SPACE = ({"n": 1, "h": 7, "w": 7}, {"n": 2, "h": 56, "w": 56}, {"n": 1, "h": 27, "w": 31})
NORMS = (
    _norm(
        "LayerNorm of 7", "LayerNormalization", 7, "axis = -1", ("s", "b"), "n, 7", ({"n": 1}, {"n": 5000})
    ),
    _norm(
        "LayerNorm of 97", "LayerNormalization", 97, "axis = -1", ("s", "b"), "n, 97", ({"n": 1}, {"n": 500})
    ),
    _norm(
        "LayerNorm of 768",
        "LayerNormalization",
        768,
        "axis = -1",
        ("s", "b"),
        "n, 768",
        ({"n": 1}, {"n": 128}),
    ),
    _norm(
        "LayerNorm of 4096",
        "LayerNormalization",
        4096,
        "axis = -1",
        ("s", "b"),
        "n, 4096",
        ({"n": 1}, {"n": 64}),
    ),
    *(
        OpRow(
            f"GroupNorm, {c} in {g}",
            f"(float[n, {c}, h, w] x) => (float[n, {c}, h, w] y) {{"
            f" y = GroupNormalization <num_groups = {g}> (x, s, b) }}",
            _SPACE,
            {"s": (c,), "b": (c,)},
            opset=21,
        )
        for c, g in ((64, 32), (48, 3), (32, 1))
    ),
    _norm("InstanceNorm of 64", "InstanceNormalization", 64, "", ("s", "b"), "n, 64, h, w", _SPACE),
    _norm("InstanceNorm of 3", "InstanceNormalization", 3, "", ("s", "b"), "n, 3, h, w", _SPACE),
    OpRow(
        "InstanceNorm, 1-D",
        "(float[n, 40, w] x) => (float[n, 40, w] y) { y = InstanceNormalization (x, s, b) }",
        _LINE,
        {"s": (40,), "b": (40,)},
    ),
    _norm("BatchNorm of 64", "BatchNormalization", 64, "", ("s", "b", "m", "v"), "n, 64, h, w", _SPACE),
    _norm("BatchNorm of 3", "BatchNormalization", 3, "", ("s", "b", "m", "v"), "n, 3, h, w", _SPACE),
    _norm(
        "BatchNorm of rank 2",
        "BatchNormalization",
        97,
        "",
        ("s", "b", "m", "v"),
        "n, 97",
        ({"n": 1}, {"n": 300}),
    ),
    *(
        OpRow(
            f"LpNormalization, axis {axis}",
            f"(float[n, m, 50] x) => (float[n, m, 50] y) {{ y = LpNormalization <axis = {axis}> (x) }}",
            ({"n": 20, "m": 100},),
        )
        for axis in (1, 2)
    ),
    OpRow(
        "MeanVariance",
        "(float[n, 16, h, w] x) => (float[n, 16, h, w] y) { y = MeanVarianceNormalization (x) }",
        ({"n": 2, "h": 27, "w": 31},),
    ),
    OpRow(
        "LogSoftmax, axis 1 of 4",
        "(float[n, 21, h, w] x) => (float[n, 21, h, w] y) { y = LogSoftmax <axis = 1> (x) }",
        _SPACE,
    ),
    OpRow(
        "Hardmax",
        "(float[n, m] x) => (float[n, m] y) { y = Hardmax (x) }",
        ({"n": 1, "m": 1000}, {"n": 200, "m": 97}),
    ),
)


def _einsum(equation: str, a: str, b: str, sizes: tuple[Size, ...]) -> OpRow:
    out = ", ".join("uvxyz"[: len(equation.split("->")[1])])
    inputs = ", ".join(f"float[{', '.join(s)}] {n}" for s, n in ((a, "p"), (b, "q")) if s)
    args = ", ".join(n for s, n in ((a, "p"), (b, "q")) if s)
    return OpRow(
        f"Einsum {equation}",
        f'({inputs}) => (float[{out}] o) {{ o = Einsum <equation = "{equation}"> ({args}) }}',
        sizes,
    )


MOVEMENT = (
    *(
        OpRow(
            f"DepthToSpace of {b}, {mode}",
            f"(float[n, 48, h, w] x) => (float[n, c, e, f] y) {{"
            f' y = DepthToSpace <blocksize = {b}, mode = "{mode}"> (x) }}',
            _PLANES,
        )
        for b in (2, 4)
        for mode in ("DCR", "CRD")
    ),
    OpRow(
        "SpaceToDepth of 2",
        "(float[n, 12, h, w] x) => (float[n, c, e, f] y) { y = SpaceToDepth <blocksize = 2> (x) }",
        ({"n": 1, "h": 8, "w": 8}, {"n": 1, "h": 160, "w": 160}),
    ),
    *(
        OpRow(
            f"Pad, {mode}",
            "(float[n, 16, h, w] x) => (float[n, 16, a, b] y) {"
            f" p = Constant <value = int64[8] {{0, 0, 2, 3, 0, 0, 4, 1}}> () "
            f' y = Pad <mode = "{mode}"> (x, p) }}',
            _PLANES,
        )
        for mode in ("constant", "edge", "reflect", "wrap")
    ),
    OpRow(
        "Where of rank 5",
        "(bool[a, 1, c, 1, e] i, float[1, b, c, d, 1] x, float[e] z)"
        " => (float[a, b, c, d, e] y) { y = Where (i, x, z) }",
        ({"a": 2, "b": 3, "c": 4, "d": 5, "e": 6}, {"a": 3, "b": 5, "c": 7, "d": 30, "e": 40}),
        made={"i": below(2, kind=np.bool_)},
    ),
    OpRow(
        "Expand to rank 5",
        "(float[b, 1, d, 1] x, int64[5] s) => (float[e, f, g, h, i] y) { y = Expand (x, s) }",
        ({"b": 5, "d": 30},),
        made={"s": lambda rng, shape: np.array([3, 5, 7, 30, 40])},
    ),
    OpRow(
        "Tile",
        "(float[n, m] x) => (float[a, b] y) { r = Constant <value = int64[2] {3, 5}> ()  y = Tile (x, r) }",
        ({"n": 3, "m": 5}, {"n": 100, "m": 130}),
    ),
    OpRow(
        "Tile of 3",
        "(float[n, 3] x) => (float[a, b] y) { r = Constant <value = int64[2] {1, 300}> ()  y = Tile (x, r) }",
        ({"n": 200},),
    ),
    OpRow(
        "Slice by steps",
        "(float[n, m] x) => (float[a, b] y) { s = Constant <value = int64[2] {-1, 1}> ()"
        " e = Constant <value = int64[2] {-1000000, 1000000}> ()  i = Constant <value = int64[2] {0, 1}> ()"
        " t = Constant <value = int64[2] {-2, 3}> () "
        " y = Slice (x, s, e, i, t) }",
        ({"n": 300, "m": 1000},),
    ),
    OpRow(
        "Split of 3",
        "(float[n, 96, h, w] x)"
        " => (float[n, a, h, w] y, float[n, b, h, w] z, float[n, c, h, w] v) {"
        " y, z, v = Split <axis = 1, num_outputs = 3> (x) }",
        _PLANES,
    ),
    *(
        OpRow(
            f"Transpose {''.join(map(str, perm))}",
            f"(float[a, b, c, d] x) => (float[e, f, g, h] y) {{ y = Transpose <perm = {list(perm)}> (x) }}",
            ({"a": 2, "b": 3, "c": 5, "d": 7}, {"a": 4, "b": 30, "c": 40, "d": 64}),
        )
        for perm in ((0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (2, 0, 1, 3), (0, 1, 3, 2))
    ),
    _einsum(
        "bhwc,hkc->bhwk",
        "bhwc",
        "hkc",
        ({"b": 1, "h": 14, "w": 14, "c": 64, "k": 14}, {"b": 25, "h": 14, "w": 14, "c": 64, "k": 14}),
    ),
    _einsum("bij,bjk->bik", "bij", "bjk", ({"b": 8, "i": 50, "j": 60, "k": 70},)),
    _einsum("ij,jk->ki", "ij", "jk", ({"i": 100, "j": 120, "k": 130},)),
    _einsum("bij,bij->b", "bij", "bij", ({"b": 20, "i": 50, "j": 60},)),
    _einsum("ii->i", "ii", "", ({"i": 500},)),
    _einsum("ij->j", "ij", "", ({"i": 300, "j": 500},)),
    _einsum("i,j->ij", "i", "j", ({"i": 300, "j": 500},)),
    _einsum("bchw,bkc->bkhw", "bchw", "bkc", ({"b": 1, "c": 32, "h": 40, "w": 40, "k": 100},)),
    _einsum("ijk,jil->kl", "ijk", "jil", ({"i": 20, "j": 30, "k": 40, "l": 50},)),
)


def _recurrent(op: str, gates: int, hidden: int, sizes: tuple[Size, ...], both: bool = False) -> OpRow:
    ways, outputs = (2, 'direction = "bidirectional", ') if both else (1, "")
    weights = {
        "w": (ways, gates * hidden, 24),
        "r": (ways, gates * hidden, hidden),
        "b": (ways, 2 * gates * hidden),
    }
    return OpRow(
        f"{op} of {hidden}{', both ways' if both else ''}",
        f"(float[t, n, 24] x)"
        f" => (float[t, d, n, {hidden}] y) {{"
        f" y = {op} <{outputs}hidden_size = {hidden}> (x, w, r, b) }}",
        sizes,
        weights,
    )


_STEPS = ({"t": 1, "n": 1}, {"t": 50, "n": 1}, {"t": 20, "n": 8})
SIGNALS = (
    *(
        _recurrent(op, gates, hidden, _STEPS)
        for op, gates in {"LSTM": 4, "GRU": 3, "RNN": 1}.items()
        for hidden in (8, 20, 64, 256)
    ),
    _recurrent("LSTM", 4, 33, _STEPS, both=True),
    *(
        OpRow(
            f"DFT of {m}",
            f"(float[n, {m}, 1] x) => (float[n, {m}, 2] y) {{ y = DFT (x) }}",
            ({"n": 1}, {"n": 20}),
        )
        for m in (64, 127, 257, 400, 512, 1000, 1031, 4096)
    ),
    OpRow(
        "DFT of any length",
        "(float[n, m, 1] x) => (float[n, m, 2] y) { y = DFT (x) }",
        ({"n": 4, "m": 97}, {"n": 4, "m": 512}, {"n": 4, "m": 1031}),
    ),
    OpRow(
        "DFT of 512, one side",
        "(float[n, 512, 1] x) => (float[n, 257, 2] y) { y = DFT <onesided = 1> (x) }",
        ({"n": 20},),
    ),
    OpRow(
        "DFT of 400, inverse",
        "(float[n, 400, 2] x) => (float[n, 400, 2] y) { y = DFT <inverse = 1> (x) }",
        ({"n": 20},),
    ),
    OpRow(
        "DFT of 256, axis 1",
        "(float[n, 256, 20, 2] x) => (float[n, 256, 20, 2] y)"
        " { a = Constant <value = int64 {1}> ()"
        "  y = DFT (x, , a) }",
        ({"n": 2},),
    ),
    OpRow(
        "STFT of 400 by 160",
        "(float[n, m, 1] x) => (float[n, f, 201, 2] y)"
        " { s = Constant <value = int64 {160}> ()"
        " l = Constant <value = int64 {400}> ()  y = STFT (x, s, w, l) }",
        ({"n": 1, "m": 1600}, {"n": 1, "m": 48000}),
        {"w": (400,)},
    ),
    OpRow(
        "STFT of 512 by 256",
        "(float[n, m, 1] x) => (float[n, f, 257, 2] y)"
        " { s = Constant <value = int64 {256}> ()"
        " l = Constant <value = int64 {512}> () "
        " y = STFT (x, s, w, l) }",
        ({"n": 1, "m": 48000},),
        {"w": (512,)},
    ),
    *(
        OpRow(
            f"{op}",
            f"(int64 n) => (float[m] y) {{ y = {op} (n) }}",
            ({},),
            made={"n": lambda rng, shape: np.array(400)},
        )
        for op in ("HannWindow", "HammingWindow", "BlackmanWindow")
    ),
    OpRow(
        "MelWeightMatrix",
        "(int64 b, int64 f, int64 r, float l, float u) => (float[m, k] y) {"
        " y = MelWeightMatrix (b, f, r, l, u) }",
        ({},),
        made={
            "b": lambda rng, shape: np.array(80),
            "f": lambda rng, shape: np.array(400),
            "r": lambda rng, shape: np.array(16000),
            "l": lambda rng, shape: np.array(0, np.float32),
            "u": lambda rng, shape: np.array(8000, np.float32),
        },
    ),
)

SPATIAL_ROWS = (*WINDOWS, *NORMS, *MOVEMENT, *SIGNALS)
