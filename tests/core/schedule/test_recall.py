"""Schedules from a book: which entries kernels get, which are ignored and why, which are errors; what a
module becomes by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from naive_kernels import op_kernel

from smelt.core.diag import SmeltError
from smelt.core.dim import sym, to_dim
from smelt.core.dtype import f32
from smelt.core.ir.graph import Graph, Module, Node, Symbol, TensorType, Value, Weight
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.verify import verify
from smelt.core.machine import Machine
from smelt.core.ops import OPS
from smelt.core.schedule import schedule_by, schedule_module
from smelt.core.schedule.book import HAND, TUNE, Book, BookEntry, mark
from smelt.core.schedule.candidates import candidates
from smelt.core.schedule.recall import Recall, Recalled, notes

MACHINE = Machine("m", 512, 32, masked=True)
CALLED = "the machine"


def product(*rights: str) -> Module:
    """x [m, 6] times each of these: '@w', a weight, or '%b', an input."""
    x = Value("%x", TensorType(f32, (sym("m"), to_dim(6))), "x")
    b = Value("%b", TensorType(f32, (to_dim(6), to_dim(200))), "b")
    made = TensorType(f32, (sym("m"), to_dim(200)))
    nodes = tuple(
        Node(
            "call_kernel", ("%x", right), (Value(f"%y{n}", made),), {"kernel": "product", "dims": (sym("m"),)}
        )
        for n, right in enumerate(rights)
    )
    graph = Graph("main", (x, b), nodes, tuple(n.output.name for n in nodes))
    weight = Weight("@w", f32, (6, 200), np.arange(1200, dtype=np.float32).reshape(6, 200))
    kernel = op_kernel("matmul", [("m", 6), (6, 200)], ("m", 200)).with_(name="product", origin="node0")
    return Module("t", (Symbol("m"),), {"@w": weight}, {"main": graph}, {"product": kernel})


def scheduled(module: Module, *entries: BookEntry) -> tuple[Module, dict[str, Recalled], Book]:
    book = Book().with_entries(entries)
    made = schedule_by(module, MACHINE, {}, Recall(book, {"": CALLED}))
    done, asked = made.module, made.asked
    verify(done, "scheduled", machine=MACHINE)
    return done, asked, book


def other(module: Module, by: str = TUNE, kernel: str = "product") -> BookEntry:
    """An entry with the second candidate of a kernel."""
    asked = schedule_by(module, MACHINE, {}, Recall()).asked[kernel]
    first, second, *_ = candidates(asked.question, MACHINE)
    return BookEntry(asked.question.digest, CALLED, second.schedule, "product", by, mark(first.schedule),
                 second.why, (("m=1", 0.9),))  # fmt: skip


def test_without_entries_nothing_changes() -> None:
    module = product("@w", "%b", "@w")
    done, asked, _ = scheduled(module)
    assert done == schedule_module(module, MACHINE)
    assert {n: a.done.schedule == a.chosen.schedule for n, a in asked.items()} == dict.fromkeys(
        done.kernels, True
    )


def test_an_entry_goes_before_the_strategies_and_computes_the_same() -> None:
    module = product("@w")
    entry = other(module)
    done, asked, book = scheduled(module, entry)
    assert done.kernels["product"].schedule == entry.schedule
    assert done.kernels["product"].origin == "node0"
    assert (asked["product"].entry, notes(book, asked.values())) == (entry, ())
    feed = {"x": np.ones((5, 6), np.float32), "b": np.ones((6, 200), np.float32)}
    want = run_module(schedule_module(module, MACHINE), feed, OPS)
    for got, x in zip(run_module(done, feed, OPS), want, strict=True):
        np.testing.assert_allclose(got, x, rtol=1e-6)


def test_uses_that_are_other_questions_have_entries_of_their_own() -> None:
    """One kernel, called with a weight and with an input: the entry is about one of these."""
    module = product("@w", "%b")
    entry = other(module)
    done, asked, _ = scheduled(module, entry)
    assert {n: a.entry is not None for n, a in asked.items()} == {"product": True, "product_2": False}
    assert done.kernels["product_2"] == schedule_module(module, MACHINE).kernels["product_2"]


def test_an_entry_of_another_machine_is_ignored_with_a_note() -> None:
    module = product("@w")
    done, asked, book = scheduled(module, replace(other(module), machine="another one"))
    assert done == schedule_module(module, MACHINE)
    (note,) = notes(book, asked.values())
    why = "are of other machines or other numbers of threads only"
    assert note == f"schedules: the entries of product {why}; the strategies chose instead"


def test_a_tuned_entry_that_was_compared_with_another_default_is_ignored() -> None:
    """The strategies may be better by now than both."""
    module = product("@w")
    done, asked, book = scheduled(module, replace(other(module), against=mark("what was chosen once")))
    assert done == schedule_module(module, MACHINE)
    assert "another version chose" in notes(book, asked.values())[0]
    stays = replace(other(module), against=mark("what was chosen once"), by=HAND)
    assert scheduled(module, stays)[1]["product"].entry == stays


def test_a_tuned_entry_that_does_not_replay_is_ignored() -> None:
    module = product("@w")
    done, asked, book = scheduled(module, replace(other(module), schedule="normalise; bind nowhere group"))
    assert done == schedule_module(module, MACHINE)
    assert "do not replay (bind nowhere" in notes(book, asked.values())[0]


def test_an_entry_by_hand_that_does_not_replay_is_an_error() -> None:
    module = product("@w")
    wrong = replace(other(module, HAND), schedule="normalise; bind nowhere group")
    with pytest.raises(SmeltError, match=r"by hand of kernel 'product' .*bind nowhere group") as e:
        scheduled(module, wrong)
    assert (e.value.kind, e.value.node) == ("invalid", "node0")
    assert "smelt tune --list" in str(e.value.hint)


def test_an_entry_by_hand_for_no_kernel_is_told() -> None:
    lost = BookEntry("0" * 32, CALLED, "normalise", "gone", HAND)
    _, asked, book = scheduled(product("@w"), lost)
    assert notes(book, asked.values()) == (
        "schedules: no kernel of this model is that of the entries by hand: gone",
    )


def test_a_weight_that_one_kernel_packs_lies_as_that_one_says() -> None:
    """Another reader of the weight, which only picks rows, asks another question then."""
    module = product("@w", "@w")
    entry = other(module)
    done, _, _ = scheduled(module, entry)
    layouts = {str(b.layout.spec) for k in done.kernels.values() for b in k.inputs if b.layout}
    assert layouts == {
        step.split(" ", 2)[2] for step in entry.schedule.split("; ") if step.startswith("pack ")
    }
