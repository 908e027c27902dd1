"""schedule_module: constants by call site, kernels of equal structure once, scheduled ones left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from naive_kernels import op_kernel

from smelt.core.diag import SmeltError
from smelt.core.dim import sym, to_dim
from smelt.core.dtype import f32
from smelt.core.ir.graph import Graph, Module, Node, Symbol, TensorType, Value, Weight
from smelt.core.ir.kernel import DimParam, Kernel, Loop, walk
from smelt.core.ir.text import parse_module
from smelt.core.ir.verify import verify, verify_kernel
from smelt.core.machine import Machine
from smelt.core.plan.items import timeline
from smelt.core.plan.weights import weight_places, weight_readers
from smelt.core.schedule import schedule_module

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
    return Module("test", (Symbol("m"),), weights={"@w": weight}, graphs={"main": graph}, kernels=kernels)


def _laid(kernel: Kernel) -> list[int]:
    """Numbers of the inputs that have a layout."""
    return [n for n, b in enumerate(kernel.inputs) if b.layout is not None]


def test_weights_are_packed_and_values_are_not() -> None:
    done = schedule_module(_module((("k1", "@w"), ("k2", "%b"))), MACHINE)
    assert _laid(done.kernels["k1"]) == [1]
    assert _laid(done.kernels["k2"]) == []


def test_a_kernel_called_with_both_is_two() -> None:
    done = schedule_module(_module((("k1", "%b"), ("k1", "@w"), ("k1", "%b"))), MACHINE)
    assert {name: _laid(k) for name, k in done.kernels.items()} == {"k1": [], "k1_2": [1]}
    assert [n.attr("kernel") for n in done.main.nodes] == ["k1", "k1_2", "k1"]


def test_uses_keep_their_ranges() -> None:
    """Divisible or not decides about tails, and makes two kernels; how far a size goes and that it is a
    multiple of 3 do not, and the one kernel admits both."""
    text = """module "m" {
      sym a in 0..512 % 256
      sym b in 0..*
      sym c in 2..* % 3
      kernel @k(d0: dim in 0..*, x: f32[d0]) -> (y: f32[d0]) { serial i in d0 { y[i] = x[i] + x[i] } }
      graph @main(%a: f32[a], %b: f32[b], %c: f32[c]) -> (%1, %2, %3) {
        %1 = call_kernel(%a) {dims = [a], kernel = "k"} : f32[a]
        %2 = call_kernel(%b) {dims = [b], kernel = "k"} : f32[b]
        %3 = call_kernel(%c) {dims = [c], kernel = "k"} : f32[c]
      }
    }"""
    done = schedule_module(parse_module(text), Machine("m", 512, 32, masked=True))
    verify(done, "scheduled")
    assert [n.attr("kernel") for n in done.main.nodes] == ["k", "k_2", "k_2"]
    assert done.kernels["k"].dims == (DimParam("d0", 0, 512, 256),)
    assert done.kernels["k_2"].dims == (DimParam("d0", 0, None, 1),)
    vectors = [s.level for k in done.kernels.values() for s in walk(k.body) if isinstance(s, Loop)]
    assert vectors.count("vector") == 1 + 2, "a loop and, in one of the two, a tail"


def test_equal_kernels_keep_their_names() -> None:
    done = schedule_module(_module((("k1", "@w"), ("k2", "@w"))), MACHINE)
    assert {n: k.name for n, k in done.kernels.items()} == {"k1": "k1", "k2": "k2"}
    assert done.kernels["k1"].body == done.kernels["k2"].body


def test_scheduling_twice_changes_nothing() -> None:
    once = schedule_module(_module((("k1", "@w"),)), MACHINE)
    assert schedule_module(once, MACHINE).kernels == once.kernels


def test_calls_name_logical_weights() -> None:
    naive = _module((("k1", "@w"), ("k2", "@w")))
    done = schedule_module(naive, MACHINE)
    assert done.graphs == naive.graphs and done.weights == naive.weights
    verify(done, "scheduled")
    (places,) = weight_places([(done, weight_readers(done, done.main, timeline(done.main)))])
    assert [(p.ref, p.layout, p.offset) for p in places] == [("@w", done.kernels["k1"].inputs[1].layout, 0)]


def test_only_a_weight_has_a_layout() -> None:
    done = schedule_module(_module((("k1", "@w"),)), MACHINE)
    (node,) = done.main.nodes
    wrong = done.main.with_(nodes=(node.with_(inputs=("%x", "%b")),))
    with pytest.raises(SmeltError, match=r"M4.*has a layout, %b is no weight"):
        verify(done.with_main(wrong), "scheduled")
    kernel = done.kernels["k1"]
    x, w = kernel.inputs
    broken = kernel.with_(inputs=(x, replace(w, shape=x.shape)))
    with pytest.raises(SmeltError, match=r"K3.*has a layout of shape"):
        verify_kernel(broken, "scheduled")
