"""A module's kernels before their schedule -> the rows of the manifest that say what work they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.core.ir.analysis.work import KernelWork, work
from smelt.core.ir.graph import Module
from smelt.core.ir.kernel import Kernel

LONGEST_WORK = 400
"""Characters of a formula in the manifest; a kernel whose work takes more to say has none told."""


def _row(w: KernelWork) -> dict[str, str] | None:
    """Formulas; None where one of them is too long."""
    found = {"flops": str(w.floating), "integers": str(w.integer), "bytes": str(w.bytes)}
    return found if max(map(len, found.values())) <= LONGEST_WORK else None


def module_work(module: Module) -> dict[str, dict[str, str]]:
    """Kernel -> its row, of those whose work is known. The kernels are not yet scheduled."""
    found = {name: work(k) for name, k in module.kernels.items() if not k.schedule}
    rows = {name: _row(w) for name, w in found.items() if w is not None}
    return {name: row for name, row in rows.items() if row is not None}


def linked_work(
    module: Module, own: Mapping[str, Kernel], known: Mapping[str, Mapping[str, str]]
) -> dict[str, Mapping[str, str]]:
    """The same by the names of linked kernels. module: linked; own: the entry's scheduled kernels before
    that, under the names of `known`."""
    if own.keys() >= module.kernels.keys():
        found = {name: known[name] for name in module.kernels if name in known}
    else:
        alike = {_nameless(k): known[name] for name, k in own.items() if name in known}
        keys = {name: _nameless(k) for name, k in module.kernels.items()}
        found = {name: alike[key] for name, key in keys.items() if key in alike}
    # what runs in the place of a kernel at some sizes has the same work, in the same dims
    cases = {c.kernel: name for name, k in module.kernels.items() for c in k.hot}
    return found | {case: found[name] for case, name in cases.items() if name in found}


def _nameless(k: Kernel) -> Kernel:
    """The kernel without its name and those of its cases."""
    return k.with_(name="", origin="", hot=tuple(replace(c, kernel="") for c in k.hot))
