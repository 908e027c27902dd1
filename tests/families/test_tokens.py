"""com.microsoft's Tokenizer agrees with ONNX Runtime, alone and in front of counts of words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from smelt.compiler import compile_here
from smelt.core.diag import SmeltError
from smelt.driver import Request
from smelt.importer import import_model
from smelt.session import load

Array = np.ndarray[Any, Any]
STRING = TensorProto.STRING
LINES = np.array(["abb bab", "", "  ", "aab", "b b  b", "c\u00e9bb \u00e9"], object)
DEFAULTS: dict[str, Any] = {"mark": 0, "pad_value": "#", "mincharnum": 1}


def model(nodes: list[onnx.NodeProto], rank: int, out: int = STRING) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", STRING, [f"n{k}" for k in range(rank)])
    g = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", out, None)])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(g, opset_imports=sets, ir_version=9)


def tokenizer(x: str, y: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Tokenizer", [x], [y], domain="com.microsoft", **{**DEFAULTS, **attributes})


def agree(m: onnx.ModelProto, folder: Path, *feeds: Array) -> None:
    path = folder / "m.onnx"
    onnx.save(m, path)
    own = load(compile_here(Request(str(path), "host", output=str(folder / "out"))))
    want = onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    for x in feeds:
        (g,), (w,) = own.run(None, {"x": x}), want.run(None, {"x": x})
        assert (g.dtype, g.shape, g.tolist()) == (w.dtype, w.shape, w.tolist())


@pytest.mark.parametrize(
    "attributes",
    [
        {"tokenexp": "[a-zA-Z0-9_]+"},
        {"tokenexp": "a|ab"},
        {"tokenexp": "."},
        {"tokenexp": "[a-z]+", "mincharnum": 2, "pad_value": "none"},
        {"tokenexp": "[a-z]+", "mark": 1},
        {"tokenexp": "a*"},
        {"tokenexp": r"\b\w+\b"},
        {"tokenexp": r"\b(\w\w+)\b"},
        {"separators": [" ", "b"]},
        {"separators": [""]},
    ],
)
def test_tokens(attributes: dict[str, Any], tmp_path: Path) -> None:
    """The longest match at the first place, then behind it."""
    agree(model([tokenizer("x", "y", **attributes)], 1), tmp_path, LINES, LINES[:4])


def test_tokens_of_a_table(tmp_path: Path) -> None:
    m = model([tokenizer("x", "y", tokenexp="[a-z]+")], 2)
    agree(m, tmp_path, LINES.reshape(2, 3), np.array([["  ", ""]], object))


def test_counts_of_tokens(tmp_path: Path) -> None:
    """From lines of text to counts of words."""
    some = helper.make_node("StringNormalizer", ["x"], ["n"], stopwords=["The end"], is_case_sensitive=1)
    count = helper.make_node(
        "TfIdfVectorizer", ["t"], ["y"], min_gram_length=1, max_gram_length=2, max_skip_count=0, mode="TF",
        ngram_counts=[0, 3], ngram_indexes=[0, 1, 2, 3], pool_strings=["dog", "Fox", "quick", "quick", "Fox"],
    )  # fmt: skip
    m = model([some, tokenizer("n", "t", tokenexp="[a-zA-Z]+"), count], 1, TensorProto.FLOAT)
    agree(m, tmp_path, np.array(["The quick Fox", "The end", "Fox fox Fox dog", ""], object))


@pytest.mark.parametrize(
    "attributes",
    [{"tokenexp": r"\b[a-z]+\b"}, {"tokenexp": "^a"}, {"separators": ["b+"]}, {"tokenexp": r"(a)\1"}],
)
def test_what_needs_a_look_around_is_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(SmeltError) as caught:
        import_model(model([tokenizer("x", "y", **attributes)], 1))
    assert caught.value.kind == "unsupported"
