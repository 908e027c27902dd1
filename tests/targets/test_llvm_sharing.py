"""Kernels that differ in numbers share code and compute what they did; others stay apart."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import smelt
from smelt.core.ir.interp_kernel import run_kernel
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.text import parse_kernel
from smelt.core.schedule import schedule_kernel
from smelt.size import sizes
from smelt.targets.elf import code_of
from smelt.targets.llvm.emit import emit_kernel, emit_shared
from smelt.targets.llvm.jit import jit_text
from smelt.targets.llvm.machines import cpu_for, host
from smelt.targets.llvm.sharing import share_code

TEXT = """
kernel @{name}(n: dim in 0..*, x: f32[n, 24]) -> (y: f32[n, 24]) {{
  serial i0 in n {{ serial i1 in 24 {{ y[i0, i1] = {value} }} }}
}}
"""
QUANTISED = "select(gt(x[i0, i1] / {s}:f32, 0.0:f32 - cast:f32({z}:u8)), x[i0, i1] / {s}:f32, {c}:f32)"
X = np.random.default_rng(0).standard_normal((7, 24)).astype(np.float32)


def kernel(name: str, value: str) -> Kernel:
    return schedule_kernel(parse_kernel(TEXT.format(name=name, value=value)), host().machine)


def test_each_kernel_computes_with_its_own() -> None:
    rows = [(0.3, 130, 1.5), (0.7, 7, -3.0), (5.1, 255, 0.1)]
    kernels = [
        kernel(f"k{n}", QUANTISED.format(s=s, z=z, c=c)) for n, (s, z, c) in enumerate(rows)
    ]
    (group,) = share_code(kernels)
    text = emit_shared(group, host()).module(host())
    assert group.names == ("k0", "k1", "k2")
    assert text.count("define internal") == 1
    assert text.count(" fdiv ") == emit_kernel(kernels[0], host()).module(host()).count(" fdiv ")
    for k in kernels:
        x = X.reshape([d.evaluate({"n": 7}) for d in k.inputs[0].shape])
        (got,) = jit_text(k, text, host())([x], {"n": 7})
        (want,) = run_kernel(k, {"n": 7}, [x])
        assert got.tobytes() == want.tobytes()


def test_what_is_equal_in_all_stays_a_literal_and_is_one_value() -> None:
    same = "x[i0, i1] / {s}:f32 + x[i0, i1] / {s}:f32 * 0.3:f32"
    (group,) = share_code([kernel("a", same.format(s=0.3)), kernel("b", same.format(s=0.7))])
    text = emit_shared(group, host()).module(host())
    (head,) = re.findall("define internal.*", text)
    assert head.count("float %c") == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x[i0, i1] / 0.3:f32", "x[i0, i1] / 0.5:f32"),  # a product in LLVM
        ("x[i0, i1] * 0.3:f32", "x[i0, i1] * -1.0:f32"),
        ("x[i0, i1] + 0.3:f32", "x[i0, i1] + 0.0:f32"),
        ("x[i0, i1] + 0.0:f32", "x[i0, i1] + -0.0:f32"),
        ("max(x[i0, i1], 0.3:f32)", "max(x[i0, i1], 0.7:f32)"),  # tested for NaN but for literals
        ("pow(x[i0, i1], 3.0:f32)", "pow(x[i0, i1], 0.3:f32)"),
        ("x[i0, i1] + 0.3:f32", "x[i0, i1] + inf:f32"),
        ("x[i0, i1] + 0.3:f32", "x[i0, i1] - 0.3:f32"),
    ],
)
def test_kept_apart(one: str, other: str) -> None:
    groups = share_code([kernel("a", one), kernel("b", other)])
    assert [g.names for g in groups] == [("a",), ("b",)]
    assert [g.values for g in groups] == [((),), ((),)]


def test_the_same_text_whatever_is_beside_it() -> None:
    """A kernel that has no like is compiled as if there were no others; groups are in order."""
    a, b, c = (kernel(n, f"x[i0, i1] + {v}:f32") for n, v in (("a", 0.3), ("b", 0.7), ("c", 0.1)))
    other = kernel("other", "exp(x[i0, i1])")
    found = share_code([a, other, b, c])
    assert [g.names for g in found] == [("a", "b", "c"), ("other",)]
    assert found[1].kernel is other


def test_on_a_machine_with_other_addresses() -> None:
    cpu = cpu_for("armv7-unknown-linux-gnueabihf", "cortex-a7", "+neon,+vfp4")
    (group,) = share_code([kernel("a", "x[i0, i1] + 0.3:f32"), kernel("b", "x[i0, i1] + 0.7:f32")])
    assert emit_shared(group, cpu).module(cpu).count("define void") == 2


def test_a_model_of_layers_that_differ_in_a_number(tmp_path: Path) -> None:
    """Each keeps its kernel in the manifest, its nodes, and its result."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 5] x) => (float[n, 5] y)'
        " <float a = {0.3}, float b = {0.7}, float c = {1.3}> {"
        " p1 = MatMul(x, w)  s1 = Sub(p1, a)  p2 = MatMul(s1, w)  s2 = Sub(p2, b)"
        " p3 = MatMul(s2, w)  y = Sub(p3, c) }"
    )
    weights = np.random.default_rng(1).standard_normal((5, 5)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    bundle = smelt.compile(model, output=tmp_path / "out")
    names = [k["name"] for k in bundle.manifest["kernels"]]
    assert len(names) == len(set(names)) == 3
    library = (bundle.path / str(bundle.manifest["library"]["file"])).read_bytes()
    found = [n for n in code_of(library).names if n.startswith("shared.")]
    assert len(found) == 1 and sizes(bundle).kernels[0][0] in names
    want = X[:, :5].astype(np.float64)
    for number in (0.3, 0.7, 1.3):
        want = want @ weights - number
    (got,) = smelt.load(bundle).run(None, {"x": X[:, :5]})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
