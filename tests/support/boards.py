"""Tools that tests need besides Python: where one is missing, the test skips and says what to install."""

from __future__ import annotations

import shutil
from ctypes.util import find_library
from pathlib import Path

import pytest

from smelt.targets.platform import parse_target

NO_OPENCL = "no OpenCL driver: apt install pocl-opencl-icd ocl-icd-libopencl1"
HAS_OPENCL = find_library("OpenCL") is not None and any(Path("/etc/OpenCL/vendors").glob("*.icd"))
needs_opencl = pytest.mark.skipif(not HAS_OPENCL, reason=NO_OPENCL)


def need_emulator(target: str) -> None:
    """Skip where programs of the target do not run: its processor is another, with no emulator here."""
    emulator = parse_target(target).platform.emulator
    if emulator is not None:
        need_qemu(emulator.binary)


def need_qemu(*programs: str) -> None:
    """Skip where none of these emulators is installed."""
    if not any(map(shutil.which, programs)):
        pytest.skip(f"needs {' or '.join(programs) or 'an emulator'}: apt-get install qemu-user-static")
