"""Weights whose transposes a module has: in files, made when they are read, in regions; and what is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smelt.core.dtype import Array, f32
from smelt.core.ir.graph import Module, Weight
from smelt.core.ir.text import parse_module
from smelt.core.ir.verify import verify
from smelt.core.passes.lowering.tied import tied
from smelt.core.passes.manager import pick, run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from tests.core.passes.build import CONTEXT

ROWS, COLUMNS = 300, 64
VALUES = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def module(rows: Weight, turned: Weight, picked: str) -> Module:
    """A product with @t, and what is picked from @w: `picked`, whose last value is %e."""
    text = f"""module "m" {{
      sym m in 1..8
      weight @t: f32[1, 1] = [0.0]
      weight @w: f32[1, 1] = [0.0]
      graph @main(
        %i: i64[m] from "i", %x: f32[m, {COLUMNS}] from "x", %c: bool[] from "c"
      ) -> (%y as "y", %e as "e") {{
        %y = matmul(%x, @t) : f32[m, {ROWS}]
        {picked}
      }}
    }}"""
    found = parse_module(text.replace("f32[1, 1] = [0.0]", "f32[0, 0] = []"))
    return found.with_(weights={"@w": replace(rows, name="@w"), "@t": replace(turned, name="@t")})


WHOLE = f"%e = relu(@w) : f32[{ROWS}, {COLUMNS}]"
GATHER = f"%e = gather(@w, %i) {{axis = 0}} : f32[m, {COLUMNS}]"


def left(m: Module) -> set[str]:
    """The weights after the pass."""
    done = run_pipeline(m, pick(PIPELINE, ["lower", "tied"]), CONTEXT)
    verify(done, "lowered")
    return set(done.weights)


def held(values: Array) -> Weight:
    return Weight("@", f32, values.shape, np.ascontiguousarray(values))


def stored(folder: Path, values: Array) -> Weight:
    path = folder / f"{len(list(folder.iterdir()))}.bin"
    path.write_bytes(b"head" + np.ascontiguousarray(values).tobytes())
    return Weight("@", f32, values.shape, path=path, offset=4)


def test_one_is_left(tmp_path: Path) -> None:
    rows = stored(tmp_path, VALUES)
    for a, b in (
        (held(VALUES), held(VALUES.T)),
        (rows, stored(tmp_path, VALUES.T)),
        (rows, rows.transposed((1, 0), "@")),
        (stored(tmp_path, VALUES.T).transposed((1, 0), "@"), stored(tmp_path, VALUES.T)),
    ):
        assert left(module(a, b, GATHER)) == {"@t"}


def test_in_a_branch() -> None:
    arm = f"%g = gather(@w, %i) {{axis = 0}} : f32[m, {COLUMNS}]"
    arms = f"region @then() -> (%g) {{ {arm} }} region @else() -> (%x) {{ }}"
    branch = f"%e = if(%c) : f32[m, {COLUMNS}] {arms}"
    assert left(module(held(VALUES), held(VALUES.T), branch)) == {"@t"}


def changed(values: Array) -> Array:
    found = values.copy()
    found[-1, -1] += 1
    return found


@pytest.mark.parametrize(
    ("turned", "picked"),
    [
        (changed(VALUES.T), GATHER),
        (VALUES.T.reshape(COLUMNS, ROWS)[::-1], GATHER),
        (VALUES.T, GATHER.replace("%e", "%g") + " " + WHOLE),
        (VALUES.T, WHOLE),
    ],
    ids=["one-element", "other-order", "also-whole", "whole"],
)
def test_both_stay(turned: Array, picked: str) -> None:
    assert left(module(held(VALUES), held(turned), picked)) == {"@t", "@w"}


def test_equal_bits_and_not_equal_numbers() -> None:
    zeros = np.zeros((ROWS, COLUMNS), np.float32)
    assert left(module(held(zeros), held(-zeros.T), GATHER)) == {"@t", "@w"}
    nans = np.full((ROWS, COLUMNS), np.nan, np.float32)
    assert left(module(held(nans), held(nans.T), GATHER)) == {"@t"}


def test_a_module_without_weights_is_the_same() -> None:
    m = parse_module('module "m" { sym m in 1..* graph @main(%x: f32[m] from "x") -> (%x as "y") { } }')
    assert tied(m, CONTEXT) is m
