"""Attributes of a node in, values of the type that a rule wants out."""

from __future__ import annotations

from smelt.core.dim import Dim, to_dim
from smelt.core.ops.table import Attrs


def integer(attrs: Attrs, name: str) -> int:
    """An int attribute."""
    value = attrs[name]
    assert isinstance(value, int)
    return int(value)


def number(attrs: Attrs, name: str) -> float:
    """A float attribute; an int stands for one."""
    value = attrs[name]
    assert isinstance(value, (int, float))
    return float(value)


def axis_of(attrs: Attrs) -> int:
    """The attribute axis."""
    return integer(attrs, "axis")


def ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    """A tuple-of-int attribute."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)  # type: ignore[arg-type]


def dim_of(attrs: Attrs, name: str) -> Dim:
    """A size."""
    return to_dim(attrs[name])  # type: ignore[arg-type]


def dims(attrs: Attrs, name: str) -> tuple[Dim, ...]:
    """A tuple-of-Dim attribute."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return tuple(v if isinstance(v, Dim) else to_dim(int(v)) for v in value)  # type: ignore[arg-type]
