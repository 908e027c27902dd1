"""LLVM IR text in, object code out, for any processor that machines.py has a row for."""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from smelt.core.diag import SmeltError
from smelt.targets.llvm.machines import Cpu


@functools.cache
def _start_native() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()


@functools.cache
def _start_all() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _target(triple: str) -> llvm.Target:
    """LLVM's target; the tables of processors other than this machine's are made when one is asked for."""
    _start_native()
    try:
        return llvm.Target.from_triple(triple)
    except RuntimeError:
        _start_all()
        return llvm.Target.from_triple(triple)


def target_machine(cpu: Cpu, opt: int = 2, *, within: bool = False) -> llvm.TargetMachine:
    """LLVM's code generator for the processor. within: for code that is run within this process, where
    sections may lie more than 2 GB apart: LLVM aborts the process when an address is out of range."""
    more = {"abiname": cpu.abi} if cpu.abi else {}
    reloc, model = ("static", "large") if within else ("pic", "default")
    return _target(cpu.triple).create_target_machine(
        cpu=cpu.cpu, features=cpu.features, opt=opt, reloc=reloc, codemodel=model, **more
    )


def parse(text: str, name: str = "") -> llvm.ModuleRef:
    """The verified module. Raises SmeltError (internal) with LLVM's complaint."""
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as e:
        what = f"kernel '{name}': " if name else ""
        raise SmeltError(f"{what}the generated code is not valid: {e}", kind="internal") from e
    return module


def compile_object(text: str, cpu: Cpu, opt: int = 2, name: str = "") -> bytes:
    """A relocatable object. The text is structured so that no IR pass pays (see builder.py)."""
    machine = target_machine(cpu, opt)
    module = parse(text, name)
    module.data_layout = str(machine.target_data)
    return bytes(machine.emit_object(module))


def assembly(text: str, cpu: Cpu, name: str = "") -> str:
    """What `compile_object` makes, as text."""
    machine = target_machine(cpu)
    module = parse(text, name)
    module.data_layout = str(machine.target_data)
    return str(machine.emit_assembly(module))
