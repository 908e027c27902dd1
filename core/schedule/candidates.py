"""A question to the strategies in; the schedules that they could have chosen, with reasons, out: data, of
which nothing here knows what is fast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.core.schedule.draft import Draft
from smelt.core.schedule.question import Question
from smelt.core.schedule.tree import ScheduleError


@dataclass(frozen=True)
class Candidate:
    """A scheduled kernel. answers: what was picked otherwise than the strategies' models do; none in the
    default. why: the same for people, 'tile 6x64, not 12x32'."""

    kernel: Kernel
    answers: Mapping[str, str] = field(default_factory=dict)
    why: str = "the strategies' own"

    @property
    def schedule(self) -> str:
        """The text of the schedule, which replays."""
        return self.kernel.schedule


def default(question: Question, machine: Machine) -> Candidate:
    """What the strategies choose by their models."""
    return Candidate(question.drafted(machine).kernel)


def candidates(question: Question, machine: Machine) -> Iterator[Candidate]:
    """The default, then one for each other option of each pick, no schedule twice: first the second best of
    every pick by the strategies' models, then the third. Those that the verifier refuses are left out."""
    first = question.drafted(machine)
    yield Candidate(first.kernel)
    seen = {first.kernel.schedule}
    options = _options(first)
    for rank in range(1, max(map(len, options.values()), default=0)):
        for what, names in options.items():
            if rank < len(names):
                made = answered(question, machine, {what: names[rank]})
                if made is not None and made.schedule not in seen:
                    seen.add(made.schedule)
                    yield made


def answered(question: Question, machine: Machine, answers: Mapping[str, str]) -> Candidate | None:
    """The candidate with these answers; None where the strategies cannot follow every one of them, or the
    verifier refuses what they make."""
    try:
        d = question.drafted(machine, answers)
        question.check(d.kernel, machine)
    except ScheduleError:
        return None
    followed = {p.what for p in d.picks if p.taken == answers.get(p.what)}
    if followed != answers.keys():
        return None
    return Candidate(d.kernel, dict(answers), _reason(d, answers))


def joined(question: Question, machine: Machine, several: Iterable[Candidate]) -> Candidate | None:
    """One candidate with the answers of all of these, of which no two are about the same pick; None as
    `answered`."""
    answers = {what: name for c in several for what, name in c.answers.items()}
    return answered(question, machine, answers)


def _options(d: Draft) -> dict[str, tuple[str, ...]]:
    """Pick -> its options in all nests of the kernel, what was taken first."""
    found: dict[str, dict[str, None]] = {}
    for p in d.picks:
        found.setdefault(p.what, {}).update(dict.fromkeys((p.taken, *p.options)))
    return {what: tuple(names) for what, names in found.items()}


def _reason(d: Draft, answers: Mapping[str, str]) -> str:
    """What was picked, and what was not."""
    said = []
    for what, name in answers.items():
        usual = dict.fromkeys(p.options[0] for p in d.picks if p.what == what and p.options[0] != name)
        said.append(f"{what} {name}, not {' or '.join(usual)}" if usual else f"{what} {name}")
    return "; ".join(said)
