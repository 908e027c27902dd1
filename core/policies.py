"""The names of the policies that bind runs to units, in the order of the runtime's numbers for them."""

from __future__ import annotations

POLICIES = ("static", "load", "thermal", "battery")
"""smelt.h's smelt_policy_kind. The first one is what a session does that was told nothing."""
STATIC = POLICIES[0]
