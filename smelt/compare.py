"""A bundle, its ONNX model and inputs -> a verdict per output against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.core.lazily import Lazily
from smelt.core.subnormals import keeps_subnormals
from smelt.devicefarm.capabilities import NO_ORIGIN, Origin
from smelt.devicefarm.client import RunnerClient
from smelt.devicefarm.report import Crash, RunnerError
from smelt.devicefarm.verdict import Verdict, verdict_of_error
from smelt.difference import OutputError, compare_values
from smelt.groups import Group, GroupValue, groups, unpacked
from smelt.leasing import Where
from smelt.opinions import Compare, Opinion, Opinions, Ruling
from smelt.own_reference import Evaluator, oracle
from smelt.running import running
from smelt.script import SessionStep
from smelt.shapes import RunCase, label, read_state, state_values, trials
from smelt.shapes import case as case_of

if TYPE_CHECKING:
    import numpy as np
else:
    np = Lazily("numpy")

Status = Literal["pass", "mismatch", "skipped", "failed"]


@dataclass(frozen=True)
class CaseResult:
    """The result of one set of inputs. skipped: the reference refuses them; failed: the device refuses them,
    or the model crashed. why: the reason of a status, or of a ruling on a difference.

    opinions: output -> what other references said, which are asked where smelt and the reference differ.
    wrong: the outputs that are a mismatch. script: of what went wrong, the runs of its session up to it.
    crash: how the model's process died, where it did.
    """

    label: str
    status: Status
    outputs: tuple[OutputError, ...] = ()
    why: str = ""
    verdict: Verdict = Verdict.PASS
    arena_bytes: int = 0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    opinions: Mapping[str, tuple[Opinion, ...]] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    script: tuple[SessionStep, ...] = ()
    crash: Crash | None = None


@dataclass(frozen=True)
class Validation:
    """The results of all cases on one device. reference: name and version of what they were compared with;
    origin: the hashes of device, bundle and model."""

    device: str
    emulated: bool
    reference: str
    cases: tuple[CaseResult, ...]
    origin: Origin = NO_ORIGIN

    @property
    def verdict(self) -> Verdict:
        """PASS needs at least one case that was compared."""
        bad = [c.verdict for c in self.cases if c.verdict is not Verdict.PASS]
        if bad:
            return bad[0]
        return Verdict.PASS if any(c.status == "pass" for c in self.cases) else Verdict.MISMATCH


# ---------------------------------------------------------------- runs


def validate(
    bundle: Bundle,
    model: Path,
    cases: Iterable[RunCase],
    *,
    device: Where = None,
    rtol: float | None = None,
    atol: float | None = None,
    threads: int = 0,
    enough: int | None = None,
    on_case: Callable[[CaseResult], None] = lambda c: None,
) -> Validation:
    """Run every case on the device and in ONNX Runtime, the reference. Stops after `enough` compared cases.

    A model with ops of a plug-in is compared with smelt/own_reference.py instead. A case of a model that
    keeps state has up to STATE_RUNS runs, each of which continues from the state of the one before. Inputs
    that the reference refuses are not legal for the model, and are skipped. After a crash on the device the
    model is started again for the next case. A difference from ONNX Runtime is a mismatch only where no other
    reference agrees with smelt (smelt/opinions.py).

    rtol, atol: None takes the tolerance of the output's dtype (smelt/difference.py), or FP16_TOLERANCE for a
    bundle made with fp16. on_case: called after each case. Raises SmeltError(kind='infra') for what says
    nothing about the model: no device, a lost link.
    """
    judge = _judge_of(bundle, model, rtol, atol)
    results: list[CaseResult] = []
    with ExitStack() as stack:
        client: RunnerClient | None = None
        name, emulated, origin = "", False, NO_ORIGIN
        for case in cases:
            if enough is not None and sum(r.status != "skipped" for r in results) >= enough:
                break
            if client is None:
                client = stack.enter_context(running(bundle, device, threads=threads))
                name, emulated, origin = client.device, client.emulated, client.origin
            if judge.replaced:
                result = _steps(client, judge, case)
            else:
                result = _one(client, judge, case, {})[0]
                result = replace(result, script=_told(result, [SessionStep(case)]))
            if result.verdict in (Verdict.CRASH, Verdict.TIMEOUT):
                stack.close()
                client = None
            results.append(result)
            on_case(result)
    return Validation(name, emulated, judge.reference.label, tuple(results), origin)


def validate_entries(
    bundle: Bundle,
    models: Mapping[str, Path],
    *,
    device: Where = None,
    rtol: float | None = None,
    atol: float | None = None,
    threads: int = 0,
    count: int = 3,
    seed: int = 0,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    on_case: Callable[[CaseResult], None] = lambda c: None,
) -> dict[str, Validation]:
    """Validate a bundle with several entries: name of an entry -> its results. models: the ONNX file of each.

    A case is a session: the entries run in their order, each at shapes that fit the state that those before
    have left, and STATE_RUNS times where it continues from a state of its own. ONNX Runtime gets the state as
    inputs. A case ends at the first wrong run. ranges: input -> lowest and highest random value ('': all
    others). Raises SmeltError as `validate`.
    """
    views = {name: bundle.entry(name) for name in bundle.entries}
    judges = {name: _judge_of(view, models[name], rtol, atol) for name, view in views.items()}
    results: dict[str, list[CaseResult]] = {name: [] for name in views}
    with ExitStack() as stack:
        client = stack.enter_context(running(bundle, device, threads=threads))
        where, emulated, origin = client.device, client.emulated, client.origin
        for k in range(count):
            client.reset_state()
            held: dict[str, GroupValue] = {}
            script: list[SessionStep] = []
            for name, view in views.items():
                client.use_entry(name)
                turn = partial(_fitting, view, k, seed=seed + k, ranges=ranges)
                result = _turn(client, judges[name], turn, held, name, script)
                result = replace(result, label=f"{name}: {result.label}", script=_told(result, script))
                results[name].append(result)
                on_case(result)
                if result.verdict in (Verdict.CRASH, Verdict.TIMEOUT):
                    stack.close()
                    client = stack.enter_context(running(bundle, device, threads=threads))
                if result.status in ("failed", "mismatch"):
                    break
    return {
        name: Validation(where, emulated, judges[name].reference.label, tuple(found), origin)
        for name, found in results.items()
    }


def _fitting(
    view: Bundle,
    k: int,
    held: Mapping[str, GroupValue],
    seed: int,
    ranges: Mapping[str, tuple[float, float]] | None,
) -> RunCase | None:
    """The k-th case of an entry, at the sizes that the held state has; None where the entry takes no such
    state."""
    bound = state_values(view, {name: np.shape(a) for name, a in held.items()}, every=True)
    if bound is None:
        return None
    tried = trials(view)
    return case_of(view, {**tried[k % len(tried)], **bound}, seed=seed, ranges=ranges)


def _turn(
    client: RunnerClient, judge: _Judge, fitting: Callable[..., RunCase | None], held: dict[str, GroupValue],
    entry: str, script: list[SessionStep],
) -> CaseResult:  # fmt: skip
    """Run an entry from the held state, and update that; `held`: input -> the state that the reference
    has. script: the session's runs so far, to which these are added."""
    own = any(output is not None and name in judge.read for name, output in judge.replaced.items())
    result, done = CaseResult("", "skipped"), 0
    while done < (STATE_RUNS if own else 1):
        case = fitting(held=held)
        if case is None:
            shapes = label({name: np.shape(held[name]) for name in held if name in judge.read})
            why = f"it takes no state of {shapes}"
            return replace(result, why=why) if done else CaseResult(shapes, "skipped", why=why)
        state = {name: held.get(name, a) for name, a in case.state.items()}
        script.append(SessionStep(case, entry, state))
        result, want = _one(client, judge, case, state)
        if result.status != "pass":
            break
        done += 1
        held |= {name: want[output] for name, output in judge.replaced.items() if output is not None}
    return replace(result, label=f"{result.label}, step {done}") if own else result


def _judge_of(bundle: Bundle, model: Path, rtol: float | None, atol: float | None) -> _Judge:
    options = bundle.manifest["options"]
    half, flush = bool(options.get("fp16")), not keeps_subnormals(options)
    compare = partial(compare_values, rtol=rtol, atol=atol, half=half)
    reference = oracle(model, bundle.manifest)
    spread = rtol is None and atol is None
    opinions = Opinions(model, compare, spread=spread, first=reference.name, flush=flush)
    replaced = {row["name"]: row["output"] for row in bundle.manifest["state"]}
    read = frozenset(row["name"] for row in read_state(bundle))
    return _Judge(reference, groups(bundle.manifest, "outputs"), opinions, compare, replaced, read)


@dataclass(frozen=True)
class _Judge:
    """What decides whether outputs are right. replaced: input -> the output that replaces it as state, None
    where only another entry replaces it. read: the inputs that are state."""

    reference: Evaluator
    outputs: Sequence[Group]
    opinions: Opinions
    compare: Compare
    replaced: Mapping[str, str | None]
    read: frozenset[str]


STATE_RUNS = 4
"""Runs of a case in which each run continues from the state of the one before."""


def _steps(client: RunnerClient, judge: _Judge, case: RunCase) -> CaseResult:
    """Run a case STATE_RUNS times from the start of the state; the reference gets the state that it returned
    itself. The result of the first wrong run, or of the last one."""
    client.reset_state()
    following: RunCase | None = case
    state, done = case.state, 0
    script: list[SessionStep] = []
    while following is not None and done < STATE_RUNS:
        script.append(SessionStep(following, state=state))
        result, want = _one(client, judge, following, state)
        if result.status != "pass":
            break
        done, last = done + 1, result
        made = {name: want[output] for name, output in judge.replaced.items() if output is not None}
        state = {name: made.get(name, a) for name, a in state.items()}
        following = following.then({name: a.shape for name, a in state.items()})
    if result.status == "skipped" and done:  # the reference takes no more steps
        result = replace(last, why=f"{judge.reference.name} refuses step {done + 1}")
    step = f"{done} step{'s' * (done > 1)}" if result.status == "pass" else f"step {done + 1}"
    return replace(result, label=f"{case.label}, {step}", script=_told(result, script))


def _told(result: CaseResult, script: Sequence[SessionStep]) -> tuple[SessionStep, ...]:
    """The script where something went wrong; others need not keep their inputs."""
    return tuple(script) if result.status in ("mismatch", "failed") else ()


def _one(
    client: RunnerClient, judge: _Judge, case: RunCase, state: Mapping[str, GroupValue]
) -> tuple[CaseResult, Mapping[str, GroupValue]]:
    """The result of one run, and the reference's outputs. state: what the reference is fed besides the
    case."""
    fed = {**case.feed, **state}
    try:
        want = judge.reference.run(fed)
    except SmeltError as e:
        return CaseResult(case.label, "skipped", why=str(e)), {}
    try:
        report = client.run(case.tensors)
    except SmeltError as e:
        verdict = verdict_of_error(e)
        if verdict.infrastructure:
            raise
        crash = e.crash if isinstance(e, RunnerError) else None
        return CaseResult(case.label, "failed", why=str(e), verdict=verdict, crash=crash), want
    got = unpacked(judge.outputs, report.outputs)
    errors = {n: tuple(judge.compare(n, got[n], want[n])) for n in got}
    apart = {n: got[n] for n in got if not all(e.ok for e in errors[n])}
    rulings = judge.opinions.rule(fed, apart, want) if apart else {}
    errors |= {n: r.errors for n, r in rulings.items()}
    good = all(r.right for r in rulings.values())
    if not good:
        client.confirm()
    result = CaseResult(
        case.label, "pass" if good else "mismatch", tuple(e for n in got for e in errors[n]),
        shapes=case.shapes, why=_why({n: r for n, r in rulings.items() if r.right is good}),
        verdict=Verdict.PASS if good else Verdict.MISMATCH, arena_bytes=report.memory.arena_bytes,
        opinions={n: r.opinions for n, r in rulings.items()},
        wrong=tuple(n for n, r in rulings.items() if not r.right),
    )  # fmt: skip
    return result, want


def _why(rulings: Mapping[str, Ruling]) -> str:
    """Each reason once, after the names of the first three outputs that it is about."""
    about: dict[str, list[str]] = {}
    for name, ruling in rulings.items():
        about.setdefault(ruling.why, []).append(f"'{name}'")
    more = {why: f" and {len(names) - 3} more" if len(names) > 3 else "" for why, names in about.items()}
    return "; ".join(f"{', '.join(names[:3])}{more[why]} {why}" for why, names in about.items())
