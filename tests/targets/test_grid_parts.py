"""What devices' emitters make of a kernel follows from its text, whichever of its parts are one object."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from smelt.core.ir.alike import alike
from smelt.core.ir.kernel import Kernel
from smelt.core.ir.rewrite import map_stmt_exprs
from smelt.core.ir.text import parse_kernel
from smelt.core.ir.text_print import print_kernel
from smelt.targets.opencl.emit import emit_program
from smelt.targets.vulkan.emit import emit_parts as vulkan_parts

PART = "(x[i, j] - (max k in n { x[i, k] }))"
TEXT = f"""kernel @k(m: dim in 0..*, n: dim in 0..*, x: f32[m, n]) -> (y: f32[m, n], z: f32[m, n])
{{ serial i in m {{ serial j in n {{
  y[i, j] = {PART} * exp({PART})
  z[i, j] = {PART} + x[i, j]
}} }} }}"""

EMITTERS: dict[str, Callable[[Kernel], object]] = {
    "opencl": lambda k: emit_program([k])[0],
    "vulkan": lambda k: [repr(p) for p in vulkan_parts([k]).values()],
}


@pytest.mark.parametrize("name", EMITTERS)
def test_the_same_text_the_same_code(name: str) -> None:
    apart = parse_kernel(TEXT)
    one = alike()
    shared = apart.with_(body=tuple(map_stmt_exprs(s, one) for s in apart.body))
    assert print_kernel(shared) == print_kernel(apart)
    assert EMITTERS[name](shared) == EMITTERS[name](apart)
