"""Every form of SparseAttention agrees with its formula, and the formula with ONNX Runtime."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnxruntime
from op_forms import Array, Form, In, Sizes, feeds, form_tests, k, onnx_model, w, weights, x

H, G, D, BLOCK = 4, 2, 16, 16
MASKS = (
    np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]]),
    np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1]]),
)


def compressed(masks: tuple[Array, ...]) -> tuple[Array, Array]:
    """Where each row of blocks begins, and the columns row by row, -1 where another mask has more."""
    begins = [np.append(0, np.cumsum(m.sum(1))) for m in masks]
    columns = [np.nonzero(m)[1] for m in masks]
    most = max(map(len, columns))
    return np.stack(begins), np.stack([np.append(c, [-1] * (most - len(c))) for c in columns])


# B batches, S new rows, P of them before at most, L the buffer
PROMPT = ({"B": 2, "S": 40, "P": 0, "L": 64}, {"B": 1, "S": 1, "P": 0, "L": 64})
STEP = (
    {"B": 2, "S": 1, "P": 40, "L": 64},
    {"B": 1, "S": 1, "P": 17, "L": 48},
    {"B": 1, "S": 5, "P": 30, "L": 64},
)
EVERY = (*PROMPT, *STEP)


def lengths(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    return np.full(shape, sizes["P"] + sizes["S"])


def different(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> Array:
    found = rng.integers(sizes["S"], sizes["P"] + sizes["S"] + 1, shape)
    found[0] = sizes["P"] + sizes["S"]
    return np.asarray(found)


def turned(a: Array, cos: Array, sin: Array, pairs: bool) -> Array:
    """a [S, size] in the planes of its halves, or of neighbours."""
    half = cos.shape[1]
    one, two = (a[:, 0::2], a[:, 1::2]) if pairs else (a[:, :half], a[:, half:])
    real, imaginary = one * cos - two * sin, one * sin + two * cos
    if not pairs:
        return np.concatenate([real, imaginary], 1)
    return np.stack([real, imaginary], 2).reshape(a.shape)


def formula(masks: tuple[Array, ...], pairs: bool, scale: float, *given: Array | None) -> list[Array]:
    """Row by row."""
    query, key, value, keys, values, _, _, total, ends, cos, sin = (*given, None, None)[:11]
    assert (
        query is not None
        and keys is not None
        and values is not None
        and total is not None
        and ends is not None
    )
    batch, rows = query.shape[:2]
    if key is None or value is None:
        query, key, value = np.split(query, [H * D, (H + G) * D], 2)
    keys, values, y = keys.copy(), values.copy(), np.zeros((batch, rows, H, D))
    for b in range(batch):
        before = 0 if int(total) == rows else int(ends[b]) - rows
        new = slice(before, before + rows)
        turn = (lambda a: a) if cos is None else partial(turned, cos=cos[new], sin=sin[new], pairs=pairs)
        for g in range(G):
            own = slice(g * D, (g + 1) * D)
            keys[b, g, new], values[b, g, new] = turn(key[b][:, own]), value[b][:, own]
        for h in range(H):
            mask, g = masks[h % len(masks)], h // (H // G)
            for s, row in enumerate(turn(query[b][:, h * D : (h + 1) * D])):
                at = [t for t in range(before + s + 1) if mask[(before + s) // BLOCK][t // BLOCK]]
                score = np.exp((keys[b, g, at] @ row) * scale)
                y[b, s, h] = score / score.sum() @ values[b, g, at]
    return [y.reshape(batch, rows, H * D).astype(np.float32), keys, values]


def sparse(
    sizes: Any, ends: Any = lengths, *more: In, packed: bool = False, masks: tuple[Array, ...] = MASKS,
    fixed: bool = True, **attrs: Any,
) -> Form:  # fmt: skip
    begins, columns = compressed(masks)
    new = [x(f"B S {n * D}") for n in (H, G, G)]
    if packed:
        new = [x(f"B S {(H + 2 * G) * D}"), None, None]
    layout = [k(a, "i32") for a in (begins, columns)]
    if not fixed:
        layout = [
            x("M Q", "i32", make=lambda rng, shape, s: begins),
            x("M K", "i32", make=lambda rng, shape, s: columns),
        ]
        sizes = [{**s, "M": 2, "Q": begins.shape[1], "K": columns.shape[1]} for s in sizes]
    total = x("", "i32", make=lambda rng, shape, s: s["P"] + s["S"])
    given = [*new, x(f"B {G} L {D}"), x(f"B {G} L {D}"), *layout, total, x("B", "i32", make=ends), *more]
    own = {"num_heads": H, "kv_num_heads": G, "sparse_block_size": BLOCK} | attrs
    wanted = partial(formula, masks, bool(attrs.get("rotary_interleaved")), attrs.get("scale", D**-0.5))
    return Form("SparseAttention", given, own, outputs=3, sizes=sizes, wanted=wanted)


TABLES = (w("64 8"), w("64 8"))
FULL = (np.tril(np.ones((4, 4), int)), MASKS[1])
FORMS = {
    "prompt": sparse(PROMPT),
    "step": sparse(STEP),
    "every": sparse(EVERY),
    "different": sparse(EVERY, different),
    "packed": sparse(EVERY, packed=True),
    "rotary": sparse(EVERY, different, *TABLES, do_rotary=1),
    "rotary, packed, pairs": sparse(EVERY, lengths, *TABLES, packed=True, do_rotary=1, rotary_interleaved=1),
    "one layout": sparse(EVERY, masks=MASKS[:1], scale=0.5),
    "a full layout": sparse(EVERY, masks=FULL),
    "layouts at run time": sparse(EVERY, fixed=False),
}

test_form, test_form_of_unrelated_sizes, test_compiled_form = form_tests(FORMS, fresh=1, native=3)


def test_formula_is_what_onnxruntime_computes() -> None:
    """Of equal lengths: of others its second product reads beside what the first one wrote."""
    for name in ("every", "rotary, packed, pairs", "a full layout"):
        form = FORMS[name]
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(onnx_model(form, name).SerializeToString(), options)
        for at in range(len(form.sizes)):
            given = feeds(form, name, at)
            held = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a.copy()) for n, a in given.items()}
            run = session.io_binding()
            for n, v in held.items():
                run.bind_ortvalue_input(n, v)
            run.bind_output("y0")
            run.bind_ortvalue_output("y1", held["x3"])  # the buffers are written where they lie
            run.bind_ortvalue_output("y2", held["x4"])
            session.run_with_iobinding(run)
            own = weights(form, name)
            args = [None if a is None else given.get(f"x{i}", own.get(i)) for i, a in enumerate(form.inputs)]
            assert form.wanted is not None
            for y, want in zip(run.get_outputs(), form.wanted(*args), strict=True):
                np.testing.assert_allclose(y.numpy().copy(), want, atol=1e-5)
