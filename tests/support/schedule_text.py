"""The text of a schedule in, its steps out; a kernel and a schedule in, the kernel after its steps out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from smelt.core.dim import parse_dim, to_dim
from smelt.core.ir.kernel import Kernel
from smelt.core.schedule.schedule import PRIMITIVES, InstructionRows, Schedule, Step, apply_step
from smelt.core.schedule.tree import ScheduleError


def apply(kernel: Kernel, schedule: Schedule, rows: InstructionRows = ()) -> Kernel:
    """The kernel after all steps. rows: the machine's instructions, which steps name."""
    for step in schedule.steps:
        kernel = apply_step(kernel, step, rows)
    return kernel


_TOKEN = re.compile(r"\s*(?:\{([^}]*)\}|\[([^\]]*)\]|(\([^)]*\))|([^\s;\[\]{}()]+))")


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text.rstrip()):
        m = _TOKEN.match(text, at)
        if m is None:
            raise ScheduleError(text.strip(), f"cannot read {text[at:].strip()!r}")
        found.append(m.group(0).strip())
        at = m.end()
    return found


def _strip(token: str) -> str:
    return token[1:-1] if token[:1] in "[{" else token


_READ: Mapping[str, Callable[[str], Any]] = {
    "v": str,
    "i": int,
    "b": lambda t: {"yes": True, "no": False}[t],
    "s": lambda t: tuple(int(x) for x in _strip(t).split()),
    "o": lambda t: tuple(_strip(t).split()),
    "d": lambda t: to_dim(parse_dim(_strip(t))),
    "l": str,
    "r": str,
}


def parse(text: str) -> Schedule:
    """The inverse of str(schedule); ScheduleError names the step that cannot be read."""
    steps = []
    for part in filter(str.strip, _split_steps(text)):
        name, *tokens = _tokens(part)
        if name not in PRIMITIVES:
            raise ScheduleError(part.strip(), "there is no such primitive")
        kinds = PRIMITIVES[name][1]
        if len(tokens) != len(kinds):
            raise ScheduleError(part.strip(), f"has {len(tokens)} arguments, expected {len(kinds)}")
        try:
            args = tuple(_READ[k](t) for k, t in zip(kinds, tokens, strict=True))
        except (ValueError, KeyError) as e:
            raise ScheduleError(part.strip(), f"cannot read an argument ({e})") from e
        steps.append(Step(name, args))
    return Schedule(tuple(steps))


def _split_steps(text: str) -> list[str]:
    return text.replace("\n", ";").split(";")
