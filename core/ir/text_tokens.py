"""IR text in, tokens and what is made of a few of them out; errors with their places."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from smelt.core.diag import SmeltError
from smelt.core.dim import parse_dim
from smelt.core.ir.graph import Ref

T = TypeVar("T")

_TOKEN: Final = re.compile(
    r"""[ \t\r\n]+ | \#[^\n]*                                # skipped
      | (?P<t> [A-Za-z_][A-Za-z0-9_.]*
      | [%@](?:[A-Za-z0-9_./$-]+|"(?:[^"\\]|\\.)*")
      | "(?:[^"\\]|\\.)*"
      | `(?:[^`\\]|\\.)*`
      | \d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)?(?![\w])
      | -> | \.\. | <= | // | \*\* | [-+*/%(){}\[\]<>=,:;] )""",
    re.VERBOSE,
)

LONGEST_INTEGER: Final = 1000
"""Of an integer; Python reads no more than some thousand."""


class Tokens:
    """The tokens of a text, and a position among them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.starts: list[int] = []
        at = 0
        match = _TOKEN.match
        while at < len(text):
            m = match(text, at)
            if m is None:
                raise error_at(text, at, f"cannot read {text[at : at + 12]!r}")
            if m.lastgroup:
                self.tokens.append(m["t"])
                self.starts.append(at)
            at = m.end()
        self.starts.append(len(text))
        self.tokens += ["", "", ""]
        self.starts += [len(text)] * 3
        self.at = 0

    @property
    def token(self) -> str:
        return self.tokens[self.at]

    def fail(self, wanted: str) -> SmeltError:
        found = f"'{self.token}'" if self.token else "the end"
        return error_at(self.text, self.starts[self.at], f"found {found}, wanted {wanted}")

    def take(self, token: str) -> bool:
        """Steps past the token if it is the next one."""
        if self.tokens[self.at] != token:
            return False
        self.at += 1
        return True

    def expect(self, token: str) -> None:
        if self.tokens[self.at] != token:
            raise self.fail(f"'{token}'")
        self.at += 1

    def next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def one_of(self, words: frozenset[str] | Mapping[str, Any], wanted: str) -> str:
        if self.token not in words:
            raise self.fail(wanted)
        return self.next()

    def listed(self, close: str, item: Callable[[], T]) -> tuple[T, ...]:
        """item {',' item} [','] close, or close alone."""
        found: list[T] = []
        while not self.take(close):
            found.append(item())
            if not self.take(","):
                self.expect(close)
                break
        return tuple(found)

    def string(self) -> str:
        if not self.token.startswith('"'):
            raise self.fail("a string")
        return self._unquote(self.next())

    def _unquote(self, literal: str) -> str:
        try:
            return str(json.loads(literal, strict=False))
        except ValueError:
            self.at -= 1
            raise self.fail("a string with valid escapes") from None

    def name(self) -> str:
        """A plain or backquoted name."""
        t = self.token
        if t.startswith("`"):
            (found,) = parse_dim(self.next()).symbols
            return found
        if not (t[:1].isalpha() or t[:1] == "_"):
            raise self.fail("a name")
        return self.next()

    def word(self) -> str:
        """A plain identifier: an op, an attribute, a keyword."""
        if not (self.token[:1].isalpha() or self.token[:1] == "_"):
            raise self.fail("a word")
        return self.next()

    def ref(self, sigils: str = "%@") -> Ref:
        t = self.token
        if t[:1] not in ("%", "@") or t[0] not in sigils or len(t) < 2:
            raise self.fail(" or ".join(f"a {s}name" for s in sigils))
        self.at += 1
        return t if t[1] != '"' else t[0] + self._unquote(t[1:])

    def integer(self) -> int:
        sign = -1 if self.take("-") else 1
        if not self.token.isdigit():
            raise self.fail("an integer")
        if len(self.token) > LONGEST_INTEGER:
            raise self.fail(f"at most {LONGEST_INTEGER} digits")
        return sign * int(self.next())

    def optional_string(self, word: str) -> str:
        """The string after a word, or '' when the word is not there."""
        return self.string() if self.take(word) else ""


def error_at(text: str, at: int, message: str) -> SmeltError:
    """The error of a text at an offset: kind invalid, with line and column counted from 1."""
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return SmeltError(f"line {line}, column {column}: {message}", kind="invalid")
