"""A thread's stores of neighbours to global memory in, one store of all of them out, where they begin at a
multiple of what is stored and none is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.core.dim import YES, Facts
from smelt.core.ir.kernel import Loop, Store
from smelt.targets.cuda.copies import MOVE_SIZES, mentions, neighbours
from smelt.targets.llvm.scalar import storage_elem

if TYPE_CHECKING:
    from smelt.targets.cuda.emit import KernelPart


def stored_together(code: KernelPart, s: Loop) -> bool:
    """Emit  unroll v { y[.. + v] = e(v) if g }  as one store of a vector; False where it is none, or nothing
    shows that it begins at a multiple of its size, as buffers do."""
    fill = s.body[0] if len(s.body) == 1 and not s.buffers else None
    n = s.extent.const_or_none
    if n is None or not isinstance(fill, Store) or fill.accumulate:
        return False
    if fill.buffer not in code.kernel.buffers():
        return False
    m = code.memory[fill.buffer]
    flat, size = code.flat(m.buffer, fill.index), n * m.buffer.dtype.bytes
    if size not in MOVE_SIZES or not neighbours(flat, s.var) or mentions(fill.guard, s.var):
        return False
    if Facts({}).prove_divisible(flat.substitute({s.var: 0}), n) is not YES:
        return False
    b = code.b
    code.start_statement()

    def together() -> None:
        parts = []
        for i in range(n):
            with code.bind({s.var: i}):
                parts.append(code.to_storage(code.value(fill.value), m.buffer.dtype))
        with code.bind({s.var: 0}):
            at = code.pointer(m, fill.index)
        value = b.vector(parts)
        assert value.elem == storage_elem(m.buffer.dtype)
        b.effect(f"store {value.typed}, ptr {at.text}, align {size}")
        code.epochs[fill.buffer] = code.epochs.get(fill.buffer, 0) + 1

    code.branch(code.condition(fill.guard), together, lambda: None, (s,))
    return True


__all__ = ["stored_together"]
