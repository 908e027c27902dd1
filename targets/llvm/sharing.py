"""Kernels in; those that differ only in numbers that they compute with as one, which is given these, out."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from smelt.core.ir.kernel import Block, Call, Const, Expr, Kernel, Stmt, Store, walk, walk_expr
from smelt.core.ir.rewrite import with_body

ADDING = ("add", "sub", "gt", "ge", "lt", "le", "eq", "ne", "select", "cast")
SCALING = ("mul", "div")
"""Functions that take as long whatever number they are given, but for some (`_ordinary`)."""


@dataclass(frozen=True, slots=True)
class Given(Const):
    """A literal of which each kernel has a value of its own. number: which of its kernel's."""

    number: int


@dataclass(frozen=True, slots=True)
class SharedCode:
    """Kernels of equal code. kernel: the first one, with Given for literals that others may have otherwise.
    names, values: of each kernel, its name and what it has for these."""

    kernel: Kernel
    names: tuple[str, ...]
    values: tuple[tuple[Const, ...], ...]

    def texts(self, number: int) -> tuple[str, ...]:
        """What each kernel has for it, to compare."""
        return tuple(repr(own[number]) for own in self.values)


def share_code(kernels: Iterable[Kernel]) -> list[SharedCode]:
    """The kernels in groups, in the order of the first of each."""
    roughly: dict[Hashable, list[Kernel]] = {}
    for k in kernels:
        roughly.setdefault((k.schedule, k.dims, k.inputs, k.outputs, len(k.body)), []).append(k)
    return list(chain.from_iterable(map(_groups, roughly.values())))


def _groups(kernels: list[Kernel]) -> Iterator[SharedCode]:
    if len(kernels) == 1:
        yield SharedCode(kernels[0], (kernels[0].name,), ((),))
        return
    found: dict[Hashable, list[tuple[Kernel, _Opened]]] = {}
    for k in kernels:
        made = _Opened(k)
        found.setdefault((made.kernel.with_(name="", origin="", hot=()), *made.kept), []).append((k, made))
    for own in found.values():
        first, made = own[0]
        names = tuple(k.name for k, _ in own)
        if len(own) == 1:
            yield SharedCode(first, names, ((),))
        else:
            yield SharedCode(made.kernel, names, tuple(tuple(m.values) for _, m in own))


class _Opened:
    """A kernel with Given for literals. values: what it has for them. kept: the text of its other literals,
    of which 0.0 and -0.0 are different ones."""

    def __init__(self, kernel: Kernel) -> None:
        self.values: list[Const] = []
        self.kept: list[str] = []
        self._done: dict[int, tuple[Expr, Expr]] = {}  # with each its key's owner, which has to live
        self.kernel = kernel.with_(body=self._body(kernel.body))

    def _body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(self._statement(s) for s in body)

    def _statement(self, s: Stmt) -> Stmt:
        if isinstance(s, Store):
            return Store(s.buffer, s.index, self._expr(s.value), s.accumulate, s.guard)
        if isinstance(s, Block):
            for _, value, *_ in s.let:
                self._keep(value)
            if s.by:  # an instruction is found by what its literals are
                for inner in walk(s.body):
                    if isinstance(inner, Store):
                        self._keep(inner.value)
                    elif isinstance(inner, Block):
                        for _, value, *_ in inner.let:
                            self._keep(value)
                return s
        return with_body(s, self._body(s.body))

    def _keep(self, e: Expr) -> None:
        self.kept += [repr(x) for x in walk_expr(e) if isinstance(x, Const)]

    def _expr(self, e: Expr) -> Expr:
        """The expression; what is shared in it stays so."""
        if not isinstance(e, Call):
            self._keep(e)
            return e
        known = self._done.get(id(e))
        if known is None:
            args = tuple(self._argument(e, a) for a in e.args)
            known = self._done[id(e)] = e, Call(e.fn, args, e.dtype)
        return known[1]

    def _argument(self, e: Call, a: Expr) -> Expr:
        if not isinstance(a, Const) or not _ordinary(e.fn, a):
            return self._expr(a)
        self.values.append(a)
        return Given(0, a.dtype, len(self.values) - 1)


def _ordinary(fn: str, c: Const) -> bool:
    """Whether code for the function and this number is as for others: sums with 0, and products and quotients
    by powers of two are shorter, and whole products by any number."""
    if not math.isfinite(c.value) or c.value == 0 or c.dtype.category == "bool":
        return False
    return fn in ADDING or (fn in SCALING and c.dtype.is_float and abs(math.frexp(c.value)[0]) != 0.5)
