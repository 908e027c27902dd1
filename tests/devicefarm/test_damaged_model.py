"""A compiled model whose files are damaged on the device after they were verified: `smelt validate` blames
the device, once, and passes again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import rig
from onnx import TensorProto, helper, numpy_helper

from smelt.cli.main import main
from smelt.core.bundle import Bundle
from smelt.devicefarm.inventory import Device, write_inventory
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.ssh import SshTransport
from smelt.driver import compile

WIDTH = 3000
"""Its weights are more than the 32 MiB that are verified whenever a bundle is opened."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    w = np.random.default_rng(1).random((WIDTH, WIDTH), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(w, "w")],
    )
    path = tmp_path_factory.mktemp("model") / "wide.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return compile(model, "host", output=str(tmp_path_factory.mktemp("bundle") / "out"))


def zeros(weights: Path) -> None:
    with weights.open("r+b") as f:
        f.seek(weights.stat().st_size // 2)
        f.write(bytes(32 * 1024))


def cut(weights: Path) -> None:
    with weights.open("r+b") as f:
        f.truncate(weights.stat().st_size - 1000)


@pytest.mark.table(2)
@pytest.mark.parametrize("harm", [zeros, cut])
@pytest.mark.parametrize("kind", ["local", "ssh"])
def test_validate_blames_the_device_once(
    kind: str,
    harm: object,
    model: Path,
    bundle: Bundle,
    sshd: rig.Sshd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a, root = sshd.address, tmp_path / "root"
    board = Device("board", kind, "host", root=str(root))
    if kind == "ssh":
        board = replace(
            board, host=a.host, port=a.port, user=a.user, host_key=a.host_key, key_file=str(a.key_file)
        )
    monkeypatch.setenv("SMELT_DEVICES", str(write_inventory({"board": board}, tmp_path / "devices.toml")))
    words = ["validate", str(bundle.path), "--model", str(model), "--device", "board", "--count", "1"]
    assert main(words) == 0
    made = {"local": LocalTransport, "ssh": SshTransport}[kind]
    start = made.open_runner

    def damaging(self: object, remote: str, budget: object) -> object:
        harm(Path(remote) / bundle.names.weights)  # type: ignore[operator]
        return start(self, remote, budget)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(made, "open_runner", damaging)
        capsys.readouterr()
        assert main(words) == 6
    said = capsys.readouterr().err
    assert f"files of the bundle are damaged on device 'board': {bundle.names.weights}" in said
    assert main(words) == 0
