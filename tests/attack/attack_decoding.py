"""Decoders over a cache that is state, with bounds or without, as one entry or as two for several and for one
token, built in drawn ways; prompts, tokens, forks, resets and restored states in any order -> the logits of
ONNX Runtime, which gets the cache as inputs."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from campaign import Outcome, main
from decoder_models import FORMS, POSITIONS, STATE, decoder, empty, step
from drawn_builds import drawn_build, small_kernels_too
from oracle import plain_session

from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.session import Session, load

LAYERS = 2
BATCHES = (1, 2, 3)
NEW = (1, 1, 1, 1, 2, 5, 16, 17)
MOST = 48
"""Tokens that a cache may have: the model has POSITIONS."""
STEPS = 8
Array = np.ndarray[Any, Any]
Cache = Mapping[str, Array]


@cache
def _rival(form: str) -> Any:
    return plain_session(decoder(form, LAYERS))


def _wanted(form: str, past: Cache, feed: Mapping[str, Array]) -> tuple[Array, Cache]:
    """The logits, and the cache after them."""
    names = [o.name for o in decoder(form, LAYERS).graph.output]
    found = dict(zip(names, _rival(form).run(names, {**feed, **past}), strict=True))
    return found["logits"], {n: found[n.replace("past_", "present_")] for n in past}


def _compiled(rng: random.Random, seed: int, form: str, twice: bool, folder: str) -> tuple[Any, Any]:
    """The bundle, and how it was built."""
    onnx.save(decoder(form, LAYERS), f"{folder}/m.onnx")
    build = drawn_build(seed, {"batch": BATCHES, "seq": NEW, "past": (0, 1, 7, MOST)})
    dims = dict(build.dims)
    if rng.random() < 0.5:
        bound = (
            {"past": (0, POSITIONS), "total": (0, POSITIONS)}
            if form == "grouped"
            else {"past": (0, POSITIONS)}
        )
        dims |= {n: d for n, d in bound.items() if n not in dims}
    entries = ()
    if twice:
        entries = (("many", f"{folder}/m.onnx"), ("one", f"{folder}/m.onnx"))
        dims["one/seq"] = 1
    request = build.request(f"{folder}/m.onnx", f"{folder}/out", state=STATE, entries=entries)
    request = type(request)(**{**request.__dict__, "dims": dims})
    with small_kernels_too():
        return compile_here(request), (build, dims)


def attack(seed: int) -> Outcome:
    """One decoder, some steps."""
    rng = random.Random(seed)
    form, twice, batch = rng.choice(tuple(FORMS)), rng.random() < 0.4, rng.choice(BATCHES)
    with tempfile.TemporaryDirectory(prefix="smelt-decoding-") as folder:
        text = f"seed {seed}: {form}, {batch}, twice: {twice}"
        try:
            bundle, how = _compiled(rng, seed, form, twice, folder)
            text = f"{text}, {how}"
            session = load(bundle, threads=how[0].threads)
            said = _played(rng, session, form, twice, batch)
            session.close()
        except SmeltError as e:
            return Outcome("refused", True, f"{text}\n{e}")
    return Outcome("disagrees", True, f"{text}\n{said}") if said else Outcome("agrees")


def _played(rng: random.Random, session: Session, form: str, twice: bool, batch: int) -> str:
    """What went wrong; '' when nothing did."""
    past, done = empty(LAYERS, batch), []
    kept: tuple[Any, Cache] | None = None
    for _ in range(STEPS):
        way = rng.random()
        length = next(iter(past.values())).shape[2]
        if way < 0.08 or length >= MOST - max(NEW):
            session.reset()
            past, length = empty(LAYERS, batch), 0
            done.append("reset")
        elif way < 0.2:
            session = session.fork()
            done.append("fork")
        elif way < 0.3:
            kept = (session.state(), past)
            done.append("keep")
        elif way < 0.4 and kept is not None:
            session.set_state(kept[0])
            past = kept[1]
            length = next(iter(past.values())).shape[2]
            done.append("restore")
        alone = form == "grouped" and batch > 1 and length  # where ONNX Runtime takes one token only
        new = 1 if alone else rng.choice(NEW)
        feed = step(form, batch, length, new)
        entry = session[rng.choice(("one", "many")) if new == 1 else "many"] if twice else session
        (got,) = entry.run(["logits"], feed)
        want, past = _wanted(form, past, feed)
        done.append(f"{new} after {length}")
        scale = max(1.0, float(np.abs(want).max()))
        if got.shape != want.shape or not np.allclose(got, want, rtol=1e-3, atol=1e-5 * scale):
            far = np.abs(got - want).max() if got.shape == want.shape else got.shape
            return f"{', '.join(done)}: {far}, wanted {want.shape}"
    return ""


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 300))
