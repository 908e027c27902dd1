"""The LLVM IR of a kernel for CUDA in, the same code for this machine out: a thread's number, its group's and
barriers become loads and calls of what tests/targets/runtime_c/fake_threads.c provides."""

from __future__ import annotations

import re

import llvmlite.binding as llvm

from smelt.targets.cuda.emit import BARRIER, GROUP, THREAD, Part, Program
from smelt.targets.cuda.machine import TRIPLE
from smelt.targets.cuda.ptx import module

STATE = "smelt_host_state"

_FIXED = f"""
%state = type {{ i32, i32, ptr }}
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
_NAMES = {THREAD: "host.thread", GROUP: "host.group", BARRIER: "host.barrier"}


def host_text(program: Program) -> str:
    """The module of a program for this machine. For each part there is NAME.host, a function of one argument:
    the address of the kernel's words."""
    text = module(program).replace(TRIPLE, llvm.get_process_triple()).replace("ptx_kernel ", "")
    for name, ours in _NAMES.items():
        text = re.sub(rf"^declare .*@{re.escape(name)}\(.*$", "", text, flags=re.M).replace(name, ours)
    return "\n".join([text, _FIXED, *map(_entry, program.parts.values())])


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
