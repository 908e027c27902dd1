"""A key in, the result of its case out: 'form:case', 'dtype:operator:...' or 'opset:operator:version'.

A derived case is judged with symbolic extents; where that is refused, with its extents as they are, and then
the result's reason begins with 'static only'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from smelt.conformance import dtypes, opsets
from smelt.conformance.cases import FORMS, Form, Shipped, in_form, shipped
from smelt.conformance.judge import JudgedCase, judge, named_result
from smelt.conformance.oracle import evaluator, runtime

SWEEPS = ("dtype", "opset")
STATIC_ONLY = "static only: "

OnStage = Callable[[str], None]


def every(kinds: Sequence[str] = FORMS) -> list[str]:
    """All keys of these kinds: forms, and the sweeps dtype and opset."""
    found: list[str] = []
    for kind in kinds:
        found += _KEYS[kind](kind)
    return found


def judge_key(key: str, stage: OnStage = lambda text: None, target: str = "host") -> JudgedCase:
    """Judge the case of a key; the result's id is the key, on another target 'target/key'."""
    kind, rest = key.split(":", 1)
    result = _form(kind, rest, stage, target) if kind in FORMS else _derived(key, stage, target)
    return replace(result, id=named_result(key, target))


def _form(form: str, name: str, stage: OnStage, target: str) -> JudgedCase:
    kind = next(f for f in FORMS if f == form)
    return judge(in_form(_by_name()[name], kind), stage, target)


def _derived(key: str, stage: OnStage, target: str) -> JudgedCase:
    stage("deriving the case")
    case = derived(key)
    if isinstance(case, str):
        return JudgedCase(key, "untested", case)
    result = _judged(case, "dynamic", stage, target)
    if result.outcome == "unsupported":
        static = _judged(case, "static", stage, target)
        if static.outcome == "pass":
            return replace(static, reason=STATIC_ONLY + result.reason)
        result = static
    return result


def derived(key: str) -> Shipped | str:
    """The case of a 'dtype:' or 'opset:' key, or the reason why there is none."""
    kind, op, *rest = key.split(":")
    if kind == "dtype":
        return dtypes.in_dtype(op, rest[0], rest[1])
    return opsets.at_opset(op, int(rest[0]))


def _judged(case: Shipped, form: Form, stage: OnStage, target: str) -> JudgedCase:
    """Judge by the first oracle's answer; where smelt differs, by the other oracle's."""
    result = judge(in_form(case, form), stage, target)
    if result.outcome == "wrong":
        for oracle in (runtime, evaluator):
            other = dtypes.answered(case, (oracle,))
            if other is not None and judge(in_form(other, form), stage, target).outcome == "pass":
                return replace(result, outcome="pass", reason="")
    return result


@cache
def _by_name() -> dict[str, Shipped]:
    return {s.name: s for s in shipped()}


def _shipped_keys(form: str) -> Iterable[str]:
    return [f"{form}:{s.name}" for s in shipped()]


_KEYS: dict[str, Callable[[str], Iterable[str]]] = {
    **dict.fromkeys(FORMS, _shipped_keys),
    "dtype": lambda kind: dtypes.keys(),
    "opset": lambda kind: opsets.keys(),
}
