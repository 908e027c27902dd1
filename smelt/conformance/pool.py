"""Keys of cases in, results out: judged in child processes, so that a crash or a hang costs one case only."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from smelt.conformance.cases import shipped
from smelt.conformance.judge import JudgedCase, named_result

TIME_LIMIT = 90.0
"""Seconds of wall time that one case may take, compilation included."""
START_LIMIT = 600.0
"""Seconds of wall time within which a child must have started: a spawned one reads all cases, which takes
long on a busy machine and says nothing about a case."""
CHILD_MEMORY = 12 << 30
"""Limit of a child's address space in bytes."""
RENEW = 250
"""How many cases a child judges before it is replaced: each leaves a loaded library behind."""


_STARTING = "starting"


@dataclass
class _Child:
    process: BaseProcess
    pipe: Connection
    case: str | None = None
    since: float = 0.0
    stage: str = ""
    done: int = 0


def run(
    wanted: Sequence[str],
    jobs: int | None = None,
    limit: float = TIME_LIMIT,
    on_result: Callable[[JudgedCase], None] = lambda r: None,
    target: str = "host",
) -> list[JudgedCase]:
    """Results of the cases, by key (keys.py), in their order. on_result: called as each becomes known."""
    shipped()  # once, here; the children are forked and have them
    todo = list(reversed(wanted))
    results: dict[str, JudgedCase] = {}
    children = [_start(target) for _ in range(min(jobs or os.cpu_count() or 1, len(todo)))]
    while children:
        for c in list(children):
            if c.case is None and not _feed(c, todo):
                _stop(c)
                children.remove(c)
        ready = wait([c.pipe for c in children], timeout=0.5)
        for k, c in enumerate(children):
            result = _hear(c, c.pipe in ready, limit, target)
            if result is not None and c.case is not None:
                results[c.case] = result
                on_result(result)
                c.case = None
                if result.outcome in ("crash", "hang") or c.done >= RENEW:
                    _stop(c)
                    children[k] = _start(target)
    return [results[w] for w in wanted]


def _start(target: str) -> _Child:
    # a device's driver that has threads in this process already would wait for them in a fork for ever
    context = multiprocessing.get_context("spawn" if "+" in target else "fork")
    here, there = context.Pipe()
    process: BaseProcess = context.Process(target=_serve, args=(there, target), daemon=True)  # type: ignore[attr-defined]
    process.start()
    there.close()
    return _Child(process, here)


def _stop(c: _Child) -> None:
    c.pipe.close()
    c.process.kill()
    c.process.join()


def _feed(c: _Child, todo: list[str]) -> bool:
    if not todo:
        return False
    c.case, c.since, c.stage = todo.pop(), time.monotonic(), _STARTING
    c.done += 1
    c.pipe.send(c.case)
    return True


def _hear(c: _Child, ready: bool, limit: float, target: str) -> JudgedCase | None:
    """The result of the child's case; None while the child works on it."""
    if c.case is None:
        return None
    name = named_result(c.case, target)
    passed = time.monotonic() - c.since
    if ready:
        try:
            said = c.pipe.recv()
        except (EOFError, ConnectionError):
            c.process.join()
            code = c.process.exitcode or 0
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            return JudgedCase(name, "crash", f"{how} while {c.stage}", passed)
        if isinstance(said, JudgedCase):
            return replace(said, seconds=passed)
        if c.stage == _STARTING:
            c.since = time.monotonic()
        c.stage = str(said)
        return None
    limit = START_LIMIT if c.stage == _STARTING else limit
    if passed > limit:
        return JudgedCase(name, "hang", f"more than {limit:.0f} s while {c.stage}", passed)
    return None


def _serve(pipe: Connection, target: str) -> None:
    """Run as the child: judge keys from the pipe until it closes."""
    from smelt.conformance.keys import judge_key

    resource.setrlimit(resource.RLIMIT_AS, (CHILD_MEMORY, CHILD_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    shipped()
    while True:
        try:
            key = pipe.recv()
        except EOFError:
            return
        pipe.send("reading the case")
        try:
            result = judge_key(key, pipe.send, target)
        except MemoryError:
            result = JudgedCase(named_result(key, target), "internal", "out of memory")
        except Exception as e:  # of the harness: one case is lost, not the child
            result = JudgedCase(named_result(key, target), "internal", f"no case: {e!r}"[:200])
        pipe.send(result)
