"""Tools that tests need besides Python: where one is missing, the test skips and says what to install."""

from __future__ import annotations

from pathlib import Path

import pytest
from installed import library_name, program_path, system_folder

from smelt.targets.platform import parse_target

NO_OPENCL = "no OpenCL driver: apt install pocl-opencl-icd ocl-icd-libopencl1"
HAS_OPENCL = library_name("OpenCL") is not None and any(system_folder("/etc/OpenCL/vendors").glob("*.icd"))
needs_opencl = pytest.mark.skipif(not HAS_OPENCL, reason=NO_OPENCL)
NO_VULKAN = "no Vulkan driver: apt install mesa-vulkan-drivers libvulkan1"
_DRIVERS = system_folder("/usr/share/vulkan/icd.d")
HAS_VULKAN = library_name("vulkan") is not None and any(_DRIVERS.glob("*.json"))
needs_vulkan = pytest.mark.skipif(not HAS_VULKAN, reason=NO_VULKAN)

NO_CUDA = "no NVIDIA GPU"
HAS_CUDA = any(f for name in ("nvidia[0-9]*", "nvhost-gpu") for f in Path("/dev").glob(name))
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason=NO_CUDA)


def need_emulator(target: str) -> None:
    """Skip where programs of the target do not run: its processor is another, with no emulator here."""
    emulator = parse_target(target).platform.emulator
    if emulator is not None:
        need_qemu(emulator.binary)


def need_qemu(*programs: str) -> None:
    """Skip where none of these emulators is installed."""
    if not any(map(program_path, programs)):
        pytest.skip(f"needs {' or '.join(programs) or 'an emulator'}: apt-get install qemu-user-static")
