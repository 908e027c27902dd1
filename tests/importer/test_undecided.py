"""Ranks that a run decides: both ways up to where they meet, as native code against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import parser
from text_models import agree, floats, model_of, open_ends

import smelt
from smelt.core.diag import SmeltError
from smelt.importer import import_model

# c: whether axis 1 of x has one element, in the way of exporters
SIZE_IS_1 = """
    s = Shape (x)
    i = Constant <value_int: int = 1> ()
    k = Gather <axis: int = 0> (s, i)
    c = Equal (k, i)
    axes = Constant <value_ints: ints = [1]> ()
"""
SQUEEZED = """
    y = If (c) <
        then_branch = t () => (float[?] a) { a = Squeeze (x, axes) },
        else_branch = e () => (float[?] b) { b = Identity (x) }
    >
"""
SUM, MAX = "ReduceSum <keepdims: int = 0>", "ReduceMax <keepdims: int = 0>"
FLAT = "f = Constant <value_ints: ints = [-1]> () z = Reshape (y, f)"


XS = [{"x": floats(*s)} for s in ((3, 1, 4), (3, 2, 4), (1, 1, 1), (2, 5, 1), (0, 1, 4), (3, 0, 4))]

# what follows y, and what is read behind it
MEETS = {
    "at once": FLAT,
    "behind some nodes": f"a = Relu (y) b = Mul (a, a) y1 = Add (b, y) {FLAT.replace('(y, f)', '(y1, f)')}",
    "with a value from elsewhere": f"w = Abs (x) r = ReduceSum <keepdims: int = 0> (w) y1 = Mul (y, r) "
    f"{FLAT.replace('(y, f)', '(y1, f)')}",
    "in a sum": f"z = {SUM} (y)",
    "in its rank": "t = Shape (y) z = Size (t)",
    "in a product": f"w = Constant <value = float[1] {{2}}> () v = Mul (y, w) z = {MAX} (v)",
    "in two values": f"a = {SUM} (y) b = {MAX} (y) z = Sub (a, b)",
    "in a branch": f"zero = Constant <value = float {{0}}> () r = {SUM} (x) d = Less (r, zero) "
    f"z = If (d) <then_branch = p () => (float[?] p1) {{ p1 = {SUM} (y) }},"
    f" else_branch = q () => (float[?] q1) {{ q1 = {MAX} (y) }}>",
}


@pytest.mark.parametrize("name", MEETS)
def test_an_if_that_squeezes(name: str, tmp_path: Path) -> None:
    kind = "int64" if "rank" in name else "float"
    m = model_of("float[a, b, c] x", f"{kind}[] z", SIZE_IS_1 + SQUEEZED + MEETS[name])
    assert [n.op for n in import_model(m).main.nodes].count("if") == 1
    some = [f for f in XS if f["x"].size] if "product" in name or "two" in name or "branch" in name else XS
    agree(m, tmp_path, some)


def test_a_flag_decides(tmp_path: Path) -> None:
    """The same flag asked again is known on either way."""
    again = """
        u = If (c) <then_branch = p () => (float[?] p1) { p1 = Unsqueeze (y, axes) },
                    else_branch = q () => (float[?] q1) { q1 = Neg (y) }>
        z = Mul (u, x)
    """
    m = model_of("float[a, 1, b] x, bool c", "float[] z", SIZE_IS_1.split("c =")[0] + "axes = Constant "
                 "<value_ints: ints = [1]> ()" + SQUEEZED + again)  # fmt: skip
    agree(m, tmp_path, [{"x": floats(3, 1, 2), "c": np.array(c)} for c in (True, False)])


def test_a_squeeze_without_axes(tmp_path: Path) -> None:
    m = model_of("float[a, 1, b] x", "float[] z", f"y = Squeeze (x) {FLAT}")
    agree(m, tmp_path, [{"x": floats(*s)} for s in ((1, 1, 1), (3, 1, 1), (1, 1, 4), (3, 1, 4), (0, 1, 1))])


def test_what_one_way_demands_says_nothing_of_the_other(tmp_path: Path) -> None:
    """Its reshapes have as many elements as x has there; passes must not take that for true elsewhere."""
    m = model_of("float[a, b, c, 2] x", "float[] z", f"y = Squeeze (x) {FLAT}")
    for d, size in zip(m.graph.input[0].type.tensor_type.shape.dim, ("n+1", "n+1", "n"), strict=False):
        d.dim_param = size
    agree(m, tmp_path, [{"x": floats(n + 1, n + 1, n, 2)} for n in (0, 1, 2, 5)])


def test_an_extent_that_is_1_on_a_way_is_broadcast_there(tmp_path: Path) -> None:
    m = model_of("float[a, b, c] x, float[3] w", "float[] z", SIZE_IS_1 + SQUEEZED + """
        u = Unsqueeze (y, axes) p = Constant <value = float[1, 3, 1] {1, 2, 3}> () v = Add (u, p)
        q = Mul (x, p) r = ReduceSum <keepdims: int = 0> (q) t = Add (v, r)
        f = Constant <value_ints: ints = [-1]> ()
        z = Reshape (t, f)
    """)  # fmt: skip
    agree(m, tmp_path, [{"x": floats(*s), "w": floats(3)} for s in ((2, 1, 4), (2, 3, 4))])


def test_an_extent_that_a_check_says_is_1_is_broadcast(tmp_path: Path) -> None:
    """k channels, which a product needs to be 1, beside 3."""
    body = """
        v, i = TopK <axis: int = 1> (x, k) w = Constant <value = float[1, 3, 1, 1] {1, 2, 3}> ()
        y = ConvTranspose (v, w) z = Sub (v, y)
    """
    m = model_of("float[a, 1, b, c] x, int64[1] k", "float[] z", body)
    agree(m, tmp_path, [{"x": floats(2, 1, 3, 4), "k": np.array([1])}])


def test_ways_inside_ways(tmp_path: Path) -> None:
    two = "y1 = Squeeze (x) y2 = Squeeze (w) a = ReduceSum <keepdims: int = 0> (y1) "
    two += "r = Shape (y2) s = Size (r) f = Cast <to: int = 1> (s) z = Add (a, f)"
    m = model_of("float[a, b] x, float[c, d] w", "float[] z", two)
    shapes = [((1, 3), (2, 1)), ((2, 3), (1, 1)), ((1, 1), (4, 5))]
    agree(m, tmp_path, [{"x": floats(*p), "w": floats(*q)} for p, q in shapes])


def test_ways_that_meet_behind_a_sum(tmp_path: Path) -> None:
    """Neither meets without the other one."""
    both = f"y1 = Squeeze (x) y2 = Squeeze (w) y = Add (y1, y2) z = {SUM} (y)"
    m = model_of("float[a, 1] x, float[1, b] w", "float[] z", both)
    agree(m, tmp_path, [{"x": floats(a, 1), "w": floats(1, b)} for a, b in ((3, 3), (3, 1), (1, 4), (1, 1))])


def test_many_that_do_not_meet_are_refused_soon() -> None:
    """60 flags make 2**60 ways: only a few of them are tried."""
    count = 60
    inputs = ", ".join(f"float[a{k}, 1] x{k}, bool c{k}" for k in range(count))
    one = SQUEEZED.replace("(c)", "(c{k})").replace("(x", "(x{k}").replace("y =", "y{k} =")
    ifs = "".join(one.replace("{k}", str(k)) for k in range(count))
    total = "s1 = Add (y0, y1) " + " ".join(f"s{k} = Add (s{k - 1}, y{k})" for k in range(2, count))
    axes = "axes = Constant <value_ints: ints = [1]> ()"
    m = model_of(inputs, "float[] z", f"{axes} {ifs} {total} z = {SUM} (s{count - 1})")
    with pytest.raises(SmeltError, match="outputs of different rank"):
        import_model(m)


def test_a_way_on_which_a_node_could_not_run(tmp_path: Path) -> None:
    m = model_of("float[a, b] x", "float[] z", "y = Squeeze (x) z = Softmax <axis: int = 1> (y)")
    agree(m, tmp_path, [{"x": floats(2, 3)}, {"x": floats(5, 2)}])
    found = smelt.load(tmp_path / "bundle", threads=1)
    for shape in ((1, 3), (3, 1)):
        with pytest.raises(SmeltError):
            found.run(None, {"x": floats(*shape)})


def test_a_node_that_is_wrong_on_both_ways_is_the_error() -> None:
    with pytest.raises(SmeltError, match="2 inputs") as caught:
        import_model(model_of("float[a, b] x", "float[] z", "y = Squeeze (x) z = Relu (y, y)"))
    assert caught.value.kind == "invalid"


def test_the_declared_rank_takes_a_way(tmp_path: Path) -> None:
    for declared, good, bad in (("n, m", (3, 1, 4), (3, 2, 4)), ("n, k, m", (3, 2, 4), (3, 1, 4))):
        m = model_of("float[a, b, c] x", f"float[{declared}] z", SIZE_IS_1 + SQUEEZED + "z = Relu (y)")
        folder = tmp_path / declared
        folder.mkdir()
        agree(m, folder, [{"x": floats(*good)}])
        with pytest.raises(SmeltError):
            smelt.load(folder / "bundle", threads=1).run(None, {"x": floats(*bad)})


@pytest.mark.parametrize(("rank", "taken"), [("n", True), ("n, 4", False)])
def test_the_declared_rank_takes_a_way_of_a_flag(tmp_path: Path, rank: str, taken: bool) -> None:
    """Nothing is known of the flag: a run of the other way says that its rank is not the declared one."""
    one = "y = If (c) <then_branch = t () => (p) { p = ReduceSum <keepdims: int = 0> (x, axes) },"
    other = "else_branch = e () => (q) { q = Neg (x) }>"
    axes = "axes = Constant <value_ints: ints = [1]> ()"
    m = model_of("float[n, 4] x, bool c", f"float[{rank}] y", f"{axes} {one} {other}")
    for branch in m.graph.node[-1].attribute:
        open_ends(branch.g, inner=True)
    agree(m, tmp_path, [{"x": floats(3, 4), "c": np.array(taken)}])
    with pytest.raises(SmeltError, match="the_way_of_the_declared_ranks is 0, expected at least 1"):
        smelt.load(tmp_path / "bundle", threads=1).run(None, {"x": floats(3, 4), "c": np.array(not taken)})


def test_inside_a_function(tmp_path: Path) -> None:
    """What the function returns has two ranks: its caller goes both ways."""
    m = model_of("float[a, b, c] x", "float[] z", f"y = my.F (x) {FLAT}")
    m.opset_import.add(domain="my", version=1)
    f = parser.parse_function(
        f'<opset_import: ["" : 17], domain: "my"> F (x) => (y) {{ {SIZE_IS_1} {SQUEEZED} }}'
    )
    for a in f.node[-1].attribute:
        open_ends(a.g, inner=True)
    m.functions.append(f)
    agree(m, tmp_path, XS)


def test_inside_a_loop(tmp_path: Path) -> None:
    body = f"""
        on = Identity (going)
        n2 = Concat <axis: int = 1> (v, x)
        s = Shape (v) i1 = Constant <value_int: int = 1> () k = Gather <axis: int = 0> (s, i1)
        c = Equal (k, i1) axes = Constant <value_ints: ints = [1]> ()
        {SQUEEZED.replace("(x", "(v")}
        z1 = ReduceSum <keepdims: int = 0> (y)
    """
    loop = f"""
        n, z = Loop (k0, , x) <body = l (int64 i, bool going, float[?, ?] v)
            => (bool on, float[?, ?] n2, float[?] z1) {{ {body} }}>
    """
    m = model_of("float[a, 1] x, int64 k0", "float[] n, float[] z", loop)
    agree(m, tmp_path, [{"x": floats(3, 1), "k0": np.array(k)} for k in (1, 3)])


def test_vectors_that_are_shapes(tmp_path: Path) -> None:
    """Branches that give shapes of 2 and of 3 extents, by how many there are in an input."""
    m = model_of(
        "float[a] x, int64[r] to", "float[] z",
        """
        n = Size (to) two = Constant <value_int: int = 2> () c = Equal (n, two)
        s = If (c) <then_branch = p () => (int64[?] p1) { p1 = Identity (to) },
                    else_branch = q () => (int64[?] q1) { q0 = Constant <value_ints: ints = [1, -1, 1]> ()
                                                          q1 = Identity (q0) }>
        y = Reshape (x, s) z = ReduceSum <keepdims: int = 0> (y)
        """,
    )  # fmt: skip
    agree(m, tmp_path, [{"x": floats(6), "to": np.array(t)} for t in ([2, 3], [1], [7, 8, 9])])


REFUSED = {
    "the output": "z = Relu (y)",
    "too long a chain": "z0 = Relu (y)" + "".join(f" z{k} = Relu (z{k - 1})" for k in range(1, 400))
    + FLAT.replace("(y, f)", "(z399, f)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_ranks_that_do_not_meet(name: str) -> None:
    axes = "axes = Constant <value_ints: ints = [1]> ()"
    m = model_of("float[a, b, c] x, bool c", "float[] z", axes + SQUEEZED + REFUSED[name])
    with pytest.raises(SmeltError, match="outputs of different rank") as caught:
        import_model(m)
    assert caught.value.kind == "unsupported"


def test_ranks_that_do_not_meet_by_a_size(tmp_path: Path) -> None:
    """Where the condition is one of sizes, it is taken to hold, and that is checked."""
    m = model_of("float[a, b, c] x", "float[] z", SIZE_IS_1 + SQUEEZED + "z = Relu (y)")
    agree(m, tmp_path, [{"x": floats(3, 1, 4)}])
    with pytest.raises(SmeltError):
        smelt.load(tmp_path / "bundle", threads=1).run(None, {"x": floats(3, 2, 4)})
