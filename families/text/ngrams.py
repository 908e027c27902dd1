"""Bindings of text features: n-gram counts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from smelt.core.dim import dmax
from smelt.core.dtype import f32, i64
from smelt.core.ir.graph import Ref
from smelt.importer import strings as st
from smelt.importer.attributes import texts
from smelt.importer.call import Call, OnnxOp

MOST_PLACES = 1 << 28
"""Most elements of the matrix that maps n-grams to columns: a small file must not take all memory."""
MOST_SKIPPED = 64
"""Most skipped elements within an n-gram: each number of them is a pass over the input."""


def _tf_idf(c: Call) -> Ref:
    """How often each n-gram of the pool occurs, with up to max_skip_count elements between its members."""
    b = c.builder
    strings = texts(c, "pool_strings")
    if strings:  # the strings' numbers take their place
        words = list(dict.fromkeys(strings))
        pool: Sequence[int] = [words.index(s) for s in strings]
        x = st.found(b, st.text(c), words)
    elif st.is_text(c, 0):  # no string is a number
        x = st.found(b, st.text(c), [])
        pool = [-1] * len(c.ints("pool_int64s"))
    else:
        pool, x = c.ints("pool_int64s"), c.cast(c.x(), i64)
    starts, places, shape = [*c.ints("ngram_counts"), len(pool)], c.ints("ngram_indexes"), b.type_of(x).shape
    if len(shape) not in (1, 2):
        raise c.fail(f"input has rank {len(shape)}, wanted 1 or 2")
    x = b.reshape(x, (1, shape[0])) if len(shape) == 1 else x
    _check_pool(c, starts, places)
    first, counted = 0, []
    for size, (start, end) in enumerate(itertools.pairwise(starts), 1):
        grams = np.array(pool[start:end], np.int64).reshape(-1, size)
        own, first = places[first : first + len(grams)], first + len(grams)
        if len(grams) and c.integer("min_gram_length") <= size <= c.integer("max_gram_length"):
            counted.append((own, _occurrences(c, x, grams)))
    total = max(places, default=-1) + 1
    order = [p for own, _ in counted for p in own]
    if len(order) * total > MOST_PLACES:
        raise c.unsupported(f"{len(order)} n-grams in {total} columns", try_="places without gaps")
    spread = np.zeros((len(order), total), np.float32)
    spread[np.arange(len(order)), order] = 1.0
    if not counted:
        return b.broadcast_to(b.constant(np.array(0, np.float32)), (*shape[:-1], total))
    found = c.emit("concat", *(n for _, n in counted), axis=1) if len(counted) > 1 else counted[0][1]
    y = c.emit("matmul", found, b.constant(spread))
    mode = c.text("mode")
    if mode in ("IDF", "TFIDF"):
        given = c.floats("weights", (1.0,) * len(places))
        if len(given) != len(places):
            raise c.fail(f"weights has {len(given)} entries for {len(places)} n-grams")
        weights = np.ones(total, np.float32)
        weights[list(places)] = [given[k] for k in range(len(places))]
        base = c.emit("min", y, c.scalar(1, y)) if mode == "IDF" else y
        y = c.emit("mul", base, b.constant(weights))
    return b.reshape(y, (*shape[:-1], total))


def _check_pool(c: Call, starts: Sequence[int], places: Sequence[int]) -> None:
    """Raise SmeltError where the pool's ranges or the columns are out of range."""
    for size, (start, end) in enumerate(itertools.pairwise(starts), 1):
        if not 0 <= start <= end or (end - start) % size:
            raise c.fail(
                f"ngram_counts {list(starts[:-1])[:8]} does not cut a pool of {starts[-1]} into n-grams"
            )
    grams = sum((end - start) // size for size, (start, end) in enumerate(itertools.pairwise(starts), 1))
    if len(places) != grams:
        raise c.fail(f"ngram_indexes has {len(places)} entries for {grams} n-grams")
    if any(not 0 <= p < MOST_PLACES for p in places):
        raise c.fail(f"ngram_indexes has an entry outside 0..{MOST_PLACES - 1}")
    if not 0 <= c.integer("max_skip_count") <= MOST_SKIPPED:
        raise c.fail(f"max_skip_count is {c.integer('max_skip_count')}, wanted 0..{MOST_SKIPPED}")


def _occurrences(c: Call, x: Ref, grams: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Ref:
    """f32[batch, grams]."""
    b = c.builder
    batch, n = b.type_of(x).shape
    count, size = grams.shape
    total = ""
    for skip in range(c.integer("max_skip_count") + 1 if size > 1 else 1):
        pace = skip + 1
        windows = c.engine.simplify(dmax(n - (size - 1) * pace, 0))
        hits = ""
        for k in range(size):
            part = b.slice_axis(x, 1, c.engine.simplify(n - dmax(n - k * pace, 0)), n)
            part = b.slice_axis(part, 1, 0, windows)
            same = c.emit(
                "equal", b.reshape(part, (batch, 1, windows)), b.constant(grams[:, k].reshape(1, count, 1))
            )
            hits = c.emit("and", hits, same) if hits else same
        found = c.emit("reduce_sum", b.cast(hits, f32), axes=(2,), keepdims=False)
        total = c.emit("add", total, found) if total else found
    return total


ROWS: tuple[OnnxOp, ...] = (OnnxOp("TfIdfVectorizer", 9, _tf_idf),)
