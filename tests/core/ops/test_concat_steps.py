"""Long concatenations in steps: every part once and in order, each step within its limits, numpy's result."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from smelt.core.dim import Dim, sym, to_dim
from smelt.core.ir.interp_graph import run_module
from smelt.core.ops import OPS
from smelt.core.ops.rows.movement import MOST_CONCAT_PARTS, MOST_CONCAT_SIZES, concat_steps
from smelt.importer import import_model

EXTENTS = st.lists(
    st.integers(0, 40).map(lambda k: to_dim(k) if k < 8 else sym(f"n{k}")), min_size=1, max_size=300
)


@given(EXTENTS)
@example([to_dim(1)] * (2 * MOST_CONCAT_PARTS))
@example([sym(f"n{k}") for k in range(MOST_CONCAT_SIZES + 1)])
def test_steps_are_runs_of_all_parts(extents: list[Dim]) -> None:
    runs = concat_steps(extents)
    assert [n for run in runs for n in run] == list(range(len(extents)))
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        sizes = {extents[n] for n in run if not extents[n].is_const}
        assert 0 < len(run) <= MOST_CONCAT_PARTS and len(sizes) <= MOST_CONCAT_SIZES
        if following is not None:  # it ends where one part more would be too many
            more = sizes | {d for d in [extents[following[0]]] if not d.is_const}
            assert len(run) == MOST_CONCAT_PARTS or len(more) > MOST_CONCAT_SIZES


@given(EXTENTS)
def test_a_step_starts_where_numpy_puts_its_first_part(extents: list[Dim]) -> None:
    env = {f"n{k}": (7 * k) % 11 for k in range(41)}
    sizes = [d.evaluate(env) for d in extents]
    parts = [np.full(size, n) for n, size in enumerate(sizes)]
    whole = np.concatenate(parts)
    steps = [np.concatenate([parts[n] for n in run]) for run in concat_steps(extents)]
    np.testing.assert_array_equal(np.concatenate(steps), whole)
    starts = np.cumsum([0, *map(len, steps)])
    for run, start, end in zip(concat_steps(extents), starts, starts[1:], strict=False):
        lengths: Dim = sum((extents[n] for n in run), to_dim(0))
        assert lengths.evaluate(env) == end - start == sum(sizes[n] for n in run)


@given(st.lists(st.sampled_from(["n", "m", "k", 1, 3]), min_size=60, max_size=150), st.integers(0, 3))
@settings(max_examples=8, deadline=None)
def test_a_model_with_many_parts_is_numpys(lengths: list[str | int], size: int) -> None:
    inputs = {str(n): helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [n]) for n in lengths}
    node = helper.make_node("Concat", [f"x{n}" for n in lengths], ["y"], axis=0)
    graph = helper.make_graph([node], "g", list(inputs.values()), [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    env = {"n": size, "m": size + 2, "k": 0}
    feed = {
        f"x{n}": np.arange(env.get(n, n), dtype=np.float32) + at  # type: ignore[arg-type]
        for at, n in enumerate(dict.fromkeys(lengths))
    }
    module = import_model(model)
    joins = [x for x in module.main.nodes if x.op == "concat"]
    assert all(len(x.inputs) <= MOST_CONCAT_PARTS for x in joins)
    (y,) = run_module(module, feed, OPS)
    np.testing.assert_array_equal(y, np.concatenate([feed[f"x{n}"] for n in lengths]))
