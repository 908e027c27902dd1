"""Trees for groups and threads, from the code for CUDA lowered to this machine, are the interpreter's."""

from __future__ import annotations

import ir_samples
import numpy as np
import pytest
from cuda_run import OnHost
from device_trees import IN_STEP, LANES, check_tree, in_step
from scheduled_trees import TREES

from smelt.core.diag import SmeltError
from smelt.core.ir.text import parse_kernel
from smelt.core.schedule.module import schedule_kernel
from smelt.targets.cuda.emit import BARRIER, emit_program
from smelt.targets.cuda.machine import MACHINE, cpu_for

CPU = cpu_for("sm_53")
MOST = MACHINE.max_lanes
Sizes = tuple[dict[str, int], ...]
TOGETHER: dict[str, tuple[str, Sizes, int]] = {
    # each pass reads what others wrote in the one before, and overwrites what they may still be reading
    "rounds": ("""
kernel @rounds(n: dim in 0..*, x: f32[n, 40]) -> (y: f32[n, 40]) {
  group i in n {
    shared a: f32[40]
    lane j in 40 { a[j] = x[i, j] }
    serial k in 3 {
      shared b: f32[40]
      lane j in 40 { b[j] = a[(j + 11) % 40] + 2.0: f32 }
      lane j in 40 { a[j] = b[39 - j] * 0.5: f32 }
    }
    lane j in 40 { y[i, j] = a[(j + 1) % 40] }
  }
}""", ({"n": 0}, {"n": 1}, {"n": 4}), 40),
    # the same, written out
    "unrolled-rounds": ("""
kernel @written(n: dim in 0..*, x: f32[n, 40]) -> (y: f32[n, 40]) {
  group i in n {
    shared a: f32[40]
    lane j in 40 { a[j] = x[i, j] }
    unroll k in 3 {
      shared b: f32[40]
      lane j in 40 { b[j] = a[(j + 11) % 40] + 2.0: f32 }
      lane j in 40 { a[j] = b[39 - j] * 0.5: f32 }
    }
    lane j in 40 { y[i, j] = a[(j + 1) % 40] }
  }
}""", ({"n": 3},), 40),
    # more instances than threads; between two nests a loop that is one thread's; memory that all can see
    "turns": ("""
kernel @turns(n: dim in 0..*, m: dim in 1..*, x: f32[n, m]) -> (y: f32[n, m]) {
  group i in n {
    shared least: f32[1]
    lane j in m { y[i, j] = x[i, j] * 3.0: f32 }
    least[0] = 0.0: f32
    serial j in m { least[0] min= y[i, m - 1 - j] }
    lane j in m { y[i, j] = x[i, j] - least[0] }
  }
}""", ({"n": 3, "m": 1}, {"n": 2, "m": 128}, {"n": 2, "m": 300}), MOST),
    # registers that live from nest to nest, each thread's own
    "own": ("""
kernel @own(n: dim in 0..*, x: f32[n, 12, 4]) -> (y: f32[n, 12]) {
  group i in n {
    register acc: f32[3, 4, 4]
    lane a in 3 { lane b in 4 { unroll c in 4 { acc[a, b, c] = x[i, 4*a + b, c] } } }
    serial k in 4 { lane a in 3 { lane b in 4 { acc[a, b, 0] add= acc[a, b, 0] * x[i, 4*a + b, k] } } }
    lane a in 3 { lane b in 4 { y[i, 4*a + b] = acc[a, b, 0] + acc[a, b, 3] } }
  }
}""", ({"n": 0}, {"n": 5}), 12),
    # registers of a thread that another one reads are shared memory
    "neighbours": ("""
kernel @neighbours(n: dim in 0..*, x: i32[n, 9]) -> (y: i32[n, 9]) {
  group i in n {
    register held: i32[9]
    lane a in 9 { held[a] = x[i, a] }
    lane a in 9 { y[i, a] = held[8 - a] }
  }
}""", ({"n": 3},), 9),
    # fewer instances in one nest than in the other
    "some": ("""
kernel @some(n: dim in 0..*, x: f32[n, 32]) -> (y: f32[n, 32]) {
  group i in n {
    shared sums: f32[8]
    lane j in 8 { sums[j] = 0.0: f32  serial k in 4 { sums[j] add= x[i, 4*j + k] } }
    lane j in 32 { y[i, j] = sums[j // 4] }
  }
}""", ({"n": 2},), 32),
    "tiles": ("""
kernel @tiled(n: dim in 0..*, x: f32[n]) -> (y: f32[n]) {
  tiles lane (at, rows) in n: balanced(4 .. 1) { unroll i in rows { y[at + i] = x[at + i] + 1.0: f32 } }
}""", ({"n": 0}, {"n": 3}, {"n": 41}, {"n": 700}), MOST),
    "greedy-groups": ("""
kernel @greedy(n: dim in 0..*, x: f32[n, 6]) -> (y: f32[n, 6]) {
  tiles group (at, rows) in n: greedy(4, 2, 1) {
    shared s: f32[rows, 6]
    lane j in 6 { unroll i in rows { s[i, j] = x[at + i, j] } }
    lane j in 6 { unroll i in rows { y[at + i, j] = s[i, 5 - j] } }
  }
}""", ({"n": 0}, {"n": 3}, {"n": 4}, {"n": 15}), 6),
    # an index that is read from memory, and a body that writes there
    "uniform-block": ("""
kernel @picked(n: dim in 1..*, x: f32[n, 16], ids: i32[n]) -> (y: f32[n, 16]) {
  group i in n {
    shared at: i32[1]
    at[0] = ids[i]
    block let (g = at[0] in 0 .. n - 1) if (0 <= i < n) {
      lane j in 16 { y[i, j] = x[g, j] }
      at[0] = 0: i32
    }
  }
}""", ({"n": 1}, {"n": 6}), 16),
}  # fmt: skip
"""Name -> text, sizes, threads of a group."""


@pytest.mark.table(3)  # the emitter is that of processors, whose test has all
@pytest.mark.parametrize("name", sorted(TREES))
def test_cpu_tree(name: str) -> None:
    text, sizes = TREES[name]
    assert all(p.threads == 1 for p in check_tree(OnHost, parse_kernel(text), sizes).parts)


@pytest.mark.parametrize("name", sorted(TOGETHER))
def test_threads_together(name: str) -> None:
    text, sizes, threads = TOGETHER[name]
    (part,) = check_tree(OnHost, parse_kernel(text), sizes).parts
    assert part.threads == threads


def test_ordered_blocks_meet() -> None:
    text, sizes, threads = LANES["ordered"]
    (part,) = check_tree(OnHost, parse_kernel(text), sizes).parts
    assert part.threads == threads and part.text.count(f"@{BARRIER}(") == 2


def test_shared_tiles_and_registers() -> None:
    (part,) = check_tree(OnHost, ir_samples.gpu_gemm(), ({"m": 0}, {"m": 5}, {"m": 16})).parts
    assert part.text.count("addrspace(3) global") == 1  # xs is the group's, acc each thread's own
    assert part.text.count(f"@{BARRIER}(") == 2
    assert "alloca" not in part.text


@pytest.mark.parametrize(("name", "count"), [("rounds", 4), ("own", 0), ("uniform-block", 2)])
def test_barriers_stand_where_threads_meet(name: str, count: int) -> None:
    """rounds: before the loop, between its nests, after each pass, which is also before the last nest."""
    program = emit_program([parse_kernel(TOGETHER[name][0])], CPU)
    assert sum(p.text.count(f"@{BARRIER}(") for p in program.parts.values()) == count


@pytest.mark.parametrize("name", ["rounds", "turns", "neighbours", "uniform-block"])
def test_without_its_barriers_a_kernel_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof that turns at barriers find what a missing one spoils."""
    monkeypatch.setattr("smelt.targets.cuda.emit.KernelPart._barrier", lambda self, under_way=0: None)
    text, sizes, _ = TOGETHER[name]
    with pytest.raises(AssertionError):
        check_tree(OnHost, parse_kernel(text), sizes)


def test_scheduled_for_threads() -> None:
    kernel = schedule_kernel(ir_samples.matmul(), MACHINE)
    parts = check_tree(OnHost, kernel, ({"m": 5, "n": 70, "k": 9}, {"m": 1, "n": 1, "k": 0})).parts
    assert all(p.threads > 1 for p in parts)


@pytest.mark.parametrize("name", IN_STEP)
def test_scheduled_for_threads_in_step(name: str) -> None:
    kernel, sizes = in_step(name, MACHINE)
    assert all(p.threads > 1 for p in check_tree(OnHost, kernel, sizes).parts)


def test_text_is_deterministic() -> None:
    kernels = [parse_kernel(t).with_(name=n) for n, (t, _, _) in TOGETHER.items()]
    programs = [emit_program(kernels, CPU) for _ in range(2)]
    assert programs[0] == programs[1]
    assert len({p.name for p in programs[0].parts.values()}) == len(kernels)


def test_too_much_memory_is_refused() -> None:
    text = TOGETHER["rounds"][0].replace("40", "9000").replace("39", "8999")
    with pytest.raises(SmeltError, match="kernel 'rounds' needs 72000 bytes of memory for a group"):
        emit_program([parse_kernel(text)], CPU)
    text = """
kernel @stack(n: dim in 0..*, x: f32[n, 20000]) -> (y: f32[n, 20000]) {
  group i in n {
    register t: f32[20000]
    serial j in 20000 { t[j] = x[i, j] }
    serial j in 20000 { y[i, j] = t[19999 - j] }
  }
}"""
    with pytest.raises(SmeltError, match="kernel 'stack' needs 80000 bytes of memory for a lane"):
        emit_program([parse_kernel(text)], CPU)


def test_more_parameters_than_a_kernel_can_have() -> None:
    """600 inputs: 4800 bytes, of which a kernel takes 4096; they come in a block of memory."""
    names = [f"x{i}" for i in range(600)]
    many = ", ".join(f"{n}: f32[n]" for n in names)
    body = "\n".join(f"    y[{i}, j] = {n}[j]" for i, n in enumerate(names))
    kernel = parse_kernel(f"kernel @many(n: dim in 0..*, {many}) -> (y: f32[600, n]) {{\n"
                          f"  group j in n {{\n{body}\n  }}\n}}")  # fmt: skip
    built = OnHost(kernel)
    assert [p.parameters for p in built.parts] == [2]
    rows = [np.array([i, -i], np.float32) for i in range(600)]
    np.testing.assert_array_equal(built(rows, {"n": 2})[0], rows)
