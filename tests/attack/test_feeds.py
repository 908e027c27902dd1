"""Hostile feeds: fixed seeds of the campaign, the cases it has found, and sessions in forked children."""

from __future__ import annotations

import random
import signal
import threading
from typing import Any

import numpy as np
import pytest
from attack_feeds import having, places, raising
from campaign import apart
from isolated import isolated

import smelt
import smelt.ports as ports_module
from smelt.core.diag import SmeltError

X, K = np.ones((2, 3), np.float32), np.arange(4)


def test_fixed_seeds() -> None:
    tally = apart("attack_feeds", 170)
    assert not tally.failures, tally.report()
    assert min(tally.counts["answered"], tally.counts["refused: shape"]) > 50  # both ways are gone


@pytest.mark.parametrize(
    ("names", "feed", "said"),
    [
        (None, None, "expected a dict of the inputs by name (x, k), got NoneType"),
        (None, [("x", X), ("k", K)], "expected a dict of the inputs by name (x, k), got list"),
        (None, {"x": [[1.0], [2.0, 3.0]], "k": K}, "input 'x': cannot be read (ValueError: "),
        (None, {"x": having(__dlpack__=raising(RuntimeError)), "k": K}, "input 'x': cannot be read ("),
        (None, {"x": X, "k": [1 << 70]}, "input 'k': expected int64 elements, got object"),
        (None, {"x": np.ma.array(X, mask=True), "k": K}, "input 'x': some of its elements are masked"),
        (
            None,
            {"x": np.broadcast_to(X[:1], (1 << 45, 3)), "k": K},
            "input 'x', made compact: there is no memory",
        ),
        ("y", {"x": X, "k": K}, "expected a list of names of outputs, or None, got str"),
        ([["y"]], {"x": X, "k": K}, "no output is named ['y']; there are: y, z"),
        (5, {"x": X, "k": K}, "expected a list of names of outputs, or None, got int"),
    ],
)
def test_refusals_name_what_is_wrong(names: Any, feed: Any, said: str) -> None:
    with pytest.raises(SmeltError) as caught:
        places()[0].session.run(names, feed)
    assert said in str(caught.value)


def test_what_is_no_dict_names_what_was_asked_for() -> None:
    session: Any = places()[0].session
    with pytest.raises(SmeltError, match=r"a dict of the states by name \(none\), got int"):
        session.set_state(5)
    with pytest.raises(SmeltError, match=r"a dict of the outputs by name \(y, z\), got int"):
        session.run_into(5, {})


def test_run_of_none_alone() -> None:
    with pytest.raises(SmeltError, match="expected a dict"):
        places()[0].session.run(None)


def test_no_names_are_all_names() -> None:
    session = places()[0].session
    assert len(session.run([], {"x": X, "k": K})) == 2
    y, again = session.run(["y", "y"], {"x": X, "k": K})
    assert y is again and (y == 2 * X).all()


@pytest.mark.parametrize("threads", [-1, True, 1.5, "2", 1 << 40, float("nan")])
def test_threads_are_a_number(threads: Any) -> None:
    with pytest.raises(SmeltError, match="threads: expected a whole number from 0 to 1024"):
        smelt.load(places()[0].session.bundle, threads)


def test_arrays_outlive_trim_and_close() -> None:
    session = smelt.load(places()[0].session.bundle)
    first = session.run(None, {"x": X, "k": K})  # copied from the session's memory
    second = session.run(None, {"x": X, "k": K})  # written in place
    session.trim()
    assert session.memory().output_capacity == session.memory().arena_capacity == 0
    third = session.run(None, {"x": X, "k": K})
    session.close()
    for y, z in (first, second, third):
        assert (y == 2 * X).all() and (z == 2 * K).all()
    for call in (session.memory, session.trim, session.profile, session.kernel_times):
        with pytest.raises(SmeltError, match="the session is closed"):
            call()


def test_the_data_pointer_is_asked_for_where_the_layout_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ports_module._layout_holds()
    assert ports_module.address is ports_module._read_address
    monkeypatch.setattr(ports_module, "_DATA_AT", ports_module._DATA_AT + 8)
    assert not ports_module._layout_holds()
    monkeypatch.setattr(ports_module, "_DATA_AT", 1 << 40)  # never read: no array is so long
    assert not ports_module._layout_holds()
    for a in (X, X[1:], K):
        assert ports_module._asked_address(a) == a.ctypes.data


def test_a_call_inside_a_call_is_refused() -> None:
    """From an object of the feed, a fork that it makes, and a signal handler."""
    session, whole, said = smelt.load(places()[0].session.bundle), {"x": X, "k": K}, []

    def inside(*_: object, **__: object) -> np.ndarray[Any, Any]:
        for call in (session.memory, session.close, session.reset, lambda: session.run(None, whole)):
            with pytest.raises(SmeltError, match="from inside one of its own calls"):
                call()
            said.append(call)
        return X

    def work() -> int:
        session.run(None, {"x": having(__array__=inside), "k": K})
        session.run_into({}, {"x": having(__array__=inside), "k": K})
        forked = having(__array__=lambda self, *a, **k: [X, isolated(inside, 20)][0])
        assert (session.run(["y"], {"x": forked, "k": K})[0] == 2 * X).all()
        signal.signal(signal.SIGUSR1, inside)
        interrupting = having(__array__=lambda self, *a, **k: [X, signal.raise_signal(signal.SIGUSR1)][0])
        session.run(None, {"x": interrupting, "k": K})
        assert (session.run(["y"], whole)[0] == 2 * X).all()
        session.close()
        return len(said)

    assert isolated(work, 60) == ("ok", 12)


def test_a_fork_in_the_middle_of_a_run_does_not_hang_the_child() -> None:
    """The parent's thread holds the session's lock, or is in C, when the child is made."""
    shared = smelt.load(places()[0].session.bundle, threads=2)
    rng, going, wrong = random.Random(0), True, []
    x = np.ones((1000, 3), np.float32)

    def work() -> None:
        while going:
            try:
                shared.run(None, {"x": x[: rng.randint(1, 1000)], "k": K})
            except SmeltError as e:
                wrong.append(e)

    def child() -> str:
        own = smelt.load(shared.bundle, threads=2)
        assert (own.run(["y"], {"x": X, "k": K})[0] == 2 * X).all()
        own.close()
        try:
            assert (shared.run(["y"], {"x": X, "k": K})[0] == 2 * X).all()
            said = "answered"
        except SmeltError as e:
            said = e.message
        shared.close()
        return said

    thread = threading.Thread(target=work)
    thread.start()
    found = [isolated(child, 30) for _ in range(40)]
    going = False
    thread.join()
    torn = "the session was in the middle of a run when this process was forked"
    assert {how for how, _ in found} == {"ok"}, found
    assert {said for _, said in found} <= {"answered", torn}
    assert torn in {said for _, said in found}, "no fork met a run"
    assert not wrong
    shared.run(None, {"x": X, "k": K})


def test_a_session_torn_by_a_fork_says_so() -> None:
    session = smelt.load(places()[0].session.bundle)
    held, done = threading.Event(), threading.Event()

    def call() -> None:
        with session._gate.alone():
            held.set()
            done.wait(60)

    def child() -> str:
        with pytest.raises(SmeltError) as caught:
            session.run(None, {"x": X, "k": K})
        session.close()
        return str(caught.value)

    thread = threading.Thread(target=call)
    thread.start()
    assert held.wait(60)
    how, said = isolated(child, 30)
    done.set()
    thread.join()
    assert how == "ok" and "load the bundle again in the child" in said
    session.run(None, {"x": X, "k": K})
