"""What a session was asked before something went wrong: its runs in order, so that they can be done again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from smelt.groups import GroupValue
from smelt.shapes import RunCase


@dataclass(frozen=True)
class SessionStep:
    """A run. entry: '' for the only one. state: what a reference that gets the state as inputs is fed besides
    the case."""

    case: RunCase
    entry: str = ""
    state: Mapping[str, GroupValue] = field(default_factory=dict)
