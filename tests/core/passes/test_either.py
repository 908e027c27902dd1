"""A value computed in one of two ways by a size that only a run knows: each way where it is right."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.core.dim import sym
from smelt.core.dtype import i8, i32, u8
from smelt.core.ir.verify import verify
from smelt.core.ops.accumulate import most_terms, reach
from smelt.core.passes.manager import run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.passes.rewriting.editor import Editor
from smelt.core.passes.rewriting.either import either_by_size
from tests.core.passes.build import CONTEXT, Build, run


@pytest.mark.parametrize("terms", [3, 33_025, 33_026, 70_000])
def test_a_product_of_bytes_is_right_on_both_sides_of_its_limit(terms: int) -> None:
    b = Build("u8[2, K]", "u8[K, 1]")
    x, w = b.inputs
    most = most_terms(reach(u8, 0), reach(u8, 0))
    assert most == 33_025

    def whole(g: Editor) -> str:
        turned = g.emit("bit_xor", (w, g.constant(np.array(128, np.uint8))))
        products = g.emit("matmul", (x, g.emit("cast", (turned,), {"to": i8})))
        ones = g.constant(np.array(1.0, np.float32))
        wide = g.emit("cast", (x,), {"to": i32})
        rows = g.emit("reduce_sum", (wide,), {"axes": (1,), "keepdims": True})
        total = g.emit("add", (products, g.emit("mul", (rows, g.like(128, rows)))))
        return g.emit("dequantize", (total, ones), {"axis": -1})

    def floats(g: Editor) -> str:
        one = g.constant(np.array(1.0, np.float32))
        return g.emit("matmul", [g.emit("dequantize", (r, one), {"axis": -1}) for r in (x, w)])

    like = b("matmul", *(b("dequantize", r, b.weight(1.0), axis=-1) for r in (x, w)))
    y = either_by_size(b.g, sym("K"), most, b.g.type_of(like), whole, floats)
    module = b.done(y)
    verify(run_pipeline(module, PIPELINE, CONTEXT), "lowered")
    inputs = {"x0": np.full((2, terms), 255, np.uint8), "x1": np.full((terms, 1), 255, np.uint8)}
    (found,) = run(module, inputs)
    np.testing.assert_allclose(found, np.full((2, 1), 255.0 * 255.0 * terms), rtol=1e-6)
    assert {n.op for n in module.main.nodes} == {"from_dims", "less_equal", "if"}
