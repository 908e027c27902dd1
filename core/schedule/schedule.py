"""Schedules: steps as data, which print and parse as text, and their application to a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from smelt.core.dim import Dim, parse_dim, to_dim
from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Instruction
from smelt.core.schedule import (
    decode,
    instruct,
    lane_share,
    lanes,
    loops,
    memory,
    reductions,
    running,
    statements,
)
from smelt.core.schedule.tree import ScheduleError

StepArg: TypeAlias = "str | int | bool | Dim | tuple[int, ...] | tuple[str, ...]"
InstructionRows: TypeAlias = "tuple[Instruction, ...]"


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive and its arguments, in the order of its signature after the kernel."""

    name: str
    args: tuple[StepArg, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.name, *map(_print, self.args)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps, applied in order. `str` and `parse` are inverses."""

    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps))

    def __add__(self, other: Schedule) -> Schedule:
        return Schedule((*self.steps, *other.steps))


# name -> (primitive, kinds of its arguments)
# kinds: v a name, i an int of 0 or more, b a flag, s sizes, o names up to the end, d a Dim, l a pack layout,
# r one of the machine's rows, by its name
PRIMITIVES: Mapping[str, tuple[Callable[..., Kernel], str]] = {
    "normalise": (loops.normalise, ""),
    "enclose": (loops.enclose, "vv"),
    "split": (loops.split, "vivvb"),
    "chunk": (loops.chunk, "viv"),
    "tile": (loops.tile, "vsvvvv"),
    "order": (loops.order, "o"),
    "peel": (loops.peel, "vdv"),
    "part": (loops.part, "vdv"),
    "divide": (loops.divide, "viv"),
    "bind": (loops.bind, "vv"),
    "unroll": (loops.unroll, "v"),
    "collapse": (loops.collapse, "vvv"),
    "join": (loops.join, "vvv"),
    "strip": (loops.strip, "viib"),
    "stage_reduce": (reductions.stage_reduce, "vv"),
    "hoist": (reductions.hoist, "vv"),
    "once": (reductions.once, "vv"),
    "accumulate": (reductions.accumulate, "vo"),
    "accumulate_blocks": (reductions.accumulate_blocks, "vvivv"),
    "widen": (reductions.widen, "vvi"),
    "strip_reduce": (reductions.strip_reduce, "viib"),
    "strip_together": (reductions.strip_together, "vi"),
    "keep": (reductions.keep, "vv"),
    "pack": (memory.pack, "vl"),
    "ask_ahead": (memory.ask_ahead, "vi"),
    "stage": (memory.stage, "vlv"),
    "stage_factor": (memory.stage_factor, "vvvb"),
    "stage_operand": (memory.stage_operand, "vvvb"),
    "stage_right": (memory.stage_right, "vvv"),
    "bind_let": (memory.bind_let, "v"),
    "unclamp": (memory.unclamp, "o"),
    "spread": (lanes.spread, "vivv"),
    "split_clamped": (lanes.split_clamped, "vivv"),
    "fetch": (lanes.fetch, "vvvi"),
    "pipeline": (lanes.pipeline, "vvi"),
    "copy_wide": (lanes.copy_wide, "vi"),
    "inward": (lanes.inward, "vv"),
    "lane_reduce": (lanes.lane_reduce, "vii"),
    "lane_split": (lanes.lane_split, "vvi"),
    "lane_share": (lane_share.lane_share, "vii"),
    "divide_by": (lane_share.divide_by, "vdiv"),
    "lift": (statements.lift, "vvv"),
    "lift_factor": (statements.lift_factor, "vvv"),
    "lift_operand": (statements.lift_operand, "vvv"),
    "running": (running.running, "vvii"),
    "split_reduce": (statements.split_reduce, "vviv"),
    "factor": (decode.factor, "vv"),
    "by_bits": (decode.by_bits, "v"),
    "deepen": (instruct.deepen, "vivv"),
    "join_axes": (instruct.join_axes, "vvv"),
    "replace": (instruct.by_instruction, "vr"),
}


def apply(kernel: Kernel, schedule: Schedule, rows: InstructionRows = ()) -> Kernel:
    """The kernel after all steps; Kernel.schedule holds their text, appended to what was there. rows: the
    machine's instructions, which steps name."""
    for step in schedule.steps:
        kernel = apply_step(kernel, step, rows)
    return kernel


def apply_step(kernel: Kernel, step: Step, rows: InstructionRows = ()) -> Kernel:
    """One step. Raises ScheduleError when it is unknown or not provably legal."""
    if step.name not in PRIMITIVES:
        raise ScheduleError(step.name, "there is no such primitive")
    primitive, kinds = PRIMITIVES[step.name]
    numbers = (n for a in step.args for n in (a if isinstance(a, tuple) else (a,)) if isinstance(n, int))
    if any(n < 0 for n in numbers):
        raise ScheduleError(str(step), "numbers are 0 or more")
    args = (_row(a, step, rows) if k == "r" else a for a, k in zip(step.args, kinds, strict=True))
    done = primitive(kernel, *args)
    text = f"{kernel.schedule}; {step}" if kernel.schedule else str(step)
    return done.with_(schedule=text)


def _row(name: StepArg, step: Step, rows: InstructionRows) -> Instruction:
    found = next((r for r in rows if r.name == name), None)
    if found is None:
        raise ScheduleError(str(step), f"the machine has no instruction '{name}'")
    return found


def _print(arg: StepArg) -> str:
    if isinstance(arg, bool):
        return "yes" if arg else "no"
    if isinstance(arg, tuple):
        items = list(map(str, arg))
        return f"[{' '.join(items)}]"
    if isinstance(arg, Dim):
        return str(arg) if arg.is_const else f"{{{arg}}}"
    return str(arg)


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
    "d": lambda t: to_dim(parse_dim(_strip(t), limit=None)),
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
