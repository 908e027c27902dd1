"""Shape arithmetic dies in the importer; what is left agrees with ONNX Runtime at several shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import Array, agree, imported, model, ops_of, types_of

from smelt.core.diag import SmeltError
from smelt.importer import import_model

node = helper.make_node


def case(
    nodes: Sequence[onnx.NodeProto],
    dims: Sequence[int | str | None],
    constants: dict[str, Any] | None = None,
    **kw: Any,
) -> onnx.ModelProto:
    arrays = {k: np.asarray(v) for k, v in (constants or {}).items()}
    return model(nodes, {"x": ("f32", dims)}, {"y": "f32"}, arrays, **kw)


def check(m: onnx.ModelProto, type_: str, ops: list[str] | None, *shapes: tuple[int, ...]) -> None:
    """The output's type, the ops that are left, and the values at each input shape."""
    module = imported(m)
    assert types_of(module) == [type_]
    if ops is not None:
        assert ops_of(module) == ops
    rng = np.random.default_rng(7)
    for shape in shapes:
        agree(m, {"x": rng.standard_normal(shape).astype(np.float32)})


def test_reshape_by_shape_arithmetic() -> None:
    """[b, s, 8] -> [b, s, 2, 4] -> [b, 2, s, 4] -> [b, s*8], as exporters write it."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"], axis=0),
        node("Gather", ["s", "one"], ["n"], axis=0),
        node("Unsqueeze", ["b", "ax"], ["b1"]),
        node("Unsqueeze", ["n", "ax"], ["n1"]),
        node("Concat", ["b1", "n1", "heads"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["r"]),
        node("Transpose", ["r"], ["p"], perm=[0, 2, 1, 3]),
        node("Mul", ["n", "eight"], ["n8"]),
        node("Unsqueeze", ["n8", "ax"], ["n81"]),
        node("Concat", ["b1", "n81"], ["u"], axis=0),
        node("Reshape", ["p", "u"], ["y"]),
    ]
    constants = {"zero": 0, "one": 1, "ax": [0], "heads": [2, 4], "eight": 8}
    check(
        case(nodes, ["b", "s", 8], constants), "f32[b, 8*s]", ["reshape", "transpose", "reshape"],
        (1, 1, 8), (2, 5, 8),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dims", "target", "allowzero", "type_", "shape"),
    [
        (["n", 3, 4], [0, -1], 0, "f32[n, 12]", (5, 3, 4)),
        (["n", 3, 4], [-1, 4], 0, "f32[3*n, 4]", (5, 3, 4)),
        (["n", "m", 4], [0, 0, 2, 2], 0, "f32[n, m, 2, 2]", (2, 3, 4)),
        (["n", "m", 4], [-1], 0, "f32[4*m*n]", (2, 3, 4)),
        ([0, 3], [3, 0], 1, "f32[3, 0]", (0, 3)),
        (["n", 0], [0, 7], 1, "f32[0, 7]", (2, 0)),
        ([], [1, 1], 0, "f32[1, 1]", ()),
        ([1], [], 0, "f32[]", (1,)),
    ],
)
def test_reshape(
    dims: list[Any], target: list[int], allowzero: int, type_: str, shape: tuple[int, ...]
) -> None:
    nodes = [node("Reshape", ["x", "t"], ["y"], allowzero=allowzero)]
    check(case(nodes, dims, {"t": np.array(target, np.int64)}), type_, None, shape)


def test_copied_axes_cancel_beside_minus_one() -> None:
    """[0, -1] of an empty batch: 3 and not 0/0 (ONNX Runtime refuses it)."""
    m = case([node("Reshape", ["x", "t"], ["y"])], [0, 3], {"t": [0, -1]})
    assert types_of(imported(m)) == ["f32[0, 3]"]


@pytest.mark.parametrize(
    ("dims", "target", "text"),
    [
        ([2, 3], [-1, 4], "6 elements do not fit"),
        ([2, 3], [-1, -1], "two -1"),
        ([2, 3], [-2, 3], "negative size -2"),
        ([2], [0, 0], "copies axis 1"),
        ([2, 3], [7], "found 6 and 7"),
    ],
)
def test_reshape_refused(dims: list[Any], target: list[int], text: str) -> None:
    with pytest.raises(SmeltError, match=text) as caught:
        import_model(case([node("Reshape", ["x", "t"], ["y"], "r")], dims, {"t": target}))
    assert caught.value.node == "r"


def test_a_shape_of_any_length_is_refused_with_a_way_out() -> None:
    m = model([node("Reshape", ["x", "t"], ["y"])], {"x": ("f32", ["n"]), "t": ("i64", ["k"])}, {"y": "f32"})
    with pytest.raises(SmeltError, match="whose length is not static") as caught:
        import_model(m)
    assert caught.value.kind == "unsupported" and "--dim k=N" in str(caught.value.hint)
    assert types_of(imported(m, dims={"k": 2}))[0].count(",") == 1


def test_reshape_from_a_run_time_tensor() -> None:
    m = model([node("Reshape", ["x", "t"], ["y"])], {"x": ("f32", ["n", 6]), "t": ("i64", [3])}, {"y": "f32"})
    module = imported(m)
    assert ops_of(module).count("bind") == 3
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    for target in ([3, 2, 2], [0, -1, 3], [-1, 1, 1]):
        agree(m, {"x": x, "t": np.array(target)})


def add_to_pooled(dims: list[Any]) -> onnx.ModelProto:
    """x of three axes, twice along the second, one less along the third, plus z."""
    nodes = [
        node("Concat", ["x", "x"], ["twice"], axis=1),
        node("MaxPool", ["twice"], ["less"], kernel_shape=[2], strides=[1]),
        node("Add", ["less", "z"], ["y"]),
    ]
    return model(nodes, {"x": ("f32", ["n", "c", "h"]), "z": ("f32", dims)}, {"y": "f32"})


def test_computed_extents_broadcast_beside_unrelated_ones() -> None:
    m = add_to_pooled(["a", "b", "w"])
    pairs = (((2, 3, 4), (2, 6, 3)), ((2, 3, 4), (1, 1, 1)), ((1, 3, 2), (4, 1, 5)), ((2, 3, 1), (2, 1, 1)))
    for x, z in pairs:
        agree(m, {"x": np.ones(x, np.float32), "z": np.ones(z, np.float32)})


def test_computed_extents_equal_what_speaks_of_the_same_sizes() -> None:
    assert types_of(imported(add_to_pooled(["n", 8, 5]))) == ["f32[n, 8, 5]"]
    steps = [
        node("MaxPool", ["x"], ["half"], kernel_shape=[2], strides=[2]),
        node("Concat", ["half", "half"], ["near"], axis=2),
        node("Add", ["near", "x"], ["y"]),
    ]
    m = model(steps, {"x": ("f32", ["n", 3, "h"])}, {"y": "f32"})
    assert types_of(imported(m)) == ["f32[n, 3, h]"]
    agree(m, {"x": np.ones((2, 3, 8), np.float32)})


def test_extents_that_are_equal_at_one_size_only_are_there_to_be_broadcast() -> None:
    m = add_to_pooled(["n", "c", "w"])
    for shape, w in (((2, 1, 4), 3), ((2, 1, 4), 1), ((1, 1, 2), 7)):
        agree(m, {"x": np.ones(shape, np.float32), "z": np.ones((*shape[:2], w), np.float32)})


def expand(dims: list[Any], target: list[onnx.NodeProto], constants: dict[str, Any]) -> onnx.ModelProto:
    return case([*target, node("Expand", ["x", "t"], ["y"])], dims, constants)


def test_expand_is_a_broadcast_of_both_sides() -> None:
    check(expand(["n", 1, 4], [], {"t": [1, 3, 1]}), "f32[n, 3, 4]", ["broadcast_to"], (2, 1, 4), (0, 1, 4))
    check(expand([1, 4], [], {"t": [5, 2, 1]}), "f32[5, 2, 4]", ["broadcast_to"], (1, 4))
    check(expand(["n"], [], {"t": [1]}), "f32[n]", [], (3,), (1,))
    check(expand(["n"], [], {"t": [4]}), "f32[4]", ["check", "broadcast_to"], (4,), (1,))


def test_expand_of_a_size_that_may_be_one() -> None:
    m = model(
        [node("Shape", ["z"], ["t"]), node("Expand", ["x", "t"], ["y"])],
        {"x": ("f32", ["n"]), "z": ("f32", ["m"])}, {"y": "f32"},
    )  # fmt: skip
    module = imported(m)
    assert types_of(module) == ["f32[joined]"]
    (name,) = (n for n in module.main.nodes if n.op == "bind")
    assert str(name.attrs["value"]) == "min(m, n, 1)*max(m, n)"
    for n, k in ((1, 4), (4, 1), (3, 3), (0, 1), (1, 0)):
        agree(m, {"x": np.arange(n, dtype=np.float32), "z": np.zeros(k, np.float32)})


def test_the_where_pattern_of_expand() -> None:
    """Where(shape == -1, ones, shape): a size is never -1, so the condition is known."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Equal", ["s", "minus"], ["c"]),
        node("ConstantOfShape", ["two"], ["ones"], value=onnx.numpy_helper.from_array(np.array([1]))),
        node("Where", ["c", "ones", "s"], ["t"]),
        node("Expand", ["x", "t"], ["y"]),
    ]
    check(case(nodes, ["n", "m"], {"minus": -1, "two": [2]}), "f32[n, m]", [], (2, 3))


SLICES: list[tuple[list[Any], list[int], list[int], list[int], list[int], str]] = [
    (["n", 8], [0], [2**63 - 1], [0], [1], "f32[n, 8]"),
    (["n", 8], [2], [-1], [1], [1], "f32[n, 5]"),
    (["n", 8], [-3], [2**31 - 1], [-1], [1], "f32[n, 3]"),
    (["n", 8], [0, 1], [100, 8], [0, 1], [1, 3], "f32[min(n, 100), 3]"),
    (["n", 8], [-1], [-(2**63)], [1], [-1], "f32[n, 8]"),
    (["n", 8], [6], [1], [1], [-2], "f32[n, 3]"),
    (["n", 8], [5], [3], [1], [1], "f32[n, 0]"),
    (["n", 8], [-2], [2**63 - 1], [0], [1], "f32[n - max(n - 2, 0), 8]"),
    (["n", 8], [1], [-1], [0], [2], None),  # type: ignore[list-item]
    (["n", 8], [-1], [-(2**40)], [0], [-1], "f32[n, 8]"),
]


@pytest.mark.parametrize(("dims", "starts", "ends", "axes", "steps", "type_"), SLICES)
def test_slice(
    dims: list[Any], starts: list[int], ends: list[int], axes: list[int], steps: list[int], type_: str | None
) -> None:
    constants = {"b": starts, "e": ends, "a": axes, "s": steps}
    m = case([node("Slice", ["x", "b", "e", "a", "s"], ["y"])], dims, constants)
    if type_ is not None:
        assert types_of(imported(m)) == [type_]
    for n in (0, 1, 2, 3, 7):
        agree(m, {"x": np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)})


@pytest.mark.parametrize("n", [1, 4, 9])
def test_slice_with_run_time_ends(n: int) -> None:
    m = model(
        [node("Slice", ["x", "b", "e"], ["y"])],
        {"x": ("f32", ["n"]), "b": ("i64", [1]), "e": ("i64", [1])}, {"y": "f32"},
    )  # fmt: skip
    x = np.arange(n, dtype=np.float32)
    for b, e in ((0, 2), (-2, 100), (1, -1), (3, 1), (-100, 3)):
        agree(m, {"x": x, "b": np.array([b]), "e": np.array([e])})


def test_split_forms() -> None:
    equal = [node("Split", ["x"], ["a", "b"], axis=1), node("Sub", ["a", "b"], ["y"])]
    check(case(equal, ["n", 6]), "f32[n, 3]", ["slice", "slice", "sub"], (2, 6))
    m = imported(case(equal, [2, "k"]))
    assert [s.divisor for s in m.symbols] == [2]
    uneven = [node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2), node("ReduceSum", ["b"], ["y"])]
    check(case(uneven, ["n", 7], opset=18), "f32[1, 1]", None, (2, 7))
    sizes = [node("Split", ["x", "s"], ["a", "y"], axis=1)]
    check(case(sizes, ["n", 7], {"s": [5, 2]}), "f32[n, 2]", ["slice"], (2, 7))
    with pytest.raises(SmeltError, match="found 9 and 7"):
        import_model(case(sizes, ["n", 7], {"s": [5, 4]}))


def test_squeeze_without_axes() -> None:
    check(case([node("Squeeze", ["x"], ["y"])], [1, 3, 1], {}), "f32[3]", ["reshape"], (1, 3, 1))
    m = case([node("Squeeze", ["x"], ["y"], "sq")], ["n", 1], {})
    with pytest.raises(SmeltError, match=r"whether n of .* is 1") as caught:
        import_model(m)
    assert caught.value.kind == "unsupported"
    assert types_of(imported(m, dims={"n": (2, None)})) == ["f32[n]"]


def test_squeeze_without_axes_by_the_declared_rank() -> None:
    """A declared rank says whether sizes that a run decides are 1, through what keeps it."""
    scaled = [node("Sigmoid", ["s"], ["t"]), node("Mul", ["four", "t"], ["y"])]
    m = case([node("Squeeze", ["x"], ["s"]), *scaled], ["n", 1, "k"], {"four": np.float32(4)})
    m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "k"]))
    check(m, "f32[n, k]", None, (2, 1, 3), (5, 1, 2))
    with pytest.raises(SmeltError, match="axis 0"):
        agree(m, {"x": np.zeros((1, 1, 3), np.float32)})
    m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, []))
    check(m, "f32[]", None, (1, 1, 1))
    m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"]))
    for shape in ((1, 1, 3), (4, 1, 1)):  # one of both is 1: which, a run decides
        agree(m, {"x": np.random.default_rng(0).random(shape, np.float32)})
    for shape in ((1, 1, 1), (4, 1, 3)):
        with pytest.raises(SmeltError, match=r"could_not_run|axis 2"):
            agree(m, {"x": np.zeros(shape, np.float32)})


def test_range_from_sizes() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Cast", ["n"], ["f"], to=1),
        node("Range", ["fz", "f", "half"], ["y"]),
    ]
    constants = {"zero": 0, "fz": np.float32(0), "half": np.float32(0.5)}
    check(case(nodes, ["n"], constants), "f32[2*n]", None, (1,), (4,))
    constants["half"] = np.float32(2)
    check(case(nodes, ["n"], constants), "f32[(n + 1)//2]", ["iota"], (1,), (4,), (5,))


def test_resize_scales_through_floats() -> None:
    """scale = float(size of z) / float(size of x): the output has exactly z's size."""
    nodes = [
        node("Shape", ["x"], ["sx"], start=2),
        node("Shape", ["z"], ["sz"], start=2),
        node("Cast", ["sx"], ["fx"], to=1),
        node("Cast", ["sz"], ["fz"], to=1),
        node("Div", ["fz", "fx"], ["r"]),
        node("Concat", ["ones", "r"], ["scales"], axis=0),
        node("Resize", ["x", "", "scales"], ["y"], mode="nearest", nearest_mode="floor"),
    ]  # fmt: skip
    m = model(
        nodes, {"x": ("f32", [1, 2, "h", "w"]), "z": ("f32", [1, 2, "p", "q"])}, {"y": "f32"},
        {"ones": np.ones(2, np.float32)},
    )  # fmt: skip
    assert types_of(imported(m)) == ["f32[1, 2, p, q]"]
    # where p is not 0, h must not be
    assert ops_of(imported(m)) == ["check", "check", "resize"]


@pytest.mark.parametrize("scale", [2.0, 0.5, 1.5, 0.7])
def test_resize_by_scales(scale: float) -> None:
    nodes = [node("Resize", ["x", "", "s"], ["y"], mode="linear")]
    m = case(nodes, [1, 2, "h", "w"], {"s": np.array([1, 1, scale, scale], np.float32)})
    for h, w in ((10, 4), (7, 20), (3, 3)):
        agree(m, {"x": np.random.default_rng(1).random((1, 2, h, w), np.float32)}, 1e-4)


def test_resize_to_twice_the_floor() -> None:
    """int(floor(float(h) * 0.5)) * 4: floats in the middle of shape arithmetic."""
    nodes = [
        node("Shape", ["x"], ["s"], start=2),
        node("Cast", ["s"], ["f"], to=1),
        node("Mul", ["f", "half"], ["g"]),
        node("Floor", ["g"], ["k"]),
        node("Cast", ["k"], ["i"], to=7),
        node("Mul", ["i", "four"], ["t"]),
        node("Concat", ["head", "t"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    constants = {"half": np.float32(0.5), "four": 4, "head": [1, 2]}
    m = case(nodes, [1, 2, "h", "w"], constants)
    check(m, "f32[1, 2, 4*(h//2), 4*(w//2)]", ["resize"], (1, 2, 4, 6), (1, 2, 5, 3))


def test_gather_of_one_element_is_a_slice() -> None:
    nodes = [node("Gather", ["x", "i"], ["y"], axis=1)]
    check(case(nodes, ["n", 5], {"i": -1}), "f32[n]", ["slice", "reshape"], (3, 5))
    check(case(nodes, ["n", 5], {"i": [1, 2, 3]}), "f32[n, 3]", ["slice"], (3, 5))
    check(case(nodes, ["n", 5], {"i": [3, 1]}), "f32[n, 2]", ["gather"], (3, 5))
    with pytest.raises(SmeltError, match="reach from 5 to 5, those of 5 elements from -5 to 4"):
        import_model(case(nodes, ["n", 5], {"i": 5}))


def test_same_padding_of_any_size() -> None:
    w = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        nodes = [node("Conv", ["x", "w"], ["y"], auto_pad=auto, strides=[2, 2])]
        m = case(nodes, [1, 2, "h", "w"], {"w": w})
        for h in (3, 4, 7, 8):
            agree(m, {"x": np.random.default_rng(h).random((1, 2, h, h + 1), np.float32)}, 1e-4)


def test_sizes_as_results() -> None:
    """A tensor of sizes that the model returns is still made."""
    nodes = [node("Shape", ["x"], ["s"]), node("Mul", ["s", "two"], ["y"])]
    m = model(nodes, {"x": ("f32", ["n", 3])}, {"y": "i64"}, {"two": np.array(2)})
    assert ops_of(imported(m)) == ["from_dims"]
    agree(m, {"x": np.zeros((5, 3), np.float32)})


@pytest.mark.parametrize("axes", [None, 1, 2])
def test_softmax_before_opset_13(axes: int | None) -> None:
    attributes: dict[str, Any] = {} if axes is None else {"axis": axes}
    m = case([node("Softmax", ["x"], ["y"], **attributes)], ["n", 3, "m"], opset=11)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    agree(m, {"x": x})


@pytest.mark.parametrize(
    "equation",
    ["bij,bjk->bik", "bij,bkj", "ij->ji", "bij->b", "i,j->ij", "...ij,...jk->...ik", "bhid,bhjd->bhij"],
)
def test_einsum(equation: str) -> None:
    sizes = {"b": 2, "h": 3, "i": 4, "j": 5, "k": 6, "d": 7}
    terms = equation.partition("->")[0].split(",")
    feeds: dict[str, Array] = {}
    for name, term in zip("xz", terms, strict=False):
        shape = [*([2] if "..." in term else []), *(sizes[c] for c in term.replace("...", ""))]
        feeds[name] = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    inputs = {k: ("f32", [None] * v.ndim) for k, v in feeds.items()}
    agree(model([node("Einsum", list(feeds), ["y"], equation=equation)], inputs, {"y": "f32"}), feeds, 1e-4)


def test_parts_of_different_ranks_are_refused() -> None:
    """By the node's name, in a function of ONNX's as well."""
    parts = [node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.FLOAT, [2], [1.0, 2.0]))]
    joined = node("Concat", ["x", "c"], ["y"], axis=1, name="join")
    with pytest.raises(SmeltError, match="inputs 0 and 1 have ranks 2 and 1") as caught:
        import_model(case([*parts, joined], ["n", 2]).SerializeToString())
    assert caught.value.kind == "invalid" and caught.value.node == "join"
