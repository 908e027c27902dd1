"""Values that no compile takes: an error of kind 'invalid' that names the argument, whatever the value is."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isolated import isolated
from onnx import helper
from onnx_models import model as onnx_model

import smelt
from smelt import forks, limits
from smelt.arguments import ARGUMENTS
from smelt.cli.main import main
from smelt.core.diag import SmeltError
from smelt.limits import MOST_THREADS

MODEL = onnx_model([helper.make_node("Neg", ["x"], ["y"])], {"x": ("f32", ["n", "m"])}, {"y": "f32"})
LONG = "x" * 300 + ".onnx"


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "m.onnx"
    file.write_bytes(MODEL.SerializeToString())
    return str(file)


class Rude:
    """An object that can do nothing."""

    def __repr__(self) -> str:
        raise ZeroDivisionError

    def __index__(self) -> int:
        raise ZeroDivisionError


class RudePath(os.PathLike[str]):
    def __fspath__(self) -> str:
        raise ZeroDivisionError


class RudeMapping(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise ZeroDivisionError

    def __iter__(self) -> Iterator[str]:
        raise ZeroDivisionError

    def __len__(self) -> int:
        return 1


HOSTILE: tuple[Any, ...] = (
    b"x", 1.5, 2**70, -1, float("nan"), "a\0b", [5], [None], {5: 5}, {"a": None}, {"a": b"x"},
    {"a": (1, 2, 3)}, {"a\0": 1}, object(), Rude(), [Rude()], {"a": Rude()}, int, np.zeros(3), (1, 2),
    RudePath(), [RudePath()], RudeMapping(),
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(ARGUMENTS.keys() - {"plan_only", "listings", "portable"}))
def test_hostile_values(name: str, path: str, tmp_path: Path) -> None:
    good = {"dims": [{}], "fast_math": [False], "output": ["o"]}.get(name, [])
    for value in (v for v in HOSTILE if not any(v is g for g in good)):
        with pytest.raises(SmeltError) as caught:
            smelt.compile(path, **{"output": tmp_path / "o", name: value})
        assert caught.value.kind == "invalid", (value, caught.value)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"threads": 2**31}, f"threads: expected a whole number from 1 to {MOST_THREADS}, got 2147483648"),
        ({"threads": MOST_THREADS + 1}, "threads: expected a whole number"),
        ({"opt": "3"}, "opt: expected a whole number from 0 to 3, got '3'"),
        ({"opt": True}, "opt: expected a whole number"),
        ({"target": None}, "target: expected a text"),
        ({"fp16": "maybe"}, "fp16: expected True or False, got 'maybe'"),
        ({"plugins": (5,)}, "plugins: expected a text"),
        ({"plugins": ("a\0b.py",)}, "plugins: expected a text without zero bytes"),
        ({"outputs": "yy"}, "outputs: expected a list of texts, got 'yy'"),
        ({"dims": {"n": (1, 2, 3)}}, "dims: 'n': expected a list of hot sizes"),
        ({"dims": {"n": (1, 2, [1.5])}}, "dims: 'n': expected a whole number"),
        ({"dims": {"n": (1, 2, [1], 4)}}, "dims: 'n': expected a size, a pair"),
        ({"dims": {"n": 1 << 63}}, "dims: 'n': expected a whole number"),
        ({"memory_limit": 2**2000}, "memory_limit is 1148"),
        ({"time_limit": float("inf")}, "time_limit is inf, wanted a number above 0, at most 1e+09"),
    ],
)
def test_the_argument_is_named(given: dict[str, Any], said: str, path: str, tmp_path: Path) -> None:
    with pytest.raises(SmeltError) as caught:
        smelt.compile(path, **{"output": tmp_path / "o", **given})
    assert caught.value.kind == "invalid" and said in caught.value.message


NO_MODELS = (
    None, 5, [], Rude(), {}, {"a": None}, {5: b"x"}, LONG, "a\0b", "/dev/null", RudePath(), RudeMapping(),
)  # fmt: skip


@pytest.mark.parametrize("model", NO_MODELS)
def test_what_is_no_model(model: Any, tmp_path: Path) -> None:
    with pytest.raises(SmeltError) as caught:
        smelt.compile(model, output=tmp_path / "o")
    assert caught.value.kind == "invalid"


def test_all_forms_of_bytes_and_of_numbers(tmp_path: Path) -> None:
    data = MODEL.SerializeToString()
    for form in (bytearray(data), memoryview(data), MODEL):
        made = smelt.compile(form, output=tmp_path / "o", opt=np.int64(1), dims={"n": np.int32(2)})  # type: ignore[arg-type, dict-item]
        assert made.manifest["inputs"][0]["shape"][0] == 2


@pytest.mark.parametrize("bundle", [None, 5, b"x", LONG, "a\0b", object()])
def test_what_is_no_bundle(bundle: Any) -> None:
    with pytest.raises(SmeltError) as caught:
        smelt.load(bundle)
    assert caught.value.kind in ("invalid", "infra")


@pytest.mark.parametrize(
    "command", ["compile", "check", "inspect", "run", "validate", "bench", "opt", "report"]
)
def test_a_long_path_is_a_usage_error(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([command, LONG])
    assert code == 2, capsys.readouterr().err


def test_long_limits_of_time(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """poll takes fewer than 2^31 milliseconds."""
    smelt.compile(path, output=tmp_path / "o", time_limit=limits.MOST_ALLOWED)
    monkeypatch.setenv(limits.SECONDS, "1000000")
    smelt.compile(path, output=tmp_path / "o")
    assert forks.LONGEST_WAIT * 1000 < 1 << 31


def test_a_full_temporary_folder(tmp_path: Path) -> None:
    def work() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(SmeltError) as caught:
            smelt.compile(bytes(5000), output=tmp_path / "o")
        return f"{caught.value.kind}: {caught.value.message}"

    how, said = isolated(work)
    assert how == "ok" and said.startswith("infra: cannot write to the temporary folder"), said


def test_a_current_folder_that_is_gone(path: str, tmp_path: Path) -> None:
    def work() -> str:
        (tmp_path / "gone").mkdir()
        os.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        with pytest.raises(SmeltError) as caught:
            smelt.compile(path, output="o")
        smelt.compile(path, output=tmp_path / "o")
        return str(caught.value)

    how, said = isolated(work)
    assert how == "ok" and "give an absolute path" in said
