"""Formulas that are too long to be read -> short texts, and the parts that have names in them.

    64*max(12*n*((h + 15)//16)*((w + 15)//16) + n, 24*n*((h + 15)//16)*((w + 15)//16), ...)

becomes `64*max(12*p1 + n, 24*p1, p2)`, where p1 and p2 stand for texts of their own. Putting those in again
(`named_dims`, `parse_dim`) gives the Dim itself, so every text has the value of its formula for all sizes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from smelt.core.dim.atoms import Atom, FloorDiv, Max, Min, Mod, Mono
from smelt.core.dim.expr import Dim
from smelt.core.dim.parse import parse_dim
from smelt.core.dim.present import ATOM_TEXT

LONGEST: Final = 240
"""Characters of a text that a person reads at a glance, two lines; a longer one is written with parts."""
INNER: Final = 100
"""Characters of an operand in such a text; a longer one has a name."""
REPEATED: Final = 12
"""Characters of what occurs more than once; what is longer has a name."""

_BARE: Final = re.compile(r"\w+")
_NAME: Final = re.compile(r"[A-Za-z_][\w.]*")
_Join: TypeAlias = Callable[[Sequence[str]], str]


class Parts:
    """Spells formulas of one manifest; its rows grow with each that is long."""

    def __init__(self, dims: Iterable[Dim], taken: Iterable[str] = ()) -> None:
        """dims: all formulas that will be asked for. taken: names that no part may have, besides the symbols
        of these."""
        self._texts: dict[str, str] = {}  # of a part -> its name
        self._uses: Counter[Atom | Mono] = Counter()
        found = list(dict.fromkeys(dims))
        seen: set[object] = set()
        for d in found:
            if len(str(d)) > LONGEST:
                self._count(d, seen)
        names = {*taken, *(s for d in found for s in d.symbols)}
        prefix = "p"
        while any(re.fullmatch(rf"{prefix}\d+", s) for s in names):
            prefix += "_"
        self._prefix = prefix

    @property
    def rows(self) -> list[tuple[str, str]]:
        """(name, text) of each part so far; the text names only parts before it."""
        return [(name, text) for text, name in self._texts.items()]

    def text(self, d: Dim) -> str:
        """The Dim as text: as str(d) gives it, or with names in it where that is longer than LONGEST."""
        plain = str(d)
        return plain if len(plain) <= LONGEST else self._sum(d)

    # -- what occurs more than once

    def _count(self, d: Dim, seen: set[object]) -> None:
        if d in seen:
            return
        seen.add(d)
        for _, mono in d.terms():
            if len(mono) > 1:
                self._uses[mono] += 1
                if mono in seen:
                    continue
                seen.add(mono)
            for atom, _ in mono:
                self._uses[atom] += 1
                if atom not in seen:
                    seen.add(atom)
                    for inside in _operands(atom):
                        self._count(inside, seen)

    # -- texts

    def _name(self, text: str) -> str:
        return self._texts.setdefault(text, f"{self._prefix}{len(self._texts) + 1}")

    def _shared(self, what: Atom | Mono, text: str) -> str:
        """The name of something with a text where it occurs again or is long, else the text."""
        if len(text) <= (REPEATED if self._uses[what] > 1 else INNER):
            return text
        return self._name(text[1:-1] if isinstance(what, FloorDiv | Mod) else text)

    def _sum(self, d: Dim) -> str:
        pieces = [("-" if k < 0 else "+") + self._term(abs(k), mono) for k, mono in d.terms()]
        return self._joined(pieces, _signed) if pieces else "0"

    def _term(self, k: int, mono: Mono) -> str:
        if not mono:
            return str(k)
        factors = [self._atom(atom) for atom, power in mono for _ in range(power)]
        text = self._joined(factors, "*".join)
        text = self._shared(mono, text) if len(mono) > 1 else text
        return text if k == 1 else f"{k}*{text}"

    def _atom(self, atom: Atom) -> str:
        """A factor: a name, a call, or an expression in brackets."""
        match atom:
            case FloorDiv():
                text = f"({self._operand(atom.a)}//{self._operand(atom.b)})"
            case Mod():
                text = f"({self._operand(atom.a)} % {self._operand(atom.b)})"
            case Min():
                text = self._joined([self._inner(a) for a in atom.args], _call("min"))
            case Max():
                text = self._joined([self._inner(a) for a in atom.args], _call("max"))
            case _:
                return ATOM_TEXT[atom.__class__](atom)
        return self._shared(atom, text)

    def _operand(self, d: Dim) -> str:
        text = self._inner(d)
        return text if _BARE.fullmatch(text) else f"({text})"

    def _inner(self, d: Dim) -> str:
        text = self._sum(d)
        return self._name(text) if len(text) > INNER else text

    def _joined(self, pieces: Sequence[str], join: _Join) -> str:
        """The pieces as one text, neighbours as parts of their own where it is longer than LONGEST."""
        while len(text := join(pieces)) > LONGEST and len(pieces) > 1:
            groups: list[list[str]] = [[]]
            for piece in pieces:
                if groups[-1] and len(join([*groups[-1], piece])) > LONGEST:
                    groups.append([])
                groups[-1].append(piece)
            if len(groups) == len(pieces):
                pieces = [self._grouped([piece], join) for piece in pieces]
            else:
                pieces = [g[0] if len(g) == 1 else self._grouped(g, join) for g in groups]
        return text

    def _grouped(self, pieces: Sequence[str], join: _Join) -> str:
        """A piece that stands for all of these."""
        plus = "+" if join is _signed else ""
        return plus + self._name(join(pieces))


def named_dims(rows: Iterable[Sequence[str]]) -> dict[str, Dim]:
    """Name -> Dim of the parts that rows of Parts spell. Raises ValueError where one spells none, and for a
    name that comes twice."""
    found: dict[str, Dim] = {}
    for name, text in rows:
        if name in found:
            raise _twice(name)
        found[name] = parse_dim(text, names=found)
    return found


def asked_parts(rows: Sequence[Sequence[str]], texts: Iterable[str]) -> list[Sequence[str]]:
    """Of rows of Parts those that these texts need. Raises ValueError for a name that comes twice.

    A manifest's reader takes the sizes of a few ports: to parse all 66 parts of a detector's takes 40 ms,
    a seventh of its opening at a device."""
    wanted = {word for text in texts for word in _NAME.findall(text)}
    found: list[Sequence[str]] = []
    names = set()
    for name, text in reversed(rows):
        if name in names:
            raise _twice(name)
        names.add(name)
        if name in wanted:
            wanted.update(_NAME.findall(text))
            found.append((name, text))
    return found[::-1]


def _twice(name: str) -> ValueError:
    return ValueError(f"two parts of formulas are called '{name:.40}'")


def _operands(atom: Atom) -> tuple[Dim, ...]:
    match atom:
        case FloorDiv() | Mod():
            return atom.a, atom.b
        case Min() | Max():
            return atom.args
    return ()


def _signed(pieces: Sequence[str]) -> str:
    """+a, -b as a - b."""
    text = " ".join(f"{p[0]} {p[1:]}" for p in pieces)
    return text[2:] if text[0] == "+" else f"-{text[2:]}"


def _call(word: str) -> _Join:
    return lambda args: f"{word}({', '.join(args)})"
