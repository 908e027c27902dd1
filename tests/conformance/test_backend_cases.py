"""Seven in a hundred of ONNX's backend cases, each in one form, and samples of the sweeps and of other
targets, all chosen by hash, against the known failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from boards import need_qemu, needs_vulkan
from onnx import helper
from opencl_run import context

from smelt.conformance.cases import FORMS, FormCase, bucket, in_form, shipped
from smelt.conformance.judge import BAD, JudgedCase, Outcome, difference, judge
from smelt.conformance.keys import SWEEPS, every
from smelt.conformance.pool import run
from smelt.conformance.report import failures_text, known, unexpected

KNOWN = Path(__file__).parents[1] / "known_failures.txt"
SLOWEST = 60.0


def test_sample() -> None:
    """Nothing fails that is not listed, nothing listed passes. Of an op's expansion, which is of other ops,
    two: tests/importer has each."""
    names = [s.name for s in shipped() if bucket(s.name) < (2 if "_expanded" in s.name else 7)]
    wanted = [in_one_form(n) for n in names]
    assert len(wanted) > 100
    nothing_new(wanted)


def in_one_form(name: str) -> str:
    return f"{FORMS[bucket(f'form of {name}') % len(FORMS)]}:{name}"


def nothing_new(wanted: Sequence[str], target: str = "host") -> None:
    """Nothing fails that is not listed, nothing listed passes."""
    worse, better = unexpected(run(wanted, jobs=2, limit=SLOWEST, target=target), known(KNOWN))
    assert not worse
    assert not better, "take them off tests/known_failures.txt"


def test_sample_of_types_and_opsets() -> None:
    wanted = [k for k in every(SWEEPS) if bucket(k) < 1]
    assert len(wanted) > 25
    nothing_new(wanted)


def test_sample_under_emulation() -> None:
    need_qemu("qemu-aarch64-static", "qemu-aarch64")
    wanted = [in_one_form(s.name) for s in shipped() if bucket(f"arm64 {s.name}") < 1]
    assert len(wanted) > 10
    nothing_new(wanted, "arm64")


def test_sample_with_opencl() -> None:
    context()  # skips where there is no device
    wanted = [in_one_form(s.name) for s in shipped() if bucket(f"opencl {s.name}") < 1]
    assert len(wanted) > 8
    nothing_new(wanted[::3], "x86+opencl")  # the device's own compiler takes a second for each


@needs_vulkan
def test_sample_with_vulkan() -> None:
    wanted = [in_one_form(s.name) for s in shipped() if bucket(f"vulkan {s.name}") < 1]
    assert len(wanted) > 8
    nothing_new(wanted[::3], "x86+vulkan")


def test_the_list_names_cases() -> None:
    ids = {k.split("/", 1)[-1] for k in known(KNOWN)}
    assert ids <= set(every((*FORMS, *SWEEPS)))


def test_forms() -> None:
    conv = next(s for s in shipped() if s.name == "test_basic_conv_with_padding")
    static, dynamic, strict = (in_form(conv, f) for f in FORMS)
    assert [d.dim_value for d in static.model.graph.input[0].type.tensor_type.shape.dim] == [1, 1, 5, 5]
    assert [v.name for v in dynamic.model.graph.input] == ["x"]
    assert [t.name for t in dynamic.model.graph.initializer] == ["W"]
    shape = dynamic.model.graph.input[0].type.tensor_type.shape
    assert [d.dim_param for d in shape.dim] == ["", "", "d5", "d5"]
    assert len(dynamic.data[0][0]) == 1
    shape = strict.model.graph.input[1].type.tensor_type.shape
    assert [d.dim_param for d in shape.dim] == ["W_0", "W_1", "W_2", "W_3"]
    assert len(strict.data[0][0]) == 2


def small(op: str, wanted: np.ndarray[Any, Any]) -> FormCase:
    x = np.array([-1.0, 2.0], np.float32)
    node = helper.make_node(op, ["x"], ["y"])
    types = [helper.make_tensor_value_info(n, 1, [2]) for n in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", types[:1], types[1:]))
    model.opset_import[0].version = onnx.defs.onnx_opset_version()
    return FormCase("test_small", "static", (op,), model, (((x,), (wanted,)),), 1e-3, 1e-7)


def test_wrong_answers_are_seen() -> None:
    assert judge(small("Relu", np.array([0, 2], np.float32))).outcome == "pass"
    off = judge(small("Relu", np.array([0, 2.01], np.float32)))
    assert off.outcome == "wrong" and "1 of 2 elements differ" in off.reason
    assert judge(small("Relu", np.array([0, 2], np.float64))).outcome == "wrong"
    assert judge(small("Relu", np.array([[0, 2]], np.float32))).outcome == "wrong"
    assert judge(small("NoSuchOp", np.array([0, 2], np.float32))).outcome in ("unsupported", "invalid")


def test_nan_must_be_nan() -> None:
    case = small("Relu", np.zeros(2, np.float32))
    one, nan = np.array([1, 2], np.float32), np.array([1, np.nan], np.float32)
    assert difference(case, [nan], [nan]) == ""
    assert difference(case, [one], [nan]) and difference(case, [nan], [one])


def test_bad_outcomes_outrank_refusals() -> None:
    listed: dict[str, tuple[Outcome, str]] = {
        "static:a": ("unsupported", ""),
        "static:b": ("wrong", ""),
    }
    rows = [JudgedCase("static:a", "crash"), JudgedCase("static:b", "wrong"), JudgedCase("static:c", "pass")]
    assert [w.split(":")[1] for w in unexpected(rows, listed)[0]] == ["a"]
    assert "crash" in BAD


def test_what_is_listed_by_hand_stays_and_may_pass() -> None:
    """Whether an answer that is nearer than ONNX's is within the tolerance depends on the processor."""
    listed: dict[str, tuple[Outcome, str]] = {
        "strict:a": ("wrong", "because ours is nearer"),
        "strict:b": ("wrong", "output 0 differs"),
    }
    rows = [JudgedCase("strict:a", "pass"), JudgedCase("strict:b", "pass")]
    assert unexpected(rows, listed) == ([], ["strict:b"])
    text = failures_text(rows, listed)
    assert "strict:a wrong because ours is nearer" in text and "strict:b" not in text
    assert "strict:a crash" in failures_text([JudgedCase("strict:a", "crash")], listed)
