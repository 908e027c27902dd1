"""Text -> Dim: what str(Dim) prints, and the arithmetic that exporters write into dimension names.

expr    = term {('+' | '-') term}
term    = unary {('*' | '//' | '/' | '%') unary}         left to right; '/' floors, but see fraction
unary   = {'-' | '+'} power
power   = primary ['**' integer]
primary = integer | name | `quoted name` | function '(' expr {',' expr} ')' | '(' expr ')'
fraction: directly inside floor() and ceil(), '/' is exact until the function rounds it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from smelt.core.dim.budget import TooLarge
from smelt.core.dim.expr import ONE, Dim, ceildiv, dmax, dmin, sym, to_dim
from smelt.core.dim.present import DIM_FUNCTIONS

MAX_TEXT: Final = 16384  # characters
MAX_BRACKETS: Final = 60  # brackets; the parser recurses
MAX_TERMS: Final = 4096  # of a product, expanded
MAX_POWER: Final = 16

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<int>\d+)(?![\w.`])|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)|`(?P<quoted>(?:[^`\\]|\\.)*)`"
    r"|(?P<op>\*\*|//|[-+*/%(),]))",
    re.DOTALL,
)
_END: Final = re.compile(r"\s*\Z")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-f]{6})|(.))", re.DOTALL)
_PLAIN_ESCAPE: Final = {"n": "\n", "r": "\r", "t": "\t"}

Fraction: TypeAlias = tuple[Dim, Dim]  # numerator, denominator


def parse_dim(
    text: str, limit: int | None = MAX_TEXT, names: Mapping[str, Dim] = MappingProxyType({})
) -> Dim:
    """The Dim that `text` spells; ValueError when it spells none, divides by zero or has more than `limit`
    characters (None: no limit, for text of our own). names: those that stand for a Dim, not for a symbol."""
    parser = _Parser(text, limit, names)
    try:
        value = parser.expr(exact=False)
    except TooLarge as e:
        raise ValueError(f"a dimension expression is too large: {e.message}") from None
    if parser.kind != "end":
        raise parser.error("an operator")
    return value[0]


def dim_from_param(text: str) -> Dim:
    """An ONNX dim_param: arithmetic when it is arithmetic, else one symbol with that whole name.

    'batch-size' and 'n/a' (no spaces, name after name) are names, 'seq - 1' and 'h/2' are arithmetic; a
    negative number is a name, since no extent is negative. Raises ValueError for a blank text.
    """
    name = text.strip()
    if not name:
        raise ValueError("a dimension name is blank; give the dimension a symbol of its own")
    if _HYPHENATED.fullmatch(name):
        return sym(name)
    try:
        found = parse_dim(name)
    except ValueError:
        return sym(name)
    return sym(name) if (found.const_or_none or 0) < 0 else found


_HYPHENATED: Final = re.compile(r"[\w.]+(-[\w.]+|/[A-Za-z_][\w.]*)+")


class _Parser:
    """Recursive descent over one text; `kind` and `value` are the token under the reader's eye."""

    def __init__(self, text: str, limit: int | None, names: Mapping[str, Dim]) -> None:
        if limit is not None and len(text) > limit:
            raise ValueError(f"a dimension expression of {len(text)} characters; at most {limit}")
        self.text = text
        self.names = names
        self.at = 0
        self.depth = 0
        self.kind, self.value = "", ""
        self.advance()

    def advance(self) -> None:
        if _END.match(self.text, self.at):
            self.kind, self.value = "end", ""
            return
        match = _TOKEN.match(self.text, self.at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"cannot read dimension expression {self.text!r} at character {self.at}")
        self.kind, self.value, self.at = match.lastgroup, match[match.lastgroup], match.end()

    def error(self, wanted: str) -> ValueError:
        found = self.value or "the end"
        return ValueError(f"dimension expression {self.text!r}: found '{found}', wanted {wanted}")

    def take(self, *ops: str) -> str:
        """The operator under the eye if it is one of ops, stepping past it; else ''."""
        if self.kind != "op" or self.value not in ops:
            return ""
        op = self.value
        self.advance()
        return op

    def expr(self, exact: bool) -> Fraction:
        self.depth += 1
        if self.depth > MAX_BRACKETS:
            raise ValueError(f"a dimension expression nests more than {MAX_BRACKETS} deep")
        a = self.term(exact)
        while op := self.take("+", "-"):
            b = self.term(exact)
            x, y = _times(a[0], b[1]), _times(b[0], a[1])
            a = (x + y if op == "+" else x - y, _times(a[1], b[1]))
        self.depth -= 1
        return a

    def term(self, exact: bool) -> Fraction:
        a = self.unary(exact)
        while op := self.take("*", "//", "/", "%"):
            b = self.unary(exact)
            if op == "*":
                a = _times(a[0], b[0]), _times(a[1], b[1])
            elif op == "/" and exact:
                a = _times(a[0], b[1]), _times(a[1], b[0])
            elif op == "%":  # (p/q) % (r/s) == ((p*s) % (r*q)) / (q*s)
                a = _nonzero_mod(_times(a[0], b[1]), _times(b[0], a[1])), _times(a[1], b[1])
            else:
                a = _nonzero_div(_times(a[0], b[1]), _times(a[1], b[0])), ONE
        return a

    def unary(self, exact: bool) -> Fraction:
        negative = False
        while op := self.take("-", "+"):
            negative ^= op == "-"
        a = self.power(exact)
        return (-a[0], a[1]) if negative else a

    def power(self, exact: bool) -> Fraction:
        a = self.primary(exact)
        if not self.take("**"):
            return a
        if self.kind != "int" or len(self.value) > 3 or int(self.value) > MAX_POWER:
            raise self.error(f"an integer power up to {MAX_POWER}")
        top, bottom = ONE, ONE
        for _ in range(int(self.value)):
            top, bottom = _times(top, a[0]), _times(bottom, a[1])
        self.advance()
        return top, bottom

    def primary(self, exact: bool) -> Fraction:
        kind, value = self.kind, self.value
        if self.take("("):
            inside = self.expr(exact)
            if not self.take(")"):
                raise self.error("')'")
            return inside
        if kind not in ("int", "name", "quoted"):
            raise self.error("a number, a name or '('")
        self.advance()
        if kind == "int":
            return to_dim(int(value)), ONE
        if kind == "quoted":
            return sym(_ESCAPE.sub(_unescape, value)), ONE
        if value in DIM_FUNCTIONS and self.take("("):
            return self.call(value)
        found = self.names.get(value)
        return sym(value) if found is None else found, ONE

    def call(self, name: str) -> Fraction:
        exact = name in _ROUNDING
        args = [self.expr(exact)]
        while self.take(","):
            args.append(self.expr(exact))
        if not self.take(")"):
            raise self.error("')'")
        if exact:
            if len(args) != 1:
                raise ValueError(f"dimension expression {self.text!r}: {name}() takes 1 argument")
            return _ROUNDING[name](*args[0]), ONE
        if name in _PAIR:
            if len(args) != 2:
                raise ValueError(f"dimension expression {self.text!r}: {name}() takes 2 arguments")
            return _PAIR[name](args[0][0], args[1][0]), ONE
        return _MANY[name](*(a for a, _ in args)), ONE


def _times(a: Dim, b: Dim) -> Dim:
    if len(a.sorted_items()) * len(b.sorted_items()) > MAX_TERMS:
        raise ValueError(f"a dimension expression has more than {MAX_TERMS} terms")
    return a * b


def _nonzero_div(a: Dim, b: Dim) -> Dim:
    if b == 0:
        raise ValueError("a dimension expression divides by zero")
    return a // b


def _nonzero_mod(a: Dim, b: Dim) -> Dim:
    if b == 0:
        raise ValueError("a dimension expression divides by zero")
    return a % b


def _nonzero_ceil(a: Dim, b: Dim) -> Dim:
    if b == 0:
        raise ValueError("a dimension expression divides by zero")
    return ceildiv(a, b)


def _unescape(match: re.Match[str]) -> str:
    if match[1] is not None:
        return chr(int(match[1], 16))
    return _PLAIN_ESCAPE.get(match[2], match[2])


DimPair: TypeAlias = Callable[[Dim, Dim], Dim]
_ROUNDING: Final[Mapping[str, DimPair]] = {
    "floor": _nonzero_div,
    "ceil": _nonzero_ceil,
    "ceiling": _nonzero_ceil,
}
_MANY: Final[Mapping[str, Callable[..., Dim]]] = {
    "min": dmin,
    "Min": dmin,
    "max": dmax,
    "Max": dmax,
}
_PAIR: Final[Mapping[str, DimPair]] = {
    "mod": _nonzero_mod,
    "Mod": _nonzero_mod,
    "FloorDiv": _nonzero_div,
    "CeilDiv": _nonzero_ceil,
}
