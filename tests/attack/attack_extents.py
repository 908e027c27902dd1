"""Extreme extents for every op -> the right values or a SmeltError, in bounded time; the session stays
usable.

A seed draws one of ONNX's backend cases in its strict form (each axis of each input has a name of its own,
operands are run-time inputs), every third one a form of an op of com.microsoft or ai.onnx.ml, and feeds for
it from tests/support/extents.py. It is compiled and run in a
forked child whose memory and processor time are bounded. What comes out is compared with ONNX's evaluator
where that answers; after each feed the session must give what it gave for the good one before.
`make sanitize forms=extents` runs the same feeds in code that is checked load by load.
"""

from __future__ import annotations

import re
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

sys.path.append(str(Path(__file__).parents[1] / "support"))
import extents
from campaign import Outcome, main
from isolated import isolated
from other_ops import other_cases

from smelt.conformance.cases import FormCase, bucket, in_form, shipped

FEEDS = 24
ROOM = 512 << 20
"""Bytes that a run may take: what is larger is refused at once, as on a machine that is full."""
SECONDS = 60
"""Processor time of a child, compiling included."""
SPELT = frozenset({"FlexAttention", "LinearAttention", "QLinearConv", "Reshape"})
"""Ops that for no elements may leave an extent over, which may be any, take a computed 0 for "as it is", or
have a window of no elements, which fits anywhere (docs/differences.md); the evaluator has kernels of its own
for those that reshape inside."""
UNTYPED = frozenset({"Scaler"})
"""Ops to whose results the evaluator gives the input's type, not the one that ONNX says."""
MANY = re.compile(r"int64\[\]=\d{8,}")
LONGEST = 4.0
EACH, BYTE = 1e-5, 2e-7
"""Processor time of a run, and more for each part of a sequence and each byte that it gives. What the feeds
hold takes a fraction of a second, a window of pads alone half a microsecond; loops around nothing, years."""
ASKED = 1
"""Seconds that the evaluator gets for an answer."""


def attack(seed: int) -> Outcome:
    """One case with its feeds."""
    case = drawn(seed)
    names = [v.name for v in case.model.graph.input]
    feed = dict(zip(names, case.data[0][0], strict=False))
    with tempfile.TemporaryDirectory(prefix="extents-") as folder:
        (Path(folder) / "m.onnx").write_bytes(case.model.SerializeToString())
        how, found = isolated(lambda: campaign(Path(folder), feed, f"{seed}"), 10 * SECONDS)
        at = Path(folder) / "at"
        where = f"{case.name} at {at.read_text() if at.exists() else 'compiling'}"
    loops = any(n.op_type == "Loop" for n in case.model.graph.node)
    if loops and MANY.search(where) and (how != "ok" or found[0] == "slow"):
        return Outcome("a loop that is told to go on")  # up to the runtime's limit, which takes minutes
    if how != "ok":
        return Outcome(f"{how}: {found}", True, where)
    what, failed, detail = found
    return Outcome(what, failed, f"{case.name}: {detail}")


def drawn(seed: int) -> FormCase:
    """The case of a seed."""
    at = seed * 7919 + bucket(str(seed))
    if seed % 3 == 1:
        return other_cases()[at % len(other_cases())]
    return in_form(shipped()[at % len(shipped())], "strict")


def campaign(folder: Path, feed: Mapping[str, Any], seed: str, count: int = FEEDS) -> tuple[str, bool, str]:
    """(what happened, whether that is a defect, details) of feeds for the model in a folder. Bounds this
    process; what it is at stands in the file 'at'."""
    import smelt
    from smelt.compiler import compile_here
    from smelt.core.diag import SmeltError
    from smelt.driver import Request

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    warnings.simplefilter("ignore")
    source = folder / "m.onnx"
    try:
        compile_here(Request(str(source), "host", output=str(folder / "out"), runner=False, name="m"))
        session = smelt.load(folder / "out", threads=1)
        known = {a.name for a in session.get_inputs()}
        good = {n: v for n, v in feed.items() if n in known}
        before = session.run(None, good)
        draws = not _same(before, session.run(None, good))  # a random op
    except SmeltError as e:
        return f"not compiled: {e.kind}", e.kind == "internal", str(e)
    counts: dict[str, int] = {}
    for made in extents.draws(good, seed, count):
        (folder / "at").write_text(extents.text(made))
        start = time.process_time()
        try:
            with _little_memory():
                got = session.run(None, made)
            what = "answered"
        except SmeltError as e:
            got, what = None, e.kind
            if e.kind == "internal":
                return "internal", True, f"{extents.text(made)}\n{e}"
        spent = time.process_time() - start
        parts = sum(len(v) for v in got or () if isinstance(v, list))
        size = sum(a.nbytes for a in got or () if isinstance(a, np.ndarray))
        if spent > LONGEST + EACH * parts + BYTE * size:
            return "slow", True, f"{extents.text(made)}\n{spent:.1f} s of processor time, {what}"
        counts[what] = counts.get(what, 0) + 1
        if got is not None:
            wrong = _differs(source, made, got)
            if wrong:
                return "wrong", True, f"{extents.text(made)}\n{wrong}"
        if not _same(before, session.run(None, good)) and not draws:
            return "a good feed gives other values", True, extents.text(made)
    return "survived " + "/".join(sorted(counts)), False, str(counts)


@contextmanager
def _little_memory() -> Iterator[None]:
    """ROOM bytes more than this process has now."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _differs(source: Path, feed: Mapping[str, Any], got: Sequence[Any]) -> str:
    """What the evaluator has otherwise; '' where it agrees or does not answer."""
    plain = [np.asarray(a) for a in (*feed.values(), *got) if isinstance(a, np.ndarray)]
    if len(plain) < len(feed) + len(got) or sum(a.nbytes for a in plain) > 1 << 20:
        return ""
    how, wanted = isolated(lambda: _evaluated(source, feed), ASKED)
    if how != "ok" or wanted is None:
        return ""
    ops = {n.op_type for n in onnx.load(source, load_external_data=False).graph.node}
    for k, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if not isinstance(b, np.ndarray | np.generic) or b.dtype.kind in "USO":
            continue
        if a.size == b.size == 0 and a.dtype == b.dtype and ops & SPELT:
            continue
        if a.shape != b.shape or (a.dtype != b.dtype and not ops & UNTYPED):
            return f"output {k}: {a.dtype}{list(a.shape)}, ONNX's evaluator has {b.dtype}{list(b.shape)}"
    return ""


def _evaluated(source: Path, feed: Mapping[str, Any]) -> list[Any] | None:
    """None where it fails: it was not made for such feeds."""
    try:
        return list(ReferenceEvaluator(str(source)).run(None, dict(feed)))
    except Exception:
        return None


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    pairs = list(zip(a, b, strict=True))
    return all(
        x.shape == y.shape and (x.tobytes() == y.tobytes() or x.dtype == object)
        for x, y in pairs
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
    )


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or "", 200))
