"""Real models, compiled once with dynamic dims: right at every shape, in exactly the promised memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_once import made_once
from sample_models import MODELS, Model, check_close, reference

import smelt
from smelt.compiler import compile_here
from smelt.core.bundle import Bundle, read_bundle
from smelt.core.ir.text import parse_module, print_module
from smelt.core.ir.verify import verify
from smelt.core.passes.context import Context
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.schedule import schedule_module
from smelt.driver import Request
from smelt.importer import import_model
from smelt.targets.platform import parse_target
from smelt.targets.registry import machines

BUNDLE_LIMIT = 2 << 20
"""Bytes that a bundle may have without its weights."""


@pytest.fixture(scope="module", params=MODELS, ids=[m.name for m in MODELS])
def model(request: pytest.FixtureRequest) -> Model:
    found: Model = request.param
    found.path()
    return found


@pytest.fixture(scope="module")
def bundle(model: Model, run_folder: Path) -> Bundle:
    """Compiled once, whichever of the processes that run the tests ask for it."""

    def make(folder: Path) -> None:
        compile_here(Request(source=str(model.path()), target="host", output=str(folder / "bundle")))

    return read_bundle(made_once(make, model.name, place=run_folder) / "bundle")


@pytest.fixture(scope="module")
def session(bundle: Bundle) -> Iterator[smelt.Session]:
    opened = smelt.load(bundle, threads=2)
    yield opened
    opened.close()


def test_agrees_with_onnxruntime(model: Model, session: smelt.Session) -> None:
    ort = reference(model.path())
    for size in model.sizes:
        feeds = model.feeds(size)
        check_close(session.run(None, feeds), ort.run(None, feeds), f"{model.name} at {dict(size)}")


def test_arena_is_the_formula_to_the_byte(model: Model, session: smelt.Session, bundle: Bundle) -> None:
    for size in model.sizes:
        feeds = model.feeds(size)
        session.run(None, feeds)
        symbols = bundle.bind({name: a.shape for name, a in feeds.items()})
        known, found = bundle.peak_bytes(symbols), session.memory().arena_bytes
        late = [d for d in bundle.arenas if not d.symbols <= symbols.keys()]
        assert found > known if late else found == known, dict(size)


def test_changing_shapes_allocate_nothing_new(model: Model, bundle: Bundle) -> None:
    session = smelt.load(bundle, threads=1)
    cases = [model.feeds(size) for size in model.sizes[1:]]
    for feeds in cases:
        session.run(None, feeds)
    before = session.memory()
    for n in range(24):
        session.run(None, cases[n * 7 % len(cases)])
    after = session.memory()
    assert after.allocations == before.allocations
    assert after.arena_capacity == before.arena_capacity


def test_bundle_is_small(bundle: Bundle) -> None:
    sizes = {p.name: p.stat().st_size for p in bundle.path.iterdir() if p.name != bundle.names.weights}
    assert sum(sizes.values()) < BUNDLE_LIMIT, sizes


@pytest.mark.table(2)
def test_every_stage_is_valid_and_prints_and_parses(model: Model) -> None:
    spec = parse_target("arm64")
    machine = machines(spec)["cpu"]
    module = import_model(model.path())
    stages = [("import", module)]
    context = Context(machine=machine, on_pass=(lambda _, name, after: stages.append((name, after)),))
    lowered = run_pipeline(module, PIPELINE, context)
    stages.append(("schedule", schedule_module(lowered, machine)))
    for n, (name, stage) in enumerate(stages):
        if n and stage == stages[n - 1][1]:
            continue  # a pass that changed nothing
        verify(stage, stage="scheduled" if name == "schedule" else "graph")
        text = print_module(stage)
        again = parse_module(text, stage.weights)
        assert again == stage, name
        assert print_module(again) == text, name


def test_compiles_by_two_hash_seeds_give_the_same_bytes(tmp_path: Path) -> None:
    path = next(m for m in MODELS if m.name == "magika_v3_3").path()
    digests = []
    for n, seed in enumerate("01"):
        code = (
            "import sys; from smelt.compiler import *; "
            "print(compile_here(Request(sys.argv[1], target='x86:x86-64-v3', output=sys.argv[2])).digest)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(path), str(tmp_path / f"b{n}")],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        digests.append(done.stdout.strip())
    assert len(set(digests)) == 1


def test_a_session_refuses_what_does_not_fit(tmp_path: Path) -> None:
    model = next(m for m in MODELS if m.name == "magika_v3_3")
    bundle = compile_here(Request(source=str(model.path()), target="host", output=str(tmp_path / "b")))
    session = smelt.load(bundle, threads=1)
    good = model.feeds({"batch": 2})

    def refused(feeds: dict[str, Any], *words: str) -> None:
        with pytest.raises(smelt.SmeltError) as e:
            session.run(None, feeds)
        assert e.value.kind == "shape"
        for word in ("bytes", *words):
            assert word in str(e.value), str(e.value)

    refused({}, "missing")
    refused({"nonsense": good["bytes"]}, "nonsense")
    refused({"bytes": good["bytes"].astype(np.float32)}, "int32", "float32")
    refused({"bytes": good["bytes"][0]}, "rank")
    refused({"bytes": good["bytes"][:, :2000].copy()}, "axis 1", "2048", "2000")
    check_close(session.run(None, good), reference(model.path()).run(None, good), "after refusals")
