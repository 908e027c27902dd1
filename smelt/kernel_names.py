"""The rows of a manifest's kernels in; whose statement each thing is that a runtime times, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smelt.core.machine import CPU


def kernel_names(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What a runtime calls the statements of kernels -> the kernels: 'conv.1' and, at a device, 'k_conv__1'
    are the second one of 'conv'."""
    from smelt.targets.grid.parts import part_names  # with NumPy, which --help does without

    found: dict[str, str] = {}
    for unit in dict.fromkeys(r["unit"] for r in rows):
        parts = [(r["name"], i) for r in rows if r["unit"] == unit for i in range(r["statements"])]
        if unit == CPU:
            found.update({f"{name}.{i}": name for name, i in parts})
        else:
            found.update({symbol: name for (name, _), symbol in part_names(parts).items()})
    return {**found, **{r["name"]: r["name"] for r in rows}}
