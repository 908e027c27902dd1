"""Decode steps on devices agree with ONNX Runtime; what crosses and what is submitted is counted."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import decoder_models as decoders
import numpy as np
import onnx
import pytest
from boards import needs_opencl, needs_vulkan
from checkouts import FAKE, Checkout, checkout
from oracle import runtime_session

LAYERS = 2
STEPS = (3, 1, 1, 1)
"""New tokens of each run."""
FORMS = {"grouped": 2, "parts": 3}
"""Forms of the decoder, and how many inputs a step is fed."""
TARGETS = (
    "x86+fake",
    pytest.param("x86+opencl", marks=needs_opencl),
    pytest.param("x86+vulkan", marks=needs_vulkan),
)

SCRIPT = """
import json, pickle, sys, smelt
folder, target, state = sys.argv[1:]
bundle = compiled(folder + "/model.onnx", target, output=folder + "/bundle", state=json.loads(state))
session, rows = smelt.load(bundle), []
for feed in pickle.load(open(folder + "/feeds", "rb")):
    before, outputs, after = session.memory(), session.run(None, feed), session.memory()
    names = [o.name for o in session.get_outputs()]
    counted = {n: getattr(after, n) - getattr(before, n) for n in after.__dataclass_fields__}
    rows.append((dict(zip(names, outputs)), counted))
pickle.dump(rows, open(folder + "/rows", "wb"))
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """smelt with one device more."""
    copy = checkout(tmp_path_factory.mktemp("decode") / "copy")
    copy.add("fake", *FAKE)
    return copy


def steps(
    sources: Checkout, folder: Path, form: str, target: str, state: str, feeds: list[dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, int]]]:
    """(outputs, counts) of each run of a decoder."""
    return runs(sources, folder, decoders.decoder(form, LAYERS), target, state, feeds)


def runs(
    sources: Checkout, folder: Path, model: onnx.ModelProto, target: str, state: str,
    feeds: list[dict[str, Any]],
) -> list[tuple[dict[str, Any], dict[str, int]]]:  # fmt: skip
    """(outputs, counts) of each run."""
    onnx.save(model, str(folder / "model.onnx"))
    (folder / "feeds").write_bytes(pickle.dumps(feeds))
    done = sources.script(SCRIPT, str(folder), target, state)
    assert done.returncode == 0, done.stderr
    return pickle.loads((folder / "rows").read_bytes())  # type: ignore[no-any-return]


def by_hand(form: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(all inputs, all outputs) of each step by ONNX Runtime."""
    oracle = runtime_session(decoders.decoder(form, LAYERS))
    names = [o.name for o in oracle.get_outputs()]
    cache, past, rows = dict(decoders.empty(LAYERS, 1)), 0, []
    for new in STEPS:
        feed = {**decoders.step(form, 1, past, new), **cache}
        found = dict(zip(names, oracle.run(None, feed), strict=True))
        rows.append((feed, found))
        cache = {n.replace("present", "past"): a for n, a in found.items() if n.startswith("present")}
        past += new
    return rows


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_step_is_one_submit(target: str, form: str, sources: Checkout, tmp_path: Path) -> None:
    """With the cache as state nothing but the inputs goes up, nothing but the logits comes back."""
    wanted = by_hand(form)
    feeds = [{n: a for n, a in feed.items() if not n.startswith("past")} for feed, _ in wanted]
    rows = steps(sources, tmp_path, form, target, '{"past_*": "present_*"}', feeds)
    for (found, counted), (_, want), feed in zip(rows, wanted, feeds, strict=True):
        np.testing.assert_allclose(found["logits"], want["logits"], rtol=2e-3, atol=1e-4)
        assert counted["launches"] > LAYERS  # however many of them chains join
        assert (counted["submits"], counted["waits"]) == (1, 1)
        assert (counted["uploads"], counted["reads"]) == (FORMS[form], 1)
        assert counted["uploaded_bytes"] == sum(a.nbytes for a in feed.values())
        assert counted["read_bytes"] == want["logits"].nbytes


@needs_opencl
def test_a_step_that_is_fed_its_cache(sources: Checkout, tmp_path: Path) -> None:
    """Every input goes up once, every output comes back once."""
    wanted = by_hand("grouped")
    rows = steps(sources, tmp_path, "grouped", "x86+opencl", "{}", [feed for feed, _ in wanted])
    for (found, counted), (feed, want) in list(zip(rows, wanted, strict=True))[1:]:
        for name, array in want.items():
            np.testing.assert_allclose(found[name], array, rtol=2e-3, atol=1e-4)
        assert (counted["submits"], counted["uploads"], counted["reads"]) == (1, len(feed), len(want))


RECURRENT = """<ir_version: 9, opset_import: ["" : 18]> rows (float[t, n, 4] x, float[n, 4] start)
    => (float[t, 2, n, 3] h, float[n, 4] last, float[t, n, 4] rows) {
    h = LSTM <hidden_size = 3, direction = "bidirectional"> (x, w, r)
    last, rows = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = step
        (float[n, 4] s, float[n, 4] row) => (float[n, 4] next, float[n, 4] made)
        { next = Add (s, row) made = Tanh (next) }> (start, x)
}"""


@pytest.mark.parametrize("target", TARGETS)
def test_a_run_of_loops_over_time_is_one_submit(target: str, sources: Checkout, tmp_path: Path) -> None:
    """However many rounds they have: no number of a round goes up."""
    model = onnx.parser.parse_model(RECURRENT)
    rng = np.random.default_rng(5)
    for name, shape in (("w", (2, 12, 4)), ("r", (2, 12, 3))):
        drawn = rng.standard_normal(shape, np.float32) / 2
        model.graph.initializer.append(onnx.numpy_helper.from_array(drawn, name))
    sizes = ((6, 2), (1, 1), (23, 3))
    feeds = [
        {"x": rng.standard_normal((t, n, 4), np.float32), "start": rng.standard_normal((n, 4), np.float32)}
        for t, n in sizes
    ]
    oracle = runtime_session(model)
    names = [o.name for o in oracle.get_outputs()]
    rows = runs(sources, tmp_path, model, target, "{}", feeds)
    for feed, (found, counted) in zip(feeds, rows, strict=True):
        for name, array in zip(names, oracle.run(None, feed), strict=True):
            np.testing.assert_allclose(found[name], array, rtol=2e-3, atol=1e-4)
        assert (counted["submits"], counted["uploads"], counted["reads"]) == (1, 2, 3)
