"""The verifier: what is right passes, and each rule has a module or kernel that breaks it and no other."""

from __future__ import annotations

from dataclasses import replace

import op_cases as cases
import pytest
import strategies as gen
from hypothesis import given, settings
from ir_samples import FFN, dyn_ffn, gemm, gpu_gemm, matmul

from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Symbol
from smelt.core.ir.kernel import DimParam, Kernel
from smelt.core.ir.text import parse_kernel, parse_module
from smelt.core.ir.verify import ModuleStage, verify, verify_kernel, verify_text
from smelt.core.machine import Instruction, Machine
from smelt.targets.instructions.meanings import multiply_add


def refused(check: object, rule: str, message: str) -> str:
    assert callable(check)
    with pytest.raises(SmeltError) as e:
        check()
    text = str(e.value)
    assert e.value.kind == "internal"
    assert f"breaks {rule}" in text
    assert message in text
    return text


# ---------------------------------------------------------------- what is right


@pytest.mark.parametrize("kernel", [matmul(), gemm(), gpu_gemm()], ids=lambda k: k.name)
@pytest.mark.parametrize("stage", ["lowered", "scheduled"])
def test_samples_are_right(kernel: Kernel, stage: ModuleStage) -> None:
    verify_kernel(kernel, stage, strict=True)


def test_a_module_is_right() -> None:
    verify(dyn_ffn(), strict=True)
    verify_text(dyn_ffn())


@given(gen.samples())
@settings(max_examples=80, deadline=None)
def test_random_kernels_are_right(s: gen.Sample) -> None:
    verify_kernel(s.kernel, strict=True)


# Reflection by two mirrors is beyond the solver: |(i mod 2n-2) - n+1| stays inside.
UNPROVED = {"pad-2", "extend-0", "extend-3"}


def test_every_formula_stays_inside_its_buffers() -> None:
    for row in cases.rows():
        kernel = cases.naive_kernel(row)
        if kernel is not None:
            verify_kernel(kernel, strict=row.name not in UNPROVED)


# ---------------------------------------------------------------- kernels


HEAD = "kernel @k(n: dim in 1..*, m: dim in 0..64, x: f32[n], i: i64[n]) -> (y: f32[n], z: f32[n, m])"


def kernel_of(body: str) -> Kernel:
    return parse_kernel(f"{HEAD} {{ {body} }}")


def kernel_refused(
    body: str, rule: str, message: str, stage: ModuleStage = "scheduled", strict: bool = False
) -> str:
    k = kernel_of(body)
    return refused(lambda: verify_kernel(k, stage, strict), rule, message)


@pytest.mark.parametrize(
    ("body", "rule", "message"),
    [
        # K1
        ("serial a in n { serial a in n { y[a] = x[a] } }", "K1", "'a' is bound again"),
        ("serial n in n { y[n] = x[n] }", "K1", "'n' is bound again"),
        ("serial a in n { y[a] = sum a in n { x[a] } }", "K1", "'a' is bound again"),
        ("serial a in n { register x: f32[] x[] = 0.0:f32 }", "K1", "'x' is declared twice"),
        # K2
        ("serial a in q { y[a] = x[a] }", "K2", "'q' is not bound here"),
        ("y[b] = 0.0:f32", "K2", "'b' is not bound here"),
        ("serial a in n { y[a] = (x[a] if (0 <= c < n)) }", "K2", "'c' is not bound here"),
        ("serial a in n { register t: f32[b] y[a] = 0.0:f32 }", "K5", "'t' has an extent"),
        ("serial a in n { y[a] = cast:f32([d]:i64) }", "K2", "'d' is not bound here"),
        ("serial a in n { y[a] = sum k in k { x[k] } }", "K2", "'k' is not bound here"),
        # K3
        ("serial a in n { q[a] = x[a] }", "K3", "'q' is not declared here"),
        ("serial a in n { y[a] = q[a]:f32 }", "K3", "'q' is not declared here"),
        ("serial a in n { x[a] = 0.0:f32 }", "K3", "stores to input 'x'"),
        ("serial a in n { z[a] = 0.0:f32 }", "K3", "1 indices for 'z' of rank 2"),
        ("serial a in n { register t: f32[] t[] = x[a] } serial a in n { y[a] = t[]:f32 }", "K3", "'t'"),
        # K4
        ("serial a in n { y[a] = i[a] }", "K4", "stores i64 into 'y' of f32"),
        ("serial a in n { y[a] = x[a]:f64 }", "K4", "loads f64 from 'x' of f32"),
        ("serial a in n { y[a] = x[a] + 1:i64 }", "K4", "add of f32 and i64"),
        ("serial a in n { y[a] = exp(x[a], x[a]) }", "K4", "exp takes 1 arguments, found 2"),
        ("serial a in n { y[a] = foo:f32(x[a]) }", "K4", "'foo' is no intrinsic"),
        ("serial a in n { y[a] = exp:f64(x[a]) }", "K4", "exp gives f32, says f64"),
        ("serial a in n { y[a] = select(x[a], x[a], x[a]) }", "K4", "a condition of f32"),
        ("serial a in n { y[a] = bitcast:f32(i[a]) }", "K4", "bitcast from i64 to f32"),
        ("serial a in n { y[a] = (x[a] if (0 <= a < n) else 0:i64) }", "K4", "is i64 where its guard"),
        ("serial a in n { y[a] sin= x[a] }", "K4", "cannot accumulate by 'sin'"),
        ("serial a in n { y[a] fma= x[a] }", "K4", "fma accumulates a product only"),
        ("serial a in n { y[a] = let g = x[a] in 0 .. n - 1 { x[g] } }", "K4", "to a value of f32"),
        ("serial a in n { block let (g = x[a] in 0 .. n - 1) { y[g] = x[g] } }", "K4", "to a value of f32"),
        ("serial a in n { y[a] = cast:f32(any k in n { x[k] }) }", "K4", "any over f32"),
        ("serial a in n { y[a] = argmax:f32 k in n { x[k] } }", "K4", "an integer result"),
        ("serial a in n { y[a] = sum:f32 k in n { i[k] } }", "K4", "in an accumulator of f32"),
        # K5
        ("serial a in n { register t: f32[m] y[a] = x[a] }", "K5", "'t' has an extent"),
        ("group a in n { vector b in m { z[a, b] = x[a] } }", "K5", "extent m is not constant"),
        ("group a in n { register t: f32[4] serial b in 4 { t[b] = x[a] } }", "K5", "serial variable 'b'"),
        # K6
        ("serial a in n { y[a] = x[a + n] }", "K6", "x[a + n]: axis 0 is outside 0 .. n - 1"),
        ("serial a in n { y[a] = x[-1 - a] }", "K6", "axis 0 is outside"),
        ("serial a in n { y[n + a] = x[a] }", "K6", "y[a + n]: axis 0 is outside"),
        # K7
        ("group a in n { y[0] = x[a] }", "K7", "the group node may write the same element of 'y'"),
        ("group a in n { serial b in 2 { vector c in 4 { z[0, b] = x[a] } } }", "K7", "element of 'z'"),
        ("group a in n { lane b in 8 { y[a] add= x[a] } }", "K7", "the lane node may write"),
        # K8
        ("vector a in 4 { lane b in 4 { z[a, b] = x[a] } }", "K8", "a lane node inside a vector node"),
        ("serial a in n { group b in m { z[a, b] = x[a] } }", "K8", "a group node inside a serial node"),
        ("tiles group (a, r) in n : greedy (8, 4) { unroll b in r { y[a+b] = x[a+b] } }", "K8", "descending"),
        ("tiles group (a, r) in n : balanced (4, 1) { unroll b in r { y[a+b] = x[a] } }", "K8", "every size"),
        # K10
        ("lane b in 4 { serial c in 2 { lane d in 2 { z[b, d] = x[c] } } }", "K10", "inside of a lane"),
        ("lane b in 4 { shared t: f32[4] t[b] = x[b] y[b] = t[b] }", "K10", "is a lane's own"),
        # K9
        ("block by fma.4 if (0 <= n < 9) { y[0] = 0.0:f32 }", "K9", "has lets, a guard or buffers"),
        ("block by fma.4 { register t: f32[4] y[0] = 0.0:f32 }", "K9", "has lets, a guard or buffers"),
    ],
)
def test_broken_kernels(body: str, rule: str, message: str) -> None:
    text = kernel_refused(body, rule, message)
    assert "\n  | " in text  # shows the IR around it


FMA = Instruction("fma.4", multiply_add("fma.4", 4), 8, 4, "a test")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("block by fma.4 { vector b in 4 { t[b] fma= x[0] * x[b] } }", ""),
        ("block by fma.8 { vector b in 8 { t[b] fma= x[0] * x[b] } }", "cpu has no 'fma.8'"),
        ("block by fma.4 { vector b in 6 { t[b] fma= x[0] * x[b] } }", "loop 'b' of 6 does not fit"),
        ("block by fma.4 { vector b in 4 { t[b] add= x[0] * x[b] } }", "does not end in 'fma='"),
        ("block by fma.4 { vector b in 4 { t[b] fma= x[0] * x[2*b] } }", "x[2*b] is not laid out as 'b'"),
        ("block by fma.4 { vector b in 4 { t[b] fma= x[b] * x[b] } }", "x[b] is not laid out as 'a'"),
        ("block by fma.4 { vector b in 4 { t[7 - b] fma= x[0] * x[b] } }", "as the row's result"),
        ("block by fma.4 { unroll a in 2 { vector b in 4 { t[a + b] fma= x[a] * x[b] } } }", "row's result"),
        ("block by fma.4 { vector b in 4 { t[b] fma= exp(x[0]) * x[b] } }", "it is not fma.4's product"),
    ],
)
def test_a_block_by_an_instruction_is_what_the_row_means(body: str, message: str) -> None:
    text = f"serial g in 1 {{ register t: f32[8] vector c in 8 {{ t[c] = 0.0:f32 }} {body} }}"
    kernel = parse_kernel(f"{HEAD} {{ {text} }}")
    machine = Machine("cpu", 128, 16, instructions=(FMA,))
    if not message:
        verify_kernel(kernel, "scheduled", machine=machine)
        return
    refused(lambda: verify_kernel(kernel, "scheduled", machine=machine), "K9", message)


def test_accesses_that_are_not_proved_are_errors_when_strict() -> None:
    body = "serial a in n { y[a] = x[a + 1] }"
    verify_kernel(parse_kernel(f"{HEAD} {{ {body} }}"))
    kernel_refused(body, "K6", "is not proved inside", strict=True)


def test_an_empty_operand_may_be_read_in_loops_that_only_a_check_proves_empty() -> None:
    text = "kernel @none(n: dim in 0..*, x: f32[0]) -> (y: f32[n]) { serial a in n { y[a] = x[0] } }"
    verify_kernel(parse_kernel(text))
    for worse, strict in ((text, True), (text.replace("y: f32[n]", "y: f32[0]"), False)):
        with pytest.raises(SmeltError, match="K6"):
            verify_kernel(parse_kernel(worse), strict=strict)


@pytest.mark.parametrize(
    "body",
    [
        "serial a in n { y[a] = (x[a + 1] if (0 <= a + 1 < n)) }",
        "serial a in n { y[a] = (x[a + 1] if (1 <= a + 2 < n + 1)) }",
        "serial a in n { y[a] = x[a + 1] if (0 <= a < n - 1) }",
        "serial a in n { block if (0 <= a < n - 1) { y[a] = x[a + 1] } }",
        "serial a in n { y[a] = x[min(a + 1, n - 1)] }",
        "serial a in n { y[a] = let g = i[a] in 0 .. n - 1 { x[g] } }",
        "serial a in n { y[a] = x[n - 1 - a] }",
        "serial a in n//4 { serial b in 4 { y[4*a + b] = x[4*a + b] } }",
        "tiles group (a, r) in n : greedy (8, 4, 1) { unroll b in r { y[a + b] = x[a + b] } }",
        "serial a in 0 { y[a] = x[a + n] }",  # never runs
        "serial a in n { y[a] = (x[a + n] if (0 <= a + n < n)) }",  # never happens
    ],
)
def test_bounds_that_are_proved(body: str) -> None:
    verify_kernel(parse_kernel(f"{HEAD} {{ {body} }}"), "scheduled", strict=True)


def test_dims_need_possible_ranges() -> None:
    for d in (DimParam("m", 3, 2), DimParam("m", -1), DimParam("m", 0, None, 0)):
        k = matmul().with_(dims=(d, *matmul().dims[1:]))
        refused(lambda k=k: verify_kernel(k), "K2", "dim 'm' has an impossible range")


def test_shared_memory_fits_the_machine() -> None:
    levels = ("group", "lane")
    machine = Machine("tiny", 128, 16, levels=levels, shared_bytes=64)
    message = "needs 128 bytes, tiny has 64"
    refused(lambda: verify_kernel(gpu_gemm(), "scheduled", machine=machine), "K5", message)
    big = replace(machine, name="big", shared_bytes=128)
    verify_kernel(gpu_gemm(), "scheduled", machine=big)
    message = "needs 160 bytes with what its group shares besides, big has 128"
    two = kernel_of("group a in n { shared t: f32[32] shared u: f32[8] t[0] = x[a] y[a] = t[0] }")
    refused(lambda: verify_kernel(two, "scheduled", machine=big), "K5", message)
    twice = "".join(f"block {{ shared t: f32[{n}] t[0] = x[a] y[a] = t[0] }} " for n in (32, 8))
    again = kernel_of(f"group a in n {{ {twice} }}")
    refused(lambda: verify_kernel(again, "scheduled", machine=big), "K5", message)


def test_shared_memory_counts_what_the_machine_holds() -> None:
    """Where halves are floats but in memory, they are floats in what a group shares."""
    machine = Machine("tiny", 128, 16, levels=("group", "lane"), shared_bytes=64)
    halves = kernel_of("group a in n { shared t: f16[32] t[0] = cast:f16(x[a]) y[a] = cast:f32(t[0]:f16) }")
    verify_kernel(halves, "scheduled", machine=machine)
    wide = replace(machine, held_bytes=4)
    refused(lambda: verify_kernel(halves, "scheduled", machine=wide), "K5", "needs 128 bytes, tiny has 64")


def test_levels_are_those_of_the_machine() -> None:
    lanes = kernel_of("group a in n { lane b in 4 { z[a, b] = x[a] } }")
    machine = Machine("cpu", 128, 16)
    refused(lambda: verify_kernel(lanes, "scheduled", machine=machine), "K8", "cpu has no level 'lane'")


# ---------------------------------------------------------------- modules


@pytest.mark.parametrize(
    ("old", "new", "rule", "message"),
    [
        # M1
        ("%t = relu(%a)", "%h = relu(%a)", "M1", "'%h' is defined twice"),
        ('as "y", %q as "q"', 'as "y", %q as "y"', "M1", "two outputs have one name"),
        ("sym seq in 1..512 % 8", "sym seq in 1..512 sym seq in 1..2", "M1", "a symbol is declared twice"),
        ("graph @main", "graph @other", "M1", "there is no graph 'main'"),
        # M2
        ("sym seq in 1..512 % 8", "sym seq in 512..1", "M2", "'seq' has an impossible range"),
        ("%x: f32[batch, seq, 384]", "%x: f32[batch, 2*seq*batch, 384]", "M2", "'seq' is not bound"),
        ("right = dim 4096", "right = dim h", "M2", "'h' is not bound, in attribute right"),
        ("exp(%fx) : f32[batch, seq, 2]", "exp(%fx) : f32[batch, foo, 2]", "M2", "'foo' is not bound"),
        # M3
        ("relu(%a)", "relu(%nowhere)", "M3", "'%nowhere' is not defined here"),
        ("clip(%f, _, @b)", "clip(%f2, _, @b)", "M3", "'%f2' is not defined here"),
        ("matmul(%x, @w)", "matmul(%x, @gone)", "M3", "'@gone' is not defined here"),
        ("matmul(%x, @w)", "matmul(%a, @w)", "M3", "'%a' is not defined here"),
        ('%q as "q"', '%t as "q"', "M3", "output '%t' is not defined"),
        # M4
        ('kernel = "bias"', 'kernel = "bais"', "M4", "there is no kernel 'bais'"),
        ("dims = [batch*seq]", "dims = []", "M4", "0 dims for kernel 'bias', expected 1"),
        ("dims = [batch*seq]", "dims = [-3]", "M4", "dim m = -3 is outside 0..*"),
        ("call_kernel(%h, @b)", "call_kernel(%h)", "M4", "1 inputs for kernel 'bias', expected 2"),
        ("call_kernel(%h, @b)", "call_kernel(%flag, @b)", "M4", "x of kernel 'bias' is f32, found bool"),
        ("call_kernel(%h, @b)", "call_kernel(%h, @w)", "M4", "b of kernel 'bias' has 2 elements"),
        ('matmul(%x, @w)', 'call_library(%x, @w) {library = "lapack"}', "M4", "no library function 'lapack'"),
        # M6
        ("@fused(%fx: f32[batch, seq, 2])", "@fused(%fx: f32[batch, seq, 3])", "M6", "region input %fx"),
        ("@fused(%fx: f32[batch, seq, 2]) -> (%f2)", "@fused() -> (%f2)", "M6", "are not the node's"),
        ("@else() -> (%a)", "@else() -> ()", "M6", "region 'else' does not give"),
        ("@else() -> (%a)", "@else() -> (%flag)", "M6", "the region gives bool[]"),
        ("= exp(%fx) : f32[batch, seq, 2]", "= exp(%fx) : f32[2] region @r() -> () {}", "M6", "'exp'"),
        # M7
        ('relation = "<="', 'relation = "<"', "M7", "a check is left, relation"),
        ("right = dim 4096", "right = 4096", "M7", "a check is left, relation"),
    ],
)
def test_broken_modules(old: str, new: str, rule: str, message: str) -> None:
    assert old in FFN
    m = parse_module(FFN.replace(old, new))
    refused(lambda: verify(m), rule, message)


def test_the_offender_is_marked() -> None:
    m = parse_module(FFN.replace("clip(%f, _, @b)", "clip(%f2, _, @b)"))
    text = refused(lambda: verify(m), "M3", "")
    assert "\n  | > %q = clip(%f2, _, @b)" in text
    assert "\n  |   %f = fused(%y)" in text


def test_lowered_means_lowered() -> None:
    refused(lambda: verify(dyn_ffn(), "lowered"), "M5", "'matmul' is not lowered")


def test_keys_are_names() -> None:
    m = dyn_ffn()
    refused(lambda: verify(m.with_(kernels={"k": m.kernels["bias"]})), "M1", "kernel 'bias' stands under 'k'")


BIND = """
module "m" {
  sym n in 0..* sym k in 0..9
  graph @main(%x: f32[n], %s: i64[1]) -> (%y) {
    bind(%s) {symbol = "k", index = 0, low = dim 0, high = dim 9}
    %y = tile(%x) {repeats = [k]} : f32[k*n]
  }
}
"""


@pytest.mark.parametrize(
    ("old", "new", "rule", "message"),
    [
        ("", "", "", ""),
        ("bind(%s)", "bind(%x)", "M7", "binds 'k' to an element of f32[n]"),
        ("low = dim 0", "low = 0", "M7", "a bind's low is a Dim"),
        ('symbol = "k"', 'symbol = "n"', "M2", "'n' is bound twice"),
        ('symbol = "k"', 'symbol = "q"', "M2", "'q' is not declared"),
        ('symbol = "k", index = 0', 'symbol = "k", index = "0"', "M7", "a bind is one input"),
    ],
)
def test_binds(old: str, new: str, rule: str, message: str) -> None:
    m = parse_module(BIND.replace(old, new) if old else BIND)
    if not rule:
        verify(m)
        return
    refused(lambda: verify(m), rule, message)


LOOP = """
module "m" {
  sym n in 0..* sym r in 0..*
  graph @main(%x: f32[n], %trip: i64[]) -> (%y, %z) {
    %y, %z = loop(%trip, _, %x) : f32[r], f32[s, 2]
      region @body(%i: i64[], %c: bool[], %v: f32[q]) -> (%c, %w, %u) {
        %w = concat(%v, %v) {axis = 0} : f32[2*q]
        %u = slice(%v) : f32[2]
      }
  }
}
"""


def test_loops() -> None:
    m = parse_module(LOOP)
    refused(lambda: verify(m), "M2", "'s' is not bound")
    good = m.with_(symbols=(*m.symbols, Symbol("s"), Symbol("q")))
    verify(good)
    bad = parse_module(LOOP.replace("loop(%trip, _, %x)", "loop(%trip, _)"))
    refused(lambda: verify(bad), "M6", "region 'body' does not fit 0 carried values")
    # What a region binds ends with it.
    outside = LOOP.replace("f32[r], f32[s, 2]", "f32[q + r], f32[r, 2]")
    refused(lambda: verify(parse_module(outside)), "M2", "'q' is not bound")


@pytest.mark.parametrize(
    ("old", "new", "rule", "message"),
    [
        ("@body(%i: i64[]", "@body(%i: i32[]", "M6", "the round of region 'body' is i32[], not i64[]"),
        ("%c: bool[]", "%c: bool[1]", "M6", "the flag of region 'body' is bool[1], not bool[]"),
        ("-> (%c, %w", "-> (%i, %w", "M6", "the flag of region 'body' is i64[], not bool[]"),
        ("%trip, _, %x", "%trip, _, _", "M6", "carried value %v has no first state"),
        ("%trip, _, %x", "%trip, _, %trip", "M6", "%v is f32[q], its first state i64[]"),
        (": f32[r], f32[s, 2]", ": f32[r, 2], f32[s, 2]", "M6", "%y is f32[r, 2], the region gives f32[2*q]"),
        (": f32[r], f32[s, 2]", ": f32[r], f32[s, 3]", "M6", "%z is f32[3], less its first axis; the region"),
        ("(%trip, _, %x)", "(_, _, %x) {trips = 3}", "M7", "a loop's trips is a Dim"),
    ],
)
def test_broken_loops(old: str, new: str, rule: str, message: str) -> None:
    text = LOOP.replace("sym r", "sym q in 0..* sym s in 0..* sym r")
    assert old in text
    verify(parse_module(text))
    refused(lambda: verify(parse_module(text.replace(old, new))), rule, message)


def test_sizes_around_a_loop() -> None:
    """Those that a region binds may be anything, those from outside may not differ."""
    text = LOOP.replace("sym r", "sym s in 0..* sym r in 0..* sym q").replace("2*q", "2*n + 2")
    bad = parse_module(text.replace("f32[q]", "f32[n + 1]"))
    refused(lambda: verify(bad), "M6", "%v is f32[n + 1], its first state f32[n]")
    bad = parse_module(text.replace("f32[q]", "f32[n]"))
    refused(lambda: verify(bad), "M6", "%v is f32[n], the region gives f32[2*n + 2]")
