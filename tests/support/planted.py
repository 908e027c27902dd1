"""A plug-in that makes one kernel wrong in the process that compiles; SMELT_PLANT says which.

SMELT_PLANT is NODE or NODE+: the kernel whose last node that is multiplies what it stores by 1.25; with a '+'
only where other nodes are fused into it, so that the node alone is compiled rightly.
"""

import os
from dataclasses import replace

from smelt.core.ir.kernel import Call, Const, Kernel, Stmt, Store
from smelt.core.ir.rewrite import map_stmts
from smelt.core.passes.lowering import lower
from smelt.plugin import OnnxOp

NODE = os.environ.get("SMELT_PLANT", "")
right = lower._kernel


def _wrong(kernel: Kernel) -> Kernel:
    outputs = {b.name: b.dtype for b in kernel.outputs}

    def spoil(s: Stmt) -> Stmt:
        if not isinstance(s, Store) or s.buffer not in outputs:
            return s
        return replace(s, value=Call("mul", (s.value, Const(1.25, outputs[s.buffer])), outputs[s.buffer]))

    return kernel.with_(body=map_stmts(kernel.body, spoil))


def planted(editor, node, simplifier):  # type: ignore[no-untyped-def]
    kernel, refs, dims = right(editor, node, simplifier)
    origins = kernel.origin.split(", ")
    wanted = NODE.rstrip("+")
    if origins[-1] == wanted and (len(origins) > 1 or not NODE.endswith("+")):
        kernel = _wrong(kernel)
    return kernel, refs, dims


lower._kernel = planted
# a plug-in has an op; nobody calls this one
BINDINGS = (OnnxOp("Planted", 1, lambda c: c.x(), "planted"),)
