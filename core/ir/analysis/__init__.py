"""Facts about index expressions: what fusion, schedules, placement and people ask, each found once.

`scope` lists accesses and what is known around them, `traits` says how an element reads its operands and
what it computes, `cost` counts arithmetic and traffic, in the units of a Machine.
"""
