"""smelt doctor: what this machine can build and run, and how to get what is missing."""

from __future__ import annotations

import argparse
import ctypes.util
import importlib.util
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from smelt.cli.common import AddParser, Progress, Result, check_target, command, finding_text
from smelt.core.diag import SmeltError
from smelt.core.exits import INFRA, OK
from smelt.core.scratch import scratch_folder
from smelt.devicefarm.adb import private_server
from smelt.devicefarm.doctor import Finding, healthy
from smelt.devicefarm.qemu_board import BOARD_EMULATOR, board_emulator
from smelt.devicefarm.qemu_user import BIONIC_VARIABLE, GLIBC_ROOT, bionic_root, find_emulator
from smelt.samples import tiny_bundle
from smelt.sandbox import protections

NEEDED = ("numpy", "onnx", "llvmlite", "ziglang", "paramiko")
OPTIONAL = {"onnxruntime": "validate", "pyopencl": "dev"}
EMULATORS = ("qemu-aarch64", "qemu-arm", "qemu-riscv64")


def register(add: AddParser) -> None:
    """Add the command to the parser."""
    parser = command(add, "doctor", run, "smelt doctor --target android")
    parser.add_argument(
        "--target", metavar="T", help="also build a tiny model for T and run it on its device"
    )


def run(args: argparse.Namespace) -> Result:
    """Run every check; exit code 6 when something that smelt needs is missing."""
    progress = Progress(args)
    found = [*_python(), *_packages(), *_confinement(), *_emulators(), _opencl(), _vulkan(), _bionic()]
    if args.target:
        progress(f"building for {args.target}")
        found += _target(check_target(args.target))
    progress.done()
    code = OK if healthy(tuple(found)) else INFRA
    return Result(code, {"checks": [asdict(f) for f in found]}, "\n".join(map(finding_text, found)))


def _python() -> list[Finding]:
    good = sys.version_info >= (3, 11)
    return [
        Finding("python", good, f"{platform.python_version()} on {platform.machine()}, 3.11 or newer needed")
    ]


def _packages() -> list[Finding]:
    from importlib.metadata import version

    def finding(name: str, without: Finding) -> Finding:
        return Finding(name, True, version(name)) if importlib.util.find_spec(name) else without

    rows = [finding(n, Finding(n, False, "missing; pip install smelt")) for n in NEEDED]
    return rows + [
        finding(n, Finding(n, None, f"missing; pip install 'smelt[{extra}]'"))
        for n, extra in OPTIONAL.items()
    ]


def _tell(check: str, find: Callable[[], str]) -> Finding:
    """Check something optional: a finding of what is there, or a hint how to get it."""
    try:
        return Finding(check, True, find())
    except SmeltError as e:
        return Finding(check, None, str(e))


def _confinement() -> list[Finding]:
    return [
        Finding(f"confined {what}", True if by else None, by or "no; a compile goes on without")
        for what, by in protections()
    ]


def _emulators() -> list[Finding]:
    programs = [_tell(binary, lambda b=binary: find_emulator(b)) for binary in EMULATORS]  # type: ignore[misc]
    return [*programs, _tell(BOARD_EMULATOR, board_emulator), _tell("adb", lambda: private_server().program)]


def _opencl() -> Finding:
    name = ctypes.util.find_library("OpenCL")
    if name is None:
        return Finding("opencl", None, "no libOpenCL; apt-get install pocl-opencl-icd ocl-icd-libopencl1")
    vendors = sorted(p.name for p in Path("/etc/OpenCL/vendors").glob("*.icd"))
    return Finding("opencl", True if vendors else None, f"{name}, drivers: {', '.join(vendors) or 'none'}")


def _vulkan() -> Finding:
    name = ctypes.util.find_library("vulkan")
    if name is None:
        return Finding("vulkan", None, "no libvulkan; apt-get install mesa-vulkan-drivers libvulkan1")
    folders = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d")
    drivers = sorted(p.stem for folder in folders for p in Path(folder).glob("*.json"))
    return Finding("vulkan", True if drivers else None, f"{name}, drivers: {', '.join(drivers) or 'none'}")


def _bionic() -> Finding:
    def find() -> str:
        root = bionic_root()
        if root is not None:
            return f"bionic at {root}"
        if not (GLIBC_ROOT / "lib" / "libc.so.6").exists():
            raise SmeltError(
                "no bionic userland and no glibc to stand in for it",
                hint=f"apt-get install libc6-arm64-cross, or set ${BIONIC_VARIABLE}",
            )
        return f"glibc stands in for bionic (set ${BIONIC_VARIABLE} for the real one)"

    return _tell("android", find)


def _target(target: str) -> list[Finding]:
    from smelt.running import device_for, running

    with scratch_folder("doctor") as folder:
        try:
            bundle = tiny_bundle(target, f"{folder}/out")
        except SmeltError as e:
            return [Finding(f"build for {target}", False, str(e))]
        size = sum(p.stat().st_size for p in Path(bundle.path).iterdir())
        rows = [Finding(f"build for {target}", True, f"{size:,} bytes")]
        try:
            import numpy as np

            name = device_for(str(bundle.manifest["platform"])).name
            with running(bundle) as client:
                report = client.run({"x": np.arange(3, dtype=np.float32)})
            good = bool((report.outputs["y"] == [0, 2, 4]).all())
            return [*rows, Finding(f"run on {name}", good, "x + x agrees" if good else "x + x is wrong")]
        except SmeltError as e:
            return [*rows, Finding("run", False, str(e))]
