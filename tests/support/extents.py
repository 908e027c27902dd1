"""Feeds in, the same feeds with extreme extents out: axes of 0 beside axes of 2^62, sizes whose products wrap
around 64 bits, and integers that decide such sizes. No tensor of them takes more than a few megabytes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

Feed: TypeAlias = dict[str, Any]

LONG = (
    2**62, 2**61, 2**60, 2**58, 2**48, 2**40, 2**33, 2**32, 2**32 + 1, 2**31, 2**31 - 1, 2**30, 2**21,
    3037000500, 4294967291, 2642246, 65536,
)  # fmt: skip
"""Extents of empty tensors: powers of two, and those whose square or cube is next to 2^63 or 2^64."""
LARGE = (1 << 20, 1 << 21, 1 << 22, 3_000_000, 70_001)
"""Extents of tensors that have elements; what a model makes of two or three of them does not fit anywhere."""
NUMBERS = (
    0, 1, 2, -1, 1000, -1000, 65536, 2**21, 2**22, 2**31 - 1, 2**31, -(2**31), 2**32, 2**32 + 1, 3037000500,
    2642246, 2**40, 2**61, 2**62, -(2**62), 2**63 - 1, -(2**63),
)  # fmt: skip
SHARED = 10_007
"""The same for an extent that several tensors have, or one of texts."""
MOST_BYTES = 16 << 20
TRIES = 20


def draw(feed: Mapping[str, Any], rng: random.Random) -> Feed:
    """One such feed; the same as given where the inputs have neither axes nor integers."""
    ways = [_empty, _empty, _axes, _numbers, _numbers, _large]
    made = dict(feed)
    for way in rng.sample(ways, rng.choice((1, 1, 2))):
        made = way(made, rng)
    return made


def draws(feed: Mapping[str, Any], seed: str, count: int) -> Iterator[Feed]:
    """Some of them, those that differ from the given one."""
    rng = random.Random(seed)
    for _ in range(count):
        made = draw(feed, rng)
        if any(made[n] is not feed[n] for n in feed):
            yield made


def text(feed: Mapping[str, Any]) -> str:
    """The feed for people: shapes, and the elements of small integer tensors."""
    return ", ".join(f"{n}: {_text(v)}" for n, v in feed.items())


def _text(v: Any) -> str:
    if not isinstance(v, np.ndarray):
        return f"{type(v).__name__}"
    numbers = f"={v.tolist()}" if v.dtype.kind in "iu" and 0 < v.size <= 8 else ""
    return f"{v.dtype}{list(v.shape)}{numbers}"


def _arrays(feed: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {n: v for n, v in feed.items() if isinstance(v, np.ndarray)}


def _shaped(v: np.ndarray[Any, Any], shape: tuple[int, ...], most: int) -> np.ndarray[Any, Any] | None:
    """v's elements over and over in another shape; None where NumPy has no such array, or it is too large."""
    if shape == v.shape:
        return v
    whole = math.prod(n for n in shape if n) * v.itemsize
    if whole >= 2**63 or (0 not in shape and whole > most):
        return None
    if 0 in shape or not v.size:
        return np.zeros(shape, v.dtype)
    return np.resize(v, shape)


def _mapped(feed: Feed, numbers: Mapping[int, int], most: int = MOST_BYTES) -> Feed | None:
    """Each extent replaced by another, the same everywhere."""
    made = dict(feed)
    for name, v in _arrays(feed).items():
        new = _shaped(v, tuple(numbers.get(n, n) for n in v.shape), most)
        if new is None:
            return None
        made[name] = new
    return made


def _empty(feed: Feed, rng: random.Random) -> Feed:
    """Equal extents stay equal: one or two become 0, some of the others long."""
    known = sorted({n for v in _arrays(feed).values() for n in v.shape})
    if not known:
        return feed
    for _ in range(TRIES):
        none = rng.sample(known, min(len(known), rng.choice((1, 1, 1, 2))))
        long = [n for n in known if n not in none and rng.random() < 0.5]
        made = _mapped(feed, {**dict.fromkeys(none, 0), **{n: rng.choice(LONG) for n in long}})
        if made is not None:
            return made
    return feed


def _axes(feed: Feed, rng: random.Random) -> Feed:
    """The axes of one tensor, each as it comes."""
    arrays = {n: v for n, v in _arrays(feed).items() if v.ndim}
    if not arrays:
        return feed
    name = rng.choice(sorted(arrays))
    v = arrays[name]
    for _ in range(TRIES):
        shape = tuple(rng.choice((n, 0, 1, rng.choice(LONG))) for n in v.shape)
        new = _shaped(v, shape, MOST_BYTES)
        if new is not None:
            return {**feed, name: new}
    return feed


def _large(feed: Feed, rng: random.Random) -> Feed:
    """One extent becomes some millions."""
    known = sorted({n for v in _arrays(feed).values() for n in v.shape})
    if not known:
        return feed
    chosen, long = rng.choice(known), rng.choice(LARGE)
    holders = [v for v in _arrays(feed).values() if chosen in v.shape]
    if len(holders) > 1 or any(v.dtype == object for v in holders):
        long = SHARED  # a window over as many elements, or as many texts, would be right, and slow
    return _mapped(feed, {chosen: long}, 4 * MOST_BYTES) or feed


def _numbers(feed: Feed, rng: random.Random) -> Feed:
    """Integers become extreme: all of a tensor, or some of them."""
    whole = {n: v for n, v in _arrays(feed).items() if v.dtype.kind in "iu" and v.size}
    if not whole:
        return feed
    made = dict(feed)
    for name in rng.sample(sorted(whole), rng.randint(1, len(whole))):
        v = whole[name].copy()
        few = [rng.choice(NUMBERS) for _ in range(3)]
        for at in np.ndindex(v.shape) if v.size <= 4096 else ():
            if rng.random() < 0.7:
                v[at] = np.array(rng.choice(few), np.int64).astype(v.dtype)
        made[name] = v
    return made
