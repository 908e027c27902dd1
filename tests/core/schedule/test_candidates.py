"""Candidates: the default first, each another schedule of the same meaning, which replays; answers that no
strategy can follow make none."""

from __future__ import annotations

import pytest
from naive_kernels import check
from strategy_kernels import KERNELS, MACHINES

from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.core.schedule.candidates import Candidate, answered, candidates, default, joined
from smelt.core.schedule.question import Question
from smelt.core.schedule.strategies import draft
from smelt.core.schedule.tree import ScheduleError

WIDE, TWO = MACHINES[0], MACHINES[1]
# at least one for each pick; all kernels of the table take two minutes
MEANT = (
    "matmul-packed", "matmul-dynamic", "scores", "batched", "conv-3x3", "conv-depthwise", "max-pool",
    "softmax", "softmax-middle", "softmax-of-a-transpose", "layer-norm", "sum-0", "sum-2", "add-row", "large",
    "transpose-2d", "gather", "concat-last", "norm-matmul", "attention-masked", "running-rows", "scan",
)  # fmt: skip


def asked(name: str) -> Question:
    """The question about a kernel of the table."""
    kernel, constants, _ = KERNELS[name]
    return Question(kernel.with_(name=""), frozenset(constants))


def found(name: str, machine: Machine) -> list[Candidate]:
    return list(candidates(asked(name), machine))


@pytest.mark.parametrize("name", MEANT)
def test_each_keeps_the_meaning_and_replays(name: str) -> None:
    naive, constants, envs = KERNELS[name]
    every = found(name, TWO)
    assert every[0].kernel == draft(naive.with_(name=""), TWO, frozenset(constants)).kernel
    assert every[0].answers == {}
    assert len({c.schedule for c in every}) == len(every)
    for c in every[1:]:
        check(naive, c.kernel, envs[0], rtol=2e-3 if "f16" in name else 2e-5)
        assert asked(name).replayed(c.schedule, TWO) == c.kernel, c.why
        assert c.answers and c.why


def test_strategies_offer_what_they_choose_by_numbers() -> None:
    """The tiles of a product by its model, the best first; blocks of rows; vectors in flight."""
    tiles = [c.why for c in found("matmul-packed", WIDE)]
    assert tiles[0] == "the strategies' own"
    assert len([t for t in tiles if t.startswith("tile ")]) >= 4
    offered = {what for n in ("softmax-matmul", "softmax", "max-pool", "large", "scores", "running-rows")
               for c in found(n, WIDE) for what in c.answers}  # fmt: skip
    assert offered >= {"rows of a block", "in flight", "rows of a tile", "vectors", "chunk", "tile"}


def test_a_second_option_comes_before_every_third() -> None:
    """Where the budget ends early, each pick has had a second look."""
    named = [next(iter(c.answers)) for c in found("softmax-matmul", WIDE)[1:]]
    first = {what: named.index(what) for what in named}
    again = [k for k, what in enumerate(named) if what in named[:k]]
    assert len(first) > 1
    assert max(first.values()) < min(again)


def test_the_default_is_what_is_chosen_without_answers() -> None:
    assert default(asked("softmax"), WIDE).kernel == found("softmax", WIDE)[0].kernel


def test_answers_that_nobody_can_follow_make_no_candidate() -> None:
    q = asked("matmul-packed")
    assert answered(q, WIDE, {"tile": "5x77"}) is None
    assert answered(q, WIDE, {"no such pick": "1"}) is None
    assert answered(q, WIDE, {}) is not None


def test_joined_candidates_follow_all_answers() -> None:
    every = found("softmax-matmul", WIDE)[1:]
    tile = next(c for c in every if "tile" in c.answers)
    block = next(c for c in every if "rows of a block" in c.answers)
    both = joined(asked("softmax-matmul"), WIDE, (tile, block))
    assert both is not None
    assert both.answers == {**tile.answers, **block.answers}
    assert both.schedule not in (tile.schedule, block.schedule)


def test_layouts_keep_the_width_that_machines_share() -> None:
    """A candidate may want weights in another layout, but for the width of panels that levels share."""

    def layouts(machine: Machine) -> set[str]:
        q = asked("matmul-packed")
        return {str(b.layout.spec) for c in candidates(q, machine) for b in c.kernel.inputs if b.layout}

    shared = Machine("shared", 512, 32, masked=True, panel_bits=512)
    assert len(layouts(WIDE)) > 1
    assert len(layouts(shared)) == 1


def test_a_digest_is_that_of_the_question() -> None:
    """Names of kernels and origins are not in it; weights, ranges of dims and loops are."""
    kernel, weights, _ = KERNELS["matmul-packed"]
    first = asked("matmul-packed")

    def digest(k: Kernel, constants: str = weights) -> str:
        return Question(k, frozenset(constants)).digest

    assert digest(kernel.with_(name="other", origin="node")) == first.digest
    dims = tuple(d.__class__(d.name, 1, 7) for d in kernel.dims)
    others = {first.digest, digest(kernel, ""), digest(kernel.with_(dims=dims)), asked("softmax").digest}
    assert len(others) == 4


def test_a_schedule_may_pack_only_what_is_a_weight() -> None:
    packed = default(asked("matmul-packed"), WIDE).schedule
    plain = Question(KERNELS["matmul-packed"][0].with_(name=""))
    with pytest.raises(ScheduleError, match="pack b: it is no weight where the kernel is called"):
        plain.replayed(packed, WIDE)


@pytest.mark.parametrize(("text", "wanted"), [
    ("normalise; frobnicate i0", "frobnicate i0: there is no such primitive"),
    ("normalise; bind nowhere group", "nowhere"),
    ("normalise; split i1 0 i1.o i1.i no", "split|replay"),
    ("normalise; bind i0 group; spread i0 -1 i0.o i0.i", "spread i0 -1 i0.o i0.i: numbers are 0 or more"),
    ("normalise; bind i0 group; spread i0 0 i0.o i0.i", "replay|spread"),
    ("normalise; bind i0 lane", "verify: .*lane"),
    ("normalise; split i1 x i1.o i1.i no", "cannot read an argument"),
])  # fmt: skip
def test_what_does_not_replay_says_which_step(text: str, wanted: str) -> None:
    with pytest.raises(ScheduleError, match=wanted):
        asked("matmul-packed").replayed(text, WIDE)
