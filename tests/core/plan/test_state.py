"""Which outputs replace inputs: the pairs come last on both sides; without any, nothing is looked at."""

from __future__ import annotations

import pytest

from smelt.core.diag import SmeltError
from smelt.core.dim import Facts
from smelt.core.ir.graph import Module
from smelt.core.ir.text import parse_module
from smelt.core.plan.state import with_state

TEXT = """module "m" {
  sym N in 0..*
  weight @w: f32[2] = [1, 2]
  graph @main(%a: f32[2] from "a", %x: f32[N] from "x") -> (@w as "b", %y as "y") {
    %y = relu(%x) : f32[N]
  }
}"""


def test_pairs_come_last() -> None:
    module, uses = with_state(parse_module(TEXT), {"a": "b"}, Facts())
    assert [(u.input, u.output) for u in uses] == [("a", "b")]
    assert [v.name for v in module.main.inputs] == ["%x", "%a"]
    assert module.main.output_names == ("y", "b") and module.main.outputs == ("%y", "@w")
    assert [str(t) for t in module.output_types()] == ["f32[N]", "f32[2]"]


def test_types_must_fit() -> None:
    with pytest.raises(SmeltError, match="axis 0 has an extent of 2, the input's of"):
        with_state(parse_module(TEXT.replace("f32[N]", "f32[3]")), {"x": "b"}, Facts())


def test_without_state_nothing_is_looked_at() -> None:
    empty = Module("no graph")
    assert with_state(empty, {}, Facts()) == (empty, ())
