"""What crosses between the host and a unit has one place, at the unit; what crosses otherwise is copied."""

from __future__ import annotations

import pytest

from smelt.core.dim import Dim
from smelt.core.ir.graph import Module
from smelt.core.ir.text import parse_module
from smelt.core.ir.verify import module_facts, verify
from smelt.core.machine import Machine
from smelt.core.passes.context import Context, Options
from smelt.core.passes.lowering.place import place
from smelt.core.plan.build import make_plan
from smelt.core.plan.link import link
from smelt.core.plan.program import (
    Address,
    CallLibrary,
    Copy,
    HostProgram,
    HostStep,
    Launch,
    ReadSymbol,
    Repeat,
    Write,
    walk_steps,
)

MACHINE = Machine("m", 256, 16)
UNITS = {"cpu": MACHINE, "gpu": MACHINE, "npu": MACHINE}
KERNELS = """
  sym n in 1..1000
  sym late in 0..1000
  kernel @f(d0: dim in 0..*, x: f32[d0, 2]) -> (y: f32[d0, 2]) {
    serial i in d0 { serial j in 2 { y[i, j] = x[i, j] + 1.0:f32 } }
  }
  kernel @g(d0: dim in 0..*, x: f32[d0, 2], z: f32[d0, 2]) -> (y: f32[d0, 2]) {
    serial i in d0 { serial j in 2 { y[i, j] = x[i, j] * z[i, j] } }
  }
  kernel @h(d0: dim in 0..*, x: f32[d0, 2]) -> (y: f32[d0, 2]) {
    serial i in d0 { serial j in 2 { y[i, j] = x[i, j] - 1.0:f32 } }
  }
  kernel @less(x: i64[]) -> (y: bool[]) { y[] = lt(x[], 3:i64) }
  kernel @whole(d0: dim in 0..*, x: f32[d0, 2]) -> (y: i64[]) { y[] = cast:i64(x[0, 0]) }
"""
CHAIN = """
  graph @main(%x: f32[n, 2]) -> (%e, %s) {
    %a = call_kernel(%x) {dims = [n], kernel = "f"} : f32[n, 2]
    %b = call_kernel(%a) {dims = [n], kernel = "h"} : f32[n, 2]
    %c = call_kernel(%a, %b) {dims = [n], kernel = "g"} : f32[n, 2]
    %d = call_kernel(%b) {dims = [n], kernel = "h"} : f32[n, 2]
    %e = call_kernel(%c, %d) {dims = [n], kernel = "g"} : f32[n, 2]
    %s = call_kernel(%e) {dims = [n], kernel = "h"} : f32[n, 2]
  }
"""
LOOP = """
  graph @main(%x: f32[n, 2], %k: i64[]) -> (%r) {
    %a = call_kernel(%x) {dims = [n], kernel = "f"} : f32[n, 2]
    %r = loop(%k, _, %a) : f32[n, 2]
      region @body(%i: i64[], %go: bool[], %u: f32[n, 2]) -> (%more, %p) {
        %more = call_kernel(%i) {dims = (), kernel = "less"} : bool[]
        %o = call_kernel(%u, %a) {dims = [n], kernel = "g"} : f32[n, 2]
        %m = call_kernel(%o) {dims = [n], kernel = "h"} : f32[n, 2]
        %p = call_kernel(%m) {dims = [n], kernel = "f"} : f32[n, 2]
      }
  }
"""
ARMS = """
  graph @main(%x: f32[n, 2], %q: bool[]) -> (%z) {
    %a = call_kernel(%x) {dims = [n], kernel = "f"} : f32[n, 2]
    %t = if(%q) : f32[n, 2]
      region @then() -> (%y) {
        %y = call_kernel(%a) {dims = [n], kernel = "h"} : f32[n, 2]
      }
      region @else() -> (%w) {
        %w = call_kernel(%a) {dims = [n], kernel = "f"} : f32[n, 2]
      }
    %z = call_kernel(%t) {dims = [n], kernel = "f"} : f32[n, 2]
  }
"""
LATE = """
  graph @main(%x: f32[n, 2], %v: f32[late, 2]) -> (%d) {
    %c = call_kernel(%v) {dims = [late], kernel = "h"} : f32[late, 2]
    %d = call_kernel(%c) {dims = [late], kernel = "f"} : f32[late, 2]
  }
"""


def planned(graph: str, *rules: tuple[str, str], unit: str = "gpu") -> tuple[Module, HostProgram]:
    """The module with units, and its program, whose steps name no place of another unit."""
    module = parse_module(f'module "m" {{{KERNELS}{graph}}}')
    module = module.with_main(module.main.with_(output_names=tuple(r[1:] for r in module.main.outputs)))
    placed = place(module, Context(MACHINE, Options(place=rules), units=UNITS, unit=unit))
    verify(placed, "lowered")
    program = make_plan(placed, module_facts(placed))
    check_sides(program)
    return placed, program


def check_sides(program: HostProgram) -> None:
    """A kernel of a unit gets places there; one of the CPU its own, and others as the host sees them."""
    bases = [(base, n) for base, count in (
        ("arena", len(program.peak)), ("input", len(program.inputs)), ("output", len(program.outputs)),
    ) for n in range(count)]  # fmt: skip
    homes = dict(zip(bases, zip(program.homes, program.seen, strict=True), strict=True))

    def side(a: Address) -> int:
        home, seen = homes.get((a.base, a.number), (a.number, False))
        assert not a.seen or (home and seen), f"{a} is seen by nobody else"
        return 0 if a.seen else home

    for s in walk_steps(program.run):
        match s:
            case Launch():
                unit = program.entries[s.entry].unit
                assert {side(a) for a in s.buffers} == {unit}, s
            case CallLibrary():
                assert {side(a) for a in s.buffers} == {0}, s
            case ReadSymbol() | Write():
                side(s.at)


def copies(program: HostProgram) -> list[str]:
    return copied(program.run)


def copied(steps: tuple[HostStep, ...]) -> list[str]:
    """Of each copy: whether it is handed over, from or to the host, or between what it is."""
    found = []
    for s in walk_steps(steps):
        if isinstance(s, Copy):
            same = (s.to.base, s.to.number, s.to.offset) == (s.source.base, s.source.number, s.source.offset)
            found.append(("down" if s.to.seen else "up") if same else f"{s.source.base} to {s.to.base}")
    return found


def test_both_sides_of_an_edge_are_one_place() -> None:
    """%a and %b cross once each, however many read them there; %e is an output that the host reads, too."""
    _, program = planned(CHAIN, ("h*", "cpu"))
    assert copies(program) == ["down", "up", "up", "down"]
    (peak,) = [p for s, p in zip(program.seen, program.peak, strict=False) if s]
    assert peak.evaluate({"n": 64}) == 2 * 512, "c lies over a and d over b, once both sides have read these"
    outputs = program.homes[len(program.peak) + 1 :], program.seen[len(program.peak) + 1 :]
    assert outputs == ((1, 0), (True, False)), "the unit's output is looked at where it is"


def test_an_input_and_an_output_of_the_host_stay_there() -> None:
    """The caller's bytes are at the host, where kernels read and write them; a unit has them once more."""
    _, program = planned(CHAIN, ("g*", "gpu"), ("*", "cpu"))
    homes = program.homes[len(program.peak) :]
    assert homes == (0, 1, 0) and program.inputs[0].name == "x"
    _, program = planned(CHAIN, ("f*", "cpu"), ("h*", "cpu"))
    (kind, *_) = copies(program)
    assert kind == "up"


def test_a_loop_hands_over_what_it_carries() -> None:
    """Nothing is copied in a round, but from one device to another; the state is written where it lies."""
    for rules in [("h*", "cpu")], [("f*", "cpu")], [("g*", "cpu")]:
        _, program = planned(LOOP, *rules)
        (loop,) = (s for s in program.run if isinstance(s, Repeat))
        assert set(copied(loop.body)) == {"up", "down"}


@pytest.mark.parametrize("rules", [[("f*", "cpu")], [("h*", "cpu")]])
def test_an_arm_that_crosses_writes_its_result_in_place(rules: list[tuple[str, str]]) -> None:
    _, program = planned(ARMS, *rules)
    assert [way for way in copies(program) if way not in ("up", "down")] == []


def test_two_devices_copy() -> None:
    _, program = planned(CHAIN, ("h*", "npu"))
    assert set(copies(program)) == {"arena to arena", "output to arena"} and not any(program.seen)


def test_of_two_devices_one_shares() -> None:
    """%a of the CPU is read by both: it has its place at the first, and is copied to the second."""
    _, program = planned(CHAIN, ("f*", "cpu"), ("h*", "npu"))
    found = copies(program)
    assert "up" in found and "arena to arena" in found


def test_entries_share_arenas_that_are_looked_at_alike() -> None:
    """One that the host looks at is no place for what it does not."""
    modules = [planned(graph, ("h*", "cpu"))[0] for graph in (CHAIN, ARMS)]
    linked = link([("x", [(name, m, ()) for name, m in zip("ab", modules, strict=True)])])
    for entry in linked.all_entries:
        own = [linked.homes[n] for n in entry.arenas]
        assert own == [*zip(entry.program.homes, entry.program.seen, strict=True)][: len(own)]
        assert len(set(entry.arenas)) == len(entry.arenas)


def test_bounds_hold_for_both_sides() -> None:
    _, program = planned(CHAIN, ("h*", "cpu"))
    known = [n for n, s in zip(program.most, program.seen, strict=True) if s]
    assert known and all(isinstance(n, int) for n in known)
    assert all(isinstance(p, Dim) for p in program.peak)


def test_late_sizes_cross() -> None:
    _, program = planned(LATE, ("h*", "cpu"))
    assert copies(program) == ["up"]
