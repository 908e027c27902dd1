"""Which arenas late sizes share: those of which nothing lives any more, outside of loops, at one unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from smelt.compiler import compile_here
from smelt.core.dim import sym, to_dim
from smelt.core.plan.arena import Arena
from smelt.core.plan.lifetime import Storage
from smelt.core.plan.stages import ArenaStage, assign
from smelt.driver import Request
from smelt.session import load

Row = tuple[int, int, list[Storage], Arena]


def row(at: int, last: int, size: int | str = 64, unit: int = 0) -> Row:
    """A stage reserved at a position, of one storage that is read until another."""
    bytes_ = to_dim(size) if isinstance(size, int) else sym(size)
    return (
        at,
        unit,
        [Storage(f"s{at}.{unit}", bytes_, at + 1, last)],
        Arena({f"s{at}.{unit}": to_dim(0)}, bytes_),
    )


def numbers(*rows: Row, rounds: list[tuple[int, int]] | None = None) -> list[int]:
    return [s.arena for s in assign(rows, rounds or [], {"small": 64, "large": 6400})]


def test_what_is_dead_is_shared() -> None:
    assert numbers(row(-1, 50), row(2, 5), row(6, 9), row(10, 12)) == [0, 1, 1, 1]


@pytest.mark.parametrize(("last", "found"), [(4, 1), (5, 2), (9, 2)])
def test_what_is_read_at_the_position_or_later_is_not(last: int, found: int) -> None:
    assert numbers(row(-1, 50), row(2, last), row(5, 9)) == [0, 1, found]


def test_the_first_arena_stays_alone() -> None:
    """Its address is an argument of the run, reserved before it."""
    assert numbers(row(-1, 1), row(2, 3), row(4, 9)) == [0, 1, 1]


def test_units_share_nothing() -> None:
    assert numbers(row(-1, 50), row(2, 3, unit=1), row(4, 6), row(7, 9, unit=1)) == [0, 1, 2, 1]


def test_a_chain_takes_turns() -> None:
    """Each reads the one before: two arenas do for any number of them."""
    assert numbers(row(-1, 50), *(row(k, k + 10) for k in range(0, 80, 10))) == [0, *(1, 2) * 4]


def test_the_one_that_grows_least_is_taken() -> None:
    late = [row(2, 4, "small"), row(3, 5, "large")]
    assert numbers(row(-1, 50), *late, row(6, 9, "large")) == [0, 1, 2, 2]
    assert numbers(row(-1, 50), *late, row(6, 9, "small")) == [0, 1, 2, 1]


def test_rounds_share_nothing() -> None:
    """What a round reserves is there until the loop ends, and may be any round's."""
    rounds = [(10, 20)]
    assert numbers(row(-1, 50), row(2, 3), row(12, 13), row(15, 16), rounds=rounds) == [0, 1, 2, 3]
    assert numbers(row(-1, 50), row(12, 13), row(20, 25), row(21, 25), rounds=rounds) == [0, 1, 2, 1]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 1)), max_size=12))
def test_nothing_is_reserved_over_what_lives(drawn: list[tuple[int, int, int]]) -> None:
    keys = {(at, unit): length for at, length, unit in drawn}
    rows = [row(-1, 99), *(row(at, at + 1 + n, unit=unit) for (at, unit), n in sorted(keys.items()))]
    rounds = [(4, 9), (15, 22)]
    stages = assign(rows, rounds, {})
    assert sorted({s.arena for s in stages}) == list(range(len({s.arena for s in stages})))
    last = {id(s): max(x.last for x in own) for s, (_, _, own, _) in zip(stages, rows, strict=True)}
    for k, later in enumerate(stages):
        for earlier in stages[:k]:
            if earlier.arena != later.arena:
                continue
            assert earlier.unit == later.unit
            assert last[id(earlier)] < later.at
            assert not any(start < later.at < end for start, end in rounds)
            assert not any(start < earlier.at < end and later.at < end for start, end in rounds)
    assert all(isinstance(s, ArenaStage) for s in stages)


def chain(path: Path) -> Path:
    """What is positive of x, of that what is below 3, of that what is below 2, ..: a late size each."""
    nodes, constants, value = [], [], "x"
    for k, bound in enumerate((0.0, 3.0, 2.0, 1.5, 1.0)):
        constants.append(numpy_helper.from_array(np.array(bound, np.float32), f"bound{k}"))
        nodes += [
            helper.make_node("Less" if k else "Greater", [value, f"bound{k}"], [f"keep{k}"]),
            helper.make_node("Compress", [value, f"keep{k}"], [f"some{k}"], axis=0),
            helper.make_node("Softmax", [f"some{k}"], [f"soft{k}"], axis=0),
            helper.make_node("Add", [f"some{k}", f"soft{k}"], [f"v{k}"]),
        ]
        value = f"v{k}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(nodes, "chain", [x], [onnx.ValueInfoProto(name=value)], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_chain_of_late_sizes_needs_few_arenas(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx")
    bundle = compile_here(Request(source=str(model), output=str(tmp_path / "out"), runner=False))
    lives: dict[int, list[tuple[int, int]]] = {}
    for v in bundle.manifest["values"]:
        lives.setdefault(v["arena"], []).append(tuple(v["live"]))
    assert len(bundle.manifest["memory"]["arenas"]) == len(lives) < 5
    session, reference = load(bundle, threads=1), onnxruntime.InferenceSession(str(model))
    for n in (0, 1, 7, 1000, 3):
        x = np.random.default_rng(n).normal(0, 2, n).astype(np.float32)
        (got,), (want,) = session.run(None, {"x": x}), reference.run(None, {"x": x})
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
