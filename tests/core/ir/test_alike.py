"""Equal parts of expressions become one object; what differs in anything stays apart."""

from __future__ import annotations

import pytest

from smelt.core.dtype import f32, i64
from smelt.core.ir.alike import alike
from smelt.core.ir.kernel import Call, Expr, children
from smelt.core.ir.text import parse_expr, print_expr

SCOPE = {"x": f32, "y": f32, "idx": i64}


def expr(text: str) -> Expr:
    return parse_expr(text, SCOPE)


@pytest.mark.parametrize(
    "part",
    [
        "x[i]",
        "exp(x[i])",
        "(x[i] if (0 <= i < n) else -1.0:f32)",
        "(sum k in n { x[k] * y[k + i] })",
        "(let g = idx[i] in 0 .. n { x[g] })",
        "[i + 1]:f32",
    ],
)
def test_equal_parts_are_one_object(part: str) -> None:
    """Within an expression and between two, which mean what they did."""
    text = f"{part} * {part}"
    one = alike()
    a, b = one(expr(text)), one(expr(text))
    assert isinstance(a, Call) and a is b
    assert a.args[0] is a.args[1]
    assert print_expr(a) == print_expr(expr(text)) and a == expr(text)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("0.0:f32", "-0.0:f32"),
        ("1:i64", "1:i32"),
        ("x[i]", "x[j]"),
        ("(x[i] if (0 <= i < n) else 0.0:f32)", "(x[i] if (0 <= i < m) else 0.0:f32)"),
        ("(sum k in n { x[k] })", "(max k in n { x[k] })"),
        ("(sum k in n { x[k] })", "(sum k in m { x[k] })"),
        ("(let g = idx[i] in 0 .. n { x[g] })", "(let g = idx[i] in 0 .. m { x[g] })"),
    ],
)
def test_others_stay_apart(first: str, second: str) -> None:
    one = alike()
    assert one(expr(first)) is not one(expr(second))
    assert print_expr(one(expr(second))) == print_expr(expr(second))


def test_a_shared_part_is_visited_once() -> None:
    """Squared 60 times: a walk of the tree would not end."""
    e = expr("x[i]")
    for _ in range(60):
        e = Call("mul", (e, e), f32)
    made = alike()(e)
    for _ in range(60):
        left, right = children(made)
        assert left is right
        made = left
