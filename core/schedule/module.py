"""Module -> Module: every kernel scheduled for a machine, once per structure."""

from __future__ import annotations

from smelt.core.ir.graph import Graph, Module, Node
from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.core.schedule.strategies import draft


def schedule_kernel(kernel: Kernel, machine: Machine, constants: frozenset[str] = frozenset()) -> Kernel:
    """The kernel scheduled for the machine. constants: names of inputs that are known when compiling
    and may be packed (see core/schedule/pack.py; the records stand in the result's flags)."""
    return draft(kernel, machine, constants).kernel


def schedule_module(module: Module, machine: Machine) -> Module:
    """Every kernel scheduled. An input counts as constant when all calls of the kernel pass a weight."""
    constant: dict[str, set[int]] = {}
    for graph in module.graphs.values():
        _note_constants(graph, constant)
    done: dict[tuple[Kernel, frozenset[str]], Kernel] = {}
    kernels: dict[str, Kernel] = {}
    for name, kernel in module.kernels.items():
        if kernel.schedule:
            kernels[name] = kernel
            continue
        numbers = constant.get(name, set())
        names = frozenset(kernel.inputs[i].name for i in numbers)
        key = (kernel.with_(name="", origin=""), names)
        if key not in done:
            done[key] = schedule_kernel(kernel, machine, names)
        kernels[name] = done[key].with_(name=kernel.name, origin=kernel.origin)
    return module.with_(kernels=kernels)


def _note_constants(graph: Graph, constant: dict[str, set[int]]) -> None:
    """Kernel -> input numbers that are weights at every call so far."""
    for node in graph.walk():
        if node.op != "call_kernel":
            continue
        name = node.attr("kernel")
        mine = _weight_inputs(node)
        constant[name] = constant[name] & mine if name in constant else mine


def _weight_inputs(node: Node) -> set[int]:
    return {i for i, ref in enumerate(node.inputs) if ref.startswith("@")}
