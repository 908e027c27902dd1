"""Bounded dims: open reserves every arena and output, at units too, and no run takes memory after it."""

from __future__ import annotations

import json
import pickle
import subprocess
from pathlib import Path
from typing import Any

import installed
import numpy as np
import onnx
import pytest
from boards import needs_opencl
from checkouts import FAKE, Checkout, checkout
from onnx import numpy_helper, parser
from oracle import runtime_session
from state_models import LSTM_STATE, lstm, lstm_by_hand

import smelt
from smelt.compiler import compile_here
from smelt.core.bundle import Bundle
from smelt.driver import Request

SOURCE = Path(__file__).parent / "runtime_c" / "sealed.c"

PLAIN = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,M] x) => (float[N,M] y) {
  a = Exp(x)
  s = ReduceSum<keepdims = 1>(a, ax)
  b = Transpose<perm = [1, 0]>(a)
  c = MatMul(a, b)
  d = MatMul(c, a)
  y = Div(d, s)
}"""
"""Stored values of three sizes; its products run on all threads."""

LATE = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,M] x) => (float[C] y, int64[2,K] where) {
  where = NonZero(p)
  p = Relu(x)
  rows = Transpose<perm = [1, 0]>(where)
  picked = GatherND(x, rows)
  e = Exp(picked)
  f = CumSum(e, zero)
  y = Mul(f, picked)
}"""
"""How many elements there are is known in the middle of the run."""

BRANCHES = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,M] x) => (float[R] y) {
  p = Relu(x)
  flat = Reshape(p, all)
  total = ReduceSum<keepdims = 0>(x)
  low = Less(total, level)
  w = If(low) <
THEN ELSE>
  y = Softmax<axis = 0>(w)
}""".replace(
    "THEN", "then_branch = t () => (float[A] a) { a = Concat<axis = 0>(flat, flat) },"
).replace(
    "ELSE", "else_branch = e () => (float[B] b) { f = NonZero(flat) at = Squeeze(f) b = Gather(flat, at) }"
)  # fmt: skip
"""A condition decides of two sizes, one of which is known late."""


def model(text: str, **held: np.ndarray[Any, Any]) -> onnx.ModelProto:
    lines = text.splitlines()
    nodes = sorted(lines[2:-1], key=lambda line: "p = Relu" not in line)
    made = parser.parse_model("\n".join([*lines[:2], *nodes, "}"]))
    made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in held.items())
    return made


MODELS = {
    "plain": model(PLAIN, ax=np.array([1], np.int64)),
    "late": model(LATE, zero=np.array(0, np.int64)),
    "branches": model(BRANCHES, all=np.array([-1], np.int64), level=np.array(99, np.float32)),
}
BOUNDS = {"N": (1, 96), "M": (1, 80)}
SHAPES = ("3x8", "96x80", "1x1", "17x80", "96x1")


def bundle(name: str, folder: Path, dims: dict[str, Any]) -> Bundle:
    onnx.save(MODELS[name], str(folder / "net.onnx"))
    return compile_here(Request(source=str(folder / "net.onnx"), dims=dims, output=str(folder / "b")))


def sealed(made: Bundle, threads: int) -> subprocess.CompletedProcess[str]:
    """The runs, with no memory to be had after open."""
    gcc = installed.program_path("gcc")
    if gcc is None:
        pytest.skip("no gcc: apt install gcc libc6-dev")
    program = made.path.parent / "sealed"
    command = [gcc, "-std=gnu11", "-w", f"-I{made.path}", str(SOURCE), "-o", str(program)]
    subprocess.run([*command, str(made.path / made.names.library), f"-Wl,-rpath,{made.path}"], check=True)
    words = [program, str(made.path), str(threads), *SHAPES]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == 77:
        pytest.skip("this system has no seccomp")
    return done


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_no_run_takes_memory(name: str, threads: int, tmp_path: Path) -> None:
    """The kernel refuses every mmap, brk and thread, and malloc is counted."""
    made = bundle(name, tmp_path, BOUNDS)
    memory = made.manifest["memory"]
    assert all(n is not None for n in (*memory["most"], *memory["outputs"]))
    assert (len(memory["most"]) > 1) == (name != "plain")
    done = sealed(made, threads)
    assert done.returncode == 0, done.stderr
    calls, allocations, total = done.stdout.split()
    assert (calls, allocations) == ("0", "0")
    want, session = 0.0, smelt.load(made)
    for text in SHAPES:
        shape = tuple(map(int, text.split("x")))
        x = np.arange(np.prod(shape)).reshape(shape) * 37 % 101 / 101 - 0.3
        want += session.run(None, {"x": x.astype(np.float32)})[0].astype(np.float64).sum()
    np.testing.assert_allclose(float(total), want, rtol=1e-3)


def test_without_bounds_memory_follows_the_shapes(tmp_path: Path) -> None:
    """One dim without a bound: nothing that it sizes is reserved, and the program above fails in words."""
    made = bundle("plain", tmp_path, {"M": (1, 80)})
    assert made.manifest["memory"]["most"] == [None]
    done = sealed(made, 1)
    assert done.returncode == 3 and "no more memory" in done.stderr
    session = smelt.load(made)
    assert session.memory().arena_capacity == 0
    session.run(None, {"x": np.zeros((3, 8), np.float32)})
    assert 0 < session.memory().arena_capacity < 1 << 16


@pytest.mark.parametrize("name", MODELS)
def test_bounds_hold_and_are_met(name: str, tmp_path: Path) -> None:
    """No shape within the bounds wants more than what is reserved, and the largest wants that."""
    made = bundle(name, tmp_path, BOUNDS)
    session = smelt.load(made)
    most = made.manifest["memory"]["most"]
    assert session.memory().arena_capacity >= sum(most)
    for shape in ((1, 1), (50, 7), (96, 80)):
        session.run(None, {"x": np.ones(shape, np.float32)})
        assert session.memory().arena_bytes <= sum(most)
    whole = sum(most) if name != "branches" else most[0]  # a run takes one of them
    assert session.memory().arena_bytes >= whole
    session.trim()
    assert session.memory().arena_capacity == 0
    session.run(None, {"x": np.ones((2, 2), np.float32)})
    assert session.memory().arena_capacity >= whole, "again at once"


def test_more_than_there_is_is_refused_at_open(tmp_path: Path) -> None:
    made = bundle("plain", tmp_path, {"N": (1, 200_000), "M": (1, 200_000)})
    (most,) = made.manifest["memory"]["most"]
    assert most is not None and most > 1 << 38
    with pytest.raises(smelt.SmeltError, match="within the bounds of its dims"):
        smelt.load(made)


AT_UNITS = """
import json, pickle, sys, smelt
folder, target, state = sys.argv[1:]
feeds, dims = pickle.load(open(folder + "/given", "rb"))
made = compiled(folder + "/net.onnx", target, output=folder + "/b", dims=dims, state=json.loads(state))
session, rows = smelt.load(made), []
opened = session.memory()
for feed in feeds:
    before, found, after = session.memory(), session.run(None, feed), session.memory()
    rows.append((found, after.allocations - before.allocations, after.uploads - before.uploads))
pickle.dump((rows, opened.arena_capacity, made.manifest), open(folder + "/rows", "wb"))
"""
UNITS = ["x86+fake", pytest.param("x86+opencl", marks=needs_opencl)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """smelt with one device more."""
    copy = checkout(tmp_path_factory.mktemp("reserved") / "copy")
    copy.add("fake", *FAKE)
    return copy


def at_unit(
    sources: Checkout, folder: Path, made: onnx.ModelProto, target: str, feeds: list[dict[str, Any]],
    dims: dict[str, Any], state: dict[str, str],
) -> tuple[list[tuple[list[Any], int, int]], int, dict[str, Any]]:
    """(outputs, memory that was taken, uploads) of each run; the arenas' capacity at open; the manifest."""
    onnx.save(made, str(folder / "net.onnx"))
    (folder / "given").write_bytes(pickle.dumps((feeds, dims)))
    done = sources.script(AT_UNITS, str(folder), target, json.dumps(state))
    assert done.returncode == 0, done.stderr
    return pickle.loads((folder / "rows").read_bytes())  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", UNITS)
def test_no_run_takes_memory_at_a_unit(target: str, name: str, sources: Checkout, tmp_path: Path) -> None:
    """Arenas, inputs and outputs there, and what the host has of outputs."""
    shapes = [tuple(map(int, text.split("x"))) for text in SHAPES]
    feeds = [{"x": np.arange(n * m, dtype=np.float32).reshape(n, m) % 7 / 7 - 0.3} for n, m in shapes]
    rows, capacity, manifest = at_unit(sources, tmp_path, MODELS[name], target, feeds, BOUNDS, {})
    assert capacity >= sum(manifest["memory"]["most"]) > 0
    oracle = runtime_session(MODELS[name])
    for feed, (found, taken, uploads) in zip(feeds, rows, strict=True):
        assert taken == 0 and uploads > 0
        for got, want in zip(found, oracle.run(None, feed), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("target", UNITS)
def test_no_step_takes_memory_at_a_unit(target: str, sources: Checkout, tmp_path: Path) -> None:
    """The state's memory is there before the first step, and its zeros are made there."""
    rng, hand = np.random.default_rng(5), lstm_by_hand(700)
    feeds = [{"x": rng.standard_normal((1, 700, 4)).astype(np.float32)} for _ in range(3)]
    rows, _, manifest = at_unit(sources, tmp_path, lstm(), target, feeds, {"batch": (1, 900)}, LSTM_STATE)
    assert all(row["most"] for row in manifest["state"])
    for feed, (found, taken, _) in zip(feeds, rows, strict=True):
        assert taken == 0
        np.testing.assert_allclose(found[0], hand.run(feed)["y"], rtol=1e-3, atol=1e-4)
