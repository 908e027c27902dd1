"""Traits, costs and dependence edges: from index expressions alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_samples import gpu_gemm

from smelt.core.dim import Facts, sym
from smelt.core.dtype import f32, i64
from smelt.core.ir.analysis.scope import enter, kernel_buffers, kernel_facts
from smelt.core.ir.analysis.traits import Trait, expr_trait, heavy
from smelt.core.ir.edges import (
    disjoint_writes,
    match_parallel,
    parallel_chain,
    sibling_edges,
)
from smelt.core.ir.kernel import Kernel, Loop, Stmt
from smelt.core.ir.text import parse_expr, parse_kernel, parse_stmt
from smelt.core.machine import COSTS, Machine

MACHINE = Machine("test", 256, 16)
M, N, K = sym("m"), sym("n"), sym("k")
SCOPE = {"x": f32, "w": f32, "y": f32, "idx": i64}


def trait(text: str) -> Trait:
    """Of the element at [i, j] of a tensor [m, n]; x is [m, n], w [n, m]."""
    shapes = {"x": (M, N), "w": (N, M), "idx": (N,)}
    return expr_trait(parse_expr(text, SCOPE), ("x", "w"), {"i": M, "j": N}, shapes, Facts())


@pytest.mark.parametrize(
    ("text", "contraction"),
    [
        ("sum k in n { x[i, k] * w[k, j] }", True),
        ("max(sum:f64 k in n { cast:f64(x[i, k] * w[k, j]) }, 0.0:f64)", True),
        ("sum k in 3 { x[i + k, j] * w[k, j] }", True),  # depthwise
        ("sum k in n { x[i, k] * x[j, k] }", True),  # x times its transpose
        ("sum k in n { x[i, k] * x[i, k] }", False),  # a sum of squares
        ("sum k in n { x[i, k] * 2.0:f32 }", False),
        ("max k in n { x[i, k] * w[k, j] }", False),
        ("sum k in n { x[i, k] + w[k, j] }", False),
        ("x[i, j] * w[j, i]", False),
    ],
)
def test_a_contraction_is_a_sum_of_products_of_two_places(text: str, contraction: bool) -> None:
    assert trait(text).contraction is contraction


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("x[i, j] / (sum k in n { x[i, k] })", 1),
        ("(max k in n { x[i, k] }) / (sum k in n { exp(x[i, k] - (max l in n { x[i, l] })) })", 1),
        ("(x[i, j] - (sum k in n { x[i, k] })) * w[j, 0]", 1),
        ("x[i, j] + (sum k in m { w[i, k] }) * (sum l in n { x[i, l] })", 1),
        ("x[i, j] / (sum k in m { x[k, j] })", None),  # along columns: no neighbours
        ("x[i, j] - (sum k in n { x[i, k] }) - (max k in m { w[j, k] })", None),  # two row spaces
        ("x[i, j] / (sum k in n { sum l in m { x[l, k] } })", None),  # one row in all
        ("sum k in n { x[i, k] * (sum l in n { x[k, l] }) }", None),  # once for each element of another
        ("x[i, j]", None),
    ],
)
def test_reductions_that_run_along_the_same_rows(text: str, rows: int | None) -> None:
    assert trait(text).rows == rows


def test_several_axes_within_a_row_are_read_as_one_or_not_at_all() -> None:
    shapes = {"x": (M, N, K), "w": (K,), "v": (N, K)}
    total = "(sum a in n, b in k { x[i, a, b] })"
    found = []
    for factor in ("", " * v[j, l]", " * w[l]"):
        e = parse_expr(f"x[i, j, l] - {total}{factor}", {**SCOPE, "v": f32})
        found.append(expr_trait(e, (), {"i": M, "j": N, "l": K}, shapes, Facts()).rows)
    assert found == [1, 1, None]


@pytest.mark.parametrize(
    ("text", "work"),
    [
        ("exp(x[i, j]) + exp(w[j, i])", {"exp": 2, "add": 1}),
        ("cast:f32(idx[j])", {}),
        ("sum k in n { x[i, k] * w[k, j] }", {"mul": 1}),
        ("let g = idx[j] in 0 .. n { x[i, g] / 2.0:f32 }", {"div": 1}),
    ],
)
def test_work_is_counted_by_intrinsic(text: str, work: dict[str, int]) -> None:
    assert trait(text).work == work


@pytest.mark.parametrize(
    ("text", "plain", "placed", "moved"),
    [
        ("x[i, j]", True, False, 0),
        ("w[j, i]", True, False, 1),
        ("let g = idx[j] in 0 .. n { x[i, g] }", True, False, 0),
        ("(x[i, j - 1] if (1 <= j < n))", True, False, None),
        ("x[i, j] + 1.0:f32", False, False, None),
        ("x[i, j] + [j]:f32", False, True, None),
        ("x[i, j] + [m]:f32", False, False, None),
    ],
)
def test_what_an_element_is_made_of(text: str, plain: bool, placed: bool, moved: int | None) -> None:
    t = trait(text)
    assert (t.plain, t.placed, t.moved) == (plain, placed, moved)


def test_machines_say_what_functions_cost() -> None:
    slow = replace(MACHINE, costs={"div": 100})
    assert MACHINE.cost({"exp": 2, "add": 1, "cast": 5}) == 2 * COSTS["exp"] + 1
    assert slow.cost({"div": 1, "exp": 1}) == 101
    assert (MACHINE.heavy("exp"), MACHINE.heavy("div"), slow.heavy("div")) == (True, False, True)
    e = parse_expr("x[i, j] / w[j, i]", SCOPE)
    assert (heavy(e, MACHINE), heavy(e, slow)) == (False, True)


# ---------------------------------------------------------------- edges


def edges_of(text: str) -> dict[tuple[int, int], str]:
    k = parse_kernel(text)
    found = sibling_edges(k.body, kernel_facts(k), kernel_buffers(k))
    return {(e.earlier, e.later): e.kind for e in found}


HEAD = """kernel @k(n: dim in 0..*, m: dim in 1..*, d: dim in 0..* % 4, x: f32[n, m]) -> (y: f32[n, m])
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


def test_matching_needs_one_space() -> None:
    a = parse_stmt("group i in n { group j in 4 { y[i] = x[i] } }", SCOPE)
    b = parse_stmt("group i in n { group j in 5 { y[i] = x[i] } }", SCOPE)
    assert [p.var for p in parallel_chain(a) if isinstance(p, Loop)] == ["i", "j"]
    assert match_parallel(parallel_chain(a), parallel_chain(a)) is not None
    assert match_parallel(parallel_chain(a), parallel_chain(b)) is None


def _last(start: str, vectors: str) -> str:
    """Chunks of 16, of which what is left from `start` on is done in vectors of 2, without a guard: d is a
    multiple of 4."""
    store = f"t[16*g + {start} + 2*p + i, 0] = x[0, 0]"
    return f"group g in (d + 15)//16 {{ serial p in {vectors} {{ vector i in 2 {{ {store} }} }} }}"


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
        ("group v in 4 { serial w in n { serial c in 2 { t[8*w + 2*v + c, 0] = x[0, 0] } } }", ()),
        ("group v in 4 { serial w in n { serial c in 3 { t[8*w + 2*v + c, 0] = x[0, 0] } } }", ("t",)),
        ("group v in 5 { serial w in n { serial c in 2 { t[8*w + 2*v + c, 0] = x[0, 0] } } }", ("t",)),
        ("group i in 1 { t[0, 0] = x[0, 0] }", ()),
        ("group i in 0 { t[0, i + 1] = t[0, i] }", ()),  # no instance
        ("group i in n { serial j in 0 { t[0, j] = x[0, 0] } }", ()),
        ("group i in n { serial j in 1 { t[0, j] = x[0, 0] } }", ("t",)),
        ("group i in n { group j in m { t[i, j] = x[i, j] } }", ()),
        ("group i in n { group j in m { t[i, 0] = x[i, j] } }", ("t",)),
        ("vector i in 8 { t[0, 0] add= x[i, 0] }", ()),  # a declared reduction
        (_last("8*(min(d//4 - 4*g, 4)//2)", "2*(min(d//4 - 4*g, 4) % 2)"), ()),
        (_last("8*(min(d//4 - 4*g, 4)//2)", "2*(min(d//4 - 4*g, 4) % 2) + 1"), ("t",)),
        (_last("8*(min(d//4 - 4*g, 4)//4)", "4"), ()),
        (_last("8*(min(d//4 - 4*g, 4)//4)", "5"), ("t",)),
        (_last("8*(g % 2)", "6"), ("t",)),
        ("group i in 8 { t[0, 0] add= x[i, 0] }", ("t",)),
        ("group i in n { t[2*i, 0] = x[i, 0] t[2*i + 1, 0] = t[2*i, 0] }", ()),
        ("group i in n { t[2*i, 0] = x[i, 0] t[2*i + 1, 0] = t[2*i + 2, 0] }", ("t",)),
        ("group i in n { t[2*i + 1, 0] = x[i, 0] t[2*i + 2, 0] = t[2*i + 1, 0] }", ()),  # across a step
        ("group i in n { t[4*i + i % 2, 0] = x[i, 0] t[4*i + i % 2 + 2, 0] = x[i, 0] }", ()),
        ("group i in n { t[3*i + (i + 1) % 2, 0] = x[i, 0] t[3*i + 2*(i % 2) + 2, 0] = x[i, 0] }", ("t",)),
        ("group i in n { serial j in 2 { t[2*i + j, 0] = x[0, 0] t[2*j, 0] = x[0, 0] } }", ("t",)),
        ("group i in n { group j in m { t[i, 2*j] = x[i, j] t[i, 2*j + 1] = t[i, 2*j] } }", ()),
        ("group i in n { group j in m { t[i, 2*j] = x[i, j] t[j, 2*i + 1] = x[i, j] } }", ("t",)),
        ("group i in n { register a: f32[] a[] = x[i, 0] t[i, 0] = a[] }", ()),
    ],
)
def test_disjoint_writes(text: str, shared: tuple[str, ...]) -> None:
    k = parse_kernel(f"{HEAD} {{ {text} }}")
    s = k.body[0]
    assert isinstance(s, Loop)
    assert disjoint_writes(s, kernel_facts(k), kernel_buffers(k)) == shared


NUMBERS = st.tuples(*(st.sampled_from(x) for x in ((1, 2, 3, 4), (0, 1, 2), (0, 1, 3), (0, 1, 2, 3, 5))))
PARTS = st.sampled_from(("", " % 2", "//2"))


@given(st.lists(NUMBERS, min_size=1, max_size=4), st.sampled_from((1, 2, 3)), PARTS)
def test_what_is_proved_to_be_disjoint_is_so(
    stores: list[tuple[int, int, int, int]], rounds: int, part: str
) -> None:
    texts = [f"{a}*i + {b}*j + {c}*(i{part}) + {d}" for a, b, c, d in stores]
    body = " ".join(f"t[{text}, 0] = x[0, 0]" for text in texts)
    k = parse_kernel(f"{HEAD} {{ group i in n {{ serial j in {rounds} {{ {body} }} }} }}")
    s = k.body[0]
    assert isinstance(s, Loop)
    if disjoint_writes(s, kernel_facts(k), kernel_buffers(k)):
        return
    owner: dict[int, int] = {}
    for i in range(9):
        for j in range(rounds):
            for text in texts:
                at = eval(text, {"i": i, "j": j})
                assert owner.setdefault(at, i) == i, f"instances {owner[at]} and {i} write {at}"
