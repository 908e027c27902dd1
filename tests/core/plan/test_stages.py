"""Which arenas late sizes share, and that nothing is put over what lives: outside of loops, at one unit."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from smelt.compiler import compile_here
from smelt.core.dim import Facts, sym, to_dim
from smelt.core.plan.lifetime import Storage
from smelt.core.plan.stages import FORMULA_NODES, ArenaStage, Home, assign
from smelt.driver import Request
from smelt.session import load

Row = tuple[int, Home, list[Storage]]
SAMPLE = {"small": 64, "large": 6400, "n": 6400, "k": 640}


def row(at: int, last: int, size: int | str = 64, unit: int = 0, seen: bool = False) -> Row:
    """A stage that becomes known at a position, of one storage that is read until another."""
    bytes_ = to_dim(size) if isinstance(size, int) else sym(size)
    return at, Home(unit, seen), [Storage(f"s{at}.{unit}", bytes_, at + 1, last)]


def stages(
    *rows: Row, rounds: list[tuple[int, int]] | None = None, facts: Facts | None = None
) -> list[ArenaStage]:
    return assign(rows, rounds or [], facts or sized(), [SAMPLE])


def sized() -> Facts:
    facts = Facts()
    for name in SAMPLE:
        facts = facts.with_range(name, 0, None)
    return facts


def numbers(*rows: Row, rounds: list[tuple[int, int]] | None = None) -> list[int]:
    return [s.arena for s in stages(*rows, rounds=rounds)]


def test_what_is_dead_is_shared() -> None:
    rows = row(-1, 50), row(2, 5, "k"), row(6, 9, "k"), row(10, 12, "k")
    assert numbers(*rows) == [0, 1, 1, 1]
    assert not any(s.keep for s in stages(*rows))


def test_an_arena_whose_formula_gets_long_is_shared_no_more() -> None:
    """As of a detection head that keeps some boxes of each class: with 24 classes in one arena its formula
    would have 83,000 nodes."""
    rng, facts, sample, rows = Random(0), Facts(), {}, [row(-1, 500)]
    for at in range(0, 480, 20):
        own = []
        for n in range(7):
            name = f"n{at}.{n}"
            sample[name] = 64 * rng.randint(1, 9)
            first = at + 1 + rng.randint(0, 6)
            facts = facts.with_range(name, 0, None)
            own.append(Storage(name, sym(name), first, 500 if n < 2 else first + rng.randint(1, 5)))
        rows.append((at, Home(0), own))
    found = assign(rows, [], facts, [sample])
    assert max(s.plan.bytes.nodes for s in found) <= FORMULA_NODES
    assert 2 < len({s.arena for s in found}) < len(found)


@pytest.mark.parametrize(("last", "found", "keep"), [(4, 1, False), (5, 1, True), (6, 2, False)])
def test_what_is_read_at_the_position_is_kept(last: int, found: int, keep: bool) -> None:
    """What is read later would lie below: the arena would grow as much as one of its own."""
    late = stages(row(-1, 50), row(2, last, "k"), row(5, 9, "k"))[-1]
    assert (late.arena, late.keep) == (found, keep)


def test_an_arena_grows_under_what_lives() -> None:
    """Less than one of its own would take: the end of what is dead is free."""
    early = 2, Home(0), [Storage("kept", sym("small"), 3, 9), Storage("dead", sym("k"), 3, 4)]
    *_, first, second = found = stages(row(-1, 50), early, row(5, 7, "k"))
    assert [s.arena for s in found] == [0, 1, 1]
    assert (first.keep, second.keep) == (False, True)
    kept, late = first.plan.offsets["kept"], second.plan.offsets["s5.0"]
    assert (kept.evaluate(SAMPLE), late.evaluate(SAMPLE)) == (0, 64), "what goes on living lies lowest"
    assert second.plan.bytes.evaluate({"small": 1, "k": 0, "n": 0, "large": 0}) == 64
    assert second.plan.own.evaluate(SAMPLE) == 64 + 640


def test_what_is_smaller_lies_below() -> None:
    """k <= n: it fits where the n bytes were, under what goes on living."""
    high = 2, Home(0), [Storage("low", sym("n"), 3, 4), Storage("high", sym("small"), 4, 9)]
    assert numbers(row(-1, 50), high, row(5, 7, "k")) == [0, 1, 1]
    assert stages(row(-1, 50), high, row(5, 7, "k"))[-1].plan.offsets["s5.0"] != to_dim(0)
    # an order in which the larger is first: nothing crosses, so nothing is put lowest
    early = -1, Home(0), [Storage("low", sym("n"), 0, 1), Storage("high", sym("small"), 1, 9)]
    facts = sized().with_upper("k", sym("n"))
    late = stages(early, row(2, 5, "k"), facts=facts)[-1]
    assert (late.arena, late.plan.offsets["s2.0"]) == (0, to_dim(0))
    assert late.plan.bytes == stages(early)[0].plan.bytes
    assert stages(early, row(2, 5, "k"))[-1].arena == 1, "nothing is known of k"


def test_the_first_arena_stays_as_it_is() -> None:
    """Its address is an argument of the run, reserved before it."""
    assert numbers(row(-1, 1), row(2, 3, "k"), row(4, 9, "k")) == [0, 1, 1]


def test_units_share_nothing() -> None:
    late = row(2, 3, "k", unit=1), row(4, 6, "k"), row(7, 9, "k", unit=1)
    assert numbers(row(-1, 50), *late) == [0, 1, 2, 1]


def test_what_the_host_looks_at_is_apart() -> None:
    """The host may have such an arena twice."""
    late = row(2, 3, "k", unit=1), row(4, 6, "k", unit=1, seen=True), row(7, 9, "k", unit=1)
    found = stages(row(-1, 50), *late)
    assert [s.arena for s in found] == [0, 1, 2, 1] and [s.home.seen for s in found] == [0, 0, 1, 0]


def test_a_chain_takes_turns() -> None:
    """Each reads the one before: two arenas do for any number of them."""
    assert numbers(row(-1, 50), *(row(k, k + 11, "k") for k in range(0, 80, 10))) == [0, *(1, 2) * 4]


def test_the_one_that_grows_least_is_taken() -> None:
    late = [row(2, 4, "k"), row(3, 5, "large")]
    assert numbers(row(-1, 50), *late, row(6, 9, "large")) == [0, 1, 2, 2]
    assert numbers(row(-1, 50), *late, row(6, 9, "k")) == [0, 1, 2, 1]


def test_rounds_share_nothing() -> None:
    """What a round reserves is there until the loop ends, and may be any round's."""
    rounds = [(10, 20)]
    rows = row(-1, 50), row(2, 3, "k"), row(12, 13, "k"), row(15, 16, "k")
    assert numbers(*rows, rounds=rounds) == [0, 1, 2, 3]
    rows = row(-1, 50), row(12, 13, "k"), row(20, 25, "k"), row(21, 25, "k")
    assert numbers(*rows, rounds=rounds) == [0, 1, 2, 1]


NAMES = ("n", "k", "small")
Drawn = list[tuple[int, int, list[tuple[str, int, int]]]]
DRAWN = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(0, 1),
        st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 4), st.integers(0, 12)), max_size=4),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(DRAWN, st.integers(0, 9000), st.integers(0, 9000), st.integers(0, 9000))
def test_nothing_lies_over_what_lives(drawn: Drawn, n: int, k: int, small: int) -> None:
    """Whatever the sizes are, as far as the facts hold; and each reserves as much as its own take."""
    keys = {(at, unit): own for at, unit, own in drawn}
    early = -1, Home(0), [Storage("e0", sym("n"), 0, 3), Storage("e1", sym("small"), 2, 40)]
    rows: list[Row] = [early]
    for (at, unit), own in sorted(keys.items()):
        held = [
            Storage(f"s{at}.{unit}.{m}", sym(name) * (m + 1), at + first, at + first + length)
            for m, (name, first, length) in enumerate(own)
        ]
        rows.append((at, Home(unit), held))
    rounds = [(4, 9), (15, 22)]
    found = stages(*rows, rounds=rounds, facts=sized().with_upper("k", sym("n")))
    assert sorted({s.arena for s in found}) == list(range(len({s.arena for s in found})))
    sizes = {"n": n, "k": min(n, k), "small": small}
    placed: list[tuple[ArenaStage, Storage, int, int]] = []
    for stage, (_, home, held) in zip(found, rows, strict=True):
        own = stage.plan.own.evaluate(sizes)
        for s in held:
            start = stage.plan.offsets[s.root].evaluate(sizes)
            end = start + s.bytes.evaluate(sizes)
            assert end <= own <= stage.plan.bytes.evaluate(sizes)
            for other, q, low, high in placed:
                if other.arena == stage.arena and q.first <= s.last and s.first <= q.last:
                    assert end <= low or high <= start or start == end or low == high, (s, q)
                    assert other is stage or stage.keep or q.last < stage.at or not stage.arena
            placed.append((stage, s, start, end))
        for other in found[: found.index(stage)]:
            if other.arena == stage.arena:
                assert other.home == home
                assert not any(start < stage.at < end for start, end in rounds)
                assert not any(start < other.at < end and stage.at < end for start, end in rounds)


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
    assert len(bundle.manifest["memory"]["arenas"]) == len(lives) == 2
    session, reference = load(bundle, threads=1), onnxruntime.InferenceSession(str(model))
    for n in (0, 1, 7, 1000, 3):
        x = np.random.default_rng(n).normal(0, 2, n).astype(np.float32)
        (got,), (want,) = session.run(None, {"x": x}), reference.run(None, {"x": x})
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_what_lies_in_one_branch_has_no_place_elsewhere() -> None:
    """Results of both branches live until the if's end, where the size of the whole becomes known."""
    rows = row(-1, 50), row(2, 9, "k"), row(6, 9, "n"), row(9, 12, "k")
    found = assign(rows, [], sized(), [SAMPLE], [[(1, 4), (5, 8)]])
    assert [s.arena for s in found] == [0, 1, 1, 2]
    assert found[2].plan.offsets == {"s6.0": to_dim(0)}  # with k, which has no value there, it would be above
    assert [s.arena for s in assign(rows, [], sized(), [SAMPLE])] == [0, 1, 2, 1]
