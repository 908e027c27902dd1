"""A seed in, a drawn model and its feeds out: families of graphs (nets, chains of attention, soups)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
from fuzz_domains import DOMAINS
from fuzz_graph import Found, Graph, TooLarge, Value
from fuzz_moves import MOVES
from fuzz_quant import QUANTISED
from fuzz_rare import RARE
from fuzz_regions import FLOW
from fuzz_steps import STEPS, Step, conv, matmul, norm, pool, softmax, transposed_product, unary

DTYPES = ("float32",) * 12 + (
    "int64", "int64", "int32", "bool", "float64", "float16", "float16", "int8", "uint8", "int16", "uint16",
)  # fmt: skip
ALL = (*STEPS, *MOVES, *((1, s) for _, s in (*RARE, *DOMAINS, *FLOW)))
DIMS: tuple[int | str | None, ...] = ("N", "M", "K", "N", "M", 1, 2, 3, 4, 8, 5, "2*N", "N+1", 16)


def draw(seed: int, without: frozenset[str] = frozenset()) -> Found | None:
    """The model of that seed, free of some op types; None when nothing could be drawn."""
    g = Graph(seed, without)
    family: Sequence[Callable[[Graph], None]] = (soup, soup, soup, net, net, chain, bytes_, flow, rare, rare)
    g.step = _any_step
    g.pick(family)(g)
    if not g.nodes:
        return None
    return g.done()


def _any_step(g: Graph, x: Value) -> list[Value]:
    """One drawn step."""
    return step(g, (*STEPS, *MOVES), x)


def step(g: Graph, steps: Sequence[tuple[int, Step]], x: Value) -> list[Value]:
    """One of the steps, by weight."""
    weights = np.array([w for w, _ in steps], float)
    chosen: Step = steps[int(g.rng.choice(len(steps), p=weights / weights.sum()))][1]
    return chosen(g, x)


def recent(g: Graph) -> Value:
    """One of the last values, mostly."""
    last = g.values[-4:] if g.chance(0.7) else g.values
    chosen: Value = g.pick(last)
    return chosen


def grow(
    g: Graph, steps: Sequence[tuple[int, Step]], count: int, of: Callable[[Graph], Value] = recent
) -> None:
    """count steps that ONNX Runtime accepts, or so many tries."""
    done = 0
    for _ in range(count * 4):
        if done == count:
            return
        with contextlib.suppress(TooLarge):
            done += bool(step(g, steps, of(g)))


def soup(g: Graph) -> None:
    """Any ops on tensors of any rank and dtype."""
    symbols = [g.pick(DIMS) for _ in range(6)]
    for _ in range(g.number(1, 3)):
        rank = g.number(0, 5)
        dims = [g.pick(symbols) for _ in range(rank)]
        if rank and g.chance(0.05):
            dims[0] = None
        g.feed(g.pick(DTYPES), dims, g.chance(0.6))
    grow(g, ALL, g.number(2, 12))


def net(g: Graph) -> None:
    """Channels first: convolutions, pools, norms, joins, resizes."""
    spatial = g.number(1, 3) if g.chance(0.3) else 2
    dims: list[int | str | None] = [g.pick(("N", 1, 2)), g.pick((1, 3, 4, 8, 16)), *("M", "K", 6)[:spatial]]
    g.feed("float32", dims, g.chance(0.4))
    strong: tuple[tuple[int, Step], ...] = ((20, conv), (8, pool), (5, norm), (6, unary))

    def wide(g: Graph) -> Value:
        whole = [v for v in g.values if v.rank == spatial + 2]
        return g.pick(whole[-3:]) if whole and g.chance(0.85) else recent(g)

    grow(g, (*strong, *STEPS, *MOVES), g.number(3, 12), wide)


def chain(g: Graph) -> None:
    """Tokens: products, norms, softmax, transposes and reshapes."""
    g.feed("float32", [g.pick(("N", 1)), "M", g.pick((4, 8, 16, 24))], g.chance(0.3))
    strong: tuple[tuple[int, Step], ...] = (
        (14, matmul), (8, transposed_product), (6, softmax), (6, norm), (6, unary), (12, MOVES[0][1]),
        (12, MOVES[1][1]),
    )  # fmt: skip
    grow(g, (*strong, *STEPS, *MOVES), g.number(3, 12))


def bytes_(g: Graph) -> None:
    """Quantised tensors: convolutions, products and pools in integers, with floats between."""
    if g.chance(0.5):
        g.feed("float32", [g.pick(("N", 1, 2)), g.pick((1, 3, 4, 8)), "M", "K"], g.chance(0.2))
    else:
        g.feed("float32", [g.pick(("N", 1)), "M", g.pick((4, 8, 16))], g.chance(0.2))
    if g.chance(0.5):
        x = g.inputs[0]
        g.feed(g.pick(("uint8", "int8")), x[1], True)
    strong = tuple((w * 5, s) for w, s in QUANTISED)
    grow(g, (*strong, *STEPS, *MOVES), g.number(3, 10))


def flow(g: Graph) -> None:
    """Branches, loops, sequences, recurrent ops, attention."""
    g.feed("float32", [g.pick(("N", 1, 2)), g.pick(("M", 3)), g.pick((4, 8, 16))], g.chance(0.6))
    if g.chance(0.5):
        g.feed(g.pick(DTYPES), [g.pick(("N", "M", 2)) for _ in range(g.number(0, 3))], g.chance(0.6))
    strong = tuple((w * 6, s) for w, s in FLOW)
    grow(g, (*strong, *STEPS, *MOVES), g.number(2, 8))


def rare(g: Graph) -> None:
    """Ops that few models have, and sizes that data decides."""
    for _ in range(g.number(1, 2)):
        shape = g.pick((["N", "M", 4], ["N", 3, "M", "K"], ["N", 5], ["N"], [2, 2], ["M", "N", 2]))
        g.feed(g.pick(("float32", "float32", "float32", *DTYPES)), shape, g.chance(0.6))
    strong = tuple((w * 6, s) for w, s in (*RARE, *DOMAINS))
    grow(g, (*strong, *STEPS, *MOVES), g.number(2, 8))
