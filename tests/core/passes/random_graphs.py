"""Random modules of small graphs with symbolic sizes: convolution nets, transformer-like chains, soups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import f32
from smelt.core.ir.graph import Module, Ref
from tests.core.passes.build import Build

UNARY = ("relu", "sigmoid", "tanh", "neg", "abs", "silu", "gelu", "hard_swish", "exp")
BINARY = ("add", "sub", "mul", "max", "min")
ATTRS = {"gelu": {"approximate": "none"}}


class Random:
    """Draws modules; the same seed draws the same module."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def pick(self, *items: object) -> object:
        return items[int(self.rng.integers(len(items)))]

    def module(self) -> Module:
        """One of the families, by the dice."""
        family: tuple[Callable[[], Module], ...] = (self.net, self.net, self.soup, self.soup, self.chain)
        return family[int(self.rng.integers(len(family)))]()

    # ------------------------------------------------------------ pieces

    def weight(self, b: Build, *shape: int) -> Ref:
        return b.weight(self.rng.uniform(-1, 1, shape))

    def unary(self, b: Build, x: Ref) -> Ref:
        op = UNARY[int(self.rng.integers(len(UNARY)))]
        if op == "exp":  # kept small, or sums of exponentials swamp everything
            x = b("tanh", x)
        return b(op, x, **ATTRS.get(op, {}))

    def scalar(self, b: Build, x: Ref) -> Ref:
        op = BINARY[int(self.rng.integers(len(BINARY)))]
        c = b.weight(self.rng.uniform(0.25, 1.5))
        return b(op, *((x, c) if self.rng.integers(2) else (c, x)))

    def along(self, b: Build, x: Ref, axis: int) -> Ref:
        """A constant that varies along one axis."""
        shape = b.g.shape(x)
        n = shape[axis].const
        tail = len(shape) - axis - 1
        return b(str(self.pick("add", "mul")), x, self.weight(b, n, *(1,) * tail))

    # ------------------------------------------------------------ families

    def net(self) -> Module:
        """Convolutions, norms, activations, joins and pools, channels first."""
        b = Build("f32[N, 4, H, W]")
        stock = [b.inputs[0]]
        for _ in range(int(self.rng.integers(6, 16))):
            x = self.recent(stock)
            step = (
                self.conv, self.conv, self.activation, self.join, self.pool, self.squeeze, self.resize,
                self.across, self.view,
            )
            stock.append(step[int(self.rng.integers(len(step)))](b, x, stock))
        outputs = [stock[-1], self.recent(stock[1:]), stock[-2]]
        if self.rng.integers(2):
            axes = (2, 3) if len(b.g.shape(outputs[0])) == 4 else (2,)
            y = b("reduce_mean", outputs[0], axes=axes, keepdims=bool(self.rng.integers(2)))
            outputs[0] = b("reshape", y, shape=(b.g.shape(y)[0], b.g.shape(y)[1]))
        return b.done(*dict.fromkeys(outputs))

    def recent(self, stock: list[Ref]) -> Ref:
        """One of the last three, mostly."""
        back = int(self.rng.integers(3)) if self.rng.integers(4) else int(self.rng.integers(len(stock)))
        return stock[max(len(stock) - 1 - back, 0)]

    def across(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        """A reduction, softmax or running total along some axis, put back into shape."""
        axis = int(self.rng.integers(1, 4))
        if self.rng.integers(2):
            return b("softmax", x, axis=axis)
        axes = (axis,) if self.rng.integers(2) else (1, axis % 3 + 1)
        s = b(str(self.pick("reduce_max", "reduce_sum")), x, axes=tuple(sorted(set(axes))), keepdims=True)
        return b("sub", x, s)

    def view(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        """Spatial axes flattened, something done, and back; or channels split and shuffled."""
        n, c, h, w = b.g.shape(x)
        if self.rng.integers(2):
            y = b("reshape", x, shape=(n, c, h * w))
            y = b("softmax", y, axis=2) if self.rng.integers(2) else self.unary(b, y)
            return b("reshape", y, shape=(n, c, h, w))
        if c.const % 2:
            return self.along(b, x, 1)
        y = b("reshape", x, shape=(n, to_dim(2), c // 2, h, w))
        return b("reshape", b("transpose", y, perm=(0, 2, 1, 3, 4)), shape=(n, c, h, w))

    def conv(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        channels = b.g.shape(x)[1].const
        k, depthwise = int(self.rng.integers(1, 4)), bool(self.rng.integers(3) == 0)
        group = channels if depthwise else 1
        out = channels if depthwise else int(self.rng.integers(1, 6))
        stride = int(self.rng.integers(1, 3))
        pad = (to_dim(k // 2),) * 2
        inputs = [x, self.weight(b, out, channels // group, k, k)]
        if self.rng.integers(2):
            inputs.append(self.weight(b, out))
        y = b(
            "conv", *inputs, strides=(stride, stride), dilations=(1, 1), pads_begin=pad, pads_end=pad,
            group=group, channels_last=False,
        )
        if self.rng.integers(2):
            parameters = [self.weight(b, out) for _ in range(3)]
            variance = b.weight(self.rng.uniform(0.5, 2, out))
            y = b("batch_norm", y, *parameters, variance, epsilon=1e-5)
        return self.activation(b, y, stock) if self.rng.integers(2) else y

    def activation(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        if self.rng.integers(3) == 0:
            return b("mul", x, b("sigmoid", x))
        return self.unary(b, x) if self.rng.integers(2) else self.scalar(b, x)

    def join(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        alike = [r for r in stock if b.g.shape(r) == b.g.shape(x)]
        other = alike[int(self.rng.integers(len(alike)))]
        if self.rng.integers(2):
            return b("add", x, self.unary(b, other))
        return b("concat", x, other, self.unary(b, x), axis=1)

    def pool(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        zero = (to_dim(1),) * 2
        op = str(self.pick("max_pool", "average_pool"))
        extra = {} if op == "max_pool" else {"count_include_pad": False}
        return b(
            op, x, kernel=(3, 3), strides=(1, 1), dilations=(1, 1), pads_begin=zero, pads_end=zero,
            ceil_mode=False, channels_last=False, **extra,
        )

    def squeeze(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        """Squeeze and excite."""
        c = b.g.shape(x)[1].const
        s = b("reduce_mean", x, axes=(2, 3), keepdims=True)
        zero = (to_dim(0),) * 2
        s = b(
            "conv", s, self.weight(b, c, c, 1, 1), strides=(1, 1), dilations=(1, 1), pads_begin=zero,
            pads_end=zero, group=1, channels_last=False,
        )
        return b("mul", x, b("sigmoid", s))

    def resize(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        n, c, h, w = b.g.shape(x)
        if h.is_const or len(str(h)) > 30:
            return self.along(b, x, 1)
        return b(
            "resize", x, shape=(n, c, h * 2, w * 2), scales=(1.0, 1.0, 2.0, 2.0), mode="nearest",
            coordinate_mode="asymmetric", nearest_mode="floor", cubic_coeff=-0.75, exclude_outside=False,
            extrapolation=0.0, antialias=False, roi=None,
        )

    def chain(self) -> Module:
        """Attention-like: products, views, transposes, softmax, norms."""
        b = Build("f32[N, S, 8]")
        x = b.inputs[0]
        n, s, _ = b.g.shape(x)
        for _ in range(int(self.rng.integers(1, 3))):
            def project(y: Ref) -> Ref:
                y = b("matmul", y, self.weight(b, 8, 8))
                return b("add", y, self.weight(b, 8)) if self.rng.integers(2) else y

            def heads(y: Ref, perm: tuple[int, ...]) -> Ref:
                return b("transpose", b("reshape", y, shape=(n, s, to_dim(2), to_dim(4))), perm=perm)

            q, k = heads(project(x), (0, 2, 1, 3)), heads(project(x), (0, 2, 3, 1))
            v = heads(project(x), (0, 2, 1, 3))
            scores = b("mul", b("matmul", q, k), b.weight(0.5))
            if self.rng.integers(2):
                scores = b("add", scores, b("cast", b("cast", b.weight(np.eye(1)), to=f32), to=f32))
            p = b("softmax", scores, axis=3)
            y = b("reshape", b("transpose", b("matmul", p, v), perm=(0, 2, 1, 3)), shape=(n, s, to_dim(8)))
            x = b("add", project(y), x)
            if self.rng.integers(2):
                x = self.norm(b, x)
            else:
                x = b("layer_norm", x, self.weight(b, 8), axis=2, epsilon=1e-5)
            x = self.unary(b, x)
        return b.done(x)

    def norm(self, b: Build, x: Ref) -> Ref:
        """Layer norm, spelt out."""
        mean = b("reduce_mean", x, axes=(2,), keepdims=True)
        d = b("sub", x, mean)
        v = b("reduce_mean", b("pow", d, b.weight(2.0)), axes=(2,), keepdims=True)
        y = b("div", d, b("sqrt", b("add", v, b.weight(1e-5))))
        return b("add", b("mul", y, self.weight(b, 8)), self.weight(b, 8))

    def soup(self) -> Module:
        """Elementwise ops, reductions and moves in any order, any rank."""
        rank = int(self.rng.integers(1, 6))
        extents = ["N", "3", "M", "2", "K"][:rank]
        b = Build(f"f32[{', '.join(extents)}]", f"f32[{', '.join(extents)}]")
        stock = list(b.inputs)
        for _ in range(int(self.rng.integers(4, 13))):
            x = self.recent(stock)
            step = (
                self.activation, self.pair, self.move, self.move, self.reduce, self.slice, self.softmax,
                self.pad,
            )
            stock.append(step[int(self.rng.integers(len(step)))](b, x, stock))
        return b.done(*dict.fromkeys((stock[-1], stock[-2], self.recent(stock[2:]))))

    def pair(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        alike = [r for r in stock if b.g.shape(r) == b.g.shape(x)]
        return b(BINARY[int(self.rng.integers(len(BINARY)))], x, alike[int(self.rng.integers(len(alike)))])

    def move(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        shape = b.g.shape(x)
        if self.rng.integers(2) and len(shape) > 1:
            return b("transpose", x, perm=tuple(int(a) for a in self.rng.permutation(len(shape))))
        if len(shape) > 1:
            a = int(self.rng.integers(len(shape) - 1))
            return b("reshape", x, shape=(*shape[:a], shape[a] * shape[a + 1], *shape[a + 2 :]))
        return b("broadcast_to", x, shape=(to_dim(2), *shape))

    def reduce(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        rank = len(b.g.shape(x))
        axes = tuple(a for a in range(rank) if self.rng.integers(2))
        if not axes:
            return self.unary(b, x)
        if self.rng.integers(2):
            s = b("reduce_mean", x, axes=axes, keepdims=True)
            return b("sub", x, s)
        op = str(self.pick("reduce_sum", "reduce_max", "reduce_mean"))
        return b(op, x, axes=axes, keepdims=bool(self.rng.integers(2)))

    def softmax(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        rank = len(b.g.shape(x))
        return b("softmax", x, axis=int(self.rng.integers(rank))) if rank else self.unary(b, x)

    def slice(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        shape = b.g.shape(x)
        if not shape:
            return self.unary(b, x)
        a = int(self.rng.integers(len(shape)))
        n = shape[a]
        zero, one = to_dim(0), to_dim(1)
        backwards = bool(self.rng.integers(3) == 0)
        first: Dim = n - 1 if backwards else zero
        last: Dim = to_dim(-1) if backwards else n
        starts = tuple(first if d == a else zero for d in range(len(shape)))
        ends = tuple(last if d == a else m for d, m in enumerate(shape))
        steps = tuple((-1 if backwards else 2) if d == a else 1 for d in range(len(shape)))
        y = b("slice", x, starts=starts, ends=ends, steps=steps)
        if not backwards and n.is_const and n.const > 1:
            half = tuple(one if d == a else m for d, m in enumerate(shape))
            rest = tuple(one if d == a else zero for d in range(len(shape)))
            ones = (1,) * len(shape)
            parts = [
                b("slice", x, starts=(zero,) * len(shape), ends=half, steps=ones),
                b("slice", x, starts=rest, ends=shape, steps=ones),
            ]
            return b("concat", *parts, axis=a)
        return y

    def pad(self, b: Build, x: Ref, stock: list[Ref]) -> Ref:
        rank = len(b.g.shape(x))
        before = tuple(to_dim(int(v)) for v in self.rng.integers(0, 2, rank))
        after = tuple(to_dim(int(v)) for v in self.rng.integers(0, 2, rank))
        return b("pad", x, before=before, after=after, mode="constant")
