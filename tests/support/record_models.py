"""A pytest plugin: tests in, the ONNX models that they build out; a test ends with the first one.

It is how models that are written inside of tests get to other tests: `recorded` runs test files with it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper, parser

FOLDER = "SMELT_TEST_RECORD_MODELS"
LARGEST = 20_000
"""Bytes of a model that is small: what passes run in a second."""
TESTS = Path(__file__).parents[1]


def recorded(files: Sequence[str]) -> list[onnx.ModelProto]:
    """The small models that tests of these files (relative to tests/) build, by digest."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "record_models", "-p", "no:cacheprovider",
                   "-p", "no:xdist", *(str(TESTS / f) for f in files)]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": path, FOLDER: folder}
        done = subprocess.run(command, cwd=TESTS.parent, env=env, capture_output=True, text=True, check=False)
        made = [onnx.load(p) for p in sorted(Path(folder).glob("*.onnx"))]
    assert made, f"no test built a model: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return made


class Recorder:
    """Keeps what onnx.helper.make_model and onnx.parser.parse_model give while a test runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running = False
        helper.make_model = self.kept(helper.make_model)
        parser.parse_model = self.kept(parser.parse_model)

    def kept(self, build: Callable[..., onnx.ModelProto]) -> Callable[..., onnx.ModelProto]:
        def made(*args: Any, **kwargs: Any) -> onnx.ModelProto:
            model = build(*args, **kwargs)
            if self.running:
                data = model.SerializeToString()
                if len(data) <= LARGEST:
                    (self.folder / f"{hashlib.sha256(data).hexdigest()[:16]}.onnx").write_bytes(data)
                    pytest.skip("its model is recorded")
            return model

        return made

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.running = True
        try:
            return (yield)
        finally:
            self.running = False


def pytest_configure(config: pytest.Config) -> None:
    """Only where a folder is named: the plugin is loaded by nobody else."""
    if folder := os.environ.get(FOLDER):
        config.pluginmanager.register(Recorder(Path(folder)), "recorder")
