"""Convolutions as products of transformed tiles: which become them, what they give, what may be lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import model, ops_of
from qdq_models import optimised

from smelt.core.dim import sym, to_dim
from smelt.core.ir.graph import Module
from smelt.core.machine import Machine
from smelt.core.passes.context import Context, Options
from smelt.core.passes.whole_graph import winograd as room
from smelt.core.passes.whole_graph.winograd import winograd
from smelt.targets.llvm.machines import machine_for
from tests.core.passes.build import Build

VECTORS = Context(Machine("vectors", 256, 16))
WORDS = Context(machine_for("x86_64-linux", "x86-64-v3"))
RNG = np.random.default_rng(0)


def conv(
    kernel: tuple[int, ...] = (3, 3), channels: int = 40, made: int = 40, extent: int | str = "H",
    dtype: str = "f32", **changes: Any,
) -> Module:
    """A channels-last convolution of x by a constant weight."""
    rank = len(kernel)
    b = Build(f"{dtype}[N, {', '.join([str(extent)] * rank)}, {channels}]")
    numpy = {"f32": np.float32, "f64": np.float64, "f16": np.float16}[dtype]
    group = changes.get("group", 1)
    w = b.weight(RNG.standard_normal((*kernel, channels // group, made)), numpy)
    pads = tuple(to_dim(k // 2) for k in kernel)
    attrs = {
        "strides": (1,) * rank, "dilations": (1,) * rank, "group": 1, "channels_last": True,
        "pads_begin": pads, "pads_end": pads, **changes,
    }  # fmt: skip
    return b.done(b("conv", b.inputs[0], w, **attrs))


def tile_of(module: Module, ctx: Context = VECTORS) -> tuple[int, ...] | None:
    """The tile that the convolution got."""
    found = [n.attrs["tile"] for n in winograd(module, ctx).main.nodes if n.op == "winograd_output"]
    return found[0] if found else None  # type: ignore[return-value]


TILES: dict[str, tuple[dict[str, Any], tuple[int, ...] | None]] = {
    "an image": ({}, (4, 4)),
    "a row of taps": ({"kernel": (1, 3), "channels": 160, "made": 160}, (1, 4)),
    "a line": ({"kernel": (3,), "channels": 160, "made": 160}, (4,)),
    "a volume": ({"kernel": (3, 3, 3)}, (2, 2, 2)),
    "a heavy weight": ({"channels": 512, "made": 160}, (2, 2)),
    "extents that tiles of 4 do not fill": ({"extent": 6, "channels": 96, "made": 96}, (2, 2)),
    "an extent of one": ({"extent": 1}, None),
    "few channels": ({"channels": 8, "made": 8}, None),
    "three channels": ({"channels": 3, "made": 64}, None),
    "a short line": ({"kernel": (3,)}, None),
    "five taps": ({"kernel": (5, 5)}, (2, 2)),
    "a line of five taps": ({"kernel": (5,), "channels": 160, "made": 160}, (2,)),
    "three taps beside two": ({"kernel": (3, 2)}, (4, 5)),
    "four taps": ({"kernel": (4, 4)}, (3, 3)),
    "six taps": ({"kernel": (6, 3)}, None),
    "one tap": ({"kernel": (1, 1)}, None),
    "strides": ({"strides": (2, 1)}, None),
    "dilations": ({"dilations": (1, 2)}, None),
    "groups": ({"group": 2}, None),
    "wide floats": ({"dtype": "f64"}, None),
    "pads that may be negative": ({"pads_begin": (sym("N") - 1, to_dim(1))}, None),
}


@pytest.mark.parametrize("name", TILES)
def test_which_convolutions(name: str) -> None:
    changes, wanted = TILES[name]
    assert tile_of(conv(**changes)) == wanted


@pytest.mark.parametrize(("extent", "pads"), [(34, 0), (33, 0), (32, 1), ("H", 0)])
def test_nothing_is_copied_for_pads_of_nothing(extent: int | str, pads: int) -> None:
    """34 elements are eight whole tiles of 4 outputs; 33 lack one."""
    around = (to_dim(pads),) * 2
    made = winograd(conv(extent=extent, pads_begin=around, pads_end=around), VECTORS)
    assert ("pad" in ops_of(made)) == (extent != 34)


@pytest.mark.parametrize(
    ("channels", "extent", "wanted"),
    [
        (256, 28, (4, 4)), (256, 14, (2, 2)), (512, 7, (2, 2)), (512, 28, (2, 2)), (256, 2, None),
        (256, "H", (4, 4)), (512, "H", (2, 2)),
    ],
)
def test_weights_that_few_outputs_share(
    channels: int, extent: int | str, wanted: tuple[int, int] | None
) -> None:
    """Where outputs are few, reading a larger weight takes longer than the products that it saves; where
    nobody knows how many there are, and where it is very large, its size decides."""
    around = (to_dim(1),) * 2
    made = conv(extent=extent, channels=channels, made=channels, pads_begin=around, pads_end=around)
    assert tile_of(made) == wanted


def test_who_may() -> None:
    """Not for lanes of devices that do not say what it costs, for machines without vectors, or where tensors
    may become f16."""
    m = conv()
    device = Machine("device", 0, 64, max_lanes=64, levels=("group", "lane"), transforms=(31, 34))
    assert tile_of(m, Context(device)) == (4, 4)
    assert tile_of(m, Context(replace(device, transforms=(310, 340)))) is None
    others = (
        Context(device, Options(fp16=True)),
        Context(Machine("device", 256, 16, max_lanes=64, levels=("group", "lane", "vector"))),
        Context(Machine("scalar", 0, 16)),
        Context(VECTORS.machine, Options(fp16=True)),
    )
    assert [tile_of(m, ctx) for ctx in others] == [None] * 4


def of_bytes(
    kernel: tuple[int, ...] = (3, 3), channels: int = 40, left: str = "u8", largest: int = 127,
    origin: int = 0,
) -> Module:
    """A channels-last convolution of bytes by a constant weight."""
    rank = len(kernel)
    b = Build(f"{left}[N, {', '.join('HW'[:rank])}, {channels}]")
    w = b.weight(RNG.integers(-largest, largest + 1, (*kernel, channels, channels)), np.int8)
    pads = tuple(to_dim(k // 2) for k in kernel)
    return b.done(b(
        "conv", b.inputs[0], w, strides=(1,) * rank, dilations=(1,) * rank, group=1, channels_last=True,
        pads_begin=pads, pads_end=pads, origin=origin,
    ))  # fmt: skip


BYTES: dict[str, tuple[dict[str, Any], tuple[int, ...] | None]] = {
    "an image": ({}, (4, 4)),
    "signed": ({"left": "i8", "origin": -7}, (4, 4)),
    "few channels": ({"channels": 8}, None),
    "a heavy weight": ({"channels": 400}, (2, 2)),
    "a heavier weight": ({"channels": 600}, None),
    "a line": ({"kernel": (3,), "channels": 64}, (4,)),
    "five taps, which leave 16 bits": ({"kernel": (5, 5)}, None),
    "five taps of small numbers": ({"kernel": (5, 5), "largest": 20}, (2, 2)),
}


@pytest.mark.parametrize("name", BYTES)
def test_which_convolutions_of_bytes(name: str) -> None:
    changes, wanted = BYTES[name]
    assert tile_of(of_bytes(**changes), WORDS) == wanted


@pytest.mark.parametrize(("cpu", "features", "wanted"), [
    ("x86-64-v2", "", (4, 4)), ("x86-64-v3", "", (4, 4)), ("x86-64-v4", "", (4, 4)),
    ("x86-64-v3", "+avxvnni", None), ("icelake-server", "", None),
])  # fmt: skip
def test_bytes_stay_bytes_where_they_are_faster(
    cpu: str, features: str, wanted: tuple[int, int] | None
) -> None:
    assert tile_of(of_bytes(), Context(machine_for("x86_64-linux", cpu, features))) == wanted


def test_a_loss_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 4 lose more than tiles of 2, and those more than nothing."""
    m = conv()
    w = next(w.array() for w in m.weights.values())
    exact = {t: room.transformed_weight(w, t) for t in ((4, 4), (2, 2))}
    four, two = (room._loss(e, e.astype(np.float32), t, (3, 3)) for t, e in exact.items())
    assert 0 < two < four < room.LOST
    monkeypatch.setattr(room, "LOST", (two + four) / 2)
    assert tile_of(m) == (2, 2)
    monkeypatch.setattr(room, "LOST", two / 2)
    assert tile_of(m) is None


def test_weights_that_overflow_stay() -> None:
    b = Build("f32[N, H, H, 40]")
    w = b.weight(np.full((3, 3, 40, 40), 3e38, np.float32))
    ones = (to_dim(1),) * 2
    attrs = {"strides": (1, 1), "dilations": (1, 1), "group": 1, "channels_last": True}
    y = b("conv", b.inputs[0], w, pads_begin=ones, pads_end=ones, **attrs)
    assert tile_of(b.done(y)) is None


def test_a_model_has_them_where_channels_come_last() -> None:
    w = RNG.standard_normal((40, 40, 3, 3)).astype(np.float32)
    c = helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4)
    inputs = {"x": ("f32", ["n", 40, "h", "w"])}
    m = model([c, helper.make_node("Relu", ["c"], ["y"])], inputs, {"y": "f32"}, {"w": w})
    ops = ops_of(optimised(m))
    assert "winograd_input" in ops and "conv" not in ops
