"""Rewriting: substitution respects scopes, renaming keeps the meaning, free symbols are what is free."""

from __future__ import annotations

import pytest
import strategies as gen
from hypothesis import given, settings
from ir_samples import gemm, gpu_gemm, matmul

from smelt.core.dim import Dim, sym, to_dim
from smelt.core.dtype import f32, i64
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Buffer, Call, Expr, Load, Stmt, Store
from smelt.core.ir.rewrite import (
    bound_symbols,
    free_symbols,
    fresh_name,
    freshen,
    map_expr,
    map_expr_dims,
    map_stmt_dims,
    map_stmt_exprs,
    map_stmts,
    substitute_expr,
    substitute_stmt,
)
from smelt.core.ir.text import parse_expr, parse_stmt, print_expr, print_stmt

SCOPE = {"x": f32, "y": f32, "w": f32, "idx": i64}


def expr(text: str) -> Expr:
    return parse_expr(text, SCOPE)


def test_substitution_reaches_every_dim() -> None:
    e = expr("sum k in n { (x[i + k] if (0 <= i < n) else [i]:f32) } + let g = idx[i] in i .. n { x[g + i] }")
    wanted = expr("sum k in 7 { (x[k + 2*j] if (0 <= 2*j < 7) else [2*j]:f32) }"
                  " + let g = idx[2*j] in 2*j .. 7 { x[g + 2*j] }")
    assert substitute_expr(e, {"i": 2 * sym("j"), "n": 7}) == wanted


def test_bound_variables_shadow() -> None:
    e = expr("sum k in k { x[k] } + let g = idx[g] in 0 .. g { x[g] }")
    wanted = expr("sum k in 3 { x[k] } + let g = idx[4] in 0 .. 4 { x[g] }")
    assert substitute_expr(e, {"k": 3, "g": 4}) == wanted


def test_capture_is_caught() -> None:
    e = expr("sum k in n { x[k + i] }")
    with pytest.raises(AssertionError, match="captured"):
        substitute_expr(e, {"i": sym("k")})
    renamed = freshen(Store("y", (), e), {"k"})
    found = print_stmt(substitute_stmt(renamed, {"i": sym("k")}), SCOPE)
    assert found.strip() == "y[] = sum k1 in n { x[k + k1] }"


def test_fresh_variables_do_not_catch_free_ones() -> None:
    s = parse_stmt("serial i4 in n { y[i1 + i4] = sum i5 in 3 { x[i2 + i5] } }", SCOPE)
    wanted = parse_stmt("serial i3 in n { y[i1 + i3] = sum i6 in 3 { x[i2 + i6] } }", SCOPE)
    assert freshen(s, {"i4", "i5"}) == wanted


def test_substitution_in_statements() -> None:
    s = parse_stmt(
        """block let (a = idx[n] in 0 .. n, b = idx[a] in a .. n) if (0 <= a < n) {
             register t: f32[r]
             tiles group (i, r) in n : greedy (4, 1) {
               register u: f32[r]
               y[i + n] = x[r + a] if (0 <= i < n)
             }
           }""", SCOPE,
    )
    wanted = parse_stmt(
        """block let (a = idx[5] in 0 .. 5, b = idx[a] in a .. 5) if (0 <= a < 5) {
             register t: f32[9]
             tiles group (i, r) in 5 : greedy (4, 1) {
               register u: f32[r]
               y[i + 5] = x[r + a] if (0 <= i < 5)
             }
           }""", SCOPE,
    )
    assert substitute_stmt(s, {"n": 5, "r": 9, "a": 7}) == wanted


def test_free_and_bound() -> None:
    s = parse_stmt(
        "block let (a = idx[p] in 0 .. q) { serial i in a {"
        " y[i] = sum k in i { x[k + z] } if (0 <= u < 3) } }",
        SCOPE,
    )
    assert free_symbols(s) == {"p", "q", "z", "u"}
    assert bound_symbols(s) == {"a", "i", "k"}
    for k in (matmul(), gemm(), gpu_gemm()):
        assert free_symbols(k) == frozenset()


def test_statements_are_spliced() -> None:
    s = parse_stmt("serial i in n { y[i] = x[i] w[i] = x[i] }", {**SCOPE})

    def twice(s: Stmt) -> Stmt | tuple[Stmt, ...]:
        if not isinstance(s, Store):
            return s
        return (s, s) if s.buffer == "y" else ()

    (found,) = map_stmts((s,), twice)
    assert found == parse_stmt("serial i in n { y[i] = x[i] y[i] = x[i] }", SCOPE)


def test_fresh_names() -> None:
    assert fresh_name("k", {"a"}) == "k"
    assert fresh_name("k", {"k", "k1"}) == "k2"
    assert fresh_name("k1", {"k1"}) == "k2"
    assert fresh_name("12", {"12"}) == "121"


@given(gen.exprs())
@settings(max_examples=60, deadline=None)
def test_maps_that_change_nothing_change_nothing(e: Expr) -> None:
    assert map_expr(e, lambda x: x) == e
    assert map_expr_dims(e, lambda d: d) == e
    assert substitute_expr(e, {"not there": 1}) == e


@given(gen.stmts())
@settings(max_examples=60, deadline=None)
def test_statement_maps_that_change_nothing_change_nothing(s: Stmt) -> None:
    assert map_stmt_dims(s, lambda d: d) == s
    assert map_stmt_exprs(s, lambda e: e) == s
    assert map_stmts((s,), lambda x: x) == (s,)
    assert substitute_stmt(s, {"not there": 1}) == s


@given(gen.samples())
@settings(max_examples=60, deadline=None)
def test_renaming_keeps_the_meaning(s: gen.Sample) -> None:
    k = s.kernel
    body = tuple(freshen(x, bound_symbols(k.body)) for x in k.body)
    assert not bound_symbols(body) & bound_symbols(k.body)
    a, b = run_kernel(k, s.dims, s.inputs), run_kernel(k.with_(body=body), s.dims, s.inputs)
    assert a[0].tobytes() == b[0].tobytes()


@given(gen.samples())
@settings(max_examples=60, deadline=None)
def test_substituting_dims_keeps_the_meaning(s: gen.Sample) -> None:
    k = s.kernel

    def fixed(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return tuple(d.substitute(s.dims) for d in shape)

    def buffers(xs: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(Buffer(b.name, b.dtype, fixed(b.shape), b.space) for b in xs)

    body = tuple(substitute_stmt(x, s.dims) for x in k.body)
    assert not free_symbols(body)
    static = k.with_(dims=(), inputs=buffers(k.inputs), outputs=buffers(k.outputs), body=body)
    a, b = run_kernel(k, s.dims, s.inputs), run_kernel(static, {}, s.inputs)
    assert a[0].tobytes() == b[0].tobytes()


def test_sums_of_dims_do_not_depend_on_order() -> None:
    """Printing is canonical whatever the order of construction."""
    a = Load("x", (sym("i") + sym("j"), to_dim(2) * sym("n")), f32)
    b = Load("x", (sym("j") + sym("i"), sym("n") + sym("n")), f32)
    assert print_expr(Call("add", (a, b), f32)) == print_expr(Call("add", (b, a), f32))
    assert print_stmt(Store("y", (), a)) == print_stmt(Store("y", (), b))
