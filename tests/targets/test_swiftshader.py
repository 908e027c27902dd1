"""The tests of Vulkan on a second driver, a weak device: no doubles, no 8 or 16 bits, 256 invocations.

`.ci/swiftshader` fetches it; $SMELT_SWIFTSHADER may name the folder of another build.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from boards import needs_vulkan

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("SMELT_SWIFTSHADER") or ROOT / ".cache" / "swiftshader")
DRIVER = FOLDER / "vk_swiftshader_icd.json"

pytestmark = [
    needs_vulkan,
    pytest.mark.skipif(not DRIVER.is_file(), reason="no SwiftShader: run .ci/swiftshader"),
]
SUITES = ("trees", "driver", "forms", "subgroups", "models", "ops")


@pytest.mark.parametrize("suite", SUITES)
def test_on_swiftshader(suite: str) -> None:
    env = {**os.environ, "VK_ICD_FILENAMES": str(DRIVER), "VK_DRIVER_FILES": str(DRIVER)}
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-rs", f"tests/targets/test_vulkan_{suite}.py"]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout[-3000:]


def test_it_is_the_device_that_is_found() -> None:
    code = "from test_vulkan_driver import *; print(OnVulkan(parse_kernel(DOUBLE)).session.device)"
    path = os.pathsep.join((str(ROOT / "tests" / "targets"), str(ROOT / "tests" / "support"), *sys.path))
    env = {**os.environ, "VK_ICD_FILENAMES": str(DRIVER), "VK_DRIVER_FILES": str(DRIVER), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "SwiftShader" in done.stdout
