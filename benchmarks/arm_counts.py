"""Models -> the instructions that one run executes on an emulated core, in smelt and in ONNX Runtime's
aarch64 build.

Both run in one emulated Python each, on one thread, with the same inputs. The emulator is Debian's, the
packages are fetched into smelt's cache at the first call; nothing is installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import numpy as np

import smelt
from smelt.core.cache import cache_dir
from smelt.core.dtype import Array
from smelt.devicefarm.debian import PackageSet, unpacked

TOOLS = PackageSet("bookworm", "", ("qemu-user", "llvm-19"))
"""A qemu that takes plugins (the static one does not), and the newest llvm-mca that bookworm has."""
GUEST = PackageSet("bookworm", "arm64", ("python3", "libstdc++6"))
WHEELS = ("onnxruntime", "numpy")
ROUNDS = 1
"""Runs that are counted, after a first one that is not. The counts of several differ by less than a
thousandth."""
FEATURES = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Level:
    """What is emulated. target: what smelt compiles for. cpu: qemu's name, with what that core lacks of it.
    part: the core's number in /proc/cpuinfo, which ONNX Runtime asks. features: what stands there besides
    those of all."""

    target: str
    cpu: str
    part: str
    features: str = ""


LEVELS: Mapping[str, Level] = {
    "cortex-a72": Level("arm64:cortex-a72", "cortex-a72", "0xd08"),
    "cortex-x2": Level(
        "arm64:cortex-x2", "max,pauth-impdef=on,sme=off,sve-max-vq=1", "0xd48",
        "atomics fphp asimdhp asimdrdm jscvt fcma lrcpc dcpop asimddp sve sve2 flagm i8mm bf16 svei8mm"
        " svebf16",
    ),
}  # fmt: skip


def tool(name: str) -> tuple[str, ...]:
    """The words that start the program of TOOLS with this path, by the loader and libraries that came with
    it."""
    tree = unpacked(TOOLS)
    libraries = [
        *tree.glob("lib/*-linux-gnu"),
        *tree.glob("usr/lib/*-linux-gnu"),
        tree / "usr/lib/llvm-19/lib",
    ]
    loader = next(tree.glob("lib*/ld-linux-*.so.*"))
    path = ":".join(map(str, libraries))
    return str(loader), "--library-path", path, str(tree / name)


@cache
def guest_packages() -> Path:
    """The folder with ONNX Runtime and NumPy for aarch64, in the versions that are installed here."""
    wanted = [f"{name}=={version(name)}" for name in WHEELS]
    final = cache_dir() / "arm" / "-".join(wanted)
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent) as folder:
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        kinds = ("manylinux_2_28", "manylinux_2_27", "manylinux2014")
        words += [f"--platform={name}_aarch64" for name in kinds]
        subprocess.run([*words, "--python-version=3.11", f"--dest={folder}", *wanted], check=True)
        site = Path(folder) / "site"
        for wheel in Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as z:
                z.extractall(site)
        site.replace(final)
    return final


def plugin(folder: Path) -> Path:
    """arm_counter.c, compiled for this machine."""
    made = folder / "counter.so"
    words = [sys.executable, "-m", "ziglang", "cc", "-O2", "-shared", "-fPIC", "-Wl,-z,undefs", "-Wall",
             "-Wextra", "-Werror", "-o", str(made), str(HERE / "arm_counter.c")]  # fmt: skip
    subprocess.run(words, check=True)
    return made


def root(level: Level, folder: Path) -> Path:
    """A root folder for the emulated programs: Debian's files, and the core's description where the kernel
    has it. Without that ONNX Runtime reads this machine's, and crashes."""
    tree = unpacked(GUEST)
    for name in ("lib", "usr"):
        (folder / name).symlink_to(tree / name)
    (folder / "proc").mkdir()
    rows = [
        "processor\t: 0", f"Features\t: {FEATURES} {level.features}", "CPU implementer\t: 0x41",
        "CPU architecture: 8", "CPU variant\t: 0x1", f"CPU part\t: {level.part}", "CPU revision\t: 0",
    ]  # fmt: skip
    (folder / "proc/cpuinfo").write_text("\n".join(rows) + "\n\n", "utf-8")
    cpus = folder / "sys/devices/system/cpu"
    cpus.mkdir(parents=True)
    for name in ("possible", "present"):
        (cpus / name).write_text("0\n", "utf-8")
    return folder


def counted(engine: str, level: Level, model: Path, feed: Mapping[str, Array], rounds: int = ROUNDS) -> int:
    """Instructions of one run, the fewest of `rounds` after a first one; those of the interpreter around it
    included. Raises RuntimeError with what the emulated program said."""
    with tempfile.TemporaryDirectory(prefix="smelt-arm-") as folder:
        work = Path(folder)
        (work / "root").mkdir()
        base = root(level, work / "root")
        np.savez(work / "inputs.npz", **dict(feed))
        out = work / "counts"
        libraries = ":".join(f"{base}/{p}/aarch64-linux-gnu" for p in ("lib", "usr/lib"))
        tree = Path(smelt.__file__).parents[1]
        guest = {
            "PYTHONHOME": f"{base}/usr", "PYTHONPATH": f"{guest_packages()}:{tree}", "PYTHONHASHSEED": "0",
            "OPENBLAS_NUM_THREADS": "1", "LD_LIBRARY_PATH": libraries, "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        words = [*tool("usr/bin/qemu-aarch64"), "-cpu", level.cpu, "-L", str(base),
                 "-plugin", f"{plugin(work)},out={out}"]  # fmt: skip
        for name, value in guest.items():
            words += ["-E", f"{name}={value}"]
        words += [f"{base}/usr/bin/python3.11", str(HERE / "arm_guest.py")]
        words += [engine, str(model), str(work / "inputs.npz"), str(rounds)]
        done = subprocess.run(words, capture_output=True, text=True, cwd=work, check=False)
        if done.returncode:
            raise RuntimeError(f"{engine}, {model.name}: {done.stderr.strip()[-800:]}")
        sums = [int(line) for line in out.read_text("utf-8").split()]
        return min(b - a for a, b in pairwise(sums))
