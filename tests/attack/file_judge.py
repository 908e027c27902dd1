"""A model file in; an Outcome out: what `check` and `compile` made of it in a forked child with limits.

Right is an error of kind invalid, unsupported or shape that is short and can be printed, from both alike, and
nothing left behind; or a bundle that runs, or refuses what it is fed by such an error.
"""

from __future__ import annotations

import resource
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from campaign import Outcome
from fuzz_doubt import contested, difference, unstable
from fuzz_graph import Found, walk
from isolated import isolated
from onnx import TensorProto, numpy_helper
from oracle import plain_session

PROCESSOR = 20
"""Seconds of processor time that a hostile file may take: a small model takes 0.1."""
MEMORY = 3 << 30
"""Bytes of address space that a child may have: the imported libraries map 1 GB of it."""
HANG = 120.0
"""Seconds after which a child counts as asleep: on a busy machine processor time says more."""
LONGEST = 24_000
"""Characters that a message may have, with all its problems."""
Array = np.ndarray[Any, Any]
KINDS = ("invalid", "unsupported", "shape")


@dataclass(frozen=True)
class Expected:
    """What must come of a file. refused: it must not be accepted. node, kind: of the error."""

    refused: bool = False
    node: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Report:
    """What a child saw. how: 'refused', 'ran' or 'defect'."""

    how: str
    kind: str = ""
    node: str = ""
    message: str = ""
    feeds: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[list[Any]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.how} {self.kind} {self.node!r}: {self.message}"


def limited() -> None:
    """This process ends by a signal when it takes more than a hostile file may."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + PROCESSOR
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def judge_file(path: Path, expected: Expected = Expected(), opt: int = 3, code: bool = True) -> Report:
    """Check and compile a file in this process. code: False stops before machine code is made."""
    from smelt.compiler import compile_here, lower
    from smelt.core.diag import SmeltError
    from smelt.driver import Request
    from smelt.importer import check_model

    out = path.parent / "out"
    try:
        found = check_model(path)
        request = Request(source=str(path), output=str(out), runner=False, opt=opt)
        if not code:
            lower(request)
            return _checked(Report("ran"), expected)
        bundle = compile_here(request)
    except SmeltError as e:
        left = sorted(p.name for p in path.parent.iterdir() if "out" in p.name)
        if left:
            return Report("defect", "leftovers", message=f"{left} after {e}")
        bad = _unfit(e)
        if bad:
            return Report("defect", bad, message=_short(str(e)))
        report = Report("refused", e.kind, e.problems[0].node or "", _short(str(e)))
        return _checked(report, expected)
    except MemoryError:
        return Report("refused", "memory", message=_site())  # `compile` says so, and in what stage
    except Exception as e:
        return Report("defect", f"{type(e).__name__}", message=_site())
    if found:
        return Report("defect", "check refuses, compile does not", message=_short(str(found[0])))
    report = _run(bundle)
    return _checked(report, expected)


def _checked(report: Report, expected: Expected) -> Report:
    if report.how == "defect":
        return report
    if report.how == "ran" and expected.refused:
        return Report("defect", "accepted", message="compiled, and no error")
    if expected.kind and report.how == "refused" and report.kind != expected.kind:
        return Report("defect", f"of kind {report.kind}, not {expected.kind}", message=report.message)
    if expected.node and report.how == "refused" and report.node != expected.node:
        return Report("defect", f"of node {report.node!r}, not {expected.node!r}", message=report.message)
    return report


def _unfit(e: Any) -> str:
    """What is wrong with an error; empty when nothing is."""
    for p in e.problems:
        if p.kind not in KINDS:
            return f"kind {p.kind}: {_line(p.message)}"
    text = str(e)
    if len(text) > LONGEST:
        return "a message too long"
    pieces = [text, *(str(p) for p in e.problems), *(p.node or "" for p in e.problems)]
    if any(not (c.isprintable() or c == "\n") for piece in pieces for c in piece):
        return "a message that is not printable"
    if any("\n" in (p.node or "") or "\n" in p.message for p in e.problems):
        return "a message of several lines"
    return ""


def _line(text: str) -> str:
    """The last line of a traceback, which tells one defect from another."""
    return (text.strip().splitlines() or [""])[-1][:150]


def _short(text: str) -> str:
    return text if len(text) < 1000 else f"{text[:500]} ... {text[-400:]}"


def _site() -> str:
    return _short("".join(traceback.format_exc().splitlines(keepends=True)[-14:]))


def _run(bundle: Any) -> Report:
    """Load and run at small sizes."""
    from smelt.core.diag import SmeltError
    from smelt.session import load

    report = Report("ran")
    try:
        session = load(bundle, threads=1)
    except SmeltError as e:
        if e.kind == "device" and "within the bounds of its dims" in e.message:
            return Report("refused", "memory", message=_short(str(e)))
        return Report("defect", "load", message=_short(str(e)))
    for size in (2, 0):
        feed = _feed(bundle.manifest, size)
        if feed is None:
            continue
        try:
            outputs = session.run(None, feed)
        except SmeltError as e:
            if e.kind not in ("shape", "device") and "rounds, which is the limit" not in str(e):
                return Report("defect", f"run: kind {e.kind}", message=_short(str(e)))
            continue
        if sum(a.nbytes for a in outputs if isinstance(a, np.ndarray)) < 1 << 20:
            report.feeds.append(feed)
            report.outputs.append(outputs)
    session.close()
    return report


def _feed(manifest: Any, size: int) -> dict[str, Any] | None:
    """Arrays for the inputs, every unknown extent of this size; None for inputs that stand for more."""
    from smelt.core.dtype import DTYPES

    rng = np.random.default_rng(size)
    feed = {}
    if manifest.get("groups"):
        return None
    for row in manifest["inputs"]:
        shape = [n if isinstance(n, int) else size for n in row["shape"]]
        if np.prod(shape, dtype=float) > 1e6:
            return None
        if row["dtype"] not in DTYPES:
            return None  # codes of 8 bits and fewer
        dtype = DTYPES[row["dtype"]].numpy
        # small integers and, for floats, 128ths: sums of few are exact, and what is sorted is rarely a tie
        parts = rng.integers(0, 128, shape) / 128 if row["dtype"].startswith(("f", "bf")) else 0
        feed[row["name"]] = np.asarray(rng.integers(0, 3, shape) + parts).astype(dtype)
    return feed


def judged(name: str, work: Callable[[], Report], model: Callable[[], bytes] | None = None) -> Outcome:
    """The Outcome of work in a child. model: what ONNX Runtime is asked about when the work ran."""
    how, result = isolated(work, HANG)
    if how != "ok":
        return Outcome(f"{how} {result}", True, f"{name}: {how} {result}")
    report: Report = result
    if report.how == "ran" and model is not None:
        data = model()
        how, result = isolated(lambda: compared(data, report), HANG)
        return result if how == "ok" else Outcome("ran, no answer of ONNX Runtime", False, name)
    return outcome_of(name, report)


def outcome_of(name: str, report: Report) -> Outcome:
    """The Outcome of what a child saw."""
    if report.how == "defect":
        return Outcome(f"defect: {report.kind}", True, f"{name}: {report.kind}\n{report.message}")
    return Outcome(
        report.how if report.how == "ran" else f"refused: {report.kind}", False, f"{name}: {report}"
    )


RANDOM = frozenset(
    {"Dropout", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
     "Bernoulli"}
)  # fmt: skip
OF_SOME = frozenset(
    {"ArgMax", "ArgMin", "NegativeLogLikelihoodLoss", "ReduceMax", "ReduceMean", "ReduceMin",
     "SoftmaxCrossEntropyLoss"}
)  # fmt: skip
"""ONNX does not say what the mean of nothing is; ONNX Runtime gives the least and the largest of nothing the
input's shape (docs/differences.md)."""


WINDOWS = ("Pool", "Conv")


def _documented(model: onnx.ModelProto, ops: set[str], got: Array, want: Array) -> bool:
    """Differences that docs/differences.md tells: what rounds that were not run stack up, windows that do not
    fit an empty axis, a computed size of 0 in Reshape, a tie between two steps, an infinity in Clip without
    that bound, weights of infinity beside the border of a transposed convolution, infinite numbers to be
    quantised and infinite scales."""
    weights = [numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    if got.size == want.size == 0:
        return bool(ops & {"Loop", "Reshape"}) or any(w in op for op in ops for w in WINDOWS)
    if "QGemm" in ops and got.dtype.itemsize == 1 and any(np.isinf(w).any() for w in weights):
        return True
    if any("QLinear" in op for op in ops) and got.shape == want.shape and got.dtype.itemsize == 1:
        if any(np.abs(w).max(initial=0) > 2**31 for w in weights):
            return True  # scales with which numbers are too large for integers
        return int(np.abs(got.astype(np.int32) - want).max(initial=0)) == 1
    if "Clip" in ops and got.shape == want.shape and got.dtype.kind == "f":
        most = np.finfo(got.dtype).max
        whole = np.where(np.isinf(got) & (np.abs(want) == most), got, want)
        return bool((whole != want).any()) and not difference(got, whole)
    if got.shape != want.shape or got.dtype.kind != "f" or not np.isnan(got).any():
        return False
    touched = any("ConvTranspose" in op or "Quant" in op or op.startswith("Q") for op in ops)
    return touched and not all(np.isfinite(w).all() for w in weights)


def compared(data: bytes, report: Report) -> Outcome:
    """What ONNX Runtime says of a model that smelt ran: it refuses it, agrees, or does not."""
    try:
        model = onnx.ModelProto.FromString(data)
        ops = {n.op_type for n in walk(model.graph.node)}
        if ops & RANDOM:
            return Outcome("ran, random")
        oracle = plain_session(model)
    except Exception as e:
        return Outcome("ran, ONNX Runtime refuses", False, str(e)[:300])
    names = [o.name for o in model.graph.output]
    first = report.feeds[0] if report.feeds else {}
    found = Found(model, tuple(report.feeds), frozenset(n for n, a in first.items() if a.dtype.kind == "f"))
    for feed, outputs in zip(report.feeds, report.outputs, strict=True):
        try:
            wanted = oracle.run(names, feed)
        except Exception:
            return Outcome("ran, ONNX Runtime does not run it")
        if ops & OF_SOME and any(a.size == 0 for a in feed.values()):
            continue
        for name, got, want in zip(names, outputs, wanted, strict=True):
            if not isinstance(want, np.ndarray):
                continue
            if _documented(model, ops, got, want):
                continue
            text = difference(got, want)
            if (
                text
                and not unstable(found, oracle, feed, name, want, got)
                and not contested(found, feed, name, got)
            ):
                return Outcome("mismatch", True, f"output '{name}': {text}")
    return Outcome("agrees")
