"""Graph -> Graph: what no output, check or binding needs goes; unused weights go with it."""

from __future__ import annotations

from smelt.core.ir.graph import Module
from smelt.core.passes.context import Context
from smelt.core.passes.rewriting.editor import Editor, edit_module, without_unused


def dce(module: Module, ctx: Context) -> Module:
    """The module without dead nodes; run-time checks and bindings stay."""
    return without_unused(edit_module(module, Editor.sweep))
