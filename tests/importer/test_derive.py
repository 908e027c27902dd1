"""What formulas say of elements that are sizes is what the references compute, whatever the sizes are."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from op_cases import Row, arrays, concrete, environments, evaluated, infer, rows

from smelt.core.dim import Dim, TooLarge, sym, to_dim
from smelt.core.dtype import f32, f64, i32, i64
from smelt.core.ir.graph import Symbol, TensorType
from smelt.core.ops import OPS
from smelt.core.ops.infer import Engine
from smelt.importer.derive import derived
from smelt.importer.known import Element, Equality, Known, Ratio, from_array, full, unknown

SHIFT = 50
"""Sizes are not negative: s - 50 may be."""
MOST = 64
DRAWS, ENOUGH = 3, 32
"""How often a case is drawn: until so many elements of it were compared, at most so often."""
CARRIED = (
    "add", "sub", "mul", "div", "mod", "fmod", "pow", "min", "max", "equal", "not_equal", "less",
    "less_equal", "greater", "greater_equal", "and", "or", "not", "neg", "abs", "floor", "ceil", "round",
    "relu", "clip", "reciprocal", "where", "cast", "reshape", "broadcast_to", "slice", "concat",
    "gather", "gather_elements", "tile", "transpose", "pad", "iota", "from_dims", "reduce_sum",
    "reduce_prod", "reduce_max", "reduce_min",
)  # fmt: skip
"""What exporters write between a shape and where it is used, and more."""


every_row = cache(rows)


def rule_of(name: str) -> list[Row]:
    named = [r for r in every_row() if r.op.name == name]
    return [r for r in named if all(t is None or not t.dtype.coded for t in r.types)]


def whole(a: Any) -> Any:
    """Floats as halves of integers, which are fractions of sizes."""
    return a if a is None or a.dtype.kind != "f" else (np.round(a * 2) / 2).astype(a.dtype)


def as_sizes(a: Any, t: TensorType, rng: np.random.Generator, values: dict[str, int]) -> Known:
    """The elements, some of them as sizes."""
    known = from_array(a)
    flat: list[Element] = list(known.reshape(-1))
    for k, e in enumerate(flat):
        number = e if isinstance(e, Dim) else e.num if isinstance(e, Ratio) else None
        if number is None or rng.random() < 0.5 or t.dtype not in (i64, i32, f32, f64):
            continue
        name = f"s{len(values)}"
        values[name] = number.const + SHIFT
        flat[k] = sym(name) - SHIFT if isinstance(e, Dim) else Ratio(sym(name) - SHIFT, e.den)  # type: ignore[union-attr]
    return full(known.shape, flat)


def value(e: Element, env: Mapping[str, int]) -> Any:
    if isinstance(e, Ratio):
        return e.num.evaluate(env) / e.den.evaluate(env)
    if isinstance(e, Equality):
        return e.a.evaluate(env) == e.b.evaluate(env)
    return e.evaluate(env) if isinstance(e, Dim) else e


def carried(row: Row, env: Mapping[str, int], rng: np.random.Generator) -> int:
    """How many elements of a case's result are known; each is what the reference says."""
    inputs = [whole(a) for a in arrays(row, env)]
    types = concrete(tuple(t or TensorType(f32, ()) for t in row.types), env)
    attrs, (out,) = evaluated(row.case.attrs, env), concrete(infer(row), env)
    if unknown(out) is None or any(a is not None and a.size > MOST for a in inputs):
        return 0
    values: dict[str, int] = {}
    known = [None if a is None else as_sizes(a, t, rng, values) for a, t in zip(inputs, types, strict=True)]
    given = [None if a is None else t for a, t in zip(inputs, types, strict=True)]
    engine = Engine([Symbol(s, low=0) for s in values])
    try:
        found = derived(engine, row.op, known, given, attrs, out)
    except TooLarge:
        return 0
    assert found is not None
    with np.errstate(all="ignore"):
        (want,) = row.op.ref(inputs, attrs, [out])
    pairs = [
        (value(e, values), w)
        for e, w in zip(found.reshape(-1), want.reshape(-1), strict=True)
        if e is not None
    ]
    for got, w in pairs:
        assert got == w or abs(got - w) <= 1e-5 * (1 + abs(w)), (row.name, env, got, w)
    return len(pairs)


@pytest.mark.parametrize(
    "name", [n for n, op in OPS.items() if callable(op.compute) and op.pure and not n.startswith("random")]
)
def test_what_is_known_is_so(name: str) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    count = 0
    for row in rule_of(name):
        for env in environments(row):
            compared = 0
            for _ in range(DRAWS):
                compared += carried(row, env, rng) if compared < ENOUGH else 0
            count += compared
    assert count or name not in CARRIED


def test_the_carried_ones_are_there() -> None:
    assert all(callable(OPS[name].compute) for name in CARRIED)


def one(name: str, *operands: Any, out: TensorType, **attrs: Any) -> list[str]:
    """The result's elements, as text, of operands of the result's type but for their extents."""
    known = [full((len(o),), [None if e is None else to_dim(e) for e in o]) for o in operands]
    types = [TensorType(out.dtype, (to_dim(len(o)),)) for o in operands]
    found = derived(Engine([Symbol("n"), Symbol("m")]), OPS[name], known, types, attrs, out)
    assert found is not None
    return [str(e) for e in found.reshape(-1)]


def test_what_is_unknown_stays_so() -> None:
    n, three = sym("n"), TensorType(i64, (to_dim(3),))
    assert one("concat", [n, None], [4], out=three, axis=0) == ["n", "None", "4"]
    assert one("add", [n, None, 1], [n, n, 2], out=three) == ["2*n", "None", "3"]
    assert one("gather", [n, n + 1], [1, -1, None], out=three, axis=0) == ["n + 1", "n + 1", "None"]
    assert one("mul", [n, 2, n], [0, 3, None], out=three) == ["0", "6", "None"]


def test_a_type_that_does_not_hold_it() -> None:
    """Neither a number beyond the type nor, in types of few bits, a size."""
    from smelt.core.dtype import u8

    assert one("add", [200, sym("n")], [100, 1], out=TensorType(u8, (to_dim(2),))) == ["None", "None"]
