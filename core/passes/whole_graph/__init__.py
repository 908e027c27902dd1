"""Passes and rules that look at many nodes: patterns, layouts, phases, loops, libraries."""
