"""A function and items in; its results in order, computed by forks of this process on all processors, out."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
from collections.abc import Callable, Sequence
from typing import IO, Any, Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")

LEAST_PROCESSES = 2
TICKET_BYTES = 4
"""Bytes of a number."""
MOST_TICKETS = 4096
"""So many numbers fit in a pipe, which nobody reads while they are written."""


class SpreadOut(Protocol):
    """How results are computed: one after the other, or by several processes. Results are the same."""

    def __call__(self, function: Callable[[A], B], items: Sequence[A], each: int = 1) -> list[B]:
        """function of each item. each: so many items are worth a process. Raises what the function raises."""
        ...


def serially(function: Callable[[A], B], items: Sequence[A], each: int = 1) -> list[B]:
    """In this process, one after the other."""
    return [function(item) for item in items]


def by_forks(function: Callable[[A], B], items: Sequence[A], each: int = 1) -> list[B]:
    """By as many processes as there are processors for this one, itself among them. Results are pickled;
    items are not, as a fork has them. Whoever is done takes the next items, so none waits for a long one.

    A fork that fails says nothing: what it has not returned is computed here, which raises what is wrong with
    it, or has the memory that was missing there. The forks share equally what this process may still take.
    A process whose other threads hold locks must not call this: in a fork they stay locked.
    """
    count = min(len(os.sched_getaffinity(0)), len(items) // each)
    if count < LEAST_PROCESSES:
        return serially(function, items)
    tickets, step = _tickets(len(items))
    found: dict[int, B] = {}

    def compute() -> None:
        while ticket := os.read(tickets, TICKET_BYTES):
            first = int.from_bytes(ticket, "little")
            found.update((n, function(items[n])) for n in range(first, min(first + step, len(items))))

    forks: list[tuple[int, IO[bytes]]] = []
    try:
        with contextlib.suppress(OSError):  # no more processes are allowed: those that there are do it
            forks.extend(_fork(compute, found, count) for _ in range(count - 1))
        compute()
        for _, results in forks:
            with contextlib.suppress(EOFError, pickle.UnpicklingError):
                found |= pickle.load(results)
    finally:
        os.close(tickets)
        for pid, results in forks:
            results.close()
            os.kill(pid, signal.SIGKILL)  # no other is meant: it is waited for below
            os.waitpid(pid, 0)
    return [found[n] if n in found else function(item) for n, item in enumerate(items)]


def _tickets(count: int) -> tuple[int, int]:
    """A pipe with the number of the first item of each turn, and how many items a turn has."""
    step = -(-count // MOST_TICKETS)
    get, put = os.pipe()
    os.write(put, b"".join(n.to_bytes(TICKET_BYTES, "little") for n in range(0, count, step)))
    os.close(put)
    return get, step


def _fork(compute: Callable[[], None], found: dict[int, Any], count: int) -> tuple[int, IO[bytes]]:
    """A process that computes, and where it writes what it has found: once, when nothing is left to do, so
    that it waits for no reader."""
    get, put = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(get)
        os.close(put)
        raise
    if pid:
        os.close(put)
        return pid, os.fdopen(get, "rb")
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _share_memory(count)
        with contextlib.suppress(Exception):
            compute()
        with os.fdopen(put, "wb") as results:
            pickle.dump(found, results, pickle.HIGHEST_PROTOCOL)
    finally:
        os._exit(0)


def _share_memory(count: int) -> None:
    """Limit the data of this process to what it has and one of `count` parts of what it may still take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY:
        return
    with open("/proc/self/status") as status:
        held = next((1024 * int(line.split()[1]) for line in status if line.startswith("VmData:")), 0)
    resource.setrlimit(resource.RLIMIT_DATA, (held + max(soft - held, 0) // count, hard))


__all__ = ["SpreadOut", "by_forks", "serially"]
