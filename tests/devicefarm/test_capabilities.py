"""What a runner tells of its board: clusters, caches and units, and the fingerprint made of them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import rig
from boards import HAS_OPENCL, HAS_VULKAN
from installed import program_path

from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.capabilities import Origin
from smelt.devicefarm.channel import PipeChannel
from smelt.devicefarm.client import RunnerClient, open_session
from smelt.devicefarm.local import LocalTransport


def fake_board(root: Path) -> None:
    """The sysfs of a board with two clusters; this machine may have none of it."""
    files: dict[str, object] = {"devices/system/cpu/possible": "0-5"}
    for big, cpus in ((False, range(4)), (True, range(4, 6))):
        for cpu in cpus:
            at = f"devices/system/cpu/cpu{cpu}"
            files |= {
                f"{at}/topology/cluster_cpus_list": f"{cpus[0]}-{cpus[-1]}",
                f"{at}/topology/core_siblings_list": f"{cpus[0]}-{cpus[-1]}",
                f"{at}/cpu_capacity": 1024 if big else 446,
                f"{at}/cpufreq/cpuinfo_max_freq": 2_400_000 if big else 1_200_000,
                f"{at}/regs/identification/midr_el1": "0x410fd0b1" if big else "0x410fd050",
                f"{at}/cache/index0/level": 1, f"{at}/cache/index0/type": "Data",
                f"{at}/cache/index0/size": "64K" if big else "32K",
                f"{at}/cache/index0/coherency_line_size": 64, f"{at}/cache/index0/shared_cpu_list": cpu,
                f"{at}/cache/index1/level": 2, f"{at}/cache/index1/type": "Unified",
                f"{at}/cache/index1/size": "1M",
                f"{at}/cache/index1/coherency_line_size": 64, f"{at}/cache/index1/shared_cpu_list": "0-5",
            }  # fmt: skip
    for path, value in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{value}\n")


def open_runner(bundle: Path, sysfs: Path) -> RunnerClient:
    channel = PipeChannel([str(bundle / "smelt_run"), "--serve", "--sysfs", str(sysfs)])
    return RunnerClient(channel, budget=Budget(StepLimits(total=60)))


@pytest.mark.parametrize("kind", ["native_bundle", "static_bundle"])
def test_what_the_board_is_made_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bundle = request.getfixturevalue(kind)
    fake_board(tmp_path)
    client = open_runner(bundle, tmp_path)
    try:
        facts = client.hello()
    finally:
        client.close()
    little, big = facts.clusters
    assert [(c.first, c.count, c.siblings, c.capacity, c.most_khz) for c in (little, big)] == [
        (0, 4, "0-3", 446, 1_200_000), (4, 2, "4-5", 1024, 2_400_000)
    ]  # fmt: skip
    assert big.midr == "0x410fd0b1"
    assert [(c.level, c.type, c.kb, c.line, c.shared) for c in little.caches] == [
        (1, "Data", 32, 64, "0"), (2, "Unified", 1024, 64, "0-5")
    ]  # fmt: skip
    assert facts.units is None  # loading drivers takes time: only on demand


def test_fingerprint_follows_the_board_and_not_its_condition(native_bundle: Path, tmp_path: Path) -> None:
    def taken(*, units: bool = False) -> str:
        client = open_runner(native_bundle, tmp_path)
        try:
            return client.hello(units=units).fingerprint
        finally:
            client.close()

    fake_board(tmp_path)
    first = taken()
    assert re.fullmatch(r"[0-9a-f]{16}", first)
    assert taken() == first
    with_units = taken(units=True)
    assert re.fullmatch(re.escape(first) + r"\+[0-9a-f]{16}", with_units)
    (tmp_path / "devices/system/cpu/cpu5/cpu_capacity").write_text("512\n")
    assert taken() != first


def test_a_driver_that_crashes_is_a_row_and_no_crash(native_bundle: Path, tmp_path: Path) -> None:
    """One library traps when it is loaded, one has no device."""
    rig.need(program_path("gcc"), "needs a C compiler: apt-get install gcc libc6-dev")
    crash = "__attribute__((constructor)) static void f(void) { __builtin_trap(); }"
    none = "int clGetPlatformIDs(void) { return -1001; } int clGetDeviceIDs, clGetDeviceInfo;"
    for name, text in (("libvulkan.so.1", crash), ("libOpenCL.so.1", none)):
        source = tmp_path / f"{name}.c"
        source.write_text(text)
        rig.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(tmp_path / name)])
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    channel = PipeChannel([str(native_bundle / "smelt_run"), "--serve"], env=env)
    client = RunnerClient(channel, budget=Budget(StepLimits(total=60)))
    try:
        units = client.hello(units=True).units
        assert units is not None
        assert [(u.api, u.error) for u in units] == [
            ("opencl", "clGetPlatformIDs failed with code -1001"),
            ("", "a driver crashed, or took longer than 8 s"),
        ]
        client.load(str(native_bundle))  # the runner itself is whole
    finally:
        client.close()


def test_units_of_this_machine(native_bundle: Path, static_bundle: Path) -> None:
    found = {}
    for bundle in (native_bundle, static_bundle):
        client = open_runner(bundle, Path("/sys"))
        try:
            found[bundle] = client.hello(units=True).units
        finally:
            client.close()
    assert [u.error for u in found[static_bundle] or ()] == ["a static runner loads no drivers"]
    rows = {u.api: u for u in found[native_bundle] or () if u.device}
    if HAS_OPENCL:
        assert rows["opencl"].version.startswith("OpenCL ") and rows["opencl"].driver
        assert any(e.startswith("cl_khr_") for e in rows["opencl"].extensions)
    if HAS_VULKAN:
        assert rows["vulkan"].version.startswith("1.")
        assert any(e.startswith("VK_KHR_") for e in rows["vulkan"].extensions)


def test_results_say_what_they_are_of(native_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(native_bundle, bundle)
    seal, model = "5" * 64, "7" * 64
    manifest = {"seal": seal, "model": {"sha256": model}, "devices": ["opencl"]}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with open_session(LocalTransport(), bundle, budget=Budget(StepLimits(total=60))) as client:
        report = client.run([np.ones((1, 1), np.float32), np.int32(0)])
    assert report.origin == Origin(report.facts.fingerprint, seal, model)
    assert report.facts.units is not None  # a bundle for devices depends on their drivers
    with open_session(LocalTransport(), native_bundle, budget=Budget(StepLimits(total=60))) as client:
        assert client.origin.bundle_sha256 == ""
        assert client.facts is not None and client.facts.units is None
