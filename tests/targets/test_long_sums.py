"""Long sums and means of floats, compiled: errors grow as docs/floating-point.md says, for any lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import smelt
from smelt.compiler import compile_here
from smelt.core.schedule.strategies.reduction import BLOCK_TERMS, IN_FLIGHT
from smelt.request import Request
from smelt.targets.llvm.machines import host

Array = np.ndarray[Any, np.dtype[Any]]
COLUMNS = 20
MOST = 1_000_000


@dataclass(frozen=True)
class Case:
    """A reduction. shape, axes: of its input, and those that it sums over. terms: lengths of such axes that
    are symbols -> how many roundings may follow a term. sizes: of the symbols. mean: whether it divides."""

    shape: tuple[str | int, ...]
    axes: tuple[int, ...]
    terms: Callable[..., float]
    sizes: tuple[tuple[int, ...], ...]
    mean: bool = False
    of: str = "float"

    @property
    def text(self) -> str:
        """The model."""
        left = ["1" if k in self.axes else str(n) for k, n in enumerate(self.shape)]
        given = f"{self.of}[{','.join(map(str, self.shape))}] x"
        made = f"{self.of}[{','.join(left)}] y"
        axes = f"int64[{len(self.axes)}] a = {{{', '.join(map(str, self.axes))}}}"
        op = "ReduceMean" if self.mean else "ReduceSum"
        head = '<ir_version: 8, opset_import: ["" : 21]> m'
        return f"{head} ({given}) => ({made}) <{axes}> {{ y = {op}(x, a) }}"


def blocks(*lengths: int) -> float:
    """Of several axes that do not join, the outermost is cut into blocks, then the blocks."""
    return sum(BLOCK_TERMS + n / BLOCK_TERMS for n in (np.prod(lengths), *lengths[:-1])) + 3


def strips(*lengths: int) -> float:
    """Sums in vectors, of which several are in flight, and then across them."""
    lanes = IN_FLIGHT * host().machine.lanes(32) if len(lengths) == 1 else 1
    return lanes + float(np.prod(lengths)) / lanes + 3


ALONE = tuple((m,) for m in (0, 1, 63, 64, 65, 128, 4096, 20_011))
PAIRS = ((0, 3), (3, 0), (1, 1), (2, 16), (64, 65), (130, 3), (3, 130), (9001, 1), (1, 9001))
CASES: Mapping[str, Case] = {
    "rows before columns": Case((2, "M", COLUMNS), (1,), blocks, ALONE),
    "a mean": Case((2, "M", COLUMNS), (1,), blocks, ALONE[1:], mean=True),
    "doubles": Case((2, "M", COLUMNS), (1,), blocks, ALONE, of="double"),
    "columns of any number": Case(("M", "K"), (0,), blocks, ((65, 0), (65, 130), (4096, 40), (MOST, 1))),
    "axes that join": Case((2, "M", "P", COLUMNS), (1, 2), lambda m, p: blocks(m * p), PAIRS[2:], mean=True),
    "axes apart": Case(("M", 2, "P", COLUMNS), (0, 2), blocks, PAIRS),
    "a short axis inside": Case(("M", 2, 3, COLUMNS), (0, 2), lambda m: 3 * blocks(m), ALONE),
    "lengths known before": Case((50, "N", 60, COLUMNS), (0, 2), lambda: 50 + 60 + 3, ((2,),)),
    "rows": Case(("M",), (0,), strips, ((0,), (1,), (130,), (4097,), (MOST,))),
}


def contents(shape: tuple[int, ...], seed: int) -> Iterator[tuple[str, Array]]:
    """Terms for which serial sums are off by much: equal ones round alike, growing ones lose the first."""
    rng = np.random.default_rng(seed)
    yield "normal", rng.standard_normal(shape)
    yield "positive", rng.uniform(0.5, 1.5, shape)
    yield "equal", np.full(shape, 0.1)
    yield "of all sizes", np.exp(rng.uniform(-20, 20, shape))
    tall = np.arange(1, np.prod(shape) + 1, dtype=np.float64).reshape(shape)
    yield "falling", 1 / tall
    yield "signs in turn", (1 + 1e-3 * rng.random(shape)) * np.where(tall % 2, 1, -1)


@pytest.fixture(scope="module", params=CASES)
def compiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Case, smelt.Session]:
    case = CASES[request.param]
    folder = tmp_path_factory.mktemp("sums")
    Path(folder, "m.onnx").write_bytes(onnx.parser.parse_model(case.text).SerializeToString())
    made = compile_here(Request(str(folder / "m.onnx"), output=str(folder / "out"), runner=False))
    return case, smelt.load(made)


def test_errors_grow_as_promised(compiled: tuple[Case, smelt.Session]) -> None:
    case, session = compiled
    unit = 2.0**-53 if case.of == "double" else 2.0**-24
    for sizes in case.sizes:
        left = iter(sizes)
        shape = tuple(n if isinstance(n, int) else next(left) for n in case.shape)
        count = int(np.prod([shape[a] for a in case.axes])) if case.mean else 1
        lengths = [shape[a] for a in case.axes if isinstance(case.shape[a], str)]
        for name, wide in contents(shape, seed=sum(shape)):
            x = wide.astype(np.float64 if case.of == "double" else np.float32)
            exact = x.astype(np.longdouble if case.of == "double" else np.float64)
            want = exact.sum(case.axes, keepdims=True) / count
            allowed = case.terms(*lengths) * unit * np.abs(exact).sum(case.axes, keepdims=True) / count
            (got,) = session.run(None, {"x": x})
            assert got.shape == want.shape
            off = np.abs(got - want) > allowed * 1.01
            assert not off.any(), f"{name} of {shape}: {np.abs(got - want)[off]} beyond {allowed[off]}"
