"""A bundle and inputs that it gets wrong -> the first value that it stores wrongly, and the nodes of it.

The bundle runs as it is: nothing is compiled again, and what is fused stays fused. The runner is asked to
copy stored values right after the launch that completes them (devicefarm/probe.py); the manifest's `probes`
say which ONNX value each of them is (smelt/probe_points.py). A value that fusion keeps in registers is stored
nowhere: all nodes between the last right values and the first wrong one are told then, not one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smelt.core.bundle import Bundle, spelled_dim
from smelt.core.diag import SmeltError
from smelt.core.dtype import ALL, Array
from smelt.core.subnormals import keeps_subnormals
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.probe import LaunchTrace, ProbeWish
from smelt.difference import OutputError, compare_values
from smelt.groups import GroupValue
from smelt.inner_reference import InnerValues, inner_values
from smelt.leasing import Where
from smelt.model_cut import Between, ModelGraph, Suspect
from smelt.opinions import Opinions
from smelt.own_reference import oracle
from smelt.running import running
from smelt.script import SessionStep

MOST_BYTES = 64 << 20
"""Bytes of values that one probe of a run brings; a larger value comes alone."""
MOST_NAMES = 256
"""Values that one session of the reference returns."""

OWN_VALUE = "made by smelt alone: the model has no such value"
IN_REGION = "inside a branch or loop, where the reference shows nothing"
OTHER_ORDER = "stored in another order than the model's"
OTHER_TYPE = "stored in another type"


@dataclass(frozen=True)
class Stored:
    """A value that a launch has completed. launch: its number in the run; round: how often its site had been
    launched before. names: the rows of the manifest's probes, the first that the model has comes first."""

    launch: int
    site: int
    round: int
    callee: str
    buffer: int
    dtype: str
    shape: tuple[int, ...]
    names: tuple[Mapping[str, Any], ...]
    final: bool

    @property
    def bytes(self) -> int:
        """In the device's memory."""
        return int(np.prod(self.shape, dtype=object)) * ALL[self.dtype].bytes

    @property
    def wish(self) -> ProbeWish:
        """What to ask the runner for."""
        return ProbeWish(self.launch, self.site, self.buffer, self.bytes)


@dataclass(frozen=True)
class Divergence:
    """The first wrong stored value, in the order of the run. kernel: what wrote it; '' where only an output
    of the model is known to be wrong. round: of the loop around it, from 0; None outside of loops. suspects:
    the nodes between it and the right values before it: one of them is wrong, or how they are fused. kernels:
    what runs these nodes. read: the right values that the suspects start from."""

    name: str
    error: OutputError
    kernel: str
    unit: str
    round: int | None
    suspects: tuple[Suspect, ...]
    kernels: tuple[str, ...]
    part: Between
    inside: str = ""


@dataclass(frozen=True)
class Bisection:
    """first: None where every value that was compared is right. right: names of those. skipped: reason -> how
    many stored values could not be compared. cut: the run has more launches than the runner could note.
    repeated: the probed run had the error too. step: the number of the run in the script that this is about:
    one before the last where that has left a wrong state."""

    first: Divergence | None
    right: frozenset[str] = frozenset()
    skipped: Mapping[str, int] = field(default_factory=dict)
    launches: int = 0
    cut: bool = False
    repeated: bool = True
    step: int = 0


def bisect(
    bundle: Bundle,
    model: Path | Mapping[str, Path],
    script: Sequence[SessionStep],
    wrong: Sequence[str],
    *,
    device: Where = None,
    threads: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    on_step: Callable[[str], None] = lambda text: None,
) -> Bisection:
    """Run the script's steps on the device, with probes, and find the first wrong value of the last one; of
    an earlier one where what that has left as state is wrong, since the fault is there.

    bundle: with all its entries; model: its ONNX file, or by the names of entries the file of each. wrong:
    the outputs that were wrong in the last step. A value is wrong when ONNX Runtime, which runs every node as
    written, differs by more than the tolerance and by more than its own spread (smelt/opinions.py). on_step:
    called with a text before each part of the work. Raises SmeltError: 'unsupported' for a bundle without
    probes, and as `validate`.
    """
    files = model if isinstance(model, Mapping) else dict.fromkeys(bundle.entries, model)

    def search_of(step: SessionStep) -> _Search:
        view, file = bundle.entry(step.entry or None), files[step.entry or bundle.entries[0]]
        return _Search(view, file, step, rtol, atol)

    if any("probes" not in bundle.entry(s.entry or None).manifest for s in script):
        raise SmeltError(
            f"bundle '{bundle.path}' was made without probe points", kind="unsupported",
            hint="compile it again with this version of smelt",
        )  # fmt: skip
    with running(bundle, device, threads=threads) as client:
        if client.model is not None and client.model.state:
            client.reset_state()
        entry = ""
        for number, step in enumerate(script):
            if step.entry and step.entry != entry:
                client.use_entry(step.entry)
                entry = step.entry
            search, last = search_of(step), step is script[-1]
            if last or search.states:
                on_step(f"noting the launches of run {number + 1} of {len(script)}")
                trace = client.trace(step.case.tensors)
                stored = list(stored_values(search.view.manifest["probes"], trace, search.graph))
                found = None
                if last or search_of(step).first_of(client, stored, on_step, search.states):
                    found = search.first_of(client, stored, on_step)
                if found is not None or last:
                    break
            client.run(step.case.tensors, outputs=False)
        inner = search.inside(client, found, stored, on_step) if found is not None else None
    first = search.divergence(*found, inner) if found is not None else search.after(wrong)
    return Bisection(
        first, frozenset(search.right), dict(search.skipped), len(trace.launches), trace.cut,
        found is not None or not search.right.issuperset(wrong), number,
    )  # fmt: skip


def stored_values(probes: Mapping[str, Any], trace: LaunchTrace, graph: ModelGraph) -> Iterator[Stored]:
    """The values that the launches of a run complete, in order."""
    sites, callees = probes["sites"], probes["callees"]
    rounds: Counter[int] = Counter()
    last = {one.site: n for n, one in enumerate(trace.launches)}
    for n, one in enumerate(trace.launches):
        if one.site >= len(sites):
            raise SmeltError(f"the run launches site {one.site} of {len(sites)}; compile the model again")
        site = sites[one.site]
        callee = callees[site["callee"]]
        dims = dict(zip(callee["dims"], one.dims, strict=False))
        for names, result in zip(site.get("made", ()), callee["results"], strict=False):
            shape = tuple(spelled_dim(str(d), {}).evaluate(dims) for d in result["shape"])
            known = sorted(names, key=lambda row: row["name"] not in graph)
            yield Stored(
                n, one.site, rounds[one.site], site["callee"], result["buffer"], result["dtype"], shape,
                tuple(known), last[one.site] == n,
            )  # fmt: skip
        rounds[one.site] += 1


def _batches(stored: Sequence[Stored]) -> Iterator[list[Stored]]:
    some: list[Stored] = []
    for s in stored:
        if some and (sum(o.bytes for o in some) + s.bytes > MOST_BYTES or len(some) >= MOST_NAMES):
            yield some
            some = []
        some.append(s)
    if some:
        yield some


def arranged(s: Stored, axes: Sequence[int], raw: bytes, want: GroupValue) -> Array | str:
    """The stored bytes as the model's value, in the shape, order and type of `want`; or why they cannot be
    that."""
    flat = np.frombuffer(raw, ALL[s.dtype].numpy)
    if not isinstance(want, np.ndarray):
        return OTHER_TYPE
    if (flat.dtype.name, want.dtype.name) == ("float16", "float32"):
        flat = flat.astype(want.dtype)
    if flat.dtype != want.dtype:
        return OTHER_TYPE
    if flat.size != want.size:
        return OTHER_ORDER
    if [*axes] == sorted(axes):
        return flat.reshape(want.shape)
    if len(axes) == want.ndim:
        shape = [0] * want.ndim
        for n, a in enumerate(axes):
            shape[a] = want.shape[n]
    elif len(axes) == len(s.shape):
        shape = [*s.shape]
    else:
        return OTHER_ORDER
    return np.ascontiguousarray(flat.reshape(shape).transpose(axes)).reshape(want.shape)


class _Search:
    """Compares stored values with the reference's, and remembers what was right."""

    def __init__(
        self, view: Bundle, model: Path, last: SessionStep, rtol: float | None, atol: float | None
    ) -> None:
        self.view, self.model, self.last = view, model, last
        self.graph = ModelGraph(model)
        self.feed: dict[str, GroupValue] = {**last.case.feed, **last.state}
        half = bool(view.manifest["options"].get("fp16"))
        self.compare = partial(compare_values, rtol=rtol, atol=atol, half=half)
        self.spread = rtol is None and atol is None
        self.right: set[str] = set()
        self.skipped: Counter[str] = Counter()
        self.compared = 0
        self.passed: list[Stored] = []  # what was not compared, before the first wrong one
        self.refused: set[str] = set()

    @property
    def states(self) -> frozenset[str]:
        """The outputs that the next run reads as state."""
        rows = self.view.manifest.get("state", ())
        return frozenset(r["output"] for r in rows if r["output"] is not None)

    def first_of(
        self,
        client: RunnerClient,
        stored: Sequence[Stored],
        on_step: Callable[[str], None],
        alone: Collection[str] = (),
    ) -> tuple[Stored, OutputError] | None:
        """The first wrong one of these values; alone: only of those with one of these names."""
        among = [s for s in stored if not alone or any(r["name"] in alone for r in s.names)]
        for some in _batches([s for s in among if self.comparable(s)]):
            on_step(f"comparing stored values: {self.compared} of {len(among)} are done")
            found = self.first_wrong(client, some)
            if found is not None:
                return found
        return None

    def comparable(self, s: Stored) -> bool:
        """Whether the model's main graph has the value; where not, it is counted with the reason."""
        if self._rows(s):
            return True
        inside = any(r["name"] in self.graph.inner for r in s.names)
        self.skip(s, IN_REGION if inside else OWN_VALUE)
        return False

    def skip(self, s: Stored, why: str) -> None:
        self.skipped[why] += 1
        self.passed.append(s)

    def _rows(self, s: Stored) -> list[Mapping[str, Any]]:
        """Its names that the reference can return: a reshape of a value has the same bytes."""
        rows = (r for r in s.names if r["name"] in self.graph.tensors)
        return [r for r in rows if s.final or not r.get("last")]

    def first_wrong(
        self, client: RunnerClient, some: Sequence[Stored]
    ) -> tuple[Stored, OutputError] | None:
        """The first of these values with which no reference agrees."""
        pieces = client.peek([s.wish for s in some])
        names = dict.fromkeys(row["name"] for s in some for row in self._rows(s))
        inner = [n for n in names if n not in self.graph.outputs]
        want = oracle(self.model, self.view.manifest, inner).run(self.feed)
        got: dict[str, tuple[Stored, Array]] = {}
        for s, raw in zip(some, pieces, strict=True):
            forms = {r["name"]: r.get("axes", ()) for r in self._rows(s)}
            made = {n: arranged(s, axes, raw, want.get(n)) for n, axes in forms.items()}
            got |= {name: (s, value) for name, value in made.items() if isinstance(value, np.ndarray)}
            whys = [value for value in made.values() if isinstance(value, str)]
            if len(whys) == len(made):
                self.skip(s, whys[0])
        self.compared += len(some)
        wrong = self._judge({n: a for n, (_, a) in got.items()}, want)
        return None if wrong is None else (got[wrong.name][0], wrong)

    def _judge(self, got: Mapping[str, Array], want: Mapping[str, GroupValue]) -> OutputError | None:
        """The first wrong one, in order. Opinions are asked for a few values at a time, then for more: the
        first wrong value is mostly among the first that differ."""
        errors = {n: self.compare(n, got[n], want[n]) for n in got}
        apart = [n for n in got if not all(e.ok for e in errors[n])]
        few, order = 4, {n: k for k, n in enumerate(got)}
        while apart:
            some, apart, few = apart[:few], apart[few:], min(2 * few, 64)
            flush = not keeps_subnormals(self.view.manifest["options"])
            opinions = Opinions(self.model, self.compare, tuple(some), spread=self.spread, flush=flush)
            rulings = opinions.rule(self.feed, {n: got[n] for n in some}, want)
            for name in some:
                if not rulings[name].right:
                    self.right |= {n for n in got if order[n] < order[name]}
                    return next(e for e in rulings[name].errors if not e.ok)
        self.right |= set(got)
        return None

    # ------------------------------------------------------------ where it comes from

    def divergence(self, s: Stored, error: OutputError, inner: tuple[str, int] | None) -> Divergence:
        """What is told of the first wrong value."""
        part = self.graph.between([error.name], self.right)
        between = {o for n in part.nodes for o in self.graph.outputs_of(n)}
        via = [
            p.callee for p in self.passed if p.launch < s.launch and {r["name"] for r in p.names} & between
        ]
        return Divergence(
            error.name, error, s.callee, self._unit(s.callee), inner[1] if inner else None,
            self._suspects(part), tuple(dict.fromkeys([*via, s.callee])), part,
            inner[0] if inner else "",
        )  # fmt: skip

    def _suspects(self, part: Between) -> tuple[Suspect, ...]:
        found = map(self.graph.suspect, part.nodes)
        return tuple(s for s in found if s.op != "Constant")

    def after(self, wrong: Sequence[str]) -> Divergence | None:
        """An output that is wrong although every stored value before it is right: it was not compared itself.
        None where it was, and is right."""
        name = next((n for n in wrong if n in self.graph and n not in self.right), None)
        if name is None:
            return None
        part = self.graph.between([name], self.right)
        error = OutputError(name, "", (), 0.0, 0.0, 1, note="wrong as an output of the model")
        return Divergence(name, error, "", "", None, self._suspects(part), (), part)

    def _unit(self, callee: str) -> str:
        rows = self.view.manifest["kernels"]
        return next((str(r.get("unit", "")) for r in rows if r["name"] == callee), "")

    def inside(
        self,
        client: RunnerClient,
        found: tuple[Stored, OutputError],
        stored: Sequence[Stored],
        on_step: Callable[[str], None],
    ) -> tuple[str, int] | None:
        """Where a branch or a loop makes the first wrong value: what inside it is wrong first, and in which
        round. None where that is unknown."""
        maker = self.graph.maker(found[1].name)
        if maker is None or not self.graph.holds_graphs(maker):
            return None
        wanted = {r["name"] for s in stored for r in s.names if r["name"] not in self.graph.tensors}
        if not wanted:
            return None
        on_step("running the branch or loop by the ops' own references")
        known = inner_values(self.model, self.view.manifest, self.feed, wanted)
        inner = [s for s in stored if s.launch <= found[0].launch and known.has(s.names)]
        for some in _batches(inner):
            for s, raw in zip(some, client.peek([o.wish for o in some]), strict=True):
                wrong = self._inner_wrong(s, raw, known)
                if wrong is not None:
                    return wrong
        return None

    def _inner_wrong(self, s: Stored, raw: bytes, known: InnerValues) -> tuple[str, int] | None:
        for row in s.names:
            want = known.value(row["name"], s.round)
            value = OTHER_TYPE if want is None else arranged(s, row.get("axes", ()), raw, want)
            if want is None or isinstance(value, str):
                continue
            if not all(e.ok for e in self.compare(row["name"], value, want)):
                return row["name"], s.round
        return None
