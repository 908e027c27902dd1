"""Nodes with arrays in; what each way of computing them gives out: folded, compiled, by the formulas' own
interpreter, by ONNX's evaluator and by ONNX Runtime."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper
from op_nodes import BFLOAT16, VERSION, Case
from op_values import Array, kind
from oracle import plain_session

from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.core.dtype import finfo
from smelt.core.ir.interp_graph import run_module
from smelt.core.machine import Machine
from smelt.core.ops import OPS
from smelt.core.passes.context import Context, Options
from smelt.core.passes.pipeline import run as run_passes
from smelt.core.subnormals import flushed
from smelt.driver import Request
from smelt.importer import import_model
from smelt.session import load

T = TypeVar("T")
HALVES = (np.dtype(np.float16), BFLOAT16)


@dataclass(frozen=True)
class Ways:
    """The outputs of one node by each way; None where a way has none. refused: why smelt does not take it."""

    case: Case
    folded: list[Array] | None = None
    compiled: list[Array] | None = None
    formula: list[Array] | None = None
    evaluator: list[Array] | None = None
    runtime: list[Array] | None = None
    wide: list[Array] | None = None  # 16-bit floats: by ONNX Runtime in f32, or ONNX's evaluator
    refused: str = ""
    keep: bool = True  # subnormal numbers, everywhere


def model_of(cases: Sequence[Case], constant: bool) -> onnx.ModelProto:
    """One model of all the nodes, their inputs initialisers or run-time inputs of symbolic extents."""
    nodes, inputs, held, outputs = [], [], [], []
    for n, c in enumerate(cases):
        names = ["" if a is None else f"x{n}_{i}" for i, a in enumerate(c.arrays)]
        results = [r and f"{r}_{n}" for r in c.results]
        nodes.append(helper.make_node(c.op, names, results, name=f"node{n}", domain=c.domain, **c.attrs))
        outputs += [onnx.ValueInfoProto(name=r) for r in results if r]
        for i, a in enumerate(c.arrays):
            if a is None:
                continue
            if constant or i in c.fixed:
                held.append(numpy_helper.from_array(a, names[i]))
            else:
                code = helper.np_dtype_to_tensor_dtype(a.dtype)
                inputs.append(helper.make_tensor_value_info(names[i], code, a.shape))
    g = helper.make_graph(nodes, "g", inputs, outputs, held)
    versions = {"": VERSION} | {c.domain: c.version for c in cases}
    sets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(g, opset_imports=sets, ir_version=10)


def feed_of(cases: Sequence[Case]) -> dict[str, Array]:
    """The run-time inputs of that model."""
    return {
        f"x{n}_{i}": a
        for n, c in enumerate(cases)
        for i, a in enumerate(c.arrays)
        if a is not None and i not in c.fixed
    }


def by_all(cases: Sequence[Case], keep: bool = True) -> list[Ways]:
    """Every way for each node; smelt compiles all that it takes of a version as one model. keep: subnormal
    numbers, in all of them; else none of them is among the operands, since an operation may take those for
    what they are, or for 0."""
    cases = cases if keep else [replace(c, arrays=tuple(map(_zeroed, c.arrays))) for c in cases]

    def under(way: Callable[..., T], *given: Any) -> T:
        with flushed(not keep):
            return way(*given)

    folded = [under(_folded, c) for c in cases]
    compiled: dict[int, list[Array]] = {}
    formulas: dict[int, list[Array]] = {}
    for version in sorted({(c.domain, c.version) for c in cases}):
        taken = [n for n, f in enumerate(folded)
                 if not isinstance(f, str) and (cases[n].domain, cases[n].version) == version]  # fmt: skip
        if some := [cases[n] for n in taken]:
            compiled |= zip(taken, _compiled(some, keep), strict=True)
            formulas |= zip(taken, under(_formulas, some), strict=True)
    found = []
    for n, c in enumerate(cases):
        own = folded[n]
        if isinstance(own, str):
            found.append(Ways(c, refused=own))
            continue
        wide = in_floats(c)
        others = (
            under(by_evaluator, c),
            under(by_runtime, c),
            None if wide is None else under(by_runtime, wide) or under(by_evaluator, wide),
        )
        found.append(Ways(c, own, compiled[n], formulas[n], *others, keep=keep))
    return found


def _zeroed(a: Array | None) -> Array | None:
    if a is None or kind(a.dtype) != "f":
        return a
    with np.errstate(all="ignore"):
        return np.where(np.abs(a) < finfo(a.dtype).tiny, a * a.dtype.type(0), a).astype(a.dtype)


def in_floats(c: Case) -> Case | None:
    """The node with f32 in the place of 16-bit floats; None where there are none, or where it names types."""
    if c.op in ("Cast", "CastLike") or not any(a is not None and a.dtype in HALVES for a in c.arrays):
        return None
    arrays = tuple(a.astype(np.float32) if a is not None and a.dtype in HALVES else a for a in c.arrays)
    return replace(c, arrays=arrays)


def _folded(c: Case) -> list[Array] | str:
    """By the references of the op table, as constants are folded; or why smelt refuses the node, constant or
    not."""
    try:
        import_model(model_of([c], False))
        return list(run_module(import_model(model_of([c], True)), {}, OPS))
    except SmeltError as e:
        if e.kind == "internal":
            raise
        return f"{e.kind}: {e.message}"


def _compiled(cases: Sequence[Case], keep: bool) -> list[list[Array]]:
    with tempfile.TemporaryDirectory(prefix="smelt-ops-") as folder:
        source = Path(folder) / "m.onnx"
        source.write_bytes(model_of(cases, False).SerializeToString())
        asked = Request(
            str(source), "host", output=str(Path(folder) / "out"), runner=False, keep_subnormals=keep
        )
        session = load(compile_here(asked), threads=1)
        found = _split(cases, [np.array(y) for y in session.run(None, feed_of(cases))])
        session.close()
    return found


def _formulas(cases: Sequence[Case]) -> list[list[Array]]:
    """Each op lowered by itself and interpreted."""
    module = import_model(model_of(cases, False))
    ctx = Context(Machine("none", 128, 16), Options(level=0))
    return _split(cases, run_module(run_passes(module, ctx), feed_of(cases), OPS))


def _split(cases: Sequence[Case], found: Sequence[Array]) -> list[list[Array]]:
    rest, made = list(found), []
    for c in cases:
        count = sum(map(bool, c.results))
        made.append(rest[:count])
        del rest[:count]
    return made


def by_evaluator(c: Case) -> list[Array] | None:
    """What onnx.reference says, or the node's own formula; None when it cannot."""
    from onnx.reference import ReferenceEvaluator

    if c.wanted is not None:
        return [np.asarray(y) for y in c.wanted(*c.arrays)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return _arrays(ReferenceEvaluator(model_of([c], False)).run(None, feed_of([c])))
        except Exception:  # whatever an evaluator of another project raises: it has no answer
            return None


def by_runtime(c: Case) -> list[Array] | None:
    """What ONNX Runtime says without its optimiser; None when it cannot."""
    if any(a is not None and a.dtype.kind not in "fiub" for a in c.arrays):
        return None  # it takes no such arrays from NumPy
    if c.op in ("Div", "Mod") and _lowest_by_minus_one(c):
        return None  # the processor's trap ends the process
    try:
        return _arrays(plain_session(model_of([c], False)).run(None, feed_of([c])))
    except Exception:  # as above
        return None


def _lowest_by_minus_one(c: Case) -> bool:
    a, b = c.arrays[:2]
    assert a is not None and b is not None
    if a.dtype.kind != "i":
        return False
    return bool((a == np.iinfo(a.dtype).min).any() and (b == -1).any())


def _arrays(found: Any) -> list[Array] | None:
    return [np.asarray(y) for y in found] if all(y is not None for y in found) else None
