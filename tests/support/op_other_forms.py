"""An operator that ONNX ships no cases of -> a node of one of its forms, with values at the edges among its
floats."""

from __future__ import annotations

from functools import cache

import numpy as np
import op_nodes
import op_shipped
from op_forms import MS, Form, weights
from op_nodes import Case, pick
from op_values import Array, mild
from other_ops import forms


@cache
def _forms() -> dict[str, tuple[tuple[str, Form], ...]]:
    """The forms by operator, with their titles."""
    found: dict[str, list[tuple[str, Form]]] = {}
    standard = {*op_nodes.operators(), *op_shipped.operators()}
    for title, form in forms():
        if form.domain == MS or form.op not in standard:
            found.setdefault(f"{form.domain}.{form.op}".lstrip("."), []).append((title, form))
    return {op: tuple(own) for op, own in found.items()}


@cache
def operators() -> tuple[str, ...]:
    """The operators, by domain and name."""
    return tuple(sorted(_forms()))


def draw(rng: np.random.Generator, op: str) -> Case:
    """A node of the operator at one of its form's sizes. Inputs that a form makes by a rule of its own keep
    to that rule."""
    title, form = pick(rng, _forms()[op])
    held, sizes = weights(form, title), pick(rng, form.sizes)
    arrays: list[Array | None] = []
    for i, a in enumerate(form.inputs):
        array = None if a is None else held[i] if a.fixed else a.array(rng, sizes)
        arrays.append(array if a is None or array is None or a.make is not None else mild(rng, array))
    fixed = tuple(held)
    own = {"atol": form.atol, "rtol": form.rtol, "steps": form.steps, "skip": form.skip}
    at = (form.domain, 1 if form.domain == MS else form.version)
    return Case(form.op, tuple(arrays), form.attrs, form.outputs, fixed, *at, wanted=form.wanted, **own)
