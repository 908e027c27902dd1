"""Placement by cost: what the model says is what the placed graph does, and where small graphs go."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from flow_models import flow_model
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.core.diag import SmeltError
from smelt.core.dim import value_at
from smelt.core.ir.graph import Graph, Module, Value
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.text import parse_module
from smelt.core.ir.units import CALLS
from smelt.core.ir.verify import verify
from smelt.core.machine import Figures, Machine
from smelt.core.ops import OPS
from smelt.core.passes.cleanup.dce import dce
from smelt.core.passes.context import Context, Options
from smelt.core.passes.lowering.costs import Choice, point_of
from smelt.core.passes.lowering.place import choice_of, explain_places, place
from smelt.core.passes.lowering.weigh import TICKS
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.system import System
from smelt.importer import import_model
from tests.core.passes.test_place import LIBRARY, READS, module

PLACE = [p.name for p in PIPELINE].index("place")
PLAIN = Machine("m", 256, 16)
CPU_FIGURES = Figures(operations=1e10, bandwidth=1e10, launch=1e-6)
AUTO = (("*", "auto"),)


def machine(figures: Figures) -> Machine:
    return replace(PLAIN, figures=figures)


def context(
    units: Mapping[str, Figures], *rules: tuple[str, str], unit: str = "gpu", **options: object
) -> Context:
    """Of a target with these units."""
    machines = {name: machine(f) for name, f in units.items()}
    own = Options(place=rules or AUTO, **options)  # type: ignore[arg-type]
    return Context(machines[unit], own, units=machines, unit=unit)


def of(ctx: Context, m: Module) -> Choice:
    found = choice_of(m, m.main, ctx)
    assert found is not None
    return found


FAST = {"cpu": CPU_FIGURES, "gpu": Figures(1e13, 1e12, 1e-6, link=1e11, copy=1e-6)}
FAR = {"cpu": CPU_FIGURES, "gpu": Figures(1e13, 1e12, 1e-6, link=1e7, copy=1e-3)}
SLOW = {"cpu": CPU_FIGURES, "gpu": Figures(1e8, 1e8, 1e-3)}


# ---------------------------------------------------------------- where small graphs go

KERNELS = """
  sym n in 1..*
  weight @w: f32[256, 256] = sha256 "abababababababababababababababababababababababababababababababab"
  kernel @light(d0: dim in 0..*, x: f32[d0, 256]) -> (y: f32[d0, 256]) {
    serial i in d0 { serial j in 256 { y[i, j] = x[i, j] + 1.0:f32 } }
  }
  kernel @heavy(d0: dim in 0..*, x: f32[d0, 256], w: f32[256, 256]) -> (y: f32[d0, 256]) {
    serial i in d0 { serial j in 256 { y[i, j] = sum k in 256 { x[i, k] * w[k, j] } } }
  }
"""
MIDDLE = """
  graph @main(%x: f32[n, 256]) -> (%e) {
    %a = call_kernel(%x) {dims = [n], kernel = "light"} : f32[n, 256] at "first"
    %b = call_kernel(%a, @w) {dims = [n], kernel = "heavy"} : f32[n, 256] at "product"
    %v = reshape(%b) {shape = [n*256]} : f32[256*n]
    %u = reshape(%v) {shape = [n, 256]} : f32[n, 256]
    %c = call_kernel(%u, @w) {dims = [n], kernel = "heavy"} : f32[n, 256]
    %e = call_kernel(%c) {dims = [n], kernel = "light"} : f32[n, 256] at "last"
  }
"""
ROUNDS = """
  graph @main(%x: f32[n, 256], %k: i64[]) -> (%r) {
    %a = call_kernel(%x) {dims = [n], kernel = "light"} : f32[n, 256]
    %r = loop(%k, _, %a) {trips = dim TRIPS} : f32[n, 256]
      region @body(%i: i64[], %go: bool[], %u: f32[n, 256]) -> (%go, %p) {
        %o = call_kernel(%u) {dims = [n], kernel = "light"} : f32[n, 256]
        %p = call_kernel(%o) {dims = [n], kernel = "light"} : f32[n, 256]
      }
  }
"""


def weighty(graph: str) -> Module:
    made = parse_module(f'module "m" {{{KERNELS}{graph}}}')
    verify(made, "lowered")
    return made


def run_at(m: Module) -> list[str]:
    """Each call with its unit, and each transfer, in order, the regions of a node after it."""
    shown = []
    for n in m.main.walk():
        if n.op in CALLS:
            shown.append(f"{n.outputs[0].name} on {n.unit}")
        elif n.op == "transfer":
            shown.append(f"{n.inputs[0]} -> {n.unit}")
    return shown


def placed(m: Module, ctx: Context) -> Module:
    after = place(m, ctx)
    verify(after, "lowered")
    return after


def test_near_and_fast_it_takes_all() -> None:
    after = placed(weighty(MIDDLE), context(FAST))
    assert run_at(after) == ["%a on gpu", "%b on gpu", "%c on gpu", "%e on gpu"]
    assert after.main.inputs[0].unit == "gpu"


def test_a_slow_unit_gets_nothing() -> None:
    """Even though nothing is copied there, and all kernels would be there without the rule."""
    after = placed(weighty(MIDDLE), context(SLOW))
    assert run_at(after) == ["%a on cpu", "%b on cpu", "%c on cpu", "%e on cpu"]


def test_far_away_it_gets_nothing() -> None:
    after = placed(weighty(MIDDLE), context(FAR))
    assert run_at(after) == ["%a on cpu", "%b on cpu", "%c on cpu", "%e on cpu"]


MIDDLING = {"cpu": CPU_FIGURES, "gpu": Figures(1e12, 1e9, 1e-6, link=1e9, copy=1e-6)}
"""A unit whose memory is slow and far, but which computes fast."""


def test_only_the_heavy_middle_goes_over() -> None:
    """At 224 rows; at one, no copy pays. The program is right at all sizes, whatever it was weighed at."""
    before = weighty(MIDDLE)
    over = placed(before, context(MIDDLING))
    assert run_at(over) == ["%a on cpu", "%a -> gpu", "%b on gpu", "%c on gpu", "%c -> cpu", "%e on cpu"]
    few = placed(before, context(MIDDLING, ("*", "auto@n=1;gpu.copy=1e-3")))
    assert run_at(few) == ["%a on cpu", "%b on cpu", "%c on cpu", "%e on cpu"]


def test_the_reasons(golden: Callable[[str, str], None]) -> None:
    """For people: the whole at these sizes and on each unit alone, then each kernel."""
    m = weighty(MIDDLE)
    told = [explain_places(m, context(units)) for units in (FAST, SLOW, MIDDLING)]
    rules = (("product", "cpu"), *AUTO)
    told.append(explain_places(m, context(MIDDLING, *rules)))
    light = '%h = call_kernel(%u) {dims = [n], kernel = "light"} : f32[n, 256]'
    between = weighty(MIDDLE.replace("%c = call_kernel(%u, @w)", f"{light}\n%c = call_kernel(%h, @w)"))
    told.append(explain_places(between, context({**FAST, "gpu": Figures(1e12, 8e9, 1e-6, 1e9, 1e-6)})))
    golden("text/places.txt", "\n".join("\n".join((*lines, "")) for lines in told))
    assert explain_places(m, context(MIDDLING, ("*", "cpu"))) == ()


def test_what_a_rule_says_stays() -> None:
    """%b at the CPU: with it all else, but for what pays without."""
    after = placed(weighty(MIDDLE), context(FAST, ("product", "cpu"), *AUTO))
    assert "%b on cpu" in run_at(after) and "%c on gpu" in run_at(after)


def test_what_a_loop_carries_does_not_cross_each_round() -> None:
    """A round takes a copy either way, where one of its kernels is at the other unit: both go, or none."""
    fixed = (("light", "auto"),)
    for trips, unit in ((1, "cpu"), (10_000, "gpu")):
        units = {**FAST, "gpu": replace(FAST["gpu"], link=1e9, copy=1e-4)}
        after = placed(weighty(ROUNDS.replace("TRIPS", str(trips))), context(units, *fixed))
        (loop,) = (n for n in after.main.nodes if n.op == "loop")
        assert {n.unit for n in loop.regions[0].nodes} == {unit} and loop.unit == unit
        assert [n.op for n in loop.regions[0].nodes] == ["call_kernel"] * 2


def test_how_often_a_loop_runs() -> None:
    """By its attribute; by what it stacks; by a weight; else as often as a size is large."""
    stacked = ROUNDS.replace("{trips = dim TRIPS} : f32[n, 256]", ": f32[n, 256], f32[7, n, 256]")
    stacked = stacked.replace("%r =", "%r, %rs =").replace("(%go, %p) {", "(%go, %p, %p) {")
    constant = "weight @k: i64[] = [9]\n" + ROUNDS.replace("loop(%k,", "loop(@k,")
    unknown = ROUNDS.replace(" {trips = dim TRIPS}", "")
    forms = {ROUNDS.replace("TRIPS", "3*n"): 15, stacked: 7, constant.replace(" {trips = dim TRIPS}", ""): 9,
             unknown: 224}  # fmt: skip
    for graph, rounds in forms.items():
        found = of(context(FAST, ("*", "auto@n=5")), weighty(graph)).weighed
        assert sorted(set(found.rounds.values())) == [1, rounds]


def test_a_state_stays_where_it_is() -> None:
    """As state %x is at the device from the run before; fed and returned, it would cross twice."""
    graph = """
  graph @main(%x: f32[n, 256]) -> (%b as "next") {
    %b = call_kernel(%x) {dims = [n], kernel = "light"} : f32[n, 256]
  }
"""
    fed = placed(weighty(graph), context(MIDDLING | {"gpu": replace(FAST["gpu"], copy=1e-3)}))
    assert run_at(fed) == ["%b on cpu"] and fed.main.inputs[0].unit == "cpu"
    units = {**FAST, "gpu": replace(FAST["gpu"], copy=1e-3)}
    kept = placed(weighty(graph), context(units, states=(("x", "next"),)))
    assert run_at(kept) == ["%b on gpu"] and kept.main.inputs[0].unit == "gpu"


def test_a_library_is_the_hosts_and_so_are_sizes() -> None:
    m = module(LIBRARY)
    found = of(context(FAST), m)
    assert {u for ref, u in found.units.items() if ref == "%b"} == {"cpu"}
    after = placed(module(READS), context({"cpu": CPU_FIGURES, "gpu": Figures(1e13, 1e12, 0.0)}))
    calls = {n.output.name: n.unit for n in after.main.walk() if n.op == "call_kernel"}
    assert calls["%m.host"] == "cpu" and calls["%m"] == calls["%b"] == "gpu"


# ---------------------------------------------------------------- the model and the graph


class Drawn:
    """A lowered graph as text: calls, views, loops and branches in each other, over values of one shape."""

    def __init__(self, draw: st.DrawFn, branches: bool) -> None:
        self.draw, self.branches = draw, branches
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def nodes(self, seen: list[str], depth: int) -> str:
        """Some nodes; the last value that they make is the last of `seen`."""
        lines = []
        for _ in range(self.draw(st.integers(1, 4))):
            kinds = ["f", "g", "view", *(("loop", "if") if self.branches else ("loop",)) * (depth > 0)]
            kind, name = self.draw(st.sampled_from(kinds)), self.fresh()
            x, z = (self.draw(st.sampled_from(seen)) for _ in range(2))
            if kind == "loop":
                lines.append(self.loop(name, x, seen, depth - 1))
            elif kind == "if":
                arms = "\n".join(self.region(f"@arm{k}()", seen, depth - 1) for k in range(2))
                lines.append(f"{name} = if(%q) : f32[n, 2]\n{arms}")
            elif kind == "view":
                lines.append(f"{name} = reshape({x}) {{shape = [n, 2]}} : f32[n, 2]")
            else:
                given = x if kind == "f" else f"{x}, {z}"
                lines.append(f'{name} = call_kernel({given}) {{dims = [n], kernel = "{kind}"}} : f32[n, 2]')
            seen.append(name)
        return "\n".join(lines)

    def loop(self, name: str, start: str, seen: list[str], depth: int) -> str:
        i, go, u = (self.fresh() for _ in range(3))
        trips = self.draw(st.integers(1, 5))
        body = self.region(f"@body({i}: i64[], {go}: bool[], {u}: f32[n, 2])", [*seen, u], depth, f"{go}, ")
        return f"{name} = loop(_, _, {start}) {{trips = dim {trips}}} : f32[n, 2]\n{body}"

    def region(self, head: str, seen: list[str], depth: int, first: str = "") -> str:
        inner = list(seen)
        nodes = self.nodes(inner, depth)
        result = self.draw(st.sampled_from([inner[-1], inner[-1], *seen]))
        return f"region {head} -> ({first}{result}) {{\n{nodes}\n}}"


@st.composite
def graphs(draw: st.DrawFn, branches: bool) -> str:
    seen = ["%x", "%z"]
    nodes = Drawn(draw, branches).nodes(seen, 2)
    nodes += f'\n%last = call_kernel({seen[-1]}) {{dims = [n], kernel = "f"}} : f32[n, 2]'
    seen.append("%last")
    outputs = draw(st.lists(st.sampled_from(seen), max_size=2, unique=True))
    outputs = list(dict.fromkeys([seen[-1], *outputs]))
    return (
        f"graph @main(%x: f32[n, 2], %z: f32[n, 2], %q: bool[]) -> ({', '.join(outputs)}) {{\n{nodes}\n}}"
    )


RATES = st.floats(1e3, 1e12)
TIMES = st.floats(0, 1e-3)


@st.composite
def systems(draw: st.DrawFn, most: int = 3) -> dict[str, Figures]:
    """The CPU and one or two devices, some of which share its memory."""
    found = {"cpu": Figures(draw(RATES), draw(RATES), draw(TIMES))}
    for name in ("gpu", "npu")[: draw(st.integers(1, most - 1))]:
        link, copy = draw(st.one_of(st.just((math.inf, 0.0)), st.tuples(RATES, TIMES)))
        found[name] = Figures(draw(RATES), draw(RATES), draw(TIMES), link, copy)
    return found


@settings(max_examples=150, deadline=None)
@given(st.booleans().flatmap(lambda b: st.tuples(st.just(b), graphs(b))), systems(), st.integers(0, 50))
def test_the_model_counts_what_the_graph_does(
    drawn: tuple[bool, str], units: dict[str, Figures], size: int
) -> None:
    """And no unit alone is better, nor does the program compute anything else. Of branches the model knows
    less: it counts a copy once that their arms make each for itself, or that only one of them makes."""
    branches, graph = drawn
    ctx = context(units, ("*", f"auto@n={max(size, 1)}"))
    before = dce(module(graph), ctx)
    choice, after = of(ctx, before), placed(before, ctx)
    costs = choice.weighed.costs
    cost = costs.cost(choice.assignment)
    assert cost <= min(costs.cost(costs.alone(k)) for k in range(len(units)))
    if not branches:
        assert spent(after, System(ctx.units), choice) == pytest.approx(cost / TICKS, rel=1e-6, abs=1e-9)
    x, z = (np.arange(6, dtype=np.float32).reshape(3, 2) / k for k in (7, 9))
    for q in (True, False) if branches else (True,):
        feeds = {"x": x, "z": z, "q": np.array(q)}
        for got, want in zip(run_module(after, feeds, OPS), run_module(before, feeds, OPS), strict=True):
            np.testing.assert_array_equal(got, want)


@settings(max_examples=40, deadline=None)
@given(graphs(False), systems())
def test_what_a_reason_says_is_what_moving_one_kernel_costs(graph: str, units: dict[str, Figures]) -> None:
    ctx = context(units)
    choice = of(ctx, dce(module(graph), ctx))
    costs, told = choice.weighed.costs, choice.reasons()[1:]
    for (thing, _), line in zip(choice.weighed.calls.items(), told, strict=True):
        if (found := re.search(r"; alone on (\w+) it costs (\S+) (ms|us) more", line)) is not None:
            unit = choice.weighed.units.index(found[1])
            moved = (*choice.assignment[:thing], unit, *choice.assignment[thing + 1 :])
            more = (costs.cost(moved) - costs.cost(choice.assignment)) / TICKS
            assert float(found[2]) * {"ms": 1e-3, "us": 1e-6}[found[3]] == pytest.approx(more, rel=6e-3)
            assert more >= 0


def spent(after: Module, system: System, choice: Choice) -> float:
    """What a placed graph does by these figures, in seconds: its launches and transfers, how its inputs come
    to it and its outputs go, each as often as it happens. The graph has no branches."""
    weighed, types = choice.weighed, {v.name: v for v in values(after.main)}
    own = {n.outputs[0].name: weighed.costs.own[k] for k, n in weighed.calls.items()}

    def copied(ref: str, source: str, target: str) -> float:
        size = math.prod(value_at(d, choice.point) for d in types[ref].type.shape)
        return system.copy_seconds(source, target, size * types[ref].type.dtype.bytes)

    def walk(g: Graph, rounds: float) -> float:
        total = 0.0
        for n in g.nodes:
            if n.op in CALLS:
                cost = own[n.outputs[0].name][weighed.units.index(n.unit)]
                assert cost is not None
                total += cost / TICKS
            elif n.op == "transfer":
                total += rounds * copied(n.inputs[0], types[n.inputs[0]].unit, n.unit)
            total += sum(walk(r, rounds * n.attr("trips").const) for r in n.regions)
        return total

    fed = sum(copied(v.name, "cpu", v.unit) for v in after.main.inputs)
    given = sum(copied(ref, types[ref].unit, "cpu") for ref in after.main.outputs)
    return walk(after.main, 1.0) + fed + given


def values(g: Graph) -> Iterator[Value]:
    yield from g.inputs
    for n in g.walk():
        yield from n.outputs
        yield from (v for r in n.regions for v in r.inputs)


@pytest.mark.parametrize("seed", range(6))
def test_models_with_conditions_that_floats_decide(seed: int, tmp_path: Path) -> None:
    """Whatever is read in the middle of a run: the placed graph is valid, and no unit alone is better."""
    onnx.save(flow_model(seed), str(tmp_path / "m.onnx"))
    before = import_model(tmp_path / "m.onnx")
    plain = Context(PLAIN)
    lowered = run_pipeline(before, PIPELINE[:PLACE], plain)
    for units in (FAST, FAR, MIDDLING):
        ctx = context(units)
        choice = of(ctx, lowered)
        costs = choice.weighed.costs
        placed(lowered, ctx)
        assert costs.cost(choice.assignment) <= min(costs.cost(costs.alone(k)) for k in range(2))


# ---------------------------------------------------------------- what a rule may say


def refused(*rules: tuple[str, str], units: Mapping[str, Figures] = FAST) -> SmeltError:
    with pytest.raises(SmeltError) as e:
        place(weighty(MIDDLE), context(units, *rules))
    return e.value


def test_sizes_that_there_are_not() -> None:
    assert "there is no dim 'm'" in refused(("*", "auto@m=3")).message
    assert "there are n" in str(refused(("*", "auto@m=3")).hint)
    assert "the dim is in 1.." in refused(("*", "auto@n=0")).message


@pytest.mark.parametrize("said", ["n", "n=x", "n=-1", "=3", "gpu.speed=3", "n=99999999999999999999", "n=²"])
def test_what_cannot_be_read(said: str) -> None:
    e = refused(("*", f"auto@{said}"))
    assert f"cannot read '{said}'" in e.message and "gpu" in str(e.hint)


NO_FIGURES = ("gpu.link=0", "gpu.link=-1", "gpu.copy=-1", "gpu.copy=inf", "gpu.launch=nan",
              "cpu.operations=x", "cpu.bandwidth=")  # fmt: skip


@pytest.mark.parametrize("said", NO_FIGURES)
def test_figures_that_are_none(said: str) -> None:
    assert f"'{said}' is no such figure" in refused(("*", f"auto@{said}")).message


def test_a_unit_that_nobody_has_measured() -> None:
    bare = {"cpu": machine(CPU_FIGURES), "gpu": PLAIN}
    given = "gpu.operations=1e9;gpu.bandwidth=1e9;gpu.launch=0;gpu.link=inf"
    every = "gpu.operations, gpu.bandwidth, gpu.launch, gpu.link, gpu.copy"
    for said, missing in (("auto", every), (f"auto@{given}", "gpu.copy")):
        with pytest.raises(SmeltError, match=f"nobody has measured 'gpu', .*missing: {missing};"):
            place(weighty(MIDDLE), Context(PLAIN, Options(place=(("*", said),)), units=bare, unit="gpu"))
    whole = Options(place=(("product", "auto@gpu.copy=0"), ("*", f"auto@{given}")))
    assert place(weighty(MIDDLE), Context(PLAIN, whole, units=bare, unit="gpu")).main.nodes
    hand = Options(place=(("*", "gpu"),))  # nobody asks
    assert place(weighty(MIDDLE), Context(PLAIN, hand, units=bare, unit="gpu")).main.nodes


def test_one_unit_is_no_choice() -> None:
    ctx = Context(PLAIN, Options(place=AUTO), units={"cpu": PLAIN}, unit="cpu")
    assert {n.unit for n in place(weighty(MIDDLE), ctx).main.nodes} == {"cpu"}
    assert explain_places(weighty(MIDDLE), ctx) == ()


def test_the_first_rule_settles_a_size() -> None:
    m = weighty(MIDDLE)
    assert of(context(FAST, ("heavy", "auto@n=3"), ("*", "auto@n=4")), m).point == {"n": 3}


def test_sizes_that_follow_from_others() -> None:
    m = parse_module(
        'module "m" { sym n in 0..* sym half in 0..* graph @main(%x: f32[n]) -> (%x) '
        '{ bind() {symbol = "half", value = dim n//2} } }'
    )
    assert point_of(m, {"n": 9}) == {"n": 9, "half": 4}
    assert point_of(m, {}) == {"n": 224, "half": 112}
    m = module(READS.replace("high = dim 1000}\n    %a", "high = dim n}\n    %a"))
    assert point_of(m, {})["at"] == 224 and point_of(m, {"n": 3})["at"] == 3, "a run refuses more"
