"""Target text ("arm64", "x86_64-linux:znver5+opencl") in, TargetSpec (row, cpu, devices) out."""

from __future__ import annotations

import importlib.util
import os
import platform as _python_platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from smelt.core.diag import SmeltError

Libc = Literal["glibc", "bionic"]


@dataclass(frozen=True, slots=True)
class Emulator:
    """A qemu user-mode program.

    baseline: its -cpu for the platform's default cpu. known: LLVM cpu names that it has under the
    same name; any other cpu runs on `widest`, which has every instruction.
    """

    binary: str
    baseline: str
    widest: str = "max"
    known: tuple[str, ...] = ()

    def command(self, cpu: str, default_cpu: str) -> tuple[str, ...]:
        """The words of a command line before a program that was compiled for cpu."""
        model = cpu if cpu in self.known else self.baseline if cpu == default_cpu else self.widest
        return (self.binary, "-cpu", model)


@dataclass(frozen=True, slots=True)
class Platform:
    """One operating system on one architecture: everything that differs between two of them.

    triple, abi: what LLVM is told (abi is its `abiname`, "" for the default). features: LLVM
    features that belong to default_cpu. zig, zig_flags: the C compiler's target. static_zig: the
    target whose libc goes into a static program, None where programs are dynamic. page: the largest
    page that the files must load with, in bytes. machine: e_machine of the ELF header. loader: the
    dynamic linker. shim: the platform whose runner can load this platform's library where this
    platform's own libc is missing.
    """

    name: str
    arch: str
    triple: str
    default_cpu: str
    features: str
    bits: int
    libc: Libc
    loader: str
    page: int
    machine: int
    zig: str
    zig_flags: tuple[str, ...] = ()
    static_zig: str | None = None
    abi: str = ""
    emulator: Emulator | None = None
    shim: str | None = None


_QEMU_ARM64 = Emulator(
    "qemu-aarch64-static",
    baseline="cortex-a53",
    known=(
        "cortex-a35",
        "cortex-a53",
        "cortex-a57",
        "cortex-a72",
        "cortex-a76",
        "neoverse-n1",
        "a64fx",
    ),
)
_QEMU_ARM = Emulator(
    "qemu-arm-static",
    baseline="cortex-a7",
    known=("cortex-a7", "cortex-a8", "cortex-a9", "cortex-a15"),
)
_ARMV7_FLAGS = ("-mcpu=cortex_a8",)  # less than the models need: the runtime says so where that is not there

_ROWS = (
    Platform(
        name="x86_64-linux",
        arch="x86_64",
        triple="x86_64-unknown-linux-gnu",
        default_cpu="x86-64-v3",  # Haswell and Zen: AVX2, FMA, F16C
        features="",
        bits=64,
        libc="glibc",
        loader="/lib64/ld-linux-x86-64.so.2",
        page=4096,
        machine=62,
        zig="x86_64-linux-gnu",
        zig_flags=("-mcpu=x86_64",),
        static_zig="x86_64-linux-musl",
        emulator=Emulator("qemu-x86_64-static", baseline="max"),
    ),
    Platform(
        name="aarch64-linux",
        arch="aarch64",
        triple="aarch64-unknown-linux-gnu",
        default_cpu="cortex-a53",  # plain Armv8-A: every 64-bit board runs it, no dot product
        features="",
        bits=64,
        libc="glibc",
        loader="/lib/ld-linux-aarch64.so.1",
        page=65536,
        machine=183,
        zig="aarch64-linux-gnu",
        zig_flags=("-mcpu=generic", "-mno-outline-atomics"),
        static_zig="aarch64-linux-musl",
        emulator=_QEMU_ARM64,
    ),
    Platform(
        name="armv7-linux",
        arch="arm",
        triple="armv7-unknown-linux-gnueabihf",
        default_cpu="cortex-a7",
        features="+neon,+vfp4",
        bits=32,
        libc="glibc",
        loader="/lib/ld-linux-armhf.so.3",
        page=65536,
        machine=40,
        zig="arm-linux-gnueabihf",
        zig_flags=_ARMV7_FLAGS,
        static_zig="arm-linux-musleabihf",
        emulator=_QEMU_ARM,
    ),
    Platform(
        name="riscv64-linux",
        arch="riscv64",
        triple="riscv64-unknown-linux-gnu",
        default_cpu="generic-rv64",
        features="+m,+a,+f,+d,+c",  # rv64gc; boards with vectors are chosen by cpu (spacemit-x60)
        bits=64,
        libc="glibc",
        loader="/lib/ld-linux-riscv64-lp64d.so.1",
        page=4096,
        machine=243,
        zig="riscv64-linux-gnu",
        static_zig="riscv64-linux-musl",
        abi="lp64d",
        emulator=Emulator(
            "qemu-riscv64-static", baseline="rv64", widest="rv64,v=true,vlen=256,vext_spec=v1.0"
        ),
    ),
    Platform(
        name="aarch64-android",
        arch="aarch64",
        triple="aarch64-linux-android26",
        default_cpu="cortex-a53",
        features="",
        bits=64,
        libc="bionic",
        loader="/system/bin/linker64",
        page=16384,  # Android 15 and later run with 16 KiB pages
        machine=183,
        zig="aarch64-linux-android",
        zig_flags=("-mcpu=generic", "-mno-outline-atomics"),
        emulator=_QEMU_ARM64,
        shim="aarch64-linux",
    ),
    Platform(
        name="armv7-android",
        arch="arm",
        triple="armv7-linux-androideabi26",
        default_cpu="cortex-a7",
        features="+neon,+vfp4",
        bits=32,
        libc="bionic",
        loader="/system/bin/linker",
        page=16384,
        machine=40,
        zig="arm-linux-androideabi",
        # softfp: floats travel in core registers, which is Android's ABI, the FPU computes them
        zig_flags=(*_ARMV7_FLAGS, "-mfloat-abi=softfp"),
        emulator=_QEMU_ARM,
    ),
)
PLATFORMS: Mapping[str, Platform] = MappingProxyType({row.name: row for row in _ROWS})

_X86 = ("x86-64-v2", "x86-64-v3", "x86-64-v4-vnni")
_ARM64 = ("cortex-a53", "cortex-a76", "cortex-a76-i8mm")
# Short names -> (platform, cpus that cover most machines where no device does the work); none: the row's.
ALIASES: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "x86": ("x86_64-linux", _X86),
        "arm64": ("aarch64-linux", _ARM64),
        "armv7": ("armv7-linux", ()),
        "riscv64": ("riscv64-linux", ()),
        "android": ("aarch64-android", _ARM64),
    }
)
CHOICES: Mapping[str, str] = MappingProxyType({"android": "aarch64-android+opencl+vulkan"})
"""What `make target=...` compiles with a choice of devices: phones have drivers of different kinds."""
# Boards whose GPU belongs to them -> the target that each is.
BOARDS: Mapping[str, str] = MappingProxyType(
    {
        "jetson": "aarch64-linux:cortex-a78ae+cuda:sm_87",
        "jetson-nano": "aarch64-linux:cortex-a57+cuda:sm_53",
        "jetson-xavier": "aarch64-linux:carmel+cuda:sm_72",
        "jetson-orin": "aarch64-linux:cortex-a78ae+cuda:sm_87",
        "jetson-thor": "aarch64-linux:neoverse-v3ae+cuda:sm_110",
    }
)
DRIVERS: Mapping[str, Path] = MappingProxyType(
    {p.stem.removesuffix("_driver"): p for p in sorted(Path(__file__).parent.glob("*/*_driver.c"))}
)
"""Device -> the C file that runs its kernels (runtime/driver.h), in the folder of its target."""
DEVICES = tuple(DRIVERS)

# What this machine calls its processor -> arch of a row.
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64",
             "armv7l": "arm", "armv8l": "arm", "riscv64": "riscv64"}  # fmt: skip


LEVELS: Mapping[str, Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "x86_64": {"x86-64-v4-vnni": ("x86-64-v4", "+avx512vnni")},
        "aarch64": {"cortex-a76-i8mm": ("cortex-a76", "+bf16,+i8mm")},
    }
)
"""Architecture -> a name that LLVM does not have -> LLVM's cpu, and what it has besides."""


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A platform, the cpu and LLVM features to compile for, and devices ("opencl") beside it. chips: what was
    named after a device, (device, chip) each: ("cuda", "sm_87"). level: the name by which the cpu was
    given, if that is one of LEVELS. better: the same for further processors, the best first, of which the
    code has variants."""

    platform: Platform
    cpu: str
    features: str = ""
    devices: tuple[str, ...] = ()
    chips: tuple[tuple[str, str], ...] = ()
    level: str = ""
    better: tuple[TargetSpec, ...] = ()

    def __str__(self) -> str:
        """The text that parse_target reads back (of `host`: without its exact features)."""
        cpus = [s.processor for s in reversed(self.levels())]
        own = "" if cpus == [self.platform.default_cpu] else "".join(f":{cpu}" for cpu in cpus)
        devices = (":".join(("+" + d, *self.chips_of(d))) for d in self.devices)
        return self.platform.name + own + "".join(devices)

    @property
    def processor(self) -> str:
        """The name of the cpu."""
        return self.level or self.cpu

    def levels(self) -> tuple[TargetSpec, ...]:
        """A target for each processor, the best first; `self` without the others is the last one."""
        return (*self.better, replace(self, better=()))

    def chips_of(self, device: str) -> tuple[str, ...]:
        """The chips of a device that are to be compiled for; none: any."""
        return tuple(chip for name, chip in self.chips if name == device)


def host_platform_name() -> str | None:
    """The name of this machine's row, or None."""
    arch = _MACHINES.get(_python_platform.machine().lower())
    system = "android" if hasattr(sys, "getandroidapilevel") else sys.platform
    return next((p.name for p in _ROWS if p.arch == arch and p.name.endswith(f"-{system}")), None)


def parse_target(text: str, ask: bool = True) -> TargetSpec:
    """'<platform or alias or host>[:cpu...][+device[:chip...]...]' or a board -> TargetSpec. Of several cpus
    the code has a variant for each, of which the last that fits the processor is run. An alias without cpus
    and devices names several, a platform its own one. ask: LLVM, for the
    name and features of this machine's processor; who only wants to know whether there is such a target need
    not load it.

    Raises SmeltError(kind='unsupported') for a platform, cpu or device that does not exist, listing
    those that do. Which chips there are is the device's business.
    """
    text = BOARDS.get(text.strip(), text)
    match = re.fullmatch(r"([\w.-]+)((?::[\w.-]+)*)((?:\+[\w.-]+(?::[\w.-]+)*)*)", text.strip())
    if match is None:
        raise _unknown(f"target {text!r} is not of the form platform[:cpu][+device[:chip]]")
    name, named, rest = match.groups()
    cpus = named.split(":")[1:]
    if len(set(cpus)) < len(cpus):
        raise _unknown(f"target {text!r} names a cpu twice")
    words = [word.split(":") for word in rest.split("+")[1:]]
    devices = tuple(dict.fromkeys(word[0] for word in words))
    chips = tuple(dict.fromkeys((device, chip) for device, *named in words for chip in named))
    for device in devices:
        if device not in DEVICES:
            raise _unknown(f"target {text!r}: there is no device {device!r}, only {', '.join(DEVICES)}")
    if name == "host":
        return _best_last([replace(_host(cpu, devices, ask), chips=chips) for cpu in cpus or [None]])
    platform_name, several = ALIASES.get(name, (name, ()))
    row = PLATFORMS.get(platform_name)
    if row is None:
        raise _unknown(f"target {text!r}: there is no platform {name!r}")
    own = cpus or (() if devices else several) or [None]
    return _best_last([replace(_spec(row, cpu, devices), chips=chips) for cpu in own])


def _best_last(specs: Sequence[TargetSpec]) -> TargetSpec:
    """One target for several processors."""
    return replace(specs[0], better=tuple(reversed(specs[1:])))


def _unknown(message: str) -> SmeltError:
    names = ", ".join((*ALIASES, *BOARDS, "host", *PLATFORMS))
    return SmeltError(message, kind="unsupported", hint=f"targets: {names}")


def _spec(row: Platform, cpu: str | None, devices: tuple[str, ...]) -> TargetSpec:
    if cpu is None or cpu == row.default_cpu:
        return TargetSpec(row, row.default_cpu, row.features, devices)
    own = LEVELS.get(row.arch, {})
    if cpu in own:
        return TargetSpec(row, *own[cpu], devices, level=cpu)
    known = cpu_names(row.arch)
    if known and cpu not in known:  # LLVM would only warn, and compile for something else
        from difflib import get_close_matches

        near = get_close_matches(cpu, [*known, *own], 6, 0.4) or sorted(known)
        raise SmeltError(
            f"platform {row.name!r} has no cpu {cpu!r}",
            kind="unsupported",
            hint=f"cpus: {', '.join(near)}, ... (LLVM's names)",
        )
    return TargetSpec(row, cpu, "", devices)


def same_again(text: str) -> str:
    """A bundle's target, for a second compile here: `host` where this machine's processor is meant, which may
    have fewer features than its name says (a virtual machine hides some)."""
    if host_platform_name() is None:
        return text
    own = str(parse_target("host"))
    rest = text.removeprefix(own)
    return f"host{rest}" if rest != text and rest[:1] in ("", "+") else text


def _host(cpu: str | None, devices: tuple[str, ...], ask: bool) -> TargetSpec:
    name = host_platform_name()
    if name is None:
        machine = f"{sys.platform} on {_python_platform.machine()}"
        raise _unknown(f"target 'host': this machine ({machine}) is no platform of smelt")
    if cpu is not None or not ask:
        return _spec(PLATFORMS[name], cpu, devices)
    return TargetSpec(PLATFORMS[name], *_host_processor(), devices)


@cache
def _host_processor() -> tuple[str, str]:
    """LLVM's name of this machine's processor, and its features."""
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


# ---- cpu names: LLVM has no query for them, but the C compiler that we ship has its tables ----

CPU_TABLES = {"x86_64": "x86", "aarch64": "aarch64", "arm": "arm", "riscv64": "riscv"}
# What a cpu's features must hold to be usable: a 32-bit x86 name makes LLVM end the process.
_CPU_NEEDS = {"x86_64": r'\.@"64bit"', "riscv64": r'\.@"64bit"', "arm": r"\.v[789](_\d)?a,"}


def zig_directory() -> Path:
    """Where the ziglang package lies. Raises SmeltError(kind='infra') when it is not installed."""
    found = importlib.util.find_spec("ziglang")
    if found is None or not found.submodule_search_locations:
        raise SmeltError(
            "the C compiler is missing: no package 'ziglang'",
            kind="infra",
            hint="pip install ziglang",
        )
    return Path(os.fspath(found.submodule_search_locations[0]))


@cache
def cpu_names(arch: str) -> frozenset[str]:
    """LLVM's cpu names for an arch; empty (nothing is refused) where the tables are missing."""
    try:
        table = zig_directory() / "lib" / "std" / "Target" / f"{CPU_TABLES[arch]}.zig"
        text = table.read_text(encoding="utf-8")
    except (OSError, SmeltError):
        return frozenset()
    blocks = text.partition("pub const cpu = struct")[2].split("CpuModel = ")
    need = _CPU_NEEDS.get(arch, "")
    names = (re.search(r'\.llvm_name = "([^"]+)"', b) for b in blocks if re.search(need, b))
    return frozenset(match.group(1) for match in names if match)
