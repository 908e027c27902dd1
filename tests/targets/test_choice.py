"""A bundle with the whole model for each of several devices: a session has the first whose driver works."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import decoder_models as decoders
import numpy as np
import onnx
import pytest
from boards import needs_opencl, needs_vulkan
from oracle import runtime_session

import smelt
from smelt.core.diag import SmeltError

pytestmark = [needs_opencl, needs_vulkan]

LAYERS = 1
STEPS = (3, 1, 1)
WITHOUT = {
    "opencl": {"OCL_ICD_VENDORS": "/nowhere/", "OPENCL_VENDOR_PATH": "/nowhere/"},
    "vulkan": {"VK_ICD_FILENAMES": "/nowhere.json", "VK_DRIVER_FILES": "/nowhere.json"},
}
RUN = """
import pickle, sys, smelt
session, rows = smelt.load(sys.argv[1]), []
fork = session.fork()
for s in (session, fork):
    for feed in pickle.load(open(sys.argv[2], "rb")):
        rows.append(s.run(None, feed)[0])
pickle.dump((rows, session.fallback, session.memory().launches), sys.stdout.buffer)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a decoder whose cache is a state, and what its steps are fed."""
    made = decoders.choosing(tmp_path_factory.mktemp("choice"), LAYERS, "x86+opencl+vulkan")
    past, feeds = 0, []
    for new in STEPS:
        feeds.append(decoders.step("grouped", 1, past, new))
        past += new
    (made / "feeds").write_bytes(pickle.dumps(feeds))
    return made


def ran(folder: Path, *missing: str) -> tuple[list[Any], str | None, int]:
    """Outputs of a session and of its fork, why it does not have the first device, launches at its device."""
    env = {**os.environ}
    for device in missing:
        env |= WITHOUT[device]
    words = [sys.executable, "-c", RUN, str(folder / "out"), str(folder / "feeds")]
    done = subprocess.run(words, env=env, capture_output=True, timeout=600)
    assert not done.returncode, done.stderr.decode()[-2000:]
    return pickle.loads(done.stdout)  # type: ignore[no-any-return]


def logits() -> list[Any]:
    oracle = runtime_session(decoders.decoder("grouped", LAYERS))
    names = [o.name for o in oracle.get_outputs()]
    cache, past, rows = dict(decoders.empty(LAYERS, 1)), 0, []
    for new in STEPS:
        found = dict(
            zip(names, oracle.run(None, {**decoders.step("grouped", 1, past, new), **cache}), strict=True)
        )
        rows.append(found["logits"])
        cache = {n.replace("present", "past"): a for n, a in found.items() if n.startswith("present")}
        past += new
    return rows


def test_the_first_device_that_works_runs_all(folder: Path) -> None:
    first, second, third = (ran(folder, *missing) for missing in ((), ("opencl",), ("opencl", "vulkan")))
    wanted = logits()
    for rows, _, _ in (first, second, third):
        for got, want in zip(rows, wanted * 2, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-4)
    assert first[1] is None and first[2]
    assert second[1] and second[1].startswith("OpenCL: ") and "Vulkan" not in second[1] and second[2]
    assert third[1] and "OpenCL: " in third[1] and "Vulkan: " in third[1] and not third[2]


def test_the_bundle_has_both_drivers_and_each_weight_once(folder: Path) -> None:
    library = next((folder / "out").glob("lib*.so")).read_bytes()
    assert b"clEnqueueNDRangeKernel" in library and b"vkQueueSubmit" in library
    manifest = smelt.load(folder / "out").bundle.manifest
    assert manifest["options"]["choose"] and manifest["devices"] == ["opencl", "vulkan"]
    model = onnx.load(folder / "m.onnx")
    once = sum(onnx.numpy_helper.to_array(w).nbytes for w in model.graph.initializer)
    assert manifest["weights"]["bytes"] < 4 * once + (1 << 16)


def test_kernels_are_not_placed_by_hand_as_well(folder: Path) -> None:
    with pytest.raises(SmeltError, match="choose: one device gets all kernels"):
        smelt.compile(
            folder / "m.onnx", "x86+opencl+vulkan", output=folder / "no", choose=True, place={"*": "cpu"}
        )
    with pytest.raises(SmeltError, match="the target has no unit besides the CPU"):
        smelt.compile(folder / "m.onnx", "host", output=folder / "no", choose=True)
