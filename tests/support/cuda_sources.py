"""A copy of the sources whose CUDA runs on this machine, and the libcuda.so.1 that runs it."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from checkouts import Checkout, checkout
from cuda_run import RUNTIME_C

SUPPORT = Path(__file__).parent


def cuda_checkout(folder: Path) -> Checkout:
    """The sources with tests/support/fake_cuda/target.py for the target's."""
    made = checkout(folder)
    there = made.path / "targets" / "cuda"
    (there / "target.py").rename(there / "real_target.py")
    shutil.copy(SUPPORT / "fake_cuda" / "target.py", there)
    shutil.copy(SUPPORT / "cuda_host.py", there)
    return made


@functools.cache
def fake_libcuda() -> Path:
    """A folder with libcuda.so.1: fake_cuda.c."""
    folder = Path(tempfile.mkdtemp(prefix="smelt-fake-libcuda-"))
    parts = [str(RUNTIME_C / name) for name in ("fake_cuda.c", "fake_threads.c")]
    words = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-O1", "-g", "-shared", "-fPIC"]
    out = str(folder / "libcuda.so.1")
    subprocess.run([*words, "-Wl,-soname,libcuda.so.1", *parts, "-o", out, "-ldl"], check=True)
    return folder
