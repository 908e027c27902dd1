"""place: a unit for every value, a transfer for each edge that crosses; and what the verifier refuses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module, Node
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.text import parse_module, print_module
from smelt.core.ir.verify import verify, verify_text
from smelt.core.machine import Machine
from smelt.core.ops import OPS
from smelt.core.passes.context import Context, Options
from smelt.core.passes.lowering.fuse import fuse
from smelt.core.passes.lowering.lower import lower
from smelt.core.passes.lowering.place import explain_places, idle_reporter, place
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE

MACHINE = Machine("m", 256, 16)
UNITS = {"cpu": MACHINE, "gpu": MACHINE, "npu": MACHINE}
KERNELS = """
  sym n in 1..*
  sym at in 0..1000
  sym late in 0..1000
  sym inner in 0..1000
  weight @w: f32[1, 2] = [1, 2]
  kernel @f(d0: dim in 0..*, x: f32[d0, 2]) -> (y: f32[d0, 2]) {
    serial i in d0 { serial j in 2 { y[i, j] = x[i, j] + 1.0:f32 } }
  }
  kernel @g(d0: dim in 0..*, x: f32[d0, 2], z: f32[d0, 2]) -> (y: f32[d0, 2]) {
    serial i in d0 { serial j in 2 { y[i, j] = x[i, j] * z[i, j] } }
  }
  kernel @twice(x: i64[]) -> (y: i64[]) { y[] = x[] + x[] }
  kernel @not(x: bool[]) -> (y: bool[]) { y[] = not(x[]) }
  kernel @shift(d0: dim in 0..*, x: f32[d0, 2], k: i64[]) -> (y: f32[d0, 2]) {
    serial i in d0 { serial j in 2 { y[i, j] = x[i, j] + cast:f32(k[]) } }
  }
  kernel @whole(d0: dim in 0..*, x: f32[d0, 2]) -> (y: i64[]) { y[] = cast:i64(x[0, 0]) }
  kernel @less(x: i64[]) -> (y: bool[]) { y[] = lt(x[], 3:i64) }
"""
CHAIN = """
  graph @main(%x: f32[n, 2]) -> (%d, %e) {
    %a = call_kernel(%x) {dims = [n], kernel = "f"} : f32[n, 2]
    %v = reshape(%a) {shape = [2, n]} : f32[2, n]
    %b = call_kernel(%v, %x) {dims = [n], kernel = "g"} : f32[n, 2]
    %c = call_kernel(%b, %v) {dims = [n], kernel = "g"} : f32[n, 2]
    %d = call_kernel(%c) {dims = [n], kernel = "f"} : f32[n, 2]
    %e = call_kernel(%v) {dims = [n], kernel = "f"} : f32[n, 2]
  }
"""
FLOW = """
  graph @main(%x: f32[n, 2], %k: i64[], %q: bool[]) -> (%r, %t) {
    %a = call_kernel(%x) {dims = [n], kernel = "f"} : f32[n, 2]
    %s = call_kernel(%a) {dims = [n], kernel = "f"} : f32[n, 2]
    %r = loop(%k, _, %s) : f32[n, 2]
      region @body(%i: i64[], %go: bool[], %u: f32[n, 2]) -> (%more, %p) {
        %more = call_kernel(%i) {dims = (), kernel = "less"} : bool[]
        %o = call_kernel(%u, %a) {dims = [n], kernel = "g"} : f32[n, 2]
        %p = call_kernel(%o) {dims = [n], kernel = "f"} : f32[n, 2]
      }
    %t = if(%q) : f32[n, 2]
      region @then() -> (%y) {
        %y = call_kernel(%r, %a) {dims = [n], kernel = "g"} : f32[n, 2]
      }
      region @else() -> (%a) {
      }
  }
"""


ARMS = """
  graph @main(%x: f32[n, 2], %k: i64[], %q: bool[]) -> (%r) {
    %a = call_kernel(%x) {dims = [n], kernel = "f"} : f32[n, 2]
    %r = loop(%k, _, %x) : f32[n, 2]
      region @body(%i: i64[], %go: bool[], %u: f32[n, 2]) -> (%more, %p) {
        %more = call_kernel(%i) {dims = (), kernel = "less"} : bool[]
        %p = if(%q) : f32[n, 2]
          region @then() -> (%y) {
            %o = call_kernel(%u, %a) {dims = [n], kernel = "g"} : f32[n, 2]
            %y = call_kernel(%o) {dims = [n], kernel = "f"} : f32[n, 2]
          }
          region @else() -> (%u) {
          }
      }
  }
"""
SHARED = """
  graph @main(%x: f32[n, 2]) -> (%a, %b) {
    %a = call_kernel(%x) {dims = [n], kernel = "f"} : f32[n, 2]
    %b = call_kernel(%x, %x) {dims = [n], kernel = "g"} : f32[n, 2]
  }
"""
READS = """
  graph @main(%x: f32[n, 2], %k: i64[], %q: bool[]) -> (%a, %t, %u) {
    %m = call_kernel(%k) {dims = (), kernel = "twice"} : i64[]
    %s = reshape(%m) {shape = [1]} : i64[1]
    bind(%s) {symbol = "at", index = 0, low = dim 0, high = dim 1000}
    %a = call_kernel(%x, %m) {dims = [n], kernel = "shift"} : f32[n, 2]
    %b = call_kernel(%a) {dims = [n], kernel = "whole"} : i64[]
    bind(%b) {symbol = "late", index = 0, low = dim 0, high = dim 1000}
    %t = if(%q) : f32[n, 2]
      region @then() -> (%y) {
        bind(%m) {symbol = "inner", index = 0, low = dim 0, high = dim 1000}
        %y = call_kernel(%a) {dims = [n], kernel = "f"} : f32[n, 2]
      }
      region @else() -> (%a) {
      }
    %u = call_kernel(%q) {dims = (), kernel = "not"} : bool[]
  }
"""
LIBRARY = """
  library "solve" adapter "solve_it" files "libsolve.so";
  graph @main(%x: f32[n, 2]) -> (%c) {
    %a = call_kernel(%x) {dims = [n], kernel = "f"} : f32[n, 2]
    %b = call_library(%a) {dims = [n], library = "solve"} : f32[n, 2]
    %c = call_kernel(%b) {dims = [n], kernel = "f"} : f32[n, 2]
  }
"""


def module(graph: str) -> Module:
    return parse_module(f'module "m" {{{KERNELS}{graph}}}')


def placed(graph: str, *rules: tuple[str, str], unit: str = "cpu") -> Module:
    """After the pass, which must keep what the module computes and says."""
    before = module(graph)
    verify(before, "lowered")
    after = place(before, Context(MACHINE, Options(place=rules), units=UNITS, unit=unit))
    verify(after, "lowered")
    verify_text(after)
    given = {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "k": np.array(5), "q": np.array(True)}
    for q in (True, False):
        feeds = {**{v.name[1:]: given[v.name[1:]] for v in before.main.inputs}, "q": np.array(q)}
        for got, want in zip(run_module(after, feeds, OPS), run_module(before, feeds, OPS), strict=True):
            np.testing.assert_array_equal(got, want)
    return after


def moves(m: Module) -> list[str]:
    return shown(m.main.walk())


def shown(nodes: Iterable[Node]) -> list[str]:
    return [f"{n.inputs[0]} -> {n.unit}" for n in nodes if n.op == "transfer"]


def test_one_unit_moves_nothing() -> None:
    for graph in (CHAIN, FLOW):
        after = placed(graph, unit="gpu")
        assert moves(after) == []
        assert {n.unit for n in after.main.walk() if n.op == "call_kernel"} == {"gpu"}
    after = placed(FLOW, unit="gpu")
    assert {v.name: v.unit for v in after.main.inputs} == {"%x": "gpu", "%k": "cpu", "%q": "cpu"}


def test_what_the_host_reads_sets_out_where_it_is_made() -> None:
    """Kernels of the host between there and its reader do not wait for it."""
    after = placed(CHAIN, ("g*", "cpu"), unit="gpu")
    nodes = list(after.main.nodes)
    sent = [k for k, n in enumerate(nodes) if n.op == "transfer" and n.unit == "cpu"]
    assert sent and all(nodes[k].inputs[0] in {v.name for v in nodes[k - 1].outputs} for k in sent)


def test_an_edge_crosses_once() -> None:
    """%v is read by three kernels at the other unit, through a view: the value moves, not the view."""
    after = placed(CHAIN, ("g", "gpu"), ("*", "cpu"))
    assert moves(after) == ["%x -> gpu", "%a -> gpu", "%c -> cpu"]
    views = [n for n in after.main.nodes if n.op == "reshape"]
    assert [(n.inputs[0], n.unit) for n in views] == [("%a", "cpu"), ("%a.gpu", "gpu")]


def test_three_units() -> None:
    after = placed(CHAIN, ("g", "gpu"), unit="npu")
    assert moves(after) == ["%x -> npu", "%x -> gpu", "%a -> gpu", "%c -> npu"]


def test_the_first_rule_that_fits() -> None:
    assert moves(placed(CHAIN, ("[fg]", "gpu"), ("f", "cpu"))) == []


HELD = CHAIN.replace('kernel = "g"}', 'holds = ("early", "late"), kernel = "g"}', 1)
"""A kernel that does the work of two nodes and is called after neither."""


def test_a_node_within_a_kernel_places_the_kernel_that_holds_it() -> None:
    after = placed(HELD, ("late", "gpu"))
    assert [n.unit for n in after.main.nodes if n.attr("kernel") == "g"] == ["gpu", "cpu"]
    assert all("holds" not in n.attrs for n in after.main.nodes)
    both = placed(HELD, ("late", "gpu"), ("early", "gpu"), ("*", "npu"))
    assert [n.unit for n in both.main.nodes if n.attr("kernel") == "g"] == ["gpu", "npu"]
    # a kernel that is called after a node is meant alone
    named = HELD.replace('kernel = "f"} : f32[n, 2]\n    %e', 'kernel = "f"} : f32[n, 2] at "late"\n    %e')
    assert named != HELD
    after = placed(named, ("late", "gpu"))
    assert [n.output.name for n in after.main.nodes if n.unit == "gpu"] == ["%c.gpu", "%d"]


def test_names_of_one_kernel_that_disagree() -> None:
    with pytest.raises(SmeltError, match="'early=cpu' and 'late=gpu' disagree: kernel 'g' does the work"):
        placed(HELD, ("early", "cpu"), ("late", "gpu"))
    with pytest.raises(SmeltError, match=r"near to it are .*'late'"):
        placed(HELD, ("later", "gpu"))


def test_op_types_place_the_kernels_that_do_work_of_them() -> None:
    op_types = {"Late": ["late", "gone"], "Early": ["early"], "f": ["early"], "Folded": ["gone"]}

    def units(*rules: tuple[str, str]) -> list[str]:
        options = Options(place=rules, op_types=op_types)
        after = place(module(HELD), Context(MACHINE, options, units=UNITS, unit="cpu"))
        return [n.unit for n in after.main.nodes if n.op == "call_kernel"]

    plain, held = units(), units(("late", "gpu"))
    assert (set(plain), held.count("gpu")) == ({"cpu"}, 1)
    for pattern in ("Late", "Lat?", "Early"):
        assert units((pattern, "gpu"), ("*", "cpu")) == held
    assert units(("Early", "npu"), ("Late", "gpu")) == [u.replace("gpu", "npu") for u in held]
    assert units(("Folded", "gpu")) == plain  # of the model, but of no kernel
    assert units(("g", "npu"), ("f", "gpu")) == units(("g", "npu"), ("*", "gpu"))  # no op type
    with pytest.raises(SmeltError, match="near to it are 'Early'"):
        units(("Earl", "gpu"))


def test_rules_that_fit_no_kernel_are_told() -> None:
    op_types = {"Late": ["late"], "Folded": ["gone"]}
    rules = (("Late", "gpu"), ("Top*", "cpu"), ("Folded", "npu"), ("*", "cpu"), ("?", "gpu"), ("g", "cpu"))
    ctx = Context(MACHINE, Options(place=rules, op_types=op_types), units=UNITS, unit="cpu")
    idle: dict[str, None] = {}
    run_pipeline(module(HELD), [PIPELINE[-1]], ctx.with_(on_pass=(idle_reporter(idle, ctx),)))
    assert [*idle] == ["Top*", "Folded"]


def test_calls_say_what_they_hold_where_there_are_rules() -> None:
    """Through the passes that make kernels: `early` is part of the kernel of `late`."""
    text = """module "m" { sym n in 1..*
      graph @main(%x: f32[n, 2]) -> (%b) {
        %a = relu(%x) : f32[n, 2] at "early"
        %b = tanh(%a) : f32[n, 2] at "late"
      }
    }"""
    for rules, held in (((), None), ((("early", "gpu"),), ("early", "late"))):
        ctx = Context(MACHINE, Options(place=rules), units=UNITS, unit="cpu")
        lowered = lower(fuse(parse_module(text), ctx), ctx)
        (call,) = lowered.calls()
        assert call.attr("holds") == held
        (call,) = place(parse_module(print_module(lowered)), ctx).calls()
        assert call.unit == ("gpu" if rules else "cpu")


WIDE = """
  kernel @wide(d0: dim in 0..*, x: f32[d0, 2]) -> (y: f32[d0, 2]) {
    serial i in d0 { serial j in 2 { y[i, j] = cast:f32(exp(cast:f64(x[i, j]))) } }
  }
  graph @main(%x: f32[n, 2]) -> (%c) {
    %a = call_kernel(%x) {dims = [n], kernel = "f"} : f32[n, 2]
    %b = call_kernel(%a) {dims = [n], kernel = "wide"} : f32[n, 2]
    %c = call_kernel(%b) {dims = [n], kernel = "f"} : f32[n, 2]
  }
"""


@pytest.mark.parametrize(("rules", "moved"), [
    ((), ["%a -> cpu", "%b -> gpu"]),
    ((("f", "gpu"),), ["%a -> cpu", "%b -> gpu"]),
    ((("wide", "gpu"),), []),
    ((("wide", "npu"), ("*", "gpu")), ["%a -> npu", "%b -> gpu"]),
    ((("f", "cpu"),), []),
])  # fmt: skip
def test_a_dtype_that_devices_lack(rules: tuple[tuple[str, str], ...], moved: list[str]) -> None:
    """Its kernel is the CPU's, also where the type is within it alone, unless a rule names a unit."""
    units = {**UNITS, "gpu": replace(MACHINE, lacks=frozenset({"f64"}))}
    ctx = Context(MACHINE, Options(place=rules), units=units, unit="gpu")
    after = place(module(WIDE), ctx)
    verify(after, "lowered")
    assert moves(after) == moved
    named = any(pattern in ("wide", "*") for pattern, _ in rules)
    said = explain_places(module(WIDE), ctx)
    assert not said if named else said[0].startswith("wide: at the CPU, since it computes in f64, which")


def test_a_loop_moves_what_it_reads_before_it() -> None:
    """%a, from outside, once; what a round makes at the other unit, at each round."""
    after = placed(FLOW, ("g", "gpu"), ("*", "cpu"))
    (loop,) = (n for n in after.main.nodes if n.op == "loop")
    assert shown(after.main.nodes) == ["%a -> gpu"]
    assert shown(loop.regions[0].nodes) == ["%u -> gpu", "%o -> cpu"]
    branch = after.main.nodes[-1]
    assert shown(branch.regions[0].nodes) == ["%r -> gpu"]
    assert branch.unit == "gpu" and branch.regions[1].outputs == ("%a.gpu",)
    assert [v.unit for v in loop.regions[0].inputs] == ["cpu", "cpu", "cpu"]


def test_a_carried_value_lies_where_the_body_makes_it() -> None:
    after = placed(FLOW, ("f", "gpu"), ("*", "cpu"))
    (loop,) = (n for n in after.main.nodes if n.op == "loop")
    assert loop.unit == "gpu" and loop.regions[0].inputs[2].unit == "gpu"


def test_a_branch_in_a_loop_moves_what_it_reads_before_the_loop() -> None:
    """%a comes from outside the loop: one transfer, and not one per round in which the arm runs."""
    after = placed(ARMS, ("g", "gpu"), ("*", "cpu"))
    assert shown(after.main.nodes) == ["%a -> gpu"]
    (loop,) = (n for n in after.main.nodes if n.op == "loop")
    (branch,) = (n for n in loop.regions[0].nodes if n.op == "if")
    assert shown(loop.regions[0].nodes) == []
    assert shown(branch.regions[0].nodes) == ["%u -> gpu", "%o -> cpu"]


def test_an_input_of_two_devices_lies_at_the_host() -> None:
    after = placed(SHARED, ("f", "gpu"), ("g", "npu"))
    assert after.main.inputs[0].unit == "cpu"
    assert moves(after) == ["%x -> gpu", "%x -> npu"]


def test_a_library_runs_at_the_host() -> None:
    before = module(LIBRARY)
    after = place(before, Context(MACHINE, Options(), units=UNITS, unit="gpu"))
    verify(after, "lowered")
    assert moves(after) == ["%a -> cpu", "%b -> gpu"]


def test_the_host_makes_what_it_reads_of_fed_integers() -> None:
    """%m for itself, by a twin of the kernel and of the view; what is made of floats is read back."""
    after = placed(READS, unit="gpu")
    kernels = [(n.output.name, n.unit) for n in after.main.nodes if n.op == "call_kernel"]
    assert kernels == [("%m", "gpu"), ("%m.host", "cpu"), ("%a", "gpu"), ("%b", "gpu"), ("%u", "gpu")]
    reads = [n.inputs[0] for n in after.main.walk() if n.op == "bind"]
    assert reads == ["%s.host", "%b", "%m.host"]
    assert moves(after) == ["%k -> gpu", "%q -> gpu"]  # before all kernels
    assert [n.op for n in after.main.nodes[:2]] == ["transfer"] * 2
    assert {v.name: v.unit for v in after.main.inputs} == {"%x": "gpu", "%k": "cpu", "%q": "cpu"}


def test_what_only_the_host_reads_is_made_there_alone() -> None:
    """Nothing is left at the device of a kernel that no kernel reads; inputs stay at the host."""
    after = placed(READS.replace("(%x, %m)", "(%x, %k)"), unit="gpu")
    assert [n.unit for n in after.main.nodes if n.attr("kernel") == "twice"] == ["cpu"]
    assert [n.op for n in placed(READS).main.nodes if n.op == "transfer"] == []


def test_a_large_weight_is_no_table() -> None:
    """What is made of it stays at the device, and is read back."""
    call = '%w = call_kernel(@t) {dims = (), kernel = "first"} : i64[]'
    table = READS.replace("%s = reshape(%m)", f"{call}\n    %s = reshape(%w)")
    for count, reads in ((8, "%s.host"), (8192, "%s")):
        weight = f"weight @t: i64[{count}] = {[7] * count}"
        kernel = f"kernel @first(t: i64[{count}]) -> (y: i64[]) {{ y[] = t[0] }}"
        before = parse_module(f'module "m" {{{KERNELS} {weight} {kernel} {table}}}')
        after = place(before, Context(MACHINE, Options(), units=UNITS, unit="gpu"))
        verify(after, "lowered")
        assert next(n for n in after.main.nodes if n.op == "bind").inputs == (reads,)


def test_a_long_chain_of_integers_is_followed_to_its_start() -> None:
    """Longer than Python's stack is deep."""
    names = ["%k", *(f"%k{i}" for i in range(1, 3001))]
    steps = [f'{b} = call_kernel({a}) {{dims = (), kernel = "twice"}} : i64[]' for a, b in pairwise(names)]
    made = '%y = call_kernel(%x) {dims = [n], kernel = "f"} : f32[n, 2]'
    read = 'bind(%k3000) {symbol = "late", index = 0, low = dim 0, high = dim 1000}'
    text = "\n".join(["graph @main(%x: f32[n, 2], %k: i64[]) -> (%y) {", *steps, read, made, "}"])
    after = placed(text, unit="gpu")
    assert [n.unit for n in after.main.nodes if n.attr("kernel") == "twice"] == ["cpu"] * 3000


def test_a_rule_that_names_nothing() -> None:
    with pytest.raises(SmeltError, match=r"'ff=gpu' names no node, op type or kernel of 'm'") as e:
        placed(CHAIN, ("ff", "gpu"))
    assert e.value.hint is not None and e.value.hint.startswith("near to it are 'f'")
    assert moves(placed(CHAIN, ("ff*", "gpu"))) == []


def test_an_unknown_unit() -> None:
    with pytest.raises(SmeltError, match=r"'f=dsp' names no unit of the target, which has cpu, gpu, npu"):
        placed(CHAIN, ("f", "dsp"))


@pytest.mark.parametrize(
    ("graph", "old", "new", "said"),
    [
        (CHAIN, "transfer(%a) : f32[n, 2] on 'gpu'", "transfer(%a) : f32[n, 2] on 'cpu'", "goes from 'cpu'"),
        (CHAIN, "f32[n, 2] on 'gpu'\n    %c", "f32[n, 2] on 'cpu'\n    %c", "lies at 'gpu', wanted at 'cpu'"),
        (CHAIN, "(%x: f32[n, 2] on 'cpu')", "(%x: f32[n, 2])", "%x lies nowhere"),
        (CHAIN, "f32[2, n] on 'cpu'", "f32[2, n] on 'gpu'", "%a lies at 'cpu', wanted at 'gpu'"),
        (FLOW, "on 'gpu'\n      region @then", "on 'cpu'\n      region @then", "wanted at 'cpu'"),
        (FLOW, "%u: f32[n, 2] on 'cpu'", "%u: f32[n, 2] on 'gpu'", "%u lies at 'gpu', wanted at 'cpu'"),
    ],
)
def test_what_the_verifier_refuses(graph: str, old: str, new: str, said: str) -> None:
    text = print_module(placed(graph, ("g", "gpu"), ("*", "cpu")))
    before, after = (t.replace("'", '"') for t in (old, new))
    assert before in text
    with pytest.raises(SmeltError, match="M8") as e:
        verify(parse_module(text.replace(before, after, 1)), "lowered")
    assert said in str(e.value)
