"""Instruction sets as data: a table for each, whose rows say what loops an instruction means and its cost."""
