"""Each rule of fusion by a program on which it decides; kernels that reductions along the same rows share."""

from __future__ import annotations

import ast
from dataclasses import replace

import numpy as np
import pytest
from rule_forms import build

from smelt.core.ir.graph import Module
from smelt.core.ir.kernel import Reduce, Store, walk, walk_expr
from smelt.core.machine import Machine
from smelt.core.passes.context import Context, Options
from smelt.core.passes.lowering.fuse import explain, fuse
from smelt.core.passes.lowering.fusion_rules import LATE_OBJECTIONS, OBJECTIONS, PERMISSIONS
from smelt.core.passes.manager import pick, run_pipeline
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.schedule import schedule_module
from smelt.targets.instructions import nvidia
from tests.core.passes.build import CONTEXT, assert_same, feeds

LANES = replace(CONTEXT, machine=Machine("lanes", 0, 64, levels=("group", "lane"), max_lanes=64))
STEP = replace(CONTEXT, machine=Machine(
    "step", 0, 64, levels=("group", "lane"), max_lanes=16, shared_bytes=16 << 10, subgroup=4))  # fmt: skip
SMALL = replace(CONTEXT, options=Options(fuse_nodes=2))
TEN = replace(CONTEXT, options=Options(fuse_size=10))
MANY = "; ".join(f"x{k}: f32[N, 4]" for k in range(26))
SUM = "y0 = neg(x0); " + "; ".join(f"y{k} = add(y{k - 1}, x{k})" for k in range(1, 26))
BY_TWO = (
    'shape=({shape}), scales=({scales}), scale_at=None, roi_at=None, mode="linear", nearest_mode="floor", '
    'coordinate_mode="half_pixel", cubic_coeff=-0.75, exclude_outside=False, extrapolation=0.0, roi=None'
).format(shape="N, 8, 12, 16", scales="1.0, 2.0, 2.0, 1.0")
PLANES, PIXELS = "x: f32[N, 16, 4, 6]; ", "x: f32[N, 4, 6, 16]; "
HEADS = "x: f32[8, N, 16]; v: f32[8, 16, 4]; "
QUERIES = "q: f32[8, N, 16]; k: f32[8, 16, H]; v: f32[8, H, 4]; "
ROWS = "s = reduce_sum(x, axes=(1,), keepdims=True); "


def module(form: str) -> Module:
    """The module of a program in one line (rule_forms.py)."""
    return build(ast.parse(form))


# the rule, a program on which it decides, the producer that comes in or stays out, on which machine
DECISIONS: tuple[tuple[str, str, str, Context], ...] = (
    ("epilogue", "x: f32[N, 4]; w: f32[4, M]; relu(matmul(x, w))", "in matmul", CONTEXT),
    ("rows", f"x: f32[N, 64]; {ROWS}div(x, s)", "in reduce_sum", CONTEXT),
    ("row factor", f"{HEADS}matmul(softmax(x, axis=2), v)", "in softmax", CONTEXT),
    ("row operand", f"{QUERIES}matmul(softmax(mul(matmul(q, k), 0.5), axis=2), v)", "in mul", CONTEXT),
    (
        "row operand", f"{QUERIES}m: f32[N, H]; matmul(softmax(add(matmul(q, k), m), axis=2), v)",
        "in add", CONTEXT,
    ),
    (
        "row operand",
        f"{QUERIES}matmul(softmax(mul(tanh(div(matmul(q, k), 9.0)), 9.0), axis=2), v)", "in mul", CONTEXT,
    ),
    # no keys, and no rows
    ("row operand", f"{QUERIES}p = softmax(matmul(q, k), axis=2); matmul(where(isnan(p), 0.0, p), v)",
     "in matmul", CONTEXT),
    # others read the scores; a factor of theirs is a product itself
    ("needed", f"{QUERIES}s = matmul(q, k); (matmul(softmax(s, axis=2), v), s)", "out matmul", CONTEXT),
    ("no factor", f"{QUERIES}j: f32[8, H, H]; matmul(softmax(matmul(matmul(q, k), j), axis=2), v)",
     "out matmul", CONTEXT),
    ("lanes", f"{QUERIES}matmul(softmax(matmul(q, k), axis=2), v)", "out softmax", LANES),
    # lanes in step make rows block by block, however few there are, but softmaxes alone
    ("row operand", f"{QUERIES}matmul(softmax(matmul(q, k), axis=2), v)", "in matmul", STEP),
    ("row factor", f"{HEADS}matmul(softmax(x, axis=2), v)", "in softmax", STEP),
    ("lanes", f"{HEADS}matmul(log_softmax(x, axis=2), v)", "out log_softmax", STEP),
    ("operand", "x: f32[4, N]; w: f32[4, M]; matmul(transpose(x, perm=(1, 0)), w)", "in transpose", CONTEXT),
    ("prologue", "x: f32[N, 64]; reduce_sum(exp(x), axes=(1,), keepdims=True)", "in exp", CONTEXT),
    ("element", "x: f32[N, 4]; relu(exp(x))", "in exp", CONTEXT),
    (
        "order",
        "x: f32[4, N]; w: f32[4, M]; matmul(transpose(exp(x), perm=(1, 0)), w)",
        "out transpose", CONTEXT,
    ),
    # windows read neighbours, and so does what looks up several elements
    (
        "order",
        "x: f32[N, 16, 6, 8]; max_pool(transpose(x, perm=(0, 2, 3, 1)), kernel=(2, 2), channels_last=True)",
        "out transpose", CONTEXT,
    ),
    ("order", f"{PLANES}resize(transpose(x, perm=(0, 2, 3, 1)), {BY_TWO})", "out transpose", CONTEXT),
    ("order", f"{PIXELS}transpose(resize(x, {BY_TWO}), perm=(0, 3, 1, 2))", "out resize", CONTEXT),
    ("exact", "x: f32[N, 64]; argmax(neg(x), axis=1, keepdims=False, last=False)", "out neg", CONTEXT),
    ("view", "x: f32[N, 4, 2]; relu(reshape(x, shape=(N, 8)))", "out reshape", CONTEXT),
    (
        "conditions",
        "x: f32[N, 4]; z: f32[N, 4]; concat(exp(concat(exp(x), z, axis=0)), z, axis=0)",
        "out exp", CONTEXT,
    ),
    ("needed", "x: f32[N, 4]; e = exp(x); (relu(e), neg(e), e)", "out exp", CONTEXT),
    ("size", "x: f32[N, 4]; relu(exp(neg(x)))", "out exp", SMALL),
    # 2 + 2 scalar expressions, 11 with the choice between them
    ("grown", "x: f32[N, 4]; pad(exp(x), before=(0, 1), after=(0, 1), mode='constant')", "out exp", TEN),
    ("inputs", f"{MANY}; {SUM}; y25", "out add", CONTEXT),
    (
        "no rows",
        "x: f32[N, 64, 8]; sub(x, reduce_sum(x, axes=(1,), keepdims=True))",
        "out reduce_sum", CONTEXT,
    ),
    ("few rows", f"x: f32[2, 70000]; {ROWS}div(x, s)", "out reduce_sum", CONTEXT),
    ("no factor", f"{HEADS}matmul(softmax(x, axis=1), v)", "out softmax", CONTEXT),
    # one block at middling sizes; two blocks of each of the 8 that a run may have, and 200 columns
    ("few blocks", "x: f32[N, 16]; w: f32[16, 4]; matmul(softmax(x, axis=1), w)", "out softmax", CONTEXT),
    ("few blocks", f"{HEADS}u: f32[16, 200]; matmul(softmax(x, axis=2), u)", "out softmax", CONTEXT),
    ("lanes", f"x: f32[N, 64]; {ROWS}div(x, s)", "out reduce_sum", LANES),
    ("lanes", f"{HEADS}matmul(softmax(x, axis=2), v)", "out softmax", LANES),
    (
        "no product",
        "x: f32[N, 6, 8]; w: f32[4, 2, 3]; "
        "conv(slice(x, starts=(0, 1, 0), ends=(N, 5, 8), steps=(1, 1, 1)), w, group=2)",
        "out slice", CONTEXT,
    ),
    (
        "look-up",
        "x: f32[N, 8]; w: f32[8, 8]; t: f32[N, 8]; i: i64[N, 8]; "
        "add(matmul(x, w), gather_elements(t, i, axis=1))",
        "out gather_elements", CONTEXT,
    ),
    (
        "division",
        "x: f32[N, 4, 6]; z: f32[3*N, 8]; add(z, reshape(transpose(x, perm=(0, 2, 1)), shape=(3*N, 8)))",
        "out reshape", CONTEXT,
    ),
)


@pytest.mark.parametrize(("rule", "form", "wanted", "ctx"), DECISIONS)
def test_the_rule_decides(rule: str, form: str, wanted: str, ctx: Context) -> None:
    before = module(form)
    lines = [" ".join(line.split()) for line in explain(before, ctx)]
    assert any(line.startswith(wanted) and f"({rule}: " in line for line in lines), "\n".join(lines)
    after = fuse(before, ctx)
    env = {s.name: max(s.low, 3) for s in before.symbols}
    assert_same(before, after, feeds(before, env))


def test_every_rule_has_a_program() -> None:
    rules = {r.name for r in (*PERMISSIONS, *OBJECTIONS, *LATE_OBJECTIONS)}
    assert {d[0] for d in DECISIONS} == rules | {"order"}


# ---------------------------------------------------------------- rows

STANDARDISE = (
    "x: f32[N, M]; m = reduce_mean(x, axes=(1,), keepdims=True); d = sub(x, m); "
    "v = reduce_mean(mul(d, d), axes=(1,), keepdims=True); "
)


@pytest.mark.table(2)
@pytest.mark.parametrize(
    ("form", "kernels"),
    [
        (f"{STANDARDISE}div(d, sqrt(add(v, 1e-3)))", 1),
        # each row quantised by its largest magnitude
        (
            "x: f32[N, M]; a = reduce_max(abs(x), axes=(1,), keepdims=True); "
            "cast(round(mul(div(x, max(a, 1e-6)), 127.0)), to=i8)",
            1,
        ),
        # softmax spelt out, of a sum: patterns find it
        (
            "x: f32[N, M]; k: f32[N, M]; l = add(x, k); "
            "e = exp(sub(l, reduce_max(l, axes=(1,), keepdims=True))); "
            "div(e, reduce_sum(e, axes=(1,), keepdims=True))",
            1,
        ),
        ("x: f32[N, H, M]; div(x, reduce_l2(x, axes=(2,), keepdims=True))", 1),
        # squares of what is computed are no product of two operands
        ("x: f32[N, M]; r: f32[N, M]; s: f32[M]; layer_norm(add(x, r), s, s, axis=1, epsilon=1e-5)", 1),
        # along another axis than the last, nothing changes
        ("x: f32[N, M]; div(x, reduce_sum(x, axes=(0,), keepdims=True))", 2),
    ],
)
@pytest.mark.parametrize("machine", [CONTEXT.machine, Machine("wide", 512, 32, masked=True)])
def test_reductions_along_the_same_rows_share_a_kernel(form: str, kernels: int, machine: Machine) -> None:
    before = module(form)
    after = run_pipeline(before, PIPELINE, replace(CONTEXT, machine=machine))
    assert len([n for n in after.main.nodes if n.op == "call_kernel"]) == kernels
    scheduled = schedule_module(after, machine)
    for env in ({"N": 3, "M": 70, "H": 2}, {"N": 1, "M": 1, "H": 1}):
        inputs = feeds(before, {s.name: env[s.name] for s in before.symbols})
        assert_same(before, after, inputs)
        assert_same(before, scheduled, inputs)


def test_each_reduction_of_a_row_runs_once() -> None:
    """The schedule computes them before the elements of the row, not for each of them."""
    before = module(f"{STANDARDISE}div(d, sqrt(add(v, 1e-3)))")
    after = run_pipeline(before, pick(PIPELINE, ["fuse", "lower"]), CONTEXT)
    (kernel,) = schedule_module(after, CONTEXT.machine).kernels.values()
    (output,) = kernel.outputs
    stores = [s for s in walk(kernel.body) if isinstance(s, Store)]
    reducing = {s.buffer for s in stores if any(isinstance(x, Reduce) for x in walk_expr(s.value))}
    assert any(s.buffer == output.name for s in stores)
    assert output.name not in reducing


# ---------------------------------------------------------------- a product and the rows that it sums over

SCORES = "x: f32[8, M, N]; v: f32[8, N, 4]; "
NORM = "m = reduce_mean(mul(x, x), axes=(2,), keepdims=True); n = div(x, sqrt(add(m, 1e-3))); "


@pytest.mark.table(2)
@pytest.mark.parametrize(
    ("form", "kernels"),
    [
        (f"{SCORES}matmul(softmax(x, axis=2), v)", 1),
        (f"{SCORES}k: f32[M, N]; matmul(softmax(add(mul(x, 0.5), k), axis=2), v)", 1),
        (f"{SCORES}k: bool[8, 1, N]; matmul(softmax(where(k, x, -inf), axis=2), v)", 1),
        (f"{SCORES}r: f32[8, M, 4]; relu(add(matmul(softmax(x, axis=2), v), r))", 1),
        # heads beside each other, as attention has them
        (
            "x: f32[H, 8, M, N]; v: f32[H, N, 8, 4]; "
            "transpose(matmul(softmax(x, axis=3), transpose(v, perm=(0, 2, 1, 3))), perm=(0, 2, 1, 3))",
            1,
        ),
        # the right factor along its rows; the rows themselves; one row for each head
        ("x: f32[H, M, N]; v: f32[4, N]; matmul(softmax(x, axis=2), transpose(v, perm=(1, 0)))", 1),
        ("x: f32[8, N, N]; matmul(softmax(x, axis=2), x)", 1),
        ("x: f32[8, 1, N]; v: f32[8, N, 4]; matmul(softmax(x, axis=2), v)", 1),
        (f"x: f32[H, M, 6]; w: f32[6, 4] = draw; {NORM}matmul(n, w)", 1),
        # rows in f16: rounded where the product reads them
        ("x: f16[8, M, N]; v: f16[8, N, 4]; matmul(softmax(x, axis=2), v)", 1),
        # columns that are rows of the other factor; another reader; both factors; a product of products
        ("x: f32[8, M, N]; w: f32[4, N]; matmul(w, transpose(softmax(x, axis=2), perm=(0, 2, 1)))", 2),
        (f"{SCORES}p = softmax(x, axis=2); (matmul(p, v), p)", 2),
        ("x: f32[8, M, N]; v: f32[8, N, 4]; matmul(softmax(x, axis=2), softmax(v, axis=1))", 2),
        (f"{SCORES}w: f32[4, 4]; matmul(matmul(softmax(x, axis=2), v), w)", 2),
    ],
)
@pytest.mark.parametrize("machine", [CONTEXT.machine, Machine("wide", 512, 32, masked=True)])
def test_a_product_and_the_rows_it_sums_over_share_a_kernel(
    form: str, kernels: int, machine: Machine
) -> None:
    before = module(form)
    after = run_pipeline(before, PIPELINE, replace(CONTEXT, machine=machine))
    assert len([n for n in after.main.nodes if n.op == "call_kernel"]) == kernels
    scheduled = schedule_module(after, machine)
    for env in ({"N": 5, "M": 50, "H": 2}, {"N": 37, "M": 3, "H": 1}, {"N": 1, "M": 1, "H": 1}):
        inputs = feeds(before, {s.name: env[s.name] for s in before.symbols})
        assert_same(before, after, inputs)
        assert_same(before, scheduled, inputs)


@pytest.mark.parametrize("form", [
    f"{SCORES}r: f32[8, M, 4]; relu(add(matmul(softmax(x, axis=2), v), r))",
    f"{SCORES}b: f32[M, N]; p = softmax(add(mul(x, 0.5), b), axis=2); "
    "e = equal(reduce_max(b, axes=(1,), keepdims=True), -inf); matmul(where(e, 0.0, p), v)",
    "q: f32[8, M, 16]; k: f32[8, 16, N]; v: f32[8, N, 4]; matmul(softmax(matmul(q, k), axis=2), v)",
])  # fmt: skip
def test_a_product_of_softmaxes_is_one_kernel_for_lanes_in_step(form: str) -> None:
    before = module(form)
    after = run_pipeline(before, PIPELINE, STEP)
    assert len([n for n in after.main.nodes if n.op == "call_kernel"]) == 1
    scheduled = schedule_module(after, STEP.machine)
    for env in ({"N": 5, "M": 9}, {"N": 13, "M": 2}, {"N": 1, "M": 1}):
        inputs = feeds(before, {s.name: env[s.name] for s in before.symbols})
        assert_same(before, scheduled, inputs)


@pytest.mark.parametrize(("dtype", "kernels"), [("f32", 1), ("f16", 2)])
def test_matrix_instructions_take_products_of_whole_tensors(dtype: str, kernels: int) -> None:
    """Where they multiply the type, softmaxes stay apart from the product."""
    before = module(f"x: {dtype}[8, M, N]; v: {dtype}[8, N, 4]; matmul(softmax(x, axis=2), v)")
    machine = replace(STEP.machine, instructions=nvidia.ROWS)
    after = run_pipeline(before, PIPELINE, replace(STEP, machine=machine))
    assert len([n for n in after.main.nodes if n.op == "call_kernel"]) == kernels


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_row(odd: float) -> None:
    before = module(f"{SCORES}matmul(softmax(x, axis=2), v)")
    scheduled = schedule_module(run_pipeline(before, PIPELINE, CONTEXT), CONTEXT.machine)
    inputs = feeds(before, {"N": 5, "M": 50})
    inputs["x"][3, 48, 2] = odd
    inputs["x"][4, 7] = odd
    assert_same(before, scheduled, inputs)
