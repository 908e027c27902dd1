"""One case in; its outcome out: compiled for this machine, run on the case's data, compared."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from smelt.compiler import compile_here
from smelt.conformance.cases import CaseValue, DataSet, FormCase
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.core.dtype import ALL
from smelt.devicefarm.report import RunnerError
from smelt.groups import groups, packed, unpacked
from smelt.request import Request
from smelt.running import running
from smelt.session import load
from smelt.targets.platform import host_platform_name, parse_target

Outcome: TypeAlias = Literal[
    "pass", "unsupported", "invalid", "refused", "wrong", "internal", "crash", "hang", "untested"
]
"""pass; unsupported: the compiler refuses the model as unsupported; invalid: the compiler calls a valid model
invalid; refused: the compiled model refuses the inputs; wrong: another answer; internal: any other exception;
crash: the process died; hang: the time limit passed; untested: no case, or no oracle has the answer."""
DIED: dict[str, Outcome] = {"crash": "crash", "timeout": "hang"}
"""Status of a runner -> outcome."""
BAD: tuple[Outcome, ...] = ("wrong", "internal", "crash", "hang")

RANDOM = frozenset(
    {"Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"}
)
"""Ops whose random generator ONNX does not define: only types and shapes are compared."""


@dataclass(frozen=True)
class JudgedCase:
    """The outcome of one case and the reason, in one line."""

    id: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0


def named_result(key: str, target: str) -> str:
    """The id of a case's result: the key, with 'target/' in front for another target than the host."""
    return key if target == "host" else f"{target}/{key}"


def judge(
    case: FormCase, stage: Callable[[str], None] = lambda text: None, target: str = "host"
) -> JudgedCase:
    """Compile in this process, run and compare. The run is in this process, or on the platform's emulated
    board.

    stage: called with the name of each step before it, for a parent that sees this process die.
    """
    with tempfile.TemporaryDirectory(prefix="smelt-case-") as folder:
        stage("compiling")
        source = Path(folder) / "model.onnx"
        source.write_bytes(case.model.SerializeToString())
        out = os.path.join(folder, "out")
        spec = parse_target(target)
        here = spec.platform.name == host_platform_name()
        if spec.better:
            target = str(spec.levels()[-1])  # a case runs once, on any processor
        try:
            bundle = compile_here(Request(str(source), target, output=out, name="model", runner=not here))
        except SmeltError as e:
            return JudgedCase(case.id, _kind(e), _line(e))
        except Exception as e:
            return JudgedCase(case.id, "internal", f"{_site(e)}{type(e).__name__}: {_line(e)}")
        stage("running")
        try:
            found = _run_here(bundle, case) if here else _run_there(bundle, case)
        except RunnerError as e:
            return JudgedCase(case.id, DIED.get(e.status, "refused"), _line(e))
        except SmeltError as e:
            return JudgedCase(case.id, "internal" if e.kind in ("internal", "infra") else "refused", _line(e))
        except Exception as e:
            return JudgedCase(case.id, "internal", f"{_site(e)}{type(e).__name__}: {_line(e)}")
    for outputs, (_, wanted) in zip(found, case.data, strict=True):
        why = difference(case, outputs, wanted)
        if why:
            return JudgedCase(case.id, "wrong", why)
    return JudgedCase(case.id, "pass")


def _run_here(bundle: Bundle, case: FormCase) -> list[list[CaseValue]]:
    session = load(bundle, threads=1)
    known = {a.name for a in session.get_inputs()}
    return [session.run(None, _feed(case, d, known)) for d in case.data]


def _run_there(bundle: Bundle, case: FormCase) -> list[list[CaseValue]]:
    takes, gives = groups(bundle.manifest, "inputs"), groups(bundle.manifest, "outputs")
    known, symbols = {g.name for g in takes}, bundle.manifest["symbols"]
    types = {o["name"]: ALL[o["dtype"]] for o in bundle.manifest["outputs"]}
    found = []
    with running(bundle, threads=1) as client:
        for d in case.data:
            tensors = client.run(packed(takes, _feed(case, d, known), symbols)).outputs
            # the protocol tells bytes of 8-, 4- and 2-bit formats from bytes as little as DLPack does
            typed = {n: t.view(types[n].numpy) if types[n].coded else t for n, t in tensors.items()}
            found.append(list(unpacked(gives, typed).values()))
    return found


def _feed(case: FormCase, data: DataSet, known: set[str]) -> dict[str, CaseValue]:
    names = [v.name for v in case.model.graph.input]
    return {n: v for n, v in zip(names, data[0], strict=False) if n in known}


def _kind(e: SmeltError) -> Outcome:
    kinds: dict[str, Outcome] = {"unsupported": "unsupported", "internal": "internal"}
    return kinds.get(e.kind, "invalid")


def _line(e: BaseException) -> str:
    text = e.problems[0].message if isinstance(e, SmeltError) else str(e)
    if isinstance(e, SmeltError) and len(e.problems) > 1:
        text += f" (and {len(e.problems) - 1} more)"
    return " ".join(text.split())[:300]


def _site(e: BaseException) -> str:
    """'file:line: ' of smelt's own frame that raised the exception."""
    site, tb = "", e.__traceback__
    while tb is not None:
        site = f"{Path(tb.tb_frame.f_code.co_filename).name}:{tb.tb_lineno}: "
        tb = tb.tb_next
    return site


# ---------------------------------------------------------------- comparing


def difference(case: FormCase, found: Sequence[CaseValue], wanted: Sequence[CaseValue]) -> str:
    """The first difference as text, by the rules of onnx.backend.test; '' when there is none."""
    if len(found) != len(wanted):
        return f"{len(found)} outputs, wanted {len(wanted)}"
    dropped = "Dropout" in case.ops and "training" in case.name and "zero" not in case.name
    loose = dropped or bool(RANDOM & set(case.ops))
    for k, (f, w) in enumerate(zip(found, wanted, strict=True)):
        why = _differs(f, w, case.rtol, case.atol, loose)
        if why:
            return f"output {k}: {why}"
    return ""


def _differs(found: CaseValue, wanted: CaseValue, rtol: float, atol: float, loose: bool) -> str:
    if wanted is None or found is None:
        return "" if found is wanted else f"{type(found).__name__}, wanted {type(wanted).__name__}"
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return f"a sequence of {len(found)}, wanted {len(wanted)}"
        rows = (_differs(f, w, rtol, atol, loose) for f, w in zip(found, wanted, strict=True))
        return next((r for r in rows if r), "")
    if found.shape != wanted.shape:
        return f"shape {list(found.shape)}, wanted {list(wanted.shape)}"
    if wanted.dtype.kind in "OSU":
        return "" if np.array_equal(found.astype(object), wanted.astype(object)) else "other strings"
    if found.dtype != wanted.dtype:
        return f"element type {found.dtype}, wanted {wanted.dtype}"
    return "" if loose else _numbers(found, wanted, rtol, atol)


def _numbers(found: Any, wanted: Any, rtol: float, atol: float) -> str:
    if found.dtype.kind == "V" or found.dtype.name not in np.sctypeDict:  # ml_dtypes
        if found.dtype.name == "bfloat16":
            rtol = max(rtol, 2**-6)  # as onnx.backend.test: two units in the last place
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    with np.errstate(all="ignore"):
        try:
            np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)
        except AssertionError:
            wide = np.complex128 if found.dtype.kind == "c" else np.float64
            away = np.abs(found.astype(wide) - wanted.astype(wide))
            close = np.isclose(found, wanted, rtol=rtol, atol=atol, equal_nan=True)
            at = tuple(int(i) for i in np.argwhere(~close)[0]) if not close.all() else ()
            return (
                f"{np.count_nonzero(~close)} of {close.size} elements differ, "
                f"by up to {np.nanmax(away) if away.size else 0:.3g}; "
                f"at {list(at)}: {found[at]}, wanted {wanted[at]}"
            )
    return ""
