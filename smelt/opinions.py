"""A disagreement with ONNX Runtime in, a ruling out: who else says what, how far the reference itself moves.

ONNX Runtime with its optimiser on is the reference, and it is not the specification: its optimiser fuses
quantised regions into kernels that round otherwise, so that it differs from itself without. Before smelt is
called wrong, it is compared with ONNX Runtime that runs every node as written, with ONNX's own evaluator, and
with how far the reference moves when floats move by their rounding.
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
"""(name, got, want) -> differences, within the tolerance that was asked for."""

AS_WRITTEN = "onnxruntime with its optimiser off"
EVALUATOR = "onnx's evaluator"
WITHIN = f"differ by no more than {AS_WRITTEN} itself moves when floats move by 2^-20"
NUDGE = 2.0**-20
"""Relative size of a nudge: what rounding makes of a float32 sum of some hundred terms, 16 units of 2^-24."""
NUDGES = 4
"""Runs of the nudged reference; each costs as much as a run of the reference."""
WIDTH = 2.0
"""smelt may be so many times as far from the reference as the farthest nudged run: a few runs see less of
the spread than there is."""

_NUDGED = {
    "MatMul": (0, 1), "Gemm": (1, 2), "Conv": (1, 2), "ConvTranspose": (1, 2), "MatMulNBits": (2,),
    "QuantizeLinear": (1,), "DequantizeLinear": (1,), "QLinearConv": (1, 4, 6), "QLinearMatMul": (1, 4, 6),
    "LayerNormalization": (1, 2), "RMSNormalization": (1,), "BatchNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,), "SkipSimplifiedLayerNormalization": (2,),
    "LSTM": (1, 2, 3), "GRU": (1, 2, 3),
}  # fmt: skip
"""Inputs whose constants are weights or scales, where the last bits of a float mean nothing. A constant
elsewhere may be an exponent, a bound or a size."""
_MOST = 1 << 22
"""Elements of a constant that is nudged: more would cost memory, and the others move the result enough."""


@dataclass(frozen=True)
class Opinion:
    """What another reference says. errors: smelt's differences from it. apart: the first reference's."""

    who: str
    errors: tuple[OutputError, ...]
    apart: tuple[OutputError, ...]

    def __str__(self) -> str:
        return f"{self.who}: {_told('smelt', self.errors)}; {_told('onnxruntime', self.apart)}"


@dataclass(frozen=True)
class Ruling:
    """On one output: right or not. why: a text that goes on after names of outputs. errors: smelt's, against
    the reference that decided."""

    right: bool
    why: str
    errors: tuple[OutputError, ...]
    opinions: tuple[Opinion, ...]


class Opinions:
    """Second opinions on a model, each asked for only when those before it did not settle the matter.

    outputs: names of inner values to judge, besides the model's own outputs. spread: whether the reference's
    own spread excuses a difference; a caller who names a tolerance wants that one. first: the reference's
    name in messages.
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
        """A ruling on each output of `got`, which differs from the first reference's `want`. Outputs that no
        opinion defends are wrong."""
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
        """How far each value moves when float inputs, weights and scales move by their rounding."""
        rng = np.random.default_rng(0)
        found = {name: Spread() for name, value in base.items() if isinstance(value, np.ndarray)}
        for instead in self._nudged_weights(rng):
            moved = self._run(self._reference(instead), {n: _nudged(rng, a) for n, a in feed.items()})
            for name in found.keys() & moved.keys():
                found[name] = found[name].wider(moved[name], base[name])
        return found

    def _nudged_weights(self, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
        weights = _weights(self._model)
        for _ in range(NUDGES):
            yield {name: _nudged(rng, a) for name, a in weights.items()}


@dataclass(frozen=True)
class Spread:
    """How far a value moves: the largest step of an element, and the root of the mean square over all."""

    most: float = 0.0
    rms: float = 0.0

    def wider(self, moved: Value, base: Array) -> Spread:
        """This spread, with one more run in it."""
        other = _spread(moved, base)
        return self if other is None else Spread(max(self.most, other.most), max(self.rms, other.rms))

    def covers(self, got: Value, base: Array) -> bool:
        """Whether `got` is not much farther from `base` than the runs were: neither at its worst element nor
        on the whole, and never infinite or NaN where `base` is not."""
        other = _spread(got, base)
        return other is not None and other.most <= WIDTH * self.most and other.rms <= WIDTH * self.rms


def _spread(a: Value, b: Array) -> Spread | None:
    """Distance of two arrays; None where they are of another kind, or infinite or NaN at other places."""
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


def _nudged(rng: np.random.Generator, value: Value) -> Value:
    """The same with each float moved by its rounding; all else as it is."""
    if isinstance(value, list):
        return [_nudged(rng, v) for v in value]
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float16, np.float32, np.float64):
        return value
    step = max(NUDGE, float(np.finfo(value.dtype).eps))
    with np.errstate(over="ignore", invalid="ignore"):
        moved = value * (1 + step * rng.uniform(-1, 1, value.shape))
    return np.where(np.isfinite(value), moved, value).astype(value.dtype)


def _weights(model: Path) -> dict[str, Array]:
    """Float initialisers of the main graph that are weights or scales."""
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
