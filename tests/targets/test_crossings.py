"""What crosses between the host and a unit: copied, or handed over where the memory is the host's, it is the
same; states, caller's tensors, late and empty sizes and failures among it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from boards import needs_opencl, needs_vulkan
from checkouts import FAKE, Checkout, checkout
from crossing_models import ASIDE
from oracle import runtime_session

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

STEP = """
<ir_version: 8, opset_import: ["" : 17]>
step (float[n, 8] x, float[n, 8] past) => (float[n, 8] y, float[n, 8] present) <float[8, 8] v>
{
  [mix] s = MatMul (past, v)
  [near] t = LpNormalization <axis = -1> (s)
  [next] q = MatMul (t, v)
  present = Add (q, x)
  [sum] y = Softmax (present)
}
"""
LATE = """
<ir_version: 8, opset_import: ["" : 17]>
late (float[n, 8] x) => (float[k, 8] y, float[n, 8] z) <float[8, 8] v, float zero>
{
  [mix] a = MatMul (x, v)
  f = ReduceMax <axes = [1], keepdims = 0> (x)
  c = Greater (f, zero)
  [near] rows = Compress <axis = 0> (a, c)
  [next] u = MatMul (rows, v)
  [last] y = Softmax (u)
  [other] z = Softmax (a)
}
"""
BOTH = """
<ir_version: 8, opset_import: ["" : 17]>
both (float[n, 8] x) => (float[n, 8] y, float[n, 8] z, float[n, 8] w) <float[8, 8] v>
{
  [mix] a = MatMul (x, v)
  [near] b = LpNormalization <axis = -1> (a)
  [next] y = MatMul (b, v)
  [last] z = LpNormalization <axis = -1> (y)
  [far] c = MatMul (z, v)
  [sum] w = Softmax (c)
}
"""
AT_THE_HOST = """
def run(session, feed):
    try:
        return session.run(None, feed)
    except smelt.SmeltError as e:
        return str(e)
"""
SCRIPT = """
import os, pickle, sys, smelt
folder = sys.argv[1]
work = pickle.load(open(folder + "/work", "rb"))
bundle = compiled(folder + "/model.onnx", work["target"], output=folder + "/bundle", **work["options"])
found = []
for env in work["envs"]:
    os.environ.update(env)
    session, rows = smelt.load(bundle), []
    for feed in work["feeds"]:
        rows.append((run(session, feed), session.memory(), session.fallback))
    found.append(rows)
    session.close()
    for name in env:
        del os.environ[name]
pickle.dump((found, bundle.manifest), open(folder + "/found", "wb"))
"""
OWN = {"SMELT_OPENCL_WEAK": "unified=0", "SMELT_VULKAN_WEAK": "visible=0"}
ENVS = [
    OWN,
    {"FAKE_SHARES": "apart"},
    {"FAKE_SHARES": "idle"},
    {**OWN, "FAKE_SHARES": "not"},
    {"FAKE_SHARES": "not", "FAKE_LOCKS": "1"},
]
TARGETS = [
    "fake",
    pytest.param("opencl", marks=needs_opencl),
    pytest.param("vulkan", marks=needs_vulkan),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """smelt with one device more."""
    copy = checkout(tmp_path_factory.mktemp("crossings") / "copy")
    copy.add("fake", *FAKE)
    return copy


def model(text: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(text)
    square = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    del made.graph.initializer[:]
    for name, value in {"v": square, "zero": np.zeros((), np.float32)}.items():
        if name == "v" or "zero" in text:
            made.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return made


def ran(
    sources: Checkout, folder: Path, text: str, target: str, feeds: Sequence[Feed],
    envs: Sequence[Mapping[str, str]] = ENVS, run: str = AT_THE_HOST, told: list[str] | None = None,
    **options: Any,
) -> tuple[list[list[Any]], Any]:  # fmt: skip
    """Of each environment: (outputs or error, memory, why it fell back) of each run; and the manifest. told:
    to it goes what the fake device told."""
    onnx.save(model(text), str(folder / "model.onnx"))
    work = {"target": f"x86+{target}", "options": options, "envs": list(envs), "feeds": list(feeds)}
    (folder / "work").write_bytes(pickle.dumps(work))
    done = sources.script(run + SCRIPT, str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    if told is not None:
        told.extend(done.stderr.splitlines())
    return pickle.loads((folder / "found").read_bytes())  # type: ignore[no-any-return]


def rows(*counts: int) -> list[dict[str, Array]]:
    return [{"x": np.random.default_rng(n + 1).standard_normal((n, 8)).astype(np.float32)} for n in counts]


def agree(found: Sequence[Array], want: Sequence[Array]) -> None:
    assert not isinstance(found, str), found
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("near", [["near"], ["mix", "present"], ["sum", "mix"]], ids="-".join)
@pytest.mark.parametrize("target", TARGETS)
def test_a_state_that_crosses(target: str, near: list[str], sources: Checkout, tmp_path: Path) -> None:
    feeds = rows(*[4] * 4)
    found, _ = ran(
        sources, tmp_path, STEP, target, feeds, place=dict.fromkeys(near, "cpu"), state={"past": "present"}
    )
    oracle = runtime_session(model(STEP))
    for steps in found:
        past = np.zeros((4, 8), np.float32)
        for feed, (outputs, _, _) in zip(feeds, steps, strict=True):
            want, past = oracle.run(None, {**feed, "past": past})
            agree(outputs, [want])


@pytest.mark.parametrize("near", [["near"], ["mix", "next"], ["last", "other"]], ids="-".join)
@pytest.mark.parametrize("target", TARGETS)
def test_sizes_that_a_run_decides(target: str, near: list[str], sources: Checkout, tmp_path: Path) -> None:
    """They grow and shrink, and may be none."""
    feeds = [*rows(3, 40, 1, 40), {"x": -np.abs(rows(5)[0]["x"])}]
    found, _ = ran(sources, tmp_path, LATE, target, feeds, place=dict.fromkeys(near, "cpu"))
    oracle = runtime_session(model(LATE))
    for steps in found:
        for feed, (outputs, _, _) in zip(feeds, steps, strict=True):
            agree(outputs, oracle.run(None, dict(feed)))


@pytest.mark.parametrize("target", TARGETS)
def test_outputs_that_both_read(target: str, sources: Checkout, tmp_path: Path) -> None:
    """Also of no rows; working memory is what the manifest says, or less where nothing is copied; and each
    move is a copy, or a handing over."""
    feeds = rows(4, 0, 33, 4)
    near = {"near": "cpu", "last": "cpu", "sum": "cpu"}
    found, manifest = ran(sources, tmp_path, BOTH, target, feeds, place=near, dims={"n": (0, 64)})
    oracle = runtime_session(model(BOTH))
    for env, steps in zip(ENVS, found, strict=True):
        bound = sum(manifest["memory"]["most"])
        allocations = {memory.allocations for _, memory, _ in steps}
        assert len(allocations) == 1, "all is bounded: no run takes memory"
        for feed, (outputs, memory, _) in zip(feeds, steps, strict=True):
            agree(outputs, oracle.run(None, dict(feed)))
            assert memory.arena_bytes <= bound
        last = steps[-1][1]
        runs, moves = 3, len(manifest["transfers"])  # a run of no rows moves nothing
        apart = OWN.items() <= env.items() or (target == "fake" and env["FAKE_SHARES"] == "not")
        copied = moves if apart else 1  # z: the caller has it at the host
        assert [last.crossings, last.shared] == [runs * copied, runs * (moves - copied)]
        pages = 4096 * len(manifest["memory"]["arenas"])
        assert 0 < last.arena_capacity <= bound + pages


AT_A_UNIT = """
def run(session, feed):
    x = session.tensor("x", feed["x"])
    y = session.tensor("y", feed["x"].shape)
    made = session.run_into({"y": y}, {"x": x})
    return [a.numpy() if hasattr(a, "numpy") else a for a in made]
"""


@pytest.mark.parametrize("target", TARGETS)
def test_tensors_of_the_caller(target: str, sources: Checkout, tmp_path: Path) -> None:
    """One that lies at a unit is written and read there, and looked at by the host."""
    feeds = rows(4, 9, 4)
    place = {"last": "cpu", "near": "cpu"}
    found, _ = ran(sources, tmp_path, BOTH, target, feeds, run=AT_A_UNIT, place=place)
    oracle = runtime_session(model(BOTH))
    for steps in found:
        for feed, (outputs, _, _) in zip(feeds, steps, strict=True):
            agree(outputs, oracle.run(None, dict(feed)))


@pytest.mark.parametrize("lost", [{}, {"FAKE_LOST": "1"}])
def test_a_device_fails_at_any_call(lost: dict[str, str], sources: Checkout, tmp_path: Path) -> None:
    """While something crosses, too: then the CPU does the run again."""
    feeds = rows(4, 9)
    envs = [{**env, **lost, "FAKE_BREAKS": str(k)} for env in ENVS for k in range(2, 34)]
    found, _ = ran(
        sources, tmp_path, BOTH, "fake", feeds, envs, place={"last": "cpu", "near": "cpu"}, fallback=True
    )
    oracle = runtime_session(model(BOTH))
    want = [oracle.run(None, dict(feed)) for feed in feeds]
    fell = 0
    for steps in found:
        for (outputs, _, why), expected in zip(steps, want, strict=True):
            agree(outputs, expected)
            fell += why is not None
    assert fell > len(envs) // 2


LOCKED = {"FAKE_SHARES": "not", "FAKE_LOCKS": "1"}


@pytest.mark.parametrize("env", [{}, LOCKED, {"FAKE_SHARES": "not"}], ids=["soon", "locked", "later"])
def test_a_value_is_waited_for_and_no_more(env: dict[str, str], sources: Checkout, tmp_path: Path) -> None:
    """The unit has its other product to make while the host makes its part, for which it does not wait. Where
    every download waits for what is before it (and no memory is locked), it is late."""
    feeds = [{**feed, "k": 2 * feed["x"]} for feed in rows(4)]
    told: list[str] = []
    found, _ = ran(
        sources, tmp_path, ASIDE, "fake", feeds, [{**env, "FAKE_ORDER": "1"}],
        place={"near": "cpu"}, told=told,
    )  # fmt: skip
    outputs, memory, _ = found[0][0]
    agree(outputs, runtime_session(model(ASIDE)).run(None, dict(feeds[0])))
    steps = [line.removeprefix("fake 1: ") for line in told if line.startswith("fake 1: ")]
    waits = [k for k, step in enumerate(steps) if step.startswith("waited")]
    assert [steps[k] for k in waits] == ["waited mark", "waited all"] and memory.waits == 2
    asked = [k for k, step in enumerate(steps) if step == "asked launch matmul"]
    did = [k for k, step in enumerate(steps) if step == "did launch matmul"]
    late = env == {"FAKE_SHARES": "not"}
    assert asked[1] < waits[0] < did[0] and asked[2] < waits[1], "both were begun before the host waited"
    assert (did[1] > waits[1]) != late, "the other product is not what it waited for"
    assert "asked upload" in steps[waits[0] : waits[1]], "what goes up is not waited for"


def test_memory_that_is_locked_and_none_that_is_left(sources: Checkout, tmp_path: Path) -> None:
    """The host's copies are what the driver gives while it gives any; values are the same. A session that is
    closed has given all back."""
    feeds = rows(4, 40, 0, 200)
    envs = [{"FAKE_SHARES": "not", "FAKE_LOCKS": n} for n in "12"]
    near = {"near": "cpu", "last": "cpu"}
    found, _ = ran(sources, tmp_path, BOTH, "fake", feeds, envs, place=near)
    oracle = runtime_session(model(BOTH))
    for steps in found:
        for feed, (outputs, memory, _) in zip(feeds, steps, strict=True):
            agree(outputs, oracle.run(None, dict(feed)))
            assert memory.arena_capacity >= memory.arena_bytes


@needs_opencl
def test_from_one_device_to_another(sources: Checkout, tmp_path: Path) -> None:
    """There and back, in pieces where it is long, through memory that is locked or not; no run asks for more
    of that. A device that fails meanwhile leaves all to the CPU."""
    feeds = rows(4, 0, 40_000, 4)
    breaks = [{**OWN, "FAKE_LOCKS": str(k % 3), "FAKE_BREAKS": str(k)} for k in range(2, 26, 3)]
    found, _ = ran(
        sources, tmp_path, BOTH, "fake+opencl", feeds, [*ENVS, *breaks],
        place={"near": "opencl", "last": "opencl"}, fallback=True, dims={"n": (0, 50_000)},
    )  # fmt: skip
    oracle = runtime_session(model(BOTH))
    want = [oracle.run(None, dict(feed)) for feed in feeds]
    for steps in found:
        for (outputs, _, _), expected in zip(steps, want, strict=True):
            agree(outputs, expected)
    for steps in found[: len(ENVS)]:
        assert {why for _, _, why in steps} == {None}
        assert len({memory.allocations for _, memory, _ in steps}) == 1 and steps[-1][1].crossings > 3 * 3
    assert any(why for steps in found[len(ENVS) :] for _, _, why in steps)
