"""A book of schedules and a machine's name in; for each kernel the schedule that the book has for it, or the
strategies' own with the reason, out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from smelt.core.diag import SmeltError
from smelt.core.ir.kernel import Kernel
from smelt.core.machine import Machine
from smelt.core.schedule.book import HAND, Book, BookEntry, mark
from smelt.core.schedule.question import Question
from smelt.core.schedule.tree import ScheduleError


@dataclass(frozen=True)
class Recalled:
    """A kernel of a scheduled module. naive: what it was, with name and origin; chosen: by the strategies,
    done: what it is now. unit: '' for the module's machine, which is called `machine` in books. entry:
    where `done` comes from; None: the strategies. ignored: why an entry that the book has was not taken, in
    words."""

    question: Question
    naive: Kernel
    chosen: Kernel
    done: Kernel
    unit: str = ""
    machine: str = ""
    entry: BookEntry | None = None
    ignored: str = ""


@dataclass(frozen=True)
class Recall:
    """machines: unit -> what its machine is called in the book."""

    book: Book = field(default_factory=Book)
    machines: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self, question: Question, naive: Kernel, chosen: Kernel, unit: str, machine: Machine
    ) -> Recalled:
        """The answer to a question. Raises SmeltError(kind='invalid') for an entry by hand that does not
        replay; a tuned one is ignored then, as one that was compared with another schedule than today's
        is."""
        called = self.machines.get(unit, "")
        asked = Recalled(question, naive, chosen, chosen, unit, called)
        if not self.book.entries:  # and the question has no need of a name
            return asked
        entry = self.book.find(question.digest, called)
        if entry is None:
            return replace(asked, ignored=OTHER_MACHINE if self.book.machines(question.digest) else "")
        if entry.by != HAND and entry.against != mark(chosen.schedule):
            return replace(asked, ignored=STALE)
        try:
            done = question.replayed(entry.schedule, machine)
        except ScheduleError as e:
            if entry.by == HAND:
                raise _unfit(entry, asked, e) from None
            return replace(asked, ignored=f"{UNREPLAYED} ({e.message})")
        return replace(asked, done=done, entry=entry)


OTHER_MACHINE = "are of other machines or other numbers of threads only"
STALE = "were compared with what the strategies of another version chose"
UNREPLAYED = "do not replay"


def _unfit(entry: BookEntry, asked: Recalled, e: ScheduleError) -> SmeltError:
    return SmeltError(
        f"the schedule by hand of kernel '{asked.naive.name}' ({entry.kernel}) does not replay: {e.message}",
        node=asked.naive.origin or None,
        hint="correct the step in the file of schedules; 'smelt tune --list' prints schedules that replay",
    )


def notes(book: Book, asked: Iterable[Recalled]) -> tuple[str, ...]:
    """What somebody who gave the book should know: entries that cannot be read, that were not taken, and
    those by hand that no kernel asked for."""
    every = list(asked)
    found = [f"schedules: skipped an entry that cannot be read: {fault}" for fault in book.faults]
    reasons: dict[str, dict[str, None]] = {}
    taken = {a.question.digest for a in every if a.entry is not None}  # for another processor of the bundle
    for a in every:
        if a.ignored and not (a.ignored == OTHER_MACHINE and a.question.digest in taken):
            reasons.setdefault(a.ignored, {})[a.naive.name] = None
    for why, names in sorted(reasons.items()):
        found.append(f"schedules: the entries of {_named(list(names))} {why}; the strategies chose instead")
    known = {a.question.digest for a in every}
    lost = [e.name or e.kernel for e in book.entries if e.by == HAND and e.kernel not in known]
    if lost:
        found.append(f"schedules: no kernel of this model is that of the entries by hand: {_named(lost)}")
    return tuple(found)


def _named(names: list[str], most: int = 3) -> str:
    """So many names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
