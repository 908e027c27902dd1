"""A model and sizes in; its kernels with the sizes that they are launched with, and their shares of the
time, out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeAlias

from smelt.compiler import Lowered, lower
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.core.ir.graph import Module, Weight
from smelt.core.ir.kernel import Kernel
from smelt.core.machine import CPU, Machine
from smelt.core.schedule.book import ANY_MACHINE, Book, BookEntry
from smelt.core.schedule.question import Question
from smelt.core.schedule.recall import Recalled
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.measure import ONCE
from smelt.kernel_names import kernel_names
from smelt.request import Request
from smelt.running import running
from smelt.shapes import RunCase, ShapeSpec, cases
from smelt.stages import machine_text
from smelt.targets.platform import host_platform_name, parse_target
from smelt.targets.registry import machines

MOST_TUNED_SIZES = 4
"""DimValues of a kernel that are measured; of more, these are spread evenly over all that a model launches it
with."""
PROFILED_RUNS = 3
"""Runs of a case, of which a kernel's least time counts."""
MOST_WEIGHT_SETS = 8
"""Sets of weights that a kernel is measured with, in turns, so that it does not find them in its cache."""

DimValues: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True)
class Subject:
    """What is tuned for. request: of a compile, without sources; machine: of the processor, and called: its
    name in files of schedules."""

    request: Request
    machine: Machine
    called: str


@dataclass(frozen=True)
class TuneJob:
    """A kernel to tune. asked: by the schedule. sizes: values of its dims, of each measurement one.
    weights: sets of values for its inputs that are weights, by their names. share: its part of the model's
    time."""

    name: str
    asked: Recalled
    sizes: tuple[DimValues, ...]
    weights: tuple[Mapping[str, Weight], ...] = ()
    share: float = 0.0

    @property
    def question(self) -> Question:
        """What its schedule answers."""
        return self.asked.question


@dataclass
class _Seen:
    """What was seen of a kernel in runs of the model."""

    ns: int = 0
    sizes: dict[DimValues, None] = field(default_factory=dict)


def subject(request: Request) -> Subject:
    """The subject of a request. Raises SmeltError where its kernels cannot be measured on this machine."""
    spec = parse_target(request.target)
    hint = "tune for 'host', or for one processor that this machine has, such as x86:x86-64-v3"
    if spec.devices:
        what = (
            f"tune: schedules of devices ({', '.join(spec.devices)}) are not measured yet, only a processor's"
        )
        raise SmeltError(what, kind="unsupported", hint=hint)
    if spec.better:
        raise SmeltError("tune: the target has code for several processors", kind="unsupported", hint=hint)
    if spec.platform.name != host_platform_name():
        what = f"tune: kernels for {spec.platform.name} cannot be measured on this machine"
        raise SmeltError(what, kind="unsupported", hint=hint)
    machine = machines(spec)[CPU]
    return Subject(request, machine, machine_text(spec, machine, request.threads))


def listed(request: Request) -> Book:
    """The schedules that the strategies choose for a model, as entries by hand, to be edited. Raises
    SmeltError as a compile does."""
    asked = [a for c in lower(request).compilations for a in c.asked.values()]
    return Book().with_entries(
        BookEntry(a.question.digest, a.machine or ANY_MACHINE, a.chosen.schedule, a.naive.name) for a in asked
    )


def find_jobs(
    request: Request,
    bundle: Bundle,
    specs: Sequence[ShapeSpec] = (),
    *,
    count: int = 3,
    seed: int = 0,
    on_case: Callable[[str], None] = lambda label: None,
) -> tuple[TuneJob, ...]:
    """The kernels of a model, the slowest first, from runs at `count` shapes or at those of specs.

    request: what the bundle was compiled by, without schedules. Raises SmeltError as a compile, `cases` and
    `running` do.
    """
    lowered = lower(request)
    seen: dict[str, _Seen] = {}
    for name in bundle.entries:
        view = bundle.entry(name)
        with running(view, threads=request.threads or 0) as client:
            _look_at_all(client, view, cases(view, specs, count=count, seed=seed), seen,
                         len(specs) or count, bool(specs), on_case)  # fmt: skip
    total = sum(s.ns for s in seen.values()) or 1
    known = dict(_asked(lowered))
    found = []
    for name, s in seen.items():
        if name in known:
            asked, weights = known[name]
            found.append(TuneJob(name, asked, _spread(s.sizes), weights, s.ns / total))
    return tuple(sorted(found, key=lambda j: (-j.share, j.name)))


def _look_at_all(
    client: RunnerClient,
    bundle: Bundle,
    every: Iterator[RunCase],
    seen: dict[str, _Seen],
    count: int,
    is_asked: bool,
    on_case: Callable[[str], None],
) -> None:
    """Add so many of the cases. Those that the model refuses are replaced by further ones unless somebody has
    asked for them. Raises SmeltError where none is left."""
    done, refused = 0, None
    for case in every:
        on_case(case.label)
        try:
            _look(client, bundle, case, seen)
            done += 1
        except SmeltError as e:
            if is_asked or e.kind != "shape":
                raise
            refused = e
        if done == count:
            return
    if refused is not None and not done:
        raise refused


def _look(client: RunnerClient, bundle: Bundle, case: RunCase, seen: dict[str, _Seen]) -> None:
    """Add a case: the time of each kernel, the least of a few runs, and the dims of its launches. All runs
    begin at the start of the state, as those of a profile do."""
    names, probes = kernel_names(bundle.manifest["kernels"]), bundle.manifest["probes"]
    client.reset_state()
    client.run(case.tensors, outputs=False)
    least: dict[str, int] = {}
    for _ in range(PROFILED_RUNS):
        for k in client.run(None, replace(ONCE, profile=True), outputs=False).profile:
            least[k.name] = min(least.get(k.name, k.ns), k.ns)
    for name, ns in least.items():
        seen.setdefault(names.get(name, name), _Seen()).ns += ns
    client.reset_state()
    for launch in client.trace().launches:
        if launch.site < len(probes["sites"]):
            callee = probes["sites"][launch.site]["callee"]
            seen.setdefault(callee, _Seen()).sizes[launch.dims] = None


def _asked(lowered: Lowered) -> Iterator[tuple[str, tuple[Recalled, tuple[Mapping[str, Weight], ...]]]]:
    """(name in the bundle, what was asked and sets of weights) of each kernel of the CPU. Linking may have
    given a kernel another name."""
    linked: dict[Kernel, str] = {_bare(k): name for name, k in lowered.linked.kernels.items()}
    for c in lowered.compilations:
        for name, asked in c.asked.items():
            at = linked.get(_bare(asked.done))
            if at is not None and asked.unit in ("", CPU):
                yield at, (asked, tuple(islice(_weights(c.module, name, asked), MOST_WEIGHT_SETS)))


def _bare(kernel: Kernel) -> Kernel:
    return kernel.with_(name="", origin="")


def _weights(module: Module, name: str, asked: Recalled) -> Iterator[Mapping[str, Weight]]:
    """The sets of weights that the model calls the kernel with, each once."""
    wanted = asked.question.constants | asked.question.laid.keys()
    places = [(i, b.name) for i, b in enumerate(asked.naive.inputs) if b.name in wanted]
    seen = set()
    for node in module.calls():
        refs = tuple(node.inputs[i] for i, _ in places) if node.attr("kernel") == name else ()
        if refs and refs not in seen:
            seen.add(refs)
            yield {b: module.weights[ref] for (_, b), ref in zip(places, refs, strict=True)}


def _spread(sizes: Iterable[DimValues]) -> tuple[DimValues, ...]:
    """At most MOST_TUNED_SIZES of the sizes that make work, the smallest and the largest among them."""
    every = sorted(s for s in sizes if 0 not in s)
    if len(every) <= MOST_TUNED_SIZES:
        return tuple(every)
    step = (len(every) - 1) / (MOST_TUNED_SIZES - 1)
    return tuple(every[round(k * step)] for k in range(MOST_TUNED_SIZES))
