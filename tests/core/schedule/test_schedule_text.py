"""Schedules print, parse and replay; pack specs too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_kernels import op_kernel

from smelt.core.dim import sym, to_dim
from smelt.core.ir.layout import PackDim, PackSpec, apply_numpy, parse_spec
from smelt.core.schedule.schedule import PRIMITIVES, Schedule, Step, apply, parse
from smelt.core.schedule.tree import ScheduleError

_NAMES = st.sampled_from(["i", "j.o", "acc1", "k_2.t"])
_ARGS = {
    "v": _NAMES,
    "i": st.integers(0, 99),
    "b": st.booleans(),
    "s": st.lists(st.integers(1, 64), min_size=1, max_size=5).map(tuple),
    "o": st.lists(_NAMES, max_size=4).map(tuple),
    "d": st.sampled_from([to_dim(3), sym("m") // 4 * 4, sym("m") - sym("n")]),
    "r": st.sampled_from(["sdot", "vpdpbusd.512"]),
    "l": st.sampled_from(["(1/32, 0, 1%32)", "(0)", "(2, 0/8, 1, 0%8)"]),
}


@st.composite
def _steps(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from(sorted(PRIMITIVES)))
    return Step(name, tuple(draw(_ARGS[kind]) for kind in PRIMITIVES[name][1]))


@given(st.lists(_steps(), max_size=6))
def test_print_and_parse(steps: list[Step]) -> None:
    schedule = Schedule(tuple(steps))
    assert parse(str(schedule)) == schedule


UNREADABLE = ("fly i", "split i", "split i x a b no", "bind i group extra", "tile i [a] x y z w")


@pytest.mark.parametrize("text", UNREADABLE)
def test_unreadable(text: str) -> None:
    with pytest.raises(ScheduleError):
        parse(text)


def test_replay_gives_the_same_kernel() -> None:
    kernel = op_kernel("add", [("n",), ("n",)], ("n",))
    schedule = parse("chunk i0 64 g; bind g group; strip i0 4 4 yes")
    once = apply(kernel, schedule)
    assert once.schedule == str(schedule)
    assert apply(kernel, parse(once.schedule)) == once


@given(st.permutations([0, 1, 2]), st.integers(0, 2), st.integers(1, 5), st.booleans())
def test_pack_is_what_its_index_says(perm: list[int], axis: int, factor: int, split: bool) -> None:
    dims = [PackDim(a) for a in perm]
    if split:
        dims = [PackDim(a, "outer", factor) if a == axis else PackDim(a) for a in perm]
        dims.append(PackDim(axis, "inner", factor))
    spec = PackSpec(tuple(dims))
    assert parse_spec(str(spec)) == spec
    x = np.arange(1, 1 + 3 * 4 * 7).reshape(3, 4, 7)
    packed = apply_numpy(spec, x)
    assert packed.shape == tuple(d.const for d in spec.shape([to_dim(n) for n in x.shape]))
    for i in np.ndindex(*x.shape):
        at = tuple(d.const for d in spec.index([to_dim(k) for k in i]))
        assert packed[at] == x[i]
        assert spec.source_index([to_dim(k) for k in at]) == tuple(to_dim(k) for k in i)
    assert packed.sum() == x.sum()  # the rest is zero


@pytest.mark.parametrize("text", ["0, 1", "(0, 0)", "(0/4, 1)", "(1)", "(0/4, 0%8)", "(x)"])
def test_bad_pack_specs(text: str) -> None:
    with pytest.raises(ValueError):
        parse_spec(text)
