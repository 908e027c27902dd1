"""A drawn model in; calls of it by other ways than a plain session out: placed kernels, state, packages,
schedules, streams, tensors that stay at units."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from boards import HAS_OPENCL, HAS_VULKAN
from fuzz_graph import Array, Found
from fuzz_spellings import respelled
from onnx import helper
from oracle import plain_session

from smelt.compiler import compile_here, lower, package_into
from smelt.core.bundle import MAIN
from smelt.core.ops import OPS
from smelt.core.package import read_package
from smelt.core.schedule.book import Book, BookEntry, print_book
from smelt.core.schedule.candidates import candidates
from smelt.core.staging import Staging
from smelt.request import Request
from smelt.session import Session, load
from smelt.streams import Stage, Stream

Feed = dict[str, Array]
Call = Callable[[Sequence[str], Feed], list[Any]]
"""Names of outputs and a feed -> the outputs."""

UNITS = tuple(name for name, is_here in (("opencl", HAS_OPENCL), ("vulkan", HAS_VULKAN)) if is_here)
DEVICES = tuple(itertools.chain(itertools.permutations(UNITS, 1), itertools.permutations(UNITS, 2)))
"""Devices that this machine has drivers of, one or two at a time."""
PATTERNS = (*"aeimnrstu", *sorted(OPS))
"""What rules of units fit: kernels with such a part in their names."""
MOST_SCHEDULES = 8


@dataclass(frozen=True)
class Way:
    """found: the model and its feeds, which a way may have changed. request: its compile. open: a bundle's
    session in, calls of it out, each of which is made at every size, and at the first one again. spelled: the
    model that is compiled where it is not found's, which says what is right. apart: with its weights in a
    file of their own."""

    found: Found
    request: Request
    open: Callable[[Request, int], contextlib.AbstractContextManager[Sequence[Call]]]
    spelled: onnx.ModelProto | None = None
    apart: bool = False

    def save(self) -> None:
        """The model's file, where the request has it."""
        made = onnx.ModelProto()
        made.CopyFrom(self.spelled or self.found.model)
        onnx.save(made, self.request.source, save_as_external_data=self.apart, size_threshold=0)


Maker = Callable[[Found, Request, random.Random], "Way | None"]


def way_of(name: str, salt: int, found: Found, request: Request) -> Way | None:
    """The way of that name, drawn from the salt alone, so that it stays while a model is shrunk; None where
    the model has nothing to go it with."""
    return WAYS[name](found, request, random.Random(f"{name} {salt}"))


@contextlib.contextmanager
def plainly(request: Request, threads: int) -> Iterator[Sequence[Call]]:
    """The calls of a session, one of each entry."""
    with contextlib.closing(load(compile_here(request), threads=threads)) as session:
        yield [session[name].run for name in session.entries]


# ---------------------------------------------------------------- units


def placed(found: Found, request: Request, rng: random.Random) -> Way | None:
    """Kernels on several units, by rules and by costs; inputs and outputs at the host or where they are
    used."""
    if not DEVICES:
        return None
    devices = rng.choice(DEVICES)
    rules = [(f"*{rng.choice(PATTERNS)}*", rng.choice(("cpu", *devices))) for _ in range(rng.randint(0, 4))]
    if rng.random() < 0.4:
        rules.append(("*", _by_cost(rng, devices)))
    chosen: Any = {"place": tuple(rules)} if rules else rng.choice(({}, {"fallback": True}, {"choose": True}))
    policy = rng.choice(("static", "load", "thermal", "battery")) if "choose" in chosen else "static"
    stays = rng.random() < 0.4
    made = replace(request, target="+".join((request.target, *devices)), **chosen)

    @contextlib.contextmanager
    def opened(r: Request, threads: int) -> Iterator[Sequence[Call]]:
        with contextlib.closing(load(compile_here(r), threads=threads)) as session:
            session.set_policy(policy)
            yield [_staying(session) if stays else session.run]

    return Way(found, made, opened)


def _by_cost(rng: random.Random, devices: Sequence[str]) -> str:
    """A rule's costs, of machines that there may be."""
    figures = []
    for unit in ("cpu", *devices):
        figures += [f"{unit}.operations={10 ** rng.uniform(8, 13):.3g}"]
        figures += [f"{unit}.bandwidth={10 ** rng.uniform(8, 12):.3g}"]
        figures += [f"{unit}.launch={10 ** rng.uniform(-7, -4):.3g}"]
        if unit != "cpu":
            figures += [f"{unit}.link={rng.choice(('inf', '1e10', '1e8'))}", f"{unit}.copy=1e-6"]
    return f"auto@{';'.join(figures)}"


def _staying(session: Session) -> Call:
    """Inputs and outputs as tensors of the session; the outputs' shapes are those of a run before."""

    def call(names: Sequence[str], feed: Feed) -> list[Any]:
        known = {p.name for p in session.get_inputs()}
        first = session.run(names, feed)
        if not all(isinstance(a, np.ndarray) for a in (*feed.values(), *first)):
            return first
        held = {n: session.tensor(n, a) for n, a in feed.items() if n in known}
        into = {n: session.tensor(n, a.shape) for n, a in zip(names, first, strict=True)}
        made = session.run_into(into, held)
        by_name = dict(zip((p.name for p in session.get_outputs()), made, strict=True))
        return [by_name[n].numpy() for n in names]

    return call


# ---------------------------------------------------------------- other compiles


def packaged(found: Found, request: Request, rng: random.Random) -> Way:
    """A portable package, finalised for this machine or for it with a device."""
    target = "+".join((request.target, *rng.choice(((), (), *DEVICES))))

    @contextlib.contextmanager
    def opened(r: Request, threads: int) -> Iterator[Sequence[Call]]:
        with Staging(f"{r.output}.package") as stage:
            stage.commit(package_into(stage, replace(r, portable=True, target="host"), lambda stage: None))
        source = str(read_package(f"{r.output}.package").entries[MAIN])
        bundle = compile_here(Request(source, target, output=r.output, runner=False))
        with contextlib.closing(load(bundle, threads=threads)) as session:
            yield [session.run]

    return Way(found, request, opened)


def scheduled(found: Found, request: Request, rng: random.Random) -> Way:
    """Kernels by other schedules than the strategies' first choice, from a file of them."""

    @contextlib.contextmanager
    def opened(r: Request, threads: int) -> Iterator[Sequence[Call]]:
        text = _drawn_book(r, rng)
        with contextlib.closing(load(compile_here(replace(r, schedules=text)), threads=threads)) as session:
            yield [session.run]

    return Way(found, request, opened)


def _drawn_book(request: Request, rng: random.Random) -> str:
    """A file with one of the candidates of each kernel, written as if by hand: each has to replay."""
    lowered = lower(replace(request, plan_only=True))
    entries = {}
    for asked in lowered.asked[:MOST_SCHEDULES]:
        offered = list(candidates(asked.question, lowered.machine))
        chosen = rng.choice(offered)
        e = BookEntry(asked.question.digest, "any", chosen.schedule, asked.naive.name)
        entries[e.key] = e
    return print_book(Book().with_entries(entries.values()))


def streamed(found: Found, request: Request, rng: random.Random) -> Way:
    """Two stages of a stream, a session and its copy, that work on several items at once."""

    @contextlib.contextmanager
    def opened(r: Request, threads: int) -> Iterator[Sequence[Call]]:
        with contextlib.ExitStack() as stack:
            session = stack.enter_context(contextlib.closing(load(compile_here(r), threads=threads)))
            twin = stack.enter_context(contextlib.closing(session.fork()))
            again = {p.name: f"again.{p.name}" for p in twin.get_outputs()}
            stream = stack.enter_context(Stream([session, Stage(twin, outputs=again, name="twin")]))
            yield [_through(stream, ""), _through(stream, "again.")]

    return Way(found, request, opened)


def _through(stream: Stream, prefix: str) -> Call:
    def call(names: Sequence[str], feed: Feed) -> list[Any]:
        *_, last = stream(dict(feed) for _ in range(4))
        return [last[prefix + n] for n in names]

    return call


# ---------------------------------------------------------------- other files


def spelled(found: Found, request: Request, rng: random.Random) -> Way | None:
    """The model spelled otherwise, where ONNX Runtime takes that."""
    made = respelled(found.model, rng)
    try:
        plain_session(made)
    except Exception:  # of functions and subgraphs it takes less than the standard has
        return None
    return Way(found, request, plainly, made, apart=rng.random() < 0.3)


# ---------------------------------------------------------------- state


def stateful(found: Found, request: Request, rng: random.Random) -> Way | None:
    """An input of floats becomes a state: what replaces it depends on it and on an output, and has its shape
    or, along an axis of its own, more rows."""
    pair = _with_next(found, rng)
    if pair is None:
        return None
    changed, name, after = pair
    target = "+".join((request.target, *rng.choice(((), (), *DEVICES))))
    made = replace(request, state={name: after}, target=target)
    forked = rng.random() < 0.5

    @contextlib.contextmanager
    def opened(r: Request, threads: int) -> Iterator[Sequence[Call]]:
        with contextlib.closing(load(compile_here(r), threads=threads)) as session:
            yield [_set_before(session, name), _carried(session, name, forked)]

    return Way(changed, made, opened)


def _set_before(session: Session, name: str) -> Call:
    """One run from a given state; then the state is what replaced it."""

    def call(names: Sequence[str], feed: Feed) -> list[Any]:
        session.set_state({name: feed[name]})
        got = session.run(names, {n: a for n, a in feed.items() if n != name})
        session.reset()
        return got

    return call


def _carried(session: Session, name: str, forked: bool) -> Call:
    """The same by a session's copy, or with what a run before has left to be replaced."""

    def call(names: Sequence[str], feed: Feed) -> list[Any]:
        rest = {n: a for n, a in feed.items() if n != name}
        session.set_state({name: feed[name]})
        own = session.fork() if forked else session
        try:
            session.run(None, rest)
            if not forked:
                own.set_state({name: feed[name]})
            return own.run(names, rest)
        finally:
            if forked:
                own.close()

    return call


def _with_next(found: Found, rng: random.Random) -> tuple[Found, str, str] | None:
    """The model with an output that replaces one of its inputs; that input's name, and the output's."""
    graph = found.model.graph
    floats = [o.name for o in graph.output if o.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    inputs = [i for i in graph.input if i.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    if not floats or not inputs:
        return None
    x, y, after = rng.choice(inputs), rng.choice(floats), "state.next"
    dims = [d.dim_param for d in x.type.tensor_type.shape.dim]
    others = [d.dim_param for i in graph.input if i is not x for d in i.type.tensor_type.shape.dim]
    free = [k for k, d in enumerate(dims) if d.isidentifier() and dims.count(d) == 1 and d not in others]
    grows = bool(free) and rng.random() < 0.5 and not any(d for d in dims + others if not d.isidentifier())
    nodes = [
        helper.make_node("ReduceSum", [y], ["state.sum"], keepdims=0),
        helper.make_node("Sigmoid", ["state.sum"], ["state.part"]),
        helper.make_node("Mul", [x.name, "state.part"], ["state.new" if grows else after]),
    ]
    if grows:
        nodes.append(helper.make_node("Concat", [x.name, "state.new"], [after], axis=rng.choice(free)))
    model = onnx.ModelProto()
    model.CopyFrom(found.model)
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_tensor_value_info(after, onnx.TensorProto.FLOAT, None))
    return replace(found, model=model), x.name, after


WAYS: Mapping[str, Maker] = {
    "placed": placed, "packaged": packaged, "scheduled": scheduled, "streamed": streamed,
    "stateful": stateful, "spelled": spelled,
}  # fmt: skip
