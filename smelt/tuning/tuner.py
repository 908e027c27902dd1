"""Kernels to tune, a budget and a file of schedules in; the file with an entry for each kernel that was
finished, and what was found, out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.core.schedule.book import HAND, TUNE, Book, BookEntry, mark
from smelt.core.schedule.candidates import Candidate, candidates, default, joined
from smelt.core.scratch import scratch_folder
from smelt.running import running
from smelt.tuning.budget import BudgetSpent, TuneBudget
from smelt.tuning.jobs import Subject, TuneJob
from smelt.tuning.race import LOOK_TURNS, PROOF_TURNS, Failed, Race, RaceVerdict, judged, looked
from smelt.tuning.store import add_entries, read_book
from smelt.tuning.trial import build_trial, feed, sizes_text

PROVED = 2
"""Candidates that are measured long enough to be judged, beside the one that joins them."""
PROMISING = 0.985
"""The ratio after a look up to which a candidate may be one of them."""
LEAST_TUNED = 0.01
"""Of a model's time: kernels that take less are left alone."""


@dataclass(frozen=True)
class Tuned:
    """What became of a kernel. status: 'faster', 'kept' (the strategies' schedule is the best of all),
    'known' (the file has it already), 'by hand', 'unfinished', or 'failed' (it does not run alone: why).
    tried: candidates that ran; failed: why others did not count. ratio: of the times, where it is faster."""

    job: TuneJob
    status: str
    tried: int = 0
    ratio: float = 1.0
    why: str = ""
    failed: tuple[str, ...] = ()
    entry: BookEntry | None = field(default=None, compare=False)


def tune(
    subject: Subject,
    jobs: Iterable[TuneJob],
    path: Path,
    budget: TuneBudget,
    *,
    on_kernel: Callable[[str], None] = lambda text: None,
) -> tuple[Tuned, ...]:
    """Measure the candidates of each kernel, in the order given, until the budget is spent, and put what is
    found into the file at once, kernel by kernel. What it has already is not measured again: entries by
    hand, and those of this machine that were compared with today's default at these sizes.

    Raises SmeltError where the file cannot be read or written.
    """
    done: list[Tuned] = []
    for job in jobs:
        book = read_book(path)
        known = _known(subject, job, book)
        if known is not None:
            done.append(known)
        elif job.share < LEAST_TUNED or not job.sizes:
            continue
        elif budget.is_spent:
            done.append(Tuned(job, "unfinished"))
        else:
            on_kernel(job.name)
            try:
                found = tune_kernel(subject, job, budget)
            except BudgetSpent:
                found = Tuned(job, "unfinished")
            except Failed as e:
                found = Tuned(job, "failed", why=e.why)
            if found.entry is not None:
                add_entries(path, found.entry)
            done.append(found)
    return tuple(done)


def _known(subject: Subject, job: TuneJob, book: Book) -> Tuned | None:
    """What the file has of a kernel, where it need not be measured."""
    entry = book.find(job.question.digest, subject.called)
    if entry is None:
        return None
    if entry.by == HAND:
        return Tuned(job, "by hand", entry=entry)
    measured, wanted = {s for s, _ in entry.at}, {sizes_text(job, s) for s in job.sizes}
    same = entry.against == mark(default(job.question, subject.machine).schedule)
    return Tuned(job, "known", why=entry.why, entry=entry) if same and wanted <= measured else None


def tune_kernel(subject: Subject, job: TuneJob, budget: TuneBudget) -> Tuned:
    """The best schedule of one kernel. Raises BudgetSpent, and Failed where the default itself does not
    run."""
    every = list(candidates(job.question, subject.machine))
    failed: list[str] = []
    seen = _raced(subject, job, every, False, budget, failed)
    promising = sorted((v for v, _ in seen if v.ratio <= PROMISING), key=lambda v: v.ratio)
    by_number = {v.number: c for v, c in seen}
    best = [by_number[v.number] for v in promising[:PROVED]]
    best += _together(subject, job, [by_number[v.number] for v in promising])
    proved = _raced(subject, job, [every[0], *best], True, budget, failed) if best else []
    winners = [(v, c) for v, c in proved if v.faster]
    if not winners:
        why = f"the strategies' own: none of {len(seen)} others was faster"
        at = tuple((sizes_text(job, s), 1.0) for s in job.sizes)
        entry = _entry(subject, job, every[0], every[0], why, at)
        return Tuned(job, "kept", len(seen), why=why, failed=tuple(failed), entry=entry)
    v, c = min(winners, key=lambda w: w[0].ratio)
    at = tuple((sizes_text(job, s), ratio) for s, ratio in zip(job.sizes, v.at, strict=True))
    entry = _entry(subject, job, c, every[0], c.why, at)
    return Tuned(job, "faster", len(seen), v.ratio, c.why, tuple(failed), entry)


def _together(subject: Subject, job: TuneJob, promising: Sequence[Candidate]) -> list[Candidate]:
    """The candidate that joins the best answer to each pick, where there are several picks."""
    best: dict[str, Candidate] = {}
    for c in promising:
        best.setdefault(next(iter(c.answers)), c)
    made = joined(job.question, subject.machine, best.values()) if len(best) > 1 else None
    return [] if made is None else [made]


def _raced(
    subject: Subject,
    job: TuneJob,
    several: Sequence[Candidate],
    proof: bool,
    budget: TuneBudget,
    failed: list[str],
) -> list[tuple[RaceVerdict, Candidate]]:
    """What the others are against the first of the candidates. proof: by enough turns to judge them. Those
    that fail are left out, and `failed` tells why; numbers in verdicts are places in `several`. Raises
    Failed where the first one does."""
    left = dict(enumerate(several))
    while len(left) > 1:
        order = list(left.values())
        try:
            found = _race(subject, job, order, proof, budget)
        except Failed as e:
            number = list(left)[e.number]
            if number == 0:
                raise
            failed.append(f"{left.pop(number).why}: {e.why}")
            continue
        numbers = list(left)
        return [(RaceVerdict(numbers[v.number], v.ratio, v.at, v.faster), order[v.number]) for v in found]
    return []


def _race(
    subject: Subject, job: TuneJob, order: Sequence[Candidate], proof: bool, budget: TuneBudget
) -> list[RaceVerdict]:
    """One trial of these candidates, the default first. Raises Failed and BudgetSpent."""
    threads, numbers = subject.request.threads, range(1, len(order))
    try:
        feeds = {s: feed(job, s) for s in job.sizes}
    except SmeltError as e:  # no memory for them
        raise Failed(0, e.message) from None
    with scratch_folder("tune") as folder:
        bundle = _built(subject, job, order, Path(folder))
        with running(bundle, threads=threads or 0) as client:
            race = Race(client, feeds, threads, budget)
            race.agree(numbers)
            ratios = race.ratios(numbers, PROOF_TURNS if proof else LOOK_TURNS)
    return [judged(n, r, len(ratios)) if proof else looked(n, r) for n, r in ratios.items()]


def _built(subject: Subject, job: TuneJob, order: Sequence[Candidate], folder: Path) -> Bundle:
    """The trial's bundle. Where it does not compile, the candidate that does not compile alone with the
    default fails."""
    try:
        return build_trial(subject, job, order, folder)
    except SmeltError as e:
        for number in range(len(order)):
            with scratch_folder("tune") as alone:
                try:
                    build_trial(subject, job, [order[number]], Path(alone))
                except SmeltError as own:
                    raise Failed(number, own.message) from None
        raise e


def _entry(
    subject: Subject,
    job: TuneJob,
    c: Candidate,
    first: Candidate,
    why: str,
    at: tuple[tuple[str, float], ...],
) -> BookEntry:
    against = mark(first.schedule)
    return BookEntry(job.question.digest, subject.called, c.schedule, job.name, TUNE, against, why, at)
