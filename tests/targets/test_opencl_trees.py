"""Hand-scheduled trees, and a kernel scheduled for lanes, agree with the interpreter on a device."""

from __future__ import annotations

import ir_samples
import pytest
from kernel_data import compare, inputs
from opencl_run import OnDevice
from scheduled_trees import TREES

from smelt.core.diag import SmeltError
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import parse_kernel
from smelt.core.schedule.module import schedule_kernel
from smelt.targets.opencl.emit import emit_program
from smelt.targets.opencl.machine import MACHINE

LANES = {
    # the second nest reads what other work-items wrote; the loop's passes overlap without barriers
    "exchange": ("""
kernel @exchange(n: dim in 0..*, x: f32[n, 48]) -> (y: f32[n, 48]) {
  group i in n {
    shared a: f32[48]
    lane j in 48 { a[j] = x[i, j] }
    serial k in 5 {
      shared b: f32[48]
      lane j in 48 { b[j] = a[47 - j] + 1.0: f32 }
      lane j in 48 { a[j] = b[(j + 7) % 48] * 0.5: f32 }
    }
    lane j in 48 { y[i, j] = a[j] }
  }
}""", ({"n": 0}, {"n": 1}, {"n": 5}), 48),
    # more instances than work-items; a single statement between two nests is one work-item's
    "turns": ("""
kernel @turns(n: dim in 0..*, m: dim in 1..*, x: f32[n, m]) -> (y: f32[n, m]) {
  group i in n {
    shared total: f32[1]
    lane j in m { y[i, j] = x[i, j] * 2.0: f32 }
    total[0] = 0.0: f32
    serial j in m { total[0] add= y[i, m - 1 - j] }
    lane j in m { y[i, j] = x[i, j] - total[0] }
  }
}""", ({"n": 3, "m": 1}, {"n": 2, "m": 64}, {"n": 2, "m": 150}), 64),
    # registers that live across nests: each work-item's own
    "own": ("""
kernel @own(n: dim in 0..*, x: f32[n, 8, 3]) -> (y: f32[n, 8]) {
  group i in n {
    register acc: f32[2, 4, 3]
    lane a in 2 { lane b in 4 { unroll c in 3 { acc[a, b, c] = x[i, 4*a + b, c] } } }
    serial k in 3 { lane a in 2 { lane b in 4 { acc[a, b, 0] add= acc[a, b, 2 - k] } } }
    lane a in 2 { lane b in 4 { y[i, 4*a + b] = acc[a, b, 0] } }
  }
}""", ({"n": 0}, {"n": 7}), 8),
    # the same, but another work-item reads them
    "exchanged-registers": ("""
kernel @swapped(n: dim in 0..*, x: f32[n, 8]) -> (y: f32[n, 8]) {
  group i in n {
    register acc: f32[8]
    lane a in 8 { acc[a] = x[i, a] }
    lane a in 8 { y[i, a] = acc[7 - a] }
  }
}""", ({"n": 3},), 8),
    "lane-tiles": ("""
kernel @tiled(n: dim in 0..*, x: f32[n]) -> (y: f32[n]) {
  tiles lane (at, rows) in n: balanced(4 .. 1) { unroll i in rows { y[at + i] = x[at + i] + 1.0: f32 } }
}""", ({"n": 0}, {"n": 3}, {"n": 41}, {"n": 300}), 64),
    "uniform-block": ("""
kernel @picked(n: dim in 1..*, x: f32[n, 16], ids: i32[n]) -> (y: f32[n, 16]) {
  group i in n {
    block let (g = ids[i] in 0 .. n - 1) if (0 <= i < n) {
      lane j in 16 { y[i, j] = x[g, j] }
    }
  }
}""", ({"n": 1}, {"n": 6}), 16),
}  # fmt: skip


def check(kernel: Kernel, sizes: tuple[dict[str, int], ...]) -> OnDevice:
    built = OnDevice(kernel)
    for env in sizes:
        arrays = inputs(kernel, env)
        compare(built(arrays, env), run_kernel(kernel, env, arrays))
    return built


@pytest.mark.parametrize("name", sorted(TREES))
def test_cpu_tree(name: str) -> None:
    text, sizes = TREES[name]
    assert all(p.lanes == 1 for p in check(parse_kernel(text), sizes).parts)


@pytest.mark.parametrize("name", sorted(LANES))
def test_lanes(name: str) -> None:
    text, sizes, lanes = LANES[name]
    assert [p.lanes for p in check(parse_kernel(text), sizes).parts] == [lanes]


def test_shared_tiles_and_registers() -> None:
    text = check(ir_samples.gpu_gemm(), ({"m": 0}, {"m": 5}, {"m": 16})).text
    assert text.count("__local float") == 1  # xs is the group's, acc each work-item's own
    assert text.count("barrier(") == 2


@pytest.mark.parametrize("name", ["exchange", "own"])
def test_barriers_stand_where_work_items_meet(name: str) -> None:
    text, _ = emit_program([parse_kernel(LANES[name][0])])
    # exchange: before the loop, between its nests, after each pass (which is also before the last nest)
    assert text.count("barrier(") == {"exchange": 4, "own": 0}[name]


@pytest.mark.parametrize("sample", ["matmul"])
def test_scheduled_for_lanes(sample: str) -> None:
    kernel = schedule_kernel(getattr(ir_samples, sample)(), MACHINE)
    (part,) = check(kernel, ({"m": 5, "n": 70, "k": 9}, {"m": 1, "n": 1, "k": 0})).parts
    assert part.lanes > 1


def test_text_is_deterministic() -> None:
    texts = {emit_program([parse_kernel(t) for t, _ in TREES.values()])[0] for _ in range(2)}
    assert len(texts) == 1


def test_names_of_parts_differ() -> None:
    one = TREES["static-tiles"][0]
    kernels = [parse_kernel(one).with_(name=n) for n in ("a.1", "a", "a_1", "half")]
    _, parts = emit_program(kernels)
    assert len({p.name for p in parts.values()}) == len(parts) == 8


def test_too_much_shared_memory_is_refused() -> None:
    text = LANES["exchange"][0].replace("48", "5000")
    with pytest.raises(SmeltError, match="kernel 'exchange' needs 20000 bytes of local memory"):
        emit_program([parse_kernel(text)])


@pytest.mark.parametrize(("extent", "sizes"), [(12, 1), (13, 2), (3, 1), (1, 1)])
def test_tiles_of_constant_extents_have_constant_loops(extent: int, sizes: int) -> None:
    kernel = parse_kernel(f"""
kernel @tiles(x: f32[{extent}]) -> (y: f32[{extent}]) {{
  tiles group (at, rows) in {extent}: balanced(4 .. 1) {{
    register t: f32[rows]
    unroll i in rows {{ t[i] = x[at + i] }}
    unroll i in rows {{ y[at + i] = t[i] * 2.0: f32 }}
  }}
}}""")
    text = check(kernel, ({},)).text
    assert text.count("float r_t") == sizes
    assert text.count("#pragma unroll") == text.count("for (")
