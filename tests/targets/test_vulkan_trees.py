"""Hand-scheduled trees, and a kernel scheduled for lanes, agree with the interpreter on a Vulkan device."""

from __future__ import annotations

import ir_samples
import pytest
from device_trees import IN_STEP, LANES, check_tree, in_step
from scheduled_trees import TREES
from spirv_checks import valid
from vulkan_run import OnVulkan

from smelt.core.diag import SmeltError
from smelt.core.dim import Facts, parse_dim, sym, to_dim
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import parse_kernel
from smelt.core.schedule.module import schedule_kernel
from smelt.targets.vulkan.code import DONT_UNROLL
from smelt.targets.vulkan.emit import emit_parts
from smelt.targets.vulkan.index import Largest, magnitude
from smelt.targets.vulkan.machine import MACHINE
from smelt.targets.vulkan.package import packed
from smelt.targets.vulkan.spirv import OPCODES

WRITTEN_OUT = """
    kernel @rows(n: dim in 1..*, x: f32[n, 12]) -> (y: f32[n, 12]) {
      group i in n {
        serial j in 3 {
          unroll k in 4 {
            y[i, 4*j + k] = x[i, 4*j + k]
          }
        }
      }
    }
"""


def check(kernel: Kernel, sizes: tuple[dict[str, int], ...]) -> OnVulkan:
    built = check_tree(OnVulkan, kernel, sizes)
    for p in built.parts:
        for form in (*p.better, p):
            valid(form.words)
    return built


def named(words: tuple[int, ...], op: str) -> list[tuple[int, ...]]:
    """The instructions of a module that have this name."""
    at, found = 5, []
    while at < len(words):
        length = words[at] >> 16
        if words[at] & 0xFFFF == OPCODES[op]:
            found.append(words[at : at + length])
        at += length
    return found


def barriers(words: tuple[int, ...]) -> int:
    """How many barriers a module has."""
    return len(named(words, "ControlBarrier"))


def test_passes_that_are_written_out_share_their_index_arithmetic() -> None:
    """12 * i and 4 * j are computed once, and not in each of the four passes."""
    (part,) = check(parse_kernel(WRITTEN_OUT), ({"n": 1}, {"n": 3})).parts
    made = [x[-2:] for x in named(part.words, "IMul")]
    assert made and len(set(made)) == len(made)


def test_drivers_are_asked_to_keep_loops_whose_body_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def hints() -> set[int]:
        (part,) = emit_parts([parse_kernel(WRITTEN_OUT)]).values()
        valid(part.words)
        return {x[-1] for x in named(part.words, "LoopMerge")}

    assert hints() == {0}
    monkeypatch.setattr("smelt.targets.vulkan.code.LONG_BODY", 8)
    assert hints() == {DONT_UNROLL}


@pytest.mark.parametrize("name", sorted(TREES))
def test_cpu_tree(name: str) -> None:
    text, sizes = TREES[name]
    assert all(p.lanes == 1 for p in check(parse_kernel(text), sizes).parts)


@pytest.mark.parametrize("name", sorted(LANES))
def test_lanes(name: str) -> None:
    text, sizes, lanes = LANES[name]
    assert [p.lanes for p in check(parse_kernel(text), sizes).parts] == [lanes]


def test_shared_tiles_and_registers() -> None:
    (part,) = check(ir_samples.gpu_gemm(), ({"m": 0}, {"m": 5}, {"m": 16})).parts
    assert barriers(part.words) == 2


@pytest.mark.parametrize(("name", "count"), [("exchange", 4), ("own", 0), ("ordered", 2)])
def test_barriers_stand_where_invocations_meet(name: str, count: int) -> None:
    (part,) = emit_parts([parse_kernel(LANES[name][0])]).values()
    # exchange: before the loop, between its nests, after each pass (which is also before the last nest)
    assert barriers(part.words) == count


def test_scheduled_for_lanes() -> None:
    kernel = schedule_kernel(ir_samples.matmul(), MACHINE)
    parts = check(kernel, ({"m": 5, "n": 70, "k": 9}, {"m": 1, "n": 1, "k": 0})).parts
    assert all(p.lanes > 1 for p in parts)


@pytest.mark.table(2, 1)  # OpenCL has the others
@pytest.mark.parametrize("name", IN_STEP)
def test_scheduled_for_invocations_in_step(name: str) -> None:
    kernel, sizes = in_step(name, MACHINE)
    assert all(p.lanes > 1 for p in check(kernel, sizes).parts)


def test_code_is_deterministic() -> None:
    kernels = [parse_kernel(t).with_(name=n) for n, (t, _) in TREES.items()]
    assert len({packed(list(emit_parts(kernels).values())) for _ in range(2)}) == 1


def test_too_much_shared_memory_is_refused() -> None:
    text = LANES["exchange"][0].replace("48", "5000")
    with pytest.raises(SmeltError, match="kernel 'exchange' needs 20000 bytes of memory for a group"):
        emit_parts([parse_kernel(text)])


def test_what_is_0_or_1_makes_nothing_larger() -> None:
    """Rows of one of two nests, by the length of a row: their number is no more than that of all."""
    facts = Facts().with_lower("m", 0).with_lower("k", 0)
    rows = parse_dim("m*min(max(513 - k, 0), 1)*min(max(16385 - k, 0), 1)")
    assert magnitude(rows, {}, facts) == sym("m")


def test_the_largest_of_polynomials() -> None:
    """No less than each that was added, and unchanged by what it covers."""
    n, m = sym("n"), sym("m")
    limits = Largest()
    for d in (3 * n * m + 2, n * n + 5 * n * m, to_dim(7)):
        assert not limits.covers(d)
        limits.add(d)
        assert limits.covers(d)
    assert limits.polynomial() == n * n + 5 * n * m + 7
    assert limits.covers(4 * n * m + n * n + 1) and not limits.covers(n) and not limits.covers(to_dim(8))
