"""What exporters write that is rare elsewhere, each in its smallest form; agreement with ONNX Runtime out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import Array, agree, imported, model
from oracle import plain_session

from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.driver import Request
from smelt.importer import import_model
from smelt.session import load

node = helper.make_node


def compiled_agrees(m: onnx.ModelProto, feeds: Mapping[str, Array], scratch: Path) -> None:
    """The compiled model, made once per test, gives what ONNX Runtime gives."""
    path, out = scratch / "m.onnx", scratch / "out"
    if not out.exists():
        onnx.save(m, path)
        compile_here(Request(source=str(path), output=str(out), runner=False))
    wanted = plain_session(m).run(None, dict(feeds))
    for w, f in zip(wanted, load(out, threads=1).run(None, feeds), strict=True):
        assert w.dtype == f.dtype
        np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [[7, 5], [8, 12], [2, 3]])
@pytest.mark.parametrize("nearest", ["floor", "round_prefer_ceil"])
def test_nearest_at_tensorflow_centres(sizes: list[int], nearest: str) -> None:
    """tf.image.resize(method="nearest") becomes a mode that newer opsets have dropped."""
    nodes = [
        node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest", nearest_mode=nearest, axes=[2, 3],
             coordinate_transformation_mode="tf_half_pixel_for_nn")
    ]  # fmt: skip
    m = model(nodes, {"x": ("f32", ["b", 3, "h", "w"])}, {"y": "f32"}, {"sizes": np.array(sizes)}, opset=18)
    for shape in ((2, 3, 4, 6), (1, 3, 5, 7)):
        agree(m, {"x": np.random.default_rng(1).random(shape, np.float32)})


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_an_axis_that_keeps_its_extent_stays_at_tensorflow_centres(mode: str) -> None:
    """Those are half an element off, at every other scale; also where only the run knows the sizes."""
    way = "tf_half_pixel_for_nn"
    nodes = [node("Resize", ["x", "", "", "s"], ["y"], mode=mode, coordinate_transformation_mode=way)]
    image: tuple[str, list[int | str | None]] = ("f32", [1, 2, "h", "w"])
    m = model(nodes, {"x": image, "s": ("i64", [4])}, {"y": "f32"}, opset=13)
    x = np.random.default_rng(1).random((1, 2, 4, 5), np.float32)
    for size in ([4, 7], [6, 5], [3, 9], [4, 5]):
        agree(m, {"x": x, "s": np.array([1, 2, *size])})


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_positions_that_are_no_numbers_are_those_of_minus_one(mode: str, padding: str) -> None:
    """Deformable attention divides by the share of an image that is not masked: 0 / 0 where all is."""
    x = np.random.default_rng(1).random((1, 2, 4, 5), np.float32)
    far = [np.nan, np.inf, -np.inf, 1e30, -1e30]
    grid = np.array([[[[p, q] for q in (*far, 0.3)] for p in (*far, -0.3)]], np.float32)
    inputs: dict[str, tuple[str, list[int | str | None]]] = {
        "x": ("f32", [1, 2, "h", "w"]), "grid": ("f32", [1, "k", "l", 2]),
    }  # fmt: skip
    for corners in (0, 1):
        nodes = [
            node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding, align_corners=corners)
        ]
        agree(model(nodes, inputs, {"y": "f32"}, opset=20), {"x": x, "grid": grid})


@pytest.mark.parametrize(("operator", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_old_nearest_rounds_each_axis_by_its_own_scale(operator: str, opset: int) -> None:
    """Up where an axis shrinks, down where it grows, also where only the run knows the scales."""
    nodes = [node(operator, ["x", "s"], ["y"], mode="nearest")]
    x = np.random.default_rng(1).random((1, 2, 5, 7), np.float32)
    image: tuple[str, list[int | str | None]] = ("f32", [1, 2, "h", "w"])
    for factors in ([1, 1, 0.6, 1.7], [1, 1, 2, 0.5], [1, 1, 0.4, 0.7], [1, 1, 2, 3]):
        if operator == "Upsample" and min(factors) < 1:
            continue  # ONNX Runtime takes none that shrinks
        scales = np.array(factors, np.float32)
        agree(model(nodes, {"x": image}, {"y": "f32"}, {"s": scales}, opset=opset), {"x": x})
        m = model(nodes, {"x": image, "s": ("f32", [4])}, {"y": "f32"}, opset=opset)
        agree(m, {"x": x, "s": scales})


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("nearest_mode", "ceil_of_smaller", "'ceil_of_smaller' is none of floor, ceil"),
        ("coordinate_transformation_mode", "middle", "'middle' is none of half_pixel, asymmetric"),
        ("nearest_mode", "up", "nearest_mode 'up' is none of floor, ceil"),
    ],
)
def test_resize_of_an_unknown_mode_is_refused(attribute: str, value: str, message: str) -> None:
    nodes = [node("Resize", ["x", "", "s"], ["y"], **{attribute: value})]
    scales = {"s": np.array([1, 1, 2, 2], np.float32)}
    m = model(nodes, {"x": ("f32", [1, 1, "h", "w"])}, {"y": "f32"}, scales)
    with pytest.raises(SmeltError, match=message):
        import_model(m)


def test_a_domain_that_is_not_imported() -> None:
    """tf2onnx makes a Range of com.microsoft and does not import the domain; ONNX Runtime does not mind."""
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("Squeeze", ["s"], ["n"]),
        node("Range", ["zero", "n", "one"], ["r"], domain="com.microsoft"),
        node("Cast", ["r"], ["f"], to=1),
        node("Binarizer", ["f"], ["y"], domain="ai.onnx.ml", threshold=1.5),
    ]
    m = model(nodes, {"x": ("f32", ["n", 2])}, {"y": "f32"}, {"zero": np.int64(0), "one": np.int64(1)})
    agree(m, {"x": np.zeros((5, 2), np.float32)})
    nodes[2].domain = "com.elsewhere"
    m = model(nodes, {"x": ("f32", ["n", 2])}, {"y": "f32"}, {"zero": np.int64(0), "one": np.int64(1)})
    with pytest.raises(SmeltError, match=r"no operator set for domain 'com[.]elsewhere'"):
        import_model(m)


def test_crop_and_resize_between_transposes(tmp_path: Path) -> None:
    """Channels last around a Resize whose regions and scales only a run knows: the transposes meet."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        node("Resize", ["t", "roi", "scales"], ["r"], mode="linear",
             coordinate_transformation_mode="tf_crop_and_resize"),
        node("Transpose", ["r"], ["y"], perm=[0, 2, 3, 1]),
    ]  # fmt: skip
    given = {"x": ("f32", ["b", "h", "w", 3]), "roi": ("f32", [8]), "scales": ("f32", [4])}
    m = model(nodes, given, {"y": "f32"})
    rng = np.random.default_rng(3)
    for shape in ((1, 6, 9, 3), (2, 8, 5, 3)):
        feeds = {
            "x": rng.random(shape, np.float32),
            "roi": np.array([0, 0, 0.25, 0.125, 1, 1, 0.5, 0.875], np.float32),
            "scales": np.array([1, 1, 1.5, 2], np.float32),
        }
        compiled_agrees(m, feeds, tmp_path)


def test_stale_value_info_of_an_output() -> None:
    """A converter to float16 leaves the type that the output had before its last Cast."""
    nodes = [node("Cast", ["x"], ["h"], to=10), node("Cast", ["h"], ["y"], to=1)]
    m = model(nodes, {"x": ("f32", ["n"])}, {"y": "f32"})
    m.graph.value_info.append(helper.make_tensor_value_info("y", 10, None))
    agree(m, {"x": np.arange(3, dtype=np.float32)})


def test_repeats_of_a_run_become_a_sequence(tmp_path: Path) -> None:
    """torch.repeat_interleave(x, repeats, 1): both split into parts of one, by ones that a run counts."""
    body = helper.make_graph(
        [
            node("SequenceAt", ["counts", "i"], ["count"]),
            node("SequenceAt", ["rows", "i"], ["row"]),
            node("Unsqueeze", ["row", "two"], ["wide"]),
            node("Concat", ["front", "count", "back"], ["shape"], axis=0),
            node("Expand", ["wide", "shape"], ["repeated"]),
            node("Reshape", ["repeated", "flat"], ["part"]),
            node("SequenceInsert", ["parts_in", "part"], ["parts_out"]),
            node("Identity", ["go_in"], ["go_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", onnx.TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("parts_in", onnx.TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_out", onnx.TensorProto.BOOL, []),
            helper.make_tensor_sequence_value_info("parts_out", onnx.TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        node("Shape", ["repeats"], ["n"]),
        node("ConstantOfShape", ["n"], ["ones"], value=helper.make_tensor("v", 7, [1], [1])),
        node("SplitToSequence", ["repeats", "ones"], ["counts"], axis=0),
        node("SplitToSequence", ["x", "ones"], ["rows"], axis=1),
        node("Squeeze", ["n"], ["rounds"]),
        node("SequenceEmpty", [], ["nothing"], dtype=1),
        node("Loop", ["rounds", "yes", "nothing"], ["parts"], body=body),
        node("ConcatFromSequence", ["parts"], ["y"], axis=1),
    ]
    constants = {
        "two": np.array([2]), "front": np.array([1, 1]), "back": np.array([4]), "flat": np.array([0, -1, 4]),
        "yes": np.array(True),
    }  # fmt: skip
    given = {"x": ("f32", ["b", "n", 4]), "repeats": ("i64", ["n"])}
    m = model(nodes, given, {"y": "f32"}, constants)
    rng = np.random.default_rng(4)
    for b, repeats in ((2, [2, 0, 1, 3]), (1, [1]), (3, [4, 2])):
        x = rng.random((b, len(repeats), 4), np.float32)
        compiled_agrees(m, {"x": x, "repeats": np.array(repeats)}, tmp_path)


@pytest.mark.parametrize(("groups", "offset_groups", "masked"), [(1, 1, True), (2, 2, True), (2, 1, False)])
def test_deformable_convolution_of_any_size(
    groups: int, offset_groups: int, masked: bool, tmp_path: Path
) -> None:
    """Each place is read once per input channel, not once per output channel too."""
    names = ["x", "w", "offset", "bias", "mask"] if masked else ["x", "w", "offset", "bias"]
    nodes = [node("DeformConv", names, ["y"], pads=[1, 0, 1, 2], strides=[2, 1], dilations=[1, 2],
                  group=groups, offset_group=offset_groups)]  # fmt: skip
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((6, 4 // groups, 3, 2)).astype(np.float32)
    given = {"x": ("f32", ["b", 4, "h", "w_"]), "offset": ("f32", ["b", 12 * offset_groups, "p", "q"])}
    if masked:
        given["mask"] = ("f32", ["b", 6 * offset_groups, "p", "q"])
    m = model(nodes, given, {"y": "f32"}, {"w": weight, "bias": np.arange(6, dtype=np.float32)}, opset=19)
    ops = [n.op for n in imported(m).main.nodes]
    assert ops.count("deform_columns") == ops.count("matmul") == 1
    for b, h, w in ((2, 5, 6), (1, 3, 3), (3, 8, 4)):
        p, q = (h - 1) // 2 + 1, w
        feeds = {
            "x": rng.standard_normal((b, 4, h, w)).astype(np.float32),
            "offset": rng.standard_normal((b, 12 * offset_groups, p, q)).astype(np.float32),
        }
        if masked:
            feeds["mask"] = rng.random((b, 6 * offset_groups, p, q), np.float32)
        compiled_agrees(m, feeds, tmp_path)
