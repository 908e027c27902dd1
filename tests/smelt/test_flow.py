"""Branches, loops and sizes that depend on data, as native code on this machine, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from flow_models import flow_feeds, flow_model
from onnx import helper
from onnx_models import info, model
from oracle import runtime_session

import smelt
from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.driver import Request
from smelt.session import Session
from smelt.targets.llvm import host

node = helper.make_node
Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
Native = Callable[[onnx.ModelProto], Session]


@pytest.fixture
def native(tmp_path: Path) -> Native:
    """A session of a model, compiled here."""

    def made(m: onnx.ModelProto) -> Session:
        path = tmp_path / "model.onnx"
        path.write_bytes(m.SerializeToString())
        return smelt.load(compile_here(Request(source=str(path), output=str(tmp_path / "bundle"))), threads=1)

    return made


def agree(session: Session, m: onnx.ModelProto, cases: Sequence[Feeds], tolerance: float = 1e-5) -> None:
    """The session gives what ONNX Runtime gives, in this order, one after the other."""
    other = runtime_session(m)
    for feeds in cases:
        for found, wanted in zip(session.run(None, feeds), other.run(None, dict(feeds)), strict=True):
            assert found.dtype == wanted.dtype
            if wanted.shape == (0,) and found.size == 0:
                continue  # a stack without rounds: ONNX Runtime does not know the other extents
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def graph(
    nodes: list[onnx.NodeProto],
    outputs: list[str],
    inputs: Mapping[str, tuple[str, Any]] | None = None,
    **types: str,
) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, "g", [info(k, d, s) for k, (d, s) in (inputs or {}).items()],
        [info(o, types.get(o, "f32"), None) for o in outputs],
    )  # fmt: skip


def floats(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------- branches


def test_branches_with_captured_values(native: Native) -> None:
    then = graph([node("Exp", ["x"], ["e"]), node("Mul", ["e", "h"], ["a"])], ["a"])
    other = graph([node("Neg", ["h"], ["b"])], ["b"])
    m = model(
        [node("Relu", ["x"], ["h"]), node("If", ["c"], ["y"], then_branch=then, else_branch=other),
         node("Add", ["y", "h"], ["z"])],
        {"x": ("f32", ["n", 3]), "c": ("bool", [])}, {"z": "f32", "y": "f32"},
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"x": floats(n, 3), "c": np.array(c)} for n in (4, 1, 0, 9) for c in (True, False)])


def test_branches_that_pass_on_inputs_and_constants(native: Native) -> None:
    then = graph([node("Identity", ["x"], ["a"])], ["a"])
    other = graph([node("Identity", ["w"], ["b"])], ["b"])
    m = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        {"x": ("f32", [2, 3]), "c": ("bool", [])}, {"y": "f32"}, {"w": floats(2, 3)},
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"x": floats(2, 3) + 1, "c": np.array(c)} for c in (True, False)])


def test_branches_of_different_sizes(native: Native) -> None:
    then = graph([node("Concat", ["x", "x"], ["a"], axis=0)], ["a"])
    other = graph([node("Neg", ["x"], ["b"])], ["b"])
    m = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other), node("Exp", ["y"], ["z"]),
         node("ReduceSum", ["z"], ["s"], keepdims=0)],
        {"x": ("f32", ["n", 3]), "c": ("bool", [])}, {"z": "f32", "y": "f32", "s": "f32"},
    )  # fmt: skip
    session = native(m)
    cases = [{"x": floats(n, 3), "c": np.array(c)} for n in (4, 0, 50) for c in (True, False)]
    agree(session, m, cases, 1e-4)


def test_branches_in_branches(native: Native) -> None:
    inner = node(
        "If", ["d"], ["i"], then_branch=graph([node("Exp", ["h"], ["p"])], ["p"]),
        else_branch=graph([node("Sqrt", ["k"], ["q"])], ["q"]),
    )  # fmt: skip
    then = graph([node("Abs", ["x"], ["k"]), inner, node("Mul", ["i", "k"], ["a"])], ["a"])
    other = graph([node("Neg", ["h"], ["b"])], ["b"])
    m = model(
        [node("Relu", ["x"], ["h"]), node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        {"x": ("f32", ["n", "m"]), "c": ("bool", []), "d": ("bool", [1])}, {"y": "f32"},
    )  # fmt: skip
    session = native(m)
    cases = [(c, d) for c in (True, False) for d in (True, False)]
    agree(session, m, [{"x": floats(3, 5), "c": np.array(c), "d": np.array([d])} for c, d in cases])


def test_what_a_branch_demands_is_demanded_only_there(native: Native) -> None:
    then = graph([node("Reshape", ["x", "pairs"], ["r"]), node("ReduceSum", ["r"], ["a"], keepdims=0)], ["a"])
    other = graph([node("ReduceSum", ["x"], ["b"], keepdims=0)], ["b"])
    m = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        {"x": ("f32", ["n"]), "c": ("bool", [])}, {"y": "f32"}, {"pairs": np.array([-1, 2])},
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"x": floats(4), "c": np.array(True)}, {"x": floats(5), "c": np.array(False)}])
    with pytest.raises(SmeltError, match="Reshape"):
        session.run(None, {"x": floats(5), "c": np.array(True)})


# ---------------------------------------------------------------- loops

HEAD = {"i": ("i64", []), "going": ("bool", [])}


def body(
    nodes: list[onnx.NodeProto], states: Mapping[str, tuple[str, Any]], outputs: list[str], **types: str
) -> onnx.GraphProto:
    """(i, going, states) -> outputs, the first of which is the condition."""
    return graph(nodes, outputs, {**HEAD, **states}, **{outputs[0]: "bool"}, **types)


def trips(n: int) -> Array:
    return np.array(n, np.int64)


def test_loop_with_states_and_stacks(native: Native) -> None:
    g = body(
        [node("Identity", ["going"], ["on"]), node("Cast", ["i"], ["k"], to=1),
         node("Mul", ["h", "w"], ["m"]), node("Add", ["m", "k"], ["h2"]),
         node("Exp", ["h2"], ["e"]), node("Neg", ["e"], ["out"])],
        {"h": ("f32", None)}, ["on", "h2", "out"],
    )  # fmt: skip
    m = model(
        [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]),
         node("Loop", ["n", "", "x"], ["y", "ys"], body=g), node("Relu", ["ys"], ["z"])],
        {"x": ("f32", ["n", 3])}, {"y": "f32", "z": "f32"}, {"zero": trips(0), "w": floats(3)},
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"x": floats(n, 3)} for n in (4, 1, 0, 7)])


def test_loop_with_trips_and_condition_at_run_time(native: Native) -> None:
    g = body(
        [node("Add", ["h", "x"], ["h2"]), node("ReduceSum", ["h2"], ["total"], keepdims=0),
         node("Less", ["total", "top"], ["on"]), node("Mul", ["h2", "h2"], ["out"])],
        {"h": ("f32", None)}, ["on", "h2", "out"],
    )  # fmt: skip
    m = model(
        [node("Loop", ["n", "c", "x"], ["y", "ys"], body=g), node("ReduceSum", ["ys"], ["s"], keepdims=0)],
        {"x": ("f32", ["a", 2]), "n": ("i64", []), "c": ("bool", []), "top": ("f32", [])},
        {"y": "f32", "ys": "f32", "s": "f32"},
    )  # fmt: skip
    session = native(m)
    x = np.ones((3, 2), np.float32)
    agree(
        session, m,
        [{"x": x, "n": trips(n), "c": np.array(c), "top": np.array(top, np.float32)}
         for n, c, top in ((5, True, 1e9), (100, True, 60), (0, True, 1), (4, False, 9),
                           (2000, True, 1e9), (1, True, 0))],
    )  # fmt: skip


def test_loop_that_grows_what_it_carries(native: Native) -> None:
    g = body(
        [node("Identity", ["going"], ["on"]), node("Concat", ["h", "x"], ["h2"], axis=0),
         node("ReduceSum", ["h2"], ["out"], keepdims=0)],
        {"h": ("f32", ["k", 2])}, ["on", "h2", "out"],
    )  # fmt: skip
    m = model(
        [node("Loop", ["n", "", "x"], ["y", "ys"], body=g), node("Neg", ["y"], ["z"])],
        {"x": ("f32", ["a", 2]), "n": ("i64", [])}, {"y": "f32", "ys": "f32", "z": "f32"},
    )  # fmt: skip
    session = native(m)
    sizes = ((3, 4), (1, 0), (0, 3), (2, 40), (1, 1))
    agree(session, m, [{"x": floats(a, 2), "n": trips(n)} for a, n in sizes], 1e-4)


def test_states_that_change_places(native: Native) -> None:
    """a, b, c = b, c, a + 1: every next state is another one."""
    g = body(
        [node("Identity", ["going"], ["on"]), node("Add", ["a", "one"], ["d"]),
         node("Identity", ["b"], ["b2"]), node("Identity", ["c"], ["c2"])],
        dict.fromkeys("abc", ("f32", None)), ["on", "b2", "c2", "d", "a"],
    )  # fmt: skip
    m = model(
        [node("Loop", ["n", "", "x", "x", "w"], ["p", "q", "r", "as"], body=g)],
        {"x": ("f32", [3]), "n": ("i64", [])}, dict.fromkeys(("p", "q", "r", "as"), "f32"),
        {"w": floats(3), "one": np.ones(1, np.float32)},
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"x": floats(3), "n": trips(n)} for n in (0, 1, 2, 3, 7)])


def test_states_in_a_ring(native: Native) -> None:
    """a, b = b, a."""
    g = body([node("Identity", ["going"], ["on"])], dict.fromkeys("ab", ("f32", None)), ["on", "b", "a"])
    m = model(
        [node("Exp", ["x"], ["e"]), node("Loop", ["n", "", "x", "e"], ["p", "q"], body=g)],
        {"x": ("f32", ["k"]), "n": ("i64", [])}, dict.fromkeys("pq", "f32"),
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"x": floats(3), "n": trips(n)} for n in (0, 1, 2, 5)])


def test_loops_in_loops_with_branches(native: Native) -> None:
    inner = body(
        [node("Identity", ["going"], ["on"]), node("Add", ["u", "h"], ["t"]), node("Tanh", ["t"], ["u2"]),
         node("Mul", ["u2", "x"], ["o"])],
        {"u": ("f32", None)}, ["on", "u2", "o"],
    )  # fmt: skip
    inner.input[0].name, inner.input[1].name = "j", "going2"
    inner.node[0].input[0] = "going2"
    choice = node(
        "If", ["odd"], ["h2"], then_branch=graph([node("Neg", ["v"], ["p"])], ["p"]),
        else_branch=graph([node("Mul", ["v", "h"], ["q"])], ["q"]),
    )  # fmt: skip
    g = body(
        [node("Identity", ["going"], ["on1"]), node("Mod", ["i", "two"], ["r"]),
         node("Cast", ["r"], ["odd"], to=9),
         node("Loop", ["i", "", "h"], ["v", "vs"], body=inner), choice,
         node("ReduceSum", ["vs"], ["out"], keepdims=0)],
        {"h": ("f32", None)}, ["on1", "h2", "out"],
    )  # fmt: skip
    m = model(
        [node("Loop", ["n", "", "x"], ["y", "ys"], body=g)],
        {"x": ("f32", ["k", 2]), "n": ("i64", [])}, {"y": "f32", "ys": "f32"}, {"two": trips(2)},
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"x": floats(3, 2), "n": trips(n)} for n in (0, 1, 4, 6)], 1e-4)


def test_a_growing_state_in_a_loop_in_a_loop(native: Native) -> None:
    inner = body(
        [node("Identity", ["going2"], ["on"]), node("Concat", ["u", "x"], ["u2"], axis=0)],
        {"u": ("f32", ["l"])}, ["on", "u2"],
    )  # fmt: skip
    inner.input[0].name, inner.input[1].name = "j", "going2"
    g = body(
        [node("Identity", ["going"], ["on1"]), node("Loop", ["i", "", "h"], ["v"], body=inner),
         node("ReduceMax", ["v"], ["out"], keepdims=0), node("Neg", ["v"], ["h2"])],
        {"h": ("f32", ["l"])}, ["on1", "h2", "out"],
    )  # fmt: skip
    m = model(
        [node("Loop", ["n", "", "x"], ["y", "ys"], body=g)],
        {"x": ("f32", ["k"]), "n": ("i64", [])}, {"y": "f32", "ys": "f32"},
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"x": floats(3), "n": trips(n)} for n in (0, 1, 5)])


def test_scan_both_ways(native: Native) -> None:
    g = graph(
        [node("Add", ["h", "x"], ["h2"]), node("Mul", ["h2", "h2"], ["out"])], ["h2", "out"],
        {"h": ("f32", [3]), "x": ("f32", [3])},
    )  # fmt: skip
    m = model(
        [node("Scan", ["w", "xs"], ["y", "ys"], body=g, num_scan_inputs=1, scan_input_directions=[1])],
        {"xs": ("f32", ["t", 3]), "w": ("f32", [3])}, {"y": "f32", "ys": "f32"},
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"xs": floats(t, 3), "w": floats(3)} for t in (5, 1, 9)], 1e-4)


def endless() -> onnx.ModelProto:
    nodes = [node("Identity", ["going"], ["on"]), node("Neg", ["h"], ["h2"])]
    g = body(nodes, {"h": ("f32", None)}, ["on", "h2"])
    inputs = {"x": ("f32", []), "c": ("bool", [])}
    return model([node("Loop", ["", "c", "x"], ["y"], body=g)], inputs, {"y": "f32"})


def test_a_loop_that_never_ends_can_be_stopped(native: Native) -> None:
    import threading

    session = native(endless())
    feeds = {"x": np.float32(1), "c": np.array(True)}
    timer = threading.Timer(0.3, lambda: session._lib.smelt_cancel(session._handle))
    session._lib.smelt_cancel.argtypes = session._lib.smelt_close.argtypes
    session._lib.smelt_cancel.restype = None
    timer.start()
    with pytest.raises(SmeltError, match="cancelled"):
        session.run(None, feeds)
    timer.join()
    assert session.run(None, {**feeds, "c": np.array(False)})[0] == 1


@pytest.mark.table(2)
@pytest.mark.parametrize("seed", range(16))
def test_random_branches_and_loops(native: Native, seed: int) -> None:
    m = flow_model(seed)
    session = native(m)
    agree(session, m, [flow_feeds(10 * seed + k, n) for k, n in enumerate((4, 1, 7, 4))], 1e-4)


# ---------------------------------------------------------------- sizes that depend on data


def sparse(*shape: int, keep: float = 0.4) -> Array:
    rng = np.random.default_rng(shape[0] if shape else 0)
    return np.where(rng.random(shape) < keep, rng.standard_normal(shape), 0).astype(np.float32)


def test_non_zero_and_what_follows(native: Native) -> None:
    m = model(
        [node("Relu", ["x"], ["h"]), node("NonZero", ["h"], ["at"]), node("Transpose", ["at"], ["t"]),
         node("GatherND", ["x", "t"], ["picked"]), node("Exp", ["picked"], ["e"]),
         node("ReduceSum", ["e"], ["total"], keepdims=0)],
        {"x": ("f32", ["n", "m"])}, {"at": "i64", "e": "f32", "total": "f32"},
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"x": sparse(n, k)} for n, k in ((3, 4), (1, 1), (0, 5), (40, 30), (2, 2))], 1e-4)
    agree(session, m, [{"x": np.zeros((3, 5), np.float32)}])


def test_memory_follows_what_is_found(native: Native) -> None:
    m = model(
        [node("NonZero", ["x"], ["at"]), node("Cast", ["at"], ["f"], to=1), node("Exp", ["f"], ["e"]),
         node("Softmax", ["e"], ["p"], axis=1), node("ReduceSum", ["p"], ["total"], keepdims=0)],
        {"x": ("f32", ["n"])}, {"total": "f32"},
    )  # fmt: skip
    session = native(m)
    x = np.zeros(1 << 20, np.float32)
    session.run(None, {"x": x})
    little = session.memory().arena_capacity
    x[: 1 << 18] = 1
    session.run(None, {"x": x})
    assert little < 1 << 18
    assert session.memory().arena_capacity > 1 << 20


def test_compress(native: Native) -> None:
    m = model(
        [node("Compress", ["x", "c"], ["y"], axis=1), node("Compress", ["x", "d"], ["z"]),
         node("MatMul", ["x", "w"], ["h"]), node("Compress", ["h", "r"], ["k"], axis=0),
         node("MatMul", ["k", "v"], ["u"])],
        {"x": ("f32", ["n", 4]), "c": ("bool", [4]), "d": ("bool", [6]), "r": ("bool", ["n"])},
        {"y": "f32", "z": "f32", "u": "f32"}, {"w": floats(4, 8), "v": floats(8, 3)},
    )  # fmt: skip
    session = native(m)
    rng = np.random.default_rng(3)
    agree(session, m, [
        {"x": floats(n, 4), "c": rng.random(4) < p, "d": rng.random(6) < p, "r": rng.random(n) < p}
        for n, p in ((3, 0.5), (9, 0.9), (4, 0.0), (5, 1.1))
    ], 1e-4)  # fmt: skip


@pytest.mark.table(2)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_top_k_at_run_time(native: Native, largest: int, axis: int) -> None:
    m = model(
        [node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=largest), node("Neg", ["v"], ["w"])],
        {"x": ("f32", ["a", "b", 5]), "k": ("i64", [1])}, {"v": "f32", "i": "i64", "w": "f32"},
    )  # fmt: skip
    session = native(m)
    x = np.round(floats(7, 6, 5))  # with equal elements
    agree(session, m, [{"x": x, "k": np.array([k])} for k in (1, 5, 3, 0)])
    with pytest.raises(SmeltError, match="k is 99, expected at most"):
        session.run(None, {"x": x, "k": np.array([99])})


@pytest.mark.parametrize("order", [0, 1])
def test_unique(native: Native, order: int) -> None:
    m = model(
        [node("Unique", ["x"], ["y", "first", "inverse", "counts"], sorted=order), node("Exp", ["y"], ["e"])],
        {"x": ("f32", ["n", 3])},
        {"y": "f32", "first": "i64", "inverse": "i64", "counts": "i64", "e": "f32"},
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"x": np.round(floats(n, 3))} for n in (5, 1, 40)])


@pytest.mark.parametrize("center", [0, 1])
def test_boxes_that_stay(native: Native, center: int) -> None:
    m = model(
        [node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["y"],
              center_point_box=center),
         node("Cast", ["y"], ["f"], to=1)],
        {"boxes": ("f32", ["b", "n", 4]), "scores": ("f32", ["b", "c", "n"]), "most": ("i64", [1]),
         "iou": ("f32", [1]), "least": ("f32", [1])},
        {"y": "i64", "f": "f32"},
    )  # fmt: skip
    session = native(m)
    rng = np.random.default_rng(5)
    agree(session, m, [
        {"boxes": rng.random((b, n, 4), np.float32), "scores": rng.random((b, c, n), np.float32),
         "most": np.array([k]), "iou": np.array([iou], np.float32), "least": np.array([least], np.float32)}
        for b, c, n, k, iou, least in ((1, 1, 10, 3, 0.5, 0.0), (2, 3, 30, 10, 0.3, 0.5),
                                       (1, 2, 5, 0, 0.5, 0.1), (1, 1, 8, 9, 0.1, 2.0))
    ])  # fmt: skip


def test_sizes_found_inside_loops_and_branches(native: Native) -> None:
    choice = node(
        "If", ["odd"], ["h2"],
        then_branch=graph([node("Compress", ["h", "on2"], ["p"], axis=0)], ["p"]),
        else_branch=graph([node("Concat", ["h", "x"], ["q"], axis=0)], ["q"]),
    )  # fmt: skip
    g = body(
        [node("Identity", ["going"], ["on1"]), node("Mod", ["i", "two"], ["r"]),
         node("Cast", ["r"], ["odd"], to=9),
         node("ReduceSum", ["h", "ax"], ["rows"], keepdims=0),
         node("Greater", ["rows", "zero"], ["on2"]), choice, node("ReduceSum", ["h2"], ["out"], keepdims=0)],
        {"h": ("f32", ["k", 3])}, ["on1", "h2", "out"],
    )  # fmt: skip
    m = model(
        [node("Loop", ["n", "", "x"], ["y", "ys"], body=g), node("Tanh", ["y"], ["z"])],
        {"x": ("f32", ["m", 3]), "n": ("i64", [])}, {"y": "f32", "ys": "f32", "z": "f32"},
        {"two": trips(2), "ax": np.array([1]), "zero": np.float32(0)},
    )  # fmt: skip
    session = native(m)
    agree(session, m, [{"x": floats(a, 3), "n": trips(n)} for a, n in ((5, 4), (1, 3), (8, 6), (4, 0))], 1e-4)


def test_a_stack_of_a_size_that_only_rounds_know(native: Native) -> None:
    """A round adds the slices whose sum exceeds a bound: the stack holds when all rounds find as many."""
    g = body(
        [node("Identity", ["going"], ["on1"]), node("Add", ["h", "w"], ["h2"]),
         node("Greater", ["h2", "zero"], ["c"]), node("Compress", ["h2", "c"], ["out"])],
        {"h": ("f32", ["k"])}, ["on1", "h2", "out"],
    )  # fmt: skip
    m = model(
        [node("Loop", ["n", "", "x"], ["y", "ys"], body=g), node("Neg", ["ys"], ["z"])],
        {"x": ("f32", ["m"]), "n": ("i64", []), "w": ("f32", ["m"])},
        {"y": "f32", "ys": "f32", "z": "f32"}, {"zero": np.float32(0)},
    )  # fmt: skip
    session = native(m)
    w = np.array([1, -1, 1, 1, -1], np.float32)
    agree(session, m, [{"x": w[:k], "w": w[:k], "n": trips(n)} for k, n in ((5, 3), (2, 1), (4, 20), (3, 0))])
    falling = {"x": np.array([5, 2.5], np.float32), "w": np.array([1, -1], np.float32), "n": trips(4)}
    with pytest.raises(SmeltError, match="a round adds 1 elements on an axis of a stack, earlier ones 2"):
        session.run(None, falling)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_unique_slices(native: Native, axis: int) -> None:
    m = model(
        [node("Unique", ["x"], ["y", "first", "inverse", "counts"], axis=axis)],
        {"x": ("i64", ["n", 3, "k"])},
        dict.fromkeys(("y", "first", "inverse", "counts"), "i64"),
    )  # fmt: skip
    session = native(m)
    rng = np.random.default_rng(1)
    agree(session, m, [{"x": rng.integers(0, 2, (n, 3, k))} for n, k in ((5, 2), (1, 7), (9, 1))])


@pytest.mark.parametrize("seed", range(3))
def test_a_run_of_many_functions(seed: int, native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function for every step, in branches and loops as well: what one step makes, others find."""
    monkeypatch.setattr(host, "STEPS_PIECE", 1)
    m = flow_model(seed)
    agree(native(m), m, [flow_feeds(seed, n) for n in (3, 1, 8)], 1e-4)
