"""Classical models of ai.onnx.ml agree with ONNX Runtime: forests, linear models, vectors, features."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import forests
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.verify import verify
from smelt.core.ops import OPS
from smelt.driver import Request
from smelt.importer import import_model
from smelt.session import load

Array = np.ndarray[Any, Any]
FLOAT, DOUBLE, INT64, INT32 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32
DTYPES: dict[int, Any] = {FLOAT: np.float32, DOUBLE: np.float64, INT64: np.int64, INT32: np.int32}
TRANSFORMS = ("NONE", "SOFTMAX", "SOFTMAX_ZERO", "LOGISTIC", "PROBIT")


def agree(got: Any, want: Any, loose: bool = False) -> None:
    """loose: what PROBIT makes of scores near 0.5 is a difference of nearly equal numbers."""
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(g, w, rtol=2e-2 if loose else 2e-5, atol=1e-4 if loose else 2e-6)


def compare(model: onnx.ModelProto, feeds: dict[str, Array], loose: bool = False) -> None:
    """The interpreter and ONNX Runtime."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    module = import_model(model)
    verify(module)
    agree(run_module(module, feeds, OPS), session.run(None, feeds), loose)


def native(model: onnx.ModelProto, batches: list[Array], folder: Path) -> None:
    """Compiled code and ONNX Runtime, at several batches, 0 too."""
    path = folder / "m.onnx"
    onnx.save(model, path)
    session = load(compile_here(Request(str(path), "host", output=str(folder / "out"))))
    want = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for x in batches:
        agree(session.run(None, {"x": x}), want.run(None, {"x": x}))


# ---------------------------------------------------------------- forests


@pytest.mark.table(2)
@pytest.mark.parametrize("after", TRANSFORMS)
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressors(after: str, aggregate: str) -> None:
    for seed, (targets, form) in enumerate(((1, "first"), (2, "all"), (3, "tree"), (3, "some"))):
        rng = np.random.default_rng(seed)
        own = forests.nodes(rng, 5, 4, 4, forests.MODES if seed % 2 else ("BRANCH_LT",))
        a = {**own, **forests.leaves(rng, own, "target", targets, form, 0.0 if after == "PROBIT" else -1.0)}
        if after == "PROBIT":
            a["target_weights"] = [w / 12 for w in a["target_weights"]]
        a |= (
            forests.missing(rng, own)
            if seed % 2
            else {"base_values": [0.05 * (k + 1) for k in range(targets)]}
        )
        a |= {"n_targets": targets, "aggregate_function": aggregate, "post_transform": after}
        x = forests.rows(rng, 20, 4).astype(np.float32)
        compare(forests.model("TreeEnsembleRegressor", a, (FLOAT,)), {"x": x}, after == "PROBIT")


CLASSES = (
    (1, "first"),
    (2, "all"),
    (2, "first"),
    (2, "some"),
    (2, "tree"),
    (3, "tree"),
    (4, "some"),
    (3, "all"),
)


@pytest.mark.table(3)
@pytest.mark.parametrize("after", TRANSFORMS[:-1])
@pytest.mark.parametrize(("classes", "form"), CLASSES)
def test_tree_classifiers(after: str, classes: int, form: str) -> None:
    """Labels and scores, with the special cases of two classes: base values, signs, no scores for one."""
    for seed, (low, base) in enumerate(itertools.product((0.0, -1.0), sorted({0, 1, 2, classes}))):
        if base not in ((0, 1, 2)[: classes + 1] if classes <= 2 else (0, classes)):
            continue
        if form == "some" and classes == 2 and base == 1:
            continue  # ONNX Runtime leaves a score open
        rng = np.random.default_rng(seed)
        own = forests.nodes(rng, 5, 4, 4, forests.MODES if seed % 2 else ("BRANCH_LEQ",))
        a = {**own, **forests.leaves(rng, own, "class", classes, form, low), **forests.missing(rng, own)}
        a |= {"post_transform": after, "classlabels_int64s": [3, 7, 5, 9][:classes]}
        if base:
            a["base_values"] = [0.05 * (k + 1) for k in range(base)]
        kind = (FLOAT, DOUBLE, INT64, INT32)[seed % 4]
        x = forests.rows(rng, 20, 4, kind in (FLOAT, DOUBLE)).astype(DTYPES[kind])
        compare(forests.model("TreeEnsembleClassifier", a, (INT64, FLOAT), kind), {"x": x})


def test_double_thresholds_decide_what_floats_cannot() -> None:
    rng = np.random.default_rng(0)
    own = forests.nodes(rng, 4, 4, 3, ("BRANCH_LEQ",))
    leaves = forests.leaves(rng, own, "target", 1, "first")
    splits, weights = np.array(own.pop("nodes_values")), np.array(leaves.pop("target_weights"))
    a = {**own, **leaves, "n_targets": 1, "nodes_values_as_tensor": numpy_helper.from_array(splits + 1e-12)}
    a["target_weights_as_tensor"] = numpy_helper.from_array(weights)
    x = forests.rows(rng, 40, 3) + rng.choice([0, 2e-12], (40, 3))
    compare(forests.model("TreeEnsembleRegressor", a, (FLOAT,), DOUBLE), {"x": x})


@pytest.mark.parametrize(
    ("modes", "members"),
    [([0, 0, 0], None), ([0, 2, 5], None), ([3, 6, 6], [1, 2, np.nan, 0, 3, np.nan]), ([6, 1, 4], [2, 1])],
)
@pytest.mark.parametrize("aggregate", range(4))
def test_tree_ensembles(modes: list[int], members: list[float] | None, aggregate: int) -> None:
    rng = np.random.default_rng(aggregate)
    for dtype, kind in ((np.float32, FLOAT), (np.float64, DOUBLE)):
        tensors = {"splits": [0.5, 1.0, 0.0], "leaf_weights": [5.23, 12.12, -12.23, 7.21, 1.0]}
        a: dict[str, Any] = {
            "tree_roots": [0, 2], "nodes_featureids": [0, 2, 1], "leaf_targetids": [0, 1, 0, 1, 1],
            "nodes_modes": numpy_helper.from_array(np.array(modes, np.uint8)),
            "nodes_splits": numpy_helper.from_array(np.array(tensors["splits"], dtype)),
            "leaf_weights": numpy_helper.from_array(np.array(tensors["leaf_weights"], dtype)),
            "nodes_truenodeids": [1, 0, 3], "nodes_trueleafs": [0, 1, 1], "nodes_falsenodeids": [2, 1, 4],
            "nodes_falseleafs": [1, 1, 1], "nodes_missing_value_tracks_true": [1, 0, 1],
            "n_targets": 2, "aggregate_function": aggregate, "post_transform": 3 * (aggregate % 2),
        }  # fmt: skip
        if members is not None:
            a["membership_values"] = numpy_helper.from_array(np.array(members, dtype))
        x = forests.rows(rng, 20, 3).astype(dtype)
        compare(forests.model("TreeEnsemble", a, (kind,), kind, opset=5), {"x": x})


def test_a_forest_is_one_loop(tmp_path: Path) -> None:
    """Compiled, at batches 0, 1 and many; the number of its nodes does not show in the graph."""
    rng = np.random.default_rng(1)
    own = forests.nodes(rng, 60, 9, 6, ("BRANCH_LEQ",))
    a = {**own, **forests.leaves(rng, own, "class", 3, "tree"), "classlabels_int64s": [0, 1, 2]}
    a |= {"post_transform": "SOFTMAX", **forests.missing(rng, own)}
    m = forests.model("TreeEnsembleClassifier", a, (INT64, FLOAT))
    assert len(own["nodes_modes"]) > 1000
    assert len(import_model(m).graphs["main"].nodes) < 8
    native(m, [forests.rows(rng, n, 6).astype(np.float32) for n in (0, 1, 33)], tmp_path)


def test_mixed_questions_compiled(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    own = forests.nodes(rng, 7, 5, 4, forests.MODES)
    a = {**own, **forests.leaves(rng, own, "target", 2, "all"), "n_targets": 2, **forests.missing(rng, own)}
    m = forests.model("TreeEnsembleRegressor", a, (FLOAT,), features=4)
    native(m, [forests.rows(rng, n, 4).astype(np.float32) for n in (0, 3, 50)], tmp_path)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_a_single_target_takes_the_first_weight_of_a_leaf(aggregate: str) -> None:
    """Converters write a leaf's weight once per class; two targets add them all up."""
    rng = np.random.default_rng(3)
    own = forests.nodes(rng, 3, 4, 3, ("BRANCH_LEQ",))
    for targets in (1, 2):
        a = {**own, **forests.leaves(rng, own, "target", targets, "all"), "n_targets": targets}
        for name in ("treeids", "nodeids", "ids", "weights"):
            a[f"target_{name}"] = [v for v in a[f"target_{name}"] for _ in range(3)]
        a["target_weights"] = [v + k % 3 for k, v in enumerate(a["target_weights"])]
        a["aggregate_function"] = aggregate
        x = forests.rows(rng, 20, 3).astype(np.float32)
        compare(forests.model("TreeEnsembleRegressor", a, (FLOAT,)), {"x": x})


def broken(**changes: Any) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    own = forests.nodes(rng, 2, 3, 3, ("BRANCH_LEQ",))
    a = {**own, **forests.leaves(rng, own, "target", 1, "first"), "n_targets": 1}
    for name, change in changes.items():
        a[name] = change(a[name])
    return forests.model("TreeEnsembleRegressor", a, (FLOAT,))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"nodes_truenodeids": lambda v: [99, *v[1:]]}, "tree 0 has no node 99"),
        ({"nodes_truenodeids": lambda v: [0, *v[1:]]}, "circle"),
        ({"nodes_featureids": lambda v: v[1:]}, "nodes_featureids has"),
        ({"nodes_featureids": lambda v: [-1, *v[1:]]}, "nodes_featureids has -1"),
        ({"target_ids": lambda v: [3, *v[1:]]}, "target 3 of 1"),
        ({"nodes_modes": lambda v: ["BRANCH_MAYBE", *v[1:]]}, "mode 'BRANCH_MAYBE'"),
        ({"nodes_nodeids": lambda v: [0] * len(v)}, "same number"),
    ],
)
def test_broken_forests_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(SmeltError, match=text):
        import_model(broken(**change))


def test_a_forest_wants_its_features() -> None:
    m = broken()
    m.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_param")
    m.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    with pytest.raises(SmeltError, match="features"):
        import_model(m)


# ---------------------------------------------------------------- linear models and support vectors


@pytest.mark.parametrize("after", TRANSFORMS)
def test_linear_models(after: str) -> None:
    rng = np.random.default_rng(0)
    for targets in (1, 3):
        a = {
            "coefficients": rng.uniform(0, 0.12, targets * 4).tolist(),
            "targets": targets,
            "post_transform": after,
        }
        a["intercepts"] = rng.uniform(0.3, 0.4, targets).tolist()
        x = rng.uniform(0.1, 1, (7, 4)).astype(np.float32)
        compare(forests.model("LinearRegressor", a, (FLOAT,), opset=1), {"x": x}, after == "PROBIT")
    for (classes, scores), kind in itertools.product(((2, 1), (2, 2), (3, 3)), DTYPES):
        if after == "PROBIT" and scores == 1:
            continue
        a = {
            "coefficients": rng.uniform(0, 0.12, scores * 4).tolist(),
            "classlabels_ints": [4, 6, 1][:classes],
        }
        a |= {"intercepts": rng.uniform(0.3, 0.4, scores).tolist(), "post_transform": after}
        x = rng.uniform(0 if after == "PROBIT" else -5, 1, (7, 4)).astype(DTYPES[kind])
        m = forests.model("LinearClassifier", a, (INT64, FLOAT), kind, opset=1)
        compare(m, {"x": x}, after == "PROBIT")


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vectors(kernel: str) -> None:
    rng = np.random.default_rng(0)
    for degree, count, one in itertools.product((2.0, 3.0, 4.0), (0, 5), (0, 1)):
        a: dict[str, Any] = {"kernel_type": kernel, "kernel_params": [0.3, 0.5, degree], "rho": [0.2]}
        a |= {"coefficients": rng.normal(size=count or 4).tolist(), "n_supports": count, "one_class": one}
        if count:
            a["support_vectors"] = rng.normal(size=count * 4).tolist()
        x = rng.normal(size=(9, 4)).astype(np.float32)
        compare(forests.model("SVMRegressor", a, (FLOAT,), opset=1), {"x": x})
    for classes, sure, after in itertools.product((2, 3, 4), (False, True), TRANSFORMS[:-1]):
        per = rng.integers(1, 4, classes)
        pairs, count = classes * (classes - 1) // 2, int(per.sum())
        a = {"kernel_type": kernel, "kernel_params": [0.3, 0.5, 2.0], "vectors_per_class": per.tolist()}
        a |= {"rho": rng.normal(size=pairs).tolist(), "support_vectors": rng.normal(size=count * 4).tolist()}
        a |= {"coefficients": rng.normal(size=count * (classes - 1)).tolist(), "post_transform": after}
        a["classlabels_ints"] = [4, 6, 1, 9][:classes]
        if sure:
            a |= {"prob_a": rng.uniform(-2, -0.5, pairs).tolist(), "prob_b": rng.normal(size=pairs).tolist()}
        x = (2 * rng.normal(size=(9, 4))).astype(np.float32)
        compare(forests.model("SVMClassifier", a, (INT64, FLOAT), opset=1), {"x": x})


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_linear_support_vectors(classes: int) -> None:
    rng = np.random.default_rng(0)
    for low, after in itertools.product((0, -1), TRANSFORMS[:-1]):
        a = {"kernel_type": "LINEAR", "kernel_params": [0.3, 0.5, 2.0], "rho": [0.1] * classes}
        a |= {"coefficients": rng.uniform(low, 1, 4 * classes).tolist(), "post_transform": after}
        a["classlabels_ints"] = [4, 6, 1][:classes]
        x = rng.uniform(0, 0.3, (9, 4)).astype(np.float32)
        compare(forests.model("SVMClassifier", a, (INT64, FLOAT), opset=1), {"x": x})


def test_probabilities_of_support_vectors_compiled(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    a = {"kernel_type": "RBF", "kernel_params": [0.3, 0.0, 3.0], "vectors_per_class": [2, 3, 2]}
    a |= {"rho": [0.1, -0.2, 0.3], "support_vectors": rng.normal(size=28).tolist()}
    a |= {"coefficients": rng.normal(size=14).tolist(), "classlabels_ints": [0, 1, 2]}
    a |= {"prob_a": [-1.0, -1.5, -0.7], "prob_b": [0.1, 0.0, -0.3]}
    m = forests.model("SVMClassifier", a, (INT64, FLOAT), opset=1)
    native(m, [rng.normal(size=(n, 4)).astype(np.float32) for n in (0, 1, 9)], tmp_path)


# ---------------------------------------------------------------- features


def node(op: str, feeds: dict[str, Array], out: int, opset: int = 1, **attributes: Any) -> onnx.ModelProto:
    """A model of one node; every size above 1 is a symbol."""
    inputs = [
        helper.make_tensor_value_info(
            n,
            helper.np_dtype_to_tensor_dtype(x.dtype),
            [f"{n}{i}" if d != 1 else 1 for i, d in enumerate(x.shape)],
        )
        for n, x in feeds.items()
    ]
    made = helper.make_node(op, list(feeds), ["y"], domain=forests.ML, **attributes)
    g = helper.make_graph([made], "g", inputs, [helper.make_tensor_value_info("y", out, None)])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(forests.ML, opset)]
    return helper.make_model(g, opset_imports=sets, ir_version=8)


@pytest.mark.parametrize("shape", [(5, 4), (4,), (0, 4)])
@pytest.mark.parametrize("kind", DTYPES)
def test_scaled_and_encoded(shape: tuple[int, ...], kind: int) -> None:
    x = (np.random.default_rng(0).normal(size=shape) * 3).astype(DTYPES[kind])
    feeds = {"x": x}
    compare(node("Scaler", feeds, FLOAT, scale=[1.5, 2, 3, 4], offset=[0.5, 1, 2, -1]), feeds)
    compare(node("Scaler", feeds, FLOAT, scale=[1.5], offset=[0.5]), feeds)
    if shape == (5, 4):
        x[0] = 0
    for norm in ("MAX", "L1", "L2"):
        compare(node("Normalizer", feeds, FLOAT, norm=norm), feeds)
    if kind != INT32:
        compare(node("OneHotEncoder", feeds, FLOAT, cats_int64s=[1, 2, -1, 0, 2]), feeds)


def test_unknown_categories(tmp_path: Path) -> None:
    x = np.array([[1, 2], [2, 1]])
    m = node("OneHotEncoder", {"x": x}, FLOAT, cats_int64s=[1, 2], zeros=0)
    compare(m, {"x": x})
    path = tmp_path / "m.onnx"
    onnx.save(m, path)
    session = load(compile_here(Request(str(path), "host", output=str(tmp_path / "out"))))
    assert session.run(None, {"x": x})[0].sum() == 4
    with pytest.raises(SmeltError, match="elements_of_no_category is 2"):
        session.run(None, {"x": x + 1})


def test_imputed_and_joined() -> None:
    x = np.array([[np.nan, 1, 2, 3], [1, np.nan, 0, 1]], np.float32)
    each, nan = [1.0, 2.0, 3.0, 4.0], float("nan")
    compare(node("Imputer", {"x": x}, FLOAT, imputed_value_floats=each, replaced_value_float=nan), {"x": x})
    compare(node("Imputer", {"x": x}, FLOAT, imputed_value_floats=[7.0], replaced_value_float=1.0), {"x": x})
    n = np.array([[1, 2, 3, 4], [5, 1, 1, 0]])
    compare(
        node("Imputer", {"x": n}, INT64, imputed_value_int64s=[7, 8, 9, 10], replaced_value_int64=1), {"x": n}
    )
    rng = np.random.default_rng(0)
    feeds = {k: rng.normal(size=(3, w)).astype(np.float32) for k, w in (("a", 4), ("b", 2), ("c", 1))}
    compare(node("FeatureVectorizer", feeds, FLOAT, inputdimensions=[3, 4, 1]), feeds)


@pytest.mark.parametrize("keys", ["keys_int64s", "keys_floats"])
@pytest.mark.parametrize("values", ["values_int64s", "values_floats"])
@pytest.mark.parametrize("opset", [2, 4])
def test_labels_of_numbers(keys: str, values: str, opset: int) -> None:
    """NaN is a key from version 4 on."""
    ints = keys == "keys_int64s"
    of = [1, 5, 3] if ints else [1.5, float("nan"), 3.0]
    to = [7, 8, 9] if values == "values_int64s" else [0.5, -2.0, 3.0]
    x = np.array([[*of, 7], [0, 3, 3, 1]], np.int64 if ints else np.float32)
    default = {"default_int64": 42} if values == "values_int64s" else {"default_float": 4.5}
    for other in ({}, default):
        m = node(
            "LabelEncoder", {"x": x}, INT64 if to[0] == 7 else FLOAT, opset, **{keys: of, values: to}, **other
        )
        compare(m, {"x": x})


def test_labels_in_tensors() -> None:
    x = np.array([[1, 5, 3, 7], [0, 3, 3, 1]], np.float64)
    tables = {
        "keys_tensor": np.array([3, 1], np.float64), "values_tensor": np.array([2.5, 1], np.float64),
        "default_tensor": np.array([9], np.float64),
    }  # fmt: skip
    a = {k: numpy_helper.from_array(v) for k, v in tables.items()}
    compare(node("LabelEncoder", {"x": x}, DOUBLE, 4, **a), {"x": x})


def _labels(name: str, labels: list[Any]) -> dict[str, Any]:
    return {name: labels}


def zipped(labels: list[Any], kind: int) -> onnx.ModelProto:
    """Scores of a linear classifier as maps: what exports of pipelines end in."""
    name = "classlabels_strings" if kind == TensorProto.STRING else "classlabels_int64s"
    scores = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["l", "p"],
        domain=forests.ML,
        coefficients=[0.1, -0.2, 0.3, 0.4, 0.5, -0.6],
        intercepts=[0.1, 0.2, 0.3],
        **_labels(name.replace("int64s", "ints"), labels),
    )
    maps = helper.make_node("ZipMap", ["p"], ["z"], domain=forests.ML, **_labels(name, labels))
    z = onnx.ValueInfoProto(name="z")
    own = z.type.sequence_type.elem_type.map_type
    own.key_type = kind
    own.value_type.tensor_type.elem_type = FLOAT
    own.value_type.tensor_type.shape.SetInParent()
    x, y = (
        helper.make_tensor_value_info(n, t, ["n", *r]) for n, t, r in (("x", FLOAT, [2]), ("l", kind, []))
    )
    g = helper.make_graph([scores, maps], "g", [x], [y, z])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(forests.ML, 1)]
    return helper.make_model(g, opset_imports=sets, ir_version=9)


@pytest.mark.parametrize("labels", [["no", "yes", "p\u00e9ut-\u00eatre"], [5, 7, -1]])
def test_maps_of_scores(labels: list[Any], tmp_path: Path) -> None:
    """Lists of dicts by label, as ONNX Runtime gives them."""
    m = zipped(labels, TensorProto.STRING if isinstance(labels[0], str) else INT64)
    path = tmp_path / "m.onnx"
    onnx.save(m, path)
    session = load(compile_here(Request(str(path), "host", output=str(tmp_path / "out"))))
    want = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [(o.name, o.type) for o in session.get_outputs()] == [(o.name, o.type) for o in want.get_outputs()]
    for n in (0, 1, 5):
        x = np.random.default_rng(n).normal(size=(n, 2)).astype(np.float32)
        (l, z), (wanted, maps) = session.run(None, {"x": x}), want.run(None, {"x": x})
        assert l.tolist() == wanted.tolist()
        assert [sorted(m) for m in z] == [sorted(m) for m in maps]
        for own, other in zip(z, maps, strict=True):
            assert own == pytest.approx(other, rel=1e-5)


def mapped(op: str, key: int, value: int, out: int, **attributes: Any) -> onnx.ModelProto:
    """A map, and the tensor that an op makes of it."""
    t = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))
    n = helper.make_node(op, ["x"], ["y"], domain=forests.ML, **attributes)
    made = helper.make_tensor_value_info("y", out, None)
    g = helper.make_graph([n], "g", [helper.make_value_info("x", t)], [made])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(forests.ML, 1)]
    return helper.make_model(g, opset_imports=sets, ir_version=9)


WORDS = {"a": 1.5, "longer": -3.0, "q": 9.0}
NUMBERS = {1: 1.5, 70: -3.7, -2: 9.0}
SMALL = {4: 1.5, 0: -3.7, 19: 2.0}
MAPS: dict[str, tuple[tuple[Any, ...], dict[str, Any], list[dict[Any, Any]]]] = {
    "words": (
        ("DictVectorizer", TensorProto.STRING, FLOAT, FLOAT),
        {"string_vocabulary": ["a", "b", "longer", "a", ""]},
        [WORDS, {"a": 2.0}, {"b": 1.0, "": 4.0}],
    ),
    "numbers": (
        ("DictVectorizer", INT64, FLOAT, FLOAT), {"int64_vocabulary": [70, 3, 1, -2]},
        [NUMBERS, {3: 1.0}, {8: 1.0}],
    ),
    "in order": (("CastMap", INT64, FLOAT, FLOAT), {}, [NUMBERS, {3: 1.0}]),
    "in order, whole": (("CastMap", INT64, FLOAT, INT64), {"cast_to": "TO_INT64"}, [NUMBERS, {3: 1.0}]),
    "by place": (
        ("CastMap", INT64, FLOAT, FLOAT), {"map_form": "SPARSE", "max_map": 7}, [SMALL, {3: 1.0}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_maps_as_inputs(name: str, tmp_path: Path) -> None:
    made, attributes, feeds = MAPS[name]
    m = mapped(*made, **attributes)
    path = tmp_path / "m.onnx"
    onnx.save(m, path)
    session = load(compile_here(Request(str(path), "host", output=str(tmp_path / "out"))))
    want = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [(i.name, i.type) for i in session.get_inputs()] == [(i.name, i.type) for i in want.get_inputs()]
    for feed in feeds:
        agree(session.run(None, {"x": feed}), want.run(None, {"x": feed}))
    (empty,) = session.run(None, {"x": {}})  # ONNX Runtime takes no empty one
    assert not empty.any()


def test_maps_of_integers() -> None:
    """Values that ONNX Runtime's Python does not pass on."""
    m = mapped("DictVectorizer", TensorProto.STRING, INT64, INT64, string_vocabulary=["b", "a"])
    keys = np.frombuffer(b"abc", np.uint8).reshape(3, 1)
    (y,) = run_module(import_model(m), {"x.keys": keys, "x.values": np.array([5, 7, 9])}, OPS)
    np.testing.assert_array_equal(y, [[7, 5]])


@pytest.mark.parametrize(
    ("feed", "found"),
    [([1.0], "expected a dict"), ({1: 2.0}, "expected strings as keys"), ({"a\0": 1.0}, "a zero in it")],
)
def test_what_is_no_map_is_told(feed: Any, found: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(mapped("DictVectorizer", TensorProto.STRING, FLOAT, FLOAT, string_vocabulary=["a"]), path)
    session = load(compile_here(Request(str(path), "host", output=str(tmp_path / "out"))))
    with pytest.raises(SmeltError, match=found):
        session.run(None, {"x": feed})


def test_maps_that_are_refused() -> None:
    m = mapped("CastMap", INT64, FLOAT, TensorProto.STRING, cast_to="TO_STRING")
    with pytest.raises(SmeltError, match="TO_STRING") as caught:
        import_model(m)
    assert caught.value.kind == "unsupported"
    with pytest.raises(SmeltError, match="whose values are no numbers") as caught:
        import_model(mapped("CastMap", INT64, TensorProto.STRING, FLOAT))
    assert caught.value.kind == "unsupported"
    with pytest.raises(SmeltError, match="no map"):
        import_model(
            node("DictVectorizer", {"x": np.zeros((2, 3), np.float32)}, FLOAT, int64_vocabulary=[1, 2, 3])
        )
