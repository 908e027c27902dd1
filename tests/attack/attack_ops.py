"""Every operator over mixed types and values at the edges: formula, reference (what folding computes),
compiled code, ONNX's evaluator and ONNX Runtime must agree, within bounds stated per operator."""

from __future__ import annotations

import sys

import numpy as np
from campaign import Outcome, main
from op_classical import CLASSICAL
from op_classical import draw as classical_draw
from op_judge import complaints
from op_nodes import Case, draw, operators
from op_other_forms import draw as form_draw
from op_other_forms import operators as form_operators
from op_shipped import draw as shipped_draw
from op_shipped import operators as shipped_operators
from op_ways import by_all

SLICES = 4
"""Seeds after which each operator has had its turn."""
EACH = 3
"""Nodes of each operator in a turn; of those with shipped cases one."""


def cases(seed: int) -> list[Case]:
    """The nodes of a seed, which smelt compiles as one model."""
    rng = np.random.default_rng(seed)
    turn = slice(seed % SLICES, None, SLICES)
    found = [draw(rng, op) for op in operators()[turn] for _ in range(EACH)]
    shipped = [shipped_draw(rng, op) for op in shipped_operators()[turn]]
    found += [form_draw(rng, op) for op in form_operators()[turn]]
    found += [classical_draw(rng, op) for op in sorted(CLASSICAL)[turn]]
    return found + [c for c in shipped if c is not None]


def attack(seed: int) -> Outcome:
    """Compare all ways of computing the nodes of a seed. In every other round subnormal numbers are 0."""
    ways = by_all(cases(seed), keep=seed // SLICES % 2 == 0)
    found = [text for w in ways for text in complaints(w)]
    if found:
        return Outcome("contradicts itself or ONNX", True, "\n".join(found[:12]))
    refused = sum(bool(w.refused) for w in ways)
    return Outcome(f"agrees ({refused} nodes refused)")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 200))
