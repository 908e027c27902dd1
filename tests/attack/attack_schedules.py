"""Schedules that nobody has chosen: a seed -> a kernel of the strategies' table, the schedule of some machine
with steps left out, repeated, moved, changed or taken from another kernel, and what replaying it gives.

A step is refused, or keeps what the kernel computes at all of its sizes, whatever machine it is for."""

from __future__ import annotations

import random
import sys
from functools import cache, partial
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "support")]

from campaign import Outcome, main
from file_judge import limited
from isolated import isolated
from naive_kernels import check
from strategy_kernels import KERNELS, MACHINES

from smelt.core.diag import SmeltError
from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.core.schedule.question import Question
from smelt.core.schedule.schedule import PRIMITIVES, Step
from smelt.core.schedule.strategies import draft
from smelt.core.schedule.tree import ScheduleError

HANG = 60.0
NAMES = tuple(name for name in KERNELS if "long" not in name)
"""Without kernels that the interpreter takes a minute for where a mutant leaves it no loop to vectorise."""
NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 64, 1000, -1, 2**31, 2**62)


@cache
def steps_of(name: str, machine: Machine) -> tuple[Step, ...]:
    """The schedule that the strategies choose."""
    naive, constants, _ = KERNELS[name]
    return draft(naive, machine, frozenset(constants)).schedule.steps


def mutant(seed: int) -> tuple[str, Machine, str]:
    """The kernel's name, the machine and the text of the schedule."""
    rng = random.Random(f"schedule {seed}")
    name, machine = rng.choice(NAMES), rng.choice(MACHINES)
    other = steps_of(name, rng.choice(MACHINES)) or steps_of(rng.choice(NAMES), machine)
    parts = [str(s).split(" ") for s in steps_of(name, machine)]
    words = _words(KERNELS[name][0], parts)
    for _ in range(rng.randint(1, 4)):
        _change(parts, [str(s).split(" ") for s in other], words, rng)
    return name, machine, "; ".join(" ".join(p) for p in parts)


def _words(kernel: Kernel, parts: list[list[str]]) -> list[str]:
    """What arguments of steps may be: names that others have, and of buffers."""
    kept = {"group", "lane", "vector", "yes", "no"}
    return sorted({w for p in parts for w in p[1:]} | set(kernel.buffers()) | kept)


def _change(parts: list[list[str]], others: list[list[str]], words: list[str], rng: random.Random) -> None:
    """One change of the steps."""
    at = rng.randrange(len(parts)) if parts else 0
    way = rng.random()
    if not parts or way < 0.15:
        made = rng.choice(others) if others and rng.random() < 0.6 else _invented(words, rng)
        parts.insert(rng.randint(0, len(parts)), list(made))
    elif way < 0.35:
        del parts[at]
    elif way < 0.45:
        parts.insert(at, list(parts[at]))
    elif way < 0.6:
        parts.insert(rng.randrange(len(parts)), parts.pop(at))
    elif len(parts[at]) > 1:
        k = rng.randrange(1, len(parts[at]))
        old = parts[at][k]
        number = old.lstrip("-").isdigit() and rng.random() < 0.8
        parts[at][k] = str(rng.choice(NUMBERS)) if number else rng.choice(words)


def _invented(words: list[str], rng: random.Random) -> list[str]:
    """A step with as many arguments as it takes."""
    name = rng.choice(sorted(PRIMITIVES))
    kinds = PRIMITIVES[name][1]
    return [name, *(str(rng.choice(NUMBERS[:12])) if k in "id" else rng.choice(words) for k in kinds)]


def examined(name: str, machine: Machine, text: str) -> tuple[str, str]:
    """(what is wrong or '', what became of it)."""
    limited()
    naive, constants, envs = KERNELS[name]
    question = Question(naive, frozenset(constants))
    try:
        done = question.replayed(text, machine)
    except ScheduleError as e:
        return "", f"refused: {e.message.split(':')[0].split(' ')[0]}"
    except SmeltError as e:
        return f"{e.kind}: {e}", "refused by another error"
    for env in envs:
        check(naive, done, env, rtol=2e-3 if "f16" in name else 2e-5)
    same = done.body == draft(naive, machine, frozenset(constants)).kernel.body
    return "", "the same" if same else "another, and right"


def attack(seed: int) -> Outcome:
    """One schedule."""
    name, machine, text = mutant(seed)
    how, found = isolated(partial(_told, name, machine, text), HANG)
    bad, what = found if how == "ok" else (how, f"{how}: {str(found)[-1500:]}")
    detail = f"seed {seed}: {name} on {machine.name}\n{text}\n{bad}"
    return Outcome(what[:80].split("\n")[-1], bool(bad), detail)


def _told(name: str, machine: Machine, text: str) -> tuple[str, str]:
    try:
        return examined(name, machine, text)
    except AssertionError as e:
        return str(e)[-800:], "wrong numbers"


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", count=20_000))
