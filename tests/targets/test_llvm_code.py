"""What generated code looks like: no spills in register tiles, the same every time, errors with names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
from scheduled_trees import TREES, gemm_text

from smelt.core.diag import SmeltError
from smelt.core.ir.groups import group_count
from smelt.core.ir.text import parse_kernel
from smelt.core.schedule import schedule_kernel
from smelt.targets.llvm.compile import compile_object, parse, target_machine
from smelt.targets.llvm.emit import emit_kernel, emit_module
from smelt.targets.llvm.machines import Cpu, cpu_for, machine_for

X86 = "x86_64-unknown-linux-gnu"
ARM = "aarch64-unknown-linux-gnu"
V7 = "armv7-unknown-linux-gnueabihf"


def assembly(rows: int, width: int, cpu: Cpu) -> str:
    module = parse(emit_module([parse_kernel(gemm_text(64, 4 * width, rows, width))], cpu))
    machine = target_machine(cpu, 2)
    module.data_layout = str(machine.target_data)
    return str(machine.emit_assembly(module))


def innermost(text: str, fma: str) -> str:
    """The basic block with the most multiply-adds."""
    return max(re.split(r"\n(?=\.LBB)", text), key=lambda block: block.count(fma))


@pytest.mark.parametrize(
    ("cpu", "rows", "width"),
    [("x86-64-v4", 12, 32), ("znver5", 12, 32), ("x86-64-v4", 8, 48), ("x86-64-v3", 6, 16)],
)
def test_tiles_do_not_spill_on_x86(cpu: str, rows: int, width: int) -> None:
    text = assembly(rows, width, cpu_for(X86, cpu))
    assert re.findall(r"[yz]mm\d+, -?\d*\(%rsp\)", text) == []
    block = innermost(text, "vfmadd")
    assert "(%rsp)" not in block.split("\tj")[0]
    lanes = 16 if cpu != "x86-64-v3" else 8
    assert block.count("vfmadd") == rows * width // lanes


def test_tiles_do_not_spill_on_arm() -> None:
    text = innermost(assembly(8, 12, cpu_for(ARM, "cortex-a76")), "fmla")
    assert "[sp" not in text.split("b.l")[0]
    assert text.count("fmla") == 24
    text = innermost(assembly(4, 8, cpu_for(V7, "cortex-a7", "+neon,+vfp4")), "vfma.f32")
    assert text.count("vfma.f32\tq") == 8


PRODUCT = """
kernel @mm(m: dim in 0..*, x: f32[m, 64], w: f32[64, 128]) -> (y: f32[m, 128]) {
  serial i in m { serial j in 128 { y[i, j] = sum k in 64 { x[i, k] * w[k, j] } } }
}"""


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_weights_are_asked_for_ahead(level: str) -> None:
    """As many lines as a step over terms reads of a panel; on Arm none, where nobody has measured."""
    lines = asked_of_weights(PRODUCT, level)
    assert len([n for n, _, _ in lines if n]) > 1
    assert all(n == first and second == 0 for n, first, second in lines)
    assert "prefetch" not in product(PRODUCT, ARM, "cortex-a76")


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_pages_of_large_weights_are_asked_for_far_ahead(level: str) -> None:
    """A line of four besides, where the second-level cache cannot hold the weight."""
    lines = asked_of_weights(PRODUCT.replace("64", "4096"), level)
    assert len([n for n, _, _ in lines if n]) > 1
    assert all(n == first and second == ceil(n / 4) for n, first, second in lines)
    assert "prefetch" not in product(PRODUCT.replace("64", "4096"), ARM, "cortex-a76")


@pytest.mark.parametrize(
    ("columns", "terms", "shared"), [(256, 4096, True), (64, 4096, False), (256, 64, False)]
)
def test_many_tiles_share_the_next_panel(columns: int, terms: int, shared: bool) -> None:
    """Where a weight is large and has several panels, requests for the second-level cache follow a part of
    the distance walked, once in each loop over terms; the number of tiles decides which part."""
    text = product(PRODUCT.replace("64", str(terms)).replace("128", str(columns)), X86, "x86-64-v4")
    walked = [len(re.findall(r"lshr i64 %\w+, 16", b)) for b in re.split(r"\n(?=\w+:)", text)]
    asked = [b.count("i32 0, i32 2, i32 1)") for b in re.split(r"\n(?=\w+:)", text)]
    assert any(walked) == shared and (not shared or all(bool(w) == bool(a) for w, a in zip(walked, asked)))


def asked_of_weights(text: str, level: str) -> list[tuple[int, int, int]]:
    """For each block of code: lines that it loads, requests into the first cache and the second."""
    lanes = machine_for(X86, level).lanes(32)
    return [
        (
            ceil(b.count(f"= load <{lanes} x float>") * lanes / 16),
            b.count("i32 0, i32 3, i32 1)"),
            b.count("i32 0, i32 2, i32 1)"),
        )
        for b in re.split(r"\n(?=\w+:)", product(text, X86, level))
    ]


COPY = """
kernel @copy(m: dim in 0..*, x: f32[m, 64]) -> (y: f32[m, 64]) {
  serial i in m { serial j in 64 { y[i, j] = max(x[i, j], 0.0:f32) } }
}"""


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_lines_are_asked_for_before_they_are_written(level: str) -> None:
    """Once each, for writing; on Arm, where nobody has measured, and for an output of a chunk none is."""
    lanes = machine_for(X86, level).lanes(32)
    text = elementwise(COPY, X86, level)
    blocks = re.split(r"\n(?=\w+:)", text)
    counts = [(b.count(f"store <{lanes} x float>"), len(re.findall(ASKED, b))) for b in blocks]
    assert any(n for n, _ in counts) and all(ceil(n * lanes / 16) == asked for n, asked in counts)
    assert "prefetch" not in elementwise(COPY, ARM, "cortex-a76")
    assert "prefetch" not in elementwise(COPY.replace("m: dim in 0..*", "m: dim in 64..64"), X86, level)


REPEAT = """
kernel @repeat(m: dim in 0..*, x: f32[m]) -> (y: f32[2*m]) {
  serial i in m { serial j in 2 { y[2*i + j] = x[i] } }
}"""


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_short_rows_share_vectors(level: str) -> None:
    """Half as many elements as a vector has are read, and each stands in it twice."""
    lanes = machine_for(X86, level).lanes(32)
    text = elementwise(REPEAT, X86, level)
    twice = ", ".join(f"i32 {i // 2}" for i in range(lanes))
    assert re.search(rf"= load <{lanes // 2} x float>", text) and f"<{twice}>" in text
    assert re.search(rf"store <{lanes} x float>", text)


ASKED = r"call void @llvm.prefetch.p0\(ptr %\w+, i32 1, i32 3, i32 1\)"


def elementwise(text: str, triple: str, cpu: str) -> str:
    kernel = schedule_kernel(parse_kernel(text), machine_for(triple, cpu), frozenset())
    return emit_module([kernel], cpu_for(triple, cpu))


def product(text: str, triple: str, cpu: str) -> str:
    kernel = schedule_kernel(parse_kernel(text), machine_for(triple, cpu), frozenset({"w"}))
    return emit_module([kernel], cpu_for(triple, cpu))


def test_no_fused_calls_without_fma() -> None:
    for cpu in (cpu_for(X86, "x86-64-v2"), cpu_for(V7, "cortex-a9", "+neon")):
        assert "fmaf" not in assembly(4, 8, cpu)


def test_constant_extents_need_one_size() -> None:
    text = gemm_text(8, 32, 12, 32).replace("m: dim in 0..*", "m: dim in 24..24")
    assert "switch" not in emit_module([parse_kernel(text)], cpu_for(X86, "x86-64-v4"))


def test_guards_disappear_inside() -> None:
    cpu = cpu_for(X86, "x86-64-v3")
    few, many = TREES["conv-s1"][0], TREES["conv-s1"][0].replace(", 5]", ", 64]").replace(
        "3, 5, 16]", "3, 64, 16]").replace("in 5 {", "in 64 {")  # fmt: skip
    fused = [emit_module([parse_kernel(t)], cpu).count("= call <8 x float> @llvm.fma") for t in (few, many)]
    texts = [emit_module([parse_kernel(t)], cpu) for t in (few, many)]
    selects = [len(re.findall("select .*@smelt.zeros", text)) for text in texts]
    # with few channels there is a second version without checks; with many they cost nothing
    assert fused[0] == 2 * fused[1] > 0
    assert selects[0] == selects[1] > 0


def test_neighbours_are_chosen_together() -> None:
    """Two vectors of a pixel are inside or outside with it, and a page holds both."""
    cpus = [cpu_for(X86, level) for level in ("x86-64-v3", "x86-64-v4")]
    texts = [emit_module([parse_kernel(TREES["depthwise"][0])], cpu) for cpu in cpus]
    assert [text.count("<8 x float>, ptr") > 0 for text in texts] == [True, False]
    chosen = [len(re.findall("select .*@smelt.zeros", text)) for text in texts]
    assert chosen[0] == chosen[1] > 0


FEW_ROWS = """kernel @k(m: dim in 0..*, x: f32[m, 384], w: f32[64, 384, 16]) -> (y: f32[m, 1024]) {
  group o in 64 {
    tiles group (i0, r) in m : balanced (2 .. 1) {
      register acc: f32[r, 16]
      unroll i in r { vector j in 16 { acc[i, j] = 0.0:f32 } }
      serial k in 384 { unroll i in r { vector j in 16 { acc[i, j] fma= x[i + i0, k] * w[o, k, j] } } }
      unroll i in r { vector j in 16 { y[i + i0, j + 16*o] = acc[i, j] } }
    }
  }
}
"""


def test_divisions_stay_outside_inner_loops() -> None:
    text = emit_module([parse_kernel(FEW_ROWS)], cpu := cpu_for(X86, "x86-64-v3"))
    module, machine = parse(text), target_machine(cpu, 2)
    module.data_layout = str(machine.target_data)
    made = re.findall(r"\tdiv[lq]\t", str(machine.emit_assembly(module)))
    # each at most twice: one of 32 bits for small numbers, which is faster, and one of 64
    assert 0 < len(made) <= 2 * len(re.findall("u(div|rem) i64", text))


def test_what_only_the_border_needs_is_computed_there() -> None:
    text = emit_module([parse_kernel(TREES["depthwise"][0])], cpu_for(X86, "x86-64-v3"))
    label, found, before = "", set(), {}
    for line in text.splitlines():
        if line.endswith(":"):
            label = line[:-1]
        elif "ptr @smelt.zeros" in line and "volatile" not in line:
            found.add(label)
        elif jump := re.fullmatch("  br label %(loop.*)", line):
            before[jump[1]] = label
    # in an arm, or in a loop of one
    assert found and {before.get(block, block).rstrip("0123456789") for block in found} == {"arm"}


def divisions(text: str) -> int:
    return emit_module([parse_kernel(text)], cpu_for(X86, "x86-64-v3")).count("= fdiv <8 x float>")


def test_long_epilogues_are_there_once_for_each_size_of_a_tile() -> None:
    silu = "acc[ii, jj] / (exp(0.0: f32 - acc[ii, jj]) + 1.0: f32)"
    assert divisions(gemm_text(8, 32, 6, 16, silu)) == 6 * 2
    # and not once more in the copy without guards
    assert divisions(TREES["depthwise-silu"][0]) == 4 * 2


def test_epilogues_are_written_out_in_tiles_of_the_sizes_that_most_extents_have() -> None:
    """Those of 6 and 5 rows; of 4 rows or fewer there is one row."""
    assert divisions(gemm_text(8, 32, 6, 16, "(acc[ii, jj] + 1.0: f32) / b[jj]")) == (6 + 5 + 4) * 2
    assert divisions(gemm_text(8, 32, 6, 16, "acc[ii, jj] / b[jj]")) == (6 + 5 + 4 + 3 + 2 + 1) * 2


def test_loops_that_pick_registers_are_written_out() -> None:
    """Where guards are tested, too: a register has no address."""
    staged = TREES["depthwise"][0].replace(
        "    unroll ii", "    register u: f32[3]\n    unroll t in 3 { u[t] = w[t, 0, 0] }\n    unroll ii", 1
    ).replace("* w[kh, kw, jj]", "* u[kh]")
    assert emit_module([parse_kernel(staged)], cpu_for(X86, "x86-64-v3"))


def test_zeros_are_in_memory_before_they_are_chosen() -> None:
    """A page of .bss that nobody has touched makes each masked load from it slow."""
    text = emit_module([parse_kernel(TREES["conv-s1"][0])], cpu_for(X86, "x86-64-v3"))
    for function in re.split("^define ", text, flags=re.M)[1:]:
        touched = function.find("load volatile i8, ptr @smelt.zeros")
        chosen = re.search("select .*@smelt.zeros", function)
        assert chosen is None or 0 < touched < chosen.start()
    assert "load volatile i8, ptr @smelt.zeros" in text


def test_group_counts() -> None:
    kernel = parse_kernel(gemm_text(8, 64, 12, 32))
    assert group_count(kernel.body[0]).evaluate({"m": 25}) == 2 * 3
    stages = parse_kernel(TREES["static-tiles"][0])
    assert [group_count(s).const for s in stages.body] == [1, 1]


_SCRIPT = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from scheduled_trees import TREES
from smelt.core.ir.text import parse_kernel
from smelt.core.schedule import schedule_kernel
from smelt.targets.llvm.compile import compile_object
from smelt.targets.llvm.emit import emit_module
from smelt.targets.llvm.machines import cpu_for
cpu = cpu_for("x86_64-unknown-linux-gnu", "x86-64-v3")
digest = hashlib.sha256()
for name in sorted(TREES):
    digest.update(emit_module([parse_kernel(TREES[name][0])], cpu).encode())
digest.update(compile_object(emit_module([parse_kernel(TREES["conv-s1"][0])], cpu), cpu))
print(digest.hexdigest())
"""


def test_code_does_not_depend_on_hash_seeds() -> None:
    support = Path(__file__).parents[1] / "support"
    found = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(support)], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


def test_errors_name_the_kernel() -> None:
    with pytest.raises(SmeltError, match="kernel 'k': the generated code is not valid") as caught:
        parse("define void @f() { ret i32 }", "k")
    assert caught.value.kind == "internal"
    kernel = parse_kernel(TREES["mixed-widths"][0].replace("t[5] = 0.0", "t[32] = 0.0"))
    with pytest.raises(SmeltError, match="kernel 'mixed' cannot be emitted: t"):
        emit_kernel(kernel, cpu_for(X86, "x86-64-v3"))


def test_machines() -> None:
    assert machine_for(X86, "x86-64-v4").lanes(32) == 16
    assert machine_for(X86, "znver5").masked
    assert machine_for(X86, "x86-64-v3").vector_registers == 16
    assert not machine_for(X86, "x86-64-v2").fma
    assert machine_for(X86, "something-new", {"avx512f": True, "avx512vl": True}).lanes(32) == 16
    assert machine_for(V7, "cortex-a7", "+neon,+vfp4").fma
    assert machine_for(V7, "cortex-a8", "+neon").fma is False
    assert machine_for("riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+c").lanes(32) == 1
    assert machine_for("riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+c,+v").lanes(32) == 4
    with pytest.raises(SmeltError, match="no code generator for 'mips'") as caught:
        machine_for("mips-unknown-linux-gnu", "mips32")
    assert caught.value.kind == "unsupported"


def test_objects_of_every_architecture() -> None:
    kernel = parse_kernel(TREES["softmax"][0])
    rows = [(X86, "x86-64", "", 62), (ARM, "cortex-a53", "", 183), (V7, "cortex-a7", "+neon,+vfp4", 40),
            ("riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+c,+v", 243),
            ("aarch64-unknown-linux-android28", "cortex-a55", "", 183)]  # fmt: skip
    for triple, cpu, features, machine in rows:
        row = cpu_for(triple, cpu, features)
        code = compile_object(emit_module([kernel], row), row)
        assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == machine
        assert replace(row, cpu=cpu) == row
