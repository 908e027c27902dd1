"""Sessions side by side: two threads, two workers each, forks, and hundreds of openings without a leak."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from fuzz_graph import build
from isolated import isolated
from onnx import helper

import smelt
from smelt.compiler import compile_here
from smelt.core.bundle import Bundle
from smelt.driver import Request

F32 = np.dtype(np.float32)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """softmax(x w) w': weights, working memory, more than one kernel, one dynamic axis."""
    import onnx

    folder = tmp_path_factory.mktemp("sessions")
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=-1),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    constants = {"w": rng.normal(size=(64, 96)).astype(F32), "v": rng.normal(size=(96, 32)).astype(F32)}
    onnx.save(build(nodes, [("x", F32, ["N", 64])], [("y", F32)], constants, 17), folder / "m.onnx")
    return compile_here(Request(source=str(folder / "m.onnx"), output=str(folder / "out"), runner=False))


def feed(n: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(n).normal(size=(n, 64)).astype(F32)}


SIZES = (1, 7, 64, 33, 200)


def answers(session: smelt.Session) -> list[np.ndarray]:
    return [session.run(None, feed(n))[0] for n in SIZES]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def test_two_sessions_in_two_threads(bundle: Bundle) -> None:
    want = answers(smelt.load(bundle, threads=1))
    failures: list[BaseException] = []

    def work(threads: int) -> None:
        try:
            session = smelt.load(bundle, threads=threads)
            for _ in range(20):
                same(answers(session), want)
        except BaseException as e:
            failures.append(e)

    workers = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not failures, failures


def test_workers_do_not_change_the_answer(bundle: Bundle) -> None:
    want = answers(smelt.load(bundle, threads=1))
    for threads in (2, 5):
        session = smelt.load(bundle, threads=threads)
        for _ in range(10):
            same(answers(session), want)


def test_one_session_from_many_threads(bundle: Bundle) -> None:
    """A session runs once at a time; other callers wait."""
    session = smelt.load(bundle, threads=1)
    want = session.run(None, feed(64))[0]
    wrong: list[object] = []

    def work() -> None:
        for _ in range(50):
            try:
                got = session.run(None, feed(64))[0]
                if not np.array_equal(got, want):
                    wrong.append(got)
            except smelt.SmeltError as e:
                wrong.append(e)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong
    np.testing.assert_array_equal(session.run(None, feed(64))[0], want)


def test_a_fork_after_load_has_a_session_of_its_own(bundle: Bundle) -> None:
    session = smelt.load(bundle, threads=2)
    want = answers(session)

    def child() -> bool:
        same(answers(smelt.load(bundle, threads=2)), want)  # a new session in the child
        return True

    assert isolated(child, 60) == ("ok", True)
    same(answers(session), want)  # and the parent's goes on


def test_a_fork_may_use_the_parents_session(bundle: Bundle) -> None:
    """Threads do not survive a fork; the caller alone must be enough."""
    session = smelt.load(bundle, threads=2)
    want = answers(session)

    def child() -> bool:
        same(answers(session), want)
        session.close()
        return True

    assert isolated(child, 60) == ("ok", True)
    same(answers(session), want)


def resident() -> int:
    """Bytes of memory that this process has resident."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_200_openings_leak_nothing(bundle: Bundle) -> None:
    def cycle() -> None:
        session = smelt.load(bundle, threads=2)
        session.run(None, feed(33))
        session.close()
        session.close()  # twice is once

    for _ in range(20):
        cycle()
    files, maps, memory = len(os.listdir("/proc/self/fd")), maps_now(), resident()
    threads = threading.active_count(), len(os.listdir("/proc/self/task"))
    for _ in range(200):
        cycle()
    assert len(os.listdir("/proc/self/fd")) == files
    assert (threading.active_count(), len(os.listdir("/proc/self/task"))) == threads
    assert maps_now() <= maps + 8
    assert resident() < memory + (4 << 20)


def maps_now() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_a_closed_session_refuses(bundle: Bundle) -> None:
    session = smelt.load(bundle, threads=1)
    session.close()
    with pytest.raises(smelt.SmeltError, match="closed"):
        session.run(None, feed(1))
