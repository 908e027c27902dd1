"""Hostile ONNX files: a seed -> a file that is wrong in one way, and smelt's answer to it.

The first seeds take each class once: what no graph may be, weights elsewhere, files that are none; then each
field of each message of onnx.proto; then each attribute and operand of each op. Further seeds take further
values of the fields, attributes and operands. Each file is checked and compiled in a child with limits.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

sys.path += [str(Path(__file__).parents[1] / "support")]

from campaign import Outcome, main
from file_fields import EXTERNAL, FieldCase, field_cases
from file_graphs import PlacedCase, placed_cases
from file_judge import HANG, Expected, Report, judge_file, judged, limited, outcome_of
from file_ops import OpCase, op_cases
from isolated import isolated

T = TypeVar("T", FieldCase, OpCase)
AnyCase = PlacedCase | FieldCase | OpCase
SPREAD = 7919
"""A prime: the values of a class are taken in steps of it, so that neighbours in the list come far apart."""


@cache
def placed() -> tuple[PlacedCase, ...]:
    """Graphs, weights and files."""
    return tuple(placed_cases())


@cache
def fields() -> tuple[FieldCase, ...]:
    """Fields, each class once at the start."""
    return tuple(_spread(field_cases()))


@cache
def ops() -> tuple[OpCase, ...]:
    """Operands and attributes, each class once at the start. Takes seconds: ONNX computes its cases anew."""
    return tuple(_spread(op_cases()))


def _spread(cases: Iterable[T]) -> list[T]:
    """The first of each class, the second of each, and so on; its values in a mixed order."""
    classes: dict[str, list[T]] = {}
    for c in cases:
        classes.setdefault(c.klass, []).append(c)
    rounds: list[list[T]] = [[] for _ in range(max(map(len, classes.values())))]
    for number, held in enumerate(classes.values()):
        for k in range(len(held)):
            rounds[k].append(held[(k * _step(len(held)) + number) % len(held)])
    return [c for r in rounds for c in r]


@cache
def _classes(held: Callable[[], Iterable[FieldCase | OpCase]]) -> int:
    """How many classes there are: cases of a hundred thousand, which is not to be counted for each seed."""
    return len({c.klass for c in held()})


def _step(n: int) -> int:
    """SPREAD, or 1 where that would meet the same ones again."""
    return SPREAD if n % SPREAD else 1


def case(seed: int) -> AnyCase:
    """The case of a seed; from the last one on they repeat."""
    if seed < len(placed()):
        return placed()[seed]
    seed -= len(placed())
    classes = _classes(fields)
    if seed < classes:
        return fields()[seed]
    seed -= classes
    first = _classes(ops)
    if seed < first:
        return ops()[seed]
    seed -= first
    if seed % 8 == 0:
        return fields()[(classes + seed // 8) % len(fields())]
    return ops()[(first + seed) % len(ops())]


def examined(c: AnyCase, code: bool = True) -> Report:
    """The case written, checked and compiled in this process, which ends when it takes too much."""
    limited()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        path = Path(folder) / "m.onnx"
        if isinstance(c, PlacedCase):
            c.place(path)
            return judge_file(path, c.expected, code=code)
        path.write_bytes(c.data())
        (path.parent / "w.bin").write_bytes(EXTERNAL.tobytes())
        return judge_file(path, Expected(), code=code)


def outcomes(cases: Sequence[AnyCase], code: bool) -> list[tuple[AnyCase, Outcome]]:
    """Each case's Outcome, several in a child; where a child ends early, each in a child of its own."""
    how, reports = isolated(lambda: [examined(c, code) for c in cases], HANG)
    if how == "ok":
        return [(c, outcome_of(c.name[:200], r)) for c, r in zip(cases, reports, strict=True)]
    if len(cases) == 1:
        return [(cases[0], Outcome(f"{how} {reports}", True, cases[0].name[:200]))]
    return [found for c in cases for found in outcomes([c], code)]


def attack(seed: int) -> Outcome:
    """One file."""
    c = case(seed)
    alone = isinstance(c, OpCase)  # the others have weights in files
    return judged(f"{c.klass} | {c.name[:200]}", lambda: examined(c), c.data if alone else None)


if __name__ == "__main__":
    import smelt.compiler
    import smelt.session  # noqa: F401  imported once, before the forks

    sys.exit(main(attack, __doc__ or "", count=3000))
