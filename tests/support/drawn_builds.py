"""A seed and the sizes that a model is run at in; how it is compiled out: hot sizes, processors, levels."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import onnx

from smelt.compiler import compile_here
from smelt.core.bundle import Bundle
from smelt.core.schedule import hot
from smelt.request import DimSpec, Request
from smelt.session import Session, load

PROCESSORS = ("host", "host", "host", "x86", "x86_64-linux:x86-64-v2", "x86_64-linux:x86-64-v3")
"""The second but two is a bundle for several of them."""
MOST_HOT = 2
"""Hot sizes of a dim: three dims with so many have as many combinations as there may be."""
ROOM = 300
"""The end of a range, where it has one."""

Sizes = Mapping[str, Sequence[int]]
"""The name of a dim -> what it is in each run."""


@dataclass(frozen=True)
class Build:
    """How to compile a model, and on how many threads to run it."""

    dims: Mapping[str, DimSpec] = field(default_factory=dict)
    target: str = "host"
    opt: int = 3
    threads: int = 1
    keep_subnormals: bool = False

    def request(self, source: str, output: str, **more: Any) -> Request:
        """The request for a model in a file."""
        return Request(
            source, self.target, dims=self.dims, opt=self.opt, output=output, runner=False,
            keep_subnormals=self.keep_subnormals, **more,
        )  # fmt: skip


Fed = tuple[onnx.ModelProto, Sequence[Mapping[str, Any]]]
"""A model and what it is fed."""


@dataclass(frozen=True)
class Drawn:
    """A model, what it is fed, and how it is built."""

    model: onnx.ModelProto
    feeds: Sequence[Mapping[str, Any]]
    build: Build


def drawn_build(seed: int, sizes: Sizes) -> Build:
    """The build of a seed; every second one is what a compile does by default."""
    rng = random.Random(f"build {seed}")
    if rng.random() < 0.5:
        return Build(threads=rng.choice((1, 3)))
    return Build(
        dims=hot_dims(rng, sizes),
        target=rng.choice(PROCESSORS) if os.uname().machine == "x86_64" else "host",
        opt=rng.choice((3, 3, 3, 2, 1, 0)),
        threads=rng.choice((1, 1, 2, 3)),
        keep_subnormals=rng.random() < 0.2,
    )


def hot_dims(rng: random.Random, sizes: Sizes) -> dict[str, DimSpec]:
    """Most dims with a range and hot sizes: some of those that runs have, so that others fall beside them."""
    found: dict[str, DimSpec] = {}
    for name, own in sizes.items():
        if rng.random() < 0.7:
            several = sorted(set(own))
            chosen = rng.sample(several, min(len(several), rng.randint(1, MOST_HOT)))
            low, high = rng.choice((0, min(several))), rng.choice((None, max(ROOM, *several), max(several)))
            if low != high:
                found[name] = (low, high, tuple(sorted(chosen)))
    return dict(list(found.items())[:3])


@contextmanager
def small_kernels_too() -> Iterator[None]:
    """Kernels of small tensors are scheduled again for hot sizes like others."""
    with mock.patch.object(hot, "LEAST_SECONDS", 0.0):
        yield


def with_build(seed: int, model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> Drawn:
    """The model as the seed builds it."""
    return Drawn(model, feeds, drawn_build(seed, sizes_of(model, feeds)))


def sizes_of(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """What the named axes of a model's inputs are in each feed; formulas are left out."""
    found: dict[str, list[int]] = {}
    for v in model.graph.input:
        for axis, d in enumerate(v.type.tensor_type.shape.dim):
            if d.dim_param.isidentifier() and all(v.name in f for f in feeds):
                found[d.dim_param] = [f[v.name].shape[axis] for f in feeds]
    return found


@contextmanager
def built(drawn: Drawn) -> Iterator[tuple[Session, Bundle]]:
    """A session of the model, and its bundle. Raises SmeltError."""
    model, build = drawn.model, drawn.build
    with tempfile.TemporaryDirectory(prefix="smelt-drawn-") as folder, small_kernels_too():
        onnx.save(model, f"{folder}/m.onnx")
        bundle = compile_here(build.request(f"{folder}/m.onnx", f"{folder}/out"))
        session = load(bundle, threads=build.threads)
        try:
            yield session, bundle
        finally:
            session.close()
