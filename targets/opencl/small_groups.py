"""A statement with lanes in; how many of them a group has where a device has few threads, out."""

from __future__ import annotations

from math import gcd

from smelt.core.ir.analysis.scope import expressions
from smelt.core.ir.groups import nest
from smelt.core.ir.kernel import Loop, Reduce, Stmt, Tiles, walk, walk_expr

SMALL_GROUP = 8
"""Lanes of such a group. PoCL gives a thread that asks its share of the groups that are left: of 7 groups of
64 lanes one of two threads gets 4, and the other is done sooner; of 54 groups of 8 both work to the end."""


def small_group(s: Stmt, lanes: int) -> int:
    """All `lanes`, where they meet, share memory, or have so little to do that a group costs more."""
    nodes, body = nest(s, "group")
    apart = len(body) == 1 and nest(body[0], "lane")[0] and not any(n.buffers for n in nodes)
    loops = any(isinstance(x, Loop | Tiles) and x.level == "serial" for x in walk((s,)))
    sums = any(isinstance(x, Reduce) for e in expressions((s,)) for x in walk_expr(e))
    return gcd(lanes, SMALL_GROUP) if apart and (loops or sums) else lanes


def every_other(group: str, parts: int) -> str:
    """Which of `parts` parts a small group is, in C: the even ones come first. Where a run has work for the
    first lanes alone, the thread that gets the first half of the groups would have all of it."""
    half = (parts + 1) // 2
    return f"{group} % {parts} % {half} * 2 + {group} % {parts} / {half}"
