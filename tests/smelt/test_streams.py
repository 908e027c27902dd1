"""Streams: items in order, stages at once, errors where they belong; from Python, and of two models in C."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from boards import needs_opencl
from installed import needed
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.core.bundle import Bundle
from smelt.core.diag import SmeltError

HERE = Path(__file__).resolve().parent
RNG = np.random.default_rng(3)
WEIGHTS = {n: RNG.standard_normal((4, 3)).astype(np.float32) for n in ("det", "rec")}
SECONDS = 60


def product(weights: np.ndarray[Any, Any]) -> onnx.ModelProto:
    """x[n, 4] times weights."""
    shapes = {"x": ["n", 4], "y": ["n", weights.shape[1]]}
    x, y = (helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in shapes.items())
    held = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    folder = tmp_path_factory.mktemp("streams")
    return {n: smelt.compile(product(w), name=n, output=folder / n, static=True) for n, w in WEIGHTS.items()}


def frames(count: int) -> list[dict[str, Any]]:
    """Items whose number of rows changes; some have none."""
    return [{"k": i, "x": RNG.standard_normal((i % 4, 4)).astype(np.float32)} for i in range(count)]


def widen(values: Any) -> dict[str, Any]:
    return {"wide": np.concatenate([values["boxes"], values["x"][:, :1]], axis=1)}


def stages(bundles: dict[str, Bundle]) -> list[Any]:
    det, rec = (smelt.load(bundles[n]) for n in ("det", "rec"))
    return [
        smelt.Stage(det, outputs={"y": "boxes"}), widen, smelt.Stage(rec, inputs={"x": "wide"}, name="reader")
    ]  # fmt: skip


def check(item: dict[str, Any], result: dict[str, Any]) -> None:
    assert list(result) == ["k", "x", "boxes", "wide", "y"] and result["k"] == item["k"]
    boxes = item["x"] @ WEIGHTS["det"]
    np.testing.assert_allclose(result["boxes"], boxes, rtol=1e-4, atol=1e-5)
    wide = np.concatenate([boxes, item["x"][:, :1]], axis=1)
    np.testing.assert_allclose(result["y"], wide @ WEIGHTS["rec"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth", [None, 1, 2, 9])
def test_results_come_in_order(bundles: dict[str, Bundle], depth: int | None) -> None:
    given = frames(60)
    with smelt.Stream(stages(bundles), depth) as stream:
        for _ in range(2):  # a stream serves one loop after the other
            results = list(stream(iter(given)))
            assert len(results) == len(given)
            for item, result in zip(given, results, strict=True):
                check(item, result)
        busy = stream.busy()
        assert list(busy) == ["det", "widen", "reader"] and min(busy.values()) > 0
    assert list(smelt.Stream([lambda values: None])([])) == []


def test_stages_work_at_once() -> None:
    """The second waits until the first is at the next item: one after the other could not."""
    meeting = threading.Barrier(2, timeout=SECONDS)

    def first(values: Any) -> None:
        if values["k"]:
            meeting.wait()

    def second(values: Any) -> None:
        if values["k"] < 20:
            meeting.wait()

    with smelt.Stream([first, second]) as stream:
        assert [r["k"] for r in stream({"k": k} for k in range(21))] == list(range(21))


def test_items_are_taken_as_results_are(bundles: dict[str, Bundle]) -> None:
    taken = 0

    def source() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for item in frames(30):
            taken += 1
            yield item

    with smelt.Stream(stages(bundles), 4) as stream:
        for n, _ in enumerate(stream(source())):
            assert taken <= n + 5  # four under way, and the one that made room for itself
        assert taken == 30


def test_an_error_is_its_items(bundles: dict[str, Bundle]) -> None:
    def picky(values: Any) -> dict[str, Any] | None:
        if values["k"] == 7:
            raise KeyError("seven")
        return {"x": np.zeros((1, 5), np.float32)} if values["k"] == 3 else None

    det = smelt.load(bundles["det"])
    with smelt.Stream([picky, det]) as stream:
        seen = []
        with pytest.raises(SmeltError, match=r"stage 'det', item 3: input 'x'.* 5") as caught:
            seen += list(stream(frames(9)))
        assert caught.value.kind == "shape"
        loop = stream(f for f in frames(9) if f["k"] != 3)
        assert [next(loop)["k"] for _ in range(6)] == [0, 1, 2, 4, 5, 6]
        with pytest.raises(KeyError, match="seven") as own:
            next(loop)
        assert own.value.__notes__ == ["in stage 'picky' of a smelt.Stream, item 6"]
        assert next(loop, None) is None
        assert len(list(stream(frames(3)))) == 3
    with (
        smelt.Stream([det]) as stream,
        pytest.raises(SmeltError, match="input 'x': the item has no value 'x', but z"),
    ):
        list(stream([{"z": 1}]))
    with (
        smelt.Stream([lambda values: 5]) as stream,
        pytest.raises(SmeltError, match="it returned int, wanted a dict"),
    ):  # type: ignore[list-item, return-value]
        list(stream([{}]))


def test_a_loop_that_is_left_leaves_the_stream_free(bundles: dict[str, Bundle]) -> None:
    with smelt.Stream(stages(bundles)) as stream:
        for result in stream(frames(50)):
            if result["k"] == 5:
                break
        loop = stream(frames(5))
        next(loop)
        with pytest.raises(SmeltError, match="the stream is in another loop"):
            next(stream(frames(1)))
        loop.close()  # type: ignore[attr-defined]
        assert len(list(stream(frames(5)))) == 5
    with pytest.raises(SmeltError, match="the stream is closed"):
        next(stream(frames(1)))


def test_a_stream_that_is_closed_in_a_loop(bundles: dict[str, Bundle]) -> None:
    """What is under way is finished; what is new is refused."""
    stream = smelt.Stream(stages(bundles), 3)
    loop = stream(frames(30))
    assert next(loop)["k"] == 0
    stream.close()
    with pytest.raises(SmeltError, match="the stream is closed"):
        list(loop)


def test_what_is_no_stream(bundles: dict[str, Bundle]) -> None:
    det = smelt.load(bundles["det"])
    for made, why in (
        ([], "a stream needs a stage"),
        ([det, 5], "stage 1: wanted a session or a function, got 5"),
        ([det, smelt.Stage(det, name="again")], "stages 'det' and 'again' share a session"),
    ):
        with pytest.raises(SmeltError, match=why) as caught:
            smelt.Stream(made)  # type: ignore[arg-type]
        assert caught.value.kind == "invalid"
    with pytest.raises(SmeltError, match="depth: wanted a count from 1 on, got 0"):
        smelt.Stream([det], 0)
    with smelt.Stream([lambda values: None, lambda values: None]) as stream:
        assert list(stream.busy()) == ["<lambda>", "<lambda> (stage 1)"]
    with smelt.Stream([det, smelt.Stage(det.fork(), inputs={"x": "k"}, outputs={"y": "z"})]) as stream:
        (result,) = stream([{"x": np.ones((2, 4), np.float32), "k": np.ones((1, 4), np.float32)}])
        assert result["y"].shape == (2, 3) and result["z"].shape == (1, 3)


def test_a_forked_child_makes_its_own(bundles: dict[str, Bundle]) -> None:
    with smelt.Stream(stages(bundles)) as stream:
        assert len(list(stream(frames(3)))) == 3
        child = os.fork()
        if not child:
            try:
                next(stream(frames(1)))
            except SmeltError as e:
                os._exit(0 if "before this process was forked" in e.message else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


@needs_opencl
def test_stages_on_different_units(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    """The first model on OpenCL's device, the second on the CPU."""
    on_device = smelt.compile(
        product(WEIGHTS["det"]), name="det", output=tmp_path / "det", target="host+opencl"
    )
    first, *rest = stages(bundles)
    det = smelt.load(on_device)
    with smelt.Stream([smelt.Stage(det, outputs=first.outputs), *rest]) as stream:
        given = frames(20)
        for item, result in zip(given, stream(given), strict=True):
            check(item, result)
    assert det.memory().launches >= 15


def test_results_are_their_own(bundles: dict[str, Bundle]) -> None:
    """No two results share memory, and a run after the stream is right."""
    det = smelt.load(bundles["det"])
    with smelt.Stream([det, smelt.Stage(det.fork(), outputs={"y": "z"})]) as stream:
        results = list(stream(frames(12)))
    for result in results:
        np.testing.assert_array_equal(result["y"], result["z"])
    assert not any(np.shares_memory(a["y"], b["y"]) for a, b in pairwise(results))
    item = frames(4)[3]
    np.testing.assert_allclose(
        det.run(None, {"x": item["x"]})[0], item["x"] @ WEIGHTS["det"], rtol=1e-4, atol=1e-5
    )


PROGRAM = """
#include <stdio.h>
#include "det.h"
#include "rec.h"
static smelt_session *det, *rec;
static float values[8];
static int64_t shape[2] = {2, 4};
static DLTensor picture, text;
static int pushed;
static int fail(const char *why) { return puts(why), 1; }
static int next_picture(DLTensor *to) {
  for (int k = 0; k < 8; k++) values[k] = (float)(pushed + k);
  *to = (DLTensor){.data = values, .device = {1, 0}, .ndim = 2, .dtype = {2, 32, 1}, .shape = shape};
  return pushed++ < 30;
}
static void use(const DLTensor *t) {
  for (int k = 0; k < 6; k++) printf("%.9g ", (double)((const float *)t->data)[k]);
  printf("\\n");
}
int main(int argc, char **argv) {
  if (det_open(argv[1], NULL, &det) || rec_open(argv[argc - 1], NULL, &rec)) return 1;
PAGE
  return 0;
}
"""


def test_the_page_on_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python and its C: results of both models, in order."""
    weights = {"det": RNG.standard_normal((4, 4)).astype(np.float32), "rec": WEIGHTS["rec"]}
    for name, w in weights.items():
        smelt.compile(product(w), name=name, output=tmp_path / name, static=True)
    text = (Path(__file__).parents[2] / "docs" / "streams.md").read_text("utf-8")
    python, c = (
        re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S) for language in ("python", "c")
    )
    monkeypatch.chdir(tmp_path)
    pictures = [np.full((2, 4), k, np.float32) for k in range(5)]
    names: dict[str, Any] = {"pictures": pictures}
    exec(python[0], names)
    np.testing.assert_allclose(
        names["result"]["y"], pictures[4] / 255 @ weights["det"] @ weights["rec"], rtol=1e-4, atol=1e-5
    )
    (tmp_path / "page.c").write_text(PROGRAM.replace("PAGE", c[0]))
    libraries = ["det/libdet.a", "rec/librec.a", "-ldl", "-lpthread", "-lm"]
    subprocess.run(
        [needed("gcc"), "-Wall", "-Werror", "-Idet", "-Irec", "page.c", *libraries, "-o", "page"], check=True
    )
    said = subprocess.run(["./page", "det", "rec"], capture_output=True, text=True, check=True).stdout
    got = np.array([line.split() for line in said.splitlines()], np.float64)
    first = np.arange(8).reshape(2, 4) + np.arange(30)[:, None, None]
    np.testing.assert_allclose(
        got, (first @ weights["det"] @ weights["rec"]).reshape(30, 6), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("words", [("gcc", "-std=c11"), ("g++", "-x", "c++")], ids=["c", "c++"])
def test_two_models_in_one_stream_of_c(
    words: tuple[str, ...], bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    det, rec = bundles["det"].path, bundles["rec"].path
    command = [needed(words[0]), *words[1:], "-Wall", "-Wextra", "-Werror", f"-I{det}", f"-I{rec}"]
    command += [
        str(HERE / "two_stages.c"),
        "-x",
        "none",
        "-o",
        str(tmp_path / "program"),
        f"-L{det}",
        "-ldet",
    ]
    command += [f"-Wl,-rpath,{det}", str(rec / "librec.a"), "-ldl", "-lpthread", "-lm"]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [tmp_path / "program", "40", rec], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 40
    for i, line in enumerate(lines):
        rows = 1 + i % 3
        x = (i + np.arange(4 * rows, dtype=np.float32)).reshape(rows, 4)
        first = (2 * x) @ WEIGHTS["det"]
        second = np.repeat(first[:, :1], 4, axis=1) @ WEIGHTS["rec"]
        got = [np.array(part.split(), np.float64) for part in line.split("|")]
        np.testing.assert_allclose(got[0], first.ravel(), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got[1], second.ravel(), rtol=1e-4, atol=1e-3)
