"""A random graph under construction in, one more step of it out: views, moves, indexing, computed shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from fuzz_graph import Graph, Value
from fuzz_steps import Step, result_of


class Shapes:
    """Spells a shape as ONNX nodes: Shape -> Gather -> arithmetic -> Concat, with constants between."""

    def __init__(self, g: Graph) -> None:
        self.g = g
        self.nodes: list[Any] = []
        self.int = g.ints(0)

    def extent(self, x: Value, axis: int) -> Value:
        """An extent of x as a vector of one."""
        g = self.g
        if x.static(axis) is not None and g.chance(0.6):
            return g.ints(x.static(axis) or 0)
        if g.opset >= 15 and g.chance(0.3):
            n = g.node("Shape", x, start=axis, end=axis + 1)
            self.nodes.append(n)
            return result_of(n, self.int)
        s = g.node("Shape", x)
        way = g.number(0, 2)
        if way == 0:
            n = g.node("Gather", result_of(s, self.int), g.ints(axis), axis=0)
            self.nodes += [s, n]
        elif way == 1:
            n = g.node("Slice", result_of(s, self.int), g.ints(axis), g.ints(axis + 1), g.ints(0))
            if g.opset < 10:
                n = g.node("Slice", result_of(s, self.int), starts=[axis], ends=[axis + 1], axes=[0])
            self.nodes += [s, n]
        else:
            scalar = g.constant(np.asarray(axis, np.int64))
            p = g.node("Gather", result_of(s, self.int), scalar, axis=0)
            n = along(g, "Unsqueeze", result_of(p, self.int), [0])
            self.nodes += [s, p, n]
        return result_of(n, self.int)

    def op(self, op: str, *inputs: Value, **attributes: Any) -> Value:
        n = self.g.node(op, *inputs, **attributes)
        self.nodes.append(n)
        return result_of(n, self.int)

    def concat(self, parts: list[Value]) -> Value:
        """All parts as one vector."""
        if not parts:
            return self.g.constant(np.zeros(0, np.int64))
        return self.op("Concat", *parts, axis=0)


def reshape(g: Graph, x: Value) -> list[Value]:
    """Merge or split axes; the target is constant, has 0 and -1, or is computed."""
    empty = any(0 in e for e in x.shape())
    if empty and g.opset < 14:
        return []
    s = Shapes(g)
    parts: list[Value] = []
    axis, inferred = 0, empty  # an extent that turns out to be 0 is no "same as before" with allowzero only
    while axis < x.rank:
        n = x.static(axis)
        if axis + 1 < x.rank and g.chance(0.35):
            product = s.op("Mul", s.extent(x, axis), s.extent(x, axis + 1))
            parts.append(product if inferred or g.chance(0.5) else g.ints(-1))
            inferred = inferred or parts[-1] is not product
            axis += 2
            continue
        if n and n % 2 == 0 and g.chance(0.4):
            parts += [g.ints(2), g.ints(n // 2)]
        elif not inferred and g.chance(0.2):
            parts.append(g.ints(-1))
            inferred = True
        elif axis == len(parts) and not empty and g.chance(0.3):
            parts.append(g.ints(0))
        else:
            parts.append(s.extent(x, axis))
        axis += 1
    if g.chance(0.2):
        parts.insert(g.number(0, len(parts)), g.ints(1))
    target = s.concat(parts)
    return g.add(*s.nodes, g.node("Reshape", x, target, **({"allowzero": 1} if empty else {})), exact=x.exact)


def transpose(g: Graph, x: Value) -> list[Value]:
    if x.rank < 2:
        return []
    attributes: dict[str, Any] = (
        {} if g.chance(0.1) else {"perm": [int(a) for a in g.rng.permutation(x.rank)]}
    )
    return g.add(g.node("Transpose", x, **attributes), exact=x.exact)


def along(g: Graph, op: str, x: Value, axes: list[int], **more: Any) -> Any:
    """A node whose axes are an input, or before opset 13 an attribute."""
    if g.opset < 13:
        return g.node(op, x, axes=axes, **more)
    return g.node(op, x, g.ints(*axes), **more)


def squeeze(g: Graph, x: Value) -> list[Value]:
    ones = [a for a in range(x.rank) if x.static(a) == 1]
    if ones and g.chance(0.5):
        return g.add(along(g, "Squeeze", x, ones), exact=x.exact)
    if x.rank > 4:
        return []
    low = -x.rank - 1 if g.opset >= 11 else 0
    return g.add(along(g, "Unsqueeze", x, [g.number(low, x.rank)]), exact=x.exact)


def flatten(g: Graph, x: Value) -> list[Value]:
    low = -x.rank if g.opset >= 11 else 0
    return g.add(g.node("Flatten", x, axis=g.number(low, x.rank)), exact=x.exact)


def slice_(g: Graph, x: Value) -> list[Value]:
    """Constant or computed bounds, steps of either sign, ends beyond the extent."""
    if not x.rank:
        return []
    axis = g.number(0, x.rank - 1)
    named = axis - x.rank if g.chance(0.3) else axis
    s = Shapes(g)
    way = g.number(0, 4)
    far = 2**63 - 1
    if g.opset < 10:
        bounds = {"starts": [g.number(-3, 2)], "ends": [g.pick((far, 4, -1, 1000))]}
        return g.add(g.node("Slice", x, axes=[axis], **bounds), exact=x.exact)
    if g.chance(0.15):  # bounds that only a run knows
        begin = g.given([np.array([g.pick((0, 1, -2, 3))]) for _ in range(3)], [1])
        end = g.given([np.array([g.number(1, 9)]) for _ in range(3)], [1])
        return g.add(g.node("Slice", x, begin, end, g.ints(named)), exact=x.exact)
    if way == 0:
        begin, end, step = g.ints(g.number(-3, 2)), g.ints(g.pick((far, 4, -1, 1000))), g.number(1, 2)
    elif way == 1:
        begin, end, step = g.ints(g.pick((-1, far, 5))), g.ints(g.pick((-far, -4, 0))), -g.number(1, 2)
    elif way == 2:
        begin, step = g.ints(0), 1
        end = s.op("Div", s.extent(x, axis), g.ints(2))
    elif way == 3:
        begin, step = s.op("Div", s.extent(x, axis), g.ints(2)), 1
        end = s.extent(x, axis)
    else:
        begin, step = g.ints(1), 1
        end = s.op("Sub", s.extent(x, axis), g.ints(1))
    return g.add(*s.nodes, g.node("Slice", x, begin, end, g.ints(named), g.ints(step)), exact=x.exact)


def concat(g: Graph, x: Value) -> list[Value]:
    if not x.rank:
        return []
    axis = g.number(0, x.rank - 1)

    def joins(v: Value) -> bool:
        same = v.rank == x.rank and v.dtype == x.dtype
        return same and all(v.extent(a) == x.extent(a) for a in range(x.rank) if a != axis)

    mates = [v for v in g.values if joins(v)]
    parts = [x, *(g.pick(mates) for _ in range(g.number(1, 3)))]
    g.rng.shuffle(parts)
    return g.add(
        g.node("Concat", *parts, axis=axis - (x.rank if g.chance(0.3) else 0)),
        exact=all(p.exact for p in parts),
    )


def split(g: Graph, x: Value) -> list[Value]:
    axes = [a for a in range(x.rank) if (x.static(a) or 0) > 1]
    if not axes:
        return []
    axis = g.pick(axes)
    n = x.static(axis) or 0
    first = g.number(1, n - 1)
    if n % 2 == 0 and g.chance(0.4):
        extra = {"num_outputs": 2} if g.opset >= 18 else {}
        return g.add(g.node("Split", x, outputs=2, axis=axis, **extra), exact=x.exact)
    if g.opset < 13:
        return g.add(g.node("Split", x, outputs=2, axis=axis, split=[first, n - first]), exact=x.exact)
    return g.add(g.node("Split", x, g.ints(first, n - first), outputs=2, axis=axis), exact=x.exact)


def pad(g: Graph, x: Value) -> list[Value]:
    if not x.rank or x.kind == "b":
        return []
    mode = g.pick(("constant", "constant", "reflect", "edge"))
    room = [min(x.extent(a)) for a in range(x.rank)]
    limit = [2 if mode == "constant" else max(0, min(2, r - 1)) for r in room]
    begin, end = [g.number(0, n) for n in limit], [g.number(0, n) for n in limit]
    if g.chance(0.15) and mode == "constant":
        begin[0] = -min(1, *room)
    if g.opset < 11:
        return g.add(g.node("Pad", x, pads=begin + end, mode=mode), exact=x.exact)
    inputs = [x, g.ints(*begin, *end)]
    if mode == "constant" and g.chance(0.5):
        inputs.append(g.constant(np.asarray(2, x.dtype)))
    return g.add(g.node("Pad", *inputs, mode=mode), exact=x.exact)


def expand(g: Graph, x: Value) -> list[Value]:
    """To the shape of another value, or constants; with a smaller rank too."""
    s = Shapes(g)
    others = [v for v in g.values if v.rank <= 5]
    other = g.pick(others)
    parts = []
    for i in range(max(x.rank, other.rank)):
        a, b = i - max(x.rank, other.rank) + x.rank, i - max(x.rank, other.rank) + other.rank
        mine = x.static(a) if a >= 0 else 1
        if b >= 0 and (mine == 1 or a < 0):
            parts.append(s.extent(other, b))
        elif a >= 0:
            parts.append(g.ints(1) if g.chance(0.5) else s.extent(x, a))
    target = s.concat(parts)
    return g.add(*s.nodes, g.node("Expand", x, target), exact=x.exact)


def fill(g: Graph, x: Value) -> list[Value]:
    """ConstantOfShape of a shape, or a mask of ones."""
    from onnx import numpy_helper

    value = numpy_helper.from_array(np.asarray([g.pick((0, 1, 2))], x.dtype if x.kind != "b" else np.int64))
    s = g.node("Shape", x)
    return g.add(s, g.node("ConstantOfShape", result_of(s, g.ints(0)), value=value), exact=True)


def range_(g: Graph, x: Value) -> list[Value]:
    """0 .. an extent, sometimes by 2, as int64 or float."""
    if not x.rank:
        return []
    scalar = g.constant(np.asarray(0, np.int64))
    s = g.node("Shape", x)
    n = g.node("Gather", result_of(s, scalar), g.constant(np.asarray(g.number(0, x.rank - 1), np.int64)))
    start, step = (
        g.constant(np.asarray(g.number(-1, 1), np.int64)),
        g.constant(np.asarray(g.number(1, 2), np.int64)),
    )
    r = g.node("Range", start, result_of(n, scalar), step)
    if g.chance(0.5):
        return g.add(s, n, r, exact=True)
    return g.add(s, n, r, g.node("Cast", result_of(r, scalar), to=1), exact=True)


def tile(g: Graph, x: Value) -> list[Value]:
    if not x.rank:
        return []
    s = Shapes(g)
    parts = [g.ints(g.pick((1, 1, 2, 3))) for _ in range(x.rank)]
    if g.chance(0.2):
        other = g.pick([v for v in g.values if v.rank] or [x])
        parts[g.number(0, x.rank - 1)] = s.extent(other, g.number(0, other.rank - 1))
    repeats = s.concat(parts)
    if g.chance(0.2):
        repeats = g.given([np.array([g.number(0, 2) for _ in range(x.rank)]) for _ in range(3)], [x.rank])
        s.nodes = []
    return g.add(*s.nodes, g.node("Tile", x, repeats), exact=x.exact)


def _indices(g: Graph, extent: int, shape: list[int], dtype: str = "int64") -> Value:
    low = -extent if g.chance(0.5) else 0
    return g.constant(g.rng.integers(low, extent, shape).astype(dtype))


def gather(g: Graph, x: Value) -> list[Value]:
    """Constant indices within the smallest extent, or whole numbers that the graph computed."""
    if not x.rank:
        return []
    axis = g.number(0, x.rank - 1)
    room = min(x.extent(axis))
    if not room:
        return []
    computed = [v for v in g.values if v.dtype == np.int64 and v.rank <= 2]
    fitting = [
        v for v in computed if all(not a.size or (a.min() >= -room and a.max() < room) for a in v.arrays)
    ]
    if fitting and g.chance(0.6):
        index = g.pick(fitting)
    else:
        index = _indices(g, room, [g.number(0, 3) for _ in range(g.number(0, 2))], g.pick(("int64", "int32")))
    return g.add(g.node("Gather", x, index, axis=axis - (x.rank if g.chance(0.3) else 0)), exact=x.exact)


def gather_elements(g: Graph, x: Value) -> list[Value]:
    statics = [x.static(a) for a in range(x.rank)]
    if not x.rank or not all(statics):
        return []
    axis = g.number(0, x.rank - 1)
    shape = [g.number(1, 4) if a == axis else g.number(1, n or 1) for a, n in enumerate(statics)]
    return g.add(
        g.node("GatherElements", x, _indices(g, statics[axis] or 1, shape), axis=axis), exact=x.exact
    )


def gather_nd(g: Graph, x: Value) -> list[Value]:
    if not x.rank or min(min(x.extent(a)) for a in range(x.rank)) == 0:
        return []
    depth = g.number(1, x.rank)
    rows = g.number(1, 4)
    columns = [g.rng.integers(-min(x.extent(a)), min(x.extent(a)), rows) for a in range(depth)]
    index = g.constant(np.stack(columns, -1).astype(np.int64))
    return g.add(g.node("GatherND", x, index), exact=x.exact)


def scatter(g: Graph, x: Value) -> list[Value]:
    """ScatterND of rows, ScatterElements along an axis; distinct targets."""
    if not x.rank or min(min(x.extent(a)) for a in range(x.rank)) == 0 or x.kind == "b":
        return []
    room = min(x.extent(0))
    count = min(room, g.number(1, 3))
    rows = g.rng.permutation(room)[:count]
    if x.rank > 1 and any(x.static(a) is None for a in range(1, x.rank)):
        return []
    rest = [x.static(a) or 1 for a in range(1, x.rank)]
    updates = g.weight(x, count, *rest)
    extra: dict[str, Any] = {}
    if g.chance(0.3) and g.opset >= 16:
        extra["reduction"] = g.pick(("add", "mul") if g.opset < 18 else ("add", "mul", "min", "max"))
    if g.chance(0.5):
        index = g.constant(rows.reshape(count, 1).astype(np.int64))
        return g.add(g.node("ScatterND", x, index, updates, **extra), exact=x.exact and not extra)
    index = g.constant(
        np.broadcast_to(rows.reshape(count, *(1,) * len(rest)), (count, *rest)).astype(np.int64)
    )
    return g.add(g.node("ScatterElements", x, index, updates, axis=0, **extra), exact=x.exact and not extra)


def resize(g: Graph, x: Value) -> list[Value]:
    """Two spatial axes, by scales or by computed sizes."""
    if x.rank != 4 or x.dtype != np.float32 or min(min(x.extent(a)) for a in range(4)) == 0:
        return []
    mode = g.pick(("nearest", "linear", "cubic", "nearest"))
    coordinate = g.pick(("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"))
    extra: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinate}
    if mode == "nearest":
        extra["nearest_mode"] = g.pick(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
    if g.chance(0.6):
        # between aligned corners ONNX Runtime counts an output's elements after rounding, ONNX before
        rows = (2, 3) if coordinate == "align_corners" else (2, 0.5, 1.5)
        scales = g.constant(np.array([1, 1, g.pick(rows), g.pick((2, 1, 3))], np.float32))
        if g.opset < 11:
            op = "Resize" if g.opset == 10 else "Upsample"
            if g.opset < 9:
                factors = [1.0, 1.0, float(g.pick((1, 2))), 2.0]
                return g.add(g.node(op, x, scales=factors, mode=mode), exact=x.exact and mode == "nearest")
            return g.add(g.node(op, x, scales, mode=mode), exact=x.exact and mode == "nearest")
        if g.opset < 13:
            roi = g.constant(np.zeros(0, np.float32))
            return g.add(g.node("Resize", x, roi, scales, **extra), exact=x.exact and mode == "nearest")
        return g.add(g.node("Resize", x, None, scales, **extra), exact=x.exact and mode == "nearest")
    s = Shapes(g)
    sizes = [s.extent(x, 0), s.extent(x, 1), *(s.op("Mul", s.extent(x, a), g.ints(2)) for a in (2, 3))]
    target = s.concat(sizes)
    last = g.node("Resize", x, None, None, target, **extra)
    return g.add(*s.nodes, last, exact=x.exact and mode == "nearest")


def blocks(g: Graph, x: Value) -> list[Value]:
    if x.rank != 4 or x.kind != "f":
        return []
    c = x.static(1) or 0
    if c % 4 == 0 and c:
        mode = {"mode": g.pick(("DCR", "CRD"))} if g.opset >= 11 else {}
        return g.add(g.node("DepthToSpace", x, blocksize=2, **mode), exact=x.exact)
    return g.add(g.node("SpaceToDepth", x, blocksize=2), exact=x.exact)


def trilu(g: Graph, x: Value) -> list[Value]:
    if x.rank < 2 or g.opset < 14:
        return []
    k = [g.constant(np.asarray(g.number(-2, 2), np.int64))] if g.chance(0.6) else []
    return g.add(g.node("Trilu", x, *k, upper=int(g.chance(0.5))), exact=x.exact)


def one_hot(g: Graph, x: Value) -> list[Value]:
    if x.dtype not in (np.int64, np.int32) or x.rank > 3:
        return []
    depth = g.constant(np.asarray(g.number(1, 5), np.int64))
    values = g.constant(np.array([0.5, 2], np.float32))
    return g.add(g.node("OneHot", x, depth, values, axis=g.number(-x.rank - 1, x.rank)), exact=True)


def non_zero(g: Graph, x: Value) -> list[Value]:
    """NonZero, and what is usually done with it."""
    if not x.exact or not x.rank or x.rank > 3:
        return []
    found = g.add(g.node("NonZero", x), exact=True)
    if not found or g.chance(0.5):
        return found
    t = g.node("Transpose", found[0], perm=[1, 0])
    return g.add(t, g.node("GatherND", x, result_of(t, found[0])), exact=True)


def compress(g: Graph, x: Value) -> list[Value]:
    if not x.rank:
        return []
    axis = g.number(0, x.rank - 1)
    n = min(x.extent(axis))
    keep = g.constant(g.rng.random(n) < 0.6)
    return g.add(g.node("Compress", x, keep, axis=axis), exact=x.exact)


def size_of(g: Graph, x: Value) -> list[Value]:
    """A shape as data: Shape or Size, cast and used in arithmetic."""
    if g.chance(0.5):
        return g.add(g.node("Size", x), exact=True)
    return g.add(g.node("Shape", x), exact=True)


def eye(g: Graph, x: Value) -> list[Value]:
    if x.rank != 2:
        return []
    return g.add(g.node("EyeLike", x, k=g.number(-1, 1), dtype=1), exact=True)


MOVES: tuple[tuple[int, Step], ...] = (
    (7, reshape), (6, transpose), (4, squeeze), (2, flatten), (6, slice_), (6, concat), (3, split), (4, pad),
    (4, expand), (2, fill), (2, range_), (2, tile), (4, gather), (2, gather_elements),
    (2, gather_nd), (2, scatter),
    (3, resize), (2, blocks),
    (1, trilu), (2, one_hot), (1, non_zero), (1, compress), (1, size_of), (1, eye),
)  # fmt: skip
