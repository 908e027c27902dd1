"""The words of a SPIR-V module in; spirv-val's verdict for Vulkan 1.1 as an assertion, where there is one."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence

from installed import program_path

VALIDATOR = program_path("spirv-val")
NO_VALIDATOR = "no spirv-val: apt install spirv-tools"


def valid(words: Sequence[int]) -> None:
    """Raises AssertionError with what spirv-val says; without spirv-val nothing is known."""
    if VALIDATOR is None:
        return
    data = struct.pack(f"<{len(words)}I", *words)
    done = subprocess.run([VALIDATOR, "--target-env", "vulkan1.1"], input=data, capture_output=True)
    assert not done.returncode, done.stderr.decode()[:2000]
