"""What a kernel takes and has to do in, with a Machine; how full its cores are, and the least time, out."""

from __future__ import annotations

from dataclasses import dataclass

from smelt.core.machine import Figures, Machine


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How much of a core the groups that it holds at a time take. groups: so many. share: of the lanes that
    it could hold, 0 to 1. limit: what it runs out of first: 'lanes', 'groups', 'registers' or 'shared
    memory'."""

    groups: int
    share: float
    limit: str


def occupancy(machine: Machine, lanes: int, registers: int, shared_bytes: int) -> Occupancy | None:
    """The occupancy of a kernel with groups of `lanes`, each of so many registers, and so much memory of the
    group. None where nobody knows what a core of the machine holds."""
    has = machine.residency
    if has is None:
        return None
    subgroups = _up(lanes, machine.subgroup) // machine.subgroup
    most = {"lanes": has.lanes // (subgroups * machine.subgroup), "groups": has.groups}
    if registers:
        each = _up(registers * machine.subgroup, has.register_step)
        # each of the parts of a core has registers of its own
        most["registers"] = has.registers // has.parts // each * has.parts // subgroups
    taken = _up(shared_bytes + has.shared_reserved, has.shared_step)
    if taken:
        most["shared memory"] = has.shared_bytes // taken
    limit = min(most, key=lambda name: most[name])
    groups = most[limit]
    return Occupancy(groups, groups * subgroups * machine.subgroup / has.lanes, limit)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least that work takes on a machine, in seconds. bound: 'arithmetic' or 'memory', whichever is the
    longer. knee: operations a byte from which on it is arithmetic."""

    seconds: float
    bound: str
    knee: float


def roofline(machine: Machine | Figures, operations: int, moved: int) -> Roofline | None:
    """None where nobody knows how fast the machine computes or how fast its memory is. By figures it is what
    the work takes as it was measured."""
    if machine.operations is None or machine.bandwidth is None:
        return None
    computing, moving = operations / machine.operations, moved / machine.bandwidth
    bound = "arithmetic" if computing > moving else "memory"
    return Roofline(max(computing, moving), bound, machine.operations / machine.bandwidth)


def _up(n: int, step: int) -> int:
    return (n + step - 1) // step * step
