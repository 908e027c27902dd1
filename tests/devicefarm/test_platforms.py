"""The real runtime, linked for every platform, on the device that stands for it by default."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import rig
from installed import program_path

from smelt.core.naming import Names
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.channel import PipeChannel
from smelt.devicefarm.client import RunnerClient, open_session
from smelt.devicefarm.inventory import DEFAULT_DEVICE, find_device, open_transport
from smelt.devicefarm.measure import QUICK, TimingVerdict
from smelt.devicefarm.qemu_user import BIONIC_VARIABLE
from smelt.devicefarm.report import RunnerError
from smelt.targets.platform import TargetSpec, parse_target
from smelt.targets.toolchain import build_library, build_runner, build_shim_runner

MODEL = rig.HERE.parent / "targets" / "runtime_c" / "model.c"
WEIGHTS = np.array([1, -2, 3, -4], np.float32)  # those whose sums model.c has


def build(spec: TargetSpec, folder: Path) -> Path:
    """A bundle of the runtime tests' model, compiled for the platform."""
    p, made = spec.platform, folder / "model.o"
    flags = ["-c", "-O2", "-fPIC", "-fno-sanitize=all", "-fno-stack-protector", f"-I{rig.RUNTIME}"]
    files = [str(MODEL), "-o", str(made)]
    rig.run([*rig.zig(), "cc", "-target", p.zig, *p.zig_flags, *flags, *files], env=rig.zig_env())
    bundle = folder / "bundle"
    bundle.mkdir()
    build_library(spec, made.read_bytes(), bundle, Names("model", "0123abcd"))
    build_runner(spec, made.read_bytes(), bundle)
    (bundle / "model.weights").write_bytes(WEIGHTS.tobytes() + bytes(32))
    return bundle


TARGETS = [
    ("x86", False), ("arm64", False), ("armv7", False), ("riscv64-linux", False), ("android", False),
    *([("android", True)] if os.environ.get(BIONIC_VARIABLE) else []),
]  # fmt: skip
"""And whether on real bionic, which machines have only if somebody has put it there."""


@pytest.mark.parametrize(("target", "bionic"), TARGETS)
def test_real_runtime_on_the_default_device(
    target: str, bionic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = parse_target(target)
    emulator = spec.platform.emulator
    rig.need(
        emulator is None or program_path(emulator.binary),
        "needs qemu: apt-get install qemu-user-static",
    )
    shim = None
    if spec.platform.shim and not bionic:
        monkeypatch.delenv(BIONIC_VARIABLE, raising=False)
        rig.need(rig.SYSROOT.exists(), "needs an arm64 libc: apt-get install libc6-dev-arm64-cross")
        shim = build_shim_runner(spec, tmp_path / "smelt_run.shim")
    device = find_device(DEFAULT_DEVICE.get(spec.platform.name, "local"), tmp_path / "none.toml")
    bundle = build(spec, tmp_path)
    transport = open_transport(device, shim_runner=shim)
    rng = np.random.default_rng(1)
    with open_session(transport, bundle, budget=Budget(StepLimits(total=120)), threads=2) as client:
        assert client.model is not None
        assert [t.name for t in client.model.inputs] == ["x", "y"]
        for n, m in ((2, 3), (5, 8), (0, 4), (64, 65), (1, 1)):
            x, y = rng.random((n, m), np.float32) - 0.7, rng.random(m, np.float32) - 0.5
            t = 2 * x + y + WEIGHTS[np.arange(m) % 4]
            t = t.astype(np.float32)
            outputs = client.run({"x": x, "y": y}).outputs
            np.testing.assert_allclose(outputs["z"], t, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(outputs["p"], outputs["z"][outputs["z"] > 0], rtol=0)
        with pytest.raises(RunnerError, match="input 'y' axis 0: got 2, wanted 1") as caught:
            client.run([x, np.zeros(2, np.float32)])
        assert caught.value.kind == "shape"
        report = client.run([x, y], QUICK)
        assert report.timing is not None
        assert report.memory.weights_bytes == 16
        assert transport.emulated == (report.timing.verdict is TimingVerdict.EMULATED)


@pytest.mark.parametrize(
    ("target", "emulator"),
    [
        ("x86", ""), ("x86", "qemu-x86_64-static"), ("arm64", "qemu-aarch64-static"),
        ("armv7", "qemu-arm-static"), ("riscv64-linux", "qemu-riscv64-static"),
    ],
)  # fmt: skip
def test_an_emulated_processor_is_found_out_by_the_runner_alone(
    target: str, emulator: str, tmp_path: Path
) -> None:
    """As over ssh to an emulated board: neither the transport nor the inventory says that it is one."""
    program = program_path(emulator) if emulator else None
    rig.need(program or not emulator, "needs qemu: apt-get install qemu-user-static")
    bundle = build(parse_target(target), tmp_path)
    channel = PipeChannel([*([program] if program else []), str(bundle / "smelt_run"), "--serve"])
    client = RunnerClient(channel, emulated=False, budget=Budget(StepLimits(total=120)))
    try:
        client.load(str(bundle))
        report = client.run([np.ones((2, 3), np.float32), np.ones(3, np.float32)], QUICK)
    finally:
        client.close()
    assert report.facts.emulation == (f"the program runs under {emulator}" if emulator else "")
    assert report.emulated == bool(emulator)
    assert report.timing is not None
    assert (report.timing.verdict is TimingVerdict.EMULATED) == bool(emulator)
