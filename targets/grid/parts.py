"""Kernels in; their top-level statements, what these are called, what they use and why not, out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from smelt.core.diag import SmeltError
from smelt.core.ir.alike import alike
from smelt.core.ir.analysis.scope import accesses
from smelt.core.ir.kernel import Kernel, Loop, Stmt, Tiles, walk
from smelt.core.ir.rewrite import map_stmt_exprs

R = TypeVar("R")

_NOT_C = re.compile(r"[^A-Za-z0-9_]")


def identifier(name: str) -> str:
    """Any name as letters that C takes inside an identifier; '.' stands out."""
    return _NOT_C.sub("_", name.replace(".", "__"))


def part_names(kernels: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """C names for (kernel, top-level statement), each different: 'add' and 0 is k_add, 1 is k_add__1."""
    names: dict[tuple[str, int], str] = {}
    taken: set[str] = set()
    for kernel, part in kernels:
        base = name = f"k_{identifier(kernel)}" + (f"__{part}" if part else "")
        n = 1
        while name in taken:
            n += 1
            name = f"{base}_v{n}"
        taken.add(name)
        names[kernel, part] = name
    return names


def mentioned(s: Stmt) -> frozenset[str]:
    """Buffers that a statement loads or stores."""
    return frozenset(a.buffer for a in accesses(s))


def unrolls(t: Tiles) -> bool:
    """Whether loops are unrolled over a tile's rows."""
    loops = (s for s in walk(t.body) if isinstance(s, Loop) and s.level == "unroll")
    return any(t.rows in s.extent.symbols for s in loops)


def each_part(kernels: Sequence[Kernel], emit: Callable[[Kernel, int, str], R]) -> dict[tuple[str, int], R]:
    """emit(kernel, part, name) of every top-level statement, in which equal values are one object. Raises
    SmeltError naming the kernel: internal for a tree that cannot be emitted, unsupported for one that needs
    more memory than a group has."""
    names = part_names((k.name, i) for k in kernels for i in range(len(k.body)))
    found: dict[tuple[str, int], R] = {}
    for k in (k.with_(body=tuple(map_stmt_exprs(s, alike()) for s in k.body)) for k in kernels):
        for i in range(len(k.body)):
            try:
                found[k.name, i] = emit(k, i, names[k.name, i])
            except AssertionError as e:
                raise SmeltError(f"kernel '{k.name}' cannot be emitted: {e}", kind="internal") from e
    return found


def too_large(kernel: Kernel, device: str, of: str, wanted: int, there: int) -> SmeltError:
    """The error of a kernel whose local buffers do not fit. of: whose memory it is."""
    return SmeltError(
        f"kernel '{kernel.name}' needs {wanted} bytes of memory for {of}, {device} devices are taken "
        f"to have {there}",
        kind="unsupported",
        hint="place its nodes on another unit: --place 'NODE=cpu'",
    )
