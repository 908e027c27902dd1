"""Bindings of products: MatMul, Gemm, Einsum and their integer forms."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.core.dim import ONE, Dim, product, to_dim
from smelt.core.dtype import i32, i64
from smelt.core.ir.graph import Ref
from smelt.importer.call import Call, OnnxOp


def _matmul(c: Call) -> Ref:
    return c.emit("matmul", c.x(0), c.x(1))


def gemm_of(c: Call) -> Ref:
    """alpha * A' @ B' + beta * C."""
    for i in (0, 1):
        if c.type(i).rank != 2:
            raise c.fail(f"input {i} has rank {c.type(i).rank}, wanted 2")
    a = c.builder.transpose(c.x(0), (1, 0)) if c.flag("transA") else c.x(0)
    b = c.builder.transpose(c.x(1), (1, 0)) if c.flag("transB") else c.x(1)
    alpha, beta = c.number("alpha", 1.0), c.number("beta", 1.0)
    y = c.emit("matmul", a, b)
    if alpha != 1.0:
        y = c.emit("mul", y, c.scalar(alpha, y))
    if not c.has(2) or beta == 0.0:
        return y
    bias = c.x(2) if beta == 1.0 else c.emit("mul", c.x(2), c.scalar(beta, c.x(2)))
    return c.emit("add", y, bias)


def _matmul_integer(c: Call) -> Ref:
    """(A - a_zero) @ (B - b_zero) in i32; a's zero may be one per row, b's one per column."""
    extents = (c.shape(0)[-2] if c.type(0).rank > 1 else ONE, c.shape(1)[-1] if c.type(1).rank > 1 else ONE)
    zeros = [
        c.one_or_each(c.x(i), extent, f"zero points of input {i - 2}") if c.has(i) else ""
        for i, extent in zip((2, 3), extents, strict=True)
    ]
    if all(not z or c.builder.type_of(z).rank <= 1 for z in zeros):
        return c.emit("matmul_integer", c.x(0), c.x(1), *zeros)
    a, b = c.cast(c.x(0), i32), c.cast(c.x(1), i32)  # zero points per row or column of each matrix of a batch
    a = c.emit("sub", a, c.cast(zeros[0], i32)) if zeros[0] else a
    b = c.emit("sub", b, c.cast(zeros[1], i32)) if zeros[1] else b
    return c.emit("matmul", a, b)


# ---------------------------------------------------------------- einsum


def _einsum(c: Call) -> Ref:
    """Operands are multiplied from the left: transposes, reductions and one batched matmul per step."""
    terms, out = _equation(c)
    every = {x for t in terms for x in t}
    if len(set(out)) != len(out) or not set(out) <= every:
        raise c.fail(f"the output labels '{''.join(out)}' are not each a label of one input at least")
    ref, labels = _own(c, c.x(0), terms[0], [*terms[1:], out])
    for i in range(1, len(terms)):
        later = [*terms[i + 1 :], out]
        right, right_labels = _own(c, c.x(i), terms[i], [labels, *later])
        keep = {x for t in later for x in t}
        ref, labels = _reduced(c, ref, labels, keep | set(right_labels))
        ref, labels = _pair(c, ref, labels, right, right_labels, keep)
    ref, labels = _reduced(c, ref, labels, set(out))
    return c.builder.transpose(ref, [labels.index(x) for x in out])


def _equation(c: Call) -> tuple[list[list[str]], list[str]]:
    """Labels per operand and of the output; an ellipsis becomes the labels '0', '1', ... of its axes."""
    text = c.text("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(c.inputs):
        raise c.fail(f"equation '{text}' has {len(parts)} operands, the node has {len(c.inputs)}")
    free = [c.type(i).rank - len(p.replace("...", "")) for i, p in enumerate(parts)]
    dots = max((f for f, p in zip(free, parts, strict=True) if "..." in p), default=0)
    terms = []
    for i, p in enumerate(parts):
        own = free[i] if "..." in p else 0
        labels = _labels(c, p, [str(d) for d in range(dots - own, dots)])
        if len(labels) != c.type(i).rank:
            raise c.fail(
                f"operand {i} of '{text}' has {len(labels)} labels, the input has rank {c.type(i).rank}"
            )
        terms.append(labels)
    if arrow:
        return terms, _labels(c, right, [str(d) for d in range(dots)])
    every = [x for t in terms for x in t]
    once = sorted(x for x in set(every) if every.count(x) == 1 and not x.isdigit())
    return terms, [*(str(d) for d in range(dots)), *once]


def _labels(c: Call, text: str, dots: Sequence[str]) -> list[str]:
    head, ellipsis, tail = text.partition("...")
    if not all(x.isascii() and x.isalpha() for x in head + tail):
        raise c.fail(f"'{text}' in the equation is not made of letters")
    return [*head, *(dots if ellipsis else ()), *tail]


def _own(c: Call, ref: Ref, labels: list[str], others: Sequence[Sequence[str]]) -> tuple[Ref, list[str]]:
    """An operand with its private labels summed away."""
    while len(set(labels)) != len(labels):
        ref, labels = _diagonal(c, ref, labels)
    return _reduced(c, ref, labels, {x for t in others for x in t})


def _diagonal(c: Call, ref: Ref, labels: list[str]) -> tuple[Ref, list[str]]:
    """The elements whose positions under a repeated label agree: every n + 1st of the flattened two axes."""
    a = next(k for k, x in enumerate(labels) if labels.index(x) != k)
    first, b = labels.index(labels[a]), c.builder
    shape = b.type_of(ref).shape
    n = c.engine.same(f"label '{labels[a]}'", shape[first], shape[a])
    order = [first, a, *(k for k in range(len(labels)) if k not in (first, a))]
    flat = b.reshape(b.transpose(ref, order), (n * n, *(shape[k] for k in order[2:])))
    at = c.emit("iota", shape=(n,), start=to_dim(0), step=n + 1, dtype=i64)
    return c.emit("gather", flat, at, axis=0), [labels[k] for k in (first, *order[2:])]


def _reduced(c: Call, ref: Ref, labels: list[str], keep: set[str]) -> tuple[Ref, list[str]]:
    axes = tuple(a for a, x in enumerate(labels) if x not in keep)
    if not axes:
        return ref, labels
    return c.emit("reduce_sum", ref, axes=axes, keepdims=False), [x for x in labels if x in keep]


def _pair(
    c: Call, a: Ref, a_labels: list[str], b: Ref, b_labels: list[str], keep: set[str]
) -> tuple[Ref, list[str]]:
    """One product: labels shared and kept are batch, shared and dropped are contracted."""
    shared = [x for x in a_labels if x in b_labels]
    batch = [x for x in shared if x in keep]
    inner = [x for x in shared if x not in keep]
    rows = [x for x in a_labels if x not in shared]
    columns = [x for x in b_labels if x not in shared]
    sizes = _sizes(c, a, a_labels) | _sizes(c, b, b_labels)
    for x in shared:
        da, db = _sizes(c, a, a_labels)[x], _sizes(c, b, b_labels)[x]
        if ONE in (da, db) and da != db:  # only an ellipsis may broadcast
            sizes[x] = db if da == ONE else da
            if x in inner:
                raise c.unsupported("a contracted label that broadcasts")
            continue
        sizes[x] = c.engine.same(f"label '{x}'", da, db)
    left = _arranged(c, a, a_labels, batch, rows, inner)
    right = _arranged(c, b, b_labels, batch, inner, columns)
    # 8-bit integers are multiplied into i32
    y = c.cast(c.emit("matmul", left, right), c.builder.type_of(a).dtype)
    labels = [*batch, *rows, *columns]
    return c.builder.reshape(y, [sizes[x] for x in labels]), labels


def _sizes(c: Call, ref: Ref, labels: Sequence[str]) -> dict[str, Dim]:
    return dict(zip(labels, c.builder.type_of(ref).shape, strict=True))


def _arranged(
    c: Call,
    ref: Ref,
    labels: Sequence[str],
    batch: Sequence[str],
    rows: Sequence[str],
    columns: Sequence[str],
) -> Ref:
    """[*batch, product of rows, product of columns]."""
    order = [*batch, *rows, *columns]
    sizes = _sizes(c, ref, labels)
    y = c.builder.transpose(ref, [labels.index(x) for x in order])
    shape = [*(sizes[x] for x in batch), product(sizes[x] for x in rows), product(sizes[x] for x in columns)]
    return c.builder.reshape(y, shape)


ROWS: tuple[OnnxOp, ...] = (
    OnnxOp("MatMul", 1, _matmul),
    OnnxOp("Gemm", 1, gemm_of),
    OnnxOp("MatMulInteger", 10, _matmul_integer),
    OnnxOp("Einsum", 12, _einsum),
)
