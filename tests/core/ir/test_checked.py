"""What checks make sure of: known after them and inside of their graph, not before and not elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.core.diag import SmeltError
from smelt.core.dim import NO, YES, Facts, Truth, parse_dim, sym
from smelt.core.ir.checked import FactScope, learn
from smelt.core.ir.graph import Module
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.text import parse_module, print_module
from smelt.core.ir.verify import module_facts, verify
from smelt.core.machine import Machine
from smelt.core.ops import OPS
from smelt.core.passes.context import Context
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.plan.link import link
from smelt.core.plan.program import Check, HostProgram, Reserve, walk_steps
from smelt.core.schedule import schedule_module
from smelt.core.schedule.module import _Scheduling
from smelt.core.schedule.recall import Recall
from smelt.core.spread import serially
from smelt.targets.platform import parse_target
from smelt.targets.registry import machines

N, K = sym("n"), sym("k")
MACHINE: Machine = machines(parse_target("x86_64-linux"))["cpu"]


def check(left: str, relation: str, right: str) -> str:
    return f'check() {{left = dim {left}, relation = "{relation}", right = dim {right}, text = "as wanted"}}'


def counted(before: str = "", after: str = "", late: str = "") -> Module:
    """How many of 64 numbers are not 0, their positions, and a product of the softmax of these."""
    return parse_module(f"""module "m" {{
      sym n in 0..64
      sym k in 0..*
      weight @c: f32[] = [0.0]
      graph @main(%x: f32[64], %m: f32[k, 8]) -> (%y as "y", %u as "u") {{
        {before}
        %v1 = not_equal(%x, @c) : bool[64]
        %v2 = cast(%v1) {{to = :i64}} : i64[64]
        %v3 = reduce_sum(%v2) {{axes = (0,), keepdims = false}} : i64[]
        bind(%v3) {{high = dim 64, index = 0, low = dim 0, symbol = "n"}}
        {after}
        %z = non_zero(%x) {{count = dim n}} : i64[1, n]
        {late}
        %zf = cast(%z) {{to = :f32}} : f32[1, n]
        %w = softmax(%zf) {{axis = 1}} : f32[1, n]
        %t = transpose(%w) {{perm = (1, 0)}} : f32[n, 1]
        %y = matmul(%t, %w) : f32[n, n]
        %u = softmax(%m) {{axis = 0}} : f32[k, 8]
      }}
    }}""")


def inside(check: str) -> Module:
    """A branch that checks a size of the graph around it, which another branch and the graph have, too."""
    return parse_module(f"""module "m" {{
      sym k in 0..*
      graph @main(%m: f32[8, k], %f: bool[]) -> (%y as "y", %u as "u") {{
        %y = if(%f) : f32[8, k]
          region @then() -> (%a1) {{
            {check}
            %a = softmax(%m) {{axis = 1}} : f32[8, k]
            %a1 = softmax(%a) {{axis = 0}} : f32[8, k]
          }}
          region @else() -> (%b) {{
            %b = softmax(%m) {{axis = 1}} : f32[8, k]
          }}
        %u = softmax(%m) {{axis = 0}} : f32[8, k]
      }}
    }}""")


def lowered(module: Module) -> Module:
    verify(module)
    done = run_pipeline(module, PIPELINE, Context(machine=MACHINE))
    verify(done, "lowered")
    return done


def planned(module: Module) -> tuple[Module, HostProgram]:
    done = schedule_module(lowered(module), MACHINE)
    verify(done, "scheduled")
    return done, link([("x86", [("main", done, ())])]).entries[0].program


def known(module: Module) -> Facts:
    return FactScope(module_facts(module)).enter(module.main).facts


# ---------------------------------------------------------------- of the whole graph


def test_what_is_equal_is_that_number_to_types_kernels_and_memory() -> None:
    done, program = planned(counted(after=check("n", "==", "32")))
    (y, u) = program.outputs
    assert y.shape == (32, 32) and sum(bool(k.dims) for k in done.kernels.values()) == 1
    assert [str(d) for d in u.shape] == ["k", "8"], "the one that has another size"
    assert all("n" not in d.symbols for d in program.peak)
    free, plain = planned(counted())
    assert [str(d) for d in plain.outputs[0].shape] == ["n", "n"], "which is not known without the check"
    assert any("n" in d.symbols for d in plain.peak)
    assert sum(bool(k.dims) for k in free.kernels.values()) > sum(bool(k.dims) for k in done.kernels.values())


@pytest.mark.parametrize(
    ("text", "low", "high", "divisor"),
    [
        (check("n", "<=", "32"), 0, 32, 1),
        (check("n + 3", "<=", "32"), 0, 29, 1),
        (check("16", "<=", "n"), 16, 64, 1),
        (check("4", "divides", "n"), 0, 64, 4),
        (check("12", "divides", "3*n"), 0, 64, 4),
        (check("n", "fits", "32"), 0, 32, 1),
        (check("16", "<=", "n") + check("n", "fits", "48"), 48, 48, 1),
    ],
)  # fmt: skip
def test_orders_and_divisors_are_known_to_schedules_and_memory(
    text: str, low: int, high: int, divisor: int
) -> None:
    module = counted(after=text)
    done, program = planned(module)
    facts = known(module)
    assert facts.bounds(N) == (low, high) and facts.prove_divisible(N, divisor) is YES
    dims = [(d.low, d.high, d.divisor) for name in ("matmul",) for d in done.kernels[name].dims]
    assert dims == ([] if low == high else [(low, high, divisor)])
    assert program.most[len(program.peak) + 2] == 4 * high * high, "the most bytes that the output may take"


def test_a_check_before_anything_bounds_what_inputs_size() -> None:
    _, program = planned(counted(before=check("k", "<=", "100")))
    assert program.most[-1] == 3200
    _, free = planned(counted())
    assert free.most[-1] is None


def test_memory_is_reserved_after_the_check() -> None:
    _, program = planned(counted(after=check("4", "divides", "n")))
    steps = list(walk_steps(program.run))
    text = next(n for n, c in enumerate(program.checks) if c.text == "as wanted")
    at = next(n for n, s in enumerate(steps) if isinstance(s, Check) and s.check == text)
    reserved = [n for n, s in enumerate(steps) if isinstance(s, Reserve)]
    assert reserved and min(reserved) > at


def test_nothing_is_known_before_the_check() -> None:
    """The positions are made before anybody looks at how many they are."""
    module = counted(late=check("n", "==", "32"))
    assert known(module).bounds(N) == (0, 64)
    done, program = planned(module)
    assert [str(d) for d in program.outputs[0].shape] == ["n", "n"]
    assert [d.high for d in done.kernels["non_zero"].dims] == [64]
    x = np.zeros(64, np.float32)
    x[:40] = 1
    with pytest.raises(SmeltError, match="as wanted"):
        run_module(done, {"x": x, "m": np.ones((3, 8), np.float32)}, OPS)


def test_a_dump_after_the_pass_knows_the_same() -> None:
    module = lowered(counted(check("k", "<=", "100"), check("n", "==", "32")))
    again = parse_module(print_module(module), {w.name: w for w in module.weights.values()})
    assert again == module
    assert known(again).bounds(N) == (32, 32) and known(again).bounds(K) == (0, 100)
    one, other = (link([("x86", [("main", m, ())])]).entries[0].program for m in (module, again))
    assert one == other


def test_runs_are_as_before() -> None:
    module = counted(after=check("n", "==", "32"))
    x = np.zeros(64, np.float32)
    x[3:35] = np.arange(1, 33)
    fed = {"x": x, "m": np.ones((5, 8), np.float32)}
    done, _ = planned(module)
    for got, want in zip(run_module(done, fed, OPS), run_module(module, fed, OPS), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    x[3] = 0
    with pytest.raises(SmeltError, match="as wanted"):
        run_module(done, fed, OPS)


# ---------------------------------------------------------------- of a region


@pytest.mark.parametrize(
    ("text", "low", "high", "divisor"),
    [
        (check("k", "==", "32"), 32, 32, 32),
        (check("k", "<=", "32"), 0, 32, 1),
        (check("8", "divides", "k"), 0, None, 8),
        (check("k", "fits", "32"), 0, 32, 1),
    ],
)  # fmt: skip
def test_a_region_knows_what_it_checks_and_nobody_else_does(
    text: str, low: int, high: int | None, divisor: int
) -> None:
    module = inside(text)
    main = FactScope(module_facts(module)).enter(module.main)
    then, other = (main.enter(g).facts for g in module.main.nodes[0].regions)
    assert then.bounds(K) == (low, high) and then.prove_divisible(K, divisor) is YES
    for facts in (main.facts, other):
        assert facts.bounds(K) == (0, None) and (divisor == 1 or facts.prove_divisible(K, divisor) is not YES)
    done, program = planned(module)
    low_level = lowered(module)
    work = _Scheduling(low_level, MACHINE, {}, Recall(), serially)
    dims = [[(d.low, d.high, d.divisor) for d in u.dims] for u in work._uses(low_level.main, work.start)]
    free = [(0, None, 1)]
    mine = [] if low == high else [(low, high, divisor)]
    assert dims == [mine, mine, free, free], "two calls in the region, one in the other, one in the graph"
    assert [str(t.shape[1]) for t in program.outputs] == ["k", "k"]
    bounded = high is not None
    assert (program.most[0] is not None) == bounded, "the region needs at most what it lets pass"
    x = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    for flag in (True, False):
        fed = {"m": x, "f": np.array(flag)}
        for got, want in zip(run_module(done, fed, OPS), run_module(module, fed, OPS), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_region_that_checks_late_knows_nothing() -> None:
    late = inside("").main.nodes[0].regions[0]
    (mark,) = inside(check("k", "==", "32")).main.nodes[0].regions[0].nodes[:1]
    module = inside("")
    scope = FactScope(module_facts(module)).enter(module.main)
    for place in range(1, len(late.nodes)):
        nodes = (*late.nodes[:place], mark, *late.nodes[place:])
        assert scope.enter(late.with_(nodes=nodes)).facts is scope.facts


# ---------------------------------------------------------------- what is learned of a relation


def test_only_sizes_of_the_latest_time_are_learned_of() -> None:
    """A formula of an earlier size may be asked for before the check."""
    times = {"n": 3, "k": 7}
    facts = Facts().with_range("n", 0, None).with_range("k", 0, 100)
    after = learn(facts, N, "<=", K, times)
    assert after.bounds(N) == (0, None) and after.prove_le(N, K) is YES
    after = learn(facts, K, "<=", N + 5, times)
    assert after.prove_le(K, N + 5) is YES and after.bounds(N) == (0, None)
    after = learn(facts, N, "==", K, times)
    assert after.bounds(N) == (0, None) and after.simplify(K) == N
    assert learn(facts, N, "<=", K, {}).bounds(N) == (0, 100), "both from the start"


def test_what_can_never_hold_is_no_knowledge() -> None:
    facts = Facts().with_range("n", 0, 10)
    for claim in (("n", "==", "20"), ("20", "<=", "n"), ("0", "divides", "n")):
        left, right = parse_dim(claim[0]), parse_dim(claim[2])
        assert learn(facts, left, claim[1], right, {}) is facts
    assert facts.prove_eq(N, 20) is NO and isinstance(facts.prove_eq(N, K), Truth)


def test_work_on_a_checked_size_stays_in_its_loop() -> None:
    """It would be done before the check, if at all: the loop may have no round."""
    module = parse_module("""module "m" {
      sym k in 0..*
      sym t in 0..9
      weight @on: bool[] = [true]
      graph @main(%m: f32[k, 8], %a: f32[8, 8], %r: f32[t]) -> (%y as "y") {
        %y = loop(_, @on, %a) {trips = dim t} : f32[8, 8]
          region @body(%i: i64[], %c: bool[], %s: f32[8, 8]) -> (@on, %s1) {
            check() {left = dim k, relation = "==", right = dim 8, text = "as wanted"}
            %e = softmax(%m) {axis = 1} : f32[k, 8]
            %p = matmul(%s, %e) : f32[8, 8]
            %s1 = tanh(%p) : f32[8, 8]
          }
      }
    }""")
    done, _ = planned(module)
    (loop,) = done.main.nodes
    assert [str(v.type) for n in loop.regions[0].nodes for v in n.outputs][:1] == ["f32[8, 8]"]
    fed = {"a": np.eye(8, dtype=np.float32), "m": np.ones((3, 8), np.float32)}
    (y,) = run_module(done, {**fed, "r": np.ones(0, np.float32)}, OPS)
    np.testing.assert_array_equal(y, fed["a"])
    with pytest.raises(SmeltError, match="as wanted"):
        run_module(done, {**fed, "r": np.ones(2, np.float32)}, OPS)


def test_equal_sizes_are_known_although_another_check_denies_them() -> None:
    """No run passes both; types that the first one made are what later passes prove, in whichever order."""
    for checks in (("n", "fits", "2"), ("8*n", "==", "2*n*n")), (("8*n", "==", "2*n*n"), ("n", "fits", "2")):
        module = parse_module(f"""module "m" {{
          sym n in 1..*
          graph @main(%x: f32[n, 3]) -> (%y as "y") {{
            {chr(10).join(check(*c) for c in checks)}
            %y = exp(%x) : f32[4, 3]
          }}
        }}""")
        facts = FactScope(module_facts(module)).enter(module.main).facts
        assert facts.prove_eq(sym("n"), 4) is YES
