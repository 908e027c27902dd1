"""schedule_module: constants by call site, kernels of equal structure once, scheduled ones left alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
from naive_kernels import op_kernel

from smelt.core.diag import SmeltError
from smelt.core.dim import sym, to_dim
from smelt.core.dtype import f32, i64
from smelt.core.ir.graph import Graph, Module, Node, Symbol, TensorType, Value, Weight
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.kernel import DimParam, Kernel, Loop, walk
from smelt.core.ir.text import parse_module
from smelt.core.ir.verify import verify, verify_kernel
from smelt.core.machine import Machine
from smelt.core.ops import OPS
from smelt.core.plan.items import timeline
from smelt.core.plan.weights import weight_places, weight_readers
from smelt.core.schedule import schedule_by, schedule_module
from smelt.core.schedule.recall import Recall
from smelt.core.schedule.schedule import apply, parse

MACHINE = Machine("m", 256, 16)
A = TypeVar("A")
B = TypeVar("B")


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


def test_strategies_are_asked_at_once_and_once() -> None:
    """All that no kernel before them has asked, in one turn, wherever that is computed."""
    turns: list[int] = []

    def spread(function: Callable[[A], B], items: Sequence[A], each: int = 1) -> list[B]:
        turns.append(len(items))
        return [pickle.loads(pickle.dumps(function(item))) for item in items]

    calls = (("k1", "@w"), ("k2", "%b"), ("k3", "@w"), ("k1", "%b"))
    made = schedule_by(_module(calls), MACHINE, {}, Recall(), spread).module
    assert made == schedule_module(_module(calls), MACHINE)
    assert turns[0] == 2  # k3 is k1 by another name, and k1 of a value is k2
    assert not any(turns[1:])


def test_weights_are_packed_and_values_are_not() -> None:
    done = schedule_module(_module((("k1", "@w"), ("k2", "%b"))), MACHINE)
    assert _laid(done.kernels["k1"]) == [1]
    assert _laid(done.kernels["k2"]) == []


def test_a_kernel_called_with_both_is_two() -> None:
    done = schedule_module(_module((("k1", "%b"), ("k1", "@w"), ("k1", "%b"))), MACHINE)
    assert {name: _laid(k) for name, k in done.kernels.items()} == {"k1": [], "k1_2": [1]}
    assert [n.attr("kernel") for n in done.main.nodes] == ["k1", "k1_2", "k1"]


def _tied(reader: Kernel, *, elsewhere: bool) -> Module:
    """A product with @w, and a reader of @w as it is; elsewhere: and of a weight that nobody packs."""
    m, six, forty = sym("m"), to_dim(6), to_dim(40)
    x, i = Value("%x", TensorType(f32, (m, six)), "x"), Value("%i", TensorType(i64, (m,)), "i")
    refs = ("@w", "@v") if elsewhere else ("@w",)
    others = (("%i",) if len(reader.inputs) > 1 else (), reader.outputs[0].shape)
    nodes = (
        Node("call_kernel", ("%x", "@w"), (Value("%y", TensorType(f32, (m, forty))),),
             {"kernel": "product", "dims": (m,)}),
        *(
            Node("call_kernel", (ref, *others[0]), (Value(f"%r{n}", TensorType(f32, others[1])),),
                 {"kernel": "reader", "dims": (m,) if reader.dims else ()})
            for n, ref in enumerate(refs)
        ),
    )  # fmt: skip
    graph = Graph("main", (x, i), nodes, tuple(n.output.name for n in nodes))
    values = np.arange(240, dtype=np.float32).reshape(6, 40)
    weights = {ref: Weight(ref, f32, (6, 40), values + k) for k, ref in enumerate(refs)}
    kernels = {"product": _kernel("product"), "reader": reader.with_(name="reader")}
    return Module("test", (Symbol("m"),), weights=weights, graphs={"main": graph}, kernels=kernels)


def test_rows_that_a_run_picks_are_read_as_others_packed_them() -> None:
    """Of a weight that lies for nobody else they are read as they are, by another kernel."""
    reader = op_kernel("gather", [(6, 40), ("m",)], ("m", 40), {"axis": 0}, dtypes=[f32, i64])
    module = _tied(reader, elsewhere=True)
    done = schedule_module(module, MACHINE)
    verify(done, stage="scheduled")
    product, tied, alone = (done.kernels[str(n.attr("kernel"))] for n in done.main.nodes)
    assert product.inputs[1].layout == tied.inputs[0].layout is not None
    assert alone.inputs[0].layout is None
    feeds = {"x": np.ones((3, 6), np.float32), "i": np.array([5, 0, -2])}
    for a, b in zip(run_module(module, feeds, OPS), run_module(done, feeds, OPS), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5)
    again = apply(reader, parse(tied.schedule))
    assert again.body == tied.body, "the schedule does not replay from its text"


def test_what_reads_all_of_a_weight_reads_it_as_it_is() -> None:
    reader = op_kernel("relu", [(6, 40)], (6, 40))
    done = schedule_module(_tied(reader, elsewhere=False), MACHINE)
    assert _laid(done.kernels["reader"]) == []


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
    for b in (replace(w, ahead=-64), replace(w, ahead=64, layout=None)):
        with pytest.raises(SmeltError, match=r"K3.*only weights in a layout and outputs are"):
            verify_kernel(kernel.with_(inputs=(x, b)), "scheduled")
