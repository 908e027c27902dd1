"""The kernel interpreter: against NumPy, against itself one element at a time, and at its edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import strategies as gen
from hypothesis import given, settings
from ir_samples import gemm, gpu_gemm, matmul

import smelt.core.ir.interp_kernel as interp
from smelt.core.diag import SmeltError
from smelt.core.dtype import DTYPES, DType, bool_, f16, f32, f64, i8, i32, i64, u8
from smelt.core.ir.interp_kernel import cast_array, run_kernel, tile_sizes
from smelt.core.ir.text import parse_kernel, print_kernel


def run(text: str, dims: dict[str, int], *inputs: Any) -> tuple[np.ndarray[Any, Any], ...]:
    return run_kernel(parse_kernel(text), dims, [np.asarray(x) for x in inputs])


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    """Small whole numbers as floats: sums of products are exact in any order."""
    return rng.integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("size", [(0, 3, 4), (1, 1, 0), (5, 7, 9), (24, 16, 64)])
def test_matmul(rng: np.random.Generator, size: tuple[int, int, int]) -> None:
    m, n, k = size
    x, w, b = integers(rng, m, k), integers(rng, k, n), integers(rng, n)
    (y,) = run_kernel(matmul(), {"m": m, "n": n, "k": k}, [x, w, b])
    np.testing.assert_array_equal(y, x @ w + b)


@pytest.mark.parametrize("m", [0, 1, 11, 12, 13, 30])
def test_scheduled_trees_mean_the_same(rng: np.random.Generator, m: int) -> None:
    x, w, b = integers(rng, m, 12), integers(rng, 3, 12, 32), integers(rng, 96)
    (y,) = run_kernel(gemm(), [m], [x, w, b])
    np.testing.assert_array_equal(y, np.maximum(x @ w.transpose(1, 0, 2).reshape(12, 96) + b, 0))
    x, w = integers(rng, m, 32), integers(rng, 32, 8)
    (y,) = run_kernel(gpu_gemm(), [m], [x, w])
    np.testing.assert_array_equal(y, x @ w)


@given(gen.samples())
@settings(max_examples=120, deadline=None)
def test_arrays_mean_what_elements_mean(s: gen.Sample) -> None:
    """Loops run as arrays give the bits that loops run one by one give."""
    fast = run_kernel(s.kernel, s.dims, s.inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interp, "_nests_of", lambda s: ())
        slow = run_kernel(s.kernel, s.dims, s.inputs)
    for a, b in zip(fast, slow, strict=True):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes() or np.array_equal(a, b, equal_nan=True)


@given(gen.samples())
@settings(max_examples=60, deadline=None)
def test_chunks_mean_the_whole(s: gen.Sample) -> None:
    whole = run_kernel(s.kernel, s.dims, s.inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interp, "CHUNK_ELEMENTS", 3)
        parts = run_kernel(s.kernel, s.dims, s.inputs)
        patch.setattr(interp, "WIDE_REDUCTION", 1)
        terms = run_kernel(s.kernel, s.dims, s.inputs)
    for a, b, c in zip(whole, parts, terms, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_a_sum_adds_in_order_in_its_own_type() -> None:
    x = np.array([1e8, 1.0, -1e8, 1.0] * 50, np.float32)
    text = "kernel @k(x: f32[200]) -> (y: {0}[]) {{ y[] = sum:{0} i in 200 {{ x[i] }} }}"
    (y,) = run(text.format("f32"), {}, x)
    total = np.float32(0)
    for v in x:
        total = np.float32(total + v)
    assert y == total != 100
    assert run(text.format("f64"), {}, x)[0] == 100.0


def test_a_scan_reads_what_it_wrote() -> None:
    text = """kernel @k(n: dim in 0..*, x: i32[n]) -> (y: i32[n]) {
      serial i in n { y[i] = x[i] + (y[i - 1] if (1 <= i < n)) } }"""
    x = np.arange(10, dtype=np.int32)
    np.testing.assert_array_equal(run(text, {"n": 10}, x)[0], np.cumsum(x))


def test_accumulating_into_shared_elements() -> None:
    text = """kernel @k(x: i32[10]) -> (y: i32[5]) {
      serial i in 5 { y[i] = 0:i32 }
      serial i in 10 { y[i//2] add= x[i] } }"""
    x = np.arange(10, dtype=np.int32)
    np.testing.assert_array_equal(run(text, {}, x)[0], x.reshape(5, 2).sum(1))


def test_the_last_of_several_stores_wins() -> None:
    text = """kernel @k(x: i32[3]) -> (y: i32[2]) {
      serial i in 3 { y[i//2] = x[i] } }"""
    np.testing.assert_array_equal(run(text, {}, np.array([7, 8, 9], np.int32))[0], [8, 9])


def test_guards_lets_and_blocks() -> None:
    text = """kernel @k(n: dim in 0..*, x: f32[n], idx: i64[4]) -> (y: f32[4], z: f32[4]) {
      serial i in 4 { y[i] = let g = idx[i] in 0 .. n - 1 { x[g] } }
      serial i in 4 {
        z[i] = (x[i] if (0 <= i < n) else -1.0:f32)
        block let (g = idx[i] in 0 .. n - 1) if (1 <= g < 2) { z[i] = 9.0:f32 }
      }
    }"""
    y, z = run(text, {"n": 3}, np.array([1, 2, 3], np.float32), np.array([-5, 1, 99, 2]))
    np.testing.assert_array_equal(y, [1, 2, 3, 3])
    np.testing.assert_array_equal(z, [1, 9, 3, -1])
    small = text.replace("n - 1", "0 + max(n - 1, 0)")
    (_, z) = run(small, {"n": 1}, np.array([4], np.float32), np.zeros(4, np.int64))
    np.testing.assert_array_equal(z, [4, -1, -1, -1])


def test_where_a_store_is_guarded_nothing_is_read() -> None:
    text = """kernel @k(n: dim in 0..*, x: f32[n]) -> (y: f32[n]) {
      group g in (n + 3)//4 { vector i in 4 { y[4*g + i] = x[4*g + i] if (0 <= 4*g + i < n) } } }"""
    for n in range(10):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(run(text, {"n": n}, x)[0], x)


@pytest.mark.parametrize("kind", ["argmax", "argmin", "argmax_last", "argmin_last"])
def test_positions(kind: str) -> None:
    text = f"""kernel @k(x: i32[2, 5]) -> (y: i64[2]) {{
      serial i in 2 {{ y[i] = {kind}:i64 j in 5 {{ x[i, j] }} }} }}"""
    x = np.array([[1, 5, 5, 0, 0], [2, 2, 2, 2, 2]], np.int32)
    wanted = {"argmax": [1, 0], "argmin": [3, 0], "argmax_last": [2, 4], "argmin_last": [4, 4]}
    np.testing.assert_array_equal(run(text, {}, x)[0], wanted[kind])


@pytest.mark.parametrize(
    ("kind", "dtype", "wanted"),
    [
        ("sum", f32, 0), ("prod", f64, 1), ("max", f32, -np.inf), ("min", f16, np.inf),
        ("max", i8, -128), ("min", u8, 255), ("any", bool_, False), ("all", bool_, True),
    ],
)
def test_empty_reductions(kind: str, dtype: DType, wanted: Any) -> None:
    text = f"""kernel @k(n: dim in 0..*, x: {dtype}[n]) -> (y: {dtype}[]) {{
      y[] = {kind} i in n {{ x[i] }} }}"""
    assert run(text, {"n": 0}, np.zeros(0, dtype.numpy))[0] == dtype.numpy.type(wanted)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("i + 1", "index 4 of axis 0 is outside 0 .. 3 (extent 4)"),
        ("i - 1", "index -1 of axis 0 is outside 0 .. 3 (extent 4)"),
        ("5*i", "x[5*i]"),
    ],
)
def test_nothing_wraps(index: str, message: str) -> None:
    text = f"kernel @k(x: f32[4]) -> (y: f32[4]) {{ serial i in 4 {{ y[i] = x[{index}] }} }}"
    with pytest.raises(SmeltError) as e:
        run(text, {}, np.zeros(4, np.float32))
    assert e.value.kind == "internal"
    assert message in str(e.value)


def test_stores_do_not_wrap_either() -> None:
    text = "kernel @k(x: f32[4]) -> (y: f32[4]) { serial i in 4 { y[i - 1] = x[i] } }"
    with pytest.raises(SmeltError, match="index -1 of axis 0"):
        run(text, {}, np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([np.zeros(4)], "input x is float64[4], expected f32[4]"),
        ([np.zeros(5, np.float32)], "input x is float32[5], expected f32[4]"),
        ([], "0 inputs, expected 1"),
    ],
)
def test_inputs_must_fit(inputs: list[Any], message: str) -> None:
    text = "kernel @k(x: f32[4]) -> (y: f32[4]) { serial i in 4 { y[i] = x[i] } }"
    with pytest.raises(SmeltError) as e:
        run(text, {}, *inputs)
    assert message in str(e.value)


def test_what_nobody_wrote_shows() -> None:
    text = "kernel @k(x: f32[4]) -> (y: f32[4], z: i32[1]) { serial i in 3 { y[i] = x[i] } }"
    y, z = run(text, {}, np.zeros(4, np.float32))
    np.testing.assert_array_equal(np.isnan(y), [False, False, False, True])
    assert z[0] == 0x5A5A5A5A


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_type_computes(dtype: DType) -> None:
    fn = "or" if dtype == bool_ else "add"
    text = f"""kernel @k(x: {dtype}[6]) -> (y: {dtype}[6]) {{
      serial i in 6 {{ y[i] = {fn}(x[i], x[5 - i]) }} }}"""
    x = np.array([0, 1, 1, 0, 1, 0]).astype(dtype.numpy)
    (y,) = run(text, {}, x)
    assert y.dtype == dtype.numpy
    want = x | x[::-1] if dtype == bool_ else (x + x[::-1]).astype(dtype.numpy)
    np.testing.assert_array_equal(y, want)


def test_casts() -> None:
    x = np.array([1.9, -1.9, np.nan, np.inf, -np.inf, 300, -300], np.float32)
    np.testing.assert_array_equal(cast_array(x, i8), [1, -1, 0, 127, -128, 127, -128])
    np.testing.assert_array_equal(cast_array(x, u8), [1, 0, 0, 255, 0, 255, 0])
    ends = np.iinfo(np.int64)
    assert list(cast_array(np.array([1e30, -1e30, 2.0**62], np.float64), i64)) == [ends.max, ends.min, 2**62]
    np.testing.assert_array_equal(cast_array(np.array([0, -0.0, np.nan, 2], np.float32), bool_), [0, 0, 1, 1])
    np.testing.assert_array_equal(cast_array(np.array([257, -1]), u8), [1, 255])
    np.testing.assert_array_equal(cast_array(np.array([True, False]), f32), [1, 0])
    for a in DTYPES.values():
        for b in DTYPES.values():
            one = cast_array(cast_array(np.array([0, 1]), a), b)
            assert one.dtype == b.numpy
            np.testing.assert_array_equal(one, np.array([0, 1]).astype(b.numpy))


def test_tiles_cover() -> None:
    assert tile_sizes(13, range(12, 0, -1), "balanced") == [7, 6]
    assert tile_sizes(13, (8, 4, 1), "greedy") == [8, 4, 1]
    assert tile_sizes(0, (4, 1), "greedy") == tile_sizes(0, (2, 1), "balanced") == []
    for n in range(60):
        for sizes, mode in (((7, 6, 5, 4, 3, 2, 1), "balanced"), ((16, 4, 1), "greedy")):
            found = tile_sizes(n, sizes, mode)
            assert sum(found) == n
            assert set(found) <= set(sizes)


def test_scratch_and_bitcast() -> None:
    text = """kernel @k(n: dim in 0..*, x: f32[n]) -> (y: i32[n]) scratch (t: f32[n]) {
      serial i in n { t[i] = x[i] + 1.0:f32 }
      serial i in n { y[i] = bitcast:i32(t[n - 1 - i]) } }"""
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(run(text, {"n": 5}, x)[0], (x + 1)[::-1].view(np.int32))
    assert i32.numpy == run(text, {"n": 0}, x[:0])[0].dtype


def test_ragged_loops_run() -> None:
    """Extents that depend on outer variables: lower triangles, as loops and as sums."""
    text = """kernel @k(x: f32[5, 5]) -> (y: f32[5], z: f32[5, 5]) {
      serial i in 5 { y[i] = sum j in i + 1 { x[i, j] } }
      serial i in 5 { serial j in 5 { z[i, j] = 0.0:f32 } }
      serial i in 5 { serial j in i + 1 { z[i, j] = x[i, j] } } }"""
    x = np.arange(25, dtype=np.float32).reshape(5, 5)
    y, z = run(text, {}, x)
    np.testing.assert_array_equal(y, np.tril(x).sum(1))
    np.testing.assert_array_equal(z, np.tril(x))


@pytest.mark.parametrize("accumulate", ["fma", "add", "max", "mul"])
def test_accumulation_keeps_its_order(rng: np.random.Generator, accumulate: str) -> None:
    """Serial loops around an accumulation run as a scan: the bits are those of one step after the other."""
    k = gemm()
    if accumulate != "fma":
        text = print_kernel(k).replace("fma=", f"{accumulate}=")
        k = parse_kernel(text)
    x, w, b = (
        (rng.standard_normal(s) + 1).astype(np.float32) for s in ((13, 12), (3, 12, 32), (96,))
    )
    fast = run_kernel(k, [13], [x, w, b])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interp, "CHUNK_ELEMENTS", 1200)  # three steps at once: the carry goes through chunks
        parts = run_kernel(k, [13], [x, w, b])[0]
        patch.setattr(interp, "_nests_of", lambda s: ())
        slow = run_kernel(k, [13], [x, w, b])[0]
    assert fast.tobytes() == parts.tobytes() == slow.tobytes()


@pytest.mark.parametrize(
    ("second", "together"),
    [
        ("y[1, i] = x[i] + 1.0:f32", True),
        ("z[4 - i] add= x[i]", True),
        ("y[0, 4 - i] = x[i] + 1.0:f32", False),
        ("y[i, 0] = x[i] + 1.0:f32", False),
        ("z[i] = y[0, 4 - i]", False),
    ],
)
def test_stores_of_one_loop_that_meet_run_in_turns(second: str, together: bool) -> None:
    text = f"""kernel @k(x: f32[5]) -> (y: f32[5, 5], z: f32[5]) {{
      serial i in 5 {{ serial j in 5 {{ y[i, j] = 0.0:f32 }} z[i] = 0.0:f32 }}
      serial i in 5 {{ y[0, i] = x[i]; {second} }} }}"""
    k, x = parse_kernel(text.replace("; ", "\n")), np.arange(5, dtype=np.float32)
    assert len(interp._nests_of(k.body[1])) == (2 if together else 0)
    fast = run_kernel(k, {}, [x])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interp, "_nests_of", lambda s: ())
        slow = run_kernel(k, {}, [x])
    for a, b in zip(fast, slow, strict=True):
        np.testing.assert_array_equal(a, b)


def test_accumulation_under_a_ragged_loop(rng: np.random.Generator) -> None:
    text = """kernel @k(x: f32[6, 6]) -> (y: f32[6]) {
      serial j in 6 { y[j] = 0.0:f32 }
      serial i in 6 { serial k in i { serial j in 6 { y[j] add= x[k, j] } } } }"""
    x = integers(rng, 6, 6)
    want = sum(x[:i].sum(0) for i in range(6))
    np.testing.assert_array_equal(run(text, {}, x)[0], want)
