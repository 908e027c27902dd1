"""Which extents a loop nest depends on, and what a launch is multiplied by lest it turn for nothing."""

from __future__ import annotations

import pytest

from smelt.core.dim import Facts, parse_dim, sym
from smelt.core.ir.idle import busy, guards, needed, needed_at_all
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import parse_kernel

HEAD = (
    "kernel @k(n: dim in 0..*, m: dim in 0..*, h: dim in 1..8, x: f32[n, m]) -> (y: f32[n, m], s: f32[n])\n"
)


def _kernel(body: str) -> Kernel:
    return parse_kernel(f"{HEAD}{{\n{body}\n}}")


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("serial i in n { serial j in m { y[i, j] = x[i, j] } }", {"n", "m"}),
        ("serial i in n { serial j in m { s[i] add= x[i, j] } }", {"n", "m"}),
        # every row is written, however long it is
        ("serial i in n { s[i] = 0.0:f32 serial j in m { s[i] add= x[i, j] } }", {"n"}),
        # what nobody reads after a round is no effect; a store into an output of no elements never happens
        (
            "group i in n { register a: f32[] a[] = 0.0:f32 serial j in m//32 { a[] add= x[i, 32*j] }"
            " serial j in m//32 { y[i, 32*j] = a[] } serial j in m % 32 { y[i, j] = a[] } }",
            {"n", "m"},
        ),
        ("serial i in n { serial j in 4 { y[i, j] = 0.0:f32 } }", {"n", "m"}),
    ],
)
def test_extents_that_a_statement_needs(body: str, wanted: set[str]) -> None:
    kernel = _kernel(body)
    assert needed(kernel.body, kernel.buffers()) == {parse_dim(d) for d in wanted}


def test_no_groups_where_they_would_do_nothing() -> None:
    rows = _kernel("group i in n { serial j in m { y[i, j] = x[i, j] } }")
    assert str(busy(rows.body[0], rows)) == "min(m, 1)"
    flat = _kernel("group i in (n*m + 15)//16 { serial j in 16 { y[i, j] = x[i, j] } }")
    assert busy(flat.body[0], flat) == 1


def test_only_a_long_loop_asks_and_only_about_what_may_be_none() -> None:
    facts = Facts({"h": (1, 8), "n": (0, None), "m": (0, None)})
    n, m, h = sym("n"), sym("m"), sym("h")
    assert guards(n, [m, h], facts, ("n", "m", "h")) == (m,)
    assert guards(h, [m], facts, ("n", "m", "h")) == ()
    assert guards(n, [m], facts, ("n",)) == ()


def test_scratch_that_only_its_statement_reads_is_no_effect() -> None:
    """A block of rows is made for the columns that follow: where there are none, of no row."""
    fill = "group b in n { serial k in 8 { rows[b, k] = 1.0:f32 } serial j in m { y[b, j] = rows[b, 3] } }"
    read = "serial i in n { s[i] = rows[i, 0] }"
    head = HEAD.strip() + " scratch (rows: f32[n, 8])\n"
    alone = parse_kernel(f"{head}{{\n{fill}\n}}")
    assert needed_at_all(alone.body[0], alone) == {sym("n"), sym("m")}
    assert str(busy(alone.body[0], alone)) == "min(m, 1)"
    after = parse_kernel(f"{head}{{\n{fill}\n{read}\n}}")
    assert needed_at_all(after.body[0], after) == {sym("n")}
    assert busy(after.body[0], after) == 1
