"""Graph -> Graph: transposed convolutions become convolutions: of bytes, which have integer kernels then, and
of floats where that is faster.

conv_transpose(x, w), stride s  -->  slice(interleave(conv(x, w'))), a channel of w' for each of the
                                     phases that outputs have against the stride
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from smelt.core.dim import Dim, to_dim
from smelt.core.dtype import Array
from smelt.core.ir.graph import Attr, Node, Ref
from smelt.core.passes.numerics import INTEGERS, OVERFLOW, SUMS
from smelt.core.passes.rewriting import dequantized
from smelt.core.passes.rewriting.constants import dims_of, ints_of
from smelt.core.passes.rewriting.dequantized import Quantised, source
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.rules import Rule, rule, rule_pass


def phases_blocker(g: Editor, n: Node, x: Quantised, w: Quantised) -> str | None:
    """Why a conv_transpose of bytes stays a float one; None when it does not."""
    why = dequantized.weight_blocker(g, x, w, 1)
    if why is not None:
        return why
    if w.axis == 1 and g.array(w.scale) is None:
        return "the weight has scales that are computed at run time"
    return _placed(g, n)


@rule("conv_transpose", kind=INTEGERS, forms=[
    "x: u8[N, 4, H]; w: i8[4, 8, 3] = draw; dequantize_w = dequantize(w, 0.02, axis=-1); "
    "conv_transpose(dequantize(x, 0.05, axis=-1), dequantize_w, strides=(2,))",
])
def _by_phases(g: Editor, n: Node) -> Ref | None:
    # y[q * s + r] = sum over j of x[q - j] w[r + j * s]: for each r a convolution of ceil(K / s) taps
    x, w = (source(g, r) for r in n.inputs[:2])
    if x is None or w is None or x.axis != -1 or n.attr("channels_last", False):
        return None
    scales = [g.array(q.scale) for q in (x, w)]
    ordinary = all(s is None or dequantized.ordinary(s) for s in scales)
    if phases_blocker(g, n, x, w) is not None or not ordinary:
        return None
    array, group, strides = g.array(w.x), int(n.attr("group")), ints_of(n.attrs["strides"])
    assert array is not None
    kernel, phases = array.shape[2:], prod(strides)
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    zero = g.array(w.zero) if w.zero else np.zeros((), array.dtype)
    assert zero is not None
    name = n.inputs[1][1:]
    parts = [g.constant(_phased(array, zero, group, strides, taps), name), _spread(g, w.scale, group, phases)]
    if w.zero:
        parts.append(_spread(g, w.zero, group, phases))
    weight = g.emit("dequantize", parts, {"axis": 0 if w.axis == 1 else -1})
    return _convolved(g, n, weight, array.shape, taps)


FEW_CHANNELS = 16
"""Channels that fill no vector of the widest kind: with them phases do."""


def _of_floats(g: Editor, n: Node, filled: bool) -> Ref | None:
    """A float conv_transpose by phases. filled: phases of fewer taps than others get taps of 0, so that one
    convolution computes all; else each has one of its own."""
    array, strides = g.array(n.inputs[1]), ints_of(n.attrs["strides"])
    if array is None or n.attr("channels_last", False) or prod(strides) == 1:
        return None
    group = int(n.attr("group"))
    if group > 1 and group == array.shape[0]:  # without sums over channels: its kernel reads each input once
        return None
    if not n.output.type.dtype.is_float or _placed(g, n) is not None:
        return None
    if len({g.type_of(r).dtype for r in n.inputs if r}) > 1 or not np.isfinite(array).all():
        return None
    kernel = array.shape[2:]
    even = all(k % s == 0 for k, s in zip(kernel, strides, strict=True))
    if any(s > k for k, s in zip(kernel, strides, strict=True)) or (even and array.shape[1] >= FEW_CHANNELS):
        return None
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    if filled and even:
        return None
    if not filled and not even:
        return _by_itself(g, n, array, taps)
    w = _phased(array, np.zeros((), array.dtype), group, strides, taps)
    return _convolved(g, n, g.constant(w, n.inputs[1][1:]), array.shape, taps)


@rule("conv_transpose", kind=SUMS, forms=[
    "x: f32[N, 4, H]; w: f32[4, 3, 3] = draw; conv_transpose(x, w, strides=(2,))",
    "x: f32[N, 4, H, 5]; w: f32[4, 3, 3, 3] = draw; conv_transpose(x, w, strides=(2, 2), group=2)",
])
def _floats_by_phases(g: Editor, n: Node) -> Ref | None:
    # as above, where taps must be guarded (3 of them against a stride of 2) or there are few channels:
    # 32 to 3 channels of 3 x 3 took 10.2 ms instead of 0.5 by one convolution (see below)
    return _of_floats(g, n, filled=False)


@rule("conv_transpose", kind=OVERFLOW, forms=[
    "x: f32[N, 4, H]; w: f32[4, 3, 3] = draw; conv_transpose(x, w, strides=(2,))",
])
def _floats_by_filled_phases(g: Editor, n: Node) -> Ref | None:
    # the same with taps of 0, which make NaN of infinities next to them: 0.68 ms instead of 1.03 for 32 to
    # 3 channels of 120 x 120
    return _of_floats(g, n, filled=True)


def _by_itself(g: Editor, n: Node, array: Array, taps: Sequence[int]) -> Ref:
    """A convolution for each phase, with as many taps as that has: a tap of 0 for the others would make NaN
    of infinities next to it. What they make is put between each other with channels last, where the channels
    of an output are moved as one."""
    strides, kernel, group = ints_of(n.attrs["strides"]), array.shape[2:], int(n.attr("group"))
    rank, parts = len(taps), []
    for place in product(*map(range, strides)):
        at = (slice(r, None, s) for r, s in zip(place, strides, strict=True))
        own = np.flip(array[(slice(None), slice(None), *at)], tuple(range(2, 2 + rank)))
        w = own.reshape(group, -1, *own.shape[1:]).swapaxes(1, 2)  # [group, M / group, C / group, *taps]
        w = w.reshape(-1, *w.shape[2:])
        attrs: dict[str, Attr] = {
            "strides": (1,) * rank, "dilations": (1,) * rank, "group": group, "channels_last": False,
            "pads_begin": tuple(to_dim(t - 1) for t in w.shape[2:]),
            "pads_end": tuple(_behind(n, a, t, kernel[a], strides[a]) for a, t in enumerate(taps)),
        }  # fmt: skip
        inputs = (n.inputs[0], g.constant(np.ascontiguousarray(w), n.inputs[1][1:]), *n.inputs[2:])
        parts.append(g.emit("conv", inputs, attrs))
    return _woven(g, n, g.emit("concat", parts, {"axis": 1}), to_dim(array.shape[1] * group))


def _woven(g: Editor, n: Node, y: Ref, channels: Dim) -> Ref:
    """[N, phases * M, *Q] as the outputs: interleaved with channels last, cut, and with channels first."""
    strides = ints_of(n.attrs["strides"])
    rank = len(strides)
    y = g.emit("transpose", (y,), {"perm": (0, *range(2, 2 + rank), 1)})
    batch, *spatial, _ = g.shape(y)
    y = g.emit("reshape", (y,), {"shape": (batch, *spatial, *map(to_dim, strides), channels)})
    order = [axis for a in range(rank) for axis in (1 + a, 1 + rank + a)]
    y = g.emit("transpose", (y,), {"perm": (0, *order, 1 + 2 * rank)})
    whole = (batch, *(q * s for q, s in zip(spatial, strides, strict=True)), channels)
    y = g.emit("reshape", (y,), {"shape": whole})
    begin, (_, _, *made) = dims_of(n.attrs["pads_begin"]), n.output.type.shape
    ends = (batch, *(b + d for b, d in zip(begin, made, strict=True)), channels)
    starts = (to_dim(0), *begin, to_dim(0))
    y = g.emit("slice", (y,), {"starts": starts, "ends": ends, "steps": (1,) * (2 + rank)})
    return g.emit("transpose", (y,), {"perm": (0, 1 + rank, *range(1, 1 + rank))})


def _placed(g: Editor, n: Node) -> str | None:
    """Why the taps are not where phases have them; None when they are."""
    if any(d != 1 for d in ints_of(n.attrs["dilations"])):
        return "the taps are spread by dilations"
    if not all(d.is_const for name in ("pads_end", "output_padding") for d in dims_of(n.attrs[name])):
        return "the pads are computed at run time"
    lows = [g.engine.facts.bounds(d)[0] for d in dims_of(n.attrs["pads_begin"])]
    if any(low is None or low < 0 for low in lows):
        return "the pads may be negative: zeros in front, which no phase makes"
    return None


def _convolved(g: Editor, n: Node, weight: Ref, shape: Sequence[int], taps: Sequence[int]) -> Ref:
    """The convolution by the weight of all phases, interleaved and cut. shape: of the weight before."""
    group, strides, kernel = int(n.attr("group")), ints_of(n.attrs["strides"]), shape[2:]
    bias, late = _phased_bias(g, n.inputs[2] if len(n.inputs) > 2 else "", prod(strides))
    attrs: dict[str, Attr] = {
        "strides": (1,) * len(taps), "dilations": (1,) * len(taps), "group": group, "channels_last": False,
        "pads_begin": tuple(to_dim(t - 1) for t in taps),
        "pads_end": tuple(_behind(n, a, t, kernel[a], strides[a]) for a, t in enumerate(taps)),
    }  # fmt: skip
    y = g.emit("conv", (n.inputs[0], weight, *([bias] if bias else [])), attrs)
    y = _interleaved(g, y, shape[1] * group, strides)
    y = _cut(g, n, y)
    if not late:
        return y
    more = g.emit("reshape", (late,), {"shape": (*g.shape(late), *[to_dim(1)] * len(taps))})
    return g.emit("add", (y, more))


def _cut(g: Editor, n: Node, y: Ref) -> Ref:
    """What the pads of the transposed convolution leave."""
    begin, made = dims_of(n.attrs["pads_begin"]), n.output.type.shape
    ends = (*made[:2], *(b + d for b, d in zip(begin, made[2:], strict=True)))
    starts = (to_dim(0), to_dim(0), *begin)
    return g.emit("slice", (y,), {"starts": starts, "ends": ends, "steps": (1,) * len(made)})


def _phased(array: Array, zero: Array, group: int, strides: Sequence[int], taps: Sequence[int]) -> Array:
    """Weights [C, M / group, *K] as [M * phases, C / group, *taps]; taps beyond K are zero points."""
    channels, each, *kernel = array.shape
    whole = [t * s for t, s in zip(taps, strides, strict=True)]
    fill = np.broadcast_to(zero.reshape(-1, *(1,) * len(kernel)), (each, *whole))
    wide = np.broadcast_to(fill, (channels, each, *whole)).copy()
    wide[(slice(None), slice(None), *(slice(k) for k in kernel))] = array
    pairs = [n for t, s in zip(taps, strides, strict=True) for n in (t, s)]
    y = wide.reshape(group, channels // group, each, *pairs)
    rank = len(kernel)
    at_tap, at_phase = [3 + 2 * a for a in range(rank)], [4 + 2 * a for a in range(rank)]
    y = np.flip(y, tuple(at_tap)).transpose(0, 2, *at_phase, 1, *at_tap)
    return np.ascontiguousarray(y.reshape(group * each * prod(strides), channels // group, *taps))


def _spread(g: Editor, ref: Ref, group: int, phases: int) -> Ref:
    """A scale or zero point per output of a group, for each phase of each; one for all stays."""
    array = g.array(ref)
    if array is None or array.ndim == 0:
        return ref
    return g.constant(np.tile(np.repeat(array, phases), group), ref[1:])


def _phased_bias(g: Editor, bias: Ref, phases: int) -> tuple[Ref, Ref]:
    """A constant bias for each phase; else what is to be added later."""
    d = g.made_by(bias, "dequantize") if bias else None
    arrays = [g.array(r) if r else None for r in (d.inputs if d is not None else [bias])]
    if not bias or any(a is None for a in arrays):
        return "", bias
    repeated = [
        r if a is None or a.ndim == 0 else g.constant(np.repeat(a, phases), r[1:])
        for r, a in zip(d.inputs if d is not None else [bias], arrays, strict=True)
    ]
    return (repeated[0] if d is None else g.emit("dequantize", repeated, d.attrs)), ""


def _behind(n: Node, axis: int, taps: int, kernel: int, stride: int) -> Dim:
    """Zeros after the input, so that the convolution reaches the last output."""
    extra = dims_of(n.attrs["output_padding"])[axis] - dims_of(n.attrs["pads_end"])[axis]
    short = (extra + kernel - taps * stride).const
    return to_dim(taps - 1 + max(0, -(-short // stride)))


def _interleaved(g: Editor, y: Ref, channels: int, strides: Sequence[int]) -> Ref:
    """[N, M * phases, *Q] as [N, M, *(Q * stride)]."""
    if prod(strides) == 1:
        return y
    (batch, _, *spatial), rank = g.shape(y), len(strides)
    y = g.emit("reshape", (y,), {"shape": (batch, to_dim(channels), *map(to_dim, strides), *spatial)})
    order = [axis for a in range(rank) for axis in (2 + rank + a, 2 + a)]
    y = g.emit("transpose", (y,), {"perm": (0, 1, *order)})
    shape = (batch, to_dim(channels), *(q * s for q, s in zip(spatial, strides, strict=True)))
    return g.emit("reshape", (y,), {"shape": shape})


RULES: tuple[Rule, ...] = (_by_phases,)
FLOAT_RULES: tuple[Rule, ...] = (_floats_by_filled_phases, _floats_by_phases)
phases = rule_pass(FLOAT_RULES)
