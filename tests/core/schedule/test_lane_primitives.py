"""Primitives for lanes keep the meaning of kernels, in any order of lanes, and refuse what they cannot
prove."""

from __future__ import annotations

import numpy as np
import pytest
from naive_kernels import check, op_kernel, random_inputs
from strategy_kernels import KERNELS

from smelt.core.diag import SmeltError
from smelt.core.dtype import f32, u8
from smelt.core.ir.analysis.scope import expressions, kernel_buffers, kernel_facts
from smelt.core.ir.barriers import barriers_before, needs_barrier_after
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.interp_lanes import run_lanes
from smelt.core.ir.kernel import Block, Kernel, Load, Loop, walk, walk_expr
from smelt.core.ir.text import parse_kernel, print_kernel
from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.machine import Machine
from smelt.core.schedule.schedule import apply, parse
from smelt.core.schedule.tree import ScheduleError

GPU = Machine("gpu", 128, 64, levels=("group", "lane", "vector"), max_lanes=16, shared_bytes=8 << 10)
TILED = (
    "split_clamped i0 4 io ir; split i1 5 jo ji no; order [io jo ir ji]; bind io group; bind jo lane; "
    "stage_reduce io acc; accumulate acc []; unroll ir; bind ji vector; split k1 8 ko ki no; "
)


def free() -> Kernel:
    return op_kernel("matmul", [("m", "k"), ("k", 20)], ("m", 20))


def fixed() -> Kernel:
    return op_kernel("matmul", [("m", 24), (24, 20)], ("m", 20))


def conv() -> Kernel:
    return parse_kernel(
        "kernel @conv(w: dim in 1..*, x: f32[w, 8], f: f32[3, 8, 6]) -> (y: f32[w, 6]) { serial i in w {"
        " serial c in 6 { y[i, c] = sum t in 3, k in 8"
        " { (x[i + t - 1, k] if (0 <= i + t - 1 < w)) * f[t, k, c] } } } }"
    )


def total() -> Kernel:
    return op_kernel("reduce_sum", [("p", "q")], ("p",), {"axes": (1,), "keepdims": False})


def largest() -> Kernel:
    return op_kernel("reduce_max", [("p", 3, "q")], ("p",), {"axes": (1, 2), "keepdims": False})


def softmax() -> Kernel:
    return op_kernel("softmax", [("p", "q")], ("p", "q"), {"axis": 1})


def experts() -> Kernel:
    return KERNELS["matmul-experts"][0]


def decoded() -> Kernel:
    types = [f32, u8, f32]
    return op_kernel("matmul_nbits", [("m", 32), (6, 2, 8), (6, 2)], ("m", 6), {"bits": 4, "block": 16},
                     dtypes=types)  # fmt: skip


def attention() -> Kernel:
    return KERNELS["attention-masked"][0]


def of_norms() -> Kernel:
    return KERNELS["attention-of-norms"][0]


ST = ({"s": 5, "t": 7}, {"s": 1, "t": 0}, {"s": 4, "t": 1}, {"s": 0, "t": 3})
BLOCKS = "split i0 4 o i yes; order [o i i1]; bind o group; bind i lane; running o k1 3 1; "
M = ({"m": 1, "k": 3}, {"m": 9, "k": 0}, {"m": 4, "k": 2})
PQ = ({"p": 3, "q": 77}, {"p": 2, "q": 0}, {"p": 1, "q": 64}, {"p": 0, "q": 5})
LEGAL = (
    (free, "bind i0 group; bind i1 group; spread i1 8 o i", M),
    (free, "bind i0 group; bind i1 lane; spread i0 2 p q", M),
    (free, "split_clamped i0 3 o r; split i1 4 j v no; order [o j r v]; bind o group; bind j group; "
           "stage_reduce j acc; accumulate acc []; unroll r; bind v vector; bind j lane; spread o 2 p q", M),
    (free, "split_clamped i0 4 o i; bind o group; bind i1 lane", M),
    (fixed, TILED + "fetch ko a at 1; fetch ko b bt 0", M),
    (fixed, TILED + "fetch ko a at 0", M),
    (fixed, TILED + "fetch ko a at 1; fetch ko b bt 0; pipeline ko at 2; pipeline ko bt 2", M),
    (free, "deepen k1 4 ko ki; split_clamped i0 4 io ir; split i1 5 jo ji no; order [io jo ir ji]; "
           "bind io group; bind jo lane; stage_reduce io acc; accumulate acc []; unroll ir; bind ji vector; "
           "fetch ko a at 0; pipeline ko at 2", M),
    (fixed, TILED + "fetch ko a at 1; fetch ko b bt 0; pipeline ko at 3; pipeline ko bt 3", M),
    (fixed, TILED + "fetch ko a at 0; fetch ko b bt 0; pipeline ko at 2; copy_wide at 4; copy_wide bt 2", M),
    (fixed, TILED + "fetch ko a at 1; inward ki jo", M),
    (free, "deepen k1 4 ko ki; join_axes ko ki kk; bind i0 group; bind i1 lane", M),
    (fixed, TILED + "fetch io a at 3", M),
    (conv, "split_clamped i 4 io ir; bind io group; order [c ir]; bind c lane; stage_reduce io acc; "
           "accumulate acc []; unroll ir; fetch t x xt 1; fetch io f ft 0", ({"w": 1}, {"w": 6})),
    (total, "bind i0 group; stage_reduce i0 acc; lane_reduce acc 16 4", PQ),
    (total, "bind i0 group; stage_reduce i0 acc; lane_reduce acc 2 1", PQ),
    (largest, "bind i0 group; stage_reduce i0 acc; lane_reduce acc 8 2", PQ),
    (softmax, "bind i0 group; bind i1 group; spread i1 8 o i", PQ),
    (fixed, "divide i0 4 .m; bind i0 group; bind i1 lane; bind i0.m group", M),
    (fixed, "bind i0 group; bind i1 lane; stage_reduce i0 acc; lane_split acc k1 4; stage_reduce i1.s acc",
     M),
    (free, "split i1 5 j ji no; bind i0 group; bind j group; bind ji lane; stage_reduce j acc; "
           "lane_split acc k1 4; stage_reduce ji.s acc; accumulate acc1 []", M),
    (fixed, "split_reduce i0 k1 6 parts; bind k1.s group; bind i0.part group; bind i1.part lane", M),
    (free, "split_reduce i0 k1 2 parts; bind k1.s group; bind i0.part group; bind i1.part lane", M),
    (total, "split_reduce i0 k1 16 parts; bind k1.s group; bind i0.part lane", PQ),
    (largest, "split_reduce i0 k2 9 parts; bind k2.s group; bind i0.part lane", PQ),
    (decoded, "bind i0 group; bind i1 lane; stage_reduce i1 acc; accumulate acc []; once k1 held",
     ({"m": 1}, {"m": 3})),
    (decoded, "bind i0 group; bind i1 lane; stage_reduce i1 acc; factor acc k1; accumulate acc []; "
              "stage_reduce k1 part; accumulate part []; by_bits k1", ({"m": 1}, {"m": 3})),
    (decoded, "by_bits i0; bind i0 group; bind i1 lane; stage_reduce i1 acc; accumulate acc []; unroll k3; "
              "once k2 held", ({"m": 2},)),
    (softmax, "split_clamped i0 4 g r; split_clamped i1 4 o l; order [g r l o]; bind g group; "
              "stage_reduce g acc; bind r lane; lane_share acc 4 2; lane_share acc1 4 2; bind l lane", PQ),
    (largest, "divide_by i0 {q} 5 .w; bind i0 lane; bind i0.w group", PQ),
    (softmax, "lift i0 k1 top; split_reduce i0.part k1 16 parts; lift i0 k2 sums; bind i0 group; "
              "bind i1 lane", PQ),
    (attention, "lift_factor i0 k1 rows; lift_operand i0.first k1.first scores; bind i0.first.first group; "
                "bind k1.first.first lane; bind i0.first group; bind k1.first lane; bind i0 lane", ST),
    (of_norms, "lift_factor i0 k1 rows; bind i0.first lane; bind i0 group; bind i1 lane", ({"s": 5},)),
    (attention, BLOCKS + "bind k1.made lane; bind k1.power lane; lane_share k1.best 2 1; unroll i1.zero; "
                         "unroll i1.scaled; unroll i1.times; unroll i1", ST),
    (attention, BLOCKS + "bind i1.zero lane; bind i1.scaled lane; bind i1.times lane; bind i1 lane; "
                         "lane_share k1.part 4 2; unroll k1.made; stage_reduce i.made acc; "
                         "accumulate acc []; fetch k1.o k kt 1", ST),
)  # fmt: skip


@pytest.mark.parametrize(("make", "text", "envs"), LEGAL, ids=lambda x: x if isinstance(x, str) else "")
def test_meaning_is_kept_in_any_order_of_lanes(
    make: object, text: str, envs: tuple[dict[str, int], ...]
) -> None:
    assert callable(make)
    naive = make()
    done = apply(naive, parse(text))
    # that m - 1 is not below 0 where a loop over m runs is beyond the solver
    verify_kernel(done, "scheduled", strict="clamped" not in text, machine=GPU)
    assert parse_kernel(print_kernel(done)) == done
    for env in envs:
        check(naive, done, env)
        given = random_inputs(naive, env, 0)
        (want,) = run_kernel(naive, env, given)
        for seed in range(2):
            (got,) = run_lanes(done, env, given, GPU.max_lanes, seed)
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


REFUSED = (
    (free, "bind i1 group; spread i1 8 i0 i", "is taken"),
    (free, "spread i1 8 o i", "no loop over groups"),
    (free, "bind i0 group; bind i1 group; spread i0 8 o i", "there are groups inside"),
    (free, "bind i0 group; split_clamped i0 4 o i", "is bound"),
    (free, "split_clamped i0 4 o i; stage_reduce o acc; split_clamped i1 3 p q", "local stores"),
    (fixed, "fetch i0 a t 0", "all lanes of a group run together"),
    (fixed, "bind i0 group; fetch i0 a t 0", "no lanes use it"),
    (fixed, "bind i0 group; bind i1 lane; fetch i1 a t 0", "all lanes of a group run together"),
    (fixed, "bind i0 group; bind i1 lane; fetch i0 y t 0", "nobody writes"),
    (fixed, "bind i0 group; bind i1 lane; fetch i0 a t 0", "no loop of constant extent"),
    (free, "bind i0 group; bind i1 lane; stage_reduce i0 acc; accumulate acc []; fetch i0 a t 0",
     "no loop of constant extent"),
    (fixed, TILED + "fetch ko a acc 0", "is taken"),
    (fixed, TILED + "fetch ko a at 0; pipeline io at 2", "no loop that all lanes run together"),
    (fixed, TILED + "fetch ko a at 0; pipeline ko acc 2", "no loop that all lanes run together"),
    (fixed, TILED + "fetch ko a at 0; pipeline ko at 2; pipeline ko at 2", "that all lanes run"),
    (fixed, TILED + "fetch ko a at 0; copy_wide at 3", "is no multiple of 3 neighbours"),
    (fixed, TILED + "fetch ko a at 0; copy_wide bt 2", "no lanes fill a buffer of that name"),
    (fixed, TILED + "fetch ko a at 0; inward ki ko", "is not perfectly nested in 'ki'"),
    (free, "deepen k1 4 ko ki; join_axes ki ko kk", "no reduction has these axes side by side"),
    (free, "deepen k1 4 ko ki; join_axes ko ki i0", "is taken"),
    (total, "stage_reduce i0 acc; lane_reduce acc 6 1", "no power of two"),
    (total, "split i0 4 o i yes; stage_reduce o acc; lane_reduce acc 8 1", "no scalar of the group"),
    (free, "split_reduce i0 k1 0 parts", "no terms"),
    (free, "split_reduce i0 k2 5 parts", "no axis of one reduction"),
    (free, "bind i0 group; split_reduce i0 k1 5 parts", "not a plain nest"),
    (free, "bind i0 group; divide i0 4 .m", "is bound"),
    (free, "divide i0 4 .m; divide i1 4 .m", "is taken"),
    (fixed, "bind i0 group; stage_reduce i0 acc; lane_split acc k1 4", "a lane's among them"),
    (fixed, "bind i0 group; bind i1 lane; stage_reduce i0 acc; lane_split acc i0 4", "no axis of it"),
    (decoded, "bind i0 group; bind i1 lane; stage_reduce i1 acc; accumulate acc []; once k3 held",
     "nothing that is read is repeated"),
    (free, "stage_reduce i0 acc; once i1 held", "nothing that is read is repeated"),
    (decoded, "stage_reduce i1 acc; factor acc k3", "no sum of floats over the axis and others inside"),
    (free, "by_bits i0", "no small integer"),
    (softmax, "stage_reduce i0 acc; lane_share acc 4 2", "not in lanes of static extents"),
    (softmax, "divide_by i0 {i0} 5 .w", "no size of the kernel"),
    (softmax, "split_reduce i0 k2 3 parts", "holds another one"),
    (softmax, "lift i0 k2 sums", "holds another one"),
    (experts, "split_reduce i k 1 parts", "'g' means nothing outside"),
    (experts, "lift i k parts", "'g' means nothing outside"),
    (softmax, "lift i0 k1 a", "is taken"),
    (softmax, "lift i7 k1 top", "no top-level nest"),
    (free, "lift_factor i0 k1 rows", "has one factor with reductions"),
    (attention, "lift_factor i0 k1 q", "is taken"),
    (attention, "lift_factor i0 k2 rows", "has one factor with reductions"),
    (attention, "bind i0 group; lift_factor i0 k1 rows", "not a plain nest"),
    (attention, "lift_operand i0 k1 scores", "is no row along 'k1'"),
    (softmax, "lift_operand i0 i1 scores", "no product that the row is made of"),
    (free, "running i0 k1 4 0", "no single product"),
    (of_norms, "running i0 k1 4 0", "no softmax along the sum"),
    (attention, "running i0 k1 0 0", "no elements"),
    (attention, "running i0 k2 4 0", "not along 'k2' alone"),
    (attention, "enclose i0 one; running one k1 4 0", "no constant extent"),
    (attention, "split i1 4 k1.o i1.i no; running i0 k1 4 0", "is taken"),
)  # fmt: skip


@pytest.mark.parametrize(("make", "text", "reason"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_refusals(make: object, text: str, reason: str) -> None:
    assert callable(make)
    with pytest.raises(ScheduleError) as e:
        apply(make(), parse(text))
    assert reason in str(e.value)


def test_blocks_of_nothing_but_minus_infinity() -> None:
    """A row that begins with them, one that ends with them, one of nothing else, and one with infinity."""
    done = apply(attention(), parse(BLOCKS))
    env = {"s": 5, "t": 7}
    *given, mask = random_inputs(attention(), env, 0)
    mask = np.zeros_like(mask)
    mask[0, :4], mask[1, 2:], mask[2], mask[3, 5], mask[4, 0] = -np.inf, -np.inf, -np.inf, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        (want,) = run_kernel(attention(), env, [*given, mask])
        (got,) = run_kernel(done, env, [*given, mask])
    assert np.isnan(want).all(axis=1).tolist() == [False, False, True, True, True]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_loads_of_two_places_are_not_one_tile() -> None:
    text = (
        "kernel @k(n: dim in 0..*, x: f32[n, 9]) -> (y: f32[n, 8])"
        " { group i in n { lane j in 8 { y[i, j] = x[i, j] + x[i, j + 1] } } }"
    )
    with pytest.raises(ScheduleError, match="2 different loads"):
        apply(parse_kernel(text), parse("fetch i x t 0"))


@pytest.mark.parametrize(("body", "reason"), [
    ("lane j in 8 { t[j] = x[i, j] }  lane j in 8 { y[i, j] = t[7 - j]  t[j] = 0.0: f32 }", "not one"),
    ("lane j in 8 { t[j] add= x[i, j] }  lane j in 8 { y[i, j] = t[7 - j] }", "not one statement"),
    ("lane j in 8 { y[i, j] = x[i, j] }  lane j in 8 { t[j] = y[i, 7 - j] }  lane j in 8 { y[i, j] = t[j] }",
     "changes meanwhile"),
])  # fmt: skip
def test_halves_that_others_write_or_read(body: str, reason: str) -> None:
    text = ("kernel @k(n: dim in 0..*, x: f32[n, 8]) -> (y: f32[n, 8]) "
            f"{{ group g in 1 {{ serial i in n {{ shared t: f32[8] {body} }} }} }}")  # fmt: skip
    with pytest.raises(ScheduleError, match=reason):
        apply(parse_kernel(text), parse("pipeline i t 2"))


def test_a_tile_is_read_instead_of_the_operand() -> None:
    done = apply(fixed(), parse(TILED + "fetch ko a at 1"))
    loads = [x for e in expressions(done.body) for x in walk_expr(e) if isinstance(x, Load)]
    assert sum(x.buffer == "a" for x in loads) == 1
    (tile,) = [b for s in walk(done.body) for b in getattr(s, "buffers", ()) if b.space == "shared"]
    assert tuple(map(str, tile.shape)) == ("4", "9")


def test_halves_of_a_tile_need_one_barrier_for_a_slice() -> None:
    """Before a slice and after it without; with two halves what is copied meanwhile is no other's."""

    def barriers(text: str) -> int:
        kernel, found = apply(fixed(), parse(TILED + text)), 0
        for s in walk(kernel.body):
            if isinstance(s, Loop) and s.var == "ko":
                known = kernel_buffers(kernel)
                found += len(barriers_before(s.body, kernel_facts(kernel), known, frozenset({"acc"})))
                found += needs_barrier_after(s.body, frozenset({"acc"}), frozenset({"at", "bt"}))
        return found

    assert barriers("fetch ko a at 1; fetch ko b bt 0") == 2
    assert barriers("fetch ko a at 1; fetch ko b bt 0; pipeline ko at 2; pipeline ko bt 2") == 1


def test_a_multiple_needs_no_block() -> None:
    def blocks(text: str) -> int:
        return sum(isinstance(s, Block) for s in walk(apply(free(), parse(f"bind i1 group; {text}")).body))

    assert (blocks("spread i1 5 o i"), blocks("spread i1 8 o i")) == (0, 1)


def test_too_much_shared_memory_is_refused() -> None:
    done = apply(fixed(), parse(TILED + "fetch ko a at 1; fetch ko b bt 0"))
    small = Machine("small", 128, 64, levels=GPU.levels, shared_bytes=700)
    with pytest.raises(SmeltError, match="breaks K5"):
        verify_kernel(done, "scheduled", machine=small)
