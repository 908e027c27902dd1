"""The shapes of a run's inputs in; arrays for its outputs out, in memory that callers have let go of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from sys import getrefcount
from typing import Any, TypeAlias

import numpy as np

from smelt.core.bundle import spelled_dim
from smelt.core.dim import Dim
from smelt.ports import BoundPort, new_array

Shapes: TypeAlias = tuple[tuple[int, ...], ...]
KeptArrays: TypeAlias = tuple[Any, ...]  # arrays, in an output's shape or in a row, and None

MOST_SHAPES = 4096
"""How many combinations of input shapes a session remembers the output shapes of."""
MOST_REUSED = 128 << 20
"""Bytes of a run's outputs whose memory later runs take again when the caller has let go of it. To free and
ask for it in each run can cost the page faults of all its pages, since glibc gives the end of its heap back:
a third of a step of smollm_genai_int4 with 512 rows of cache (benchmarks/results/race.md)."""
GROWS = 64 << 10
"""Bytes of an output from which on one that outgrows its memory gets half as much again as it needs. Pages
that nothing has been written to take no memory."""


def _references(kept: KeptArrays, k: int) -> int:
    return getrefcount(kept[k])


_ALONE = _references((np.empty(0),), 0)
"""The count of what only the tuple refers to, which is the interpreter's business."""


def _free(kept: KeptArrays, k: int) -> bool:
    """Whether the caller has let go of all that shared this memory."""
    return k < len(kept) and _references(kept, k) == _ALONE


class OutputMemory:
    """Of the runs of one entry of a session; one caller at a time."""

    def __init__(
        self, inputs: Sequence[BoundPort], outputs: Sequence[BoundPort], manifest: Mapping[str, Any]
    ) -> None:
        self._inputs, self._outputs, self._manifest = inputs, outputs, manifest
        # shapes of the inputs -> those of the outputs, and whether their memory is kept
        self._known: dict[Shapes, tuple[Shapes, bool]] = {}
        self._formulas: dict[int | str, Dim] = {}
        self._late = any(p.late for p in outputs)
        self._hidden = self._late  # whether something else than the inputs' shapes sizes an output
        self._parts = {name for name, _ in manifest.get("parts", ())}
        self.forget()

    def forget(self) -> None:
        """Let go of all memory that no caller has."""
        # of the last run, and of the one before as far as the last could not take its predecessor's: a cache
        # that comes out of one run is fed to the next
        self._last: KeptArrays = ()
        self._before: KeptArrays = ()

    def arrays(self, shapes: Shapes) -> list[np.ndarray[Any, Any]] | None:
        """Arrays for the outputs of a run, or None where only the run tells their shapes. Raises
        SmeltError(kind='device')."""
        found = self._known.get(shapes) or self._foretold(shapes)
        if found is None:
            return None
        known, few = found
        last, owned, results, same = self._last, [], [], True
        for k, shape in enumerate(known):
            if _free(last, k) and last[k].shape == shape:
                block = last[k]
                results.append(block.view())
            else:
                same = False
                block = self._other(k, shape)
                results.append(block.reshape(-1)[: math.prod(shape)].reshape(shape))
            owned.append(block)
        if not same:
            self._before = tuple(None if b is o else b for b, o in zip(last, owned, strict=False))
        self._last = tuple(owned)
        if not few:
            self.forget()
        return results

    def learn(self, shapes: Shapes, results: Sequence[np.ndarray[Any, Any]]) -> None:
        """What a run with inputs of these shapes gave; from now on it writes into arrays of `arrays`."""
        if not self._late:
            self._note(shapes, tuple(r.shape for r in results))

    def _note(self, shapes: Shapes, known: Shapes) -> tuple[Shapes, bool]:
        if len(self._known) == MOST_SHAPES:
            self._known.clear()
        size = sum(math.prod(s) * p.numpy.itemsize for s, p in zip(known, self._outputs, strict=True))
        return self._known.setdefault(shapes, (known, size <= MOST_REUSED))

    def _foretold(self, shapes: Shapes) -> tuple[Shapes, bool] | None:
        """The shapes of outputs whose extents are formulas of those of the inputs, if these fit each other.
        What they say holds: the run compares them with its own."""
        if self._hidden:
            return None
        sizes: dict[str, int] = {}
        for p, shape in zip(self._inputs, shapes, strict=True):
            for d, n in zip(p.dims, shape, strict=True):
                named = isinstance(d, str) and d.isidentifier() and d not in self._parts
                if named and sizes.setdefault(str(d), n) != n:
                    return None  # the run says what is wrong
        values: dict[int | str, int] = {}
        for text in {d for p in self._outputs for d in p.dims}:
            formula = self._formula(text)
            if not formula.symbols <= sizes.keys():
                self._hidden = True
                return None
            values[text] = formula.evaluate(sizes)
            if not 0 <= values[text] < 1 << 62:
                return None
        return self._note(shapes, tuple(tuple(values[d] for d in p.dims) for p in self._outputs))

    def _formula(self, text: int | str) -> Dim:
        if text not in self._formulas:
            self._formulas[text] = spelled_dim(text, self._manifest)
        return self._formulas[text]

    def _other(self, k: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Memory for output k that is not that of the last run in the same shape."""
        port, n, short = self._outputs[k], math.prod(shape), False
        for kept in (self._before, self._last):
            known = k < len(kept) and kept[k] is not None
            if known and _free(kept, k) and n <= kept[k].size <= 2 * n:
                block: np.ndarray[Any, Any] = kept[k]
                return block
            short |= known and kept[k].size < n
        if short and n * port.numpy.itemsize >= GROWS:
            return new_array(port, (n + n // 2,))
        return new_array(port, shape)
