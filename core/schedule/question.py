"""A naive kernel and what a schedule of it may rely on in; the name of that question, and its answers,
out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from smelt.core.diag import SmeltError
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.layout import PackSpec
from smelt.core.ir.text import print_kernel
from smelt.core.ir.verify_kernel import verify_kernel
from smelt.core.machine import Machine
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.schedule import apply, parse
from smelt.core.schedule.strategies import draft
from smelt.core.schedule.tree import ScheduleError

NO_ANSWERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Question:
    """What strategies are asked. kernel: naive, without a name and an origin, with the ranges of its dims.
    constants: its inputs that are weights and may be packed; laid: those that lie packed already, and how."""

    kernel: Kernel
    constants: frozenset[str] = frozenset()
    laid: Mapping[str, PackSpec] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """32 hex digits of a hash of the question's text: kernels of other models that are equal but for
        their names have the same."""
        said = [f"weights {' '.join(sorted(self.constants))}"]
        said += [f"laid {name} {spec}" for name, spec in sorted(self.laid.items())]
        text = "\n".join((print_kernel(self.kernel.with_(name="", origin="")), *said))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def drafted(self, machine: Machine, answers: Mapping[str, str] = NO_ANSWERS) -> Draft:
        """What the strategies make of it. answers: to their picks (Draft.pick)."""
        return draft(self.kernel, machine, self.constants, self.laid, answers)

    def replayed(self, text: str, machine: Machine) -> Kernel:
        """The kernel after the steps of a schedule's text. Raises ScheduleError for a step that is unknown or
        not provably legal, for weights that would have to lie otherwise than they can, and for a result that
        breaks a rule of kernels (core/ir/verify.py)."""
        try:
            done = apply(self.kernel.with_(schedule=""), parse(text), machine.instructions)
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as e:
            # primitives take arguments for what strategies give them; a text has any
            raise ScheduleError("replay", f"{type(e).__name__}: {e}") from None
        for b in done.inputs:
            if b.layout is None:
                continue
            lies = self.laid.get(b.name)
            if lies is not None and lies != b.layout.spec:
                raise ScheduleError(f"pack {b.name}", f"it lies as {lies} for another kernel")
            if lies is None and b.name not in self.constants:
                raise ScheduleError(f"pack {b.name}", "it is no weight where the kernel is called")
        self.check(done, machine)
        return done

    def check(self, kernel: Kernel, machine: Machine) -> None:
        """Hold a schedule's result against the rules of kernels. What these cannot prove of the strategies'
        own result either is left to the primitives' proofs. Raises ScheduleError."""
        try:
            verify_kernel(kernel, "scheduled", machine=machine)
        except SmeltError as e:
            if self._is_proved(machine):
                raise ScheduleError("verify", e.message.split("\n")[0]) from None

    def _is_proved(self, machine: Machine) -> bool:
        """Whether the verifier can prove what the strategies make."""
        try:
            verify_kernel(self.drafted(machine).kernel, "scheduled", machine=machine)
        except SmeltError:
            return False
        return True
