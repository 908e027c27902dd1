"""Tracing: guards reach every load that is read where they fail."""

from __future__ import annotations

from smelt.core.dim import sym, to_dim
from smelt.core.dtype import f32
from smelt.core.ir.kernel import Bound, Const, Load
from smelt.core.ir.text import print_expr
from smelt.core.ops.trace import guard_expr


def test_what_a_guarded_load_falls_back_to_is_guarded_as_well() -> None:
    i, n, m = sym("i"), sym("n"), sym("m")
    second = Load("b", (i - n,), f32)
    both = Load("a", (i,), f32, (Bound(to_dim(0), i, n),), second)
    e = guard_expr(both, (Bound(to_dim(0), i, m),), Const(0.0, f32))
    assert "(b[i - n] if (0 <= i < m))" in print_expr(e, {"a": f32, "b": f32})
