"""Cases whose shipped answer is farther from the exact one than ours: the proof of what the list of known
failures says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.conformance.cases import Shipped, in_form, shipped
from smelt.conformance.judge import difference
from smelt.conformance.report import known

KNOWN = Path(__file__).parents[1] / "known_failures.txt"
Array = np.ndarray[Any, Any]


def causal_attention(q: Array, k: Array, v: Array) -> Array:
    """softmax(q k' / sqrt(width), keys up to the query's position) v, in f64."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


def inverse_dft(x: Array, *axis: Array) -> Array:
    """Along axis 1 of complex numbers as pairs, in f64."""
    wide = x.astype(np.float64)
    y = np.fft.ifft(wide[..., 0] + 1j * wide[..., 1], axis=1)
    return np.stack([y.real, y.imag], -1)


CONTESTED = {
    "test_attention_4d_causal_fp16_expanded": causal_attention,
    "test_dft_inverse": inverse_dft,
    "test_dft_inverse_opset19": inverse_dft,
}


def test_every_wrong_answer_is_contested() -> None:
    wrong = {name.split(":", 1)[1] for name, (outcome, _) in known(KNOWN).items() if outcome == "wrong"}
    assert wrong <= set(CONTESTED)


@pytest.mark.parametrize("name", sorted(CONTESTED))
def test_ours_is_nearer(name: str, tmp_path: Path) -> None:
    shipped_case = next(s for s in shipped() if s.name == name)
    (inputs, (wanted,)), *more = shipped_case.data
    assert not more
    exact = CONTESTED[name](*inputs)
    assert exact.shape == wanted.shape
    (found,) = ours(shipped_case, tmp_path / "out")
    assert np.abs(found - exact).max() < np.abs(wanted.astype(np.float64) - exact).max()
    case = in_form(shipped_case, "static")
    assert not difference(case, [found], [exact.astype(wanted.dtype)]), "ours is not within the tolerance"


def ours(s: Shipped, folder: Path) -> list[Array]:
    session = smelt.load(smelt.compile(s.model, output=folder), threads=1)
    ((inputs, _),) = s.data
    return session.run(None, {v.name: a for v, a in zip(s.model.graph.input, inputs, strict=True)})
