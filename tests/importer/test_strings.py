"""Strings as bytes: compiled models agree with ONNX Runtime, patterns with Python; the rest is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from smelt.cli.main import main
from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.driver import Request
from smelt.families.text.regex import Refused, automaton
from smelt.importer import import_model
from smelt.session import Session, load

Array = np.ndarray[Any, Any]
STRING, INT64, FLOAT, BOOL = TensorProto.STRING, TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
node = helper.make_node


def text(*values: Any) -> Array:
    return np.array(values, object)


WORDS = text(["ab", "", "xyz"], ["é", "longer one", "q"])
OTHERS = text(["ab", "b", "xyz"], ["e", "longer one", ""])


def info(name: str, x: Array) -> onnx.ValueInfoProto:
    kind = STRING if x.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(x.dtype)
    return helper.make_tensor_value_info(name, kind, [f"{name}{i}" for i in range(x.ndim)])


def constant(name: str, x: Array) -> onnx.TensorProto:
    if x.dtype.kind not in "OU":
        return onnx.numpy_helper.from_array(x, name)
    return helper.make_tensor(name, STRING, x.shape, [s.encode() for s in x.reshape(-1)])


def model(
    nodes: Sequence[onnx.NodeProto],
    feeds: dict[str, Array],
    outputs: dict[str, int],
    constants: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    """A model whose inputs have a symbol for each extent."""
    made = [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()]
    weights = [constant(n, x) for n, x in (constants or {}).items()]
    g = helper.make_graph(list(nodes), "g", [info(n, x) for n, x in feeds.items()], made, weights)
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 4)]
    return helper.make_model(g, opset_imports=sets, ir_version=9)


def session(m: onnx.ModelProto, folder: Path) -> Session:
    path = folder / "m.onnx"
    onnx.save(m, path)
    asked = Request(str(path), "host", output=str(folder / "out"), keep_subnormals=True)  # as ONNX Runtime
    return load(compile_here(asked))


def agree(folder: Path, m: onnx.ModelProto, *runs: dict[str, Array]) -> None:
    """Compiled code gives what ONNX Runtime gives, on each of the feeds."""
    own = session(m, folder)
    want = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    for feeds in runs:
        for g, w in zip(own.run(None, feeds), want.run(None, feeds), strict=True):
            assert (g.dtype, g.shape) == (w.dtype, w.shape)
            np.testing.assert_array_equal(g, w)


# ---------------------------------------------------------------- moves and comparison

MOVES: dict[str, tuple[list[onnx.NodeProto], dict[str, int], dict[str, Array]]] = {
    "transposed": ([node("Transpose", ["x"], ["z"])], {"z": STRING}, {}),
    "joined": (
        [
            node("Concat", ["x", "y"], ["a"], axis=1),
            node("Reshape", ["a", "s"], ["z"]),
            node("Shape", ["z"], ["w"]),
        ],
        {"z": STRING, "w": INT64},
        {"s": np.array([-1])},
    ),
    "gathered": (
        [node("Gather", ["x", "i"], ["z"], axis=1)],
        {"z": STRING},
        {"i": np.array([[2, 0], [1, -1]])},
    ),
    "by tuples": ([node("GatherND", ["x", "i"], ["z"])], {"z": STRING}, {"i": np.array([[0, 1], [1, 1]])}),
    "one or the other": (
        [node("Where", ["c", "x", "k"], ["z"])],
        {"z": STRING},
        {"c": np.array([True, False, True]), "k": np.array("a long constant", object)},
    ),
    "cut": (
        [
            node("Split", ["x"], ["a", "b"], num_outputs=2),
            node("Identity", ["b"], ["z"]),
            node("Size", ["a"], ["n"]),
        ],
        {"a": STRING, "z": STRING, "n": INT64},
        {},
    ),
    "sliced": (
        [node("Slice", ["x", "s", "e", "a", "t"], ["z"])],
        {"z": STRING},
        {"s": np.array([2]), "e": np.array([-9]), "a": np.array([1]), "t": np.array([-2])},
    ),
    "picked": (
        [node("Compress", ["x", "c"], ["z"], axis=1)],
        {"z": STRING},
        {"c": np.array([True, False, True])},
    ),
    "repeated": ([node("Tile", ["x", "r"], ["z"])], {"z": STRING}, {"r": np.array([2, 1])}),
    "with one more axis": ([node("Unsqueeze", ["x", "a"], ["z"])], {"z": STRING}, {"a": np.array([1])}),
    "equal": ([node("Equal", ["x", "y"], ["z"])], {"z": BOOL}, {}),
    "equal to one": ([node("Equal", ["x", "k"], ["z"])], {"z": BOOL}, {"k": text("xyz")}),
    "one behind the other": (
        [node("StringConcat", ["x", "y"], ["a"]), node("StringConcat", ["k", "a"], ["z"])],
        {"z": STRING},
        {"k": text("<", "é:", "")},
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_moved(name: str, tmp_path: Path) -> None:
    nodes, outputs, constants = MOVES[name]
    used = {i for n in nodes for i in n.input}
    feeds = {k: v for k, v in (("x", WORDS), ("y", OTHERS)) if k in used}
    agree(tmp_path, model(nodes, feeds, outputs, constants), feeds, {k: v[::-1] for k, v in feeds.items()})


def test_filled_up_with_empty_strings(tmp_path: Path) -> None:
    """Ops that ONNX Runtime has no strings for."""
    nodes = [
        node("Pad", ["x", "p", "v"], ["a"]),
        node("Pad", ["x", "p"], ["b"]),
        node("Trilu", ["x"], ["c"], upper=1),
        node("CenterCropPad", ["x", "s"], ["d"]),
    ]
    constants = {"p": np.array([0, 1, 1, 0]), "v": np.array("pad", object), "s": np.array([3, 1])}
    m = model(nodes, {"x": WORDS}, dict.fromkeys("abcd", STRING), constants)
    a, b, c, d = session(m, tmp_path).run(None, {"x": WORDS})
    for y, filler in ((a, "pad"), (b, "")):
        wanted = np.pad(WORDS, ((0, 1), (1, 0)), constant_values=filler)
        assert y.tolist() == wanted.tolist()
    assert c.tolist() == [["ab", "", "xyz"], ["", "longer one", "q"]]
    assert d.tolist() == [[""], ["longer one"], [""]]


@pytest.mark.parametrize("attributes", [{"sorted": 0}, {"axis": 0}, {"axis": -1, "sorted": 0}])
def test_each_of_them_once(attributes: dict[str, Any], tmp_path: Path) -> None:
    x = text(["b", "ab", "b"], ["a", "", "\u00e9"], ["b", "ab", "b"])
    n = node("Unique", ["x"], ["z", "first", "inverse", "counts"], **attributes)
    m = model([n], {"x": x}, {"z": STRING, "first": INT64, "inverse": INT64, "counts": INT64})
    own = session(m, tmp_path)
    for feed in (x, x[:1], x[::-1, :2]):
        found = own.run(None, {"x": feed})
        # ONNX Runtime knows strings without an axis alone: numbers in their order
        number = {s: i for i, s in enumerate(sorted(set(x.reshape(-1).tolist()), key=str.encode))}
        numbers = np.vectorize(number.get, otypes=[np.int64])(feed)
        m.graph.input[0].type.tensor_type.elem_type = m.graph.output[0].type.tensor_type.elem_type = INT64
        run = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        wanted, *rest = run.run(None, {"x": numbers})
        np.testing.assert_array_equal(np.vectorize(number.get, otypes=[np.int64])(found[0]), wanted)
        for g, w in zip(found[1:], rest, strict=True):
            np.testing.assert_array_equal(g, w)


def test_unique_as_onnxruntime_has_it(tmp_path: Path) -> None:
    n = node("Unique", ["x"], ["z", "first", "inverse", "counts"])
    m = model([n], {"x": WORDS}, {"z": STRING, "first": INT64, "inverse": INT64, "counts": INT64})
    agree(tmp_path, m, {"x": WORDS}, {"x": OTHERS}, {"x": text(["a", "a"], ["", "a"])})


def test_those_that_are_not_empty(tmp_path: Path) -> None:
    own = session(model([node("NonZero", ["x"], ["z"])], {"x": WORDS}, {"z": INT64}), tmp_path)
    np.testing.assert_array_equal(own.run(None, {"x": WORDS})[0], np.stack(np.nonzero(WORDS != "")))


def test_constants_of_every_form(tmp_path: Path) -> None:
    nodes = [
        node("Constant", [], ["a"], value_strings=["u", "vv"]),
        node("Constant", [], ["b"], value_string="wé"),
        node("Constant", [], ["c"], value=constant("v", text("x", ""))),
        node("StringConcat", ["a", "b"], ["d"]),
        node("StringConcat", ["d", "c"], ["e"]),
        node("StringConcat", ["e", "x"], ["z"]),
    ]
    agree(tmp_path, model(nodes, {"x": text("1", "2")}, {"z": STRING}), {"x": text("1", "")})


def test_through_branches_and_loops(tmp_path: Path) -> None:
    """A loop appends, so the strings' width grows with each round."""
    empty = np.zeros((0, 3), object)
    then = helper.make_graph([node("StringConcat", ["x", "x"], ["a"])], "t", [], [info("a", text("")[None])])
    other = helper.make_graph([node("Identity", ["x"], ["b"])], "e", [], [info("b", text("")[None])])
    body = helper.make_graph(
        [node("StringConcat", ["s", "k"], ["s2"]), node("Identity", ["c"], ["c2"])],
        "b",
        [info("i", np.array(0)), info("c", np.array(True)), info("s", WORDS)],
        [info("c2", np.array(True)), info("s2", WORDS)],
    )
    nodes = [
        node("If", ["f"], ["y"], then_branch=then, else_branch=other),
        node("Loop", ["n", "", "y"], ["z"], body=body),
    ]
    feeds = {"x": WORDS, "f": np.array(True), "n": np.array(3)}
    m = model(nodes, feeds, {"z": STRING}, {"k": np.array("!", object)})
    agree(tmp_path, m, feeds, {**feeds, "f": np.array(False), "n": np.array(0)}, {**feeds, "x": empty})


def test_a_session_takes_and_gives_strings(tmp_path: Path) -> None:
    own = session(model([node("Identity", ["x"], ["z"])], {"x": WORDS}, {"z": STRING}), tmp_path)
    assert (own.get_inputs()[0].type, own.get_inputs()[0].shape) == ("tensor(string)", ["x0", "x1"])
    for x in (WORDS, WORDS.astype(str), WORDS.tolist(), np.zeros((0, 2), object), text(["", ""])):
        (z,) = own.run(None, {"x": x})
        assert (z.dtype, z.tolist()) == (np.dtype(object), np.asarray(x, object).tolist())
    assert own.run(None, {"x": [[b"raw", "é"]]})[0].tolist() == [["raw", "é"]]
    for wrong in (np.zeros((2, 2)), text(["a", 1]), text(["a\0b"])):
        with pytest.raises(SmeltError, match="expected strings"):
            own.run(None, {"x": wrong})


# ---------------------------------------------------------------- ops of strings


@pytest.mark.parametrize(
    "attributes",
    [
        {"delimiter": ","},
        {"delimiter": ",", "maxsplit": 1},
        {},
        {"maxsplit": 1},
        {"delimiter": "", "maxsplit": 2},
        {"maxsplit": 0},
        {"delimiter": ",", "maxsplit": 0},
        {"delimiter": "bc"},
    ],
)
def test_split(attributes: dict[str, Any], tmp_path: Path) -> None:
    lines = text("a,b,,c", "", ",", " a  b c ", "abcbc")
    m = model([node("StringSplit", ["x"], ["y", "n"], **attributes)], {"x": lines}, {"y": STRING, "n": INT64})
    agree(tmp_path, m, {"x": lines}, {"x": lines[1:2]}, {"x": lines[:0]})


def test_normalised(tmp_path: Path) -> None:
    """Letters of one and two bytes; stop words in any case or in theirs; nothing left is one empty string."""
    lines = text("Monday", "ÉCOLE", "tuesday", "Привет", "ΑΣΩ", "ß", "中")
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"case_change_action": "LOWER"}, ["monday", "école", "tuesday", "привет", "ασω", "ß", "中"]),
        ({"case_change_action": "UPPER"}, ["MONDAY", "ÉCOLE", "TUESDAY", "ПРИВЕТ", "ΑΣΩ", "ß", "中"]),
        ({"stopwords": ["monday", "école", "привет", "中"]}, ["tuesday", "ΑΣΩ", "ß"]),
        ({"stopwords": ["monday", "tuesday"], "is_case_sensitive": 1}, [s for s in lines if s[0] != "t"]),
        ({"stopwords": lines.tolist(), "is_case_sensitive": 1}, [""]),
    ]
    for n, (attributes, wanted) in enumerate(cases):
        folder = tmp_path / str(n)
        folder.mkdir()
        own = session(
            model([node("StringNormalizer", ["x"], ["y"], **attributes)], {"x": lines}, {"y": STRING}), folder
        )
        assert own.run(None, {"x": lines})[0].tolist() == wanted


def test_counted_by_words(tmp_path: Path) -> None:
    attributes: dict[str, Any] = {
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 1,
        "ngram_counts": [0, 3],
    }
    pool = ["a", "bb", "c", "a", "bb", "bb", "c"]
    n = node(
        "TfIdfVectorizer",
        ["x"],
        ["y"],
        mode="TF",
        pool_strings=pool,
        ngram_indexes=[0, 1, 2, 3, 4],
        **attributes,
    )
    x = text(["a", "bb", "c", "a"], ["bb", "c", "zz", "a"])
    agree(tmp_path, model([n], {"x": x}, {"y": FLOAT}), {"x": x})


@pytest.mark.parametrize(
    "attributes",
    [
        {"keys_strings": ["q", "ab", "é", "ab"], "values_int64s": [1, 2, 3, 4], "default_int64": 7},
        {"keys_strings": ["q", "ab"], "values_strings": ["hello", "é"]},
        {"keys_strings": ["longer one"], "values_floats": [0.5], "default_float": 2.0},
    ],
)
def test_labels_of_strings(attributes: dict[str, Any], tmp_path: Path) -> None:
    out = STRING if "values_strings" in attributes else INT64 if "default_int64" in attributes else FLOAT
    n = node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    agree(tmp_path, model([n], {"x": WORDS}, {"y": out}), {"x": WORDS}, {"x": WORDS[:, :1]})


def test_labels_by_many_keys(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    keys = sorted({"".join(map(chr, rng.integers(97, 101, rng.integers(0, 7)))) for _ in range(400)})
    rng.shuffle(keys)
    n = node(
        "LabelEncoder",
        ["x"],
        ["y"],
        domain="ai.onnx.ml",
        keys_strings=keys,
        values_int64s=list(range(len(keys))),
    )
    x = np.array([*keys, "abcdabcd", "e", "a "], object)
    agree(tmp_path, model([n], {"x": x}, {"y": INT64}), {"x": x})


def test_strings_of_numbers_and_classes(tmp_path: Path) -> None:
    ml: dict[str, Any] = {"domain": "ai.onnx.ml"}
    cats: dict[str, Any] = {"cats_strings": ["q", "ab"], "cats_int64s": [5, 6]}
    nodes = [
        node("CategoryMapper", ["x"], ["i"], **ml, **cats),
        node("CategoryMapper", ["n"], ["s"], default_string="none", **ml, **cats),
        node("LabelEncoder", ["n"], ["t"], keys_int64s=[5], values_strings=["fünf"], **ml),
        node("OneHotEncoder", ["x"], ["o"], cats_strings=["q", "ab", "q"], **ml),
    ]
    feeds = {"x": WORDS, "n": np.array([5, 6, 7])}
    agree(tmp_path, model(nodes, feeds, {"i": INT64, "s": STRING, "t": STRING, "o": FLOAT}), feeds)


# ---------------------------------------------------------------- casts

PRINTED: list[Array] = [
    np.array([0, -5, 2**63 - 1, -(2**63), 10, 99, 100]),
    np.array([-128, 5, 127], np.int8),
    np.array([2**64 - 1, 0], np.uint64),
    np.array([True, False]),
    np.concatenate([
        np.float32([0, 1, -1.5, 0.1, 1e10, 1.234567e-5, 1e8, 99999999, 0.0001]),
        np.float32([np.nan, np.inf, -np.inf, -0.0, 1e-40]),
        np.random.default_rng(0).integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32),
        np.random.default_rng(1).normal(size=5000).astype(np.float32),
    ]),
    np.array([0.1, 1e22, 1 / 3, 1e300, 1e-300, 5e-324, 1.7976931348623157e308, -2.5e-101]),
    np.array([0.1, 65504, 0.333], np.float16),
]  # fmt: skip


@pytest.mark.parametrize("x", PRINTED, ids=[f"{n}-{x.dtype}" for n, x in enumerate(PRINTED)])
def test_printed(x: Array, tmp_path: Path) -> None:
    """Eight significant digits, rounded to even where they end in a tie."""
    agree(
        tmp_path,
        model([node("Cast", ["x"], ["y"], to=STRING)], {"x": x}, {"y": STRING}),
        {"x": x},
        {"x": x[:0]},
    )


READ: list[tuple[int, list[str]]] = [
    (INT64, ["12", "-7", " 5", "+3", "9223372036854775807", "-9223372036854775808", "3.7", "1e3", "5 x"]),
    (TensorProto.UINT8, ["300", "-1", "7"]),
    (
        FLOAT,
        [
            "1.5",
            "-2e-3",
            "inf",
            "-INF",
            "NaN",
            " 4",
            "+.5",
            "5.",
            "infinity",
            "3.4e38",
            "0.1",
            "1e-30",
            "1.5x",
        ],
    ),
    (BOOL, ["1", "0", "12"]),
]


@pytest.mark.parametrize(("to", "strings"), READ)
def test_read(to: int, strings: list[str], tmp_path: Path) -> None:
    own = session(m := model([node("Cast", ["x"], ["y"], to=to)], {"x": text("")}, {"y": to}), tmp_path)
    want = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    x = text(*strings)
    np.testing.assert_array_equal(own.run(None, {"x": x})[0], want.run(None, {"x": x})[0])
    for wrong in ("", "x", "-", "."):
        with pytest.raises(SmeltError, match="strings_that_are_no_numbers is 1"):
            own.run(None, {"x": text("1", wrong)})


def test_what_is_printed_is_read_again(tmp_path: Path) -> None:
    """Shortest spellings give the same floats; doubles may be a last bit away."""
    x = np.random.default_rng(0).integers(0, 2**31, 2000, dtype=np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    s = text(*(repr(float(v)) for v in x))
    m = model(
        [node("Cast", ["x"], ["y"], to=FLOAT), node("Cast", ["x"], ["z"], to=TensorProto.DOUBLE)],
        {"x": s},
        {"y": FLOAT, "z": TensorProto.DOUBLE},
    )
    y, z = session(m, tmp_path).run(None, {"x": s})
    np.testing.assert_array_equal(y, x)
    np.testing.assert_allclose(z, x.astype(np.float64), rtol=5e-16)


# ---------------------------------------------------------------- patterns

PATTERNS = [
    r"[a-z]+@[a-z]+\.com",
    r"(\W|^)[\w.\-]{0,25}@(yahoo|gmail)\.com(\W|$)",
    "a*b+c?",
    "(?:ab|cd){2,3}",
    "[^abc]+",
    r"\d{3}-\d{4}",
    "(?i)h\u00e9llo",
    ".*\u00e9.*",
    "[\u00e0-\u00ff]+x?",
    "",
    "a||b",
    "(a|b)*abb",
    "\\x41\u00e9",
    "^a$",
    "a^b",
    "(^a|b)+",
    "[]a]+",
    r"[a\-z]+",
    "x{2}",
    "(?s).",
    ".",
    r"\bfoo\b.*",
    r"(\b\w+\b ?)+",
    r"x\Bx",
    r"www\.[\w.-]+\.\bcom\b",
    "[\u4e00-\u9fff\U0001f600]+",
    r"(?P<n>a)+?b??",
]
STRINGS = [
    "",
    "a",
    "b",
    "abb",
    "aabb",
    "ab",
    "abcd",
    "ababcd",
    "cdcdcd",
    "abababab",
    "x",
    "xx",
    "\u00e9",
    "H\u00c9LLO",
    "h\u00e9llo",
    "abc@def.com",
    "joe@gmail.com",
    " joe@gmail.com ",
    "123-4567",
    "A\u00e9",
    "]]a",
    "a-z",
    "-",
    "\n",
    "\u4e2d\u6587",
    "\U0001f600",
    "ba",
    "\u00ffx",
    "caf\u00e9",
    "aaabbbc",
    "bbc",
    "foo",
    "foo bar",
    "food",
    "b b",
    "www.google.com",
    "www.googlecom",
]


def walked(pattern: str, s: str) -> bool:
    a, state = automaton(pattern), 0
    for byte in s.encode():
        state = int(a.table[state, a.group[byte]])
    return bool(a.accept[state])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_agree_with_python(pattern: str) -> None:
    wanted = re.compile(pattern, 0 if "(?i" in pattern else re.ASCII)
    assert [s for s in STRINGS if walked(pattern, s)] == [s for s in STRINGS if wanted.fullmatch(s)]


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1",
        "(?=a)",
        "(?!x)",
        "a++",
        "(",
        "[a",
        r"\p{L}",
        "*a",
        "a{2000}",
        "a)",
        "(?m)a",
        r"\y",
        "[z-a]",
        "\\",
        "(?:a?){300}a{300}.{300}",
    ],
)
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(Refused):
        automaton(pattern)


def test_matched(tmp_path: Path) -> None:
    x = text(["joe@gmail.com", "abc"], ["mail: joe@gmail.com", ""])
    m = model([node("RegexFullMatch", ["x"], ["y"], pattern=PATTERNS[1])], {"x": x}, {"y": BOOL})
    agree(tmp_path, m, {"x": x}, {"x": x[:, :0]})
    with pytest.raises(SmeltError, match="back reference") as caught:
        import_model(model([node("RegexFullMatch", ["x"], ["y"], pattern=r"(a)\1")], {"x": x}, {"y": BOOL}))
    assert caught.value.kind == "unsupported"


def test_what_has_no_meaning_for_strings_is_refused() -> None:
    m = model(
        [node("Upsample", ["x", "k"], ["y"])], {"x": WORDS}, {"y": STRING}, {"k": np.ones(2, np.float32)}
    )
    m.opset_import[0].version = 9
    with pytest.raises(SmeltError, match="a tensor of strings where a tensor of numbers is wanted") as caught:
        import_model(m)
    assert caught.value.kind == "unsupported"
    m = model([node("Identity", ["k"], ["y"])], {}, {"y": STRING}, {"k": text("a")})
    m.graph.initializer[0].string_data[0] = b"a\0b"
    with pytest.raises(SmeltError, match="zero byte"):
        import_model(m)
    m.graph.initializer[0].string_data[0] = b"\xff\xfe"
    with pytest.raises(SmeltError, match="UTF-8"):
        import_model(m)


def test_validated_and_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, feeds = tmp_path / "m.onnx", {"x": WORDS, "y": WORDS}
    nodes = [node("StringConcat", ["x", "y"], ["z"]), node("Equal", ["x", "y"], ["e"])]
    onnx.save(model(nodes, feeds, {"z": STRING, "e": BOOL}), path)
    assert main(["validate", str(path)]) == 0
    assert main(["compile", str(path), "-o", str(tmp_path / "out")]) == 0
    shapes = ["--shape", "x:2x3", "--shape", "y:2x3"]
    assert main(["run", str(tmp_path / "out"), "--random", *shapes, "-o", str(tmp_path / "y.npz")]) == 0
    assert "string" in capsys.readouterr().out
    with np.load(tmp_path / "y.npz") as found:
        assert found["z"].dtype.kind == "U"
        assert found["z"].shape == found["e"].shape == (2, 3)
