"""Kernels for hot sizes: exactly one runs, and none that the plan is not made for."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Graph, Module
from smelt.core.ir.hot import held_in, misfit, pinned, shares
from smelt.core.ir.kernel import HotCase, Kernel
from smelt.core.ir.text import parse_kernel, parse_module, print_module
from smelt.core.ir.verify import verify, verify_text

PLAIN = """
kernel @add(d0: dim in 1..64, d1: dim in 1..64, x: f32[d0, d1], z: f32[d0, d1]) -> (y: f32[d0, d1]) {
  group i in d0 { serial j in d1 { y[i, j] = x[i, j] + z[i, j] } }
}
"""
KEPT = """
kernel @add(d0: dim in 1..64, x: f32[d0]) -> (y: f32[d0]) scratch (s: f32[d0, 8], t: f32[d0]) {
  group i in d0 { t[i] = x[i] }
  group i in d0 { s[i, 0] = x[i] }
  group i in d0 { y[i] = t[i] + s[i, 0] }
}
"""


def kernel(text: str = PLAIN) -> Kernel:
    return parse_kernel(text)


SIZES = st.integers(1, 4)
_CHOICES = [[(), *(((d, n),) for n in range(1, 5))] for d in ("d0", "d1")]
POINTS = st.sampled_from([a + b for a, b in itertools.product(*_CHOICES) if a + b])


@given(st.lists(POINTS, min_size=1, max_size=5), SIZES, SIZES)
def test_the_first_case_that_fits_runs_and_nothing_else(
    points: list[tuple[tuple[str, int], ...]], d0: int, d1: int
) -> None:
    """Cases may overlap: one for a row of any length, one for a length of any row."""
    cases = tuple(HotCase(f"k{n}", p) for n, p in enumerate(points))
    factors, own = shares(kernel().with_(hot=cases))
    at = {"d0": d0, "d1": d1}
    found = [f.evaluate(at) for f in (*factors, own)]
    fits = [dict(p).items() <= at.items() for p in points] + [True]
    assert found == [int(n == fits.index(True)) for n in range(len(fits))]


def test_numbers_take_the_place_of_dims_which_stay_parameters() -> None:
    done = pinned(kernel(), {"d1": 7})
    assert [(p.name, p.low, p.high) for p in done.dims] == [("d0", 1, 64), ("d1", 7, 7)]
    assert [str(b.shape[1]) for b in (*done.inputs, *done.outputs)] == ["7"] * 3
    assert misfit(kernel(), done, {"d1": 7}) == ""


def changed(text: str, old: str, new: str, **values: int) -> str:
    """Why a kernel with a change may not be the case of the one without it."""
    assert old in text
    return misfit(kernel(text), pinned(kernel(text.replace(old, new)), values), values)


def test_a_case_that_the_plan_is_not_made_for_is_none() -> None:
    assert "parameters" in misfit(kernel(), pinned(kernel(), {"d1": 7}), {"d1": 8})
    assert "overwrite" in changed(PLAIN, "z[i, j]", "z[d0 - 1 - i, j]", d1=7)
    copies = PLAIN.replace(" + z[i, j]", "")
    assert "copy" in changed(copies, "= x[i, j]", "= x[i, j] + x[i, j]", d1=7)
    assert "memory" in changed(KEPT, "s: f32[d0, 8]", "s: f32[d0, 9]", d0=7)
    assert "memory" in changed(PLAIN, "(y: f32[d0, d1]) {", "(y: f32[d0, d1]) scratch (s: f32[1]) {", d0=7)
    assert changed(KEPT, "s: f32[d0, 8]", "s: f32[d0, 5]", d0=7) == ""


def test_a_layout_is_that_of_the_plan() -> None:
    text = """
    kernel @mm(d0: dim in 1..9, w: f32[2, 1, 8] laid "(1/8, 0, 1%8)" of [1, 16]) -> (y: f32[d0]) {
      group i in d0 { y[i] = w[0, 0, 0] }
    }"""
    other = text.replace("1/8", "1/4").replace("1%8", "1%4").replace("[2, 1, 8]", "[4, 1, 4]")
    assert "layout" in misfit(kernel(text), pinned(kernel(other), {"d0": 3}), {"d0": 3})


def test_a_case_has_the_memory_of_the_other() -> None:
    """In its order, buffers that it has no use for left out."""
    own = kernel(KEPT.replace("s: f32[d0, 8], ", "").replace("s[i, 0]", "t[i]").replace("+ t[i]", ""))
    assert held_in(kernel(KEPT), pinned(own, {"d0": 7}), {"d0": 7}) == (0,)
    big = pinned(kernel(KEPT), {"d0": 7})
    assert held_in(kernel(KEPT), big, {"d0": 7}) == (0, 1)
    assert held_in(own, big, {"d0": 7}) is None


def module(**changes: Any) -> Module:
    """A kernel with a case at d1 = 7, which nobody calls."""
    hot = (HotCase("add_hot", (("d1", 7),)),)
    kernels = {"add": kernel().with_(hot=hot), "add_hot": pinned(kernel(), {"d1": 7}).with_(name="add_hot")}
    return Module("m", (), graphs={"main": Graph("main", (), (), (), ())}, kernels=kernels | changes)


def test_text_reads_back() -> None:
    text = print_module(module()).replace('module "m" {', 'module "m" {\n  sym n in 1..512 % 4 hot (4, 128)')
    made = parse_module(text)
    assert "hot (@add_hot (d1 = 7))" in text and made.symbols[0].hot == (4, 128)
    assert print_module(made) == text
    verify_text(made)
    verify(made, "lowered")


def test_what_breaks_the_rules_of_hot_sizes() -> None:
    def bad(words: str, made: Module) -> None:
        with pytest.raises(SmeltError, match="M9") as e:
            verify(made, "lowered")
        assert words in str(e.value)

    def at(case: str, **dims: int) -> Kernel:
        return kernel().with_(hot=(HotCase(case, tuple(dims.items())),))

    bad("is no kernel", module(add=at("nobody", d1=7)))
    bad("does not fit", module(add=at("add_hot", d1=8)))
    bad("sizes that the kernel does not have", module(add=at("add_hot", d1=65)))
    bad("sizes that the kernel does not have", module(add=at("add_hot", d2=7)))
    bad("sizes that the kernel does not have", module(add=at("add_hot")))
    bad("cases of its own", module(add_hot=replace(module().kernels["add"], name="add_hot")))
    text = print_module(module()).replace('module "m" {', 'module "m" {\n  sym n in 1..512 hot (513)')
    bad("'n' is not in its range", parse_module(text))
