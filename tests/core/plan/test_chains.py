"""Launches of a program become chains, each of them a part of them a few times at most."""

from __future__ import annotations

from collections import Counter

import pytest

from smelt.core.dim import sym, to_dim
from smelt.core.ir.text import parse_kernel
from smelt.core.plan.chains import ROW_PARTS, Chains, find_chains
from smelt.core.plan.program import Address, Branch, Entry, Launch
from smelt.targets.opencl.machine import MACHINE

KERNEL = (
    "kernel @{name}(n: dim in 0..*, x: f32[n, 8]) -> (y: f32[n, 8])"
    " {{ group i in n {{ lane j in 8 {{ y[i, j] = x[i, j] + 1.0: f32 }} }} }}"
)


def at(offset: int, base: str = "arena", number: int = 0) -> Address:
    return Address(base, number, to_dim(offset))  # type: ignore[arg-type]


def found(*arms: list[tuple[str, Address, Address, str]], names: str) -> Chains:
    """Chains of arms of a branch, each launch with its kernel, what it reads and writes, and its size."""
    kernels = {name: parse_kernel(KERNEL.format(name=name)) for name in names}
    steps = [
        [Launch(names.index(k), (x, y), (sym(n),), sym(n)) for k, x, y, n in arm] for arm in (*arms, [], [])
    ]
    rows = [Entry(name, 0, 1) for name in names]
    branches = [Branch(at(0), steps[n], steps[n + 1]) for n in range(0, len(steps) - 1, 2)]
    return find_chains([(branches, range(len(names)))], rows, kernels, [None, MACHINE])


def said(chains: Chains) -> list[str]:
    return [k.schedule.removeprefix("chain ").replace(".0", "").replace(" ", "") for k in chains.kernels]


def chained(*orders: str) -> list[str]:
    """The parts of each chain that runs of these kernels have, by letters: each reads what the last wrote."""
    names = "".join(sorted({*"".join(orders)}))
    arms = [[(k, at(64 * n), at(64 * n + 64), "n") for n, k in enumerate(order)] for order in orders]
    chains = found(*arms, names=names)
    parts = Counter(row for row, own in chains.parts.items() for _ in own)
    assert max(parts.values(), default=0) <= ROW_PARTS
    made: dict[int, dict[int, str]] = {}
    for row, own in chains.parts.items():
        for p in own:
            made.setdefault(p.chain, {})[p.place.taking_part] = names[row]
    assert said(chains) == ["".join(own[n] for n in sorted(own)) for _, own in sorted(made.items())]
    return said(chains)


@pytest.mark.parametrize(
    ("orders", "chains"),
    [
        (["abc"], ["abc"]),
        (["abcbde"], ["abcbde"]),  # b is in it twice
        (["abc", "abc"], ["abc"]),  # what comes again is the chain of the first ones
        (["abcde", "ace"], ["abcde"]),
        (["abcde", "axe"], ["abcde", "axe"]),
        (["abcd", "abcdx"], ["abcd", "abcdx"]),
        (["a" * ROW_PARTS + "bc"], ["a" * ROW_PARTS + "bc"]),
        (["a" * ROW_PARTS + "abc"], ["a" * ROW_PARTS, "bc"]),
        (["ab", "a", "b"], ["ab"]),
    ],
)
def test_what_is_in_which_chain(orders: list[str], chains: list[str]) -> None:
    assert chained(*orders) == chains


def test_what_is_equal_is_one_parameter() -> None:
    """Flags, offsets of three values in the arena, of an input and of a weight; a size that is one."""
    arm = [
        ("a", at(0, "input"), at(0), "n"),
        ("b", at(0), at(64), "n"),
        ("c", at(64), at(0), "m"),  # the place of the first value, which is another one
        ("d", at(8, "weights"), at(64), "n"),
    ]
    (kernel,) = found(arm, names="abcd").kernels
    assert [d.name.split(".")[0] for d in kernel.dims] == ["on"] * 4 + ["at"] * 6 + ["n"] * 2
    own = dict(zip(kernel.buffers(), kernel.lies, strict=True))
    assert own["y.0"] == own["x.1"] and own["y.1"] == own["x.2"]
    assert own["y.2"] != own["y.0"] and own["y.2"][0] == own["y.0"][0]
    assert len({memory for memory, _ in kernel.lies}) == 3


@pytest.mark.parametrize(
    ("arm", "chains"),
    [
        ([("a", at(0), at(256), "n"), ("b", at(256), at(512), "n")], ["ab"]),
        ([("a", at(0), at(256), "m"), ("b", at(256), at(512), "m")], ["ab"]),
        ([("a", at(0), at(256), "n"), ("b", at(0), at(512), "n")], ["ab", "ab"]),  # b reads something else
        ([("a", at(0), at(256), "n"), ("b", at(256), at(512), "m")], ["ab", "ab"]),
        ([("a", at(0), at(0, "output"), "n"), ("b", at(0, "output"), at(512), "n")], ["ab", "ab"]),
    ],
)
def test_a_chain_comes_again_where_launches_share_what_it_takes_for_one(
    arm: list[tuple[str, Address, Address, str]], chains: list[str]
) -> None:
    first = [("a", at(0), at(64), "n"), ("b", at(64), at(128), "n")]
    assert said(found(first, arm, names="ab")) == chains
