"""Shape options as users spell them, and the shapes that are chosen when they give none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError
from smelt.core.dim import parse_dim
from smelt.core.dtype import DTYPES
from smelt.formula import readable
from smelt.shapes import (
    InputSymbol,
    Port,
    bind,
    bounds_of,
    case,
    cases,
    defaults,
    parse_dim_spec,
    parse_shapes,
    shapes_at,
    state_values,
    symbols,
    trials,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x:1x3x224x224", {"x": (1, 3, 224, 224)}),
        ("x:[1,3,224,224]", {"x": (1, 3, 224, 224)}),
        ("x:1x8,y:[2, 4]", {"x": (1, 8), "y": (2, 4)}),
        ("x:[]", {"x": ()}),
        ("x:7", {"x": (7,)}),
        ("x:0x3", {"x": (0, 3)}),
        ("batch=4", {"batch": 4}),
        ("batch=4,x:1x2", {"batch": 4, "x": (1, 2)}),
        ("'a:b':1x2", {"a:b": (1, 2)}),
        ('"a,b":[1]', {"a,b": (1,)}),
        ("input:0:1x2", {"input:0": (1, 2)}),
    ],
)
def test_spellings(text: str, expected: dict[str, Any]) -> None:
    assert parse_shapes(text) == expected


@pytest.mark.parametrize("text", ["x", "x:", "x:1xx2", "x:axb", "x:[1,,2]", "x:-1x2", "x:1x2 y:3", "=3"])
def test_bad_spellings_are_refused(text: str) -> None:
    with pytest.raises(SmeltError):
        parse_shapes(text)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_.][a-z0-9_.]{0,8}", fullmatch=True), st.lists(st.integers(0, 999)), min_size=1
    )
)
def test_polygraphys_spelling_reads_back(shapes: dict[str, list[int]]) -> None:
    text = ",".join(f"{n}:[{','.join(map(str, s))}]" for n, s in shapes.items())
    assert parse_shapes(text) == {n: tuple(s) for n, s in shapes.items()}


def test_dim_wishes() -> None:
    assert parse_dim_spec("N=4") == ("N", 4)
    assert parse_dim_spec("N=1..512") == ("N", (1, 512))
    assert parse_dim_spec("N=2..") == ("N", (2, None))
    assert parse_dim_spec("a=b=3") == ("a=b", 3)
    assert parse_dim_spec("N=1..512:opt=1,128") == ("N", (1, 512, (1, 128)))
    assert parse_dim_spec(" x:1 = 1.. :opt= 7 ") == ("x:1", (1, None, (7,)))
    assert parse_dim_spec("N=4:opt=4") == ("N", (4, 4, (4,))), "the model's reader refuses it"
    assert parse_dim_spec("a:opt=3") == ("a:opt", 3), "an axis may be called so"
    for bad in ("N", "N=", "=3", "N=5..2", "N=x", "N=-1", "N=1..5:opt=", "N=1..5:opt=x", "N=1..5:opt=1,,2",
                "N=1..5:opt=-1", f"N=1..5:opt={1 << 63}"):  # fmt: skip
        with pytest.raises(SmeltError):
            parse_dim_spec(bad)


def bundle(*inputs: tuple[str, list[Any]], **ranges: tuple[int, int | None, int]) -> Bundle:
    rows = [{"name": n, "dtype": "f32", "shape": s} for n, s in inputs]
    rows_of = [
        {"name": n, "low": a, "high": b, "divisor": d, "origin": ""} for n, (a, b, d) in ranges.items()
    ]
    return Bundle(Path("."), {"inputs": rows, "symbols": rows_of, "state": []})


def test_wishes_bind_symbols_through_shapes() -> None:
    b = bundle(("x", ["n", 3, "s"]), ("past", ["n", "s + t"]), n=(0, None, 1), s=(0, None, 1), t=(0, None, 1))
    values = bind(b, {"x": (2, 3, 5), "t": 4})
    assert values == {"n": 2, "s": 5, "t": 4}
    assert shapes_at(b, values) == {"x": (2, 3, 5), "past": (2, 9)}
    assert bind(b, {"past": (2, 9), "x": (2, 3, 5)}) == values
    with pytest.raises(SmeltError, match="axis 1: expected 3"):
        bind(b, {"x": (2, 4, 5)})
    with pytest.raises(SmeltError, match="expected rank 3"):
        bind(b, {"x": (2, 3)})
    with pytest.raises(SmeltError, match="no input or dim 'z'"):
        bind(b, {"z": 3})
    image = bundle(("x", ["n", "8*h", "8*h + w"]), n=(0, None, 1), h=(0, None, 1), w=(0, None, 1))
    assert bind(image, {"x": (1, 128, 131)}) == {"n": 1, "h": 16, "w": 3}
    with pytest.raises(SmeltError, match=r"axis 1: expected 120 \(8\*h\), got 127"):
        bind(image, {"x": (1, 127, 131)})


@given(st.integers(0, 40), st.one_of(st.none(), st.integers(40, 300)), st.integers(1, 33), st.booleans())
def test_defaults_are_legal(low: int, high: int | None, divisor: int, batch: bool) -> None:
    s = InputSymbol("n", low, high, divisor, batch=batch, image=not batch)
    for values in defaults([s]):
        n = values["n"]
        assert n % divisor == 0
        assert high is None or n <= high
        if high is None or high // divisor * divisor >= max(low, 1):
            assert n >= max(low, 1)


def test_defaults_start_small_and_differ() -> None:
    b = bundle(("x", ["n", 3, "h", "w"]), n=(0, None, 1), h=(0, None, 1), w=(0, None, 1))
    known = symbols(b)
    assert [s.name for s in known if s.batch] == ["n"]
    found = list(defaults(known))
    assert found[0] == {"n": 1, "h": 64, "w": 64}
    assert len({tuple(v.values()) for v in found}) == len(found) >= 4
    assert all(v["h"] % 32 == 0 and v["w"] % 32 == 0 for v in found[:4])


def test_hot_sizes_are_tried_first() -> None:
    known = [InputSymbol("n", 1, 64, 1, hot=(1, 32)), InputSymbol("b", 1, 9, 1, batch=True),
             InputSymbol("m", 2, 64, 2, hot=(6,))]  # fmt: skip
    found = list(defaults(known))
    assert found[:3] == [{"n": 1, "b": 1, "m": 6}, {"n": 32, "b": 1, "m": 6}, {"n": 8, "b": 1, "m": 8}]
    b = bundle(("x", ["n"]), n=(1, None, 1))
    b.manifest["symbols"][0]["hot"] = [5]  # type: ignore[index]
    assert symbols(b)[0].hot == (5,) and next(iter(defaults(symbols(b)))) == {"n": 5}


def test_random_inputs_depend_on_seed_and_name_only() -> None:
    one = bundle(("x", ["n"]), n=(0, None, 1))
    two = bundle(("y", ["n"]), ("x", ["n"]), n=(0, None, 1))
    a, b = case(one, {"n": 5}), case(two, {"n": 5})
    assert (a.feed["x"] == b.feed["x"]).all()
    assert (b.feed["x"] != b.feed["y"]).any()
    assert (case(one, {"n": 5}, seed=1).feed["x"] != a.feed["x"]).any()
    spanned = case(one, {"n": 500}, ranges={"x": (3.0, 4.0)}).feed["x"]
    assert 3.0 <= spanned.min() < spanned.max() <= 4.0


def test_trtexecs_profiles_bound_symbols() -> None:
    ports = [Port("x", DTYPES["f32"], tuple(parse_dim(d) for d in ("n", "3", "h", "n + h")))]
    assert bounds_of(ports, {"x": (1, 3, 32, 33)}, {"x": (1, 3, 64, 65)}) == {"n": 1, "h": (32, 64)}
    fast = bounds_of(ports, {"x": (1, 3, 32, 33)}, {"x": (1, 3, 64, 65)}, {"x": (1, 3, 48, 49)})
    assert fast == {"n": 1, "h": (32, 64, (48,))}
    image = [Port("x", DTYPES["f32"], tuple(parse_dim(d) for d in ("8*h + w", "8*h")))]
    assert bounds_of(image, {"x": (67, 64)}, {"x": (131, 128)}) == {"h": (8, 16), "w": 3}
    with pytest.raises(SmeltError, match="has rank 4"):
        bounds_of(ports, {"x": (1, 3, 32, 33)}, {"x": (1, 3, 64, 65)}, {"x": (1, 3, 48)})
    with pytest.raises(SmeltError, match="no input or dim"):
        bounds_of(ports, {"z": (1,)}, {})


@given(st.integers(0, 300), st.integers(0, 300))
def test_readable_formula_has_the_same_value(a: int, b: int) -> None:
    text = "64*max(3*p2o.A*((p2o.B + 31)//32), (p2o.A + 1)//2 + p2o.B, 7)"
    dim = parse_dim(text)
    f = readable(dim)
    short = {s: {"p2o.A": a, "p2o.B": b}[name] for s, name in f.legend}
    assert f.unit * max(arm.evaluate(short) for arm in f.arms) == dim.evaluate({"p2o.A": a, "p2o.B": b})


def test_readable_formula_text() -> None:
    f = readable(parse_dim("64*max(3*long.name*((long.name + 31)//32), 7)"))
    assert f.lines() == ["  64 * the largest of", "    3*n*ceil(n/32)", "    7", "  where n = long.name"]
    assert f.lines([{"long.name": 100}])[1:3] == ["    3*n*ceil(n/32)", "    1 more, larger at other sizes"]
    assert readable(parse_dim("4*n + 8")).lines() == ["  4*n + 8"]


def test_a_long_formula_is_told_by_what_grows() -> None:
    """A case for each dim that grows, those of several dims once; bounded ones grow to their bounds."""
    text = "64*max(3*n*h, n*n*h, 100*h*h*w, 7*w, 5000, 12*n*w)"
    told = readable(parse_dim(text)).growing({"n": None, "h": None, "w": None})
    assert told[0] == "  64 * the largest of 6, which is"
    assert sorted(told[1:]) == ["    100*h*h*w  as h, w grow", "    h*n*n  as n grows"]
    bounded = readable(parse_dim(text)).growing({"n": 32, "h": None, "w": None})
    assert bounded[1:] == ["    100*h*h*w  as h, n, w grow"]
    short = readable(parse_dim("64*max(n, 7)"))
    assert short.growing({"n": None}) == short.lines()
    named = readable(parse_dim("max(" + ", ".join(f"{k}*long.name_{k}" for k in range(1, 9)) + ")"))
    lines = named.growing({})
    assert len(lines) == 1 + 3 + 1 and lines[-1].count("=") == 3


def test_no_shape_is_tried_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over all pairs of rows keeps n * n * k floats between its kernels: the formula says so before."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "one"], ["a"]),
        helper.make_node("Unsqueeze", ["x", "zero"], ["b"]), helper.make_node("Sub", ["a", "b"], ["d"]),
        helper.make_node("Softmax", ["d"], ["e"], axis=1), helper.make_node("Softmax", ["e"], ["y"], axis=0),
    ]  # fmt: skip
    ins = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "k"])]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    kept = [numpy_helper.from_array(np.array([v]), n) for n, v in (("one", 1), ("zero", 0))]
    g = helper.make_graph(nodes, "g", ins, outs, kept)
    m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    bundle = smelt.compile(m, output=tmp_path / "out")
    every = trials(bundle)
    needs = [bundle.peak_bytes(v) for v in every]
    assert len(every) > 2 and max(needs) > 4 * min(needs) > 0
    room = 4 * (max(needs) - 1)
    monkeypatch.setattr("smelt.shapes.memory", lambda: room)
    left = trials(bundle)
    assert left == [v for v, n in zip(every, needs, strict=True) if v in left] and len(left) < len(every)
    assert max(bundle.peak_bytes(v) for v in left) <= room // 4
    assert [c.shapes for c in cases(bundle, count=9)] == [shapes_at(bundle, v) for v in left]
    monkeypatch.setattr("smelt.shapes.memory", lambda: 2 * min(needs))
    assert [bundle.peak_bytes(v) for v in trials(bundle)] == [min(needs)], "the least of them still fits"
    monkeypatch.setattr("smelt.shapes.memory", lambda: 64)
    with pytest.raises(SmeltError, match=r"takes [\d,]+ bytes, this machine has 64") as caught:
        trials(bundle)
    assert caught.value.kind == "shape" and "--shape" in str(caught.value.hint)


def stateful(**extents: str) -> Bundle:
    """As much of a bundle as says that runs change the one axis of each of these states.

    `past` is 4, 6 or 8, `more` anything from 2.
    """
    rows = [{"name": n, "shape": [d], "start": [0]} for n, d in extents.items()]
    symbols = [
        {"name": "past", "low": 4, "high": 8, "divisor": 2},
        {"name": "more", "low": 2, "high": None, "divisor": 1},
    ]
    return cast(Bundle, SimpleNamespace(manifest={"symbols": symbols, "state": rows}))


@pytest.mark.parametrize(
    ("extents", "after", "found"),
    [
        ({"a": "past"}, (6,), {"past": 6}),
        ({"a": "past"}, (10,), None),  # above
        ({"a": "past"}, (2,), None),  # below
        ({"a": "past"}, (5,), None),  # between two multiples
        ({"a": "more"}, (1,), None),
        ({"a": "more"}, (1000,), {"more": 1000}),
        ({"a": "3*more + 1"}, (7,), {"more": 2}),
        ({"a": "3*more + 1"}, (8,), None),  # no value gives 8
        ({"a": "past", "b": "past + 2"}, (4, 6), {"past": 4}),
        ({"a": "past", "b": "past + 2"}, (4, 8), None),  # two values
        ({"a": "past", "b": "more"}, (8, 2), {"past": 8, "more": 2}),
    ],
)
def test_what_a_state_leaves_is_for_the_next_run_to_take(
    extents: dict[str, str], after: tuple[int, ...], found: dict[str, int] | None
) -> None:
    shapes = {name: (n,) for name, n in zip(extents, after, strict=True)}
    assert state_values(stateful(**extents), shapes) == found


@pytest.mark.parametrize("fixed", [False, True])
def test_a_case_of_many_inputs_is_named_by_its_dims(tmp_path: Path, fixed: bool) -> None:
    given = [helper.make_tensor_value_info(f"past.{k}", TensorProto.FLOAT, ["b", "n", 4]) for k in range(6)]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "n", 4])
    node = helper.make_node("Sum", [v.name for v in given], ["y"])
    graph = helper.make_graph([node], "g", given, [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    bundle = smelt.compile(model, output=tmp_path / "out", dims={"b": 2, "n": 3} if fixed else {})
    (found,) = cases(bundle, [{}] if fixed else [{"b": 2, "n": 3}])
    if fixed:  # no dim is left to tell it by
        assert found.label.count("2x3x4") == 6
    else:
        assert found.label == "b=2, n=3"
        assert bind(bundle, parse_shapes(found.label)) == {"b": 2, "n": 3}
