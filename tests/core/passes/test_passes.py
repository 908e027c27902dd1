"""What single passes promise beyond keeping the meaning: no transposes left, shared kernels, limits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from smelt.core.diag import SmeltError
from smelt.core.dim import YES, sym, to_dim
from smelt.core.dtype import f32
from smelt.core.ir.graph import Attr, Graph, Module, Node, TensorType, Value, Weight
from smelt.core.ir.interp_graph import run_module
from smelt.core.ir.text import parse_module, print_kernel
from smelt.core.ir.verify import verify
from smelt.core.machine import Machine
from smelt.core.ops import OPS
from smelt.core.passes.cleanup.cse import cse
from smelt.core.passes.cleanup.fold import fold
from smelt.core.passes.context import Context, Options
from smelt.core.passes.manager import Pass, pick, run_pipeline, run_timed
from smelt.core.passes.pipeline import PIPELINE
from smelt.core.passes.recheck import recheck
from smelt.core.passes.rewriting.editor import Editor, Workshop
from smelt.core.passes.rewriting.rules import rewrite, rule
from smelt.core.passes.whole_graph.layout import layout, leftovers
from tests.core.passes.build import CONTEXT, Build, assert_same, feeds, run

ZERO2 = (to_dim(0), to_dim(0))


LOWER = [p.name for p in PIPELINE].index("lower")
def conv(b: Build, x: str, out: int, k: int = 1, group: int = 1) -> str:
    """A convolution with k // 2 of padding."""
    rng = np.random.default_rng(len(b.g.nodes))
    channels = b.g.shape(x)[1].const
    w = b.weight(rng.uniform(-1, 1, (out, channels // group, k, k)))
    pad = (to_dim(k // 2),) * 2
    return b(
        "conv", x, w, strides=(1, 1), dilations=(1, 1), pads_begin=pad, pads_end=pad, group=group,
        channels_last=False,
    )


def test_equal_layers_share_one_kernel() -> None:
    b = Build("f32[N, S, 8]")
    x = b.inputs[0]
    rng = np.random.default_rng(0)
    for _ in range(4):
        y = b("matmul", x, b.weight(rng.uniform(-1, 1, (8, 8))))
        x = b("relu", b("add", y, b.weight(rng.uniform(-1, 1, 8))))
    after = run_pipeline(b.done(x), PIPELINE, CONTEXT)
    assert [n.op for n in after.main.nodes] == ["call_kernel"] * 4
    assert list(after.kernels) == ["matmul_add_relu"]


def test_pointwise_convolutions_of_any_size_share_one_kernel() -> None:
    b = Build("f32[N, 4, H, W]")
    x = conv(b, conv(b, b.inputs[0], 4, 3), 4)
    pooled = b(
        "max_pool", x, kernel=(2, 2), strides=(2, 2), dilations=(1, 1), pads_begin=ZERO2, pads_end=ZERO2,
        ceil_mode=False, channels_last=False,
    )
    after = run_pipeline(b.done(conv(b, pooled, 4)), PIPELINE, CONTEXT)
    calls = [n.attr("kernel") for n in after.main.nodes if "conv" in str(n.attr("kernel"))]
    assert len(calls) == 3 and len(set(calls)) == 2


def test_kernels_never_capture_names_of_model_dims() -> None:
    b = Build("f32[i0, k1, d0]", "f32[d0, k0]")
    y = b("softmax", b("matmul", *b.inputs), axis=1)
    before = b.done(y)
    after = run_pipeline(before, PIPELINE, CONTEXT)
    assert_same(before, after, feeds(before, {"i0": 2, "k1": 3, "d0": 4, "k0": 5}))


def test_residual_net_keeps_one_transpose() -> None:
    b = Build("f32[N, 3, H, W]")
    x = b("relu", conv(b, b.inputs[0], 4, 3))
    for _ in range(3):
        x = b("relu", b("add", conv(b, b("relu", conv(b, x, 4, 3)), 4, 3), x))
    y = b("reduce_mean", x, axes=(2, 3), keepdims=False)
    after = run_pipeline(b.done(y), PIPELINE[:LOWER], CONTEXT)
    assert len(leftovers(after)) == 1


CHOSEN_BY_DATA = """module "m" {
  sym n in 0..*
  sym r in 0..*
  sym k in 0..*

  graph @main(%x: f32[n, 8, 4, 5], %b: f32[r, 4], %i: i64[r], %j: i64[1]) -> (%y as "y") {
    bind(%j) {high = dim 9, index = 0, low = dim 0, symbol = "k"}
    check() {left = dim min(32*r, 1), relation = "<=", right = dim n, text = "no image"}
    %y = roi_align(%x, %b, %i) {half_pixel = true, mode = "avg", samples = [2, 2], scale = 1.0, size = [2, 2]} : f32[r, 8, 2, 2]
  }
}
"""  # noqa: E501


def test_a_rewrite_may_need_the_check_that_was_needed_before() -> None:
    """That a region has an image, which only a check tells; a node that needs another one is not made."""
    module = parse_module(CHOSEN_BY_DATA)
    found = layout(module, Context(Machine("vectors", 128, 16)))
    (turned,) = [n for n in found.main.nodes if n.op == "roi_align"]
    assert turned.attrs["channels_last"]

    @rule("roi_align", kind="exact", forms=())
    def _of_others(g: Editor, n: Node) -> str | None:
        if n.attrs["scale"] != 1.0:
            return None
        some = {"starts": ZERO2 * 2, "ends": (sym("k"), *map(to_dim, (8, 4, 5))), "steps": (1,) * 4}
        first = g.emit("slice", n.inputs[:1], some)
        return g.emit(n.op, (first, *n.inputs[1:]), {**n.attrs, "scale": 2.0})

    kept = rewrite(module, (_of_others,)).main.nodes
    assert [n.op for n in kept] == ["bind", "check", "roi_align"] and kept[-1].attrs["scale"] == 1.0


def test_scalar_machines_keep_their_layout() -> None:
    b = Build("f32[N, 3, H, W]")
    module = b.done(conv(b, b.inputs[0], 2))
    assert layout(module, Context(Machine("scalar", 0, 16))) is module


def test_grouped_convolution_has_no_divisions_left() -> None:
    b = Build("f32[N, 4, H, W]")
    before = b.done(conv(b, b.inputs[0], 6, 3, group=2))
    after = run_pipeline(before, PIPELINE, CONTEXT)
    assert "//" not in "".join(print_kernel(k) for k in after.kernels.values())
    assert_same(before, after, feeds(before, {"N": 2, "H": 3, "W": 4}))


def test_fold_stops_at_the_limit() -> None:
    b = Build("f32[N]")
    big = b("relu", b.weight(np.ones((64, 64))))
    module = b.done(b("reduce_sum", big, axes=(0, 1), keepdims=False))
    tight = CONTEXT.with_(options=Options(fold_limit=100))
    assert len(fold(module, tight).main.nodes) == 2
    folded = fold(module, CONTEXT)
    assert not folded.main.nodes
    assert run(folded, {"x0": np.zeros(2, np.float32)})[0] == 64 * 64


def test_level_zero_only_lowers() -> None:
    b = Build("f32[N, 3, H, W]")
    x = conv(b, b.inputs[0], 2, 3)
    before = b.done(b("batch_norm", x, *(b.weight([0.5, 2]) for _ in range(4)), epsilon=1e-3))
    after, timings = run_timed(before, PIPELINE, CONTEXT.with_(options=Options(level=0)))
    assert [t.name for t in timings] == ["checked", "expand", "lower", "half", "place"]
    assert_same(before, after, feeds(before, {"N": 2, "H": 3, "W": 4}))


def test_libraries_take_products_with_one_matrix() -> None:
    b = Build("f32[N, S, 4]", "f32[N, 4, S]")
    x, y = b.inputs
    p = b("matmul", x, b.weight(np.arange(20.0).reshape(4, 5)))
    q = b("matmul", x, y)
    before = b.done(p, q)
    wanted = CONTEXT.with_(options=Options(libraries=True))
    after = run_pipeline(before, PIPELINE, wanted)
    calls = [n for n in after.main.nodes if n.op == "call_library"]
    assert [tuple(map(str, n.attr("dims"))) for n in calls] == [("N*S", "5", "4")]
    inputs = feeds(before, {"N": 2, "S": 3})
    found = run_module(after, inputs, OPS, libraries={"cblas_sgemm": lambda a, c: (np.matmul(a, c),)})
    for a, e in zip(found, run(before, inputs), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)
    assert not run_pipeline(before, PIPELINE, CONTEXT).libraries


def test_checks_and_binds_stay() -> None:
    b = Build("f32[N]", "f32[M]", "i64[1]")
    n, m = sym("N"), sym("M")
    b.g.add(Node("check", (), (), {"left": n, "relation": "==", "right": m, "text": "sizes differ"}))
    module = b.done(b("relu", b.inputs[0]))
    after = run_pipeline(module, PIPELINE, CONTEXT)
    assert [n.op for n in after.main.nodes] == ["check", "call_kernel"]


def test_a_value_that_is_an_output_is_still_made() -> None:
    b = Build("f32[N]")
    x = b("exp", b.inputs[0])
    before = b.done(x, b("relu", x), b.inputs[0])
    after = run_pipeline(before, PIPELINE, CONTEXT)
    assert_same(before, after, feeds(before, {"N": 3}))


def test_the_nodes_of_a_symbol_come_after_what_binds_it() -> None:
    b = Build("f32[N]", "i64[1]")
    size = b("abs", b.inputs[1])
    attrs: dict[str, Attr] = {"symbol": "k", "index": 0, "low": to_dim(0), "high": to_dim(9)}
    b.g.add(Node("bind", (size,), (), attrs))
    y = b("iota", start=to_dim(0), step=to_dim(1), shape=(sym("k"),), dtype=b.g.type_of(size).dtype)
    module = b.done(y)
    ops = [n.op for n in run_pipeline(module, PIPELINE[:LOWER], CONTEXT).main.nodes]
    assert ops.index("bind") < ops.index("iota")


def test_recheck_finds_a_wrong_type() -> None:
    b = Build("f32[N, 3]")
    module = b.done(b("relu", b.inputs[0]))
    (node,) = module.main.nodes
    wrong = Value(node.output.name, TensorType(node.output.type.dtype, (to_dim(7), to_dim(4))))
    graph = module.main.with_(nodes=(node.with_(outputs=(wrong,)),))
    with pytest.raises(SmeltError, match="declared"):
        recheck(module.with_main(graph))


def test_unknown_passes_are_refused_by_name() -> None:
    with pytest.raises(SmeltError, match="no pass 'fusee'; there are"):
        pick(PIPELINE, ["fusee"])


def test_what_every_pass_gives_is_dumped() -> None:
    """Also what does not verify: that is what somebody wants to read."""
    b = Build("f32[N]")
    module = b.done(b("relu", b("relu", b.inputs[0])))
    found: list[tuple[str, Module]] = []
    context = CONTEXT.with_(dump=lambda m, name: found.append((name, m)), verify=True)
    done = run_pipeline(module, pick(PIPELINE, ["canonical", "lower"]), context)
    assert [name for name, _ in found] == ["canonical", "lower"] and found[-1][1] is done
    with pytest.raises(SmeltError):
        run_pipeline(done, (Pass("breaks", lambda m, ctx: m.with_(graphs={})),), context)
    assert found[-1][0] == "breaks"


def test_a_broken_pass_is_named() -> None:
    b = Build("f32[N]")
    module = b.done(b("relu", b.inputs[0]))

    def breaks(m: Module, ctx: Context) -> Module:
        return m.with_main(m.main.with_(outputs=("%nothing",)))

    with pytest.raises(SmeltError) as e:
        run_pipeline(module, (Pass("breaks", breaks),), CONTEXT.with_(verify=True))
    assert "after pass 'breaks'" in e.value.__notes__


def test_editor_orders_uses_after_definitions() -> None:
    b = Build("f32[N]")
    y = b("relu", b.inputs[0])
    z = b("exp", y)
    module = b.done(z)
    g = Editor(Workshop(module), module.main, {})
    first = g.in_order()[0]
    g.at(first)
    late = g.emit("neg", (z,))
    g.outputs = [late]
    ops = [n.op for n in g.graph().nodes]
    assert ops == ["relu", "exp", "neg"]


def test_regions_are_rewritten_too() -> None:
    b = Build("f32[N]", "bool[]")
    x, c = b.inputs
    t = b.g.type_of(x)

    def region(name: str, op: str) -> Graph:
        inner = Value(f"%{name}1", t)
        outer = Value(f"%{name}2", t)
        nodes = (Node("neg", (x,), (inner,)), Node(op, (inner.name,), (outer,)))
        return Graph(name, (), nodes, (outer.name,))

    out = Value("%picked", t)
    b.g.add(Node("if", (c,), (out,), regions=(region("then", "neg"), region("else", "relu"))))
    before = b.done(out.name)
    after = run_pipeline(before, PIPELINE, CONTEXT)
    (node,) = after.main.nodes
    assert [[n.op for n in r.nodes] for r in node.regions] == [[], ["call_kernel"]]
    for flag in (True, False):
        inputs = {**feeds(before, {"N": 3}), "x1": np.asarray(flag)}
        assert_same(before, after, inputs)


@pytest.mark.parametrize(("axis", "kernels"), [(1, 2), (0, 1)])
def test_a_product_does_not_look_single_elements_up(axis: int, kernels: int) -> None:
    """x @ w + table[.., i]: its tile would be code for each element. Rows that data picks are read whole."""
    b = Build("f32[N, 8]", "f32[N, 8]", f"i64[{'N, 8' if axis else 'N'}]")
    x, table, i = b.inputs
    y = b("matmul", x, b.weight(np.random.default_rng(0).uniform(-1, 1, (8, 8))))
    z = b("gather_elements" if axis else "gather", table, i, axis=axis)
    before = b.done(b("add", y, z))
    after = run_pipeline(before, PIPELINE, CONTEXT)
    assert len(after.main.nodes) == kernels


def test_a_product_with_itself_is_a_product() -> None:
    """x @ transpose(x) reads one tensor at two places: it takes in index maps only, as other products do. A
    concatenation inside would ask for each element of each tile which part it is in."""
    b = Build("f32[N, 4]", "f32[M, 4]")
    x = b("concat", *b.inputs, axis=0)
    y = b("matmul", x, b("transpose", x, perm=(1, 0)))
    before = b.done(y)
    after = run_pipeline(before, PIPELINE, CONTEXT)
    assert sorted(after.kernels) == ["concat", "matmul"]
    for env in ({"N": 3, "M": 2}, {"N": 0, "M": 1}, {"N": 17, "M": 9}):
        assert_same(before, after, feeds(before, env))


def test_an_element_is_read_once() -> None:
    """Two equal nodes give two sizes: one is read, the other is a name for it, which passes know. What wants
    more of the element reads it itself."""
    text = """module "m" {
      sym N in 0..*
      sym p in 0..*
      sym q in 0..9
      sym r in 0..*
      graph @main(%x: i64[N], %y: f32[N]) -> (%u, %v, %w) {
        %a = reduce_sum(%x) {axes = (0,), keepdims = true} : i64[1]
        bind(%a) {high = dim 9, index = 0, low = dim 0, symbol = "p"}
        %b = reduce_sum(%x) {axes = (0,), keepdims = true} : i64[1]
        bind(%b) {high = dim 9, index = 0, low = dim 0, symbol = "q"}
        %c = reduce_sum(%x) {axes = (0,), keepdims = true} : i64[1]
        bind(%c) {high = dim 9, index = 0, low = dim 1, symbol = "r"}
        %u = iota() {dtype = :i64, shape = [p], start = dim 0, step = dim 1} : i64[p]
        %v = iota() {dtype = :i64, shape = [q], start = dim 0, step = dim 1} : i64[q]
        %w = iota() {dtype = :i64, shape = [r], start = dim 0, step = dim 1} : i64[r]
      }
    }"""
    before = parse_module(text)
    verify(before)
    after = cse(before, CONTEXT)
    verify(after)
    binds = [(n.inputs, n.attr("symbol"), n.attr("value")) for n in after.main.nodes if n.op == "bind"]
    assert binds == [(("%a",), "p", None), ((), "q", sym("p")), (("%a",), "r", None)]
    assert Workshop(after).engine.facts.prove_eq(sym("p"), sym("q")) is YES


def test_weights_that_begin_unlike_are_not_read_whole() -> None:
    """One piece of each tells them apart; equal ones are one, also where one is made as it is read."""
    x = np.arange(4096, dtype=np.float32)

    def unlike() -> Iterator[np.ndarray]:
        yield x + 1
        raise AssertionError("read whole")

    made = {
        "@a": Weight("@a", f32, (8192,), np.concatenate([x, x])),
        "@b": Weight("@b", f32, (8192,), recipe=unlike),
        "@c": Weight("@c", f32, (8192,), recipe=lambda: iter((x, x))),
    }
    graph = Graph("main", (), (), ("@a", "@b", "@c"), ("a", "b", "c"))
    module = Module("m", weights=made, graphs={"main": graph})
    after = cse(module, CONTEXT)
    assert after.main.outputs == ("@a", "@b", "@a")
