"""Statements that a chain does in one group mean what launches of their own do; what may be in a chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from smelt.core.diag import SmeltError
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.interp_lanes import run_lanes
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import parse_kernel, print_kernel
from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.machine import Chaining
from smelt.core.schedule.chain import (
    Link,
    Wired,
    busy_together,
    chain_kernel,
    chain_link,
    fit_together,
    stands_by,
)
from smelt.targets.opencl.emit import emit_program
from smelt.targets.opencl.machine import MACHINE

HEAD = "kernel @k(n: dim in {low}..*, x: {dtype}[n, 48]) -> (y: {dtype}[n, 48])"
ROWS = "group i in n { lane j in 48 { y[i, j] = x[i, j] * 2.0: f32 } }"
BACKWARDS = "group i in n { lane j in 48 { y[i, j] = x[n - 1 - i, 47 - j] + 1.0: f32 } }"
TILES = (
    "tiles group (at, r) in n: balanced(2, 1) { lane j in 48 {"
    " unroll c in r { y[at + c, j] = x[at + c, (j + 5) % 48] } } }"
)
SHARED = {(0, "x"): "x", (0, "y"): "a", (1, "x"): "a", (1, "y"): "b", (2, "x"): "b", (2, "y"): "y"}


def kernel(body: str, low: int = 0, dtype: str = "f32") -> Kernel:
    return parse_kernel(f"{HEAD.format(low=low, dtype=dtype)} {{ {body} }}")


def apart(links: Sequence[Link]) -> list[Wired]:
    """Links that have no parameter in common."""
    found = []
    for n, link in enumerate(links):
        buffers = tuple((n, b) for b in link.kernel.buffers())
        found.append(Wired(link, buffers, buffers, tuple((n, d) for d in link.kernel.dims)))
    return found


def links(*bodies: str) -> list[Wired]:
    return apart([Link(kernel(b), 0, 1, 0) for b in bodies])


def whole() -> Kernel:
    """Three statements, each of which reads what others of the one before have written."""
    return chain_kernel(links(ROWS, BACKWARDS, TILES), SHARED)[0]


def sizes(n: int, *on: int) -> dict[str, int]:
    """Of parts of two buffers each, which lie at offsets that nobody asks for here."""
    flags = {f"on.{k}": part for k, part in enumerate(on)}
    offsets = {f"at.{k}": 0 for k in range(2 * len(on))}
    return flags | offsets | {f"n.{3 * len(on) + k}": n for k in range(len(on))}


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_chain_means_what_its_parts_mean(n: int) -> None:
    x = np.arange(48 * n, dtype=np.float32).reshape(n, 48)
    want = [x]
    for part in links(ROWS, BACKWARDS, TILES):
        want += run_kernel(part.link.kernel, {"n": n}, [want[-1]])
    for seed in range(4):
        for most in (64, 7):
            found = run_lanes(whole(), sizes(n, 1, 1, 1), [x], most, seed)
            for got, expected in zip(found, want[1:], strict=True):
                np.testing.assert_array_equal(got, expected)


def test_a_part_that_takes_none_does_nothing() -> None:
    x = np.ones((3, 48), np.float32)
    first, *rest = run_lanes(whole(), sizes(3, 1, 0, 0), [x], 64)
    untouched = run_lanes(whole(), sizes(3, 0, 0, 0), [x], 64)[1:]
    np.testing.assert_array_equal(first, 2 * x)
    assert [r.tobytes() for r in rest] == [u.tobytes() for u in untouched]


def test_a_barrier_that_is_left_out_shows() -> None:
    x = np.arange(48 * 3, dtype=np.float32).reshape(3, 48)
    want = run_kernel(whole(), sizes(3, 1, 1, 1), [x])
    without = [run_lanes(whole(), sizes(3, 1, 1, 1), [x], 64, s, lambda *_: frozenset()) for s in range(4)]
    assert any(not np.array_equal(got[2], want[2], equal_nan=True) for got in without)


def test_parts_that_share_no_name_wait_too() -> None:
    """The plan may give what one has read to the next: that is not told by names."""
    apart, places = chain_kernel(links(ROWS, BACKWARDS))
    assert emit_program([apart])[0].count("barrier(") == 1
    assert [(p.taking_part, p.buffers, p.dims) for p in places] == [
        (0, ((0, 2), (1, 3)), (6,)),
        (1, ((2, 4), (3, 5)), (7,)),
    ]


def test_what_launches_share_is_given_once() -> None:
    """The second part reads, at its size, what the first one writes; all lies in one memory."""
    first, second = links(ROWS, BACKWARDS)
    memory = ("arena", "arena")
    first = replace(first, memories=memory, offsets=("x", "a"), dims=("n",))
    second = replace(second, memories=memory, offsets=("a", "y"), dims=("n",))
    chain, places = chain_kernel([first, second])
    assert [d.name for d in chain.dims] == ["on.0", "on.1", "at.0", "at.1", "at.2", "n.5"]
    assert [*zip(chain.buffers(), chain.lies, strict=True)] == [
        ("x.0", (0, 2)), ("x.1", (0, 3)), ("y.0", (0, 3)), ("y.1", (0, 4))
    ]  # fmt: skip
    assert [(p.buffers, p.dims) for p in places] == [(((0, 2), (0, 3)), (5,)), (((0, 3), (0, 4)), (5,))]
    text = emit_program([chain])[0]
    assert "void k_chain(\n    __global uchar *b0, const words_k_chain w)" in text
    assert "long v[7];" in text and "p_y__0 = (__global smelt_float_aliased *)(b0 + w.v[4]);" in text
    assert "typedef float __attribute__((may_alias)) smelt_float_aliased;" in text  # of what lies there
    alone, _ = emit_program([first.link.kernel])
    assert "__global float *p_y" in alone and "may_alias" not in alone


def test_lanes_wait_for_each_other_between_parts_alone() -> None:
    """PoCL compiles a function that they wait in for each way that leads there."""
    sums = "register s: f32[1] s[0] = 0.0:f32 serial k in 48 { s[0] add= x[i, k] } y[i, j] = s[0]"
    loops = f"group i in n {{ lane j in 48 {{ {sums} }} }}"
    assert emit_program([chain_kernel(links(loops, loops, loops))[0]])[0].count("barrier(") == 2


def test_groups_of_one_lane_are_lanes() -> None:
    alone = "group i in n { serial j in 48 { y[i, j] = x[i, j] * 2.0: f32 } }"
    x = np.arange(48 * 5, dtype=np.float32).reshape(5, 48)
    chain = chain_kernel(links(alone, BACKWARDS), {(0, "y"): "a", (1, "x"): "a"})[0]
    verify_kernel(chain, "scheduled", machine=MACHINE)
    assert "lane i in n.6" in print_kernel(chain)
    for seed in range(3):
        found = run_lanes(chain, sizes(5, 1, 1), [x], 64, seed)
        np.testing.assert_array_equal(found[1], (2 * x)[::-1, ::-1] + 1)


def test_text_and_rules() -> None:
    chain = whole()
    assert parse_kernel(print_kernel(chain)) == chain.with_(lies=())  # where buffers lie is no part of a text
    verify_kernel(chain, "scheduled", machine=MACHINE)


def test_text_for_opencl(golden: Callable[[str, str], None]) -> None:
    golden("text/chain.cl", emit_program([whole()])[0])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("group g in 1 { lane j in 48 { block ordered { y[0, j] = x[0, j] } } }", "ordered blocks in a lane"),
        ("group g in 1 { y[0, 0] = x[0, 0] block ordered { y[0, 1] = x[0, 1] } }", "and others are not"),
    ],
)
def test_ordered_blocks_stand_where_all_lanes_come(body: str, why: str) -> None:
    with pytest.raises(SmeltError, match=f"K10.*{why}"):
        verify_kernel(kernel(body, low=1), "scheduled", machine=MACHINE)


def most_groups(k: Kernel, **changes: int) -> int | None:
    chaining = replace(Chaining(work=10_000, words=127), **changes)
    link = chain_link(k, 0, replace(MACHINE, chaining=chaining))
    return None if link is None else link.most_groups


WORK: Mapping[str, tuple[Kernel, int | None]] = {
    # a group is 48 loads and as many products: 208 of them are as much as a launch
    "rows": (kernel(ROWS), 1 + 10_000 // 48),
    # 4 x 48 multiply-adds, of which each loads one number: the other one stays
    "products": (
        kernel("group i in n { lane j in 48 { register s: f32[1] s[0] = 0.0:f32 serial k in 4 {"
               " s[0] fma= x[i, k] * x[0, j] } y[i, j] = s[0] } }"), 1 + 10_000 // (48 * 4)),
    "one lane": (kernel("group i in n { serial j in 48 { y[i, j] = x[i, j] } }"), 1 + 10_000 // 48),
    "a loop as long as the tensor": (
        kernel("group i in 3 { lane j in 48 { serial k in n { y[k, j] = x[k, j] } } }", low=1), None),
    "the same in one group": (
        kernel("group i in 1 { lane j in 48 { serial k in n { y[k, j] = x[k, j] } } }", low=1), 1),
    "many groups at all sizes": (kernel(ROWS, low=500), None),
    "what lanes share": (
        kernel("group i in n { shared s: f32[48] lane j in 48 { s[j] = x[i, j] }"
               " lane j in 48 { y[i, j] = s[47 - j] } }"), None),
    "registers that lanes share": (
        kernel("group i in n { register s: f32[48] lane j in 48 { s[j] = x[i, j] }"
               " lane j in 48 { y[i, j] = s[47 - j] } }"), None),
    "elements of two types": (
        parse_kernel("kernel @k(n: dim in 0..*, x: i32[n]) -> (y: f32[n])"
                     " { group i in n { lane j in 1 { y[i] = cast:f32(x[i]) } } }"), 10_001),
}  # fmt: skip


@pytest.mark.parametrize("name", WORK)
def test_what_may_be_in_a_chain(name: str) -> None:
    k, want = WORK[name]
    assert most_groups(k) == want
    assert chain_link(k, 0, replace(MACHINE, chaining=None)) is None


def test_what_fits_in_one_chain() -> None:
    lanes = "register s: f32[8] unroll c in 8 { s[c] = x[i, j] } y[i, j] = s[0]"
    link = chain_link(kernel(f"group i in n {{ lane j in 48 {{ {lanes} }} }}"), 0, MACHINE)
    assert link is not None and link.kept_bytes == 8 * 4
    wide = replace(MACHINE, cache_bytes=(2 * link.kept_bytes, 1 << 20))
    assert fit_together(apart([link] * 2), wide) and not fit_together(apart([link] * 3), wide)
    # a flag, two memories of two words, an offset in each, a size
    few = replace(MACHINE, chaining=Chaining(work=1, words=1 + 2 * 2 + 2 + 1))
    assert fit_together(apart([link]), few) and not fit_together(apart([link] * 2), few)
    more = replace(MACHINE, chaining=Chaining(work=1, words=1 + 2 * 2 + 2 + 1 + 1))
    assert fit_together(apart([link]) * 2, more) and not fit_together(apart([link]) * 3, more)


FEW = "group i in min(n, 4, 4*max(5 - n, 0)) { lane j in 48 { y[i, j] = x[i, j] } }"
MANY = "group i in n - min(n, 4, 4*max(5 - n, 0)) { lane j in 48 { y[i, j] = x[i, j] } }"
ONE = "group i in min(n, 1, max(2 - n, 0)) { lane j in 48 { y[i, j] = x[i, j] } }"
TWO = "group i in min(n - 1, 3, 3*max(5 - n, 0)) { lane j in 48 { y[i, j] = x[i, j] } }"
FIRST = "group i in min(n, 1) { lane j in 48 { y[i, j] = x[i, j] } }"
OTHERS = "group i in max(n - 1, 0) { lane j in 48 { y[i + 1, j] = x[i + 1, j] } }"


@pytest.mark.parametrize(
    ("body", "low", "found"),
    [
        (ROWS, 0, [False]),
        (f"{FEW} {MANY}", 0, [False, True]),
        (f"{MANY} {FEW}", 1, [True, False]),
        (f"{ONE} {TWO} {MANY}", 0, [False, False, True]),  # two are no large size
        (f"{FEW} {MANY}", 5, [False, False]),  # few never are: the other one is what there is
        (f"{FIRST} {OTHERS}", 0, [False, False]),  # nobody stands in for the second where there are no others
    ],
)
def test_what_is_for_large_sizes_alone_stands_by(body: str, low: int, found: list[bool]) -> None:
    k = kernel(body, low)
    assert [stands_by(k, n) for n in range(len(k.body))] == found


@pytest.mark.parametrize(
    ("body", "most"), [(f"{ONE} {TWO}", 1), (f"{ONE} {TWO} {ROWS}", 2), (f"{ROWS} {ROWS}", 2)]
)
def test_what_has_something_to_do_at_once(body: str, most: int) -> None:
    k = kernel(body)
    assert busy_together([Link(k, n, 1, 0) for n in range(len(k.body))]) == most
