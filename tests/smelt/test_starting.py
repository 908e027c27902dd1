"""What a command imports before it works: nothing of the compiler, and NumPy only where there are tensors."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from stand_ins import stand_in

import smelt
from smelt.cli.commands import COMMANDS, SUMMARIES
from smelt.core.bundle import Bundle
from smelt.core.dtype import ALL, from_numpy
from smelt.core.lazily import Lazily
from smelt.forks import SERVER
from smelt.supervise import run_child
from smelt.targets import toolchain

HEAVY = ("numpy", "ml_dtypes", "onnx", "onnxruntime", "llvmlite", "paramiko", "google")
COMPILER = ("smelt.importer", "smelt.core.ops", "smelt.core.ir", "smelt.compiler")

LISTS = """
import sys
from smelt.cli.main import main
try:
    main(sys.argv[2:])
except SystemExit:
    pass
wanted = sys.argv[1].split(",")
print("loaded:", *sorted(m for m in sys.modules if m in wanted))
"""


def loaded(names: tuple[str, ...], *words: str) -> list[str]:
    """Which of these modules a command has imported when it has done its work."""
    asked = [sys.executable, "-P", "-c", LISTS, ",".join(names), *words]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    return done.stdout.rpartition("loaded:")[2].split()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("starting")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [x], [onnx.ValueInfoProto(name="y")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    return smelt.compile(str(folder / "m.onnx"), output=folder / "out")


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["nonsense"],
        ["inspect", "BUNDLE"],
        ["inspect", "BUNDLE", "--kernels"],
        ["devices", "list"],
        ["doctor", "--help"],
        ["compile", "--help"],
        ["run", "--help"],
    ],
    ids=" ".join,
)
def test_commands_without_tensors_load_no_numpy(words: list[str], bundle: Bundle) -> None:
    own = [str(bundle.path) if w == "BUNDLE" else w for w in words]
    assert loaded((*HEAVY, *COMPILER), *own) == []


def test_what_runs_loads_numpy_but_no_compiler(bundle: Bundle) -> None:
    words = ["run", str(bundle.path), "--random", "--shape", "x:4"]
    assert loaded((*HEAVY, *COMPILER), *words) == ["ml_dtypes", "numpy"]


def test_who_compiles_loads_no_compiler(bundle: Bundle, tmp_path: Path) -> None:
    words = ["compile", str(bundle.path.parent / "m.onnx"), "-o", str(tmp_path / "out")]
    assert loaded(("numpy", "onnx", *COMPILER), *words) == []
    assert (tmp_path / "out" / "manifest.json").is_file()


def test_the_page_of_all_commands_has_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert {name for names in COMMANDS.values() for name in names} == set(SUMMARIES)
    for module, names in COMMANDS.items():
        added: dict[str, str] = {}

        def add(name: str, added: dict[str, str] = added, **more: object) -> object:
            import argparse

            added[name] = str(more["help"])
            return argparse.ArgumentParser()

        import_module(f"smelt.cli.{module}").register(add)
        assert added == {n: SUMMARIES[n] for n in names}


def test_a_prepared_server_starts_the_first_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, out, own, _, program = stand_in(tmp_path, monkeypatch, "sys.exit(5)")
    SERVER.prepare(program)
    first = SERVER.process
    assert run_child("{}", result, out, own, None, program).status == 5
    assert SERVER.process is first


def test_a_server_that_cannot_be_prepared_is_an_error_of_who_asks_for_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, own, _, program = stand_in(tmp_path, monkeypatch, "sys.exit(5)")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    SERVER.prepare(program)
    with pytest.raises(OSError, match="No such file"):
        run_child("{}", tmp_path / "result", tmp_path / "out", own, None, program)


def test_the_environment_of_the_server_is_not_that_of_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy's threads are for the server to do without; what a plug-in finds is the caller's."""
    body = "open(result, 'w').write(os.environ.get('OPENBLAS_NUM_THREADS', 'none') + BEFORE)"
    top = "BEFORE = os.environ.get('OPENBLAS_NUM_THREADS', 'none')"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    result, out, own, _, program = stand_in(tmp_path, monkeypatch, body, top)
    assert run_child("{}", result, out, own, None, program).status == 0
    assert result.read_text() == "71"


def test_a_stand_in_imports_when_asked_and_once() -> None:
    sys.modules.pop("this_is_lazy", None)
    lazy = Lazily("this_is_lazy")
    with pytest.raises(ModuleNotFoundError, match="this_is_lazy"):
        _ = lazy.anything
    numpy = Lazily("numpy")
    assert numpy.float32 is np.float32
    assert vars(numpy)["float32"] is np.float32
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = numpy.no_such_name


def test_element_types_find_their_counterparts() -> None:
    for t in ALL.values():
        assert from_numpy(t.numpy) is t
        assert t.numpy.itemsize == t.bytes


# ---------------------------------------------------------------- what links


def test_the_linkers_version_is_what_pip_says() -> None:
    assert toolchain._zig_version() == version("ziglang")


def test_a_source_that_changes_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "a.c"
    file.write_text("int a;")
    first = toolchain._hash_of_files([file])
    assert toolchain._hash_of_files([file]) == first
    file.write_text("int b;")
    second = toolchain._hash_of_files([file])
    assert second != first
    file.rename(tmp_path / "b.c")
    assert toolchain._hash_of_files([tmp_path / "b.c"]) != second
