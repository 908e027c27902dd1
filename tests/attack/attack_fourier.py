"""Fourier transforms of any length (1, primes, products), axis, direction and half, whose length and axis the
file or a run tells, built in drawn ways -> NumPy's transforms in f64."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from campaign import Outcome, main
from drawn_builds import Drawn, Fed, built, with_build
from onnx import TensorProto, helper, numpy_helper

from smelt.core.diag import SmeltError

LENGTHS = (
    1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 29, 31, 32, 64, 97, 100, 127, 128, 210, 211, 256, 509,
)  # fmt: skip
KINDS = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
NEAR = {np.dtype(np.float64): 1e-11, np.dtype(np.float32): 2e-6, np.dtype(np.float16): 2e-3}
"""Of the largest element: what the type itself rounds, a few times over; the arithmetic is f64's."""
RUNS = 3
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Case:
    """A transform. told: its axis, as the model has it; length, at: how length and axis are given ('' not at
    all, 'constant', 'run'); constant: the length in the file."""

    opset: int
    kind: int
    rank: int
    axis: int
    told: int
    inverse: bool
    onesided: bool
    length: str
    at: str
    constant: int

    @property
    def parts(self) -> int:
        """Of an element of the input: half a spectrum is complex, a signal with half a spectrum is real."""
        return 2 if self.inverse and self.onesided else 1 if self.onesided else 1 + self.told % 2

    @property
    def least(self) -> int:
        """Elements of the axis: of a single one half a spectrum makes no signal."""
        return 2 if self.inverse and self.onesided and not self.length else 1


def _case(rng: random.Random) -> _Case:
    opset, rank = rng.choice((17, 20, 20)), rng.choice((2, 3, 3, 4))
    axis = rng.randrange(rank - 1)
    by_default = opset == 20 and axis == rank - 2 and rng.random() < 0.2
    at = "" if opset == 17 or by_default else rng.choice(("constant", "run"))
    return _Case(
        opset, rng.choice(KINDS), rank, axis, axis - rng.choice((0, rank)), rng.random() < 0.4,
        rng.random() < 0.4, rng.choice(("", "", "constant", "run")), at, rng.choice(LENGTHS[2:]),
    )  # fmt: skip


def _fed(case: _Case, rng: random.Random, draw: np.random.Generator) -> Fed:
    """The model, and what it is fed."""

    def extent(n: int) -> int:
        if n != case.axis:
            return rng.choice((0, 1, 2, 3))
        return max(case.least, rng.choice(LENGTHS))

    names = [f"d{n}" for n in range(case.rank - 1)]
    fixed = {a: max(1, extent(n)) for n, a in enumerate(names) if rng.random() < 0.4}
    dims: list[Any] = [*(fixed.get(a, a) for a in names), case.parts]
    inputs, weights, given = [helper.make_tensor_value_info("x", case.kind, dims)], [], ["x"]
    for name, how, value in (("length", case.length, case.constant), ("axis", case.at, case.told)):
        given.append(name if how else "")
        if how == "constant":
            weights.append(numpy_helper.from_array(np.array(value), name))
        elif how == "run":
            inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, []))
    attrs = {"inverse": int(case.inverse), "onesided": int(case.onesided)}
    attrs |= {"axis": case.told} if case.opset == 17 else {}
    node = helper.make_node("DFT", given[: 2 if case.opset == 17 else 3], ["y"], **attrs)
    made = helper.make_tensor_value_info("y", case.kind, None)
    graph = helper.make_graph([node], "fourier", inputs, [made], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=9)
    dtype, feeds = helper.tensor_dtype_to_np_dtype(case.kind), []
    for _ in range(RUNS):
        shape = [fixed.get(a) or extent(n) for n, a in enumerate(names)]
        feed = {"x": draw.standard_normal((*shape, case.parts)).astype(dtype)}
        feed |= {"length": np.array(rng.choice(LENGTHS[2:]))} if case.length == "run" else {}
        feeds.append(feed | ({"axis": np.array(case.told)} if case.at == "run" else {}))
    return model, feeds


def _wanted(case: _Case, feed: Mapping[str, Array]) -> Array:
    """The definition."""
    x, axis = feed["x"].astype(np.float64), case.axis
    length = case.constant if case.length == "constant" else int(feed["length"]) if case.length else None
    z = x[..., 0] + 1j * x[..., 1] if case.parts == 2 else x[..., 0]
    n = z.shape[axis] if length is None else length
    if case.inverse and case.onesided:
        real = np.fft.irfft(z, 2 * (n - 1) if length is None else n, axis)
        return real[..., None].astype(feed["x"].dtype)
    z = (np.fft.ifft if case.inverse else np.fft.fft)(z, n, axis)
    z = z.take(range(n // 2 + 1), axis) if case.onesided else z
    return np.stack([z.real, z.imag], -1).astype(feed["x"].dtype)


def _drawn(seed: int) -> tuple[_Case, Drawn]:
    rng = random.Random(seed)
    case = _case(rng)
    return case, with_build(seed, *_fed(case, rng, np.random.default_rng(seed)))


def drawn(seed: int) -> Drawn:
    """One transform, built in one way, at some sizes."""
    return _drawn(seed)[1]


def attack(seed: int) -> Outcome:
    """What comes of it."""
    case, made = _drawn(seed)
    text = f"seed {seed}, {made.build}\n{onnx.printer.to_text(made.model)}"
    try:
        with built(made) as (session, _):
            for feed in made.feeds:
                want = _wanted(case, feed)
                (got,) = session.run(None, feed)
                near = NEAR[want.dtype] * max(1.0, float(np.abs(want).max(initial=0)))
                if got.shape != want.shape or not np.allclose(got, want, 0, near):
                    far = np.abs(got - want).max() if got.shape == want.shape else got.shape
                    shapes = {n: a.shape or int(a) for n, a in feed.items()}
                    return Outcome("disagrees", True, f"{text}\nat {shapes}: {far}, wanted {want.shape}")
    except SmeltError as e:
        return Outcome("refused", True, f"{text}\n{e}")
    return Outcome("agrees")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 500))
