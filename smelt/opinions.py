"""A difference from ONNX Runtime in; a ruling out, by other references and the reference's own sensitivity.

ONNX Runtime with its optimiser on is the reference, but not the specification: its optimiser fuses quantised
regions into kernels that round differently, so that its results differ from those without optimiser. Before
a difference counts against smelt, smelt is compared with ONNX Runtime that runs every node as written, with
ONNX's reference evaluator, and with the change of the reference when its floats are perturbed by a rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from smelt.core.diag import SmeltError
from smelt.difference import Array, OutputError
from smelt.groups import Value
from smelt.reference import Reference, evaluated

Compare = Callable[[str, Value, Value], list[OutputError]]
"""(name, got, want) -> the differences, judged by the caller's tolerance."""

AS_WRITTEN = "onnxruntime with its optimiser off"
EVALUATOR = "onnx's evaluator"
WITHIN = f"differ by no more than {AS_WRITTEN} itself moves when floats move by 2^-20"
PERTURBATION = 2.0**-20
"""Relative size of a perturbation: the rounding of a float32 sum of some hundred terms, 16 units of 2^-24."""
NUDGES = 4
"""Runs of the perturbed reference; each costs as much as a run of the reference."""
WIDTH = 2.0
"""How many times the distance of the farthest perturbed run smelt may have: few runs underestimate the
spread."""

_NUDGED = {
    "MatMul": (0, 1), "Gemm": (1, 2), "Conv": (1, 2), "ConvTranspose": (1, 2), "MatMulNBits": (2,),
    "QuantizeLinear": (1,), "DequantizeLinear": (1,), "QLinearConv": (1, 4, 6), "QLinearMatMul": (1, 4, 6),
    "LayerNormalization": (1, 2), "RMSNormalization": (1,), "BatchNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,), "SkipSimplifiedLayerNormalization": (2,),
    "LSTM": (1, 2, 3), "GRU": (1, 2, 3),
}  # fmt: skip
"""Op -> the inputs whose constants are weights or scales, which may be perturbed. A constant elsewhere may be
an exponent, a bound or a size."""
_MOST = 1 << 22
"""Most elements of a constant that is perturbed: more would cost memory, and perturbing the others
suffices."""


@dataclass(frozen=True)
class Opinion:
    """The result of another reference. errors: smelt's differences from it. apart: the first reference's."""

    who: str
    errors: tuple[OutputError, ...]
    apart: tuple[OutputError, ...]

    def __str__(self) -> str:
        return f"{self.who}: {_told('smelt', self.errors)}; {_told('onnxruntime', self.apart)}"


@dataclass(frozen=True)
class Ruling:
    """Whether one output is right. why: a text that continues a list of outputs' names. errors: smelt's
    differences from the reference that decided."""

    right: bool
    why: str
    errors: tuple[OutputError, ...]
    opinions: tuple[Opinion, ...]


class Opinions:
    """Further references of a model, each of them run only when those before did not decide.

    outputs: names of inner values to judge besides the model's own outputs. spread: whether the reference's
    own spread excuses a difference; False where the caller names a tolerance. first: the name of the first
    reference in messages.
    """

    def __init__(
        self, model: Path, compare: Compare, outputs: Sequence[str] = (), *, spread: bool = True,
        first: str = "onnxruntime",
    ) -> None:  # fmt: skip
        self._model, self._compare, self._outputs = model, compare, tuple(outputs)
        self._spread, self._first = spread, first

    def rule(
        self, feed: Mapping[str, Value], got: Mapping[str, Value], want: Mapping[str, Value]
    ) -> dict[str, Ruling]:
        """A ruling on each output of `got`, which differs from the first reference's `want`. An output with
        which no reference agrees is wrong."""
        rulings: dict[str, Ruling] = {}
        opinions: dict[str, list[Opinion]] = {name: [] for name in got}

        def hear(who: str, said: Mapping[str, Value]) -> None:
            for name in [n for n in got if n not in rulings and n in said]:
                errors, apart = (tuple(self._compare(name, a[name], said[name])) for a in (got, want))
                opinions[name].append(Opinion(who, errors, apart))
                if all(e.ok for e in errors):
                    why = f"agree with {who}, from which {self._first} differs"
                    rulings[name] = Ruling(True, why, errors, tuple(opinions[name]))

        written = self._run(self._as_written, feed)
        hear(AS_WRITTEN, written)
        if len(rulings) < len(got) and not self._outputs:
            hear(EVALUATOR, evaluated(self._model, list(got), feed) or {})
        disputed = [n for n in got if n not in rulings and n in written and self._spread]
        spreads = self._spreads(feed, {n: written[n] for n in disputed}) if disputed else {}
        for name in [n for n in got if n not in rulings]:
            errors = tuple(self._compare(name, got[name], want[name]))
            if name in spreads and spreads[name].covers(got[name], written[name]):
                rulings[name] = Ruling(True, WITHIN, errors, tuple(opinions[name]))
            else:
                why = _nobody(self._first, opinions[name])
                rulings[name] = Ruling(False, why, errors, tuple(opinions[name]))
        return rulings

    @cached_property
    def _as_written(self) -> Reference | None:
        return self._reference({})

    def _reference(self, instead: Mapping[str, Array]) -> Reference | None:
        try:
            return Reference(self._model, outputs=self._outputs, optimise=False, instead=instead)
        except SmeltError:
            return None  # it has no opinion: some contrib ops exist only as what the optimiser makes

    def _run(self, reference: Reference | None, feed: Mapping[str, Value]) -> dict[str, Value]:
        try:
            return {} if reference is None else reference.run(feed)
        except SmeltError:
            return {}

    def _spreads(self, feed: Mapping[str, Value], base: Mapping[str, Value]) -> dict[str, Spread]:
        """How far each value moves when float inputs, weights and scales are perturbed."""
        rng = np.random.default_rng(0)
        found = {name: Spread() for name, value in base.items() if isinstance(value, np.ndarray)}
        for instead in self._nudged_weights(rng):
            moved = self._run(self._reference(instead), {n: _perturbed(rng, a) for n, a in feed.items()})
            for name in found.keys() & moved.keys():
                found[name] = found[name].wider(moved[name], base[name])
        return found

    def _nudged_weights(self, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
        weights = _weights(self._model)
        for _ in range(NUDGES):
            yield {name: _perturbed(rng, a) for name, a in weights.items()}


@dataclass(frozen=True)
class Spread:
    """How far a value moves: the largest change of an element, and the root of the mean square over all."""

    most: float = 0.0
    rms: float = 0.0

    def wider(self, moved: Value, base: Array) -> Spread:
        """The spread over one more run, `moved`."""
        other = _spread(moved, base)
        return self if other is None else Spread(max(self.most, other.most), max(self.rms, other.rms))

    def covers(self, got: Value, base: Array) -> bool:
        """Whether `got` is not much farther from `base` than the runs were: neither at its worst element nor
        on the whole, and never infinite or NaN where `base` is not."""
        other = _spread(got, base)
        return other is not None and other.most <= WIDTH * self.most and other.rms <= WIDTH * self.rms


def _spread(a: Value, b: Array) -> Spread | None:
    """The distance of two arrays; None where they differ in kind or shape, or are infinite or NaN at
    different places."""
    if not isinstance(a, np.ndarray) or a.shape != b.shape or a.dtype != b.dtype or b.dtype.kind in "OSU":
        return None
    wide, base = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(base)
    if not np.array_equal(wide[~finite], base[~finite], equal_nan=True):
        return None
    if not np.isfinite(wide[finite]).all():
        return None
    gap = np.abs(wide[finite] - base[finite])
    return Spread(float(gap.max()), float(np.sqrt(np.mean(gap * gap)))) if gap.size else Spread()


def _perturbed(rng: np.random.Generator, value: Value) -> Value:
    """The value with each float perturbed at random; other types as they are."""
    if isinstance(value, list):
        return [_perturbed(rng, v) for v in value]
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float16, np.float32, np.float64):
        return value
    step = max(PERTURBATION, float(np.finfo(value.dtype).eps))
    with np.errstate(over="ignore", invalid="ignore"):
        moved = value * (1 + step * rng.uniform(-1, 1, value.shape))
    return np.where(np.isfinite(value), moved, value).astype(value.dtype)


def _weights(model: Path) -> dict[str, Array]:
    """The float initialisers of the main graph that are weights or scales, by name."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(model), load_external_data=False).graph
    used = {
        node.input[i] for node in graph.node for i in _NUDGED.get(node.op_type, ()) if i < len(node.input)
    } - {i.name for i in graph.input}
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
    return {
        t.name: numpy_helper.to_array(t, str(model.parent))
        for t in graph.initializer
        if t.name in used and t.data_type in floats and np.prod(t.dims) <= _MOST
    }


def _told(who: str, errors: Sequence[OutputError]) -> str:
    bad = [e for e in errors if not e.ok]
    worst: Any = max(errors, key=lambda e: e.max_abs, default=None)
    return f"{who} agrees (max error {worst.max_abs:.3g})" if not bad else f"{who} differs ({bad[0]})"


def _nobody(first: str, opinions: Sequence[Opinion]) -> str:
    asked = ", ".join(o.who for o in opinions)
    return f"differ from {first}" + (f" and are not defended by {asked}" if asked else "")
