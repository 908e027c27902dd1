"""More real models, compiled once with dynamic dims: right at every shape, step by step, and on an Arm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from rounding import ROUNDED, compiled, differs_by_rounding_alone, other_answers, unrounded
from sample_models import MORE, Array, Feeds, Model, check_close, model_named, reference

import smelt
from smelt.compiler import compile_here
from smelt.core.bundle import Bundle
from smelt.driver import Request
from smelt.running import Unavailable, running

STEPS = 32


@pytest.fixture(scope="module", params=MORE, ids=[m.name for m in MORE])
def model(request: pytest.FixtureRequest) -> Model:
    found: Model = request.param
    found.path()
    return found


@pytest.fixture(scope="module")
def bundle(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return compiled(model, tmp_path_factory.mktemp("more"))


@pytest.fixture(scope="module")
def session(bundle: Bundle) -> Iterator[smelt.Session]:
    opened = smelt.load(bundle, threads=2)
    yield opened
    opened.close()


# ---------------------------------------------------------------- every shape


def test_agrees_with_onnxruntime(model: Model, session: smelt.Session, tmp_path: Path) -> None:
    ort = reference(model.path())
    if model.name in ROUNDED:
        differs_by_rounding_alone(model, session, ort, reference(other_answers(model, tmp_path), plain=True))
        return
    for size in model.sizes:
        feeds = model.feeds(size)
        check_close(session.run(None, feeds), ort.run(None, feeds), f"{model.name} at {dict(size)}", 1e-3)


def test_arena_is_the_formula_to_the_byte(model: Model, session: smelt.Session, bundle: Bundle) -> None:
    for size in model.sizes[:3]:
        feeds = model.feeds(size)
        session.run(None, feeds)
        symbols = bundle.bind({name: a.shape for name, a in feeds.items()})
        known, found = bundle.peak_bytes(symbols), session.memory().arena_bytes
        late = [d for d in bundle.arenas if not d.symbols <= symbols.keys()]
        assert found > known if late else found == known, dict(size)


def test_packed_weights_with_unrounded_activations(tmp_path: Path) -> None:
    model = model_named("smollm_genai_int4")
    path = unrounded(model.path(), tmp_path)
    ort = reference(path)
    session = smelt.load(compile_here(Request(source=str(path), output=str(tmp_path / "out"))), threads=2)
    for size in model.sizes:
        feeds = model.feeds(size)
        check_close(session.run(None, feeds), ort.run(None, feeds), f"{model.name} at {dict(size)}", 1e-3)


# ---------------------------------------------------------------- step by step

PRESENT = {
    "smollm_optimum": 9,
    "smollm_genai_int4": 12,
    "llama2l_opset23": 7,
    "whisper_tiny_decoder_merged": 3,
}
"""Models that hand out what they want back at the next step -> tokens of the prompt."""


DECODERS = [m for m in MORE if m.name in PRESENT]


@pytest.mark.parametrize("model", DECODERS, indirect=True, ids=[m.name for m in DECODERS], scope="module")
def test_decodes_the_same_tokens(model: Model, session: smelt.Session, tmp_path: Path) -> None:
    """Each side goes on from its own cache; the tokens are ONNX Runtime's. Of a model that rounds activations
    one may be another where ONNX Runtime, rounding otherwise, is as far from itself as the two tokens are
    from each other."""
    sides = [session, reference(model.path())]
    if model.name in ROUNDED:
        sides.append(reference(other_answers(model, tmp_path), plain=True))
    names = [o.name for o in session.get_outputs()]
    caches: list[Feeds] = [{} for _ in sides]
    prompt, near = PRESENT[model.name], 0
    tokens = np.random.default_rng(7).integers(1, 4000, (1, prompt)).astype(np.int64)
    for step in range(STEPS):
        last = []
        for n, side in enumerate(sides):
            feeds = step_feeds(model, tokens, prompt + step - 1 if step else 0)
            found = dict(zip(names, side.run(None, {**feeds, **caches[n]}), strict=True))
            last.append(found["logits"][0, -1].astype(np.float64))
            caches[n] = kept(found, caches[n])
        mine, theirs = (int(logits.argmax()) for logits in last[:2])
        spread = max((np.abs(x - last[1]).max() for x in last[2:]), default=0)
        assert last[1][theirs] - last[1][mine] <= spread, f"{model.name}: token {step}"
        near += mine != theirs
        tokens = np.array([[theirs]], np.int64)
    assert near <= STEPS // 8


def step_feeds(model: Model, tokens: Array, past: int) -> Feeds:
    """The inputs behind `past` tokens; a speech model hears the same at every step."""
    if "whisper" in model.name:
        feeds = model.feeds({"batch": 1, "seq": 1, "past": 0, "heard": 60, "cached": 0})
        return {**feeds, "input_ids": tokens, "use_cache_branch": np.array([past > 0])}
    feeds = model.feeds({"batch": 1, "seq": tokens.shape[1], "past": past})
    return {**feeds, "input_ids": tokens}


def kept(found: Mapping[str, Array], before: Feeds) -> Feeds:
    """What the next step reads: `present` as `past`, save those that a step with a cache leaves empty."""
    cache = {k.replace("present", "past_key_values"): a for k, a in found.items() if k.startswith("present")}
    return {k: before[k] if "encoder" in k and k in before else a for k, a in cache.items()}


# ---------------------------------------------------------------- on an Arm


ON_ARM = ("silero_vad_v6.2.3", "onnx_asr_nemo128_stft", "greedy_gru_loop", "llama2l_opset23")


@pytest.mark.parametrize("name", ON_ARM)
def test_agrees_on_arm(name: str, tmp_path: Path) -> None:
    model = model_named(name)
    path = model.path()
    bundle = compiled(model, tmp_path, "aarch64-linux")
    feeds = model.feeds(model.sizes[0])
    try:
        with running(bundle) as runner:
            outputs = runner.run(feeds).outputs
    except Unavailable as e:
        pytest.skip(str(e))
    check_close(list(outputs.values()), reference(path).run(None, feeds), f"{name} on aarch64", 1e-3)
