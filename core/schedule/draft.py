"""Draft: a kernel under a strategy's hands, with the steps taken so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from smelt.core.ir.kernel import Kernel, Loop, Stmt, Tiles
from smelt.core.ir.rewrite import fresh_name, local_buffers
from smelt.core.machine import Machine
from smelt.core.schedule.schedule import Schedule, Step, StepArg, apply_step
from smelt.core.schedule.tree import ScheduleError, chain, find, names_of, var_of
from smelt.core.schedule.view import View, view

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StrategyPick:
    """A choice that a strategy made by its model. options: what it could have taken, the best by the model
    first; taken: one of them."""

    what: str
    options: tuple[str, ...]
    taken: str


class Draft:
    """Applies steps and records them. constants: names of inputs whose values are known when compiling.
    answers: what is to be taken in the strategies' place where they can pick, by the names of picks."""

    def __init__(
        self,
        kernel: Kernel,
        machine: Machine,
        constants: frozenset[str] = frozenset(),
        answers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.kernel = kernel
        self.machine = machine
        self.constants = constants
        self.answers = answers
        self.steps: list[Step] = []
        self.picks: list[StrategyPick] = []

    @property
    def schedule(self) -> Schedule:
        """What was done so far."""
        return Schedule(tuple(self.steps))

    def do(self, name: str, *args: StepArg) -> None:
        """One step; ScheduleError when the primitive refuses."""
        step = Step(name, args)
        self.kernel = apply_step(self.kernel, step, self.machine.instructions)
        self.steps.append(step)

    def attempt(self, name: str, *args: StepArg) -> bool:
        """One step if it is legal."""
        try:
            self.do(name, *args)
        except ScheduleError:
            return False
        return True

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """On a refusal inside, everything done inside is taken back and the refusal goes on."""
        kernel, count, picks = self.kernel, len(self.steps), len(self.picks)
        try:
            yield
        except ScheduleError:
            self.kernel = kernel
            del self.steps[count:]
            del self.picks[picks:]
            raise

    def pick(self, what: str, options: Mapping[str, T]) -> T:
        """One of several ways to go on, each under a name that says it: the first, which the strategy's model
        takes for the best, unless `answers` has another one of them. All nests of a kernel get one answer."""
        wanted = self.answers.get(what, "")
        taken = wanted if wanted in options else next(iter(options))
        self.picks.append(StrategyPick(what, tuple(options), taken))
        return options[taken]

    def size(self, what: str, size: int) -> int:
        """A pick of a number from 1: this one, half of it, or twice as much."""
        return self.pick(what, {str(n): n for n in (size, size // 2, 2 * size) if n})

    def fresh(self, base: str) -> str:
        """A name that nothing in the kernel has."""
        return fresh_name(base, names_of(self.kernel))

    def root(self, var: str) -> Stmt:
        """The outermost statement from which the loops are perfectly nested down to var."""
        found = find(self.kernel, var)
        assert found is not None, var
        path, node = found
        return next(s for s in (*path, node) if var in map(var_of, chain(s)[0]))

    def roots(self) -> list[str]:
        """The outermost loop of every top-level statement."""
        return [var_of(s) for s in self.kernel.body if isinstance(s, Loop | Tiles)]

    def inside(self, var: str) -> bool:
        """Whether the nest of var is one of several statements of a loop around it."""
        return self.root(var) not in self.kernel.body

    def share(self, groups: Sequence[str]) -> None:
        """These loops as groups, unless a loop around them, which holds more than their nest, is one."""
        for g in groups:
            if not self.inside(g):
                self.do("bind", g, "group")

    def view(self, var: str, recurrent: bool = False) -> View:
        """The nest that holds the loop var; ScheduleError when it is no plain nest. recurrent: one that may
        read what it writes."""
        seen = view(self.kernel, self.root(var), recurrent)
        if seen is None:
            raise ScheduleError("view", f"the nest of '{var}' is no plain one")
        return seen

    def nests(self, var: str) -> list[str]:
        """The outermost loop of every statement inside the loop var."""
        found = find(self.kernel, var)
        assert found is not None, var
        return [var_of(s) for s in found[1].body if isinstance(s, Loop | Tiles)]

    def stage_reduce(self, var: str) -> list[str]:
        """`stage_reduce var`; the registers it made, in the order in which they are filled."""
        before = {b.name for b in local_buffers(self.kernel.body)}
        self.do("stage_reduce", var, "acc")
        return [b.name for b in local_buffers(self.kernel.body) if b.name not in before]

    def enclose(self, var: str) -> str:
        """A loop of one iteration around the nest of var; its name."""
        name = self.fresh("one")
        nodes, _ = chain(self.root(var))
        self.do("enclose", var_of(nodes[0]), name)
        return name

    def split_phases(self, root: str) -> str:
        """Loops that indices divide by a constant, split by it, so that the division goes: channels of
        a grouped convolution into (group, channel), outputs of a transposed one into (step, phase).
        The root of the nest afterwards."""
        v = self.view(root)
        for loop in v.loops:
            divisors = v.divisors(loop.var)
            if len(divisors) == 1 and loop.extent != divisors[0]:
                self.attempt("split", loop.var, divisors[0], f"{loop.var}.q", f"{loop.var}.p", False)
        return root if find(self.kernel, root) is not None else f"{root}.q"

    def order(self, *names: str) -> None:
        """The perfectly nested loops `names` in this order, unless they are already."""
        if len(names) < 2:
            return
        found = [f for f in (find(self.kernel, n) for n in names) if f is not None]
        first = min(found, key=lambda f: len(f[0]))[1] if found else self.root(names[0])
        nodes, _ = chain(first)
        now = [var_of(n) for n in nodes if var_of(n) in names]
        if now != list(names):
            self.do("order", names)
