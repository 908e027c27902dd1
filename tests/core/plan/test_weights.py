"""Weights read and packed in parts: the same bytes as whole, whatever axis leads; equal bytes lie once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.core.bundle import write_weights
from smelt.core.dim import to_dim
from smelt.core.dtype import f32
from smelt.core.ir import graph
from smelt.core.ir.graph import Weight
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.layout import Layout, PackDim, PackSpec, apply_numpy, parse_spec
from smelt.core.ir.text import parse_module
from smelt.core.ir.verify import verify
from smelt.core.machine import CPU
from smelt.core.ops import OPS
from smelt.core.plan import weights
from smelt.core.plan.items import timeline

SHAPE = (7, 10, 6)
DATA = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
SPECS = (
    "(1/4, 0, 1%4, 2)",
    "(0, 1, 2)",
    "(2, 1, 0)",
    "(2/4, 0/2, 1, 0%2, 2%4)",
    "(1%4, 1/4, 0, 2)",
    "(0/3, 1, 0%3, 2)",
)


@pytest.fixture(params=["memory", "file"])
def weight(request: pytest.FixtureRequest, tmp_path: Path) -> Weight:
    if request.param == "memory":
        return Weight("@w", f32, SHAPE, data=DATA)
    (tmp_path / "w.bin").write_bytes(b"abcd" + DATA.tobytes() + b"more")
    return Weight("@w", f32, SHAPE, path=tmp_path / "w.bin", offset=4)


@pytest.mark.parametrize("piece", [1, 40, 1 << 20])
def test_pieces_and_windows(weight: Weight, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "FILE_PIECE", piece)
    np.testing.assert_array_equal(np.concatenate(list(weight.pieces())), DATA.reshape(-1))
    for axis, extent in enumerate(SHAPE):
        for start, stop in ((0, extent), (2, 5), (extent - 1, extent)):
            want = np.take(DATA, range(start, stop), axis)
            np.testing.assert_array_equal(weight.window(SHAPE, axis, start, stop), want)
    np.testing.assert_array_equal(weight.window((1, 70, 6), 1, 9, 33), DATA.reshape(1, 70, 6)[:, 9:33])
    assert weight.digest == Weight("@w", f32, SHAPE, data=DATA).digest


@pytest.mark.parametrize("text", SPECS)
@pytest.mark.parametrize("part", [100, 1 << 20])
def test_packing_in_parts(weight: Weight, text: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SMALL_WEIGHT_BYTES", 0)
    monkeypatch.setattr(weights, "PART", part)
    spec = parse_spec(text)
    want = apply_numpy(spec, DATA)
    packed = weights._packed(weight, spec, SHAPE, "@p")
    assert packed.shape == want.shape and packed.data is None
    np.testing.assert_array_equal(packed.array(), want)
    pieces = list(packed.pieces())
    assert sum(p.size for p in pieces) == want.size
    if part == 100 and text[1:4] != "1%4":
        assert len(pieces) > 1


def test_a_file_of_weights_has_its_gaps_and_hash(tmp_path: Path) -> None:
    a, b = np.arange(5, dtype=np.uint8), np.arange(3, dtype=np.float32)
    rows = [(2, iter([a[:2], a[2:]])), (12, iter([b]))]
    digest = write_weights(tmp_path / "model.weights", rows, 32)
    want = bytes(2) + a.tobytes() + bytes(5) + b.tobytes() + bytes(8)
    assert (tmp_path / "model.weights").read_bytes() == want + bytes.fromhex(digest)
    import hashlib

    assert digest == hashlib.sha256(want).hexdigest()


def test_equal_bytes_lie_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two logical weights, and of a layout that moves nothing and none; not of what only begins alike.
    Nothing is packed to find out."""
    monkeypatch.setattr(weights, "physical", None)
    text = """module "m" {
      weight @a: f32[8, 2] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
      weight @b: f32[1, 8, 2] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
      weight @c: f32[8, 2] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0]
      kernel @plain(x: f32[8, 2]) -> (y: f32[8, 2]) {
        serial i in 8 { serial j in 2 { y[i, j] = x[i, j] } }
      }
      kernel @same(x: f32[4, 2, 2] laid "(0/2, 0%2, 1)" of [8, 2]) -> (y: f32[8, 2]) {
        serial i in 8 { serial j in 2 { y[i, j] = x[i // 2, i % 2, j] } }
      }
      kernel @turned(x: f32[2, 8] laid "(1, 0)" of [8, 2]) -> (y: f32[8, 2]) {
        serial i in 8 { serial j in 2 { y[i, j] = x[j, i] } }
      }
      graph @main() -> (%1, %2, %3, %4, %5) {
        %1 = call_kernel(@a) {dims = (), kernel = "plain"} : f32[8, 2]
        %2 = call_kernel(@b) {dims = (), kernel = "same"} : f32[8, 2]
        %3 = call_kernel(@c) {dims = (), kernel = "plain"} : f32[8, 2]
        %4 = call_kernel(@a) {dims = (), kernel = "turned"} : f32[8, 2]
        %5 = call_kernel(@b) {dims = (), kernel = "turned"} : f32[8, 2]
      }
    }"""
    module = parse_module(text)
    verify(module, "lowered")
    for got in run_module(module, {}, OPS):
        assert got.reshape(-1)[:15].tolist() == list(range(15))
    readers = weights.weight_readers(module, module.main, timeline(module.main))
    (places,) = weights.weight_places([(module, readers)])
    assert [(p.ref, p.offset) for p in places] == [("@a", 0), ("@b", 0), ("@c", 64), ("@a", 128), ("@b", 128)]


def test_units_share_a_weight_in_one_layout() -> None:
    """What two units read as it is lies once for both; what one reads in another layout, apart."""
    read = "kernel @{}(x: f32[{}]{}) -> (y: f32[4]) {{ serial i in 4 {{ y[i] = x[{}] }} }}"
    module = parse_module(
        f"""module "m" {{
      weight @a: f32[4, 2] = [0, 1, 2, 3, 4, 5, 6, 7]
      {read.format("plain", "4, 2", "", "i, 1")}
      {read.format("turned", "2, 4", ' laid "(1, 0)" of [4, 2]', "1, i")}
      graph @main() -> (%1, %2, %3) {{
        %1 = call_kernel(@a) {{dims = (), kernel = "plain"}} : f32[4] on "cpu"
        %2 = call_kernel(@a) {{dims = (), kernel = "plain"}} : f32[4] on "device"
        %3 = call_kernel(@a) {{dims = (), kernel = "turned"}} : f32[4] on "device"
      }}
    }}"""
    )
    readers = weights.weight_readers(module, module.main, timeline(module.main), (CPU, "device"))
    (places,) = weights.weight_places([(module, readers)])
    assert [(p.offset, p.bytes, p.units) for p in places] == [(0, 32, (0, 1)), (64, 32, (1,))]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_layouts_of_one_order_pack_alike(data: st.DataObject) -> None:
    """And only those, of elements that are all different: two layouts of weights of the same elements."""
    rows = []
    for _ in range(2):
        source = data.draw(st.sampled_from([(4, 6), (1, 24), (24,), (2, 2, 6), (6, 4)]))
        pieces = []
        for axis, n in enumerate(source):
            factor = data.draw(st.sampled_from([f for f in (1, 2, 3, 4) if n % f == 0]))
            split = [PackDim(axis, "outer", factor), PackDim(axis, "inner", factor)]
            pieces += split if factor > 1 else [PackDim(axis)]
        spec = PackSpec(tuple(data.draw(st.permutations(pieces))))
        layout = Layout(spec, tuple(map(to_dim, source)))
        rows.append((layout.order, layout.apply(np.arange(24)).reshape(-1).tolist()))
    (a, x), (b, y) = rows
    assert (a == b) == (x == y), (a, b)
    assert (a == ()) == (x == [*range(24)])


def test_padding_is_part_of_the_order() -> None:
    padded, whole = (Layout(parse_spec(f"(0/{k}, 0%{k})"), (to_dim(6),)) for k in (4, 3))
    assert whole.order == () != padded.order
