"""Hostile feeds of a session in Python -> each is answered by a SmeltError or by the right values.

A seed draws a model (plain tensors; a sequence, an optional and strings), a good feed for it, and what is
done to that: to one or two of the values (objects of every kind that NumPy and DLPack know, of some that they
do not, and of some that call the session themselves), to the mapping, or to the names of the outputs. It runs
in a forked child; after it, the session must still give the right values for the good feed.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import functools
import random
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

sys.path.append(str(Path(__file__).parents[1] / "support"))
from campaign import Outcome, main
from isolated import isolated
from sequence_models import compiled, info, model, opt, seq, tensor

from smelt.core.diag import SmeltError

node = helper.make_node
NEVER: Any = object()
"""What a value means that must be refused."""
EITHER: Any = object()
"""What a value means that may be refused; where it is not, the good value must be what it was taken for."""


# ---------------------------------------------------------------- models and their answers


@dataclass(frozen=True)
class Place:
    """A session, feeds for it, and what it answers."""

    session: Any
    good: Callable[[random.Random], dict[str, Any]]
    answer: Callable[[Mapping[str, Any]], list[Any]]


@functools.cache
def places() -> tuple[Place, Place]:
    """Both models, compiled once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="feeds-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("plain", "grouped"):
        (folder / name).mkdir()
    plain = model(
        [node("Mul", ["x", "two"], ["y"]), node("Add", ["k", "k"], ["z"])],
        {"x": tensor("f32", ["n", 3]), "k": tensor("i64", ["m"])},
        {"y": tensor("f32", ["n", 3]), "z": tensor("i64", ["m"])},
        {"two": np.float32(2)},
    )
    grouped = model(
        [node("ConcatFromSequence", ["xs"], ["c"], axis=0), node("Identity", ["o"], ["p"])],
        {"xs": seq("f32", ["a"]), "o": opt(tensor("f32", ["n"]))},
        {"c": tensor("f32", [None]), "p": opt(tensor("f32", ["n"]))},
    )
    grouped.graph.node.append(node("Identity", ["t"], ["u"]))
    words = helper.make_tensor_type_proto(8, ["w"])
    grouped.graph.input.append(info("t", words))
    grouped.graph.output.append(info("u", words))
    return (
        Place(compiled(plain, str(folder / "plain")), good_plain, lambda f: [f["x"] * 2, f["k"] * 2]),
        Place(
            compiled(grouped, str(folder / "grouped")),
            good_grouped,
            lambda f: [np.concatenate(f["xs"]), f["o"], np.array(f["t"], object)],
        ),
    )


def good_plain(rng: random.Random) -> dict[str, Any]:
    n, m = rng.choice([0, 1, 2, 5]), rng.choice([0, 1, 4])
    return {
        "x": np.arange(3 * n, dtype=np.float32).reshape(n, 3) + np.float32(0.5),
        "k": np.arange(m, dtype=np.int64) * 7 - 3,
    }


def good_grouped(rng: random.Random) -> dict[str, Any]:
    sizes = rng.choices([0, 1, 3], k=rng.randint(1, 3))
    return {
        "xs": [np.full(n, k + 1, np.float32) for k, n in enumerate(sizes)],
        "o": rng.choice([None, np.ones(2, np.float32)]),
        "t": rng.choice([["a", "bc"], [""], ["é", "x" * 9, ""]]),
    }


# ---------------------------------------------------------------- values


class Sub(np.ndarray):
    """A subclass that lies about itself."""

    dtype = property(lambda self: np.dtype(np.float64))  # type: ignore[assignment]
    shape = property(lambda self: (1 << 40, 1 << 40))  # type: ignore[assignment]
    flags = property(lambda self: types.SimpleNamespace(c_contiguous=True))  # type: ignore[assignment]


def having(**methods: Any) -> Any:
    """An object with these methods."""
    return type("Thing", (), methods)()


def raising(kind: type[BaseException]) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        raise kind("no")

    return method


class _Managed(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]  # fmt: skip


KEPT: list[Any] = []


def capsule(name: bytes, **changes: Any) -> Any:
    """A capsule of f32[2, 3] = 0 with changes. Nothing in it is freed; the process ends soon."""
    dims = (ctypes.c_int64 * 2)(*changes.pop("dims", (2, 3)))
    data = (ctypes.c_float * 64)()
    m = _Managed(ctypes.addressof(data), 1, 0, 2, 2, 32, 1, dims, None, 0, None, None)
    if "strides" in changes:
        changes["strides"] = (ctypes.c_int64 * 2)(*changes["strides"])
    for field, value in changes.items():
        setattr(m, field, value)
    KEPT.extend((name, dims, data, m, changes))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(m), name, None)


def dlpack(made: Callable[[], Any], device: Any = (1, 0)) -> Any:
    return having(__dlpack__=lambda self, **kw: made(), __dlpack_device__=lambda self: device)


CAPSULES: tuple[dict[str, Any], ...] = (
    {"lanes": 4}, {"bits": 3}, {"bits": 0}, {"code": 99}, {"code": 5, "bits": 64}, {"device_type": 2},
    {"ndim": 100}, {"dims": (-2, 3)}, {"dims": (1 << 62, 1 << 62)}, {"dims": (1 << 62, 3)},
    {"strides": (-3, 1)}, {"strides": (0, 0)}, {"dims": (0, 1 << 62)}, {"ndim": 1}, {"ndim": 0}, {"bits": 64},
)  # fmt: skip


def values(v: np.ndarray, rng: random.Random) -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """(what it is, -> (an object, what it means)) for a good array v."""
    other = [t for t in "?bhilBHILefdFD" if np.dtype(t) != v.dtype]
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: Any = 1.0
    for _ in range(rng.choice([40, 70, 5000])):
        deep = [deep]
    kinds = (KeyError, RecursionError, MemoryError, OverflowError, ValueError, BufferError, ZeroDivisionError)
    wide = np.empty((*v.shape, 2), v.dtype)
    wide[..., 0] = v
    raw = np.frombuffer(b"\0" + v.tobytes(), np.uint8)[1:].view(v.dtype).reshape(v.shape)
    frozen = v.copy()
    frozen.flags.writeable = False
    change = rng.choice(CAPSULES)
    yield "list", lambda: (v.tolist(), EITHER)
    yield "other type", lambda: (v.astype(rng.choice(other)), NEVER)
    yield "big endian", lambda: (v.astype(v.dtype.newbyteorder(">")), NEVER)
    yield "object array", lambda: (v.astype(object), NEVER)
    yield "strings", lambda: (v.astype(str), NEVER)
    yield "dates", lambda: (np.zeros(v.shape, "M8[s]"), NEVER)
    yield "records", lambda: (np.zeros(v.shape, [("a", v.dtype)]), NEVER)
    yield "ragged", lambda: ([[1.0], [2.0, 3.0]], NEVER)
    yield "a list in itself", lambda: (cycle, NEVER)
    yield "deep list", lambda: (deep, NEVER)
    yield "huge int", lambda: ([1 << rng.choice([64, 70, 20000])], NEVER)
    yield "rank less", lambda: (v.reshape(-1)[0] if v.size else None, NEVER)
    yield "rank more", lambda: (v[None], NEVER)
    yield "an axis more", lambda: (np.zeros((*v.shape[:-1], v.shape[-1] + 4), v.dtype), EITHER)
    yield "rank 32", lambda: (np.zeros((1,) * 32, v.dtype), NEVER)
    yield "none", lambda: (None, NEVER)
    yield "text", lambda: (rng.choice(["", "x", b"x", "1.5"]), NEVER)
    yield "generator", lambda: ((float(i) for i in range(3)), NEVER)
    yield "set", lambda: ({1.0, 2.0}, NEVER)
    yield "dict", lambda: ({0: 1.0}, NEVER)
    yield "class", lambda: (np.ndarray, NEVER)
    yield "fortran order", lambda: (np.asfortranarray(v), v)
    yield "every other", lambda: (wide[..., 0], v)
    yield "negative strides", lambda: (v[::-1], v[::-1])
    yield "zero strides", lambda: (np.broadcast_to(v[:1], v.shape), np.broadcast_to(v[:1], v.shape))
    yield "misaligned", lambda: (raw, v)
    yield "read only", lambda: (frozen, v)
    yield "masked, no mask", lambda: (np.ma.array(v), v)
    yield "masked", lambda: (np.ma.array(v, mask=True), NEVER if v.size else v)
    yield "lying subclass", lambda: (v.view(Sub), v)
    yield "matrix", lambda: (np.asmatrix(v), v if v.ndim == 2 else NEVER)
    yield "more than memory", lambda: (np.broadcast_to(v.dtype.type(1), (1 << 45, *v.shape[1:])), NEVER)
    yield "memoryview", lambda: (memoryview(v.copy()), v)
    yield "__array__", lambda: (having(__array__=lambda self, *a, **kw: v), v)
    yield "__array__ raises", lambda: (having(__array__=raising(rng.choice(kinds))), NEVER)
    yield "__array__ of junk", lambda: (having(__array__=lambda self, *a, **kw: "junk"), NEVER)
    yield "__len__ lies", lambda: (
        having(__len__=lambda self: 1 << 62, __getitem__=lambda self, i: 1.0), NEVER,
    )  # fmt: skip
    yield "array interface of junk", lambda: (
        having(__array_interface__={"shape": (-1,), "typestr": "<f4", "version": 3}), NEVER,
    )  # fmt: skip
    yield "dlpack", lambda: (
        having(__dlpack__=lambda self, **kw: v.__dlpack__(**kw), __dlpack_device__=lambda self: (1, 0)), v,
    )  # fmt: skip
    yield "dlpack without device", lambda: (having(__dlpack__=lambda self, **kw: v.__dlpack__()), EITHER)
    yield "dlpack raises", lambda: (dlpack(raising(rng.choice(kinds))), NEVER)
    yield (
        "dlpack device raises",
        lambda: (
            having(
                __dlpack__=lambda self, **kw: v.__dlpack__(), __dlpack_device__=raising(rng.choice(kinds))
            ),
            EITHER,
        ),
    )
    yield "dlpack of junk", lambda: (dlpack(lambda: rng.choice([None, 7, "x", v, object()])), NEVER)
    yield (
        "dlpack on a device",
        lambda: (
            dlpack(
                lambda: capsule(b"dltensor", device_type=2),
                rng.choice([(2, 0), (10, 0), ("x",), None, (1, -1)]),
            ),
            NEVER,
        ),
    )
    yield "capsule of another name", lambda: (
        dlpack(lambda: capsule(rng.choice([b"used_dltensor", b"junk", b"used_dltensor_versioned"]))), NEVER,
    )  # fmt: skip
    yield f"capsule with {change}", lambda: (dlpack(lambda: capsule(b"dltensor", **change)), EITHER)


def lists(v: Any, rng: random.Random) -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """The same for a sequence."""
    one = np.ones(2, np.float32)
    odd: list[Any] = [
        None, "x", 1.0, [1.0], one.astype(np.float64), one.astype(object), one.astype(">f4"),
        [[1.0], [1.0, 2.0]], one[None], np.float32(1), np.ma.array(one, mask=True),
        dlpack(raising(KeyError)), {}, range(3), [one],
        np.broadcast_to(np.float32(1), (1 << 45,)),
    ]  # fmt: skip
    yield "a tuple", lambda: (tuple(v), v)
    yield "an array", lambda: (np.ones((2, 2), np.float32), EITHER)
    yield "no list", lambda: (rng.choice([None, 5, "xs", {}, {1}, iter(v), b"x", object()]), NEVER)
    yield "an odd element", lambda: ([*v, rng.choice(odd)], NEVER)
    yield "subclasses", lambda: ([a.view(Sub) for a in v], v)
    yield "masked, no mask", lambda: ([np.ma.array(a) for a in v], v)
    yield "with __len__ that lies", lambda: (type("L", (list,), {"__len__": lambda self: 1 << 50})(v), EITHER)


def optionals(v: Any, rng: random.Random) -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """The same for an optional tensor."""
    yield "nothing", lambda: (None, None)
    drawn = values(np.ones(3, np.float32) if v is None else v, rng)
    yield from ((what, made) for what, made in drawn if what != "none")


def texts(v: list[str], rng: random.Random) -> Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]:
    """The same for a tensor of strings."""
    yield "an array", lambda: (np.array(v), v)
    yield "objects", lambda: (np.array(v, object), v)
    yield "bytes", lambda: ([s.encode() for s in v], v)
    yield "a zero inside", lambda: (["a\0b"], NEVER)
    yield "half a pair", lambda: (["\ud800"], NEVER)
    yield "numbers", lambda: (rng.choice([[1, 2], [1.5], np.ones(2), [None], ["a", 1], ["a", ["b"]]]), NEVER)
    yield "no words", lambda: (rng.choice([None, 5, {}, object(), (s for s in v), {"a"}]), NEVER)
    yield "rank more", lambda: ([v], NEVER)
    yield "raises", lambda: (having(__array__=raising(rng.choice((KeyError, RecursionError)))), NEVER)


KINDS: dict[str, Callable[..., Iterator[tuple[str, Callable[[], tuple[Any, Any]]]]]] = {
    "x": values, "k": values, "xs": lists, "o": optionals, "t": texts,
}  # fmt: skip


def reentrant(place: Place, v: Any, rng: random.Random) -> tuple[str, Any]:
    """(what it is, an array v whose conversion calls the session that converts it)."""
    session, good = place.session, place.good(rng)
    calls: dict[str, Callable[[], Any]] = {
        "run": lambda: session.run(None, good), "memory": session.memory, "fork": session.fork,
        "state": session.state, "set_state": lambda: session.set_state({}), "trim": session.trim,
        "entry": lambda: session.entry(session.entries[0]), "close": session.close,
    }  # fmt: skip
    what = rng.choice([c for c in calls if c != "close" or place is places()[0]])  # groups convert before
    told = having(__array__=lambda self, *a, **kw: (calls[what](), v)[1])
    return f"__array__ calls {what}", told


# ---------------------------------------------------------------- mappings and names


class Rude(dict):  # type: ignore[type-arg]
    """A dict whose own method fails; dict's does not."""

    def __getitem__(self, key: Any) -> Any:
        raise ZeroDivisionError


class Abstract(collections.abc.Mapping):  # type: ignore[type-arg]
    """A mapping that is no dict."""

    def __init__(self, feed: Mapping[str, Any], rude: bool) -> None:
        self.feed, self.rude = feed, rude

    def __getitem__(self, key: str) -> Any:
        return 1 // 0 if self.rude else self.feed[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.feed)

    def __len__(self) -> int:
        return len(self.feed)


def mappings(feed: dict[str, Any], rng: random.Random) -> list[tuple[str, Any, Any]]:
    """(what it is, an object, whether it is right) for a good feed."""
    name = rng.choice(list(feed))
    less = {n: v for n, v in feed.items() if n != name}
    return [
        ("none", None, False), ("pairs", list(feed.items()), False), ("text", "x", False),
        ("a number", 3, False),
        ("missing", less, False), ("unknown", {**feed, "q": 1}, False), ("key None", {**less, None: 1},
        False),
        ("a key of bytes", {**feed, b"x": 1}, False), ("a key of a number", {**less, 5: feed[name]}, False),
        ("proxy", types.MappingProxyType(feed), True), ("ordered", collections.OrderedDict(feed), True),
        ("abstract", Abstract(feed, False), True), ("abstract, rude", Abstract(feed, True), False),
        ("rude", Rude(feed), True), ("chain", collections.ChainMap(less, feed), True), ("empty", {}, False),
        ("values alone", list(feed.values()), False), ("class", dict, False),
    ]  # fmt: skip


def namings(names: list[str], rng: random.Random) -> list[tuple[str, Any, Any]]:
    """(what it is, an object, the names that it means or NEVER)."""
    one = rng.choice(names)
    return [
        ("none", None, names), ("no name", [], names), ("one", [one], [one]),
        ("turned", names[::-1], names[::-1]), ("twice", [one, one], [one, one]), ("a tuple", (one,),
        [one]), ("an array", np.array([one]), [one]),
        ("a dict", {one: 1}, [one]), ("generated", (n for n in [one]), [one]), ("text", one, NEVER),
        ("bytes", one.encode(), NEVER), ("unknown", [one, "nope"], NEVER), ("a number", 5, NEVER),
        ("none inside", [None], NEVER), ("lists inside", [[one]], NEVER),
        ("arrays inside", [np.zeros(3)], NEVER), ("rude", (1 // 0 for _ in [0]), NEVER),
        ("long", ["y" * 100000], NEVER),
    ]  # fmt: skip


# ---------------------------------------------------------------- the attack


def equal(got: Any, want: Any) -> bool:
    if want is None or got is None:
        return got is want
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and bool((got == want).all())


def draw(seed: int) -> tuple[Place, str, dict[str, Any], Any, Any, Any, list[str]]:
    """(place, what is done, the good feed, names, feed, what it means or NEVER, outputs wanted)."""
    rng = random.Random(seed)
    place = rng.choice(places())
    good = place.good(rng)
    names = [a.name for a in place.session.get_outputs()]
    fed: Any = dict(good)
    meant: Any = dict(good)
    wanted: Any = names
    asked: Any = None
    done = []
    how = rng.random()
    if how < 0.1:
        what, asked, wanted = rng.choice(namings(names, rng))
        done.append(f"names: {what}")
    elif how < 0.25:
        what, fed, right = rng.choice(mappings(good, rng))
        done.append(f"mapping: {what}")
        meant = meant if right else NEVER
    elif how < 0.3:
        name = "x" if "x" in good else "o"
        what, fed[name] = reentrant(place, np.ones(2, np.float32) if good[name] is None else good[name], rng)
        meant[name] = EITHER
        done.append(f"{name}: {what}")
    else:
        for name in rng.sample(list(good), rng.choice([1, 1, 2])):
            what, make = rng.choice(list(KINDS[name](good[name], rng)))
            fed[name], value = make()
            done.append(f"{name}: {what}")
            if value is NEVER or meant is NEVER:
                meant = NEVER
            elif value is EITHER:
                meant[name] = EITHER
            else:
                meant[name] = value
    return place, ", ".join(done), good, asked, fed, meant, wanted


def attempt(seed: int) -> tuple[str, str]:
    """(what came of it, detail); in a child."""
    place, done, good, asked, fed, meant, wanted = draw(seed)
    doubtful = meant is not NEVER and any(value is EITHER for value in meant.values())
    try:
        got = place.session.run(asked, fed)
        said = "answered"
    except SmeltError as e:
        said = f"refused: {e.kind}"
        if e.kind == "internal" or not str(e).strip():
            return "internal", f"{done}: {e}"
    except BaseException as e:
        return f"raised {type(e).__name__}", f"{done}: {e!r:.500}"
    if said == "answered":
        if meant is NEVER or wanted is NEVER:
            return "took what means nothing", done
        if not doubtful:
            by_name = dict(
                zip([a.name for a in place.session.get_outputs()], place.answer(meant), strict=True)
            )
            if len(got) != len(wanted) or not all(
                equal(g, by_name[n]) for g, n in zip(got, wanted, strict=True)
            ):
                return "wrong values", f"{done}: {got}"
    elif meant is not NEVER and wanted is not NEVER and not doubtful:
        return "refused what is right", done
    after = place.session.run(None, good)
    if not all(map(equal, after, place.answer(good))):
        return "wrong values later", done
    return said, ""


GOOD = ("answered", "refused: shape", "refused: invalid", "refused: device", "refused: unsupported")


def attack(seed: int) -> Outcome:
    """One hostile call."""
    places()  # before the fork, so that each child has them
    how, result = isolated(lambda: attempt(seed))
    if how != "ok":
        return Outcome(f"{how} {result}", failed=True, detail=f"{draw(seed)[1]}")
    what, detail = result
    return Outcome(what, failed=what not in GOOD, detail=detail)


if __name__ == "__main__":
    sys.exit(main(attack, __doc__ or ""))
