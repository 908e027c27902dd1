"""Graph -> Graph: matrix products that a BLAS could do become calls of it, when the user wants libraries."""

from __future__ import annotations

from types import MappingProxyType

from smelt.core.dim import Dim, product, to_dim
from smelt.core.dtype import f32
from smelt.core.ir.graph import Attr, Library, Module, Node
from smelt.core.passes.context import Context
from smelt.core.passes.rewriting.constants import is_one
from smelt.core.passes.rewriting.editor import Editor, edit_module

FILES = ("libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libmkl_rt.so")
SGEMM = Library("cblas_sgemm", FILES, "sgemm")


def libraries(module: Module, ctx: Context) -> Module:
    """With ctx.options.libraries: f32 products of a tensor with one matrix become
    call_library cblas_sgemm(a, b) {dims = (m, n, k)}, which computes c[m, n] = a[m, k] * b[k, n], row-major.
    Without the option the module as it is."""
    if not ctx.options.libraries:
        return module
    made = edit_module(module, _sgemm)
    used = any(n.op == "call_library" for g in made.graphs.values() for n in g.walk())
    return made.with_(libraries={**made.libraries, SGEMM.name: SGEMM}) if used else made


def _sgemm(editor: Editor) -> None:
    for key in editor.in_order():
        node = editor.nodes[key]
        sizes = _sizes(editor, node) if node.op == "matmul" else None
        if sizes is None:
            continue
        attrs: dict[str, Attr] = {"library": SGEMM.name, "dims": sizes}
        call = Node(
            "call_library", node.inputs, node.outputs, MappingProxyType(attrs), origin=node.origin
        )
        editor.set_node(key, call)


def _sizes(editor: Editor, node: Node) -> tuple[Dim, Dim, Dim] | None:
    """(m, n, k) of a product that is one GEMM: the right operand is one matrix, the rows of the left one
    follow each other."""
    a, b = (editor.type_of(r) for r in node.inputs)
    if a.dtype != f32 or a.rank < 2 or b.rank < 2 or not all(is_one(d) for d in b.shape[:-2]):
        return None
    if b.rank > a.rank:
        return None
    return product(a.shape[:-1]) if a.rank > 1 else to_dim(1), b.shape[-1], a.shape[-1]
