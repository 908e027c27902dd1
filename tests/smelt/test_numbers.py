"""Numbers on the command line beyond their ranges: usage errors that name the option, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper
from onnx_models import model as onnx_model

from smelt.cli.main import main
from smelt.compiler import compile_here
from smelt.core.bundle import Bundle
from smelt.driver import Request

HUGE = "9" * 5000
BAD = ("", "x", "-1", "1.5", "1e3", "nan", "0x10", "99999999999999999999", HUGE)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("numbers")
    made = onnx_model([helper.make_node("Neg", ["x"], ["y"])], {"x": ("f32", ["n", "m"])}, {"y": "f32"})
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    return compile_here(Request(str(folder / "m.onnx"), output=str(folder / "out")))


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    try:
        code = main([str(w) for w in words])
    except SystemExit as e:  # argparse
        code = int(e.code or 0)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and "bug of smelt" not in captured.err
    assert len(captured.err) < 5000
    return code, captured.err


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize(
    ("command", "option"),
    [("run", "--threads"), ("run", "--seed"), ("bench", "--threads"), ("bench", "--count"),
     ("validate", "--count"), ("validate", "--rtol"), ("validate", "--atol")],
)  # fmt: skip
def test_whole_numbers(
    command: str, option: str, value: str, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    if option.endswith("tol") and value in ("1.5", "1e3", BAD[-2]):
        return  # these are tolerances
    code, err = said(capsys, command, bundle.path, f"{option}={value}")
    assert code == 2
    assert option in err and ("no whole number from" in err or "no number from 0" in err)


@pytest.mark.parametrize(
    "shape",
    [
        f"x:{HUGE}x3",
        f"x:{2**63}x3",
        "x:99999999999999999999x3",
        f"n={HUGE}",
        "x:-1x3",
        "x:1.5x3",
        "x:0x10x",
        "x:",
    ],
)
def test_shapes(shape: str, bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "run", bundle.path, "--random", "--shape", shape)[0] == 2


@pytest.mark.parametrize(
    "shape", ["x:99999999999x99999999999", f"x:{2**62}x{2**62}", f"x:{2**40}x1", f"n={2**63 - 1}"]
)
def test_shapes_that_no_memory_holds(shape: str, bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = said(capsys, "run", bundle.path, "--random", "--shape", shape)
    assert code == 1 and "bytes, this machine has" in err


@pytest.mark.parametrize("span", ["nan,1", "0,inf", "-1e999,1", "1e300,2e300", "2,1", "0", HUGE])
def test_spans(span: str, bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "run", bundle.path, "--random", f"--val-range={span}")[0] == 2


@pytest.mark.parametrize("dim", [f"n={HUGE}", f"n=1..{2**63}", "n=-1", "n=1.5", "=4", "n=5..2"])
def test_dims(dim: str, bundle: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    model = Path(bundle.path).parent / "m.onnx"
    assert said(capsys, "compile", model, "--dim", dim, "-o", Path(bundle.path).parent / "other")[0] == 2


HEAD = "{'descr': '%s', 'fortran_order': False, 'shape': %s}"


@pytest.mark.parametrize(
    "head",
    [HEAD % ("<f4", "(99999999999999,)"), HEAD % ("<f4", f"({HUGE},)"), HEAD % ("<f4", "(-1,)"),
    HEAD % ("|O", "(2,)"),
     HEAD % ("<f4", "(2, 3)"), "[" * 3000, "{" * 60000, ""],
)  # fmt: skip
@pytest.mark.parametrize(
    "start", [b"\x93NUMPY\x01\0", b"\x93NUMPY\x02\0", b"PK\x03\x04", b"\x93NUMPY\xff\0", b""]
)
def test_files_of_inputs(
    head: str, start: bytes, bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = min(len(head), 65535).to_bytes(2 if start[6:7] == b"\x01" else 4, "little")
    (tmp_path / "x.npy").write_bytes(start + size + head.encode() + bytes(8))
    assert said(capsys, "run", bundle.path, "--input", f"x={tmp_path / 'x.npy'}")[0] == 2


def test_ports(capsys: pytest.CaptureFixture[str]) -> None:
    for port in ("0", "65536", "-1", HUGE):
        code, err = said(
            capsys, "devices", "add", "b", "--transport", "ssh", "--platform", "host", f"--port={port}"
        )
        assert code == 2 and "--port" in err
