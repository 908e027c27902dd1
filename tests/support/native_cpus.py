"""This machine -> the processors whose code it can run: itself and the narrower instruction sets."""

from __future__ import annotations

import platform

import llvmlite.binding as llvm

from smelt.targets.llvm.machines import Cpu, cpu_for, host


def cpus() -> list[Cpu]:
    """The host, and the narrower instruction sets that it can run as well."""
    found = [host()]
    if platform.machine() == "x86_64":
        has = llvm.get_host_cpu_features()
        names = ["x86-64", "x86-64-v2", *(["x86-64-v3"] if has.get("avx2") else [])]
        names += ["x86-64-v4"] if has.get("avx512vl") else []
        found += [cpu_for("x86_64-unknown-linux-gnu", n) for n in names]
    return found


CPUS = cpus()
