"""Indices and divisors in; proofs that indices are in range and divisors are not 0, or run-time checks, out.

Kernels clamp their indices, so no access is out of bounds. A wrong index is reported nevertheless: the one
that is farthest out of range is found by a reduction, bound to a symbol, and compared with the extent.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.core.dim import ONE, ZERO, Dim, Truth, dmax, product, to_dim
from smelt.core.dtype import i64
from smelt.core.ir.graph import Attr, Ref
from smelt.importer.builder import GraphBuilder
from smelt.importer.call import Call
from smelt.importer.ranges import span

FAR_INDEX = 2**61
"""Indices beyond this distance compare as equal."""
MANY_KNOWN = 64
"""Most elements known as sizes that are compared one by one at compile time."""
FEW_INDICES = 2
"""Most elements that are checked one by one, without a reduction."""


def inside(c: Call, at: Ref, extent: Dim, what: str, wraps: bool = True) -> None:
    """Every element of `at` is a position on an axis of that extent, negative ones counted from its end
    (where they `wrap`). What cannot be proved is checked at run time. what: 'index of axis 0'."""
    if not _proved(c, at, extent, what, wraps):
        count = product(c.builder.type_of(at).shape)
        if count.is_const and count.const <= FEW_INDICES:
            flat = c.builder.reshape(at, (count,))
            for k in range(count.const):
                _compare(c, _bound(c.builder, flat, k), extent, what, wraps)
        else:
            every = tuple(range(c.builder.type_of(at).rank))
            _compare(c, _furthest(c, at, every, 0, wraps), extent, what, wraps)


def inside_each(c: Call, at: Ref, extents: Sequence[Dim], what: str) -> None:
    """Check tuples of indices along the last axis, one for each extent, as `inside`."""
    b = c.builder
    rank = b.type_of(at).rank
    columns = [b.slice_axis(at, rank - 1, k, k + 1) for k in range(len(extents))]
    if rank == 1:
        for k, x in enumerate(columns):
            inside(c, x, extents[k], f"{what} {k}")
        return
    open_ = [k for k, x in enumerate(columns) if not _proved(c, x, extents[k], f"{what} {k}", True)]
    for k in open_:
        _compare(c, _furthest(c, at, tuple(range(rank - 1)), k, True), extents[k], f"{what} {k}", True)


def divides(c: Call, divisor: Ref) -> None:
    """No element of an integer divisor is 0; elements of other types may be. What cannot be proved is
    checked at run time."""
    b, t = c.builder, c.builder.type_of(divisor)
    low, high = span(b, divisor)
    if not t.dtype.is_int or any(d == ZERO for d in t.shape):
        return
    if low is not None and c.engine.prove_le(ONE, low) is Truth.YES:
        return
    if high is not None and c.engine.prove_le(high, -ONE) is Truth.YES:
        return
    array, known = b.constant_of(divisor), _sizes(b, divisor)
    if array is not None:
        if not array.all():
            raise c.fail("the divisor is the constant 0")
    elif known and all(c.engine.prove_le(ZERO, d) is Truth.YES for d in known):
        for d in known:
            c.engine.at_most("a divisor that must not be 0", ONE, d)
    else:
        zero = b.cast(b.emit("equal", [divisor, b.scalar(0, divisor)]), i64)
        if t.rank:
            zero = b.emit("reduce_max", [zero], {"axes": tuple(range(t.rank)), "keepdims": False})
        _check(b, _bound(b, zero, 0, "zero_divisor"), ZERO, f"{_where(c)}an integer is divided by 0")


def nonzero(c: Call, x: Ref, what: str) -> None:
    """Check that a scalar is not 0: a constant at compile time, another one at run time."""
    b, array = c.builder, c.builder.constant_of(x)
    if array is None:
        zero = b.cast(b.emit("equal", [x, b.scalar(0, x)]), i64)
        _check(b, _bound(b, zero, 0, "zero", low=0), ZERO, f"{_where(c)}{what} is 0")
    elif not array.all():
        raise c.fail(f"{what} is 0")


def _sizes(b: GraphBuilder, ref: Ref) -> list[Dim]:
    """The elements of a ref when all are known as sizes, and few; else []."""
    found = b.known_of(ref)
    known = [] if found is None else [e for e in found.reshape(-1) if isinstance(e, Dim)]
    return known if found is not None and len(known) == found.size <= MANY_KNOWN else []


# ---------------------------------------------------------------- before the model runs


def _proved(c: Call, at: Ref, extent: Dim, what: str, wraps: bool) -> bool:
    """Whether nothing is left to check: all elements are known, or where they come from says enough."""
    b = c.builder
    if any(d == ZERO for d in b.type_of(at).shape):
        return True
    low, high = span(b, at)
    engine = c.engine
    least = -extent if wraps else ZERO
    if b.constant_of(at) is not None:
        assert low is not None and high is not None
        if extent.is_const and not (least.const <= low.const and high.const < extent.const):
            raise c.fail(
                f"{what}: the indices reach from {low} to {high}, "
                f"those of {extent} elements from {least} to {extent - 1}"
            )
        if _sure(c, at):
            engine.at_most(f"{what}, the number of elements that it needs", high + 1, extent)
            engine.at_most(f"{what}, the number of elements that it needs", -low, extent)
            return True
    if low is None or high is None:
        return False
    if engine.prove_le(least, low) is Truth.YES and engine.prove_le(high + 1, extent) is Truth.YES:
        return True
    known = _sizes(b, at)
    for e in known:
        engine.at_most(f"{what} after the last", e + 1, extent)
        engine.at_most(f"{what} before the first", least, e)
    return bool(known)


def _sure(c: Call, at: Ref) -> bool:
    """There are elements at all, so that each of them is really asked for."""
    return all((c.engine.bounds(d)[0] or 0) > 0 for d in c.builder.type_of(at).shape)


# ---------------------------------------------------------------- while the model runs


def _furthest(c: Call, at: Ref, axes: tuple[int, ...], index: int, wraps: bool) -> Dim:
    """The element that lies furthest out.

    # 0, -1, 1, -2, 2, -3, ..   -->  0, 1, 2, 3, 4, 5, ..             where negative ones wrap
    # 0, 1, 2, .., -2, -1       -->  0, 1, 2, .., 2*FAR-2, 2*FAR-1    where none may be
    The greatest of these is taken, and turned back.
    """
    b = c.builder
    x = b.cast(at, i64)
    x = b.emit("clip", [x, b.scalar(-FAR_INDEX, x), b.scalar(FAR_INDEX - 1, x)])
    negative = b.emit("less", [x, b.scalar(0, x)])
    if wraps:
        twice = b.emit("add", [x, x])
        order = b.emit("where", [negative, b.emit("bit_not", [twice]), twice])
    else:
        order = b.emit("where", [negative, b.emit("add", [x, b.scalar(2 * FAR_INDEX, x)]), x])
    top = b.emit("reduce_max", [order], {"axes": axes, "keepdims": False})
    if not all((c.engine.bounds(d)[0] or 0) > 0 for d in b.type_of(at).shape):
        top = b.emit("max", [top, b.scalar(0, top)])  # the greatest of none
    # turned back on the tensor: a formula of sizes would need parts that 64 bits do not hold
    if wraps:
        odd = b.emit("bit_and", [top, b.scalar(1, top)])
        half = b.emit("div", [top, b.scalar(2, top)])
        back = b.emit("bit_xor", [half, b.emit("neg", [odd])])
    else:
        beyond = b.emit("less", [b.scalar(FAR_INDEX - 1, top), top])
        back = b.emit("where", [beyond, b.emit("sub", [top, b.scalar(2 * FAR_INDEX, top)]), top])
    return _bound(b, back, index, low=-FAR_INDEX)


def _bound(b: GraphBuilder, ref: Ref, index: int, base: str = "index", low: int = -(2**63)) -> Dim:
    """A fresh symbol for an element, whatever it is."""
    name = b.engine.unique(base)
    d = b.engine.fresh(name, low)
    attrs: dict[str, Attr] = {
        "symbol": name, "index": index, "low": to_dim(low), "high": to_dim(2**63 - 1),
    }  # fmt: skip
    b.append("bind", (ref,), attrs, ())
    return d


def _compare(c: Call, at: Dim, extent: Dim, what: str, wraps: bool) -> None:
    where = _where(c)
    top = f"{where}{what} is {{got}}, expected at most {{want}}"
    floor = f"{where}{what} is {{want}}, expected at least {{got}}"
    _check(c.builder, at, c.engine.simplify(dmax(extent - 1, 0)), top)  # of no elements, 0 is the furthest
    _check(c.builder, -extent if wraps else ZERO, at, floor)


def _where(c: Call) -> str:
    """The node, before what is wrong with it."""
    return f"node '{c.engine.node}' ({c.engine.op}): " if c.engine.node else ""


def _check(b: GraphBuilder, left: Dim, right: Dim, text: str) -> None:
    attrs: dict[str, Attr] = {"left": left, "relation": "<=", "right": right, "text": text}
    b.append("check", (), attrs, ())


__all__ = ["divides", "inside", "inside_each", "nonzero"]
