"""A regular expression in RE2's syntax in; the tables of an automaton over the bytes of UTF-8 out.

What is no regular language (back references, looking around) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from smelt.core.dtype import Array

TOP = 0x10FFFF
MOST_STATES = 4096
MOST_REPEATS = 1000
"""As RE2."""

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"


class Refused(Exception):
    """The pattern is wrong, or asks for more than an automaton can do; the text says which part."""


@dataclass(frozen=True)
class One:
    """One code point of these ranges."""

    ranges: Ranges


@dataclass(frozen=True)
class Edge:
    """A place between bytes: 'begin' or 'end' of the string, a 'border' of words, or 'within' (no border)."""

    kind: str


@dataclass(frozen=True)
class Row:
    """One after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Either:
    """Any of them."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """low to high times; high None: any number."""

    item: Node
    low: int
    high: int | None


Node: TypeAlias = "One | Edge | Row | Either | Repeat"

# ---------------------------------------------------------------- sets of code points

DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Ranges = ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20))
CLASSES: dict[str, Ranges] = {"d": DIGIT, "w": WORD, "s": SPACE}
POSIX: dict[str, Ranges] = {
    "alnum": ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)),
    "alpha": ((0x41, 0x5A), (0x61, 0x7A)),
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "digit": DIGIT,
    "lower": ((0x61, 0x7A),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "upper": ((0x41, 0x5A),),
    "word": WORD,
    "xdigit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
}
CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}
EDGES = {"A": "begin", "z": "end", "b": "border", "B": "within"}
CASED = 0x0590
"""Letters with two cases are looked for below (Latin, Greek, Cyrillic, Armenian)."""


def merged(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """The same set, in order and without overlaps."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def without(ranges: Ranges) -> Ranges:
    """All other code points."""
    found, at = [], 0
    for low, high in merged(ranges):
        if at < low:
            found.append((at, low - 1))
        at = high + 1
    return (*found, (at, TOP)) if at <= TOP else tuple(found)


def any_case(ranges: Ranges) -> Ranges:
    """The set with the other case of each letter."""
    more = list(ranges)
    for low, high in ranges:
        for c in range(low, min(high, CASED) + 1):
            more += [(ord(s), ord(s)) for s in (chr(c).lower(), chr(c).upper()) if len(s) == 1]
    return merged(more)


def byte_rows(low: int, high: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """The UTF-8 of a range of code points: rows of byte ranges, each for all its combinations."""
    for cut in (0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF):
        if low <= cut < high:
            yield from byte_rows(low, cut)
            yield from byte_rows(cut + 1, high)
            return
    if 0xD800 <= low <= 0xDFFF:  # surrogates are no characters
        return
    for bits in (6, 12, 18):
        mask = (1 << bits) - 1
        if high <= 0x7F or low & ~mask == high & ~mask:
            continue
        if low & mask:
            yield from byte_rows(low, low | mask)
            yield from byte_rows((low | mask) + 1, high)
            return
        if high & mask != mask:
            yield from byte_rows(low, (high & ~mask) - 1)
            yield from byte_rows(high & ~mask, high)
            return
    yield tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))


# ---------------------------------------------------------------- parser


class _Parser:
    """One pass over the pattern."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.fold = self.dots = False

    def whole(self) -> Node:
        node = self.either()
        if self.at < len(self.text):
            raise Refused(f"unexpected ')' at {self.at}")
        return node

    def peek(self, n: int = 1) -> str:
        return self.text[self.at : self.at + n]

    def take(self) -> str:
        if self.at >= len(self.text):
            raise Refused("it ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def either(self) -> Node:
        items = [self.row()]
        while self.peek() == "|":
            self.at += 1
            items.append(self.row())
        return items[0] if len(items) == 1 else Either(tuple(items))

    def row(self) -> Node:
        items: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            items.append(self.repeated(self.atom()))
        return Row(tuple(items))

    def repeated(self, node: Node) -> Node:
        while True:
            mark = self.peek()
            if mark in ("*", "+", "?"):
                self.at += 1
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[mark]
            else:
                counts = self.counts()
                if counts is None:
                    return node
                low, high = counts
            if self.peek() == "?":  # lazy: the language is the same
                self.at += 1
            elif self.peek() == "+":
                raise Refused("a possessive quantifier")
            node = Repeat(node, low, high)

    def counts(self) -> tuple[int, int | None] | None:
        """{n}, {n,} or {n,m}; anything else in braces stands for itself."""
        if self.peek() != "{":
            return None
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if end < 0 or not low.isdigit() or (high and not high.isdigit()):
            return None
        self.at = end + 1
        top = int(high) if high else (None if comma else int(low))
        if int(low) > MOST_REPEATS or (top is not None and not int(low) <= top <= MOST_REPEATS):
            raise Refused(f"a repetition of {low}{comma}{high}")
        return int(low), top

    def atom(self) -> Node:
        c = self.take()
        if c == "(":
            return self.group()
        if c == "[":
            return self.one(self.set_())
        if c == ".":
            return One(((0, TOP),) if self.dots else without(((10, 10),)))
        if c == "^":
            return Edge("begin")
        if c == "$":
            return Edge("end")
        if c == "\\":
            return self.escape()
        if c in "*+?":
            raise Refused(f"'{c}' has nothing to repeat")
        return self.one(((ord(c), ord(c)),))

    def one(self, ranges: Ranges) -> One:
        return One(any_case(ranges) if self.fold else merged(ranges))

    def group(self) -> Node:
        saved = self.fold, self.dots
        if self.peek() == "?":
            self.at += 1
            if self.flags():  # (?i) holds until the group around ends
                return Row(())
        node = self.either()
        if self.peek() != ")":
            raise Refused("a '(' without its ')'")
        self.at += 1
        self.fold, self.dots = saved
        return node

    def flags(self) -> bool:
        """What follows '(?': whether that is all of the group."""
        if self.peek() == "<" or self.peek(2) == "P<":
            end = self.text.find(">", self.at)
            name = self.text[self.at : end].lstrip("P").lstrip("<")
            if end < 0 or not name.isidentifier():
                raise Refused(f"'(?{self.peek(3)}'")
            self.at = end + 1
            return False
        value = True
        while (c := self.take()) not in ":)":
            if c == "-":
                value = False
            elif c == "i":
                self.fold = value
            elif c == "s":
                self.dots = value
            elif c != "U" and (c != "m" or value):  # U swaps greedy and lazy, which is the same language
                raise Refused(f"'(?{c}'")
        return c == ")"

    def escape(self) -> Node:
        c = self.peek()
        if c in EDGES:
            self.at += 1
            return Edge(EDGES[c])
        return self.one(self.escaped())

    def escaped(self) -> Ranges:
        """The set that follows a backslash."""
        c = self.take()
        if c.lower() in CLASSES:
            found = CLASSES[c.lower()]
            return found if c.islower() else without(found)
        if c in CONTROLS:
            return ((CONTROLS[c], CONTROLS[c]),)
        if c == "x":
            return (self.hexadecimal(),)
        if c in "pP":
            raise Refused(f"the class '\\{c}{self.peek()}'")
        if c.isdigit():
            digits = c
            while len(digits) < 3 and self.peek() and self.peek() in "01234567":
                digits += self.take()
            if c not in "01234567" or (c != "0" and len(digits) < 3):
                raise Refused(f"the back reference '\\{c}'")
            return ((int(digits, 8), int(digits, 8)),)
        if c.isalnum() and c.isascii():
            raise Refused(f"'\\{c}'")
        return ((ord(c), ord(c)),)

    def hexadecimal(self) -> tuple[int, int]:
        digits = self.text[self.at : self.at + 2]
        after = self.at + 2
        if self.peek() == "{":
            after = self.text.find("}", self.at) + 1
            digits = self.text[self.at + 1 : after - 1]
        try:
            value = int(digits, 16)
        except ValueError:
            raise Refused(f"'\\x{digits}'") from None
        if not 0 <= value <= TOP:
            raise Refused(f"'\\x{{{digits}}}'")
        self.at = after
        return value, value

    def set_(self) -> Ranges:
        """What follows '['."""
        found: list[tuple[int, int]] = []
        negated = self.peek() == "^"
        self.at += negated
        first = True
        while first or self.peek() != "]":
            first = False
            low = self.member()
            if len(low) != 1 or low[0][0] != low[0][1] or self.peek() != "-" or self.peek(2) in ("-]", "-"):
                found += low
                continue
            self.at += 1
            high = self.member()
            if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                raise Refused("a range in '[...]' that is none")
            found.append((low[0][0], high[0][0]))
        self.at += 1
        own = any_case(merged(found)) if self.fold else merged(found)
        return without(own) if negated else own

    def member(self) -> Ranges:
        if self.peek(2) == "[:":
            end = self.text.find(":]", self.at)
            name = self.text[self.at + 2 : max(end, 0)]
            if name.lstrip("^") not in POSIX:
                raise Refused(f"the class '[:{name}:]'")
            self.at = end + 2
            ranges = POSIX[name.lstrip("^")]
            return without(ranges) if name[0] == "^" else ranges
        c = self.take()
        return self.escaped() if c == "\\" else ((ord(c), ord(c)),)


# ---------------------------------------------------------------- automata


class _Machine:
    """A non-deterministic automaton over bytes: steps by byte ranges, and steps that take none."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, int, int]]] = []
        self.free: list[list[tuple[int, str]]] = []

    def state(self) -> int:
        if len(self.steps) > 16 * MOST_STATES:
            raise Refused("more states than an automaton may have here")
        self.steps.append([])
        self.free.append([])
        return len(self.steps) - 1

    def add(self, node: Node, start: int, end: int) -> None:
        """Paths from start to end that spell what the node stands for."""
        if isinstance(node, One):
            for low, high in node.ranges:
                for row in byte_rows(low, high):
                    at = start
                    for k, (a, b) in enumerate(row):
                        to = end if k == len(row) - 1 else self.state()
                        self.steps[at].append((a, b, to))
                        at = to
        elif isinstance(node, Edge):
            self.free[start].append((end, node.kind))
        elif isinstance(node, Row):
            at = start
            for item in node.items:
                to = self.state()
                self.add(item, at, to)
                at = to
            self.free[at].append((end, ""))
        elif isinstance(node, Either):
            for item in node.items:
                self.add(item, start, end)
        else:
            self.repeat(node, start, end)

    def repeat(self, node: Repeat, start: int, end: int) -> None:
        at = start
        for _ in range(node.low):
            to = self.state()
            self.add(node.item, at, to)
            at = to
        if node.high is None:
            loop = self.state()
            self.free[at].append((loop, ""))
            self.add(node.item, loop, loop)
            at = loop
        for _ in range((node.high or node.low) - node.low):
            self.free[at].append((end, ""))
            to = self.state()
            self.add(node.item, at, to)
            at = to
        self.free[at].append((end, ""))

    def closed(self, states: frozenset[int], kinds: tuple[str, ...]) -> frozenset[int]:
        """The states with all that free steps of these kinds reach."""
        found, rest = set(states), list(states)
        while rest:
            for to, kind in self.free[rest.pop()]:
                if kind in kinds and to not in found:
                    found.add(to)
                    rest.append(to)
        return frozenset(found)


@dataclass(frozen=True)
class Automaton:
    """group: u8[256], the class of each byte. table: [states, classes], where each state goes. accept:
    bool[states]. The first state is state 0."""

    group: Array
    table: Array
    accept: Array


def _run(node: Node) -> Node:
    """The pattern without borders where they say nothing of what it finds first in a text: around words of
    any length from some least one on, which end at borders anyway."""
    items = _flat(node)
    border, inner = Edge("border"), items[1:-1]
    counts = [(i.low, i.high) if isinstance(i, Repeat) else (1, 1) for i in inner]
    letters = [i.item if isinstance(i, Repeat) else i for i in inner]
    whole = items[:1] == [border] == items[-1:] and all(_flat(i) == [One(WORD)] for i in letters)
    if whole and sum(low for low, _ in counts) > 0 and any(high is None for _, high in counts):
        return Row(tuple(inner))
    return node


def _flat(node: Node) -> list[Node]:
    """The items of a row and of the rows in it."""
    return [x for i in node.items for x in _flat(i)] if isinstance(node, Row) else [node]


def automaton(pattern: str, edges: bool = True) -> Automaton:
    """The automaton of a pattern that has to match a whole string. edges: whether it may ask for places
    between characters ('^', '\\b'). Raises Refused."""
    node = _Parser(pattern).whole()
    if not edges:
        node = _run(node)
    m = _Machine()
    start, end = m.state(), m.state()
    m.add(node, start, end)
    kinds_used = {kind for steps in m.free for _, kind in steps if kind}
    if kinds_used and not edges:
        raise Refused("places between characters ('^', '$', '\\b')")
    asks = bool(kinds_used & {"border", "within"})
    cuts = {0, 256, *(c for s in m.steps for a, b, _ in s for c in (a, b + 1))}
    marks = sorted(cuts | {c for a, b in WORD for c in (a, b + 1)}) if asks else sorted(cuts)
    # a state: where the machine may be before free steps, whether nothing was read yet, whether the last byte
    # was of a word; free steps are taken when the next byte is known
    first = (frozenset([start]), True, False)
    known, rest = {first: 0}, [first]
    rows: list[list[int]] = []
    accept: list[bool] = []
    while rest:
        states, new, word = rest.pop(0)
        kinds = ("", "begin") if new else ("",)
        border, within = (*kinds, "border"), (*kinds, "within")
        accept.append(end in m.closed(states, (*(border if word else within), "end")))
        same, other = m.closed(states, within), m.closed(states, border)
        row = []
        for low in marks[:-1]:
            now = asks and any(a <= low <= b for a, b in WORD)
            sources = same if now == word else other
            to = frozenset(t for s in sources for a, b, t in m.steps[s] if a <= low <= b)
            target = (to, False, now and bool(to))
            if target not in known:
                known[target] = len(known)
                rest.append(target)
                if len(known) > MOST_STATES:
                    raise Refused(f"more than {MOST_STATES} states of its automaton")
            row.append(known[target])
        rows.append(row)
    return _smallest(np.array(rows, np.int64), np.array(accept), marks)


def _smallest(table: Array, accept: Array, cuts: Sequence[int]) -> Automaton:
    """States that no string tells apart become one, and so do bytes."""
    names = accept.astype(np.int64)
    while True:
        _, at, new = np.unique(np.c_[names, names[table]], axis=0, return_index=True, return_inverse=True)
        new = new.reshape(-1)
        if len(at) == len(np.unique(names)):
            break
        names = new
    order = np.argsort(at, kind="stable")  # the first state stays first
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    small, own = rank[new[table[at[order]]]], accept[at[order]]
    columns, group = np.unique(small, axis=1, return_inverse=True)
    widths = np.diff(np.array(cuts))
    dtype = np.uint8 if len(columns) <= 256 else np.uint16
    bytes_ = np.repeat(group.reshape(-1), widths).astype(np.uint8)
    return Automaton(bytes_, np.ascontiguousarray(columns.astype(dtype)), own)
