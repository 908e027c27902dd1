"""Lines of C with indentation, fresh variable names, and the values that are already in variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from smelt.core.ir.kernel import Expr

_NOT_C = re.compile(r"[^A-Za-z0-9_]")


def identifier(name: str) -> str:
    """Any name as letters that C takes inside an identifier; '.' stands out."""
    return _NOT_C.sub("_", name.replace(".", "__"))


class Writer:
    """The text of one function body.

    A memo keeps the C variables of expressions, by identity: what one was asked for twice is computed
    once. Its frames follow the braces, so that no variable is used outside of its block.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 1
        self._taken: dict[str, int] = {}
        self._memo: list[dict[int, tuple[Expr, str]]] = [{}]

    def line(self, text: str) -> None:
        """One line at the current depth."""
        self.lines.append("  " * self._depth + text)

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """`head {` ... `}` around what is written inside."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        with self.frame():
            yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def frame(self) -> Iterator[None]:
        """What is remembered inside is forgotten afterwards."""
        self._memo.append({})
        yield
        self._memo.pop()

    def fresh(self, base: str) -> str:
        """A variable name that the function does not have yet."""
        n = self._taken.get(base, 0)
        self._taken[base] = n + 1
        return base if n == 0 else self.fresh(f"{base}_{n}")

    def temporary(self, kind: str, text: str) -> str:
        """A new constant of the C type with this value."""
        name = self.fresh("t")
        self.line(f"const {kind} {name} = {text};")
        return name

    def remember(self, e: Expr, name: str) -> None:
        """The value of e is in this variable, in the current block."""
        self._memo[-1][id(e)] = (e, name)

    def remembered(self, e: Expr) -> str | None:
        """The variable that holds e."""
        for frame in reversed(self._memo):
            found = frame.get(id(e))
            if found is not None:
                return found[1]
        return None
