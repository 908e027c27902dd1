"""IR text: printing then parsing gives an equal module; errors say where; the printed form is golden."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable

import numpy as np
import pytest
import strategies as gen
from hypothesis import given, settings
from ir_samples import dyn_ffn, gemm, gpu_gemm, matmul

from smelt.core.diag import SmeltError
from smelt.core.dim import parse_dim, product, sym, to_dim
from smelt.core.dim.parse import MAX_TEXT
from smelt.core.dtype import DTYPES, DType, f32
from smelt.core.ir.graph import Graph, Module, Node, TensorType, Value, Weight
from smelt.core.ir.kernel import Buffer, DimParam, Expr, Kernel, Load, Loop, Stmt, Store
from smelt.core.ir.text import (
    parse_expr,
    parse_kernel,
    parse_module,
    parse_stmt,
    print_expr,
    print_kernel,
    print_module,
    print_stmt,
)
from smelt.core.schedule.schedule import Schedule, Step
from smelt.core.schedule.schedule import parse as parse_schedule


@given(gen.exprs())
@settings(max_examples=150, deadline=None)
def test_expressions_round_trip(e: Expr) -> None:
    text = print_expr(e)
    assert parse_expr(text) == e
    assert print_expr(parse_expr(text)) == text


@given(gen.stmts())
@settings(max_examples=100, deadline=None)
def test_statements_round_trip(s: Stmt) -> None:
    assert parse_stmt(print_stmt(s)) == s


@given(gen.kernels())
@settings(max_examples=60, deadline=None)
def test_kernels_round_trip(k: Kernel) -> None:
    text = print_kernel(k)
    assert parse_kernel(text) == k
    assert print_kernel(parse_kernel(text)) == text


@given(gen.modules())
@settings(max_examples=80, deadline=None)
def test_modules_round_trip(m: Module) -> None:
    text = print_module(m)
    again = parse_module(text, {w.name: w for w in m.weights.values()})
    assert again == m
    assert print_module(again) == text


def test_a_load_outside_of_a_groups_scratch_says_its_dtype() -> None:
    """What a group has of its own is visible in it alone, also where the text is read."""
    own = (Buffer("t", f32, (), "scratch"),)
    store = Store("y", (), Load("t", (), f32))
    for kept in (own, ()):
        group = Loop("group", "i", sym("n"), (store,), kept)
        kernel = Kernel("k", (DimParam("n", 1, 9),), (), (Buffer("y", f32, ()),), (group, store))
        assert parse_kernel(print_kernel(kernel)) == kernel


@given(gen.samples())
@settings(max_examples=60, deadline=None)
def test_runnable_kernels_round_trip(s: gen.Sample) -> None:
    assert parse_kernel(print_kernel(s.kernel)) == s.kernel


@pytest.mark.parametrize("kernel", [matmul(), gemm(), gpu_gemm()], ids=lambda k: k.name)
def test_kernel_text(kernel: Kernel, golden: Callable[[str, str], None]) -> None:
    golden(f"text/{kernel.name}.smelt", print_kernel(kernel))


def test_module_text(golden: Callable[[str, str], None]) -> None:
    golden("text/ffn.smelt", print_module(dyn_ffn()))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_weight_elements_round_trip(dtype: DType) -> None:
    values: list[float] = [0, 1, 3, 100]
    if dtype.is_float:
        values += [0.1, -0.0, float("inf"), float("-inf"), float("nan"), 1e-7, 65504.0]
    w = Weight("@w", dtype, (len(values),), np.array(values).astype(dtype.numpy))
    text = print_module(Module("m", weights={"@w": w}))
    assert "= [" in text
    again = parse_module(text).weights["@w"]
    assert again.array().tobytes() == w.array().tobytes()


def test_large_weights_are_found_by_name_or_digest() -> None:
    w = Weight("@w", f32, (100,), np.arange(100, dtype=np.float32), origin="conv1.weight")
    text = print_module(Module("m", weights={"@w": w}))
    assert w.digest in text
    for key in ("@w", w.digest):
        assert parse_module(text, {key: w}).weights["@w"].array() is w.data
    bare = parse_module(text).weights["@w"]
    assert bare == w
    assert bare.data is None


def test_sizes_of_any_length_round_trip() -> None:
    """What smelt wrote is read again, though nobody may write a size as long into a model."""
    size = sum((product(sym(f"{c}{i}" * 80) for c in "abcdefgh") for i in range(15)), to_dim(0))
    assert len(str(size)) > MAX_TEXT
    with pytest.raises(ValueError, match=f"at most {MAX_TEXT}"):
        parse_dim(str(size))
    value = Value("%x", TensorType(f32, (size,)))
    module = Module("m", graphs={"main": Graph("main", (value,), (), ("%x",))})
    (again,) = parse_module(print_module(module)).graphs["main"].inputs
    assert again.type.shape == (size,)
    assert pickle.loads(pickle.dumps(size)) is size
    step = Schedule((Step("peel", ("i", size, "i.p")),))
    assert parse_schedule(str(step)) == step


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('module "m" {\n  sym n in 1.*\n}', "line 2, column 13: cannot read"),
        ('module "m" {\n  sym n in 1..\n}', "line 3, column 1: found '}', wanted an integer"),
        ('module "m" {', "found the end, wanted sym, weight"),
        ('module "m" {} x', "line 1, column 15: found 'x', wanted the end"),
        ('module "m" {\n graph @main(%x: f33[2]) -> () {} }', "line 2, column 18: found 'f33'"),
        ('module "m" {\n graph @main(%x: f32[2 +]) -> () {} }', "line 2, column 22: "),
        ('module "m" {\n graph @main() -> () {\n  %y = add(%x, 3) : f32[]\n } }', "line 3, column 16"),
        ('module "m" {\n weight @w: f32[2] = [1.0] }', "wanted the 2 elements of @w"),
        ('module "m" {\n weight @w: u8[1] = [1000] }', "wanted elements of u8"),
        ('module "a\\q" {}', "wanted a string with valid escapes"),
        ('kernel @k() -> () { y[0] = x[0] }', "wanted a declared buffer"),
        ('kernel @k(x: f32[2]) -> (y: f32[2]) { y[0] = cast(x[0]) }', "wanted a dtype, as in cast:f32"),
        ('kernel @k(x: f32[2]) -> (y: f32[2]) { sreial i in 2 { } }', "found 'sreial', wanted a statement"),
        ('kernel @k(x: f32[2]) -> (y: f32[2]) { y[0] = (1.0:f32 if (0 <= 1 < 2)) }', "only a load"),
        ('kernel @k(x: f32[n//0]) -> () { }', "divides by zero"),
    ],
)
def test_errors_say_where(text: str, message: str) -> None:
    parse: Callable[[str], object] = parse_module if text.startswith("module") else parse_kernel
    with pytest.raises(SmeltError) as e:
        parse(text)
    assert e.value.kind == "invalid"
    assert message in str(e.value)


def test_every_prefix_is_refused_with_an_error() -> None:
    text = print_module(dyn_ffn())
    for end in range(0, len(text.rstrip()), 7):
        with pytest.raises(SmeltError):
            parse_module(text[:end])


def test_people_may_write_comments_and_shortcuts() -> None:
    k = parse_kernel("""
        kernel @k(n: dim in 1..8, x: f32[n]) -> (y: f32[n]) {   # a comment
          tiles group (i, r) in n : greedy (4 .. 2, 1) { unroll j in r { y[i+j] = 2.0:f32*x[i + j] } }
        }""")
    assert print_kernel(parse_kernel(print_kernel(k))) == print_kernel(k)
    assert k.body[0].sizes == (4, 3, 2, 1)  # type: ignore[union-attr]


def test_a_large_module_streams() -> None:
    """7,000 nodes print and parse in seconds (smoke; the bound is ten times what is usual)."""
    shape = (sym("batch"), sym("seq"), to_dim(384))
    nodes = []
    last = "%x"
    for n in range(7000):
        v = Value(f"%v{n}", TensorType(f32, shape), f"/encoder/layer.{n}/MatMul_output_0")
        nodes.append(Node("add", (last, "@w"), (v,), {"axis": n, "shape": shape}, (), f"node {n}"))
        last = v.name
    g = Graph("main", (Value("%x", TensorType(f32, shape), "x"),), tuple(nodes), (last,), ("y",))
    m = Module("big", graphs={"main": g})
    start = time.process_time()
    assert parse_module(print_module(m)) == m
    assert time.process_time() - start < 20
