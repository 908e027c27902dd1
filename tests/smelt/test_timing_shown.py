"""Every number stands with its verdict: what commands print of scripted runs, and the options about
conditions."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import front_models
import onnx
import pytest

from smelt.bench import Measured
from smelt.cli import report
from smelt.cli.bench import measured_data, measured_text
from smelt.cli.main import main
from smelt.core.session_memory import MEMORY_FIELDS
from smelt.devicefarm.condition import Condition, TelemetryReading
from smelt.devicefarm.doubts import Samples
from smelt.devicefarm.measure import STEADY, SUSTAINED, Doubt, RunPlan, TimingVerdict
from smelt.devicefarm.profiles import Conditions, Profile
from smelt.devicefarm.report import RunnerMemory, RunReport
from smelt.driver import compile

MS = 10**6


def measured(
    label: str, ns: list[int], *kinds: TimingVerdict, emulated: bool = False, plan: RunPlan = STEADY
) -> Measured:
    """A case of which these samples are known, and doubts of these kinds."""
    n = len(ns)
    samples = Samples(1, tuple(ns), tuple(ns), (0,) * n, (0,) * n, (0,) * n)
    facts: Any = SimpleNamespace(cpu="scripted", arch="a")
    memory = RunnerMemory(**dict.fromkeys(MEMORY_FIELDS, 0), resident_peak=0)
    telemetry = (TelemetryReading(0, 0, 71.5, None, None, None, (), ()),)
    doubts = tuple(Doubt(k, f"because of {k.value}") for k in kinds)
    found = RunReport(
        "board", emulated, facts, facts, {}, 3 * MS, samples, Samples(), telemetry, memory, Condition(),
        Condition(), True, doubts=doubts,
    )  # fmt: skip
    return Measured(label, 2 * MS, found, {}, plan=plan)


STEADILY = [MS + i % 7 for i in range(60)]


def page(times: tuple[Measured, ...], emulated: bool) -> list[str]:
    """The lines about times of `make target=...`."""
    made: Any = SimpleNamespace(times=times, validation=SimpleNamespace(emulated=emulated))
    return "\n".join(report._times(made)).splitlines()


@pytest.mark.parametrize("kind", list(TimingVerdict))
def test_each_line_of_times_ends_in_its_verdict(kind: TimingVerdict) -> None:
    doubts = () if kind is TimingVerdict.VALID else (kind,)
    emulated = kind is TimingVerdict.EMULATED
    cases = (measured("n=1", STEADILY), measured("n=8", STEADILY, *doubts, emulated=emulated))
    for lines in (measured_text(cases).splitlines(), page(cases, emulated)):
        with_times = [line for line in lines if re.search(r"\d ms", line)]
        assert [line.split("  ")[-1] for line in with_times] == ["valid", kind.value]
        why = f"{kind.value}: because of {kind.value} (n=8)"
        assert any(line.strip() == why for line in lines) == bool(doubts)


def test_json_has_the_verdict_with_its_reasons() -> None:
    told = measured_data(measured("n=1", STEADILY, TimingVerdict.BUSY, TimingVerdict.UNSTABLE))
    assert (told["timing"], told["verdict"]) == ("busy", "invalid")
    assert told["doubts"][0] == {"kind": "busy", "text": "because of busy"}
    assert json.loads(json.dumps(told))["samples_raw"]["ns"] == STEADILY and told["sustained"] is None


def test_a_sustained_run_tells_both_ends() -> None:
    slowing = [int(10 * MS * (1 + 0.5 * min(1, i / 300))) + i % 5 for i in range(600)]
    m = measured("n=1", slowing, TimingVerdict.THROTTLED, plan=SUSTAINED)
    assert m.verdict.exit_code == 0  # the speed at its end is valid: that it is slower there is the finding
    told = measured_data(m)["sustained"]
    assert told["timing"] == "valid" and told["steady_ns_p50"] == pytest.approx(15 * MS, rel=1e-3)
    (line,) = (line for line in measured_text((m,)).splitlines() if "sustained:" in line)
    assert re.search(r"from 10.\d+ ms \(unstable\) to 15.000 ms \(valid\): 70% .*, at most 72 degrees", line)


def test_what_was_set_is_told_below_the_times() -> None:
    under = Conditions(
        Profile("controlled", "performance", 0, (4, 5)),
        {"policy4": ("ondemand", "performance")},
        {"policy0": ("a", "")},
    )
    m = measured("n=1", STEADILY)
    shown = measured_text((Measured(m.label, m.load_ns, m.report, {}, under),)).splitlines()
    assert shown[-3:] == [
        "conditions: controlled, on processors 4, 5",
        "  set: policy4: performance (was ondemand)",
        "  not set: policy0: wanted a, found nothing",
    ]


# ---------------------------------------------------------------- the options


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    onnx.save(front_models.small(), folder / "small.onnx")
    return Path(compile(folder / "small.onnx", "host", output=str(folder / "out")).path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cores", "0"], "add --conditions controlled"),
        (["--khz", "5"], "add --conditions controlled"),
        (["--conditions", "controlled", "--cores", "x"], "--cores: 'x' is no list of processors"),
        (["--baseline", "nowhere"], "no bundle 'nowhere'"),
        (["--baseline", "b", "--against", "onnxruntime"], "choose one"),
        (["--baseline", "b", "--plan", "sustained"], "about one build"),
        (["--cool", "-3"], "is no number from 0"),
    ],
)
def test_usage(bundle: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["bench", str(bundle), *words])
    except SystemExit as e:
        code = int(e.code or 0)
    assert code == 2 and said in capsys.readouterr().err


def test_controlled_conditions_on_this_machine(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processors alone: no test changes the governor of a machine."""
    monkeypatch.setattr("smelt.cli.bench.controlled", lambda now, khz, cpus: Profile("controlled", cpus=cpus))
    core = max(os.sched_getaffinity(0))
    words = ["--plan", "quick", "--shape", "x:1x3x8x8", "--conditions", "controlled", "--cores", str(core)]
    code = main(["bench", str(bundle), "--cool", "0", "--cool-wait", "0", *words, "--json"])
    data = json.loads(capsys.readouterr().out)
    assert code in (0, 5) and data["conditions"]["profile"]["cpus"] == [core]
    assert set(data["cases"][0]["samples_raw"]["cpu"]) == {core}
    assert data["conditions"]["changed"] == data["conditions"]["refused"] == {}
