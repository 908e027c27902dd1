"""Lines of C in, with indentation and fresh variable names, the text of a function body out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Writer:
    """The text of one function body."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 1
        self._taken: dict[str, int] = {}

    def line(self, text: str) -> None:
        """One line at the current depth."""
        self.lines.append("  " * self._depth + text)

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """`head {` ... `}` around what is written inside."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def mark(self) -> tuple[int, int, dict[str, int]]:
        """Where the text ends, to go `back` to."""
        return len(self.lines), self._depth, dict(self._taken)

    def back(self, mark: tuple[int, int, dict[str, int]]) -> None:
        """Forget what was written since."""
        count, self._depth, self._taken = mark
        del self.lines[count:]

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
