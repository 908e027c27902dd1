"""Run-time checks of graphs -> what is known of sizes after them, and in which graph.

A check says something of all nodes that may speak of its sizes where nothing but checks and binds stands
between it and what gave the last of its sizes a value (the beginning of the graph, if all are known by then).
The importer places checks so. One that stands later is a check and no knowledge: a node before it
would lean on what nobody has looked at.

A region knows what the graph around it knows. What it checks itself is known inside of it alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Final, TypeAlias

from smelt.core.dim import ONE, UNKNOWN, Dim, Facts, dmax, sym, to_dim
from smelt.core.ir.graph import Graph

MARKS: Final = frozenset({"check", "bind"})
"""Ops of nodes that compute nothing."""

Claim: TypeAlias = tuple[Dim, str, Dim]
"""left relation right, as in a check."""
Times: TypeAlias = tuple[tuple[str, int], ...]
"""When a graph gives a size its value: the number of the node, from 1 on. Others are known from its start."""


@dataclass(frozen=True)
class FactScope:
    """What is known where a graph begins. names: the sizes that have values there. learned: the facts say
    more than they did before any check."""

    facts: Facts
    names: frozenset[str] = frozenset()
    learned: bool = False

    def enter(self, graph: Graph) -> FactScope:
        """What is known inside the graph, of all sizes that it or its regions may speak of."""
        names = self.names.union(*(v.type.symbols for v in graph.inputs))
        claims, times = _claims(graph, names)
        facts = self.facts
        if claims:
            facts = _learned(facts, claims, times, threading.get_ident())
        several = any(n.regions for n in graph.nodes)
        inside = names.union(*(n.settled for n in graph.nodes)) if several else names
        return FactScope(facts, inside, self.learned or facts is not self.facts)


def _claims(graph: Graph, names: frozenset[str]) -> tuple[tuple[Claim, ...], Times]:
    """What the graph's checks make sure of, and the times of sizes that its nodes give values."""
    if not any(n.op == "check" or (n.op == "bind" and "value" in n.attrs) for n in graph.nodes):
        return (), ()
    times: dict[str, int] = {}
    found: list[Claim] = []
    work = 0  # the last node so far that computes something
    for place, node in enumerate(graph.nodes, 1):
        for s in sorted(node.settled - names):
            times.setdefault(s, place)
        if node.op == "check":
            left, right = to_dim(node.attr("left")), to_dim(node.attr("right"))
            latest = max((times.get(s, 0) for s in left.symbols | right.symbols), default=0)
            if work <= latest and left.symbols | right.symbols <= names | times.keys():
                found.append((left, str(node.attrs["relation"]), right))
        elif node.op == "bind":
            value = node.attrs.get("value")
            if isinstance(value, Dim) and any(value == sym(s) for s in value.symbols):
                found.append((sym(str(node.attrs["symbol"])), "==", value))
        else:
            work = place
    return tuple(found), tuple(times.items())


@lru_cache(maxsize=16)
def _learned(facts: Facts, claims: tuple[Claim, ...], times: Times, thread: int) -> Facts:
    """The facts with what is not implied yet. Kept from pass to pass with the proofs inside, which are half
    the time of a graph of many symbols; `thread`, because these serve one thread at a time."""
    when = dict(times)
    # types have what the importer learned of equal sizes: with bounds learned first, a size that no run can
    # have would not be proved to be what they say
    for left, relation, right in sorted(claims, key=lambda c: c[1] != "=="):
        facts = learn(facts, left, relation, right, when)
    return facts


def learn(facts: Facts, left: Dim, relation: str, right: Dim, times: Mapping[str, int]) -> Facts:
    """The facts, and left relation right ('fits': left is 1 or right). times: as Times; what is learned is
    about the sizes of the latest time alone, since a formula of others may be asked for before the check."""
    match relation:
        case "==" if facts.prove_eq(left, right) is UNKNOWN:
            return _equal(facts, left, right, times)
        case "<=" if facts.prove_le(left, right) is UNKNOWN:
            return _at_most(facts, right - left, times)
        case "divides" if left.is_const and left.const > 0:
            return _multiple(facts, left.const, right, times)
        case "fits":
            low = facts.bounds(left)[0]
            if low is not None and low > 1:
                return learn(facts, left, "==", right, times)
            return learn(facts, left, "<=", dmax(ONE, right), times)
    return facts


def _equal(facts: Facts, left: Dim, right: Dim, times: Mapping[str, int]) -> Facts:
    names = left.symbols | right.symbols
    late = _latest(names, times)
    if len(late) == len(names):
        return facts.with_equal(left, right, times)
    # what is known of a late size would become knowledge of the earlier ones that it is solved for
    bare = replace(
        facts,
        ranges={**facts.ranges, **dict.fromkeys(late, (None, None))},
        divisors={s: d for s, d in facts.divisors.items() if s not in late},
        uppers={s: x for s, x in facts.uppers.items() if s not in late},
        lowers={s: x for s, x in facts.lowers.items() if s not in late},
    )
    found = bare.with_equal(left, right, times)
    return found if found.zeros == facts.zeros else facts


def _latest(names: Iterable[str], times: Mapping[str, int]) -> list[str]:
    """Those of the latest time."""
    last = max((times.get(s, 0) for s in names), default=0)
    return [s for s in names if times.get(s, 0) == last]


def _at_most(facts: Facts, rest: Dim, times: Mapping[str, int]) -> Facts:
    """rest >= 0."""
    late = _latest(rest.symbols, times)
    if len(late) == len(rest.symbols):
        return facts.with_le(0, rest)
    split = rest.linear(late[0]) if len(late) == 1 else None
    if split is None or not split[0].is_const:
        return facts
    c, others = split[0].const, split[1]
    return facts.with_lower(late[0], -(others // c)) if c > 0 else facts.with_upper(late[0], others // -c)


def _multiple(facts: Facts, divisor: int, d: Dim, times: Mapping[str, int]) -> Facts:
    """divisor divides d."""
    if facts.prove_divisible(d, divisor) is not UNKNOWN:
        return facts
    terms = d.terms()
    if len(terms) == 1 and len(d.symbols) == 1:
        (s,) = d.symbols
        if d == sym(s) * terms[0][0]:
            return facts.with_divisor(s, divisor // gcd(divisor, terms[0][0]))
    late = _latest(d.symbols, times)
    return facts.with_equal(d % divisor, 0, times) if len(late) == len(d.symbols) else facts


__all__ = ["MARKS", "FactScope", "learn"]
