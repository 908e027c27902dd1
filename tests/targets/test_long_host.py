"""How host programs are compiled: with the kernels, alone, and too long to be optimised; they run alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from boards import need_emulator
from onnx import TensorProto, helper

from smelt.compiler import compile_here
from smelt.devicefarm.budget import Budget, StepLimits
from smelt.devicefarm.client import open_session
from smelt.devicefarm.inventory import DEFAULT_DEVICE, find_device, open_transport
from smelt.driver import Request
from smelt.session import load
from smelt.targets.llvm import target as llvm_target
from smelt.targets.platform import parse_target

LAUNCHES = 40


def chain(path: Path) -> Path:
    """Softmaxes along alternate axes of a tensor whose sizes are all dynamic: a launch each."""
    nodes = [helper.make_node("Softmax", [f"v{k}"], [f"v{k + 1}"], axis=k % 2 + 1) for k in range(LAUNCHES)]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", "m", "k"]) for n in ("v0", f"v{LAUNCHES}")
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def wanted(x: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64)
    for k in range(LAUNCHES):
        e = np.exp(y - y.max(axis=k % 2 + 1, keepdims=True, initial=-np.inf))
        y = e / e.sum(axis=k % 2 + 1, keepdims=True)
    return y


@pytest.mark.parametrize("target", ["x86_64-linux", "aarch64-linux", "armv7"])
def test_hosts_that_are_not_optimised(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_emulator(target)
    sizes = []
    for limit in (llvm_target.LONG_HOST, 0):
        monkeypatch.setattr(llvm_target, "LONG_HOST", limit)
        out = tmp_path / f"out{limit}"
        bundle = compile_here(Request(str(chain(tmp_path / "m.onnx")), target=target, output=str(out)))
        sizes.append((bundle.path / bundle.names.library).stat().st_size)
    assert sizes[1] > sizes[0], "the limit decides nothing"
    device = find_device(DEFAULT_DEVICE.get(parse_target(target).platform.name, "local"), tmp_path / "none")
    rng = np.random.default_rng(0)
    budget = Budget(StepLimits(total=120))
    with open_session(open_transport(device), bundle.path, budget=budget, threads=1) as s:
        for shape in ((2, 3, 5), (1, 1, 1), (0, 4, 2), (3, 17, 8)):
            x = rng.standard_normal(shape).astype(np.float32)
            (y,) = s.run({"v0": x}).outputs.values()
            np.testing.assert_allclose(y, wanted(x), rtol=1e-4, atol=1e-6)


def test_a_small_model_is_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No linker joins it; what it computes is the same to the bit."""
    join, parts, answers = llvm_target.join_objects, [], []

    def counted(objects: Sequence[bytes]) -> bytes:
        parts.append(len(objects))
        return join(objects)

    monkeypatch.setattr(llvm_target, "join_objects", counted)
    x = np.random.default_rng(0).standard_normal((3, 17, 8)).astype(np.float32)
    for batch in (llvm_target.BATCH, 1):
        monkeypatch.setattr(llvm_target, "BATCH", batch)
        out = str(tmp_path / f"out{batch}")
        bundle = compile_here(Request(str(chain(tmp_path / "m.onnx")), output=out, runner=False))
        answers.append(load(bundle, threads=1).run(None, {"v0": x})[0])
    assert parts[0] == 1
    assert parts[1] > 2
    np.testing.assert_array_equal(*answers)
