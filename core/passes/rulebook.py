"""All rewrite rules by name: what docs, tests and tools ask of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.core.passes.cleanup import canonical, views
from smelt.core.passes.quantized import blocks, byte_operands, quantize
from smelt.core.passes.rewriting.rules import Rule
from smelt.core.passes.whole_graph import batched, expand, layout, patterns, phases, winograd
from smelt.core.passes.whole_graph.sink import Sinking, sink_rules


def rulebook() -> Mapping[str, Rule]:
    """Each rule of each pass, by name."""
    found: dict[str, Rule] = {}
    for r in (
        *canonical.RULES, *patterns.RULES, *phases.RULES, *phases.FLOAT_RULES, *expand.RULES, *layout.RULES,
        *sink_rules(Sinking()), *views.RULES, *batched.RULES, *quantize.RULES, *byte_operands.RULES,
        *blocks.BLOCK_RULES, *winograd.RULES,
    ):  # fmt: skip
        assert r.name not in found, r.name
        found[r.name] = r
    return MappingProxyType(found)
