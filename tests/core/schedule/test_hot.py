"""Hot sizes: which points a kernel has, what is made for them, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from naive_kernels import op_kernel

from smelt.core.diag import SmeltError
from smelt.core.dim import Dim, sym, to_dim
from smelt.core.dtype import f32
from smelt.core.ir.graph import Graph, Module, Node, Symbol, TensorType, Value, Weight
from smelt.core.ir.hot import misfit
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import DimParam, Kernel
from smelt.core.ir.text import parse_module, print_module
from smelt.core.ir.verify import verify, verify_text
from smelt.core.machine import Machine
from smelt.core.schedule import hot, schedule_module
from smelt.core.schedule.hot import MOST_POINTS, Point, all_points, points
from smelt.core.schedule.module import hot_reasons

MACHINE = Machine("m", 256, 16)
N, PAST, BATCH = sym("n"), sym("past"), sym("batch")


def params(*names: str) -> tuple[DimParam, ...]:
    return tuple(DimParam(n, 0, 512) for n in names)


def at(sizes: tuple[Dim, ...], **values: tuple[int, ...]) -> list[dict[int, int]]:
    dims = params(*(f"d{k}" for k in range(len(sizes))))
    return [dict(p.values) for p in points(sizes, dims, values, "node")]


def test_sizes_are_numbers_when_all_that_they_are_made_of_is() -> None:
    assert at((N, N * 3), n=(1, 8)) == [{0: 1, 1: 3}, {0: 8, 1: 24}]
    assert at((N + PAST,), n=(1,)) == []
    assert at((N + PAST, N), n=(1,), past=(7,)) == [{0: 8, 1: 1}]
    assert at((BATCH, N), n=(2,)) == [{1: 2}], "the batch may be any"
    assert at((BATCH, N), n=(1, 2), batch=(1, 4)) == [
        {0: 1, 1: 1}, {0: 4, 1: 1}, {0: 1, 1: 2}, {0: 4, 1: 2},
    ]  # fmt: skip
    assert at((N // 4,), n=(4, 5, 8)) == [{0: 1}, {0: 2}], "one for those that make the same"
    assert at((to_dim(5),), n=(1,)) == [] == at((N,))


def test_what_no_call_can_have_is_no_point() -> None:
    assert at((N * 100,), n=(1, 8)) == [{0: 100}]
    fixed = (DimParam("d0", 3, 3),)
    assert points((N,), fixed, {"n": (3,)}, "") == ()


def test_many_combinations_are_refused() -> None:
    few, many = tuple(range(1, 3)), tuple(range(1, 6))
    assert len(at((N, PAST), n=few, past=(1, 2, 3, 4))) == MOST_POINTS
    with pytest.raises(SmeltError, match=r"10 combinations.* n \(1, 2\), past \(1, 2, 3, 4, 5\)") as e:
        at((N, PAST), n=few, past=many)
    assert e.value.kind == "invalid" and e.value.node == "node" and ":opt=" in str(e.value.hint)
    assert len(at((N,), n=few, past=many)) == 2, "of what the call does not depend on there may be more"


def test_points_of_more_dims_come_first_and_none_comes_twice() -> None:
    one, two = Point(((0, 1),)), Point(((0, 1), (1, 2)))
    assert all_points([(one,), (two, one)]) == (two, one)


# ---------------------------------------------------------------- modules

Made = Callable[..., Module]


def product(*heights: Dim, hot_values: tuple[int, ...] = (1, 24), weight: bool = True) -> Module:
    """A product of so many rows with a weight, or a value, for each height."""
    symbols = sorted({s for d in heights for s in d.symbols})
    right, shape = ("@w", ()) if weight else ("%b", ("%b",))
    kernel = op_kernel("matmul", [("m", 6), (6, 40)], ("m", 40)).with_(name="mm")
    inputs = [Value(f"%x{k}", TensorType(f32, (d, to_dim(6))), f"x{k}") for k, d in enumerate(heights)]
    inputs += [Value(n, TensorType(f32, (to_dim(6), to_dim(40))), "b") for n in shape]
    nodes = tuple(
        Node("call_kernel", (f"%x{k}", right), (Value(f"%y{k}", TensorType(f32, (d, to_dim(40)))),),
             {"kernel": "mm", "dims": (d,)})
        for k, d in enumerate(heights)
    )  # fmt: skip
    made = tuple(n.output.name for n in nodes)
    graph = Graph("main", tuple(inputs), nodes, made, tuple("abcdef"[: len(nodes)]))
    w = Weight("@w", f32, (6, 40), np.arange(240, dtype=np.float32).reshape(6, 40))
    declared = tuple(Symbol(s, 1, 512, hot=hot_values) for s in symbols)
    return Module(
        "test", declared, weights={"@w": w} if weight else {}, graphs={"main": graph}, kernels={"mm": kernel}
    )


@pytest.fixture(autouse=True)
def all_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "LEAST_SECONDS", 0.0)


def test_a_kernel_with_cases(golden: Callable[[str, str], None]) -> None:
    done = schedule_module(product(N), MACHINE)
    verify(done, "scheduled")
    verify_text(done)
    golden("schedules/hot.smelt", print_module(done))


def cases(module: Module, name: str = "mm") -> list[dict[str, int]]:
    return [dict(c.dims) for c in module.kernels[name].hot]


def test_calls_share_a_kernel_and_its_cases() -> None:
    """One for all heights: those of either call are cases of the one kernel."""
    done = schedule_module(product(N, N * 3), MACHINE)
    assert {n.attr("kernel") for n in done.main.nodes} == {"mm"}
    assert cases(done) == [{"m": 1}, {"m": 24}, {"m": 3}, {"m": 72}]


def test_too_many_points_for_one_kernel_are_several_kernels() -> None:
    done = schedule_module(product(N, N * 3, N * 5, hot_values=(1, 24, 32, 64)), MACHINE)
    names = [str(n.attr("kernel")) for n in done.main.nodes]
    assert names == ["mm", "mm", "mm_2"]
    assert len(cases(done)) <= MOST_POINTS and {c["m"] for c in cases(done, "mm_2")} <= {5, 120, 160, 320}


def test_without_hot_values_nothing_changes() -> None:
    plain = product(N, hot_values=())
    assert not any(k.hot for k in schedule_module(plain, MACHINE).kernels.values())
    assert hot_reasons(plain, MACHINE) == []


@pytest.mark.parametrize("bits", [0, 512])
@pytest.mark.parametrize("weight", [True, False])
def test_cases_compute_the_same_and_read_the_same_weights(weight: bool, bits: int, rng: Any) -> None:
    done = schedule_module(product(N, weight=weight), replace(MACHINE, panel_bits=bits))
    general = done.kernels["mm"]
    assert len(general.hot) == 2
    for c in general.hot:
        case, m = done.kernels[c.kernel], dict(c.dims)["m"]
        assert misfit(general, case, dict(c.dims)) == ""
        assert case.inputs[1] == general.inputs[1]
        x = rng.standard_normal((m, 6)).astype(np.float32)
        w = rng.standard_normal([d.const for d in general.inputs[1].shape]).astype(np.float32)
        (want,), (got,) = (run_kernel(k, {"m": m}, [x, w]) for k in (general, case))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_layout_of_its_own_is_given_up() -> None:
    """Few rows want wide panels, many rows narrow ones: the case takes those that are there."""
    machine, found = Machine("m", 128, 32), 0
    for rows in (1, 2, 3, 4, 6, 8, 24):
        done = schedule_module(product(N, hot_values=(rows,)), machine)
        found += len(done.kernels["mm"].hot)
        for c in done.kernels["mm"].hot:
            assert done.kernels[c.kernel].inputs[1] == done.kernels["mm"].inputs[1]
    assert found > 3


# ---------------------------------------------------------------- one row

KEYS = """
  kernel @mm(m: dim in {}..{}, n: dim in 0..512, x: f32[m, 32], k: f32[n, 32]) -> (y: f32[m, n]) {{
    serial i0 in m {{ serial i1 in n {{ y[i0, i1] = sum k0 in 32 {{ x[i0, k0] * k[i1, k0] }} }} }}
  }}"""


def scores(low: int = 0, high: int = 512, hot_values: str = "", each: str = "") -> Module:
    """Rows times keys, which lie along their rows. each: "3*" for three rows each."""
    size, least = (f"{each}rows", f"sym rows in {low}..{high}{hot_values}") if low != high else (str(low), "")
    return parse_module(
        f'module "m" {{\n  {least}\n  sym keys in 0..512\n{KEYS.format(low, high)}\n'
        f"  graph @main(%x: f32[{size}, 32], %k: f32[keys, 32]) -> (%y) {{\n"
        f'    %y = call_kernel(%x, %k) {{dims = [{size}, keys], kernel = "mm"}} : f32[{size}, keys]\n  }}\n}}'
    )



def test_what_copies_an_operand_does_not_for_one_row(rng: Any) -> None:
    """And only there: the keys may be one, too, and the copy would be as large as them."""
    done = schedule_module(scores(), MACHINE)
    verify(done, "scheduled")
    assert cases(done) == [{"m": 1}]
    general, case = (done.kernels[n] for n in ("mm", "mm_hot"))
    assert general.scratch and not case.scratch
    for n in (0, 1, 37):
        x, k = (rng.standard_normal((rows, 32)).astype(np.float32) for rows in (1, n))
        (got,) = run_kernel(case, {"m": 1, "n": n}, [x, k])
        np.testing.assert_allclose(got, x @ k.T, rtol=1e-5, atol=1e-5)


def test_rows_that_share_keys_are_a_step_together() -> None:
    """The heads that share one head's keys are rows of one product: a token has as many as there are."""
    done = schedule_module(scores(each="3*"), MACHINE)
    verify(done, "scheduled")
    assert cases(done) == [{"m": 3}] and not done.kernels["mm_hot"].scratch


def test_one_row_is_made_once_and_only_where_it_may_be() -> None:
    assert cases(schedule_module(scores(hot_values=" hot (1, 24)"), MACHINE)) == [{"m": 1}, {"m": 24}]
    assert not cases(schedule_module(scores(2), MACHINE))
    assert not cases(schedule_module(scores(9, 9), MACHINE))
    lanes = replace(MACHINE, max_lanes=64, shared_bytes=1 << 14, levels=("group", "lane"))
    assert not cases(schedule_module(scores(), lanes))
    assert hot_reasons(scores(), MACHINE) == [], "nobody asked"


# ---------------------------------------------------------------- what is not made


def reasons(module: Module) -> str:
    return "\n".join(hot_reasons(module, MACHINE))


def test_what_takes_no_time_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "LEAST_SECONDS", 1.0)
    assert "mm: n=1 (m = 1): takes " in reasons(product(N)) and "less than 1e+06" in reasons(product(N))
    assert list(schedule_module(product(N), MACHINE).kernels) == ["mm"]


def test_what_comes_out_the_same_is_not_made() -> None:
    """Rows of 5,000 elements are cut alike, however many there are."""
    shape = ("m", 2, 5000)
    add = op_kernel("add", [shape, (5000,)], shape).with_(name="mm")
    x = Value("%x0", TensorType(f32, (N, to_dim(2), to_dim(5000))), "x")
    b = Value("%b", TensorType(f32, (to_dim(5000),)), "b")
    node = Node("call_kernel", ("%x0", "%b"), (Value("%y0", x.type),), {"kernel": "mm", "dims": (N,)})
    module = product(N, hot_values=(7,), weight=False).with_(
        kernels={"mm": add}, graphs={"main": Graph("main", (x, b), (node,), ("%y0",), ("y",))}
    )
    assert reasons(module) == "mm: n=7 (m = 7): its schedule is the same there"
    assert list(schedule_module(module, MACHINE).kernels) == ["mm"]


def test_every_point_has_its_reason() -> None:
    said = hot_reasons(product(N, N * 3), MACHINE)
    assert [line.split(": ")[1] for line in said] == [
        "n=1 (m = 1)", "n=24 (m = 24)", "n=1 (m = 3)", "n=24 (m = 72)",
    ]  # fmt: skip
    assert {line.split(": ")[2] for line in said} == {"scheduled again"}


def test_kernels_that_have_a_schedule_are_left_alone() -> None:
    """A dump after the schedule is not scheduled again."""
    done = schedule_module(product(N), MACHINE)
    bare = {n: k.with_(hot=()) for n, k in done.kernels.items() if n == "mm"}
    kernel: Kernel = schedule_module(done.with_(kernels=bare), MACHINE).kernels["mm"]
    assert kernel == bare["mm"]
