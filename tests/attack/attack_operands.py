"""Hostile attributes and operands of every op: a seed -> a batch of files, and the outcome of lowering each.

attack_files takes a sample of them through machine code and a run; this goes through all of them, without.
"""

from __future__ import annotations

import collections
import random
import sys
from collections.abc import Sequence
from functools import cache

from attack_files import outcomes
from campaign import Outcome, main
from file_ops import OpCase, op_cases

BATCH = 64
"""Files in a child: a case takes 0.1 s, a child's start half as long."""


@cache
def changes() -> tuple[OpCase, ...]:
    """All of them in a mixed order. Takes seconds: ONNX computes its cases anew."""
    found = list(op_cases())
    random.Random(0).shuffle(found)
    return tuple(found)


def attack(seed: int) -> Outcome:
    """One batch; beyond the last one nothing."""
    return together(changes()[seed * BATCH : (seed + 1) * BATCH])


def together(cases: Sequence[OpCase]) -> Outcome:
    """One Outcome for several files: that of the first kind of defect, with the details of all."""
    found = [(c, o) for c, o in outcomes(cases, code=False) if o.failed]
    if not found:
        return Outcome("in order")
    kinds = collections.Counter(o.what for _, o in found)
    details = [f"{c.klass} | {c.name[:200]} | {o.what}\n{o.detail}" for c, o in found]
    return Outcome(min(kinds), True, "\n\n".join(details))


if __name__ == "__main__":
    import smelt.compiler
    import smelt.session  # noqa: F401  imported once, before the forks

    sys.exit(main(attack, __doc__ or "", count=-(-len(changes()) // BATCH)))
