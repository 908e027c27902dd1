"""States that grow where they lie: when they get room, what a step then stores, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import decoder_models
import onnx
import pytest
from state_models import DECODER_STATE, decoder

from smelt.compiler import lower
from smelt.core.bundle import MAIN
from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.ir.in_place import copying_parts
from smelt.core.ir.kernel import Block, Loop, Stmt, Store, Tiles
from smelt.core.ir.text import parse_module
from smelt.core.ir.verify import module_facts, verify
from smelt.core.plan.program import Copy, Launch
from smelt.core.plan.room import check_rooms, with_room
from smelt.core.plan.state import StateUse
from smelt.request import Request
from smelt.stages import resumed

TEXT = """module "m" {
  sym B in 1..*
  sym P in 0..10
  sym N in 1..4
  graph @main(%x: f32[B, N, 3] from "x", %a: f32[B, P, 3] from "a") -> (%y as "y", %b as "b") {
    %b = concat(%a, %x) {axis = 1} : f32[B, P + N, 3]
    %y = neg(%b) : f32[B, P + N, 3]
  }
}"""
USE = StateUse("a", "a", "b")


def grown(text: str, **other: str) -> list[Module]:
    """The modules with room for the state."""
    modules = {"main": parse_module(text), **{n: parse_module(t) for n, t in other.items()}}
    facts = {n: module_facts(m) for n, m in modules.items()}
    return [*with_room(modules, dict.fromkeys(modules, (USE,)), facts).values()]


def ops(module: Module) -> list[str]:
    return [n.op for n in module.main.nodes]


def test_a_state_that_grows_has_room() -> None:
    (module,) = grown(TEXT)
    verify(module, "graph")
    assert ops(module) == ["room", "slice", "concat", "put_rows", "slice", "held", "neg"]
    assert [str(t) for t in module.output_types()] == ["f32[B, N + P, 3]"] * 2
    assert "f32[B, 14, 3]" in {str(n.output.type) for n in module.main.nodes if n.op == "put_rows"}
    check_rooms(module.main, [USE])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sym P in 0..10", "sym P in 0..*"),
        ("concat(%a, %x)", "concat(%x, %a)"),
        ('%b as "b"', '%y as "b"'),
    ],
    ids=["no bound", "rows in front", "something else"],
)
def test_others_are_left_alone(old: str, new: str) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new).replace('%y as "y"', '%b as "y"' if "%y" in new else '%y as "y"')
    (module,) = grown(text)
    assert module == parse_module(text)


def test_a_part_alone_is_left_alone() -> None:
    text = TEXT.replace("concat(%a, %x)", "concat(%a)").replace("P + N", "P")
    assert grown(text) == [parse_module(text)]


def test_entries_have_one_room() -> None:
    """As much as the one that wants most; none where one of them does something else with the state."""
    longer = TEXT.replace("0..10", "0..50")
    for module in grown(TEXT, other=longer):
        assert "f32[B, 54, 3]" in {str(n.output.type) for n in module.main.nodes}
    flipped = TEXT.replace("concat(%a, %x)", "concat(%x, %a)")
    assert "room" not in [op for m in grown(TEXT, other=flipped) for op in ops(m)]


FILLED = """module "m" {
  sym B in 1..*
  sym P in 0..10
  sym N in 1..4
  graph @main(%x: f32[B, 2, N, 3] from "x", %f: i64[B] from "f", %a: f32[B, 2, P, 3] from "a")
      -> (%y as "y", %b as "b") {
    %b = append_rows(%a, %x, %f) {length = dim P + N} : f32[B, 2, P + N, 3]
    %y = neg(%b) : f32[B, 2, P + N, 3]
  }
}"""


def test_a_cache_whose_fill_differs_by_batch_has_room() -> None:
    (module,) = grown(FILLED)
    verify(module, "graph")
    assert ops(module) == ["room", "put_rows_after", "slice", "held", "neg"]
    assert [str(t) for t in module.output_types()] == ["f32[B, 2, N + P, 3]"] * 2
    assert "f32[B, 2, 14, 3]" in {str(n.output.type) for n in module.main.nodes if n.op == "put_rows_after"}
    check_rooms(module.main, [USE])


@pytest.mark.parametrize(
    ("old", "new"),
    [("neg(%b)", "neg(%a)"), ('%y as "y"', '%a as "y"'), ("sym P in 0..10", "sym P in 0..*")],
    ids=["another reader", "returned", "no bound"],
)
def test_a_cache_that_others_read_is_left_alone(old: str, new: str) -> None:
    """They would see rows that the run has written over."""
    text = FILLED.replace(old, new)
    if new == "neg(%a)":
        text = text.replace("%y = neg(%a) : f32[B, 2, P + N, 3]", "%y = neg(%a) : f32[B, 2, P, 3]")
    assert grown(text) == [parse_module(text)]


def test_a_reader_of_what_is_written_over_is_refused() -> None:
    """Such as a text could name."""
    (module,) = grown(FILLED)
    *_, last = module.main.nodes
    graph = module.main.with_(nodes=(*module.main.nodes[:-1], last.with_(inputs=("%a.room",))))
    with pytest.raises(SmeltError, match="room for states that the compile does not have"):
        check_rooms(graph, [USE])


def test_entries_may_append_in_two_ways() -> None:
    """A prompt by Concat, a step by rows after each batch's fill."""
    whole = FILLED.replace("append_rows(%a, %x, %f) {length = dim P + N}", "concat(%a, %x) {axis = 2}")
    assert "concat" in whole
    one, two = grown(FILLED, other=whole)
    assert "put_rows_after" in ops(one) and "put_rows" in ops(two)


def test_room_without_its_state_is_refused() -> None:
    (module,) = grown(TEXT)
    for states in ([], [StateUse("a", "a", None)], [StateUse("a", None, "b")]):
        with pytest.raises(SmeltError, match="room for states that the compile does not have"):
            check_rooms(module.main, states)


# ---------------------------------------------------------------- what a step stores


def stored(body: Sequence[Stmt], buffer: str, known: Mapping[str, int]) -> int:
    """Elements that statements store to a buffer, guards aside."""
    count = 0
    for s in body:
        if isinstance(s, Store):
            count += s.buffer == buffer
        elif isinstance(s, Loop):
            rounds = range(s.extent.evaluate(known))
            count += sum(stored(s.body, buffer, {**known, s.var: k}) for k in rounds)
        else:
            assert isinstance(s, Block) and not s.let and not isinstance(s, Tiles), s
            count += stored(s.body, buffer, known)
    return count


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> Request:
    path = tmp_path_factory.mktemp("room") / "decoder.onnx"
    onnx.save(decoder(), path)
    return Request(str(path), dims={"past": (0, 500), "seq": (1, 8), "batch": (1, 4)}, state=DECODER_STATE)


def test_a_step_stores_its_own_rows(request_: Request) -> None:
    """As many, whatever the cache holds: 2 heads of 4 numbers per token, in each of the two states."""
    lowered = lower(request_)
    module, program = lowered.module, lowered.program
    names = [t.name for t in program.outputs]
    states = [names.index(s.output.name) for s in program.states if s.output is not None]
    assert all(s.in_place for s in program.states) and len(states) == 2
    assert not [s for s in program.run if isinstance(s, Copy) and s.to.base == "output"]
    for batch, past, seq in product((1, 3), (0, 7, 499), (1, 5)):
        sizes, count = {"batch": batch, "past": past, "seq": seq}, dict.fromkeys(states, 0)
        for s in (s for s in program.run if isinstance(s, Launch)):
            entry = program.entries[s.entry]
            kernel = module.kernels[entry.kernel]
            known = {p.name: d.evaluate(sizes) for p, d in zip(kernel.dims, s.dims, strict=True)}
            written = s.buffers[len(kernel.inputs) :]
            for b, at in zip(kernel.outputs, written, strict=False):
                if at.base == "output" and at.number in count:
                    count[at.number] += stored((kernel.body[entry.statement],), b.name, known)
        assert list(count.values()) == [batch * 2 * seq * 4] * 2


def test_copying_statements_are_known(request_: Request) -> None:
    module = lower(request_).module
    found = {name: copying_parts(k) for name, k in module.kernels.items()}
    assert {name: parts for name, parts in found.items() if parts} == {"put_rows": {0: (0, 0)}}


def test_a_dump_keeps_to_its_states(request_: Request, tmp_path: Path) -> None:
    """The text has the room; a compile of it without the state would read behind a caller's tensor."""
    (compilation,) = lower(request_).compilations
    path = tmp_path / "late.smelt"
    compilation.write(path)
    head, _, rest = path.read_text("utf-8").partition('"state": {')
    assert rest, "the head of a dump names its states"
    path.write_text(head + '"state": {' + rest[rest.index("}") :], "utf-8")
    request = Request(str(path))
    with pytest.raises(SmeltError, match="room for states that the compile does not have"):
        lower(request, begun={MAIN: resumed(request)})


# ---------------------------------------------------------------- rows after each batch's fill


@pytest.fixture(scope="module")
def grouped_request(tmp_path_factory: pytest.TempPathFactory) -> Request:
    path = tmp_path_factory.mktemp("room") / "grouped.onnx"
    onnx.save(decoder_models.decoder("grouped", 2), path)
    dims = {"past": (0, 56), "seq": (1, 8), "total": (1, 64), "batch": (1, 4)}
    return Request(str(path), dims=dims, state=decoder_models.STATE)


@pytest.mark.parametrize("opt", [0, 3])
def test_a_step_of_grouped_attention_stores_its_own_rows(grouped_request: Request, opt: int) -> None:
    """Of four caches of two groups of 16 numbers: the rows from each batch's fill on, nothing before."""
    made = lower(replace(grouped_request, opt=opt))
    module, program = made.module, made.program
    names = [t.name for t in program.outputs]
    states = [names.index(s.output.name) for s in program.states if s.output is not None]
    assert all(s.in_place and s.room == (2, 64) for s in program.states) and len(states) == 4
    assert not [s for s in program.run if isinstance(s, Copy) and s.to.base == "output"]
    for fills, past, total in (((7,), 7, 8), ((7, 4), 7, 9), ((0, 0, 0), 0, 5), ((55, 3), 56, 64)):
        sizes = {"batch": len(fills), "past": past, "seq": 1, "total": total}
        count = dict.fromkeys(states, 0)
        for s in (s for s in program.run if isinstance(s, Launch)):
            entry = program.entries[s.entry]
            kernel = module.kernels[entry.kernel]
            known = {p.name: d.evaluate(sizes) for p, d in zip(kernel.dims, s.dims, strict=True)}
            for b, at in zip(kernel.outputs, s.buffers[len(kernel.inputs) :], strict=False):
                if at.base == "output" and at.number in count:
                    body = (kernel.body[entry.statement],)
                    count[at.number] += sum(filled(body, b.name, known, n, k) for k, n in enumerate(fills))
        length = max(past, total)
        assert list(count.values()) == [sum(2 * 16 * (length - n) for n in fills)] * 4


def filled(body: Sequence[Stmt], buffer: str, known: Mapping[str, int], fill: int, batch: int) -> int:
    """As `stored`, where guards hold, of one batch (the outermost loop's round) and with its fill for the
    one number that the statements read."""
    count = 0
    for s in body:
        if isinstance(s, Loop):
            rounds = range(s.extent.evaluate(known))
            chosen = rounds if batch < 0 else [batch]
            count += sum(filled(s.body, buffer, {**known, s.var: k}, fill, -1) for k in chosen)
        elif all(g.low.evaluate(known) <= g.index.evaluate(known) < g.high.evaluate(known) for g in s.guard):
            if isinstance(s, Block):
                count += filled(s.body, buffer, {**known, **{n: fill for n, *_ in s.let}}, fill, batch)
            else:
                assert isinstance(s, Store), s
                count += s.buffer == buffer
    return count
