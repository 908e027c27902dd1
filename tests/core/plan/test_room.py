"""States that grow where they lie: when they get room, what a step then stores, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import onnx
import pytest
from state_models import DECODER_STATE, decoder

from smelt.compiler import lower
from smelt.core.bundle import MAIN
from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module
from smelt.core.ir.kernel import Block, Loop, Stmt, Store, Tiles
from smelt.core.ir.text import parse_module
from smelt.core.ir.verify import module_facts, verify
from smelt.core.plan.lifetime import copying_parts
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
