"""Random Dims, each with a plain function that it must agree with, and values for its symbols."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from smelt.core.dim import Dim, dmax, dmin, product, sym, to_dim

FREE = "ab"  # any integer
SIZES = "nm"  # at least 1, so they may divide

Env = dict[str, int]
Pair = tuple[Dim, Callable[[Env], int]]  # a Dim and what it must evaluate to


def _leaf() -> st.SearchStrategy[Pair]:
    def symbol(name: str) -> Pair:
        return sym(name), lambda env: env[name]

    def number(k: int) -> Pair:
        return to_dim(k), lambda env: k

    return st.sampled_from(FREE + SIZES).map(symbol) | st.integers(-6, 6).map(number)


def _divisor() -> st.SearchStrategy[Pair]:
    def build(parts: tuple[int, str, int]) -> Pair:
        k, names, extra = parts
        size = product(map(sym, names)) * k + extra
        return size, lambda env: k * int(np.prod([env[x] for x in names], dtype=int)) + extra

    sizes = st.tuples(st.integers(1, 4), st.sampled_from(["n", "m", "nm", "nn"]), st.integers(0, 2)).map(
        build
    )
    numbers = st.integers(-9, 9).filter(bool).map(lambda k: (to_dim(k), lambda env: k))
    return numbers | sizes


def _grow(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    def ring(parts: tuple[str, Pair, Pair]) -> Pair:
        op, (x, f), (y, g) = parts
        made: dict[str, Pair] = {
            "+": (x + y, lambda env: f(env) + g(env)),
            "-": (x - y, lambda env: f(env) - g(env)),
            "*": (x * y, lambda env: f(env) * g(env)),
            "min": (dmin(x, y), lambda env: min(f(env), g(env))),
            "max": (dmax(x, y), lambda env: max(f(env), g(env))),
        }
        return made[op]

    def divide(parts: tuple[bool, Pair, Pair]) -> Pair:
        floor, (x, f), (y, g) = parts
        if floor:
            return x // y, lambda env: f(env) // g(env)
        return x % y, lambda env: f(env) % g(env)

    rings = st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner).map(ring)
    return rings | st.tuples(st.booleans(), inner, _divisor()).map(divide)


PAIRS = st.recursive(_leaf(), _grow, max_leaves=7)
DIMS = PAIRS.map(lambda pair: pair[0])
ENVS = st.fixed_dictionaries(
    {**dict.fromkeys(FREE, st.integers(-9, 9)), **dict.fromkeys(SIZES, st.integers(1, 5))}
)
