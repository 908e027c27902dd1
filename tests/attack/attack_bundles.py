"""A seed -> a bundle with one of its files damaged, loaded and run in a forked child, by Python and by C.

Every outcome is the right answer or a refusal: no signal, no hang, no wrong number, no internal error.
A child loads the code itself: this process has not loaded it. One of the bundles has two entries; one has a
state, a sequence, an optional, strings and an output whose size data decides. Manifests are also changed with
a seal that fits, as if by hand. Code whose hash was adapted is not attacked: code is code.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from campaign import Outcome, main
from isolated import isolated
from onnx import TensorProto, helper, numpy_helper
from sequence_models import info, model, opt, seq, tensor

import smelt
from smelt import library
from smelt.capsules import DLTensor
from smelt.cli.main import main as command
from smelt.compiler import compile_here
from smelt.core.bundle import MANIFEST, Bundle, read_bundle, sealed
from smelt.core.diag import SmeltError
from smelt.core.exits import INTERNAL
from smelt.driver import Request
from smelt.library import Held
from smelt.session import _Options
from smelt.shapes import bind, case

FEED = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)
SECONDS = 60.0


# ---------------------------------------------------------------- what is attacked


def _model(scale: float, path: Path) -> None:
    """y = x w; two of them differ in their weights alone."""
    w = (np.arange(256, dtype=np.float32).reshape(16, 16) % 7 - 3) * scale
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 16]) for n in "xy")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [numpy_helper.from_array(w, "w")]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@functools.cache
def bundles() -> tuple[Path, Path]:
    """Two bundles of one name, shape and size; their folder goes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="smelt-attack-")
    _KEPT.append(folder)
    made = []
    for n, scale in enumerate((1.0, 2.0)):
        source = Path(folder.name) / f"{n}.onnx"
        _model(scale, source)
        made.append(Path(folder.name) / f"bundle{n}")
        compile_here(
            Request(source=str(source), output=str(made[-1]), name="probe", prefix="probe", runner=n == 0)
        )
    return made[0], made[1]


@functools.cache
def several() -> Path:
    """A bundle of two entries, both of which are the first bundle's model."""
    first, _ = bundles()
    source, made = str(first.parent / "0.onnx"), first.parent / "several"
    compile_here(Request(
        source="", output=str(made), name="probe", prefix="probe", runner=False,
        entries=(("one", source), ("two", source)), dims={"two/n": (1, 4)},
    ))  # fmt: skip
    return made


_KEPT: list[Any] = []


@functools.cache
def rich() -> Path:
    """A bundle with a state, groups and a late output."""
    first, _ = bundles()
    source, made = first.parent / "rich.onnx", first.parent / "rich"
    node, row = helper.make_node, tensor("f32", ["n", 16])
    nodes = [
        node("MatMul", ["x", "w"], ["m"]), node("Add", ["s", "x"], ["ns"]), node("Add", ["m", "ns"], ["y"]),
        node("NonZero", ["x"], ["z"]), node("ConcatFromSequence", ["xs"], ["c"], axis=0),
        node("Identity", ["o"], ["p"]), node("Identity", ["t"], ["u"]),
    ]  # fmt: skip
    given = {"x": row, "s": row, "xs": seq("f32", ["a"]), "o": opt(tensor("f32", ["k"]))}
    wanted = {"y": row, "ns": row, "z": tensor("i64", [2, "nz"]), "c": tensor("f32", [None])}
    wanted["p"] = opt(tensor("f32", ["k"]))
    whole = model(nodes, given, wanted, {"w": np.eye(16, dtype=np.float32)})
    words = helper.make_tensor_type_proto(TensorProto.STRING, ["l"])
    whole.graph.input.append(info("t", words))
    whole.graph.output.append(info("u", words))
    onnx.save(whole, source)
    compile_here(Request(
        source=str(source), output=str(made), name="probe", prefix="probe", runner=False, state={"s": "ns"}
    ))  # fmt: skip
    return made


RICH_FEED = {
    "x": FEED, "xs": [np.ones(2, np.float32), np.zeros(1, np.float32)], "o": np.ones(3, np.float32),
    "t": np.array(["a", "bc", ""], object),
}  # fmt: skip


_ANSWERS: dict[Path, list[Any]] = {}


def answer(folder: Path) -> list[Any]:
    """Of a whole bundle; a child has loaded its code."""
    if folder not in _ANSWERS:
        how, found = isolated(lambda: _load(folder), SECONDS)
        assert how == "ok", found
        _ANSWERS[folder] = found
    return _ANSWERS[folder]


# ---------------------------------------------------------------- what is done to a file

Damage = Callable[[random.Random, bytes, bytes], bytes]
"""(dice, the file, the same file of the other bundle) -> what takes its place."""


def _cut(r: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: r.choice([0, 1, len(data) // 2, len(data) - 1, r.randrange(len(data))])]


def _flip(r: random.Random, data: bytes, other: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(r.choice([1, 1, 2, 64])):
        made[r.randrange(len(made))] ^= 1 << r.randrange(8)
    return bytes(made)


def _signs(r: random.Random, data: bytes, other: bytes) -> bytes:
    """Two sign bits, which many a sum takes for none."""
    made = bytearray(data)
    for at in r.sample(range(3, len(made), 4), 2):
        made[at] ^= 0x80
    return bytes(made)


def _swap_words(r: random.Random, data: bytes, other: bytes) -> bytes:
    made = bytearray(data)
    a, b = (4 * r.randrange(len(made) // 4) for _ in range(2))
    made[a : a + 4], made[b : b + 4] = made[b : b + 4], made[a : a + 4]
    return bytes(made)


DAMAGES: tuple[Damage, ...] = (
    _cut,
    _flip,
    _signs,
    _swap_words,
    lambda r, data, other: data + b"\0" * r.choice([1, 4, 4096]),
    lambda r, data, other: bytes(len(data)),
    lambda r, data, other: r.randbytes(len(data)),
    lambda r, data, other: other,
    lambda r, data, other: other[: len(data) // 2] + data[len(data) // 2 :],
)

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 7, 1 << 31, 1 << 63, 1 << 200, 1.5, float("nan"), float("inf"), "", "x" * 3_000_000,
    "../../etc/passwd", "/dev/zero", "a\0b", "\ud800", [], {}, [[[[]]]], "f64", "i64", "bf16", "complex64",
    "u2", "n//0", "(" * 500, "n**16**16", "min(" * 50 + "n" + ")" * 50, "-5", "9" * 5000, "n+" * 2000 + "n",
    ["n", 16],
)  # fmt: skip


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every part of a JSON value."""
    found = [at] if at else []
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for k, v in rows:
        found += _places(v, (*at, k))
    return found


def mutate(r: random.Random, manifest: Any) -> tuple[Any, str]:
    """A manifest with one or two places changed, and what was done."""
    made, told = json.loads(json.dumps(manifest)), []
    for _ in range(r.choice([1, 1, 2])):
        places = _places(made)
        *way, last = r.choice([p for p in places if p[0] != "files"] or places)
        inside = functools.reduce(lambda v, k: v[k], way, made)
        deed = r.choice(["put", "put", "put", "drop", "twice", "swap"])
        told.append(f"{deed} {'.'.join(map(str, (*way, last)))}")
        if deed == "put":
            inside[last] = r.choice(HOSTILE)
            told[-1] += f" {inside[last]!r:.40}"
        elif deed == "drop":
            del inside[last]
        elif deed == "twice" and isinstance(inside, list):
            inside.append(inside[last])
        elif isinstance(inside, list):
            r.shuffle(inside)
    return made, "; ".join(told)


def _manifest(r: random.Random, folder: Path, keep_seal: bool) -> str:
    """Damage the manifest; the seal then fits, or is the old one."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    made, told = mutate(r, manifest)
    if not isinstance(made, dict):
        made = {}
    with contextlib.suppress(UnicodeEncodeError):
        raw = json.dumps(made, indent=2, sort_keys=True).encode()
        (folder / MANIFEST).write_bytes(raw if keep_seal else sealed(made)[1])
    return told


TEXTS = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"\xff\xfe",
    b"1" * 10_000,
    b'{"schema_version": 4}',
)


def damage(r: random.Random, folder: Path, other: Path) -> str:
    """Do one thing to a bundle; what it was."""
    names = sorted(p.name for p in folder.iterdir())
    deed = r.choice(
        ["file", "file", "file", "sealed", "sealed", "sealed", "manifest", "text", "gone", "kind", "more"]
    )
    if deed in ("sealed", "manifest"):
        return f"{deed}: {_manifest(r, folder, deed == 'manifest')}"
    if deed == "text":
        (folder / MANIFEST).write_bytes(r.choice(TEXTS))
        return "another text as manifest"
    if deed == "more":
        (folder / "notes.txt").write_text("mine")
        return "a file more"
    name = r.choice(
        ["probe.weights", "probe.weights", "libprobe.so", *names]
        if (folder / "libprobe.so").exists()
        else ["probe.weights", *names]
    )
    file = folder / name
    data = file.read_bytes()
    file.unlink()
    if deed == "kind":
        kinds = [
            lambda: file.mkdir(), lambda: os.mkfifo(file), lambda: file.symlink_to(file),
            lambda: file.symlink_to("/dev/zero"), lambda: file.symlink_to(other / MANIFEST),
        ]  # fmt: skip
        k = r.randrange(len(kinds))
        kinds[k]()
        return f"{name}: another kind of file ({k})"
    if deed == "file":
        k = r.randrange(len(DAMAGES))
        file.write_bytes(
            DAMAGES[k](r, data, (other / name).read_bytes() if (other / name).is_file() else data)
        )
        return f"{name}: damage {k}"
    return f"{name} is gone"


# ---------------------------------------------------------------- who looks at it


def _load(folder: Path) -> Any:
    session = smelt.load(folder)
    if len(session.get_inputs()) == 1:
        return [session[name].run(None, {"x": FEED})[0] for name in session.entries]
    twice = [session.run(None, RICH_FEED) for _ in range(2)]
    state = session.state()
    session.set_state(state)
    return [*twice[0], *twice[1], *state.values(), *session.fork().run(["ns"], RICH_FEED)]


def _readers(folder: Path) -> Any:
    """What reads a manifest and runs nothing, for the shapes that the model has."""
    bundle = read_bundle(folder)
    if [i["name"] for i in bundle.manifest["inputs"]] == ["x"] and len(
        bundle.manifest["inputs"][0]["shape"]
    ) == 2:
        bundle.bind({"x": (2, 16)})
    case(bundle, bind(bundle, {}))
    str(bundle.arenas)
    return None


def _inspect(folder: Path) -> Any:
    """The command line, as a user calls it."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = command(["inspect", str(folder), "--kernels", "--values"])
    if code == INTERNAL:
        raise AssertionError(said.getvalue())
    if code:
        raise SmeltError(said.getvalue())
    return None


def _in_c(folder: Path) -> Any:
    """The whole library by its C functions, told to take its weights from that folder."""
    with Held(Bundle(bundles()[0], read_bundle(bundles()[0]).manifest)) as held:
        lib = held.library()
    session, shape = ctypes.c_void_p(), (ctypes.c_int64 * 2)(*FEED.shape)
    lib.probe_error.restype = ctypes.c_char_p
    options = _Options(ctypes.sizeof(_Options), 1)
    if lib.probe_open(os.fsencode(folder), ctypes.byref(options), ctypes.byref(session)):
        raise SmeltError(str(lib.probe_error(None)))
    made = np.zeros(FEED.shape, np.float32)
    tensors = (DLTensor * 2)()
    for t, a in zip(tensors, (FEED, made), strict=True):
        t.data, t.ndim, t.shape, t.device.device_type = a.ctypes.data, 2, shape, 1
        t.dtype.code, t.dtype.bits, t.dtype.lanes = 2, 32, 1
    if lib.probe_run(
        session, ctypes.byref(tensors[0]), ctypes.c_size_t(1), ctypes.byref(tensors[1]), ctypes.c_size_t(1)
    ):
        raise SmeltError(str(lib.probe_error(session)))
    lib.probe_close(session)
    return [made]


LOOKS: tuple[Callable[[Path], Any], ...] = (_load, _in_c, _inspect, _readers)


def look(way: Callable[[Path], Any], folder: Path, wanted: list[Any]) -> str:
    """One word for what came of it, in this process: 'agrees', 'read', 'refused: KIND', else a defect."""
    try:
        found = way(folder)
    except SmeltError as e:
        return f"refused: {e.kind}"
    except Exception as e:
        return f"raised {type(e).__name__}: {e}"
    if found is None:
        return "read"
    same = len(found) == len(wanted) and all(map(np.array_equal, found, wanted))
    return "agrees" if same else "WRONG VALUES"


def judge(way: Callable[[Path], Any], folder: Path, whole: Path) -> tuple[str, bool]:
    """(what came of it in a forked child, whether that is a defect). whole: the bundle before the damage."""
    wanted = answer(bundles()[0] if way is _in_c else whole)
    code = {b.manifest["files"][b.names.library] for b in (read_bundle(whole), read_bundle(bundles()[0]))}
    assert not code & library._CODE.keys(), "a child would find the code loaded"
    how, said = isolated(lambda: look(way, folder, wanted), SECONDS)
    what = said if how == "ok" else f"{how}: {said}"
    good = what in ("agrees", "read") or (what.startswith("refused: ") and what != "refused: internal")
    return what, not good


def attack(seed: int) -> Outcome:
    """One damage, one look."""
    r = random.Random(seed)
    way = LOOKS[seed % len(LOOKS)]
    whole, other = bundles()
    if seed // len(LOOKS) % 4 > 1:  # half of the seeds
        whole = several() if seed // len(LOOKS) % 2 else rich()
    with tempfile.TemporaryDirectory(prefix="smelt-attack-") as scratch:
        folder = Path(scratch) / "bundle"
        shutil.copytree(whole, folder)
        told = damage(r, folder, other)
        what, bad = judge(way, folder, whole)
    return Outcome(f"{way.__name__[1:]} {what[:60]}", bad, f"{told}\n{what}")


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or ""))
