"""The LLVM IR of a kernel for CUDA in, the same code for this machine out: a thread's number, its group's,
barriers, what a warp does together and asynchronous copies become loads and calls of what
tests/targets/runtime_c/fake_threads.c provides."""

from __future__ import annotations

import re

import llvmlite.binding as llvm

from smelt.targets.cuda.copies import COMMIT, COPIES, WAIT, WAIT_MOST
from smelt.targets.cuda.emit import BARRIER, GROUP, THREAD, Part, Program
from smelt.targets.cuda.machine import ASKED_BYTES, TRIPLE
from smelt.targets.cuda.matrix import MATRIX_LOAD, PRODUCTS
from smelt.targets.cuda.ptx import module

STATE = "smelt_host_state"

_FIXED = f"""
%state = type {{ i32, i32, ptr, ptr }}
@{STATE} = global %state zeroinitializer
define i32 @host.thread() noinline {{
  %v = load volatile i32, ptr @{STATE}
  ret i32 %v
}}
define i32 @host.group() noinline {{
  %at = getelementptr %state, ptr @{STATE}, i32 0, i32 1
  %v = load volatile i32, ptr %at
  ret i32 %v
}}
define void @host.barrier(i32 %number) noinline {{
  %at = getelementptr %state, ptr @{STATE}, i32 0, i32 2
  %v = load volatile ptr, ptr %at
  call void %v()
  ret void
}}
"""
_CALLS = """
define void @host.warp(i32 %what, ptr %words) noinline {
  %at = getelementptr %state, ptr @STATE, i32 0, i32 3
  %v = load volatile ptr, ptr %at
  call void %v(i32 %what, ptr %words)
  ret void
}
""".replace("STATE", STATE)
_FLOATS, _INTEGERS = "{ float, float, float, float }", "{ i32, i32, i32, i32 }"
_TOGETHER = {
    PRODUCTS["mma.m16n8k16.f16"][0]: ("host.product", 0, ["<2 x half>"] * 6 + ["float"] * 4, _FLOATS),
    PRODUCTS["mma.m16n8k16.bf16"][0]: ("host.product.bf16", 1, ["i32"] * 6 + ["float"] * 4, _FLOATS),
    f"{MATRIX_LOAD}.b16.p3": ("host.matrices", 2, ["ptr addrspace(3)"], _INTEGERS),
    f"{MATRIX_LOAD}.trans.b16.p3": ("host.transposed", 3, ["ptr addrspace(3)"], _INTEGERS),
    WAIT_MOST: ("host.wait.most", 4, ["i32"], "void"),
    WAIT: ("host.wait", 5, [], "void"),
    COMMIT: ("host.commit", 6, [], "void"),
    **{name: (f"host.copy.{n}", 6 + n, ["ptr addrspace(3)", "ptr addrspace(1)", "i32"], "void")
       for n, name in COPIES.items()},
}  # fmt: skip
"""LLVM's name -> (ours, the number that fake_threads.c knows it by, types of arguments and of the result)."""
_NAMES = {THREAD: "host.thread", GROUP: "host.group", BARRIER: "host.barrier"} | {
    theirs: ours for theirs, (ours, *_) in _TOGETHER.items()
}


def _together(ours: str, number: int, kinds: list[str], made: str) -> str:
    """The function: its arguments in words of 8 bytes, in which fake_threads.c leaves the result."""
    head = ", ".join(f"{k} %a{i}" for i, k in enumerate(kinds))
    lines = [f"define {made} @{ours}({head}) noinline {{", "  %words = alloca [16 x i64], align 16"]
    for i, k in enumerate(kinds):
        lines.append(f"  %p{i} = getelementptr i64, ptr %words, i64 {i}")
        lines.append(f"  store {k} %a{i}, ptr %p{i}, align 8")
    lines.append(f"  call void @host.warp(i32 {number}, ptr %words)")
    if made == "void":
        return "\n".join([*lines, "  ret void", "}", ""])
    lines.append(f"  %r = load {made}, ptr %words, align 8")
    return "\n".join([*lines, f"  ret {made} %r", "}", ""])


def host_text(program: Program) -> str:
    """The module of a program for this machine. For each part there is NAME.host, a function of one argument:
    the address of the kernel's words."""
    text = module(program)
    used = [row for theirs, row in _TOGETHER.items() if f"@{theirs}(" in text]
    there = f"internal addrspace(3) global [{ASKED_BYTES} x i8] zeroinitializer, align 16"
    text = text.replace("external addrspace(3) global [0 x i8], align 16", there)
    text = text.replace(TRIPLE, llvm.get_process_triple()).replace("ptx_kernel ", "")
    for name, ours in _NAMES.items():
        text = re.sub(rf"^declare .*@{re.escape(name)}\(.*$", "", text, flags=re.M)
        text = text.replace(f"@{name}(", f"@{ours}(")
    more = [_CALLS, *(_together(*row) for row in used)] if used else []
    return "\n".join([text, _FIXED, *more, *map(_entry, program.parts.values())])


def _entry(part: Part) -> str:
    """define void @"NAME.host"(ptr %words): loads the words and calls NAME."""
    found = re.search(r'define ptx_kernel void @"[^"]+"\(\n(.*)\) nounwind', part.text)
    assert found is not None
    kinds = [p.split("%")[0].strip() for p in found[1].split(", ")]
    assert len(kinds) == part.parameters
    lines = [f'define void @"{part.name}.host"(ptr %words) {{']
    for i, kind in enumerate(kinds):
        lines.append(f"  %p{i} = getelementptr i64, ptr %words, i64 {i}")
        lines.append(f"  %w{i} = load {kind}, ptr %p{i}, align 8")
    args = ", ".join(f"{kind} %w{i}" for i, kind in enumerate(kinds))
    return "\n".join([*lines, f'  call void @"{part.name}"({args})', "  ret void", "}", ""])
