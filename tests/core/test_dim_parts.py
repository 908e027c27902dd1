"""Long formulas as short texts: the same number for every reader, one that knows no Dim included."""

from __future__ import annotations

import random
import re

import pytest

from smelt.core.dim import Dim, Parts, asked_parts, dmax, dmin, named_dims, parse_dim, sym, to_dim
from smelt.core.dim.parts import LONGEST

NAMES = ("n", "h", "w", "p2o.DynamicDimension.0", "batch-size", "max", "p1", "p2_7")


def grown(rng: random.Random, depth: int) -> Dim:
    """A Dim of all kinds of atoms; at depth 4 of thousands of characters."""
    if depth == 0:
        return rng.randint(-9, 99) + rng.randint(-3, 7) * sym(rng.choice(NAMES))
    parts = [grown(rng, depth - 1) for _ in range(rng.randint(2, 4))]
    match rng.randrange(5):
        case 0:
            return dmax(*parts) * rng.randint(1, 64)
        case 1:
            return dmin(*parts) - parts[0]
        case 2:
            rounded = (parts[0] + rng.randint(0, 31)) // rng.choice((2, 3, 32))
            return rounded * sym(rng.choice(NAMES)) + parts[1]
        case 3:
            return parts[0] % rng.choice((2, 5, 16)) + 3 * parts[1]
        case _:
            return sum(parts[1:], parts[0] * sym(rng.choice(NAMES)))


def plain_value(text: str, env: dict[str, int]) -> int:
    """The value by Python's own arithmetic, which floors as Dims do."""
    spelt = re.sub(
        r"`([^`]*)`|[A-Za-z_][\w.]*",
        lambda m: m[0] if m[0] in ("max", "min") else f"v[{m[1] or m[0]!r}]",
        text,
    )
    return int(eval(spelt, {"__builtins__": {}, "max": max, "min": min, "v": env}))  # of our own text


@pytest.mark.parametrize("seed", range(40))
def test_short_texts_have_the_value_of_the_long_formula(seed: int) -> None:
    rng = random.Random(seed)
    dims = [grown(rng, 4) for _ in range(5)]
    dims += [dmax(*dims), dims[0] + 1]
    parts = Parts(dims)
    texts = [parts.text(d) for d in dims]
    rows = parts.rows
    assert rows and max(map(len, (*texts, *(t for _, t in rows)))) <= LONGEST
    assert not {name for name, _ in rows} & {*NAMES}
    named = named_dims(rows)
    assert [parse_dim(t, names=named) for t in texts] == dims, "put together again, they are the formulas"
    for _ in range(3):
        sizes = {name: rng.randint(0, 999) for name in NAMES}
        env = dict(sizes)
        for name, text in rows:
            env[name] = plain_value(text, env)
        assert [plain_value(t, env) for t in texts] == [d.evaluate(sizes) for d in dims]


def test_what_is_short_stays_as_it_is() -> None:
    dims = [sym("n") * 4 + sym("h") // 2, to_dim(0), sym("x" * 300)]
    parts = Parts(dims)
    assert [parts.text(d) for d in dims] == list(map(str, dims)) and parts.rows == []


def test_what_occurs_again_has_one_name() -> None:
    tile = sym("n") * ((sym("h") + 15) // 16) * ((sym("w") + 15) // 16)
    dims = [dmax(*(k * tile + sym(f"size_{k}") for k in range(2, 30))), 7 * tile]
    parts = Parts(dims)
    first = parts.text(dims[0])
    again = [text for _, text in parts.rows if "(h + 15)//16" in text]
    assert again == ["n*((h + 15)//16)*((w + 15)//16)"] and "h" not in first
    assert parts.text(dims[1]) == str(dims[1])


def test_powers_and_sums_are_divided_too() -> None:
    name = sym("a_name_of_an_axis_of_more_than_forty_characters")
    other = sym("another_name_of_an_axis_of_more_than_forty_characters")
    dims = [name * name * name * other * other * other, sum((name * k // 7 for k in range(2, 60)), name)]
    parts = Parts(dims)
    texts = [parts.text(d) for d in dims]
    assert max(map(len, (*texts, *(t for _, t in parts.rows)))) <= LONGEST
    assert [parse_dim(t, names=named_dims(parts.rows)) for t in texts] == dims


@pytest.mark.parametrize(
    ("rows", "said"),
    [([("p1", "n +")], "wanted"), ([("p1", "n"), ("p1", "h")], "called 'p1'"), ([("p1", "1//0")], "zero")],
)
def test_rows_that_are_no_parts_are_refused(rows: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        named_dims(rows)


def test_a_part_is_what_was_named_before_it() -> None:
    assert named_dims([("p1", "p2 + 1"), ("p2", "p1*n")])["p2"] == (sym("p2") + 1) * sym("n")


ROWS = [("p1", "n + 1"), ("p2", "p1*h"), ("p3", "(h + 7)//8"), ("p4", "p2 + p1")]


@pytest.mark.parametrize(
    ("texts", "asked"),
    [
        (["n", "h*w"], []),
        (["p2 + w"], ["p1", "p2"]),
        (["p3", "p1"], ["p1", "p3"]),
        (["`p4`"], ["p1", "p2", "p4"]),
    ],
)
def test_a_text_asks_for_what_it_names_and_what_that_names(texts: list[str], asked: list[str]) -> None:
    found = asked_parts(ROWS, texts)
    assert [name for name, _ in found] == asked
    assert [parse_dim(t, names=named_dims(found)) for t in texts] == [
        parse_dim(t, names=named_dims(ROWS)) for t in texts
    ]


def test_two_parts_of_one_name_are_refused_whoever_asks() -> None:
    with pytest.raises(ValueError, match="called 'p1'"):
        asked_parts([*ROWS, ("p1", "n")], ["n"])
