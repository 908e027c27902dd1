"""A kernel in; which inputs an output may be written over, and which statements only copy one to the other,
out."""

from __future__ import annotations

from collections.abc import Iterator

from smelt.core.ir.kernel import Kernel, Load, Stmt, Store, walk, walk_expr
from smelt.core.ir.workspace import workspace


def in_place_inputs(kernel: Kernel) -> dict[int, tuple[int, ...]]:
    """For each output, the inputs whose storage it may take over.

    An input qualifies when the kernel is one statement and each of its loads stands in the store to
    that output, unguarded, at the very index of the store: then every element is read by the instance
    that overwrites it, before it does.
    """
    if len(kernel.body) != 1 or workspace(kernel):
        return {}
    stores = [s for s in walk(kernel.body) if isinstance(s, Store)]
    found: dict[int, tuple[int, ...]] = {}
    for o, out in enumerate(kernel.outputs):
        mine = [s for s in stores if s.buffer == out.name]
        if len(mine) != 1:
            continue
        fits = tuple(
            n
            for n, b in enumerate(kernel.inputs)
            if (b.dtype, b.shape) == (out.dtype, out.shape) and _read_at_store(b.name, mine, kernel.body)
        )
        if fits:
            found[o] = fits
    return found


def copying_parts(kernel: Kernel) -> dict[int, tuple[int, int]]:
    """Statement -> (input, output), for those that do nothing but copy the input to the output, which no
    other statement reads: they are not needed where both are the same memory."""
    names = {b.name: n for n, b in enumerate(kernel.inputs)}
    found: dict[int, tuple[int, int]] = {}
    for k, s in enumerate(kernel.body):
        stores = [x for x in walk((s,)) if isinstance(x, Store)]
        read = {x.buffer for st in stores for x in walk_expr(st.value) if isinstance(x, Load)}
        others = {x.buffer for o in kernel.body if o is not s for x in _loads(o)}
        for o, out in enumerate(kernel.outputs):
            plain = all(
                st.buffer == out.name and not st.accumulate and isinstance(st.value, Load)
                and st.value.index == st.index and {*st.value.guard} <= {*st.guard}
                for st in stores
            )  # fmt: skip
            if stores and plain and len(read) == 1 and (name := read.pop()) in names and name not in others:
                found[k] = names[name], o
    return found


def _loads(s: Stmt) -> Iterator[Load]:
    for x in walk((s,)):
        values = [x.value] if isinstance(x, Store) else [v for _, v, _, _ in getattr(x, "let", ())]
        yield from (e for v in values for e in walk_expr(v) if isinstance(e, Load))


def _read_at_store(name: str, mine: list[Store], body: tuple[Stmt, ...]) -> bool:
    for s in walk(body):
        exprs = [s.value] if isinstance(s, Store) else [v for _, v, _, _ in getattr(s, "let", ())]
        for e in exprs:
            loads = [x for x in walk_expr(e) if isinstance(x, Load) and x.buffer == name]
            if not loads:
                continue
            if not isinstance(s, Store) or s not in mine or s.accumulate:
                return False
            if any(x.index != s.index or x.guard for x in loads):
                return False
    return True


__all__ = ["copying_parts", "in_place_inputs"]
