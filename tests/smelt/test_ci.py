"""Reports for CI: infrastructure is an error and a wrong model a failure, in JUnit, pytest and GitHub."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import front_models
import onnx
import pytest

from smelt.cli.ci import (
    MOST_ANNOTATIONS,
    SUMMARY_BYTES,
    CiCase,
    Report,
    append_summary,
    github_lines,
    junit,
    outcome_of,
    reporting,
    summary,
)
from smelt.cli.main import main
from smelt.core.diag import SmeltError
from smelt.devicefarm.verdict import Verdict


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ci") / "m.onnx"
    onnx.save(front_models.small(), path)
    return path


def cases_of(path: Path) -> list[ElementTree.Element]:
    return [*ElementTree.parse(path).getroot().iter("testcase")]


# ---------------------------------------------------------------- JUnit


def test_every_verdict_is_one_of_three() -> None:
    about_the_model = {v for v in Verdict if outcome_of(v) == "failure"}
    assert about_the_model == {Verdict.MISMATCH, Verdict.CRASH, Verdict.TIMEOUT, Verdict.UNSUPPORTED}
    assert [v for v in Verdict if outcome_of(v) == "pass"] == [Verdict.PASS]


def test_a_mismatch_is_a_failure(model: Path, tmp_path: Path) -> None:
    """Also as located finding: SARIF has the nodes of the first wrong value."""
    words = ["validate", str(model), "--shape", "x:2x3x9x9", "--shape", "x:1x3x4x4", "--rtol", "0"]
    words += ["--atol", "0", "--bisect", "--junit", str(tmp_path / "r.xml")]
    assert main([*words, "--sarif", str(tmp_path / "r.sarif")]) == 1
    root = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert {root.get(k) for k in ("errors", "skipped")} == {"0"} and int(root.get("failures", "")) >= 1
    bad = [c for c in root.iter("testcase") if c.find("failure") is not None]
    failure = bad[0].find("failure")
    assert failure is not None and failure.get("type") == "mismatch"
    assert "elements differ" in failure.get("message", "")
    names = {p.get("name"): p.get("value") for p in root.iter("property")}
    assert names["device"] == "local" and names["emulated"] == "false"
    (ran,) = json.loads((tmp_path / "r.sarif").read_text())["runs"]
    (found,) = ran["results"]
    assert found["ruleId"] == "mismatch" and "first bad value" in found["message"]["text"]
    nodes = {n.name for n in onnx.load(model).graph.node}
    assert {p["name"] for p in found["locations"][0]["logicalLocations"]} <= nodes


def test_a_right_model_has_no_findings(model: Path, tmp_path: Path) -> None:
    words = ["validate", str(model), "--shape", "x:1x3x4x4", "--bisect"]
    assert main([*words, "--junit", str(tmp_path / "r.xml"), "--sarif", str(tmp_path / "r.sarif")]) == 0
    (case,) = cases_of(tmp_path / "r.xml")
    assert case.find("failure") is None and case.find("error") is None
    assert json.loads((tmp_path / "r.sarif").read_text())["runs"][0]["results"] == []


def test_no_device_is_an_error(model: Path, tmp_path: Path) -> None:
    words = ["validate", str(model), "--device", "nowhere", "--junit", str(tmp_path / "r.xml")]
    assert main(words) == 4
    (case,) = cases_of(tmp_path / "r.xml")
    error = case.find("error")
    assert error is not None and error.get("type") == "no device" and "nowhere" in error.get("message", "")


def test_what_xml_cannot_hold() -> None:
    report = Report("validate", "m\x00.onnx")
    report.add(CiCase("a\x1b[31m\ud800]]>", "failure", "mismatch", 'say "no" & <b>\x00', "t\x07\n\u2028"))
    root = ElementTree.fromstring(junit(report, 0.5))
    (case,) = root.iter("testcase")
    assert case.get("name") == "a\ufffd[31m\ufffd]]>"
    failure = case.find("failure")
    assert failure is not None and failure.get("message") == 'say "no" & <b>\ufffd'


# ---------------------------------------------------------------- GitHub


def test_annotations_are_escaped_and_few() -> None:
    report = Report("validate", "m")
    for n in range(30):
        report.add(CiCase(f"x:{n}", "error", "infra", "lost"))
    report.add(CiCase("y", "failure", "mismatch", "50% off\r\n::error::injected, here: now"))
    lines = github_lines(report)
    assert len(lines) == MOST_ANNOTATIONS
    assert lines[0] == (
        "::error title=smelt validate%3A mismatch::y: 50%25 off%0D%0A::error::injected, here: now"
    )
    assert all("\n" not in line and line.startswith("::error ") for line in lines)


def test_the_summary_has_all_and_no_markup_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("bench", "<img src=x>|m")
    for n in range(30):
        report.add(CiCase(f"a|b{n}", "failure", "crash", "<script>`x`"))
    text = summary(report)
    assert text.count("\n| a\\|b") == 30 and "<script>" not in text and "<img" not in text
    place = tmp_path / "summary.md"
    place.write_bytes(b"x" * (SUMMARY_BYTES - 100))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place))
    append_summary(report)
    assert place.stat().st_size == SUMMARY_BYTES
    assert place.read_text().endswith("The rest does not fit.\n")


def test_github_is_told_where_it_asks(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "s.md"))
    assert main(["validate", str(model), "--device", "nowhere", "--json"]) == 4
    out, err = capsys.readouterr()
    assert err.startswith("::error title=smelt validate%3A no device::run: ") and json.loads(out)
    assert "1 error" in (tmp_path / "s.md").read_text()


def test_an_error_is_told_and_raised(tmp_path: Path) -> None:
    args = argparse.Namespace(junit=str(tmp_path / "r.xml"), github=False)
    with pytest.raises(SmeltError), reporting(args, "bench", "m"):
        raise SmeltError("the link is gone", kind="infra")
    assert cases_of(tmp_path / "r.xml")[0].find("error") is not None


# ---------------------------------------------------------------- pytest

TESTS = """
import pytest
from smelt.core.diag import SmeltError

def test_right(farm_device):
    model = r"{model}"
    bundle = farm_device.compile(model)
    farm_device.check(bundle, model, count=1)

def test_wrong(farm_device):
    assert farm_device.name == "another", farm_device.tags

def test_lost(farm_device):
    raise SmeltError("the link is gone", kind="infra")
"""


def inner(tmp_path: Path, text: str, *words: str) -> tuple[int, str, dict[str, ElementTree.Element]]:
    """Exit code, output and JUnit cases by name of a pytest that has the plug-in."""
    (tmp_path / "test_farm.py").write_text(text)
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "smelt.pytest_plugin", "-p", "no:cacheprovider",
         f"--rootdir={tmp_path}", "-c", os.devnull, "--junitxml=r.xml", "test_farm.py", *words],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    there = (tmp_path / "r.xml").exists()
    found = {str(c.get("name")): c for c in (cases_of(tmp_path / "r.xml") if there else ())}
    return done.returncode, done.stdout + done.stderr, found


def test_the_plugin_tells_errors_from_failures(tmp_path: Path, model: Path) -> None:
    code, out, found = inner(tmp_path, TESTS.format(model=model))
    assert code == 1 and "1 failed, 1 passed, 1 error" in out, out
    assert [c.tag for c in found["test_wrong[local]"]][-1] == "failure"
    assert [c.tag for c in found["test_lost[local]"]][-1] == "error"
    told = {p.get("name"): p.get("value") for p in found["test_right[local]"].iter("property")}
    assert told["farm_device"] == "local" and told["farm_emulated"] == "false"
    assert told["farm_reference"].startswith("onnxruntime")


def test_devices_are_selected_by_what_they_have(tmp_path: Path) -> None:
    text = "def test_it(farm_device):\n    assert 'emulated' in farm_device.tags\n"
    both = ("--farm-require", "tag=emulated", "--farm-require", "platform=armv7-linux")
    _, out, found = inner(tmp_path, text, *both)
    assert {*found} == {"test_it[qemu-armv7]"}, out
    _, _, found = inner(tmp_path, text, "--farm-require", "tag=emulated")
    assert {"test_it[qemu-arm64]", "test_it[qemu-riscv64]"} <= {*found}
    code, out, _ = inner(tmp_path, text, "--farm-require", "colour=red")
    assert code == 4 and "write tag=T" in out
    code, out, _ = inner(tmp_path, text, "--farm-device", "nowhere")
    assert "there are" in out and code != 0
    code, out, found = inner(tmp_path, text, "--farm-require", "tag=purple")
    assert code == 1 and found["test_it[no-device]"].find("error") is not None, out
    code, out, found = inner(tmp_path, text, "--farm-require", "tag=purple", "--farm-skip-missing")
    assert code == 0 and found["test_it[no-device]"].find("skipped") is not None, out
