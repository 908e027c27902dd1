"""A kernel that faults on the device is named, with its ONNX nodes and the functions around it."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from xml.etree import ElementTree

import front_models
import numpy as np
import onnx.parser
import pytest
from boards import need_emulator
from processes import started

import smelt
from smelt.cli.ci import Report, add_cases, junit
from smelt.cli.validate import validation_data
from smelt.compare import validate
from smelt.core.bundle import Bundle, read_bundle, sealed
from smelt.crash import explainer
from smelt.devicefarm.report import Crash, RunnerError
from smelt.devicefarm.verdict import Verdict
from smelt.running import running
from smelt.shapes import feed_case
from smelt.targets.elf import code_of

X = {"x": np.ones((1, 3, 8, 8), np.float32)}
FAULTS = {62: bytes.fromhex("8b042500000000"), 183: bytes.fromhex("090080d2290140f9")}
"""A load from address 0, by ELF machine."""


def spoilt(bundle: Bundle, kernel: str) -> Bundle:
    """The bundle with a kernel that begins with a fault, and hashes that fit."""
    for name in ("smelt_run", str(bundle.manifest["library"]["file"])):
        data = bytearray((bundle.path / name).read_bytes())
        code = code_of(bytes(data))
        at = next(a for a, n in zip(code.starts, code.names, strict=True) if n.endswith(f"k.{kernel}"))
        place, fault = code.place(at), FAULTS[code.machine]
        assert place is not None
        data[place : place + len(fault)] = fault
        (bundle.path / name).write_bytes(data)
    manifest = dict(bundle.manifest)
    files = {n: (bundle.path / n).read_bytes() for n in manifest["files"]}
    manifest["files"] = {n: hashlib.sha256(data).hexdigest() for n, data in files.items()}
    (bundle.path / "manifest.json").write_bytes(sealed(manifest)[1])
    return read_bundle(bundle.path)


@pytest.mark.parametrize("target", ["host", "aarch64-linux"])
def test_a_kernel_that_faults(tmp_path: Path, target: str) -> None:
    need_emulator(target)
    bundle = spoilt(smelt.compile(front_models.small(), target, output=tmp_path / "out"), "conv_relu")
    with running(bundle, threads=1) as client, pytest.raises(RunnerError) as caught:
        client.run(X)
    crash = caught.value.crash
    assert crash is not None and (crash.signal, crash.address, crash.stage) == (11, 0, "run: first")
    assert crash.where[0] == "kernel 'conv_relu' (nodes conv0, relu0, which makes 'r')"
    assert {"launch", "smelt_run"} <= {w.rpartition(".")[2] for w in crash.where}, crash.where
    assert "in kernel 'conv_relu'" in str(caught.value)


def test_code_that_kernels_share_faults(tmp_path: Path) -> None:
    """Whose it was is told by the function that called it."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 2] x) => (float[n, 2] y)'
        " <float[2, 2] w = {1, 2, 3, 4}, float a = {0.3}, float b = {0.7}> {"
        " p = MatMul(x, w)  s = Sub(p, a)  q = MatMul(s, w)  y = Sub(q, b) }"
    )
    made = smelt.compile(model, output=tmp_path / "out")
    kernel = made.manifest["kernels"][0]["name"]
    with running(spoilt(made, f"{kernel}.body"), threads=1) as client, pytest.raises(RunnerError) as caught:
        client.run({"x": np.ones((3, 2), np.float32)})
    assert caught.value.crash is not None
    inner, outer, *_ = caught.value.crash.where
    assert inner == f"code of '{kernel}' and kernels like it" and outer.startswith(f"kernel '{kernel}' (")


def test_threads_that_fault_at_once_leave_one_record(tmp_path: Path) -> None:
    """Each of them would end the process; the record of the first is whole before one does."""
    model, x = front_models.small(), {n: np.tile(a, (8, 1, 4, 4)) for n, a in X.items()}
    bundle = spoilt(smelt.compile(model, output=tmp_path / "out"), "conv_relu")
    for _ in range(8):
        with running(bundle, threads=4) as client, pytest.raises(RunnerError) as caught:
            client.run(x)
        crash = caught.value.crash
        assert crash is not None and crash.where[0].startswith("kernel 'conv_relu'"), crash
        called = {w.rpartition(".")[2] for w in crash.where}
        assert {"rt_pool_run", "launch"} <= called or {"start", "worker"} <= called, crash


def test_a_fatal_signal_from_outside_ends_the_model(tmp_path: Path) -> None:
    """Nothing faults again when the handler returns."""
    bundle = smelt.compile(front_models.small(), output=tmp_path / "out")
    with running(bundle) as client:
        client.run(X)
        assert client.facts is not None
        (worker,) = started(client.facts.pid)
        os.kill(worker, signal.SIGSEGV)
        with pytest.raises(RunnerError) as caught:
            client.run(X)
    assert caught.value.crash is not None and caught.value.crash.signal == signal.SIGSEGV


def test_validate_tells_where(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(front_models.small().SerializeToString())
    bundle = spoilt(smelt.compile(str(model), output=tmp_path / "out"), "softmax")
    told = validate(bundle, model, [feed_case(bundle, X)])
    (found,) = told.cases
    assert found.verdict is Verdict.CRASH and "in kernel 'softmax' (nodes sm0, which makes 'y')" in found.why
    assert found.crash is not None and found.crash.pid > 0
    report = Report("validate", "m")
    add_cases(report, told)
    text = ElementTree.fromstring(junit(report, 0.0)).findtext(".//failure") or ""
    wanted = ("signal 11, code 1, address 0x0", "stage: run: first", "  kernel 'softmax' (nodes sm0, which")
    assert all(w in text for w in wanted), text
    (row,) = validation_data(told)["cases"]
    assert (row["crash"]["signal"], row["crash"]["stage"]) == (11, "run: first")


def test_what_cannot_be_looked_up_stays_a_position(tmp_path: Path) -> None:
    bundle = smelt.compile(front_models.small(), output=tmp_path / "out")
    crash = Crash(11, 0, 1, 64, "libc.so.6", 16, "run: first", "", "", "", (1, 2**40))
    assert explainer(bundle)(crash).where == ()
    (bundle.path / "smelt_run").write_bytes(b"no program")
    at_runner = Crash(11, 0, 1, 64, "smelt_run", 16, "", "", "")
    assert explainer(bundle)(at_runner) == at_runner


def test_return_addresses_follow_calls(tmp_path: Path) -> None:
    """Of all positions in the code few can be return addresses; those of real calls are among them."""
    bundle = smelt.compile(front_models.small(), output=tmp_path / "out")
    code = code_of((bundle.path / "smelt_run").read_bytes())
    if code.machine not in FAULTS:
        pytest.skip("calls of this processor are not known")
    first, last = code.starts[0] - code.base, code.ends[-1] - code.base
    step = 4 if code.machine == 183 else 1
    share = [code.follows_call(at) for at in range(first, last, step)]
    assert 0 < sum(share) < len(share) / 5
