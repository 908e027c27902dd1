"""Pools, interpolations, positions of extremes, means, over images of any rank and number of channels, alone
and in chains -> the values of ONNX Runtime, compiled once, at two sizes.

Left out is what docs/differences.md lists: windows that do not fit, SAME_* padding of strides beyond the
window, align_corners by scales that leave no whole extent.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import numpy as np
from attack_convolutions import compared
from campaign import Outcome, main
from drawn_builds import Drawn, with_build
from onnx import parser

HEAD = '<ir_version: 8, opset_import: ["" : 19]> g '
CHANNELS = (1, 2, 3, 8, 15, 16, 17, 40)
EXTENTS = (5, 6, 8, 13, 20)
"""All windows fit: of 3 steps, every second one."""
WIDE = (4, 5, 7, 9, 13)
WIDE_EXTENTS = (25, 26, 31)
"""Those of WIDE fit, every second step, too."""
SCALES = (0.5, 0.7, 1, 1.5, 2, 3)
STEPS = (
    "{y} = Relu ({x})",
    "{y} = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({x})",
    "{y} = AveragePool <kernel_shape = [2, 2], pads = [1, 1, 0, 0]> ({x})",
    's{y} = Constant <value = float[4] {{1, 1, 2, 2}}> ()  {y} = Resize <mode = "linear"> ({x}, , s{y})',
    "{y} = Transpose <perm = [0, 1, 3, 2]> ({x})",
    "{y} = Add ({x}, {x})",
    "{y} = Softmax <axis = 1> ({x})",
    "{y} = Softmax <axis = -1> ({x})",
    "m{y} = GlobalAveragePool ({x})  {y} = Mul ({x}, m{y})",
    "m{y} = GlobalMaxPool ({x})  {y} = Sub ({x}, m{y})",
)


def _numbers(values: list[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _pool(rng: random.Random, rank: int) -> str:
    return _pooled(rng, [rng.choice((1, 2, 3)) for _ in range(rank)])


def _wide_pool(rng: random.Random, rank: int) -> str:
    """A window of many elements, of which some axes may have few."""
    return _pooled(
        rng, [rng.choice(WIDE if rank < 3 or rng.random() < 0.3 else (1, 2, 3)) for _ in range(rank)]
    )


def _pooled(rng: random.Random, kernel: list[int]) -> str:
    op = rng.choice(("MaxPool", "MaxPool", "AveragePool", "LpPool"))
    strides = [rng.choice((1, 2, 3)) for _ in kernel]
    given = {"kernel_shape": kernel, "strides": strides}
    dilated = op != "LpPool" and rng.random() < 0.3
    attrs = [f"dilations = {_numbers([rng.choice((1, 2)) for _ in kernel])}"] if dilated else []
    same = not dilated and all(k >= s for k, s in zip(kernel, strides, strict=True)) and rng.random() < 0.2
    if same:
        attrs.append(f'auto_pad = "{rng.choice(("SAME_UPPER", "SAME_LOWER"))}"')
    else:
        given["pads"] = [rng.randint(0, k // 2) for k in 2 * kernel]
        if op != "LpPool" and rng.random() < 0.4:
            attrs.append("ceil_mode = 1")
    attrs += [f"{name} = {_numbers(values)}" for name, values in given.items()]
    if op == "AveragePool" and rng.random() < 0.5:
        attrs.append("count_include_pad = 1")
    if op == "MaxPool" and rng.random() < 0.3:
        return f"v, i = {op} <{', '.join(attrs)}> (x)  j = Cast <to = 1> (i)  y = Add (j, v)"
    return f"y = {op} <{', '.join(attrs)}> (x)"


def _resize(rng: random.Random, rank: int) -> str:
    mode = rng.choice(("linear", "cubic", "nearest") if rank == 2 else ("linear", "nearest"))
    place = rng.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    attrs = f'mode = "{mode}", coordinate_transformation_mode = "{place}"'
    if rng.random() < 0.5:
        drawn = [rng.choice((1, 2, 3) if place == "align_corners" else SCALES) for _ in range(rank)]
        scales = ", ".join(map(str, (1, 1, *drawn)))
        return f"s = Constant <value = float[{rank + 2}] {{{scales}}}> ()  y = Resize <{attrs}> (x, , s)"
    sizes = ", ".join(str(rng.choice((1, 2, 5, 11, 12))) for _ in range(rank))
    return (
        f"b = Shape <start = 0, end = 2> (x)  t = Constant <value = int64[{rank}] {{{sizes}}}> ()"
        f"  q = Concat <axis = 0> (b, t)  y = Resize <{attrs}> (x, , , q)"
    )


def _chain(rng: random.Random, rank: int) -> str:
    steps = [rng.choice(STEPS) for _ in range(rng.randint(2, 5))]
    names = ["x", *(f"v{n}" for n in range(1, len(steps))), "y"]
    return "  ".join(s.format(x=a, y=b) for s, a, b in zip(steps, names, names[1:], strict=False))


def _extreme(rng: random.Random, rank: int) -> str:
    first = rng.choice(("Identity", "Neg", "Abs", "Floor"))
    attrs = f"axis = {rng.randint(0, rank + 1)}, select_last_index = {rng.randint(0, 1)}"
    return f"v = {first} (x)  i = {rng.choice(('ArgMax', 'ArgMin'))} <{attrs}> (v)  y = Cast <to = 1> (i)"


Make = Callable[[random.Random, int], str]
KINDS: tuple[Make, ...] = (_pool, _wide_pool, _wide_pool, _resize, _resize, _chain, _chain, _extreme)


def drawn(seed: int) -> Drawn:
    """One model at two sizes, built in one way."""
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    make = rng.choice(KINDS)
    rank = 2 if make is _chain else rng.choice((1, 2, 2, 3))
    channels = rng.choice(CHANNELS)
    inner, outer = ", ".join("hwd"[:rank]), ", ".join("pqr"[:rank])
    text = f"{HEAD}(float[n, {channels}, {inner}] x) => (float[m, c, {outer}] y) {{ {make(rng, rank)} }}"
    extents, feeds = WIDE_EXTENTS if make is _wide_pool else EXTENTS, []
    for _ in range(2):
        shape = (rng.choice((0, 1, 1, 2, 2)), channels, *(rng.choice(extents) for _ in range(rank)))
        feeds.append({"x": 3 * draw.standard_normal(shape, np.float32)})
    return with_build(seed, parser.parse_model(text), feeds)


def attack(seed: int) -> Outcome:
    """What comes of it."""
    return compared(drawn(seed), f"seed {seed}")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 1000))
