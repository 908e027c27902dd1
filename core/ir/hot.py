"""A kernel with others that run in its place at some sizes, in; when each of them runs, and whether one may,
out.

Such a case is a kernel of the module with the same parameters, for dims that are numbers: the same loops,
scheduled for these. Which one runs is a matter of how many groups each has: all but one have none.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.core.dim import ONE, YES, ZERO, Dim, dmax, dmin, product, sym
from smelt.core.dtype import DType
from smelt.core.ir.analysis.scope import kernel_facts
from smelt.core.ir.graph import Module
from smelt.core.ir.in_place import copying_parts, in_place_inputs
from smelt.core.ir.kernel import Buffer, DimParam, HotCase, Kernel
from smelt.core.ir.rewrite import map_buffer_dims, substitute_body
from smelt.core.ir.workspace import workspace


def pinned(kernel: Kernel, values: Mapping[str, int]) -> Kernel:
    """The kernel with numbers in the place of these dims, which stay its parameters."""

    def fixed(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(map_buffer_dims(b, lambda d: d.substitute(values)) for b in buffers)

    dims = tuple(DimParam(p.name, n, n) if (n := values.get(p.name)) is not None else p for p in kernel.dims)
    return kernel.with_(
        dims=dims, inputs=fixed(kernel.inputs), outputs=fixed(kernel.outputs),
        scratch=fixed(kernel.scratch), body=substitute_body(kernel.body, values),
    )  # fmt: skip


def shares(kernel: Kernel) -> tuple[tuple[Dim, ...], Dim]:
    """A factor for the groups of each case, and one for those of the kernel itself, in its dims: 1 where it
    runs, else 0."""
    away = [_away(case) for case in kernel.hot]
    found = []
    for n, case in enumerate(kernel.hot):
        before = (away[k] for k in range(n) if not _apart(kernel.hot[k], case))
        found.append(product((1 - away[n], *before)))
    return tuple(found), dmin(ONE, *away)


def _away(case: HotCase) -> Dim:
    """0 where the dims have the values of the case, else 1."""
    ends = (d for name, n in case.dims for d in (sym(name) - n, n - sym(name)))
    return dmin(ONE, dmax(ZERO, *ends))


def _apart(a: HotCase, b: HotCase) -> bool:
    """Whether no sizes are those of both."""
    values = dict(a.dims)
    return any(values.get(name, n) != n for name, n in b.dims)


def admits(p: DimParam, n: int) -> bool:
    """Whether the dim may have this value."""
    return p.low <= n and (p.high is None or n <= p.high) and n % p.divisor == 0


def misfit(kernel: Kernel, case: Kernel, values: Mapping[str, int]) -> str:
    """Why `case` may not run in the place of `kernel` where the dims have these values; '' where it may: the
    plan is made for the kernel, and weights and memory are for it as they are."""
    outside = pinned(kernel, values)
    if [b.layout for b in outside.inputs] != [b.layout for b in case.inputs]:
        return "it wants weights in another layout"
    if outside.dims != case.dims or _parameters(outside) != _parameters(case):
        return "its parameters are others"
    if held_in(kernel, case, values) is None:
        return "it wants memory that the other does not"
    over, own = in_place_inputs(kernel), in_place_inputs(case)
    if any(not {*inputs} <= {*own.get(o, ())} for o, inputs in over.items()):
        return "it may not overwrite its input"
    if not {*copying_parts(kernel).values()} <= {*copying_parts(case).values()}:
        return "it does not copy by a statement of its own"
    return ""


def _parameters(kernel: Kernel) -> list[tuple[str, DType, Dim]]:
    """Names, types and elements: a schedule may see the same ones as another shape."""
    return [(b.name, b.dtype, product(b.shape)) for b in (*kernel.inputs, *kernel.outputs)]


def held_in(kernel: Kernel, case: Kernel, values: Mapping[str, int]) -> tuple[int, ...] | None:
    """For each buffer of the workspace of a case, the number of the one of the kernel's that it lies in, one
    for each. None where some would not fit."""
    facts = kernel_facts(case)
    room = [_bytes(b).substitute(values) for b in workspace(kernel)]
    found: list[int] = []
    for b in workspace(case):
        first = found[-1] + 1 if found else 0
        fits = (n for n in range(first, len(room)) if facts.prove_le(_bytes(b), room[n]) is YES)
        n = next(fits, None)
        if n is None:
            return None
        found.append(n)
    return tuple(found)


def _bytes(b: Buffer) -> Dim:
    return product(b.shape) * b.dtype.bytes


def hot_fault(module: Module, kernel: Kernel) -> str:
    """What is wrong with the cases of a kernel; '' for nothing."""
    dims = {p.name: p for p in kernel.dims}
    for case in kernel.hot:
        at = f"the case '{case.kernel}'"
        other = module.kernels.get(case.kernel)
        if other is None or other.hot:
            return f"{at} is no kernel" if other is None else f"{at} has cases of its own"
        if not case.dims or not all(name in dims and admits(dims[name], n) for name, n in case.dims):
            return f"{at} is for sizes that the kernel does not have"
        why = misfit(kernel, other, dict(case.dims))
        if why:
            return f"{at} does not fit: {why}"
    return ""


__all__ = ["admits", "held_in", "hot_fault", "misfit", "pinned", "shares"]
