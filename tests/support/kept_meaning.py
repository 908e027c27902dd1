"""A kernel of the table and a machine in; its draft out, once it is proved to keep the kernel's meaning."""

from __future__ import annotations

from naive_kernels import check
from strategy_kernels import KERNELS, scaled

from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.machine import Machine
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.schedule import apply, parse
from smelt.core.schedule.strategies import draft


def kept(name: str, machine: Machine) -> Draft:
    """The draft breaks no rule of the IR, computes what the naive kernel does at all of its sizes, and its
    schedule's text makes the same kernel again."""
    (naive, machine), (_, constants, envs) = scaled(name, machine), KERNELS[name]
    d = draft(naive, machine, frozenset(constants))
    verify_kernel(d.kernel, "scheduled", machine=machine)
    for env in envs:
        check(naive, d.kernel, env, rtol=2e-3 if "f16" in name else 2e-5)
    again = apply(naive.with_(schedule=""), parse(str(d.schedule)))
    assert again == d.kernel, "the schedule does not replay from its text"
    return d
