"""An address and a condition in; the address where that holds, else one of zeros in memory, out."""

from __future__ import annotations

from smelt.targets.llvm.builder import FunctionBuilder, Value

ZERO_PAGE = 65536  # bytes; in .bss, so it costs nothing in the file
LEAST_PAGE = 4096  # bytes of a page of memory, or of some of its equal parts


def or_zeros(b: FunctionBuilder, inside: Value, pointer: Value, reach: int) -> Value:
    """inside ? pointer : zeros, of which `reach` bytes may be read. Their pages are touched once: LLVM may
    make a masked load of the two, which reads nothing where the mask is false, but takes microseconds each
    time where the page is not there yet (Zen 4)."""
    b.declared.setdefault(
        "smelt.zeros",
        f"@smelt.zeros = internal global [{ZERO_PAGE} x i8] zeroinitializer, align 64",
    )
    zeros = Value("@smelt.zeros", "ptr", 0, b.root)
    for page in range(0, reach, LEAST_PAGE):
        key = f"touched {page}"
        if key not in b.root.cache:
            b.at(b.root, f"load volatile i8, ptr {_zero_at(page)}", "i8", 0, key)
    rhs = f"select {inside.typed}, {pointer.typed}, {zeros.typed}"
    return b.pure(rhs, "ptr", 0, inside, pointer)


def _zero_at(offset: int) -> str:
    return f"getelementptr (i8, ptr @smelt.zeros, i64 {offset})" if offset else "@smelt.zeros"
