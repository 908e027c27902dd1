"""Comparing two builds: what is launched in which order, which launches count, and how the command ends.

The device is scripted: what each launch takes comes from a generator, so that verdicts are the same on any
machine. One test at the end compares on the real one.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import front_models
import numpy as np
import pytest

from smelt import paired
from smelt.bench import PLANS
from smelt.cli import bench
from smelt.cli import paired as command
from smelt.cli.main import main
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.devicefarm.compare_builds import Change
from smelt.devicefarm.condition import Condition
from smelt.devicefarm.doubts import Samples
from smelt.devicefarm.measure import QUICK, SHOWN, Doubt, TimingVerdict
from smelt.devicefarm.profiles import AS_SHIPPED, Gate
from smelt.devicefarm.report import RunReport
from smelt.driver import compile
from smelt.paired import SPARE_PAIRS, compare_builds
from smelt.shapes import RunCase

SMALL, WILD = RunCase("n=1", {}), RunCase("n=64", {"x": np.zeros(1)})
Times = Callable[[bool, int], float]
"""Whether of the new build, and the number of the launch -> ns."""


@dataclass
class Scripted:
    """A device on which each launch takes what `times` says, and is busy where `busy` says so."""

    times: Times
    busy: Callable[[int], bool] = lambda launch: False
    hot: Callable[[int], Doubt | None] = lambda launch: None
    emulated: bool = False
    launches: list[bool] = field(default_factory=list)
    plans: list[Any] = field(default_factory=list)
    open: int = 0
    wild: np.random.Generator = field(default_factory=lambda: np.random.default_rng(4))

    @contextmanager
    def runners(self, bundles: Sequence[Bundle], device: str | None) -> Iterator[tuple[Any, ...]]:
        client = SimpleNamespace(
            hello=lambda: SimpleNamespace(condition=Condition()), emulated=self.emulated,
            cool_down=lambda gate: self.hot(len(self.launches)),
        )  # fmt: skip
        yield tuple(SimpleNamespace(loaded=self._loaded(new), client=client) for new in (True, False))

    def _loaded(self, new: bool) -> Callable[[int], Any]:
        @contextmanager
        def loaded(threads: int) -> Iterator[Any]:
            self.open += 1
            assert self.open == 1, "two processes at once"
            self.launches.append(new)
            yield SimpleNamespace(
                model=SimpleNamespace(load_ns=7), emulated=self.emulated,
                run=lambda tensors, plan, outputs: self._report(new, plan, bool(tensors)),
            )  # fmt: skip
            self.open -= 1

        return loaded

    def _report(self, new: bool, plan: Any, wild: bool) -> Any:
        number = len(self.launches) - 1
        time = self.times(new, number) * (self.wild.uniform(1, 2) if wild else 1)
        self.plans.append(plan)
        samples = Samples(1, tuple(int(time * f) for f in np.linspace(0.999, 1.001, 9)))
        doubts = (Doubt(TimingVerdict.BUSY, "a hog"),) if self.busy(number) else ()
        facts, none = SimpleNamespace(cpu="scripted", arch=""), SimpleNamespace()
        return RunReport(
            "board",
            self.emulated,
            facts,
            none,
            {},
            9,
            samples,
            Samples(),
            (),
            none,
            none,
            none,
            True,
            doubts=doubts,
        )  # type: ignore[arg-type]


def bundle(**changes: Any) -> Any:
    manifest = {"platform": "p", "inputs": [{"name": "x", "dtype": "float32", "shape": ["n", 4]}]}
    return SimpleNamespace(manifest=manifest | changes, path="somewhere")


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[paired.Compared, ...]]:
    def compare(device: Scripted, cases: Sequence[RunCase] = (SMALL,), **options: Any) -> Any:
        monkeypatch.setattr(paired, "runners", device.runners)
        return compare_builds(bundle(), bundle(), cases, **{"seed": 1, **options})

    return compare


def noisy(slower: float, share: float = 0.01) -> Times:
    noise = np.random.default_rng(3).normal(1, share, 1000)
    return lambda new, launch: 1e6 * noise[launch] * (slower if new else 1)


Compare = Callable[..., tuple[paired.Compared, ...]]


@pytest.mark.parametrize(
    ("slower", "change"), [(1.05, Change.REGRESSION), (1, Change.NO_DIFFERENCE), (0.9, Change.IMPROVEMENT)]
)
def test_verdicts(on: Compare, slower: float, change: Change) -> None:
    device = Scripted(noisy(slower))
    (found,) = on(device)
    assert found.comparison.change is change and found.comparison.pairs == 16
    assert found.comparison.ratio == pytest.approx(slower, rel=0.01)
    assert len(device.launches) == len(found.launches) == 32 and device.plans == [QUICK] * 32


def test_each_pair_has_both_builds_in_an_order_by_chance(on: Compare) -> None:
    orders = set()
    for seed in range(4):
        device = Scripted(noisy(1.0))
        (found,) = on(device, seed=seed)
        pairs = list(zip(device.launches[::2], device.launches[1::2], strict=True))
        assert all(a != b for a, b in pairs)
        assert 3 <= sum(a for a, _ in pairs) <= 13
        orders.add(tuple(pairs))
        assert [x.pair for x in found.launches] == [i // 2 for i in range(32)]
        assert [x.new for x in found.launches] == device.launches
        assert [x.first for x in found.launches] == [True, False] * 16
    assert len(orders) == 4


def test_cases_end_by_themselves(on: Compare) -> None:
    clear, unclear = on(Scripted(noisy(1.0)), (SMALL, WILD))
    assert clear.comparison.pairs == 16 and len(clear.launches) == 32
    assert unclear.comparison.change is Change.INCONCLUSIVE and len(unclear.launches) == 128  # went on alone


def test_disturbed_pairs_are_replaced_and_kept(on: Compare) -> None:
    device = Scripted(
        lambda new, launch: 1e6 * (3 if launch % 10 == 4 else 1), busy=lambda launch: launch % 10 == 4
    )
    (found,) = on(device)
    assert found.comparison.change is Change.NO_DIFFERENCE and found.comparison.ratio == pytest.approx(1)
    assert found.comparison.pairs == 16 and 32 < len(found.launches) < 48


def test_a_busy_device_is_inconclusive_and_soon_left(on: Compare) -> None:
    device = Scripted(noisy(2.0), busy=lambda launch: True)
    (found,) = on(device)
    assert found.comparison.change is Change.INCONCLUSIVE
    assert len(device.launches) == 2 * (SPARE_PAIRS + 1)  # of which the last one finds no other in its place
    assert "only 0 of 17 pairs were undisturbed; launches: 34 busy" in found.comparison.reasons[-1]


def test_launches_that_the_gate_calls_hot_do_not_count(on: Compare) -> None:
    hot = Doubt(TimingVerdict.TOO_HOT, "90 degrees C")
    device = Scripted(noisy(1.0), hot=lambda launch: hot if launch in (3, 8) else None)
    (found,) = on(device, gate=Gate())
    assert [i for i, x in enumerate(found.launches) if x.verdict is TimingVerdict.TOO_HOT] == [3, 8]
    assert found.comparison.pairs == 16 and len(found.launches) == 36


def test_an_emulated_device_never_tells_a_speed(on: Compare) -> None:
    device = Scripted(noisy(2.0), emulated=True)
    (found,) = on(device)
    assert found.comparison.change is Change.EMULATED and np.isnan(found.comparison.ratio)
    assert device.plans == [SHOWN] * 2


def test_bundles_that_do_not_fit() -> None:
    with pytest.raises(SmeltError, match="platform: p, the baseline's: q"):
        compare_builds(bundle(), bundle(platform="q"), (SMALL,))
    with pytest.raises(SmeltError, match="the new one's inputs"):
        compare_builds(bundle(), bundle(inputs=[]), (SMALL,))


@pytest.mark.parametrize(
    ("slower", "emulated", "code", "word"),
    [(1.05, False, 1, "regression"), (1, False, 0, "no difference"), (2, True, 5, "emulated")],
)
def test_the_commands_result(
    slower: float, emulated: bool, code: int, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paired, "runners", Scripted(noisy(slower), emulated=emulated).runners)
    args = argparse.Namespace(device=None, threads=1, seed=0, verbose=False, json=False)
    result = command.compare(args, bundle(), bundle(), (SMALL,), QUICK, lambda now: AS_SHIPPED, Gate())
    assert (result.code, result.data["verdict"]) == (code, word)
    told = json.loads(json.dumps(result.data, allow_nan=False))["cases"][0]
    assert (told["ratio"] is None) == emulated and all(x["samples_ns"] for x in told["launches"])
    assert word in result.text and ("not the speed of any device" in result.text) == emulated
    assert emulated == ("interval" in result.text and "  -  " in result.text)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return compile(front_models.small(), "host", output=str(tmp_path_factory.mktemp("paired") / "out"))


@pytest.mark.parametrize(
    ("slower", "emulated", "code", "tags"),
    [
        (1.05, False, 1, {"n=1": "failure", "n=64": "error"}),  # n=64 is wild: nothing can be said of it
        (0.9, False, 5, {"n=1": "", "n=64": "error"}),
        (1.05, True, 5, {"n=1": "error", "n=64": "error"}),
        (0.0, False, 6, {"run": "error"}),
    ],
)
def test_ci_is_told(
    made: Bundle, slower: float, emulated: bool, code: int, tags: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A slower build is a failure; what says nothing about the builds is an error."""

    def times(new: bool, launch: int) -> float:
        if not slower:
            raise SmeltError("the link is gone", kind="infra")
        return noisy(slower)(new, launch)

    monkeypatch.setattr(paired, "runners", Scripted(times, emulated=emulated).runners)
    monkeypatch.setattr(paired.secrets, "randbits", lambda bits: 1)  # the coin: one order, one result
    monkeypatch.setattr(bench, "_cases", lambda args, bundle: [SMALL, WILD])
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "s.md"))
    words = ["bench", str(made.path), "--baseline", str(made.path), "--junit", str(tmp_path / "r.xml")]
    assert main(words) == code
    root = ElementTree.parse(tmp_path / "r.xml").getroot()
    bad = ("failure", "error")
    found = {c.get("name"): "".join(e.tag for e in c if e.tag in bad) for c in root.iter("testcase")}
    assert found == tags
    counts = Counter(tags.values())
    assert (root.get("failures"), root.get("errors")) == (str(counts["failure"]), str(counts["error"]))
    told = capsys.readouterr().err
    assert told.count("::error ") == sum(map(bool, tags.values()))
    summary = (tmp_path / "s.md").read_text()
    if code == 1:
        failure = root.find(".//failure")
        assert failure is not None and failure.get("type") == "regression"
        assert failure.get("message", "").startswith("the new build takes 1.05")
        assert "32 valid" in (failure.text or "") and "regression::n=1: the new build takes" in told
        names = {p.get("name"): p.get("value") for p in next(root.iter("testcase")).iter("property")}
        assert float(names["ratio"] or 0) == pytest.approx(1.05, rel=0.01) and names["pairs"] == "16"
        assert "| n=1 | regression | the new build takes 1.05" in summary
    if slower == 0.9:
        assert "| n=1 | improvement | the new build takes 0.9" in summary and "1 pass, 1 error" in summary


def test_pages_are_about_one_build(made: Bundle, tmp_path: Path) -> None:
    words = ["bench", str(made.path), "--baseline", str(made.path), "--html", str(tmp_path / "a.html")]
    assert main(words) == 2


def test_one_bundle_against_itself_on_this_machine(
    made: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLANS, "quick", replace(QUICK, warmup_min=0.02, min_time=0.02))
    code = main(["bench", str(made.path), "--baseline", str(made.path), "--shape", "x:1x3x8x8", "--json"])
    data = json.loads(capsys.readouterr().out)
    (row,) = data["cases"]
    # a busy machine leaves it open; slower than itself it is never called
    assert (code, data["verdict"]) in ((0, "no difference"), (5, "inconclusive"))
    assert {x["build"] for x in row["launches"]} == {"new", "baseline"} and len(row["launches"]) >= 32
