"""LLVM IR of kernels in, PTX for an architecture out, and machine code (cubin) where ptxas is there."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from smelt.core.diag import SmeltError
from smelt.targets.cuda.emit import Program
from smelt.targets.cuda.machine import TRIPLE, cpu_for
from smelt.targets.llvm.compile import parse, target_machine

ARCHITECTURES = (
    "sm_53", "sm_60", "sm_61", "sm_62", "sm_70", "sm_72", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89",
    "sm_90", "sm_100", "sm_110", "sm_120", "sm_121",
)  # fmt: skip
"""What kernels are compiled for, lowest first. Drivers translate the PTX of one for any later one."""


SPARING = ("sm_70", "sm_72")
"""For these ptxas 12.6 spills 4 bytes rather than have one group fewer on a core, unless it is told that one
is enough: products then have 116 registers where it gives them 80."""

_NAME = re.compile(r"@([\w.]+)")
_ENTRY = re.compile(
    r"(?P<head>\.entry (?P<name>[\w.$]+)\([^)]*\)\s+\.reqntid [\d, ]+\n)(?:\.minnctapersm (?P<count>\d+)\n)?"
)
"""The beginning of a kernel, which may say how many groups of it a core is to hold."""


def module(program: Program) -> str:
    """The LLVM module of a program: its functions, and of what is declared that which they need."""
    texts = [p.text for p in program.parts.values()]
    needed: set[str] = set()
    asked = {n for text in texts for n in _NAME.findall(text)}
    while asked:
        needed |= asked
        found = (program.declared[n] for n in asked & program.declared.keys())
        asked = {n for d in found for n in _NAME.findall(d)} - needed
    declared = [program.declared[n] for n in sorted(needed & program.declared.keys())]
    return "\n".join([f'target triple = "{TRIPLE}"\n', *declared, "", *texts])


def ptx(text: str, architecture: str) -> str:
    """The PTX of an LLVM module, in the oldest version that has the architecture: old drivers take it.

    Raises SmeltError (internal) with LLVM's complaint."""
    machine = target_machine(cpu_for(architecture))
    if architecture in SPARING:
        text = re.sub(r'("nvvm.reqntid"="\d+")(?! "nvvm.minctasm")', r'\1 "nvvm.minctasm"="1"', text)
    made = parse(text)
    made.data_layout = str(machine.target_data)
    return str(machine.emit_assembly(made))


@dataclass(frozen=True, slots=True)
class Resources:
    """What ptxas says of a kernel: registers of a thread, bytes of shared memory of a group, bytes of a
    thread that registers have no room for."""

    registers: int
    shared: int
    spills: int


def resources(said: str) -> dict[str, Resources]:
    """Name -> the kernels in the words of `ptxas -v`."""
    found = {}
    for block in said.split("Compiling entry function '")[1:]:
        name = block.split("'")[0]
        used = re.search(r"Used (\d+) registers", block)
        shared = re.search(r"(\d+) bytes smem", block)
        spills = re.search(rf"Function properties for {re.escape(name)}\s+.*?(\d+) bytes spill stores", block)
        if used is None or spills is None:
            raise SmeltError(f"ptxas tells nothing about kernel '{name}': {block[:500]}", kind="internal")
        found[name] = Resources(int(used[1]), int(shared[1]) if shared else 0, int(spills[1]))
    return found


@cache
def ptxas() -> Path | None:
    """NVIDIA's assembler: that of the package nvidia-cuda-nvcc-cu12, else the one on PATH; None: neither."""
    if importlib.util.find_spec("nvidia") is not None:
        found = importlib.util.find_spec("nvidia.cuda_nvcc")
        for folder in (found and found.submodule_search_locations) or ():
            program = Path(os.fspath(folder)) / "bin" / "ptxas"
            if os.access(program, os.X_OK):
                return program
    there = shutil.which("ptxas")
    return None if there is None else Path(there)


@cache
def _knows(program: Path, architecture: str) -> bool:
    """Whether this ptxas assembles for the architecture: 12.6 ends at sm_90, 13 begins at sm_75."""
    words = subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout
    return f"'{architecture}'" in words


def assemble(text: str, architecture: str, *words: str) -> tuple[bytes, str] | None:
    """(cubin, what `ptxas -v` says) of PTX; None where there is no ptxas that knows the architecture. What
    spills so that a core holds more groups is made for fewer. words: more options. Raises SmeltError
    (internal) with ptxas' words for PTX that it refuses."""
    program = ptxas()
    if program is None or not _knows(program, architecture):
        return None
    while True:
        made = _assembled(program, text, architecture, words)
        roomier = _roomier(text, {name for name, r in resources(made[1]).items() if r.spills})
        if roomier == text:
            return made
        text = roomier


def _roomier(text: str, names: Collection[str]) -> str:
    """PTX in which a core is to hold one group fewer of these kernels, and at least one of those that say
    nothing."""

    def fewer(found: re.Match[str]) -> str:
        if found["name"] not in names:
            return found[0]
        return f"{found['head']}.minnctapersm {max(int(found['count'] or 2) - 1, 1)}\n"

    return _ENTRY.sub(fewer, text)


def _assembled(program: Path, text: str, architecture: str, words: Sequence[str]) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="smelt-ptxas-") as folder:
        source, out = Path(folder) / "model.ptx", Path(folder) / "model.cubin"
        source.write_text(text, "ascii")
        command = [str(program), f"--gpu-name={architecture}", "-v", *words, source.name, "-o", out.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SmeltError(
                f"ptxas refuses the kernels for {architecture}: {(done.stderr + done.stdout)[:2000]}",
                kind="internal",
            )
        return out.read_bytes(), done.stderr + done.stdout
