"""schedule_module: constants by call site, kernels of equal structure once, scheduled ones left alone."""

from __future__ import annotations

import numpy as np
from naive_kernels import op_kernel

from smelt.core.dim import sym, to_dim
from smelt.core.dtype import f32
from smelt.core.ir.graph import Graph, Module, Node, TensorType, Value, Weight
from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.core.schedule import schedule_module
from smelt.core.schedule.pack import packed_inputs
from smelt.core.schedule.weights import pack_weights

MACHINE = Machine("m", 256, 16)


def _kernel(name: str) -> Kernel:
    return op_kernel("matmul", [("m", 6), (6, 40)], ("m", 40)).with_(name=name)


def _module(calls: tuple[tuple[str, str], ...]) -> Module:
    """Calls (kernel, right operand), each on the graph's input."""
    x = Value("%x", TensorType(f32, (sym("m"), to_dim(6))), "x")
    b = Value("%b", TensorType(f32, (to_dim(6), to_dim(40))), "b")
    nodes = tuple(
        Node(
            "call_kernel",
            ("%x", right),
            (Value(f"%y{i}", TensorType(f32, (sym("m"), to_dim(40)))),),
            {"kernel": kernel, "dims": (sym("m"),)},
        )
        for i, (kernel, right) in enumerate(calls)
    )
    graph = Graph("main", (x, b), nodes, tuple(n.output.name for n in nodes))
    weight = Weight("@w", f32, (6, 40), np.arange(240, dtype=np.float32).reshape(6, 40))
    kernels = {name: _kernel(name) for name, _ in calls}
    return Module("test", weights={"@w": weight}, graphs={"main": graph}, kernels=kernels)


def test_weights_are_packed_and_values_are_not() -> None:
    done = schedule_module(_module((("k1", "@w"), ("k2", "%b"))), MACHINE)
    assert [p.input for p in packed_inputs(done.kernels["k1"].flags)] == [1]
    assert packed_inputs(done.kernels["k2"].flags) == ()


def test_a_kernel_called_with_both_is_not_packed() -> None:
    done = schedule_module(_module((("k1", "@w"), ("k1", "%b"))), MACHINE)
    assert packed_inputs(done.kernels["k1"].flags) == ()


def test_equal_kernels_keep_their_names() -> None:
    done = schedule_module(_module((("k1", "@w"), ("k2", "@w"))), MACHINE)
    assert {n: k.name for n, k in done.kernels.items()} == {"k1": "k1", "k2": "k2"}
    assert done.kernels["k1"].body == done.kernels["k2"].body


def test_scheduling_twice_changes_nothing() -> None:
    once = schedule_module(_module((("k1", "@w"),)), MACHINE)
    assert schedule_module(once, MACHINE).kernels == once.kernels


def test_packed_weights_are_shared() -> None:
    naive = _module((("k1", "@w"), ("k2", "@w")))
    done = pack_weights(schedule_module(naive, MACHINE), naive)
    refs = {n.inputs[1] for n in done.main.nodes}
    assert len(refs) == 1
    (ref,) = refs
    assert tuple(done.weights[ref].shape) == tuple(d.const for d in done.kernels["k1"].inputs[1].shape)
