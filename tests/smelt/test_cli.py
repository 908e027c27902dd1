"""The command line from its own entry: what it prints, what it exits with, what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import front_models
import numpy as np
import onnx
import pytest
from processes import started

from smelt.cli import commands as cli
from smelt.cli.main import main
from smelt.cli.validate import validation_text
from smelt.compare import CaseResult, Validation
from smelt.core.bundle import Bundle, read_bundle
from smelt.core.diag import SmeltError
from smelt.driver import compile


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(front_models.small(), path)
    return path


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return compile(model, "host", output=str(tmp_path_factory.mktemp("bundle") / "out"))


@pytest.fixture(autouse=True)
def own_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_DEVICES", str(tmp_path / "devices.toml"))
    monkeypatch.setenv("NO_COLOR", "1")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    try:
        code = main([str(w) for w in words])
    except SystemExit as e:  # argparse's way of saying usage
        code = int(e.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, _ = run(capsys, *words, "--json")
    data: dict[str, Any] = json.loads(out)
    assert data["schema_version"] == 1
    assert data["exit_code"] == code
    assert data["ok"] == (code == 0)
    return data


# ---------------------------------------------------------------- usage

COMMANDS = (
    "check", "compile", "run", "validate", "bench", "inspect", "opt", "devices list", "devices add",
    "devices show", "devices doctor", "doctor", "report",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *command.split(), "--help")
    assert code == 0
    assert f"smelt {command}" in out.partition("example:")[2]
    assert "--json" in out and "--verbose" in out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["frobnicate"],
        ["compile"],
        ["compile", "nowhere.onnx"],
        ["compile", "MODEL", "--target", "toaster"],
        ["compile", "MODEL", "--target", "x86:nocpu"],
        ["compile", "MODEL", "--dim", "batch=5..2"],
        ["compile", "MODEL", "--dim", "batch"],
        ["compile", "MODEL", "--threads", "0"],
        ["compile", "MODEL", "-O", "7"],
        ["run", "nowhere"],
        ["run", "BUNDLE"],
        ["run", "BUNDLE", "--input", "z=x.npy"],
        ["run", "BUNDLE", "--input", "x=nowhere.npy"],
        ["run", "BUNDLE", "--random", "--shape", "x:1xx3"],
        ["validate", "BUNDLE"],
        ["validate", "MODEL", "--val-range", "3"],
        ["opt", "nowhere.smelt"],
        ["devices", "add", "BAD NAME", "--transport", "local", "--platform", "host"],
        ["devices", "add", "full", "--transport", "local", "--platform", "host", "--quota", "2 G"],
    ],
)
def test_usage_errors_exit_2(
    words: list[str], model: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"MODEL": str(model), "BUNDLE": str(bundle.path)}
    code, out, err = run(capsys, *(names.get(w, w) for w in words))
    assert code == 2, err
    assert err and not out
    assert "Traceback" not in err


# ---------------------------------------------------------------- the good way


def test_check_and_compile(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "check", model)["problems"] == []
    out = tmp_path / "deep" / "out"
    data = run_json(capsys, "compile", model, "-o", out, "--dim", "batch=1", "--dim", "h=8..64", "-O1")
    assert read_bundle(out).digest == data["digest"]
    assert data["inputs"][0]["shape"] == [1, 3, "h", "w"]
    ranges = {s["name"]: (s["low"], s["high"]) for s in read_bundle(out).manifest["symbols"]}
    assert ranges["h"] == (8, 64)
    assert sorted(p.name for p in out.parent.iterdir()) == ["out"]
    code, _, err = run(capsys, "run", out, "--random", "--shape", "x:1x3x65x8")
    assert code == 1 and "65" in err


def test_trtexecs_profile_bounds_dims(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = ["--minShapes=x:1x3x8x8", "--optShapes=x:1x3x8x8", "--maxShapes=x:4x3x32x8"]
    run_json(capsys, "compile", model, "-o", tmp_path / "out", *shapes)
    manifest = read_bundle(tmp_path / "out").manifest
    assert manifest["inputs"][0]["shape"] == ["batch", 3, "h", 8]
    assert {s["name"]: s["high"] for s in manifest["symbols"]} == {"batch": 4, "h": 32}


def test_run_reads_and_writes_arrays(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 7, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    data = run_json(
        capsys, "run", bundle.path, "--input", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "y.npz"
    )
    y = np.load(tmp_path / "y.npz")["y"]
    assert y.shape == (2, 10)
    assert np.allclose(y.sum(axis=1), 1, atol=1e-5)
    assert data["outputs"][0]["shape"] == [2, 10]
    assert data["emulated"] is False


def test_run_names_input_axis_expected_and_got(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 4, 7, 5), np.float32))
    code, _, err = run(capsys, "run", bundle.path, "--input", f"x={tmp_path / 'x.npy'}")
    assert code == 1
    assert "'x'" in err and "axis 1" in err and "3" in err and "4" in err


def test_run_takes_zero_sized_dims(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "run", bundle.path, "--random", "--shape", "batch=0,h=4,w=4")
    assert data["bundle_sha256"] == bundle.manifest["seal"]
    assert data["model_sha256"] == bundle.manifest["model"]["sha256"]
    assert len(data["device_fingerprint"]) == 16
    assert data["outputs"][0]["shape"] == [0, 10]


def test_validate_agrees(model: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(
        capsys, "validate", bundle.path, "--model", model, "--shape", "x:1x3x5x7", "--shape", "x:[3,3,11,13]"
    )
    assert data["verdict"] == "pass"
    assert [c["status"] for c in data["cases"]] == ["pass", "pass"]
    assert data["cases"][1]["label"] == "x:3x3x11x13"


def test_validate_fails_and_bisect_names_the_first_bad_value(
    model: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    """No tolerance at all makes rounding an error: the convolution is the first to round differently."""
    words = ["--shape", "x:2x3x33x35", "--rtol", "0", "--atol", "0"]
    data = run_json(capsys, "validate", bundle.path, "--model", model, *words, "--bisect")
    assert data["exit_code"] == 1
    assert data["cases"][0]["outputs"][0]["bad"] > 0
    assert data["first_bad"]["name"] in ("r", "p", "f", "z")
    assert data["first_bad"]["suspects"]


def test_validate_refuses_another_model(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(front_models.small(opset=18), tmp_path / "other.onnx")
    code, _, err = run(capsys, "validate", bundle.path, "--model", tmp_path / "other.onnx")
    assert code == 3 and "made of another file" in err


def test_bench_tells_times_and_doubts(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "bench", bundle.path, "--plan", "quick", "--shape", "x:1x3x8x8")
    assert data["exit_code"] in (0, 5)
    (row,) = data["cases"]
    assert row["samples"] == len(row["samples_ns"]) >= 10
    assert 0 < row["latency_ns_min"] <= row["latency_ns_p50"] <= row["latency_ns_p90"]
    assert (data["exit_code"] == 0) == (row["timing"] == "valid") == (not row["doubts"])
    assert {len(column) for column in row["samples_raw"].values()} == {row["samples"]}
    assert row["telemetry"][0]["sample"] == 0 and row["telemetry"][-1]["sample"] == row["samples"]


def test_bench_races_onnxruntime(model: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", model, "--against", "onnxruntime", "--shape", "x:1x3x8x8"]
    data = run_json(capsys, "bench", bundle.path, *words)
    assert data["speed_ratio_geomean"] == pytest.approx(data["cases"][0]["speed_ratio"])
    assert len(data["cases"][0]["smelt_samples_ns"]) == len(data["cases"][0]["onnxruntime_samples_ns"]) >= 5


def test_opt_says_why_kernels_are_what_they_are(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Instead of the module: one line for each decision, those that joined and those that did not."""
    code, out, _ = run(capsys, "opt", model, "--why")
    lines = out.splitlines()
    assert code == 0 and "module" not in out and lines
    assert run_json(capsys, "opt", model, "--why")["why"] == lines


def test_opt_says_why_kernels_are_where_they_are(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a rule that leaves some to costs; figures stand in it, with signs that rules have too."""
    figures = "cpu.operations=1e9;cpu.bandwidth=1e9;cpu.launch=0;opencl.operations=1e12;opencl.bandwidth=1e12"
    figures += ";opencl.launch=0;opencl.link=inf;opencl.copy=0"
    words = ("opt", model, "--target", "x86+opencl", "--why", "--place")
    lines = run(capsys, *words, f"nothing*=cpu,*=auto@{figures}")[1].splitlines()
    told = next(k for k, line in enumerate(lines) if line.startswith("placed for "))
    assert "all on cpu: " in lines[told] and "all on opencl: " in lines[told]
    assert lines[told + 1 :] and all(" on opencl: cpu " in line for line in lines[told + 1 :])
    code, _, err = run(capsys, *words, "*=auto@opencl.link=1")
    assert code == 3 and "missing: opencl.operations, opencl.bandwidth, opencl.launch, opencl.copy" in err


def test_the_whole_formula_is_shown_on_demand(
    bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(manifest: Any, exact: bool = False) -> str:
        return "every case" if exact else "what grows"

    monkeypatch.setattr("smelt.cli.inspect.memory_text", said)
    short, whole = (run(capsys, "inspect", bundle.path, *more)[1] for more in ((), ("--formula",)))
    assert "what grows" in short and "every case" in whole


def test_inspect_and_the_measured_arena_agree(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    shape = "x:2x3x19x23"
    data = run_json(capsys, "inspect", bundle.path, "--shape", shape)
    ran = run_json(capsys, "run", bundle.path, "--random", "--shape", shape)
    assert data["peak_memory"][0]["bytes"] == ran["arena_bytes"]
    size = data["size"]
    assert sum(size["files"].values()) == size["total"]
    assert sum(size["code"].values()) == size["files"][bundle.names.library]
    assert all(n >= 0 for n in size["code"].values())
    code, out, _ = run(capsys, "inspect", bundle.path, "--kernels", "--values")
    assert code == 0
    assert "peak memory" in out and "schedule" in out and "batch" in out


def test_opt_runs_slices_and_reads_back_its_text(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"{n}.smelt" for n in "abc"]
    assert run(capsys, "opt", model, "-p", "", "-o", files[0])[0] == 0
    assert run(capsys, "opt", files[0], "-p", "", "-o", files[1])[0] == 0
    assert files[0].read_text() == files[1].read_text()
    assert run(capsys, "opt", files[0], "-p", "dce,cse,lower", "-o", files[2])[0] == 0
    assert "call_kernel" in files[2].read_text()
    code, _, err = run(capsys, "opt", files[0], "-p", "nosuch")
    assert code == 2 and "there is no pass 'nosuch'" in err


# ---------------------------------------------------------------- devices


def test_devices_add_show_list(capsys: pytest.CaptureFixture[str]) -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJPVAgFHOKYt9TLUdJaUTPEwCWjI9TMBq6LZvr5h4aD"
    words = [
        "pi5",
        "--transport",
        "ssh",
        "--platform",
        "aarch64-linux",
        "--host",
        "pi5.local",
        "--user",
        "pi",
    ]
    run_json(capsys, "devices", "add", *words, "--key-file", "/k", "--host-key", key, "--quota", "2 GiB")
    shown = run_json(capsys, "devices", "show", "pi5")["device"]
    assert (shown["host"], shown["quota"]) == ("pi5.local", 2 << 30)
    assert "pi5" in {d["name"] for d in run_json(capsys, "devices", "list")["devices"]}


def test_a_device_that_is_not_there_exits_4(bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "devices", "show", "nosuch")[0] == 4
    assert run(capsys, "run", bundle.path, "--random", "--device", "nosuch")[0] == 4
    code, _, err = run(capsys, "run", bundle.path, "--random", "--device", "qemu-armv7")
    assert code == 4 and "armv7-linux" in err


def test_an_emulator_that_is_missing_exits_4_and_says_what_to_install(
    bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["emulated", "--transport", "qemu-user", "--platform", "host", "--emulator", "qemu-nosuch"]
    assert run(capsys, "devices", "add", *words)[0] == 0
    code, _, err = run(capsys, "run", bundle.path, "--random", "--device", "emulated")
    assert code == 4 and "qemu-nosuch" in err and "apt-get install" in err


def test_doctor_lists_checks(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "doctor")
    wanted = {"python", "llvmlite", "ziglang", "qemu-aarch64", "confined files", "confined network"}
    wanted |= {"qemu-system-aarch64", "adb"}
    assert wanted <= {c["check"] for c in data["checks"]}


# ---------------------------------------------------------------- bad input


def test_check_tells_every_unsupported_node_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(front_models.unsupported(), tmp_path / "m.onnx")
    data = run_json(capsys, "check", tmp_path / "m.onnx")
    assert data["exit_code"] == 3
    assert [p["node"] for p in data["problems"]] == ["first", "second"]
    failed = run_json(capsys, "compile", tmp_path / "m.onnx", "-o", tmp_path / "out")
    assert failed["exit_code"] == 3
    assert [p["node"] for p in failed["error"]["problems"]] == ["first", "second"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00" * 100, b"not a model", bytes(range(256)) * 8],
    ids=["empty", "zeros", "text", "bytes"],
)
def test_garbage_exits_3_and_leaves_nothing(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    code, _, err = run(capsys, "compile", tmp_path / "m.onnx", "-o", tmp_path / "out")
    assert code == 3, err
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_a_truncated_model_exits_3(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = model.read_bytes()
    (tmp_path / "m.onnx").write_bytes(data[: len(data) // 2])
    assert run(capsys, "check", tmp_path / "m.onnx")[0] == 3


def test_a_folder_that_is_no_bundle_is_not_overwritten(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    code, _, err = run(capsys, "compile", model, "-o", tmp_path / "out")
    assert code == 3 and "will not be overwritten" in err
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


def test_a_damaged_bundle_is_told(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("{")
    code, _, err = run(capsys, "inspect", tmp_path / "out")
    assert code == 3 and "damaged" in err
    assert run(capsys, "run", tmp_path)[0] == 3


def _limited(size: int) -> Any:
    def apply() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # write() then fails with EFBIG, as a full disk does
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return apply


def test_a_full_disk_exits_6_and_leaves_nothing(model: Path, bundle: Bundle, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "smelt.cli", "compile", str(model), "-o", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=_limited(2000), check=False)
    assert done.returncode == 6, done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("whom", [slice(-1, None), slice(None)], ids=["the compiler", "and its server"])
def test_a_child_that_dies_does_not_take_the_caller_down(model: Path, tmp_path: Path, whom: slice) -> None:
    def kill(stage: str) -> None:
        for pid in started(os.getpid())[whom] if stage == "plan" else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(SmeltError, match="SIGKILL") as caught:
        compile(model, "host", output=str(tmp_path / "out"), progress=kill)
    assert caught.value.kind == "infra"  # whoever kills with SIGKILL, it is not the compiler
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_exits_130_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "smelt.cli", "compile", str(model), "-v", "-o", str(tmp_path / "out")]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell starts its background jobs with SIGINT ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    process.stderr.readline()  # the first stage has begun
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_bug_exits_70_without_a_traceback(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(args: Any) -> Any:
        raise ZeroDivisionError("one over nothing")

    monkeypatch.delenv("SMELT_DEBUG", raising=False)
    monkeypatch.setattr("smelt.cli.compile.run_check", broken)
    code, _, err = run(capsys, "check", model)
    assert code == 70
    assert "one over nothing" in err and "SMELT_DEBUG" in err and "Traceback" not in err
    monkeypatch.setenv("SMELT_DEBUG", "1")
    assert "Traceback" in run(capsys, "check", model)[2]


def test_every_kind_of_error_has_an_exit_code() -> None:
    expected = {"invalid": 3, "unsupported": 3, "shape": 1, "device": 1, "infra": 6, "internal": 70}
    for kind, code in expected.items():
        assert cli._explain("run", SmeltError("x", kind=kind))[0] == code  # type: ignore[arg-type]
    assert cli._explain("compile", SmeltError("x", kind="shape"))[0] == 3


def test_nothing_compared_is_no_mismatch_and_no_success() -> None:
    skipped = CaseResult("x:3x1", "skipped", why="onnxruntime refuses these inputs")
    found = Validation("local", False, "onnxruntime 1", (skipped,))
    assert "nothing was compared" in validation_text(found) and "--shape" in validation_text(found)
    assert found.verdict.exit_code == 1
