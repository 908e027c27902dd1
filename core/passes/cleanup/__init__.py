"""Passes and rules that clean up: one spelling, no doubles, nothing unused, constants computed."""
