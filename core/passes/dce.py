"""Graph -> Graph: what no output, check or binding needs goes; unused weights go with it."""

from __future__ import annotations

from smelt.core.ir.graph import Module
from smelt.core.passes.context import Context
from smelt.core.passes.editor import Editor, edit_module


def dce(module: Module, ctx: Context) -> Module:
    """The module without dead nodes; run-time checks and bindings stay. (An editor's graph keeps only live
    nodes, so there is nothing else to do.)"""
    return edit_module(module, _nothing)


def _nothing(editor: Editor) -> None:
    pass
