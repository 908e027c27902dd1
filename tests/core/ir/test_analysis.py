"""Kinds, costs and dependence edges: from index expressions alone."""

from __future__ import annotations

import op_cases as cases
import pytest
from ir_samples import gemm, gpu_gemm, matmul

from smelt.core.dim import Facts, sym
from smelt.core.dtype import f32, i64
from smelt.core.ir.analysis import (
    Kind,
    as_nest,
    enter,
    expr_kind,
    find_contraction,
    kernel_buffers,
    kernel_cost,
    kernel_facts,
    kernel_kind,
    read_count,
    stmt_kind,
)
from smelt.core.ir.edges import (
    carried_edges,
    disjoint_writes,
    match_parallel,
    parallel_chain,
    sibling_edges,
)
from smelt.core.ir.kernel import Kernel, Loop, Stmt
from smelt.core.ir.text import parse_expr, parse_kernel, parse_stmt

SCOPE = {"x": f32, "w": f32, "y": f32, "idx": i64}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1.0:f32", "elementwise"),
        ("exp(x[i, j])", "elementwise"),
        ("x[i, j] + w[j]", "elementwise"),
        ("x[i, j] + w[i, 0]", "elementwise"),
        ("x[0, j] * w[i, 0]", "broadcast"),
        ("x[i]", "broadcast"),
        ("x[min(i, m - 1), j]", "broadcast"),
        ("x[j, i]", "injective"),
        ("x[i, j + 2] + w[i, j]", "injective"),
        ("x[(4*i + j)//3, (4*i + j) % 3]", "injective"),
        ("(x[i, j - 1] if (1 <= j < n))", "injective"),
        ("x[i, j] + x[i, j + 1]", "gather"),
        ("let g = idx[i] in 0 .. n { x[g, j] }", "gather"),
        ("sum k in n { x[i, k] }", "reduction"),
        ("sum k in n { x[i, k] * w[k, j] }", "contraction"),
        ("max(sum:f64 k in n { cast:f64(x[i, k] * w[k, j]) }, 0.0:f64)", "contraction"),
        ("sum k in 3 { x[i + k, j] * w[k, j] }", "reduction"),  # depthwise
        ("sum k in n { x[i, j, k] * x[i, j, k] }", "reduction"),
        ("max k in n { x[i, k] * w[k, j] }", "reduction"),
        ("sum k in n { x[i, k] + w[k, j] }", "reduction"),
    ],
)
def test_kinds(text: str, kind: Kind) -> None:
    assert expr_kind(parse_expr(text, SCOPE), ("i", "j")) == kind


def test_axes_of_extent_one_need_not_be_followed() -> None:
    e = parse_expr("x[0, j]", SCOPE)
    assert expr_kind(e, ("i", "j"), (sym("n"), sym("m"))) == "broadcast"
    assert expr_kind(e, ("i", "j"), (sym("n") * 0 + 1, sym("m"))) == "elementwise"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("serial i in n { serial j in m { y[i, j] = x[i, j] } }", "elementwise"),
        ("serial i in n { serial j in m { y[j, i] = x[i, j] } }", "injective"),
        ("serial i in n { y[0, i] = x[i] }", "elementwise"),
        ("serial i in n { y[2*i] = x[i] }", "opaque"),
        ("serial i in n { y[i] add= x[i] }", "opaque"),
        ("serial i in n { y[i] = y[i] + x[i] }", "opaque"),
        ("serial i in n { serial j in m { y[i] = x[i, j] } }", "opaque"),
        ("vector i in 8 { y[i] = x[i] }", "opaque"),
        ("serial i in n { y[i] = x[i] y[i] = x[i] }", "opaque"),
    ],
)
def test_kinds_of_statements(text: str, kind: Kind) -> None:
    assert stmt_kind(parse_stmt(text, SCOPE)) == kind


def test_a_contraction_says_who_owns_which_axis() -> None:
    e = parse_expr("sum k in n { x[b, i, k] * w[b, k, j] } + y[i, j]", SCOPE)
    found = find_contraction(e, ("b", "i", "j"))
    assert found is not None
    assert (found.shared, found.left_vars, found.right_vars) == (("b",), ("i",), ("j",))


def test_kinds_over_the_op_table() -> None:
    """Kinds of whole rows, for ops whose kind no case may change."""
    wanted: dict[str, set[Kind]] = {
        "exp": {"elementwise"}, "cast": {"elementwise"}, "softmax": {"reduction"},
        "slice": {"elementwise", "injective"}, "gather": {"gather"}, "max_pool": {"reduction"},
        "concat": {"injective"}, "broadcast_to": {"broadcast"}, "layer_norm": {"reduction"},
    }
    for row in cases.rows():
        kernel = cases.naive_kernel(row) if row.op.name in wanted else None
        if kernel is not None:
            assert kernel_kind(kernel) in wanted[row.op.name], row.name


def test_costs_are_formulas() -> None:
    m, n, k = sym("m"), sym("n"), sym("k")
    cost = kernel_cost(matmul())
    assert cost.flops == m * n * (2 * k + 1)
    assert cost.bytes == 4 * (m * k + k * n + n + m * n)
    assert cost.intensity({"m": 64, "n": 64, "k": 64}) > 10
    tiles = kernel_cost(gemm(depth=12, panels=3))
    assert tiles.flops == m * 96 * (24 + 2)


def test_reads_are_counted() -> None:
    nest = as_nest(matmul().body[0])
    assert nest is not None
    m, n, k = sym("m"), sym("n"), sym("k")
    assert read_count(nest.store.value, "x", m * n) == m * n * k
    assert read_count(nest.store.value, "b", m * n) == m * n


# ---------------------------------------------------------------- edges


def edges_of(text: str) -> dict[tuple[int, int], str]:
    k = parse_kernel(text)
    found = sibling_edges(k.body, kernel_facts(k), kernel_buffers(k))
    return {(e.earlier, e.later): e.kind for e in found}


HEAD = """kernel @k(n: dim in 0..*, m: dim in 1..*, x: f32[n, m]) -> (y: f32[n, m])
    scratch (t: f32[n, m])"""


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        # the same row; the variable's name does not matter
        ("t[i, j] = x[i, j]", "y[i, j] = t[i, j]", "one_to_one"),
        ("t[i, j] = x[i, j]", "y[i, j] = max q in m { t[i, q] }", "one_to_one"),
        # another row
        ("t[i, j] = x[i, j]", "y[i, j] = t[n - 1 - i, j]", "all_to_all"),
        ("t[i, j] = x[i, j]", "y[i, j] = (t[i - 1, j] if (1 <= i < n))", "all_to_all"),
        # write after read counts as well
        ("y[i, j] = x[i, j] + t[n - 1 - i, j]", "t[i, j] = x[i, j]", "all_to_all"),
        # nothing shared
        ("t[i, j] = x[i, j]", "y[i, j] = x[j, i]", None),
    ],
)
def test_edges_between_rows(first: str, second: str, kind: str | None) -> None:
    rows = [f"group i in n {{ serial j in m {{ {s} }} }}" for s in (first, second)]
    text = f"{HEAD} {{ {' '.join(rows)} }}"
    assert edges_of(text).get((0, 1)) == kind


def test_edges_through_flat_and_split_indices() -> None:
    text = """kernel @k(n: dim in 0..*, m: dim in 1..*, x: f32[n, m]) -> (y: f32[n, m])
      scratch (t: f32[n*m]) {
      group i in n { vector j in m { t[i*m + j] = x[i, j] } }
      group p in n { vector q in m { y[p, q] = t[p*m + q] } }
      group p in n { vector q in m { y[p, q] = t[q*n + p] } } }"""
    found = edges_of(text)
    assert found[0, 1] == "one_to_one"
    assert found[0, 2] == "all_to_all"
    text = """kernel @k(n: dim in 0..*, x: f32[n, 8]) -> (y: f32[n, 8]) scratch (t: f32[n, 8]) {
      group f in 8*n { t[f//8, f % 8] = x[f//8, f % 8] }
      group f in 8*n { y[f//8, f % 8] = t[f//8, f % 8] } }"""
    assert edges_of(text) == {(0, 1): "one_to_one"}


def test_edges_between_tiles() -> None:
    text = """kernel @k(n: dim in 0..*, x: f32[n]) -> (y: f32[n]) scratch (t: f32[n]) {
      tiles group (i, r) in n : greedy (16, 4, 1) { vector j in r { t[i + j] = x[i + j] } }
      tiles group (p, s) in n : greedy (16, 4, 1) { vector q in s { y[p + q] = t[p + q] } }
      tiles group (p, s) in n : greedy (8, 1) { vector q in s { y[p + q] = t[p + q] } } }"""
    found = edges_of(text)
    assert found[0, 1] == "one_to_one"
    assert found[0, 2] == "all_to_all"  # not the same tiles


def inner(k: Kernel, *path: int) -> tuple[tuple[Stmt, ...], Facts]:
    """The body at a path of statement numbers, and what holds there."""
    body, facts = k.body, kernel_facts(k)
    for n in path:
        s = body[n]
        assert isinstance(s, Loop)
        body, facts = s.body, enter(facts, s)
    return body, facts


def test_barriers_of_a_work_group() -> None:
    k = gpu_gemm()
    body, facts = inner(k, 0)
    kinds = {(e.earlier, e.later): e.kind for e in sibling_edges(body, facts, kernel_buffers(k))}
    # Lanes keep their accumulators: clear -> write is free; the loop in between is not a lane loop.
    assert kinds[0, 2] == "one_to_one"
    steps, facts = inner(k, 0, 1)
    (fill,) = sibling_edges(steps, facts, kernel_buffers(k))
    assert (fill.kind, fill.buffers) == ("all_to_all", ("xs",))
    carried = carried_edges(body[1], inner(k, 0)[1], kernel_buffers(k))
    by_pair = {(e.earlier, e.later): e.kind for e in carried}
    assert by_pair[1, 0] == "all_to_all"  # the next fill overwrites what a slow lane still reads
    assert by_pair[1, 1] == "one_to_one"  # accumulators


def test_matching_needs_one_space() -> None:
    a = parse_stmt("group i in n { group j in 4 { y[i] = x[i] } }", SCOPE)
    b = parse_stmt("group i in n { group j in 5 { y[i] = x[i] } }", SCOPE)
    assert [p.var for p in parallel_chain(a) if isinstance(p, Loop)] == ["i", "j"]
    assert match_parallel(parallel_chain(a), parallel_chain(a)) is not None
    assert match_parallel(parallel_chain(a), parallel_chain(b)) is None


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("group i in n { t[i, 0] = x[i, 0] }", ()),
        ("group i in n { t[0, 0] = x[i, 0] }", ("t",)),
        ("group i in n { t[i//2, 0] = x[i, 0] }", ("t",)),
        ("group i in n { t[i, 0] = x[i, 0] y[i, 0] = t[0, 0] }", ("t",)),
        ("group i in n { serial j in 2 { t[2*i + j, 0] = x[i, 0] } }", ()),
        ("group i in n { serial j in 3 { t[2*i + j, 0] = x[i, 0] } }", ("t",)),
        ("group i in 2 { serial j in n { t[i + 2*j, 0] = x[i, 0] } }", ()),
        ("group i in 3 { serial j in n { t[i + 2*j, 0] = x[i, 0] } }", ("t",)),
        ("group p in 2 { group i in n { serial j in 4 { t[8*i + 2*j + p, 0] = x[i, 0] } } }", ()),
        ("group i in 1 { t[0, 0] = x[0, 0] }", ()),
        ("group i in n { group j in m { t[i, j] = x[i, j] } }", ()),
        ("group i in n { group j in m { t[i, 0] = x[i, j] } }", ("t",)),
        ("vector i in 8 { t[0, 0] add= x[i, 0] }", ()),  # a declared reduction
        ("group i in 8 { t[0, 0] add= x[i, 0] }", ("t",)),
        ("group i in n { register a: f32[] a[] = x[i, 0] t[i, 0] = a[] }", ()),
    ],
)
def test_disjoint_writes(text: str, shared: tuple[str, ...]) -> None:
    k = parse_kernel(f"{HEAD} {{ {text} }}")
    s = k.body[0]
    assert isinstance(s, Loop)
    assert disjoint_writes(s, kernel_facts(k), kernel_buffers(k)) == shared
