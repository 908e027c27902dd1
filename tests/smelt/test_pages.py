"""Pages: well-formed, self-contained, with what they were given and nothing that runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import front_models
import onnx
import pytest
from boards import need_emulator

from smelt.cli.main import main
from smelt.pages.bench import BenchRun, bench_page
from smelt.pages.charts import histogram, lines, milliseconds, ticks
from smelt.pages.devices import DeviceView, devices_page

SVG = "{http://www.w3.org/2000/svg}"
HTML = "{http://www.w3.org/1999/xhtml}"
HOSTILE = '<script>alert("x")</script>&"\'\x1b[31m'


def parsed(text: str) -> ElementTree.Element:
    """The page, read strictly; nothing in it is fetched from anywhere or runs."""
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    names = {e.tag.rpartition("}")[2] for e in root.iter()}
    assert not names & {"script", "iframe", "object", "embed", "link", "img", "form", "base"}
    for e in root.iter():
        for key, value in e.attrib.items():
            assert not key.startswith("on") and key not in ("src", "srcset", "action"), (e.tag, key)
            assert key != "href" or value.startswith("#")
    assert "url(" not in text and "@import" not in text and "\x1b" not in text
    return root


def words(root: ElementTree.Element) -> str:
    return re.sub(r"\s+", " ", " ".join(root.itertext()))


def case(label: str, scale: float = 1.0, **more: Any) -> dict[str, Any]:
    samples = [scale * (1e6 + 1e3 * (n % 17)) for n in range(60)]
    return {
        "label": label, "load_ns": 5e6, "first_ns": 2e6, "latency_ns_p50": samples[8],
        "latency_ns_p90": 1.2e6, "latency_ns_p99": None, "latency_ns_min": samples[0], "samples": 60,
        "samples_ns": samples, "timing": "valid", "verdict": "pass", **more,
    }  # fmt: skip


def run(title: str, *cases: dict[str, Any], **more: Any) -> BenchRun:
    about = {"device": "board", "emulated": False, "verdict": "pass"}
    return BenchRun(title, {**about, "cases": list(cases), **more})


def test_two_runs_side_by_side() -> None:
    least = {"ns": 350.0, "arithmetic": 350.0, "memory": 20.0}
    near = {"ns": 600.0, "arithmetic": 30.0, "memory": 600.0}  # than memory could be: its data are in caches
    kernels = [
        {"name": "conv", "ns": 700, "launches": 1, "least": least},
        {"name": "relu", "ns": 300, "launches": 2, "least": near}, {"name": "odd", "ns": 0, "launches": 1},
    ]  # fmt: skip
    readings = [{"at_ns": n * 10**8, "degrees": 40.0 + n, "khz": None} for n in range(9)]
    peaks = {"flops": 64e9, "bytes": 20e9, "source": "measured by this test"}
    a = run("new", case("x:1", kernels=kernels, telemetry=readings), case("x:2"), peaks=peaks)
    b = run("old", case("x:1", 2.0, kernels=kernels[:1]))
    curve = {"points": [(1, 64), (9, 576)], "measured": [(4, 256)]}
    memory = [{"symbol": "n", "others": "m = 3", "formula": "64*n", **curve}]
    root = parsed(bench_page("m for host", [a, b], memory))
    text = words(root)
    assert text.count("did not run this") == 1
    assert "50 % arithmetic" in text and "10 % arithmetic, its data from caches" in text and "unknown" in text
    assert "at 64 GFLOP/s of float32 and 20 GB/s of memory" in text and "measured by this test" in text
    assert "70.0 %" in text and "conv" in text and "64*n" in text and "at m = 3" in text
    titles = [c.text for c in root.iter(f"{HTML}figcaption")]
    both = ["distribution", "in the order taken"]
    assert titles == [*both, "degrees C", *both, "memory against n"]
    assert len([*root.iter(f"{SVG}circle")]) == 1
    first = next(root.iter(f"{SVG}svg"))
    assert {r.get("class") for r in first.iter(f"{SVG}rect")} == {"c0", "c1"}, "one colour per run"


def test_what_is_not_valid_is_said_on_the_page() -> None:
    """By the words of docs/timing.md; a run's is the gravest of its cases."""

    def doubtful(label: str, *kinds: str) -> dict[str, Any]:
        doubts = [{"kind": k, "text": f"because of {k}"} for k in kinds]
        return case(label, verdict="invalid", timing=kinds[-1], doubts=doubts)

    rows = case("w"), doubtful("x", "unstable", "throttled"), doubtful("y", "busy")
    root = parsed(bench_page("m", [run("r", *rows, emulated=True, verdict="invalid")]))
    text = words(root)
    assert "they are not the speed of any device" in text
    assert all(f"{w}: because of {w}" in text for w in ("unstable", "throttled", "busy"))
    marks = [(c.get("class"), c.text) for c in root.iter(f"{HTML}td") if c.get("class") in ("good", "bad")]
    assert marks == [("bad", "throttled"), ("good", "valid"), ("bad", "throttled"), ("bad", "busy")]


def test_names_from_outside_are_text() -> None:
    kernels = [{"name": HOSTILE, "ns": 1, "launches": 1, "origin": HOSTILE, "unit": HOSTILE}]
    row = case(HOSTILE, kernels=kernels, timing="busy", doubts=[{"kind": "busy", "text": HOSTILE}])
    page = bench_page(HOSTILE, [run(HOSTILE, row, device=HOSTILE)])
    assert words(parsed(page)).count('<script>alert("x")</script>') >= 6
    device, finding = {"platform": HOSTILE, "tags": (HOSTILE,)}, (False, HOSTILE, HOSTILE)
    view = DeviceView(HOSTILE, device, HOSTILE, [finding], {HOSTILE: HOSTILE})
    assert "broken" in words(parsed(devices_page([view], HOSTILE)))


@pytest.mark.parametrize("samples", [[], [1.0], [5.0] * 9, [1.0, float("nan"), float("inf")], [0.0, 1e300]])
def test_charts_of_few_and_strange_numbers(samples: list[float]) -> None:
    parsed(bench_page("m", [run("r", case("x", samples_ns=samples))]))
    chart = histogram("t", [("", samples)], milliseconds)
    if chart is not None:
        assert all(w > 0 and h >= 0 for _, _, w, h, _ in chart.bars)
    lines("t", [("", [*enumerate(samples)])], "x")


def test_bars_add_up() -> None:
    chart = histogram("t", [("", [1.0, 2.0, 2.0, 3.0, 1000.0])], milliseconds)
    assert chart is not None and len(chart.bars) == 3, "an outlier is in the last bin, with 3.0"
    assert ticks(0.0, 10.0) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert ticks(3.0, 3.0) == [3.0]


# ---------------------------------------------------------------- the commands


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "m.onnx"
    onnx.save(front_models.small(), path)
    return path


def test_bench_writes_a_page(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words_ = ["bench", str(model), "--plan", "quick", "--shape", "x:1x3x8x8", "--shape", "x:2x3x8x8"]
    words_.append("--json")
    assert main([*words_, "--html", str(tmp_path / "a.html"), "--junit", str(tmp_path / "a.xml")]) in (0, 5)
    data = json.loads(capsys.readouterr().out)
    kernels = {k["name"] for k in data["cases"][0]["kernels"]}
    assert kernels == {"transpose", "conv_relu", "reduce_mean", "matmul", "softmax"}
    assert "measured on this machine" in data["peaks"]["source"]
    assert all(k["least"]["ns"] >= k["least"]["memory"] > 0 for k in data["cases"][0]["kernels"])
    old = tmp_path / "old.json"
    old.write_text(json.dumps(data))
    assert main([*words_, "--html", str(tmp_path / "b.html"), "--beside", str(old)]) in (0, 5)
    root = parsed((tmp_path / "b.html").read_text())
    assert "Roofline: what the kernel's work takes at least" in words(root)
    assert "old" in words(root) and "conv0, relu0" in words(root)
    assert any("memory against" in str(c.text) for c in root.iter(f"{HTML}figcaption"))
    suite = ElementTree.parse(tmp_path / "a.xml").getroot()
    assert suite.get("failures") == "0" and len([*suite.iter("testcase")]) == 2
    older = {**data, "cases": [{**c, "timing": "invalid"} for c in data["cases"]]}
    for no in ([], older):
        (tmp_path / "no.json").write_text(json.dumps(no))
        assert main([*words_, "--html", str(tmp_path / "c.html"), "--beside", str(tmp_path / "no.json")]) == 2


def test_no_peak_is_invented(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an emulated device none is known, and what is stated is called so."""
    need_emulator("arm64")
    page, words_ = tmp_path / "a.html", ["bench", str(model), "--plan", "quick", "--shape", "x:1x3x8x8"]
    assert main([*words_, "--target", "aarch64-linux", "--html", str(page), "--json"]) == 5
    data = json.loads(capsys.readouterr().out)
    assert data["peaks"] is None and not any("least" in k for k in data["cases"][0]["kernels"])
    assert "Roofline: not known: times of an emulated device" in words(parsed(page.read_text()))
    assert main([*words_, "--html", str(page), "--peak", "100,10"]) in (0, 5)
    assert "100 GFLOP/s of float32 and 10 GB/s of memory" in words(parsed(page.read_text()))
    assert "stated with --peak 100,10" in words(parsed(page.read_text()))
    assert main([*words_, "--peak", "100,10"]) == 2
    with pytest.raises(SystemExit):
        main([*words_, "--html", str(page), "--peak", "9"])


def test_devices_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_DEVICES", str(tmp_path / "devices.toml"))
    assert main(["devices", "report", "local", "--quick", "--html", str(tmp_path / "d.html")]) == 0
    text = words(parsed((tmp_path / "d.html").read_text()))
    assert "local" in text and "this machine" in text and "devices.toml" in text
