"""The editor: a pass that changes nothing gives back what came, and a refused question leaves no trace."""

from __future__ import annotations

import pytest

from smelt.core.dtype import f32, u8
from smelt.core.ir.graph import Graph, Module, Node, Value
from smelt.core.passes.rewriting.editor import Editor, Workshop, edit_module
from smelt.core.passes.rewriting.rules import rewrite, rule
from tests.core.passes.build import Build


def region_module() -> Module:
    """An `if` whose regions compute on a value of the graph around them."""
    b = Build("f32[N]", "bool[]")
    x, c = b.inputs
    t = b.g.type_of(x)

    def region(name: str, op: str) -> Graph:
        out = Value(f"%{name}1", t)
        return Graph(name, (), (Node(op, (x,), (out,)),), (out.name,))

    out = Value("%picked", t)
    b.g.add(Node("if", (c,), (out,), regions=(region("then", "neg"), region("else", "relu"))))
    return b.done(out.name)


def test_a_pass_that_changes_nothing_gives_back_the_module() -> None:
    b = Build("f32[N]")
    for module in (b.done(b("exp", b("relu", b.inputs[0]))), region_module()):
        assert edit_module(module, lambda g: None) is module
        assert edit_module(module, Editor.sweep) is module


def test_a_change_in_a_region_changes_the_graphs_around_it_alone() -> None:
    before = region_module()

    @rule("neg", kind="exact", forms=())
    def _twice(g: Editor, n: Node) -> str:
        return g.emit("mul", (n.inputs[0], g.like(-1, n.inputs[0])))

    after = rewrite(before, [_twice])
    (old,), (new,) = before.main.nodes, after.main.nodes
    assert [n.op for n in new.regions[0].nodes] == ["mul"]
    assert new.regions[1] is old.regions[1]


def test_a_node_put_in_and_taken_out_is_a_change_of_names_only() -> None:
    """What is emitted and dropped again must not hide that the graph is as it was."""
    b = Build("f32[N]")
    module = b.done(b("relu", b.inputs[0]))

    def change(g: Editor) -> None:
        g.at(g.in_order()[0])
        g.emit("neg", (b.inputs[0],))
        g.remove(g.take_fresh()[0])

    assert edit_module(module, change).main.nodes == module.main.nodes


@pytest.mark.parametrize("ops", [{"relu"}, {"exp"}, {"loop"}, frozenset[str]()])
def test_modules_without_the_ops_are_not_opened(ops: set[str]) -> None:
    b = Build("f32[N]")
    module = b.done(b("relu", b.inputs[0]))
    opened: list[Editor] = []
    edit_module(module, opened.append, ops=ops)
    assert bool(opened) is ("relu" in ops)


def test_ops_inside_regions_count() -> None:
    opened: list[Editor] = []
    edit_module(region_module(), opened.append, ops={"neg"})
    assert opened


def test_a_question_leaves_nothing_behind() -> None:
    """Whether a move of floats is one of bytes: no answer of a type rule changes what is known."""
    b = Build("f32[N, 3]", "i64[2]")
    moved = b.g.maker(b("gather", *b.inputs, axis=0))
    summed = b.g.maker(b("reduce_sum", b.inputs[0], axes=(1,), keepdims=False))
    cast = b.g.maker(b("cast", b.inputs[0], to=f32))
    assert moved is not None and summed is not None and cast is not None
    before = b.g.engine.state()
    assert b.g.moved_alike(moved, u8)
    assert not b.g.moved_alike(summed, u8) and not b.g.moved_alike(cast, u8)
    assert not b.g.engine.asked_since(before)


def test_weights_that_nothing_uses_go_with_a_change_only() -> None:
    b = Build("f32[N]")
    b.weight([1.0])
    module = b.done(b("relu", b.inputs[0]))
    kept = Workshop(module).weights
    assert edit_module(module.with_(weights=kept), lambda g: None).weights == kept
