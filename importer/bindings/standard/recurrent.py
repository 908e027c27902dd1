"""Bindings of RNN, GRU and LSTM: one product for all inputs, then a loop over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from smelt.core.dim import ONE, Dim, to_dim
from smelt.core.dtype import i64
from smelt.core.ir.graph import Ref
from smelt.importer.bindings.standard.scan import at, counted
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call, OnnxOp

Activation: TypeAlias = "Callable[[GraphBuilder, Ref], Ref]"
Product: TypeAlias = "Callable[[GraphBuilder, Ref, Ref], Ref]"
"""(builder, x [.., n], weights [n, m]) -> their product."""
Cell: TypeAlias = "Callable[[GraphBuilder, Ref, list[Ref]], list[Ref]]"
"""(builder, this step's share of the input [batch, gates * hidden], states) -> new states; state 0 is h."""


def _product(b: GraphBuilder, x: Ref, w: Ref) -> Ref:
    return b.emit("matmul", [x, w])


def _plain(op: str) -> Callable[[float, float], Activation]:
    return lambda alpha, beta: lambda b, x: b.emit(op, [x])


def _alpha(op: str) -> Callable[[float, float], Activation]:
    return lambda alpha, beta: lambda b, x: b.emit(op, [x], {"alpha": alpha})


def _affine(alpha: float, beta: float) -> Activation:
    return lambda b, x: b.emit("add", [b.emit("mul", [x, b.scalar(alpha, x)]), b.scalar(beta, x)])


def _scaled_tanh(alpha: float, beta: float) -> Activation:
    return lambda b, x: b.emit(
        "mul", [b.emit("tanh", [b.emit("mul", [x, b.scalar(beta, x)])]), b.scalar(alpha, x)]
    )


# name in lower case -> (maker, default alpha, default beta)
ACTIVATIONS: dict[str, tuple[Callable[[float, float], Activation], float, float]] = {
    **{name: (_plain(name), 0.0, 0.0) for name in ("relu", "tanh", "sigmoid", "softsign", "softplus")},
    "leakyrelu": (_alpha("leaky_relu"), 0.01, 0.0),
    "thresholdedrelu": (_alpha("thresholded_relu"), 1.0, 0.0),
    "elu": (_alpha("elu"), 1.0, 0.0),
    "affine": (_affine, 1.0, 0.0),
    "scaledtanh": (_scaled_tanh, 1.0, 1.0),
    "hardsigmoid": (
        lambda alpha, beta: lambda b, x: b.emit("hard_sigmoid", [x], {"alpha": alpha, "beta": beta}),
        0.2,
        0.5,
    ),
}


@dataclass(frozen=True)
class _Layer:
    """One direction: weights and biases of its slice, its activations and the sizes of its input."""

    c: Call
    w: Ref  # [gates * hidden, input]
    r: Ref  # [gates * hidden, hidden]
    bias: Ref  # [gates * hidden] of W, or ''
    recurrent_bias: Ref  # the same of R
    peepholes: Ref  # [3 * hidden], or ''
    activations: tuple[Activation, ...]
    hidden: Dim
    clip: float
    of_input: Product = _product  # x @ W'
    of_state: Product = _product  # h @ R'

    def share(self, x: Ref, bias: Ref) -> Ref:
        """x @ W' + bias for every step at once: [time, batch, gates * hidden]."""
        b = self.c.builder
        y = self.of_input(b, x, b.transpose(self.w, (1, 0)))
        return b.emit("add", [y, bias]) if bias else y

    def gate(self, b: GraphBuilder, x: Ref, k: int) -> Ref:
        """Columns of gate k of [.., gates * hidden]."""
        return b.slice_axis(x, b.type_of(x).rank - 1, self.hidden * k, self.hidden * (k + 1))

    def activate(self, b: GraphBuilder, k: int, x: Ref) -> Ref:
        """Activation k of the clipped x."""
        if self.clip:
            x = b.emit("clip", [x, b.scalar(-self.clip, x), b.scalar(self.clip, x)])
        return self.activations[k](b, x)


def _sum(b: GraphBuilder, x: Ref, y: Ref) -> Ref:
    return b.emit("add", [x, y]) if x and y else x or y


def _rnn(layer: _Layer) -> tuple[Ref, Cell]:
    """h = f(x W' + h R' + biases)."""
    turned = layer.c.builder.transpose(layer.r, (1, 0))

    def cell(b: GraphBuilder, x: Ref, states: list[Ref]) -> list[Ref]:
        return [layer.activate(b, 0, b.emit("add", [x, b.emit("matmul", [states[0], turned])]))]

    return _sum(layer.c.builder, layer.bias, layer.recurrent_bias), cell


def _gru(layer: _Layer) -> tuple[Ref, Cell]:
    """Gates z, r, h:  h' = (1 - z) * g(x_h + r * (h R_h' + b)) + z * h, or r inside of the product."""
    b0, late = layer.c.builder, layer.c.flag("linear_before_reset")
    turned = b0.transpose(layer.r, (1, 0))
    gates = b0.slice_axis(turned, 1, 0, layer.hidden * 2)
    new = layer.gate(b0, turned, 2)
    outer, inner_bias = layer.bias, ""
    if layer.recurrent_bias:
        zr = b0.slice_axis(layer.recurrent_bias, 0, 0, layer.hidden * 2)
        inner_bias = layer.gate(b0, layer.recurrent_bias, 2)
        zero = b0.broadcast_to(b0.scalar(0, zr), (layer.hidden,))
        outer = _sum(b0, outer, b0.emit("concat", [zr, zero], {"axis": 0}))

    def cell(b: GraphBuilder, x: Ref, states: list[Ref]) -> list[Ref]:
        (h,) = states
        zr = b.emit("matmul", [h, gates])
        z = layer.activate(b, 0, b.emit("add", [layer.gate(b, x, 0), layer.gate(b, zr, 0)]))
        r = layer.activate(b, 0, b.emit("add", [layer.gate(b, x, 1), layer.gate(b, zr, 1)]))
        if late:
            mine = b.emit("mul", [r, _sum(b, b.emit("matmul", [h, new]), inner_bias)])
        else:
            mine = _sum(b, b.emit("matmul", [b.emit("mul", [r, h]), new]), inner_bias)
        n = layer.activate(b, 1, b.emit("add", [layer.gate(b, x, 2), mine]))
        keep = b.emit("mul", [z, h])
        return [b.emit("add", [b.emit("mul", [b.emit("sub", [b.scalar(1, z), z]), n]), keep])]

    return outer, cell


def _lstm(layer: _Layer) -> tuple[Ref, Cell]:
    """Gates i, o, f, c: C = f*C + i*g(c), H = o*h(C); peepholes add p*C to i and f, p*(new C) to o."""
    b0, coupled = layer.c.builder, layer.c.flag("input_forget")
    turned = b0.transpose(layer.r, (1, 0))

    def peep(b: GraphBuilder, x: Ref, state: Ref, k: int) -> Ref:
        if not layer.peepholes:
            return x
        return b.emit("add", [x, b.emit("mul", [layer.gate(b, layer.peepholes, k), state])])

    def cell(b: GraphBuilder, x: Ref, states: list[Ref]) -> list[Ref]:
        h, c = states
        all_ = b.emit("add", [x, layer.of_state(b, h, turned)])
        i = layer.activate(b, 0, peep(b, layer.gate(b, all_, 0), c, 0))
        if coupled:
            f = b.emit("sub", [b.scalar(1, i), i])
        else:
            f = layer.activate(b, 0, peep(b, layer.gate(b, all_, 2), c, 2))
        g = layer.activate(b, 1, layer.gate(b, all_, 3))
        c = b.emit("add", [b.emit("mul", [f, c]), b.emit("mul", [i, g])])
        o = layer.activate(b, 0, peep(b, layer.gate(b, all_, 1), c, 1))
        return [b.emit("mul", [o, layer.activations[2](b, c)]), c]

    return _sum(b0, layer.bias, layer.recurrent_bias), cell


@dataclass(frozen=True)
class _Kind:
    """One of the three ops: its gates, default activations, states and cell."""

    gates: int
    activations: tuple[str, ...]
    states: int
    cell: Callable[[_Layer], tuple[Ref, Cell]]


CELL_KINDS: dict[str, _Kind] = {
    "RNN": _Kind(1, ("tanh",), 1, _rnn),
    "GRU": _Kind(3, ("sigmoid", "tanh"), 1, _gru),
    "LSTM": _Kind(4, ("sigmoid", "tanh", "tanh"), 2, _lstm),
}
DIRECTIONS: dict[str, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}


Products: TypeAlias = "Callable[[Call, int], tuple[Product, Product]]"
"""(call, direction) -> the products of inputs and of states."""


def recurrent(kind: _Kind, products: Products | None = None) -> Callable[[Call], Sequence[Ref]]:
    """The op. products: other ones than of floats."""

    def build(c: Call) -> Sequence[Ref]:
        b, n = c.builder, kind.states
        direction, batched = c.text("direction", "forward"), c.flag("layout")
        if direction not in DIRECTIONS:
            raise c.fail(f"direction '{direction}' is none of {', '.join(DIRECTIONS)}")
        flips = DIRECTIONS[direction]
        if c.type(0).rank != 3:
            raise c.fail(f"input has rank {c.type(0).rank}, wanted 3")
        for i, rank in ((1, 3), (2, 3), (3, 2), (4, 1), (5, 3), (6, 3), (7, 2)):
            if c.has(i) and c.type(i).rank != rank:
                raise c.fail(f"input {i} has rank {c.type(i).rank}, wanted {rank}")
        for i, axis in ((1, 0), (2, 0), (3, 0), (5, 1 if batched else 0), (6, 1 if batched else 0), (7, 0)):
            if c.has(i):
                c.engine.same(f"directions of input {i}", c.shape(i)[axis], to_dim(len(flips)))
        x = b.transpose(c.x(0), (1, 0, 2)) if batched else c.x(0)
        time, batch, _ = b.type_of(x).shape
        for i, axis in ((4, 0), (5, 0 if batched else 1), (6, 0 if batched else 1)):
            if c.has(i):
                c.engine.same(f"batch of inputs 0 and {i}", batch, c.shape(i)[axis])
        found = []
        for d, flip in enumerate(flips):
            layer = _layer(c, kind, d, len(flips))
            if products is not None:
                of_input, of_state = products(c, d)
                layer = replace(layer, of_input=of_input, of_state=of_state)
            starts = [_start(c, 5 + s, d, batch, layer, batched) for s in range(n)]
            found.append(_direction(c, kind, layer, x, starts, time, flip))
        return _assembled(c, found, n, batched)

    return build


def _layer(c: Call, kind: _Kind, d: int, directions: int) -> _Layer:
    b = c.builder
    w, r = (at(b, c.x(i), to_dim(d)) for i in (1, 2))
    hidden = b.type_of(r).shape[1]
    if c.given("hidden_size"):
        hidden = c.engine.same("hidden_size", hidden, to_dim(c.integer("hidden_size")))
    c.engine.same("gates of W", b.type_of(w).shape[0], hidden * kind.gates)
    c.engine.same("gates of R", b.type_of(r).shape[0], hidden * kind.gates)
    if c.has(3):
        c.engine.same("biases", c.shape(3)[1], hidden * kind.gates * 2)
    if kind.states == 2 and c.has(7):
        c.engine.same("peepholes", c.shape(7)[1], hidden * 3)
    bias = at(b, c.x(3), to_dim(d)) if c.has(3) else ""
    span = hidden * kind.gates
    clip = c.number("clip", 0.0)
    if not clip >= 0:
        raise c.fail(f"clip is {clip}, wanted a bound above 0")
    return _Layer(
        c, w, r,
        b.slice_axis(bias, 0, 0, span) if bias else "",
        b.slice_axis(bias, 0, span, span * 2) if bias else "",
        at(b, c.x(7), to_dim(d)) if kind.states == 2 and c.has(7) else "",
        _activations(c, kind, d, directions), hidden, clip,
    )  # fmt: skip


def _activations(c: Call, kind: _Kind, d: int, directions: int) -> tuple[Activation, ...]:
    """The activations of direction d; alphas and betas are dealt out to those that take them, in order."""
    n = len(kind.activations)
    names = list(kind.activations) * directions
    if c.given("activations"):
        names = [s.decode().lower() for s in c.attributes["activations"].strings]
    if len(names) != n * directions:
        raise c.fail(f"{len(names)} activations, wanted {n * directions}")
    alphas, betas = list(c.floats("activation_alpha", ())), list(c.floats("activation_beta", ()))
    result = []
    for name in names:
        if name not in ACTIVATIONS:
            raise c.unsupported(f"activation '{name}'")
        make, alpha, beta = ACTIVATIONS[name]
        if alpha and alphas:
            alpha = alphas.pop(0)
        if beta and betas:
            beta = betas.pop(0)
        result.append(make(alpha, beta))
    return tuple(result[d * n : (d + 1) * n])


def _start(c: Call, i: int, d: int, batch: Dim, layer: _Layer, batched: bool) -> Ref:
    """The first state [batch, hidden]."""
    b = c.builder
    if c.has(i):
        return at(b, c.x(i), to_dim(d), 1 if batched else 0)
    return b.broadcast_to(b.scalar(0, c.x(0)), (batch, layer.hidden))


def _direction(
    c: Call, kind: _Kind, layer: _Layer, x: Ref, starts: list[Ref], time: Dim, flip: bool
) -> tuple[Ref, list[Ref]]:
    """All h of one direction [time, batch, hidden] in the order of time, and the last states."""
    b0 = c.builder
    if flip and c.has(4) and layer.of_state is not _product:  # rows that begin together, as ranges want them
        stack, states = _direction(c, kind, layer, _each_reversed(c, x), starts, time, False)
        return _each_reversed(c, stack), states
    bias, cell = kind.cell(layer)
    shares = layer.share(x, bias)
    lengths = b0.reshape(b0.cast(c.x(4), i64), (*c.shape(4), 1)) if c.has(4) else ""

    def step(b: GraphBuilder, k: Dim, states: list[Ref]) -> tuple[list[Ref], list[Ref]]:
        t = time - 1 - k if flip else k
        if not lengths:
            new = cell(b, at(b, shares, t), states)
            return new, [new[0]]
        # after the end of its sequence a row keeps its states and gives zeros
        now = b.from_dims([t], [])
        live = b.emit("less", [now, lengths])
        fed = states
        if layer.of_state is not _product:  # one that looks at its input's range: ended rows give zeros there
            fed = [b.emit("where", [b.emit("less_equal", [now, lengths]), s, b.scalar(0, s)]) for s in states]
        new = cell(b, at(b, shares, t), fed)
        kept = [b.emit("where", [live, a, s]) for a, s in zip(new, states, strict=True)]
        return kept, [b.emit("where", [live, new[0], b.scalar(0, new[0])])]

    states, (stack,) = counted(c, time, starts, step)
    if lengths:  # ONNX does not say what an empty sequence ends with; ONNX Runtime gives 0
        some = b0.emit("greater", [lengths, b0.scalar(0, lengths)])
        states = [b0.emit("where", [some, s, b0.scalar(0, s)]) for s in states]
    if flip:
        stack = b0.slice_axis(stack, 0, time - 1, -1, -1)
    return stack, states


def _each_reversed(c: Call, x: Ref) -> Ref:
    """x [time, batch, n] with the steps of each sequence in the other order, those after its end kept."""
    b, shape = c.builder, c.builder.type_of(x).shape
    ends = b.reshape(b.cast(c.x(4), i64), (1, shape[1], 1))
    steps = c.iota(shape[0])
    steps = b.broadcast_to(b.reshape(steps, (shape[0], 1, 1)), (shape[0], shape[1], 1))
    last = c.emit("sub", ends, c.scalar(1, ends))
    order = c.emit("where", c.emit("less", steps, ends), c.emit("sub", last, steps), steps)
    return c.emit("gather_elements", x, b.broadcast_to(order, shape), axis=0)


def _assembled(c: Call, found: Sequence[tuple[Ref, list[Ref]]], n: int, batched: bool) -> list[Ref]:
    """Y [time, directions, batch, hidden] and the last states [directions, batch, hidden]."""
    b = c.builder

    def joined(parts: Sequence[Ref], axis: int) -> Ref:
        rows = []
        for p in parts:
            shape = list(b.type_of(p).shape)
            rows.append(b.reshape(p, [*shape[:axis], ONE, *shape[axis:]]))
        return rows[0] if len(rows) == 1 else b.emit("concat", rows, {"axis": axis})

    y = joined([stack for stack, _ in found], 1) if c.wants(0) else ""
    states = [joined([s[i] for _, s in found], 0) if c.wants(1 + i) else "" for i in range(n)]
    if batched:
        y = b.transpose(y, (2, 0, 1, 3)) if y else ""
        states = [b.transpose(s, (1, 0, 2)) if s else "" for s in states]
    return [y, *states]


ROWS: tuple[OnnxOp, ...] = tuple(OnnxOp(name, 1, recurrent(kind)) for name, kind in CELL_KINDS.items())
