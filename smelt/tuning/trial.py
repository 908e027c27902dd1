"""A kernel and its candidates in; a bundle with an entry for each candidate, which runs it on several sets of
weights, out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from smelt.core.bundle import Bundle
from smelt.core.dim import sym, to_dim
from smelt.core.dtype import Array, i64
from smelt.core.ir.graph import Attr, Graph, Module, Node, Symbol, TensorType, Value, Weight
from smelt.core.ir.kernel import Buffer, DimParam, Kernel
from smelt.core.ir.verify import bound_by_inputs
from smelt.core.machine import CPU
from smelt.core.schedule.candidates import Candidate
from smelt.driver import compile
from smelt.shapes import random_array
from smelt.stages import PASSES, Compilation
from smelt.tuning.jobs import MOST_WEIGHT_SETS, DimValues, Subject, TuneJob

COLD = 2
"""Sets of weights take at least so many times the second-level cache together."""
MOST_SET_BYTES = 64 << 20
"""And no more than that, unless one alone does: each layout that candidates want has a copy of them in the
trial."""
SIZES_INPUT = "sizes"


def build_trial(subject: Subject, job: TuneJob, several: Sequence[Candidate], folder: Path) -> Bundle:
    """A bundle of the entries `c0`, `c1` .. for the candidates, in a new folder inside this one. Raises
    SmeltError where it does not compile."""
    copies = _copies(subject, job)
    dumps = {}
    for k, c in enumerate(several):
        name = entry_name(k)
        own = replace(subject.request, source=name, name=name, entries=(), schedules="", dims={}, outputs=(),
                      place=(), state={}, prefix="")  # fmt: skip
        module = _module(job, c.kernel.with_(name="kernel", origin=job.name), copies)
        source = hashlib.sha256(f"{job.question.digest} {c.schedule}".encode()).hexdigest()
        path = folder / f"{name}.smelt"
        Compilation(own, module, source, place=len(PASSES)).write(path)
        dumps[name] = path
    whole = {**dumps, entry_name(len(several)): dumps[entry_name(0)]} if len(several) == 1 else dumps
    return compile(whole, subject.request.target, output=folder / "trial", name="trial")


def entry_name(k: int) -> str:
    """What the entry of the k-th candidate is called."""
    return f"c{k}"


def feed(job: TuneJob, sizes: DimValues, seed: int = 0) -> dict[str, Array]:
    """Random inputs of the entries for these values of the kernel's dims. Raises SmeltError where there is no
    memory for them."""
    kernel = job.question.kernel
    dims = dict(zip((d.name for d in kernel.dims), sizes, strict=True))
    made: dict[str, Array] = {}
    for k, b in enumerate(_given(job)):
        shape = [d.evaluate(dims) for d in b.shape]
        data = random_array(b.dtype, shape, np.random.default_rng([seed, k]))
        made[b.name] = data if _is_told(b, _told(job)) else data.reshape(-1)
    if _unbound(job):
        made[SIZES_INPUT] = np.array(sizes, np.int64)
    return made


def sizes_text(job: TuneJob, sizes: DimValues) -> str:
    """Values of the kernel's dims for people and for files of schedules: 'd0=1 d1=64'."""
    named = zip((d.name for d in job.question.kernel.dims), sizes, strict=True)
    return " ".join(f"{name}={n}" for name, n in named) or "fixed"


def _given(job: TuneJob) -> list[Buffer]:
    """The kernel's inputs that are no weights."""
    known = job.question.constants | job.question.laid.keys()
    return [b for b in job.question.kernel.inputs if b.name not in known]


def _told(job: TuneJob) -> set[str]:
    """The dims that shapes of inputs tell: of such as tell all that is in them. A kernel inside a model may
    have an input of ceil(d0/16) rows, which tells no d0."""
    inputs, told = _given(job), {d.name for d in job.question.kernel.dims}
    while True:
        inputs = [b for b in inputs if _is_told(b, told)]
        found = bound_by_inputs(Value(f"%{b.name}", _type(b)) for b in inputs)
        if found == told:
            return told
        told = found


def _is_told(b: Buffer, told: Collection[str]) -> bool:
    return all(d.symbols <= set(told) for d in b.shape)


def _inputs(job: TuneJob) -> tuple[list[Value], list[Node]]:
    """The inputs of an entry, and views of those that are fed flat because their shapes would tell too
    little."""
    told, values, views = _told(job), [], []
    for b in _given(job):
        if _is_told(b, told):
            values.append(Value(f"%{b.name}", _type(b), b.name, CPU))
            continue
        flat = Value(f"%{b.name}.flat", TensorType(b.dtype, (sym(_count(b)),)), b.name, CPU)
        view = Value(f"%{b.name}", _type(b), "", CPU)
        views.append(Node("reshape", (flat.name,), (view,), {"shape": b.shape}, origin=job.name))
        values.append(flat)
    return values, views


def _count(b: Buffer) -> str:
    """The symbol of how many elements an input has that is fed flat."""
    return f"{b.name}.count"


def _unbound(job: TuneJob) -> list[tuple[int, DimParam]]:
    """(number, dim) of the dims that no shape of an input tells."""
    told = _told(job)
    return [(k, d) for k, d in enumerate(job.question.kernel.dims) if d.name not in told]


def _type(b: Buffer) -> TensorType:
    return TensorType(b.dtype, b.shape)


def _bound(job: TuneJob, k: int, d: DimParam, sizes: Value) -> Node:
    """The node that gives a dim the k-th element of the input of sizes."""
    most = max(s[k] for s in job.sizes)
    attrs: dict[str, Attr] = {"symbol": d.name, "index": k, "low": to_dim(d.low), "high": to_dim(most)}
    return Node("bind", (sizes.name,), (), attrs, origin=job.name)


def _copies(subject: Subject, job: TuneJob) -> tuple[Mapping[str, Weight], ...]:
    """Sets of weights, so that a call does not find its own in the cache: the model's, and where these fit it
    together, the same turned round, so that no two are equal."""
    own = job.weights or ({},)
    if not own[0]:
        return own
    each = max(1, sum(w.bytes for w in own[0].values()))
    least = math.ceil(COLD * subject.machine.cache_bytes[1] / each)
    wanted = max(1, min(max(least, len(own)), MOST_WEIGHT_SETS, MOST_SET_BYTES // each))
    made = list(own[:wanted])
    while len(made) < wanted:
        by = len(made)
        made.append({name: _turned(w, by) for name, w in own[by % len(own)].items()})
    return tuple(made)


def _turned(w: Weight, by: int) -> Weight:
    data = np.ascontiguousarray(np.roll(w.array().reshape(-1), 17 * by).reshape(w.shape))
    return Weight(w.name, w.dtype, w.shape, data)


def _module(job: TuneJob, kernel: Kernel, copies: Sequence[Mapping[str, Weight]]) -> Module:
    """Calls of the kernel on the same inputs with each set of weights; the first one's results are
    returned."""
    dims = job.question.kernel.dims
    sizes = Value(f"%{SIZES_INPUT}", TensorType(i64, (to_dim(len(dims)),)), SIZES_INPUT, CPU)
    nodes = [_bound(job, k, d, sizes) for k, d in _unbound(job)]
    inputs, views = _inputs(job)
    inputs += [sizes] if nodes else []
    nodes += views
    weights: dict[str, Weight] = {}
    for n, own in enumerate(copies):
        refs = {name: f"@{name}.{n}" for name in own}
        weights |= {ref: replace(own[name], name=ref) for name, ref in refs.items()}
        args = tuple(refs.get(b.name, f"%{b.name}") for b in kernel.inputs)
        outputs = tuple(Value(f"%{b.name}.{n}", _type(b), "", CPU) for b in kernel.outputs)
        attrs: dict[str, Attr] = {"kernel": "kernel", "dims": tuple(sym(d.name) for d in dims)}
        nodes.append(Node("call_kernel", args, outputs, attrs, origin=job.name))
    first = tuple(f"%{b.name}.0" for b in kernel.outputs)
    graph = Graph("main", tuple(inputs), tuple(nodes), first, tuple(b.name for b in kernel.outputs))
    symbols = [Symbol(d.name, d.low, d.high, d.divisor, "tune") for d in dims]
    symbols += [Symbol(s, origin="tune") for v in inputs for s in sorted(v.type.symbols) if "." in s]
    return Module("trial", tuple(symbols), weights, {"main": graph}, {"kernel": kernel})
