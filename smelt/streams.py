"""Stages and items in; results in the order of the items out, while each stage works on another item."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from smelt.core.diag import SmeltError
from smelt.session import Session

StreamItem = Mapping[str, Any]
"""What an item has: name -> array, or whatever functions exchange."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A session, or a function from an item's values to those that it adds (None: nothing).

    A session takes the values that have its inputs' names, and adds its outputs. inputs, outputs: where the
    model's name and the value's differ, {the model's: the value's}. name: for messages and times; by default
    the model's or the function's.
    """

    run: Session | Callable[[StreamItem], StreamItem | None]
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    def __call__(self, values: StreamItem) -> StreamItem:
        """What the stage adds. Raises SmeltError: 'shape' for a value that is missing, 'invalid' where a
        function returns something else than values."""
        if not isinstance(self.run, Session):
            made = self.run(MappingProxyType(values) if isinstance(values, dict) else values)
            if made is not None and not isinstance(made, Mapping):
                got = type(made).__name__
                raise SmeltError(f"it returned {got}, wanted a dict of values, or None", kind="invalid")
            return made or {}
        feed = {}
        for p in self.run.get_inputs():
            name = self.inputs.get(p.name, p.name)
            if name not in values:
                has = ", ".join(values) or "nothing"
                raise SmeltError(f"input '{p.name}': the item has no value '{name}', but {has}", kind="shape")
            feed[p.name] = values[name]
        names = [self.outputs.get(p.name, p.name) for p in self.run.get_outputs()]
        return dict(zip(names, self.run.run(None, feed), strict=True))


@dataclass(slots=True)
class _UnderWay:
    number: int
    values: dict[str, Any]
    done: Future[dict[str, Any]] = field(default_factory=Future)


class Stream:
    """Stages that work at once: `for result in stream(items): ...`.

    An item is a dict of values; it passes the stages one after the other, each in a thread of its own, and
    each adds what it makes. Sessions and NumPy work while other threads do, plain Python takes turns.
    depth: how many items are under way at most (None: two more than stages); so many are taken from `items`
    ahead of the result that is asked for, and no more.

    Raises SmeltError(kind='invalid'): no stage, two that share a session, a depth below 1.
    """

    def __init__(
        self,
        stages: Sequence[Stage | Session | Callable[[StreamItem], StreamItem | None]],
        depth: int | None = None,
    ) -> None:
        self._stages: list[Stage] = []
        for n, stage in enumerate(stages):
            self._stages.append(_named(stage, n, {s.name for s in self._stages}))
        if not self._stages:
            raise SmeltError("a stream needs a stage", kind="invalid")
        self._depth = len(self._stages) + 2 if depth is None else depth
        if self._depth < 1:
            raise SmeltError(f"depth: wanted a count from 1 on, got {depth}", kind="invalid")
        for n, stage in enumerate(self._stages):
            for other in self._stages[:n]:
                if _share(stage.run, other.run):
                    raise SmeltError(
                        f"stages '{other.name}' and '{stage.name}' share a session",
                        kind="invalid",
                        hint="it does one run at a time; give one of them session.fork()",
                    )
        self._threads = [ThreadPoolExecutor(1, f"smelt-{s.name}") for s in self._stages]
        self._busy_ns = [0] * len(self._stages)
        self._items = 0
        self._turn = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    def __call__(self, items: Iterable[StreamItem]) -> Iterator[dict[str, Any]]:
        """The items with what the stages added, in order. `items` is read by the caller's thread.

        Where a stage fails, the results before come first and then its error, which says the stage and the
        item (counted from 0); items after that are dropped. A stream serves one such loop at a time. Raises
        SmeltError(kind='invalid') where it is closed, in another loop, or of a process that has forked.
        """
        if self._closed or self._pid != os.getpid():
            why = "is closed" if self._closed else "was made before this process was forked"
            raise SmeltError(f"the stream {why}", kind="invalid", hint="make another one")
        if not self._turn.acquire(blocking=False):
            raise SmeltError("the stream is in another loop", kind="invalid", hint="make one for each loop")
        under_way: deque[_UnderWay] = deque()
        try:
            for number, values in enumerate(items):
                if len(under_way) == self._depth:
                    yield under_way.popleft().done.result()
                item = _UnderWay(number, dict(values))
                self._hand_on(0, item)
                under_way.append(item)
            while under_way:
                yield under_way.popleft().done.result()
        finally:
            for item in under_way:
                item.done.exception()  # waits
            self._turn.release()

    def busy(self) -> dict[str, float]:
        """Stage -> seconds that it has worked per item; the longest decides how many items go through."""
        return {
            s.name: ns / 1e9 / max(1, self._items) for s, ns in zip(self._stages, self._busy_ns, strict=True)
        }

    def close(self) -> None:
        """End the threads; sessions stay open."""
        self._closed = True
        for thread in self._threads:
            thread.shutdown()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hand_on(self, at: int, item: _UnderWay) -> None:
        """Have stage `at` work on the item. `close` ends the first thread first: only new items are late."""
        try:
            self._threads[at].submit(self._work, at, item)
        except RuntimeError:
            raise SmeltError("the stream is closed", kind="invalid", hint="make another one") from None

    def _work(self, at: int, item: _UnderWay) -> None:
        """In the thread of stage `at`: its part of the item, which then goes on to the next stage."""
        stage = self._stages[at]
        try:
            start = time.perf_counter_ns()
            item.values.update(stage(item.values))
            self._busy_ns[at] += time.perf_counter_ns() - start
        except SmeltError as e:
            said = f"stage '{stage.name}', item {item.number}: {e.message}"
            item.done.set_exception(SmeltError(said, kind=e.kind, node=e.node, hint=e.hint))
        except BaseException as e:  # a function's own, for the caller
            e.add_note(f"in stage '{stage.name}' of a smelt.Stream, item {item.number}")
            item.done.set_exception(e)
        else:
            if at + 1 < len(self._stages):
                self._hand_on(at + 1, item)
            else:
                self._items += 1
                item.done.set_result(item.values)


def _named(
    stage: Stage | Session | Callable[[StreamItem], StreamItem | None], number: int, taken: set[str]
) -> Stage:
    """The stage with a name that none before it has. Raises SmeltError(kind='invalid') for what is none."""
    made = stage if isinstance(stage, Stage) else Stage(stage)
    if not callable(made.run) and not isinstance(made.run, Session):
        got = f"{made.run!r:.80}"
        raise SmeltError(f"stage {number}: wanted a session or a function, got {got}", kind="invalid")
    name = made.name or (
        made.run.name if isinstance(made.run, Session) else getattr(made.run, "__name__", f"stage {number}")
    )
    return replace(made, name=f"{name} (stage {number})" if name in taken else name)


def _share(a: object, b: object) -> bool:
    return isinstance(a, Session) and isinstance(b, Session) and a.shares(b)
