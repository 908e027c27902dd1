"""Dims: ring laws, canonical form against evaluation, and text."""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from dim_strategies import DIMS, ENVS, PAIRS, Env, Pair
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.core.dim import (
    YES,
    Dim,
    Facts,
    FloorDiv,
    Max,
    Min,
    Mod,
    SymbolAtom,
    align_up,
    ceildiv,
    dim_from_param,
    dmax,
    dmin,
    parse_dim,
    product,
    sym,
    to_dim,
)
from smelt.core.dim.expr import atom_dim

n, m, h, w, a, b, c = map(sym, "nmhwabc")
batch, seq = sym("batch"), sym("seq")

# -- canonical form


@settings(max_examples=1500, deadline=None)
@given(PAIRS, st.lists(ENVS, min_size=4, max_size=4))
def test_canonical_form_means_what_was_written(pair: Pair, envs: list[Env]) -> None:
    dim, want = pair
    for env in envs:
        assert dim.evaluate(env) == want(env)


@settings(max_examples=400, deadline=None)
@given(DIMS, DIMS, DIMS)
def test_ring_laws(x: Dim, y: Dim, z: Dim) -> None:
    assert x + y is y + x
    assert x * y is y * x
    assert (x + y) + z is x + (y + z)
    assert (x * y) * z is x * (y * z)
    assert x * (y + z) is x * y + x * z
    assert x - y is -(y - x)
    assert x + 0 is x and x * 1 is x and x * 0 == 0 and x - x == 0
    assert dmin(x, y) is dmin(y, x) and dmax(x, y) is dmax(y, x)


@settings(max_examples=400, deadline=None)
@given(DIMS, st.integers(1, 12), st.integers(-3, 3))
def test_division_laws(x: Dim, d: int, k: int) -> None:
    assert d * (x // d) + x % d is x
    assert (x * d) // d is x
    assert (x + k * d) // d is x // d + k
    assert (x + k * d) % d is x % d


@settings(max_examples=600, deadline=None)
@given(DIMS)
def test_text_comes_back(x: Dim) -> None:
    assert parse_dim(str(x)) is x
    assert pickle.loads(pickle.dumps(x)) is x
    assert copy.deepcopy(x) is x


@settings(max_examples=400, deadline=None)
@given(DIMS, ENVS)
def test_terms_mean_the_dim(x: Dim, env: Env) -> None:
    def value(atom: Any) -> int:
        if isinstance(atom, SymbolAtom):
            return env[atom.name]
        if isinstance(atom, Min | Max):
            return (min if isinstance(atom, Min) else max)(whole(y) for y in atom.args)
        if isinstance(atom, FloorDiv):
            return whole(atom.a) // whole(atom.b)
        assert isinstance(atom, Mod)
        return whole(atom.a) % whole(atom.b)

    def whole(dim: Dim) -> int:
        return sum(
            k * int(np.prod([value(t) ** p for t, p in mono], dtype=object)) for k, mono in dim.terms()
        )

    assert whole(x) == x.evaluate(env)
    for atom in (t for _, mono in x.terms() for t, _ in mono):
        alone = atom_dim(atom)
        assert alone.evaluate(env) == value(atom)
        low, high = Facts({name: (v, v) for name, v in env.items()}).bounds(alone)
        assert (low is None or low <= value(atom)) and (high is None or value(atom) <= high)


@settings(max_examples=300, deadline=None)
@given(PAIRS, DIMS, ENVS)
def test_substitute_agrees_with_evaluate(pair: Pair, value: Dim, env: Env) -> None:
    dim, want = pair
    inner = {**env, "a": value.evaluate(env)}
    assert dim.substitute({"a": value}).evaluate(env) == want(inner)
    assert dim.substitute(env).const == want(env)


@settings(max_examples=300, deadline=None)
@given(DIMS, ENVS)
def test_linear_splits(x: Dim, env: Env) -> None:
    split = x.linear("a")
    if split is not None:
        coef, rest = split
        assert "a" not in coef.symbols | rest.symbols
        assert coef * a + rest is x


def test_polynomials_agree_with_sympy() -> None:
    import sympy  # type: ignore[import-untyped]  # a second, of one of the processes alone

    rng = random.Random(7)
    names = sympy.symbols("n m a")
    for _ in range(60):
        ours = to_dim(rng.randint(-3, 3))
        theirs = sympy.Integer(ours.const)
        for _ in range(4):
            i, k, op = rng.randrange(3), rng.randint(-4, 4), rng.choice("+*-")
            mine, yours = sym(str(names[i])) + k, names[i] + k
            ours = {"+": ours + mine, "*": ours * mine, "-": ours - mine}[op]
            theirs = {"+": theirs + yours, "*": theirs * yours, "-": theirs - yours}[op]
        poly = sympy.Poly(sympy.expand(theirs), *names)
        want = {k: int(v) for k, v in poly.terms() if v}
        got = {
            tuple({t.name: p for t, p in mono if isinstance(t, SymbolAtom)}.get(str(s), 0) for s in names): k
            for k, mono in ours.terms()
        }
        assert got == want


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9), st.integers(1, 9))
def test_nested_divisions_merge(i: int, j: int, k: int, d: int, e: int) -> None:
    x = i * a + j * b + k
    assert (x // d) // e is x // (d * e)
    assert (x // d) // w is x // (d * w)
    assert (x // w) // d is x // (d * w)


SAME = [
    ((8 * n) // 8, n),
    ((8 * n + 3) // 8, n),
    ((4 * a) // 8, a // 2),
    ((n // 2) // 3, n // 6),
    ((a // n) // m, a // (m * n)),
    ((n // 2 + m) // 3, (n + 2 * m) // 6),
    ((4 * n + b) % 4, b % 4),
    (a % 1, 0),
    (a // 1, a),
    (4 * (a // 4) + a % 4, a),
    ((a * n) // n, a),
    ((a * n) % n, 0),
    ((batch * seq * 384) // (batch * seq), 384),
    ((batch * seq * 384) // (12 * batch * 32), seq),
    ((batch * seq * 384) // (batch * seq * 12), 32),
    (((n + 1) * m * 8) // ((n + 1) * 8), m),
    (((n + m) * seq) // (n + m), seq),
    ((a * (n + 1) + b) // (n + 1) - b // (n + 1), a),
    ((n // 2) % 3, (n % 6) // 2),
    ((a % 12) % 4, a % 4),
    (-(-n // 4), (n + 3) // 4),
    (ceildiv(ceildiv(n, 4), 2), (n + 7) // 8),
    (ceildiv(n, m), (n + m - 1) // m),
    (a // -4, (-a) // 4),
    (a % -4, -((-a) % 4)),
    (dmin(a, a + 1), a),
    (dmax(a, a + 1, 3, 5), dmax(a + 1, 5)),
    (dmin(a, dmin(b, 4), 7), dmin(4, b, a)),
    (dmin(a, a), a),
    (dmin(a, dmax(a, b)), a),
    (dmin(a + c, b + c), dmin(a, b) + c),
    (dmin(4 * a, 8), 4 * dmin(a, 2)),
    (-dmin(-a, -b), dmax(a, b)),
    (dmin(dmin(a, b) + 1, c), dmin(a + 1, b + 1, c)),
    (align_up(n, 1), n),
    ((h + 2 - 3) // 2 + 1, (h + 1) // 2),
    (product([]), 1),
    (product([n, 2, n]), 2 * n * n),
]


@pytest.mark.parametrize(("x", "y"), SAME, ids=[f"{i}" for i in range(len(SAME))])
def test_equal_expressions_are_one_object(x: Dim, y: Dim | int) -> None:
    assert x is to_dim(y)
    assert x == y and hash(x) == hash(y) and str(x) == str(y)


TEXT = [
    (4 * batch * seq + (h + 1) // 2 - dmin(a, b) % 3, "4*batch*seq + (h + 1)//2 - min(a, b) % 3"),
    (-((n + 1) // 2) + 1, "-((n + 1)//2) + 1"),
    (3 * (n % 4), "3*(n % 4)"),
    (n // 32 % 16, "(n//32) % 16"),
    ((n % 4) * (m % 8), "(m % 8)*(n % 4)"),
    (n * n - 1, "n*n - 1"),
    (to_dim(0), "0"),
    (to_dim(-3), "-3"),
    (dmax(a, b, 2), "max(a, b, 2)"),
    (n % m, "n % m"),
    (n // (2 * m), "n//(2*m)"),
    (align_up(n, 4), "4*((n + 3)//4)"),
    (sym("p2o.Dyn.0") * 2, "2*p2o.Dyn.0"),
    (sym("p2o.Dyn 0") + sym("min"), "`min` + `p2o.Dyn 0`"),
    (sym("a`b\\\n"), "`a\\`b\\\\\\n`"),
    (sym(""), "``"),
]


@pytest.mark.parametrize(("dim", "text"), TEXT, ids=[t for _, t in TEXT])
def test_text(dim: Dim, text: str) -> None:
    assert str(dim) == text
    assert parse_dim(text) is dim


@given(st.text(max_size=8))
def test_any_name_prints_and_parses(name: str) -> None:
    assert parse_dim(f"{2 * sym(name) + 1}") is 2 * sym(name) + 1


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("floor(h/2) + 1", h // 2 + 1),
        ("floor(h/2 - 1/2) + 1", (h - 1) // 2 + 1),
        ("ceil(h/2)", (h + 1) // 2),
        ("ceil((h + 1)/4)", (h + 4) // 4),
        ("h/2*3", h // 2 * 3),
        ("Max(1, h)", dmax(1, h)),
        ("Mod(h, 4)", h % 4),
        ("FloorDiv(h, 4)", h // 4),
        ("-h - -3", 3 - h),
        ("-h//2", (-h) // 2),
        ("n**2", n * n),
        ("2*(n + 3)", 2 * n + 6),
        (" 7 ", to_dim(7)),
    ],
)
def test_parse(text: str, want: Dim) -> None:
    assert parse_dim(text) is want


@pytest.mark.parametrize(
    "text",
    ["", " ", "a b", "2a", "a +", "(a", "a)", "f(a)", "a//0", "a % (b - b)", "1.5*a", "a**b", "a**99",
     "min()", "?", "`a", "floor(a, b)", "Mod(a)", "ceil(a/0)", "(" * 500 + "a" + ")" * 500, "a" * 20000,
     "*".join(["(a + b + c + n + m + h + w)"] * 12)],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="dimension expression"):
        parse_dim(text)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("batch", batch),
        ("p2o.DynamicDimension.0", sym("p2o.DynamicDimension.0")),
        ("?", sym("?")),
        ("unk__123", sym("unk__123")),
        ("batch-size", sym("batch-size")),
        ("batch - 1", batch - 1),
        ("N/A", sym("N/A")),
        ("h/2", h // 2),
        ("past_sequence_length + 1", sym("past_sequence_length") + 1),
        ("2*batch", 2 * batch),
        ("floor(h/2) + 1", h // 2 + 1),
        ("-1", sym("-1")),
        ("dim 0", sym("dim 0")),
        ("None::x", sym("None::x")),
        ("h//0", sym("h//0")),
        ("8", to_dim(8)),
    ],
)
def test_dim_from_param(text: str, want: Dim) -> None:
    assert dim_from_param(text) is want


def test_dim_from_blank_param() -> None:
    with pytest.raises(ValueError, match="blank"):
        dim_from_param("  ")


# -- behaviour as a Python value


def test_plays_with_ints() -> None:
    assert n + 1 == 1 + n and 2 * n == n * 2 and 5 - n == -(n - 5)
    two: Any = np.int64(2)  # its annotations know no Dim
    assert two + n is n + 2 and two * n is 2 * n and n // two is n // 2 and two - n is 2 - n
    assert two // to_dim(2) == 1 and two % to_dim(2) == 0 and to_dim(2) == two
    assert 7 % to_dim(4) == 3 and 12 // n is to_dim(12) // n
    assert to_dim(3) == 3 and hash(to_dim(3)) == hash(3)
    assert {3: "x"}[to_dim(3)] == "x"  # type: ignore[index]
    assert to_dim(True) == 1 and str(to_dim(True)) == "1"
    assert n != 3 and n != "n" and n != 1.5
    assert to_dim(5).const == 5 and n.const_or_none is None and not n.is_const
    assert (n - n).const == 0 and to_dim(0).is_const
    big = 10**40
    assert (n * big) // big is n


def test_refuses_what_has_no_meaning() -> None:
    with pytest.raises(TypeError, match="truth value"):
        bool(n)
    with pytest.raises(TypeError, match="not a bool"):
        bool(YES)
    with pytest.raises(TypeError):
        n < m  # type: ignore[operator]  # noqa: B015
    with pytest.raises(TypeError):
        n + 1.5  # type: ignore[operator]
    with pytest.raises(TypeError):
        Dim()
    with pytest.raises(ZeroDivisionError):
        n // 0
    with pytest.raises(ZeroDivisionError):
        n % 0
    with pytest.raises(ZeroDivisionError):
        3 // (n - n)
    with pytest.raises(AssertionError):
        _ = n.const
    with pytest.raises(KeyError, match="m"):
        (n + m).evaluate({"n": 1})


def test_symbols_and_linear() -> None:
    x = 4 * batch * seq + (h + 1) // 2 - dmin(a, b) % w
    assert x.symbols == {"batch", "seq", "h", "a", "b", "w"}
    assert x.linear("batch") == (4 * seq, x - 4 * batch * seq)
    assert x.linear("h") is None and (n * n).linear("n") is None
    assert x.linear("zz") == (to_dim(0), x)


def test_same_text_under_any_hash_seed_and_order() -> None:
    code = (
        "from smelt.core.dim import *;import sys;names='nmhwabc';"
        "xs=[sym(c) for c in (names if sys.argv[1]=='1' else names[::-1])];s=dict(zip(names,map(sym,names)));"
        "n,m,h,w,a,b,c=(s[x] for x in names);"
        "print((n//2+m//2)//3+dmin(a*h+b,c*w,h//3)*n%m, (n//4+m//4+h)//5, Facts().with_index('a',n)"
        ".simplify((a+n*m*b)//n%m))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code, seed],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_one_object_across_threads() -> None:
    found: list[list[Dim]] = []

    def build() -> None:
        found.append([(sym(f"t{i}") * 3 + i) // 7 for i in range(300)])

    threads = [threading.Thread(target=build) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(x is y for other in found[1:] for x, y in zip(found[0], other, strict=True))


def test_speed_smoke() -> None:
    """No wall assertion: 60,000 operations and 500 proofs, of which a slow algebra would make minutes."""
    total = to_dim(0)
    for i in range(20_000):
        total = total + (batch * seq + i) - batch * (seq - 1)
    assert total.linear("seq") == (to_dim(0), total)
    for more in range(500):
        facts = Facts().with_index("i", 4).with_index("o", (m + more) // 4)
        assert facts.prove_lt(4 * sym("o") + sym("i"), m + more) is YES


def test_what_is_left_beside_a_common_part_is_absorbed_as_well() -> None:
    n = sym("n")
    assert dmin(n, dmax(n, 2 * n)) == n
    assert dmax(2 * n, dmin(2 * n, 4 * n)) == 2 * n
    assert parse_dim(str(dmin(3 * n + 1, 6 * n + 1, 1))) == dmin(3 * n + 1, 6 * n + 1, 1)
